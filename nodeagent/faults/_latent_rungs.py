"""The ladder of latent-sector. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from nodeagent.faults import _disk as d
from nodeagent.model.facts import Need, NeedBpf, NeedDmFeature, NeedDmTarget
from nodeagent.model.kind import Context, Rung
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.block import (
    DustSegment,
    ErrorSegment,
    FlakeySegment,
    SegmentKind,
    SplitDelaySegment,
)

if TYPE_CHECKING:
    from nodeagent.faults.latent_sector import Spec


def _bpf_supports(spec: Spec, context: Context) -> str | None:
    if spec.retry_delay:
        return "a BPF program cannot make a bio wait (--retry-delay)"
    return None


def _bpf_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    writes, heal = spec.on_write == "fail", spec.on_write == "heal"
    fail = d.bio_fail(context, reads=True, writes=writes, heal=heal)
    check = d.read_check(d.disk(context).block.layers[0])
    return [
        *d.file_watch(d.disk(context)),
        fail,
        *(() if fail.only else (check,)),  # the agent is in no such cgroup: its reads succeed
        *_evict(spec, context),
    ]


def _dm_steps(
    spec: Spec, context: Context, segment: SegmentKind, *before: StepBase
) -> list[StepBase]:
    bound = d.the_dm_layer(context)
    return [
        *before,
        *d.file_watch(d.disk(context)),
        *d.watch(bound, context.facts),
        d.dm_overlay(bound, segment),
        d.read_check(bound),
        *_evict(spec, context),
    ]


def _evict(spec: Spec, context: Context) -> list[StepBase]:
    return d.cache_drop(d.disk(context)) if spec.evict else []


def _dust_needs(spec: Spec) -> tuple[Need, ...]:
    return (*d.needs_dm(spec), NeedDmTarget("dust"))


def _dust_supports(spec: Spec, context: Context) -> str | None:
    if spec.on_write != "heal":
        return f"dm-dust heals on write (--on-write {spec.on_write})"
    if spec.retry_delay:
        return "dm-dust fails at once (--retry-delay)"
    return d.dm_supports(spec, context)


def _dust_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    bound = d.the_dm_layer(context)
    return _dm_steps(
        spec, context, DustSegment(block_size=bound.layer.logical_block, bad=bound.ranges)
    )


def _watch_needs(spec: Spec) -> tuple[Need, ...]:
    return (NeedBpf("bio_trace"),) if spec.on_write == "heal" else ()


def _delay_needs(spec: Spec) -> tuple[Need, ...]:
    return (*d.needs_split_delay(spec), *_watch_needs(spec))


def _delay_supports(spec: Spec, context: Context) -> str | None:
    if spec.on_write == "fail":
        return "writes pass through the split dm-delay (--on-write fail)"
    return d.dm_supports(spec, context)


def _delay_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    errors = d.error_device(context, d.the_dm_layer(context))
    delay_ms = spec.retry_delay // timedelta(milliseconds=1)
    segment = SplitDelaySegment(error_device=errors.name, delay_ms=delay_ms)
    return _dm_steps(spec, context, segment, errors)


def _flakey_needs(spec: Spec) -> tuple[Need, ...]:
    feature = NeedDmFeature("flakey:error_reads", "6.5")
    return (*d.needs_dm(spec), NeedDmTarget("flakey"), feature, *_watch_needs(spec))


def _flakey_supports(spec: Spec, context: Context) -> str | None:
    if spec.on_write == "fail":
        return "writes pass through dm-flakey's error_reads (--on-write fail)"
    if spec.retry_delay:
        return "dm-flakey fails at once (--retry-delay)"
    return d.dm_supports(spec, context)


def _flakey_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    segment = FlakeySegment(up_s=0, down_s=d.ALWAYS_DOWN_S, error_reads=True)
    return _dm_steps(spec, context, segment)


def _error_supports(spec: Spec, context: Context) -> str | None:
    if spec.on_write != "fail":
        return f"dm-error fails writes too (--on-write {spec.on_write})"
    if spec.retry_delay:
        return "dm-error fails at once (--retry-delay)"
    return d.dm_supports(spec, context)


def _error_plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    return _dm_steps(spec, context, ErrorSegment())


LADDER = (
    Rung(
        "bpf-bio",
        "exact sectors of any live block device",
        d.needs_bio_fail,
        _bpf_plan,
        _bpf_supports,
    ),
    Rung(
        "dm-dust",
        "reads fail, the kernel heals on write",
        _dust_needs,
        _dust_plan,
        _dust_supports,
    ),
    Rung(
        "dm-delay",
        "reads go to an error device, writes pass",
        _delay_needs,
        _delay_plan,
        _delay_supports,
    ),
    Rung("dm-flakey", "error_reads, always down", _flakey_needs, _flakey_plan, _flakey_supports),
    Rung("dm-error", "reads and writes fail", d.needs_dm, _error_plan, _error_supports),
)

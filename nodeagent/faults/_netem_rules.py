"""What a netem spec may not say, in sentences for a person. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from nodeagent.model.netspec import format_rate
from nodeagent.model.units import format_percent

if TYPE_CHECKING:
    from nodeagent.faults.netem import Spec

FRAME = 1514
"""Bytes of a full Ethernet frame."""
SHORTEST = 20
"""Bytes of an IPv4 packet without anything in it, on an interface without a link-layer header."""
_SECOND = timedelta(seconds=1)


def check_spec(spec: Spec) -> None:
    """Raises ValueError with the first thing that is wrong."""
    _check_something(spec)
    _check_jitter(spec)
    _check_pairs(spec)
    _check_sizes(spec)
    _check_models(spec)
    _check_limit(spec)


def _check_something(spec: Spec) -> None:
    losses = [n for n in ("loss", "loss_gilbert", "loss_states") if getattr(spec, n)]
    if len(losses) > 1:
        raise ValueError(f"{' and '.join(losses)} exclude each other: netem has one loss model")
    others = (spec.delay, spec.duplicate, spec.corrupt, spec.rate, spec.slot)
    if not losses and not any(others) and not (spec.jitter or spec.reorder):
        raise ValueError("nothing would happen: give delay, loss, duplicate, corrupt, rate or slot")


def _check_jitter(spec: Spec) -> None:
    if spec.jitter and not spec.delay:
        raise ValueError("jitter goes with delay: packets cannot be early")
    if spec.jitter > spec.delay:
        raise ValueError(
            "jitter is more than delay: it would be cut off at 0, and the mean delay would be more "
            "than what was asked"
        )
    if not spec.jitter:
        for name in ("delay_correlation", "keep_order"):
            if getattr(spec, name):
                raise ValueError(f"{name} goes with jitter")
        if spec.distribution != "uniform":
            raise ValueError("distribution goes with jitter")


def _check_pairs(spec: Spec) -> None:
    for name in ("loss", "duplicate", "corrupt", "reorder"):
        if getattr(spec, f"{name}_correlation") and not getattr(spec, name):
            raise ValueError(f"{name}_correlation goes with {name}")
    if spec.reorder and not spec.delay:
        raise ValueError("reorder goes with delay: only a packet that is not delayed overtakes")
    if spec.gap and not spec.reorder:
        raise ValueError("gap goes with reorder")
    if spec.reorder and spec.keep_order:
        raise ValueError("reorder and keep_order exclude each other")
    cells = (spec.rate_overhead, spec.rate_cell, spec.rate_cell_overhead)
    if any(cells) and spec.rate is None:
        raise ValueError("rate_overhead, rate_cell and rate_cell_overhead go with rate")
    if spec.slot is not None and spec.slot.longest < spec.slot.min:
        raise ValueError("the slot's max is less than its min")


def _check_sizes(spec: Spec) -> None:
    """Below 0 a packet would take hours: packet_time_ns counts without a sign (sch_netem.c)."""
    if spec.rate_overhead < -SHORTEST:
        raise ValueError(
            f"rate_overhead {spec.rate_overhead} would make packets less than nothing: they have "
            f"{SHORTEST} bytes or more"
        )
    if spec.rate_cell_overhead and not spec.rate_cell:
        raise ValueError("rate_cell_overhead goes with rate_cell")
    if spec.rate_cell and spec.rate_cell_overhead <= -spec.rate_cell:
        raise ValueError(
            f"rate_cell_overhead {spec.rate_cell_overhead} would make cells of {spec.rate_cell} "
            "bytes nothing, or less than nothing"
        )


def _check_models(spec: Spec) -> None:
    """What sch_netem takes, and then does nothing, or something else."""
    gilbert, states, slot = spec.loss_gilbert, spec.loss_states, spec.slot
    if gilbert is not None and not (gilbert.good or (gilbert.p and gilbert.bad)):
        raise ValueError("nothing would be lost: loss_gilbert needs p, or a loss in the good state")
    if slot is not None and not slot.longest:
        raise ValueError("the slot takes no time: give it a min or a max")
    if states is None:
        return
    if not (states.p13 or states.p14):
        raise ValueError("nothing would be lost: loss_states needs p13 or p14")
    back = 100 - states.p13 if states.p31 is None else states.p31
    shown = f"p31 ({format_percent(back)}, as none is given)" if states.p31 is None else "p31"
    for names, whole in (
        ("p13 and p14", states.p13 + states.p14),
        (f"{shown} and p32", back + states.p32),
    ):
        if whole > 100:
            raise ValueError(
                f"{names} are {format_percent(whole)} together: both are ways out of one state"
            )


def _check_limit(spec: Spec) -> None:
    """A queue that does not hold what is on the way turns delay into loss (CASES 41)."""
    if spec.limit is None or spec.rate is None or not spec.delay:
        return
    held = spec.rate / 8 * ((spec.delay + spec.jitter) / _SECOND)
    need = int(held // FRAME) + 1
    if spec.limit < need:
        raise ValueError(
            f"limit {spec.limit} is too small: {format_rate(spec.rate)} for that long is "
            f"{need} full packets, the rest would be lost"
        )

"""From a netem spec to sch_netem's own parameters. Pure."""

from __future__ import annotations

from datetime import timedelta
from decimal import ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING

from nodeagent.model.steps.net import FULL, NetemQdisc, Slots

if TYPE_CHECKING:
    from nodeagent.faults.netem import Spec

PACKETS_PER_SECOND = 1_500_000
"""The smallest frames at 1 Gbit/s."""
SMALLEST_FRAME = 84
"""Bytes of it on the wire."""
FLOOR, CEILING = 10_000, 1_000_000
MARGIN = 1.25
ORDERED_RATE = (1 << 63) - 1
"""Bytes per second, which take no time; with a rate netem sends in order (netem_enqueue)."""
_SECOND = timedelta(seconds=1)
_MICROSECOND = timedelta(microseconds=1)


def scaled(share: Decimal) -> int:
    """A percentage in the kernel's scale, where 100 % is 2^32 - 1."""
    return int((share * FULL / 100).to_integral_value(ROUND_HALF_EVEN))


def ns(value: timedelta) -> int:
    return value // _MICROSECOND * 1000


def limit_of(spec: Spec) -> int:
    """Packets that may wait: what arrives within delay and jitter, with a margin."""
    if spec.limit is not None:
        return spec.limit
    late = (spec.delay + spec.jitter) / _SECOND
    if spec.slot is not None:
        late += spec.slot.longest / _SECOND
    per_second = float(PACKETS_PER_SECOND)
    if spec.rate is not None:
        per_second = min(per_second, spec.rate / 8 / SMALLEST_FRAME)
    return max(FLOOR, min(CEILING, int(late * per_second * MARGIN)))


def is_pure_loss(spec: Spec) -> bool:
    """Whether there is nothing but packets lost, each by its own chance."""
    others = (spec.delay, spec.loss_gilbert, spec.loss_states, spec.duplicate, spec.corrupt)
    if any(others) or spec.rate or spec.slot or spec.seed is not None:
        return False
    return bool(spec.loss) and not spec.loss_correlation


def qdisc_of(spec: Spec) -> NetemQdisc:
    """All parameters in the kernel's units."""
    rate = ORDERED_RATE if spec.keep_order else 0
    if spec.rate is not None:
        rate = spec.rate // 8
    return NetemQdisc(
        limit=limit_of(spec),
        delay_ns=ns(spec.delay),
        jitter_ns=ns(spec.jitter),
        delay_corr=scaled(spec.delay_correlation),
        distribution=spec.distribution,
        loss=scaled(spec.loss),
        loss_corr=scaled(spec.loss_correlation),
        gilbert=_gilbert(spec),
        states=_states(spec),
        duplicate=scaled(spec.duplicate),
        duplicate_corr=scaled(spec.duplicate_correlation),
        corrupt=scaled(spec.corrupt),
        corrupt_corr=scaled(spec.corrupt_correlation),
        reorder=scaled(spec.reorder),
        reorder_corr=scaled(spec.reorder_correlation),
        gap=spec.gap or (1 if spec.reorder else 0),
        rate=rate,
        overhead=spec.rate_overhead,
        cell_size=spec.rate_cell,
        cell_overhead=spec.rate_cell_overhead,
        slots=_slots(spec),
        seed=spec.seed,
    )


def _gilbert(spec: Spec) -> tuple[int, int, int, int] | None:
    model = spec.loss_gilbert
    if model is None:
        return None
    back = 100 - model.p if model.r is None else model.r
    return scaled(model.p), scaled(back), FULL - scaled(model.bad), scaled(model.good)


def _states(spec: Spec) -> tuple[int, int, int, int, int] | None:
    model = spec.loss_states
    if model is None:
        return None
    back = 100 - model.p13 if model.p31 is None else model.p31
    shares = (model.p13, back, model.p32, model.p14, model.p23)
    p13, p31, p32, p14, p23 = map(scaled, shares)
    # loss_4state adds the ways out of a state in 32 bits: half and half, rounded up, would be 0.
    return min(p13, FULL - p14), min(p31, FULL - p32), p32, p14, p23


def _slots(spec: Spec) -> Slots | None:
    if spec.slot is None:
        return None
    slot = spec.slot
    return Slots(
        min_ns=ns(slot.min), max_ns=ns(slot.longest), packets=slot.packets, bytes=slot.bytes
    )

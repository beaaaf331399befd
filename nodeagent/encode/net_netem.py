"""Options of sch_netem and sch_tbf as bytes, and read back (net/sched/sch_{netem,tbf}.c). Pure."""

from __future__ import annotations

import struct

from nodeagent.encode import net_attrs as n
from nodeagent.encode.net_dist import table
from nodeagent.model.steps.net import AnyQdisc, NetemQdisc, Slots, TbfQdisc

CORR, DELAY_DIST, REORDER, CORRUPT, LOSS, RATE, ECN, RATE64 = 1, 2, 3, 4, 5, 6, 7, 8
LATENCY64, JITTER64, SLOT, PRNG_SEED = 10, 11, 12, 14
LOSS_GI, LOSS_GE = 1, 2
TBF_PARMS, TBF_RATE64, TBF_BURST = 1, 4, 6
TICK_NS = 64
"""One tick of the scheduler's clock (PSCHED_SHIFT 6, include/net/pkt_sched.h)."""
_MAX32 = 0xFFFFFFFF
_QOPT = struct.Struct("=6I")  # struct tc_netem_qopt
_RATE = struct.Struct("=IiIi")  # struct tc_netem_rate
_SLOT = struct.Struct("=qqiiqq")  # struct tc_netem_slot
_RATESPEC = struct.Struct("=BBHhHI")  # struct tc_ratespec
_TBF = struct.Struct("=12s12sIII")  # struct tc_tbf_qopt
_LINKLAYER_ETHERNET = 1


def qdisc_options(qdisc: AnyQdisc) -> bytes:
    """TCA_OPTIONS of a qdisc that is ours."""
    return netem_options(qdisc) if isinstance(qdisc, NetemQdisc) else tbf_options(qdisc)


def netem_options(q: NetemQdisc) -> bytes:
    """struct tc_netem_qopt and attributes; times both in ticks and in 64-bit nanoseconds."""
    out = _QOPT.pack(_ticks(q.delay_ns), q.limit, q.loss, q.gap, q.duplicate, _ticks(q.jitter_ns))
    out += n.attr(CORR, struct.pack("=3I", q.delay_corr, q.loss_corr, q.duplicate_corr))
    out += n.s64(LATENCY64, q.delay_ns) + n.s64(JITTER64, q.jitter_ns)
    if q.reorder:
        out += n.attr(REORDER, struct.pack("=2I", q.reorder, q.reorder_corr))
    if q.corrupt:
        out += n.attr(CORRUPT, struct.pack("=2I", q.corrupt, q.corrupt_corr))
    if q.gilbert is not None:
        out += n.nest(LOSS, n.attr(LOSS_GE, struct.pack("=4I", *q.gilbert)), flag=True)
    if q.states is not None:
        out += n.nest(LOSS, n.attr(LOSS_GI, struct.pack("=5I", *q.states)), flag=True)
    if q.rate:
        if q.rate > _MAX32:
            out += n.u64(RATE64, q.rate)
        rate = min(q.rate, _MAX32)
        out += n.attr(RATE, _RATE.pack(rate, q.overhead, q.cell_size, q.cell_overhead))
    if q.slots is not None:
        s = q.slots
        out += n.attr(SLOT, _SLOT.pack(s.min_ns, s.max_ns, s.packets, s.bytes, 0, 0))
    if q.seed is not None:
        out += n.u64(PRNG_SEED, q.seed)
    if q.distribution != "uniform":
        values = table(q.distribution)
        out += n.attr(DELAY_DIST, struct.pack(f"={len(values)}h", *values))
    return out


def _ticks(ns: int) -> int:
    return min(ns // TICK_NS, _MAX32)


def parse_netem(options: bytes) -> NetemQdisc:
    """What the kernel shows. It does not show the distribution table. Raises ValueError."""
    _, limit, loss, gap, duplicate, _ = _QOPT.unpack_from(options)
    found = n.attrs(options[_QOPT.size :])
    delay_corr, loss_corr, duplicate_corr = struct.unpack_from("=3I", found[CORR])
    reorder, reorder_corr = struct.unpack_from("=2I", found.get(REORDER, bytes(8)))
    corrupt, corrupt_corr = struct.unpack_from("=2I", found.get(CORRUPT, bytes(8)))
    rate, overhead, cell_size, cell_overhead = _RATE.unpack(found.get(RATE, bytes(16)))
    model = n.attrs(found.get(LOSS, b""))
    return NetemQdisc(
        limit=limit,
        delay_ns=n.number(found[LATENCY64]),
        jitter_ns=n.number(found[JITTER64]),
        delay_corr=delay_corr,
        loss=loss,
        loss_corr=loss_corr,
        gilbert=struct.unpack("=4I", model[LOSS_GE]) if LOSS_GE in model else None,
        states=struct.unpack("=5I", model[LOSS_GI]) if LOSS_GI in model else None,
        duplicate=duplicate,
        duplicate_corr=duplicate_corr,
        corrupt=corrupt,
        corrupt_corr=corrupt_corr,
        reorder=reorder,
        reorder_corr=reorder_corr,
        gap=gap,
        rate=n.number(found[RATE64]) if RATE64 in found else rate,
        overhead=overhead,
        cell_size=cell_size,
        cell_overhead=cell_overhead,
        slots=_slots(found.get(SLOT)),
        seed=n.number(found[PRNG_SEED]) if PRNG_SEED in found else None,
    )


def _slots(raw: bytes | None) -> Slots | None:
    if raw is None:
        return None
    low, high, packets, size, _, _ = _SLOT.unpack(raw)
    unlimited = 0x7FFFFFFF  # what the kernel makes of 0 (get_slot)
    return Slots(min_ns=low, max_ns=high, packets=packets % unlimited, bytes=size % unlimited)


def tbf_options(q: TbfQdisc) -> bytes:
    """struct tc_tbf_qopt; the burst in bytes, which the kernel turns into time itself."""
    rate = _RATESPEC.pack(0, _LINKLAYER_ETHERNET, 0, 0, 0, min(q.rate, _MAX32))
    out = n.attr(TBF_PARMS, _TBF.pack(rate, bytes(12), q.limit, 0, 0))
    if q.rate > _MAX32:
        out += n.u64(TBF_RATE64, q.rate)
    return out + n.u32(TBF_BURST, q.burst)


def parse_tbf(options: bytes) -> TbfQdisc:
    """What the kernel shows; the burst to within the clock's tick. Raises ValueError."""
    found = n.attrs(options)
    spec, _, limit, buffer, _ = _TBF.unpack_from(found[TBF_PARMS])
    rate = _RATESPEC.unpack(spec)[5]
    if TBF_RATE64 in found:
        rate = n.number(found[TBF_RATE64])
    return TbfQdisc(rate=rate, burst=max(1, buffer * TICK_NS * rate // 10**9), limit=limit)


def _is_burst(shown: int, want: TbfQdisc) -> bool:
    """Within the clock's tick; the kernel shows a burst as time, of which 32 bits (tbf_dump)."""
    whole = (_MAX32 + 1) * TICK_NS * want.rate  # bytes times 10^9, as all here
    away = (shown - want.burst) * 10**9 % whole
    return min(away, whole - away) <= 2 * 10**9 + 2 * TICK_NS * want.rate


def differences(want: AnyQdisc, kind: str, options: bytes) -> list[str]:
    """What of a wanted qdisc the kernel does not show, a line each. Raises ValueError."""
    if kind != want.qdisc:
        return [f"qdisc {kind or 'none'} instead of {want.qdisc}"]
    have: AnyQdisc = parse_netem(options) if kind == "netem" else parse_tbf(options)
    wanted, shown = want.model_dump(), have.model_dump()
    if isinstance(want, TbfQdisc):
        if _is_burst(shown["burst"], want):
            shown["burst"] = wanted["burst"]
    else:
        shown["distribution"] = wanted["distribution"]  # not shown by the kernel
        if want.seed is None:
            shown["seed"] = None
    return [
        f"{name} is {shown[name]}, {value} was asked"
        for name, value in wanted.items()
        if shown[name] != value
    ]

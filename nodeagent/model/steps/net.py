"""Steps in a net namespace: a private ifb device with a qdisc, and filters beside what is there.

The interface's own qdiscs are never touched: filters in its clsact send the chosen packets
over the ifb (tc-mirred(8)), whose qdisc delays, loses or shapes them, and which then gives
them back to the interface where they were.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from nodeagent.model.netflow import common
from nodeagent.model.netspec import Flow, format_rate
from nodeagent.model.steps.base import StepBase

Hook = Literal["egress", "ingress"]
Distribution = Literal["uniform", "normal", "pareto", "paretonormal"]
U32 = Annotated[int, Field(ge=0, le=0xFFFFFFFF)]
FULL = 0xFFFFFFFF
"""A probability of 1 in the kernel's 32-bit scale."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NetnsRef(_Frozen):
    """A net namespace: its cookie is never used twice in a boot, its inode and path may be."""

    cookie: int = Field(ge=1, description="SO_NETNS_COOKIE, socket(7)")
    inode: int
    path: str = Field(description="where it was found; only the first place to look")


class Slots(_Frozen):
    """Packets leave in bursts: a slot of packets or bytes, then a pause (netem's slot)."""

    min_ns: int = Field(ge=0)
    max_ns: int = Field(ge=0)
    packets: int = Field(default=0, ge=0, le=0x7FFFFFFF)
    bytes: int = Field(default=0, ge=0, le=0x7FFFFFFF)


class NetemQdisc(_Frozen):
    """sch_netem's parameters in its own units; probabilities of 2^32-1 (net/sched/sch_netem.c)."""

    qdisc: Literal["netem"] = "netem"
    limit: int = Field(ge=1, le=0x7FFFFFFF, description="packets")
    delay_ns: int = Field(default=0, ge=0, lt=1 << 62)
    jitter_ns: int = Field(default=0, ge=0, lt=1 << 31)
    delay_corr: U32 = 0
    distribution: Distribution = "uniform"
    loss: U32 = 0
    loss_corr: U32 = 0
    gilbert: tuple[U32, U32, U32, U32] | None = Field(
        default=None, description="p, r, h (1 - loss when bad), k1 (loss when good)"
    )
    states: tuple[U32, U32, U32, U32, U32] | None = Field(
        default=None, description="p13, p31, p32, p14, p23"
    )
    duplicate: U32 = 0
    duplicate_corr: U32 = 0
    corrupt: U32 = 0
    corrupt_corr: U32 = 0
    reorder: U32 = 0
    reorder_corr: U32 = 0
    gap: U32 = 0
    rate: int = Field(default=0, ge=0, lt=1 << 63, description="bytes per second")
    overhead: int = Field(default=0, ge=-(1 << 31), lt=1 << 31)
    cell_size: U32 = 0
    cell_overhead: int = Field(default=0, ge=-(1 << 31), lt=1 << 31)
    slots: Slots | None = None
    seed: int | None = Field(default=None, ge=0, lt=1 << 64)

    def text(self) -> str:
        """As tc-netem(8) takes it."""
        words = [f"limit {self.limit}"]
        if self.delay_ns:
            words.append(f"delay {_ns(self.delay_ns)}")
            words += [f"{_ns(self.jitter_ns)} {_share(self.delay_corr)}"] if self.jitter_ns else []
            words += [f"distribution {self.distribution}"] if self.distribution != "uniform" else []
        for name in ("loss", "duplicate", "corrupt", "reorder"):
            if getattr(self, name):
                corr = getattr(self, f"{name}_corr")
                words.append(
                    f"{name} {_share(getattr(self, name))}" + (f" {_share(corr)}" if corr else "")
                )
        if self.gilbert is not None:
            p, r, h, k1 = self.gilbert
            words.append("loss gemodel " + " ".join(map(_share, (p, r, FULL - h, k1))))
        if self.states is not None:
            p13, p31, p32, p14, p23 = self.states
            words.append("loss state " + " ".join(map(_share, (p13, p31, p32, p23, p14))))
        words += [f"gap {self.gap}"] if self.gap else []
        if self.rate:
            cells = (self.overhead, self.cell_size, self.cell_overhead)
            words.append(f"rate {format_rate(8 * self.rate)}")
            words += [" ".join(map(str, cells))] if any(cells) else []
        if self.slots is not None:
            words.append(f"slot {_ns(self.slots.min_ns)} {_ns(self.slots.max_ns)}")
            words += [f"packets {self.slots.packets}"] if self.slots.packets else []
            words += [f"bytes {self.slots.bytes}"] if self.slots.bytes else []
        words += [f"seed {self.seed}"] if self.seed is not None else []
        return "netem " + " ".join(words)


class TbfQdisc(_Frozen):
    """sch_tbf: a token bucket; what does not fit in the limit is dropped."""

    qdisc: Literal["tbf"] = "tbf"
    rate: int = Field(ge=1, lt=1 << 63, description="bytes per second")
    burst: int = Field(ge=1, le=FULL, description="bytes")
    limit: int = Field(ge=1, le=FULL, description="bytes that may wait")

    def text(self) -> str:
        """As tc-tbf(8) takes it."""
        return f"tbf rate {format_rate(8 * self.rate)} burst {self.burst} limit {self.limit}"


AnyQdisc = Annotated[NetemQdisc | TbfQdisc, Field(discriminator="qdisc")]


class IfbShaper(StepBase):
    """A private ifb device in a net namespace, its root qdisc as given; nothing goes there yet."""

    op: Literal["ifb_shaper"] = "ifb_shaper"
    fault: str = Field(description="whose it is; part of its mark in the kernel")
    netns: NetnsRef
    name: str = Field(min_length=1, max_length=15)
    qdisc: AnyQdisc

    def key(self) -> str:
        return f"link:{self.netns.cookie}:{self.name}"

    def summary(self) -> str:
        return (
            f"ip link add {self.name} type ifb; "
            f"tc qdisc add dev {self.name} root handle fa17: {self.qdisc.text()}"
        )


class Redirect(_Frozen):
    """Over a private ifb device."""

    act: Literal["redirect"] = "redirect"
    device: str


class Drop(_Frozen):
    """Away without a trace: the sender's stack takes the packet for sent (TC_ACT_STOLEN).

    chance: of 2^32 - 1, by the kernel's own random numbers.
    """

    act: Literal["drop"] = "drop"
    chance: U32 = FULL


class Reject(_Frozen):
    """Back to its sender as a TCP reset, or an ICMP error (bpf/net_reject.bpf.c).

    how: `reset` answers TCP by a reset and all others by port unreachable, as a firewall's
    REJECT does; `unreachable` all by host unreachable, as a router without a route does.
    """

    act: Literal["reject"] = "reject"
    how: Literal["reset", "unreachable"] = "reset"


class Dns(_Frozen):
    """DNS queries for chosen names get an answer of ours, or none, or a late one.

    names: in lower case; `*.x` is all below x, `*` all. device: what late ones go over.
    """

    act: Literal["dns"] = "dns"
    how: Literal["nxdomain", "servfail", "refused", "timeout", "answer", "delay"]
    names: tuple[str, ...] = Field(min_length=1)
    answers: tuple[str, ...] = ()
    ttl_s: int = Field(default=0, ge=0, le=0x7FFFFFFF)
    device: str | None = None

    def text(self) -> str:
        shown = ",".join(self.names[:4]) + (",..." if len(self.names) > 4 else "")
        return f"of DNS queries for {shown}: {','.join(self.answers) or self.how}"


AnyAct = Annotated[Redirect | Drop | Reject | Dns, Field(discriminator="act")]


class TcFilters(StepBase):
    """Filters in an interface's clsact (tc-flower(8)): which packets, and what becomes of them.

    `but` come first and leave the interface alone. Several faults may filter on one
    interface as long as no packet is meant by two of them.
    """

    composes: ClassVar[bool] = True

    op: Literal["tc_filters"] = "tc_filters"
    fault: str = Field(description="whose they are; part of their mark in the kernel")
    netns: NetnsRef
    ifindex: int = Field(ge=1)
    ifname: str
    hook: Hook
    flows: tuple[Flow, ...] = Field(min_length=1)
    but: tuple[Flow, ...] = ()
    act: AnyAct
    names: tuple[Flow, ...] = Field(
        default=(), description="flows by name, whose addresses are among `flows`"
    )
    refresh_s: float = Field(default=0, ge=0, description="the names are resolved again so often")
    resolver_pid: int | None = Field(default=None, description="whose name servers are asked")

    def key(self) -> str:
        return f"tc:{self.netns.cookie}:{self.ifindex}"

    def summary(self) -> str:
        act: str = self.act.act
        if isinstance(self.act, Redirect):
            act = f"redirect to {self.act.device}"
        elif isinstance(self.act, Drop) and self.act.chance != FULL:
            act += f" {_share(self.act.chance)}"
        elif isinstance(self.act, Reject):
            act += f" with {self.act.how}"
        elif isinstance(self.act, Dns):
            act = self.act.text()
        but = f", but not {_some(self.but)}" if self.but else ""
        return f"tc filter add dev {self.ifname} {self.hook} flower {_some(self.flows)}{but}: {act}"

    def overlaps(self, other: StepBase) -> bool:
        """Also what one of them leaves alone: its own exceptions would hold for the other."""
        if not isinstance(other, TcFilters) or other.hook != self.hook:
            return False
        shared = set(self.but) & set(other.but)
        mine = (*self.flows, *(f for f in self.but if f not in shared))
        theirs = (*other.flows, *(f for f in other.but if f not in shared))
        return common(self.flows, theirs) is not None or common(mine, other.flows) is not None


def _some(flows: tuple[Flow, ...]) -> str:
    shown = ", ".join(flow.text() for flow in flows[:4])
    return shown + (f" and {len(flows) - 4} more" if len(flows) > 4 else "")


def _ns(value: int) -> str:
    return f"{value / 1e6:g}ms" if value % 1000 == 0 else f"{value}ns"


def _share(value: int) -> str:
    return f"{value / FULL * 100:.6g}%"

"""netem: packets come late, get lost, twice, damaged or in another order."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Literal

from pydantic import Field, model_validator

from nodeagent.faults import _net as net
from nodeagent.faults._net_names import resolved
from nodeagent.faults._netem_models import GilbertText, SlotText, StatesText
from nodeagent.faults._netem_qdisc import is_pure_loss, limit_of, qdisc_of, scaled
from nodeagent.faults._netem_rules import check_spec
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Need, NeedNet
from nodeagent.model.kind import Context, FaultKind, Measured, Rung
from nodeagent.model.netspec import Bandwidth
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.net import FULL, Drop
from nodeagent.model.units import Duration, Percent

NONE = Decimal(0)


class Spec(net.NetSpec):
    """What becomes of the chosen packets; the words are those of tc-netem(8)."""

    delay: Duration = Field(
        default=timedelta(0), le=timedelta(hours=1), description="packets are so much later"
    )
    jitter: Duration = Field(
        default=timedelta(0),
        le=timedelta(seconds=2),
        description="by up to so much more or less; packets then overtake each other",
    )
    delay_correlation: Percent = Field(
        default=NONE, description="how much a packet's jitter is like that of the last one"
    )
    distribution: Literal["uniform", "normal", "pareto", "paretonormal"] = Field(
        default="uniform", description="how the jitter is spread, sigma being --jitter"
    )
    keep_order: bool = Field(
        default=False, description="no packet overtakes: a late one holds up those behind it"
    )
    loss: Percent = Field(default=NONE, description="share of packets that is lost")
    loss_correlation: Percent = Field(default=NONE, description="losses come in bursts")
    loss_gilbert: GilbertText | None = Field(
        default=None, description="losses by the Gilbert-Elliott model: p, r, bad, good"
    )
    loss_states: StatesText | None = Field(
        default=None, description="losses by the 4-state model: p13, p31, p32, p23, p14"
    )
    duplicate: Percent = Field(default=NONE, description="share of packets that comes twice")
    duplicate_correlation: Percent = Field(default=NONE, description="duplicate comes in bursts")
    corrupt: Percent = Field(default=NONE, description="share of packets with one bit turned")
    corrupt_correlation: Percent = Field(default=NONE, description="corrupt comes in bursts")
    reorder: Percent = Field(
        default=NONE, description="share of packets that is not delayed and so overtakes"
    )
    reorder_correlation: Percent = Field(default=NONE, description="reorder comes in bursts")
    gap: int = Field(default=0, ge=0, lt=1 << 31, description="reorder only every n-th packet")
    rate: Bandwidth | None = Field(default=None, description="packets leave at this rate")
    rate_overhead: int = Field(
        default=0, ge=-1500, le=1500, description="bytes that each packet takes more (or less)"
    )
    rate_cell: int = Field(default=0, ge=0, le=65535, description="bytes of a cell, 0 for none")
    rate_cell_overhead: int = Field(default=0, ge=-1500, le=1500, description="bytes, each cell")
    slot: SlotText | None = Field(
        default=None, description="packets leave in bursts: min, max, packets, bytes"
    )
    limit: int | None = Field(
        default=None, ge=1, lt=1 << 31, description="packets that may wait; by default enough"
    )
    seed: int | None = Field(
        default=None, ge=0, lt=1 << 64, description="of the kernel's random choices (Linux 6.6)"
    )

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        check_spec(self)
        return self


def _needs_netem(spec: Spec) -> tuple[Need, ...]:
    seeded = () if spec.seed is None else (NeedNet("netem:seed"),)
    return (*net.needs_filters("netem", "ifb", "mirred"), *seeded)


def _plan_netem(spec: Spec, context: Context) -> Sequence[StepBase]:
    return net.shaped(spec, context, qdisc_of(spec))


def _needs_drop(spec: Spec) -> tuple[Need, ...]:
    return net.needs_filters("bpf")


def _supports_drop(spec: Spec, context: Context) -> str | None:
    return None if is_pure_loss(spec) else "it can only lose packets, each by its own chance"


def _plan_drop(spec: Spec, context: Context) -> Sequence[StepBase]:
    return net.dropped(spec, context, Drop(chance=scaled(spec.loss)))


LADDER = (
    Rung(
        "netem",
        "sch_netem on a private ifb device; the interface's own qdiscs are not touched",
        _needs_netem,
        _plan_netem,
    ),
    Rung(
        "tc-bpf",
        "filters that drop at random; needs no sch_netem",
        _needs_drop,
        _plan_drop,
        _supports_drop,
    ),
)


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    return _seen(spec, measured).model_copy(update={"details": resolved(measured)})


def _seen(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    found = net.counters(measured)
    matched = found.get("matched_packets", 0)
    all_of_them = matched if scaled(spec.loss) == FULL else 0  # _plan_drop: no chance to count
    lost = found.get("qdisc_drops", found.get("dropped_packets", all_of_them))
    said = []
    if spec.direction == "both" and spec.delay:
        said.append("each direction is delayed: a round trip takes twice the delay")
    if spec.jitter and not spec.keep_order:
        said.append("jitter lets packets overtake each other; --keep-order does not")
    if spec.rate is None and spec.delay and lost and not _loses(spec):
        said.append(f"the queue of {limit_of(spec)} packets was full: that lost packets as well")
    if any(spec.delay or part for part in (spec.rate, spec.slot)):
        return Evidence(counted=True, hits=matched, counters=found, statements=tuple(said))
    if _loses(spec):
        return Evidence(counted=True, hits=lost, counters=found, statements=tuple(said))
    said.append("netem does not count duplicates and damaged packets, only what it handled")
    sure = Decimal(100) in (spec.duplicate, spec.corrupt)
    return Evidence(
        counted=sure, hits=matched if sure else 0, counters=found, statements=tuple(said)
    )


def _loses(spec: Spec) -> bool:
    return bool(spec.loss or spec.loss_gilbert or spec.loss_states)


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["what a program did meanwhile (a time-out, a fail-over, a closed connection) stays"]
    if spec.delay or spec.rate or spec.slot:
        said.append("packets that wait in the queue when the fault ends are lost")
    return tuple(said)


KIND = FaultKind(
    name="netem",
    summary="packets come late, get lost, twice, damaged or in another order",
    doc="""\
The kernel's network emulation (sch_netem) for chosen packets of a workload, in its own net
namespace. Filters send these packets over a private device that has the qdisc, and from there
back to the interface; its own qdiscs (mq, fq_codel, htb, ...) are not touched, packets that do
not match keep their speed and order. The filters and the device are gone after the revert.

--direction says which way: egress is what the target sends. With `both` each direction has the
delay, so that a round trip takes twice as long. --to names the far end in either direction.

Jitter alone lets packets overtake each other, as netem sends each at its own time;
--keep-order keeps them in line, and the mean delay then grows with the traffic's density. Behind
a veth each CPU delivers by itself, so that some packets of a sender that moves between CPUs may
still be swapped. Loss on egress is silent, as on a wire: the sender's stack takes the packet for
sent.

The queue holds what a link of 1.5 million packets per second sends within delay and jitter, up
to a million packets, so that a delay does not turn into loss; --limit changes that. Where
nothing filters on an interface yet, the first fault adds a clsact qdisc and the last one removes
it; at these moments the kernel stops the interface's queues for a few milliseconds.

Host names in --to are resolved when the plan is made, by the hosts file and name servers of the
target, in its namespace; the plan shows all their addresses. They are resolved again every
--refresh, and new addresses are hit too; old ones stay.

Later fragments of a UDP datagram have no ports: filters with ports do not match them.""",
    spec=Spec,
    targets=net.TARGETS,
    ladder=LADDER,
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "move the workload to another node: its new network namespace has no fault",
        "route around: another interface, another path, another replica",
        "tc qdisc del dev INTERFACE clsact in the namespace, which removes all filters there",
    ),
    family="net",
    polled=True,
    guards=net.guards,
    no_hits_hint=net.NO_HITS,
    examples=(
        "faultctl inject netem --pid 4242 --delay 100ms --jitter 20ms --loss 2%",
        "faultctl inject netem --pid 4242 --to 10.0.0.0/8:5432/tcp --direction both --delay 50ms",
        "faultctl inject netem --netns /run/netns/blue --loss-gilbert p=1%,r=10% --seed 7",
        "faultctl inject netem --cgroup /kubepods/pod1 --rate 10mbit --interface eth0",
    ),
)

"""bandwidth: a token bucket before or behind a workload's interface."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from pydantic import Field, model_validator

from nodeagent.faults import _net as net
from nodeagent.faults._net_names import resolved
from nodeagent.model.errors import Refused
from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import Need
from nodeagent.model.kind import Context, FaultKind, Measured, Rung
from nodeagent.model.netspec import Bandwidth
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.net import TbfQdisc
from nodeagent.model.units import Duration, Size

MTU, HEADER = 1500, 14
"""Of Ethernet, in bytes."""
FULL_PACKET = MTU + HEADER
"""Bytes of a full frame; what is larger than the burst is dropped (tbf_enqueue, sch_tbf.c)."""
MAX_BYTES = 0xFFFFFFFF
_SECOND = timedelta(seconds=1)
_TICK = timedelta(milliseconds=4)  # of the slowest kernels' clock, 250 Hz


class Spec(net.NetSpec):
    """How fast the chosen packets may go."""

    rate: Bandwidth = Field(description="sustained rate, headers of the link included")
    burst: Size | None = Field(
        default=None,
        ge=FULL_PACKET,
        le=MAX_BYTES,
        description="bytes that may go at once; by default what the rate allows in 4ms, and two "
        "full packets of the interface",
    )
    latency: Duration = Field(
        default=timedelta(milliseconds=50),
        gt=timedelta(0),
        le=timedelta(minutes=1),
        description="how long a packet may wait before it is dropped",
    )

    @model_validator(mode="after")
    def _fits(self) -> Spec:
        if self.bucket().limit >= MAX_BYTES:
            raise ValueError("rate x latency is more than the 4 GiB that the qdisc can hold")
        return self

    def bucket(self, mtu: int = MTU) -> TbfQdisc:
        """In the kernel's units: bytes per second, bytes."""
        per_second, full = self.rate // 8, max(FULL_PACKET, mtu + HEADER)
        burst = self.burst
        if burst is None:
            burst = max(2 * full, int(per_second * (_TICK / _SECOND)))
        limit = max(full, int(per_second * (self.latency / _SECOND))) + burst
        return TbfQdisc(rate=per_second, burst=min(burst, MAX_BYTES), limit=min(limit, MAX_BYTES))


def _needs(spec: Spec) -> tuple[Need, ...]:
    return net.needs_filters("tbf", "ifb", "mirred")


def _plan(spec: Spec, context: Context) -> Sequence[StepBase]:
    widest = max(net.interfaces(spec.interface, net.net(context)), key=lambda i: i.mtu)
    if spec.burst is not None and spec.burst < widest.mtu + HEADER:
        raise Refused(
            f"a burst of {spec.burst} bytes lets no full packet through",
            f"{widest.name} has packets of {widest.mtu + HEADER} bytes, and larger ones than the "
            "burst are dropped",
            f"--burst {widest.mtu + HEADER}B or more, or none",
        )
    return net.shaped(spec, context, spec.bucket(widest.mtu))


def _evidence(spec: Spec, measured: tuple[Measured, ...]) -> Evidence:
    found = net.counters(measured)
    slowed = sum(item.data.get("qdisc", {}).get("overlimits", 0) for item in measured)
    return Evidence(
        counted=True,
        hits=slowed,
        counters=found | {"qdisc_overlimits": slowed},
        statements=("hits count how often a packet had to wait for the rate",),
        details=resolved(measured),
    )


def _collateral(spec: Spec) -> tuple[str, ...]:
    return (
        "packets that wait in the queue when the fault ends are lost",
        "what a program did meanwhile (a time-out, a fail-over) stays done",
    )


KIND = FaultKind(
    name="bandwidth",
    summary="a workload's packets may only go at a rate",
    doc="""\
A token bucket (sch_tbf) on a private device, which filters send the chosen packets over, as for
netem; the interface's own qdiscs are not touched. Packets wait for up to --latency, then they
are dropped, as a policer or a slow link does. For a slow link with a long queue use
`netem --rate`.

Each interface and each direction has a bucket of its own. Units are bits (10mbit) or bytes
(5MB/s); `bps` is refused, as nobody knows which of the two it is.""",
    spec=Spec,
    targets=net.TARGETS,
    ladder=(Rung("tbf", "sch_tbf on a private ifb device", _needs, _plan),),
    evidence=_evidence,
    collateral=_collateral,
    remedies=(
        "move the workload to another node: its new network namespace has no fault",
        "send less: compress, cache, spread the load over replicas",
        "tc qdisc del dev INTERFACE clsact in the namespace, which removes all filters there",
    ),
    family="net",
    polled=True,
    guards=net.guards,
    no_hits_hint="the traffic stays below the rate, or no packet has matched",
    examples=(
        "faultctl inject bandwidth --pid 4242 --rate 10mbit --direction both",
        "faultctl inject bandwidth --netns /run/netns/blue --rate 5MB/s --to 10.0.0.0/8",
    ),
)

"""A node as a run sees it: the few calls it makes, over gRPC or simulated."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Protocol

from controller.client import AgentAddress, AgentClient
from controller.records import NodeRecord
from controller.run_state import FaultView, NodeEvent
from nodeagent.model.errors import UnknownFault
from nodeagent.model.facts import Facts
from nodeagent.model.plan import MAX_HARD_END, FaultRequest, Lease, Plan
from protos import faultd_pb2 as pb

_US = 1000


class NodePort(Protocol):
    """The calls of a run to one node. All raise FaultError classes; threads share a port."""

    def plan(self, request: FaultRequest) -> tuple[Plan, str]:
        """A plan and its digest."""

    def apply(self, request: FaultRequest, lease: Lease, digest: str) -> FaultView:
        """Make it true; the same id twice is the same as once."""

    def renew(self, fault_id: str) -> FaultView:
        """Word from the owner."""

    def revert(self, fault_id: str, remedy: str) -> FaultView:
        """Take it back."""

    def fault(self, fault_id: str) -> FaultView:
        """What the node has. Raises UnknownFault."""

    def events(self, after: int) -> list[NodeEvent]:
        """Events of the node's journal since `after`."""

    def clock(self) -> tuple[int, int, int]:
        """The node's CLOCK_BOOTTIME, its offset to ours, and the error: half the round trip."""

    def close(self) -> None:
        """Done with it."""


class RunPort(NodePort, Protocol):
    """A node of a run, or what stands for one."""

    url: str
    """Where it is, as an experiment has it."""

    @property
    def client(self) -> AgentClient:
        """Its agent's client of now. Raises InvalidSpec where there is no agent."""

    def record(self, name: str, t_ns: int, wall: str) -> NodeRecord:
        """What it can do, for the record. Raises Unreachable."""


class AgentPort:
    """A node's agent over gRPC."""

    url: str
    """Where it is, as an experiment has it."""

    def __init__(self, address: AgentAddress) -> None:
        self.url = address.url
        self._client = AgentClient(address)

    @property
    def client(self) -> AgentClient:
        """The client of now; ask for it anew for each call."""
        return self._client

    def describe(self) -> tuple[pb.DescribeReply, Facts]:
        """What the node can do."""
        return self.client.describe()

    def record(self, name: str, t_ns: int, wall: str) -> NodeRecord:
        """See RunPort."""
        reply, facts = self.describe()
        return NodeRecord(
            t_ns=t_ns,
            wall=wall,
            node=name,
            address=self.url,
            agent_version=reply.agent_version,
            facts=facts.model_dump(mode="json"),
            kinds={k.kind: {r.mechanism: r.missing for r in k.rungs} for k in reply.kinds},
        )

    def plan(self, request: FaultRequest) -> tuple[Plan, str]:
        """See NodePort."""
        return self.client.plan(request)

    def apply(self, request: FaultRequest, lease: Lease, digest: str) -> FaultView:
        """See NodePort."""
        return view_of(self.client.apply(request, lease, digest))

    def renew(self, fault_id: str) -> FaultView:
        """See NodePort."""
        return view_of(self.client.renew(fault_id))

    def revert(self, fault_id: str, remedy: str) -> FaultView:
        """See NodePort."""
        return view_of(self.client.revert(fault_id, remedy).fault)

    def fault(self, fault_id: str) -> FaultView:
        """See NodePort."""
        return view_of(self.client.fault(fault_id))

    def events(self, after: int) -> list[NodeEvent]:
        """See NodePort."""
        return [
            NodeEvent(
                event.seq,
                event.fault_id,
                event.type,
                event.boottime_ns,
                event.wall,
                json.loads(event.data_json or "{}"),
            )
            for event in self.client.watch(after)
        ]

    def clock(self) -> tuple[int, int, int]:
        """See NodePort."""
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        reply, _ = self.client.describe()
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        half = (after - before) // 2
        return reply.boottime_ns, reply.boottime_ns - (before + half), half

    def close(self) -> None:
        """See NodePort."""
        self.client.__exit__(None, None, None)


def view_of(fault: pb.Fault) -> FaultView:
    """A fault of the wire as the core takes it."""
    evidence = json.loads(fault.evidence_json) if fault.evidence_json else {}
    return FaultView(
        fault.id,
        fault.state,
        fault.end_reason,
        fault.mechanism,
        fault.biting,
        int(evidence.get("hits", 0)),
        evidence.get("first_hit_ns"),
        evidence,
    )


def lease_of(lease_ns: int, hard_end_ns: int) -> Lease:
    """The lease of a fault of a run; no life is longer than a node allows."""
    hard = min(timedelta(microseconds=hard_end_ns // _US), MAX_HARD_END)
    return Lease(duration=timedelta(microseconds=lease_ns // _US), hard_end=hard)


def look(port: NodePort, fault_id: str) -> FaultView | None:
    """What the node has of a fault; None if it has never heard of it."""
    try:
        return port.fault(fault_id)
    except UnknownFault:
        return None

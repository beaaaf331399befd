"""Simulated nodes behind real gRPC servers on Unix sockets, for whole `faultctl run`s."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
from run_sim import SimNode

from controller.run_state import FaultView
from nodeagent.model.errors import FaultError
from nodeagent.model.plan import FaultRequest, Lease, Plan
from nodeagent.rpc import abort
from protos import faultd_pb2 as pb
from protos import faultd_pb2_grpc as pb_grpc

FACTS = {"node_id": "sim", "kernel_release": "0-sim", "arch": "x86_64", "boot_id": "sim"}


def boottime() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class SimFaultd(pb_grpc.FaultdServicer):
    """What a run needs of an agent."""

    def __init__(self, node: SimNode) -> None:
        self.node = node

    def _call(self, context: grpc.ServicerContext, name: str, *args: Any) -> Any:
        try:
            return getattr(self.node, name)(*args)
        except FaultError as exc:
            abort(context, exc)

    def _fault(self, view: FaultView) -> pb.Fault:
        return pb.Fault(
            id=view.id, state=view.state, end_reason=view.end_reason, mechanism=view.mechanism
        )

    def Describe(self, request: Any, context: Any) -> pb.DescribeReply:  # noqa: N802
        return pb.DescribeReply(
            api_version=1, agent_version="sim", facts_json=json.dumps(FACTS), boottime_ns=boottime()
        )

    def Plan(self, request: Any, context: Any) -> pb.PlanReply:  # noqa: N802
        asked = FaultRequest.model_validate_json(request.request_json)
        _, digest = self._call(context, "plan", asked)
        plan = Plan(
            id=asked.id,
            kind=asked.kind,
            target=asked.target,
            spec=asked.spec,
            binding={},
            mechanism="simulated",
            why="",
            steps=(),
        )
        return pb.PlanReply(plan_json=plan.model_dump_json(), digest=digest)

    def Apply(self, request: Any, context: Any) -> pb.FaultReply:  # noqa: N802
        asked = FaultRequest.model_validate_json(request.request_json)
        lease = Lease.model_validate_json(request.lease_json)
        view = self._call(context, "apply", asked, lease, request.digest)
        return pb.FaultReply(fault=self._fault(view))

    def Renew(self, request: Any, context: Any) -> pb.FaultReply:  # noqa: N802
        return pb.FaultReply(fault=self._fault(self._call(context, "renew", request.id)))

    def Revert(self, request: Any, context: Any) -> pb.RevertReply:  # noqa: N802
        view = self._call(context, "revert", request.id, request.remedy)
        return pb.RevertReply(fault=self._fault(view))

    def List(self, request: Any, context: Any) -> pb.ListReply:  # noqa: N802
        view = self._call(context, "fault", request.id)
        return pb.ListReply(faults=[self._fault(view)])

    def Watch(self, request: Any, context: Any) -> Any:  # noqa: N802
        for event in self._call(context, "events", request.after_seq):
            yield pb.Event(
                seq=event.seq,
                fault_id=event.fault,
                type=event.name,
                boottime_ns=event.node_ns,
                wall=event.wall,
                data_json="{}",
            )


def serve(
    folder: Path, names: str, threads: int = 8, nodes: dict[str, SimNode] | None = None
) -> dict[str, SimpleNamespace]:
    """name -> (node, url, server)."""
    found: dict[str, SimpleNamespace] = {}
    for name in names:
        node = (nodes or {}).get(name) or SimNode(boottime)
        server = grpc.server(ThreadPoolExecutor(threads))
        pb_grpc.add_FaultdServicer_to_server(SimFaultd(node), server)  # type: ignore[no-untyped-call]
        path = folder / f"{name}.sock"
        server.add_insecure_port(f"unix:{path}")
        server.start()
        found[name] = SimpleNamespace(node=node, url=f"unix://{path}", server=server)
    return found

"""The agent's interface: protobuf messages in, agent calls, protobuf messages out."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import grpc

import nodeagent
from nodeagent.agent import Agent
from nodeagent.clock import boottime_ns, lease_ns
from nodeagent.doctor import examine
from nodeagent.faults import kinds
from nodeagent.model.errors import FaultError, InvalidSpec
from nodeagent.model.evidence import Evidence
from nodeagent.model.exposure import Exposure
from nodeagent.model.facts import Facts, first_missing
from nodeagent.model.kind import FaultKind
from nodeagent.model.plan import FaultRequest, Lease
from nodeagent.model.record import FaultRow, FaultState
from nodeagent.probes import run_probe
from nodeagent.rpc import caller, needed, parse, streamed, unary
from nodeagent.volumes import Volumes
from protos import faultd_pb2 as pb
from protos import faultd_pb2_grpc as pb_grpc

API_VERSION = 1
WATCH_WAKE_S = 30.0
EXPOSURE_S = 30.0
"""The longest look for exposed processes; the caller's deadline shortens it."""


class Faultd(pb_grpc.FaultdServicer):
    """The service. Threads of the server call it at the same time."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._volumes = Volumes(agent.node_id)

    @unary
    def Describe(
        self, request: pb.DescribeRequest, context: grpc.ServicerContext
    ) -> pb.DescribeReply:
        facts = self._agent.facts()
        pid = self._agent.ward.pid
        return pb.DescribeReply(
            api_version=API_VERSION,
            agent_version=nodeagent.__version__,
            facts_json=facts.model_dump_json(),
            kinds=[_support(kind, facts) for kind in kinds().values()],
            guardian=f"running, pid {pid}" if pid else "not running",
            boottime_ns=boottime_ns(),
            epoch=self._agent.epoch,
        )

    @unary
    def Plan(self, request: pb.PlanRequest, context: grpc.ServicerContext) -> pb.PlanReply:
        needed(request_json=request.request_json)
        asked = parse(FaultRequest, request.request_json, "request")
        if self._agent.policy is not None:
            self._agent.policy.check(caller(context), asked)
        plan = self._agent.plan(asked)
        return pb.PlanReply(plan_json=plan.model_dump_json(), digest=plan.digest)

    @unary
    def Apply(self, request: pb.ApplyRequest, context: grpc.ServicerContext) -> pb.FaultReply:
        needed(request_json=request.request_json, digest=request.digest)
        asked = parse(FaultRequest, request.request_json, "request")
        lease = parse(Lease, request.lease_json or "{}", "lease")
        if self._agent.policy is not None:
            self._agent.policy.check(caller(context), asked, lease.hard_end)
        fault = self._agent.apply(asked, lease, request.digest, context.is_active)
        return pb.FaultReply(fault=self._fault(fault))

    @unary
    def Renew(self, request: pb.RenewRequest, context: grpc.ServicerContext) -> pb.FaultReply:
        needed(id=request.id)
        return pb.FaultReply(fault=self._fault(self._agent.renew(request.id)))

    @unary
    def Revert(self, request: pb.RevertRequest, context: grpc.ServicerContext) -> pb.RevertReply:
        needed(id=request.id)
        fault, already, results = self._agent.revert(request.id, request.remedy)
        steps = [pb.StepResult(index=r.index, result=r.result, error=r.error) for r in results]
        return pb.RevertReply(fault=self._fault(fault), already_ended=already, steps=steps)

    @unary
    def List(self, request: pb.ListRequest, context: grpc.ServicerContext) -> pb.ListReply:
        if request.id:
            faults = [self._agent.journal.fault(request.id)]
        else:
            faults = self._agent.journal.faults(active_only=request.active_only)
        return pb.ListReply(faults=[self._fault(fault) for fault in faults])

    @streamed
    def Watch(self, request: pb.WatchRequest, context: grpc.ServicerContext) -> Iterator[pb.Event]:
        journal = self._agent.journal
        context.add_callback(journal.wake)
        after = request.after_seq
        while context.is_active():
            with journal.changed:
                events = journal.events(after, request.id)
                if not events and request.follow and context.is_active():
                    journal.changed.wait(WATCH_WAKE_S)
                    events = journal.events(after, request.id)
            for event in events:
                after = event.seq
                yield pb.Event(
                    seq=event.seq,
                    fault_id=event.fault_id,
                    type=event.type,
                    boottime_ns=event.boottime_ns,
                    wall=event.wall,
                    data_json=json.dumps(event.data),
                )
            if not events and not request.follow:
                return

    @unary
    def Doctor(self, request: pb.DoctorRequest, context: grpc.ServicerContext) -> pb.DoctorReply:
        findings = examine(self._agent, purge=request.purge)
        return pb.DoctorReply(
            findings=[
                pb.Finding(severity=f.severity, what=f.what, detail=f.detail, removed=f.removed)
                for f in findings
            ]
        )

    @unary
    def Volume(self, request: pb.VolumeRequest, context: grpc.ServicerContext) -> pb.VolumeReply:
        if request.action == pb.VolumeRequest.PREPARE:
            needed(device=request.device, name=request.name)
            with self._agent.executor.mutation():
                self._volumes.prepare(request.device, request.name)
        elif request.action == pb.VolumeRequest.RELEASE:
            needed(name=request.name)
            with self._agent.executor.mutation():
                self._volumes.release(request.name, self._agent.journal)
        elif request.action != pb.VolumeRequest.LIST:
            raise InvalidSpec("there is no such action on volumes", f"action: {request.action}")
        return pb.VolumeReply(
            volumes=[
                pb.Volume(
                    name=v.name,
                    path=v.path,
                    device=v.device,
                    sectors=v.sectors,
                    mountpoints=v.mountpoints,
                )
                for v in self._volumes.list()
            ]
        )

    @streamed
    def Probe(
        self, request: pb.ProbeRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ProbeSample]:
        needed(probe_json=request.probe_json)
        gone = threading.Event()
        if not context.add_callback(gone.set):
            return
        for sample in run_probe(request.probe_json, gone):
            yield pb.ProbeSample(
                boottime_ns=sample.boottime_ns,
                verdict=sample.verdict,
                duration_ns=sample.duration_ns,
                reason=sample.reason,
                data_json=json.dumps(sample.data),
            )

    @unary
    def Exposure(
        self, request: pb.ExposureRequest, context: grpc.ServicerContext
    ) -> pb.ExposureReply:
        needed(id=request.id)
        row = self._agent.journal.fault(request.id)
        armed = row.state in (FaultState.APPLYING, FaultState.ARMED)
        left = context.time_remaining()
        seconds = EXPOSURE_S if left is None else min(EXPOSURE_S, 0.8 * left)
        found = self._agent.exposure(row, seconds) if armed else Exposure()
        return pb.ExposureReply(
            armed=armed, exposure_json=found.model_dump_json(), boottime_ns=boottime_ns()
        )

    def _evidence(self, row: FaultRow) -> Evidence:
        """As far as it can be had: a fault is shown whatever happened to its counters."""
        try:
            return self._agent.evidence(row)
        except (FaultError, OSError, ValueError) as exc:
            said = f"the evidence cannot be read: {exc}"
            return Evidence(counted=False, statements=(said,))

    def _fault(self, row: FaultRow) -> pb.Fault:
        evidence = self._evidence(row)
        now = lease_ns()
        plan = row.plan
        return pb.Fault(
            id=row.id,
            kind=row.kind,
            state=row.state,
            end_reason="" if row.active else row.end_reason or "",
            mechanism=plan["mechanism"],
            target=json.dumps(plan["target"]),
            owner=row.owner,
            created=row.created,
            lease_left_ns=max(0, row.lease_until_ns - now) if row.active else 0,
            hard_end_left_ns=max(0, row.hard_end_ns - now) if row.active else 0,
            biting=evidence.biting,
            error=row.error,
            plan_json=json.dumps(plan),
            evidence_json=evidence.model_dump_json(),
        )


def _support(kind: FaultKind, facts: Facts) -> pb.KindSupport:
    """Which rungs of a kind this node has, asked with the kind's default options."""
    spec = kind.spec.model_construct()
    return pb.KindSupport(
        kind=kind.name,
        rungs=[
            pb.RungSupport(
                mechanism=rung.name, missing=first_missing(rung.needs(spec), facts) or ""
            )
            for rung in kind.ladder
        ],
    )

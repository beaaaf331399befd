"""gRPC to agents: addresses, mutual TLS, deadlines, retries, and errors that keep their words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc

from nodeagent.model.errors import ERRORS, FaultError, InvalidSpec, Unreachable
from nodeagent.model.exposure import Exposure
from nodeagent.model.facts import Facts
from nodeagent.model.plan import FaultRequest, Lease, Plan, plan_from_data
from protos import faultd_pb2 as pb
from protos import faultd_pb2_grpc as pb_grpc

DEFAULT_AGENT = "unix:///run/faultctl/faultd.sock"
API_VERSION = 1
QUICK_S = 10.0
SLOW_S = 120.0
TLS_WORDS = re.compile(r"certificate|handshake|\bssl\b|\btls\b|peer name", re.IGNORECASE)
AT_HOME = (
    "start one with `faultctl agent start`, or name another with --agent; "
    "the verbs that know --cluster ask those of a Kubernetes cluster with it"
)
ELSEWHERE = "is it up, and is this its address? in a cluster: faultctl deploy status"
ERROR_METADATA = "faultctl-error-bin"


@dataclass(frozen=True)
class AgentAddress:
    """Where an agent is, and for tcp:// the PEM files of mutual TLS.

    patience: how many times longer than usual it may take to answer.
    """

    url: str = DEFAULT_AGENT
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    server_name: str | None = None
    patience: float = 1.0

    def channel(self) -> grpc.Channel:
        """An open channel. Raises InvalidSpec for a bad address or missing files."""
        scheme, separator, rest = self.url.partition("://")
        if separator and scheme == "unix" and rest.startswith("/"):
            return grpc.insecure_channel(f"unix:{rest}")
        if not separator or scheme != "tcp" or ":" not in rest:
            raise InvalidSpec(
                f"{self.url!r} is not an agent's address", "unix:///PATH or tcp://HOST:PORT"
            )
        if not (self.cert and self.key and self.ca):
            raise InvalidSpec(
                f"{self.url} needs mutual TLS",
                "an agent does not talk over TCP without it",
                "give --tls-cert, --tls-key and --tls-ca",
            )
        try:
            credentials = grpc.ssl_channel_credentials(
                self.ca.read_bytes(), self.key.read_bytes(), self.cert.read_bytes()
            )
        except OSError as exc:
            raise InvalidSpec("a TLS file cannot be read", str(exc)) from exc
        options = []
        if self.server_name:
            options.append(("grpc.ssl_target_name_override", self.server_name))
        return grpc.secure_channel(rest, credentials, options)


class AgentClient:
    """One agent. Use it as a context manager. All calls raise FaultError classes.

    `stretch` makes the seconds of a deadline longer, for agents on emulated nodes; `lost` is told
    when there was no answer: (client, whether it is certain that nobody is there).
    """

    def __init__(
        self,
        address: AgentAddress,
        stretch: Callable[[float], float] = lambda seconds: seconds,
        lost: Callable[[AgentClient, bool], None] = lambda client, certain: None,
    ) -> None:
        self.address = address
        self._stretched = stretch
        self._lost = lost
        self._channel = address.channel()
        self._stub = pb_grpc.FaultdStub(self._channel)  # type: ignore[no-untyped-call]

    def __enter__(self) -> AgentClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._channel.close()

    def _stretch(self, seconds: float) -> float:
        return self._stretched(seconds) * self.address.patience

    def _call(self, method: Any, request: Any, timeout: float) -> Any:
        try:
            return method(request, timeout=self._stretch(timeout))
        except grpc.RpcError as exc:
            raise self._error(exc) from None

    def _error(self, exc: Any) -> FaultError:
        for key, value in exc.trailing_metadata() or ():
            if key == ERROR_METADATA:
                info = pb.ErrorInfo.FromString(value)
                return ERRORS.get(info.code, FaultError)(info.what, info.why, info.hint)
        status, details = exc.code(), str(exc.details() or "")
        if status in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE):
            self._lost(self, status is grpc.StatusCode.UNAVAILABLE)
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unreachable(f"the agent at {self.address.url} did not answer in time", details)
        if status is grpc.StatusCode.UNAVAILABLE and TLS_WORDS.search(details):
            return Unreachable(
                f"{self.address.url} and this client do not trust each other",
                details.split("\n")[0],
                "check --tls-ca, --tls-cert, --tls-key, --tls-server-name and the dates in them",
            )
        if status is grpc.StatusCode.UNAVAILABLE:
            return Unreachable(
                f"no agent answers at {self.address.url}",
                details.split("\n")[0],
                AT_HOME if self.address.url.startswith("unix:") else ELSEWHERE,
            )
        if status is grpc.StatusCode.UNIMPLEMENTED:
            return Unreachable(
                "the agent is older than this faultctl", details, "upgrade the agent on the node"
            )
        if status is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return InvalidSpec("the request or its answer is too large", details)
        return FaultError(f"the agent failed ({status.name})", details, "see the agent's log")

    def describe(self) -> tuple[pb.DescribeReply, Facts]:
        """Node facts and what each kind can do there. Refuses an agent of another version."""
        reply = self._call(self._stub.Describe, pb.DescribeRequest(), QUICK_S)
        if reply.api_version < API_VERSION:
            raise Unreachable(
                "the agent is older than this faultctl",
                f"it speaks version {reply.api_version}, {API_VERSION} is needed",
                "upgrade the agent on the node",
            )
        return reply, Facts.model_validate_json(reply.facts_json)

    def plan(self, request: FaultRequest) -> tuple[Plan, str]:
        """A plan and its digest."""
        message = pb.PlanRequest(request_json=request.model_dump_json())
        reply = self._call(self._stub.Plan, message, SLOW_S)
        return plan_from_data(json.loads(reply.plan_json)), reply.digest

    def apply(self, request: FaultRequest, lease: Lease, digest: str) -> pb.Fault:
        """Make a plan true; the same id twice is safe, so that a lost answer can be retried."""
        message = pb.ApplyRequest(
            request_json=request.model_dump_json(),
            lease_json=lease.model_dump_json(),
            digest=digest,
        )
        reply: pb.FaultReply = self._call(self._stub.Apply, message, SLOW_S)
        return reply.fault

    def renew(self, fault_id: str) -> pb.Fault:
        """Word from the owner."""
        message = pb.RenewRequest(id=fault_id)
        reply: pb.FaultReply = self._call(self._stub.Renew, message, QUICK_S)
        return reply.fault

    def revert(self, fault_id: str, remedy: str = "") -> pb.RevertReply:
        """Take a fault back; with `remedy` it ends as remedied, by that act of an operator."""
        message = pb.RevertRequest(id=fault_id, remedy=remedy)
        reply: pb.RevertReply = self._call(self._stub.Revert, message, SLOW_S)
        return reply

    def faults(self, *, active_only: bool = False) -> list[pb.Fault]:
        """Faults in the agent's journal."""
        reply = self._call(self._stub.List, pb.ListRequest(active_only=active_only), QUICK_S)
        return list(reply.faults)

    def fault(self, fault_id: str) -> pb.Fault:
        """One fault."""
        reply: pb.ListReply = self._call(self._stub.List, pb.ListRequest(id=fault_id), QUICK_S)
        return reply.faults[0]

    def watch(self, after: int = 0, fault_id: str = "", follow: bool = False) -> Iterator[pb.Event]:
        """Events in order; with `follow`, also those to come."""
        request = pb.WatchRequest(after_seq=after, id=fault_id, follow=follow)
        timeout = None if follow else self._stretch(QUICK_S)
        yield from self._stream(self._stub.Watch(request, timeout=timeout))

    def doctor(self, *, purge: bool = False) -> list[pb.Finding]:
        """Residue and trouble."""
        return list(self._call(self._stub.Doctor, pb.DoctorRequest(purge=purge), SLOW_S).findings)

    def volumes(self, action: int = pb.VolumeRequest.LIST, **fields: str) -> list[pb.Volume]:
        """Prepared volumes, after the action."""
        message = pb.VolumeRequest(action=action, **fields)  # type: ignore[arg-type]
        return list(self._call(self._stub.Volume, message, SLOW_S).volumes)

    def exposure(self, fault_id: str, timeout: float = QUICK_S) -> Exposure | None:
        """Who can still be hit by a fault; None when it has ended."""
        message = pb.ExposureRequest(id=fault_id)
        reply = self._call(self._stub.Exposure, message, timeout)
        return Exposure.model_validate_json(reply.exposure_json) if reply.armed else None

    def probe(self, probe: dict[str, Any], timeout: float) -> Iterator[pb.ProbeSample]:
        """Samples of a probe on the node."""
        message = pb.ProbeRequest(probe_json=json.dumps(probe))
        yield from self._stream(self._stub.Probe(message, timeout=self._stretch(timeout)))

    def _stream(self, stream: Any) -> Iterator[Any]:
        try:
            yield from stream
        except grpc.RpcError as exc:
            raise self._error(exc) from None
        finally:
            stream.cancel()

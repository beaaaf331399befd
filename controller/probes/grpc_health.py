"""gRPC health probes (grpc.health.v1)."""

from __future__ import annotations

from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from controller.probes.address import url_host
from controller.probes.outcome import Outcome, failed, passed, timed_out, unknown
from controller.probes.spec import GrpcHealthProbe, GrpcPlace
from nodeagent.model.errors import InvalidSpec

_OPTIONS = [
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # else a back-off of the sample before is waited for
]


Options = list[tuple[str, object]]


def channel_place(
    spec: GrpcPlace,
) -> tuple[str, Options, grpc.ChannelCredentials | None]:
    """(target, options, credentials) of a channel. Raises InvalidSpec."""
    host = spec.host if "%" in spec.host else url_host(spec.host)
    options: Options = list(_OPTIONS)
    if spec.server_name:
        options.append(("grpc.ssl_target_name_override", spec.server_name))
    return f"{host}:{spec.port}", options, _credentials(spec) if spec.tls else None


def measure(spec: GrpcHealthProbe) -> Outcome:
    """One Check. Raises InvalidSpec for TLS files that cannot be used."""
    target, options, credentials = channel_place(spec)
    if credentials is not None:
        channel = grpc.secure_channel(target, credentials, options)
    else:
        channel = grpc.insecure_channel(target, options)
    with channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=spec.service)
        try:
            reply = stub.Check(request, timeout=spec.timeout.total_seconds())
        except grpc.RpcError as exc:
            return _failure(exc)
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    return passed(status=name) if name == "SERVING" else failed(f"status {name}", status=name)


def _failure(exc: grpc.RpcError) -> Outcome:
    code, details = exc.code(), str(exc.details() or "").split("\n")[0]
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return unknown("the server has no health service", code=code.name)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return timed_out(code=code.name)
    if code is grpc.StatusCode.NOT_FOUND:
        return failed("the server does not know the service", code=code.name)
    lowered = details.lower()
    words = (("connection refused", "refused"), ("reset", "reset"), ("certificate", "tls"))
    cause = next((name for word, name in words if word in lowered), code.name.lower())
    return failed(f"{code.name}: {details}", code=code.name, cause=cause)


def _credentials(spec: GrpcPlace) -> grpc.ChannelCredentials:
    if not spec.verify:
        raise InvalidSpec("gRPC always verifies certificates", "give `ca` and `server_name`")

    def read(path: Path | None) -> bytes | None:
        return None if path is None else path.read_bytes()

    try:
        return grpc.ssl_channel_credentials(read(spec.ca), read(spec.key), read(spec.cert))
    except OSError as exc:
        raise InvalidSpec("a TLS file of the probe cannot be used", str(exc)) from exc

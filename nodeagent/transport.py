"""The gRPC server: the agent's service and health, on a Unix socket or with mutual TLS."""

from __future__ import annotations

import os
from concurrent import futures

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from nodeagent.agent import Agent
from nodeagent.listen import TlsFiles, needs_tls, parse_listen
from nodeagent.model.errors import Refused
from nodeagent.server import Faultd
from protos import faultd_pb2_grpc as pb_grpc

SERVICE = "faultctl.v1.Faultd"
HEALTH_WORKERS = 2
WORKERS = 64
"""Threads, made when they are needed; more than rpc.MAX_STREAMS."""


def credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """Server credentials that demand a client certificate; files are read at every handshake.

    Those that cannot be read, or do not fit each other, leave the last ones in force.
    """

    def read() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(tls.key.read_bytes(), tls.cert.read_bytes())], tls.ca.read_bytes()
        )

    return grpc.dynamic_ssl_server_credentials(read(), read, require_client_authentication=True)


def build_server(
    agent: Agent, listen: tuple[str, ...], tls: TlsFiles | None, reflection: bool
) -> grpc.Server:
    """A server with the agent's service and gRPC health on all addresses. Raises FaultError."""
    addresses = [parse_listen(text) for text in listen]
    server = grpc.server(
        futures.ThreadPoolExecutor(WORKERS, thread_name_prefix="rpc"),
        options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 32 << 20)],
    )
    pb_grpc.add_FaultdServicer_to_server(Faultd(agent), server)  # type: ignore[no-untyped-call]
    _add_health(server)
    if reflection:
        from grpc_reflection.v1alpha import reflection as grpc_reflection

        grpc_reflection.enable_server_reflection((SERVICE, grpc_reflection.SERVICE_NAME), server)
    for scheme, address in addresses:
        _bind(server, scheme, address, tls)
    return server


def build_health_server(listen: str) -> grpc.Server:
    """A server of gRPC health alone, without TLS: a kubelet's probe speaks none.

    It tells that the agent runs and takes no orders. Raises FaultError.
    """
    address = parse_listen(listen)[1]
    server = grpc.server(
        futures.ThreadPoolExecutor(HEALTH_WORKERS, thread_name_prefix="health"),
        options=[("grpc.so_reuseport", 0)],
    )
    _add_health(server)
    try:
        server.add_insecure_port(address)
    except RuntimeError as exc:
        raise Refused(f"{listen} cannot be listened on", str(exc)) from exc
    return server


def _add_health(server: grpc.Server) -> None:
    status = health.HealthServicer()
    status.set("", health_pb2.HealthCheckResponse.SERVING)
    status.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(status, server)


def _bind(server: grpc.Server, scheme: str, address: str, tls: TlsFiles | None) -> None:
    try:
        if scheme == "unix":
            before = os.umask(0o177)  # the socket is root's alone from its first moment
            try:
                server.add_insecure_port(f"unix:{address}")
            finally:
                os.umask(before)
        elif tls is None:
            raise needs_tls(address)
        else:
            server.add_secure_port(address, credentials(tls))
    except (RuntimeError, OSError) as exc:
        raise Refused(f"{scheme}://{address} cannot be listened on", str(exc)) from exc

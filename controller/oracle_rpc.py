"""The desk over gRPC, for an operator on another machine: one method, JSON in and out.

`faultctl.v1.Desk/HandIn` takes {kind, data, fault, actor} or {kind: action, act, service,
executed, actor}, and gives the record as it was written. Addresses and TLS are those of
agents: a Unix socket, or TCP with mutual TLS.
"""

from __future__ import annotations

import json
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from controller.client import AgentAddress
from controller.oracle_desk import MAX_DATA, hand_in, note_action
from controller.records import OperatorAction, Submission
from nodeagent.model.errors import FaultError, InvalidSpec, Refused, Unreachable

SERVICE = "faultctl.v1.Desk"
METHOD = f"/{SERVICE}/HandIn"
TIMEOUT_S = 10.0


def take(folder: Path, raw: bytes) -> Submission | OperatorAction:
    """Record what a request says. Raises InvalidSpec and Refused."""
    try:
        data: Any = json.loads(raw)
    except ValueError as exc:
        raise InvalidSpec("the request is not JSON", str(exc)) from exc
    if not isinstance(data, dict):
        raise InvalidSpec("the request is no JSON object")
    actor = str(data.get("actor", ""))
    if data.get("kind") == "action":
        return note_action(
            folder,
            str(data.get("act", "")),
            service=str(data.get("service", "")),
            executed=data.get("executed", True) is True,
            actor=actor,
        )
    inside = data.get("data", {})
    if not isinstance(inside, dict):
        raise InvalidSpec("`data` is no JSON object")
    kind, fault = str(data.get("kind", "")), str(data.get("fault", ""))
    return hand_in(folder, kind, inside, fault=fault, actor=actor)


def serve(folder: Path, address: AgentAddress) -> grpc.Server:
    """A started server. Raises InvalidSpec for a bad address or TLS files, Refused if it is
    taken."""

    def answer(raw: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            return take(folder, raw).model_dump_json().encode()
        except FaultError as exc:
            status = getattr(grpc.StatusCode, exc.grpc_status)
            return context.abort(status, str(exc))

    handlers = {"HandIn": grpc.unary_unary_rpc_method_handler(answer)}
    options = [("grpc.max_receive_message_length", MAX_DATA), ("grpc.so_reuseport", 0)]
    server = grpc.server(futures.ThreadPoolExecutor(4), options=options)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        _bind(server, address)
    except RuntimeError as exc:
        raise Refused(f"nothing can listen at {address.url}", str(exc)) from exc
    server.start()
    return server


def _bind(server: grpc.Server, address: AgentAddress) -> None:
    scheme, _, rest = address.url.partition("://")
    if scheme == "unix":
        server.add_insecure_port(f"unix:{rest}")
        return
    if scheme != "tcp" or not (address.cert and address.key and address.ca):
        raise InvalidSpec(
            f"{address.url} cannot be listened at",
            "unix:///PATH, or tcp://HOST:PORT with mutual TLS",
            "give --tls-cert, --tls-key and --tls-ca",
        )
    try:
        pair = (address.key.read_bytes(), address.cert.read_bytes())
        credentials = grpc.ssl_server_credentials(
            [pair], address.ca.read_bytes(), require_client_auth=True
        )
    except OSError as exc:
        raise InvalidSpec("a TLS file cannot be read", str(exc)) from exc
    server.add_secure_port(rest, credentials)


def send(address: AgentAddress, request: dict[str, Any]) -> dict[str, Any]:
    """Hand something in at a desk; the record. Raises Unreachable, Refused, InvalidSpec."""
    with address.channel() as channel:
        call = channel.unary_unary(METHOD, None, None)
        try:
            reply = call(json.dumps(request).encode(), timeout=TIMEOUT_S)
        except grpc.RpcError as exc:
            status, details = exc.code(), str(exc.details() or "")
            if status is grpc.StatusCode.INVALID_ARGUMENT:
                raise InvalidSpec("the desk does not take it", details) from None
            if status is grpc.StatusCode.FAILED_PRECONDITION:
                raise Refused("the desk refuses it", details) from None
            raise Unreachable(f"no desk answers at {address.url}", details.split("\n")[0]) from None
    found: dict[str, Any] = json.loads(reply)
    return found

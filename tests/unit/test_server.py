"""The agent's interface: words survive the wire, bad input changes nothing, TLS or a socket."""

from __future__ import annotations

import datetime
import json
import socket
import stat
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from agent_kit import Served, left_as_found, served
from core_kit import HoldLink, Look, SetValue, request
from grpc_health.v1 import health_pb2, health_pb2_grpc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.client import AgentAddress, AgentClient
from controller.lab import certs
from nodeagent import main as main_module
from nodeagent import rpc
from nodeagent.agent import Agent
from nodeagent.listen import TlsFiles, parse_listen
from nodeagent.model.errors import (
    ERRORS,
    BackendError,
    Conflict,
    FaultError,
    ForeignState,
    InvalidSpec,
    Refused,
    StalePlan,
    UnknownFault,
    Unreachable,
)
from nodeagent.model.plan import Lease
from nodeagent.statedir import OwnerLock
from protos import faultd_pb2 as pb
from protos import faultd_pb2_grpc as pb_grpc

LEASE = Lease()


@pytest.fixture(scope="module")
def node() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(patch) as found:
        yield found


@pytest.fixture(autouse=True)
def clean(node: Served) -> Iterator[None]:
    with left_as_found(node):
        yield


@pytest.fixture
def stub(node: Served) -> Iterator[Any]:
    with grpc.insecure_channel(f"unix:{node.socket}") as channel:
        yield pb_grpc.FaultdStub(channel)  # type: ignore[no-untyped-call]


_ids = iter(range(10**6))


def inject(node: Served, *steps: Any, **more: Any) -> pb.Fault:
    asked = request(f"f-{next(_ids):04}", *steps, **more)
    _, digest = node.client.plan(asked)
    return node.client.apply(asked, LEASE, digest)


# --- the whole way over the wire -----------------------------------------------------


def test_a_fault_goes_its_whole_way_over_the_wire(node: Served) -> None:
    fault = inject(node, SetValue(name="a", value="x"), Look(name="a"))
    assert fault.state == "armed"
    assert node.kernel.get("a") == "x"
    assert 0 < fault.lease_left_ns <= 5 * 60 * 10**9
    assert [f.id for f in node.client.faults(active_only=True)] == [fault.id]
    assert json.loads(node.client.fault(fault.id).evidence_json)["counted"]
    assert node.client.renew(fault.id).state == "armed"
    reply = node.client.revert(fault.id)
    assert (reply.fault.state, reply.fault.end_reason) == ("ended", "reverted")
    assert not reply.already_ended
    assert [(s.index, s.result) for s in reply.steps] == [(1, "already"), (0, "reverted")]
    again = node.client.revert(fault.id)
    assert again.already_ended
    assert [e.type for e in node.client.watch(fault_id=fault.id)] == [
        "intent",
        "armed",
        "reverting",
        "ended",
    ]


def test_a_remedy_of_an_operator_has_its_own_word(node: Served) -> None:
    fault = inject(node, SetValue(name="a", value="x"))
    assert node.client.revert(fault.id, remedy="rewrote it").fault.end_reason == "remedied"
    assert "remedied" in [e.type for e in node.client.watch(fault_id=fault.id)]


def test_the_agent_describes_itself(node: Served) -> None:
    reply, facts = node.client.describe()
    assert reply.api_version == 1
    assert {k.kind for k in reply.kinds} >= {"latent-sector", "t-steps"}
    assert facts.node_id == node.agent.node_id


def test_health_answers_for_the_service(node: Served) -> None:
    with grpc.insecure_channel(f"unix:{node.socket}") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", "faultctl.v1.Faultd"):
            reply = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert reply.status == health_pb2.HealthCheckResponse.SERVING


# --- errors keep their words ---------------------------------------------------------


def test_every_error_has_a_status_an_exit_code_and_a_name_of_its_own() -> None:
    for code, cls in ERRORS.items():
        assert cls.code == code
        assert hasattr(grpc.StatusCode, cls.grpc_status)
        assert cls.exit_code in (2, 3, 4, 70)


def test_a_refusal_keeps_what_why_hint_and_exit_code(node: Served) -> None:
    inject(node, SetValue(name="a", value="x"))
    with pytest.raises(Conflict) as caught:
        inject(node, SetValue(name="a", value="y"))
    assert "conflicts with the armed fault f-" in caught.value.what
    assert caught.value.why == "both would change t-set:a"
    assert caught.value.hint.startswith("revert it first: faultctl revert f-")
    assert caught.value.exit_code == 3


def test_each_way_to_fail_has_its_class(node: Served) -> None:
    with pytest.raises(UnknownFault):
        node.client.revert("nobody")
    with pytest.raises(UnknownFault):
        node.client.renew("nobody")
    with pytest.raises(UnknownFault):
        node.client.fault("nobody")
    with pytest.raises(StalePlan):
        node.client.apply(request("f-x", SetValue(name="a", value="x")), LEASE, "0" * 64)
    with pytest.raises(Refused, match="no object"):
        inject(node, SetValue(name="nothing", value="x"))
    with pytest.raises(InvalidSpec, match="no fault kind"):
        node.client.plan(request("f-x").model_copy(update={"kind": "nope"}))
    fault = inject(node, SetValue(name="a", value="x"))
    node.kernel.put("a", "foreign")
    with pytest.raises(ForeignState):
        node.client.revert(fault.id)
    assert node.client.fault(fault.id).end_reason == ""  # it has not ended
    node.kernel.put("a", "a0")


def test_a_node_that_fails_says_so_and_lists_its_faults_all_the_same(node: Served) -> None:
    node.kernel.fail["applied:a"] = [OSError(5, "Input/output error")]
    with pytest.raises(FaultError, match="refused an operation") as caught:
        inject(node, SetValue(name="a", value="x"))
    assert "Input/output error" in caught.value.why
    node.kernel.fail["undo:a"] = [OSError(5, "Input/output error")]
    fault = inject(node, SetValue(name="a", value="x"))
    node.kernel.fail["measure:a"] = [OSError(5, "counters are gone") for _ in range(9)]
    listed = {f.id: f for f in node.client.faults(active_only=True)}
    assert "counters are gone" in listed[fault.id].evidence_json
    with pytest.raises(BackendError):
        node.client.revert(fault.id)


def test_a_bug_in_the_agent_is_said_as_one_and_the_agent_stays(node: Served) -> None:
    node.kernel.fail["applied:a"] = [ZeroDivisionError("a bug")]
    with pytest.raises(FaultError) as caught:
        inject(node, SetValue(name="a", value="x"))
    assert caught.value.exit_code == 70
    assert "ZeroDivisionError" in caught.value.why
    assert "log" in caught.value.hint
    assert node.kernel.get("a") == "a0"
    assert node.client.describe()


@pytest.mark.parametrize(
    "text", ["x" * 100_000, "é" * 50_000, "\U0001f4a5" * 20_000, "\n\0\x7f" * 9_000]
)
def test_words_of_any_length_reach_the_client_cut(node: Served, text: str) -> None:
    with pytest.raises(UnknownFault) as caught:
        node.client.revert(text)
    assert caught.value.why
    assert caught.value.hint
    with pytest.raises(InvalidSpec) as wrong:
        node.client.plan(request("f-x").model_copy(update={"kind": text}))
    assert "known kinds" in wrong.value.why


@given(st.text(), st.integers(3, 200))
def test_clipped_text_is_valid_and_short(text: str, size: int) -> None:
    found = rpc.clip(text, size)
    assert len(found.encode()) <= size
    assert found == text or found.endswith("…") or "\\ud" in found


# --- any input -----------------------------------------------------------------------

BAD_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
GOOD = request("f-fuzz", SetValue(name="a", value="x")).model_dump(mode="json")
KEYS = ["id", "kind", "target", "spec", "mechanism", "acknowledge", "owner"]


@st.composite
def mutated(draw: Any) -> str:
    """A good request with some fields replaced by anything, or left out."""
    data = json.loads(json.dumps(GOOD))
    for key in draw(st.sets(st.sampled_from(KEYS), min_size=1)):
        if draw(st.booleans()):
            data.pop(key, None)
        else:
            data[key] = draw(JSON)
    if draw(st.booleans()):
        data["spec"] = {"steps": draw(st.lists(JSON, max_size=3)), "guarded": draw(JSON)}
    return json.dumps(data)


def refused(call: Any, message: Any) -> None:
    """The call is refused with words, or answered."""
    try:
        call(message, timeout=20)
    except grpc.RpcError as exc:
        assert exc.code() in BAD_STATUS, (exc.code(), exc.details())
        metadata = dict(exc.trailing_metadata())
        info = pb.ErrorInfo.FromString(metadata["faultctl-error-bin"])
        assert info.what
        assert info.code in ERRORS


fuzz = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@fuzz
@given(text=mutated() | JSON.map(json.dumps) | st.text())
def test_any_request_is_planned_or_refused_with_words(node: Served, stub: Any, text: str) -> None:
    before = node.kernel.fingerprint()
    refused(stub.Plan, pb.PlanRequest(request_json=text))
    refused(stub.Apply, pb.ApplyRequest(request_json=text, lease_json="{}", digest="0"))
    assert node.kernel.fingerprint() == before


@fuzz
@given(text=JSON.map(json.dumps) | st.text(), seq=st.integers(0, 2**64 - 1))
def test_any_other_call_is_answered_or_refused_with_words(
    node: Served, stub: Any, text: str, seq: int
) -> None:
    good = json.dumps(GOOD)
    refused(stub.Apply, pb.ApplyRequest(request_json=good, lease_json=text, digest="0"))
    for call, cls in (
        (stub.Renew, pb.RenewRequest),
        (stub.Revert, pb.RevertRequest),
        (stub.List, pb.ListRequest),
    ):
        refused(call, cls(id=text))
    refused(
        lambda m, timeout: list(stub.Watch(m, timeout=timeout)),
        pb.WatchRequest(after_seq=seq, id=text),
    )
    if "command" not in text:
        refused(
            lambda m, timeout: list(stub.Probe(m, timeout=timeout)),
            pb.ProbeRequest(probe_json=text),
        )


@pytest.mark.parametrize(
    ("call", "message", "names"),
    [
        ("Plan", pb.PlanRequest(), "request_json"),
        ("Apply", pb.ApplyRequest(), "request_json"),
        ("Apply", pb.ApplyRequest(request_json=json.dumps(GOOD)), "digest"),
        ("Renew", pb.RenewRequest(), "id"),
        ("Revert", pb.RevertRequest(), "id"),
        ("Revert", pb.RevertRequest(remedy="x"), "id"),
        ("Volume", pb.VolumeRequest(action=pb.VolumeRequest.PREPARE), "device"),
        ("Volume", pb.VolumeRequest(action=pb.VolumeRequest.PREPARE, device="/dev/x"), "name"),
        ("Volume", pb.VolumeRequest(action=pb.VolumeRequest.RELEASE), "name"),
        ("Volume", pb.VolumeRequest(action=99), "action"),  # type: ignore[arg-type]
        ("Probe", pb.ProbeRequest(), "probe_json"),
    ],
)
def test_a_field_that_is_not_set_is_named(stub: Any, call: str, message: Any, names: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        reply = getattr(stub, call)(message, timeout=20)
        list(reply)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    metadata = dict(caught.value.trailing_metadata())
    assert names in pb.ErrorInfo.FromString(metadata["faultctl-error-bin"]).why


@pytest.mark.parametrize("key", ["id", "kind", "target"])
def test_a_part_of_the_request_that_is_missing_is_named(stub: Any, key: str) -> None:
    data = {k: v for k, v in GOOD.items() if k != key}
    with pytest.raises(grpc.RpcError) as caught:
        stub.Plan(pb.PlanRequest(request_json=json.dumps(data)), timeout=20)
    metadata = dict(caught.value.trailing_metadata())
    assert f"{key}: Field required" in pb.ErrorInfo.FromString(metadata["faultctl-error-bin"]).why


NESTED = "[" * 200_000 + "]" * 200_000
BAD_TEXTS = {
    "deep": '{"id": ' + NESTED + "}",
    "deep objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "as deep as the scanner allows": json.dumps(
        {**GOOD, "spec": json.loads("[" * 500 + "]" * 500)}
    ),
    "twice": '{"id": "f-1", "id": "f-2"}',
    "nan": json.dumps({**GOOD, "spec": {"x": float("nan")}}),
    "inf": '{"id": Infinity}',
    "huge number": '{"id": ' + "9" * 10_000 + "}",
    "surrogate": json.dumps({**GOOD, "spec": {"\ud800": 1}}),
    "surrogate value": json.dumps({**GOOD, "kind": "\udfff"}),
    "many keys": json.dumps({**GOOD, "spec": {f"k{n}": n for n in range(50_000)}}),
    "a long key": json.dumps({**GOOD, "k" * 1_000_000: 1}),
    "not an object": "[1]",
}


@pytest.mark.parametrize("name", sorted(BAD_TEXTS))
def test_bad_json_of_any_sort_is_invalid(node: Served, stub: Any, name: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Plan(pb.PlanRequest(request_json=BAD_TEXTS[name]), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    metadata = dict(caught.value.trailing_metadata())
    assert pb.ErrorInfo.FromString(metadata["faultctl-error-bin"]).why
    assert node.client.describe()


def test_a_request_that_is_too_large_is_refused(node: Served, stub: Any) -> None:
    big = json.dumps({**GOOD, "owner": "x" * (16 << 20)})
    with pytest.raises(grpc.RpcError) as caught:
        stub.Plan(pb.PlanRequest(request_json=big), timeout=60)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(FaultError):
        node.client.plan(request("f-x").model_copy(update={"kind": "x" * (33 << 20)}))
    assert node.client.describe()


@pytest.mark.parametrize(
    "fault_id", ["", "ab", "A-b", "-ab", "a" * 33, "a b", "a/b", "a\n", "é12", "../x", "a.b"]
)
def test_ids_are_plain_words(node: Served, fault_id: str) -> None:
    data = json.dumps({**GOOD, "id": fault_id})
    with grpc.insecure_channel(f"unix:{node.socket}") as channel:
        stub: Any = pb_grpc.FaultdStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as caught:
            stub.Plan(pb.PlanRequest(request_json=data), timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# --- streams -------------------------------------------------------------------------


def test_a_follower_sees_what_comes(node: Served) -> None:
    last = max((e.seq for e in node.client.watch()), default=0)
    seen: list[str] = []
    armed = threading.Event()

    def follow() -> None:
        for event in node.client.watch(after=last, follow=True):
            seen.append(event.type)
            if event.type == "ended":
                armed.set()
                return

    thread = threading.Thread(target=follow)
    thread.start()
    fault = inject(node, SetValue(name="a", value="x"))
    node.client.revert(fault.id)
    assert armed.wait(20)
    thread.join(20)
    assert seen == ["intent", "armed", "reverting", "ended"]


def free_streams() -> int:
    return rpc._streams._value


def until(done: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.02)


def test_followers_never_keep_others_from_being_served(node: Served, stub: Any) -> None:
    until(lambda: free_streams() == rpc.MAX_STREAMS)
    open_ = [stub.Watch(pb.WatchRequest(follow=True)) for _ in range(rpc.MAX_STREAMS)]
    until(lambda: free_streams() == 0)
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Watch(pb.WatchRequest(follow=True), timeout=20))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    fault = inject(node, SetValue(name="a", value="x"))
    assert node.client.revert(fault.id).fault.state == "ended"
    for call in open_:
        call.cancel()
    until(lambda: free_streams() == rpc.MAX_STREAMS, 10)  # and not at their next wake-up


def test_a_probe_runs_on_the_node_and_ends_with_its_caller(node: Served, stub: Any) -> None:
    samples = list(
        node.client.probe({"type": "exec", "command": ["true"], "count": 2, "interval": "10ms"}, 20)
    )
    assert [s.verdict for s in samples] == ["pass", "pass"]
    call = stub.Probe(
        pb.ProbeRequest(
            probe_json='{"type": "exec", "command": ["sleep", "300"], "timeout": "10m"}'
        )
    )
    until(lambda: free_streams() == rpc.MAX_STREAMS - 1)
    call.cancel()
    until(lambda: free_streams() == rpc.MAX_STREAMS, 10)


# --- who may talk --------------------------------------------------------------------


def test_the_socket_is_its_owners_alone(node: Served) -> None:
    assert stat.S_IMODE(node.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(node.socket.parent.stat().st_mode) == 0o700


def test_tcp_without_tls_is_refused(node: Served) -> None:
    with pytest.raises(InvalidSpec, match="mutual TLS"):
        node.serve(("tcp://127.0.0.1:1",))
    with pytest.raises(InvalidSpec, match="mutual TLS"):
        AgentClient(AgentAddress("tcp://127.0.0.1:1"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix",
        "unix://",
        "unix://relative",
        "unix:///" + "x" * 200,
        "tcp://",
        "tcp://host:1",
        "tcp://1.2.3.4",
        "tcp://1.2.3.4:0",
        "tcp://1.2.3.4:65536",
        "tcp://1.2.3.4:-1",
        "tcp://1.2.3.4:٣",
        "http://1.2.3.4:80",
        "tcp://[::1]",
        "tcp://::1",
        "1.2.3.4:80",
    ],
)
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        parse_listen(text)


@pytest.mark.parametrize(
    ("text", "address"),
    [("tcp://[::1]:80", "[::1]:80"), ("tcp://0.0.0.0:7", "0.0.0.0:7"), ("unix:///a b", "/a b")],
)
def test_addresses_that_are_taken(text: str, address: str) -> None:
    assert parse_listen(text)[1] == address


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(scope="module")
def tls(
    node: Served, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[int, certs.Files]]:
    files = certs.write_all(tmp_path_factory.mktemp("tls"), "node")
    port = free_port()
    server = node.serve(
        (f"tcp://127.0.0.1:{port}",), TlsFiles(files.server_cert, files.server_key, files.ca)
    )
    yield port, files
    server.stop(0).wait()


def test_with_certificates_of_one_ca_tcp_works(tls: tuple[int, certs.Files]) -> None:
    port, files = tls
    address = AgentAddress(f"tcp://127.0.0.1:{port}", files.client_cert, files.client_key, files.ca)
    with AgentClient(address) as client:
        assert client.describe()[0].api_version == 1


def pem(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "who", ["no certificate", "another CA", "expired", "a server", "plain text"]
)
def test_others_are_refused_before_a_request_is_read(
    node: Served,
    tls: tuple[int, certs.Files],
    who: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    monkeypatch.setattr(node.agent, "facts", lambda: parsed.append(who))
    port, files = tls
    other = certs.write_all(tmp_path / "other", "node")
    key, cert = other.client_key, other.client_cert
    if who == "a server":
        key, cert = files.server_key, files.server_cert
    if who == "expired":
        ca = certs.make_ca("old")
        pair = certs.issue(ca, "c", server=False, valid=datetime.timedelta(seconds=-60))
        key, cert = pem(tmp_path / "k", pair.key_pem), pem(tmp_path / "c", pair.cert_pem)
    if who == "plain text":
        channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    elif who == "no certificate":
        channel = grpc.secure_channel(
            f"127.0.0.1:{port}", grpc.ssl_channel_credentials(files.ca.read_bytes())
        )
    else:
        credentials = grpc.ssl_channel_credentials(
            files.ca.read_bytes(), key.read_bytes(), cert.read_bytes()
        )
        channel = grpc.secure_channel(f"127.0.0.1:{port}", credentials)
    with channel:
        stub: Any = pb_grpc.FaultdStub(channel)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError) as caught:
            stub.Describe(pb.DescribeRequest(), timeout=5)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert parsed == []


def test_a_client_of_another_ca_is_told_so_and_not_that_nobody_is_there(
    tls: tuple[int, certs.Files], tmp_path: Path
) -> None:
    port, files = tls
    other = certs.write_all(tmp_path / "other", "node")
    address = AgentAddress(f"tcp://127.0.0.1:{port}", files.client_cert, files.client_key, other.ca)
    with AgentClient(address) as client, pytest.raises(Unreachable) as caught:
        client.describe()
    assert caught.value.exit_code == 4
    assert "trust" in caught.value.what
    assert "--tls-ca" in caught.value.hint


def test_new_certificates_need_no_restart(node: Served, tmp_path: Path) -> None:
    files = certs.write_all(tmp_path, "node")
    port = free_port()
    server = node.serve(
        (f"tcp://127.0.0.1:{port}",), TlsFiles(files.server_cert, files.server_key, files.ca)
    )
    old = AgentAddress(
        f"tcp://127.0.0.1:{port}",
        files.client_cert,
        files.client_key,
        pem(tmp_path / "old", files.ca.read_bytes()),
    )
    with AgentClient(old) as client:
        client.describe()
    new = certs.write_all(tmp_path, "node")
    with AgentClient(AgentAddress(old.url, new.client_cert, new.client_key, new.ca)) as client:
        assert client.describe()
    with AgentClient(old) as client, pytest.raises(Unreachable):
        client.describe()
    server.stop(0).wait()


def test_reflection_is_off_unless_it_is_asked_for(node: Served) -> None:
    with grpc.insecure_channel(f"unix:{node.socket}") as channel:
        call = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
        )
        with pytest.raises(grpc.RpcError) as caught:
            list(call(iter([b""]), timeout=10))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


# --- the client ----------------------------------------------------------------------


def test_where_no_agent_answers_the_hint_says_how_to_start_one(tmp_path: Path) -> None:
    address = AgentAddress(f"unix://{tmp_path}/none.sock")
    with AgentClient(address) as client, pytest.raises(Unreachable) as caught:
        client.describe()
    assert caught.value.exit_code == 4
    assert "faultctl agent start" in caught.value.hint


def test_where_no_agent_of_a_cluster_answers_none_is_to_be_started_here(tmp_path: Path) -> None:
    files = certs.write_all(tmp_path, "node")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound and not listening: refused
        url = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        address = AgentAddress(url, files.client_cert, files.client_key, files.ca)
        with AgentClient(address) as client, pytest.raises(Unreachable) as caught:
            client.describe()
    assert "deploy status" in caught.value.hint and "agent start" not in caught.value.hint


class OldAgent(pb_grpc.FaultdServicer):
    """Knows Describe only, and says an older version."""

    def Describe(self, request: Any, context: Any) -> pb.DescribeReply:  # noqa: N802
        return pb.DescribeReply(api_version=0, facts_json="{}")


def test_an_agent_that_is_too_old_is_said_as_such(tmp_path: Path) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    pb_grpc.add_FaultdServicer_to_server(OldAgent(), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with AgentClient(AgentAddress("unix:///unused")) as client:
        client._channel.close()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            client._stub = pb_grpc.FaultdStub(channel)  # type: ignore[no-untyped-call]
            for call in (client.describe, lambda: client.revert("x")):
                with pytest.raises(Unreachable, match="older") as caught:
                    call()
                assert "upgrade" in caught.value.hint
    server.stop(0).wait()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "tcp://", "http://x:1", "tcp://nohost", "unix://", "unix://relative"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidSpec):
        AgentClient(AgentAddress(url))


# --- the socket's directory ----------------------------------------------------------


def test_a_stale_socket_is_taken_over_and_a_live_one_is_not(node: Served, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="another agent answers"):
        main_module.socket_directory(node.socket)
    stale = node.home / "stale.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(stale))
    main_module.socket_directory(stale)
    assert not stale.exists()


@pytest.mark.parametrize("what", ["file", "link", "dangling link", "directory"])
def test_what_is_no_socket_is_refused_and_kept(tmp_path: Path, what: str) -> None:
    path = tmp_path / "s.sock"
    victim = tmp_path / "victim"
    if what == "file":
        path.write_text("mine")
    elif what == "directory":
        path.mkdir()
    else:
        path.symlink_to(victim)
        if what == "link":
            victim.write_text("precious")
    with pytest.raises(Refused, match="is not a socket"):
        main_module.socket_directory(path)
    assert path.is_symlink() or path.exists()


def test_a_new_socket_directory_is_0700(tmp_path: Path) -> None:
    main_module.socket_directory(tmp_path / "new" / "s.sock")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def test_a_socket_directory_that_leads_elsewhere_or_is_open_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(Refused, match="cannot hold the agent's socket"):
        main_module.socket_directory(tmp_path / "link" / "s.sock")
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(Refused, match="others may write"):
        main_module.socket_directory(tmp_path / "real" / "s.sock")


def test_a_second_agent_on_the_same_state_changes_nothing(
    node: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = inject(node, SetValue(name="a", value="x"), HoldLink(name="l"))
    epoch = node.agent.journal.epoch()
    monkeypatch.setattr(OwnerLock.__init__, "__defaults__", (0.05,))
    with pytest.raises(Refused, match="another agent"):
        Agent(node.agent.config)
    assert node.agent.journal.epoch() == epoch
    assert node.client.fault(fault.id).state == "armed"
    assert node.client.revert(fault.id).fault.state == "ended"


def test_exposure_is_of_a_fault_that_is_there(node: Served) -> None:
    asked = request("exposed")
    with pytest.raises(UnknownFault):
        node.client.exposure(asked.id)
    _, digest = node.client.plan(asked)
    node.client.apply(asked, LEASE, digest)
    found = node.client.exposure(asked.id)
    assert found is not None
    assert not found.known, "the kit's binding says nothing of workloads"
    node.client.revert(asked.id)
    assert node.client.exposure(asked.id) is None
    with pytest.raises(InvalidSpec):
        node.client.exposure("")

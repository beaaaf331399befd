"""Handing in: into a run that is played, once, by a file or over gRPC."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from judging_kit import armed, planned
from judging_runs import experiment, header, write_folder
from probe_kit import Authority, closed_port

from controller.cli.main import run as faultctl
from controller.client import AgentAddress
from controller.oracle_desk import MAX_DATA, hand_in, note_action
from controller.oracle_history import History
from controller.oracle_rpc import METHOD, send, serve
from controller.recorder import read_records
from controller.recorder_lock import lock_folder
from nodeagent.clock import boot_id, boottime_ns
from nodeagent.model.errors import InvalidSpec, Refused, Unreachable

S = 10**9


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A run that was injected ten seconds ago and is played by this process."""
    head = header(boot_id=boot_id(), origin_boottime_ns=boottime_ns() - 70 * S)
    made = write_folder(tmp_path / "run", [planned(), armed(60)], experiment(), head)
    lock = lock_folder(made)
    yield made
    os.close(lock)


def operator(folder: Path) -> list[Any]:
    return list(read_records(folder, "operator.jsonl"))


def test_times_are_the_runs(folder: Path) -> None:
    found = hand_in(folder, "diagnosis", {"service": "postgres"}, actor="agent")
    assert found.accepted
    assert 70 * S <= found.t_ns < 90 * S
    note_action(folder, "kubectl get pods", service="postgres")
    assert operator(folder)[0] == found
    assert operator(folder)[1].act == "kubectl get pods"


def test_twice_early_and_unknown_are_kept_but_do_not_count(folder: Path, tmp_path: Path) -> None:
    assert hand_in(folder, "mitigation", {}).accepted
    again = hand_in(folder, "mitigation", {})
    assert not again.accepted
    assert "already" in again.why_not
    assert not hand_in(folder, "diagnosis", {"text": "x"}, fault="x9").accepted
    assert len(operator(folder)) == 3
    assert len(History.of(operator(folder)).accepted("mitigation")) == 1
    head = header(boot_id=boot_id(), origin_boottime_ns=boottime_ns())
    early = write_folder(tmp_path / "early", [planned()], experiment(), head)
    lock = lock_folder(early)
    assert hand_in(early, "mitigation", {}).why_not == "no fault has been injected yet"
    os.close(lock)


def test_of_many_at_once_exactly_one_counts(folder: Path) -> None:
    found: list[bool] = []

    def one() -> None:
        found.append(hand_in(folder, "mitigation", {}).accepted)

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(found), found.count(True), len(operator(folder))) == (12, 1, 12)


def test_only_into_a_run_that_is_played_here(tmp_path: Path) -> None:
    over = write_folder(
        tmp_path / "over", [planned(), armed(1)], experiment(), header(boot_id=boot_id())
    )
    with pytest.raises(Refused, match="no run is played"):
        hand_in(over, "mitigation", {})
    other = write_folder(tmp_path / "other", [], experiment(), header(boot_id="another"))
    lock = lock_folder(other)
    with pytest.raises(Refused, match="another machine"):
        hand_in(other, "mitigation", {})
    os.close(lock)
    with pytest.raises(Refused):
        hand_in(tmp_path, "mitigation", {})


def test_what_is_no_submission(folder: Path) -> None:
    with pytest.raises(InvalidSpec):
        hand_in(folder, "surrender", {})
    with pytest.raises(InvalidSpec, match="too long"):
        hand_in(folder, "report", {"text": "x" * MAX_DATA})
    assert operator(folder) == []


def test_command_line(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "d.yaml"
    file.write_text("service: postgres\ntext: no\nscope: [postgres, checkout]\n")
    place = ["--run", str(folder)]
    assert faultctl(["submit", "report", str(file), *place]) == 0
    assert faultctl(["submit", "diagnosis", str(file), *place, "--actor", "me"]) == 0
    assert faultctl(["submit", "mitigation", *place, "--text", "moved the table"]) == 0
    assert faultctl(["submit", "mitigation", *place]) == 1
    assert faultctl(["submit", "action", "kubectl get pods", "--service", "postgres", *place]) == 0
    assert "not accepted: a mitigation was already handed in" in capsys.readouterr().out
    kinds = [getattr(r, "kind", r.type) for r in operator(folder)]
    assert kinds == ["report", "diagnosis", "mitigation", "mitigation", "action"]
    for bad in ("", "[1]", "{", "a: 2020-01-01"):
        file.write_text(bad)
        assert faultctl(["submit", "diagnosis", str(file), *place]) == 2, bad
    assert faultctl(["submit", "mitigation"]) == 2
    assert faultctl(["submit", "mitigation", *place, "--desk", "unix:///x"]) == 2


def test_desk_over_a_unix_socket(folder: Path, tmp_path: Path) -> None:
    address = AgentAddress(f"unix://{tmp_path}/desk")
    server = serve(folder, address)
    try:
        found = send(address, {"kind": "diagnosis", "data": {"service": "postgres"}})
        assert found["accepted"] is True
        assert send(address, {"kind": "action", "act": "ls"})["act"] == "ls"
        for bad in ({"kind": "nonsense"}, {"kind": "report", "data": [1]}, {}):
            with pytest.raises(InvalidSpec):
                send(address, bad)
        with address.channel() as channel:
            call = channel.unary_unary(METHOD, None, None)
            for raw in (b"", b"\xff", b"[]", b'"x"'):
                with pytest.raises(grpc.RpcError):
                    call(raw, timeout=5)
        assert len(operator(folder)) == 2
        code = faultctl(["submit", "mitigation", "--desk", address.url])
        assert code == 0
    finally:
        server.stop(0)
    with pytest.raises(Unreachable):
        send(address, {"kind": "mitigation"})


def test_desk_over_tcp_wants_mutual_tls(folder: Path, tmp_path: Path) -> None:
    url = f"tcp://127.0.0.1:{closed_port()}"
    with pytest.raises(InvalidSpec, match="cannot be listened at"):
        serve(folder, AgentAddress(url))
    authority = Authority(tmp_path)
    cert, key = authority.issue("desk", ["127.0.0.1"])
    mine, my_key = authority.issue("operator", ["me"])
    server = serve(folder, AgentAddress(url, cert, key, authority.path))
    try:
        client = AgentAddress(url, mine, my_key, authority.path)
        assert send(client, {"kind": "mitigation"})["accepted"] is True
        (tmp_path / "other").mkdir()
        stranger = Authority(tmp_path / "other", "other")
        theirs, their_key = stranger.issue("stranger", ["me"])
        with pytest.raises(Unreachable):
            send(AgentAddress(url, theirs, their_key, authority.path), {"kind": "mitigation"})
    finally:
        server.stop(0)
    lines = (folder / "operator.jsonl").read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["mitigation"]

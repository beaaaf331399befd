"""Probes: only an explicit pass is a pass; what cannot be measured is unknown."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nodeagent import child
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.probe import ExecProbe, ReadProbe, Sample, TcpProbe, parse_probe
from nodeagent.probes import run_probe, sample


def take(**data: Any) -> Sample:
    return sample(parse_probe(data))


def sh(script: str, **more: Any) -> Sample:
    return take(type="exec", command=["sh", "-c", script], **more)


# --- exec -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "pass"), (1, "fail"), (124, "fail"), (137, "fail"), (255, "fail")]
)
def test_only_exit_status_0_passes(code: int, verdict: str) -> None:
    found = sh(f"exit {code}")
    assert found.verdict == verdict
    assert found.data["exit"] == code
    assert found.data["stdout"] == ""


def test_a_program_that_a_signal_ends_fails() -> None:
    found = sh("kill -9 $$")
    assert (found.verdict, found.reason) == ("fail", "killed by signal 9")


@pytest.mark.parametrize(
    ("out", "verdict"),
    [("", "fail"), ("almost rea dy", "fail"), ("ready", "pass"), ("x ready y", "pass")],
)
def test_output_that_is_asked_for_must_be_there(out: str, verdict: str) -> None:
    assert sh(f"printf '{out}'", contains="ready").verdict == verdict


def test_output_on_stderr_is_no_output() -> None:
    assert sh("echo ready >&2", contains="ready").verdict == "fail"


def test_the_reason_is_the_last_line_of_the_error() -> None:
    assert sh("echo one >&2; echo two >&2; exit 3").reason == "exit status 3: two"


@pytest.mark.parametrize("command", [["/no/such/program"], ["/etc/passwd"], ["/"]])
def test_a_program_that_cannot_run_is_unknown(command: list[str]) -> None:
    assert take(type="exec", command=command).verdict == "unknown"


def alive(marker: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


def gone_soon(marker: str) -> bool:
    end = time.monotonic() + 10
    while alive(marker):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def test_a_time_out_fails_and_kills_the_whole_process_group() -> None:
    marker = f"{30.0 + os.getpid() / 1e7:.9f}"
    began = time.monotonic()
    found = sh(f"sleep {marker} & sleep {marker}; exit 0", timeout="200ms")
    assert found.verdict == "fail"
    assert found.data == {"timed_out": True}
    assert time.monotonic() - began < 10
    assert gone_soon(marker)


def test_a_program_that_ignores_signals_is_ended_too() -> None:
    began = time.monotonic()
    assert sh("trap '' TERM INT HUP; while :; do sleep 1; done", timeout="200ms").verdict == "fail"
    assert time.monotonic() - began < 10


def test_a_grandchild_in_the_background_is_not_waited_for_and_not_left() -> None:
    marker = f"{31.0 + os.getpid() / 1e7:.9f}"
    began = time.monotonic()
    found = sh(f"sleep {marker} & echo ok", timeout="20s", contains="ok")
    assert found.verdict == "pass"
    assert time.monotonic() - began < 10
    assert gone_soon(marker)


def test_a_grandchild_that_left_the_group_and_holds_the_pipe_cannot_hang_the_agent() -> None:
    began = time.monotonic()
    found = sh("setsid sleep 12 & echo ok", timeout="20s", contains="ok")
    assert found.verdict == "pass"
    assert time.monotonic() - began < 10


def test_output_without_end_is_not_kept() -> None:
    found = sh("yes | head -c 30000000; echo; exit 1", timeout="60s")
    assert found.verdict == "fail"
    assert len(str(found.data["stdout"])) == 4096
    done = child.run(["sh", "-c", "yes | head -c 8000000"], 60, threading.Event())
    assert done.code == 0
    assert len(done.out) == child.MAX_CAPTURE


def test_output_that_is_no_text_is_shown_somehow() -> None:
    found = sh("printf '\\377\\0x'; exit 1")
    assert found.data["stdout"] == "\ufffd\0x"
    found.model_dump_json()


def test_a_probe_ends_when_nobody_waits_for_it() -> None:
    gone = threading.Event()
    threading.Timer(0.2, gone.set).start()
    began = time.monotonic()
    found = sample(ExecProbe(command=("sleep", "60"), timeout="50s"), gone)  # type: ignore[arg-type]
    assert found.verdict == "unknown"
    assert time.monotonic() - began < 10


def test_the_pause_between_samples_ends_when_nobody_waits() -> None:
    gone = threading.Event()
    text = '{"type": "exec", "command": ["true"], "count": 5, "interval": "1h"}'
    samples = run_probe(text, gone)
    assert next(samples).verdict == "pass"
    threading.Timer(0.1, gone.set).start()
    assert list(samples) == []


def test_no_descriptor_is_lost() -> None:
    sh("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        sh("sleep 5", timeout="10ms")
        take(type="exec", command=["/no/such/program"])
    assert len(os.listdir("/proc/self/fd")) == before


# --- tcp --------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield found


def test_a_port_that_accepts_passes(listener: socket.socket) -> None:
    found = take(type="tcp", host="127.0.0.1", port=listener.getsockname()[1])
    assert (found.verdict, found.data) == ("pass", {"peer": "127.0.0.1"})


def test_a_refused_connection_is_a_failure_with_its_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    found = take(type="tcp", host="127.0.0.1", port=port)
    assert found.verdict == "fail"
    assert found.data["errno"] == "ECONNREFUSED"


def test_no_answer_is_a_failure_within_the_time_out() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        fillers = []
        for _ in range(4):  # the queue is full: the kernel drops further SYNs
            filler = socket.socket()
            filler.setblocking(False)
            filler.connect_ex(address)
            fillers.append(filler)
        began = time.monotonic()
        found = take(type="tcp", host="127.0.0.1", port=address[1], timeout="300ms")
        for filler in fillers:
            filler.close()
    assert (found.verdict, found.data) == ("fail", {"timed_out": True})
    assert time.monotonic() - began < 10


def test_a_name_that_does_not_resolve_is_a_failure() -> None:
    assert take(type="tcp", host="no-such-host.invalid", port=1, timeout="5s").verdict == "fail"


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_an_ipv6_literal_goes_bare_or_in_brackets(host: str) -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 on this machine")
    with server:
        found = take(type="tcp", host=host, port=server.getsockname()[1])
    assert (found.verdict, found.data) == ("pass", {"peer": "::1"})


@pytest.mark.parametrize(
    "host", ["fe80::1%eth0", "[fe80::1%eth0]", "a.b-c.example.", "10.0.0.1", "x_y"]
)
def test_hosts_that_are_taken(host: str) -> None:
    assert TcpProbe(host=host, port=1).host == host.strip("[]")


@pytest.mark.parametrize(
    "host",
    [
        "",
        "[]",
        "[::1",
        "::1]",
        "[[::1]]",
        "[10.0.0.1]",
        "a b",
        "a\0b",
        "a" * 64,
        "a..b",
        ".",
        "x" * 300,
        "f00d::1:4240:::",
        "http://x",
        "x/y",
        "host:80",
        "[::1]:80",
        "a\nb",
    ],
)
def test_hosts_that_are_refused_before_anything_is_done(host: str) -> None:
    with pytest.raises(ValidationError):
        TcpProbe(host=host, port=1)


# --- read -------------------------------------------------------------------------


@pytest.fixture
def direct(tmp_path: Path) -> Path:
    """A file where O_DIRECT works."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(10_000))
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("no O_DIRECT on this file system")
    return path


def test_a_good_file_passes_to_its_last_byte(direct: Path) -> None:
    found = take(type="read", path=str(direct))
    assert (found.verdict, found.data["blocks"]) == ("pass", 3)
    assert take(type="read", path=str(direct), offset="4096B", length="4Ki").data["blocks"] == 1


def test_a_file_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    found = take(type="read", path=str(tmp_path / "none"))
    assert (found.verdict, found.data) == ("unknown", {})
    assert "No such file" in found.reason


def test_nothing_to_read_is_unknown(tmp_path: Path, direct: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert take(type="read", path=str(tmp_path / "empty")).verdict == "unknown"
    assert take(type="read", path=str(direct), offset="1Mi").verdict == "unknown"
    assert take(type="read", path=str(direct), length="0B").verdict == "unknown"


def test_a_directory_or_a_fifo_is_unknown_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, Path("/dev/null")):
        assert take(type="read", path=str(path), timeout="2s").verdict == "unknown", path


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_where_o_direct_does_not_work_the_verdict_is_unknown(tmp_path: Path) -> None:
    """proc files have no O_DIRECT; tmpfs has it only since Linux 6.6."""
    found = take(type="read", path="/proc/self/status", length="4Ki")
    assert found.verdict == "unknown"
    assert found.reason


@pytest.mark.parametrize(
    "bad",
    [
        {"block": "0B"},
        {"block": "1000B"},
        {"block": "1Gi"},
        {"offset": "512B"},
        {"path": "relative"},
        {"path": "/a\0b"},
    ],
)
def test_a_bad_read_probe_is_an_error_and_no_verdict(bad: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        ReadProbe.model_validate({"path": "/x", **bad})


# --- any input --------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"type": "exec"}',
        '{"type": "exec", "command": []}',
        '{"type": "nope"}',
        '{"type": "exec", "command": ["a\\u0000b"]}',
        '{"type": "exec", "command": ["x"], "timeout": "0s"}',
        '{"type": "exec", "command": ["x"], "timeout": 5}',
        '{"type": "exec", "command": ["x"], "count": 0}',
        '{"type": "tcp", "host": "x", "port": 0}',
        '{"type": "tcp", "host": "x", "port": 65536}',
        '{"type": "exec", "type": "tcp"}',
        '{"type": "exec", "command": ["x"], "count": NaN}',
        "[" * 100_000,
        '{"type": "exec", "command": ["x"], "timeout": "400d"}',
    ],
)
def test_a_probe_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        list(run_probe(text, threading.Event()))
    assert caught.value.why


@given(st.text())
def test_any_text_is_refused_or_is_a_host_for_the_resolver(host: str) -> None:
    try:
        found = TcpProbe(host=host, port=1).host
    except ValidationError:
        return
    assert found
    assert "\0" not in found
    assert sys.getsizeof(found) < 2000

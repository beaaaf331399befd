"""The agent's log lines: each one whole, as asked, naming no fault, and never a reason to wait."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import core_kit
import pytest
import yaml
from agent_kit import Served, served
from core_kit import Lease, SetValue, request
from hypothesis import given
from hypothesis import strategies as st

from nodeagent import doctor, log
from nodeagent.backends import Residue
from nodeagent.model.errors import BackendError, FaultError, Refused

RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
HEAD = ["time", "level", "component", "message"]
LOG = logging.getLogger("nodeagent.test")
NAMED = log.about("xf1", "disk-delay on /dev/vdb", event="armed")
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture(autouse=True)
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `configure` sets is the process's."""
    root, package = logging.getLogger(), logging.getLogger("nodeagent")
    before = root.handlers[:], root.level, package.level
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.delenv("GRPC_VERBOSITY", raising=False)
    yield
    root.handlers[:], root.level, package.level = before
    logging.captureWarnings(False)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[tuple[int, Lines]]:
    """A file to log to, and what is in it."""
    path = tmp_path / "log"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    yield fd, lambda: [json.loads(line) for line in path.read_text().splitlines()]
    os.close(fd)


def parsed(raw: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in raw.decode().splitlines()]


def test_a_line_is_an_object_with_time_level_component_and_message(sink: tuple[int, Lines]) -> None:
    log.configure("faultd", "json", fd=sink[0])
    LOG.info("armed", extra=NAMED)
    logging.getLogger("nodeagent").debug("not said")
    logging.getLogger("grpc").info("not said")
    logging.getLogger("grpc").warning("a library's own: %d %d", 7)  # its mistake is not ours
    first, library = sink[1]()
    assert RFC3339.fullmatch(first["time"])
    assert abs(time.time() - _seconds(first["time"])) < 60
    assert list(first) == [*HEAD, "fault", "event"]
    said = {name: first[name] for name in ("level", "component", "message", "fault", "event")}
    assert said == {
        "level": "info", "component": "faultd", "message": "armed", "fault": "xf1", "event": "armed"
    }  # fmt: skip
    assert (library["level"], library["message"]) == ("warning", "a library's own: %d %d")


def _seconds(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def test_text_is_as_people_read_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log.configure("faultd", "text", "names", file.fileno())
        LOG.info("armed", extra=NAMED)
        log.say_error(LOG, Refused("no\nway", "because", "do it"))
    assert path.read_text() == (
        "faultd: xf1: armed: disk-delay on /dev/vdb\nfaultd: no way\n  because\n  do it\n"
    )


def _raised(words: str) -> ValueError:
    try:
        int(words)
    except ValueError as exc:
        return exc
    raise AssertionError(words)


@pytest.mark.parametrize("form", log.FORMS)
@pytest.mark.parametrize(
    ("faults", "fault", "name"),
    [("none", False, False), ("ids", True, False), ("names", True, True)],
)
def test_what_is_said_of_faults(
    tmp_path: Path, form: str, faults: str, fault: bool, name: bool
) -> None:
    path = tmp_path / "log"
    with path.open("wb") as file:
        log.configure("faultd", form, faults, file.fileno())
        LOG.warning("is not reverted yet", extra=NAMED)
        LOG.error("a bug", exc_info=_raised("/dev/vdb is busy"))
    text = path.read_text()
    assert ("xf1" in text, "disk-delay" in text, "is busy" in text) == (fault, name, name)
    assert "a bug" in text and "test_log.py" in text and "ValueError" in text


@given(st.text(), st.text(), st.text(max_size=40).filter(bool))
def test_any_words_are_one_whole_line_that_a_pipe_takes_at_once(
    message: str, details: str, fault: str
) -> None:
    for scale in (1, 5000):
        record = LOG.makeRecord(
            LOG.name, logging.INFO, "", 0, message * scale or "m", (), None,
            extra=log.about(fault, details * scale),
        )  # fmt: skip
        line = log.JsonForm("faultd", names=True).format(record)
        assert "\n" not in line and len(line.encode()) < log.MAX_LINE
        found = json.loads(line)
        assert (message * scale or "m").startswith(found["message"])
        assert len(log.TextForm("faultd", names=True).format(record).encode()) < log.MAX_LINE


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_the_loss_is_said() -> None:
    read, write = os.pipe()
    try:
        log.configure("faultd", "json", fd=write)
        begun = time.monotonic()
        for _ in range(2000):  # a pipe has 64 KiB, pipe(7)
            LOG.info("m" * 100)
        assert time.monotonic() - begun < 30
        got = parsed(os.read(read, 1 << 20))
        LOG.info("again")
        lost, again = parsed(os.read(read, 1 << 20))
        assert again["message"] == "again"
        assert lost["message"] == f"{2000 - len(got)} lines were lost"
        assert 0 < len(got) < 2000
    finally:
        os.close(read)
    LOG.info("to nobody: no signal, and no error")
    os.close(write)
    LOG.info("to nothing")


# --- processes --------------------------------------------------------------------


def run(*argv: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, *argv], capture_output=True, timeout=120)


@pytest.mark.parametrize(
    ("argv", "component"),
    [
        (("nodeagent.main", "--tls-key", "/nonexistent"), "faultd"),
        (("nodeagent.pod", "run", "--state-dir", "/nonexistent/x"), "faultd-pod"),
    ],
)
def test_what_a_process_ends_with_is_a_line(argv: tuple[str, ...], component: str) -> None:
    done = run("-m", *argv, "--log-format", "json")
    (line,) = parsed(done.stderr)
    assert done.returncode in (2, 3) and done.stdout == b""
    assert (line["component"], line["level"]) == (component, "error")
    assert line["message"] and line["why"]


def test_a_bug_is_a_line_without_its_words() -> None:
    code = "from nodeagent import log; log.configure('faultd', 'json'); raise OSError('/dev/vdb')"
    done = run("-c", code)
    (line,) = parsed(done.stderr)
    assert done.returncode == 1
    assert line["level"] == "critical" and line["exception"].endswith("OSError")
    assert b"vdb" not in done.stderr.replace(code.encode(), b"")


def test_a_thread_that_dies_is_a_line_and_takes_the_agent_with_it() -> None:
    code = """
import threading
from nodeagent import log, main
log.configure("faultd", "json")
threading.excepthook = main.die_with_any_thread
thread = threading.Thread(target=lambda: {}["a key"])
thread.start(); thread.join()
"""
    done = run("-c", code)
    (line,) = parsed(done.stderr)
    assert done.returncode == 70
    assert line["level"] == "critical" and line["exception"].endswith("KeyError")


def test_the_daemonset_writes_json_that_names_no_fault() -> None:
    base = Path(__file__).parents[2] / "daemonset"
    for folder, verb in (("base", "run"), ("clean", "clean")):
        (found,) = yaml.safe_load_all((base / folder / "daemonset.yaml").read_text())
        (container,) = found["spec"]["template"]["spec"]["containers"]
        assert container["args"] == [verb, "--log-format=json"]


# --- an agent's faults ------------------------------------------------------------


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with served(monkeypatch) as found:
        yield found


def life_of_three(node: Served) -> None:
    """Reverted, expired, could not be armed."""
    for fault_id, name in (("xf1", "a"), ("xf2", "b")):
        asked = request(fault_id, SetValue(name=name, value="secret"))
        lease = Lease(duration=timedelta(seconds=1 if fault_id == "xf2" else 60))
        node.client.apply(asked, lease, node.client.plan(asked)[1])
    node.client.revert("xf1")
    node.kernel.fail["apply:c"] = [BackendError("secret", "no")]
    asked = request("xf3", SetValue(name="c", value="secret"))
    with pytest.raises(FaultError):
        node.client.apply(asked, core_kit.Lease(), node.client.plan(asked)[1])
    end = time.monotonic() + 60
    while node.client.fault("xf2").state != "ended":
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("faults", ["ids", "names"])
def test_what_happens_to_faults_are_lines(
    node: Served, sink: tuple[int, Lines], faults: str
) -> None:
    log.configure("faultd", "json", faults, sink[0])
    life_of_three(node)
    node.agent._event_log.stop()
    found = sink[1]()
    said = {(line["fault"], line["level"], line["message"]) for line in found}
    assert said == {
        ("xf1", "info", "armed"),
        ("xf1", "info", "ended: reverted"),
        ("xf2", "info", "armed"),
        ("xf2", "info", "ended: expired"),
        ("xf3", "warning", "could not be armed"),
        ("xf3", "info", "ended: apply-failed"),
    }
    assert {line.get("reason") for line in found} == {None, "reverted", "expired", "apply-failed"}
    # A blind run: neither its kind, nor what it acts on, nor how, nor what an error says of it.
    text = json.dumps(found)
    for word in ("t-steps", "secret", "mechanism", "/dev/t"):
        assert (word in text) is (faults == "names"), word


def test_residue_is_a_line_when_it_changes(
    node: Served, sink: tuple[int, Lines], monkeypatch: pytest.MonkeyPatch
) -> None:
    log.configure("faultd", "json", fd=sink[0])
    left = [Residue("a table on vdb", "8:16", lambda: None)]
    monkeypatch.setattr(doctor, "load_scavengers", lambda: [lambda *_: left])
    for _ in range(3):
        node.client.doctor()
    left.clear()
    for _ in range(3):
        node.client.doctor()
    assert [(line["level"], line["message"]) for line in sink[1]()] == [
        ("warning", "residue: 1 things are left over, see faultctl doctor"),
        ("info", "residue: nothing is left over any more"),
    ]
    assert "vdb" not in json.dumps(sink[1]())

"""Probes that run programs, here and through a node's own probe code; and logs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from probe_kit import NODE, take
from pydantic import ValidationError

from controller.probes.measure import Meter, Surroundings
from controller.probes.outcome import Outcome
from controller.probes.spec import parse_probe
from nodeagent.model.errors import FaultError, UnknownFault, Unreachable
from nodeagent.model.exposure import Exposure, Workload

PLACES = [None, "n1"]


def sh(script: str, node: str | None = None, **more: Any) -> Outcome:
    return take({"type": "exec", "command": ["/bin/sh", "-c", script], "node": node, **more}, NODE)


@pytest.mark.parametrize("node", PLACES)
@pytest.mark.parametrize(
    ("script", "verdict"),
    [
        ("true", "pass"),
        ("exit 0", "pass"),
        ("exit 1", "fail"),
        ("exit 124", "fail"),
        ("exit 137", "fail"),
        ("kill -9 $$", "fail"),
        ("echo ok; exit 1", "fail"),
    ],
)
def test_only_exit_status_0_is_a_pass(script: str, verdict: str, node: str | None) -> None:
    """Empty output is no matter, a falsy result is no pass (CASES 153)."""
    assert sh(script, node).verdict == verdict


@pytest.mark.parametrize("node", PLACES)
def test_output(node: str | None) -> None:
    assert sh("echo rows: 7", node, output="rows: 7").verdict == "pass"
    found = sh("true", node, output="rows")
    assert (found.verdict, found.reason) == ("fail", "the output does not contain 'rows'")
    assert sh("echo why >&2; exit 3", node).reason == "exit status 3: why"
    assert sh("printf '\\377\\376'; echo ok", node, output="ok").verdict == "pass"


@pytest.mark.parametrize("node", PLACES)
def test_a_slow_program_is_killed_and_fails(node: str | None, tmp_path: Path) -> None:
    """Not finished is never passed (CASES 146), and its children go with it."""
    pids = tmp_path / "pids"
    began = time.monotonic()
    found = sh(f"sleep 90 & echo $! > {pids}; wait; exit 0", node, timeout="300ms")
    assert found.verdict == "fail"
    assert "time-out" in found.reason
    assert time.monotonic() - began < 5
    child = int(pids.read_text())
    for _ in range(50):
        if not Path(f"/proc/{child}").exists() or _state(child) == "Z":
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the child lives on")


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


@pytest.mark.parametrize("node", PLACES)
def test_a_program_that_cannot_be_run_measures_nothing(node: str | None) -> None:
    found = take({"type": "exec", "command": ["/nonexistent"], "node": node}, NODE)
    assert found.verdict == "unknown"


def test_no_shell_stands_between() -> None:
    found = take({"type": "exec", "command": ["/bin/echo", "$HOME; false"]})
    assert found.data["stdout"] == "$HOME; false\n"


def test_an_agent_that_does_not_answer_measures_nothing() -> None:
    class Silent:
        def probe(self, probe: dict[str, Any], timeout: float) -> Iterator[Any]:
            return iter(())

    silent = Surroundings(agents=lambda name: Silent())
    assert take({"type": "exec", "command": ["true"], "node": "n1"}, silent).verdict == "unknown"
    assert take({"type": "exec", "command": ["true"], "node": "n1"}).verdict == "unknown"


@pytest.mark.skipif(os.geteuid() != 0, reason="entering namespaces needs root")
def test_inside_a_process() -> None:
    with named("inside-kit") as child:
        found = sh("readlink /proc/self/ns/uts", inside="inside-kit")
        assert found.verdict == "pass", found
        assert found.data["stdout"].strip() == os.readlink(f"/proc/{child.pid}/ns/uts")
    gone = sh("true", inside="nobody-there")
    assert gone.verdict == "unknown"
    assert "no process nobody-there" in gone.reason


# --- processes ---------------------------------------------------------------------------------


class named:  # noqa: N801 - reads as a statement
    """A process with a comm of our choice."""

    def __init__(self, name: str, code: str = "") -> None:
        script = (
            f"open('/proc/self/comm','w').write({name!r})\n{code}\nprint('up', flush=True)\n"
            "import time\ntime.sleep(60)"
        )
        self.child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == b"up\n"

    def __enter__(self) -> subprocess.Popen[bytes]:
        return self.child

    def __exit__(self, *exc: object) -> None:
        self.child.kill()
        self.child.wait()


@pytest.mark.parametrize("node", PLACES)
@pytest.mark.parametrize("name", ["plain-kit", "odd ) (kit", "-e", "[k] 5"])
def test_processes_are_counted_and_told_apart(name: str, node: str | None) -> None:
    data = {"type": "process", "name": name, "node": node}
    assert take(data, NODE).verdict == "fail"
    with named(name) as first:
        one = take(data, NODE)
        assert (one.verdict, one.data["count"]) == ("pass", 1)
        assert one.data["identity"].startswith(f"{first.pid}@")
        assert take(data, NODE).data["identity"] == one.data["identity"]
        with named(name):
            assert take(data | {"at_least": 2}, NODE).data["count"] == 2
            assert take(data | {"at_least": 3}, NODE).verdict == "fail"
            assert take(data | {"at_most": 1}, NODE).verdict == "fail"
    with named(name):
        again = take(data, NODE)
        assert again.data["identity"] != one.data["identity"], "a restart shows"


def test_a_zombie_is_no_workload() -> None:
    child = named("zombie-kit").child
    child.kill()
    for _ in range(100):
        if _state(child.pid) == "Z":
            break
        time.sleep(0.05)
    found = take({"type": "process", "name": "zombie-kit"})
    child.wait()
    assert (found.verdict, found.data["count"]) == ("fail", 0)


def test_threads_are_not_counted() -> None:
    start = "threading.Thread(target=time.sleep,args=(60,),daemon=True).start()"
    code = f"import threading,time\nfor _ in range(5): {start}"
    with named("thread-kit", code):
        assert take({"type": "process", "name": "thread-kit"}).data["count"] == 1


def test_names_longer_than_the_kernel_keeps_are_refused() -> None:
    with pytest.raises(ValidationError):
        parse_probe({"type": "process", "name": "sixteen-bytes-xx"})


# --- exposure ------------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="only root sees the files of all processes")
@pytest.mark.parametrize("node", PLACES)
def test_exposure_is_who_has_files_there_open(tmp_path: Path, node: str | None) -> None:
    volume = tmp_path / "vol"
    volume.mkdir()
    (volume / "table").write_bytes(b"x" * 8192)
    (tmp_path / "volume-other").write_text("a name that only begins the same")
    data = {"type": "exposure", "path": str(volume), "node": node}
    assert take(data, NODE).verdict == "pass"
    with named("user-kit", f"f=open({str(volume / 'table')!r})"):
        found = take(data, NODE)
        assert (found.verdict, found.data["count"]) == ("fail", 1)
        assert "user-kit" in found.reason
        assert take(data | {"path": str(volume / "table")}, NODE).verdict == "fail"
    mapped = (
        f"import mmap\nf=open({str(volume / 'table')!r})\n"
        "m=mmap.mmap(f.fileno(),0,prot=mmap.PROT_READ)\nf.close()"
    )
    with named("map-kit", mapped):
        assert "map-kit" in take(data, NODE).reason
    with named("near-kit", f"f=open({str(tmp_path / 'volume-other')!r})"):
        assert take(data, NODE).verdict == "pass"


# --- read ----------------------------------------------------------------------------------------


def test_read_runs_on_the_node(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"x" * 8192)
    found = take({"type": "read", "node": "n1", "path": str(path)}, NODE)
    assert found.verdict in ("pass", "unknown"), "unknown where O_DIRECT is not possible"
    if found.verdict == "pass":
        assert found.data["blocks"] == 2
    gone = take({"type": "read", "node": "n1", "path": str(tmp_path / "none")}, NODE)
    assert gone.verdict == "unknown"
    with pytest.raises(ValidationError):
        parse_probe({"type": "read", "path": "/x"})


# --- log -----------------------------------------------------------------------------------------


class Log:
    def __init__(self, path: Path, node: str | None, **more: Any) -> None:
        self.path = path
        data = {"type": "log", "path": str(path), "node": node, "pattern": "I/O error", **more}
        self.meter = Meter(parse_probe(data), NODE)

    def add(self, text: str) -> None:
        with self.path.open("a") as file:
            file.write(text)

    def look(self) -> Outcome:
        return self.meter.sample()[0]


@pytest.fixture(params=PLACES)
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    path = tmp_path / "log"
    path.write_text("an old I/O error\n")
    return Log(path, request.param)


def test_old_lines_do_not_count_and_new_ones_do(log: Log) -> None:
    assert log.look().verdict == "pass"
    log.add("all is well\n")
    assert log.look().verdict == "pass"
    log.add("I/O error, dev vdb\nI/O error, dev vdb\n")
    found = log.look()
    assert (found.verdict, found.data["matches"]) == ("fail", 2)
    assert log.look().verdict == "fail", "it is still within the time"


def test_matches_grow_old(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    log = Log(path, None, within="300ms")
    log.look()
    log.add("I/O error\n")
    assert log.look().verdict == "fail"
    time.sleep(0.4)
    assert log.look().verdict == "pass"


def test_presence(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    log = Log(path, None, expect="present")
    assert log.look().verdict == "fail"
    log.add("I/O error\n")
    assert log.look().verdict == "pass"


def test_rotation_and_truncation(log: Log) -> None:
    log.look()
    log.add("a line that makes it longer\n" * 10)
    log.look()
    log.path.rename(log.path.with_suffix(".1"))
    log.path.write_text("I/O error after rotation\n")
    assert log.look().data["matches"] == 1
    log.path.write_text("I/O error\n")
    assert log.look().data["matches"] == 2


def test_half_a_line_waits_for_its_end(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.touch()
    log = Log(path, None)
    log.look()
    log.add("I/O er")
    assert log.look().verdict == "pass"
    log.add("ror, dev vdb\n")
    assert log.look().data["matches"] == 1


def test_a_log_that_is_not_there_measures_nothing(log: Log) -> None:
    log.path.unlink()
    assert log.look().verdict == "unknown"


def test_binary_lines_are_read(log: Log) -> None:
    log.look()
    with log.path.open("ab") as file:
        file.write(b"\x00\xff I/O error \xfe\n")
    assert log.look().verdict == "fail"


def test_a_program_that_talks_without_end_costs_no_memory() -> None:
    """Its output is read on, so that it does not stall, and only the head is kept."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = sh("head -c 300000000 /dev/zero; echo done >&2", timeout="60s")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert found.verdict == "pass"
    assert len(found.data["stdout"]) == 4096
    assert found.data["stderr"] == "done\n"
    assert grown < 50_000, f"{grown} KiB"
    endless = sh("yes", timeout="300ms")
    assert (endless.verdict, endless.data.get("cause")) == ("fail", "time-out")


def test_what_a_program_leaves_behind_is_not_waited_for() -> None:
    began = time.monotonic()
    found = sh("sleep 5 & echo ok", timeout="4s", output="ok")
    assert found.verdict == "pass"
    assert time.monotonic() - began < 3


class Exposed:
    """An agent's answer about each fault."""

    def __init__(self, **found: Exposure | FaultError | None) -> None:
        self.found = found

    def probe(self, probe: dict[str, Any], timeout: float) -> Iterator[Any]:
        raise AssertionError("the fault is asked for, not a path")

    def exposure(self, fault_id: str, timeout: float) -> Exposure | None:
        answer = self.found[fault_id]
        if isinstance(answer, FaultError):
            raise answer
        return answer


def exposed(*ids: str, reach: str = "volume", **found: Exposure | FaultError | None) -> Outcome:
    around = Surroundings(
        agents=lambda node: Exposed(**found), faults=lambda name: [("n1", i) for i in ids]
    )
    spec = parse_probe({"type": "exposure", "fault": "bad", "reach": reach})
    return Meter(spec, around).sample()[0]


def user(how: Any, pid: int = 7) -> Exposure:
    return Exposure(workloads=(Workload(pid=pid, comm="postgres", how=how),))


def test_exposure_of_a_fault_is_what_its_agents_say() -> None:
    assert exposed("a", a=Exposure()).verdict == "pass"
    assert exposed("a", "b", a=None, b=Exposure()).verdict == "pass"
    found = exposed("a", "b", a=Exposure(), b=user("file"))
    assert (found.verdict, found.reason) == ("fail", "can still hit postgres (7, file)")
    assert exposed("a", a=user("volume")).verdict == "fail"
    assert exposed("a", a=user("volume"), reach="file").verdict == "pass"
    for how in ("file", "device", "scope", "netns", "node"):
        assert exposed("a", a=user(how), reach="file").verdict == "fail"


def test_exposure_that_cannot_be_told_is_unknown_and_never_none() -> None:
    assert exposed("a", a=Exposure(known=False, note="nobody can say")).verdict == "unknown"
    assert exposed("a", a=Exposure(complete=False)).verdict == "unknown"
    assert exposed("a", "b", a=Exposure(complete=False), b=user("file")).verdict == "fail"
    assert exposed("a", a=Unreachable("no agent answers")).verdict == "unknown"
    assert exposed("a", a=UnknownFault("never injected")).verdict == "pass"
    spec = parse_probe({"type": "exposure", "fault": "bad"})
    assert Meter(spec).sample()[0].verdict == "unknown", "there is no run"


def test_a_fault_that_waits_for_its_next_pod_may_hit_whoever_comes() -> None:
    spec = parse_probe({"type": "exposure", "fault": "bad"})

    def sample(*places: tuple[str, str]) -> Outcome:
        around = Surroundings(agents=lambda node: Exposed(a=Exposure(), b=user("file")),
                              faults=lambda name: list(places))  # fmt: skip
        return Meter(spec, around).sample()[0]

    found = sample(("", "a"))
    assert (found.verdict, found.reason) == ("unknown", "it waits for the next pod of its workload")
    assert sample(("", "a"), ("n1", "b")).verdict == "fail", "the pod that goes is hit still"


def test_an_exposure_probe_asks_for_one_thing() -> None:
    for bad in ({}, {"path": "/srv", "fault": "bad"}, {"fault": "bad", "node": "n1"}):
        with pytest.raises(ValidationError):
            parse_probe({"type": "exposure", **bad})

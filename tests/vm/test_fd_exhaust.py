"""fd-exhaust: what a process can still open, by its own word; limits back, children's too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from agentkit import Bench
from cgroup_kit import revert_all

from nodeagent.model.errors import ForeignState, Refused

pytestmark = pytest.mark.vm("debian-12", "debian-13")
OPENER = """
import errno, os, signal, sys
opened = []
def more(*_):
    try:
        opened.append(os.open("/dev/null", os.O_RDONLY))
        said = "ok"
    except OSError as exc:
        said = errno.errorcode[exc.errno]
    os.write(out, f"{said}\\n".encode())
def less(*_):
    os.close(opened.pop(0))
    os.write(out, b"closed\\n")
out = os.open("/run/said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
signal.signal(signal.SIGUSR1, more)
signal.signal(signal.SIGUSR2, less)
if len(sys.argv) > 1 and os.fork() == 0:
    open("/run/child", "w").write(str(os.getpid()))
os.write(out, b"ready\\n")
while True:
    signal.pause()
"""


@contextmanager
def opener(bench: Bench, *args: str) -> Iterator[int]:
    """A process that opens a file at SIGUSR1, closes one at SIGUSR2, and says how it went."""
    bench.node.put("/run/opener.py", OPENER.encode())
    bench.node.sh("rm -f /run/said /run/child")
    started = bench.node.sh(
        f"setsid python3 /run/opener.py {' '.join(args)} >/dev/null 2>&1 </dev/null & echo $!; "
        "for i in $(seq 200); do grep -qs ready /run/said && exit 0; sleep 0.1; done; exit 1",
        timeout=30,
    )
    pid = int(started.split()[0])
    try:
        yield pid
    finally:
        revert_all(bench)
        bench.node.run("pkill -9 -f '[o]pener.py'", check=False)


def ask(bench: Bench, pid: int, signal: str = "USR1") -> str:
    """What the process says of one more file."""
    return bench.node.sh(
        f"n=$(wc -l < /run/said); kill -{signal} {pid}; for i in $(seq 200); do "
        "[ $(wc -l < /run/said) -gt $n ] && break; sleep 0.05; done; tail -n 1 /run/said"
    ).strip()


def limits(bench: Bench, pid: int) -> str:
    """By prlimit(1)."""
    out = bench.node.sh(f"prlimit --pid {pid} --nofile --noheadings -o SOFT,HARD")
    return " ".join(out.split())


def test_it_opens_what_is_left_and_no_more(bench: Bench) -> None:
    with opener(bench) as pid:
        before, target = limits(bench, pid), {"type": "pid", "pid": pid}
        fault = bench.inject("fd-exhaust", target, spec={"leave": 2})
        assert [ask(bench, pid) for _ in range(3)] == ["ok", "ok", "EMFILE"]
        assert bench.evidence(fault.id)["counters"]["left"] == 0
        assert ask(bench, pid, "USR2") == "closed"
        assert [ask(bench, pid) for _ in range(2)] == ["ok", "EMFILE"], "what it closed is free"
        with pytest.raises(Refused):
            bench.inject("fd-exhaust", target)
        bench.client.revert(fault.id)
        assert limits(bench, pid) == before
        assert ask(bench, pid) == "ok"
    assert bench.residue() == []


def test_hard_children_and_what_somebody_set(bench: Bench) -> None:
    with opener(bench, "fork") as pid:
        target: dict[str, Any] = {"type": "pid", "pid": pid}
        before = limits(bench, pid)
        fault = bench.inject("fd-exhaust", target, spec={"hard": True})
        soft, hard = limits(bench, pid).split()
        assert soft == hard
        child = int(bench.node.sh("cat /run/child"))
        bench.node.sh(f"prlimit --pid {child} --nofile={soft}:{hard}")  # as if born with it
        bench.client.revert(fault.id)
        assert limits(bench, pid) == limits(bench, child) == before
        fault = bench.inject("fd-exhaust", target)
        bench.node.sh(f"prlimit --pid {pid} --nofile=77:")
        with pytest.raises(ForeignState):
            bench.client.revert(fault.id)
        assert limits(bench, pid).startswith("77 ")
        bench.node.sh(f"prlimit --pid {pid} --nofile={before.split()[0]}:")
        bench.client.revert(fault.id)


def test_one_that_ends_is_done_and_the_guardian_puts_it_back(bench: Bench) -> None:
    with opener(bench) as pid:
        fault = bench.inject("fd-exhaust", {"type": "pid", "pid": pid})
        bench.node.sh(f"kill -9 {pid}; sleep 0.5")
        assert bench.evidence(fault.id)["statements"] == ["the process has ended"]
        bench.client.revert(fault.id)
    with opener(bench) as pid:
        before = limits(bench, pid)
        bench.inject("fd-exhaust", {"type": "pid", "pid": pid})
        assert limits(bench, pid) != before
        bench.node.sh(f"kill -9 {bench.pids()[0]}")
        end = time.monotonic() + 60
        while limits(bench, pid) != before:
            assert time.monotonic() < end, "it is not put back"
            time.sleep(0.2)

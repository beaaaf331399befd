"""The watch of processes: real ones, that end, and whose pid is another's."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator

import pytest

from nodeagent.backends.pid_watch import PidWatch
from nodeagent.bind.node import Node
from nodeagent.bind.process import start_ticks
from nodeagent.model.evidence import NodeEvent, ProcessEvent
from nodeagent.model.process import PidScope

WAIT_S = 30.0


class Heard:
    """Events as they come."""

    def __init__(self) -> None:
        self.events: list[tuple[str, NodeEvent]] = []
        self.one = threading.Event()

    def __call__(self, fault_id: str, event: NodeEvent) -> None:
        self.events.append((fault_id, event))
        self.one.set()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "1000"]) as found:
        yield found
        found.kill()


def scope_of(process: subprocess.Popen[bytes], tree: bool = False) -> PidScope:
    return PidScope(pid=process.pid, start_ticks=start_ticks(Node(), process.pid), tree=tree)


def test_the_end_is_told_once_and_the_descriptor_closed(process: subprocess.Popen[bytes]) -> None:
    heard, before = Heard(), len(os.listdir("/proc/self/fd"))
    watch = PidWatch(heard, Node())
    watch.add("f-1", scope_of(process), lambda: True)
    watch.add("f-2", scope_of(process), lambda: True)
    watch.remove("f-2")
    assert not heard.one.wait(0.3)
    process.kill()
    assert heard.one.wait(WAIT_S)
    fault_id, event = heard.events[0]
    assert isinstance(event, ProcessEvent)
    assert (fault_id, event.pid, event.what) == ("f-1", process.pid, "ended")
    watch.remove("f-1")
    assert len(heard.events) == 1
    assert len(os.listdir("/proc/self/fd")) == before + 1  # the epoll set's own


def test_a_tree_ends_with_its_last_process(process: subprocess.Popen[bytes]) -> None:
    heard, left = Heard(), [True]
    watch = PidWatch(heard, Node())
    watch.add("f-1", scope_of(process, tree=True), lambda: left[0])
    process.kill()
    assert not heard.one.wait(1.5)
    left[0] = False
    assert heard.one.wait(WAIT_S)


def test_a_pid_that_is_another_ones_by_now_is_refused(process: subprocess.Popen[bytes]) -> None:
    watch = PidWatch(Heard(), Node())
    other = scope_of(process).model_copy(update={"start_ticks": 1})
    with pytest.raises(ProcessLookupError):
        watch.add("f-1", other, lambda: True)
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):
        watch.add("f-1", scope_of_gone(process.pid), lambda: True)


def scope_of_gone(pid: int) -> PidScope:
    return PidScope(pid=pid, start_ticks=1)


def test_a_descriptor_that_is_another_processes_by_now_says_nothing_of_it(
    process: subprocess.Popen[bytes],
) -> None:
    """One that had ended was given up between the wake-up and the look, and its number used."""
    heard = Heard()
    watch = PidWatch(heard, Node())
    watch.add("f-2", scope_of(process), lambda: True)
    (fd,) = watch._watches
    watch._say_ended([fd])
    assert heard.events == []
    assert watch.knows(scope_of(process))
    process.kill()
    assert heard.one.wait(WAIT_S)

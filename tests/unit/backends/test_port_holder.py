"""The process that has the ports, on this machine's own lo."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from nodeagent.backends import ports
from nodeagent.model.evidence import NodeEvent
from nodeagent.model.steps import Status
from nodeagent.model.steps.net import NetnsRef
from nodeagent.model.steps.port import PortHolder


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> Iterator[PortHolder]:
    def here(ref: NetnsRef, work: Callable[[], Any]) -> Any:
        return work()

    monkeypatch.setattr(ports, "within", here)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    netns = NetnsRef(cookie=5, inode=1, path="/proc/self/ns/net")
    yield PortHolder(
        fault="t-1", netns=netns, protocol="tcp", ports=((port, port),), address="127.0.0.1"
    )


def test_nothing_is_kept_of_a_process_that_somebody_else_has_ended(step: PortHolder) -> None:
    told = threading.Event()
    events: list[NodeEvent] = []

    def note(fault_id: str, event: NodeEvent) -> None:
        events.append(event)
        told.set()

    backend = ports.PortBackend(note)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        told.clear()
        pid = backend.apply("t-1", step, {}, [])["pid"]
        assert backend.status(step, {}, []) is Status.OURS
        os.kill(pid, 9)
        assert told.wait(5)
        assert backend.measure("t-1", step, {})["held"] is False
        assert backend.status(step, {}, []) is Status.PRIOR  # so that nothing is undone
    assert [event.model_dump()["what"] for event in events] == ["ended"] * 3
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_undone_is_no_event(step: PortHolder) -> None:
    events: list[NodeEvent] = []
    backend = ports.PortBackend(lambda fault_id, event: events.append(event))
    before = len(os.listdir("/proc/self/fd"))
    backend.apply("t-1", step, {}, [])
    backend.undo("t-1", step, {}, [])
    backend.undo("t-1", step, {}, [])
    assert backend.status(step, {}, []) is Status.PRIOR
    with socket.create_server(("127.0.0.1", step.numbers()[0])):
        assert len(os.listdir("/proc/self/fd")) == before + 1
    assert events == []

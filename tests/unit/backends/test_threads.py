"""Threads of a fault: they end with it, whatever its object shows when it is taken back."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeagent.backends import Runtime, conntrack, pause, strace
from nodeagent.backends.conntrack import ConntrackBackend
from nodeagent.backends.pause import FreezeBackend
from nodeagent.backends.strace import StraceBackend
from nodeagent.backends.stress import StressBackend
from nodeagent.bind.node import Node
from nodeagent.bind.process import start_ticks
from nodeagent.model.errors import BackendError
from nodeagent.model.process import CgroupScope, PidScope
from nodeagent.model.steps import Status
from nodeagent.model.steps.cgroup import CgroupFreeze
from nodeagent.model.steps.conntrack import ConntrackFill
from nodeagent.model.steps.net import NetnsRef
from nodeagent.model.steps.process import StressRun
from nodeagent.model.steps.strace import StraceInject

SCOPE = CgroupScope(id=42, path="/t", level=1)


def test_a_connection_table_that_was_flushed_is_still_ours_while_it_is_filled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a thread, 0.2 s later, and for as long as the agent lives."""

    @contextlib.contextmanager
    def opened(netns: NetnsRef) -> Iterator[object]:
        yield object()

    monkeypatch.setattr(conntrack, "opened", opened)
    monkeypatch.setattr(conntrack, "_is_there", lambda link, index: False)
    monkeypatch.setattr(conntrack, "ours", lambda link: [])
    monkeypatch.setattr(conntrack, "room", lambda netns: (8, 8))
    step = ConntrackFill(fault="f-1", netns=NetnsRef(cookie=1, inode=1, path="/n"))
    backend, prior = ConntrackBackend(), {"max": 8}
    backend.apply("f-1", step, prior, ())
    keeper = backend._keepers["f-1"]
    assert backend.status(step, prior, ()) is Status.OURS
    backend.undo("f-1", step, prior, ())
    assert not keeper._thread.is_alive()
    assert backend.status(step, prior, ()) is Status.PRIOR


def test_a_load_that_somebody_has_cleared_away_is_ours_while_it_is_started_again(
    tmp_path: Path,
) -> None:
    step = StressRun(
        folders=(str(tmp_path),),
        hierarchy="node",
        child="faultctl-stress-f-1",
        args=("--cpu", "1"),
        workers=1,
        oom_score_adj=0,
        restart=True,
    )

    class Keeper:
        def stop(self, hurry: Any) -> None: ...

    backend = StressBackend(tmp_path)
    backend._keepers[step.key()] = Keeper()  # type: ignore[assignment]
    assert backend.status(step, {}, ()) is Status.OURS
    backend.undo("f-1", step, {}, ())
    assert backend.status(step, {}, ()) is Status.PRIOR


def test_a_process_whose_tracer_was_ended_can_be_traced_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To end strace is a remedy; the next fault on the process was never armed."""
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as target:  # it ends with the block
        scope = PidScope(pid=target.pid, start_ticks=start_ticks(Node(), target.pid))
        step = StraceInject(calls=("openat",), result="error=EIO", scope=scope)
        backend = StraceBackend(Runtime(tmp_path, "n0"))
        dead = subprocess.Popen(["true"])
        dead.wait()
        backend._tracers[step.key()] = strace._Tracer(dead)
        assert backend.status(step, {}, ()) is Status.PRIOR

        def start(argv: list[str]) -> subprocess.Popen[bytes]:
            raise OSError(2, "no strace here")

        monkeypatch.setattr(backend._spawner, "start", start)
        with pytest.raises(BackendError, match="no strace here"):
            backend.apply("f-2", step, {}, ())


def test_turns_that_ended_by_themselves_do_not_stand_in_for_the_next_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pause, "set_frozen", lambda scope, frozen: True)
    monkeypatch.setattr(pause, "is_still", lambda scope: True)
    step = CgroupFreeze(scope=SCOPE, on_ms=1, off_ms=1)
    backend = FreezeBackend()
    backend.apply("f-1", step, {}, ())
    first = backend._pulses[step.key()]
    with monkeypatch.context() as gone:
        gone.setattr(pause, "set_frozen", lambda scope, frozen: False)
        first._thread.join(10)
    backend.apply("f-2", step, {}, ())
    assert backend._pulses[step.key()].running
    backend.undo("f-2", step, {}, ())

"""Names whose addresses change: what is new is added once, and nothing after the end."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from nodeagent.backends import netlink_make
from nodeagent.backends.name_follower import NameFollower
from nodeagent.model.errors import Refused
from nodeagent.model.netspec import Flow
from nodeagent.model.steps.net import Drop, NetnsRef, TcFilters
from nodeagent.netlink import Failure

FIRST = Flow(remote="10.0.0.1/32", remote_port=(80, 80))
SECOND = Flow(remote="10.0.0.2/32", remote_port=(80, 80))
THIRD = Flow(remote="fd00::3/128", remote_port=(80, 80))


def step(refresh_s: float = 0.01) -> TcFilters:
    return TcFilters(
        fault="t-1",
        netns=NetnsRef(cookie=5, inode=1, path="/run/netns/a"),
        ifindex=2,
        ifname="eth0",
        hook="egress",
        flows=(FIRST,),
        act=Drop(),
        names=(Flow(name="db.internal", remote_port=(80, 80)),),
        refresh_s=refresh_s,
    )


class Kernel:
    def __init__(self) -> None:
        self.added: list[list[Flow]] = []
        self.answers: list[list[Flow] | Exception] = []

    def ask(self) -> list[Flow]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def add(self, flows: Sequence[Flow]) -> None:
        self.added.append(list(flows))


def test_what_is_new_is_added_once_and_what_is_gone_stays() -> None:
    kernel = Kernel()
    follower = NameFollower(step(), kernel.ask, kernel.add)
    for answer in ([FIRST], [SECOND], [SECOND, FIRST], [THIRD]):
        kernel.answers = [answer]
        follower.look()
    assert kernel.added == [[SECOND], [THIRD]]
    assert follower.added == ["10.0.0.2/32", "fd00::3/128"]


def test_a_question_without_an_answer_is_said_and_asked_again() -> None:
    kernel = Kernel()
    follower = NameFollower(step(), kernel.ask, kernel.add)
    kernel.answers = [Refused("db.internal cannot be resolved", "no answer")]
    follower.look()
    assert "cannot be resolved" in follower.failed
    kernel.answers = [[SECOND]]
    follower.look()
    assert (follower.failed, kernel.added) == ("", [[SECOND]])


def test_what_the_kernel_refuses_is_tried_again() -> None:
    kernel = Kernel()
    kernel.answers = [[SECOND]]
    refusals = [OSError(12, "no memory")]

    def add(flows: Sequence[Flow]) -> None:
        if refusals:
            raise refusals.pop()
        kernel.add(flows)

    follower = NameFollower(step(), kernel.ask, add)
    follower.look()
    assert "no memory" in follower.failed
    assert follower.added == []
    follower.look()
    assert kernel.added == [[SECOND]]


def test_nothing_is_added_after_the_end() -> None:
    """Also when the answer comes after it, and when adding is under way at that moment."""
    kernel, adding, go_on = Kernel(), threading.Event(), threading.Event()
    kernel.answers = [[SECOND]]

    def add(flows: Sequence[Flow]) -> None:
        adding.set()
        go_on.wait(5)
        kernel.add(flows)

    follower = NameFollower(step(), kernel.ask, add)
    follower.start()
    assert adding.wait(5)
    threading.Timer(0.1, go_on.set).start()
    follower.stop()
    assert kernel.added == [[SECOND]], "it was waited for"
    kernel.answers = [[THIRD]]
    follower.look()
    time.sleep(0.05)
    assert kernel.added == [[SECOND]]


def test_an_address_that_has_a_filter_already_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two names, or two protocols of one, may come to share a key; flower has each key once."""
    answers = [[Failure(0, errno.EEXIST, "")], [Failure(1, errno.ENOMEM, "")], []]

    class Link:
        def pour(self, requests: Sequence[bytes]) -> list[Failure]:
            assert len(requests) == 3  # tcp, udp, sctp
            return answers.pop(0)

    class There:
        def with_mark(self, hook: str, mark: bytes) -> bool:
            return True

        def place(self, hook: str) -> str:
            return hook

    @contextmanager
    def entered(ref: NetnsRef) -> Iterator[Link]:
        yield Link()

    monkeypatch.setattr(netlink_make, "entered", entered)
    monkeypatch.setattr(netlink_make, "show", lambda link, ifindex: There())
    netlink_make.extend(step(), {"prio": 64}, [SECOND])
    with pytest.raises(OSError, match="memory"):
        netlink_make.extend(step(), {"prio": 64}, [SECOND])
    netlink_make.extend(step(), {"prio": 64}, [SECOND])

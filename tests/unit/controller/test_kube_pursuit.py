"""Hitting a replacement: agents that fail in the middle, answers that are lost, pods that go."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kube_kit import ask, container, pod

from controller.kube import pursuit
from controller.kube.discover import Query
from controller.kube.follow import Arm, End, Keep
from controller.kube.objects import Container, Owner, Pod
from controller.kube.pursuit import Pursuit
from controller.kube.resolve import Wanted
from nodeagent.faults import kind_named
from nodeagent.model.errors import BackendError, FaultError, Refused, UnknownFault, Unreachable
from nodeagent.model.plan import Lease

OWNER = Owner("StatefulSet", "db", "own-db")


class Node:
    """One node's agent and the clients of it; `fail` has errors of the applies to come, `lose`
    the number of applies that take effect though their answers are lost."""

    def __init__(self) -> None:
        self.armed: list[str] = []
        self.fail: list[FaultError | None] = []
        self.lose = 0
        self.asked: list[str] = []
        self.renewed: list[str] = []
        self.over: set[str] = set()
        self.slow = threading.Event()
        """Reverts wait for it: their node has died."""
        self.slow.set()

    def of(self, node: str) -> Node:
        return self

    def drop(self, node: str) -> None: ...

    def everywhere(self, nodes: Any, work: Any) -> tuple[dict[str, Any], list[Any]]:
        return {name: work(name, self) for name in nodes}, []

    def plan(self, request: Any) -> tuple[Any, str]:
        return None, f"digest of {request.id}"

    def apply(self, request: Any, lease: Lease, digest: str) -> None:
        self.asked.append(request.id)
        assert digest == f"digest of {request.id}"
        error = self.fail.pop(0) if self.fail else None
        if error is not None:
            raise error
        if request.id not in self.armed:
            self.armed.append(request.id)
        if self.lose:
            self.lose -= 1
            raise Unreachable("the agent did not answer in time", "")

    def renew(self, fault_id: str) -> Any:
        self.renewed.append(fault_id)
        if fault_id in self.over:
            raise Refused("it cannot be renewed", "it has ended")
        return SimpleNamespace(id=fault_id)

    def revert(self, fault_id: str) -> Any:
        self.slow.wait(20)
        if fault_id not in self.armed:
            raise UnknownFault(fault_id, "")
        self.armed.remove(fault_id)
        return SimpleNamespace(fault=SimpleNamespace(id=fault_id))


class Chase:
    """A pursuit whose events are given by hand."""

    def __init__(self, node: Node, **asked: Any) -> None:
        self.lines: list[str] = []
        wanted = Wanted("g", kind_named("syscall"), Query("shop"), ask(**asked), {}, {
            "spec": {"call": ["fsync"], "errno": "EIO"}})  # fmt: skip
        lease = Lease(duration=timedelta(seconds=60))
        self.it = Pursuit(cast(Any, None), cast(Any, node), wanted, lease, self.lines.append)

    def arm(self, found: Pod) -> None:
        self.it._act([Arm(0, found, "takes the place of db-0")])

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.it._chase()


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    monkeypatch.setattr(pursuit, "AGAIN_S", 0.0)
    monkeypatch.setattr(pursuit, "GIVE_UP_S", 0.3)
    yield Node()


def young(*containers: Container) -> Pod:
    return pod("db-0", 5, owner=OWNER, containers=containers or (container(),))


def test_a_pod_that_goes_while_it_is_armed_ends_nothing_else(node: Node) -> None:
    node.fail = [BackendError("it could not be armed", "its cgroup went")]
    chase = Chase(node)
    chase.it.ids["g-1"] = "n1"
    chase.arm(young())
    chase.turn(2)
    assert len(node.armed) == 1 and set(chase.it.ids) == {"g-1", *node.armed}
    assert len(set(node.asked)) == 2, "an id of a fault that was begun is not taken twice"


def test_one_that_cannot_be_armed_is_tried_once_a_second_and_then_given_up(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pursuit, "AGAIN_S", 0.05)
    node.fail = [BackendError("it could not be armed", "no")] * 1000
    chase = Chase(node)
    chase.arm(young())
    end = time.monotonic() + 10
    while chase.it._chases and time.monotonic() < end:
        chase.turn()
    assert "given up" in chase.lines[-1] and "could not be armed" in chase.lines[-1]
    assert 2 <= len(node.asked) < 10


def test_of_two_containers_none_is_hit_twice_when_the_other_has_to_wait(node: Node) -> None:
    node.fail = [None, BackendError("it could not be armed", "no")]
    chase = Chase(node, containers=("app", "log"))
    chase.arm(young(container("app"), container("log")))
    chase.turn(3)
    assert len(node.armed) == 2 and len(node.asked) == 3
    assert set(chase.it.ids) == set(node.armed)


def test_a_lost_answer_is_asked_for_again_under_the_same_id(node: Node) -> None:
    node.lose = 1
    chase = Chase(node)
    chase.arm(young())
    chase.turn(2)
    assert node.asked == ["g-1", "g-1"] and node.armed == ["g-1"]
    assert chase.it.ids == {"g-1": "n1"}


def test_a_pod_that_is_gone_is_chased_no_more_and_nothing_is_left_on_it(node: Node) -> None:
    node.lose = 1
    chase = Chase(node)
    found = young()
    chase.arm(found)
    chase.turn()
    assert node.armed == ["g-1"] and not chase.it.ids
    chase.it._act([End(0, found.uid, "n1", "the pod is gone")])
    chase.turn(3)
    assert node.armed == [] and node.asked == ["g-1"]


def test_the_next_pods_chase_is_not_ended_with_the_last_one(node: Node) -> None:
    chase = Chase(node)
    chase.arm(young())
    chase.it._act([End(0, "the one before", "n1", "the pod is gone")])
    chase.turn()
    assert node.armed == ["g-1"]


def test_what_stays_on_a_volume_is_the_next_pods_and_ends_with_it(node: Node) -> None:
    chase = Chase(node)
    chase.arm(young())
    chase.turn()
    new = pod("db-0", 6, owner=OWNER)
    chase.it._act([Keep(0, young().uid, new, "takes the place of db-0")])
    chase.turn(2)
    assert node.asked == node.armed == ["g-1"] and "on the same volume" in chase.lines[-1]
    chase.it._act([End(0, young().uid, "n1", "the pod is gone")])
    assert node.armed == ["g-1"], "it is not that pod's any more"
    chase.it._act([End(0, new.uid, "n1", "its pod has another volume now")])
    assert node.armed == [] and not chase.it.ids


def test_a_volume_that_was_not_hit_in_time_is_hit_at_the_next_pod(node: Node) -> None:
    chase = Chase(node)
    chase.it._act([Keep(0, "never armed", young(), "takes the place of db-0")])
    chase.turn()
    assert node.armed == ["g-1"]


class Loop:
    """`run` in a thread, without an API server."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Pursuit, "_watch", lambda it: None)
        self.chase = Chase(node)
        self.it = self.chase.it
        self.it.lease = Lease.model_construct(duration=timedelta(seconds=0.15))
        self.it.ids |= {"g-1": "n1", "g-2": "n2"}
        self.it._of[0, "old"] = ["g-1"]
        self.thread = threading.Thread(target=self.it.run, daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.it.stop.set()
        self.thread.join(20)
        assert not self.thread.is_alive()


def until(holds: Any) -> bool:
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(holds())


def test_leases_are_renewed_while_a_node_that_died_holds_up_a_revert(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.armed = ["g-1", "g-2"]
    node.slow.clear()
    loop = Loop(node, monkeypatch)
    gone = SimpleNamespace(uid="old")
    loop.it._following.gone = lambda uid: [End(0, uid, "n1", "the pod is gone")]  # type: ignore[method-assign]
    loop.it._events.put(("DELETED", gone))
    assert until(lambda: not loop.it._of), "the revert is under way"
    node.renewed.clear()
    assert until(lambda: node.renewed.count("g-2") > 3) and node.armed == ["g-1", "g-2"]
    node.slow.set()
    assert until(lambda: node.armed == ["g-2"])
    loop.end()


def test_a_fault_that_has_ended_by_itself_is_told_once(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.over = {"g-1"}
    loop = Loop(node, monkeypatch)
    assert until(lambda: node.renewed.count("g-2") > 5)
    loop.end()
    assert len([line for line in loop.chase.lines if "g-1" in line]) == 1
    assert set(loop.it.ids) == {"g-2"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_leases_that_are_renewed_no_more_end_the_pursuit(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise SystemExit  # ends the thread as a bug would, without a traceback

    monkeypatch.setattr(pursuit, "renew_group", broken)
    monkeypatch.setattr(Pursuit, "_watch", lambda it: None)
    it = Chase(node).it
    it.lease = Lease.model_construct(duration=timedelta(seconds=0.15))
    with pytest.raises(FaultError, match="no lease is renewed"):
        it.run()
    for thread in threading.enumerate():
        if thread.name == "_renew":
            thread.join(5)  # its last words are this test's
    assert it.stop.is_set()

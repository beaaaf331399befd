"""Runs that follow their workload, end to end: API server in small, real agents, run folder."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from test_kube_inject import _world, uid, world  # noqa: F401 - fixtures
from test_run_pods import Crash, Lab, experiment, lab, meanwhile, waited  # noqa: F401

from controller.records import (
    FaultArmed,
    FaultEnded,
    FaultLeft,
    FaultMoved,
    FaultPlanned,
    FaultWaits,
    NodeRecord,
    RunEvent,
)
from controller.run import Runner
from nodeagent.model.evidence import FileEvent

PODS = "/api/v1/namespaces/shop/pods"
OWNER = {"ownerReferences": [{"kind": "StatefulSet", "name": "cart", "uid": "own",
                              "controller": True}]}  # fmt: skip


def cart(lab: Lab, number: int, node: str, **meta: Any) -> None:  # noqa: F811
    meta = {"uid": uid(number), **OWNER, **meta}
    lab.world.api.pod("shop", f"cart-{number}", node, {"app": "cart"}, meta=meta)


@pytest.fixture
def owned(lab: Lab) -> Lab:  # noqa: F811
    """A workload of three pods."""
    for number, node in ((1, "n1"), (2, "n2"), (3, "n1")):
        lab.world.api.drop(f"{PODS}/cart-{number}")
        cart(lab, number, node)
    return lab


def follows(follow: str = "move", seconds: int = 6, **pods: Any) -> dict[str, Any]:
    chosen = pods or {"pod": "cart-1"}
    data = experiment({**chosen, "follow": follow}, duration=f"{seconds + 2}s", lease="20s")
    data["faults"]["slow"]["for"] = f"{seconds}s"
    return data


def everywhere(lab: Lab) -> set[str]:  # noqa: F811
    return lab.world.hit("n1") | lab.world.hit("n2")


def died(
    lab: Lab,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    data: dict[str, Any],
    when: Callable[[], bool],
) -> None:
    """A run whose controller dies at a moment."""

    def dying(runner: Runner, now: int) -> None:
        if when():
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_housekeeping", dying)
        with pytest.raises(Crash):
            lab.run(data)


def nothing_left(lab: Lab) -> None:  # noqa: F811
    assert lab.world.active() == [] and everywhere(lab) == set()
    every = [f.id for one in lab.world.agents.values() for f in one.client.faults()]
    mine = {m.agent_fault for m in lab.records(FaultMoved)}
    assert not [i for i, n in Counter(every).items() if i in mine and n > 1]
    ends = Counter(e.fault for e in lab.records(FaultEnded))
    assert ends == Counter({p.fault: 1 for p in lab.records(FaultPlanned)})


def test_a_run_follows_a_pod_to_a_node_that_it_did_not_know(owned: Lab) -> None:
    seen: list[set[str]] = []

    def work() -> None:
        waited(lambda: everywhere(owned) == {uid(1)})
        owned.world.api.drop(f"{PODS}/cart-1")
        waited(lambda: everywhere(owned) == set())
        cart(owned, 4, "n2")
        waited(lambda: everywhere(owned) == {uid(4)})
        seen.append(owned.world.hit("n2"))

    working = meanwhile(work)
    assert owned.run(follows()) == 0
    working.join()
    assert seen == [{uid(4)}]
    (armed,), (ended,) = owned.records(FaultArmed), owned.records(FaultEnded)
    assert (armed.node, ended.node, ended.reason, ended.by) == ("n1", "n2", "reverted", "plan")
    assert armed.fault == ended.fault
    assert [(m.armed, m.node, m.pod, m.uid) for m in owned.records(FaultMoved)] == [
        (False, "n2", "shop/cart-4", uid(4)), (True, "n2", "shop/cart-4", uid(4))]  # fmt: skip
    assert len(owned.records(FaultWaits)) == len(owned.records(FaultLeft)) == 1
    assert "node-joined" in {e.name for e in owned.records(RunEvent)}
    assert {r.address for r in owned.records(NodeRecord)} == {"kube://n1", "kube://n2"}
    (found,) = owned.plan().pods
    assert (found.follow, found.others) == ("move", (uid(2), uid(3)))
    assert [p.owner for p in found.pods] == ["own"]
    nothing_left(owned)


def test_stay_ends_it_and_the_workload_is_well_on_its_new_node(owned: Lab) -> None:
    def work() -> None:
        waited(lambda: everywhere(owned) == {uid(1)})
        cart(owned, 1, "n1", deletionTimestamp="2026-01-01T00:00:00Z")
        cart(owned, 4, "n2")
        waited(lambda: everywhere(owned) == set())

    working = meanwhile(work)
    assert owned.run(follows("stay")) == 0
    working.join()
    (ended,) = owned.records(FaultEnded)
    assert (ended.reason, ended.by, ended.node) == ("reverted", "moved away", "n1")
    assert ended.t_ns < 5_000_000_000
    nothing_left(owned)


def test_a_controller_that_died_is_taken_over_on_the_pod_that_came_meanwhile(
    owned: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    died(owned, monkeypatch, follows(seconds=9), lambda: everywhere(owned) == {uid(1)})
    assert everywhere(owned) == {uid(1)}
    owned.world.api.drop(f"{PODS}/cart-1")
    cart(owned, 4, "n2")

    def work() -> None:
        waited(lambda: everywhere(owned) == {uid(4)})

    working = meanwhile(work)
    assert owned.world.run("run", "--take-over", str(owned.folder)) == 0
    working.join()
    (ended,) = owned.records(FaultEnded)
    assert (ended.reason, ended.node) == ("reverted", "n2")
    assert len(owned.records(FaultArmed)) == 1
    nothing_left(owned)


def test_a_stop_of_a_run_that_moved_and_has_no_controller_leaves_nothing(
    owned: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> None:
        waited(lambda: everywhere(owned) == {uid(1)})
        owned.world.api.drop(f"{PODS}/cart-1")
        cart(owned, 4, "n2")

    working = meanwhile(work)
    died(owned, monkeypatch, follows(seconds=9), lambda: everywhere(owned) == {uid(4)})
    working.join()
    assert owned.world.run("stop", str(owned.folder)) == 0
    (ended,) = owned.records(FaultEnded)
    assert (ended.reason, ended.by, ended.node) == ("reverted", "stop", "n2")
    nothing_left(owned)


@pytest.mark.parametrize("goes", [True, False])
def test_a_file_that_is_gone_is_a_remedy_unless_its_pod_goes(owned: Lab, goes: bool) -> None:
    """In an agent's own words, as its reactor writes them."""

    def work() -> None:
        waited(lambda: everywhere(owned) == {uid(1)})
        if goes:
            cart(owned, 1, "n1", deletionTimestamp="2026-01-01T00:00:00Z")
        (fault,) = owned.world.agents["n1"].client.faults(active_only=True)
        event = FileEvent(boottime_ns=1, path="/srv/f", what="gone")
        owned.world.agents["n1"].agent._on_event(fault.id, event)
        waited(lambda: everywhere(owned) == set())
        if goes:
            owned.world.api.drop(f"{PODS}/cart-1")
            cart(owned, 4, "n2")
            waited(lambda: everywhere(owned) == {uid(4)})

    working = meanwhile(work)
    assert owned.run(follows(seconds=8 if goes else 16)) == 0
    working.join()
    (ended,) = owned.records(FaultEnded)
    assert (ended.reason, ended.node) == (("reverted", "n2") if goes else ("remedied", "n1"))
    assert [left.reason for left in owned.records(FaultLeft)] == (["remedied"] if goes else [])
    nothing_left(owned)


def test_all_three_are_followed_each_by_itself(owned: Lab) -> None:
    def work() -> None:
        waited(lambda: everywhere(owned) == {uid(1), uid(2), uid(3)})
        for number in (1, 2):
            owned.world.api.drop(f"{PODS}/cart-{number}")
        cart(owned, 5, "n2")
        cart(owned, 6, "n2")
        cart(owned, 7, "n2")
        waited(lambda: everywhere(owned) == {uid(3), uid(5), uid(6)})

    working = meanwhile(work)
    assert owned.run(follows(selector="app=cart", all=True)) == 0
    working.join()
    assert len({e.fault for e in owned.records(FaultEnded)}) == 3
    nothing_left(owned)


def test_a_plan_says_that_it_follows_and_what_cannot(
    owned: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    owned.world.api.drop(f"{PODS}/cart-3")
    cart(owned, 3, "n1", ownerReferences=[])
    data = follows(selector="app=cart", all=True)
    assert owned.run(data, "--plan", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {f["target"]["uid"]: f["follow"] for f in shown["faults"]} == {
        uid(1): "move", uid(2): "move", uid(3): ""}  # fmt: skip
    assert shown["pods"][0]["follow"] == "move"
    assert owned.run(data, "--plan") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "followed: move" in said and "nothing takes the place of shop/cart-3" in said


def test_what_may_not_be_watched_is_said_and_the_run_goes_on(owned: Lab) -> None:
    owned.world.api.forbidden.add(("watch", "pods"))
    assert owned.run(follows(seconds=2)) == 0
    assert "watch-failed" in {e.name for e in owned.records(RunEvent)}
    nothing_left(owned)


def test_another_word_is_refused_with_its_line(
    owned: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    assert owned.run(follows("around")) == 2
    assert "follow" in capsys.readouterr().err

"""What the API server says of pods, in any order, and where the faults of a run are then."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kube_kit import container, pod
from run_sim import Drive, S, SimNode, item, plan_of

from controller.experiment_check import load_experiment
from controller.experiment_pods import FoundPod, FoundPods
from controller.kube.objects import Mount, Owner, Pod
from controller.records import FaultEnded, FaultMoved
from controller.run_follow import Follower
from controller.run_plan import PlanItem
from controller.run_recover import restore
from controller.run_slots import Heard
from controller.run_state import ItemState, Life
from nodeagent.model.errors import Refused

OWNER = Owner("StatefulSet", "db", "own")
OTHER = Owner("StatefulSet", "web", "other")


class PodNode(SimNode):
    """A node that plans for pods that have a sandbox there, and for no others."""

    def __init__(self, clock: Any) -> None:
        super().__init__(clock)
        self.sandboxes: set[str] = set()
        self.targets: dict[str, dict[str, Any]] = {}

    def plan(self, request: Any) -> Any:
        found = super().plan(request)
        if request.target["uid"] not in self.sandboxes:
            raise Refused("the pod has no cgroup on this node", "")
        self.targets[request.id] = dict(request.target)
        return found

    def armed(self) -> list[dict[str, Any]]:
        self.expire()
        return [self.targets[i] for i, fault in self.faults.items() if fault.state == "armed"]


def a_pod(name: str, uid: str, **more: Any) -> Pod:
    return pod(name, 1, **{"uid": uid, "owner": OWNER, "node": "a", **more})


@dataclass
class Town:
    """A cluster with one workload of two pods, a stranger's pod, and one run that follows."""

    kind: str = "pause"
    follow: str = "move"
    start: int = 1
    entry: dict[str, Any] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)
    nodes: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        hit = a_pod("db-0", "u0", **self._shape("a"))
        others = [a_pod("db-1", "u1", node="b", **self._shape("b")),
                  a_pod("web-0", "w0", owner=OTHER)]  # fmt: skip
        self.pods = {one.uid: one for one in (hit, *others)}
        asked = {"namespace": "shop", "selector": "app=db", "all": True, **self.entry}
        raw = yaml.safe_dump({
            "version": 1, "name": "t", "nodes": self.nodes, "duration": "120s", "blind": False,
            "targets": {"dbs": {"service": "db", "pods": {**asked, "follow": self.follow}}},
            "faults": {"f": {"kind": self.kind, "target": "dbs", "spec": self._spec()},
                       **self.more},
        }).encode()  # fmt: skip
        self.experiment = load_experiment(raw, "t").experiment
        found = FoundPods(
            target="dbs", namespace="shop", matching=2, how_many="all", follow=self.follow,
            others=("u1", "w0"),
            pods=(FoundPod(pod="shop/db-0", uid="u0", node="a", containers={"app": "a" * 64},
                           owner="own", place=self.volume(hit)),),
        )  # fmt: skip
        target = {"type": "pod", "pod": "shop/db-0", "uid": "u0", **self._part()}
        self.item = item("f/dbs/db-0", self.start, 100, "a", name="f", kind=self.kind,
                         target=target, target_name="dbs/db-0", follow=self.follow)  # fmt: skip
        plan = plan_of(self.item, end=120).model_copy(update={"pods": (found,)})
        self.drive = Drive(plan)
        for name in "abc":
            self.drive.nodes[name] = PodNode(lambda: self.drive.t)
        self.node("a").sandboxes |= {"u0", "w0"}
        self.node("b").sandboxes.add("u1")
        self.drive.fresh()
        self.follower = Follower(self.drive.core, self.experiment)
        self.say("sync")

    def _spec(self) -> dict[str, Any]:
        return {"count": 1} if self.kind == "latent-sector" else {}

    def _part(self) -> dict[str, Any]:
        if "container" in self.entry:
            return {"container": "app", "container_id": "a" * 64}
        return {}

    def _shape(self, node: str) -> dict[str, Any]:
        if "volume" not in self.entry:
            return {}
        return {"volumes": {"data": {"persistentVolumeClaim": {"claimName": "c"}}},
                "containers": (container(mounts=(Mount("data", "/d"),)),)}  # fmt: skip

    def volume(self, one: Pod) -> str:
        return f"{one.node}: claim c" if "volume" in self.entry and one.node else ""

    def node(self, name: str) -> PodNode:
        node = self.drive.nodes[name]
        assert isinstance(node, PodNode)
        return node

    @property
    def state(self) -> ItemState:
        return self.drive.core.order[0]

    def say(self, sort: Any, *pods: Pod) -> None:
        every = pods or tuple(self.pods.values())
        owners = {one.uid: one.owner.uid if one.owner else "" for one in every}
        heard = Heard("dbs", sort, every, owners, {one.uid: self.volume(one) for one in every})
        self.drive.perform(self.follower.heard(self.drive.t, heard))

    def seen(self, uid: str, **change: Any) -> None:
        self.pods[uid] = replace(self.pods[uid], **change)
        self.say("seen", self.pods[uid])

    def comes(
        self, name: str, uid: str, node: str = "a", sandbox: bool = True, **more: Any
    ) -> None:
        shape = self._shape(node)
        self.pods[uid] = a_pod(name, uid, node=node, **{**shape, **more})
        if sandbox:
            self.node(node).sandboxes.add(uid)
        self.say("seen", self.pods[uid])

    def goes(self, uid: str) -> None:
        gone = self.pods.pop(uid)
        for name in "abc":
            self.node(name).sandboxes.discard(uid)
        self.say("gone", gone)

    def to(self, seconds: float) -> Town:
        self.drive.until(seconds)
        return self

    def begin(self, seconds: float = 5) -> Town:
        self.drive.begin()
        return self.to(seconds)

    def take_over(self, after_s: float) -> None:
        records: list[Any] = list(self.drive.records)
        self.drive.t += int(after_s * S)
        self.drive.fresh()
        self.drive.perform(restore(self.drive.core, records, records, self.drive.t))
        self.follower = Follower(self.drive.core, self.experiment)
        self.say("sync")

    def hit(self) -> set[str]:
        return {target["uid"] for name in "abc" for target in self.node(name).armed()}

    def finished(self) -> FaultEnded:
        self.to(10_000)
        assert self.hit() == set()
        self.drive.armed_once()
        ids = [i for name in "abc" for i in self.node(name).armings]
        assert len(ids) == len(set(ids))
        (ended,) = self.drive.of(FaultEnded)
        assert isinstance(ended, FaultEnded)
        return ended


def test_a_deleted_pod_is_followed_to_the_one_in_its_place() -> None:
    town = Town().begin()
    assert town.hit() == {"u0"}
    town.seen("u0", deleting=True)
    town.comes("db-0b", "u2", phase="Pending", node="", sandbox=False, containers=())
    assert town.hit() == {"u0"}
    town.seen("u2", node="b", containers=(container(running=False, container_id=""),))
    town.to(6)
    assert town.hit() == {"u0"}, "it has no sandbox yet"
    town.node("b").sandboxes.add("u2")
    town.to(6.2)
    assert town.hit() == {"u0", "u2"}, "before its first container, and the old one still is hit"
    town.goes("u0")
    town.to(7)
    assert town.hit() == {"u2"}
    last = town.drive.of(FaultMoved)[-1]
    assert (last.armed, last.node, last.pod) == (True, "b", "shop/db-0b")
    assert last.why == "takes the place of db-0, now on node b"
    assert town.finished().by == "plan"


def test_pods_that_were_there_and_pods_of_others_are_never_hit() -> None:
    town = Town().begin()
    town.goes("u0")
    town.seen("u1", ready=False)
    town.comes("web-1", "w1", owner=OTHER)
    town.comes("lone", "l0", owner=None)
    town.to(20)
    assert town.hit() == set() and town.state.life is Life.MOVING
    town.take_over(1)
    town.to(30)
    assert town.hit() == set()
    town.comes("db-0", "u2")
    town.to(31)
    assert town.hit() == {"u2"}
    town.finished()


def test_stay_ends_it_where_the_workload_leaves_the_node() -> None:
    town = Town(follow="stay").begin()
    town.goes("u0")
    town.comes("db-0", "u2")
    town.to(6)
    assert town.hit() == {"u2"}, "on the same node it is followed"
    town.seen("u2", deleting=True)
    town.comes("db-0", "u3", node="b")
    ended = town.finished()
    assert (ended.reason, ended.by, ended.node) == ("reverted", "moved away", "a")
    assert ended.t_ns < 8 * S


def test_stay_ends_it_while_it_waits_as_well() -> None:
    town = Town(follow="stay").begin()
    town.goes("u0")
    town.to(8)
    town.comes("db-0", "u2", node="c")
    ended = town.finished()
    assert (ended.reason, ended.by) == ("reverted", "moved away")


def test_a_container_that_restarts_is_hit_anew_by_what_is_bound_to_it() -> None:
    town = Town(entry={"container": "app"})
    town.begin()
    town.seen("u0", containers=(container(container_id="b" * 64),))
    town.to(6)
    (target,) = town.node("a").armed()
    assert target["container_id"] == "b" * 64
    town.take_over(1)
    town.seen("u0", ready=False)
    town.to(9)
    assert len(town.node("a").armed()) == 1
    assert sum(town.node("a").armings.values()) == 2
    town.finished()


def test_without_a_running_container_it_waits_for_one() -> None:
    town = Town(entry={"container": "app"}).begin()
    town.goes("u0")
    town.comes("db-0", "u2", phase="Pending", containers=(container(running=False),))
    town.to(20)
    assert town.hit() == set()
    town.seen("u2", phase="Running", containers=(container(container_id="c" * 64),))
    town.to(21)
    assert town.hit() == {"u2"}
    town.finished()


def test_what_is_never_hit_is_said_once_and_the_next_one_is_hit() -> None:
    town = Town(entry={"container": "app"})
    town.drive.plan = town.drive.plan.model_copy(update={"end_ns": 400 * S})
    town.begin()
    town.goes("u0")
    town.comes("db-0", "u2", containers=(container("else"),))
    assert town.drive.core.now < 6 * S
    town.drive.perform(town.follower.look(60 * S))
    assert "not-hit" not in town.drive.events()
    for at in (126, 127):
        town.drive.perform(town.follower.look(at * S))
    assert town.drive.events().count("not-hit") == 1


def test_a_persistent_volume_keeps_its_fault_for_the_next_pod() -> None:
    town = Town("latent-sector", entry={"volume": "data"}).begin()
    town.goes("u0")
    town.to(10)
    assert town.hit() == {"u0"}, "it is on the volume, whoever has it"
    town.comes("db-0", "u2")
    town.to(12)
    assert sum(town.node("a").armings.values()) == 1
    town.take_over(1)
    town.goes("u2")
    town.to(20)
    assert len(town.hit()) == 1 and sum(town.node("a").armings.values()) == 1
    town.comes("db-0", "u3", node="b")
    town.to(22)
    assert town.hit() == {"u3"}, "another volume: hit anew, and taken back where it was"
    assert town.finished().by == "plan"


def test_a_fault_on_objects_beside_it_follows_nothing() -> None:
    town = Town(more={"killed": {"kind": "pod-kill", "target": "dbs", "at": "50s"}}).begin()
    town.goes("u0")
    town.comes("db-0", "u2")
    town.to(7)
    assert town.hit() == {"u2"}
    town.finished()


def test_before_its_start_the_workload_is_followed_already() -> None:
    town = Town(start=20).begin()
    town.goes("u0")
    town.comes("db-0", "u2", node="c")
    town.to(10)
    town.take_over(1)
    town.to(21)
    assert town.hit() == {"u2"}
    town.finished()


def test_a_watch_that_ends_or_fails_is_an_event() -> None:
    town = Town().begin()
    for sort in ("lost", "lost", "failed"):
        town.drive.perform(town.follower.heard(town.drive.t, Heard("dbs", sort, why="no")))
    assert town.drive.events()[-2:] == ["watch-lost", "watch-failed"]
    assert town.drive.events().count("watch-lost") == 1


def test_a_node_has_the_name_that_the_file_gives_it() -> None:
    town = Town(nodes={"c": {"agent": "kube://worker-9"}}).begin()
    town.goes("u0")
    town.comes("db-0", "u2", node="worker-9", sandbox=False)
    town.node("c").sandboxes.add("u2")
    town.to(7)
    assert town.hit() == {"u2"} and town.state.item.node == "c"
    town.take_over(1)
    town.to(10)
    assert town.drive.of(FaultEnded) == [] and sum(town.node("c").armings.values()) == 1
    town.finished()


def test_after_a_stop_nothing_is_followed() -> None:
    town = Town().begin()
    town.drive.perform(town.drive.core.stop(town.drive.t, "stop"))
    town.goes("u0")
    town.comes("db-0", "u2")
    assert town.finished().by == "stop"


@pytest.mark.parametrize("at", [5.0, 5.002, 5.006, 5.2])
def test_a_controller_killed_at_each_point_of_a_move_follows_on(at: float) -> None:
    town = Town().begin()
    town.seen("u0", deleting=True)
    town.comes("db-0", "u2", node="b")
    town.to(at)
    del town.pods["u0"]
    town.node("a").sandboxes.discard("u0")
    town.take_over(3)
    town.to(at + 10)
    assert town.hit() == {"u2"}
    assert town.state.travel.uid == "u2"
    town.finished()


# --- every order -------------------------------------------------------------------------------


class Fates:
    """A workload that lives on: pods are deleted, forced, moved, started slowly; the
    watch misses things; controllers die; nodes lose answers."""

    def __init__(self, town: Town) -> None:
        self.town, self.number, self.deaf, self.dice = town, 1, False, 0

    def chosen(self, among: Sequence[Any]) -> Any:
        return among[self.dice % len(among)]

    def mine(self) -> list[Pod]:
        mine = [p for p in self.town.pods.values() if p.owner == OWNER and p.uid != "u1"]
        return sorted(mine, key=lambda p: p.uid)

    def _change(self, uid: str, **change: Any) -> None:
        if self.deaf:
            self.town.pods[uid] = replace(self.town.pods[uid], **change)
        else:
            self.town.seen(uid, **change)

    def step(self, act: str, dice: int) -> None:
        self.dice = dice
        getattr(self, f"_{act}")()

    def _delete(self) -> None:
        for one in self.mine()[:1]:
            self._change(one.uid, deleting=True)

    def _gone(self) -> None:
        for one in self.mine()[: self.chosen([0, 1])]:
            if self.deaf:
                del self.town.pods[one.uid]
                for name in "abc":
                    self.town.node(name).sandboxes.discard(one.uid)
            else:
                self.town.goes(one.uid)

    def _create(self) -> None:
        if any(not one.deleting for one in self.mine()):
            return  # the workload wants one pod
        self.number += 1
        new = a_pod("db-0", f"u{self.number}", node="", phase="Pending", containers=())
        self.town.pods[new.uid] = new
        if not self.deaf:
            self.town.say("seen", new)

    def _schedule(self) -> None:
        for one in [p for p in self.mine() if not p.node]:
            self._change(one.uid, node=self.chosen("abc"), containers=(container(),))

    def _sandbox(self) -> None:
        for one in [p for p in self.mine() if p.node]:
            self.town.node(one.node).sandboxes.add(one.uid)
            self._change(one.uid, phase="Running")

    def _wait(self) -> None:
        drive = self.town.drive
        drive.until(drive.t / S + self.chosen([0.003, 0.006, 0.1, 0.5, 2, 6]))

    def _deaf(self) -> None:
        self.deaf = True

    def _hear(self) -> None:
        if self.deaf:
            self.deaf = False
            self.town.say("sync")

    def _kill(self) -> None:
        self.deaf = False
        self.town.take_over(self.chosen([0, 0.01, 2]))

    def _down(self) -> None:
        node = self.town.node(self.chosen("abc"))
        node.down = not node.down

    def _lose(self) -> None:
        node = self.town.node(self.chosen("abc"))
        node.lose_replies.add(node.writes + 1)


ACTS = ("delete", "gone", "create", "schedule", "sandbox", "wait", "deaf", "hear", "kill", "down",
        "lose")  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 5)), max_size=40),
    st.sampled_from(["move", "stay"]),
)
def test_whatever_happens_to_the_workload_it_is_hit_where_it_is_and_nobody_else(
    steps: list[tuple[str, int]], follow: str
) -> None:
    town = Town(follow=follow).begin()
    life = Fates(town)
    for act, dice in steps:
        life.step(act, dice)
    for name in "abc":
        town.node(name).down = False
    life._hear()
    for act in ("create", "schedule", "sandbox"):
        getattr(life, f"_{act}")()
    town.to(town.drive.t / S + 12)
    for name in "abc":
        assert not {"u1", "w0"} & {target["uid"] for target in town.node(name).targets.values()}
    if not town.state.life.final:
        newest = [one.uid for one in life.mine() if not one.deleting]
        leaving = {one.uid for one in life.mine() if one.deleting}
        expected = set(newest) if follow == "move" else set(newest) & {town.state.travel.uid}
        assert expected <= town.hit() <= expected | leaving
    else:
        assert town.drive.core.stopping or town.drive.t >= 100 * S or follow == "stay" or any(
            e.reason in ("expired", "unconfirmed") for e in town.drive.of(FaultEnded)
        )  # fmt: skip
    town.finished()


def planned() -> PlanItem:
    return Town().item


def test_a_plan_shows_what_follows_and_no_turns() -> None:
    data = planned().model_dump(mode="json")
    assert data["follow"] == "move" and "turn" not in data

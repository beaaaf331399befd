"""Following a workload: slots as a state machine, and the whole over a watch and real agents."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kube_kit import container, pod, uid
from test_kube_inject import World, _world, world  # noqa: F401 - fixtures

from controller.cli import group_show
from controller.kube.follow import Arm, End, Following, Keep, Left
from controller.kube.objects import Mount, Owner, Pod
from controller.kube.volumes import volume_place

DB = Owner("StatefulSet", "db", "own-db")


def owned(name: str, number: int, owner: str = "own-db", **more: Any) -> Pod:
    return pod(name, number, owner=Owner("StatefulSet", "db", owner), **more)


def following(*hit: Pod, others: tuple[Pod, ...] = (), **more: Any) -> Following:
    found = Following(lambda one: one.owner.uid if one.owner else "", **more)
    found.begin(hit, (*hit, *others))
    return found


def test_a_statefulsets_next_pod_takes_the_place_after_the_old_one_is_gone() -> None:
    old, new = owned("db-0", 1), owned("db-0", 2, node="n2")
    state = following(old)
    assert state.seen(replace(old, deleting=True)) == []
    assert state.gone(old.uid) == [End(0, old.uid, "n1", "the pod is gone")]
    assert state.seen(replace(new, node="", phase="Pending")) == [], "not scheduled yet"
    actions = state.seen(replace(new, phase="Pending"))
    assert [type(a) for a in actions] == [Arm] and "n2" in actions[0].why
    assert state.seen(new) == [], "once is enough"


def test_a_deployments_next_pod_is_there_before_the_old_one_is_gone() -> None:
    old, new = owned("cart-a", 1), owned("cart-b", 2)
    state = following(old)
    assert state.seen(new) == [], "a pod more is no replacement"
    actions = state.seen(replace(old, deleting=True))
    assert actions == [Arm(0, new, "takes the place of cart-a")]
    assert state.gone(old.uid) == [End(0, old.uid, "n1", "the pod is gone")]
    assert state.gone(new.uid)[0] == End(0, new.uid, "n1", "the pod is gone")


def test_who_was_there_before_and_was_not_chosen_is_never_hit() -> None:
    hit, spared = owned("a", 1), owned("b", 2)
    state = following(hit, others=(spared,))
    state.gone(hit.uid)
    assert state.seen(spared) == []
    stranger = owned("c", 3, owner="other")
    assert state.seen(stranger) == [], "another workload"
    assert state.seen(replace(owned("d", 4), deleting=True)) == []
    bare = following(pod("x", 5))
    bare.gone(uid(5))
    assert bare.seen(pod("x", 6)) == [], "a pod without owner has no replacement"


def test_to_stay_means_that_a_move_ends_it() -> None:
    old = owned("db-0", 1)
    state = following(old, moves=False)
    state.gone(old.uid)
    actions = state.seen(owned("db-0", 2, node="n2"))
    assert [type(a) for a in actions] == [Left] and "n2" in str(actions)
    again = following(old, moves=False)
    again.gone(old.uid)
    assert isinstance(again.seen(owned("db-0", 3))[0], Arm)


def test_a_restart_matters_only_to_what_is_bound_to_containers() -> None:
    old = owned("a", 1)
    new = replace(old, containers=(container(container_id="e" * 64),))
    assert following(old).seen(new) == []
    actions = following(old, restarts=True).seen(new)
    assert [type(a) for a in actions] == [End, Arm]
    down = replace(old, containers=(container(running=False),))
    assert following(old, restarts=True).seen(down) == [], "nothing runs: nothing to hit"


def test_a_completed_pod_ends_its_fault() -> None:
    old = owned("a", 1)
    state = following(old)
    assert [type(a) for a in state.seen(replace(old, phase="Failed"))] == [End]
    assert [type(a) for a in state.seen(owned("b", 2))] == [Arm]


PLACES = {"v": {"persistentVolumeClaim": {"claimName": "data-db-0"}}}


def on_volume(one: Pod) -> str:
    return volume_place(one, "v")


def test_a_fault_on_a_volume_stays_for_the_next_pod_that_has_it() -> None:
    old, new = owned("db-0", 1, volumes=PLACES), owned("db-0", 2, volumes=PLACES)
    state = following(old, place_of=on_volume)
    assert state.seen(replace(old, deleting=True)) == []
    assert state.gone(old.uid) == [], "no healthy gap while nobody has it"
    assert state.seen(new) == [Keep(0, old.uid, new, "takes the place of db-0")]
    assert state.gone(new.uid) == []
    moved = owned("db-0", 3, node="n2", volumes=PLACES)
    assert state.seen(moved) == [
        Arm(0, moved, "takes the place of db-0, now on node n2"),
        End(0, new.uid, "n1", "its pod has another volume now"),
    ]


def test_a_fault_on_a_volume_stays_when_the_next_pod_is_there_before_the_old_one_goes() -> None:
    old, new = owned("a", 1, volumes=PLACES), owned("b", 2, volumes=PLACES)
    state = following(old, place_of=on_volume)
    state.seen(replace(old, deleting=True))
    assert [type(a) for a in state.seen(new)] == [Keep]
    assert state.seen(replace(old, deleting=True)) == state.gone(old.uid) == []


def test_a_claim_that_was_made_anew_is_another_volume() -> None:
    old, new = owned("db-0", 1, volumes=PLACES), owned("db-0", 2, volumes=PLACES)
    bound = {old.uid: "pv-1", new.uid: "pv-2"}
    state = following(old, place_of=lambda p: volume_place(p, "v", bound[p.uid]))
    assert state.gone(old.uid) == []
    assert [type(a) for a in state.seen(new)] == [Arm, End]


def test_a_fault_on_a_volume_that_is_not_followed_to_another_node_ends() -> None:
    old = owned("db-0", 1, volumes=PLACES)
    state = following(old, moves=False, place_of=on_volume)
    state.gone(old.uid)
    found = state.seen(owned("db-0", 2, node="n2", volumes=PLACES))
    assert [type(a) for a in found] == [End, Left]


def test_which_volumes_outlive_their_pod() -> None:
    host = owned("a", 1, volumes={"v": {"hostPath": {"path": "/srv"}}})
    assert on_volume(host) == on_volume(replace(host, name="b", uid=uid(2))) != ""
    assert on_volume(host) != on_volume(replace(host, node="n2"))
    for source in ({"emptyDir": {}}, {"ephemeral": {"volumeClaimTemplate": {}}}, {"csi": {}}):
        assert on_volume(owned("a", 1, volumes={"v": source})) == ""
    parts = (container(mounts=(Mount("v", "/data", "$(POD_NAME)", sub_path_expr=True),)),)
    own = owned("a", 1, volumes=PLACES, containers=parts)
    assert on_volume(own) != on_volume(replace(own, name="b")), "each has a directory of its own"
    assert on_volume(own) == on_volume(replace(own, uid=uid(3)))


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["seen", "deleting", "gone", "failed", "sync"]), st.integers(0, 9)
    ),
    max_size=40,
)  # fmt: skip


@example([("seen", 7), ("deleting", 0), ("gone", 7), ("seen", 7)], 1, ["x"] * 10)
@given(
    EVENTS, st.integers(1, 4), st.lists(st.sampled_from(["", "x", "y"]), min_size=10, max_size=10)
)
def test_whatever_comes_no_more_are_hit_than_were_chosen(
    events: list[tuple[str, int]], hit: int, places: list[str]
) -> None:
    """At any moment: at most so many pods in slots, none of them spared, each armed once; what is
    armed is of a slot, of a pod that leaves it, or stays on a volume for the next."""
    pods = [owned(f"p{n}", n) for n in range(10)]
    place = {one.uid: where for one, where in zip(pods, places, strict=True)}
    state = following(*pods[:hit], others=tuple(pods[hit:6]), place_of=lambda p: place[p.uid])
    armed = {one.uid for one in pods[:hit]}
    spared = {one.uid for one in pods[hit:6]}
    there = {one.uid: one for one in pods[:6]}
    for what, number in events:
        one = pods[number]
        if what in ("seen", "deleting", "failed"):
            if number >= 6 or one.uid in there:
                phase = "Failed" if what == "failed" else "Running"
                there[one.uid] = replace(one, deleting=what == "deleting", phase=phase)
                actions = state.seen(there[one.uid])
            else:
                continue
        elif what == "gone":
            there.pop(one.uid, None)
            actions = state.gone(one.uid)
        else:
            actions = state.sync(list(there.values()))
        for action in actions:
            if isinstance(action, End):
                assert action.uid in armed
                armed.discard(action.uid)
            if isinstance(action, Arm):
                assert action.pod.uid not in spared | armed
                armed.add(action.pod.uid)
            if isinstance(action, Keep):
                assert action.pod.uid not in spared | armed
                assert place[action.uid] == place[action.pod.uid] != ""
                armed.remove(action.uid)
                armed.add(action.pod.uid)
        in_slots = [slot.uid for slot in state.slots if slot.uid]
        assert len(in_slots) == len(set(in_slots)) <= hit
        kept = {slot.kept for slot in state.slots if slot.kept}
        assert set(in_slots) | set(state.leaving) | kept == armed


# --- the whole --------------------------------------------------------------------


class Follower:
    """`inject --follow` in a thread, ended as by Ctrl-C."""

    def __init__(self, there: World, patch: pytest.MonkeyPatch, *args: str) -> None:
        self.lines: list[str] = []
        self.code: int | None = None
        self.pursuit: Any = None
        patch.setattr(group_show, "_say", self.lines.append)
        from controller.kube import pursuit

        began = threading.Event()

        class Kept(pursuit.Pursuit):
            def run(inner) -> None:  # noqa: N805
                self.pursuit = inner
                began.set()
                super().run()
                raise KeyboardInterrupt

        patch.setattr(pursuit, "Pursuit", Kept)
        self.thread = threading.Thread(target=self._run, args=(there, args))
        self.thread.start()
        assert began.wait(20)

    def _run(self, there: World, args: tuple[str, ...]) -> None:
        self.code = there.inject(*args)

    def end(self) -> None:
        self.pursuit.stop.set()
        self.thread.join(20)

    def said(self, text: str) -> bool:
        return until(lambda: any(text in line for line in self.lines))


def until(holds: Any, seconds: float = 15) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


@pytest.fixture
def workload(world: World) -> Iterator[World]:  # noqa: F811
    rs = {"kind": "StatefulSet", "name": "db", "uid": "own-db", "controller": True}
    world.api.pod(
        "shop", "db-0", "n1", {"app": "db"}, meta={"uid": uid(4), "ownerReferences": [rs]}
    )
    yield world


def replacement(there: World, number: int, node: str, labels: str = "db") -> None:
    rs = {"kind": "StatefulSet", "name": "db", "uid": "own-db", "controller": True}
    there.api.pod("shop", "db-0", node, {"app": labels},
                  meta={"uid": uid(number), "ownerReferences": [rs]})  # fmt: skip


def test_a_pod_that_moves_takes_its_fault_along(
    workload: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = ("-n", "shop", "-l", "app=db", "--id", "g-5", "--follow", "move", "-o", "json")
    run = Follower(workload, monkeypatch, *fault)
    try:
        assert workload.hit("n1") == {uid(4)}
        workload.api.drop("/api/v1/namespaces/shop/pods/db-0")
        assert run.said("g-5-1 on n1 ended: the pod is gone")
        assert until(lambda: not workload.hit("n1"))
        replacement(workload, 5, "n2")
        assert run.said("g-5-2 armed on n2: shop/db-0 takes the place of db-0, now on node n2")
        assert workload.hit("n2") == {uid(5)}
        # The API server forgets old versions: the watch is begun anew, and nothing is lost.
        assert workload.active() == [("n2", "g-5-2")]
    finally:
        run.end()
    assert run.code == 0 and workload.active() == [] and not workload.hit("n2")
    out = capsys.readouterr().out
    assert json.loads(out[: out.index("}\n]") if "}\n]" in out else out.index("\n}\n") + 3])


def test_it_tries_until_the_pods_cgroup_is_there(
    workload: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nodeagent.model.errors import Refused

    late = time.monotonic() + 1.0
    agent = workload.agents["n2"].agent.executor

    def place(kind: Any, target: Any) -> Any:
        if time.monotonic() < late:
            raise Refused("pod shop/db-0 is not on this node", "no cgroup is named after it")
        return before(kind, target)

    before = agent._node.place
    run = Follower(workload, monkeypatch, "-n", "shop", "--pod", "db-0", "--id", "g-6",
                   "--follow", "move")  # fmt: skip
    try:
        monkeypatch.setattr(agent, "_node", replace(agent._node, place=place))
        workload.api.drop("/api/v1/namespaces/shop/pods/db-0")
        replacement(workload, 6, "n2", "other")  # named: found by its owner, whatever its labels
        assert run.said("armed on n2")
        assert workload.hit("n2") == {uid(6)}
    finally:
        run.end()
    assert workload.active() == []

"""Events on the pods that take the place of others under `inject --follow --announce`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from kube_kit import pod, uid
from test_chaosmesh_play import reach
from test_kube_follow import Follower, replacement, until, workload  # noqa: F401 - fixtures
from test_kube_inject import World, _world, world  # noqa: F401 - fixtures
from test_kube_pursuit import Chase, node, young  # noqa: F401 - fixtures

from controller.cli.announced import Announced
from controller.kube.follow import Keep
from controller.kube.hearer import Hearer
from controller.kube.objects import Pod
from controller.kube.resolve import Resolved
from controller.kube.targets import Item
from nodeagent.model.plan import FaultRequest, Lease


def events(there: World) -> list[tuple[str, str]]:
    """(reason, UID of the pod), in the order of their making."""
    return [(one["reason"], one["involvedObject"]["uid"]) for _, _, path, one in there.api.log
            if "/events/" in path and one["source"]["component"] == "faultctl"]  # fmt: skip


@pytest.fixture
def quiet(workload: World) -> World:  # noqa: F811
    """Without the Events of earlier tests: the API server is one for all of them."""
    workload.api.log[:] = [entry for entry in workload.api.log if "/events/" not in entry[2]]
    return workload


@pytest.mark.usefixtures("world")
def test_every_pod_that_is_hit_has_its_events(
    quiet: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = ("-n", "shop", "-l", "app=db", "--id", "g-9", "--follow", "move", "--announce")
    run = Follower(quiet, monkeypatch, *fault)
    try:
        assert until(lambda: events(quiet) == [("FaultArmed", uid(4))])
        quiet.api.drop("/api/v1/namespaces/shop/pods/db-0")
        gone = [("FaultArmed", uid(4)), ("FaultEnded", uid(4))]
        assert until(lambda: events(quiet) == gone)
        replacement(quiet, 5, "n2")
        assert until(lambda: events(quiet) == [*gone, ("FaultArmed", uid(5))])
    finally:
        run.end()
    assert run.code == 0
    assert events(quiet) == [*gone, ("FaultArmed", uid(5)), ("FaultEnded", uid(5))]


def test_the_next_pod_of_a_volume_is_told_that_the_fault_is_in_its_way(quiet: World) -> None:
    target = {"type": "pod", "pod": "shop/db-0", "uid": uid(4)}
    request = FaultRequest.model_validate({"id": "g-1", "kind": "t-pods", "target": target})
    with reach(quiet) as there:
        said = Announced(there, "t-pods", "g", Resolved((Item("n1", "shop/db-0", request),), 1),
                         wanted=True)  # fmt: skip
        said.armed(Lease(duration=timedelta(seconds=60)))
        said.kept_for(["g-1", "other"], pod("db-0", 5))
        said.ended()
    assert events(quiet) == [("FaultArmed", uid(4)), ("FaultArmed", uid(5)),
                             ("FaultEnded", uid(5))]  # fmt: skip


class Heard(Hearer):
    """What a pursuit says, as it says it."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def armed_on(self, item: Item) -> None:
        self.said.append((item.request.id, item.pod))

    def kept_for(self, ids: Any, pod: Pod) -> None:
        self.said.append((*ids, pod.uid))


def test_a_pursuit_says_which_faults_stay_and_for_whom(node: Any) -> None:  # noqa: F811
    chase = Chase(node)
    chase.it.hearer = heard = Heard()
    old, new = young(), pod("db-0", 6)
    chase.arm(old)
    chase.turn()
    (armed,) = node.armed
    chase.it._act([Keep(0, old.uid, new, "takes the place of db-0")])
    assert heard.said == [(armed, "shop/db-0"), (armed, new.uid)]
    assert node.armed == [armed]

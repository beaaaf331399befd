"""The condition of a node while announced faults are armed: what it says, and who ends it."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_kube_follow import Follower, replacement, until, workload  # noqa: F401 - fixtures
from test_kube_inject import World, _world, world  # noqa: F401 - fixtures

from controller.kube import deploy, herald
from controller.kube import node_condition as nc
from controller.kube.agents import Access, Agents
from controller.kube.client import Cluster
from controller.kube.group import Clients
from controller.kube.node_condition import Said, change, groups_of, left

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)
A = Said("netem", "g-1", NOW + timedelta(minutes=5))
B = Said("disk-delay", "g-22", NOW + timedelta(minutes=9))
GROUP = st.from_regex(r"[a-z0-9][a-z0-9-]{2,25}", fullmatch=True)


def node(condition: dict[str, Any] | None = None) -> dict[str, Any]:
    found = [{"type": "Ready", "status": "True"}, *([condition] if condition else [])]
    return {"metadata": {"resourceVersion": "7"}, "status": {"conditions": found}}


def written(said: tuple[Said, ...], before: dict[str, Any], now: datetime = NOW) -> dict[str, Any]:
    body = change(before, said, now)
    assert body is not None
    (condition,) = body["status"]["conditions"]
    assert body["metadata"] == {"resourceVersion": "7"}
    return dict(condition)


@given(st.lists(st.builds(Said, GROUP, GROUP, st.datetimes(
    datetime(2000, 1, 1), datetime(2100, 1, 1)
).map(lambda t: t.replace(microsecond=0, tzinfo=UTC))), min_size=1, max_size=4))  # fmt: skip
def test_what_is_written_is_read_again(said: list[Said]) -> None:
    assert groups_of(node(written(tuple(said), node()))) == tuple(said)


def test_the_time_of_a_transition_is_that_of_the_status_and_not_of_the_message() -> None:
    first = written((A,), node())
    assert (first["status"], first["reason"]) == ("True", "FaultArmed")
    assert first["message"] == "netem (g-1) until 2026-01-01T12:05:00Z at most"
    later = NOW + timedelta(seconds=30)
    second = written((A, B), node(first), later)
    assert second["lastTransitionTime"] == first["lastTransitionTime"] == "2026-01-01T12:00:00Z"
    third = written((), node(second), later)
    assert (third["status"], third["reason"], third["message"]) == ("False", "NoFault", "")
    assert third["lastTransitionTime"] == "2026-01-01T12:00:30Z"
    for same, said in ((first, (A,)), (third, ()), (None, ())):
        assert change(node(same), said, later) is None, "nothing to write"


@pytest.mark.parametrize(
    "condition",
    [
        {"type": "FaultInjected", "status": "True", "message": "somebody's own words"},
        {"type": "FaultInjected", "status": "True"},
        {"type": "FaultInjected", "status": "False", "message": A.text()},
        {"type": "Other", "status": "True", "message": A.text()},
    ],
)
def test_words_that_are_not_ours_name_no_group(condition: dict[str, Any]) -> None:
    assert groups_of(node(condition)) == ()


def test_the_agent_says_which_are_left_and_without_it_the_time_does() -> None:
    active = {"g-1-1", "g-2", "g-22-x"}
    assert left((A, B), active, NOW + timedelta(days=1)) == (A,)
    assert left((A, B), set(), NOW) == ()
    assert left((A, B), None, A.until) == (A, B), "clocks may differ"
    assert left((A, B), None, A.until + nc.SKEW) == (B,)


# --- with agents ------------------------------------------------------------------


@pytest.fixture
def heralds(monkeypatch: pytest.MonkeyPatch) -> list[herald.Told]:
    """What would have been told to heralds, which a test starts itself or not."""
    found: list[herald.Told] = []
    monkeypatch.setattr(herald, "start", found.append)
    return found


def condition(world: World, name: str) -> tuple[str, str]:  # noqa: F811
    found = world.api.objects[f"/api/v1/nodes/{name}"]["status"]["conditions"]
    assert found[0] == {"type": "Ready", "status": "True"}, "others' conditions stay"
    mine = [one for one in found if one["type"] == "FaultInjected"]
    message = mine[0]["message"] if mine else ""
    return (mine[0]["status"] if mine else ""), re.sub(
        r"until [0-9-]+T[0-9:]+Z", "until T", message
    )


def said(group: str) -> str:
    return f"t-pods ({group}) until T at most"


def test_it_is_true_until_the_last_announced_group_of_a_node_is_reverted(
    world: World, heralds: list[herald.Told]  # noqa: F811
) -> None:  # fmt: skip
    assert world.inject("--pod", "cart-3", "--id", "secret") == 0
    assert condition(world, "n1") == ("", ""), "not announced"
    assert world.inject("--pod", "cart-1", "--pod", "cart-2", "--id", "g-1", "--announce") == 0
    assert condition(world, "n1") == condition(world, "n2") == ("True", said("g-1"))
    world.agents["n1"].client.revert("secret-1")
    assert world.inject("--pod", "cart-3", "--id", "g-2", "--announce") == 0
    assert condition(world, "n1") == ("True", f"{said('g-1')}; {said('g-2')}")
    assert world.run("revert", "--cluster", "g-1") == 0
    assert condition(world, "n1") == ("True", said("g-2"))
    assert condition(world, "n2") == ("False", "")
    assert world.inject("--pod", "cart-1", "--id", "secret2") == 0
    assert world.run("revert", "--cluster", "g-2") == 0
    assert condition(world, "n1") == ("False", ""), "what was not announced does not keep it True"
    assert [told.group for told in heralds] == ["g-1", "g-2"]


def test_one_that_has_ended_by_itself_goes_with_the_next_word(
    world: World, heralds: list[herald.Told]  # noqa: F811
) -> None:  # fmt: skip
    assert world.inject("--pod", "cart-1", "--id", "g-3", "--announce") == 0
    world.agents["n1"].client.revert("g-3-1")  # as its lease would
    assert condition(world, "n1") == ("True", said("g-3"))
    assert world.inject("--pod", "cart-3", "--id", "g-4", "--announce") == 0
    assert condition(world, "n1") == ("True", said("g-4"))


def test_without_the_rights_it_is_a_warning_and_the_fault_stays(
    world: World, heralds: list[herald.Told], capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    world.api.forbidden.add(("patch", "nodes/status"))
    assert world.inject("--pod", "cart-1", "--pod", "cart-2", "--id", "g-5", "--announce") == 0
    warning = " ".join(capsys.readouterr().err.split())
    assert warning.count("warning") == 1, "once for all nodes"
    assert "no condition FaultInjected on n1, n2: you may not patch nodes/status" in warning
    assert "verb 'patch' on resource 'nodes/status'" in warning
    assert world.active() == [("n1", "g-5-1"), ("n2", "g-5-2")]
    assert world.run("revert", "--cluster", "g-5") == 0
    assert "warning" not in capsys.readouterr().err, "nothing was written that could be wrong"


def test_who_may_not_read_nodes_can_revert_all_the_same(
    world: World, heralds: list[herald.Told], capsys: pytest.CaptureFixture[str]  # noqa: F811
) -> None:  # fmt: skip
    assert world.inject("--pod", "cart-1", "--id", "g-6") == 0
    world.api.forbidden |= {("list", "nodes"), ("get", "nodes")}
    assert world.run("revert", "--cluster", "g-6") == 0
    assert world.active() == [] and "warning" not in capsys.readouterr().err


def test_what_others_write_meanwhile_is_kept(
    world: World, heralds: list[herald.Told], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    """The kubelet's own writes, and another user's group."""
    real, races = nc.change, [3]

    def raced(found: Any, groups: tuple[Said, ...], now: datetime) -> Any:
        made = real(found, groups, now)
        if races[0]:
            races[0] -= 1
            world.api.put("/api/v1/nodes/n1", found)
        return made

    monkeypatch.setattr(nc, "change", raced)
    assert world.inject("--pod", "cart-1", "--id", "g-7", "--announce") == 0
    assert races == [0] and condition(world, "n1") == ("True", said("g-7"))


def test_a_held_fault_ends_its_condition_itself(
    world: World, heralds: list[herald.Told], monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    seen = []

    def interrupted(*_: Any) -> Any:
        seen.append(condition(world, "n1"))
        raise KeyboardInterrupt

    monkeypatch.setattr("controller.cli.group_show.renew_group", interrupted)
    args = ("--id", "g-8", "--announce", "--hold", "--lease", "1s")
    assert world.inject("--pod", "cart-1", *args) == 0
    assert seen == [("True", said("g-8"))]
    assert condition(world, "n1") == ("False", "")
    assert heralds == [] and world.active() == []


def test_a_fault_that_moves_takes_its_condition_along(
    workload: World, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    fault = ("-n", "shop", "-l", "app=db", "--id", "g-9", "--follow", "move", "--announce")
    run = Follower(workload, monkeypatch, *fault)
    try:
        assert until(lambda: condition(workload, "n1") == ("True", said("g-9")))
        workload.api.drop("/api/v1/namespaces/shop/pods/db-0")
        assert until(lambda: condition(workload, "n1") == ("False", ""))
        replacement(workload, 5, "n2")
        assert until(lambda: condition(workload, "n2") == ("True", said("g-9")))
    finally:
        run.end()
    assert run.code == 0 and condition(workload, "n2") == ("False", "")


# --- the herald -------------------------------------------------------------------


@pytest.fixture
def reach(world: World) -> Iterator[tuple[Cluster, Clients]]:  # noqa: F811
    cluster = Cluster(world.kubeconfig)
    tls = {"cert": world.files.client_cert, "key": world.files.client_key, "ca": world.files.ca}
    access = Access(direct=True, tls=tls, server_name="localhost")
    with Agents(cluster, access) as agents, Clients(agents) as clients:
        yield cluster, clients


def ends(world: World) -> list[str]:  # noqa: F811
    events = [one for path, one in world.api.objects.items() if "/events/" in path]
    return sorted(one["involvedObject"]["name"] for one in events if one["reason"] == "FaultEnded")


def test_a_herald_tells_of_each_node_when_a_lease_has_ended_there(
    world: World, heralds: list[herald.Told], reach: tuple[Cluster, Clients]  # noqa: F811
) -> None:  # fmt: skip
    two = ("--pod", "cart-1", "--pod", "cart-2", "--id", "g-10", "--announce")
    assert world.inject(*two, "--lease", "60s") == 0
    (told,) = heralds
    thread = threading.Thread(target=herald.watch, args=(*reach, told, 0.05))
    thread.start()
    time.sleep(0.3)
    assert condition(world, "n1") == condition(world, "n2") == ("True", said("g-10"))
    world.agents["n1"].client.revert("g-10-1")
    assert until(lambda: condition(world, "n1") == ("False", "") and ends(world) == ["cart-1"])
    assert condition(world, "n2") == ("True", said("g-10")) and thread.is_alive()
    world.agents["n2"].client.revert("g-10-2")
    thread.join(30)
    assert not thread.is_alive()
    assert condition(world, "n2") == ("False", "") and ends(world) == ["cart-1", "cart-2"]


def test_a_herald_tries_again_and_gives_up_after_the_hard_end(
    world: World, heralds: list[herald.Told], reach: tuple[Cluster, Clients]  # noqa: F811
) -> None:  # fmt: skip
    assert world.inject("--pod", "cart-1", "--id", "g-11", "--announce") == 0
    world.agents["n1"].client.revert("g-11-1")
    world.api.forbidden.add(("patch", "nodes/status"))
    thread = threading.Thread(target=herald.watch, args=(*reach, heralds[0], 0.05))
    thread.start()
    time.sleep(0.3)
    assert thread.is_alive() and ends(world) == []
    world.api.forbidden.clear()
    thread.join(30)
    assert condition(world, "n1") == ("False", "") and ends(world) == ["cart-1"]
    world.api.forbidden.add(("patch", "nodes/status"))
    assert world.inject("--pod", "cart-3", "--id", "g-12", "--announce") == 0
    late = heralds[1].model_copy(update={"until": datetime.now(UTC) - 2 * nc.SKEW})
    herald.watch(*reach, late, 0.05)  # it comes back, whatever the rights and the agent say


def test_the_herald_is_a_process_of_its_own(
    world: World, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    started: list[subprocess.Popen[bytes]] = []
    real = herald.start
    monkeypatch.setattr(herald, "start", lambda told: started.append(real(told)))
    assert world.inject("--pod", "cart-1", "--id", "g-13", "--announce") == 0
    (child,) = started
    assert os.getsid(child.pid) == child.pid and child.poll() is None
    world.agents["n1"].client.revert("g-13-1")
    assert child.wait(60) == 0
    assert condition(world, "n1") == ("False", "") and ends(world) == ["cart-1"]


# --- an installation that ends ------------------------------------------------------


@pytest.fixture
def deployed(
    world: World, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> deploy.Deployment:  # fmt: skip
    tls = {"cert": world.files.client_cert, "key": world.files.client_key, "ca": world.files.ca}
    access = Access(direct=True, tls=tls, server_name="localhost")
    monkeypatch.setattr(deploy, "Access", lambda **_: access)
    return deploy.Deployment(Cluster(world.kubeconfig), lambda line: None, 5.0)


def test_faults_that_are_reverted_for_an_upgrade_are_announced_no_more(
    world: World, heralds: list[herald.Told], deployed: deploy.Deployment  # noqa: F811
) -> None:  # fmt: skip
    assert world.inject("--pod", "cart-1", "--id", "g-14", "--announce") == 0
    deploy.quiet(deployed, revert=True)
    assert world.active() == [] and condition(world, "n1") == ("False", "")


def test_an_uninstall_takes_the_condition_off_all_nodes(
    world: World, heralds: list[herald.Told], deployed: deploy.Deployment  # noqa: F811
) -> None:  # fmt: skip
    assert world.inject("--pod", "cart-1", "--pod", "cart-2", "--id", "g-15", "--announce") == 0
    assert world.run("revert", "--cluster", "g-15") == 0
    assert condition(world, "n1") == ("False", "")
    assert nc.forget(deployed.cluster) == []
    for name in ("n1", "n2"):
        assert condition(world, name) == ("", ""), "and others' conditions are kept"
    world.api.forbidden.add(("patch", "nodes/status"))
    assert world.inject("--pod", "cart-1", "--id", "g-16") == 0
    assert nc.forget(deployed.cluster) == [], "nothing is written where there is none"
    world.api.forbidden.clear()
    assert world.inject("--pod", "cart-3", "--id", "g-17", "--announce") == 0
    world.api.forbidden.add(("patch", "nodes/status"))
    (line,) = nc.forget(deployed.cluster)
    assert "node n1 keeps the condition" in line and "nodes/status" in line

"""Groups over many agents: bounded, one call at a time on a node, whole or not at all."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from controller.client import AgentAddress
from controller.kube import group as group_module
from controller.kube.group import (
    Clients,
    apply_group,
    find_group,
    plan_group,
    renew_group,
    revert_group,
)
from controller.kube.targets import Item
from nodeagent.model.errors import (
    BackendError,
    Conflict,
    Refused,
    StalePlan,
    UnknownFault,
    Unreachable,
)
from nodeagent.model.plan import FaultRequest, Lease

NAP_S = 0.005


class FakeNodes:
    """Agents that take 5 ms a call; `fail` maps (call, fault id) to errors, one a call."""

    def __init__(self) -> None:
        self.armed: dict[str, set[str]] = {}
        self.fail: dict[tuple[str, str], list[BaseException]] = {}
        self.at_once: Counter[str] = Counter()
        self.most = 0
        self.threads = 0
        self.opened: Counter[str] = Counter()
        self.lock = threading.Lock()

    @contextmanager
    def open(self, node: str) -> Iterator[AgentAddress]:
        with self.lock:
            self.opened[node] += 1
        yield AgentAddress(f"tcp://{node}:1")

    def call(self, node: str, what: str, fault: str) -> None:
        with self.lock:
            self.at_once[node] += 1
            self.most = max(self.most, self.at_once[node])
            self.threads = max(self.threads, sum(self.at_once.values()))
        time.sleep(NAP_S)
        with self.lock:
            self.at_once[node] -= 1
            waiting = self.fail.get((what, fault))
        if waiting:
            raise waiting.pop(0)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> FakeNodes:
    found = FakeNodes()

    class Client:
        def __init__(self, address: AgentAddress) -> None:
            self.node = address.url.split("/")[2].split(":")[0]

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *args: object) -> None: ...

        def plan(self, request: FaultRequest) -> tuple[Any, str]:
            found.call(self.node, "plan", request.id)
            return SimpleNamespace(id=request.id), "d"

        def apply(self, request: FaultRequest, lease: Lease, digest: str) -> Any:
            found.call(self.node, "apply", request.id)
            found.armed.setdefault(self.node, set()).add(request.id)
            return SimpleNamespace(id=request.id)

        def revert(self, fault: str) -> Any:
            found.call(self.node, "revert", fault)
            if fault not in found.armed.get(self.node, set()):
                raise UnknownFault("no", "")
            found.armed[self.node].discard(fault)
            return SimpleNamespace(fault=SimpleNamespace(id=fault))

        def renew(self, fault: str) -> Any:
            found.call(self.node, "renew", fault)
            return SimpleNamespace(id=fault)

        def faults(self, active_only: bool = False) -> list[Any]:
            found.call(self.node, "faults", self.node)
            return [SimpleNamespace(id=one) for one in found.armed.get(self.node, ())]

    monkeypatch.setattr(group_module, "AgentClient", Client)
    return found


def items(count: int, each: int = 1) -> list[Item]:
    target = {"type": "device", "device": "/dev/x"}
    return [
        Item(f"n{number % count}", f"s/p{number}",
             FaultRequest(id=f"group-{number + 1}", kind="k", target=target))
        for number in range(count * each)
    ]  # fmt: skip


def left(nodes: FakeNodes) -> set[str]:
    return {one for ids in nodes.armed.values() for one in ids}


def test_six_thousand_targets_end_in_time_and_each_node_is_asked_in_turn(nodes: FakeNodes) -> None:
    """CASES 167: at most ceil(nodes / threads) * faults a node * (plan + apply) naps."""
    wanted = items(1000, 6)
    begun = time.monotonic()
    with Clients(nodes) as clients:
        outcome = apply_group(clients, plan_group(clients, wanted), Lease())
        took = time.monotonic() - begun
        assert len(outcome.done) == 6000 == len(left(nodes))
        assert nodes.most == 1 and nodes.threads <= group_module.MAX_THREADS
        assert set(nodes.opened.values()) == {1}, "one way to each node"
        rounds = -(-1000 // group_module.MAX_THREADS)
        assert took < 20 * rounds * 6 * 2 * NAP_S
        ids = {item.request.id: item.node for item in wanted}
        assert not renew_group(clients, ids).failed
        found, failed = find_group(clients, set(ids.values()), "group")
        assert len(found) == 6000 and not failed
        assert not revert_group(clients, ids).failed
    assert left(nodes) == set()


def test_a_plan_that_one_node_refuses_names_it_and_arms_nothing(nodes: FakeNodes) -> None:
    nodes.fail["plan", "group-2"] = [Refused("no such mechanism", "kernel", "update")]
    with Clients(nodes) as clients, pytest.raises(Refused) as no:
        plan_group(clients, items(3))
    assert no.value.what.startswith("n1: no such mechanism")
    assert "nothing was touched" in no.value.why and no.value.hint == "update"


def test_a_failed_apply_takes_back_all_even_what_was_armed_unheard(nodes: FakeNodes) -> None:
    nodes.fail["apply", "group-3"] = [Unreachable("n2 did not answer", "deadline")]
    nodes.armed["n2"] = {"group-3"}  # it was armed, and the answer was lost
    with Clients(nodes) as clients:
        planned = plan_group(clients, items(4))
        with pytest.raises(Unreachable, match="everything was taken back"):
            apply_group(clients, planned, Lease())
    assert left(nodes) == set()


def test_what_cannot_be_taken_back_is_the_error(nodes: FakeNodes) -> None:
    nodes.fail["apply", "group-2"] = [Conflict("taken", "by another")]
    nodes.fail["revert", "group-1"] = [BackendError("busy", "the kernel said no")]
    with Clients(nodes) as clients:
        planned = plan_group(clients, items(2))
        nodes.armed["n0"] = {"group-1"}
        with pytest.raises(BackendError, match="could NOT be taken back"):
            apply_group(clients, planned, Lease())


def test_ctrl_c_while_a_group_is_armed_takes_all_back(nodes: FakeNodes) -> None:
    nodes.fail["apply", "group-70"] = [KeyboardInterrupt()]
    with Clients(nodes) as clients:
        planned = plan_group(clients, items(200))
        with pytest.raises(KeyboardInterrupt):
            apply_group(clients, planned, Lease())
    assert left(nodes) == set()


def test_a_hint_to_revert_is_one_for_the_cluster(nodes: FakeNodes) -> None:
    nodes.fail["plan", "group-1"] = [
        Conflict("taken", "by another", "revert it first: faultctl revert x-1")
    ]
    with Clients(nodes) as clients, pytest.raises(Conflict) as no:
        plan_group(clients, items(1))
    assert no.value.hint == "revert it first: faultctl revert --cluster x-1"


def test_a_stale_plan_is_made_again_but_not_for_ever(nodes: FakeNodes) -> None:
    nodes.fail["apply", "group-1"] = [StalePlan("changed")] * 2
    with Clients(nodes) as clients:
        assert apply_group(clients, plan_group(clients, items(1)), Lease()).done
        nodes.fail["apply", "group-1"] = [StalePlan("changed")] * 9
        with pytest.raises(StalePlan):
            apply_group(clients, plan_group(clients, items(1)), Lease())
    assert left(nodes) == set()


def test_a_broken_way_is_opened_anew_for_a_revert(nodes: FakeNodes) -> None:
    with Clients(nodes) as clients:
        apply_group(clients, plan_group(clients, items(1)), Lease())
        nodes.fail["revert", "group-1"] = [Unreachable("the agent restarts")]
        assert not revert_group(clients, {"group-1": "n0"}).failed
    assert left(nodes) == set() and nodes.opened["n0"] == 2


def test_a_lease_is_renewed_by_a_new_way_after_one_that_broke(nodes: FakeNodes) -> None:
    with Clients(nodes) as clients:
        apply_group(clients, plan_group(clients, items(1, 2)), Lease())
        ids = {"group-1": "n0", "group-2": "n0"}
        nodes.fail["renew", "group-1"] = [Unreachable("the agent restarts")]
        assert len(renew_group(clients, ids).failed) == 1
        assert not renew_group(clients, ids).failed
    assert nodes.opened["n0"] == 2


def test_nodes_that_do_not_answer_are_named(nodes: FakeNodes) -> None:
    nodes.fail["faults", "n1"] = [Unreachable("gone")]
    with Clients(nodes) as clients:
        found, failed = find_group(clients, ["n0", "n1"], "group")
    assert found == {} and [one.node for one in failed] == ["n1"]

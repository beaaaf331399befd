"""The cluster's objects as a node of a run: one id is one fault, whatever happens in between."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, fake_api
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from json_patch import json_patched

from controller.kube import client as client_module
from controller.kube import keeper
from controller.kube.client import Cluster
from controller.kube.ledger import Entry, Ledger
from controller.kube.objects_port import ObjectsPort
from controller.kube.ways import Ways
from nodeagent.model.errors import (
    BackendError,
    Conflict,
    InvalidSpec,
    Refused,
    StalePlan,
    UnknownFault,
    Unreachable,
)
from nodeagent.model.plan import FaultRequest, Lease

CART = "/apis/apps/v1/namespaces/shop/deployments/cart"
LEASE = Lease(duration=timedelta(minutes=1), hard_end=timedelta(minutes=5))
ID = "x0123456789"


class Reaped:
    """A keeper that is none: these tests end faults themselves."""

    def poll(self) -> int:
        return 0


class World:
    def __init__(self, api: FakeApi, home: Path) -> None:
        self.api, self.book = api, Ledger(home / "ledger")
        self.kubeconfig = api.kubeconfig()

    def port(self) -> ObjectsPort:
        ways = Ways(kubeconfig=self.kubeconfig)
        return ObjectsPort(Cluster(self.kubeconfig), self.book, ways)

    def write(self, field: str, value: Any) -> None:
        step = {"op": "add", "path": field, "value": value}
        self.api.put(CART, json_patched(self.api.objects[CART], [step], "somebody"))

    def patches(self) -> int:
        return sum(method == "PATCH" for method, _ in self.api.requests)

    @property
    def replicas(self) -> int:
        return int(self.api.objects[CART]["spec"]["replicas"])


@pytest.fixture(scope="module")
def _api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeApi]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keeper, "start", lambda *_: Reaped())
        patch.setattr(client_module, "PAUSE_S", 0.001)
        with fake_api(tmp_path_factory.mktemp("api")) as api:
            api.namespace("shop")
            api.namespace("kube-system")
            kinds = [{"name": "deployments", "kind": "Deployment", "namespaced": True}]
            api.put("/apis/apps/v1", {"resources": kinds})
            yield api


def fresh(api: FakeApi, home: Path) -> World:
    api.requests.clear()
    api.forbidden.clear()
    api.bad.clear()
    api.put(CART, {"spec": {"replicas": 3, "paused": False}})
    return World(api, home)


@pytest.fixture
def world(_api: FakeApi, tmp_path: Path) -> World:
    return fresh(_api, tmp_path)


def request(patch: str = '{"spec":{"replicas":0}}', **more: Any) -> FaultRequest:
    spec = {"object": "Deployment/cart", "api_version": "apps/v1", "patch": patch}
    target = {"type": "objects", "namespace": "shop", "seed": "s"}
    return FaultRequest.model_validate(
        {"id": ID, "kind": "k8s-patch", "target": target, "spec": spec, **more}
    )


def test_a_plan_touches_nothing_and_is_the_same_while_the_object_is(world: World) -> None:
    port = world.port()
    plan, digest = port.plan(request())
    assert [step.summary() for step in plan.steps] == [
        "deployments shop/cart /spec/replicas: 3 -> 0"]  # fmt: skip
    world.write("/spec/paused", True)
    assert port.plan(request())[1] == digest, "another field is nobody's business"
    assert world.patches() == 0 and world.book.all() == []
    world.write("/spec/replicas", 4)
    with pytest.raises(StalePlan):
        port.apply(request(), LEASE, digest)
    assert world.replicas == 4 and world.book.all() == []


def test_the_same_id_twice_is_the_same_as_once(world: World) -> None:
    port = world.port()
    digest = port.plan(request())[1]
    first = port.apply(request(), LEASE, digest)
    again = world.port().apply(request(), LEASE, "whatever it was")
    assert (first.state, again.state, world.patches()) == ("armed", "armed", 1)
    with pytest.raises(Conflict, match="another fault"):
        port.apply(request(kind="node-cordon"), LEASE, digest)
    assert port.revert(ID, "").end_reason == port.revert(ID, "").end_reason == "reverted"
    assert world.port().apply(request(), LEASE, digest).end_reason == "reverted"
    assert world.replicas == 3 and world.patches() == 2


def test_events_have_numbers_that_stay(world: World) -> None:
    port = world.port()
    port.apply(request(), LEASE, port.plan(request())[1])
    first = port.events(0)
    assert port.events(0) == first and [(e.seq, e.name) for e in first] == [(1, "armed")]
    world.write("/spec/replicas", 2)
    later = port.events(1)
    assert [(e.seq, e.name) for e in later] == [(2, "drifted"), (3, "remedied"), (4, "ended")]
    assert port.events(0) == [*first, *later] and port.fault(ID).end_reason == "remedied"


def test_what_no_fault_has_is_told(world: World) -> None:
    port = world.port()
    for call in (port.fault, port.renew, lambda name: port.revert(name, "")):
        with pytest.raises(UnknownFault):
            call("x-nobody")
    with pytest.raises(InvalidSpec, match="no agent"):
        _ = port.client


def test_an_api_server_that_does_not_answer_ends_no_fault_and_stops_no_lease(
    world: World,
) -> None:
    port = world.port()
    port.apply(request(), LEASE, port.plan(request())[1])
    before = world.book.get(ID).until
    world.api.bad += [500] * 12
    assert port.renew(ID).state == "armed" and world.book.get(ID).until > before
    with pytest.raises(Unreachable):
        port.events(0)
    with pytest.raises(Unreachable):
        port.clock()
    world.api.bad.clear()
    assert [e.name for e in port.events(0)] == ["armed"]
    assert port.clock()[1:] == (0, 0)


def test_a_field_that_another_fault_holds_is_refused_when_it_is_planned(world: World) -> None:
    port = world.port()
    port.apply(request(), LEASE, port.plan(request())[1])
    with pytest.raises(Conflict, match="conflicts with the armed fault"):
        port.plan(request('{"spec":{"replicas":9}}', id="x-other"))
    port.plan(request('{"spec":{"paused":true}}', id="x-other"))


def test_a_policy_is_asked_with_the_life_that_the_fault_would_have(
    world: World, tmp_path: Path
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nrules:\n- {verdict: allow, namespaces: [shop], max_hard_end: 1m}\n"
    )
    ways = Ways(kubeconfig=world.kubeconfig, policy=policy)
    port = ObjectsPort(Cluster(world.kubeconfig), world.book, ways)
    digest = port.plan(request())[1]
    with pytest.raises(Refused, match="at most"):
        port.apply(request(), LEASE, digest)
    assert world.replicas == 3 and world.book.all() == []


def test_a_journal_that_cannot_be_written_is_no_traceback_and_heals(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = world.port()
    digest = port.plan(request())[1]
    real, writes = Ledger.write, 0

    def full(book: Ledger, entry: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == 2:  # the intent was written, and the change made
            raise OSError(28, "No space left on device")
        real(book, entry)

    monkeypatch.setattr(Ledger, "write", full)
    with pytest.raises(BackendError, match="No space left"):
        port.apply(request(), LEASE, digest)
    assert world.replicas == 0 and world.book.get(ID).state == "intent"
    assert port.fault(ID).state == "armed" and world.patches() == 1
    port.revert(ID, "")
    assert world.replicas == 3


@pytest.mark.parametrize(("gone", "state"), [((), None), ((1,), "done"), ((1, 2), "done")])
def test_who_asks_about_an_intent_does_no_more_of_it(
    world: World, gone: tuple[int, ...], state: str | None
) -> None:
    """As `stop` of an orphaned run does: of two pods that were to go, those that went are gone."""
    pods = "/api/v1/namespaces/shop/pods"
    for number in (1, 2):
        world.api.pod("shop", f"cart-{number}", "n1", {"app": "cart"})
    removed = [{"place": {"resource": "pods", "namespace": "shop", "name": f"cart-{number}"},
                "uid": world.api.objects[f"{pods}/cart-{number}"]["metadata"]["uid"]}
               for number in (1, 2)]  # fmt: skip
    now = time.time()
    world.book.begin(Entry.model_validate({
        "id": ID, "kind": "pod-kill", "server": world.api.url, "created": now, "lease_s": 60,
        "until": now + 60, "hard_end": now + 60, "removed": removed}))  # fmt: skip
    for number in gone:
        world.api.drop(f"{pods}/cart-{number}")
    port = world.port()
    if state is None:
        with pytest.raises(UnknownFault):
            port.fault(ID)
        assert world.book.get(ID).state == "intent"
    else:
        view = port.fault(ID)
        assert (view.end_reason, view.hits) == (state, len(gone))
    left = {path for path, _ in world.api.below(pods)}
    assert left == {f"{pods}/cart-{n}" for n in (1, 2) if n not in gone}
    for path in left:
        world.api.drop(path)


OPS = st.lists(st.sampled_from(["apply", "revert", "look", "fix", "pause", "port", "renew"]),
               max_size=9)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPS)
def test_whatever_the_order_it_is_made_once_ends_once_and_takes_nothing_of_others(
    _api: FakeApi, ops: list[str]
) -> None:
    home = Path(tempfile.mkdtemp(prefix="fc-"))
    try:
        _whatever(fresh(_api, home), ops)
    finally:
        shutil.rmtree(home)


def _whatever(world: World, ops: list[str]) -> None:
    port, theirs, paused = world.port(), 3, False
    for op in (*ops, "revert"):
        known = world.book.find(ID)
        if op == "apply":
            digest = "" if known else port.plan(request())[1]
            port.apply(request(), LEASE, digest)
        elif op == "fix":
            theirs += 1
            world.write("/spec/replicas", theirs)
        elif op == "pause":
            paused = not paused
            world.write("/spec/paused", paused)
        elif op == "port":
            port = world.port()
        elif op == "look":
            port.events(0)
        elif known is not None:
            getattr(port, op)(*((ID, "") if op == "revert" else (ID,)))
    assert (world.replicas, world.api.objects[CART]["spec"]["paused"]) == (theirs, paused)
    entry = world.book.find(ID)
    assert (entry is None) == ("apply" not in ops)
    if entry is not None:
        assert [n.name for n in entry.notes].count("armed") == 1
        assert [n.name for n in entry.notes].count("ended") == 1 and entry.state == "ended"
        after = ops[ops.index("apply") :]
        cut = after.index("revert") if "revert" in after else len(after)
        assert entry.end_reason == ("remedied" if "fix" in after[:cut] else "reverted")
    assert world.patches() <= 2

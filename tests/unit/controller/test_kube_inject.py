"""Faults on pods end to end: command line, API server in small, two real agents over mutual TLS."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import core_kit
import pytest
from agent_kit import KitBinder, NoWard, Served
from core_kit import FakeKernel, SetValue
from fake_api import FakeApi, fake_api

from controller.cli import inject_kube
from controller.cli.main import run
from controller.kube import asked, herald
from controller.kube import client as client_module
from controller.kube.client import Cluster
from controller.kube.discover import Query
from controller.kube.resolve import Wanted, resolve_pods
from controller.kube.select import Ask
from controller.lab import certs
from nodeagent import agent as agent_module
from nodeagent.faults import kind_named, kinds
from nodeagent.listen import TlsFiles
from nodeagent.model.errors import BackendError, InvalidSpec, Refused
from nodeagent.model.exposure import Exposure, Workload
from nodeagent.model.kind import FaultSpec

AGENT = {"app.kubernetes.io/name": "faultd"}
NODES = ("n1", "n2")


class Spec(FaultSpec):
    """Nothing to choose."""


KIND = replace(
    core_kit.SET_KIND,
    name="t-pods",
    spec=Spec,
    targets=("cgroup",),
    ladder=(
        replace(
            core_kit.SET_KIND.ladder[0],
            plan=lambda spec, context: [SetValue(name=context.target.uid, value="hit")],
        ),
    ),
    examples=(),
)


class World:
    """The cluster, its agents, and the command line in front of them."""

    def __init__(self, api: FakeApi, agents: dict[str, Served], files: certs.Files) -> None:
        self.api, self.agents, self.files = api, agents, files
        self.kubeconfig = api.kubeconfig()

    def run(self, *args: str) -> int:
        tls = ("--tls-cert", self.files.client_cert, "--tls-key", self.files.client_key,
               "--tls-ca", self.files.ca, "--tls-server-name", "localhost")  # fmt: skip
        return run([*map(str, tls), *args, "--kubeconfig", str(self.kubeconfig), "--direct"])

    def inject(self, *args: str) -> int:
        return self.run("inject", "t-pods", *args)

    def active(self) -> list[tuple[str, str]]:
        return sorted(
            (node, fault.id)
            for node, one in self.agents.items()
            for fault in one.client.faults(active_only=True)
        )

    def hit(self, node: str) -> set[str]:
        objects = json.loads(self.agents[node].kernel.fingerprint())["objects"]
        return {name for name, value in objects.items() if value == "hit"}


@pytest.fixture(scope="module")
def _world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    base = tmp_path_factory.mktemp("world")
    files = certs.write_all(base / "tls", "node")
    homes = {name: Path(tempfile.mkdtemp(prefix="fc-")) for name in NODES}
    with pytest.MonkeyPatch.context() as patch, core_kit.registered(), fake_api(base) as api:
        patch.setattr(client_module, "PAUSE_S", 0.01)
        patch.setattr(agent_module, "Binder", KitBinder)
        patch.setattr(agent_module, "Ward", NoWard)
        patch.setitem(kinds(), KIND.name, KIND)
        agents = {name: _agent(patch, api, name, homes[name], files) for name in NODES}
        yield World(api, agents, files)
        for name, one in agents.items():
            one.servers[0].stop(0).wait()
            one.close()
            shutil.rmtree(homes[name])


def _agent(
    patch: pytest.MonkeyPatch, api: FakeApi, name: str, home: Path, files: certs.Files
) -> Served:
    kernel = FakeKernel(home / "kernel.json")
    for one in ("a", *map(uid, range(1, 10))):
        kernel.put(one, "0")
    patch.setattr(agent_module, "load_backends", lambda runtime: core_kit.registry(kernel))
    served = Served(home, kernel)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    tls = TlsFiles(files.server_cert, files.server_key, files.ca)
    served.servers = [served.serve((f"tcp://127.0.0.1:{port}",), tls)]  # a dropped one ends
    ports = [{"name": "faultd", "image": "i", "ports": [{"name": "grpc", "containerPort": port}]}]
    api.pod("faultctl-system", f"faultd-{name}", name, AGENT, ip="127.0.0.1", containers=ports)
    return served


@pytest.fixture
def world(_world: World) -> Iterator[World]:
    api = _world.api
    api.forbidden.clear()
    for path in [p for p in api.objects if "/namespaces/faultctl-system/pods" not in p]:
        api.drop(path)
    api.namespace("shop")
    api.namespace("kube-system")
    for number, node in enumerate((*NODES, "n1"), 1):
        api.node(node)
        api.pod("shop", f"cart-{number}", node, {"app": "cart"}, meta={"uid": uid(number)})
    yield _world
    for one in _world.agents.values():
        one.kernel.fail.clear()
        for fault in one.client.faults(active_only=True):
            one.client.revert(fault.id)


def uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012x}"


def test_one_group_over_nodes_is_armed_listed_and_reverted_as_one(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert world.inject("-n", "shop", "-l", "app=cart", "--all", "--id", "g-1", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["group"], found["matching"], found["picked"]) == ("g-1", 3, "all")
    assert sorted((f["node"], f["pod"], f["id"]) for f in found["faults"]) == [
        ("n1", "shop/cart-1", "g-1-1"), ("n1", "shop/cart-3", "g-1-3"),
        ("n2", "shop/cart-2", "g-1-2")]  # fmt: skip
    assert (world.hit("n1"), world.hit("n2")) == ({uid(1), uid(3)}, {uid(2)})
    assert world.run("ls", "--cluster") == 0
    assert "cart-2" in capsys.readouterr().out
    assert world.run("renew", "--cluster", "g-1") == 0
    assert world.run("show", "--cluster", "g-1", "-o", "json") == 0
    assert len(json.loads(capsys.readouterr().out.split("left\n")[-1])) == 3
    assert world.run("revert", "--cluster", "g-1-3") == 0
    assert world.hit("n1") == {uid(1)}
    assert world.run("revert", "--cluster", "g-1") == 0
    assert world.active() == [] and not world.hit("n1") | world.hit("n2")
    assert world.run("revert", "--cluster", "never") == 3


def test_exposure_of_a_group_names_the_pods_that_run(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the processes on the nodes: what has no pod any more is exposed as well."""
    assert world.inject("--pod", "cart-1", "--pod", "cart-2", "--id", "g-4") == 0
    cgroups = {"n1": f"/kubepods/pod{uid(1)}/{'a' * 64}", "n2": f"/kubepods/pod{uid(7)}"}
    shown = {
        node: Exposure(workloads=(Workload(pid=7, comm="app", how="file", cgroup=cgroup),))
        for node, cgroup in cgroups.items()
    }

    def say(found: dict[str, Exposure]) -> None:
        for name, one in world.agents.items():
            monkeypatch.setattr(one.agent, "exposure", lambda row, s, name=name: found[name])
        capsys.readouterr()

    say(shown)
    assert world.run("exposure", "--cluster", "g-4", "-o", "json") == 1
    told = json.loads(capsys.readouterr().out)
    assert [(w["node"], w["pod"]) for w in told["workloads"]] == [
        ("n1", "shop/cart-1"), ("n2", uid(7))]  # fmt: skip
    say({**shown, "n1": Exposure(known=False)})
    assert world.run("exposure", "--cluster", "g-4-1") == 1
    assert "not known of g-4-1" in capsys.readouterr().out
    assert world.run("exposure", "--cluster", "g-4") == 1
    said = capsys.readouterr().out
    assert uid(7) in said and "not known of g-4-1" in said, "rows of others do not hide it"
    say({"n1": Exposure(), "n2": Exposure()})
    assert world.run("exposure", "--cluster", "g-4") == 0
    assert "nobody" in capsys.readouterr().out
    assert world.run("revert", "--cluster", "g-4") == 0
    say(shown)
    assert world.run("exposure", "--cluster", "g-4") == 0, "what has ended hits nobody"
    assert world.run("exposure", "--cluster", "never") == 3


def test_one_node_that_fails_takes_all_back(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    error = BackendError("no", "the kernel said no")
    world.agents["n2"].kernel.fail[f"apply:{uid(2)}"] = [error]
    calls = len(world.agents["n1"].kernel.calls)
    assert world.inject("-n", "shop", "-l", "app=cart", "--all") == 3
    said = capsys.readouterr()
    assert "everything was taken back" in said.err and "n2" in said.err
    assert world.active() == [] and not world.hit("n1") | world.hit("n2")
    new = world.agents["n1"].kernel.calls[calls:]
    steps = {word: {one for one in new if one.startswith(word)} for word in ("apply:", "undo:")}
    assert {one.replace("apply:", "undo:") for one in steps["apply:"]} <= steps["undo:"]


def test_a_plan_that_is_refused_on_one_node_touches_none(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(kind: Any, target: Any) -> Any:
        if target.uid == uid(2):
            raise Refused("pod shop/cart-2 is not on this node", "no cgroup")
        return core_kit.place(kind, target)

    for one in world.agents.values():
        monkeypatch.setattr(one.agent.executor, "_node",
                            replace(one.agent.executor._node, place=refusing))  # fmt: skip
    before = [one.kernel.fingerprint() for one in world.agents.values()]
    assert world.inject("-n", "shop", "-l", "app=cart", "--all") == 3
    assert "nothing was touched" in capsys.readouterr().err
    assert [one.kernel.fingerprint() for one in world.agents.values()] == before
    assert all(not one.client.faults(active_only=True) for one in world.agents.values())


def test_a_plan_shows_what_a_run_with_its_seed_hits(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """CASES 161."""
    args = ("-n", "shop", "-l", "app=cart", "--pick", "2", "--pick-seed", "s7", "-o", "json")
    assert world.inject(*args, "--plan") == 0
    planned = json.loads(capsys.readouterr().out)
    assert world.active() == []
    assert world.inject(*args) == 0
    ran = json.loads(capsys.readouterr().out)
    assert [f["pod"] for f in planned["faults"]] == [f["pod"] for f in ran["faults"]]
    assert len(ran["faults"]) == 2 and ran["seed"] == "s7"


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("-n", "shop", "-l", "app=none", "--all"), 3, "no pod of namespace shop"),
        (("-n", "shop", "-l", "app=cart"), 3, "3 pods match"),
        (("-n", "shop"), 3, "--all"),
        (("-n", "shop", "--pod", "other/a"), 2, "one namespace"),
        (("--pod", "shop/none"), 3, "no pod shop/none"),
        (("--pod", "a/b/c"), 2, "not a pod"),
        (("--pod", "cart-1", "--pick", "1"), 2, "by themselves"),
        (("--pod", "cart-1", "-l", "a=b"), 2, "by themselves"),
        (("-n", "shop", "-l", "a in b"), 2, "column"),
        (("-n", "shop", "-l", "app=cart", "--pick", "9"), 3, "9 are asked for, 3"),
        (("-n", "shop", "-l", "app=cart", "--pick", "0"), 2, "not how many"),
        (("-n", "shop", "-l", "app=cart", "--all", "--pick", "1"), 2, "exclude"),
        (("-n", "shop", "--owner", "cart"), 2, "owner"),
        (("-n", "nope", "--all"), 3, "no namespace nope"),
        (("-n", "kube-system", "--all"), 3, "protected"),
        (("-n", "shop", "--pod", "cart-1", "--to-pods", "-l", "app=db"), 2, "no far end"),
        (("--pod", "cart-1", "--cgroup", "/x"), 2, "--cgroup"),
        (("--container", "app", "--cgroup", "/x"), 2, "about pods"),
        (("--on-node", "n1", "--to-pods", "-l", "a=b", "--cgroup", "/x"), 2, "about pods"),
        (("--on-node", "n9", "--cgroup", "/x"), 3, "no node n9"),
        (("--on-node", "n1"), 2, "which target"),
    ],
)
def test_bad_input_is_one_clear_error_and_nothing_is_changed(
    world: World, args: tuple[str, ...], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = [one.kernel.fingerprint() for one in world.agents.values()]
    assert world.inject(*args) == code
    said = capsys.readouterr()
    assert words in said.err and "bug" not in said.err
    assert [one.kernel.fingerprint() for one in world.agents.values()] == before


def test_a_node_without_an_agent_and_one_that_is_gone(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.api.node("n3")
    world.api.pod("shop", "cart-4", "n3", {"app": "cart"})
    assert world.inject("-n", "shop", "-l", "app=cart", "--all") == 3
    assert "no agent runs on node n3" in capsys.readouterr().err
    ports = [{"name": "faultd", "image": "i", "ports": [{"name": "grpc", "containerPort": 9}]}]
    world.api.pod("faultctl-system", "faultd-n3", "n3", AGENT, ip="127.0.0.1", containers=ports)
    assert world.inject("-n", "shop", "-l", "app=cart", "--all") == 4
    assert world.active() == []
    assert world.inject("--pod", "cart-1", "--id", "g-2") == 0
    capsys.readouterr()
    assert world.run("ls", "--cluster") == 4, "what does not answer may hold faults"
    assert "g-2-1" in capsys.readouterr().out
    assert world.run("revert", "--cluster", "g-2") == 4
    assert world.active() == [], "those that answer are reverted all the same"
    world.api.drop("/api/v1/namespaces/faultctl-system/pods/faultd-n3")


def test_who_may_not_delete_pods_may_not_break_them(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """CASES 178."""
    world.api.forbidden.add(("delete", "pods"))
    assert world.inject("--pod", "cart-1") == 3
    said = capsys.readouterr().err
    assert "shop/cart-1" in said and "verb 'delete' on resource 'pods'" in said
    assert world.active() == []


def test_a_protected_namespace_is_refused_by_the_agent_as_well(world: World) -> None:
    target = {"type": "pod", "pod": "kube-system/x", "uid": uid(1)}
    asked = core_kit.request("t-protected").model_copy(
        update={"kind": "t-pods", "target": target, "spec": {}}
    )
    with pytest.raises(Refused, match="keeps the cluster"):
        world.agents["n1"].client.plan(asked)
    plan, _ = world.agents["n1"].client.plan(
        asked.model_copy(update={"acknowledge": ("protected-namespace",)})
    )
    assert plan.guards == ("protected-namespace",) and plan.target["pod"] == "kube-system/x"


def test_nodes_are_targets_of_their_own(world: World) -> None:
    args = ("inject", "t-set", "--name", "a", "--device", "/dev/t")
    assert world.run(*args, "--on-node", "n1", "--on-node", "n2", "--id", "g-3") == 0
    assert world.active() == [("n1", "g-3-1"), ("n2", "g-3-2")]
    assert world.run("revert", "--cluster", "--all") == 0
    assert world.run(*args, "--zone", "none", "--all") == 3
    assert world.run(*args, "--node-selector", "x=y", "--all") == 3
    assert world.active() == []


def test_far_ends_are_the_pods_and_services_at_that_moment(world: World) -> None:
    world.api.pod("shop", "db-0", "n2", {"app": "db"}, ip="10.0.9.1")
    spec = {"selector": {"app": "db"}, "clusterIP": "10.96.0.5"}
    world.api.put("/api/v1/namespaces/shop/services/db", {"spec": spec})
    wanted = Wanted("g-4", kind_named("netem"), Query("shop", ("cart-1",)),
                    Ask("shop", names=("cart-1",)), {}, {"spec": {"delay": "200ms"}},
                    peers=Query("shop", labels="app=db"))  # fmt: skip
    found = resolve_pods(Cluster(world.kubeconfig), wanted)
    assert found.items[0].request.spec == {"delay": "200ms", "to": "10.0.9.1,10.96.0.5"}
    world.api.node("n2", **{"topology.kubernetes.io/zone": "z2"})
    zone = replace(wanted, peers=Query("shop"), peer_zones=("z2",))
    far = resolve_pods(Cluster(world.kubeconfig), zone).items[0].request.spec["to"]
    assert set(far.split(",")) == {"10.0.0.1", "10.0.9.1"}, "pods of the zone, no service"
    with pytest.raises(Refused, match="no pod to talk to"):
        resolve_pods(Cluster(world.kubeconfig), replace(zone, peer_zones=("z9",)))
    empty = replace(wanted, peers=Query("shop", labels="app=none"))
    with pytest.raises(Refused, match="no pod to talk to"):
        resolve_pods(Cluster(world.kubeconfig), empty)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("--to-pods -l app=db -n shop", "--to-pods app=db -n shop"),
        ("-n a --to-pods -n b -l app=db", "-n a --to-namespace b --to-pods app=db"),
        ("-l x --to-pods app=db", "-l x --to-pods app=db"),
        ("-l x", "-l x"),
    ],
)
def test_the_far_ends_selector_is_its_own(given: str, found: str) -> None:
    assert inject_kube.with_peers(given.split()) == found.split()


def test_pods_are_named_with_or_without_their_namespace() -> None:
    assert asked.pod_names(("a", "x/b", "a"), None, "d") == ("x", ("a", "b"))
    assert asked.pod_names(("a",), None, "d") == ("d", ("a",))
    assert asked.pod_names((), "n", "d") == ("n", ())
    for bad in ("/a", "x/", "a/b/c", ""):
        with pytest.raises(InvalidSpec):
            asked.pod_names((bad,), None, "d")


def test_two_users_at_once_on_one_pod(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert world.inject("--pod", "cart-1", "--id", "g-7") == 0
    assert world.inject("-n", "shop", "-l", "app=cart", "--all", "--id", "g-8") == 3
    said = capsys.readouterr().err
    assert "g-7-1" in said and "nothing was touched" in said
    assert world.active() == [("n1", "g-7-1")], "the first one's holds, nothing of the second's"


def test_nothing_of_a_fault_is_written_to_the_cluster(world: World) -> None:
    """A blind run: whoever can read the cluster finds no trace."""
    before = {path: data["metadata"]["resourceVersion"] for path, data in world.api.objects.items()}
    world.api.requests.clear()
    assert world.inject("-n", "shop", "-l", "app=cart", "--all", "--id", "g-9") == 0
    assert world.run("revert", "--cluster", "g-9") == 0
    writes = {path.split("?")[0] for method, path in world.api.requests if method != "GET"}
    assert writes <= {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}
    after = {path: data["metadata"]["resourceVersion"] for path, data in world.api.objects.items()}
    assert {k: v for k, v in after.items() if "selfsubject" not in k} == before


def test_events_only_when_they_are_asked_for(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(herald, "start", lambda told: None)
    events = "/api/v1/namespaces/shop/events/"
    assert world.inject("--pod", "cart-1", "--id", "g-10", "--announce", "-o", "json") == 0
    (found,) = [data for path, data in world.api.objects.items() if path.startswith(events)]
    assert found["involvedObject"]["name"] == "cart-1" and found["involvedObject"]["uid"] == uid(1)
    assert found["reason"] == "FaultArmed" and "t-pods (g-10), until 20" in found["message"]
    world.api.forbidden.add(("create", "events"))
    assert world.inject("--pod", "cart-2", "--id", "g-11", "--announce") == 0
    assert "no event on shop/cart-2" in capsys.readouterr().err
    assert len(world.active()) == 2, "an event that cannot be written ends no fault"

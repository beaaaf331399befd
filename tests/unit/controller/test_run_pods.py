"""Experiments on pods end to end: command line, API server in small, real agents, run folder."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_kube_inject import AGENT, World, _world, uid, world  # noqa: F401 - fixtures

from controller.cli.main import run as cli
from controller.experiment_check import load_experiment
from controller.kube import portforward
from controller.kube.ways import Ways
from controller.recorder import read_records
from controller.records import FaultArmed, FaultEnded, FaultPlanned, NodeRecord
from controller.run import Runner
from controller.run_plan import RunPlan
from controller.run_pods import with_pods
from nodeagent.model.errors import BackendError


def experiment(pods: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "carts",
        "seed": 7,
        "duration": "3s",
        "lease": "20s",
        "targets": {"carts": {"service": "cart", "pods": pods or {"selector": "app=cart",
                                                                  "all": True}}},
        "faults": {"slow": {"kind": "t-pods", "target": "carts", "at": "300ms", "for": "1500ms",
                            "truth": TRUTH}},
        **more,
    }  # fmt: skip


TRUTH = {
    "category": "process",
    "mechanism": "carts that answer slowly",
    "service": "cart",
    "scope": ["cart"],
    "root_cause": "the carts are held up",
}


class Lab:
    """A place for an experiment file and its run folder."""

    def __init__(self, world: World, home: Path) -> None:  # noqa: F811
        self.world, self.home, self.folder = world, home, home / "run"

    def run(self, data: dict[str, Any], *args: str) -> int:
        file = self.home / "x.yaml"
        file.write_text(yaml.safe_dump(data, sort_keys=False))
        return self.world.run("run", str(file), "--folder", str(self.folder), *args)

    def records(self, cls: type[Any]) -> list[Any]:
        names = ("faults.jsonl", "nodes.jsonl", "events.jsonl")
        found = [r for name in names for r in read_records(self.folder, name)]
        return [r for r in found if isinstance(r, cls)]

    def plan(self) -> RunPlan:
        return RunPlan.from_text((self.folder / "plan.json").read_bytes())


@pytest.fixture
def lab(world: World, tmp_path: Path) -> Lab:  # noqa: F811
    return Lab(world, tmp_path)


def meanwhile(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def waited(condition: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def test_a_run_hits_the_pods_and_the_record_names_them(lab: Lab) -> None:
    seen: list[set[str]] = []

    def look() -> None:
        waited(lambda: lab.world.hit("n1") | lab.world.hit("n2") == {uid(1), uid(2), uid(3)})
        seen.append(lab.world.hit("n2"))

    looking = meanwhile(look)
    assert lab.run(experiment(), "-o", "json") == 0
    looking.join()
    assert seen == [{uid(2)}]
    assert not lab.world.hit("n1") | lab.world.hit("n2") and lab.world.active() == []
    planned = lab.records(FaultPlanned)
    assert {(p.slot, p.node, p.target["uid"], p.whole) for p in planned} == {
        ("slow/carts/cart-1", "n1", uid(1), "slow/pods"),
        ("slow/carts/cart-2", "n2", uid(2), "slow/pods"),
        ("slow/carts/cart-3", "n1", uid(3), "slow/pods"),
    }
    assert all(p.truth.service == "cart" and p.group == "slow/pods" for p in planned)
    assert {r.address for r in lab.records(NodeRecord)} == {"kube://n1", "kube://n2"}
    (found,) = lab.plan().pods
    assert (found.matching, found.how_many, found.namespace) == (3, "all", "shop")
    assert [(p.pod, p.uid, p.containers) for p in found.pods[:1]] == [
        ("shop/cart-1", uid(1), {"app": "a" * 64})]  # fmt: skip


def test_nothing_is_written_to_the_cluster_and_nothing_names_the_fault_on_its_node(
    lab: Lab,
) -> None:
    before = {p: d["metadata"]["resourceVersion"] for p, d in lab.world.api.objects.items()}
    lab.world.api.requests.clear()
    assert lab.run(experiment()) == 0
    writes = {path.split("?")[0] for method, path in lab.world.api.requests if method != "GET"}
    assert writes <= {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}
    after = {p: d["metadata"]["resourceVersion"] for p, d in lab.world.api.objects.items()}
    assert {p: v for p, v in after.items() if "selfsubject" not in p} == before
    ids = {p.fault for p in lab.records(FaultPlanned)}
    for one in lab.world.agents.values():
        told = [f for f in one.client.faults() if f.id in ids]
        assert told
        assert not any(word in str(told) for word in ("slow", 'carts"', "held up"))


def test_a_plan_shows_what_a_run_hits(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    data = experiment({"selector": "app=cart", "pick": 2})
    assert lab.run(data, "--plan", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert lab.world.active() == [] and not lab.folder.exists()
    assert len(shown["pods"][0]["pods"]) == 2 and len(shown["steps"]) == 2
    assert lab.run(data, "-o", "json") == 0
    assert [i.target for i in lab.plan().of("fault")] == [f["target"] for f in shown["faults"]]
    assert lab.run(data, "--plan") == 0
    said = capsys.readouterr().out
    assert "carts: 2 of 3 pods, seed 7 carts: shop/cart-" in said


def test_an_offline_plan_says_that_the_pods_are_not_known(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.world.api.requests.clear()
    assert lab.run(experiment(), "--plan", "--offline") == 0
    said = capsys.readouterr().out
    assert "not looked up, each as one: carts" in said and "(a cluster)" in said
    assert lab.world.api.requests == []


PICKS = {
    "none": ({"selector": "app=none", "all": True}, 3, "no pod of namespace shop"),
    "how many": ({"selector": "app=cart"}, 3, "how many are meant"),
    "too many": ({"selector": "app=cart", "pick": 9}, 3, "9 are asked for, 3"),
    "unknown pod": ({"pod": "cart-9"}, 3, "no pod shop/cart-9"),
    "unknown namespace": ({"namespace": "nope", "all": True}, 3, "no namespace nope"),
    "unknown owner": ({"owner": "deployment/cart"}, 3, "no deployment shop/cart"),
    "protected": ({"namespace": "kube-system", "all": True}, 3, "protected"),
    "wrong container": ({"pod": "cart-1", "container": "db"}, 3, "no container db"),
    "wrong zone": ({"zone": "z9", "all": True}, 3, "its node is in zone (none)"),
    "other node": ({"pod": "cart-1", "on_node": "n2"}, 3, "it is on node n1"),
}


@pytest.mark.parametrize("name", PICKS)
def test_what_the_cluster_does_not_have_is_told_by_line_before_anything_is_armed(
    lab: Lab, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pods, code, words = PICKS[name]
    before = [one.kernel.fingerprint() for one in lab.world.agents.values()]
    assert lab.run(experiment(pods)) == code
    said = capsys.readouterr().err
    text = (lab.home / "x.yaml").read_text().splitlines()
    line = next(number for number, one in enumerate(text, 1) if one.strip() == "pods:")
    assert f"line {line}: targets.carts.pods:" in said and words in said
    assert "--pick" not in said and "--all" not in said and "bug" not in said
    assert [one.kernel.fingerprint() for one in lab.world.agents.values()] == before
    assert not lab.folder.exists()


@pytest.mark.parametrize(
    ("meta", "phase", "words"),
    [({}, "Pending", "it is Pending"), ({"deletionTimestamp": "now"}, "Running", "being deleted")],
)
def test_a_pod_that_cannot_be_hit_is_an_error_by_name_and_left_out_by_label(
    lab: Lab, meta: dict[str, str], phase: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = lab.world.api.pod("shop", "cart-2", "n2", {"app": "cart"}, meta={"uid": uid(2), **meta})
    pod["status"]["phase"] = phase
    assert lab.run(experiment({"pod": ["cart-1", "cart-2"]})) == 3
    assert words in capsys.readouterr().err
    assert lab.run(experiment()) == 0
    (found,) = lab.plan().pods
    assert [p.pod for p in found.pods] == ["shop/cart-1", "shop/cart-3"]
    assert words in found.left_out["shop/cart-2"]


def test_all_that_is_wrong_is_told_at_once(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    lab.world.api.node("n3")
    lab.world.api.pod("shop", "db-0", "n3", {"app": "db"})
    data = experiment({"selector": "app=none", "all": True})
    data["nodes"] = {"n4": {"agent": "kube://n4"}, "one": {"agent": "kube://n1"},
                     "two": {"agent": "kube://n1"}}  # fmt: skip
    data["targets"]["db"] = {"service": "db", "pods": {"pod": "db-0"}}
    data["targets"]["disk"] = {"service": "x", "node": "n4",
                               "target": {"type": "device", "device": "/dev/t"}}  # fmt: skip
    data["faults"]["more"] = {**data["faults"]["slow"], "target": "db"}
    assert lab.run(data) == 2
    said = capsys.readouterr().err
    for words in ("no pod of namespace shop", "no agent runs on node n3, for shop/db-0",
                  "no agent runs on node n4", "the same node of the cluster"):  # fmt: skip
        assert words in said
    assert len([one for one in said.splitlines() if "line " in one]) >= 4


def test_a_nodes_agent_that_is_not_ready_and_a_right_that_is_missing(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.world.api.node("n3")
    lab.world.api.pod("shop", "cart-4", "n3", {"app": "cart"})
    agent = lab.world.api.pod("faultctl-system", "faultd-n3", "n3", AGENT, ip="127.0.0.1")
    agent["status"]["conditions"] = []
    try:
        assert lab.run(experiment()) == 3
        assert "the agent of node n3 is not ready, for shop/cart-4" in capsys.readouterr().err
    finally:
        lab.world.api.drop("/api/v1/namespaces/faultctl-system/pods/faultd-n3")
    lab.world.api.forbidden.add(("delete", "pods"))
    assert lab.run(experiment({"pod": "cart-1"})) == 3
    assert "verb 'delete' on resource 'pods'" in capsys.readouterr().err


def test_one_node_that_fails_takes_all_back(lab: Lab) -> None:
    error = BackendError("no", "the kernel said no")
    lab.world.agents["n2"].kernel.fail[f"apply:{uid(2)}"] = [error]
    assert lab.run(experiment()) == 3
    assert lab.world.active() == [] and not lab.world.hit("n1") | lab.world.hit("n2")
    ended = {r.node: (r.reason, r.by) for r in lab.records(FaultEnded)}
    assert ended["n2"][0] == "apply-failed"
    assert ended["n1"] == ("reverted", "group")
    assert len(lab.records(FaultArmed)) <= 2


def test_a_node_of_the_cluster_has_one_name_in_a_run(lab: Lab) -> None:
    """A file's own name for a node is what its pods are on too, so that limits count right."""
    data = experiment({"pod": "cart-1"}, caps={"nodes": 1})
    data["nodes"] = {"worker": {"agent": "kube://n1", "zone": "mine"}}
    data["targets"]["disk"] = {"service": "disk", "node": "worker",
                               "target": {"type": "device", "device": "/dev/t"}}  # fmt: skip
    data["faults"]["bad"] = {"kind": "t-set", "target": "disk", "at": "500ms", "for": "1s",
                             "spec": {"name": "a"}, "truth": TRUTH}  # fmt: skip
    assert lab.run(data) == 0
    assert {(i.node, i.zone) for i in lab.plan().items} == {("worker", "mine")}
    data["nodes"]["n1"] = {"agent": "unix:///run/other.sock"}
    data["nodes"].pop("worker")
    data["targets"]["disk"]["node"] = "n1"
    assert lab.run(data) == 2


def test_far_ends_are_the_addresses_of_pods_and_services_at_the_start(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.world.api.pod("shop", "db-0", "n2", {"app": "db"}, ip="10.0.9.1")
    service = {"selector": {"app": "db"}, "clusterIP": "10.96.0.5"}
    lab.world.api.put("/api/v1/namespaces/shop/services/db", {"spec": service})
    data = experiment({"pod": "cart-1"})
    data["faults"]["slow"] |= {"kind": "netem", "spec": {"delay": "200ms", "to": "10.1.0.0/16"},
                               "to_pods": {"selector": "app=db"}}  # fmt: skip
    assert lab.run(data, "--plan", "--offline") == 0
    (item,) = looked_up(lab).items
    assert item.spec == {"delay": "200ms", "to": "10.1.0.0/16,10.0.9.1,10.96.0.5"}
    assert "far ends of slow: 10.1" in looked_up(lab).pods[0].notes[0]
    data["faults"]["slow"]["to_pods"] = {"selector": "app=none"}
    assert lab.run(data) == 3
    said = capsys.readouterr().err
    assert "faults.slow.to_pods: no pod to talk to is found" in said


def looked_up(lab: Lab) -> RunPlan:
    """The plan of the file, without a node being asked."""
    ways = Ways(kubeconfig=lab.world.kubeconfig, direct=True)
    return with_pods(load_experiment((lab.home / "x.yaml").read_bytes(), "x"), ways).plan


def test_every_container_of_a_pod_by_a_kind_that_would_end_its_sandbox(lab: Lab) -> None:
    containers = [{"name": "app"}, {"name": "log"}]
    lab.world.api.pod("shop", "cart-1", "n1", {"app": "cart"}, meta={"uid": uid(1)},
                      containers=containers)  # fmt: skip
    data = experiment({"pod": "cart-1"})
    data["faults"]["slow"]["kind"] = "kill"
    assert lab.run(data, "--plan", "--offline") == 0
    assert [(i.slot, i.target["container"]) for i in looked_up(lab).items] == [
        ("slow/carts/cart-1/app", "app"), ("slow/carts/cart-1/log", "log")]  # fmt: skip


class Crash(BaseException):
    """The controller is gone: nothing that comes after it runs."""


def crashed(lab: Lab, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any]) -> None:
    """A run whose controller dies when all three faults are armed."""

    def dying(runner: Runner, now: int) -> None:
        if len(lab.world.active()) == 3:
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_housekeeping", dying)
        with pytest.raises(Crash):
            lab.run(data)
    assert len(lab.world.active()) == 3


LONG = {"duration": "8s", "late": "5s"}


def test_a_take_over_reads_the_plan_and_looks_up_no_pods(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = experiment(**LONG)
    data["faults"]["slow"]["for"] = "6s"
    crashed(lab, monkeypatch, data)
    for number in (1, 2, 3):  # its pods are others by now: the plan has those that were hit
        lab.world.api.drop(f"/api/v1/namespaces/shop/pods/cart-{number}")
    lab.world.api.requests.clear()
    assert lab.world.run("run", "--take-over", str(lab.folder)) == 0
    assert not [path for _, path in lab.world.api.requests if "/shop/" in path]
    assert lab.world.active() == []
    ended = lab.records(FaultEnded)
    assert {(r.reason, r.by) for r in ended} == {("reverted", "plan")} and len(ended) == 3
    assert len(lab.records(FaultArmed)) == 3, "none was injected twice"


def test_a_run_is_taken_over_on_its_own_cluster_only_and_can_be_stopped(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = experiment(**LONG)
    data["faults"]["slow"]["for"] = "6s"
    crashed(lab, monkeypatch, data)
    space = "/api/v1/namespaces/kube-system"
    own = lab.world.api.objects[space]
    lab.world.api.put(space, {"metadata": {"uid": uid(99)}})
    assert lab.world.run("run", "--take-over", str(lab.folder)) == 3
    assert "is not the cluster of this run" in capsys.readouterr().err
    assert len(lab.world.active()) == 3, "nobody else's nodes were asked"
    lab.world.api.objects[space] = own
    assert lab.world.run("stop", str(lab.folder)) == 0
    assert lab.world.active() == []
    assert {r.by for r in lab.records(FaultEnded)} == {"stop"}


POLICIES = {
    "denied": ({"rules": [{"verdict": "deny", "kinds": ["t-*"], "why": "not here"}]}, "not here"),
    "too long": (
        {"rules": [{"verdict": "allow", "who": ["u"], "max_hard_end": "11s"}]},
        "for 11s at most",
    ),
    "other namespace": ({"default": "deny", "rules": [{"verdict": "allow",
                         "namespaces": ["prod"]}]}, "no rule allows it"),
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_holds_for_runs_as_well(
    lab: Lab, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, words = POLICIES[name]
    policy = lab.home / "policy.yaml"
    policy.write_text(yaml.safe_dump({"version": 1, "default": "allow", **data}))
    assert lab.run(experiment(), "--policy", str(policy)) == 3
    said = capsys.readouterr().err
    assert words in said and "--hard-end" not in said
    assert not lab.folder.exists() and lab.world.active() == []
    ours = {"verdict": "allow", "who": ["u"], "kinds": ["t-pods"], "namespaces": ["shop"]}
    policy.write_text(yaml.safe_dump({"version": 1, "default": "deny", "rules": [ours]}))
    assert lab.run(experiment(), "--policy", str(policy), "--plan") == 0


def test_agents_are_reached_through_the_api_server_and_every_way_is_closed(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    open_now: set[str] = set()

    @contextmanager
    def forward(cluster: Any, namespace: str, pod: str, port: int) -> Iterator[tuple[str, int]]:
        opened.append(pod)
        open_now.add(pod)
        try:
            yield "127.0.0.1", port  # the agents of these tests listen there
        finally:
            open_now.discard(pod)

    monkeypatch.setattr(portforward, "forward", forward)
    file = lab.home / "x.yaml"
    file.write_text(yaml.safe_dump(experiment(), sort_keys=False))
    files = lab.world.files
    tls = ("--tls-cert", files.client_cert, "--tls-key", files.client_key, "--tls-ca", files.ca,
           "--tls-server-name", "localhost")  # fmt: skip
    args = ("run", file, "--folder", lab.folder, "--kubeconfig", lab.world.kubeconfig)
    assert cli(list(map(str, (*tls, *args)))) == 0
    assert sorted(opened) == ["faultd-n1", "faultd-n2"], "one way a node, for the whole run"
    assert open_now == set()
    assert {r.reason for r in lab.records(FaultEnded)} == {"reverted"}

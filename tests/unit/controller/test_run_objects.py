"""Experiments on a cluster's own objects end to end: command line, API server in small, keepers."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_api import FakeApi, fake_api
from json_patch import json_patched

from controller import run_start
from controller.cli.main import run as cli
from controller.kube import act
from controller.kube import client as client_module
from controller.kube.client import Cluster
from controller.kube.ledger import own_ledger
from controller.recorder import read_records
from controller.records import AgentEvent, FaultArmed, FaultDropped, FaultEnded, NodeRecord
from controller.run import Runner
from controller.run_plan import RunPlan
from nodeagent.model.errors import InvalidSpec

CART = "/apis/apps/v1/namespaces/shop/deployments/cart"
PODS = "/api/v1/namespaces/shop/pods"
TRUTH = {
    "category": "configuration",
    "mechanism": "a deployment without replicas",
    "service": "cart",
    "scope": ["cart"],
    "root_cause": "somebody set the replicas of the deployment to none",
}
SPEC = {"object": "Deployment/cart", "api_version": "apps/v1", "patch": {"spec": {"replicas": 0}}}


def fault(kind: str, target: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "target": target, "at": "200ms", "truth": TRUTH, **more}


def experiment(faults: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "objects",
        "seed": 7,
        "duration": "4s",
        "lease": "20s",
        "targets": {
            "shop": {"service": "cart", "objects": {"namespace": "shop"}},
            "carts": {"service": "cart", "pods": {"selector": "app=cart", "pick": 1}},
        },
        "faults": faults or {"scaled": fault("k8s-patch", "shop", spec=SPEC)},
        **more,
    }


class Lab:
    """A cluster in small, and a place for an experiment file and its run folder."""

    def __init__(self, api: FakeApi, home: Path) -> None:
        self.api, self.home, self.folder = api, home, home / "run"
        self.kubeconfig = api.kubeconfig()

    def cli(self, *args: str) -> int:
        return cli([*args, "--kubeconfig", str(self.kubeconfig)])

    def run(self, data: dict[str, Any], *args: str) -> int:
        file = self.home / "x.yaml"
        # Through JSON, so that what faults share is written out: aliases are refused.
        file.write_text(yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False))
        return self.cli("run", str(file), "--folder", str(self.folder), *args)

    def records(self, cls: type[Any]) -> list[Any]:
        names = ("faults.jsonl", "nodes.jsonl", "events.jsonl")
        found = [r for name in names for r in read_records(self.folder, name)]
        return [r for r in found if isinstance(r, cls)]

    def ends(self) -> list[tuple[str, str]]:
        return [(r.reason, r.by) for r in self.records(FaultEnded)]

    def plan(self) -> RunPlan:
        return RunPlan.from_text((self.folder / "plan.json").read_bytes())

    def patched(self, path: str, field: str, value: Any, manager: str = "kubectl-edit") -> None:
        """Somebody else changes a field."""
        step = {"op": "add", "path": field, "value": value}
        self.api.put(path, json_patched(self.api.objects[path], [step], manager))

    def spec(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects[CART]["spec"]
        return found


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(client_module, "PAUSE_S", 0.01)
    monkeypatch.setattr(run_start, "LEAD_NS", 300_000_000)
    with fake_api(tmp_path) as api:
        for name in ("shop", "kube-system"):
            api.namespace(name)
        api.node("n1")
        kinds = [{"name": "deployments", "kind": "Deployment", "namespaced": True}]
        api.put("/apis/apps/v1", {"resources": kinds})
        api.put(CART, {"spec": {"replicas": 3, "paused": False}})
        for number in (1, 2, 3):
            api.pod("shop", f"cart-{number}", "n1", {"app": "cart"},
                    containers=[{"name": "app", "image": "shop/cart:1"}])  # fmt: skip
        yield Lab(api, tmp_path)
        ends = [act.revert(Cluster(api.kubeconfig()), own_ledger(), one.id, "reverted")
                for one in own_ledger().all()]  # fmt: skip
        assert all(one.state == "ended" for one in ends), "keepers end with them"


def meanwhile(condition: Callable[[], bool], act_: Callable[[], None]) -> threading.Thread:
    def work() -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.02)
        act_()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def armed() -> bool:
    """Whether a fault is there, and was read back: nobody is faster than that."""
    return any(one.state == "armed" for one in own_ledger().all())


def test_what_nobody_repairs_is_put_back_and_the_record_says_so(lab: Lab) -> None:
    seen: list[dict[str, Any]] = []
    looking = meanwhile(lambda: lab.spec()["replicas"] == 0, lambda: seen.append(dict(lab.spec())))
    assert lab.run(experiment({"scaled": fault("k8s-patch", "shop", spec=SPEC, **{"for": "1s"})},
                              duration="3s")) == 0  # fmt: skip
    looking.join()
    assert seen == [{"replicas": 0, "paused": False}]
    assert lab.spec() == {"replicas": 3, "paused": False}
    assert lab.ends() == [("reverted", "plan")]
    (found,) = lab.records(FaultArmed)
    assert (found.node, found.mechanism) == ("cluster", "kube-api")
    (node,) = lab.records(NodeRecord)
    assert node.address == f"objects:{lab.api.url}" and "k8s-patch" in node.kinds
    (planned,) = lab.plan().objects
    assert planned.changes == ("deployments shop/cart /spec/replicas: 3 -> 0",)
    assert lab.plan().ledger == own_ledger().identity
    names = [e.name for e in lab.records(AgentEvent)]
    assert names == ["armed", "ended"]


def test_an_operators_repair_is_a_remedy_and_is_kept(lab: Lab) -> None:
    fixing = meanwhile(armed, lambda: lab.patched(CART, "/spec/replicas", 5))
    assert lab.run(experiment()) == 0
    fixing.join()
    assert lab.spec()["replicas"] == 5
    bundle = str(lab.folder.with_name("run.bundle.tar"))
    assert cli(["score", bundle]) == 0 and cli(["bundle", "verify", bundle]) == 0
    page = lab.home / "run.html"
    assert cli(["report", bundle, "-f", str(page)]) == 0 and "k8s-patch" in page.read_text()
    assert lab.ends() == [("remedied", "remedy")]
    events = {e.name: e for e in lab.records(AgentEvent)}
    assert list(events) == ["armed", "drifted", "remedied", "ended"]
    assert [e.seq for e in events.values()] == [1, 2, 3, 4]
    (by,) = events["remedied"].data["by"]
    assert (by["manager"], by["fields"]) == ("kubectl-edit", ["/spec/replicas"])
    (ended,) = lab.records(FaultEnded)
    act_ns = events["remedied"].data["act_ns"]
    assert events["armed"].node_ns <= act_ns <= events["remedied"].node_ns
    assert ended.evidence["changes"] == ["deployments shop/cart /spec/replicas: 3 -> 0"]


def test_half_a_repair_is_an_event_and_others_edits_are_kept(lab: Lab) -> None:
    spec = {**SPEC, "patch": {"spec": {"replicas": 0, "paused": True}}}
    data = experiment({"both": fault("k8s-patch", "shop", spec=spec, **{"for": "3s"})})
    fixing = meanwhile(armed, lambda: lab.patched(CART, "/spec/replicas", 2, "argocd"))
    assert lab.run(data) == 0
    fixing.join()
    assert lab.ends() == [("reverted", "plan")]
    assert lab.spec() == {"replicas": 2, "paused": False}
    told = {e.name: e.data for e in lab.records(AgentEvent)}
    assert told["drifted"]["manager"] == "argocd" and "kept" in told


def test_a_deployment_that_is_deleted_has_no_fault_any_more(lab: Lab) -> None:
    gone = meanwhile(armed, lambda: lab.api.drop(CART))
    assert lab.run(experiment()) == 0
    gone.join()
    assert lab.ends() == [("remedied", "remedy")] and CART not in lab.api.objects


def test_pods_are_killed_one_by_one_and_each_is_chosen_when_its_time_comes(lab: Lab) -> None:
    kill = fault("pod-kill", "carts", repeat={"every": "1s", "times": 2}, spec={"grace": "0s"})
    assert lab.run(experiment({"killed": kill}, duration="4s", late="1s")) == 0
    assert len(lab.api.below(PODS)) == 1
    assert lab.ends() == [("done", "node")] * 2
    gone = [line for r in lab.records(FaultEnded) for line in r.evidence["changes"]]
    assert len(set(gone)) == 2 and all("is deleted" in line for line in gone)
    assert {i.target["seed"] for i in lab.plan().items} == {"7 carts killed#1", "7 carts killed#2"}
    assert all(one.end_reason == "done" for one in own_ledger().all())


def test_who_deletes_a_failed_pod_has_repaired_it(lab: Lab) -> None:
    def failed() -> list[str]:
        return [p for p, o in lab.api.below(PODS) if "pause" in o["spec"]["containers"][0]["image"]]

    deleting = meanwhile(armed, lambda: lab.api.drop(failed()[0]))
    assert lab.run(experiment({"failed": fault("pod-failure", "carts")})) == 0
    deleting.join()
    assert lab.ends() == [("remedied", "remedy")] and not failed()


def test_what_our_own_fault_deletes_is_repaired_by_nobody(lab: Lab) -> None:
    lab.api.drop(f"{PODS}/cart-2")
    lab.api.drop(f"{PODS}/cart-3")
    faults = {
        "failed": fault("pod-failure", "carts"),
        "killed": fault("pod-kill", "carts", at="1s", spec={"grace": "0s"}),
    }
    assert lab.run(experiment(faults, late="1s")) == 0
    assert sorted(r.reason for r in lab.records(FaultEnded)) == ["done", "reverted"]


def test_nodes_are_cordoned(lab: Lab) -> None:
    data = experiment({"closed": fault("node-cordon", "workers", **{"for": "1s"})}, duration="3s")
    data["targets"]["workers"] = {"service": "nodes", "objects": {"on_node": "n1"}}
    node = "/api/v1/nodes/n1"
    lab.api.put(node, {**lab.api.objects[node], "spec": {}})
    seen: list[dict[str, Any]] = []
    looking = meanwhile(armed, lambda: seen.append(dict(lab.api.objects[node]["spec"])))
    assert lab.run(data) == 0
    looking.join()
    assert seen == [{"unschedulable": True}] and lab.api.objects[node]["spec"] == {}
    assert lab.plan().objects[0].spaces == ("(node)",)


def test_a_plan_shows_what_would_change_and_changes_nothing(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = {"scaled": fault("k8s-patch", "shop", spec=SPEC),
              "killed": fault("pod-kill", "carts")}  # fmt: skip
    assert lab.run(experiment(faults), "--plan") == 0
    said = capsys.readouterr().out
    assert "deployments shop/cart /spec/replicas: 3 -> 0" in said
    assert "is deleted" in said and "1 of 3 pods" in said and "at cluster" in said
    lab.api.requests.clear()
    assert lab.run(experiment(faults), "--plan", "--offline", "-o", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert {f["node"] for f in shown["faults"]} == {"cluster"} and lab.api.requests == []
    assert lab.spec()["replicas"] == 3 and len(lab.api.below(PODS)) == 3
    assert own_ledger().all() == [] and not lab.folder.exists()


def test_a_webhook_that_takes_no_dry_runs_is_no_obstacle(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Cluster.patch

    def patch(self: Cluster, *args: Any, **query: str) -> dict[str, Any]:
        if "dryRun" in query:
            raise InvalidSpec("the API server does not take this for deployments",
                              'admission webhook "x" does not support dry run')  # fmt: skip
        return real(self, *args, **query)

    monkeypatch.setattr(Cluster, "patch", patch)
    assert lab.run(experiment(duration="2s")) == 0
    assert lab.ends() == [("reverted", "plan")]


def test_two_at_once_on_one_field_are_refused_before_anything_starts(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    other = {**SPEC, "patch": {"spec": {"replicas": 9}}}
    faults = {"one": fault("k8s-patch", "shop", spec=SPEC),
              "two": fault("k8s-patch", "shop", spec=other)}  # fmt: skip
    assert lab.run(experiment(faults)) == 3
    assert "deployments shop/cart /spec/replicas at the same time" in capsys.readouterr().err
    assert own_ledger().all() == []


def test_nothing_in_the_cluster_names_the_fault(lab: Lab) -> None:
    texts: list[str] = []
    looking = meanwhile(lambda: lab.spec()["replicas"] == 0,
                        lambda: texts.append(json.dumps(lab.api.objects[CART])))  # fmt: skip
    spec = {**SPEC, "field_manager": "helm"}
    assert (
        lab.run(experiment({"scaled": fault("k8s-patch", "shop", spec=spec)}, duration="2s")) == 0
    )
    looking.join()
    assert '"manager": "helm"' in texts[0]
    for word in ("fault", "scaled", "chaos", "python", own_ledger().all()[0].id, lab.plan().ledger):
        assert word not in texts[0]
    writes = {(m, p.split("?")[0]) for m, p in lab.api.requests if m != "GET"}
    review = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    assert writes == {("PATCH", CART), ("POST", review)}


def test_noise_deletes_pods_that_it_may(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    data = experiment(duration="4s", noise={"targets": ["carts"], "catalogue": ["pods-deleted"]})
    data["targets"]["carts"]["service"] = "other"
    assert lab.run(data) == 0
    assert len(lab.api.below(PODS)) == 2
    assert {r.role: r.reason for r in lab.records(FaultEnded)} == {
        "noise": "done", "fault": "reverted"}  # fmt: skip


def test_a_policy_holds_for_noise_on_objects_too(lab: Lab) -> None:
    policy = lab.home / "policy.yaml"
    policy.write_text("version: 1\ndefault: allow\nrules:\n- {verdict: deny, kinds: [pod-kill]}\n")
    data = experiment(duration="3s", noise={"targets": ["carts"], "catalogue": ["pods-deleted"]})
    data["targets"]["carts"]["service"] = "other"
    lab.run(data, "--policy", str(policy))
    (dropped,) = lab.records(FaultDropped)
    assert (dropped.role, dropped.reason) == ("noise", "refused") and "policy" in dropped.detail
    assert len(lab.api.below(PODS)) == 3


class Crash(BaseException):
    """The controller is gone: nothing that comes after it runs."""


def crashed(lab: Lab, monkeypatch: pytest.MonkeyPatch, data: dict[str, Any]) -> None:
    """A run whose controller dies when its fault is armed."""

    def dying(runner: Runner, now: int) -> None:
        if armed():
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Runner, "_housekeeping", dying)
        with pytest.raises(Crash):
            lab.run(data)
    assert lab.spec()["replicas"] == 0


def test_a_run_is_taken_over_and_nothing_is_done_twice(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(lab, monkeypatch, experiment())
    assert lab.cli("run", "--take-over", str(lab.folder)) == 0
    assert lab.spec()["replicas"] == 3 and lab.ends() == [("reverted", "plan")]
    assert len(lab.records(FaultArmed)) == 1


def test_an_orphaned_run_is_stopped(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    crashed(lab, monkeypatch, experiment(duration="1m"))
    assert lab.cli("stop", str(lab.folder)) == 0
    assert lab.spec()["replicas"] == 3 and lab.ends() == [("reverted", "stop")]


def test_without_its_journal_a_run_is_not_taken_over(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    crashed(lab, monkeypatch, experiment(duration="1m"))
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(lab.home / "elsewhere"))
        assert lab.cli("run", "--take-over", str(lab.folder)) == 3
    assert "journal of this run's faults on objects is not here" in capsys.readouterr().err
    assert lab.spec()["replicas"] == 0


def test_a_dead_controllers_fault_is_ended_by_its_keeper(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed(lab, monkeypatch, experiment(duration="9s", lease="5s"))
    (entry,) = own_ledger().all()
    end = time.monotonic() + 30
    while own_ledger().get(entry.id).state != "ended" and time.monotonic() < end:
        time.sleep(0.1)
    assert own_ledger().get(entry.id).end_reason == "expired" and lab.spec()["replicas"] == 3
    assert lab.cli("run", "--take-over", str(lab.folder)) in (0, 3)
    assert [reason for reason, _ in lab.ends()] == ["expired"]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_controller_that_dies_around_the_change_leaves_an_intent_that_is_made_whole(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    real, handled, dead = act._send, Runner._handle, threading.Event()

    def dying(*args: Any) -> None:
        if where == "after":
            real(*args)
        dead.set()
        raise Crash

    def handle(runner: Runner, found: Any) -> None:
        if dead.is_set():
            raise Crash
        handled(runner, found)

    with monkeypatch.context() as patch:
        patch.setattr(act, "_send", dying)
        patch.setattr(Runner, "_handle", handle)
        with pytest.raises(Crash):
            lab.run(experiment(duration="6s"))
    assert own_ledger().all()[0].state == "intent"
    assert lab.spec()["replicas"] == (0 if where == "after" else 3)
    assert lab.cli("run", "--take-over", str(lab.folder)) == 0
    assert lab.spec()["replicas"] == 3 and lab.ends() == [("reverted", "plan")]
    assert [e.name for e in lab.records(AgentEvent)] == ["armed", "ended"]


def without_cart(lab: Lab, data: dict[str, Any]) -> None:
    lab.api.drop(CART)


def in_kube_system(lab: Lab, data: dict[str, Any]) -> None:
    lab.api.pod("kube-system", "dns", "n1", {"app": "cart"})
    data["targets"]["carts"]["pods"]["namespace"] = "kube-system"


def no_namespace(lab: Lab, data: dict[str, Any]) -> None:
    data["targets"]["carts"]["pods"]["namespace"] = "nope"


def may_not(verb: str, resource: str) -> Callable[[Lab, dict[str, Any]], None]:
    return lambda lab, data: lab.api.forbidden.add((verb, resource))


def other_kind(lab: Lab, data: dict[str, Any]) -> None:
    data["faults"]["scaled"]["spec"]["object"] = "Depolyment/cart"


def no_change(lab: Lab, data: dict[str, Any]) -> None:
    data["faults"]["scaled"]["spec"]["patch"] = {"spec": {"replicas": 3}}


@pytest.mark.parametrize(
    ("spoil", "where", "words"),
    [
        (without_cart, "faults.scaled.spec", "there is no Deployment cart in namespace shop"),
        (other_kind, "faults.scaled.spec", "no Depolyment in apps/v1"),
        (no_change, "faults.scaled.spec", "the patch changes nothing"),
        (may_not("patch", "deployments"), "faults.scaled.spec", "may not patch deployments.apps"),
        (may_not("delete", "pods"), "targets.carts.pods", "no right to break pods"),
        (in_kube_system, "targets.carts.pods", "namespace kube-system is protected"),
        (no_namespace, "targets.carts.pods", "there is no namespace nope"),
    ],
)
def test_what_the_cluster_does_not_have_is_told_by_line_before_anything_is_touched(
    lab: Lab, spoil: Callable[[Lab, dict[str, Any]], None], where: str, words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    data = json.loads(json.dumps(experiment({"scaled": fault("k8s-patch", "shop", spec=SPEC),
                                             "killed": fault("pod-kill", "carts")})))  # fmt: skip
    spoil(lab, data)
    before = json.dumps(lab.api.below(PODS))
    assert lab.run(data) in (2, 3)
    said = capsys.readouterr().err
    assert re.search(rf"line \d+: {re.escape(where)}: .*{re.escape(words)}", said), said
    assert "--" not in said and "bug" not in said
    assert json.dumps(lab.api.below(PODS)) == before and own_ledger().all() == []
    assert not lab.folder.exists()


def test_a_protected_namespace_can_be_meant(lab: Lab) -> None:
    lab.api.pod("kube-system", "dns", "n1", {"app": "cart"})
    data = experiment({"killed": fault("pod-kill", "carts", acknowledge=["protected-namespace"])})
    data["targets"]["carts"]["pods"]["namespace"] = "kube-system"
    assert lab.run(data, "--plan") == 0


def test_a_policy_is_checked_before_the_run(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    policy = lab.home / "policy.yaml"
    policy.write_text("version: 1\nrules:\n- {verdict: allow, namespaces: [other]}\n")
    assert lab.run(experiment(), "--policy", str(policy)) == 3
    assert "does not let u inject k8s-patch in namespace shop" in capsys.readouterr().err
    assert not lab.folder.exists()


def test_a_node_that_is_called_as_the_cluster_is_told(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.api.node("cluster")
    lab.api.pod("shop", "db-0", "cluster", {"app": "db"})
    agent = {"app.kubernetes.io/name": "faultd"}
    lab.api.pod("faultctl-system", "faultd-x", "cluster", agent)
    data = experiment({"scaled": fault("k8s-patch", "shop", spec=SPEC),
                       "slow": fault("netem", "db", spec={"delay": "1ms"})})  # fmt: skip
    data["targets"]["db"] = {"service": "db", "pods": {"pod": "db-0"}}
    assert lab.run(data) == 2
    assert "name that a run with faults on objects has" in capsys.readouterr().err

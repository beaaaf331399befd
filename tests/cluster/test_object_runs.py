"""Experiments on a cluster's own objects, against a real API server and controller manager."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeapi import Api
from test_kube_api import pod, running

from controller.cli.main import run as cli
from controller.kube import act
from controller.kube.client import Cluster
from controller.kube.ledger import own_ledger
from controller.oracle_desk import hand_in
from controller.recorder import read_records
from controller.records import AgentEvent, FaultEnded, FaultPlanned, VerdictRecord

NODE = "t-runs"
TRUTH = {
    "category": "configuration",
    "mechanism": "pods of the deployment wait too long",
    "service": "web",
    "scope": ["web"],
    "symptom_probe": "quick",
    "artifact": "Deployment web, minReadySeconds",
    "root_cause": "somebody set minReadySeconds of the deployment to five minutes",
}


class Lab:
    """A namespace with a deployment, and the command line."""

    def __init__(self, api: Api, home: Path) -> None:
        self.api, self.home, self.folder = api, home, home / "run"
        self.space = api.namespace()
        containers = [{"name": "app", "image": "registry.invalid/x"}]
        template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}
        spec = {"replicas": 1, "minReadySeconds": 5, "template": template,
                "selector": {"matchLabels": {"app": "web"}}}  # fmt: skip
        meta = {"name": "web", "namespace": self.space}
        api.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})

    def experiment(self, **more: Any) -> dict[str, Any]:
        probe = {"type": "k8s", "api_version": "apps/v1", "kind": "Deployment", "name": "web",
                 "namespace": self.space, "interval": "500ms",
                 "expression": "object.spec.minReadySeconds < 60"}  # fmt: skip
        spec = {"object": "Deployment/web", "api_version": "apps/v1",
                "patch": {"spec": {"minReadySeconds": 300}}}  # fmt: skip
        fault = {"kind": "k8s-patch", "target": "there", "at": "1s", "spec": spec, "truth": TRUTH}
        return {
            "version": 1,
            "name": "objects",
            "duration": "1m",
            "lease": "20s",
            "targets": {"there": {"service": "web", "objects": {"namespace": self.space}}},
            "probes": {"quick": probe},
            "faults": {"slow": fault},
            "oracles": {"repaired": {"hold": "3s", "cap": "40s"}},
            **more,
        }

    def run(self, data: dict[str, Any], *args: str) -> int:
        file = self.home / "x.yaml"
        file.write_text(yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False))
        return self.cli("run", str(file), "--folder", str(self.folder), *args)

    def cli(self, *args: str) -> int:
        return cli([*args, "--kubeconfig", str(self.api.kubeconfig)])

    def records(self, cls: type[Any]) -> list[Any]:
        names = ("faults.jsonl", "events.jsonl", "verdicts.jsonl")
        found = [r for name in names for r in read_records(self.folder, name)]
        return [r for r in found if isinstance(r, cls)]

    def seconds(self) -> int:
        found = self.api.json("get", "deployment", "-n", self.space, "web")["spec"]
        return int(found["minReadySeconds"])

    def whole(self) -> str:
        """All that an operator can read of the deployment, what made it included."""
        return str(self.api.kubectl("get", "deployments,replicasets,pods,events", "-n", self.space,
                                    "--show-managed-fields", "-o", "json").stdout)  # fmt: skip


@pytest.fixture
def lab(api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield Lab(api, tmp_path)
    api.kubectl("delete", "node", NODE, "--ignore-not-found")
    for one in own_ledger().all():
        act.revert(Cluster(api.kubeconfig), own_ledger(), one.id, "reverted")


def meanwhile(act_: Callable[[], None]) -> threading.Thread:
    """Something that is done when a fault is armed."""

    def work() -> None:
        end = time.monotonic() + 60
        while not any(one.state == "armed" for one in own_ledger().all()):
            if time.monotonic() > end:
                return
            time.sleep(0.1)
        act_()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_operator_finds_the_field_and_puts_it_back(lab: Lab) -> None:
    """Judged at once, by the operator's word, though the run sees the repair two seconds later."""
    seen: list[str] = []

    def operator() -> None:
        time.sleep(2)  # for the symptom to show
        seen.append(lab.whole())
        patch = '{"spec":{"minReadySeconds":7}}'
        lab.api.kubectl("patch", "-n", lab.space, "deployment/web", "--type=merge", "-p", patch,
                        "--field-manager=kubectl-edit")  # fmt: skip
        hand_in(lab.folder, "mitigation", {})

    working = meanwhile(operator)
    assert lab.run(lab.experiment()) == 0
    working.join()
    (ended,) = lab.records(FaultEnded)
    assert (ended.reason, ended.node) == ("remedied", "cluster") and lab.seconds() == 7
    assert {v.verdict for v in lab.records(VerdictRecord)} == {"pass"}
    (remedied,) = (e for e in lab.records(AgentEvent) if e.name == "remedied")
    assert remedied.data["by"][0]["manager"] == "kubectl-edit"
    (planned,) = lab.records(FaultPlanned)
    assert '"minReadySeconds": 300' in seen[0]
    words = ("fault", "chaos", "OpenAPI-Generator", planned.fault)
    text = seen[0].lower().replace("default", "")
    assert not [word for word in words if word.lower() in text]


def test_an_operator_who_does_nothing_has_not_repaired_it(lab: Lab) -> None:
    data = lab.experiment(duration="15s", oracles={"repaired": {"hold": "3s", "cap": "8s"}})
    assert lab.run(data) == 1
    assert lab.seconds() == 5
    assert [r.reason for r in lab.records(FaultEnded)] == ["reverted"]
    assert "fail" in {v.verdict for v in lab.records(VerdictRecord)}


def test_the_negative_control_passes_by_the_act_of_the_remedy(lab: Lab) -> None:
    kubectl = [str(lab.api.binaries / "kubectl"), f"--kubeconfig={lab.api.kubeconfig}"]
    command = [*kubectl, "patch", "-n", lab.space, "deployment/web", "--type=merge", "-p",
               '{"spec":{"minReadySeconds":5}}']  # fmt: skip
    data = lab.experiment(duration="1m", remedies={"undone": {"act": {"command": command}}})
    data["faults"]["slow"]["remedies"] = ["undone"]
    file = lab.home / "x.yaml"
    file.write_text(yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=False))
    args = ("--folder", str(lab.folder), "--settle", "2s")
    assert lab.cli("oracle", "check", str(file), *args) == 0


def test_pods_that_die_are_chosen_when_their_time_comes(lab: Lab) -> None:
    api, space = lab.api, lab.space
    api.apply(*(pod(f"cart-{n}", space, NODE, app="cart") for n in range(4)))
    api.apply(*(running(f"cart-{n}", space) for n in range(4)), subresource="status")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "test"}]}
    api.apply(node)
    api.apply({**node, "status": ready}, subresource="status")
    data = lab.experiment(duration="12s", probes={}, oracles={})
    pods = {"namespace": space, "selector": "app=cart", "pick": 1}
    data["targets"]["carts"] = {"service": "cart", "pods": pods}
    truth = {**TRUTH, "symptom_probe": ""}
    data["faults"] = {"killed": {
        "kind": "pod-kill", "target": "carts", "at": "1s", "spec": {"grace": "0s"}, "truth": truth,
        "repeat": {"every": "3s", "times": 2}}}  # fmt: skip
    assert lab.run(data) == 0
    assert [r.reason for r in lab.records(FaultEnded)] == ["done", "done"]
    left = api.json("get", "pods", "-n", space, "-l", "app=cart")["items"]
    assert len(left) == 2


def test_a_patch_that_the_api_server_would_not_take_is_told_before_the_run(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    before = lab.whole()
    for patch, words in (
        ({"spec": {"minReadySeconds": 3600}}, "must be greater than minReadySeconds"),
        ({"spec": {"nope": 1}}, "did not keep"),
    ):
        data = lab.experiment()
        data["faults"]["slow"]["spec"]["patch"] = patch
        assert lab.run(data) in (2, 3)
        said = capsys.readouterr().err
        assert "faults.slow.spec" in said and words in said
    assert lab.whole() == before and not lab.folder.exists()

"""Faults on a cluster's own objects, against a real API server: armed, kept, put back."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeapi import Api
from test_kube_api import pod, running

from controller.cli import inject_cluster
from controller.cli.main import run
from controller.kube import act, drift, keeper
from controller.kube.client import Cluster
from controller.kube.ledger import Ledger

NODE = "t-worker"


class Desk:
    """The command line on a cluster, with a ledger of its own."""

    def __init__(self, api: Api, book: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
        self.api, self.book, self._capsys = api, book, capsys
        self.space = api.namespace()

    def run(self, *args: str) -> int:
        return run([*args, "--kubeconfig", str(self.api.kubeconfig)])

    def inject(self, kind: str, *args: str) -> dict[str, Any]:
        code = self.run("inject", kind, "-n", self.space, *args, "-o", "json")
        said = self._capsys.readouterr()
        assert code == 0, said.err
        found: dict[str, Any] = json.loads(said.out)
        return found

    def error(self, kind: str, *args: str) -> str:
        assert self.run("inject", kind, "-n", self.space, *args) in (2, 3)
        return self._capsys.readouterr().err

    def revert(self, fault: str) -> str:
        code = self.run("revert", "--cluster", fault)
        said = self._capsys.readouterr()
        assert code == 0, said.err
        return said.out

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api.json("get", kind, "-n", self.space, name)
        return found


@pytest.fixture
def desk(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Desk]:
    book = Ledger(tmp_path / "ledger")
    monkeypatch.setattr(inject_cluster, "own_ledger", lambda: book)
    monkeypatch.setattr("controller.cli.cluster_faults.own_ledger", lambda: book)
    made = Desk(api, book, capsys)
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "test"}]}
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}, "status": ready},
              subresource="status")  # fmt: skip
    yield made
    for one in book.all():
        act.revert(Cluster(api.kubeconfig), book, one.id, "reverted")


def deployment(desk: Desk, replicas: int = 0) -> None:
    containers = [{"name": "app", "image": "registry.invalid/x"}]
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    meta = {"name": "web", "namespace": desk.space}
    desk.api.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": spec})


WEB = ("--api-version", "apps/v1", "--object", "Deployment/web")


def test_a_patch_is_put_back_and_others_edits_are_kept(desk: Desk) -> None:
    deployment(desk)
    before = desk.get("deployment", "web")["spec"]
    patch = {"spec": {"paused": True, "minReadySeconds": 7,
                      "template": {"metadata": {"annotations": {"a/b": "~x"}}}}}  # fmt: skip
    found = desk.inject("k8s-patch", *WEB, "--patch", json.dumps(patch))
    assert found["state"] == "armed" and len(found["changes"]) == 3
    now = desk.get("deployment", "web")["spec"]
    assert (now["paused"], now["minReadySeconds"]) == (True, 7)
    assert now["template"]["metadata"]["annotations"] == {"a/b": "~x"}
    assert "conflicts" in desk.error("k8s-patch", *WEB, "--patch", '{"spec":{"minReadySeconds":8}}')
    desk.api.kubectl("scale", "-n", desk.space, "deployment/web", "--replicas=3")
    desk.api.kubectl("patch", "-n", desk.space, "deployment/web", "--type=merge", "-p",
                     '{"spec":{"minReadySeconds":9}}')  # fmt: skip
    assert "minReadySeconds was changed by others: kept" in desk.revert(found["id"])
    after = desk.get("deployment", "web")["spec"]
    assert after == {**before, "replicas": 3, "minReadySeconds": 9}
    assert desk.revert(found["id"])


def test_an_item_of_a_list_is_changed_and_its_neighbours_are_not(desk: Desk) -> None:
    """One image and one variable; meanwhile somebody puts another container first."""
    deployment(desk)
    before = desk.get("deployment", "web")["spec"]["template"]["spec"]
    app = {"name": "app", "image": "registry.invalid/y", "env": [{"name": "A", "value": "1"}]}
    patch = json.dumps({"spec": {"template": {"spec": {"containers": [app]}}}})
    found = desk.inject("k8s-patch", *WEB, "--patch-type", "strategic", "--patch", patch)
    fields = [one["field"].rsplit("containers/", 1)[1] for one in found["changes"]]
    assert fields == ["[name=app]/image", "[name=app]/env"]
    first = '[{"op":"add","path":"/spec/template/spec/containers/0","value":{"name":"side",' \
            '"image":"registry.invalid/s"}}]'  # fmt: skip
    desk.api.kubectl("patch", "-n", desk.space, "deployment/web", "--type=json", "-p", first)
    assert drift.lost(Cluster(desk.api.kubeconfig), desk.book.get(found["id"])) == []
    desk.revert(found["id"])
    after = desk.get("deployment", "web")["spec"]["template"]["spec"]["containers"]
    assert after[1] == before["containers"][0] and after[0]["name"] == "side"
    assert desk.book.get(found["id"]).end_reason == "reverted"


def test_a_change_that_is_reconciled_away_is_an_event(desk: Desk) -> None:
    deployment(desk)
    found = desk.inject("k8s-patch", *WEB, "--patch", '{"spec":{"minReadySeconds":7}}')
    cluster, entry = Cluster(desk.api.kubeconfig), desk.book.get(found["id"])
    assert drift.lost(cluster, entry) == []
    desk.api.kubectl("patch", "-n", desk.space, "deployment/web", "--type=merge", "-p",
                     '{"spec":{"minReadySeconds":3}}', "--field-manager=argocd")  # fmt: skip
    lines = drift.lost(cluster, entry)
    assert len(lines) == 1 and "/spec/minReadySeconds was taken away by argocd" in lines[0]
    end = time.monotonic() + 60
    while not desk.book.get(found["id"]).events and time.monotonic() < end:
        time.sleep(0.2)
    assert desk.book.get(found["id"]).events == lines, "the keeper looks by itself"
    keeper._look(desk.book, entry)
    assert desk.book.get(found["id"]).events == lines, "once"


def test_the_keeper_ends_a_fault_with_its_lease(desk: Desk) -> None:
    deployment(desk)
    found = desk.inject("k8s-patch", *WEB, "--patch", '{"spec":{"paused":true}}', "--lease", "2s")
    end = time.monotonic() + 60
    while desk.book.get(found["id"]).state == "armed" and time.monotonic() < end:
        time.sleep(0.2)
    assert desk.book.get(found["id"]).end_reason == "expired"
    assert "paused" not in desk.get("deployment", "web")["spec"]


def test_without_its_keeper_the_ledger_knows_and_any_verb_takes_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    real = keeper.start
    monkeypatch.setattr(keeper, "start", lambda *args: started.append(real(*args)))
    deployment(desk)
    found = desk.inject("k8s-patch", *WEB, "--patch", '{"spec":{"paused":true}}')
    os.kill(started[0].pid, signal.SIGKILL)
    started[0].wait()
    assert desk.book.get(found["id"]).state == "armed"
    desk.revert(found["id"])
    assert "paused" not in desk.get("deployment", "web")["spec"]


def test_an_object_that_was_replaced_is_left_alone(desk: Desk) -> None:
    deployment(desk)
    found = desk.inject("k8s-patch", *WEB, "--patch", '{"spec":{"paused":true}}')
    desk.api.kubectl("delete", "-n", desk.space, "deployment/web", "--wait")
    deployment(desk)
    assert "another object" in desk.revert(found["id"])


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((*WEB, "--patch", '{"spec":{"replicas":-1}}'), "does not take this"),
        ((*WEB, "--patch", '{"spec":{"nope":1}}'), "did not keep"),
        ((*WEB, "--patch", '{"status":{"x":1}}'), "cannot be patched"),
        (("--object", "Deployment/web", "--patch", '{"spec":{"paused":true}}'), "no Deployment"),
        (("--object", "Pod/none", "--patch", '{"spec":{"x":1}}'), "there is no Pod none"),
    ],
)
def test_a_patch_that_does_not_hold_leaves_nothing(
    desk: Desk, args: tuple[str, ...], words: str
) -> None:
    deployment(desk)
    before = desk.get("deployment", "web")["spec"]
    assert words in desk.error("k8s-patch", *args)
    assert desk.get("deployment", "web")["spec"] == before
    assert all(one.state == "ended" for one in desk.book.all())


def test_pods_are_killed_and_failed_by_choice(desk: Desk) -> None:
    api, space = desk.api, desk.space
    api.apply(*(pod(f"cart-{n}", space, NODE, app="cart") for n in range(4)))
    api.apply(*(running(f"cart-{n}", space) for n in range(4)), subresource="status")
    assert "how many are meant" in desk.error("pod-kill", "-l", "app=cart")
    some = ("-l", "app=cart", "--pick", "50%", "--pick-seed", "s")
    planned = desk.inject("pod-kill", *some, "--plan")
    assert len(api.json("get", "pods", "-n", space)["items"]) == 4
    killed = desk.inject("pod-kill", *some, "--grace", "0s")
    assert (killed["state"], killed["end_reason"]) == ("ended", "done")
    assert planned["removed"] == killed["removed"] and len(killed["removed"]) == 2
    left = [p["metadata"]["name"] for p in api.json("get", "pods", "-n", space)["items"]]
    assert len(left) == 2
    failed = desk.inject("pod-failure", "--pod", left[0])
    image = desk.get("pod", left[0])["spec"]["containers"][0]["image"]
    assert "pause" in image
    assert "runs registry.k8s.io" in desk.error("pod-failure", "--pod", left[0])
    desk.revert(failed["id"])
    assert desk.get("pod", left[0])["spec"]["containers"][0]["image"] == "registry.invalid/none"


def test_a_drain_keeps_budgets_and_takes_the_cordon_back(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    api, space = desk.api, desk.space
    before = desk.get("node", NODE)["spec"]
    api.apply(pod("free", space, NODE, app="free"))
    api.apply(running("free", space), subresource="status")
    cordon = desk.inject("node-cordon", "--on-node", NODE)
    assert desk.get("node", NODE)["spec"]["unschedulable"] is True
    desk.revert(cordon["id"])
    assert "unschedulable" not in desk.get("node", NODE)["spec"]
    drained = desk.inject("node-drain", "--on-node", NODE)
    assert f"pods {space}/free" in drained["removed"]
    gone = api.kubectl("get", "pod", "-n", space, "free", "-o", "json", check=False)
    assert gone.returncode != 0 or "deletionTimestamp" in json.loads(gone.stdout)["metadata"]
    desk.revert(drained["id"])
    spec = {k: v for k, v in desk.get("node", NODE)["spec"].items() if k != "taints"}
    assert spec == {k: v for k, v in before.items() if k != "taints"}
    assert "which nodes" in desk.error("node-drain")
    assert "does not take pods" in desk.error("node-drain", "-l", "a=b", "--on-node", NODE)


def test_chaos_mesh_noise_runs_and_leaves_the_images_as_they_were(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api, space = desk.api, desk.space
    monkeypatch.setattr("controller.cli.run_chaosmesh.own_ledger", lambda: desk.book)
    api.apply(*(pod(f"cart-{n}", space, NODE, app="cart") for n in range(3)))
    api.apply(*(running(f"cart-{n}", space) for n in range(3)), subresource="status")
    common = {"mode": "one", "selector": {"namespaces": [space], "labelSelectors": {"app": "cart"}}}
    objects = [
        {"apiVersion": "chaos-mesh.org/v1alpha1", "kind": "PodChaos",
         "metadata": {"name": name, "namespace": "chaos"}, "spec": {**common, **spec}}
        for name, spec in (
            ("fail", {"action": "pod-failure", "duration": "3s"}),
            ("kill", {"action": "pod-kill", "gracePeriod": 0}),
        )
    ]  # fmt: skip
    path = tmp_path / "noise.yaml"
    # Through JSON, so that what they share is written out: aliases are refused.
    plain = json.loads(json.dumps(objects))
    path.write_text("---\n".join(yaml.safe_dump(one, sort_keys=False) for one in plain))
    assert desk.run("run", str(path), "--seed", "3") == 0
    said = capsys.readouterr().out
    assert "PodChaos chaos/fail: pod-failure on" in said and "ended" in said
    left = api.json("get", "pods", "-n", space)["items"]
    assert len(left) == 2
    images = {p["spec"]["containers"][0]["image"] for p in left}
    assert images == {"registry.invalid/none"}
    assert all(one.state == "ended" for one in desk.book.all())


def test_a_patch_leaves_no_name_of_ours_in_the_cluster(desk: Desk) -> None:
    deployment(desk)
    found = desk.inject("k8s-patch", *WEB, "--patch", '{"spec":{"minReadySeconds":5}}')
    text = desk.api.kubectl("get", "deployments,events,configmaps,secrets", "-n", desk.space,
                            "--show-managed-fields", "-o", "json").stdout  # fmt: skip
    for word in ("faultctl", found["id"], "chaos"):
        assert word not in text
    desk.revert(found["id"])

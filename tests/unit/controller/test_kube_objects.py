"""Faults on a cluster's objects: what is refused, and what is said where there are no agents."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_api import FakeApi, fake_api

from controller.cli.main import run
from controller.kube.ledger import Entry, Ledger, Patched, Place
from controller.kube.objects import CONFIG_MIRROR
from controller.kube.patches import Change


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    with fake_api(tmp_path) as found:
        found.namespace("shop")
        found.namespace("kube-system")
        found.node("n1")
        found.node("n2")
        yield found


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    made = Ledger(tmp_path / "ledger")
    for place in ("controller.cli.inject_cluster", "controller.cli.cluster_faults"):
        monkeypatch.setattr(f"{place}.own_ledger", lambda: made)
    return made


def faultctl(api: FakeApi, *args: str) -> int:
    return run([*args, "--kubeconfig", str(api.kubeconfig())])


def entry(api: FakeApi, name: str, **more: object) -> Entry:
    change = Change(path=("spec", "unschedulable"), had=False, value=True)
    place = Place(resource="nodes", name="n1")
    now, uid = time.time(), api.objects["/api/v1/nodes/n1"]["metadata"]["uid"]
    found = {"id": name, "kind": "node-cordon", "server": api.url, "state": "armed",
             "created": now, "lease_s": 60, "until": now + 60, "hard_end": now + 600,
             "patched": (Patched(place=place, uid=uid, changes=(change,)),)}  # fmt: skip
    return Entry.model_validate({**found, **more})


@pytest.mark.parametrize(
    ("args", "option"),
    [
        (("node-cordon", "--field-selector", "spec.nodeName=n1", "--pick", "1"), "field-selector"),
        (("node-drain", "--zone-cap", "1", "--all"), "zone-cap"),
        (("node-cordon", "-l", "app=x", "--on-node", "n1"), "selector"),
        (("k8s-patch", "--object", "Node/n1", "--patch", "{}", "--on-node", "n2"), "on-node"),
        (("k8s-patch", "--object", "Node/n1", "--patch", "{}", "--all"), "all"),
    ],
)
def test_options_that_would_narrow_nothing_are_refused(
    api: FakeApi, book: Ledger, capsys: pytest.CaptureFixture[str], args: tuple[str, ...],
    option: str,
) -> None:  # fmt: skip
    """A choice that is not heeded would hit another node than the one that was meant."""
    assert faultctl(api, "inject", *args, "--plan") == 2
    assert f"--{option}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["pod-kill", "pod-failure"])
def test_a_mirror_pod_is_refused_since_its_kubelet_takes_no_orders(
    api: FakeApi, book: Ledger, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    api.pod("shop", "proxy-n1", meta={"annotations": {CONFIG_MIRROR: "x"}})
    assert faultctl(api, "inject", kind, "--pod", "shop/proxy-n1") == 3
    assert "static pod" in capsys.readouterr().err
    assert book.all() == []


def test_faults_on_objects_are_listed_where_no_agent_is_installed(
    api: FakeApi, book: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert faultctl(api, "ls", "--cluster") == 3
    assert "no agent runs" in capsys.readouterr().err
    book.begin(entry(api, "cordon-1"))
    assert faultctl(api, "ls", "--cluster", "-o", "json") == 0
    said = capsys.readouterr()
    assert [one["id"] for one in json.loads(said.out)] == ["cordon-1"]
    assert "no agent was asked" in said.err


def test_all_of_them_are_reverted_where_no_agent_is_installed(
    api: FakeApi, book: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    node = api.objects["/api/v1/nodes/n1"]
    api.put("/api/v1/nodes/n1", {**node, "spec": {"unschedulable": True}})
    book.begin(entry(api, "cordon-2"))
    assert faultctl(api, "revert", "--cluster", "--all", "-o", "json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["id"] == "cordon-2" and row["result"] == "reverted"
    assert [one.state for one in book.all()] == ["ended"]
    assert api.objects["/api/v1/nodes/n1"]["spec"] == {}
    assert faultctl(api, "revert", "--cluster", "--all") == 3, "and nothing else could be asked"
    assert faultctl(api, "revert", "--cluster", "who") == 3

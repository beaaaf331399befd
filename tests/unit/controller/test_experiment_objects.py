"""Faults on objects in an experiment file: what is taken, and what is refused with its line."""

from __future__ import annotations

import re

import pytest

from controller.experiment_check import Loaded, load_experiment
from controller.experiment_objects import options_of
from controller.experiment_plan import AT_ONCE_NS
from controller.experiment_schema import experiment_schema
from nodeagent.model.errors import InvalidSpec

S = 10**9
HEAD = """\
version: 1
name: objects
seed: 7
duration: 10m
blind: false
targets:
  shop:
    service: cart
    objects: {namespace: shop}
  carts:
    service: cart
    pods: {namespace: shop, selector: app=cart, pick: 1}
  workers:
    service: nodes
    objects: {zone: zone-a, all: true}
faults:
  scaled:
    kind: k8s-patch
    target: shop
    at: 1m
    for: 2m
    spec:
      object: Deployment/cart
      api_version: apps/v1
      patch: {spec: {replicas: 0}}
  killed: {kind: pod-kill, target: carts, at: 5m, spec: {grace: 0s}}
  drained: {kind: node-drain, target: workers, at: 6m, for: 1m}
"""


def load(text: str) -> Loaded:
    return load_experiment(text.encode(), "x.yaml")


def changed(old: str, new: str) -> str:
    assert old in HEAD
    return HEAD.replace(old, new)


def test_a_file_with_faults_on_objects_is_read_without_a_cluster() -> None:
    loaded = load(HEAD)
    items = {item.slot: item for item in loaded.plan.items}
    assert {item.node for item in items.values()} == {"cluster"}
    assert all(item.on_objects for item in items.values()) and not loaded.plan.open_targets
    assert items["scaled"].target == {
        "type": "objects", "namespace": "shop", "seed": "7 shop scaled"}  # fmt: skip
    assert items["killed"].target["pick"] == 1
    assert options_of(items["killed"].target)["pick_seed"] == "7 carts killed"
    assert options_of(items["drained"].target)["zone"] == ("zone-a",)


def test_what_is_over_at_once_lives_as_long_as_it_may_be_late() -> None:
    """Else two kills of the same pods would seem to exclude each other to the run's end."""
    text = HEAD + "  again: {kind: pod-kill, target: carts, at: 6m, spec: {grace: 0s}}\n"
    items = {item.slot: item for item in load(text).plan.items}
    for name, start in (("killed", 300), ("again", 360)):
        assert items[name].start_ns == start * S
        assert items[name].end_ns == (start + 30) * S + AT_ONCE_NS
        assert not items[name].to_the_end


def test_an_entry_of_pods_is_for_both_sorts_of_faults() -> None:
    text = HEAD + "  slow: {kind: netem, target: carts, at: 1m, for: 1m, spec: {delay: 1ms}}\n"
    nodes = {item.name: item.node for item in load(text).plan.items}
    assert (nodes["slow"], nodes["killed"]) == ("", "cluster")


@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ("kind: k8s-patch", "kind: k8s-pach", "kind:", "there is no fault kind 'k8s-pach'"),
        ("object: Deployment/cart", "object: cart", "object:", "pattern"),
        ("      object: Deployment/cart\n", "", "spec:", "spec.object: is missing"),
        ("api_version: apps/v1", "apiversion: apps/v1", "apiversion:", "not a key"),
        ("{spec: {replicas: 0}}", "{status: {replicas: 0}}", "spec:", "/status cannot be patched"),
        ("{spec: {replicas: 0}}", "{metadata: {name: x}}", "spec:", "/metadata/name cannot be"),
        ("{spec: {replicas: 0}}", "not json", "spec:", "is not JSON"),
        ("{spec: {replicas: 0}}", "{}", "spec:", "not a merge patch"),
        ("for: 2m\n", "for: 2m\n    mechanism: dm\n", "mechanism:", "API server"),
        ("for: 2m\n", "for: 2m\n    to_pods: {selector: a=b}\n", "to_pods:", "no far end"),
        ("target: shop", "target: carts", "target:", "needs the key objects"),
        ("target: shop", "target: workers", "target:", "namespace only"),
        ("target: carts", "target: shop", "killed:", "needs the key pods"),
        ("target: workers", "target: shop", "drained:", "which nodes?"),
        ("spec: {grace: 0s}", "spec: {grace: 0}", "killed:", "grace"),
        ("pick: 1}", "pick: 1, volume: data}", "killed:", "whole pods: 'carts' has volume"),
        ("{namespace: shop}", "{namespace: shop, on_node: n1}", "objects:", "in no namespace"),
        ("{zone: zone-a, all: true}", "{zone: zone-a}", "objects:", "how many of them?"),
        ("{zone: zone-a, all: true}", "{on_node: n1, pick: 1}", "objects:", "by themselves"),
        ("{zone: zone-a, all: true}", "{all: true, pick: 1}", "objects:", "exclude"),
        ("{zone: zone-a, all: true}", "{all: true, pick_seed: 1}", "objects:", "goes with pick"),
        ("{namespace: shop}", "{namespace: shop, name: x}", "objects:", "not a key"),
        ("service: nodes", "service: nodes\n    node: n1", "workers:", "stands for node and"),
        ("kind: node-drain", "kind: netem, spec: {delay: 1ms}", "drained:", "act on objects"),
        ("targets:\n", "nodes: {cluster: {agent: 'unix:///x'}}\ntargets:\n", "nodes:", "choose"),
        ("targets:\n", "caps: {faults: 1}\ntargets:\n", "caps:", "2 faults at once"),
        ("targets:\n", "noise: {targets: [shop]}\ntargets:\n", "noise:", "is objects"),
        ("targets:\n", "probes: {p: {type: exposure, fault: scaled}}\ntargets:\n", "probes:",
         "nobody is exposed"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, at: str, words: str) -> None:
    text = changed(old, new)
    if words == "2 faults at once":
        text = text.replace("at: 6m, for: 1m", "at: 2m, for: 1m")
    with pytest.raises(InvalidSpec) as caught:
        load(text)
    told = [one for one in caught.value.why.split("\n") if words in one]
    assert told, caught.value.why
    number = int(re.findall(r"line (\d+):", told[0])[0])
    assert text.splitlines()[number - 1].strip().startswith(at)
    assert "--" not in caught.value.why


def test_an_editor_completes_the_specs_of_these_kinds() -> None:
    fault = experiment_schema(with_kinds=True)["$defs"]["FaultEntry"]
    assert "k8s-patch" in fault["properties"]["kind"]["enum"]
    (spec,) = (one["then"]["properties"]["spec"] for one in fault["allOf"]
               if one["if"]["properties"]["kind"]["const"] == "k8s-patch")  # fmt: skip
    assert spec["properties"]["patch"]["type"] == ["string", "object"]


def test_follow_where_only_faults_on_objects_have_the_pods_is_refused_with_its_line() -> None:
    """They choose anew when they start: nobody would follow anything."""
    pick = "selector: app=cart, pick: 1"
    text = changed(pick, f"{pick}, follow: move")
    with pytest.raises(InvalidSpec, match=r"line \d+: faults.killed.target: .*'carts' has follow"):
        load(text)
    both = text + "  held: {kind: pause, target: carts, at: 1m, for: 1m}\n"
    assert [i.follow for i in load(both).plan.items if i.name == "killed"] == [""]


def test_an_empty_target_is_told_all_that_it_can_be() -> None:
    with pytest.raises(InvalidSpec, match=r"targets.shop: .*\(or pods or objects instead\)"):
        load(changed("    objects: {namespace: shop}\n", ""))

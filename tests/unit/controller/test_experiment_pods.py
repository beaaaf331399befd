"""Pods in an experiment file: what is taken, what is refused with its line, what it comes to."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from controller.experiment_check import Loaded, load_experiment, with_found
from controller.experiment_pods import (
    NODE_NAME,
    Found,
    Hit,
    PodsEntry,
    agent_url,
    cluster_node,
    in_file_words,
)
from controller.kube.asked import asked
from controller.kube.labels import parse_selector
from controller.noise import with_noise
from controller.run_plan import RunPlan
from nodeagent.model.errors import InvalidSpec

HEAD = """\
version: 1
name: carts
seed: 7
duration: 10m
blind: false
targets:
  carts:
    service: cart
    pods:
      namespace: shop
      selector: app=cart
      pick: 50%
faults:
  slow: {kind: netem, target: carts, at: 1m, for: 2m, spec: {delay: 200ms}}
"""


def load(text: str) -> Loaded:
    return load_experiment(text.encode(), "x.yaml")


def changed(old: str, new: str) -> str:
    assert old in HEAD
    return HEAD.replace(old, new)


def test_a_file_with_pods_is_read_without_a_cluster() -> None:
    loaded = load(HEAD)
    (item,) = loaded.plan.items
    assert (item.node, item.slot, item.start_ns) == ("", "slow", 60 * 10**9)
    assert item.target == {
        "type": "pods", "namespace": "shop", "selector": "app=cart", "pick": "50%"
    }  # fmt: skip
    assert loaded.plan.open_targets == ("carts",)


@pytest.mark.parametrize(
    ("old", "new", "at", "words"),
    [
        ("selector: app=cart", "selector: app in cart", "selector:", "column"),
        ("selector: app=cart", "field_selector: a=b=c", "field_selector:", "a=b=c"),
        ("selector: app=cart", "owner: cart", "owner:", "KIND/NAME"),
        ("selector: app=cart", "selectr: app=cart", "selectr:", "not a key"),
        ("pick: 50%", "pick: 0", "pick:", "not how many"),
        ("pick: 50%", "pick: true", "pick:", "integer"),
        ("pick: 50%", "pick: -1", "pick:", "not how many"),
        ("pick: 50%", "pick: 1\n      all: true", "pods:", "exclude each other"),
        ("pick: 50%", "pod: cart-0", "pods:", "by themselves"),
        ("      selector: app=cart\n      pick: 50%\n", "", "pods:", "all: true"),
        ("selector: app=cart", "pod: a/b/c", "pod:", "not a pod"),
        ("selector: app=cart\n      pick: 50%", "pod: [shop/a, other/b]", "pods:", "one namespace"),
        ("pick: 50%", "offset: 4k", "pods:", "add file"),
        ("pick: 50%", "file: base/1", "pods:", "which volume"),
        ("pick: 50%", "volume: data", "slow:", "does not act on volumes"),
        ("pick: 50%", "container: app", "slow:", "hits a pod as a whole"),
        ("service: cart", "service: cart\n    node: n1", "carts:", "stands for node and target"),
        ("service: cart", "service: cart\n    kinds: [netem]", "carts:", "no schedule draws"),
        ("kind: netem", "kind: latent-sector", "slow:", "add volume"),
        ("kind: netem", "kind: reboot", "slow:", "reboot"),
        ("kind: netem", "kind: pause, to_pods: {selector: a=b}", "slow:", "no far end"),
        ("kind: netem", "kind: netem, to_pods: {}", "slow:", "which pods?"),
        ("kind: netem", "kind: netem, to_pods: {selector: a in}", "slow:", "column"),
        ("delay: 200ms", "delay: 200", "slow:", "delay"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(old: str, new: str, at: str, words: str) -> None:
    text = changed(old, new)
    with pytest.raises(InvalidSpec) as caught:
        load(text)
    told = [one for one in caught.value.why.split("\n") if words in one]
    assert told, caught.value.why
    number = int(re.findall(r"line (\d+):", told[0])[0])
    assert text.splitlines()[number - 1].strip().startswith(at)
    assert "--" not in caught.value.why


def test_a_range_of_a_file_on_a_volume_is_asked_for_in_words_with_units() -> None:
    """As the agent takes it, and the same size however it was written."""
    of_file = "pod: shop/db-0\n      volume: data\n      file: base/1\n"
    span = "      offset: 8Ki\n      length: 8192B"
    text = changed("selector: app=cart\n      pick: 50%", of_file + span)
    text = text.replace("kind: netem", "kind: latent-sector").replace(", spec: {delay: 200ms}", "")
    loaded = load(text)
    part = loaded.experiment.targets["carts"].pods.part
    assert part == {"file": "base/1", "offset": "8Ki", "length": "8Ki"}


def test_neither_node_nor_pods_names_what_is_missing() -> None:
    text = HEAD.replace("    pods:\n      namespace: shop\n      selector: app=cart\n", "").replace(
        "      pick: 50%\n", ""
    )
    with pytest.raises(InvalidSpec, match="node and target is missing"):
        load(text)


def test_noise_acts_on_pods_only_where_they_are_named() -> None:
    named = load(HEAD.replace("at: 1m, for: 2m", "at: 1s, for: 2s") + "noise: {targets: [carts]}\n")
    noise = with_noise(named.plan, named.experiment).of("noise")
    assert {(i.node, i.kind, i.target["selector"]) for i in noise} <= {
        ("cluster", "pod-kill", "app=cart"), ("cluster", "pod-failure", "app=cart")}  # fmt: skip
    assert noise and len({i.target["seed"] for i in noise}) == len(noise)
    loaded = load(HEAD + "noise: {}\n")
    noisy = with_noise(loaded.plan, loaded.experiment)
    assert noisy.of("noise") == () and noisy.timeline() == loaded.plan.timeline()


def hits(*nodes: str) -> list[Hit]:
    return [
        Hit(node, "z", f"cart-{number}", {"type": "pod", "pod": f"shop/cart-{number}",
            "uid": f"00000000-0000-4000-8000-{number:012x}"})
        for number, node in enumerate(nodes)
    ]  # fmt: skip


def found_plan(text: str, *nodes: str) -> RunPlan:
    return with_found(load(text), Found("c", hits={("slow", "carts"): hits(*nodes)})).plan


def test_one_entry_becomes_one_fault_a_pod_under_one_id() -> None:
    plan = found_plan(HEAD, "n1", "n2")
    assert [(i.slot, i.node, i.target["pod"]) for i in plan.items] == [
        ("slow/carts/cart-0", "n1", "shop/cart-0"),
        ("slow/carts/cart-1", "n2", "shop/cart-1"),
    ]
    assert {(i.group, i.group_type, i.whole) for i in plan.items} == {
        ("slow/pods", "pods", "slow/pods")
    }
    assert RunPlan.from_text(plan.text()) == plan, "a take-over reads the same"


def test_one_pod_is_no_group_and_repeats_are_groups_of_their_own() -> None:
    (alone,) = found_plan(HEAD, "n1").items
    assert (alone.group, alone.whole, alone.group_type) == ("", "", "single")
    text = changed("for: 2m", "for: 1m, repeat: {every: 2m, times: 2}")
    items = found_plan(text, "n1", "n2").items
    assert [i.whole for i in items] == ["slow#1/pods"] * 2 + ["slow#2/pods"] * 2
    assert len({i.slot for i in items}) == 4
    assert {i.end_ns - i.start_ns for i in items} == {60 * 10**9}


def test_a_group_of_the_file_stays_and_its_members_are_armed_whole_all_the_same() -> None:
    text = HEAD + (
        "  other: {kind: netem, target: carts, at: 4m, for: 1m, spec: {loss: 5%}}\n"
        "groups:\n  both: {type: correlated, faults: [slow, other], cause: x}\n"
    )
    pods = hits("n1", "n2")
    plan = with_found(
        load(text), Found("c", hits={("slow", "carts"): pods, ("other", "carts"): pods})
    ).plan
    assert {(i.group, i.group_type) for i in plan.items} == {("both", "correlated")}
    assert {i.whole for i in plan.items} == {"slow/pods", "other/pods"}


def test_limits_are_checked_when_the_pods_are_known() -> None:
    text = HEAD + "caps: {nodes: 1}\n"
    load(text)
    assert len(found_plan(text, "n1", "n1").items) == 2
    with pytest.raises(InvalidSpec, match=r"line 15: caps.nodes: the plan has 2 nodes"):
        found_plan(text, "n1", "n2")


NAMES = st.from_regex(NODE_NAME, fullmatch=True).filter(lambda name: len(name) <= 253)


@given(NAMES)
def test_the_address_of_a_nodes_agent_reads_back(name: str) -> None:
    assert cluster_node(agent_url(name)) == name


@given(st.text(max_size=20))
def test_an_agents_address_is_a_nodes_name_or_refused(text: str) -> None:
    try:
        node = cluster_node("kube://" + text)
    except ValueError:
        assert not NODE_NAME.fullmatch(text)
    else:
        assert node == text and NODE_NAME.fullmatch(text)


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
KEYS = st.sampled_from([*PodsEntry.model_fields, "all", "node"]) | st.text(max_size=5)


@given(st.dictionaries(KEYS, SCALARS | st.lists(SCALARS, max_size=2), max_size=4))
def test_whatever_is_in_an_entry_it_is_read_or_refused_in_words(data: dict[str, Any]) -> None:
    """Nothing but ValidationError; and what is read is what the cluster is asked."""
    try:
        entry = PodsEntry.model_validate(data)
    except ValidationError as exc:
        assert all("--" not in error["msg"] for error in exc.errors())
        return
    query, ask = asked("home", entry.options("s"))
    query.check()
    parse_selector(query.labels)
    assert ask.names or ask.selective or ask.how_many is not None
    again = entry.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert PodsEntry.model_validate(yaml.safe_load(yaml.safe_dump(again))) == entry


@pytest.mark.parametrize(
    ("said", "in_file"),
    [
        ("add --pick 1, --pick 50% or --all", "add pick: 1, pick: 50% or all: true"),
        ("only by name: --on-node", "only by name: on_node"),
        ("add: --i-know protected-namespace", "add: acknowledge: protected-namespace"),
        ("kubectl get pods -n shop", "kubectl get pods -n shop"),
    ],
)
def test_options_are_told_in_the_words_of_the_file(said: str, in_file: str) -> None:
    assert in_file_words(said) == in_file

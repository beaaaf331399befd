"""Patches of items of lists: by their keys, there and back, whatever others do to the list."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from json_patch import json_patched

from controller.kube.drift import _manages
from controller.kube.kinds import cluster_kinds
from controller.kube.ledger import Place
from controller.kube.lists import located, merge_key, position
from controller.kube.patches import Change, backward, changes_of, forward, read, shown, where
from nodeagent.model.errors import InvalidSpec

NAMES = ["a", "b", "c", "d"]
VALUES = st.sampled_from(["1", "2"])


def named(values: Any) -> Any:
    """Items with names that differ, in any order."""
    return st.lists(
        st.fixed_dictionaries({"name": st.sampled_from(NAMES), "value": values}),
        unique_by=lambda one: str(one["name"]), max_size=4,
    )  # fmt: skip


CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(NAMES), "image": VALUES, "env": named(VALUES),
         "args": st.lists(VALUES, max_size=2)}
    ),
    unique_by=lambda one: str(one["name"]), min_size=1, max_size=3,
)  # fmt: skip


def whole(containers: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "spec": {"containers": containers}}


def patched(old: Any, steps: Any) -> Any:
    new = json_patched(old, steps, "x")
    new["metadata"].pop("managedFields", None)
    return new


def by_name(items: Any) -> dict[str, Any]:
    return {one["name"]: one for one in items}


@given(CONTAINERS, CONTAINERS)
def test_items_are_merged_by_name_and_the_way_back_is_exact(old: Any, new: Any) -> None:
    before, patch = whole(old), {"spec": {"containers": new}}
    try:
        changes = changes_of(before, patch, strategic=True)
    except InvalidSpec:
        assert all(by_name(old).get(one["name"]) is not None for one in new)
        return
    after = patched(before, forward(before, changes))
    now = by_name(after["spec"]["containers"])
    for one in new:
        was = by_name(old).get(one["name"], {"env": []})
        assert (now[one["name"]]["image"], now[one["name"]]["args"]) == (one["image"], one["args"])
        merged = {**by_name(was["env"]), **by_name(one["env"])}
        assert by_name(now[one["name"]]["env"]) == merged
    assert {where(after, one) for one in changes} == {"ours"}
    steps, foreign = backward(after, changes)
    assert not foreign and patched(after, steps) == before


@given(CONTAINERS, CONTAINERS, st.randoms())
def test_a_list_in_another_order_has_the_same_items(old: Any, new: Any, random: Any) -> None:
    """An operator, or a webhook, puts another container first, and shuffles the rest."""
    before, patch = whole(old), {"spec": {"containers": new}}
    try:
        changes = changes_of(before, patch, strategic=True)
    except InvalidSpec:
        return
    after = patched(before, forward(before, changes))
    other = copy.deepcopy(after)
    items = other["spec"]["containers"]
    for one in (one for one in items if one["name"] in by_name(old)):
        random.shuffle(one["env"])  # what we have added as a whole is compared as a whole
    random.shuffle(items)
    items.insert(0, {"name": "sidecar", "image": "9", "env": [], "args": []})
    assert {where(other, one) for one in changes} == {"ours"}
    end = patched(other, backward(other, changes)[0])["spec"]["containers"]
    assert by_name(end).keys() == by_name(old).keys() | {"sidecar"}
    for one in old:
        found = by_name(end)[one["name"]]
        assert (found["image"], found["args"]) == (one["image"], one["args"])
        assert by_name(found["env"]) == by_name(one["env"])


def test_one_limit_of_one_container() -> None:
    old = whole([{"name": "side"}, {"name": "cart", "image": "i",
                                    "resources": {"limits": {"memory": "1Gi"}}}])  # fmt: skip
    patch = {"spec": {"containers": [
        {"name": "cart", "resources": {"limits": {"memory": "12Mi"}}}]}}  # fmt: skip
    (change,) = changes_of(old, patch, strategic=True)
    assert shown(change) == (
        '/spec/containers/[name=cart]/resources/limits/memory: "1Gi" -> "12Mi"')  # fmt: skip
    assert [s["path"] for s in forward(old, [change])][1:] == [
        "/spec/containers/1/resources/limits/memory"] * 2  # fmt: skip
    gone = whole([{"name": "side"}])
    assert where(gone, change) == "foreign" and backward(gone, [change])[0] == []


def test_lists_without_a_key_are_replaced_and_directives_refused() -> None:
    old = {"metadata": {}, "spec": {"args": ["a"], "tolerations": [{"key": "x"}],
           "ports": [{"port": 80}, {"port": 81}]}}  # fmt: skip
    patch = {"spec": {"args": ["b"], "tolerations": [{"key": "y"}],
                      "ports": [{"port": 81, "targetPort": 1}]}}  # fmt: skip
    found = {one.pointer: one.value for one in changes_of(old, patch, strategic=True)}
    assert found == {"/spec/args": ["b"], "/spec/tolerations": [{"key": "y"}],
                     "/spec/ports/[port=81]/targetPort": 1}  # fmt: skip
    with pytest.raises(InvalidSpec, match="directives"):
        changes_of(old, {"spec": {"ports": [{"port": 81, "$patch": "delete"}]}}, strategic=True)
    plain = changes_of(old, {"spec": {"ports": [{"port": 81}]}})
    assert [one.pointer for one in plain] == ["/spec/ports"]


def test_what_tells_items_apart() -> None:
    assert merge_key("ports", [{"containerPort": 80}]) == "containerPort"
    assert merge_key("ports", [{"port": 80}]) == "port"
    assert merge_key("env", [{"name": "a"}, {"value": "x"}]) == ""
    assert merge_key("args", ["a"]) == "" and merge_key("env", [{"name": "a"}], None) == ""
    assert position([{"port": 80}], "[port=80]") == 0
    assert located({"x": [{"name": "a"}]}, ("x", "[name=b]")) == ("x", "-")
    assert read({"x": [{"name": "a=]b"}]}, ("x", "[name=a=]b]", "name")) == (True, "a=]b")


def test_the_manager_of_an_item_is_found() -> None:
    fields = {"f:spec": {"f:env": {'k:{"name":"A"}': {".": {}, "f:value": {}}}}}
    for name, found in (("A", True), ("B", False)):
        change = Change(path=("spec", "env", f"[name={name}]", "value"), had=True, prior="1")
        assert _manages(fields, change) is found


def test_the_kind_takes_it() -> None:
    kind = cluster_kinds()["k8s-patch"]
    spec = kind.spec.model_validate({"object": "Pod/x", "patch_type": "strategic",
        "patch": {"spec": {"containers": [{"name": "a", "image": "2"}]}}})  # fmt: skip
    one = {"metadata": {"uid": "u"}, "spec": {"containers": [{"name": "a", "image": "1"}]}}
    work = kind.work(spec, [(Place(resource="pods", name="x"), one)], ())
    assert [c.pointer for c in work.patched[0].changes] == ["/spec/containers/[name=a]/image"]

"""Changes of an object's fields and their way back, as data; kinds on objects; the ledger."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from fake_api import merged
from hypothesis import given
from hypothesis import strategies as st

from controller.kube.kinds import cluster_kinds, pods_on
from controller.kube.ledger import Entry, Ledger, Patched, Place
from controller.kube.patches import Change, backward, changes_of, forward, read, shown, where
from nodeagent.model.errors import Conflict, FaultError, InvalidSpec, UnknownFault

KEYS = st.sampled_from(["a", "b/c", "~d", "e"])
LEAF = st.one_of(st.integers(0, 3), st.booleans(), st.text(max_size=2),
                 st.lists(st.integers(0, 2), max_size=2))  # fmt: skip
TREE = st.recursive(LEAF, lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8)
PATCH = st.dictionaries(
    KEYS,
    st.recursive(
        st.one_of(LEAF, st.none()), lambda i: st.dictionaries(KEYS, i, max_size=3), max_leaves=8
    ),
    min_size=1,
    max_size=3,
)


def jsonpatch(old: Any, steps: list[dict[str, Any]]) -> Any:
    """RFC 6902, as the API server does it: a failed test fails the whole."""
    found = copy.deepcopy(old)
    for step in steps:
        parts = [p.replace("~1", "/").replace("~0", "~") for p in step["path"].split("/")[1:]]
        at = found
        for part in parts[:-1]:
            at = at[int(part)] if isinstance(at, list) else at[part]
        last: Any = int(parts[-1]) if isinstance(at, list) else parts[-1]
        if step["op"] == "test":
            assert at[last] == step["value"], step
        elif step["op"] == "remove":
            del at[last]
        else:
            assert step["op"] == "add" or isinstance(at, list) or last in at
            at[last] = copy.deepcopy(step["value"])
    return found


def whole(spec: Any) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "1"}, "spec": spec}


@given(st.dictionaries(KEYS, TREE, max_size=3), PATCH)
def test_forward_is_the_merge_patch_and_backward_its_exact_inverse(spec: Any, patch: Any) -> None:
    before = whole(spec)
    try:
        changes = changes_of(before, {"spec": patch})
    except InvalidSpec:
        assert merged(before, {"spec": patch}) == before
        return
    after = jsonpatch(before, forward(before, changes))
    assert after == merged(before, {"spec": patch})
    assert {where(after, one) for one in changes} == {"ours"}
    steps, foreign = backward(after, changes)
    assert not foreign and jsonpatch(after, steps) == before
    assert backward(before, changes) == ([], []), "twice is the same as once"


@given(st.dictionaries(KEYS, TREE, max_size=3), PATCH, st.dictionaries(KEYS, TREE, max_size=3))
def test_what_others_changed_meanwhile_is_never_overwritten(
    spec: Any, patch: Any, others: Any
) -> None:
    before = whole(spec)
    try:
        changes = changes_of(before, {"spec": patch})
    except InvalidSpec:
        return
    after = jsonpatch(before, forward(before, changes))
    edited = whole(merged(after["spec"], others))
    steps, foreign = backward(edited, changes)
    end = jsonpatch(edited, steps)
    for change in foreign:
        assert read(end, change.path) == read(edited, change.path)


def test_defaults_that_the_server_fills_in_are_ours_still() -> None:
    change = Change(path=("spec", "probe"), had=False, value={"port": 80})
    filled = whole({"probe": {"port": 80, "timeoutSeconds": 1}})
    assert where(filled, change) == "ours"
    assert where(whole({"probe": {"port": 81}}), change) == "foreign"
    listed = Change(path=("spec", "x"), had=True, prior=[], value=[{"a": 1}])
    assert where(whole({"x": [{"a": 1, "b": 2}]}), listed) == "ours"
    assert where(whole({"x": [{"a": 1}, {}]}), listed) == "foreign"


@pytest.mark.parametrize(
    "patch",
    [{"status": {"x": 1}}, {"metadata": {"name": "y"}}, {"kind": "Pod"}, {"apiVersion": "v2"}, {},
     {"metadata": {"ownerReferences": []}}, {"spec": {"a": 1}}],
)  # fmt: skip
def test_what_cannot_be_put_back_or_changes_nothing_is_refused(patch: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec):
        changes_of({"metadata": {"name": "x"}, "kind": "X", "spec": {"a": 1}}, patch)
    assert changes_of({"metadata": {}}, {"metadata": {"labels": {"a": "b"}}})


def test_a_change_is_shown_shortly() -> None:
    change = Change(path=("spec", "a/b~"), had=False, value="x" * 99)
    assert shown(change).startswith("/spec/a~1b~0: (absent) -> ") and len(shown(change)) < 120


# --- kinds ------------------------------------------------------------------------

POD = Place(resource="pods", namespace="s", name="p")


def pod_object(*images: str) -> dict[str, Any]:
    containers = [{"name": f"c{n}", "image": image} for n, image in enumerate(images)]
    return {"metadata": {"name": "p", "uid": "u", "resourceVersion": "1"},
            "spec": {"containers": containers}}  # fmt: skip


def work(name: str, chosen: Any, spec: dict[str, Any] | None = None, others: Any = ()) -> Any:
    kind = cluster_kinds()[name]
    return kind.work(kind.spec.model_validate(spec or {}), chosen, others)


def test_a_failed_pod_gets_another_image_and_its_own_back() -> None:
    one = pod_object("app:1", "side:2")
    (done,) = work("pod-failure", [(POD, one)]).patched
    after = jsonpatch(one, forward(one, done.changes))
    assert {c["image"] for c in after["spec"]["containers"]} == {"registry.k8s.io/pause:3.10"}
    steps, _ = backward(after, done.changes)
    assert jsonpatch(after, steps) == one
    with pytest.raises(InvalidSpec, match="already"):
        work("pod-failure", [(POD, after)])


def test_a_kill_keeps_the_pods_own_grace_unless_told() -> None:
    assert work("pod-kill", [(POD, pod_object("a"))]).removed[0].grace_s is None
    assert work("pod-kill", [(POD, pod_object("a"))], {"grace": "0s"}).removed[0].grace_s == 0
    with pytest.raises(ValueError):
        work("pod-kill", [], {"grace": "3"})


def test_a_drain_leaves_daemonsets_static_and_completed_pods() -> None:
    node = (Place(resource="nodes", name="n"), {"metadata": {"uid": "u"}, "spec": {}})

    def one(name: str, phase: str = "Running", **meta: Any) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "s", "uid": name, **meta},
                "status": {"phase": phase}}  # fmt: skip

    ds = {"ownerReferences": [{"kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}]}
    mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
    others = pods_on([one("a"), one("b", **ds), one("c", **mirror), one("d", "Succeeded")])
    found = work("node-drain", [node], {}, others)
    assert [r.place.name for r in found.removed] == ["a"] and found.removed[0].evict
    assert found.patched[0].changes[0].pointer == "/spec/unschedulable"
    with pytest.raises(InvalidSpec, match="already"):
        work("node-cordon", [(node[0], {**node[1], "spec": {"unschedulable": True}})])


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", "1", "null", '{"a":'])
def test_a_patch_is_a_json_object(text: str) -> None:
    with pytest.raises(InvalidSpec):
        work("k8s-patch", [(POD, pod_object("a"))], {"object": "Pod/p", "patch": text})


def test_examples_parse() -> None:
    import shlex

    import click

    from controller.cli.inject import InjectGroup

    for kind in cluster_kinds().values():
        words = shlex.split(kind.example)
        command = InjectGroup(name="inject").get_command(
            click.Context(click.Command("x")), words[2]
        )
        assert command is not None
        command.make_context(words[2], words[3:])
        assert kind.collateral and kind.remedies and kind.doc


def test_each_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    from controller.cli.main import run

    for kind in cluster_kinds().values():
        assert run(["explain", kind.name]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert all(" ".join(line.split()) in said for line in (*kind.collateral, *kind.remedies))


# --- the ledger -------------------------------------------------------------------


def entry(name: str, **more: Any) -> Entry:
    change = Change(path=("spec", "x"), had=True, prior=1, value=2)
    patched = (Patched(place=POD, uid="u", changes=(change,)),)
    base = {"id": name, "kind": "k8s-patch", "server": "s", "created": 1.0, "patched": patched}
    return Entry(**{**base, **more})


def test_the_ledger_keeps_what_it_was_told_and_refuses_two_on_one_field(tmp_path: Path) -> None:
    book = Ledger(tmp_path / "l")
    book.begin(entry("f-1"))
    assert book.get("f-1") == entry("f-1") and book.all() == [entry("f-1")]
    with pytest.raises(Conflict, match="f-1"):
        book.begin(entry("f-1"))
    with pytest.raises(Conflict, match="f-1"):
        book.begin(entry("f-2"))
    book.begin(entry("f-3", server="another"))
    book.write(entry("f-1", state="ended"))
    book.begin(entry("f-2"))
    with pytest.raises(UnknownFault):
        book.get("f-9")
    assert (tmp_path / "l").stat().st_mode & 0o777 == 0o700
    (tmp_path / "l" / "f-1.json").write_text(json.dumps({"version": 2}))
    with pytest.raises(FaultError, match="cannot be read"):
        book.all()

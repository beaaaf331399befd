"""Faults on objects that somebody else ends, and those whose maker dies: the same id is once."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from test_kube_act import PLACE, OneNode, cluster, entry

from controller.kube import act, keeper
from controller.kube.ledger import Ledger, Patched
from controller.kube.patches import Change
from nodeagent.model.errors import BackendError, InvalidSpec, Unreachable


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def by(api: OneNode, manager: str, value: Any, at: str = "2026-01-01T00:00:00Z") -> None:
    """Somebody else writes the field; None takes it out."""
    api.node["spec"] = {} if value is None else {"unschedulable": value}
    fields = {"f:spec": {"f:unschedulable": {}}} if value is not None else {}
    one = {"manager": manager, "operation": "Update", "time": at, "fieldsV1": fields}
    status = {"manager": "kubelet", "subresource": "status", "time": "2030-01-01T00:00:00Z"}
    api.node["metadata"]["managedFields"] = [one, status]
    api.touch()


@pytest.mark.parametrize("value", [None, False])
def test_what_somebody_else_took_away_was_remedied_and_by_whom(book: Ledger, value: Any) -> None:
    api = OneNode()
    act.arm(cluster(api), book, entry())
    assert act.look(cluster(api), book, "f-1").state == "armed"
    by(api, "kubectl-edit", value)
    patches = api.patches
    assert act.look(cluster(api), book, "f-1", ends=False).state == "armed", "the keeper only looks"
    since = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    assert act.look(cluster(api), book, "f-1", since).end_reason == "remedied"
    found = book.get("f-1")
    (note,) = (one for one in found.notes if one.name == "remedied")
    assert note.data["by"][0]["manager"] == "kubectl-edit" and note.data["act_ns"] == since
    assert [one.name for one in found.notes] == ["armed", "drifted", "remedied", "ended"]
    assert "kubectl-edit" in found.events[0] and len(found.events) == 1
    assert act.revert(cluster(api), book, "f-1", "reverted").end_reason == "remedied"
    assert api.patches == patches and api.node["spec"].get("unschedulable") is value


def test_the_act_is_as_old_as_the_api_server_says_but_not_older_than_the_last_look(
    book: Ledger,
) -> None:
    api, now = OneNode(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    act.arm(cluster(api), book, entry())
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 5))
    by(api, "kubectl", None, stamp)
    act.look(cluster(api), book, "f-1", now - 60 * 10**9)
    (note,) = (one for one in book.get("f-1").notes if one.name == "remedied")
    assert now - 7 * 10**9 < note.data["act_ns"] < now - 4 * 10**9


@pytest.mark.parametrize("reason", ["reverted", "expired"])
def test_a_revert_of_what_was_repaired_before_it_is_none(book: Ledger, reason: str) -> None:
    api = OneNode()
    act.arm(cluster(api), book, entry())
    by(api, "kubectl", None)
    assert act.revert(cluster(api), book, "f-1", reason).end_reason == "remedied"


def test_a_revert_that_was_cut_short_is_no_remedy(book: Ledger) -> None:
    """It had put the field back when its way to the API server broke."""
    api = OneNode()
    act.arm(cluster(api), book, entry())
    real = api.patch

    def breaking(*args: Any, **query: str) -> None:
        real(*args, **query)
        raise Unreachable("the API server does not answer", "reset")

    api.patch = breaking  # type: ignore[method-assign]
    with pytest.raises(BackendError):
        act.revert(cluster(api), book, "f-1", "reverted")
    assert api.node["spec"] == {}
    assert act.look(cluster(api), book, "f-1").state == "armed"
    assert act.revert(cluster(api), book, "f-1", "expired").end_reason == "expired"


def test_the_same_id_twice_is_the_same_as_once(book: Ledger) -> None:
    api = OneNode()
    assert act.arm_once(cluster(api), book, entry()).state == "armed"
    assert act.arm_once(cluster(api), book, entry(kind="other")).kind == "node-cordon"
    assert api.patches == 1
    act.revert(cluster(api), book, "f-1", "reverted")
    assert act.arm_once(cluster(api), book, entry()).state == "ended" and api.patches == 2


@pytest.mark.parametrize("changed", [False, True])
def test_an_intent_whose_maker_died_is_made_whole(book: Ledger, changed: bool) -> None:
    """Before the change, or after it."""
    api = OneNode()
    book.begin(entry())
    if changed:
        api.node["spec"]["unschedulable"] = True
    assert act.arm_once(cluster(api), book, entry()).state == "armed"
    assert api.node["spec"] == {"unschedulable": True} and api.patches == (0 if changed else 1)
    act.revert(cluster(api), book, "f-1", "reverted")
    assert api.node["spec"] == {}


def test_an_intent_that_somebody_was_faster_than_is_not_made(book: Ledger) -> None:
    api = OneNode()
    api.node["spec"]["unschedulable"] = "theirs"
    change = Change(path=("spec", "unschedulable"), had=True, prior=False, value=True)
    book.begin(entry(patched=(Patched(place=PLACE, uid="u", changes=(change,)),)))
    api.refuse = InvalidSpec("the API server does not take this for nodes", "testing path failed")
    with pytest.raises(InvalidSpec):
        act.arm_once(cluster(api), book, entry())
    assert api.node["spec"] == {"unschedulable": "theirs"}
    assert book.get("f-1").end_reason == "apply-failed"


def test_a_fault_that_was_renewed_just_now_does_not_expire(book: Ledger) -> None:
    """The keeper had read it before, and waited for its lock."""
    api = OneNode()
    act.arm(cluster(api), book, entry())
    assert act.revert(cluster(api), book, "f-1", "expired", due=True).state == "armed"
    assert api.node["spec"] == {"unschedulable": True}


def test_one_keeper_is_enough(book: Ledger) -> None:
    book.begin(entry())
    with book.kept("f-1") as first, book.kept("f-1") as second:
        assert first and not second
        keeper.keep(book, "f-1")  # leaves at once, though the fault lives
    with book.kept("f-1") as again:
        assert again


def test_a_ledger_of_before_is_read(book: Ledger) -> None:
    data = entry().model_dump(mode="json", exclude={"notes", "ending"})
    (book.home / "f-1.json").write_text(json.dumps({**data, "events": ["it went away"]}))
    assert book.get("f-1").events == ["it went away"]


def test_a_ledger_is_the_same_wherever_it_lies(book: Ledger, tmp_path: Path) -> None:
    assert book.identity == Ledger(book.home).identity
    assert Ledger(tmp_path / "other").identity != book.identity and book.all() == []

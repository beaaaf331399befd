"""Faults on objects when somebody dies, is faster, or does not answer in the middle."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from controller.cli import inject_cluster
from controller.kube import act, drift, keeper
from controller.kube.answers import ApiPath
from controller.kube.client import Cluster
from controller.kube.ledger import Entry, Ledger, Patched, Place
from controller.kube.patches import Change
from nodeagent.model.errors import BackendError, FaultError, InvalidSpec, Refused, Unreachable
from nodeagent.model.plan import Lease

PLACE = Place(resource="nodes", name="n1")
CORDON = Change(path=("spec", "unschedulable"), had=False, value=True)


class OneNode:
    """An API server with one Node. `races`: so often somebody writes between a read and a patch;
    `refuse`: what patches are answered with; `patches` counts them."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {}}
        self.races = 0
        self.refuse: FaultError | None = None
        self.patches = 0
        self.server = "https://x"

    def touch(self) -> None:
        self.node["metadata"]["resourceVersion"] += "1"

    def get(self, path: ApiPath) -> dict[str, Any]:
        return copy.deepcopy(self.node)

    def patch(self, path: ApiPath, steps: list[dict[str, Any]], sort: str, **query: str) -> None:
        self.patches += 1
        if self.races:
            self.races -= 1
            self.touch()
        if self.refuse is not None:
            raise self.refuse
        if steps[0]["value"] != self.node["metadata"]["resourceVersion"]:
            raise InvalidSpec("the API server does not take this for nodes", "testing path failed")
        for step in steps[1:]:
            last = step["path"].rsplit("/", 1)[1]
            if step["op"] == "remove":
                del self.node["spec"][last]
            elif step["op"] != "test":
                self.node["spec"][last] = step["value"]
        self.touch()


def cluster(one: OneNode) -> Cluster:
    return cast(Cluster, one)


def entry(name: str = "f-1", **more: Any) -> Entry:
    now = time.time()
    found = {"id": name, "kind": "node-cordon", "server": "https://x", "created": now,
             "lease_s": 60, "until": now + 60, "hard_end": now + 600,
             "patched": (Patched(place=PLACE, uid="u", changes=(CORDON,)),)}  # fmt: skip
    return Entry.model_validate({**found, **more})


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger")


def test_an_object_that_others_write_all_the_time_is_changed_all_the_same(book: Ledger) -> None:
    api = OneNode()
    api.races = 3
    assert act.arm(cluster(api), book, entry()).state == "armed"
    assert api.node["spec"] == {"unschedulable": True} and api.patches == 4


def test_what_the_api_server_does_not_take_is_tried_once_and_told(book: Ledger) -> None:
    api = OneNode()
    api.refuse = InvalidSpec("the API server does not take this for nodes", "spec is immutable")
    with pytest.raises(InvalidSpec, match="immutable"):
        act.arm(cluster(api), book, entry())
    assert api.patches == 1 and book.get("f-1").state == "ended"


def test_a_revert_that_is_refused_says_why(book: Ledger) -> None:
    api = OneNode()
    act.arm(cluster(api), book, entry())
    api.refuse = InvalidSpec("the API server does not take this for nodes", "a webhook says no")
    with pytest.raises(BackendError, match="a webhook says no"):
        act.revert(cluster(api), book, "f-1", "reverted")
    assert book.get("f-1").state == "armed"
    api.refuse, api.races = None, 2
    assert act.revert(cluster(api), book, "f-1", "reverted").state == "ended"
    assert api.node["spec"] == {}


def test_the_keeper_is_there_before_anything_is_changed(book: Ledger) -> None:
    api, seen = OneNode(), []
    act.arm(cluster(api), book, entry(), lambda: seen.append((book.get("f-1").state, api.patches)))
    assert seen == [("intent", 0)]
    gone = entry("f-2", patched=(), removed=())
    act.arm(cluster(api), book, gone, lambda: seen.append(("f-2", 0)))
    assert len(seen) == 1, "what is over at once needs no keeper"


def test_a_fault_whose_maker_died_in_the_middle_ends_with_its_lease(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between ledger and API call, between API call and ledger, or among the evictions."""
    for changed in (False, True):
        api = OneNode()
        if changed:
            api.node["spec"]["unschedulable"] = True
        name = f"f-{int(changed)}"
        book.begin(entry(name, until=time.time() + 0.2))
        monkeypatch.setattr(keeper, "open_cluster", lambda _, found=api: cluster(found))
        keeper.keep(book, name)
        assert book.get(name).end_reason == "expired" and api.node["spec"] == {}


HOLDER = """
import sys, time
from pathlib import Path
from controller.kube.ledger import Ledger
with Ledger(Path(sys.argv[1])).held("f-1"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_the_keeper_waits_for_a_maker_that_lives_and_not_for_one_that_was_killed(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = OneNode()
    api.node["spec"]["unschedulable"] = True
    monkeypatch.setattr(keeper, "open_cluster", lambda _: cluster(api))
    book.begin(entry(until=time.time() - 1))
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(book.home)],
                          stdout=subprocess.PIPE) as maker:  # fmt: skip
        assert maker.stdout is not None and maker.stdout.readline() == b"held\n"
        thread = threading.Thread(target=keeper.keep, args=(book, "f-1"), daemon=True)
        thread.start()
        time.sleep(0.5)
        assert book.get("f-1").state == "intent" and thread.is_alive()
        os.kill(maker.pid, signal.SIGKILL)
        thread.join(20)
    assert book.get("f-1").end_reason == "expired" and api.node["spec"] == {}


def test_a_held_fault_renews_its_lease_through_an_api_server_that_does_not_answer(
    book: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = OneNode()
    found = entry(lease_s=0.3, until=time.time() + 0.3, hard_end=time.time() + 60)
    act.arm(cluster(api), book, found)
    turns = 0

    def lost(*_: Any) -> list[str]:
        nonlocal turns
        turns += 1
        assert book.get("f-1").end > time.time(), "its lease has not passed"
        if turns == 8:
            raise KeyboardInterrupt
        raise Unreachable("the API server at https://x does not answer", "timeout")

    monkeypatch.setattr(drift, "lost", lost)
    inject_cluster._hold(cluster(api), book, found, Lease(duration=timedelta(seconds=1)))
    assert book.get("f-1").end_reason == "reverted" and api.node["spec"] == {}
    assert capsys.readouterr().out.count("does not answer") == 1


def test_a_held_fault_that_was_reverted_elsewhere_is_held_no_longer(book: Ledger) -> None:
    api = OneNode()
    found = entry(hard_end=time.time() + 3600)
    act.arm(cluster(api), book, found)
    act.revert(cluster(api), book, "f-1", "reverted")
    inject_cluster._hold(cluster(api), book, found, Lease())
    assert book.get("f-1").end_reason == "reverted"


def test_an_object_that_is_another_one_now_is_not_changed(book: Ledger) -> None:
    api = OneNode()
    api.node["metadata"]["uid"] = "another"
    with pytest.raises(Refused, match="is gone"):
        act.arm(cluster(api), book, entry())
    assert api.patches == 0

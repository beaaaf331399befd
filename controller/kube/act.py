"""Arming and reverting faults on objects of a cluster, by the ledger; each change read back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from controller.kube.answers import ENDING, ApiPath
from controller.kube.client import JSON_PATCH, Cluster
from controller.kube.ledger import Entry, Ledger, Patched, Removed
from controller.kube.patches import Change, backward, forward, where
from nodeagent.model.errors import BackendError, FaultError, InvalidSpec, Refused

TRIES = 5
"""Times that an object is read anew when somebody changed it in between."""
EVICT_S = 30.0
EVICT_PAUSE_S = 1.0


def arm(
    cluster: Cluster, ledger: Ledger, entry: Entry, begun: Callable[[], object] = lambda: None
) -> Entry:
    """Intent on disk, then the changes, then armed. Raises after all is taken back.

    begun: called between intent and changes, to have somebody who ends it if this process dies.
    """
    with ledger.held(entry.id):
        ledger.begin(entry)
        if entry.patched:
            begun()
        try:
            for one in entry.patched:
                _patch(cluster, one)
            for pod in entry.removed:
                _remove(cluster, pod)
        except FaultError as exc:
            left = _undo(cluster, ledger, entry, "apply-failed")
            if left:
                raise BackendError(
                    f"{entry.kind} failed and could not be taken back whole",
                    f"{exc}; left: {'; '.join(left)}",
                    f"try again: faultctl revert --cluster {entry.id}",
                ) from exc
            raise
        entry.state = "armed" if entry.patched else "ended"
        entry.end_reason = "" if entry.patched else "done"
        ledger.write(entry)
    return entry


def revert(cluster: Cluster, ledger: Ledger, fault_id: str, reason: str) -> Entry:
    """Put back what is still ours. Raises BackendError when something resists."""
    with ledger.held(fault_id):
        entry = ledger.get(fault_id)
        if entry.state == "ended":
            return entry
        left = _undo(cluster, ledger, entry, reason)
    if left:
        raise BackendError(f"{fault_id} was not taken back whole", "; ".join(left), "try again")
    return entry


def _undo(cluster: Cluster, ledger: Ledger, entry: Entry, reason: str) -> list[str]:
    """What resisted; the entry ends when nothing did."""
    left = []
    for one in reversed(entry.patched):
        try:
            entry.events += _restore(cluster, one)
        except FaultError as exc:
            left.append(f"{one.place.shown}: {exc}")
    if not left:
        entry.state, entry.end_reason = "ended", reason
    ledger.write(entry)
    return left


def _patch(cluster: Cluster, one: Patched) -> None:
    """Make the changes and read them back."""
    for attempt in range(TRIES):
        current = cluster.get(one.place.path)
        if current is None or current["metadata"]["uid"] != one.uid:
            raise Refused(f"{one.place.shown} is gone", "it went after it was looked at",
                          "try again")  # fmt: skip
        try:
            cluster.patch(one.place.path, forward(current, one.changes), JSON_PATCH)
            break
        except InvalidSpec:
            # Somebody was faster, a controller with the status for instance; else it is the patch.
            if attempt == TRIES - 1 or not _was_faster(cluster, one, current):
                raise
    current = cluster.get(one.place.path) or {}
    other = [c.pointer for c in one.changes if where(current, c) != "ours"]
    if other:
        raise BackendError(
            f"{one.place.shown} did not keep the change",
            f"{other[0]} is another value at once",
            "a controller or a webhook owns that field: patch what it is made from",
        )


def _restore(cluster: Cluster, one: Patched) -> list[str]:
    """What there is to say about it: fields that are somebody else's now are kept."""
    for _ in range(TRIES):
        current = cluster.get(one.place.path)
        if current is None:
            return [f"{one.place.shown} is gone: nothing to put back"]
        if current["metadata"]["uid"] != one.uid:
            return [f"{one.place.shown} is another object now: left alone"]
        steps, foreign = backward(current, one.changes)
        if steps:
            try:
                cluster.patch(one.place.path, steps, JSON_PATCH)
            except InvalidSpec:
                if not _was_faster(cluster, one, current):
                    raise
            continue  # read back
        return [f"{one.place.shown} {c.pointer} was changed by others: kept" for c in foreign]
    raise BackendError(f"{one.place.shown} changes all the time", f"{TRIES} tries")


def _was_faster(cluster: Cluster, one: Patched, seen: dict[str, Any]) -> bool:
    """Whether the object is another version than the one seen: only its test has failed then."""
    now = cluster.get(one.place.path)
    if now is None:
        return True
    return bool(now["metadata"]["resourceVersion"] != seen["metadata"]["resourceVersion"])


def _remove(cluster: Cluster, pod: Removed) -> None:
    if not pod.evict:
        body: dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if pod.grace_s is not None:
            body["gracePeriodSeconds"] = pod.grace_s
        cluster.delete(pod.place.path, body)
        return
    path = ApiPath("pods", pod.place.namespace, pod.place.name, subresource="eviction")
    meta = {"name": pod.place.name, "namespace": pod.place.namespace}
    eviction: dict[str, Any] = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta,
            "deleteOptions": {"preconditions": {"uid": pod.uid}}}  # fmt: skip
    end = time.monotonic() + EVICT_S
    while True:
        try:
            cluster.create(path, eviction)
            return
        except FaultError as exc:
            if ENDING in exc.what:
                return  # it goes with its namespace
            if "429" not in exc.what:
                raise
            if time.monotonic() > end:
                raise Refused(
                    f"{pod.place.shown} cannot be evicted", exc.why,
                    "a PodDisruptionBudget holds it",
                ) from exc  # fmt: skip
            time.sleep(EVICT_PAUSE_S)


def lost(cluster: Cluster, entry: Entry) -> list[str]:
    """Changes that are no longer there, and who took them away; empty while the fault holds."""
    found = []
    for one in entry.patched:
        current = cluster.get(one.place.path)
        if current is None or current["metadata"]["uid"] != one.uid:
            found.append(f"{one.place.shown} is gone")
            continue
        gone = [change for change in one.changes if where(current, change) != "ours"]
        if gone:
            who = _managers(current, gone)
            found.append(f"{one.place.shown} {gone[0].pointer} was reconciled away by {who}")
    return found


def _managers(current: dict[str, Any], gone: Sequence[Change]) -> str:
    """Who manages the first of the fields now, by managedFields; else the newest writer."""
    fields = current["metadata"].get("managedFields") or []
    owners = [one["manager"] for one in fields if _manages(one.get("fieldsV1"), gone[0])]
    if owners:
        return str(owners[-1])
    newest: dict[str, Any] = max(fields, key=lambda one: str(one.get("time", "")), default={})
    return f"somebody (the newest writer is {newest.get('manager', 'unknown')})"


def _manages(fields: Any, change: Change) -> bool:
    """Whether a FieldsV1 has the path; lists are keyed there, so that they end the search."""
    for part in change.path:
        if isinstance(part, int):
            return isinstance(fields, dict)
        if not isinstance(fields, dict) or f"f:{part}" not in fields:
            return False
        fields = fields[f"f:{part}"]
    return True

"""Arming and reverting faults on objects of a cluster, by the ledger; each change read back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from controller.kube.answers import ENDING, ApiPath
from controller.kube.client import JSON_PATCH, Cluster
from controller.kube.drift import drift
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
        return _made(cluster, ledger, entry, begun)


def arm_once(
    cluster: Cluster, ledger: Ledger, entry: Entry, begun: Callable[[], object] = lambda: None
) -> Entry:
    """As `arm`, where the same id twice is the same as once. An intent whose maker died is made
    whole: of what it says, that which is not there yet."""
    with ledger.held(entry.id):
        known = ledger.find(entry.id)
        if known is None:
            ledger.begin(entry)
            return _made(cluster, ledger, entry, begun)
        if known.state != "intent":
            return known
        return _made(cluster, ledger, known, begun, again=True)


def settled(cluster: Cluster, ledger: Ledger, fault_id: str) -> Entry | None:
    """A fault; of an intent whose maker died, that which it had done, and no more of it. None if
    that is nothing: then it is not there, and can be armed still, or never."""
    with ledger.held(fault_id):
        entry = ledger.get(fault_id)
        if entry.state != "intent":
            return entry
        patched = [(one, _ours(cluster, one)) for one in entry.patched]
        removed = tuple(pod for pod in entry.removed if _left(cluster, pod))
        made = tuple(one.model_copy(update={"changes": ours}) for one, ours in patched if ours)
        if not made and not removed:
            return None
        entry = entry.model_copy(update={"patched": made, "removed": removed})
        _arrived(entry)
        ledger.write(entry)
    return entry


def _ours(cluster: Cluster, one: Patched) -> tuple[Change, ...]:
    current = cluster.get(one.place.path)
    if current is None or current["metadata"]["uid"] != one.uid:
        return ()
    return tuple(change for change in one.changes if where(current, change) == "ours")


def _arrived(entry: Entry) -> None:
    """It is there, or over."""
    entry.note("armed")
    if entry.patched:
        # Evictions take their time: the lease counts from now.
        entry.state, entry.until = "armed", time.time() + entry.lease_s
    else:
        entry.end_as("done")


def _made(
    cluster: Cluster, ledger: Ledger, entry: Entry, begun: Callable[[], object], again: bool = False
) -> Entry:
    if entry.patched:
        begun()
    try:
        for one in entry.patched:
            _patch(cluster, one, again)
        for pod in entry.removed:
            if not (again and _left(cluster, pod)):
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
    _arrived(entry)
    ledger.write(entry)
    return entry


def revert(
    cluster: Cluster, ledger: Ledger, fault_id: str, reason: str, *, due: bool = False
) -> Entry:
    """Put back what is still ours; where nothing is, it ended before, by somebody else's act.
    due: only if its time is over. Raises BackendError when something resists."""
    with ledger.held(fault_id):
        entry = ledger.get(fault_id)
        if entry.state == "ended" or (due and time.time() < entry.end):
            return entry
        if _ended_elsewhere(cluster, ledger, entry):
            return entry
        entry.ending = True
        ledger.write(entry)
        left = _undo(cluster, ledger, entry, reason)
    if left:
        raise BackendError(f"{fault_id} was not taken back whole", "; ".join(left), "try again")
    return entry


def look(
    cluster: Cluster, ledger: Ledger, fault_id: str, since_ns: int = 0, *, ends: bool = True
) -> Entry:
    """What became of an armed fault. A change of ours that is no longer there is an event; when
    none is left, the fault `ends`. since_ns: CLOCK_BOOTTIME, when it was seen to hold."""
    entry = ledger.get(fault_id)
    if entry.state != "armed" or entry.ending or not drift(cluster, entry).parts:
        return entry
    with ledger.held(fault_id):
        entry = ledger.get(fault_id)
        _ended_elsewhere(cluster, ledger, entry, since_ns, ends)
    return entry


def _ended_elsewhere(
    cluster: Cluster, ledger: Ledger, entry: Entry, since_ns: int = 0, ends: bool = True
) -> bool:
    """Notes what became of our changes; whether nothing is left of them, and the fault ended."""
    if entry.state != "armed" or entry.ending:
        return False  # an intent need not have made any, and a revert may have put some back
    found = drift(cluster, entry)
    news = [entry.note("drifted", one.text, **one.data()) for one in found.parts]
    over = found.whole and ends
    if over:
        ours = {one.uid for other in ledger.all() for one in other.removed}
        if found.gone and found.gone <= ours:
            entry.end_as("reverted")  # our own faults removed the objects: nobody repaired it
        else:
            acts = [one.data() for one in found.parts]
            entry.note("remedied", act_ns=found.act_ns(since_ns), by=acts)
            entry.end_as("remedied")
    if any(news) or over:
        ledger.write(entry)
    return over


def _undo(cluster: Cluster, ledger: Ledger, entry: Entry, reason: str) -> list[str]:
    """What resisted; the entry ends when nothing did."""
    left = []
    for one in reversed(entry.patched):
        try:
            for line in _restore(cluster, one):
                entry.note("kept", line)
        except FaultError as exc:
            left.append(f"{one.place.shown}: {exc}")
    if not left:
        entry.end_as(reason)
    ledger.write(entry)
    return left


def _patch(cluster: Cluster, one: Patched, again: bool) -> None:
    """Make the changes and read them back. again: some may be made already."""
    for attempt in range(TRIES):
        current = cluster.get(one.place.path)
        if current is None or current["metadata"]["uid"] != one.uid:
            raise Refused(f"{one.place.shown} is gone", "it went after it was looked at",
                          "try again")  # fmt: skip
        missing = [c for c in one.changes if not again or where(current, c) != "ours"]
        if not missing:
            return
        try:
            _send(cluster, one, forward(current, missing))
            break
        except InvalidSpec:
            # Somebody was faster, a controller with the status for instance; else it is the patch.
            if attempt == TRIES - 1 or not _was_faster(cluster, one, current):
                raise
    _check_kept(one, cluster.get(one.place.path) or {})


def try_out(cluster: Cluster, work: Sequence[Patched]) -> None:
    """Asks the API server what it would say to the changes, and to keep none (dryRun). Raises
    InvalidSpec, Refused, or BackendError where it would not keep them."""
    for one in work:
        current = cluster.get(one.place.path)
        if current is None:
            raise Refused(f"{one.place.shown} is gone", "it went while it was looked at")
        steps = forward(current, one.changes)[1:]  # its version does not matter
        try:
            answer = cluster.patch(one.place.path, steps, JSON_PATCH, fieldManager=one.manager,
                                   dryRun="All")  # fmt: skip
        except InvalidSpec as exc:
            if "dry run" in str(exc):
                continue  # a webhook with side effects stands in the way; the real patch will tell
            raise
        _check_kept(one, answer)


def _check_kept(one: Patched, current: dict[str, Any]) -> None:
    other = [c.pointer for c in one.changes if where(current, c) != "ours"]
    if other:
        raise BackendError(
            f"{one.place.shown} did not keep the change",
            f"{other[0]} is another value at once",
            "a controller or a webhook owns that field: patch what it is made from",
        )


def _send(cluster: Cluster, one: Patched, steps: list[dict[str, Any]]) -> None:
    cluster.patch(one.place.path, steps, JSON_PATCH, fieldManager=one.manager)


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
                _send(cluster, one, steps)
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


def _left(cluster: Cluster, pod: Removed) -> bool:
    """Whether a pod that is to go has gone, or is going."""
    current = cluster.get(pod.place.path)
    if current is None or current["metadata"]["uid"] != pod.uid:
        return True
    return "deletionTimestamp" in current["metadata"]


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

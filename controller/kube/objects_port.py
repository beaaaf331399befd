"""The cluster's own objects as a node of a run: what an agent does elsewhere is done here.

The journal is the ledger of this user, and each armed fault has a keeper. Choosing what is hit
reads the cluster at that moment; a plan's digest is over what would be changed and its values.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import NoReturn

from controller.clock import boottime_ns
from controller.experiment_objects import SCHEME
from controller.kube import act, keeper
from controller.kube.admission import check_policy
from controller.kube.answers import ApiPath
from controller.kube.client import Cluster
from controller.kube.kinds import Work, cluster_kinds, lines_of
from controller.kube.ledger import Entry, Ledger, Note
from controller.kube.object_steps import ChosenFor, chosen_for, steps_of
from controller.kube.ways import Ways
from controller.records import NodeRecord
from controller.run_state import FaultView, NodeEvent
from nodeagent.model.errors import (
    BackendError,
    Conflict,
    InvalidSpec,
    Refused,
    StalePlan,
    UnknownFault,
)
from nodeagent.model.plan import FaultRequest, Lease, Plan
from nodeagent.model.policy import NODE

MECHANISM = "kube-api"


@contextmanager
def _journaling() -> Iterator[None]:
    """A disk that is full is an error that a run can live with: its keepers do."""
    try:
        yield
    except OSError as exc:
        raise BackendError(
            "the journal of faults on objects cannot be used", str(exc.strerror or exc),
            "make room; what is armed is ended by its keeper",
        ) from exc  # fmt: skip


class ObjectsPort:
    """NodePort over the API server and the ledger. Threads share it."""

    def __init__(self, cluster: Cluster, ledger: Ledger, ways: Ways) -> None:
        self.url = SCHEME + cluster.server
        self._cluster, self._ledger, self._ways = cluster, ledger, ways
        self._mutex = threading.Lock()
        self._ids: set[str] = set()
        """Of this run's faults, as far as they were named here."""
        self._held: dict[str, int] = {}
        """When a fault was seen to hold; CLOCK_BOOTTIME."""
        self._told: dict[str, int] = {}
        self._log: list[NodeEvent] = []
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def client(self) -> NoReturn:
        """Only agents have one."""
        raise InvalidSpec("no agent stands behind a cluster's objects", "no process runs there")

    def record(self, name: str, t_ns: int, wall: str) -> NodeRecord:
        """What it is, for the record. Raises Unreachable."""
        self._alive()
        kinds = {kind: {MECHANISM: ""} for kind in cluster_kinds()}
        return NodeRecord(t_ns=t_ns, wall=wall, node=name, address=self.url, agent_version="",
                          facts={}, kinds=kinds)  # fmt: skip

    # --- NodePort ---------------------------------------------------------------------------

    @_journaling()
    def plan(self, request: FaultRequest) -> tuple[Plan, str]:
        """See NodePort."""
        chosen = self._chosen(request, None)
        plan = self._plan(request, chosen)
        known = self._ledger.find(request.id)
        if known is None:
            self._ledger.check_free(self._entry(request, Lease(), chosen))
        return plan, plan.digest

    @_journaling()
    def apply(self, request: FaultRequest, lease: Lease, digest: str) -> FaultView:
        """See NodePort."""
        known = self._ledger.find(request.id)
        if known is not None and (known.kind, known.server) != (request.kind, self._cluster.server):
            raise Conflict(
                f"there is another fault {request.id}", f"{known.kind} at {known.server}"
            )
        entry = known
        if entry is None:
            chosen = self._chosen(request, lease.hard_end)
            if self._plan(request, chosen).digest != digest:
                raise StalePlan("what the fault would change is other than it was", "plan again")
            entry = self._entry(request, lease, chosen)
        return self._armed(entry)

    @_journaling()
    def renew(self, fault_id: str) -> FaultView:
        """See NodePort."""
        self._ids.add(fault_id)
        entry = self._ledger.renew(fault_id)
        if entry.state == "armed":
            self._keep(entry)  # the one of a controller that is gone may be gone with it
        return self._view(entry)

    @_journaling()
    def revert(self, fault_id: str, remedy: str) -> FaultView:
        """See NodePort."""
        self._ids.add(fault_id)
        reason = "remedied" if remedy else "reverted"
        since = self._held.get(fault_id, 0)
        act.look(self._cluster, self._ledger, fault_id, since)
        return self._view(act.revert(self._cluster, self._ledger, fault_id, reason))

    @_journaling()
    def fault(self, fault_id: str) -> FaultView:
        """See NodePort. One whose maker died in the middle has what it had done by then; one that
        had done nothing is not there."""
        self._ids.add(fault_id)
        entry = self._ledger.get(fault_id)
        if entry.state == "intent":
            found = act.settled(self._cluster, self._ledger, fault_id)
            if found is None:
                raise UnknownFault(f"{fault_id} was never made", "its controller died before it")
            entry = found
            if entry.state == "armed":
                self._keep(entry)
        return self._view(entry)

    @_journaling()
    def events(self, after: int) -> list[NodeEvent]:
        """See NodePort. Looks at every armed fault of the run, and so at what became of it."""
        with self._mutex:
            self._reap()
            for name in sorted(self._ids):
                entry = self._ledger.find(name)
                if entry is not None and self._told.get(name, 0) >= 0:
                    self._collect(self._looked(entry))
            return [event for event in self._log if event.seq > after]

    def clock(self) -> tuple[int, int, int]:
        """See NodePort. The faults live by this machine's clock; the API server has to answer."""
        self._alive()
        return boottime_ns(), 0, 0

    def close(self) -> None:
        """See NodePort. Keepers of faults that live stay."""
        self._reap()

    # --- below --------------------------------------------------------------------------------

    def _chosen(self, request: FaultRequest, hard_end: timedelta | None) -> ChosenFor:
        self._ids.add(request.id)
        kind = cluster_kinds()[request.kind]
        chosen = chosen_for(self._cluster, kind, request.target, request.spec, request.acknowledge)
        spaces = [place.namespace or NODE for place in chosen.places]
        allowed = [(kind.name, space, hard_end) for space in spaces]
        check_policy(self._cluster, self._ways.policy, allowed)
        return chosen

    def _plan(self, request: FaultRequest, chosen: ChosenFor) -> Plan:
        kind = cluster_kinds()[request.kind]
        return Plan(
            id=request.id,
            kind=request.kind,
            target=request.target,
            spec=request.spec,
            binding={"namespace": chosen.namespace},
            mechanism=MECHANISM,
            why="the only one",
            steps=steps_of(chosen.found.work),
            guards=request.acknowledge,
            collateral=kind.collateral,
            remedies=kind.remedies,
            notes=chosen.found.lines,
        )

    def _entry(self, request: FaultRequest, lease: Lease, chosen: ChosenFor) -> Entry:
        now, file = time.time(), self._ways.kubeconfig
        return Entry(
            id=request.id,
            kind=request.kind,
            server=self._cluster.server,
            kubeconfig=str(file.resolve()) if file else None,
            context=self._ways.context,
            created=now,
            lease_s=lease.duration.total_seconds(),
            until=now + lease.duration.total_seconds(),
            hard_end=now + lease.hard_end.total_seconds(),
            patched=chosen.found.work.patched,
            removed=chosen.found.work.removed,
        )

    def _armed(self, entry: Entry) -> FaultView:
        keep = partial(self._keep, entry)
        found = act.arm_once(self._cluster, self._ledger, entry, keep)
        self._held[entry.id] = boottime_ns()
        return self._view(found)

    def _keep(self, entry: Entry) -> None:
        if entry.id not in self._keepers:
            self._keepers[entry.id] = keeper.start(self._ledger, entry)

    def _reap(self) -> None:
        for process in list(self._keepers.values()):
            process.poll()

    def _looked(self, entry: Entry) -> Entry:
        if entry.state != "armed":
            return entry
        now = boottime_ns()
        found = act.look(self._cluster, self._ledger, entry.id, self._held.get(entry.id, 0))
        if found.state == "armed":
            self._held[entry.id] = now
        return found

    def _collect(self, entry: Entry) -> None:
        """What is new of a fault, numbered as it is seen here."""
        seen = self._told.get(entry.id, 0)
        for note in entry.notes[seen:]:
            self._log.append(_event(len(self._log) + 1, entry.id, note))
        self._told[entry.id] = -1 if entry.state == "ended" else len(entry.notes)

    def _alive(self) -> None:
        try:
            self._cluster.get(ApiPath("namespaces", name="kube-system"))
        except Refused:
            return  # it has answered

    @staticmethod
    def _view(entry: Entry) -> FaultView:
        state = "applying" if entry.state == "intent" else entry.state
        removed = len(entry.removed) if entry.state != "intent" else 0
        hits = 0 if entry.end_reason == "apply-failed" else removed
        evidence = {
            "hits": hits,
            "changes": lines_of(Work(entry.patched, entry.removed)),
            "notes": [note.model_dump(mode="json", exclude={"wall"}) for note in entry.notes],
        }
        return FaultView(entry.id, state, entry.end_reason, MECHANISM, hits > 0, hits, None,
                         evidence)  # fmt: skip


def _event(seq: int, fault: str, note: Note) -> NodeEvent:
    text = {"text": note.text} if note.text else {}
    return NodeEvent(seq, fault, note.name, note.ns, note.wall, {**text, **note.data})

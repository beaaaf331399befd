"""Evidence as it is now, and the keeper of leases."""

from __future__ import annotations

import logging
import threading

from nodeagent.backends import Registry
from nodeagent.clock import lease_ns, wait_s
from nodeagent.executor import Executor
from nodeagent.journal import Journal
from nodeagent.log import about
from nodeagent.model.errors import FaultError
from nodeagent.model.evidence import Evidence
from nodeagent.model.kind import Measured
from nodeagent.model.record import EndReason, FaultRow, FaultState, StepState

MAX_BACKOFF_NS = 30_000_000_000
FIRST_BACKOFF_NS = 100_000_000
LOG = logging.getLogger(__name__)


def collect(executor: Executor, journal: Journal, backends: Registry, fault: FaultRow) -> Evidence:
    """The evidence of a fault as it is now."""
    kind, spec, _ = executor.kind_and_plan(fault)
    measured = []
    for row in journal.steps(fault.id):
        data = dict(row.outcome)
        if row.state is StepState.APPLIED:
            data |= backends.of(row.step).measure(fault.id, row.step, row.prior)
        measured.append(Measured(row.step, data))
    return kind.evidence(spec, tuple(measured))


class LeaseKeeper:
    """Ends faults whose lease or hard end has passed, and retries reverts that failed.

    Sleeps until the next deadline; an idle agent is not woken at all.
    """

    def __init__(self, executor: Executor, journal: Journal) -> None:
        self._executor = executor
        self._journal = journal
        self._stop = False
        self._retries: dict[str, tuple[int, int]] = {}
        """Fault id -> failed attempts of ours, time of the next one."""
        self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it."""
        with self._journal.changed:
            self._stop = True
            self._journal.changed.notify_all()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._journal.changed:
                if self._stop:
                    return
                due, seconds = self._due()
                if not due:
                    self._journal.changed.wait(seconds)
                    continue
            for fault in due:
                self._end(fault)

    def _due(self) -> tuple[list[FaultRow], float | None]:
        now = lease_ns()
        due: list[FaultRow] = []
        times: list[int] = []
        for fault in self._journal.faults(active_only=True):
            at = self._when(fault)
            if at <= now:
                due.append(fault)
            else:
                times.append(at)
        return due, wait_s(min(times) - now) if times else None

    def _when(self, fault: FaultRow) -> int:
        retry = self._retries.get(fault.id)
        if retry is not None:
            return retry[1]
        if fault.state is FaultState.REVERTING and fault.error:
            return 0  # somebody else's attempt has failed
        return fault.deadline_ns

    def _end(self, fault: FaultRow) -> None:
        reason = fault.end_reason or EndReason.EXPIRED
        try:
            # What could not be taken back in full before is not armed, whatever its lease.
            again = fault.id in self._retries
            self._executor.revert(fault.id, reason, only_due=not again)
            self._retries.pop(fault.id, None)
        except FaultError as exc:
            LOG.error("is not reverted yet, and tried again", extra=about(fault.id, str(exc)))
            tries, _ = self._retries.get(fault.id, (0, 0))
            backoff = min(FIRST_BACKOFF_NS << min(tries, 20), MAX_BACKOFF_NS)
            self._retries[fault.id] = (tries + 1, lease_ns() + backoff)

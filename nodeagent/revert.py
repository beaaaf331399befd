"""Taking faults back from the journal: one way for a revert, a lease's end, agent, guardian."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from nodeagent.backends import Peer, Registry, Unwinds
from nodeagent.clock import Laps, boot_id, boottime_ns
from nodeagent.crashpoint import crashpoint
from nodeagent.journal import Journal
from nodeagent.model.errors import BackendError, FaultError, ForeignState
from nodeagent.model.record import (
    CERTAIN,
    EndReason,
    FaultRow,
    FaultState,
    StepRow,
    StepState,
)
from nodeagent.model.steps import Status, StepBase


@dataclass(frozen=True)
class StepResult:
    """How one step of a revert went: `reverted`, `already` (as before, or gone), or an error."""

    index: int
    result: str
    error: str = ""


class Reverter:
    """Reverts faults. Its caller holds the mutation lock.

    live_epoch: the epoch of the process that still holds the ephemeral parts (BPF links);
    None in the guardian, for which they are all gone with the agent.
    """

    def __init__(self, journal: Journal, backends: Registry, live_epoch: int | None) -> None:
        self._journal = journal
        self._backends = backends
        self._live_epoch = live_epoch

    def peers(self, row: StepRow) -> list[Peer]:
        """Other steps on the same key, oldest first."""
        return peers_of(self._journal, row.key, row.seq)

    def status(self, fault: FaultRow, row: StepRow) -> tuple[Status, StepBase]:
        """What the kernel shows of a step, and which form of it (a reaction may be under way)."""
        forms = [row.step] if row.next_step is None else [row.next_step, row.step]
        if self._is_gone(fault, row.step):
            return Status.GONE, forms[-1]
        status = Status.FOREIGN
        for form in forms:
            status = self._backends.of(form).status(form, row.prior, self.peers(row))
            if status is not Status.FOREIGN:
                return status, form
        return status, forms[-1]

    def _is_gone(self, fault: FaultRow, step: StepBase) -> bool:
        if fault.boot_id != boot_id():
            return not step.survives_boot
        return step.ephemeral and fault.epoch != self._live_epoch

    def revert(self, fault: FaultRow, reason: EndReason) -> list[StepResult]:
        """Take a fault back, last step first, and read every step back.

        Raises the first error after all steps were tried; the fault then stays
        `reverting` with its error in the journal, for the next attempt.
        """
        if fault.end_reason is not EndReason.AGENT_LOST or reason is not EndReason.REBOOTED:
            # The first cause stands, whoever tries again; but an orderly reboot ends the agent.
            reason = fault.end_reason or reason
        laps = Laps()
        self._mark_reverting(fault, reason)
        laps.done("mark")
        results: list[StepResult] = []
        errors: list[FaultError] = []
        for row in reversed(self._steps(fault)):
            if row.state is StepState.REVERTED:
                continue
            try:
                results.append(StepResult(row.index, self._try_step(fault, row)))
            except FaultError as exc:
                errors.append(exc)
                results.append(StepResult(row.index, "error", str(exc)))
        if errors:
            self._note_failure(fault, errors[0])
            raise errors[0]
        laps.done("steps")
        self._journal.set_state(
            fault.id,
            FaultState.ENDED,
            {
                "reason": reason,
                "steps": [r.__dict__ for r in results],
                "took_us": laps.took_us,
            },
            end_reason=reason,
            ended_ns=boottime_ns(),
            error="",
        )
        return results

    def _mark_reverting(self, fault: FaultRow, reason: EndReason) -> None:
        if fault.state is FaultState.REVERTING:
            return
        # A full disk must not keep a fault in the kernel: the armed row is enough
        # to try again from, and every step is idempotent.
        with suppress(BackendError):
            self._journal.set_state(fault.id, FaultState.REVERTING, end_reason=reason)

    def _steps(self, fault: FaultRow) -> list[StepRow]:
        try:
            return self._journal.steps(fault.id)
        except FaultError as exc:
            self._note_failure(fault, exc)
            raise

    def _note_failure(self, fault: FaultRow, error: FaultError) -> None:
        with suppress(BackendError):
            self._journal.update_fault(fault.id, error=str(error), attempts=fault.attempts + 1)

    def _try_step(self, fault: FaultRow, row: StepRow) -> str:
        try:
            return self._revert_step(fault, row)
        except FaultError:
            raise
        except Exception as exc:  # a bug in one step must not keep the others in the kernel
            said = str(exc) if isinstance(exc, OSError) else repr(exc)
            raise BackendError(f"step {row.index} of {fault.id} was not reverted", said) from exc

    def _unwind(self, fault: FaultRow, row: StepRow) -> None:
        """A reaction that was cut short may have left something between its two forms."""
        if row.next_step is None or self._is_gone(fault, row.step):
            return
        backend = self._backends.of(row.step)
        if isinstance(backend, Unwinds):
            backend.unwind(row.step, row.next_step, row.prior, self.peers(row))

    def _revert_step(self, fault: FaultRow, row: StepRow) -> str:
        self._unwind(fault, row)
        status, form = self.status(fault, row)
        if status is Status.FOREIGN:
            raise ForeignState(
                f"step {row.index} of {fault.id} was not reverted",
                f"{form.key()} is neither as it was before nor as the fault left it",
                "look at it, put it right by hand, then: faultctl revert " + fault.id,
            )
        if status is Status.OURS:
            self._mark_step(row, StepState.REVERTING)
            backend = self._backends.of(form)
            backend.undo(fault.id, form, row.prior, self.peers(row))
            crashpoint(f"undo:{row.index}:after")
            after, _ = self.status(fault, row)
            if after not in (Status.PRIOR, Status.GONE):
                raise BackendError(
                    f"step {row.index} of {fault.id} was not reverted",
                    f"read back after the undo, {form.key()} is {after}",
                )
        self._mark_step(row, StepState.REVERTED)
        return "reverted" if status is Status.OURS else "already"

    def _mark_step(self, row: StepRow, state: StepState) -> None:
        with suppress(BackendError):  # as in _mark_reverting
            self._journal.set_step(row, state)

    def revert_all(self, reason: EndReason, max_epoch: int) -> list[tuple[str, str]]:
        """Revert every active fault of this epoch and older ones, the youngest first.

        (fault id, error) of those that resist. A successor's faults are not touched.
        """
        failed: list[tuple[str, str]] = []
        for fault in reversed(self._journal.faults(active_only=True)):
            if fault.epoch > max_epoch:
                continue
            why = reason if fault.boot_id == boot_id() else EndReason.REBOOTED
            try:
                self.revert(fault, why)
            except FaultError as exc:
                failed.append((fault.id, str(exc)))
        return failed


def peers_of(journal: Journal, key: str, without_seq: int | None = None) -> list[Peer]:
    """Steps that hold a key, oldest first; without those that a reboot took back."""
    return [
        Peer(
            fault_id=row.fault_id,
            seq=row.seq,
            step=row.step,
            next_step=row.next_step,
            prior=row.prior,
            certain=row.state in CERTAIN and row.next_step is None,
        )
        for row in journal.active_steps([key])
        if row.seq != without_seq and _is_of_this_boot(journal, row)
    ]


def _is_of_this_boot(journal: Journal, row: StepRow) -> bool:
    return row.step.survives_boot or journal.fault(row.fault_id).boot_id == boot_id()

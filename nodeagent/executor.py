"""The one way of a fault on a node: plan, apply, react, revert; everything through the journal."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from nodeagent.clock import Laps, boot_id, boottime_ns, lease_ns, wall
from nodeagent.crashpoint import crashpoint
from nodeagent.executor_parts import Node
from nodeagent.faults import kind_named
from nodeagent.model.errors import BackendError, Conflict, FaultError, Refused, StalePlan
from nodeagent.model.kind import FaultKind, FaultSpec
from nodeagent.model.plan import FaultRequest, Lease, Plan, plan_from_data
from nodeagent.model.planner import make_plan, parse_request
from nodeagent.model.record import LIVING, EndReason, FaultRow, FaultState, StepState
from nodeagent.model.steps import Status, StepBase
from nodeagent.revert import Reverter, StepResult, peers_of


def _always() -> bool:
    return True


class Executor:
    """Applies and reverts faults on this node, one mutation at a time."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._journal = node.journal
        self._mutex = threading.RLock()
        self._reverter = Reverter(node.journal, node.backends, node.epoch)
        self.before_revert: Callable[[FaultRow], None] | None = None
        """Keeps the evidence of an armed fault before what counts it goes away."""
        self.after_begin: Callable[[], None] | None = None
        """Tells the guardian of a new deadline: it counts from the intent, not from armed."""
        self.before_begin: Callable[[], None] | None = None
        """Raises Refused when nothing may be armed any more; no mutation comes in between."""

    @contextmanager
    def mutation(self) -> Iterator[None]:
        """The right to change the kernel. Raises Refused when a newer agent has taken over."""
        with self._mutex, self._node.lock.held():
            self._check_epoch()
            yield

    def _check_epoch(self) -> None:
        now = self._journal.epoch()
        if now != self._node.epoch:
            raise Refused(
                "this agent no longer owns the node",
                f"epoch {now} has taken over from {self._node.epoch}",
                "talk to the newer agent",
            )

    # --- plan -------------------------------------------------------------------

    def plan(self, request: FaultRequest) -> Plan:
        """What would be done; touches nothing. Raises InvalidSpec or Refused."""
        kind = kind_named(request.kind)
        target, spec = parse_request(kind, request)
        facts = self._node.facts()
        placed = self._node.place(kind, target)
        binding = self._node.bind(kind, request.id, placed.target, spec, facts)
        plan = make_plan(kind, request, target, spec, binding, facts, placed)
        self._check_conflicts(plan)
        return plan

    def _check_conflicts(self, plan: Plan) -> None:
        for step in plan.steps:
            for peer in peers_of(self._journal, step.key()):
                if peer.fault_id == plan.id:
                    continue
                if step.composes and peer.step.composes and not step.overlaps(peer.step):
                    continue
                raise Conflict(
                    f"{plan.kind} conflicts with the armed fault {peer.fault_id}",
                    f"both would change {step.key()}",
                    f"revert it first: faultctl revert {peer.fault_id}",
                )

    # --- apply ------------------------------------------------------------------

    def apply(
        self, request: FaultRequest, lease: Lease, digest: str, wanted: Callable[[], bool] = _always
    ) -> FaultRow:
        """Make a plan true. Applying the same id again gives the fault that is there.

        wanted: whether the caller still waits; what waited too long for its turn is not begun.
        Raises StalePlan if the plan would be another one now, Conflict, Refused, or
        BackendError after everything that was begun has been taken back.
        """
        if self._node.backends.slow() and self._journal.find_fault(request.id) is None:
            self._prepare(request)
        with self.mutation():
            existing = self._journal.find_fault(request.id)
            if existing is not None:
                return self._same(existing, digest)
            laps = Laps()
            plan = self.plan(request)
            laps.done("plan")
            if plan.digest != digest:
                raise StalePlan(
                    f"the plan of {request.id} is not what was asked to apply",
                    f"its digest is {plan.digest[:12]} now, {digest[:12]} was asked",
                    "plan again and look at it",
                )
            observed = self._observe(plan)
            laps.done("observe")
            self._check_wanted(request.id, wanted)
            fault = self._begin(request, lease, plan, observed)
            laps.done("intent")
            with self._undone_when_it_fails(fault):
                self._apply_steps(plan)
                laps.done("steps")
                armed = {"mechanism": plan.mechanism, "took_us": laps.took_us}
                self._journal.set_state(fault.id, FaultState.ARMED, armed, armed_ns=boottime_ns())
            return self._journal.fault(fault.id)

    @staticmethod
    def _same(existing: FaultRow, digest: str) -> FaultRow:
        why = "another fault with this id is in the journal"
        if existing.digest == digest:
            if existing.state in LIVING:
                return existing
            why = f"the fault is {existing.state} ({existing.end_reason})"
        raise Conflict(f"the id {existing.id} is taken", why, "choose another --id")

    def _check_wanted(self, fault_id: str, wanted: Callable[[], bool]) -> None:
        if self.before_begin is not None:
            self.before_begin()
        if not wanted():
            raise Refused(f"{fault_id} was not applied", "its caller waits no more", "try again")

    def _prepare(self, request: FaultRequest) -> None:
        """What may take minutes (a compiler), without the lock."""
        steps: tuple[StepBase, ...] = ()
        with suppress(FaultError):  # another mutation may be half done: it is planned again
            steps = self.plan(request).steps
        with self._rejection_noted(request.id):
            self._node.backends.prepare(steps)

    def _observe(self, plan: Plan) -> list[tuple[StepBase, dict[str, Any]]]:
        return [(step, self._observe_one(plan.id, step)) for step in plan.steps]

    def _observe_one(self, fault_id: str, step: StepBase) -> dict[str, Any]:
        peers = peers_of(self._journal, step.key())
        with self._rejection_noted(fault_id):
            return self._node.backends.of(step).observe(fault_id, step, peers)

    @contextmanager
    def _rejection_noted(self, fault_id: str) -> Iterator[None]:
        try:
            yield
        except FaultError as exc:
            if exc.log:
                found = {"error": str(exc), "log": exc.log}
                self._journal.event(fault_id, "program-rejected", found)
            raise

    def _begin(
        self,
        request: FaultRequest,
        lease: Lease,
        plan: Plan,
        observed: list[tuple[StepBase, dict[str, Any]]],
    ) -> FaultRow:
        now = lease_ns()
        duration_ns = _ns(lease.duration)
        fault = FaultRow(
            id=plan.id,
            kind=plan.kind,
            state=FaultState.APPLYING,
            plan=plan.model_dump(mode="json"),
            digest=plan.digest,
            owner=request.owner,
            epoch=self._node.epoch,
            boot_id=boot_id(),
            lease_ns=duration_ns,
            lease_until_ns=now + duration_ns,
            hard_end_ns=now + _ns(lease.hard_end),
            created=wall(),
        )
        self._journal.begin(fault, observed)
        if self.after_begin is not None:
            self.after_begin()
        return fault

    def _apply_steps(self, plan: Plan) -> None:
        for row in self._journal.steps(plan.id):
            backend = self._node.backends.of(row.step)
            peers = self._reverter.peers(row)
            outcome = backend.apply(plan.id, row.step, row.prior, peers)
            crashpoint(f"apply:{row.index}:after")
            status = backend.status(row.step, row.prior, peers)
            if status is not Status.OURS and not row.step.observes:
                raise BackendError(
                    f"{plan.kind} was not armed",
                    f"read back after it was applied, {row.key} is {status}, not ours",
                )
            self._journal.set_step(row, StepState.APPLIED, outcome)

    @contextmanager
    def _undone_when_it_fails(self, fault: FaultRow) -> Iterator[None]:
        """Partial application is undone at once, whatever went wrong, our own bugs too."""
        try:
            yield
        except BaseException as exc:
            self._undo_failed(fault, exc)
            raise

    def _undo_failed(self, fault: FaultRow, cause: BaseException) -> None:
        with suppress(BackendError):  # a journal that is full must not keep it in the kernel
            log = {"log": cause.log} if isinstance(cause, FaultError) and cause.log else {}
            self._journal.event(fault.id, "apply-failed", {"error": str(cause), **log})
        try:
            self._reverter.revert(self._journal.fault(fault.id), EndReason.FAILED)
        except FaultError as exc:
            # The fault stays `reverting`; the lease keeper tries again.
            cause.add_note(f"and taking it back failed: {exc}")
            return
        with suppress(BackendError):
            self._journal.update_fault(fault.id, error=str(cause))

    # --- afterwards ---------------------------------------------------------------

    def renew(self, fault_id: str) -> FaultRow:
        """Word from the owner: the lease starts anew. Raises UnknownFault, Refused.

        Waits for no mutation, so that a slow one cannot let a lease end.
        """
        self._check_epoch()
        until = lease_ns() + self._journal.fault(fault_id).lease_ns
        # One write: a revert that has begun since is not told to go on living.
        given = self._journal.update_fault(fault_id, only_in=LIVING, lease_until_ns=until)
        fault = self._journal.fault(fault_id)
        if not given:
            raise Refused(
                f"the lease of {fault_id} cannot be renewed",
                f"the fault is {fault.state} ({fault.end_reason or 'no reason yet'})",
            )
        return fault

    def revert(
        self, fault_id: str, reason: EndReason = EndReason.REVERTED, *, only_due: bool = False
    ) -> list[StepResult]:
        """Take a fault back; twice is the same as once. Raises UnknownFault, ForeignState, ...

        only_due: not if it got a new lease while this waited for its turn.
        """
        with self.mutation():
            fault = self._journal.fault(fault_id)
            if not fault.active or (only_due and not fault.due(lease_ns())):
                return []
            if self.before_revert is not None and fault.state is FaultState.ARMED:
                self.before_revert(fault)
            return self._reverter.revert(fault, reason)

    def recover(self) -> list[tuple[str, str]]:
        """At the agent's start: take back whatever an earlier agent or boot left behind."""
        with self.mutation():
            return self._reverter.revert_all(EndReason.AGENT_LOST, self._node.epoch)

    def replace_step(self, fault_id: str, index: int, new: StepBase) -> None:
        """Change one applied step in place, intent first (a reaction such as healing)."""
        with self.mutation():
            if self._journal.fault(fault_id).state is not FaultState.ARMED:
                return
            row = self._journal.steps(fault_id)[index]
            if row.step == new:
                return
            backend = self._node.backends.of(new)
            self._journal.change_step(row, new)
            changing = row.model_copy(update={"next_step": new})
            try:
                backend.apply(fault_id, new, row.prior, self._reverter.peers(row))
                crashpoint("change:applied")
            finally:
                fault = self._journal.fault(fault_id)
                status, form = self._reverter.status(fault, changing)
                if status is Status.OURS:
                    self._journal.settle_step(row, form)
            if status is not Status.OURS or form != new:
                raise BackendError(
                    f"step {index} of {fault_id} was not changed", f"read back, it is {status}"
                )

    def kind_and_plan(self, fault: FaultRow) -> tuple[FaultKind, FaultSpec, Plan]:
        """The kind, spec and plan of a fault in the journal."""
        plan = plan_from_data(json.loads(json.dumps(fault.plan)))
        kind = kind_named(fault.kind)
        return kind, kind.spec.model_validate(plan.spec), plan


def _ns(value: Any) -> int:
    return int(value.total_seconds() * 1_000_000_000)

"""The agent put together: journal, lock, backends, guardian, lease keeper, reactor."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nodeagent.backends import Registry, Runtime, load_backends
from nodeagent.backends.dm_probes import sweep_probes
from nodeagent.backends.dmctl import read_table
from nodeagent.bind.exposed import exposed
from nodeagent.bind.node import Node as BindNode
from nodeagent.binder import PROTECTED, Binder
from nodeagent.clock import boot_id
from nodeagent.eventlog import EventLog
from nodeagent.executor import Executor
from nodeagent.executor_parts import Node
from nodeagent.facts import load_modules, read_facts
from nodeagent.journal import Journal
from nodeagent.model.bpf import Wanted
from nodeagent.model.errors import BackendError, FaultError, Refused
from nodeagent.model.evidence import Evidence, NodeEvent
from nodeagent.model.exposure import Exposure
from nodeagent.model.facts import Facts
from nodeagent.model.plan import FaultRequest, Lease, Plan
from nodeagent.model.record import EndReason, FaultRow, FaultState
from nodeagent.policyfile import PolicyFile
from nodeagent.reactor import Reactor
from nodeagent.revert import Reverter, StepResult, peers_of
from nodeagent.statedir import MutationLock, OwnerLock, open_state_dir
from nodeagent.ward import Ward
from nodeagent.watcher import LeaseKeeper, collect

MACHINE_ID = Path("/etc/machine-id")
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentConfig:
    """How an agent runs; frozen, apart from its working state."""

    state_dir: Path
    protect: tuple[str, ...] = ()
    modprobe: bool = True
    bpf_loader: Wanted = "auto"
    tls_ca: str = ""
    """CA file of the clients, when it listens on TCP."""
    may_reboot: bool = False
    """Whether kinds that take the node down are allowed."""
    policy: Path | None = None
    """Who may inject what (nodeagent.model.policy); without, whoever can call."""
    log_format: str = "text"
    """Of the guardian's lines (nodeagent.log.FORMS)."""


class Agent:
    """One node's agent. Start it once; `close` reverts everything."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        state_dir = open_state_dir(config.state_dir)
        self._owner = OwnerLock(state_dir)
        self.journal = Journal(state_dir)
        self._lock = MutationLock(state_dir)
        with self._lock.held():
            self.epoch = self._take_over(state_dir)
            self.node_id = self._node_id()
            sweep_probes()
        self.policy = PolicyFile(config.policy) if config.policy else None
        self._event_log = EventLog(self.journal)
        self._event_log.skip()
        self.ward = Ward(state_dir, self.epoch, self._guardian_lost, config.log_format)
        self.ward.begin()
        self._notes = tuple(load_modules()) if config.modprobe else ()
        own = {"tls_ca": config.tls_ca, "may_reboot": config.may_reboot}
        self._facts = read_facts(self.node_id, self._notes).model_copy(update=own)
        if config.bpf_loader != "auto":
            self._facts = self._facts.model_copy(update={"bpf_loader": config.bpf_loader})
        runtime = Runtime(state_dir, self.node_id, self._on_event, self._facts.bpf_loader)
        self.backends: Registry = load_backends(runtime)
        protected = (str(state_dir), *PROTECTED, *config.protect)
        binder = Binder(BindNode(dm_table=self._base_table), protected)
        parts = (self.journal, self._lock, self.backends, binder.bind, self.facts, self.epoch)
        self.executor = Executor(Node(*parts, place=binder.place))
        self.executor.before_revert = self.keep_evidence
        self.executor.after_begin = self.ward.poke
        self.executor.before_begin = self._check_armable
        self._stopping = False
        self.before_boot: tuple[FaultRow, ...] = ()
        """Faults that were there when the node went down; known after `start`."""
        self.residue_said: set[str] = set()
        """What the last look for residue has found."""
        self._reactor = Reactor(self.executor, self.journal, self.evidence)
        self._leases = LeaseKeeper(self.executor, self.journal)

    def _take_over(self, state_dir: Path) -> int:
        """The new epoch. A disk that a fault of ours has filled has no room for it: then first
        everything is taken back, which needs none. No agent lives that could hold parts of it.
        """
        try:
            return self.journal.next_epoch()
        except BackendError:
            runtime = Runtime(state_dir, self.journal.meta("node_id") or "")
            reverter = Reverter(self.journal, load_backends(runtime), live_epoch=None)
            reverter.revert_all(EndReason.AGENT_LOST, self.journal.epoch())
            return self.journal.next_epoch()

    def _node_id(self) -> str:
        known = self.journal.meta("node_id")
        if known:
            return known
        try:
            node_id = MACHINE_ID.read_text(encoding="ascii").strip()
        except OSError:
            node_id = ""
        node_id = node_id or uuid.uuid4().hex
        self.journal.set_meta("node_id", node_id)
        return node_id

    def _base_table(self, major: int, minor: int) -> tuple[str, ...]:
        """A device's table as it is without our own faults: what a plan builds on."""
        for peer in peers_of(self.journal, f"block:{major}:{minor}"):
            base: list[str] = peer.prior["base"]
            return tuple(base)
        return read_table(major, minor)

    def facts(self) -> Facts:
        """The facts as read at the start."""
        return self._facts

    def start(self) -> list[tuple[str, str]]:
        """Take back what an earlier agent left, then start the guardian and the threads.

        (fault id, error) of faults that resist; they are tried again.
        """
        self._event_log.start()
        active = self.journal.faults(active_only=True)
        self.before_boot = tuple(fault for fault in active if fault.boot_id != boot_id())
        failed = self.executor.recover()
        self.ward.start()
        self._reactor.start()
        self._leases.start()
        return failed

    def close(self) -> list[tuple[str, str]]:
        """Revert everything and stop. (fault id, error) of those that resist.

        With something left the guardian is kept: it goes on trying.
        """
        self._stopping = True
        self._leases.stop()
        self._reactor.stop()
        failed = self._revert_everything()
        if not failed:
            self.ward.stop()
        self._event_log.stop()
        self.journal.close()
        self._lock.close()
        self._owner.close()
        return failed

    # --- the calls of the interface -----------------------------------------------

    def plan(self, request: FaultRequest) -> Plan:
        """See Executor.plan."""
        return self.executor.plan(request)

    def apply(
        self,
        request: FaultRequest,
        lease: Lease,
        digest: str,
        wanted: Callable[[], bool] = lambda: True,
    ) -> FaultRow:
        """See Executor.apply. Refused while no guardian lives, and when the agent stops."""
        fault = self.executor.apply(request, lease, digest, wanted)
        self._reactor.armed(fault.id)
        return fault

    def _check_armable(self) -> None:
        what = "no fault is armed without a guardian"
        if self._stopping:
            raise Refused(what, "the agent is stopping", "apply it to the next agent")
        if self.ward.pid is None:
            raise Refused(
                what,
                "the guardian process is not running",
                "see guardian.log in the state directory, then start the agent again",
            )

    def renew(self, fault_id: str) -> FaultRow:
        """See Executor.renew."""
        return self.executor.renew(fault_id)

    def revert(self, fault_id: str, remedy: str = "") -> tuple[FaultRow, bool, list[StepResult]]:
        """The fault afterwards, whether it had ended before, and how each step went.

        remedy: not empty when an operator's act ended the fault; it then ends as remedied.
        An unknown id waits for its turn too: it may be one that is being applied.
        """
        known = self.journal.find_fault(fault_id)
        if known is not None and not known.active:
            return known, True, []
        with self.executor.mutation():
            fault = self.journal.fault(fault_id)
            if not fault.active:
                return fault, True, []
            if remedy:
                self._note(fault_id, "remedied", {"why": remedy})
            reason = EndReason.REMEDIED if remedy else EndReason.REVERTED
            results = self.executor.revert(fault_id, reason)
            return self.journal.fault(fault_id), False, results

    def evidence(self, fault: FaultRow) -> Evidence:
        """What is known of a fault's effect: live while it is armed, kept afterwards."""
        if fault.state is FaultState.ARMED:
            return collect(self.executor, self.journal, self.backends, fault)
        return Evidence.model_validate({"counted": False, **fault.evidence})

    def exposure(self, fault: FaultRow, seconds: float) -> Exposure:
        """Who can still be hit by a fault, looked for so long. Raises OSError, ValueError."""
        ours = () if self.ward.pid is None else (self.ward.pid,)
        return exposed(BindNode(dm_table=self._base_table), fault.plan, ours, seconds)

    def keep_evidence(self, fault: FaultRow) -> None:
        """Write the evidence into the journal; what cannot be had must not keep a fault alive."""
        try:
            evidence = self.evidence(fault)
            self.journal.update_fault(fault.id, evidence=evidence.model_dump(mode="json"))
        except Exception as exc:  # noqa: BLE001 - nor a bug in what counts it
            self._note(fault.id, "evidence-lost", {"error": str(exc)})

    def _note(self, fault_id: str, what: str, data: dict[str, str]) -> None:
        """An event, if the journal takes it: a full disk keeps no fault alive."""
        with suppress(FaultError):
            self.journal.event(fault_id, what, data)

    def _on_event(self, fault_id: str, event: NodeEvent) -> None:
        self._reactor.on_event(fault_id, event)

    def _guardian_lost(self, what: str) -> None:
        LOG.warning(what)
        self._note("", "guardian-lost", {"what": what})
        if self.ward.pid is None:
            self._revert_everything()

    def _revert_everything(self) -> list[tuple[str, str]]:
        """In one mutation: what is being applied is waited for, and nothing comes in between."""
        try:
            with self.executor.mutation():
                return self._revert_each()
        except FaultError as exc:
            return [("what is armed", str(exc))]

    def _revert_each(self) -> list[tuple[str, str]]:
        failed = []
        for fault in reversed(self.journal.faults(active_only=True)):
            try:
                self.executor.revert(fault.id, EndReason.AGENT_LOST)
            except FaultError as exc:
                failed.append((fault.id, str(exc)))
        return failed

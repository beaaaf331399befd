"""The guardian: a small process outside the agent's cgroup that outlives it.

It waits on a pidfd of the agent (pidfd_open(2)). When the agent is gone it takes the
mutation lock and reverts everything that the journal holds, and keeps trying until
nothing is left, or until the node goes down. It also steps in when the agent hangs
past a deadline; it ends an agent that holds what only goes with it (BPF links), or that
keeps the lock. It never arms anything. What it needs is loaded before it reports ready,
and locked in memory.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import select
import signal
import time
from contextlib import suppress
from pathlib import Path

from nodeagent.backends import Runtime, load_backends
from nodeagent.backends.dm_probes import sweep_probes
from nodeagent.backends.machine import going_down
from nodeagent.bind.systemd import has_handed_over
from nodeagent.clock import lease_ns, wait_s
from nodeagent.eventlog import EventLog
from nodeagent.journal import Journal
from nodeagent.log import FORMS, about, configure
from nodeagent.model.errors import FaultError
from nodeagent.model.record import CHANGING, EndReason, FaultRow, StepState
from nodeagent.revert import Reverter
from nodeagent.statedir import LockBusy, MutationLock

MCL_CURRENT_FUTURE = 1 | 2
GRACE_NS = 5_000_000_000
"""How far a deadline may pass before the guardian takes the agent for hung."""
HUNG_NS = 30_000_000_000
"""How far, when the agent holds the lock: a slow mutation may be under way (and patience_s of
what is being changed on top)."""
KILLED_S = 5.0
"""A killed process needs a moment until the kernel has taken it apart."""
RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
LAST_RETRY_S = 30.0
OVERDUE_RETRY_S = 30
"""The longest pause between attempts while the agent lives."""
LOG = logging.getLogger("nodeagent.guardian")


def harden() -> None:
    """Lock memory, be the last that the OOM killer takes, ignore a terminal's signals."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mlockall(MCL_CURRENT_FUTURE)
    try:
        Path("/proc/self/oom_score_adj").write_text("-1000", encoding="ascii")
    except OSError as exc:
        LOG.warning("oom_score_adj is not set: %s", exc)
    for sig in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(sig, signal.SIG_IGN)


def leave_cgroup() -> None:
    """Move to the root of every cgroup hierarchy, out of the agent's own cgroup.

    Where that is not allowed the guardian stays: it then survives the agent's process,
    not its cgroup. On cgroup v1 a container is killed by any of its hierarchies.
    """
    for root in cgroup_roots(Path("/proc/self/mountinfo").read_text(encoding="utf-8")):
        try:
            (root / "cgroup.procs").write_text(str(os.getpid()), encoding="ascii")
        except OSError as exc:
            LOG.warning("stays in the agent's cgroup below %s: %s", root, exc)


def cgroup_roots(mountinfo: str) -> list[Path]:
    """Where cgroup hierarchies are mounted by their roots (proc_pid_mountinfo(5)), each once."""
    found: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) > 4 and kind and kind[0] in ("cgroup", "cgroup2") and fields[3] == "/":
            found.setdefault(fields[2], Path(fields[4]))
    return list(found.values())


class Guardian:
    """Watches one agent by its pidfd."""

    def __init__(self, state_dir: Path, agent_pidfd: int, epoch: int) -> None:
        self._epoch = epoch
        self._journal = Journal(state_dir)
        self._events = EventLog(self._journal)
        self._lock = MutationLock(state_dir)
        node_id = self._journal.meta("node_id") or ""
        backends = load_backends(Runtime(state_dir, node_id))
        self._reverter = Reverter(self._journal, backends, live_epoch=None)
        self._pidfd = agent_pidfd
        self._again: dict[str, tuple[int, int]] = {}
        """Overdue fault that resists -> failed attempts, time of the next one."""

    def run(self, wake_fd: int) -> None:
        """Wait for the agent's end, or for a deadline that it does not keep."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        poller.register(wake_fd, select.POLLIN)
        while True:
            timeout = self._next_look()
            for fd, events in poller.poll(timeout):
                if fd == self._pidfd:
                    self._clean_up()
                    return
                if events & select.POLLIN:
                    os.read(wake_fd, 4096)
                else:
                    poller.unregister(wake_fd)  # the agent is going; its pidfd tells when
            if timeout is not None:
                self._look()

    def _next_look(self) -> int | None:
        try:
            return self._until_overdue_ms()
        except FaultError as exc:
            LOG.error("%s", exc)
            return 1000

    def _look(self) -> None:
        try:
            self._end_overdue()
        except (FaultError, OSError) as exc:  # it must be there when the agent dies
            LOG.error("%s", exc)

    def _mine(self) -> list[FaultRow]:
        return [f for f in self._journal.faults(active_only=True) if f.epoch <= self._epoch]

    def _look_at_ns(self, fault: FaultRow) -> int:
        """Some time after its deadline; one that resists is tried ever less."""
        return max(fault.deadline_ns + GRACE_NS, self._again.get(fault.id, (0, 0))[1])

    def _until_overdue_ms(self) -> int | None:
        times = [self._look_at_ns(fault) for fault in self._mine()]
        if not times:
            return None
        return int(wait_s(min(times) - lease_ns()) * 1000) + 1

    def _end_overdue(self) -> None:
        for fault in reversed(self._mine()):
            if self._look_at_ns(fault) > lease_ns():
                continue
            try:
                self._end(fault.id)
                self._again.pop(fault.id, None)
            except FaultError as exc:  # for a person; others are ended all the same
                LOG.error("is overdue and not reverted yet", extra=about(fault.id, str(exc)))
                tries, _ = self._again.get(fault.id, (0, 0))
                pause_s = min(1 << min(tries, 10), OVERDUE_RETRY_S)  # the agent tries as well
                self._again[fault.id] = (tries + 1, lease_ns() + int(pause_s * 1e9))

    def _end(self, fault_id: str) -> None:
        """Raises FaultError when it resists."""
        try:
            with self._lock.held(deadline_s=1.0):
                self._end_locked(self._journal.fault(fault_id))
        except LockBusy as exc:
            LOG.warning("is overdue, and the agent's", extra=about(fault_id, str(exc)))
            fault = self._journal.fault(fault_id)  # it may have a new lease by now
            if self._is_hung(fault):
                self._kill_agent(fault)

    def _end_locked(self, fault: FaultRow) -> None:
        if not fault.active or self._look_at_ns(fault) > lease_ns():
            return
        if fault.epoch == self._epoch and self._agent_holds(fault):
            self._kill_agent(fault)
            return
        LOG.warning("is overdue: the guardian takes it back", extra=about(fault.id))
        self._listen()
        self._reverter.revert(fault, EndReason.EXPIRED)
        self._tell()

    def _is_hung(self, fault: FaultRow) -> bool:
        """Whether the agent has kept the lock for longer than what it may be doing takes."""
        changing = [f for f in self._mine() if f.state in CHANGING]
        steps = [row.step for other in changing for row in self._journal.steps(other.id)]
        patience = HUNG_NS + max((step.patience_s for step in steps), default=0) * 1_000_000_000
        overdue = fault.deadline_ns < lease_ns() - patience
        return fault.active and fault.epoch == self._epoch and overdue

    def _agent_holds(self, fault: FaultRow) -> bool:
        """Whether something that a workload could notice goes away only with the agent."""
        return any(
            row.step.ephemeral and not row.step.observes and row.state is not StepState.REVERTED
            for row in self._journal.steps(fault.id)
        )

    def _kill_agent(self, fault: FaultRow) -> None:
        LOG.warning("is overdue, the agent hangs: it is killed", extra=about(fault.id))
        with suppress(ProcessLookupError):  # it has just ended by itself
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        select.select([self._pidfd], [], [], KILLED_S)

    def _listen(self) -> None:
        """What happens from here on are lines of ours."""
        with suppress(FaultError):
            self._events.skip()

    def _tell(self) -> None:
        """What was done, as lines; that they cannot be had must not look like a failed revert."""
        try:
            self._events.flush()
        except FaultError as exc:
            LOG.error("the journal's events cannot be read: %s", exc)

    def _clean_up(self) -> None:
        LOG.warning("the agent is gone: what it left armed is taken back")
        self._listen()
        attempt = 0
        while True:
            try:
                with self._lock.held():
                    failed = self._reverter.revert_all(EndReason.AGENT_LOST, self._epoch)
                self._tell()
            except Exception as exc:  # noqa: BLE001 - nobody else is left to take the faults back
                failed = [("", repr(exc))]
            if all(going_down(fault_id) for fault_id, _ in failed):
                sweep_probes()
                return
            for fault_id, error in failed:
                LOG.error("is not reverted yet", extra=about(fault_id, error))
            if not rest(RETRY_S[attempt] if attempt < len(RETRY_S) else LAST_RETRY_S):
                return
            attempt += 1


def rest(seconds: float) -> bool:
    """Wait before the next attempt; False when the node goes down and waits for us alone.

    systemd-shutdown gives processes 90 s (DefaultTimeoutStopSec); what is left is for the next
    boot's agent.
    """
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if has_handed_over():
            return False
        time.sleep(min(left, 0.5))
    return True


def main() -> None:
    """Entry point; the agent's ward starts it with descriptors to watch and to report on."""
    parser = argparse.ArgumentParser(prog="faultd-guardian")
    parser.add_argument("state_dir", type=Path)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--pidfd", type=int, required=True)
    parser.add_argument("--wake", type=int, required=True)
    parser.add_argument("--ready", type=int, required=True)
    parser.add_argument("--log-format", choices=FORMS, default="text")
    args = parser.parse_args()
    # guardian.log is root's alone and lies beside the journal: names are no secret there.
    configure("guardian", args.log_format, "names")
    harden()
    leave_cgroup()
    guardian = Guardian(args.state_dir, args.pidfd, args.epoch)
    with suppress(BrokenPipeError):  # the agent is dead already: its faults are not
        os.write(args.ready, b"ready\n")
    os.close(args.ready)
    guardian.run(args.wake)


if __name__ == "__main__":
    main()

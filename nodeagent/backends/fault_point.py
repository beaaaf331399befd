"""The kernel's own fault points: knobs in debugfs, marks on tasks and devices.

Facts of the kernel: lib/fault-inject.c (should_fail_ex, debugfs files), fs/proc/base.c
(make-it-fail, fail-nth), kernel/fail_function.c. A knob that is written in part, as a
SIGKILL may leave it, is ours as long as each file has its prior value or the step's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.pid_watch import PidWatch
from nodeagent.bind.node import Node
from nodeagent.bind.process import lives, stat_fields
from nodeagent.crashpoint import crashpoint
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.fault_point import FaultPointSet, FunctionFail, TaskFlag

DEBUG = Path("/sys/kernel/debug")
FUNCTIONS = DEBUG / "fail_function"
BLOCK = Path("/sys/dev/block")
COUNTS_DOWN = frozenset({"times", "space"})
UNLIMITED = -1
MAX_ROUNDS = 100
NO_ERRNO = frozenset({"NULL", "TRUE"})
"""Types in error_injection/list (lib/error-inject.c) that adjust_error_retval makes 0 or 1 of."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {
        FaultPointSet: FaultPointBackend(),
        TaskFlag: TaskFlagBackend(runtime),
        FunctionFail: FunctionFailBackend(),
    }


def _read(path: Path) -> str | None:
    """What a file says; None when it is gone. Raises OSError."""
    try:
        return path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, ProcessLookupError):
        return None


def _write(path: Path, value: str) -> None:
    """Raises BackendError with the kernel's word."""
    try:
        path.write_text(value, encoding="ascii")
    except OSError as exc:
        raise BackendError(f"{path} does not take {value!r}", str(exc.strerror)) from exc


def _unreadable(what: str, path: Path) -> BackendError:
    """Fault points are built in: in one boot they never go, only debugfs may be unmounted."""
    hint = f"mount it, then try again: mount -t debugfs none {DEBUG}"
    return BackendError(f"{what} cannot be read back", f"there is no {path}", hint)


def _u64(value: int) -> int:
    return value & ((1 << 64) - 1)


class FaultPointBackend:
    """Knobs of one fault point, and a device's mark."""

    @staticmethod
    def _files(step: FaultPointSet) -> Iterator[tuple[str, Path, str]]:
        if step.device is not None:
            yield "device", BLOCK / "{}:{}".format(*step.device) / "make-it-fail", "1"
        for name, value in step.knobs:
            yield name, DEBUG / step.point / name, value

    def observe(self, fault_id: str, step: FaultPointSet, peers: Sequence[Peer]) -> Prior:
        """Refused when somebody uses the point: its knobs are one set for all."""
        found = {}
        for name, path, _ in self._files(step):
            now = _read(path)
            if now is None:
                raise Refused(f"{step.point} cannot be set", f"there is no {path}")
            found[name] = now
        if int(_read(DEBUG / step.point / "probability") or 0):
            raise Refused(
                f"{step.point} cannot be set",
                "it is in use already: its probability is not 0",
                f"see the files of {DEBUG / step.point}",
            )
        return found

    def status(self, step: FaultPointSet, prior: Prior, peers: Sequence[Peer]) -> Status:
        forms = []
        for name, path, value in self._files(step):
            now = _read(path)
            if now is None and name == "device":
                continue  # the disk has gone, and its mark with it; the knobs are still there
            if now is None:
                raise _unreadable(step.point, path)
            ours = now == value or (name in COUNTS_DOWN and 0 <= int(now) <= int(value))
            forms.append((now == prior[name], ours))
        if all(ours for _, ours in forms):
            return Status.OURS
        if all(was for was, _ in forms):
            return Status.PRIOR
        return Status.OURS if all(was or ours for was, ours in forms) else Status.FOREIGN

    def apply(
        self, fault_id: str, step: FaultPointSet, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        for name, path, value in self._files(step):
            _write(path, value)
            crashpoint(f"fault-point:{name}")
        return {}

    def undo(self, fault_id: str, step: FaultPointSet, prior: Prior, peers: Sequence[Peer]) -> None:
        for name, path, _ in reversed(list(self._files(step))):
            if name != "device" or path.exists():
                _write(path, prior[name])
            crashpoint(f"fault-point:{name}:undone")

    def measure(self, fault_id: str, step: FaultPointSet, prior: Prior) -> dict[str, Any]:
        """The kernel counts `times` down with each failure."""
        asked = dict(step.knobs).get("times")
        now = _read(DEBUG / step.point / "times")
        if asked is None or now is None or UNLIMITED in (int(asked), int(now)):
            return {}
        return {"hits": int(asked) - int(now)}


class TaskFlagBackend:
    """A file of each thread of a process; the fault ends with the process."""

    def __init__(self, runtime: Runtime) -> None:
        self._node = Node()
        self._watch = PidWatch(runtime.on_event, self._node)
        self._marked: dict[str, frozenset[int]] = {}
        """Fault -> threads that have got a fail-nth: those of later have none, and no hit."""

    def observe(self, fault_id: str, step: TaskFlag, peers: Sequence[Peer]) -> Prior:
        """Threads that have the mark already: another tool's, refused."""
        what = f"process {step.scope.pid} cannot be marked"
        if not lives(self._node, step.scope):
            raise Refused(what, "it has ended, or its pid is another's by now", "plan again")
        marked = [tid for tid, value in self._threads(step) if value]
        if marked:
            raise Refused(what, f"{step.file} of its thread {marked[0]} is set already")
        return {}

    def _threads(self, step: TaskFlag) -> list[tuple[int, int]]:
        """(thread, value) of all threads now; those that end meanwhile are left out."""
        found = []
        with suppress(FileNotFoundError, ProcessLookupError):
            for path in (self._node.proc / str(step.scope.pid) / "task").iterdir():
                now = _read(path / step.file)
                if now is not None:
                    found.append((int(path.name), int(now)))
        return found

    def status(self, step: TaskFlag, prior: Prior, peers: Sequence[Peer]) -> Status:
        if not lives(self._node, step.scope):
            return Status.PRIOR if not self._heirs(step) else Status.OURS
        values = [value for _, value in self._threads(step)]
        if any(values) or self._heirs(step):
            return Status.OURS
        # A fail-nth that was used is 0 again; only the watch tells that it was armed.
        return Status.OURS if self._watch.knows(step.scope) else Status.PRIOR

    def _heirs(self, step: TaskFlag) -> list[Path]:
        """Marked tasks that were born since: only make-it-fail goes to children."""
        if step.file == "fail-nth":
            return []
        found = []
        for pid in (int(p.name) for p in self._node.proc.iterdir() if p.name.isdigit()):
            with suppress(FileNotFoundError, ProcessLookupError):
                born = int(stat_fields(self._node, pid)[19])
                if born >= step.scope.start_ticks and pid != step.scope.pid:
                    tasks = (self._node.proc / str(pid) / "task").iterdir()
                    found += [t for t in tasks if _read(t / step.file) not in (None, "0")]
        return found

    def apply(self, fault_id: str, step: TaskFlag, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Until all have it: a thread may be born of one that has not, meanwhile."""
        try:
            self._watch.remove(fault_id)
            self._watch.add(fault_id, step.scope, lambda: False)
        except ProcessLookupError:
            raise Refused(
                f"process {step.scope.pid} cannot be marked", "it has ended by now", "plan again"
            ) from None
        done = set[int]()
        for _ in range(MAX_ROUNDS):
            new = {tid for tid, value in self._threads(step) if not value} - done
            if not new:
                break
            for tid in new:
                self._mark(step, tid, step.value)
                crashpoint("fault-point:task")
            done |= new
        self._marked[fault_id] = frozenset(done)
        return {"tasks": len(done)}

    def _mark(self, step: TaskFlag, tid: int, value: int) -> None:
        path = self._node.proc / str(step.scope.pid) / "task" / str(tid) / step.file
        with suppress(FileNotFoundError, ProcessLookupError):
            path.write_text(str(value), encoding="ascii")

    def undo(self, fault_id: str, step: TaskFlag, prior: Prior, peers: Sequence[Peer]) -> None:
        """Until none has it: a thread may be born of one that still has, meanwhile."""
        self._watch.remove(fault_id)
        self._marked.pop(fault_id, None)
        for _ in range(MAX_ROUNDS):
            threads = self._threads(step) if lives(self._node, step.scope) else []
            marked, heirs = [tid for tid, value in threads if value], self._heirs(step)
            if not marked and not heirs:
                return
            for tid in marked:
                self._mark(step, tid, 0)
            for path in heirs:
                with suppress(FileNotFoundError, ProcessLookupError):
                    (path / step.file).write_text("0", encoding="ascii")

    def measure(self, fault_id: str, step: TaskFlag, prior: Prior) -> dict[str, Any]:
        """A fail-nth that is 0 again was used."""
        threads = self._threads(step) if lives(self._node, step.scope) else []
        if step.file == "make-it-fail":
            return {"tasks": sum(1 for _, value in threads if value)}
        marked = self._marked.get(fault_id, frozenset())
        values = [value for tid, value in threads if tid in marked]
        return {"hits": sum(1 for value in values if not value), "tasks": len(values)}


class FunctionFailBackend:
    """A function among those of fail_function, with what it returns."""

    def observe(self, fault_id: str, step: FunctionFail, peers: Sequence[Peer]) -> Prior:
        what = f"{step.function} cannot be made to fail"
        lines = (_read(DEBUG / "error_injection/list") or "").splitlines()
        listed = {line.split()[0]: line.split()[-1] for line in lines if line.strip()}
        if step.function not in listed:
            import difflib

            near = ", ".join(difflib.get_close_matches(step.function, sorted(listed), 3, 0.6))
            raise Refused(
                what,
                "it is not on the kernel's error-injection list",
                f"near it: {near}" if near else f"see {DEBUG}/error_injection/list",
            )
        if step.value < 0 and listed[step.function] in NO_ERRNO:
            raise Refused(what, f"it returns no errno: its type is {listed[step.function]}")
        if self._injected(step):
            raise Refused(what, "somebody has made it fail already", f"see {FUNCTIONS}/inject")
        return {"injected": False}

    @staticmethod
    def _injected(step: FunctionFail) -> bool:
        # Not by the file `inject`, which may show another name of the same address.
        if not FUNCTIONS.is_dir():
            raise _unreadable("fail_function", FUNCTIONS)
        return (FUNCTIONS / step.function).is_dir()

    def status(self, step: FunctionFail, prior: Prior, peers: Sequence[Peer]) -> Status:
        if not self._injected(step):
            return Status.PRIOR
        now = int(_read(FUNCTIONS / step.function / "retval") or "0", 16)
        # Until it is written, it is the kernel's own (adjust_error_retval).
        return Status.OURS if now in (_u64(step.value), 0, 1, _u64(-22)) else Status.FOREIGN

    def apply(
        self, fault_id: str, step: FunctionFail, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        if not self._injected(step):
            _write(FUNCTIONS / "inject", step.function)
            crashpoint("fault-point:function")
        _write(FUNCTIONS / step.function / "retval", hex(_u64(step.value)))
        return {}

    def undo(self, fault_id: str, step: FunctionFail, prior: Prior, peers: Sequence[Peer]) -> None:
        _write(FUNCTIONS / "inject", f"!{step.function}")

    def measure(self, fault_id: str, step: FunctionFail, prior: Prior) -> dict[str, Any]:
        """Counted by the fault point's own step."""
        return {}

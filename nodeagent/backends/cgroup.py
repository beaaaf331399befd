"""Interface files of cgroups: written, read back, put back; never of another cgroup."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.bind.cgroup import folder_of
from nodeagent.clock import boottime_ns
from nodeagent.encode.psi import RESOURCES, Stalls, parse, since
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.process import CgroupScope
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.cgroup import CgroupWrite, parse_io_line

COUNTERS = {
    "cpu.max": ("cpu.stat", ("usage_usec", "nr_periods", "nr_throttled", "throttled_usec")),
    "memory.high": ("memory.events", ("high", "max", "oom", "oom_kill")),
    "io.max": ("io.stat", ("rbytes", "wbytes", "rios", "wios")),
}
"""What the kernel counts for each limit."""
GONE = (errno.ENOENT, errno.ENODEV)
"""A file of a removed cgroup: not there, or open and dead (cgroup_kn_lock_live)."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {CgroupWrite: CgroupWriteBackend()}


@contextmanager
def opened(scope: CgroupScope) -> Iterator[int | None]:
    """A descriptor of the cgroup's directory; None when it is gone, or another has its path."""
    try:
        fd = os.open(folder_of(scope), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield fd if os.fstat(fd).st_ino == scope.id else None
    finally:
        os.close(fd)


def read_at(folder: int, name: str) -> str:
    """A file of an open cgroup. Raises OSError."""
    with open(name, encoding="ascii", opener=lambda p, f: os.open(p, f, dir_fd=folder)) as file:
        return file.read().strip()


def write_at(folder: int, name: str, value: str) -> None:
    """Write a file of an open cgroup in one write(2). Raises OSError."""
    fd = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(fd, value.encode("ascii"))
    finally:
        os.close(fd)


def read(scope: CgroupScope, name: str) -> str | None:
    """A file's content; None when the cgroup is gone. Raises OSError."""
    with opened(scope) as folder:
        if folder is None:
            return None
        try:
            return read_at(folder, name)
        except OSError as exc:
            if exc.errno in GONE:
                return None
            raise


def put(scope: CgroupScope, name: str, text: str) -> None:
    """Write a file. Raises FileNotFoundError when the cgroup is gone, BackendError."""
    try:
        with opened(scope) as folder:
            if folder is None:
                raise FileNotFoundError(errno.ENOENT, "the cgroup is gone")
            write_at(folder, name, text)
    except OSError as exc:
        if exc.errno in GONE:
            raise FileNotFoundError(errno.ENOENT, "the cgroup is gone", scope.path) from exc
        raise BackendError(
            f"{name} of {scope.path} does not take {text!r}", f"{exc.strerror}"
        ) from exc


def keyed(text: str, names: Sequence[str]) -> dict[str, int]:
    """Chosen numbers of a flat keyed file; what is not known or not a number is left out."""
    found = (line.split() for line in text.splitlines())
    return {w[0]: int(w[1]) for w in found if len(w) == 2 and w[0] in names and w[1].isdigit()}


def stalls(scope: CgroupScope) -> Stalls:
    """How long its tasks have waited until now; empty without PSI (psi=1, CONFIG_PSI)."""
    found = {}
    for resource in RESOURCES:
        with suppress(OSError):  # EOPNOTSUPP: cgroup.pressure is 0
            if text := read(scope, f"{resource}.pressure"):
                found[resource] = parse(text)
    return found


def pids_refused(scope: CgroupScope) -> int:
    """Forks that failed by pids.max in it and below it.

    Up to Linux 6.10 pids.events counts in the cgroup that forked, wherever the limit was met;
    later in the one whose limit it was, and in pids.events.local (kernel/cgroup/pids.c).
    """
    if read(scope, "pids.events.local") is not None:
        return keyed(read(scope, "pids.events") or "", ("max",)).get("max", 0)
    found = 0
    for folder, _, files in os.walk(folder_of(scope)):
        if "pids.events" in files:
            with suppress(OSError):
                text = Path(folder, "pids.events").read_text("ascii")
                found += keyed(text, ("max",)).get("max", 0)
    return found


def counters(step: CgroupWrite) -> dict[str, int]:
    """What the kernel has counted for the step's limit until now."""
    if step.file == "pids.max":
        return {"max": pids_refused(step.scope)}
    if step.file not in COUNTERS:
        return {}
    name, names = COUNTERS[step.file]
    text = read(step.scope, name) or ""
    if not step.device:
        return keyed(text, names)
    for line in text.splitlines():
        device, *pairs = line.split() or [""]
        if device == step.device:
            return keyed("\n".join(pairs).replace("=", " "), names)
    return dict.fromkeys(names, 0)


class CgroupWriteBackend:
    """One file, or one device's line of it."""

    def observe(self, fault_id: str, step: CgroupWrite, peers: Sequence[Peer]) -> Prior:
        now = self._now(step)
        if now is None:
            raise Refused(f"{step.file} of {step.scope.path} cannot be written", "it is not there")
        if now == self._ours(step, now):
            raise Refused(
                f"{step.file} of {step.scope.path} would not change",
                f"it is {now} already",
            )
        return {
            "value": now,
            "counters": counters(step),
            "stalls": stalls(step.scope),
            "boottime_ns": boottime_ns(),
        }

    @staticmethod
    def _now(step: CgroupWrite) -> Any:
        text = read(step.scope, step.file)
        return parse_io_line(text, step.device) if text is not None and step.device else text

    @staticmethod
    def _ours(step: CgroupWrite, prior: Any) -> Any:
        if not step.device:
            return step.value
        return {**prior, **dict(pair.split("=") for pair in step.value.split())}

    def status(self, step: CgroupWrite, prior: Prior, peers: Sequence[Peer]) -> Status:
        now = self._now(step)
        if now is None or (step.device and not Path(f"/sys/dev/block/{step.device}").exists()):
            return Status.GONE
        if now == prior["value"]:
            return Status.PRIOR
        return Status.OURS if now == self._ours(step, prior["value"]) else Status.FOREIGN

    def apply(
        self, fault_id: str, step: CgroupWrite, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        if self.status(step, prior, peers) is Status.OURS:
            return {}
        put(step.scope, step.file, f"{step.device} {step.value}" if step.device else step.value)
        return {}

    def undo(self, fault_id: str, step: CgroupWrite, prior: Prior, peers: Sequence[Peer]) -> None:
        value = prior["value"]
        if step.device:
            value = f"{step.device} " + " ".join(f"{k}={v}" for k, v in value.items())
        with suppress(FileNotFoundError):
            put(step.scope, step.file, value)

    def measure(self, fault_id: str, step: CgroupWrite, prior: Prior) -> dict[str, Any]:
        now = counters(step)
        before = prior["counters"]
        return {
            "file": step.file,
            "prior": prior["value"],
            "counters": {name: now[name] - before.get(name, 0) for name in now},
            "stalls": since(stalls(step.scope), prior.get("stalls", {})),
            "seconds": round((boottime_ns() - prior["boottime_ns"]) / 1e9, 3),
        }

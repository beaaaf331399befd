"""Processes and cgroups: from a pid or a path to what the kernel compares with."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.node import Node
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.process import CgroupScope, PidScope, ProcessBinding
from nodeagent.model.target import CgroupTarget, ProcessTarget

CGROUPS = Path("/sys/fs/cgroup")
PID_NS_INIT = 0xEFFFFFFC
"""PROC_PID_INIT_INO, include/linux/proc_ns.h: the inode of the initial pid namespace."""
NODE_AGENTS = ("kubelet", "containerd", "containerd-shim", "dockerd", "crio", "conmon", "runc",
               "crun", "runc:[1:CHILD]", "runc:[2:INIT]", "pause")  # fmt: skip
"""Programs that keep containers going, by name; the runtime's init until it execs."""
MAX_PIDS = 4096
MAX_LOOKED_AT = 256
_PF_KTHREAD = 0x00200000
_ELFCLASS32 = 1


def bind(scene: Scene, ask: Ask) -> ProcessBinding:
    """The scope of a process or cgroup target. Raises Refused or InvalidSpec."""
    _check_namespace(scene.node)
    device = getattr(ask.spec, "on_device", None)
    if isinstance(ask.target, ProcessTarget):
        return _bind_pid(scene.node, ask.target.pid, bool(getattr(ask.spec, "tree", 0)), device)
    if isinstance(ask.target, CgroupTarget):
        return _bind_cgroup(scene.node, ask.target.cgroup, device)
    raise InvalidSpec("a process or a cgroup is needed", ask.target.label())


def _check_namespace(node: Node) -> None:
    if os.stat(node.proc / "self/ns/pid").st_ino != PID_NS_INIT:
        raise Refused(
            "processes cannot be named from here",
            "faultd runs in a pid namespace of its own, the kernel's programs see other pids",
            "run it with hostPID: true",
        )


# --- processes --------------------------------------------------------------------


def stat_fields(node: Node, pid: int) -> list[str]:
    """/proc/PID/stat after the name: [0] is the state (proc_pid_stat(5)). Raises OSError."""
    text = (node.proc / str(pid) / "stat").read_text("utf-8", "replace")  # a name may be any bytes
    return text.rpartition(")")[2].split()


def comm_of(node: Node, pid: int) -> str:
    """A process's name; bytes of it that are no UTF-8 as \\xNN. Raises OSError."""
    return (node.proc / str(pid) / "comm").read_text("utf-8", "backslashreplace").strip()


def start_ticks(node: Node, pid: int) -> int:
    """When a process began, in 1/100 s since boot. Raises OSError."""
    return int(stat_fields(node, pid)[19])


def born(node: Node, pid: int) -> int:
    """start_ticks(), -1 when there is no such process. Raises OSError."""
    try:
        return start_ticks(node, pid)
    except (FileNotFoundError, ProcessLookupError):
        return -1


def lives(node: Node, scope: PidScope) -> bool:
    """Whether the process is there, and its pid not another one's by now. Raises OSError."""
    return born(node, scope.pid) == scope.start_ticks


def _bind_pid(node: Node, pid: int, tree: bool, device: str | None) -> ProcessBinding:
    what = f"process {pid} cannot be a target"
    try:
        fields = stat_fields(node, pid)
        tgid = _tgid(node, pid)
        comm = comm_of(node, pid)
    except (FileNotFoundError, ProcessLookupError):
        raise Refused(what, "there is no such process", "look again: pgrep -a NAME") from None
    if tgid != pid:
        raise InvalidSpec(what, f"it is a thread of process {tgid}", f"name --pid {tgid}")
    if int(fields[6]) & _PF_KTHREAD:
        raise Refused(what, f"{comm} is a kernel thread: it makes no system calls")
    if fields[0] in "ZX":
        raise Refused(what, f"{comm} has ended already (state {fields[0]})")
    if pid == 1 or pid == os.getpid() or _is_ours(node, pid):
        named = "PID 1" if pid == 1 else "faultd itself, or its guardian"
        raise Refused(what, f"it is {named}, which is never hit", "name another process")
    pids = descendants(node, pid) if tree else (pid,)
    scope = PidScope(pid=pid, start_ticks=int(fields[19]), tree=tree)
    return _described(node, f"process {pid} ({comm})", scope, pids, device)


def _tgid(node: Node, pid: int) -> int:
    for line in (node.proc / str(pid) / "status").read_text("utf-8", "replace").splitlines():
        if line.startswith("Tgid:"):
            return int(line.split()[1])
    return pid


def _is_ours(node: Node, pid: int) -> bool:
    try:
        return int(stat_fields(node, pid)[1]) == os.getpid()
    except OSError:
        return False


def descendants(node: Node, root: int) -> tuple[int, ...]:
    """A process and all below it now, by /proc/*/stat."""
    parents: dict[int, int] = {}
    for name in os.listdir(node.proc):
        if name.isdigit():
            try:
                parents[int(name)] = int(stat_fields(node, int(name))[1])
            except OSError:
                continue
    found = {root}
    grew = True
    while grew:
        below = {pid for pid, parent in parents.items() if parent in found} - found
        found |= below
        grew = bool(below)
    return tuple(sorted(found))


# --- cgroups ----------------------------------------------------------------------


def _bind_cgroup(node: Node, asked: str, device: str | None) -> ProcessBinding:
    path = cgroup_at(asked, f"cgroup {asked} cannot be a target")
    scope = scope_at(path)
    return _described(node, f"cgroup {scope.path}", scope, cgroup_pids(path), device)


def cgroup_at(asked: str, what: str) -> Path:
    """The directory of a cgroup that a user names, with or without the mount point.

    what: how the error begins. Raises Refused for the root, and for what is no cgroup v2.
    """
    if not (CGROUPS / "cgroup.controllers").exists():
        raise Refused(
            what,
            "this node has no unified cgroup v2 hierarchy, the only one that BPF can ask",
            "boot with systemd.unified_cgroup_hierarchy=1, or name --pid with --tree",
        )
    below = asked.removeprefix(str(CGROUPS)) if f"{asked}/".startswith(f"{CGROUPS}/") else asked
    path = Path(os.path.normpath(f"{CGROUPS}/{below}"))
    if path == CGROUPS:
        raise Refused(what, "it is the root: every process of the node", "name one below it")
    if CGROUPS not in path.parents:
        raise Refused(what, f"it is not below {CGROUPS}", "see: cat /proc/PID/cgroup")
    if not (path / "cgroup.procs").exists():
        raise Refused(what, f"there is no such cgroup: {path}", "see: cat /proc/PID/cgroup")
    return path


def scope_at(path: Path) -> CgroupScope:
    """The cgroup whose directory this is. Raises OSError."""
    relative = path.relative_to(CGROUPS)
    return CgroupScope(id=path.stat().st_ino, level=len(relative.parts), path=f"/{relative}")


def cgroup_pids(path: Path) -> tuple[int, ...]:
    """Processes in a cgroup and below it now, at most MAX_PIDS."""
    found: list[int] = []
    for folder, _, files in os.walk(path):
        if "cgroup.procs" in files and len(found) < MAX_PIDS:
            try:
                found += map(int, Path(folder, "cgroup.procs").read_text().split())
            except OSError:
                continue
    return tuple(sorted(set(found)))


# --- what is to be known ----------------------------------------------------------


def _described(
    node: Node,
    target: str,
    scope: PidScope | CgroupScope,
    pids: tuple[int, ...],
    device: str | None,
) -> ProcessBinding:
    looked = pids[:MAX_LOOKED_AT]
    comms = {pid: _comm(node, pid) for pid in looked}
    notes = []
    if len(pids) > len(looked):
        notes.append(f"only {len(looked)} of {len(pids)} processes were looked at")
    return ProcessBinding(
        target=target,
        scope=scope,
        comm=next(iter(comms.values()), ""),
        processes=len(pids),
        node_agents=tuple(f"{c} ({p})" for p, c in comms.items() if c in NODE_AGENTS),
        compat=tuple(pid for pid in looked if is_compat(node, pid)),
        io_uring=tuple(pid for pid in looked if has_io_uring(node, pid)),
        device=_device(device) if device else None,
        notes=tuple(notes),
    )


def agents_among(node: Node, pids: Iterable[int]) -> tuple[str, ...]:
    """Names of the node's agents that are among these processes."""
    return tuple(sorted({_comm(node, pid) for pid in pids} & set(NODE_AGENTS)))


def _comm(node: Node, pid: int) -> str:
    try:
        return comm_of(node, pid)
    except OSError:
        return ""


def is_compat(node: Node, pid: int) -> bool:
    """Whether a process runs a 32-bit program, by the ELF class of its executable."""
    try:
        with open(node.proc / str(pid) / "exe", "rb") as file:
            head = file.read(5)
    except OSError:
        return False
    return head[:4] == b"\x7fELF" and head[4] == _ELFCLASS32


def has_io_uring(node: Node, pid: int) -> bool:
    """Whether a process has an io_uring open: its operations are no system calls."""
    try:
        with os.scandir(node.proc / str(pid) / "fd") as entries:
            return any("io_uring" in os.readlink(entry.path) for entry in entries)
    except OSError:
        return False


def _device(asked: str) -> tuple[int, int]:
    """MAJOR:MINOR of a block device that is named by it, or by its path."""
    what = f"the device {asked} is not understood"
    major, colon, minor = asked.partition(":")
    if colon and major.isdecimal() and minor.isdecimal():
        return int(major), int(minor)
    try:
        found = os.stat(asked)
    except OSError as exc:
        raise Refused(what, f"{exc.strerror}", "see: lsblk -o NAME,MAJ:MIN") from exc
    if not stat.S_ISBLK(found.st_mode):
        raise InvalidSpec(what, "it is no block device", "see: lsblk -o NAME,MAJ:MIN")
    return os.major(found.st_rdev), os.minor(found.st_rdev)

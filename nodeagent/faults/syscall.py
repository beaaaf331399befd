"""syscall: chosen system calls of a process or cgroup fail, or return what they are told to."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field, model_validator

from nodeagent.encode.globs import compile_globs
from nodeagent.encode.predicate import MAX_TEXT, PredicateError
from nodeagent.encode.predicate_code import check
from nodeagent.encode.syscall_maps import pack_nets
from nodeagent.encode.syscalls import Call, cannot_return, errno_number, expand
from nodeagent.faults import _syscall_evidence as se
from nodeagent.faults import _syscall_plan as sp
from nodeagent.faults._syscall_strace import STRACE
from nodeagent.model.kind import FaultKind, FaultSpec
from nodeagent.model.units import Percent

Port = Annotated[int, Field(ge=1, le=65535)]


class Spec(FaultSpec):
    """Which calls, what becomes of them, how often, and for which files."""

    call: tuple[str, ...] = Field(
        min_length=1,
        description="system call, such as read, or a family with all its aliases, such as "
        "read-family; may be given several times",
    )
    errno: str | None = Field(default=None, description="error that the calls return, such as EIO")
    value: int | None = Field(
        default=None,
        ge=-(1 << 63),
        lt=1 << 63,
        description="return value instead of an errno; 0 is the end of file to read",
    )
    after: bool = Field(
        default=False,
        description="the call is done, its side effect kept, and what it returns is changed; "
        "without, it is skipped",
    )
    when: str = Field(
        default="",
        max_length=MAX_TEXT,
        description="only calls whose arguments are such: 'count >= 4096 && fd > 2'",
    )
    rate: Percent = Field(default=Decimal(100), description="share of the matching calls")
    every: int = Field(default=1, ge=1, lt=1 << 32, description="only each n-th matching call")
    first: int | None = Field(
        default=None, ge=1, lt=1 << 63, description="only among the first n matching calls"
    )
    at_most: int | None = Field(
        default=None, ge=1, lt=1 << 63, description="so many calls fail, and no more"
    )
    seed: int = Field(default=0, ge=0, lt=1 << 63, description="seed of the rate's draws")
    tree: bool = Field(
        default=False, description="with --pid: its descendants too, also those of later"
    )
    uid: int | None = Field(
        default=None, ge=0, lt=(1 << 32) - 1, description="only calls by this real user id"
    )
    fd_type: tuple[sp.FdType, ...] = Field(
        default=(), description="only calls on such a file: regular, dir, fifo, socket, char, block"
    )
    path: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description="only calls on files with such a path, as the caller sees it: /var/lib/x/**; "
        "* and ? stop at a slash, ** does not",
    )
    on_device: str | None = Field(
        default=None,
        description="only calls on files of this device, or on itself: MAJOR:MINOR, or its path",
    )
    port: tuple[Port, ...] = Field(
        default=(), max_length=8, description="only calls on a socket with this port at either end"
    )
    address: tuple[str, ...] = Field(
        default=(),
        max_length=4,
        description="only calls on a socket with this address, or network, at the other end",
    )
    exe: tuple[str, ...] = Field(
        default=(),
        max_length=16,
        description="only calls by programs with such a path (the executable's): /usr/bin/*",
    )
    runtime: bool = Field(
        default=False, description="with --cgroup: hit container runtimes and pause as well"
    )
    force: bool = Field(default=False, description="allow an errno that the call never returns")

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        calls = expand(self.call)
        if (self.errno is None) == (self.value is None):
            raise ValueError("one of errno and value is needed, and not both")
        if self.errno is not None:
            errno_number(self.errno)
            odd = [call.name for call in calls if cannot_return(call, self.errno)]
            if odd and not self.force:
                raise ValueError(
                    f"{', '.join(odd)} never returns {self.errno}: if you mean it, add --force"
                )
        if self.rate * 10_000 != int(self.rate * 10_000):
            raise ValueError("rate: a finer step than 0.0001% is not possible")
        if not self.rate:
            raise ValueError("rate: at 0% no call would ever fail")
        if self.first is not None and self.first < self.every:
            raise ValueError(f"first {self.first} ends before every {self.every} comes to one")
        if self.when:
            _check_when(self.when, calls)
        compile_globs(self.path)
        compile_globs(self.exe)
        pack_nets((), self.address)
        return self


def _check_when(text: str, calls: tuple[Call, ...]) -> None:
    """One error for a bad predicate, with a caret at its column. Raises ValueError."""
    try:
        check(text, calls)
    except PredicateError as exc:
        raise ValueError(f"when: {exc}") from exc


def _collateral(spec: Spec) -> tuple[str, ...]:
    said = ["what a program did because a call failed (a crash, a fail-over) stays done"]
    if spec.after:
        said.append("the calls are really done: files opened and mappings made stay, unknown to it")
    elif spec.value is not None:
        said.append("calls that only seem to work: what the program believes done is not")
    return tuple(said)


KIND = FaultKind(
    name="syscall",
    summary="system calls of a process or cgroup fail",
    doc="""\
The chosen calls return an errno, or a chosen value, to the target and to nobody else: a
process with all its threads, also those of later; with --tree its descendants, from their
birth; or a cgroup with all processes below it, present and future, through restarts. The
agent, its guardian, PID 1 and kernel threads are never hit; in a cgroup, neither are the
kubelet, container runtimes (nor their init, until it execs the container's program) and pause,
which are known by name. A fault on a process ends with it, as remedied.

A family stands for an operation with all its aliases: `read-family` is read, pread64, readv,
preadv and preadv2. 32-bit calls are hooked as well where the kernel has them, but for socketcall
and ipc, and not with a filter by file. Not covered, and said in the evidence: io_uring and AIO
(io_submit), which make no such calls; mmap; clocks, which the C library reads by the vDSO without
the kernel.

For which files: a path is the one that the caller itself would write, links and relative names
resolved, in its own mount namespace and below its own root; a file system that is mounted
somewhere else as well is not found by its other path. An open is met where its file is known:
at the security hook, or with --after. A socket's port is that of either end, its address the
one that the call names, else the peer's.

Which of them: `--when 'count >= 4096 && flags & 0x4 != 0'` looks at the call's arguments by the
kernel's names for them (`faultctl explain syscall --call read` lists them). There are comparisons,
&& || ! and parentheses, & for bits (it binds tighter than a comparison), whole numbers and
constants such as O_DIRECT. It is checked, encoded and run by the program itself: nothing of it is
compiled.

How often: among the first n matching calls, each n-th, a share of them by seed (the n-th draw of
a seed is always the same), and at most n in all, whichever threads make them. Calls that are
under way when the fault is armed end as they will. With --after the kernel follows only so many
calls of one function at a time on the whole node (a kretprobe's maxactive, some twice its CPUs, at
least 10): where more wait in it, by whichever program, the others pass; a kernel from 6.7 on counts
them as missed.

`bpf-fmod-ret` and `bpf-kprobe` meet the call's own function, before anything is looked at: a
closed descriptor fails with the fault's errno as well. `bpf-lsm`, for kernels without error
injection, is met at the hook where the kernel asks its security modules: arguments have been
checked by then, so that a call that fails by itself keeps its own errno. open's hook comes
after a missing file was created.""",
    spec=Spec,
    targets=("pid", "cgroup"),
    family="process",
    ladder=(*sp.LADDER, STRACE),
    evidence=lambda spec, measured: se.evidence(spec.call, measured),
    collateral=_collateral,
    remedies=(
        "restart the process (a fault on --pid ends with it; on --cgroup it holds)",
        "move the workload to another node, or fail over to a replica",
        "let the program retry, or use another way of doing the same",
    ),
    guards=sp.guards,
    react=sp.react,
    polled=True,
    no_hits_hint="the target has made no such call since: it may use another alias (name a "
    "family), io_uring, mmap or the vDSO's clock, sleep in a call that began before, or do its "
    "work in another process (--tree, --cgroup)",
    examples=(
        "faultctl inject syscall --pid 4242 --call read --errno EIO --rate 30%",
        "faultctl inject syscall --cgroup /kubepods.slice/pod1 --call fsync-family --errno EIO",
        "faultctl inject syscall --pid 4242 --tree --call read-family --value 0 --at-most 3",
        "faultctl inject syscall --pid 4242 --call read --errno EIO --path '/var/lib/db/**'",
    ),
)

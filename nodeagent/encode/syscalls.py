"""Which kernel functions a system call has, on which architecture; families; errnos. Pure.

The functions are named by arch/x86/include/asm/syscall_wrapper.h and its like: a prefix for
the architecture, one more for each kind of 32-bit call. What a kernel really has, its
error-injection list says.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from nodeagent.encode.syscall_maps import Hooked, Named, Subject
from nodeagent.encode.syscall_table import FAMILIES, ROWS

MAX_ERRNO = 4095
PREFIX = {"x86_64": "__x64_", "aarch64": "__arm64_"}
COMPAT_PREFIXES = {
    "x86_64": ("__ia32_sys_", "__ia32_compat_sys_"),
    "aarch64": ("__arm64_compat_sys_",),
}
COMPAT_FORMS = ("{}", "ia32_{}", "aarch32_{}", "{}_time32", "{}_time64", "{}32", "old{}")
# Where the function is not called like the call.
ENTRY = {
    "stat": "newstat",
    "fstat": "newfstat",
    "lstat": "newlstat",
    "umount2": "umount",
    "sendfile": "sendfile64",
}
COMPAT_MORE = {
    "mmap": ("mmap_pgoff", "ia32_mmap", "mmap2", "aarch32_mmap2"),
    "stat": ("stat64", "ia32_stat64"),
    "fstat": ("fstat64", "ia32_fstat64"),
    "lstat": ("lstat64", "ia32_lstat64"),
    "newfstatat": ("fstatat64", "ia32_fstatat64"),
    "truncate": ("truncate64", "ia32_truncate64"),
    "ftruncate": ("ftruncate64", "ia32_ftruncate64"),
    "fcntl": ("fcntl64",),
}
VDSO = frozenset({"clock_gettime", "gettimeofday", "time", "clock_getres"})
"""Calls that the C library answers without entering the kernel (vdso(7))."""
URING = frozenset(
    FAMILIES["read-family"]
    + FAMILIES["write-family"]
    + FAMILIES["fsync-family"]
    + FAMILIES["send-family"]
    + FAMILIES["recv-family"]
    + FAMILIES["accept-family"]
    + ("openat", "openat2", "close", "connect", "statx", "fallocate", "splice", "madvise")
)
"""Operations that io_uring does without the call (io_uring_enter(2))."""
AIO = frozenset(FAMILIES["read-family"] + FAMILIES["write-family"] + ("fsync", "fdatasync", "poll"))
"""Operations that io_submit does without the call (aio_read and the like, fs/aio.c)."""

_NAMED = {
    "connect": Named.SECOND,
    "bind": Named.SECOND,
    "sendto": Named.FIFTH,
    "sendmsg": Named.MSGHDR,
    "sendmmsg": Named.MSGHDR,
}
_HOOKED = {
    "file_open": Hooked.OPENED,
    "file_permission": Hooked.FILE,
    "file_fcntl": Hooked.FILE,
    "file_ioctl": Hooked.FILE,
    "file_lock": Hooked.FILE,
    "inode_getattr": Hooked.PATH,
    "path_truncate": Hooked.PATH,
}


def hooked(hook: str) -> Hooked:
    """What the first argument of an LSM hook is (include/linux/lsm_hook_defs.h)."""
    return _HOOKED.get(hook, Hooked.OTHER)


@dataclass(frozen=True, slots=True)
class Call:
    """One system call. `index` is what the BPF maps know it by."""

    name: str
    index: int
    numbers: tuple[tuple[str, int], ...]
    fd: bool
    hook: str
    errnos: frozenset[str]

    @property
    def subject(self) -> Subject:
        """Where the file that it is about can be found, before or after it."""
        if self.fd:
            return Subject.FD
        return Subject.OPENED if self.name in FAMILIES["open-family"] else Subject.NONE

    @property
    def named(self) -> Named:
        """Which argument names an address."""
        return _NAMED.get(self.name, Named.NONE)

    def number(self, arch: str) -> int | None:
        """Its native number on an architecture (uname -m), None where it has none."""
        return dict(self.numbers).get(arch)

    def function(self, arch: str) -> str:
        """The kernel function behind it. Raises ValueError for an architecture we do not know."""
        if arch not in PREFIX:
            raise ValueError(f"system call functions are not known on {arch}")
        return f"{PREFIX[arch]}sys_{ENTRY.get(self.name, self.name)}"

    def function_in(self, arch: str, listed: Iterable[str]) -> str | None:
        """The function by the name that a kernel's error-injection list has for it, or None.

        On x86-64 a call without arguments has two names at one address, and the list shows
        one of them (__SYS_STUB0 in arch/x86/include/asm/syscall_wrapper.h).
        """
        name = self.function(arch)
        own = name.replace(PREFIX[arch] + "sys_", "__do_sys_")
        return next((found for found in (name, own) if found in listed), None)

    def compat_functions(self, arch: str) -> tuple[str, ...]:
        """What its 32-bit forms may be called; a kernel has some of them, or none."""
        entry = ENTRY.get(self.name, self.name)
        forms = [form.format(entry) for form in COMPAT_FORMS]
        forms += COMPAT_MORE.get(self.name, ())
        return tuple(p + form for p in COMPAT_PREFIXES.get(arch, ()) for form in forms)


@cache
def table() -> dict[str, Call]:
    """All known calls by name."""
    found = {}
    for index, (name, x86, arm, fd, hook, errnos) in enumerate(ROWS):
        numbers = tuple(
            (arch, int(number))
            for arch, number in (("x86_64", x86), ("aarch64", arm))
            if number != "-"
        )
        hook = "" if hook == "-" else hook
        found[name] = Call(name, index, numbers, fd == "fd", hook, frozenset(errnos.split()))
    return found


def expand(names: Iterable[str]) -> tuple[Call, ...]:
    """Calls of names and families, each once, in order. Raises ValueError with what is known."""
    found: dict[str, Call] = {}
    for name in names:
        for member in FAMILIES.get(name, (name,)):
            call = table().get(member)
            if call is None:
                raise ValueError(f"unknown call {name!r}{_near(name)}")
            found[member] = call
    return tuple(found.values())


def _near(name: str) -> str:
    import difflib

    near = difflib.get_close_matches(name, [*table(), *FAMILIES], 3, 0.5)
    families = f"families: {', '.join(FAMILIES)}"
    return f"; did you mean {', '.join(near)}?" if near else f"; {families}"


def errno_number(name: str) -> int:
    """EIO -> 5, by the C library's names. Raises ValueError."""
    number = getattr(errno, name, None) if name[:1] == "E" else None
    if not isinstance(number, int) or not 0 < number <= MAX_ERRNO:
        raise ValueError(f"unknown errno {name!r}: write a name such as EIO (errno(3))")
    return number


def cannot_return(call: Call, name: str) -> bool:
    """Whether the man page lists no such error for the call. EAGAIN and EWOULDBLOCK are one."""
    number = errno_number(name)
    return number not in {errno_number(e) for e in call.errnos}


def on_arch(calls: Iterable[Call], arch: str) -> tuple[Call, ...]:
    """Those that the architecture has."""
    return tuple(call for call in calls if call.number(arch) is not None)


@cache
def all_functions(arch: str) -> frozenset[str]:
    """Every function that a fault may want to hook there."""
    if arch not in PREFIX:
        return frozenset()
    native = {call.function(arch) for call in on_arch(table().values(), arch)}
    native |= {name.replace(PREFIX[arch] + "sys_", "__do_sys_") for name in native}
    return frozenset(native.union(*(c.compat_functions(arch) for c in table().values())))

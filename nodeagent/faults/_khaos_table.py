"""The fault names of SREGym's khaos as data: what ours does under each of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

READ = ("read", "readv")
PREAD = ("pread64", "preadv", "preadv2")
WRITE = ("write", "writev")
PWRITE = ("pwrite64", "pwritev", "pwritev2")
FSYNC = ("fsync", "fdatasync")


@dataclass(frozen=True)
class Part:
    """One effect. result: an errno, or a number that the calls return.

    khaos: what the name means there, for the doc; `after`: the call is done first.
    """

    call: tuple[str, ...]
    result: str
    khaos: str
    after: bool = False
    rate: int = 100
    note: str = ""


@dataclass(frozen=True)
class Story:
    """A compound story: several effects under one id."""

    parts: tuple[str, ...]
    text: str


_BRK = (
    "brk(2) has no errno: the C library takes -12 for an address and goes on with it. "
    "Ours returns 0, which it understands as ENOMEM."
)
_CLOCK = "The C library reads clocks by the vDSO; only calls that enter the kernel are hit."
_ODD = "The man page lists no such error for the call; it is returned because the name says so."
_THREADS = "Starting a thread is such a call too."
_SECTORS = (
    "Hooks of calls touch no disk, and hit sockets and pipes as well: for sectors that "
    "really cannot be read, take latent-sector, or khaos:block_read_error."
)


def _after(call: str | tuple[str, ...], result: str, khaos: str, note: str = "") -> Part:
    calls = (call,) if isinstance(call, str) else call
    return Part(calls, result, khaos, True, note=note)


PARTS: dict[str, Part] = {
    "read_error": Part(READ, "EIO", "read returns EIO"),
    "pread_error": Part(PREAD, "EIO", "pread64 returns EIO"),
    "write_error": Part(WRITE, "ENOSPC", "write returns ENOSPC"),
    "pwrite_error": Part(PWRITE, "ENOSPC", "pwrite64 returns ENOSPC"),
    "fsync_error": Part(FSYNC, "EIO", "fsync returns EIO"),
    "open_error": Part(("open-family",), "EACCES", "openat returns EACCES"),
    "close_fail": Part(("close",), "EBADF", "close returns EBADF", note="The file stays open."),
    "dup_fail": Part(("dup-family",), "EMFILE", "dup returns EMFILE"),
    "getrandom_fail": Part(("getrandom",), "EAGAIN", "getrandom returns EAGAIN"),
    "gettimeofday_fail": Part(
        ("gettimeofday",), "EPERM", "gettimeofday returns EPERM", note=f"{_ODD} {_CLOCK}"
    ),
    "ioctl_fail": Part(("ioctl",), "ENOTTY", "ioctl returns ENOTTY"),
    "cuda_malloc_fail": Part(("ioctl",), "ENOMEM", "ioctl returns ENOMEM"),
    "getaddrinfo_fail": Part(
        ("recv-family",), "EPERM", "recvfrom returns EPERM", note=f"{_ODD} Every receive is hit."
    ),
    "nanosleep_throttle": Part(("sleep-family",), "EIO", "nanosleep returns EIO", note=_ODD),
    "nanosleep_interrupt": Part(("sleep-family",), "EINTR", "nanosleep returns EINTR"),
    "fork_fail": Part(("fork-family",), "EAGAIN", "fork returns EAGAIN", note=_THREADS),
    "clock_drift": Part(
        ("clock_gettime",), "EIO", "clock_gettime returns EIO", note=f"{_ODD} {_CLOCK}"
    ),
    "setns_fail": Part(("setns",), "EPERM", "setns returns EPERM"),
    "prlimit_fail": Part(("prlimit64",), "EPERM", "prlimit64 returns EPERM"),
    "socket_block": Part(("socket",), "EPERM", "socket returns EPERM"),
    "mmap_fail": Part(("mmap",), "ENOMEM", "mmap returns ENOMEM"),
    "mmap_oom": Part(("mmap",), "ENOMEM", "mmap returns ENOMEM"),
    "brk_fail": Part(("brk",), "0", "brk returns ENOMEM", note=_BRK),
    "mlock_fail": Part(("mlock-family",), "ENOMEM", "mlock returns ENOMEM"),
    "bind_enetdown": Part(("bind",), "ENETDOWN", "bind returns ENETDOWN"),
    "mount_io_error": Part(("mount",), "EIO", "mount returns EIO"),
    "force_close_ret_err": _after("close", "EPERM", "close returns -1 (EPERM) after it", _ODD),
    "force_read_ret_ok": _after(
        READ, "0", "read returns 0 (end of file) after it", "What was read is lost to the program."
    ),
    "force_open_ret_eperm": _after(
        "open-family", "EPERM", "openat returns EPERM after it", "Each call leaves an open file."
    ),
    "force_mmap_eagain": _after(
        "mmap", "EAGAIN", "mmap returns EAGAIN after it", "Each call leaves a mapping."
    ),
    "force_brk_eagain": _after("brk", "0", "brk returns EAGAIN after it", _BRK),
    "force_mlock_eperm": _after("mlock-family", "EPERM", "mlock returns EPERM after it"),
    "force_mprotect_eacces": _after("mprotect", "EACCES", "mprotect returns EACCES after it"),
    "force_swapon_einval": _after("swapon", "EINVAL", "swapon returns EINVAL after it"),
    "oom_memchunk": Part(("mmap",), "ENOMEM", "mmap returns ENOMEM"),
    "oom_heapspace": Part(("brk",), "0", "brk returns ENOMEM", note=_BRK),
    "oom_nonswap": Part(("mlock-family",), "ENOMEM", "mlock returns ENOMEM"),
    "hfrag_memchunk": _after("mmap", "EAGAIN", "mmap returns EAGAIN after it"),
    "hfrag_heapspace": _after("brk", "0", "brk returns EAGAIN after it", _BRK),
    "ptable_permit": _after("mlock-family", "EPERM", "mlock returns EPERM after it"),
    "stack_rndsegfault": _after("mprotect", "EACCES", "mprotect returns EACCES after it"),
    "thrash_swapon": _after("swapon", "EINVAL", "swapon returns EINVAL after it"),
    "thrash_swapoff": Part(("swapoff",), "EPERM", "swapoff returns EPERM"),
    "memleak_munmap": _after(
        "munmap", "EINVAL", "munmap returns EINVAL after it", "The mapping is gone all the same."
    ),
    "packet_loss_sendto": Part(
        ("send-family",), "ECONNREFUSED", "sendto returns ECONNREFUSED, 30 %", rate=30,
        note="No packet is lost: for that take netem.",
    ),
    "packet_loss_recvfrom": Part(
        ("recv-family",), "ECONNREFUSED", "recvfrom returns ECONNREFUSED, 30 %", rate=30,
        note="No packet is lost: for that take netem.",
    ),
    "latent_sector_error": Part(
        (*READ, *PREAD), "EIO", "read and pread64 return EIO, 30 %", rate=30, note=_SECTORS
    ),
}  # fmt: skip

STORIES: dict[str, Story] = {
    "nic_packet_corruption": Story(
        ("packet_loss_sendto", "packet_loss_recvfrom"), "a network card that loses what it moves"
    ),
    "storage_controller_read_failure": Story(
        ("read_error", "pread_error"), "a storage controller that cannot read"
    ),
    "storage_write_failure": Story(
        ("write_error", "pwrite_error", "fsync_error"), "storage that takes no writes"
    ),
    "dram_module_failure": Story(
        ("mmap_fail", "mmap_oom", "oom_memchunk"), "a memory module that has failed"
    ),
    "cpu_clocksource_failure": Story(
        ("clock_drift", "gettimeofday_fail"), "a clock that cannot be read"
    ),
    "mmu_page_protection_failure": Story(
        ("force_mprotect_eacces", "stack_rndsegfault"), "memory that cannot be protected"
    ),
    "network_interface_link_down": Story(
        ("bind_enetdown", "socket_block"), "a network interface that is down"
    ),
    "dns_resolver_hardware_failure": Story(
        ("getaddrinfo_fail",), "a resolver that gets no answers"
    ),
}


INSTEAD: dict[str, str] = {
    "path_read_error": "syscall --call read-family --errno EIO --path PATTERN",
    "brk_shrink": "syscall --call brk --value 0",
    "fsync_delay": "disk-delay --write TIME",
    "read_corruption": "disk-corrupt",
}
"""Experimental names, in khaos' program only: what comes closest to what they say."""

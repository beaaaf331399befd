"""Arguments of system calls by name, for predicates. Pure.

Names are the kernel's own (SYSCALL_DEFINE, shown in /sys/kernel/tracing/events/syscalls). Types
are what the kernel reads them by: `i` int, `u` unsigned int, `m` umode_t (16 bits), `l` long or
loff_t, `z` size_t, unsigned long or a pointer; descriptors are int, as in the man pages. Where the
architectures differ (clone), only what is the same on both stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from nodeagent.encode.syscall_constants import ARM64, CONSTANTS

WIDTHS = {"z": 0, "l": 1, "u": 2, "i": 3, "m": 4}
"""enum fc_width in bpf/when.bpf.h."""

_ROWS = """
read: i fd, z buf, z count
write: i fd, z buf, z count
pread64: i fd, z buf, z count, l pos
pwrite64: i fd, z buf, z count, l pos
readv writev: i fd, z vec, z vlen
preadv pwritev: i fd, z vec, z vlen, z pos_l, z pos_h
preadv2 pwritev2: i fd, z vec, z vlen, z pos_l, z pos_h, i flags
open: z filename, i flags, m mode
openat: i dfd, z filename, i flags, m mode
openat2: i dfd, z filename, z how, z usize
creat: z pathname, m mode
open_by_handle_at: i mountdirfd, z handle, i flags
close: i fd
close_range: i fd, u max_fd, u flags
dup: i fildes
dup2: i oldfd, i newfd
dup3: i oldfd, i newfd, i flags
lseek: i fd, l offset, u whence
fsync fdatasync: i fd
syncfs: i fd
sync_file_range: i fd, l offset, l nbytes, u flags
msync: z start, z len, i flags
fallocate: i fd, i mode, l offset, l len
ftruncate: i fd, l length
truncate: z path, l length
unlink: z pathname
unlinkat: i dfd, z pathname, i flag
rename: z oldname, z newname
renameat: i olddfd, z oldname, i newdfd, z newname
renameat2: i olddfd, z oldname, i newdfd, z newname, u flags
mkdir: z pathname, m mode
mkdirat: i dfd, z pathname, m mode
rmdir: z pathname
link symlink: z oldname, z newname
linkat: i olddfd, z oldname, i newdfd, z newname, i flags
symlinkat: z oldname, i newdfd, z newname
chmod: z filename, m mode
fchmod: i fd, m mode
fchmodat: i dfd, z filename, m mode
access: z filename, i mode
faccessat: i dfd, z filename, i mode
stat lstat: z filename, z statbuf
fstat: i fd, z statbuf
newfstatat: i dfd, z filename, z statbuf, i flag
statx: i dfd, z filename, u flags, u mask, z buffer
getdents64: i fd, z dirent, u count
fcntl: i fd, u cmd, z arg
flock: i fd, u cmd
ioctl: i fd, u cmd, z arg
sendfile: i out_fd, i in_fd, z offset, z count
splice: i fd_in, z off_in, i fd_out, z off_out, z len, u flags
copy_file_range: i fd_in, z off_in, i fd_out, z off_out, z len, u flags
pipe: z fildes
pipe2: z fildes, i flags
fork vfork:
clone: z clone_flags, z newsp
clone3: z uargs, z size
execve: z filename, z argv, z envp
execveat: i fd, z filename, z argv, z envp, i flags
wait4: i upid, z stat_addr, i options, z ru
kill: i pid, i sig
nanosleep: z rqtp, z rmtp
clock_nanosleep: i which_clock, i flags, z rqtp, z rmtp
clock_gettime clock_settime: i which_clock, z tp
gettimeofday: z tv, z tz
time: z tloc
socket: i family, i type, i protocol
socketpair: i family, i type, i protocol, z usockvec
bind: i fd, z umyaddr, i addrlen
listen: i fd, i backlog
connect: i fd, z uservaddr, i addrlen
accept: i fd, z upeer_sockaddr, z upeer_addrlen
accept4: i fd, z upeer_sockaddr, z upeer_addrlen, i flags
sendto: i fd, z buff, z len, u flags, z addr, i addr_len
recvfrom: i fd, z ubuf, z size, u flags, z addr, z addr_len
sendmsg recvmsg: i fd, z msg, u flags
sendmmsg: i fd, z mmsg, u vlen, u flags
recvmmsg: i fd, z mmsg, u vlen, u flags, z timeout
setsockopt: i fd, i level, i optname, z optval, i optlen
getsockopt: i fd, i level, i optname, z optval, z optlen
shutdown: i fd, i how
poll: z ufds, u nfds, i timeout_msecs
ppoll: z ufds, u nfds, z tsp, z sigmask, z sigsetsize
select: i n, z inp, z outp, z exp, z tvp
pselect6: i n, z inp, z outp, z exp, z tsp, z sig
epoll_wait: i epfd, z events, i maxevents, i timeout
epoll_pwait: i epfd, z events, i maxevents, i timeout, z sigmask, z sigsetsize
epoll_ctl: i epfd, i op, i fd, z event
mmap: z addr, z len, z prot, z flags, i fd, z off
munmap: z addr, z len
mremap: z addr, z old_len, z new_len, z flags, z new_addr
mprotect: z start, z len, z prot
madvise: z start, z len_in, i behavior
brk: z brk
mlock: z start, z len
mlock2: z start, z len, i flags
mlockall: i flags
swapon: z specialfile, i swap_flags
swapoff: z specialfile
getrandom: z ubuf, z len, u flags
setns: i fd, i flags
unshare: z unshare_flags
prlimit64: i pid, u resource, z new_rlim, z old_rlim
mount: z dev_name, z dir_name, z type, z flags, z data
umount2: z name, i flags
futex: z uaddr, i op, u val, z utime, z uaddr2, u val3
getpriority: i which, i who
io_setup: u nr_events, z ctxp
io_submit: z ctx_id, l nr, z iocbpp
io_uring_setup: u entries, z params
io_uring_enter: i fd, u to_submit, u min_complete, u flags, z argp, z argsz
"""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: which register, from 0, and how the kernel reads it (WIDTHS)."""

    name: str
    index: int
    width: int


@cache
def _table() -> dict[str, tuple[Argument, ...]]:
    found = {}
    for row in _ROWS.strip().splitlines():
        calls, _, rest = row.partition(":")
        words = [part.split() for part in rest.split(",") if part.strip()]
        arguments = tuple(Argument(n, at, WIDTHS[w]) for at, (w, n) in enumerate(words))
        found.update(dict.fromkeys(calls.split(), arguments))
    return found


def arguments(call: str) -> tuple[Argument, ...]:
    """Of one call by its name, in order. Raises KeyError for an unknown call."""
    return _table()[call]


def constants() -> frozenset[str]:
    """Names of all constants that a predicate may use."""
    return frozenset(CONSTANTS)


def constant(name: str, arch: str) -> int | None:
    """A constant's value on an architecture (uname -m), None for a name that is none."""
    if arch == "aarch64" and name in ARM64:
        return ARM64[name]
    return CONSTANTS.get(name)

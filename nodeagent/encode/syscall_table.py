"""System calls as data: numbers, first argument, errnos, LSM hook. Pure.

Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h; `-`
where the architecture has no such call. Errnos: section 2 of the man pages. `fd`: the first
argument is an open file. The hook is one that the call passes before it does anything
(include/linux/lsm_hook_defs.h); `-` where none stands for the call.
"""

from __future__ import annotations

_FD_IO = "EAGAIN EBADF EFAULT EINTR EINVAL EIO ENXIO"
_READ = f"{_FD_IO} EISDIR ECONNRESET ETIMEDOUT ENOBUFS ENOMEM EOVERFLOW ESPIPE EOPNOTSUPP"
_WRITE = f"{_FD_IO} EDQUOT EFBIG ENOSPC EPERM EPIPE EDESTADDRREQ ECONNRESET ESPIPE EOPNOTSUPP EROFS"
_PATH = "EACCES EFAULT ELOOP ENAMETOOLONG ENOENT ENOMEM ENOTDIR EIO"
_OPEN = (
    f"{_PATH} EBADF EBUSY EDQUOT EEXIST EFBIG EINTR EINVAL EISDIR EMFILE ENFILE ENODEV ENOSPC "
    "ENXIO EOPNOTSUPP EOVERFLOW EPERM EROFS ETXTBSY EAGAIN E2BIG EXDEV ESTALE"
)
_CHANGE = (
    f"{_PATH} EBADF EBUSY EDQUOT EEXIST EINVAL EISDIR EMLINK ENOSPC ENOTEMPTY EPERM EROFS EXDEV"
)
_STAT = f"{_PATH} EBADF EINVAL EOVERFLOW"
_SYNC = "EBADF EINTR EIO ENOSPC EDQUOT EROFS EINVAL ESPIPE ENOMEM EBUSY"
_FORK = "EAGAIN ENOMEM EINVAL ENOSPC EPERM EBUSY EUSERS EEXIST EACCES EBADF EOPNOTSUPP"
_SLEEP = "EFAULT EINTR EINVAL EOPNOTSUPP"
_NET = "EBADF EFAULT EINTR EINVAL ENOBUFS ENOMEM ENOTSOCK EOPNOTSUPP"
_SEND = (
    f"{_NET} EACCES EAGAIN EALREADY ECONNREFUSED ECONNRESET EDESTADDRREQ EHOSTUNREACH EISCONN "
    "EMSGSIZE ENETDOWN ENETUNREACH ENOTCONN EPERM EPIPE ETIMEDOUT"
)
_RECV = f"{_NET} EAGAIN ECONNREFUSED ECONNRESET EHOSTUNREACH ENETDOWN ENOTCONN ETIMEDOUT"
_CONNECT = (
    f"{_NET} EACCES EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EAGAIN EALREADY ECONNREFUSED ECONNRESET "
    "EHOSTUNREACH EINPROGRESS EISCONN ENETDOWN ENETUNREACH EPERM EPROTOTYPE ETIMEDOUT ENOENT"
)
_BIND = f"{_NET} EACCES EADDRINUSE EADDRNOTAVAIL ELOOP ENAMETOOLONG ENOENT ENOTDIR EROFS ENETDOWN"
_ACCEPT = f"{_NET} EAGAIN ECONNABORTED EMFILE ENFILE EPERM EPROTO ENETDOWN"
_SOCKET = "EACCES EAFNOSUPPORT EINVAL EMFILE ENFILE ENOBUFS ENOMEM EPROTONOSUPPORT EPERM"
_MAP = "EACCES EAGAIN EBADF EEXIST EINVAL ENFILE ENODEV ENOMEM EOVERFLOW EPERM ETXTBSY EFAULT"
_LOCK = "EAGAIN EINVAL ENOMEM EPERM"
_CLOCK = "EACCES EFAULT EINVAL ENODEV EOPNOTSUPP EPERM"
_EXEC = (
    f"{_PATH} E2BIG EAGAIN EINVAL EISDIR ELIBBAD EMFILE ENFILE ENOEXEC EPERM ETXTBSY EBADF EINTR"
)
_POLL = "EBADF EFAULT EINTR EINVAL ENOMEM EPERM EEXIST ELOOP ENOENT ENOSPC"
_MOUNT = f"{_PATH} EBUSY EINVAL EMFILE ENODEV ENOTBLK ENXIO EPERM EROFS EAGAIN ENOSPC"

# name | x86-64 | arm64 | fd | LSM hook | errnos
_ROWS = f"""
read | 0 | 63 | fd | file_permission | {_READ}
pread64 | 17 | 67 | fd | file_permission | {_READ}
readv | 19 | 65 | fd | file_permission | {_READ}
preadv | 295 | 69 | fd | file_permission | {_READ}
preadv2 | 327 | 286 | fd | file_permission | {_READ}
write | 1 | 64 | fd | file_permission | {_WRITE}
pwrite64 | 18 | 68 | fd | file_permission | {_WRITE}
writev | 20 | 66 | fd | file_permission | {_WRITE}
pwritev | 296 | 70 | fd | file_permission | {_WRITE}
pwritev2 | 328 | 287 | fd | file_permission | {_WRITE}
open | 2 | - | - | file_open | {_OPEN}
openat | 257 | 56 | - | file_open | {_OPEN}
openat2 | 437 | 437 | - | file_open | {_OPEN}
creat | 85 | - | - | file_open | {_OPEN}
open_by_handle_at | 304 | 265 | - | file_open | {_OPEN}
close | 3 | 57 | fd | - | EBADF EINTR EIO ENOSPC EDQUOT
close_range | 436 | 436 | - | - | EINVAL EMFILE ENOMEM
dup | 32 | 23 | fd | - | EBADF EBUSY EINTR EINVAL EMFILE
dup2 | 33 | - | fd | - | EBADF EBUSY EINTR EINVAL EMFILE
dup3 | 292 | 24 | fd | - | EBADF EBUSY EINTR EINVAL EMFILE
lseek | 8 | 62 | fd | - | EBADF EINVAL ENXIO EOVERFLOW ESPIPE
fsync | 74 | 82 | fd | - | {_SYNC}
fdatasync | 75 | 83 | fd | - | {_SYNC}
syncfs | 306 | 267 | fd | - | {_SYNC}
sync_file_range | 277 | 84 | fd | - | {_SYNC}
msync | 26 | 227 | - | - | {_SYNC}
fallocate | 285 | 47 | fd | - | {_WRITE} ENODEV ENOSYS
ftruncate | 77 | 46 | fd | - | {_WRITE} {_PATH}
truncate | 76 | 45 | - | path_truncate | {_CHANGE} EFBIG EINTR ETXTBSY
unlink | 87 | - | - | inode_unlink | {_CHANGE}
unlinkat | 263 | 35 | - | inode_unlink | {_CHANGE}
rename | 82 | - | - | inode_rename | {_CHANGE}
renameat | 264 | 38 | - | inode_rename | {_CHANGE}
renameat2 | 316 | 276 | - | inode_rename | {_CHANGE}
mkdir | 83 | - | - | inode_mkdir | {_CHANGE}
mkdirat | 258 | 34 | - | inode_mkdir | {_CHANGE}
rmdir | 84 | - | - | inode_rmdir | {_CHANGE}
link | 86 | - | - | inode_link | {_CHANGE}
linkat | 265 | 37 | - | inode_link | {_CHANGE}
symlink | 88 | - | - | inode_symlink | {_CHANGE}
symlinkat | 266 | 36 | - | inode_symlink | {_CHANGE}
chmod | 90 | - | - | - | {_CHANGE}
fchmod | 91 | 52 | fd | - | {_CHANGE}
fchmodat | 268 | 53 | - | - | {_CHANGE}
access | 21 | - | - | - | {_PATH} EINVAL EROFS ETXTBSY
faccessat | 269 | 48 | - | - | {_PATH} EBADF EINVAL EROFS ETXTBSY
stat | 4 | - | - | inode_getattr | {_STAT}
fstat | 5 | 80 | fd | inode_getattr | {_STAT}
lstat | 6 | - | - | inode_getattr | {_STAT}
newfstatat | 262 | 79 | - | inode_getattr | {_STAT}
statx | 332 | 291 | - | inode_getattr | {_STAT}
getdents64 | 217 | 61 | fd | file_permission | EBADF EFAULT EINVAL EIO ENOENT ENOTDIR
fcntl | 72 | 25 | fd | file_fcntl | {_FD_IO} EACCES EBUSY EDEADLK EMFILE ENOLCK ENOTDIR EPERM
flock | 73 | 32 | fd | file_lock | EAGAIN EBADF EINTR EINVAL ENOLCK
ioctl | 16 | 29 | fd | file_ioctl | {_FD_IO} ENOTTY ENOMEM ENODEV EPERM EACCES EBUSY EOPNOTSUPP
sendfile | 40 | 71 | - | - | {_WRITE} ENOMEM EOVERFLOW
splice | 275 | 76 | - | - | EAGAIN EBADF EINVAL ENOMEM ESPIPE EIO
copy_file_range | 326 | 285 | - | - | {_WRITE} EISDIR ENOMEM EOVERFLOW ETXTBSY EXDEV
pipe | 22 | - | - | - | EFAULT EINVAL EMFILE ENFILE ENOPKG
pipe2 | 293 | 59 | - | - | EFAULT EINVAL EMFILE ENFILE ENOPKG
fork | 57 | - | - | task_alloc | {_FORK}
vfork | 58 | - | - | task_alloc | {_FORK}
clone | 56 | 220 | - | task_alloc | {_FORK}
clone3 | 435 | 435 | - | task_alloc | {_FORK}
execve | 59 | 221 | - | bprm_creds_for_exec | {_EXEC}
execveat | 322 | 281 | - | bprm_creds_for_exec | {_EXEC}
wait4 | 61 | 260 | - | - | ECHILD EFAULT EINTR EINVAL ESRCH
kill | 62 | 129 | - | - | EINVAL EPERM ESRCH
nanosleep | 35 | 101 | - | - | {_SLEEP}
clock_nanosleep | 230 | 115 | - | - | {_SLEEP}
clock_gettime | 228 | 113 | - | - | {_CLOCK}
clock_settime | 227 | 112 | - | settime | {_CLOCK}
gettimeofday | 96 | 169 | - | - | EFAULT EINVAL
time | 201 | - | - | - | EFAULT EOVERFLOW
socket | 41 | 198 | - | socket_create | {_SOCKET}
socketpair | 53 | 199 | - | socket_create | {_SOCKET} EFAULT EOPNOTSUPP
bind | 49 | 200 | fd | socket_bind | {_BIND}
listen | 50 | 201 | fd | socket_listen | EADDRINUSE EBADF ENOTSOCK EOPNOTSUPP
connect | 42 | 203 | fd | socket_connect | {_CONNECT}
accept | 43 | 202 | fd | socket_accept | {_ACCEPT}
accept4 | 288 | 242 | fd | socket_accept | {_ACCEPT}
sendto | 44 | 206 | fd | socket_sendmsg | {_SEND}
sendmsg | 46 | 211 | fd | socket_sendmsg | {_SEND}
sendmmsg | 307 | 269 | fd | - | {_SEND}
recvfrom | 45 | 207 | fd | socket_recvmsg | {_RECV}
recvmsg | 47 | 212 | fd | socket_recvmsg | {_RECV}
recvmmsg | 299 | 243 | fd | - | {_RECV}
setsockopt | 54 | 208 | fd | socket_setsockopt | {_NET} ENOPROTOOPT EDOM EISCONN
getsockopt | 55 | 209 | fd | socket_getsockopt | {_NET} ENOPROTOOPT
shutdown | 48 | 210 | fd | socket_shutdown | EBADF EINVAL ENOTCONN ENOTSOCK
poll | 7 | - | - | - | {_POLL}
ppoll | 271 | 73 | - | - | {_POLL}
select | 23 | - | - | - | {_POLL}
pselect6 | 270 | 72 | - | - | {_POLL}
epoll_wait | 232 | - | fd | - | {_POLL}
epoll_pwait | 281 | 22 | fd | - | {_POLL}
epoll_ctl | 233 | 21 | fd | - | {_POLL}
mmap | 9 | 222 | - | mmap_file | {_MAP}
munmap | 11 | 215 | - | - | EINVAL ENOMEM
mremap | 25 | 216 | - | - | EAGAIN EFAULT EINVAL ENOMEM
mprotect | 10 | 226 | - | file_mprotect | EACCES EINVAL ENOMEM
madvise | 28 | 233 | - | - | EACCES EAGAIN EBADF EFAULT EINVAL EIO ENOMEM EPERM
brk | 12 | 214 | - | - |
mlock | 149 | 228 | - | - | {_LOCK}
mlock2 | 325 | 284 | - | - | {_LOCK}
mlockall | 151 | 230 | - | - | {_LOCK}
swapon | 167 | 224 | - | - | {_PATH} EBUSY EINVAL ENFILE EPERM
swapoff | 168 | 225 | - | - | {_PATH} EBUSY EINVAL ENFILE EPERM
getrandom | 318 | 278 | - | - | EAGAIN EFAULT EINTR EINVAL ENOSYS
setns | 308 | 268 | fd | - | EBADF EINVAL ENOMEM EPERM ESRCH
unshare | 272 | 97 | - | - | EINVAL ENOMEM ENOSPC EPERM EUSERS
prlimit64 | 302 | 261 | - | - | EFAULT EINVAL EPERM ESRCH
mount | 165 | 40 | - | sb_mount | {_MOUNT}
umount2 | 166 | 39 | - | sb_umount | {_MOUNT}
futex | 202 | 98 | - | - | EACCES EAGAIN EDEADLK EFAULT EINTR EINVAL ENOMEM ENOSYS EPERM ETIMEDOUT
getpriority | 140 | 141 | - | - | EINVAL ESRCH EACCES EPERM
io_setup | 206 | 0 | - | - | EAGAIN EFAULT EINVAL ENOMEM ENOSYS
io_submit | 209 | 2 | - | - | EAGAIN EBADF EFAULT EINVAL ENOSYS
io_uring_setup | 425 | 425 | - | - | EFAULT EINVAL EMFILE ENFILE ENOMEM EPERM
io_uring_enter | 426 | 426 | fd | - | {_FD_IO} EBADFD EBADR EBUSY EOPNOTSUPP
"""

ROWS: tuple[tuple[str, ...], ...] = tuple(
    tuple(cell.strip() for cell in line.split("|")) for line in _ROWS.strip().splitlines()
)

FAMILIES: dict[str, tuple[str, ...]] = {
    "read-family": ("read", "pread64", "readv", "preadv", "preadv2"),
    "write-family": ("write", "pwrite64", "writev", "pwritev", "pwritev2"),
    "open-family": ("open", "openat", "openat2", "creat", "open_by_handle_at"),
    "close-family": ("close", "close_range"),
    "dup-family": ("dup", "dup2", "dup3"),
    "fsync-family": ("fsync", "fdatasync", "syncfs", "sync_file_range", "msync"),
    "fork-family": ("fork", "vfork", "clone", "clone3"),
    "exec-family": ("execve", "execveat"),
    "sleep-family": ("nanosleep", "clock_nanosleep"),
    "send-family": ("sendto", "sendmsg", "sendmmsg"),
    "recv-family": ("recvfrom", "recvmsg", "recvmmsg"),
    "accept-family": ("accept", "accept4"),
    "memory-family": ("mmap", "brk", "mremap"),
    "mlock-family": ("mlock", "mlock2", "mlockall"),
    "clock-family": ("clock_gettime", "gettimeofday", "time"),
    "stat-family": ("stat", "fstat", "lstat", "newfstatat", "statx"),
    "rename-family": ("rename", "renameat", "renameat2"),
    "unlink-family": ("unlink", "unlinkat"),
    "mkdir-family": ("mkdir", "mkdirat"),
}

"""From the agent's pod into the node: the namespaces of the node's process 1."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence

from nodeagent.model.errors import Refused

NAMESPACES = ("cgroup", "ipc", "uts", "mnt")  # the mounts last: the others are found through them
_LIBC = ctypes.CDLL(None, use_errno=True)


def check_pod() -> None:
    """Raises Refused unless process 1 is the node's and its namespaces can be seen."""
    try:
        same = os.path.samefile("/proc/1/ns/mnt", "/proc/self/ns/mnt")
    except OSError as exc:
        raise Refused(
            "the node's namespaces cannot be seen",
            f"/proc/1/ns/mnt: {exc.strerror}",
            "the container must be privileged, or have CAP_SYS_ADMIN and CAP_SYS_PTRACE",
        ) from exc
    if same:
        raise Refused(
            "the node's process 1 is not visible",
            "process 1 lives in this container",
            "set hostPID: true in the pod's spec",
        )


def enter_node() -> None:
    """Move this process, which must have one thread, into process 1's namespaces.

    Raises OSError; setns(2) into a mount namespace takes CAP_SYS_ADMIN and CAP_SYS_CHROOT. Its
    root is the namespace's then, not process 1's, which may have chrooted since.
    """
    root = os.open("/proc/1/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    opened = [os.open(f"/proc/1/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES]
    for fd in opened:
        if _LIBC.setns(fd, 0):
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), "setns")
        os.close(fd)
    os.fchdir(root)
    os.chroot(".")
    os.close(root)


def in_node(work: Callable[[], Sequence[str]]) -> list[str]:
    """What `work` finds there; it is done by a child, which can import nothing any more (it does
    not see the image's files). Raises Refused with its error when the child fails."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        said, code = "", 70
        try:
            enter_node()
            said, code = "\0".join(work()), 0
        except OSError as exc:
            said = str(exc)
        finally:
            os.write(write, said.encode())
            os._exit(code)
    os.close(write)
    with os.fdopen(read, encoding="utf-8") as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        why = said or f"a child in its namespaces ended with {code}"
        raise Refused("the node was not reached", why)
    return said.split("\0") if said else []

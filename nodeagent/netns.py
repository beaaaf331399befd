"""Net namespaces: entered by a thread of their own, found again by their cookie.

Nothing is held: an open descriptor keeps a dead pod's devices alive. A namespace's inode
number is the first thing to look for, since it does not change while the namespace lives;
the cookie decides, since the number may be used again afterwards (net_namespaces(7)).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from nodeagent.model.steps.net import NetnsRef
from nodeagent.netlink import Netlink

CLONE_NEWNET = 0x40000000
PLACES = (Path("/run/netns"), Path("/run/docker/netns"))
SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EAGAIN)
_STACK = 256 * 1024  # bytes; the guardian's memory is locked, and so are its threads' stacks
_LIBC = ctypes.CDLL(None, use_errno=True)
_STACK_LOCK = threading.Lock()
_NSFS = re.compile(r" net:\[(\d+)\] (\S+) .* - nsfs ")

T = TypeVar("T")


def _setns(fd: int) -> None:
    if _LIBC.setns(fd, CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")


def unshare() -> None:
    """A new net namespace for the calling thread; it ends with it. Raises OSError."""
    if _LIBC.unshare(CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "unshare")


def in_thread(work: Callable[[], T]) -> T:
    """Run in a thread of its own, whose net namespace may be changed. Raises what `work` does."""
    with ThreadPoolExecutor(1, "netns") as pool:
        with _STACK_LOCK:
            before = threading.stack_size(_STACK)
            try:
                done = pool.submit(work)
            finally:
                threading.stack_size(before)
        return done.result()


def entered_at(path: str, work: Callable[[], T]) -> T:
    """Run in the namespace at a path, by a thread of its own. Raises OSError, and as `work`."""

    def enter() -> T:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _setns(fd)
        finally:
            os.close(fd)
        return work()

    return in_thread(enter)


def open_netlink(path: str) -> Netlink:
    """A netlink socket in the namespace at a path. Raises OSError."""
    return entered_at(path, Netlink)


def refer(path: str) -> NetnsRef:
    """The namespace at a path, by its lasting names. Raises OSError."""
    with open_netlink(path) as link:
        return NetnsRef(cookie=link.cookie(), inode=os.stat(path).st_ino, path=path)


def _refuse_to_guess(exc: OSError) -> None:
    """One that we have no means to look at is not gone: a fault in it would stay for good."""
    if exc.errno in SCARCE:
        raise exc


@contextmanager
def entered(ref: NetnsRef) -> Iterator[Netlink | None]:
    """A socket in the namespace, wherever it is found now; None when it is gone."""
    link = _find(ref)
    if link is None:
        yield None
        return
    with link:
        yield link


def _find(ref: NetnsRef) -> Netlink | None:
    for path in _paths(ref):
        try:
            link = open_netlink(path)
        except OSError as exc:
            _refuse_to_guess(exc)
            continue  # it ended while we looked, or is a name of something else
        if link.cookie() == ref.cookie:
            return link
        link.close()
    return None


def within(ref: NetnsRef, work: Callable[[], T]) -> T | None:
    """Run in the namespace by a thread of its own; None when it is gone. Raises as `work`."""

    def enter(path: str) -> tuple[bool, T | None]:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as exc:
            _refuse_to_guess(exc)
            return False, None  # it ended while we looked
        try:
            if os.fstat(fd).st_ino != ref.inode:
                return False, None
            _setns(fd)
        finally:
            os.close(fd)
        with Netlink() as link:
            if link.cookie() != ref.cookie:
                return False, None
        return True, work()

    for path in _paths(ref):
        found, result = in_thread(lambda path=path: enter(path))  # type: ignore[misc]
        if found:
            return result
    return None


def _paths(ref: NetnsRef) -> Iterator[str]:
    """Where its inode number is found, each place once; its cookie is still to be looked at."""
    seen: set[str] = set()
    for path in _candidates(ref):
        if path in seen:
            continue
        seen.add(path)
        try:
            inode = os.stat(path).st_ino
        except OSError as exc:
            _refuse_to_guess(exc)
            continue  # it ended while we looked
        if inode == ref.inode:
            yield path


def _candidates(ref: NetnsRef) -> Iterator[str]:
    """Where a namespace may be found, the likely places first."""
    yield ref.path
    for folder in PLACES:
        if folder.is_dir():
            yield from (str(path) for path in folder.iterdir())
    yield from _mounted(ref.inode)
    pids = [name for name in os.listdir("/proc") if name.isdigit()]
    yield from (f"/proc/{pid}/ns/net" for pid in pids)
    for pid in pids:
        yield from _held_by(pid, ref.inode)


def _mounted(inode: int) -> Iterator[str]:
    """Namespaces that are bind-mounted somewhere, also in PID 1's view."""
    for pid in ("self", "1"):
        try:
            lines = Path(f"/proc/{pid}/mountinfo").read_text(encoding="utf-8").splitlines()
        except OSError as exc:
            _refuse_to_guess(exc)
            continue
        for line in lines:
            match = _NSFS.search(line)
            if match is not None and int(match[1]) == inode:
                yield f"/proc/{pid}/root{match[2]}"


def _held_by(pid: str, inode: int) -> Iterator[str]:
    """Namespaces that only a thread, or an open descriptor, keeps."""
    for folder, leaf in ((f"/proc/{pid}/task", "/ns/net"), (f"/proc/{pid}/fd", "")):
        try:
            names = os.listdir(folder)
        except OSError as exc:
            _refuse_to_guess(exc)
            continue
        for name in names:
            path = f"{folder}/{name}{leaf}"
            try:
                if os.readlink(path) == f"net:[{inode}]":
                    yield path
            except OSError:
                continue


def all_namespaces() -> list[str]:
    """One path to each net namespace that a process is in, or that has a name."""
    found: dict[int, str] = {}
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    names = [str(path) for folder in PLACES if folder.is_dir() for path in folder.iterdir()]
    for path in (*(f"/proc/{pid}/ns/net" for pid in pids), *names):
        try:
            info = os.stat(path)
        except OSError:
            continue
        found.setdefault(info.st_ino, path)
    return list(found.values())

"""The lab's one gate for running programs on the host."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from controller.lab.errors import CommandFailed
from nodeagent.model.errors import Refused

Progress = Callable[[str], None]
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")

# Debian and Ubuntu name these packages alike.
PACKAGE_OF = {
    "qemu-system-x86_64": "qemu-system-x86",
    "mmdebstrap": "mmdebstrap",
    "mke2fs": "e2fsprogs",
    "fakeroot": "fakeroot",
    "newuidmap": "uidmap",
    "ip": "iproute2",
    "make": "make",
    "gcc": "gcc",
    "flex": "flex",
    "bison": "bison",
    "bc": "bc",
    "pahole": "dwarves",
    "perl": "perl",
    "apt-get": "apt",
    "dpkg-deb": "dpkg",
    "tar": "tar",
    "xz": "xz-utils",
}


def quiet(_line: str) -> None:
    """A progress sink that drops everything."""


def find(tool: str) -> str | None:
    """Full path of a host program, also where only root's PATH would have it."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])
    return shutil.which(tool, path=path)


def require(*tools: str) -> None:
    """Raise Refused naming the Debian packages that bring the missing programs."""
    missing = sorted({PACKAGE_OF.get(tool, tool) for tool in tools if find(tool) is None})
    if missing:
        raise Refused(
            "the lab lacks programs on this host",
            f"not found: {', '.join(t for t in tools if find(t) is None)}",
            f"sudo apt-get install {' '.join(missing)}",
        )


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment with plain messages and root's PATH."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])
    return {**os.environ, "PATH": path, "LC_ALL": "C.UTF-8", **(extra or {})}


def run(
    argv: Sequence[str],
    *,
    timeout: float,
    progress: Progress = quiet,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: bytes | None = None,
) -> str:
    """Run a program to its end and return its standard output.

    Lines of standard error go to `progress` as they come. Raises CommandFailed
    with the last lines when it fails or outlives `timeout` seconds.
    """
    try:
        proc = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(env),
            cwd=cwd,
            start_new_session=True,
        )
    except OSError as exc:
        raise CommandFailed(f"{argv[0]} could not be started", str(exc)) from exc
    tail: deque[str] = deque(maxlen=15)
    watcher = threading.Thread(target=_forward, args=(proc, tail, progress), daemon=True)
    watcher.start()
    out = _collect(proc, stdin, timeout, argv[0])
    watcher.join(5)
    if proc.returncode != 0:
        raise CommandFailed(
            f"{Path(argv[0]).name} ended with {proc.returncode}",
            " / ".join(tail) or out.decode(errors="replace")[-500:],
        )
    return out.decode(errors="replace")


def _forward(proc: subprocess.Popen[bytes], tail: deque[str], progress: Progress) -> None:
    assert proc.stderr is not None  # noqa: S101 - it was opened with a pipe
    for raw in proc.stderr:
        line = raw.decode(errors="replace").rstrip()
        if line:
            tail.append(line)
            progress(line)


def _kill_group(proc: subprocess.Popen[bytes]) -> None:
    """A build is more than its first process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(proc.pid, signal.SIGKILL)


def _collect(
    proc: subprocess.Popen[bytes], stdin: bytes | None, timeout: float, name: str
) -> bytes:
    """Feed stdin and read stdout while _forward owns stderr."""
    assert proc.stdout is not None  # noqa: S101
    timer = threading.Timer(timeout, _kill_group, [proc])
    timer.start()
    try:
        if stdin is not None and proc.stdin is not None:
            proc.stdin.write(stdin)
            proc.stdin.close()
        out = proc.stdout.read()
        proc.wait()
    except BaseException:
        _kill_group(proc)
        proc.wait()
        raise
    finally:
        expired = not timer.is_alive()
        timer.cancel()
    if expired:
        raise CommandFailed(f"{name} did not end within {timeout:.0f} s", "it was killed")
    return out


_detached: list[subprocess.Popen[bytes]] = []


def detach(argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own; what it says goes to `log`."""
    _detached[:] = [child for child in _detached if child.poll() is None]  # reaps
    with log.open("ab") as sink:
        child = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=environment(),
            start_new_session=True,
        )
    _detached.append(child)
    return child

"""`faultd-pod`: the first process of the agent's pod.

`run` copies the runtime to the node's disk and starts faultd from there in the namespaces of
the node's process 1 (mounts, cgroups, host name, IPC), so that paths and cgroups mean what
they mean on the node, and that the guardian has nothing of the container to lose. The pod's
net namespace is kept: there the agent listens. This process stays: through its /proc/PID/root
faultd reads the certificates that the kubelet renews, and its end is faultd's end.

`clean` takes everything of ours off the node once nothing is armed, and waits to be ended;
`cleaned` tells whether that is done.
"""

from __future__ import annotations

import argparse
import ctypes
import ipaddress
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from nodeagent import log
from nodeagent.model.errors import FaultError, Refused
from nodeagent.podruntime import FOLDER, SOURCE, install, running_from
from nodeagent.statedir import DEFAULT_STATE_DIR

RUN_DIR = Path("/run/faultctl")
TLS_DIR = Path("/etc/faultctl/tls")
NODE_ROOT = "/proc/1/root"
PORT, HEALTH_PORT = 7443, 7444
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAMESPACES = ("cgroup", "ipc", "uts", "mnt")  # the mounts last: the others are found through them
CLEAN_DEADLINE_S = 120.0
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
LOG = logging.getLogger("nodeagent.pod")


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


def agent_argv(runtime: Path, state_dir: Path, tls: Path, extra: Sequence[str]) -> list[str]:
    """faultd's command line, as the node sees the paths."""
    try:
        version = ipaddress.ip_address(os.environ.get("POD_IP", "0.0.0.0")).version  # noqa: S104
    except ValueError:
        version = 4
    host = "[::]" if version == 6 else "0.0.0.0"  # noqa: S104 - port-forward comes by localhost
    seen = f"/proc/{os.getpid()}/root{tls}"
    return [
        str(runtime / "bin" / "faultd"),
        *("--state-dir", str(state_dir), "--listen", f"unix://{RUN_DIR}/faultd.sock"),
        *("--listen", f"tcp://{host}:{PORT}", "--health", f"tcp://{host}:{HEALTH_PORT}"),
        *("--tls-cert", f"{seen}/tls.crt", "--tls-key", f"{seen}/tls.key"),
        *("--tls-ca", f"{seen}/ca.crt", *extra),
    ]


def _in_node() -> None:
    _LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    enter_node()


def run(state_dir: Path, tls: Path, extra: Sequence[str]) -> int:
    """Run faultd on the node until it ends; returns its exit status. Raises Refused."""
    check_pod()
    runtime = install(SOURCE, state_dir)
    argv = agent_argv(runtime, state_dir, tls, extra)
    env = {**os.environ, "PATH": f"{runtime / 'bin'}:{HOST_PATH}"}
    asked: list[int] = []
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        for child in children:
            child.send_signal(number)

    for wanted in (signal.SIGTERM, signal.SIGINT):
        signal.signal(wanted, pass_on)
    try:
        children.append(subprocess.Popen(argv, env=env, preexec_fn=_in_node))
    except (OSError, subprocess.SubprocessError) as exc:
        raise Refused(
            "faultd cannot be started on the node", str(exc), "is the pod privileged?"
        ) from exc
    for number in asked:  # it came before there was anybody to pass it on to
        children[0].send_signal(number)
    code = children[0].wait()
    if code:
        LOG.error("faultd ended with status %d", code)
    return code


def still_there(state_dir: Path, view: str) -> list[str]:
    """Why a state folder of the node cannot be removed yet. `view` leads to the node's root."""
    # Late: with it the process that stays beside the agent would be three times as large.
    from nodeagent.journal import JOURNAL_NAME, Journal

    found = [f"process {pid} ({exe})" for pid, exe in running_from(state_dir / FOLDER).items()]
    seen = Path(f"{view}{state_dir}")
    if (seen / JOURNAL_NAME).exists():
        journal = Journal(seen)
        active = journal.faults(active_only=True)
        journal.close()
        found += [f"fault {fault.id} is {fault.state}" for fault in active]
    return found


def wait_until_unused(state_dir: Path, view: str) -> None:
    """Raises Refused when faults or processes of ours are still there after the deadline."""
    end = time.monotonic() + CLEAN_DEADLINE_S
    while left := still_there(state_dir, view):
        if time.monotonic() > end:
            raise Refused(f"{state_dir} is still needed", "; ".join(left), "revert the faults")
        time.sleep(0.2)


def remove_in_node(folders: Sequence[Path]) -> int:
    """Remove folders by a child in the node's namespaces; its exit status.

    A mount point of this container's could not be removed from within it. The child imports
    nothing any more: it does not see the image's files.
    """
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 70
    try:
        enter_node()
        for folder in filter(os.path.lexists, folders):
            shutil.rmtree(folder)
        code = 0
    except OSError as exc:
        LOG.error("the node is not clean: %s", exc)
    finally:
        os._exit(code)


def clean(state_dir: Path) -> int:
    """Clean the node and stay until SIGTERM; a failure ends the pod, which is started again."""
    check_pod()
    wait_until_unused(state_dir, NODE_ROOT)
    code = remove_in_node((state_dir, RUN_DIR))
    if code == 0:
        LOG.info("clean")
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return code


def cleaned(state_dir: Path) -> int:
    """0 when nothing of ours is on the node's disk."""
    left = [path for path in (state_dir, RUN_DIR) if Path(f"{NODE_ROOT}{path}").exists()]
    print(", ".join(map(str, left)) or "clean")
    return 1 if left else 0


def main() -> None:
    """Entry point of the image."""
    parser = argparse.ArgumentParser(prog="faultd-pod", description="The agent in a pod.")
    parser.add_argument("verb", choices=("run", "clean", "cleaned"))
    parser.add_argument("--state-dir", type=Path, default=DEFAULT_STATE_DIR)
    parser.add_argument("--tls-dir", type=Path, default=TLS_DIR)
    parser.add_argument("--log-format", choices=log.FORMS, default="text")
    args, extra = parser.parse_known_args()
    log.configure("faultd-pod", args.log_format)
    extra += ["--log-format", args.log_format]
    try:
        if args.verb == "run":
            code = run(args.state_dir, args.tls_dir, extra)
        else:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            code = (clean if args.verb == "clean" else cleaned)(args.state_dir)
    except FaultError as exc:
        log.say_error(LOG, exc)
        code = exc.exit_code
    sys.exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()

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
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from nodeagent import log
from nodeagent.model.errors import FaultError, Refused
from nodeagent.podclean import RUN_DIR, clean, cleaned
from nodeagent.podnode import check_pod, enter_node
from nodeagent.podruntime import SOURCE, install
from nodeagent.statedir import DEFAULT_STATE_DIR

TLS_DIR = Path("/etc/faultctl/tls")
PORT, HEALTH_PORT = 7443, 7444
HOST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
LOG = logging.getLogger("nodeagent.pod")


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

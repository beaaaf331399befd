"""`faultd`: the agent's process. Listens on a Unix socket, and on TCP only with mutual TLS."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import stat
import sys
import threading
from dataclasses import dataclass
from pathlib import Path

import nodeagent
from nodeagent import log
from nodeagent.agent import Agent, AgentConfig
from nodeagent.listen import TlsFiles, needs_tls, parse_listen
from nodeagent.model.bpf import WANTED
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.statedir import DEFAULT_STATE_DIR
from nodeagent.stop_signal import StopSignal

DEFAULT_SOCKET = "unix:///run/faultctl/faultd.sock"
STOP_GRACE_S = 2.0
LOG = logging.getLogger("nodeagent.main")


def socket_directory(path: Path) -> None:
    """Prepare the socket's directory; a stale socket is removed. Raises Refused."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.parent.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid not in (0, os.geteuid()):
        raise Refused(
            f"{path.parent} cannot hold the agent's socket",
            "it is a symbolic link, no directory, or belongs to somebody else",
            "remove it, or choose another with --listen",
        )
    if info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX:
        raise Refused(
            f"{path.parent} cannot hold the agent's socket",
            f"others may write there (mode {stat.S_IMODE(info.st_mode):04o})",
            f"chmod 0700 {path.parent}",
        )
    if not path.exists() and not path.is_symlink():
        return
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise Refused(f"{path} is not a socket", "something else is there", "remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink()
            return
    raise Refused(
        f"another agent answers on {path}",
        "two agents on one node would share a journal",
        "stop it first: faultctl agent stop",
    )


def die_with_any_thread(args: threading.ExceptHookArgs) -> None:
    """A thread that dies of a bug takes the agent with it: the guardian then reverts everything."""
    info = None if args.exc_value is None else (args.exc_type, args.exc_value, args.exc_traceback)
    LOG.critical("a thread died of a bug, and the agent with it", exc_info=info)
    os._exit(70)


@dataclass(frozen=True)
class Listeners:
    """Where and how an agent is reached; `health` is the address of gRPC health alone."""

    listen: tuple[str, ...]
    tls: TlsFiles | None = None
    reflection: bool = False
    health: str | None = None
    metrics: str | None = None
    """Address of Prometheus metrics over plain HTTP."""


def say_left(failed: list[tuple[str, str]]) -> None:
    """Log the faults that resist a revert."""
    for fault_id, error in failed:
        LOG.warning("is not reverted yet", extra=log.about(fault_id, error))


def say_booted(agent: Agent) -> None:
    """Log what was armed when the node went down."""
    for fault in agent.before_boot:
        said = "had not ended when the node went down; the node has booted again"
        LOG.warning(said, extra=log.about(fault.id, fault.kind))


def serve(config: AgentConfig, at: Listeners) -> int:
    """Run an agent until SIGTERM or SIGINT. Returns the exit status."""
    if os.geteuid() != 0:
        raise Refused("faultd needs root", f"it runs as uid {os.geteuid()}", "use sudo")
    threading.excepthook = die_with_any_thread
    for text in at.listen:
        scheme, address = parse_listen(text)
        if scheme == "unix":
            socket_directory(Path(address))
        elif at.tls is None:
            raise needs_tls(address)
    agent = Agent(config)
    # The guardian gets ready in its own process while gRPC is imported here.
    from nodeagent.transport import build_health_server, build_server

    stop = StopSignal()
    say_left(agent.start())
    say_booted(agent)
    server = build_server(agent, at.listen, at.tls, at.reflection)
    probed = build_health_server(at.health) if at.health else None
    for one in filter(None, (server, probed)):
        one.start()
    if at.metrics:
        from nodeagent.metrics import serve_metrics

        serve_metrics(agent, at.metrics)
    LOG.info("%s ready on %s", nodeagent.__version__, ", ".join(at.listen))
    stop.wait()
    server.stop(STOP_GRACE_S).wait()
    failed = agent.close()
    say_left(failed)
    LOG.info("ends")
    return 1 if failed else 0


def _add_more(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-format",
        choices=log.FORMS,
        default="text",
        help="lines on stderr: for people, or one JSON object each [default: %(default)s]",
    )
    parser.add_argument(
        "--log-faults",
        choices=log.FAULTS,
        default="ids",
        help="what lines say of single faults: nothing, their ids and how they go, or kinds, "
        "targets and errors as well, not for blind runs [default: %(default)s]",
    )
    parser.add_argument(
        "--metrics", metavar="URL", help="tcp://IP:PORT of Prometheus metrics, over plain HTTP"
    )
    parser.add_argument("--policy", type=Path, metavar="FILE", help="YAML: who may inject what")
    parser.add_argument("--reflection", action="store_true", help="serve gRPC reflection")
    parser.add_argument(
        "--bpf-loader",
        choices=WANTED,
        default="auto",
        help="what loads the programs of system calls: libbpf (compiled objects), or bcc (compiled "
        "on this node); auto: libbpf where the kernel has BTF [default: %(default)s]",
    )


def parser() -> argparse.ArgumentParser:
    """The agent's options. (argparse: click would cost the agent 4 MB for as long as it runs.)"""
    found = argparse.ArgumentParser(prog="faultd", description="The faultctl node agent.")
    found.add_argument("--version", action="version", version=f"faultd {nodeagent.__version__}")
    add = found.add_argument
    add(
        *("--listen", "-l"),
        action="append",
        metavar="URL",
        help="unix:///PATH or tcp://IP:PORT (with mutual TLS only); may be given several times "
        f"[default: {DEFAULT_SOCKET}]",
    )
    add(
        "--state-dir",
        type=Path,
        default=DEFAULT_STATE_DIR,
        help="directory of the journal, root's alone [default: %(default)s]",
    )
    add("--tls-cert", type=Path, metavar="PEM", help="the agent's certificate")
    add("--tls-key", type=Path, metavar="PEM", help="its key")
    add("--tls-ca", type=Path, metavar="PEM", help="CA of the clients")
    add("--protect", action="append", default=[], help="directory guarded like the root")
    add(
        "--modprobe",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="load the kernel modules of our kinds at the start",
    )
    _add_more(found)
    add(
        "--health",
        metavar="URL",
        help="tcp://IP:PORT of gRPC health alone, without TLS, for a kubelet's probes",
    )
    add(
        "--allow-reboot",
        action="store_true",
        help="allow the kinds that take this node down (reboot, panic)",
    )
    return found


def tls_files(args: argparse.Namespace) -> TlsFiles | None:
    """The three files of mutual TLS, or none of them. Raises InvalidSpec."""
    given = [args.tls_cert, args.tls_key, args.tls_ca]
    if not any(given):
        return None
    if not all(given):
        raise InvalidSpec("mutual TLS needs three files", "--tls-cert, --tls-key and --tls-ca")
    for path in given:
        if not os.access(path, os.R_OK):
            raise InvalidSpec(f"{path} cannot be read", "a file of mutual TLS")
    return TlsFiles(*given)


def main() -> None:
    """Console script."""
    args = parser().parse_args()
    log.configure("faultd", args.log_format, args.log_faults)
    try:
        tls = tls_files(args)
        config = AgentConfig(
            state_dir=args.state_dir,
            protect=tuple(args.protect),
            modprobe=args.modprobe,
            bpf_loader=args.bpf_loader,
            tls_ca=str(tls.ca) if tls else "",
            may_reboot=args.allow_reboot,
            policy=args.policy,
            log_format=args.log_format,
        )
        listen = tuple(args.listen or (DEFAULT_SOCKET,))
        code = serve(config, Listeners(listen, tls, args.reflection, args.health, args.metrics))
    except FaultError as exc:
        log.say_error(LOG, exc)
        code = exc.exit_code
    sys.exit(code)


if __name__ == "__main__":
    main()

"""What a fault on the node's own network leaves alone: the agent, ssh, the kubelet, API servers,
name servers."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

from nodeagent.bind.kubelet import kubelets, option
from nodeagent.bind.node import Node
from nodeagent.model.kubelet import API_PORT, api_port
from nodeagent.model.netspec import Flow

RESOLV_CONF = Path("/etc/resolv.conf")
SSH_PORT = 22
DNS_PORT = 53
SERVERS = ("sshd", "dropbear")
KUBELETS = ("kubelet", "k3s", "k3s-agent", "k3s-server", "rke2", "k0s", "microk8s", "kubelite")
_LISTEN, _ESTABLISHED = "0A", "01"
_IPV4_MAPPED = bytes(10) + b"\xff\xff"


def lifelines(proc: Path) -> tuple[Flow, ...]:
    """Flows of the host's namespace that exceptions are made for, in a fixed order."""
    sockets = list(_sockets(proc))
    named = _named(proc, (*SERVERS, *KUBELETS))
    own = socket_inodes(proc / "self")
    servers = {i for pid, comm in named if comm in SERVERS for i in socket_inodes(proc / str(pid))}
    agents = {i for pid, comm in named if comm in KUBELETS for i in socket_inodes(proc / str(pid))}
    of_kubelets = [one for one in sockets if one[3] in agents]
    opened = {local[1] for state, local, _, _ in of_kubelets if state == _LISTEN}
    offered = {
        local[1]
        for state, local, _, _ in of_kubelets
        if state == _LISTEN and not ip_address(local[0]).is_loopback
    }
    found = [_served(port) for port in (SSH_PORT, *(offered or _configured(proc)))]
    for state, local, _, inode in sockets:
        if state == _LISTEN and inode in own | servers:
            found.append(_served(local[1]))
    for state, local, remote, _ in of_kubelets:
        if state == _ESTABLISHED and local[1] not in opened:
            found.append(_to(remote))
    found += [_to(server) for server in (*_api_servers(), *_name_servers())]
    return tuple(sorted(dict.fromkeys(found), key=lambda flow: flow.text()))


def _configured(proc: Path) -> set[int]:
    """The ports that kubelets which do not listen yet, being restarted, are going to open."""
    return {_port_of(proc, pid, args) for pid, args in kubelets(Node(proc=proc))}


def _port_of(proc: Path, pid: int, args: list[str]) -> int:
    """By its command line, which wins, or its configuration; the default where neither is read."""
    given = option(args, "port")
    if given is not None:
        return int(given) if given.isdigit() and 0 < int(given) < 1 << 16 else API_PORT
    named = option(args, "config")
    if named is None:
        return API_PORT
    # As the kubelet sees the path: it may run in a container.
    seen = proc / str(pid) / "cwd" / named
    if named.startswith("/"):
        seen = Path(f"{proc / str(pid) / 'root'}{named}")
    try:
        return api_port(seen.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return API_PORT


def _served(port: int) -> Flow:
    return Flow(protocol="tcp", local_port=(port, port))


def _to(end: tuple[str, int]) -> Flow:
    address = ip_address(end[0])
    protocol = None if end[1] == DNS_PORT else "tcp"
    network = f"{address}/{address.max_prefixlen}"
    return Flow.model_validate(
        {"remote": network, "protocol": protocol, "remote_port": (end[1], end[1])}
    )


def _api_servers() -> list[tuple[str, int]]:
    """As a pod gets it in its environment: an address, or the name that an operator has set."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdigit():
        return []
    if _is_address(host):
        return [(host, int(port))]
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []  # nobody has a connection to it by that name now
    return [(str(end[0]), int(port)) for *_, end in found if _is_address(str(end[0]))]


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _name_servers() -> list[tuple[str, int]]:
    found = []
    try:
        lines = RESOLV_CONF.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        words = line.split()
        if len(words) < 2 or words[0] != "nameserver" or "%" in words[1]:
            continue
        if _is_address(words[1]):
            found.append((words[1], DNS_PORT))
    return [end for end in found if not ip_address(end[0]).is_loopback]


def _named(proc: Path, names: tuple[str, ...]) -> list[tuple[int, str]]:
    found = []
    for pid in (name for name in os.listdir(proc) if name.isdigit()):
        try:
            comm = (proc / pid / "comm").read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            continue
        if comm in names:
            found.append((int(pid), comm))
    return found


def socket_inodes(pid: Path) -> set[int]:
    """Sockets that a process has open, by its folder in /proc."""
    found = set()
    try:
        names = os.listdir(pid / "fd")
    except OSError:
        return set()
    for name in names:
        try:
            target = os.readlink(pid / "fd" / name)
        except OSError:
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return found


def _sockets(proc: Path) -> Iterator[tuple[str, tuple[str, int], tuple[str, int], int]]:
    """(state, local end, remote end, inode) of /proc/net/tcp and tcp6 of the host."""
    for name in ("tcp", "tcp6"):
        for line in _lines(proc, name):
            words = line.split()
            yield words[3], _end(words[1]), _end(words[2]), int(words[9])


def _lines(proc: Path, name: str) -> list[str]:
    for pid in ("1", "self"):
        try:
            return (proc / pid / "net" / name).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
    return []


def _end(text: str) -> tuple[str, int]:
    """`0100007F:1F90` as an address and a port; words of the address in host order."""
    address, _, port = text.partition(":")
    raw = b"".join(
        int(address[i : i + 8], 16).to_bytes(4, "little") for i in range(0, len(address), 8)
    )
    if raw.startswith(_IPV4_MAPPED):
        raw = raw[12:]
    return str(ip_address(raw)), int(port, 16)

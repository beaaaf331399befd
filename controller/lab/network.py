"""A network that nodes share: a bridge inside a network namespace made for it (root).

QEMU stays in the host's namespace; only its tap, a port of the bridge, lives
here (supervise.py opens it). So a node also keeps its forwarded loopback ports,
and nothing of the host's network is touched. The host reaches the nodes with
`ip netns exec faultctl-NAME ...`, from 10.77.0.1.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from controller.lab import proc, store
from nodeagent.model.errors import Refused

BRIDGE = "br0"
HOST = "10.77.0.1"
_TIMEOUT = 30.0


@dataclass(frozen=True)
class Port:
    """A node's place on a shared network."""

    network: str
    address: str  # "10.77.0.2/24"
    tap: str

    @property
    def netns(self) -> str:
        return f"/run/netns/{netns_name(self.network)}"


def netns_name(network: str) -> str:
    return f"faultctl-{network}"


def free_address(taken: set[str]) -> str:
    """The lowest address of the network that is not taken (pure)."""
    for last in range(2, 255):
        address = f"10.77.0.{last}"
        if address not in taken:
            return address
    raise Refused("the lab network is full", "it holds 253 nodes")


def join(network: str, node: str) -> Port:
    """Reserve a place for a node; makes the namespace and bridge when they are not there."""
    if os.geteuid() != 0:
        raise Refused(
            "a network between nodes needs root",
            "it makes a network namespace, a bridge and taps",
            "run as root, or leave --network out",
        )
    proc.require("ip")
    with store.locked() as home:
        members = _members(home, network)
        if not Path(f"/run/netns/{netns_name(network)}").exists():
            _make(network)
        address = free_address(set(members.values()))
        members[node] = address
        _save(home, network, members)
    return Port(network, f"{address}/24", f"tap{address.rsplit('.', 1)[1]}")


def leave(network: str, node: str) -> None:
    """Give a node's place back; the last one takes the namespace with it."""
    with store.locked() as home:
        members = _members(home, network)
        members.pop(node, None)
        _save(home, network, members)
        if not members:
            _unmake(network)


def sweep() -> None:
    """Take back networks whose nodes' owners were all killed."""
    if os.geteuid() != 0:
        return
    with store.locked() as home:
        for path in home.glob(".net-*.json"):
            network = path.stem.removeprefix(".net-")
            if not _members(home, network):
                _save(home, network, {})
                _unmake(network)


def _file(home: Path, network: str) -> Path:
    return home / f".net-{network}.json"


def _members(home: Path, network: str) -> dict[str, str]:
    """Node -> address; nodes whose folder has gone (their owner was killed) are dropped."""
    try:
        known = json.loads(_file(home, network).read_text())
    except FileNotFoundError:
        return {}
    return {node: address for node, address in known.items() if (home / node).is_dir()}


def _save(home: Path, network: str, members: dict[str, str]) -> None:
    path = _file(home, network)
    if members:
        path.write_text(json.dumps(members))
    else:
        path.unlink(missing_ok=True)


def _make(network: str) -> None:
    name = netns_name(network)
    proc.run(["ip", "netns", "add", name], timeout=_TIMEOUT)
    commands = f"link set lo up\nlink add {BRIDGE} type bridge\nlink set {BRIDGE} up\n"
    commands += f"addr add {HOST}/24 dev {BRIDGE}\n"
    argv = ["ip", "-n", name, "-batch", "-"]
    proc.run(argv, timeout=_TIMEOUT, stdin=commands.encode())


def _unmake(network: str) -> None:
    if Path(f"/run/netns/{netns_name(network)}").exists():
        proc.run(["ip", "netns", "delete", netns_name(network)], timeout=_TIMEOUT)

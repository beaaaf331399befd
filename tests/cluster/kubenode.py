"""Lab nodes that join the test cluster: container runtime and kubelet in a VM of the lab."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nodedisk
from control import ControlPlane

from controller.lab import Disk, Node, NodeConfig, launch
from controller.lab.guestio import Detached

HERE = Path(__file__).parent
NETWORK = "kube"
MEMORY = 2 << 30  # bytes
DATA = Disk("data", 256 << 20)
PATH = "/kube/bin:/kube/usr/bin:/kube/usr/sbin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
READY_S = 60.0  # native seconds until the kubelet says Ready; 25 s were seen under emulation


@dataclass(frozen=True)
class Place:
    """What makes one node of the cluster differ from the others."""

    name: str
    zone: str
    pods: str  # its part of the pods' addresses


PLACES = (Place("node-a", "zone-a", "10.244.1.0/24"), Place("node-b", "zone-b", "10.244.2.0/24"))


@dataclass
class KubeNode:
    """A running node of the cluster and its daemons."""

    place: Place
    node: Node
    address: str
    daemons: dict[str, Detached]

    def log(self, daemon: str, lines: int = 30) -> str:
        """The last lines of what a daemon said."""
        text = self.node.get(f"/run/kube/{daemon}.log").decode(errors="replace")
        return "\n".join(text.splitlines()[-lines:])


def config(place: Place, flavour: str, disk: Path, *disks: Disk, network: str) -> NodeConfig:
    """A lab node with the node's disk and its scratch disks."""
    kube = Disk("kube", nodedisk.SIZE, source=str(disk))
    return NodeConfig(
        cpus=int(os.environ.get("FAULTCTL_CLUSTER_CPUS", "2")),
        flavour=flavour,
        name=f"{network}-{place.name}",
        memory=MEMORY,
        disks=(kube, DATA, *disks),
        network=network,
    )


def boot(place: Place, *, flavour: str, network: str, disks: tuple[Disk, ...] = ()) -> KubeNode:
    """Boot a node; start() makes it one of the cluster."""
    node = launch(config(place, flavour, nodedisk.ensure(), *disks, network=network))
    return KubeNode(place, node, str(node.address).split("/")[0], {})


def start(found: KubeNode, plane: ControlPlane) -> None:
    """Start runtime and kubelet after a boot."""
    node, place = found.node, found.place
    node.sh("mkdir -p -m 700 /run/kube; hostname " + place.name)
    node.put("/run/kube/env", f"PODS={place.pods}\n".encode())
    node.put("/run/kube/ca.pem", plane.pki.ca.read_bytes())
    kubeconfig = plane.kubeconfig(f"system:node:{place.name}", plane.inner_url)
    node.put("/run/kube/kubeconfig", kubeconfig.read_bytes(), 0o600)
    node.put("/run/kube/node.sh", (HERE / "guest" / "node.sh").read_bytes())
    node.run(["sh", "/run/kube/node.sh"], timeout=60)
    env = {"PATH": PATH}
    containerd = ["/kube/usr/bin/containerd", "-c", "/run/kube/containerd.toml"]
    found.daemons["containerd"] = node.spawn(containerd, "/run/kube/containerd.log", env)
    kubelet = [
        "/kube/bin/kubelet",
        "--config=/run/kube/kubelet.yaml",
        "--kubeconfig=/run/kube/kubeconfig",
    ]
    kubelet += [f"--hostname-override={place.name}", f"--node-ip={found.address}"]
    kubelet += [f"--node-labels=topology.kubernetes.io/zone={place.zone}"]
    found.daemons["kubelet"] = node.spawn(kubelet, "/run/kube/kubelet.log", env)


def kill_container(found: KubeNode, container_id: str) -> None:
    """As a crash: all processes of a container at once, not those of its sandbox.

    container_id: as in the pod's status, with its scheme.
    """
    name = container_id.rpartition("://")[2]
    found.node.sh(
        f"f=$(find /sys/fs/cgroup -type d -name '*{name}*' | head -n 1); echo 1 > $f/cgroup.kill"
    )


def connect(nodes: list[KubeNode]) -> None:
    """Routes between the pods of all nodes."""
    for one in nodes:
        for other in nodes:
            if other is not one:
                one.node.sh(f"ip route replace {other.place.pods} via {other.address}")


def until(what: str, holds: Callable[[], bool], deadline: float, said: Callable[[], str]) -> None:
    """Wait; raises AssertionError with the words of `said` at time.monotonic() `deadline`."""
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"not in time: {what}\n{said()}")
        time.sleep(0.5)


def is_ready(plane: ControlPlane, name: str) -> bool:
    """Whether the API server has the node, and it as Ready."""
    done = plane.kubectl("get", "node", name, "-o", "json", check=False)
    if done.returncode:
        return False
    conditions = json.loads(done.stdout)["status"].get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def wait_ready(one: KubeNode, plane: ControlPlane) -> None:
    """Wait until a node is Ready."""
    until(
        f"{one.place.name} is Ready",
        lambda: is_ready(plane, one.place.name),
        one.node.deadline(READY_S),
        lambda: f"{one.log('kubelet')}\n{one.log('containerd', 5)}",
    )

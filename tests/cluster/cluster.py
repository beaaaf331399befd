"""A whole cluster for tests: control plane in the lab's network, nodes in VMs."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import components
import images
import kubenode
from control import ControlPlane
from kubeapi import Api
from kubenode import KubeNode

from controller.lab import network

FAULTCTL = (sys.executable, "-m", "controller.cli.main")


@dataclass
class Cluster:
    """Control plane and nodes. Its API is `api`; close() ends all."""

    api: Api
    plane: ControlPlane
    nodes: list[KubeNode] = field(default_factory=list)

    def node(self, name: str) -> KubeNode:
        """A node by its name in the cluster."""
        (found,) = (one for one in self.nodes if one.place.name == name)
        return found

    def faultctl(
        self, *arguments: str, check: bool = True, timeout: float = 300.0
    ) -> subprocess.CompletedProcess[str]:
        """faultctl as a user of this host, by the administrator's kubeconfig."""
        done = subprocess.run(
            [*FAULTCTL, *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            env=self.env(),
            check=False,
        )
        if check and done.returncode:
            said = f"{done.stdout}\n{done.stderr}"
            raise AssertionError(f"faultctl {' '.join(arguments)}: {done.returncode}\n{said}")
        return done

    def env(self) -> dict[str, str]:
        """Of a user of this host, who knows that the nodes are emulated."""
        patience = max(one.node.pace.stretch(1.0) for one in self.nodes)
        return {**os.environ, "KUBECONFIG": str(self.api.kubeconfig), "NO_COLOR": "1",
                "FAULTCTL_PATIENCE": f"{min(patience, 1000):.1f}"}  # fmt: skip

    def install(self, *extra: str) -> None:
        """Put the agents, from the image that was built, on all nodes."""
        image = ["--image", images.AGENT, "--pull-policy", "Never"]
        seconds = round(self.nodes[0].node.pace.stretch(120))
        timeout = ["--timeout", f"{seconds}s"]
        self.faultctl("deploy", "install", *image, *timeout, *extra, timeout=4 * seconds)

    def close(self) -> None:
        """End everything."""
        for one in self.nodes:
            one.node.close()
        self.plane.close()
        shutil.rmtree(self.plane.home / "etcd", ignore_errors=True)


def start(home: Path, count: int, flavour: str) -> Cluster:
    """A cluster of `count` nodes, all Ready, in zones of their own."""
    name = f"k{secrets.token_hex(3)}"
    binaries = components.ensure()
    plane = ControlPlane(home, binaries, netns=network.netns_name(name), scheduler=True)
    found = Cluster(Api(plane.kubeconfig(), binaries, plane), plane)
    try:
        for place in kubenode.PLACES[:count]:  # the first one brings the network
            found.nodes.append(kubenode.boot(place, flavour=flavour, network=name))
        plane.start()
        plane.kubectl("create", "clusterrolebinding", "kubelet-client",
                      "--clusterrole=system:kubelet-api-admin",
                      "--user=kube-apiserver-kubelet-client")  # fmt: skip
        for one in found.nodes:
            kubenode.start(one, plane)
        kubenode.connect(found.nodes)
        for one in found.nodes:
            kubenode.wait_ready(one, plane)
    except BaseException:
        found.close()
        raise
    return found

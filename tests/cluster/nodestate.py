"""What a node of the test cluster is like: before the agents came, and after they have gone."""

from __future__ import annotations

import images
import kubenode
from cluster import Cluster
from kubenode import KubeNode


def fingerprint(node: KubeNode) -> str:
    env = {"PYTHONPATH": "/opt/faultctl/code:/opt/faultctl/lib"}
    return node.node.run(["python3", "-m", "nodeagent.fingerprint"], timeout=60, env=env).out


def agents(node: KubeNode) -> list[int]:
    """Pids of faultd on the node, not of the pod's first process."""
    return [int(pid) for pid in node.node.run(["pgrep", "-x", "faultd"], check=False).out.split()]


def guardians(node: KubeNode) -> list[int]:
    done = node.node.run(["pgrep", "-f", "nodeagent.guardian"], check=False)
    return [int(pid) for pid in done.out.split()]


def run_a_pod(cluster: Cluster, node: KubeNode) -> None:
    """Any privileged pod, and gone again: with a node's first one the runtime makes the bridge of
    the pods' network, and gives cgroup2 its own mount options (apply_cgroup_root_flags,
    kernel/cgroup), whoever's it is."""
    name = f"first-{node.place.name}"
    container = {"name": "app", "image": images.BUSYBOX, "imagePullPolicy": "Never",
                 "command": ["sleep", "1000"], "securityContext": {"privileged": True}}  # fmt: skip
    spec = {"nodeName": node.place.name, "containers": [container],
            "automountServiceAccountToken": False}  # fmt: skip
    meta = {"name": name, "namespace": "default"}
    cluster.api.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    kubenode.until(
        f"{name} runs",
        lambda: cluster.api.json("get", "pod", name)["status"].get("phase") == "Running",
        node.node.deadline(90),
        lambda: cluster.api.kubectl("get", "pods", "-A", "-o", "wide").stdout,
    )
    cluster.api.kubectl("delete", "pod", name, "--grace-period=1", timeout=300)
    until_no_pods(cluster, node)


def until_no_pods(cluster: Cluster, node: KubeNode) -> None:
    """Runtime and kubelet take the last pod's mounts away a while after it has gone."""
    kubenode.until(
        "nothing is left of pods",
        lambda: not node.node.run("grep -E 'k8s.io/|/pods/' /proc/mounts", check=False).out,
        node.node.deadline(90),
        lambda: cluster.api.kubectl("get", "pods", "-A", "-o", "wide").stdout,
    )


def untouched(cluster: Cluster) -> dict[str, str]:
    """The nodes' fingerprints before anything of ours was there."""
    wait = ("wait", "--for=create", "-n", "default", "serviceaccount/default")
    cluster.api.kubectl(*wait, timeout=90)
    for one in cluster.nodes:
        run_a_pod(cluster, one)
    return {one.place.name: fingerprint(one) for one in cluster.nodes}


def uninstall(cluster: Cluster) -> None:
    seconds = round(cluster.nodes[0].node.pace.stretch(120))
    cluster.faultctl(
        *("deploy", "uninstall", "--revert", "--timeout", f"{seconds}s"), timeout=4 * seconds
    )
    for one in cluster.nodes:
        assert one.node.run("ls -d /var/lib/faultctl /run/faultctl", check=False).out == ""
        assert agents(one) == [] and guardians(one) == []
        until_no_pods(cluster, one)

"""Pods as targets on real nodes: found by their cgroups, held through restarts, followed on moves.

The workload is a StatefulSet on a hostPath volume with a device of its own, and two pods that
talk to each other; test_database_on_nodes.py has a real one. The tests build on one another in
their order.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import images
import kubenode
import pytest
from cluster import FAULTCTL, Cluster
from kubenode import KubeNode

from controller.recorder import read_records
from controller.records import FaultArmed, FaultEnded, FaultMoved

T = TypeVar("T")
DEVICE, MOUNT = "/dev/disk/by-id/virtio-data", "/mnt/pgdata"
VOLUME = "pgdata"
SPACE = "shop"
FILE = "base/16384"
RESTARTS = 1


def pod_spec(node: str | None, *, volume: bool = False) -> dict[str, Any]:
    script = "trap 'exit 0' TERM; while :; do sleep 1; done"
    container: dict[str, Any] = {
        "name": "app",
        "image": images.BUSYBOX,
        "command": ["sh", "-c", script],
        "imagePullPolicy": "Never",
    }
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 1}
    if node:
        spec["nodeSelector"] = {"kubernetes.io/hostname": node}
    if volume:
        container["volumeMounts"] = [{"name": "data", "mountPath": "/data", "subPath": "pg"}]
        spec["volumes"] = [{"name": "data", "hostPath": {"path": MOUNT, "type": "Directory"}}]
    return spec


def stateful_set(node: str | None) -> dict[str, Any]:
    template = {"metadata": {"labels": {"app": "db"}}, "spec": pod_spec(node, volume=True)}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": SPACE},
            "spec": {"replicas": 1, "serviceName": "db", "template": template,
                     "selector": {"matchLabels": {"app": "db"}}}}  # fmt: skip


def pod(name: str, node: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": SPACE, "labels": {"app": name}},
            "spec": pod_spec(node)}  # fmt: skip


class Shop:
    """The workload, and what a user does with it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.api = cluster, cluster.api
        self.first = cluster.nodes[0]

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = 120) -> None:
        said = lambda: self.api.kubectl("get", "pods", "-n", SPACE, "-o", "wide").stdout  # noqa: E731
        kubenode.until(what, holds, self.first.node.deadline(seconds), said)

    def get(self, name: str) -> dict[str, Any]:
        done = self.api.kubectl("get", "pod", "-n", SPACE, name, "-o", "json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def running(self, name: str) -> bool:
        statuses = self.get(name).get("status", {}).get("containerStatuses", [])
        return bool(statuses) and "running" in statuses[0]["state"]

    def restarts(self, name: str) -> int:
        return int(self.get(name)["status"]["containerStatuses"][0]["restartCount"])

    def exec(self, name: str, *command: str) -> tuple[int, str]:
        done = self.api.kubectl("exec", "-n", SPACE, name, "--", *command, check=False)
        return done.returncode, done.stdout + done.stderr

    def reads(self, name: str = "db-0", skip: int = 0, count: int = 4) -> bool:
        """Whether the container can read pages of the file."""
        code, said = self.exec(name, "dd", f"if=/data/{FILE}", "of=/dev/null", "bs=4096",
                               f"skip={skip}", f"count={count}")  # fmt: skip
        assert code == 0 or "Input/output error" in said or "I/O error" in said, said
        return code == 0

    def rtt(self, name: str, address: str) -> float:
        _, said = self.exec(name, "ping", "-c", "3", "-W", "5", address)
        return min(map(float, re.findall(r"time=([\d.]+) ms", said)))

    def inject(self, *arguments: str) -> dict[str, Any]:
        done = self.cluster.faultctl("inject", *arguments, "-o", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def kill_container(self, node: KubeNode, name: str) -> None:
        status = self.get(name)["status"]["containerStatuses"][0]
        kubenode.kill_container(node, status["containerID"])


def on(node: KubeNode) -> tuple[str, str]:
    return "--on-node", node.place.name


@pytest.fixture(scope="module")
def shop(cluster: Cluster) -> Iterator[Shop]:
    cluster.install()
    found = Shop(cluster)
    for one in cluster.nodes:
        # So that kernels without the BPF rung can fail its sectors, too.
        cluster.faultctl("volume", "prepare", DEVICE, "--name", VOLUME, *on(one))
        one.node.sh(
            f"mkfs.ext4 -q -F /dev/mapper/{VOLUME} && mkdir -p {MOUNT} && "
            f"mount /dev/mapper/{VOLUME} {MOUNT} && "
            f"mkdir -p {MOUNT}/pg/base && cd {MOUNT}/pg/base && "
            "dd if=/dev/urandom of=16384 bs=4096 count=16 2>/dev/null && sync",
            timeout=120,
        )
    names = [one.place.name for one in cluster.nodes]
    found.api.kubectl("create", "namespace", SPACE)
    found.api.kubectl("wait", "--for=create", "-n", SPACE, "serviceaccount/default", timeout=90)
    found.api.apply(stateful_set(names[0]), pod("cart", names[0]), pod("web", names[-1]))
    for name in ("db-0", "cart", "web"):
        found.wait(f"{name} runs", lambda name=name: found.running(name))
    yield found
    cluster.faultctl("revert", "--cluster", "--all", check=False)
    found.api.kubectl("delete", "namespace", SPACE, "--wait=true", timeout=300)
    for one in cluster.nodes:
        one.node.sh(f"umount {MOUNT}", timeout=60)
        cluster.faultctl("volume", "release", VOLUME, *on(one))
    cluster.faultctl("deploy", "uninstall", "--revert")


def test_a_latent_sector_under_a_pods_file_hits_every_start_of_its_container(shop: Shop) -> None:
    assert shop.reads()
    found = shop.inject(
        *("latent-sector", "--pod", f"{SPACE}/db-0", "--volume", "data", "--file", FILE),
        *("--offset", "8Ki", "--length", "4Ki", "--id", "heap"),
    )
    assert [one["id"] for one in found["faults"]] == ["heap-1"]
    for start in range(RESTARTS):
        assert not shop.reads(), start
        assert shop.reads(skip=4), start
        before = shop.restarts("db-0")
        shop.kill_container(shop.first, "db-0")
        shop.wait(
            "db-0 is restarted",
            lambda before=before: shop.running("db-0") and shop.restarts("db-0") > before,
            400,  # the kubelet waits longer each time
        )
    assert not shop.reads()
    shop.cluster.faultctl("revert", "--cluster", "heap")
    assert shop.reads()


def test_a_delay_to_other_pods_only(shop: Shop) -> None:
    web = shop.get("web")["status"]["podIP"]
    gateway = shop.exec("cart", "sh", "-c", "ip route | grep default")[1].split()[2]
    plain = shop.rtt("cart", web)
    shop.inject("netem", "-n", SPACE, "-l", "app=cart", "--to-pods", "-l", "app=web",
                "--delay", "300ms", "--id", "slow")  # fmt: skip
    assert shop.rtt("cart", web) >= 300
    assert shop.rtt("cart", gateway) < 300
    shop.kill_container(shop.first, "cart")
    shop.wait("cart is restarted", lambda: shop.running("cart") and shop.restarts("cart") > 0)
    assert shop.rtt("cart", web) >= 300, "the sandbox's net namespace outlives the container"
    shop.cluster.faultctl("revert", "--cluster", "slow")
    assert shop.rtt("cart", web) < max(300, 10 * plain)


def test_a_pods_limit_and_its_syscalls(shop: Shop) -> None:
    shop.inject("throttle", "-n", SPACE, "--pod", "cart", "--cpu", "0.5", "--id", "narrow")
    uid = shop.get("cart")["metadata"]["uid"]
    folder = shop.first.node.sh(f"find /sys/fs/cgroup -type d -name '*pod{uid}*' | head -n 1")
    assert shop.first.node.sh(f"cat {folder.strip()}/cpu.max").split()[0] == "50000"
    shop.cluster.faultctl("revert", "--cluster", "narrow")
    done = shop.cluster.faultctl("inject", "netem", "-n", "kube-system", "--all", "--delay", "1ms",
                                 check=False)  # fmt: skip
    assert done.returncode == 3 and "protected" in done.stderr


def test_a_fault_of_a_run_follows_its_pod(shop: Shop, tmp_path: Path) -> None:
    """One fault in the record, whatever pod it is on; the next pod is hit, and the end is one."""
    where = {"namespace": SPACE, "selector": "app=db", "all": True, "follow": "move"}
    experiment = {
        "version": 1, "name": "slow-db", "seed": 1, "blind": False,
        "duration": "50m", "lease": "5m", "late": "10m",
        "targets": {"db": {"service": "db", "pods": where}},
        "faults": {"slow": {"kind": "netem", "target": "db", "at": "1s", "for": "40m",
                            "spec": {"delay": "300ms"}}},
    }  # fmt: skip
    file, folder = tmp_path / "experiment.yaml", tmp_path / "run"
    file.write_text(json.dumps(experiment))
    web = shop.get("web")["status"]["podIP"]
    argv = [*FAULTCTL, "run", str(file), "--folder", str(folder)]
    with (tmp_path / "said").open("w") as said, subprocess.Popen(
        argv, env=shop.cluster.env(), stdout=said, stderr=subprocess.STDOUT
    ) as run:  # fmt: skip
        _until(lambda: _told(folder, FaultArmed) != [], 400)
        assert shop.rtt("db-0", web) >= 300
        before = shop.get("db-0")["metadata"]["uid"]
        shop.api.kubectl("delete", "pod", "-n", SPACE, "db-0", "--wait=true", timeout=300)
        shop.wait("db-0 is there again", lambda: shop.running("db-0"), 240)
        _until(lambda: any(one.armed and one.turn for one in _told(folder, FaultMoved)))
        assert shop.rtt("db-0", web) >= 300
        shop.cluster.faultctl("stop", str(folder))
        assert run.wait(300) == 0, (tmp_path / "said").read_text()
    (end,) = _told(folder, FaultEnded)
    (armed,) = _told(folder, FaultArmed)
    assert (end.fault, end.reason, end.by) == (armed.fault, "reverted", "stop")
    moved = [one for one in _told(folder, FaultMoved) if one.armed]
    assert [one.uid for one in moved] == [shop.get("db-0")["metadata"]["uid"]] != [before]
    assert shop.rtt("db-0", web) < 300


def _told(folder: Path, sort: type[T]) -> list[T]:
    if not (folder / "faults.jsonl").exists():
        return []
    return [one for one in read_records(folder, "faults.jsonl") if isinstance(one, sort)]


def test_a_fault_follows_its_pod_to_another_node(shop: Shop) -> None:
    if len(shop.cluster.nodes) < 2:
        pytest.skip("one node: nowhere to move to")
    lines: list[str] = []
    access = ("--lease", "60s", "--follow", "move", "--id", "chase")
    arguments = ("netem", "-n", SPACE, "-l", "app=db", "--all", "--delay", "300ms", *access)
    thread = threading.Thread(target=_follow, args=(shop, arguments, lines), daemon=True)
    thread.start()
    _until(lambda: any("chase-1" in line for line in lines))
    second = shop.cluster.nodes[1].place.name
    shop.api.apply(stateful_set(second))
    shop.wait("db-0 has moved", lambda: shop.running("db-0")
              and shop.get("db-0")["spec"]["nodeName"] == second, 240)  # fmt: skip
    _until(lambda: any(f"armed on {second}" in line for line in lines))
    assert shop.rtt("db-0", shop.get("web")["status"]["podIP"]) >= 300
    shop.cluster.faultctl("revert", "--cluster", "chase")


def _follow(shop: Shop, arguments: tuple[str, ...], lines: list[str]) -> None:
    """Its lines as they come; ended by SIGKILL a while after it has followed."""
    env = shop.cluster.env()
    with subprocess.Popen([*FAULTCTL, "inject", *arguments], env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as child:  # fmt: skip
        timer = threading.Timer(600, child.terminate)
        timer.start()
        assert child.stdout is not None
        for line in child.stdout:
            lines.append(line)
            if "armed on" in line:
                time.sleep(30)
                child.kill()
        timer.cancel()


def _until(holds: Callable[[], bool], seconds: float = 240) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)

"""A StatefulSet with a real PostgreSQL on local volumes, one on each node, and who repairs it.

The container starts the server on what the volume has, and makes an empty database when there is
none. It is ready while a query over all of the table `orders` works: what a shop would ask.
"""

from __future__ import annotations

import json
from typing import Any

import images
import kubenode
from cluster import Cluster
from kubenode import KubeNode

SPACE = "shop"
DEVICE, MOUNT = "/dev/disk/by-id/virtio-data", "/mnt/local"
CLASS = "local"
ROWS = 2000
CHECK = "select count(*), sum(length(body)) from orders"
SERVER = """
export PATH=$(ls -d /usr/lib/postgresql/*/bin):$PATH
chown postgres /data
as="setpriv --reuid=postgres --regid=postgres --init-groups env HOME=/tmp"
[ -s /data/main/PG_VERSION ] || {
  rm -rf /data/main
  $as initdb -D /data/main -A trust --no-locale -E UTF8 --no-instructions --wal-segsize=1
}
exec $as postgres -D /data/main -c unix_socket_directories=/tmp -c listen_addresses= \
  -c shared_buffers=128kB -c autovacuum=off -c jit=off -c max_parallel_workers_per_gather=0
"""
# More than the server's own cache holds; nothing writes to the table any more when it is done.
TABLE = f"""
create table orders (id int, body text);
insert into orders select i, repeat('order ' || i || ' ', 40) from generate_series(1, {ROWS}) i;
vacuum (freeze) orders;
checkpoint;
"""


def volume(node: str) -> dict[str, Any]:
    """A local volume: it is on one node, and a pod that has it can run there only."""
    where = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"orders-{node}"},
        "spec": {
            "capacity": {"storage": "200Mi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": CLASS,
            "local": {"path": MOUNT},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [where]}]}},
        },
    }


def storage_class() -> dict[str, Any]:
    return {"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": CLASS},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer"}  # fmt: skip


def stateful_set() -> dict[str, Any]:
    query = ["psql", "-h", "/tmp", "-U", "postgres", "-c", CHECK]
    container = {
        "name": "postgres",
        "image": images.POSTGRES,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", SERVER],
        "readinessProbe": {"exec": {"command": query}, "periodSeconds": 3, "timeoutSeconds": 60,
                           "failureThreshold": 1},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }  # fmt: skip
    claim = {"metadata": {"name": "data"},
             "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": CLASS,
                      "resources": {"requests": {"storage": "100Mi"}}}}  # fmt: skip
    spec = {"containers": [container], "terminationGracePeriodSeconds": 5}
    template = {"metadata": {"labels": {"app": "db"}}, "spec": spec}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet",
            "metadata": {"name": "db", "namespace": SPACE},
            "spec": {"replicas": 1, "serviceName": "db", "template": template,
                     "selector": {"matchLabels": {"app": "db"}},
                     "volumeClaimTemplates": [claim]}}  # fmt: skip


class Database:
    """The workload, and what its operator does with it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.api = cluster, cluster.api
        self.backup = ""
        self.removed = False

    def prepare(self) -> None:
        """An empty volume on each node, the server on the first one, a table and its backup."""
        names = [one.place.name for one in self.cluster.nodes]
        for one in self.cluster.nodes:
            one.node.sh(
                f"mkfs.ext4 -q -F {DEVICE} && mkdir -p {MOUNT} && mount {DEVICE} {MOUNT}",
                timeout=120,
            )
        self.api.kubectl("create", "namespace", SPACE)
        self.api.kubectl("wait", "--for=create", "-n", SPACE, "serviceaccount/default", timeout=90)
        for name in names[1:]:
            self.api.kubectl("cordon", name)
        self.api.apply(storage_class(), *map(volume, names), stateful_set())
        self.wait("the server answers", lambda: self.sql("select 1")[0], 400)
        assert self.sql(TABLE)[0]
        self.wait("db-0 is ready", self.ready)
        dump = ["pg_dump", "-h", "/tmp", "-U", "postgres", "-t", "orders", "postgres"]
        self.backup = self._exec(*dump).stdout
        for name in names[1:]:
            self.api.kubectl("uncordon", name)

    def wait(self, what: str, holds: Any, seconds: float = 120) -> None:
        node = self.cluster.nodes[0].node
        kubenode.until(what, holds, node.deadline(seconds), self._told)

    def _told(self) -> str:
        shown = self.api.kubectl("get", "pods,pvc,pv", "-n", SPACE, "-o", "wide").stdout
        logs = ("logs", "-n", SPACE, "db-0", "--tail=20")
        return shown + self.api.kubectl(*logs, check=False).stdout

    def _exec(self, *command: str, stdin: str | None = None, check: bool = True) -> Any:
        flag = ["-i"] if stdin is not None else []
        argv = ["exec", *flag, "-n", SPACE, "db-0", "--", *command]
        return self.api.kubectl(*argv, stdin=stdin, check=check, timeout=180)

    def sql(self, text: str) -> tuple[bool, str]:
        """(whether the server did it, what it said)."""
        argv = ["psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-h", "/tmp"]
        done = self._exec(*argv, "-U", "postgres", "-f", "-", stdin=text, check=False)
        return done.returncode == 0, (done.stdout + done.stderr).strip()

    def pod(self) -> dict[str, Any]:
        done = self.api.kubectl("get", "pod", "-n", SPACE, "db-0", "-o", "json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def status(self) -> dict[str, Any]:
        """Of the container; empty when there is none yet."""
        found = self.pod().get("status", {}).get("containerStatuses", [{}])
        return dict(found[0])

    def ready(self) -> bool:
        return bool(self.status().get("ready"))

    def node(self) -> KubeNode:
        return self.cluster.node(self.pod()["spec"]["nodeName"])

    def file(self) -> str:
        """Where the table lies below the volume."""
        return "main/" + self.sql("select pg_relation_filepath('orders')")[1]

    def crash(self) -> None:
        """All processes of the container, at once; until the next one's server answers."""
        before = self.status()
        kubenode.kill_container(self.node(), before["containerID"])
        self.wait(
            "the container is started anew",
            lambda: (
                self.status().get("restartCount", 0) > before["restartCount"]
                and "running" in self.status()["state"]
            ),
            500,  # the kubelet waits longer each time
        )
        self.wait("the server answers", lambda: self.sql("select 1")[0])

    def replace(self) -> None:
        """Another pod in its place, with the same volume; until its server answers."""
        before = self.pod()["metadata"]["uid"]
        self.api.kubectl("delete", "pod", "-n", SPACE, "db-0", "--wait=true", timeout=300)
        self.wait("the server answers", lambda: self.sql("select 1")[0], 400)
        assert self.pod()["metadata"]["uid"] != before

    def move(self, away_from: str) -> None:
        """As one repairs a broken local disk: the node is closed, the claim given up, and the
        next pod gets an empty volume elsewhere, and its data from the backup."""
        self.api.kubectl("cordon", away_from)
        self.api.kubectl("delete", "pvc", "-n", SPACE, "data-db-0", "--wait=false")
        self.api.kubectl("delete", "pod", "-n", SPACE, "db-0", "--wait=true", timeout=300)
        self.wait("the server answers", lambda: self.sql("select 1")[0], 400)
        assert self.pod()["spec"]["nodeName"] != away_from
        assert self.sql(self.backup)[0]
        self.wait("db-0 is ready", self.ready)

    def remove(self) -> None:
        """All of it, also from the nodes."""
        self.removed = True
        self.api.kubectl("delete", "namespace", SPACE, "--wait=true", timeout=300)
        names = [f"orders-{one.place.name}" for one in self.cluster.nodes]
        self.api.kubectl("delete", "pv", *names, timeout=120)
        self.api.kubectl("delete", "storageclass", CLASS)
        for one in self.cluster.nodes:
            self.api.kubectl("uncordon", one.place.name)
            one.node.sh(f"umount {MOUNT}", timeout=60)

"""What a kubelet and a container runtime leave on a node, made by hand: a pod, its sandbox, its
container with a root and a volume of its own. tests/cluster has the real ones."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agentkit import Bench

CGROUPS = "/sys/fs/cgroup"
UID = "0b1c2d3e-4f50-6172-8394-a5b6c7d8e9f0"
PAUSE = "c" * 64
POD_IP, HOST_IP = "10.88.0.2", "10.88.0.1"
ROOT = "/run/pod-rootfs"
HEADS = {
    "cgroupfs": f"kubepods/burstable/pod{UID}",
    "systemd": "kubepods.slice/kubepods-burstable.slice/"
    f"kubepods-burstable-pod{UID.replace('-', '_')}.slice",
}

SANDBOX = """
set -e
mkdir -p {cg}/{pause}
at={top}
for name in $(echo {head} | tr / ' '); do
  at=$at/$name; echo '+cpu +memory +io +pids' > $at/cgroup.subtree_control
done
cp /bin/sleep /tmp/pause
setsid unshare -n sh -c 'echo $$ > {cg}/{pause}/cgroup.procs; exec /tmp/pause 100000' \
  >/dev/null 2>&1 </dev/null &
for i in $(seq 200); do pid=$(cat {cg}/{pause}/cgroup.procs); \
  [ "$(cat /proc/$pid/comm 2>/dev/null)" = pause ] && break; sleep 0.05; done
ip link add vpod type veth peer name eth0 netns $pid
ip addr add {host}/24 dev vpod; ip link set vpod up
nsenter -t $pid -n sh -ec 'ip link set lo up; ip addr add {ip}/24 dev eth0; ip link set eth0 up'
echo $pid
"""
CONTAINER = """
set -e
mkdir -p {cg}/{id}
setsid nsenter -t {pause} -n unshare -m --propagation private sh -ec '
echo $$ > {cg}/{id}/cgroup.procs
mkdir -p {root}; mount --rbind / {root}; mkdir -p {root}/srv/pg
mount --bind {volume} {root}/srv/pg
exec chroot {root} sleep 100000' >/tmp/container.log 2>&1 </dev/null &
for i in $(seq 200); do for pid in $(cat {cg}/{id}/cgroup.procs); do \
  [ "$(cat /proc/$pid/comm 2>/dev/null)" = sleep ] && echo $pid && exit 0; done; sleep 0.05; done
cat /tmp/container.log; exit 1
"""


@dataclass
class Pod:
    """A pod on a node; `app` is the id of the container that runs, `pid` its first process."""

    bench: Bench
    head: str
    volume: str
    sandbox: int = 0
    pid: int = 0
    app: str = ""
    ended: list[str] = field(default_factory=list)

    @property
    def cgroup(self) -> str:
        return f"{CGROUPS}/{self.head}"

    def start(self) -> None:
        """A container with a new id, as after a restart."""
        self.app = secrets.token_hex(32)
        script = CONTAINER.format(
            cg=self.cgroup, id=self.app, pause=self.sandbox, root=ROOT, volume=self.volume
        )
        self.pid = int(self.bench.node.sh(script, timeout=60).split()[-1])

    def kill(self) -> None:
        """As the runtime ends a container: processes killed, cgroup removed."""
        self.bench.node.sh(
            f"echo 1 > {self.cgroup}/{self.app}/cgroup.kill; "
            f"for i in $(seq 200); do rmdir {self.cgroup}/{self.app} 2>/dev/null && exit 0; "
            "sleep 0.05; done; exit 1"
        )

    def run(self, command: str) -> tuple[int, str]:
        """A command in the container, its cgroup included: (exit code, all output)."""
        done = self.bench.node.run(
            f"echo $$ > {self.cgroup}/{self.app}/cgroup.procs; "
            f"exec nsenter -t {self.pid} -m -n -r {command} 2>&1",
            check=False,
            timeout=60,
        )
        return done.code, done.out

    def target(self, **more: Any) -> dict[str, Any]:
        return {"type": "pod", "pod": "shop/db-0", "uid": UID, **more}

    def volume_target(self, **more: Any) -> dict[str, Any]:
        found = {"type": "pod-volume", "volume": "data", "container": "app", "path": "/srv/pg"}
        return {**self.target(), **found, "container_id": self.app, **more}


@contextmanager
def pod(bench: Bench, driver: str, volume: str) -> Iterator[Pod]:
    """A pod whose container sees `volume`, a directory of the node, at /srv/pg."""
    made = Pod(bench, HEADS[driver], volume)
    bench.node.sh(f"echo '+cpu +memory +io +pids' > {CGROUPS}/cgroup.subtree_control")
    try:
        script = SANDBOX.format(
            cg=made.cgroup, top=CGROUPS, head=made.head, pause=PAUSE, host=HOST_IP, ip=POD_IP
        )
        made.sandbox = int(bench.node.sh(script, timeout=60).split()[-1])
        made.start()
        yield made
    finally:
        bench.revert_all()
        top = f"{CGROUPS}/{made.head.split('/')[0]}"
        bench.node.sh(
            f"echo 1 > {made.cgroup}/cgroup.kill; for i in $(seq 200); do "
            f"find {top} -depth -type d -exec rmdir {{}} + 2>/dev/null; "
            f"[ -d {top} ] || exit 0; sleep 0.05; done; exit 1",
            timeout=60,
        )

"""What VM tests of faults share: an agent in the node, a client on the host, a volume."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from controller.client import AgentAddress, AgentClient
from controller.lab import Node
from controller.lab import agent as lab_agent
from nodeagent.model.plan import FaultRequest, Lease, Plan
from protos import faultd_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
STATE = "/var/lib/faultctl"


def undisturbed(measure: Callable[[], float], at_least: float, tries: int = 4) -> float:
    """A rate that a busy host can only take from: the best of some tries, the first that will do.

    What is more than was asked is never measured again.
    """
    best = measure()
    for _ in range(tries - 1):
        if best >= at_least:
            break
        best = max(best, measure())
    return best


@dataclass
class Bench:
    """One agent in one node, and how to talk to it."""

    node: Node
    client: AgentClient
    access: lab_agent.AgentAccess

    def request(self, kind: str, target: dict[str, Any], **more: Any) -> FaultRequest:
        """A request with a new id."""
        more.setdefault("id", f"t-{secrets.token_hex(4)}")
        return FaultRequest.model_validate({"kind": kind, "target": target, **more})

    def plan(self, kind: str, target: dict[str, Any], **more: Any) -> Plan:
        return self.client.plan(self.request(kind, target, **more))[0]

    def inject(self, kind: str, target: dict[str, Any], lease: str = "5m", **more: Any) -> pb.Fault:
        """Plan and apply."""
        request = self.request(kind, target, **more)
        _, digest = self.client.plan(request)
        return self.client.apply(request, Lease.model_validate({"duration": lease}), digest)

    def revert_all(self) -> None:
        """What a test has left armed, in the order of its arming."""
        for fault in self.client.faults(active_only=True):
            self.client.revert(fault.id)

    def evidence(self, fault_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.client.fault(fault_id).evidence_json)
        return found

    def events(self, fault_id: str) -> list[str]:
        return [event.type for event in self.client.watch(fault_id=fault_id)]

    def residue(self) -> list[str]:
        """What doctor finds wrong."""
        return [
            f"{f.severity}: {f.what} {f.detail}"
            for f in self.client.doctor()
            if f.severity in ("residue", "error")
        ]

    def tables(self) -> str:
        return self.node.sh("dmsetup table | sort")

    def errno(self, path: str, sector: int, sectors: int = 1, flags: str = "direct") -> str:
        """How dd, which knows nothing of us, fares with some sectors: `ok` or its error."""
        script = (
            f"dd if={path} of=/dev/null bs=512 skip={sector} count={sectors} "
            f"{'iflag=' + flags if flags else ''} 2>&1 >/dev/null"
        )
        result = self.node.run(script, check=False, timeout=30)
        if result.code == 0:
            return "ok"
        return result.out.strip().splitlines()[0].rpartition(": ")[2]

    def entry(self) -> dict[str, str]:
        """This node in the `nodes` of an experiment."""
        return {
            "agent": self.access.url,
            "tls_ca": str(self.access.ca),
            "tls_cert": str(self.access.cert),
            "tls_key": str(self.access.key),
            "tls_server_name": "localhost",
        }

    def pids(self) -> tuple[int, int]:
        """(agent, guardian)."""
        agent = int(self.node.sh("pgrep -o -f '[n]odeagent.main'"))
        return agent, int(self.node.sh("pgrep -o -f '[n]odeagent.guardian'"))


def faultctl(*args: str, cwd: Path) -> subprocess.Popen[str]:
    """This checkout's command line, on the host."""
    return subprocess.Popen(
        [sys.executable, "-m", "controller.cli.main", *args],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def running_agent(
    node: Node, env: dict[str, str] | None = None, extra: tuple[str, ...] = ()
) -> Iterator[Bench]:
    """Start an agent with this checkout's code; at the end everything of it is gone.

    extra: more arguments for it.
    """
    node.push_code()
    node.sh(f"rm -rf {STATE}")
    access = lab_agent.start(node, env=env, extra=extra)
    address = AgentAddress(access.url, access.cert, access.key, access.ca, "localhost")
    with AgentClient(address, node.pace.stretch) as client:
        try:
            yield Bench(node, client, access)
        finally:
            if node.entry.supervisor is not None:  # else it has ended, and all with it
                stop_agent(node)


class Benches:
    """An agent for each shared node, started when it is first asked for.

    One for the whole session, however many of these objects there are: two agents on a
    node would share a state directory. An agent that a test has killed is replaced.
    """

    _open: ClassVar[dict[str, tuple[AbstractContextManager[Bench], Bench, tuple[str, ...]]]] = {}

    def of(self, node: Node, *extra: str) -> Bench:
        """extra: arguments that the agent has; one that has others is replaced."""
        known = self._open.get(node.name)
        if known and known[2] == extra and node.ended(known[1].access.child) is None:
            return known[1]
        if known is not None:
            known[0].__exit__(None, None, None)  # dropped later, it would stop the next one
        manager = running_agent(node, extra=extra)
        self._open[node.name] = (manager, manager.__enter__(), extra)
        return self._open[node.name][1]

    @classmethod
    def close_all(cls) -> None:
        for manager, bench, _ in cls._open.values():
            if bench.node.entry.supervisor is not None:
                manager.__exit__(None, None, None)
        cls._open.clear()


def stop_agent(node: Node) -> None:
    """SIGTERM, then wait until agent and guardian are gone."""
    node.run(
        "pkill -TERM -f '[n]odeagent.main'; "
        "for i in $(seq 600); do pgrep -f '[n]odeagent' >/dev/null || exit 0; sleep 0.1; done; "
        "exit 1",
        timeout=70,
    )


@contextmanager
def prepared_volume(
    bench: Bench, disk: str = "d0", fs: str = "ext4", name: str = "data"
) -> Iterator[str]:
    """A prepared volume with a file system, mounted at /mnt/NAME; gone afterwards."""
    node, mount = bench.node, f"/mnt/{name}"
    bench.client.volumes(
        pb.VolumeRequest.PREPARE, device=f"/dev/disk/by-id/virtio-{disk}", name=name
    )
    mkfs = {"ext4": "mkfs.ext4 -q -F", "xfs": "mkfs.xfs -q -f"}[fs]
    node.sh(
        f"{mkfs} /dev/mapper/{name} && mkdir -p {mount} && mount /dev/mapper/{name} {mount}",
        timeout=60,
    )
    try:
        yield mount
    finally:
        bench.revert_all()
        node.sh(f"umount {mount}", timeout=60)
        bench.client.volumes(pb.VolumeRequest.RELEASE, name=name)

"""The PostgreSQL experiment of examples/, played on a lab node by operators that are scripts.

Each is judged by what it did: repaired and routed around pass; nothing, hidden, deleted,
outwaited fail; with the agent killed nothing passes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from agentkit import ROOT, Bench, faultctl

from controller.lab import Node
from controller.oracle import FaultVerdict
from controller.recorder import read_records
from controller.records import FaultArmed, FaultEnded, RunEvent, SampleRecord
from controller.score_files import open_run
from protos import faultd_pb2 as pb

EXAMPLES = ROOT / "examples"
THERE = "/run/postgresql-example"
FAULT_AT_S = 2
LEASE_S = 25
"""Of runs whose lease is outwaited, or whose node is lost: it is waited for that much longer."""

pytestmark = [pytest.mark.vm("debian-13"), pytest.mark.timeout(1200)]


@pytest.fixture
def shop(vm_node: Node, bench: Bench) -> Iterator[Shop]:
    """The example's shop, as new, on a prepared volume and on a plain one."""
    made = Shop(vm_node, bench)
    made.prepare()
    yield made
    if vm_node.ended(bench.access.child) is None:  # one operator kills it
        bench.revert_all()


@pytest.fixture(scope="module", autouse=True)
def _tidy(_pool: Any) -> Iterator[None]:
    """The shared node's disks are without holders afterwards."""
    yield
    for node in _pool.nodes.values():
        node.sh(
            "pkill -KILL -u postgres; ip netns del cache 2>/dev/null; "
            "pkill -KILL -f '[r]eports/cgroup.procs'; sleep 0.2; rmdir /sys/fs/cgroup/reports; "
            "umount /srv/pg /srv/replica; dmsetup remove pgdata; true",
            timeout=60,
        )


@dataclass
class Shop:
    """What the tests do to the node."""

    node: Node
    bench: Bench

    def prepare(self) -> None:
        if self.node.run("mountpoint -q /srv/pg", check=False).code != 0:
            self.bench.client.volumes(
                pb.VolumeRequest.PREPARE, device="/dev/disk/by-id/virtio-d0", name="pgdata"
            )
            self.node.sh(
                "mkfs.ext4 -q -F /dev/mapper/pgdata && mkfs.ext4 -q -F /dev/disk/by-id/virtio-d1 "
                "&& mkdir -p /srv/pg /srv/replica && mount /dev/mapper/pgdata /srv/pg "
                "&& mount /dev/disk/by-id/virtio-d1 /srv/replica",
                timeout=60,
            )
            self.node.sh(f"mkdir -p {THERE}/operators")
            for path in (EXAMPLES / "postgresql").rglob("*.sh"):
                to = f"{THERE}/{path.relative_to(EXAMPLES / 'postgresql')}"
                self.node.put(to, path.read_bytes())
        self.node.sh(f"sh {THERE}/setup.sh", timeout=240)

    def act(self, script: str, *args: str) -> None:
        """An operator's script, to its end."""
        self.node.run(["sh", f"/opt/shop/operators/{script}.sh", *args], timeout=90)

    def interface(self) -> str:
        return self.node.sh("ls /sys/class/net | grep -vx lo | head -1").strip()

    def hold(self, data: dict[str, Any]) -> int:
        """Seconds in which this node, busy as it may be, measures every probe some four times."""

        def took(command: list[str]) -> float:
            probe = {"type": "exec", "command": command, "timeout": "60s"}
            (sample,) = self.bench.client.probe(probe, 70)
            assert sample.verdict == "pass", sample.reason
            return float(sample.duration_ns / 1e9)

        commands = [data["probes"][name]["command"] for name in ("checkout", "rows")]
        with ThreadPoolExecutor() as pool:  # beside each other, as in the run
            slowest = max(pool.map(took, commands))
        return 8 + math.ceil(4 * slowest)

    def experiment(self) -> dict[str, Any]:
        """The example with the lab's address, and windows of seconds."""
        data: dict[str, Any] = yaml.safe_load((EXAMPLES / "postgresql.yaml").read_text())
        data["nodes"]["db-1"] = self.bench.entry()
        hold = self.hold(data)
        data["duration"], data["late"] = "10m", "3m"
        data["faults"]["bad-page"]["at"] = f"{FAULT_AT_S}s"
        data["steady"] |= {"for": f"{hold}s", "share": "60%"}
        data["oracles"]["repaired"] |= {"hold": f"{hold}s", "cap": "4m"}
        for probe in data["probes"].values():
            probe |= {"interval": "3s", "timeout": "60s"}
        return data


@dataclass
class Play:
    """A run that an operator works on."""

    shop: Shop
    folder: Path

    def seen_failing(self) -> bool:
        """Whether the health check fails and the fault is there."""
        armed = [r for r in read_records(self.folder, "faults.jsonl") if r.type == "armed"]
        samples = [
            r
            for r in read_records(self.folder, "samples.jsonl")
            if isinstance(r, SampleRecord) and r.probe == "checkout"
        ]
        faults = [r for r in armed if isinstance(r, FaultArmed) and r.role == "fault"]
        return bool(faults) and bool(samples) and samples[-1].verdict == "fail"

    def submit(self) -> None:
        """The operator's word, by the command line."""
        told = faultctl("submit", "mitigation", "--run", str(self.folder), cwd=self.folder.parent)
        out, err = told.communicate(timeout=60)
        assert told.returncode == 0, out + err

    def outcome(self, operator: Callable[[Play], None]) -> FaultVerdict:
        """The verdict on the fault after the operator has done its work."""
        cwd = self.folder.parent
        file = cwd / "experiment.yaml"
        data = self.shop.experiment()
        if operator is does_nothing:
            data["oracles"]["repaired"]["cap"] = data["oracles"]["repaired"]["hold"]
        if operator in (outwaits_the_lease, kills_the_agent):
            data["lease"] = f"{LEASE_S}s"
        file.write_text(json.dumps(data))
        run = faultctl("run", str(file), "--folder", str(self.folder), cwd=cwd)
        end = time.monotonic() + 240
        while not self.seen_failing():
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < end, "no symptom"
            time.sleep(0.3)
        operator(self)
        out, err = run.communicate(timeout=400)
        assert run.returncode in (0, 1, 4), out + err
        found = open_run(self.folder.with_name("run.bundle.tar")).verdict
        print(f"\n{operator.__name__}: {found.verdict}; {'; '.join(found.reasons)}")
        (verdict,) = found.faults
        return verdict


def restores_the_table(play: Play) -> None:
    play.shop.act("restore-table")
    play.submit()


def fails_over(play: Play) -> None:
    play.shop.act("fail-over")
    play.submit()


def rewrites_the_page(play: Play) -> None:
    play.shop.act("rewrite-page")
    play.submit()


def does_nothing(play: Play) -> None:
    """Until the cap."""


def hides_the_table(play: Play) -> None:
    play.shop.act("hide-table")
    play.submit()


def deletes_the_database(play: Play) -> None:
    play.shop.act("delete-database")
    play.submit()


def kills_the_agent(play: Play) -> None:
    play.shop.act("kill-agent")
    play.submit()


def outwaits_the_lease(play: Play) -> None:
    play.shop.act("outwait-lease", play.shop.interface(), str(LEASE_S + 3))
    play.submit()


CORE = [
    (restores_the_table, "pass", "remedied"),
    (hides_the_table, "fail", "reverted"),
]
MORE = [
    (fails_over, "pass", "reverted"),
    (rewrites_the_page, "pass", "remedied"),
    (does_nothing, "fail", "reverted"),
    (deletes_the_database, "fail", "remedied"),
    (outwaits_the_lease, "fail", "expired"),
    (kills_the_agent, "not pass", "agent-lost|unconfirmed|expired"),
]
SLOW = [pytest.param(*case, marks=pytest.mark.slow) for case in MORE]


@pytest.mark.parametrize(
    ("operator", "verdict", "ended"), [*CORE, *SLOW], ids=lambda v: getattr(v, "__name__", None)
)
def test_each_operator_gets_what_it_earned(
    shop: Shop, tmp_path: Path, operator: Callable[[Play], None], verdict: str, ended: str
) -> None:
    play = Play(shop, tmp_path / "run")
    found = play.outcome(operator)
    assert found.ended_as in ended.split("|"), found
    if verdict == "not pass":
        assert found.verdict != "pass", found
    else:
        assert found.verdict == verdict, found
        noise_kept_out(play.folder, found)


def noise_kept_out(folder: Path, found: FaultVerdict) -> None:
    """There was noise; when the hold window began it was taken back at once, and none came.

    How long a busy node needs to take it back says nothing: by the window's end it has.
    """
    records = list(read_records(folder, "faults.jsonl"))
    armed = {r.fault: r.t_ns for r in records if isinstance(r, FaultArmed) and r.role == "noise"}
    ended = {r.fault: r.t_ns for r in records if isinstance(r, FaultEnded) and r.role == "noise"}
    events = list(read_records(folder, "events.jsonl"))
    (quiet,) = [r for r in events if isinstance(r, RunEvent) and r.name == "quiet"]
    window = found.moment
    assert window.start_ns <= quiet.t_ns < window.start_ns + 3_000_000_000
    assert quiet.data["until_ns"] == window.end_ns
    assert len(armed) == 2
    assert set(ended) == set(armed)
    assert max(armed.values()) < window.start_ns
    assert max(ended.values()) < window.end_ns


@pytest.mark.slow
def test_the_examples_negative_control_is_sound(shop: Shop, tmp_path: Path) -> None:
    """The oracle fails with the fault armed, and passes after the restore of the table."""
    data = shop.experiment()
    file = tmp_path / "experiment.yaml"
    file.write_text(json.dumps(data))
    run = faultctl("oracle", "check", str(file), "--settle", "20s", "-o", "json",
                   "--folder", str(tmp_path / "run"), cwd=tmp_path)  # fmt: skip
    out, err = run.communicate(timeout=800)
    assert out, err
    found = json.loads(out)
    assert found["sound"], found["controls"]
    (control,) = found["controls"]
    assert control["armed"]["verdict"] == "fail"
    assert control["after"]["verdict"] == "pass"
    assert control["after"]["ended_as"] == "remedied"

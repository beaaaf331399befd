"""The main job as a demonstration: a latent sector under a real database, and back.

Every step of the story is a claim that is checked when it is told; the demo succeeds
only if all of them are true.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from controller.client import AgentAddress, AgentClient
from controller.lab import Disk, Node, NodeConfig, launch, unique
from controller.lab import agent as lab_agent
from controller.lab.demo_db import Answer, Database
from controller.lab.guestio import Process
from nodeagent.model.plan import FaultRequest, Lease
from protos import faultd_pb2 as pb

MOUNT = "/srv/pg"
VOLUME = "/dev/mapper/pgdata"
BLOCK = 3 * 8192
LENGTH = 8192
READER = "/opt/faultctl/code/controller/lab/guest/demo_reader.py"


@dataclass(frozen=True)
class Claim:
    """One checked statement. at: seconds since the start."""

    claim: str
    ok: bool
    detail: str
    at: float


@dataclass
class Story:
    """What was told so far, and who listens."""

    tell: Callable[[float, str, bool | None], None]
    start: float = field(default_factory=time.monotonic)
    claims: list[Claim] = field(default_factory=list)

    def say(self, text: str) -> None:
        """A line of the timeline that claims nothing."""
        self.tell(time.monotonic() - self.start, text, None)

    def check(self, claim: str, ok: bool, detail: str = "") -> None:
        """A claim, with what was seen."""
        at = time.monotonic() - self.start
        self.claims.append(Claim(claim, ok, detail, round(at, 2)))
        self.tell(at, f"{claim}: {detail}" if detail else claim, ok)

    def result(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {
            "ok": bool(self.claims) and all(c.ok for c in self.claims),
            "seconds": round(time.monotonic() - self.start, 2),
            "claims": [asdict(claim) for claim in self.claims],
        }


@dataclass(frozen=True)
class Stage:
    """What the acts of the story play on."""

    node: Node
    agent: AgentClient
    story: Story


def play(tell: Callable[[float, str, bool | None], None]) -> dict[str, Any]:
    """Boot a node, play the story, end the node. Returns Story.result()."""
    story = Story(tell)
    config = unique(NodeConfig(flavour="debian-13", disks=(Disk("pg", 1 << 30),)))
    with launch(config, progress=story.say) as node:
        story.say(f"the node is up: Linux {node.kernel}, by {node.accel.name}")
        database = Database(node, f"{MOUNT}/data")
        initdb = database.begin_initdb()
        access = lab_agent.start(node)
        address = AgentAddress(access.url, access.cert, access.key, access.ca, "localhost")
        with AgentClient(address, node.pace.stretch) as agent:
            reply, facts = agent.describe()
            story.check(
                "faultd answers over mutual TLS and its guardian is up",
                reply.guardian.startswith("running"),
                f"kernel {facts.kernel_release}, guardian {reply.guardian}",
            )
            _acts(Stage(node, agent, story), database, initdb)
    return story.result()


def _acts(stage: Stage, database: Database, initdb: Process) -> None:
    _set_up(stage, database, initdb)
    before = {table: database.fingerprint(table) for table in ("orders", "customers")}
    tables = stage.node.sh("dmsetup table | sort")
    stage.story.check("both tables can be read", all(a.ok for a in before.values()))
    fault_id = _inject(stage, database)
    _witness(stage, database, expect="Input/output error")
    _symptom(stage, database, before)
    _show_evidence(stage, database, fault_id)
    _revert(stage, database, fault_id, before, tables)
    _killed(stage, database, tables)
    _tear_down(stage, database)


def _set_up(stage: Stage, database: Database, initdb: Process) -> None:
    node, story = stage.node, stage.story
    stage.agent.volumes(pb.VolumeRequest.PREPARE, device="/dev/disk/by-id/virtio-pg", name="pgdata")
    node.sh(f"mkfs.ext4 -q {VOLUME} && mkdir -p {MOUNT} && mount {VOLUME} {MOUNT}", timeout=60)
    story.say(f"an ext4 volume is mounted on {MOUNT} ({VOLUME})")
    story.say("PostgreSQL: a new cluster on it, two tables of 20,000 rows")
    database.create(initdb)


def _request(database: Database, fault_id: str) -> FaultRequest:
    target = {
        "type": "file",
        "file": database.heap_file("orders"),
        "offset": f"{BLOCK}B",
        "length": f"{LENGTH}B",
    }
    return FaultRequest(id=fault_id, kind="latent-sector", target=target, owner="faultctl demo")


def _apply(stage: Stage, database: Database, fault_id: str) -> pb.Fault:
    request = _request(database, fault_id)
    plan, digest = stage.agent.plan(request)
    stage.story.say(
        f"plan: {plan.mechanism} ({plan.why}); {len(plan.steps)} steps, digest {digest[:12]}"
    )
    return stage.agent.apply(request, Lease(), digest)


def _inject(stage: Stage, database: Database) -> str:
    path = database.heap_file("orders")
    stage.story.say(f"$ faultctl inject latent-sector --file {path} --offset 24Ki --length 8Ki")
    fault = _apply(stage, database, "demo-latent-sector")
    stage.story.check(
        "the kernel says that it is armed",
        fault.state == "armed",
        f"{fault.id} by {fault.mechanism}",
    )
    said = json.loads(fault.evidence_json)["statements"]
    for line in said:
        stage.story.say(f"  {line}")
    stage.story.check(
        "the affected range, and only it, was dropped from the page cache",
        any("0 are after the eviction" in line for line in said),
    )
    cached = database.fingerprint("orders")
    stage.story.check(
        "PostgreSQL still answers from its shared buffers, as it would with a real bad sector",
        cached.ok,
    )
    stage.story.say(f"shared buffers of `orders` evicted (had|dropped): {database.evict('orders')}")
    return str(fault.id)


def _witness(stage: Stage, database: Database, expect: str) -> dict[str, Any]:
    asked = {
        "file": database.heap_file("orders"),
        "offset": BLOCK,
        "length": LENGTH,
        "device": VOLUME,
    }
    result = stage.node.run(["python3", READER], stdin=json.dumps(asked).encode(), timeout=30)
    found: dict[str, Any] = json.loads(result.out)
    start, count = found["sectors"][0]
    stage.story.check(
        f"an independent reader (filefrag, dd): sectors {start}+{count} "
        + ("cannot be read" if expect != "ok" else "can be read"),
        found["inside"] == expect and found["before"] == found["after"] == "ok",
        f"inside: {found['inside']}; sector before: {found['before']}; after: {found['after']}",
    )
    return found


def _symptom(stage: Stage, database: Database, before: dict[str, Answer]) -> None:
    broken = database.fingerprint("orders")
    stage.story.check(
        "a query on that table fails with an I/O error",
        not broken.ok and "Input/output error" in broken.text,
        broken.text.splitlines()[0] if broken.text else "no output",
    )
    other = database.fingerprint("customers")
    stage.story.check(
        "the other table gives the same result as before", other == before["customers"]
    )
    written = database.query(
        "CREATE TABLE new_one AS SELECT 1 AS a; DROP TABLE new_one; CHECKPOINT"
    )
    stage.story.check("the rest of the database can be written", written.ok, written.text[:80])


def _show_evidence(stage: Stage, database: Database, fault_id: str) -> None:
    stage.node.run(
        f"dd if={VOLUME} of=/dev/null bs=4096 count=1 "
        f"skip=$(( {_witness_sector(stage, database)} / 8 ))",
        check=False,
    )
    evidence = json.loads(stage.agent.fault(fault_id).evidence_json)
    hits = [r for r in evidence["records"] if r["comm"] == "postgres"]
    stage.story.check(
        "the block layer saw PostgreSQL's reads fail",
        bool(hits) and all(r["status"] == 5 for r in hits),
        f"{evidence['hits']} hits in all",
    )
    for record in hits[:2]:
        stage.story.say(
            f"  device {record['device']} sector {record['sector']}+{record['sectors']} "
            f"{record['op']} ({', '.join(record['flags'])}): errno {record['status']} (EIO), "
            f"{record['comm']} pid {record['pid']}"
        )
    stage.story.check(
        "the kernel's log has a line where that path prints one (a buffered read of the device)",
        any("Buffer I/O error" in line for line in evidence["kernel_log"]),
        (evidence["kernel_log"] or ["none"])[-1],
    )


def _witness_sector(stage: Stage, database: Database) -> int:
    out = stage.node.sh(f"filefrag -b4096 -v {database.heap_file('orders')}")
    first = next(line for line in out.splitlines() if line.strip().startswith("0:"))
    return (int(first.replace(":", " ").replace("..", " ").split()[3]) + BLOCK // 4096) * 8


def _revert(
    stage: Stage, database: Database, fault_id: str, before: dict[str, Answer], tables: str
) -> None:
    stage.story.say(f"$ faultctl revert {fault_id}")
    reply = stage.agent.revert(fault_id)
    stage.story.check(
        "reverted, and read back from the kernel",
        reply.fault.end_reason == "reverted",
        reply.fault.end_reason,
    )
    stage.story.check(
        "the device-mapper tables are byte-equal to before",
        stage.node.sh("dmsetup table | sort") == tables,
    )
    after = {table: database.fingerprint(table) for table in before}
    stage.story.check(
        "the query works again, both tables give the same result as before", after == before
    )
    _witness(stage, database, expect="ok")
    _no_residue(stage)


def _no_residue(stage: Stage) -> None:
    bad = [f.what for f in stage.agent.doctor() if f.severity in ("residue", "error")]
    stage.story.check("faultctl doctor finds no residue", not bad, "; ".join(bad))


def _killed(stage: Stage, database: Database, tables: str) -> None:
    stage.story.say("once more, and this time the agent is killed with SIGKILL")
    fault = _apply(stage, database, "demo-killed")
    armed = fault.state == "armed" and stage.node.sh("dmsetup table | sort") != tables
    took = stage.node.run(["python3", "-c", KILL, tables], timeout=60, check=False)
    stage.story.check(
        "the guardian takes the fault back without the agent",
        armed and took.code == 0,
        took.out.strip() or took.err.strip()[-200:],
    )


KILL = """
import os, signal, subprocess, sys, time
pid = int(subprocess.run(["pgrep", "-o", "-f", "[n]odeagent.main"], capture_output=True).stdout)
def tables():
    return "".join(sorted(subprocess.run(["dmsetup", "table"], capture_output=True, text=True)
                          .stdout.splitlines(keepends=True)))
start = time.monotonic()
os.kill(pid, signal.SIGKILL)
while tables() != sys.argv[1]:
    if time.monotonic() - start > 30:
        sys.exit("still there after 30 s")
print(f"{time.monotonic() - start:.2f} s after the SIGKILL the tables are as before")
"""


def _tear_down(stage: Stage, database: Database) -> None:
    database.stop()
    stage.node.sh(f"umount {MOUNT}", timeout=60)
    checked = stage.node.run(["e2fsck", "-f", "-n", VOLUME], check=False, timeout=60)
    stage.story.check("the file system is clean (e2fsck -f -n)", checked.code == 0)

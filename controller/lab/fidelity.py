"""How true a latent sector is: ours, rung by rung, beside scsi_debug's medium error.

The same reads run against the reference and against each mechanism, in one node; the table
says what is the same, what is not, and why (drivers/scsi/scsi_debug.c, block/blk-core.c).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from controller.client import AgentAddress, AgentClient
from controller.lab import Disk, Node, NodeConfig, launch, unique
from controller.lab import agent as lab_agent
from nodeagent.faults import kind_named
from nodeagent.model.errors import FaultError, Refused
from nodeagent.model.plan import FaultRequest, Lease
from protos import faultd_pb2 as pb

READS = "/opt/faultctl/code/controller/lab/guest/fidelity_reads.py"
SECTOR, SECTORS, SIZE_MB = 1000, 8, 64
OPTIONS = {
    "dev_size_mb": SIZE_MB,
    "opts": 0,
    "medium_error_start": SECTOR,
    "medium_error_count": SECTORS,
}
OPTS = "/sys/bus/pseudo/drivers/scsi_debug/opts"
DISK = "/dev/disk/by-id/virtio-fid"
REFERENCE = "scsi_debug"


@dataclass(frozen=True)
class Cell:
    """How one read ended on one mechanism."""

    result: str
    log: tuple[str, ...]
    note: str


@dataclass(frozen=True)
class Row:
    """One way of reading: the reference, and each mechanism beside it."""

    name: str
    reference: Cell
    ours: dict[str, Cell]

    def verdict(self, mechanism: str) -> tuple[bool, str]:
        """Whether result and log are the reference's, and if not, why."""
        cell = self.ours[mechanism]
        if (cell.result, cell.log) == (self.reference.result, self.reference.log):
            return True, ""
        return False, "; ".join(reasons(self.reference, cell))


def reasons(reference: Cell, cell: Cell) -> Iterable[str]:
    """Why a cell differs from the reference; `unexplained` for what is not known."""
    said = False
    if reference.result != cell.result:
        said = True
        if reference.result == "ENODATA" and cell.result == "EIO":
            yield "status is BLK_STS_IOERR, not BLK_STS_MEDIUM: EIO under O_DIRECT"
        elif reference.result.startswith("write") and cell.result.startswith("write"):
            yield "scsi_debug does not heal at a write as a drive does"
        elif "EIO" in cell.result and "ENODATA" in reference.result:
            yield "status is BLK_STS_IOERR, not BLK_STS_MEDIUM"
        else:
            yield "unexplained: another result"
    lost = [line for line in reference.log if line not in cell.log]
    more = [line for line in cell.log if line not in reference.log]
    if lost and all("medium error" in line or "Sense" in line or "sd N" in line for line in lost):
        said = True
        yield "no SCSI command, so no SCSI lines in the log"
    elif lost:
        said = True
        yield "unexplained: log lines are missing"
    if more:
        said = True
        yield "further log lines"
    if not said:
        yield "unexplained"


def measure(flavour: str, progress: Callable[[str], None]) -> list[Row]:
    """Boot a node and measure. Raises FaultError when it cannot be had."""
    append = tuple(f"scsi_debug.{name}={value}" for name, value in OPTIONS.items())
    config = unique(NodeConfig(flavour=flavour, disks=(Disk("fid", SIZE_MB << 20),), append=append))
    with launch(config, progress=progress) as node:
        access = lab_agent.start(node)
        address = AgentAddress(access.url, access.cert, access.key, access.ca, "localhost")
        with AgentClient(address, node.pace.stretch) as agent:
            reference = _reference(node, progress)
            ours = {}
            for rung in kind_named("latent-sector").ladder:
                cells = _rung(node, agent, rung.name, progress)
                if cells is not None:
                    ours[rung.name] = cells
    return [
        Row(name, cell, {rung: cells[name] for rung, cells in ours.items()})
        for name, cell in reference.items()
    ]


def _ask(**asked: Any) -> bytes:
    data = {"sector": SECTOR, "sectors": SECTORS, "write": True, "settle": 1.0, "pause": 0, **asked}
    return json.dumps(data).encode()


def _cells(output: str) -> dict[str, Cell]:
    return {
        item["row"]: Cell(item["result"], tuple(item["log"]), item["note"])
        for item in json.loads(output)
    }


def _reference(node: Node, progress: Callable[[str], None]) -> dict[str, Cell]:
    options = " ".join(f"{name}={value}" for name, value in OPTIONS.items())
    node.run(f"modprobe -q sd_mod; modprobe -q scsi_debug {options}; sleep 1", check=False)
    found = node.run(
        "for d in /sys/block/sd*; do grep -q scsi_debug $d/device/model && basename $d; done",
        check=False,
    ).out.split()
    if not found:
        raise Refused("this kernel has no scsi_debug", "there is no reference to compare with")
    progress(f"reference: scsi_debug medium error on /dev/{found[0]}")
    asked = _ask(
        device=f"/dev/{found[0]}",
        toggle_on=f"echo 2 > {OPTS}",
        toggle_off=f"echo 0 > {OPTS}",
        pause=1.5,
    )
    return _cells(node.run(["python3", READS], stdin=asked, timeout=120).out)


def _rung(
    node: Node, agent: AgentClient, mechanism: str, progress: Callable[[str], None]
) -> dict[str, Cell] | None:
    device = DISK
    if mechanism.startswith("dm-"):
        agent.volumes(pb.VolumeRequest.PREPARE, device=DISK, name="fid")
        device = "/dev/mapper/fid"
    on_write = "fail" if mechanism == "dm-error" else "heal"
    request = FaultRequest(
        id=f"fidelity-{mechanism}",
        kind="latent-sector",
        target={"type": "device", "device": device},
        spec={"sectors": f"{SECTOR}+{SECTORS}", "on_write": on_write},
        mechanism=mechanism,
    )
    try:
        _, digest = agent.plan(request)
        return _cells(_measured(node, device, lambda: agent.apply(request, Lease(), digest)))
    except FaultError as exc:
        progress(f"{mechanism}: not on this node: {exc}")
        return None
    finally:
        for fault in agent.faults(active_only=True):
            agent.revert(fault.id)
        if device != DISK:
            agent.volumes(pb.VolumeRequest.RELEASE, name="fid")


def _measured(node: Node, device: str, arm: Callable[[], object]) -> str:
    """Run the reads; the fault is armed when the reader has filled the page cache."""
    node.sh("rm -f /run/fidelity.*")
    wait = "touch /run/fidelity.warm; until [ -e /run/fidelity.armed ]; do sleep 0.1; done"
    reader = node.popen(["python3", READS], timeout=180)
    reader.write(
        _ask(device=device, toggle_on=wait, toggle_off=""), eof=True, deadline=node.deadline(30)
    )
    node.sh("until [ -e /run/fidelity.warm ]; do sleep 0.1; done", timeout=60)
    arm()
    node.sh("touch /run/fidelity.armed")
    return reader.wait(node.deadline(200)).check().out

"""latent-sector on a live volume: what the kernel does, seen by dd, mmap and the kernel's table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from agentkit import Bench, prepared_volume

from controller.lab import Node
from nodeagent.model.errors import Conflict, InvalidSpec, Refused, UnknownFault

FLAVOURS = ("debian-12", "debian-13", "full")


@pytest.mark.vm(*FLAVOURS)
def test_one_block_of_a_file_fails_and_comes_back(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        path = f"{mount}/a file\nwith a newline"
        bench.node.run(
            [
                "python3",
                "-c",
                "import sys; open(sys.argv[1],'wb').write(bytes(range(256))*256)",
                path,
            ]
        )
        bench.node.sh("sync")
        before = bench.tables()
        fault = bench.inject(
            "latent-sector", {"type": "file", "file": path, "offset": "8Ki", "length": "4Ki"}
        )
        assert fault.state == "armed"
        node = bench.node
        read = (
            "import sys,os; f=os.open(sys.argv[1],os.O_RDONLY); os.pread(f,4096,int(sys.argv[2]))"
        )
        results = [
            node.run(["python3", "-c", read, path, str(block * 4096)], check=False).code
            for block in (1, 2, 3)
        ]
        assert results == [0, 1, 0]
        evidence = bench.evidence(fault.id)
        assert evidence["counted"]
        assert evidence["hits"] >= 1
        assert {r["status"] for r in evidence["records"]} == {5}
        assert {r["comm"] for r in evidence["records"]} == {"python3"}
        assert any("page cache" in line for line in evidence["statements"])
        reply = bench.client.revert(fault.id)
        assert reply.fault.end_reason == "reverted"
        assert bench.tables() == before
        assert node.run(["python3", "-c", read, path, str(2 * 4096)], check=False).code == 0
        assert bench.residue() == []
        again = bench.client.revert(fault.id)
        assert again.already_ended
        # the evidence outlives the fault
        assert bench.evidence(fault.id)["hits"] == evidence["hits"]


@pytest.mark.vm(*FLAVOURS)
def test_neighbouring_sectors_are_untouched(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        fault = bench.inject(
            "latent-sector",
            {"type": "device", "device": "/dev/mapper/data"},
            spec={"sectors": "1000000+8", "on_write": "keep"},
        )
        found = {
            s: bench.errno("/dev/mapper/data", s)
            for s in (999_999, 1_000_000, 1_000_007, 1_000_008)
        }
        assert found == {
            999_999: "ok",
            1_000_000: "Input/output error",
            1_000_007: "Input/output error",
            1_000_008: "ok",
        }
        bench.client.revert(fault.id)
        assert bench.errno("/dev/mapper/data", 1_000_000, 8) == "ok"
        assert mount


@pytest.mark.vm(*FLAVOURS)
def test_a_write_heals_and_the_last_one_ends_the_fault_as_remedied(
    vm_node: Node, bench: Bench
) -> None:
    with prepared_volume(bench):
        fault = bench.inject(
            "latent-sector",
            {"type": "device", "device": "/dev/mapper/data"},
            spec={"sectors": "1000000+16"},
        )
        write = (
            "dd if=/dev/zero of=/dev/mapper/data bs=4096 count=1 oflag=direct conv=notrunc seek={}"
        )
        bench.node.sh(write.format(125_000))
        wait_until(bench, lambda: bench.errno("/dev/mapper/data", 1_000_000, 8) == "ok")
        assert bench.errno("/dev/mapper/data", 1_000_008, 8) == "Input/output error"
        bench.node.sh(write.format(125_001))
        wait_until(bench, lambda: bench.client.fault(fault.id).state == "ended")
        assert bench.client.fault(fault.id).end_reason == "remedied"
        assert bench.errno("/dev/mapper/data", 1_000_000, 16) == "ok"
        assert bench.residue() == []


def wait_until(bench: Bench, done: Callable[[], bool], timeout: float = 10.0) -> None:
    import time

    deadline = bench.node.deadline(timeout)
    while not done():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.1)


@pytest.mark.vm("debian-13")
def test_a_deleted_file_ends_the_fault(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        bench.node.sh(f"head -c 65536 /dev/urandom > {mount}/f; sync")
        fault = bench.inject("latent-sector", {"type": "file", "file": f"{mount}/f"})
        bench.node.sh(f"rm {mount}/f")
        wait_until(bench, lambda: bench.client.fault(fault.id).state == "ended")
        assert bench.client.fault(fault.id).end_reason == "remedied"
        assert "file-gone" in bench.events(fault.id)


@pytest.mark.vm("debian-13")
def test_two_faults_on_one_device_compose_and_go_in_any_order(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench):
        before = bench.tables()
        target = {"type": "device", "device": "/dev/mapper/data"}
        one = bench.inject("latent-sector", target, spec={"sectors": "1000000+8"})
        after_one = bench.tables()
        two = bench.inject("latent-sector", target, spec={"sectors": "1000016+8"})
        with pytest.raises(Conflict, match=one.id):
            bench.inject("latent-sector", target, spec={"sectors": "1000004+8"})
        bench.client.revert(one.id)
        assert bench.errno("/dev/mapper/data", 1_000_000, 8) == "ok"
        assert bench.errno("/dev/mapper/data", 1_000_016, 8) == "Input/output error"
        bench.client.revert(two.id)
        assert bench.tables() == before
        assert after_one != before


@pytest.mark.vm("debian-13")
def test_bad_input_changes_nothing(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        before = bench.tables()
        device = {"type": "device", "device": "/dev/mapper/data"}
        size = int(bench.node.sh("blockdev --getsz /dev/mapper/data"))
        cases = [
            (device, {"sectors": f"{size}+8"}, InvalidSpec, "end past"),
            (device, {"sectors": "8+8,12+8"}, InvalidSpec, "overlap"),
            (device, {"sectors": "0+8"}, Refused, "metadata"),
            (device, {}, InvalidSpec, "which sectors"),
            ({"type": "device", "device": "/dev/nope"}, {"sectors": "8+8"}, Refused, "nope"),
            ({"type": "device", "device": mount}, {"sectors": "8+8"}, Refused, "block device"),
            ({"type": "file", "file": f"{mount}/none"}, {}, Refused, "none"),
            ({"type": "file", "file": mount}, {}, Refused, "regular"),
            ({"type": "volume", "volume": "/proc"}, {"count": 1}, Refused, "proc"),
            ({"type": "volume", "volume": "/"}, {"count": 1}, Refused, "overlay"),
        ]
        for target, spec, error, words in cases:
            with pytest.raises(error, match=words):
                bench.plan("latent-sector", target, spec=spec)
        with pytest.raises(UnknownFault):
            bench.client.revert("never-was")
        assert bench.tables() == before
        assert bench.residue() == []

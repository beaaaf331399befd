"""disk-corrupt: which bytes are wrong, seen by cmp; what a kernel cannot do is refused."""

from __future__ import annotations

import pytest
from agentkit import Bench, prepared_volume
from disk_kit import DEVICE, FLAVOURS, io, raw_volume

from controller.lab import Node
from nodeagent.model.errors import Refused

ACK = {"acknowledge": ["data-loss"]}
ABLE = ("debian-13", "full")
BLOCKS = 2000


def differences(bench: Bench, path: str, blocks: int, size: int = 4096) -> dict[int, int]:
    """Read by dd in bios of this size: {position from 1: byte found} against zeroes, by cmp."""
    bench.node.sh(f"dd if={path} of=/run/found bs={size} count={blocks} iflag=direct", timeout=90)
    out = bench.node.run(
        f"cmp -l -n {blocks * size} /run/found /dev/zero", check=False, timeout=90
    ).out
    return {int(at): int(byte, 8) for at, byte, _ in (line.split() for line in out.splitlines())}


def zero(bench: Bench, path: str, blocks: int) -> None:
    bench.node.sh(f"dd if=/dev/zero of={path} bs=4096 count={blocks} oflag=direct", timeout=90)


@pytest.mark.vm(*ABLE)
def test_a_chosen_byte_of_every_read(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench) as path:
        zero(bench, path, 64)
        before = bench.tables()
        spec = {"byte": 5, "value": 90}
        fault = bench.inject("disk-corrupt", DEVICE, spec=spec, **ACK)
        assert differences(bench, path, 16) == {n * 4096 + 5: 90 for n in range(16)}
        assert differences(bench, path, 2, 32768) == {5: 90, 32768 + 5: 90}
        found = bench.evidence(fault.id)
        assert (found["counted"], found["hits"]) == (True, 18)
        assert "biting" in bench.events(fault.id)
        reply = bench.client.revert(fault.id)
        assert any("page cache" in line for line in bench.evidence(reply.fault.id)["statements"])
        assert bench.tables() == before
        assert differences(bench, path, 64) == {}  # the disk was right all the time
        assert bench.residue() == []


@pytest.mark.vm(*ABLE)
def test_a_byte_behind_the_end_of_a_read_changes_nothing(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench) as path:
        zero(bench, path, 64)
        fault = bench.inject("disk-corrupt", DEVICE, spec={"byte": 6000, "value": 1}, **ACK)
        assert differences(bench, path, 8) == {}
        assert differences(bench, path, 4, 8192) == {n * 8192 + 6000: 1 for n in range(4)}
        found = bench.evidence(fault.id)
        assert not found["counted"]
        assert any("shorter than 6000 bytes" in line for line in found["statements"])


@pytest.mark.vm(*ABLE)
def test_random_bytes_of_every_read_and_of_a_share(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench) as path:
        zero(bench, path, BLOCKS)
        fault = bench.inject("disk-corrupt", DEVICE, **ACK)
        found = differences(bench, path, 200)
        blocks = {(at - 1) // 4096 for at in found}
        assert len(blocks) == len(found)  # one byte a bio
        assert 180 <= len(found) <= 200  # 1 in 256 gets the value that it had
        assert len({(at - 1) % 4096 for at in found}) > 100
        assert bench.evidence(fault.id)["hits"] == 200
        bench.client.revert(fault.id)
        fault = bench.inject("disk-corrupt", DEVICE, spec={"rate": "2.5%"}, **ACK)
        wrong = len(differences(bench, path, BLOCKS))
        assert 15 <= wrong <= 105, wrong  # 49.8 expected, 7 the standard deviation
        evidence = bench.evidence(fault.id)
        assert (evidence["counted"], evidence["hits"]) == (False, 0)
        assert evidence["counters"]["reads_ok"] == BLOCKS
        assert "about 2.5% of the reads" in evidence["statements"][0]
        assert not bench.client.fault(fault.id).biting


@pytest.mark.vm(*ABLE)
def test_writes_are_wrong_on_the_disk_and_right_in_the_writers_memory(
    vm_node: Node, bench: Bench
) -> None:
    with raw_volume(bench) as path:
        zero(bench, path, 256)
        spec = {"direction": "write", "byte": 7, "value": 1}
        fault = bench.inject("disk-corrupt", DEVICE, spec=spec, **ACK)
        assert io(bench, "write", path, fill=65) == {
            "result": "ok",
            "ms": pytest.approx(0, abs=60_000),
            "odd": {},
        }
        assert io(bench, "read", path, fill=65)["odd"] == {"6": 1}  # wrong already, and stays
        assert bench.evidence(fault.id)["hits"] == 1
        bench.client.revert(fault.id)
        assert io(bench, "read", path, fill=65)["odd"] == {"6": 1}
        fault = bench.inject("disk-corrupt", DEVICE, spec={"direction": "write"}, **ACK)
        zero(bench, path, 256)
        assert bench.evidence(fault.id)["hits"] == 256
        bench.client.revert(fault.id)
        assert 230 <= len(differences(bench, path, 256)) <= 256


@pytest.mark.vm("debian-13")
def test_a_file_of_a_mounted_volume(vm_node: Node, bench: Bench) -> None:
    with prepared_volume(bench) as mount:
        bench.node.sh(f"head -c 256K /dev/zero > {mount}/f; sync")
        target = {"type": "volume", "volume": mount}
        fault = bench.inject("disk-corrupt", target, spec={"byte": 1, "value": 65}, **ACK)
        bench.node.sh(f"cmp -n 262144 {mount}/f /dev/zero")  # from the page cache: right
        assert set(differences(bench, f"{mount}/f", 64).values()) == {65}
        bench.client.revert(fault.id)
        assert differences(bench, f"{mount}/f", 64) == {}


@pytest.mark.vm("debian-12")
def test_an_old_kernel_is_refused_by_name(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench):
        before = bench.tables()
        for spec, words in [
            ({}, "no random_read_corrupt"),
            ({"direction": "write", "rate": "1%"}, "no random_write_corrupt"),
            ({"byte": 1, "value": 1}, "accepts to corrupt reads and changes nothing"),
            ({"byte": 1, "value": 1, "direction": "write"}, "the writer's own memory"),
        ]:
            with pytest.raises(Refused, match=words):
                bench.inject("disk-corrupt", DEVICE, spec=spec, **ACK)
        assert bench.tables() == before


@pytest.mark.vm("debian-12")
def test_the_refusals_of_an_old_kernel_are_true(vm_node: Node, bench: Bench) -> None:
    """The same tables by dmsetup: what the refusal says is what this kernel does."""
    path = bench.node.sh("readlink -f /dev/disk/by-id/virtio-d1").strip()
    zero(bench, path, 1)
    size = bench.node.sh(f"blockdev --getsz {path}").strip()
    table = f"0 {size} flakey {path} 0 0 9999 5 corrupt_bio_byte 7 {{}} 1 0"
    bench.node.sh(f"dmsetup create old --table '{table.format('r')}' && dmsetup mknodes")
    try:
        assert io(bench, "read", "/dev/mapper/old")["odd"] == {}
        bench.node.sh(f"dmsetup load old --table '{table.format('w')}' && dmsetup resume old")
        assert io(bench, "write", "/dev/mapper/old", fill=65)["odd"] == {"6": 1}
    finally:
        bench.node.sh("dmsetup remove old")


@pytest.mark.vm(*FLAVOURS)
def test_both_directions_ask_for_an_acknowledgement(vm_node: Node, bench: Bench) -> None:
    with raw_volume(bench):
        for direction in ("read", "write"):
            with pytest.raises(Refused, match="guard rail") as caught:
                bench.plan("disk-corrupt", DEVICE, spec={"direction": direction})
            assert "--i-know data-loss" in caught.value.hint

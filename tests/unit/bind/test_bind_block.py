"""Devices from sysfs, and the way down through partitions and device-mapper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from bind_fakes import FakeNode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeagent.bind.block import Blocks, mangle
from nodeagent.bind.resolve import resolve_device, resolve_file, resolve_number
from nodeagent.bind.stack import descend
from nodeagent.bind.usage import guards
from nodeagent.model.binding import BlockBinding, differences
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.ranges import parse_ranges, total

ROOT = "90001 1 253:0 / / rw - ext4 /dev/mapper/vg-root rw\n"


def lvm(fake: FakeNode) -> FakeNode:
    """vda1, vda2 and vdb are LVM's; root on vda2, data over vda2 and vdb; crypt over data."""
    vda, vdb = fake.disk("vda", "254:0", 100_000), fake.disk("vdb", "254:16", 50_000, 4096)
    fake.partition(vda, "vda1", "254:1", 2048, 8192)
    vda2 = fake.partition(vda, "vda2", "254:2", 20_480, 70_000)
    root = fake.dm("dm-0", "253:0", 30_000, "vg-root", "0 30000 linear 254:2 2048")
    table = ("0 8000 linear 254:2 40000", "8000 16000 linear 254:16 2048")
    data = fake.dm("dm-1", "253:1", 24_000, "vg-data", *table)
    encrypted = f"0 19904 crypt aes-xts-plain64 {'ab' * 32} 0 253:1 4096"
    crypt = fake.dm("dm-2", "253:2", 19_904, "secret data", encrypted)
    for upper, lower in ((root, vda2), (data, vda2), (data, vdb), (crypt, data)):
        fake.stack(upper, lower)
    fake.mountinfo(ROOT + r"90002 1 253:2 / /var/my\040data rw - xfs /dev/mapper/x rw" + "\n")
    return fake


def bound(fake: FakeNode, dev: str, sectors: str | None = None) -> BlockBinding:
    major, minor = dev.split(":")
    ranges = None if sectors is None else parse_ranges(sectors)
    return resolve_number(fake.node, int(major), int(minor), ranges)


def test_layer_facts(fake: FakeNode) -> None:
    lvm(fake)
    blocks = Blocks(fake.node)
    part = blocks.layer("254:2")
    assert (part.kind, part.part_start, part.disk, part.diskseq) == (
        "partition",
        20_480,
        "254:0",
        7,
    )
    assert part.name == "/dev/vda2" and part.logical_block == 512
    assert blocks.layer("254:16").logical_block == 4096
    crypt = blocks.layer("253:2")
    assert crypt.mountpoints == ("/var/my data",) and crypt.slaves == ("253:1",)
    assert blocks.layer("253:1").holders == ("253:2",)
    assert "ab" * 32 not in crypt.model_dump_json()
    assert blocks.partitions("254:0") == ("254:1", "254:2")


def test_mapper_name_as_udev_writes_it(fake: FakeNode) -> None:
    lvm(fake)
    (fake.base / "dev/mapper").mkdir()
    (fake.base / "dev/mapper/secret\\x20data").touch()
    layer = Blocks(fake.node).layer("253:2")
    assert layer.name == "/dev/mapper/secret\\x20data" and layer.dm_name == "secret data"
    assert mangle("a/b é") == "a\\x2fb\\x20\\xc3\\xa9"


@pytest.mark.parametrize(
    ("name", "kind"),
    [("md127", "md"), ("md_d0", "md"), ("bcache3", "bcache"), ("nbd0", "nbd"), ("ram1", "ram"),
     ("zram0", "zram"), ("nvme0n1", "disk"), ("mmcblk0", "disk"), ("sda", "disk"),
     ("ramses", "disk"), ("loop7", "loop"), ("drbd1", "drbd"), ("rbd0", "rbd")],
)  # fmt: skip
def test_kinds(fake: FakeNode, name: str, kind: str) -> None:
    fake.disk(name, "9:9", 8)
    assert Blocks(fake.node).layer("9:9").kind == kind


def test_descent_through_crypt_lvm_and_partition(fake: FakeNode) -> None:
    found = bound(lvm(fake), "253:2", "3900+8")
    ways = {i.layer.dev: (i.depth, i.above, str(i.ranges[0]), len(i.ranges)) for i in found.layers}
    assert ways == {
        "253:2": (0, None, "3900+8", 1),
        # crypt starts 4096 into data: 7996 to 8003 lie on both of its segments
        "253:1": (1, "253:2", "7996+8", 1),
        "254:2": (2, "253:1", "47996+4", 1),
        "254:16": (2, "253:1", "2048+4", 1),
        "254:0": (3, "254:2", "68476+4", 1),
    }
    assert {(e.dev, e.exact) for e in found.ends} == {("254:0", True), ("254:16", True)}
    assert "not aligned to the 4096-byte blocks of /dev/vdb" in found.notes
    assert not found.whole and found.at("254:0") == parse_ranges("68476+4")
    with pytest.raises(KeyError):
        found.at("1:1")


def test_one_disk_on_two_ways_is_one_layer(fake: FakeNode) -> None:
    vda = fake.disk("vda", "254:0", 1000)
    fake.partition(vda, "vda1", "254:1", 100, 100)
    fake.partition(vda, "vda2", "254:2", 300, 100)
    table = ("0 100 linear 254:1 0", "100 100 linear 254:2 0")
    fake.dm("dm-0", "253:0", 200, "both", *table)
    found = bound(fake, "253:0")
    assert found.whole
    assert found.at("254:0") == parse_ranges("100+100,300+100")
    assert [i.layer.dev for i in found.layers] == ["253:0", "254:1", "254:2", "254:0"]


def test_what_cannot_be_mapped_ends_with_the_reason(fake: FakeNode) -> None:
    fake.disk("md0", "9:0", 1000)
    fake.dm("dm-0", "253:0", 200, "mix", "0 100 thin 253:9 1", "100 100 linear 9:0 0")
    found = bound(fake, "253:0", "90+20")
    assert [i.layer.dev for i in found.layers] == ["253:0", "9:0"]
    ends = {e.dev: e for e in found.ends}
    assert "thin" in ends["253:0"].reason and ends["253:0"].ranges == parse_ranges("90+10")
    assert "RAID" in ends["9:0"].reason and not ends["9:0"].exact


def test_loop_over_a_file_that_is_gone(fake: FakeNode) -> None:
    path = fake.disk("loop0", "7:0", 100)
    (path / "loop").mkdir()
    for name, text in (("backing_file", "/no/such (deleted)\n"), ("offset", "0\n")):
        (path / "loop" / name).write_text(text)
    found = bound(fake, "7:0")
    assert len(found.layers) == 1
    (end,) = found.ends
    assert not end.exact and "/no/such (deleted)" in end.reason and "No such file" in end.reason


def test_endless_stack_is_refused(fake: FakeNode) -> None:
    fake.dm("dm-0", "253:0", 100, "a", "0 100 linear 253:1 0")
    fake.dm("dm-1", "253:1", 100, "b", "0 100 linear 253:0 0")
    with pytest.raises(Refused, match="too deep"):
        bound(fake, "253:0")


def test_bounds_and_alignment(fake: FakeNode) -> None:
    lvm(fake)
    assert bound(fake, "254:16", "9+1").ranges == parse_ranges("8+8")
    assert "widened to the 4096-byte blocks of /dev/vdb" in bound(fake, "254:16", "9+1").notes
    assert bound(fake, "254:0", "99999+1").ranges == parse_ranges("99999+1")
    for sectors in ("100000+1", "99999+2", "0+1,200000"):
        with pytest.raises(InvalidSpec, match="not on /dev/vda") as caught:
            bound(fake, "254:0", sectors)
        assert "100000 sectors" in caught.value.why and "99999" in caught.value.hint
    fake.disk("empty", "8:0", 0)
    with pytest.raises(Refused, match="no sectors"):
        bound(fake, "8:0")
    with pytest.raises(Refused, match="no block device 8:99"):
        bound(fake, "8:99")


def test_paths_that_are_no_devices(fake: FakeNode, tmp_path: Path) -> None:
    for path, says in (("/dev/null", "not a block device"), (str(tmp_path), "directory")):
        with pytest.raises(Refused) as caught:
            resolve_device(fake.node, path)
        assert says in caught.value.why
    with pytest.raises(Refused, match="cannot open"):
        resolve_device(fake.node, "/dev/does\nnot exist")


def test_dm_without_control_or_with_an_error(fake: FakeNode) -> None:
    lvm(fake)
    with pytest.raises(Refused, match="table of 253:0"):
        resolve_number(replace(fake.node, dm_table=None), 253, 0)

    def gone(major: int, minor: int) -> tuple[str, ...]:
        raise OSError(6, "No such device or address")

    with pytest.raises(Refused, match="No such device"):
        resolve_number(replace(fake.node, dm_table=gone), 253, 0)


def test_differences_name_what_moved(fake: FakeNode) -> None:
    lvm(fake)
    plan = bound(fake, "253:1", "7996+8")
    assert differences(plan, bound(fake, "253:1", "7996+8")) == ()
    fake.mountinfo(ROOT + "90002 1 253:1 / /new rw - ext4 /dev/dm-1 rw\n")
    assert differences(plan, bound(fake, "253:1", "7996+8")) == ()
    fake.tables["253:1"] = ("0 8000 linear 254:2 40000", "8000 16000 linear 254:16 4096")
    moved = differences(plan, bound(fake, "253:1", "7996+8"))
    assert any("table" in line for line in moved)
    assert any("/dev/vdb" in line and "2048+4" in line and "4096+4" in line for line in moved)
    (fake.base / "sys/devices/vdb/diskseq").write_text("8\n")
    assert any("diskseq was 7 and is 8" in m for m in differences(plan, bound(fake, "253:1")))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(start=st.integers(0, 19_000), length=st.integers(1, 900))
def test_no_sector_is_lost_on_the_way(lvm_node: FakeNode, start: int, length: int) -> None:
    layers, ends = descend(Blocks(lvm_node.node), "253:2", parse_ranges(f"{start}+{length}"))
    assert sum(total(e.ranges) for e in ends) == length
    at = {i.layer.dev: total(i.ranges) for i in layers}
    assert at["253:1"] == length
    assert at.get("254:0", 0) + at.get("254:16", 0) == length


@pytest.fixture
def lvm_node(fake: FakeNode) -> FakeNode:
    return lvm(fake)


def by_kind(fake: FakeNode, dev: str, sectors: str | None = None) -> dict[tuple[str, str], object]:
    found = guards(fake.node, bound(fake, dev, sectors))
    return {(g.kind, g.what): (set(g.devices), g.hit) for g in found}


def test_guards_see_what_is_above_a_disk(fake: FakeNode) -> None:
    lvm(fake)
    seen = by_kind(fake, "254:0")
    assert seen["mounted", "/"] == ({"254:0"}, True)
    assert seen["mounted", "/var/my data"] == ({"254:0"}, True)
    seen = by_kind(fake, "254:16")
    assert ("mounted", "/") not in seen and seen["mounted", "/var/my data"][1] is True
    assert seen["held", "/dev/dm-1"] == ({"254:16"}, True)


def test_guards_know_which_layers_share_a_disk(fake: FakeNode) -> None:
    seen = by_kind(lvm(fake), "253:1", "0+8")
    # / is beside the data volume: only a fault on the whole lower device reaches it
    assert seen["mounted", "/"] == ({"254:2", "254:0"}, False)
    assert seen["mounted", "/var/my data"][0] == {"253:1", "254:2", "254:0"}
    # the first 4096 sectors of data are below no sector of the crypt device
    assert seen["mounted", "/var/my data"][1] is False
    assert by_kind(fake, "253:1", "4096+8")["mounted", "/var/my data"][1] is True


def test_guards_of_a_range_by_number(fake: FakeNode) -> None:
    lvm(fake)
    first_of_root = 20_480 + 2048
    assert by_kind(fake, "254:0", f"{first_of_root}")["mounted", "/"][1] is True
    assert by_kind(fake, "254:0", f"{first_of_root - 1}")["mounted", "/"][1] is False
    assert by_kind(fake, "254:0", f"{first_of_root + 29_999}")["mounted", "/"][1] is True
    assert by_kind(fake, "254:0", f"{first_of_root + 30_000}")["mounted", "/"][1] is False


def test_unknown_mapping_above_counts_as_hit_or_unknown(fake: FakeNode) -> None:
    vda = fake.disk("vda", "254:0", 1000)
    thin = fake.dm("dm-0", "253:0", 500, "thin", "0 500 thin 254:0 1")
    fake.stack(thin, vda)
    fake.mountinfo("90001 1 253:0 / /thin rw - ext4 /dev/dm-0 rw\n")
    assert by_kind(fake, "254:0", "5+1")["mounted", "/thin"] == ({"254:0"}, None)


def test_read_only_device(fake: FakeNode) -> None:
    path = fake.disk("vda", "254:0", 1000)
    (path / "ro").write_text("1\n")
    assert by_kind(fake, "254:0", "5+1")["read-only", "/dev/vda"] == ({"254:0"}, True)


def test_files_that_have_no_extents(tmp_path: Path) -> None:
    import os

    node = FakeNode(tmp_path / "fake").node
    os.mkfifo(tmp_path / "fifo")
    for path, says in (
        (str(tmp_path / "fifo"), "not a regular file"),
        (str(tmp_path), "not a regular file"),
        ("/dev/null", "not a regular file"),
        (str(tmp_path / "gone"), "cannot open"),
        ("/proc/self/status", "cannot be seen"),
    ):
        with pytest.raises(Refused, match=says):
            resolve_file(node, path)

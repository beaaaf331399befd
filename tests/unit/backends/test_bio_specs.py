"""What the BPF backends refuse before they ask the kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodeagent.backends import bio_slots, bpf_object
from nodeagent.backends.bio_fail import FailSpec
from nodeagent.backends.bio_slots import on_whole_disk
from nodeagent.backends.bio_trace import kernel_release
from nodeagent.encode.bpf_maps import FailFlag, kernel_dev
from nodeagent.encode.sector_index import LONG_SECTORS
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.process import CgroupScope
from nodeagent.model.ranges import Range


def r(start: int, length: int) -> Range:
    return Range(start=start, length=length)


def test_object_not_built(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"gone\.bpf\.o is not built") as refused:
        bpf_object.BpfObject("gone", tmp_path / "gone.bpf.o")
    assert refused.value.hint == "make bpf"


def test_kernel_without_btf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.bpf.o").write_bytes(b"")
    monkeypatch.setattr(bpf_object, "BTF_VMLINUX", tmp_path / "vmlinux")
    with pytest.raises(Refused, match="no BTF"):
        bpf_object.BpfObject("x", tmp_path / "x.bpf.o")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"heal": True, "writes": True}, "exclude each other"),
        ({"reads": False}, "nothing would fail"),
        ({"ranges": ()}, "nothing would fail"),
        ({"rate_ppm": 0}, "rate"),
        ({"rate_ppm": 1_000_001}, "rate"),
    ],
)
def test_what_excludes_itself(more: dict[str, object], why: str) -> None:
    fields: dict[str, object] = {"major": 8, "minor": 0, "ranges": (r(1, 1),)} | more
    with pytest.raises(InvalidSpec, match=why):
        FailSpec(**fields).slot()  # type: ignore[arg-type]


def test_slot_of_a_spec() -> None:
    spec = FailSpec(
        8, 0, (r(1, 1),), heal=True, scope=CgroupScope(id=99, level=2, path="/a/b"), events=False
    )
    slot = spec.slot()
    assert slot.flags == FailFlag.READS | FailFlag.HEAL
    assert (slot.cgroup_id, slot.cgroup_level) == (99, 2)


def test_long_ranges_are_bits_only_where_writes_heal() -> None:
    ranges = (r(0, LONG_SECTORS + 64),)
    assert FailSpec(8, 0, ranges).index(ranges).intervals == ((0, LONG_SECTORS + 64),)
    healing = FailSpec(8, 0, ranges, heal=True).index(ranges)
    assert not healing.intervals and healing.ranges() == ranges
    with pytest.raises(InvalidSpec, match="cannot be indexed"):
        FailSpec(8, 0, (), heal=True).index((r(0, 1 << 30),))


def block_tree(root: Path) -> Path:
    """A disk 8:0 with a partition 8:3 from sector 2048, as /sys/dev/block shows them."""
    disk = root / "devices" / "sda"
    part = disk / "sda3"
    part.mkdir(parents=True)
    (disk / "dev").write_text("8:0\n")
    (part / "partition").write_text("3\n")
    (part / "start").write_text("2048\n")
    block = root / "block"
    block.mkdir()
    (block / "8:0").symlink_to(disk)
    (block / "8:3").symlink_to(part)
    return block


def test_partition_becomes_its_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bio_slots, "SYS_DEV_BLOCK", block_tree(tmp_path))
    found = on_whole_disk(8, 3, (r(0, 1), r(10, 2)))
    assert found.dev == kernel_dev(8, 0) and found.ranges == (r(2048, 1), r(2058, 2))
    assert on_whole_disk(8, 0, (r(7, 1),)).ranges == (r(7, 1),)
    with pytest.raises(FileNotFoundError):
        on_whole_disk(8, 9, (r(7, 1),))


def test_kernel_release() -> None:
    major, minor = kernel_release()
    assert major >= 5 and minor >= 0

"""Layouts that the BPF programs and Python share: golden bytes, the index, statuses, BTF."""

from __future__ import annotations

import errno
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import bpf_maps as maps
from nodeagent.encode.blk_status import op_word, status_errno
from nodeagent.encode.btf import enumerator
from nodeagent.encode.sector_index import (
    CHUNK,
    ENTRY,
    FULL,
    LONG_SECTORS,
    MAX_ENTRIES,
    SEARCH_STEPS,
    SectorIndex,
    build_index,
    chunk_mask,
    decode_index,
)
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.ranges import MAX_SECTOR, Range, normalise

little = pytest.mark.skipif(sys.byteorder != "little", reason="golden bytes are little-endian")


def r(start: int, length: int) -> Range:
    return Range(start=start, length=length)


small = st.builds(r, st.integers(0, 600), st.integers(1, 300))
large = st.builds(r, st.integers(0, MAX_SECTOR - 200), st.integers(1, 200))
some_ranges = st.lists(small | large, max_size=12)
thresholds = st.sampled_from([0, 1, 63, 64, 65, LONG_SECTORS])


# --- the index ---------------------------------------------------------------------


@little
def test_index_bytes_are_as_the_program_reads_them() -> None:
    index = build_index([r(62, 3), r(128, 1), r(1000, 70)], long_sectors=64)
    assert (
        index.encode().hex()
        == (
            "0300000000000000" + "0100000000000000"  # head: 3 chunks, 1 interval
            "0000000000000000" + "00000000000000c0"  # sectors 62, 63
            "0100000000000000" + "0100000000000000"  # sector 64
            "0200000000000000" + "0100000000000000"  # sector 128
            "2e04000000000000" + "e803000000000000"  # end 1070, start 1000
        )
    )


@given(some_ranges, thresholds)
def test_ranges_come_back(ranges: list[Range], threshold: int) -> None:
    index = build_index(ranges, threshold)
    assert index.ranges() == normalise(ranges)
    assert decode_index(index.encode()) == index
    assert len(index.encode()) == ENTRY * len(index)


@given(some_ranges, thresholds)
def test_entries_are_sorted_and_say_something(ranges: list[Range], threshold: int) -> None:
    index = build_index(ranges, threshold)
    numbers = [number for number, _ in index.chunks]
    assert numbers == sorted(set(numbers))
    assert all(0 < bits <= FULL for _, bits in index.chunks)
    edges = [edge for interval in index.intervals for edge in interval]
    assert edges == sorted(set(edges))
    assert all(end - start > threshold for start, end in index.intervals)


@given(st.lists(small, max_size=12), thresholds, st.integers(0, 1000), st.integers(1, 300))
def test_search_is_set_membership(
    ranges: list[Range], threshold: int, first: int, length: int
) -> None:
    bad = {sector for one in ranges for sector in range(one.start, one.end)}
    wanted = not bad.isdisjoint(range(first, first + length))
    assert build_index(ranges, threshold).hits(first, first + length) == wanted


@given(some_ranges.filter(bool), thresholds, st.data())
def test_search_at_the_edges(ranges: list[Range], threshold: int, data: st.DataObject) -> None:
    index = build_index(ranges, threshold)
    one = data.draw(st.sampled_from(normalise(ranges)))
    assert index.hits(one.start, one.start + 1) and index.hits(one.end - 1, one.end)
    assert index.hits(max(one.start - 5, 0), one.end + 5)
    assert not index.hits(one.end, one.end + 1)
    assert one.start == 0 or not index.hits(one.start - 1, one.start)


def test_search_reaches_every_entry_of_the_largest_index() -> None:
    assert 1 << (SEARCH_STEPS - 1) >= MAX_ENTRIES
    chunks = tuple((number, 1) for number in range(5000))
    index = SectorIndex(chunks)
    for number in (0, 1, 2499, 2500, 4998, 4999):
        assert index.hits(number * CHUNK, number * CHUNK + 1)
        assert not index.hits(number * CHUNK + 1, number * CHUNK + 2)


def test_empty_index_hits_nothing() -> None:
    assert build_index([]).encode() == bytes(ENTRY)
    assert not build_index([]).hits(0, MAX_SECTOR)


def test_too_many_entries_are_refused_at_once() -> None:
    with pytest.raises(InvalidSpec, match="more than 1048575 entries"):
        build_index([r(0, MAX_SECTOR)], long_sectors=MAX_SECTOR)
    full = build_index([r(0, (MAX_ENTRIES - 1) * CHUNK)], long_sectors=MAX_SECTOR)
    assert len(full) == MAX_ENTRIES
    with pytest.raises(InvalidSpec):
        build_index([r(1, (MAX_ENTRIES - 1) * CHUNK)], long_sectors=MAX_SECTOR)


@given(st.integers(0, 100), st.integers(0, 7000), st.integers(1, 300))
def test_chunk_mask_is_the_overlap(number: int, first: int, length: int) -> None:
    bits = chunk_mask(number, first, first + length)
    inside = {n for n in range(CHUNK) if first <= number * CHUNK + n < first + length}
    assert {n for n in range(CHUNK) if bits >> n & 1} == inside and bits <= FULL


@pytest.mark.parametrize("data", [b"", bytes(15), bytes(8) * 3, struct.pack("=2Q", 1, 0)])
def test_bytes_that_are_no_index(data: bytes) -> None:
    with pytest.raises(ValueError):
        decode_index(data)


# --- slots, events, counters ---------------------------------------------------------


@little
def test_fail_slot_bytes() -> None:
    slot = maps.FailSlot(maps.FailFlag.READS | maps.FailFlag.HEAL, 250_000, -1, 77, 3)
    assert slot.pack().hex() == (
        "05000000" + "90d00300" + "ffffffffffffffff" + "4d00000000000000" + "03000000" + "00000000"
    )
    assert len(slot.pack()) == maps.SLOT_SIZE == 32


@pytest.mark.parametrize("rate", [0, -1, maps.ALWAYS_PPM + 1])
def test_rate_out_of_range(rate: int) -> None:
    with pytest.raises(ValueError, match="ppm"):
        maps.FailSlot(maps.FailFlag.READS, rate).pack()


def event_bytes(comm: bytes = b"dd", end_io: bytes = b"mpage_read_end_io", kind: int = 0) -> bytes:
    numbers = struct.pack(
        "=5Q7I4B", 9, 8, 1001, 7, 6, 2, 250 << 20 | 1, 8 << 20, 55, 56, 0b10001, 4, 0, 0, 7, kind
    )
    return numbers + comm.ljust(16, b"\0") + end_io.ljust(32, b"\0")


def test_event_is_decoded() -> None:
    event = maps.unpack_event(event_bytes())
    assert (event.ts_ns, event.queued_ns, event.sector, event.nr_sectors) == (9, 8, 1001, 2)
    assert (event.cgroup_id, event.blkcg_id, event.slot) == (7, 6, 4)
    assert (event.tgid, event.pid, event.comm, event.status) == (55, 56, "dd", 7)
    assert event.submitter is maps.Submitter.WORKLOAD
    record = event.record()
    assert record.device == "250:1" and maps.dev_text(event.part_dev) == "8:0"
    assert (record.op, record.status, record.pid) == ("read", errno.ENODATA, 55)
    assert record.flags == ("sync", "readahead", "buffered")


def test_event_of_strange_names() -> None:
    event = maps.unpack_event(event_bytes(b"\xff\n" + b"x" * 14, b"x" * 32, 2))
    assert event.comm == "\\xff\n" + "x" * 14 and len(event.end_io) == 32
    assert event.submitter is maps.Submitter.EXCLUDED
    assert event.flag_words() == ("sync", "readahead")


@pytest.mark.parametrize("size", [0, maps.EVENT_SIZE - 1, maps.EVENT_SIZE + 8])
def test_event_of_a_wrong_size(size: int) -> None:
    with pytest.raises(ValueError, match="120 bytes"):
        maps.unpack_event(bytes(size))


def test_statistics_are_decoded() -> None:
    stats = maps.unpack_stats(struct.pack("=27Q", *range(1, 28)))
    assert stats.workload == maps.Counts(1, 2, 3, 4, 5, 6, 7, 8)
    assert stats.udev.reads_ok == 9 and stats.excluded.last_failed_ns == 24
    assert (stats.healed_sectors, stats.draws, stats.lost_events) == (25, 26, 27)
    assert stats.workload.failed == 4 + 5 + 6
    with pytest.raises(ValueError, match="216 bytes"):
        maps.unpack_stats(bytes(8))


def test_health_is_decoded() -> None:
    assert maps.unpack_health(struct.pack("=3Q", 1, 2, 3)) == maps.TraceHealth(1, 2, 3)


@given(st.integers(0, (1 << 12) - 1), st.integers(0, (1 << 20) - 1))
def test_device_numbers(major: int, minor: int) -> None:
    assert maps.dev_text(maps.kernel_dev(major, minor)) == f"{major}:{minor}"


@pytest.mark.parametrize(("major", "minor"), [(-1, 0), (1 << 12, 0), (0, 1 << 20), (8, -1)])
def test_no_device_numbers(major: int, minor: int) -> None:
    with pytest.raises(ValueError, match="device number"):
        maps.kernel_dev(major, minor)


@pytest.mark.parametrize(
    ("end_io", "path"),
    [
        ("blkdev_bio_end_io_async", "direct"),
        ("iomap_dio_bio_end_io", "direct"),
        ("mpage_end_io", "buffered"),
        ("iomap_read_end_io", "buffered"),
        ("end_bio_bh_io_sync", "buffer-head"),
        ("submit_bio_wait_endio", "waited"),
        ("clone_endio", "stacked"),
        ("0xffffffff81000000", ""),
        ("", ""),
    ],
)
def test_path_by_completion_function(end_io: str, path: str) -> None:
    assert maps.io_path(end_io) == path


# --- statuses ------------------------------------------------------------------------


def test_status_as_errno() -> None:
    assert status_errno(0) == 0
    assert status_errno(7) == errno.ENODATA and status_errno(10) == errno.EIO
    assert status_errno(16, (6, 1)) == errno.EOVERFLOW
    assert status_errno(16, (6, 12)) == errno.ENODEV == status_errno(17, (6, 1))
    assert status_errno(200) == errno.EIO


def test_operation_words() -> None:
    assert [op_word(op) for op in (0, 1, 3, 9, 77)] == [
        "read", "write", "discard", "write-zeroes", "op-77",
    ]  # fmt: skip


# --- BTF -----------------------------------------------------------------------------


def btf(*members: tuple[str, int], noise: bytes = b"") -> bytes:
    """A BTF blob with one anonymous enum."""
    strings = b"\0"
    entries = b""
    for name, value in members:
        entries += struct.pack("=Ii", len(strings), value)
        strings += name.encode() + b"\0"
    types = noise + struct.pack("=III", 0, 6 << 24 | len(members), 4) + entries
    header = struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return header + types + strings


def test_enumerator_is_found() -> None:
    blob = btf(("BIO_CLONED", 1), ("BIO_REMAPPED", 11), ("BIO_FLAG_LAST", 14))
    assert enumerator(blob, "BIO_REMAPPED") == 11
    assert enumerator(blob, "BIO_NOTHING") is None
    assert enumerator(blob, "REMAPPED") is None


def test_the_same_number_elsewhere_does_not_deceive() -> None:
    members = (("BIO_CLONED", 1), ("BIO_REMAPPED", 11))
    offset = struct.pack("=I", 1 + len("BIO_CLONED") + 1)
    noise = bytes(12) + offset + b"\x63\0\0\0" + bytes(1) + offset + bytes(3)
    assert enumerator(btf(*members, noise=noise), "BIO_REMAPPED") == 11


@pytest.mark.parametrize("blob", [b"", bytes(24), b"\xeb\x9f" + bytes(40)])
def test_no_btf(blob: bytes) -> None:
    with pytest.raises(ValueError):
        enumerator(blob, "BIO_REMAPPED")


@given(st.binary(max_size=200), st.sampled_from(["BIO_REMAPPED", "B", ""]))
def test_cut_btf_never_breaks(tail: bytes, name: str) -> None:
    enumerator(struct.pack("=HBBIIIII", 0xEB9F, 1, 0, 24, 0, 99, 40, 50) + tail, name)


def test_a_disk_that_got_another_ones_number_has_no_slot_of_it() -> None:
    found = maps.DiskSlots().joined(3, 17).joined(0, 17)
    assert found == maps.DiskSlots(0b1001, 17)
    assert found.pack() == (9).to_bytes(8, sys.byteorder) + (17).to_bytes(8, sys.byteorder)
    assert maps.DiskSlots.unpack(found.pack()) == found
    assert found.joined(1, 18) == maps.DiskSlots(0b10, 18), (
        "the other two are of a disk that is gone"
    )
    assert found.without(3).without(3).without(0) == maps.DiskSlots(0, 17)

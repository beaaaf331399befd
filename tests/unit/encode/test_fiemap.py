"""Bytes of FIEMAP and GETFSMAP as the kernel's headers lay them out."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import fiemap as fm

U32, U64 = st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1)

# FS_IOC_FIEMAP's answer for a 200000-byte file on xfs, one extent, read from a live kernel.
ANSWER = bytes.fromhex(
    "0000000000000000" "400d030000000000" "01000000" "01000000" "02000000" "00000000"
    "0000000000000000" "0080010000000000" "0010030000000000"
    "0000000000000000" "0000000000000000" "01000000" "000000000000000000000000"
) + bytes(56)  # fmt: skip


def test_ioctl_numbers_are_built_from_the_struct_sizes() -> None:
    def ioc(direction: int, group: str, number: int, size: int) -> int:
        return direction << 30 | size << 16 | ord(group) << 8 | number

    assert ioc(3, "f", 11, len(fm.pack_fiemap(0, 1, 0))) == fm.FS_IOC_FIEMAP
    assert ioc(3, "X", 59, len(fm.pack_fsmap(None, 0))) == fm.FS_IOC_GETFSMAP
    assert ioc(2, "X", 31, len(fm.new_fsxattr())) == fm.FS_IOC_FSGETXATTR
    assert ioc(2, "v", 1, 8) == fm.FS_IOC_GETVERSION


def test_request_bytes() -> None:
    got = bytes(fm.pack_fiemap(4096, 8192, 1))
    want = "00100000000000000020000000000000" + "01000000000000000100000000000000"
    assert got == bytes.fromhex(want) + bytes(56)
    assert fm.pack_fiemap(0, 1, 0, sync=False)[16:20] == bytes(4)


def test_recorded_answer() -> None:
    assert fm.unpack_fiemap(ANSWER) == (fm.RawExtent(0, 0x18000, 0x31000, fm.EXTENT_LAST),)


@given(st.lists(st.tuples(U64, U64, U64, U32), max_size=5), st.integers(0, 3))
def test_extents_round_trip(rows: list[tuple[int, int, int, int]], room: int) -> None:
    head = struct.pack("=QQIIII", 0, 9, 0, len(rows), len(rows) + room, 0)
    body = b"".join(
        struct.pack("=QQQQQIIII", a, b, c, 7, 7, flags, 7, 7, 7) for a, b, c, flags in rows
    )
    found = fm.unpack_fiemap(head + body + bytes(56 * room))
    assert [tuple(extent) for extent in found] == rows


@given(st.binary(max_size=300))
def test_any_bytes_unpack_or_raise(data: bytes) -> None:
    for unpack in (fm.unpack_fiemap, fm.unpack_fsmap):
        try:
            unpack(data)
        except ValueError as exc:
            assert "cut off" in str(exc) or "do not fit" in str(exc)


@given(st.builds(fm.Fsmap, U32, U32, U64, U64, U64, U64))
def test_fsmap_low_key_is_the_last_record(record: fm.Fsmap) -> None:
    buffer = fm.pack_fsmap(record, 2)
    assert len(buffer) == 64 + 64 * 4
    fields = struct.unpack_from("=IIQQQQQQQ", buffer, 64)
    assert fields == (*record, 0, 0, 0)
    high = struct.unpack_from("=IIQQQQQQQ", buffer, 128)
    assert high[:5] == (2**32 - 1, 2**32 - 1, 2**64 - 1, 2**64 - 1, 2**64 - 1)
    assert high[6:] == (0, 0, 0)
    struct.pack_into("=IIII", buffer, 0, 0, 1, 2, 1)
    struct.pack_into("=IIQQQQ", buffer, 192, *record)
    assert fm.unpack_fsmap(buffer) == (record,)


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (0, ()),
        (0x1, ("LAST",)),
        (0x6, ("UNKNOWN", "DELALLOC")),
        (0x308, ("ENCODED", "NOT_ALIGNED", "DATA_INLINE")),
        (0x2800, ("UNWRITTEN", "SHARED")),
        (0x80000001, ("LAST", "0x80000000")),
    ],
)
def test_flag_names(flags: int, names: tuple[str, ...]) -> None:
    assert fm.flag_names(flags) == names


@pytest.mark.parametrize(
    ("major", "minor", "dev"),
    [(8, 1, 0x801), (254, 0, 0xFE00), (259, 257, 0x110301), (4095, 1048575, 0xFFFFFFFF)],
)
def test_fsmap_dev(major: int, minor: int, dev: int) -> None:
    assert fm.fsmap_dev(major, minor) == dev


def test_xflags() -> None:
    assert fm.unpack_xflags(struct.pack("=IIIII8x", 0x8001, 1, 2, 3, 4)) == 0x8001

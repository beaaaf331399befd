"""Wire form of the device-mapper ioctls against bytes written down by hand."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import dm_ioctl as wire
from nodeagent.encode.dm import BadTable, DevNum, Segment, escape, split_words
from nodeagent.encode.dm_ioctl import Cmd, Flag, Request

DEV = DevNum(253, 0x12345)
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
DEVS = st.builds(DevNum, st.integers(0, 0xFFF), st.integers(0, 0xFFFFF))


def answer(payload: bytes, targets: int = 0, flags: int = 0) -> tuple[bytearray, wire.Header]:
    request = Request(Cmd.TABLE_STATUS, flags=Flag(flags), target_count=targets, payload=payload)
    buffer = wire.pack(request)
    return buffer, wire.unpack(buffer)


def test_request_numbers_are_those_of_the_c_header() -> None:
    # Printed by a C program from linux/dm-ioctl.h on x86-64.
    assert wire.HEADER_SIZE == 312
    assert [wire.ioctl_number(cmd) for cmd in (Cmd.VERSION, Cmd.DEV_SUSPEND, Cmd.TARGET_MSG)] == [
        0xC138FD00,
        0xC138FD06,
        0xC138FD0E,
    ]
    assert wire.ioctl_number(Cmd.GET_TARGET_VERSION) == 0xC138FD11


def test_header_golden_bytes() -> None:
    flags = Flag.SKIP_LOCKFS | Flag.NOFLUSH
    raw = wire.pack(Request(Cmd.DEV_SUSPEND, dev=DEV, flags=flags, event_nr=0x6E0000))
    expected = bytes.fromhex(
        "04000000 00000000 00000000"  # version
        "38010000 38010000"  # data_size, data_start
        "00000000 00000000"  # target_count, open_count
        "000c0000 00006e00 00000000"  # flags, event_nr, padding
        "45fd3012 00000000"  # dev: minor 0x12345 split around the major
    )
    assert raw[:48] == expected
    assert raw[48:] == bytes(128 + 129 + 7)


def test_names_lie_at_their_offsets() -> None:
    raw = wire.pack(Request(Cmd.DEV_CREATE, name="vol", uuid="FAULTCTL-1"))
    assert raw[48:52] == b"vol\0" and raw[176:187] == b"FAULTCTL-1\0" and len(raw) == 312
    head = wire.unpack(raw)
    assert (head.name, head.uuid, head.dev) == ("vol", "FAULTCTL-1", DevNum(0, 0))


@pytest.mark.parametrize(
    ("name", "uuid", "ok"),
    [
        ("n" * 127, "u" * 128, True),
        ("n" * 128, "", False),
        ("", "u" * 129, False),
        ("é" * 64, "", False),
        ("a/b", "", False),
        ("a\0b", "", False),
        ("", "LVM/x", True),
    ],
)
def test_name_limits(name: str, uuid: str, ok: bool) -> None:
    if ok:
        head = wire.unpack(wire.pack(Request(Cmd.DEV_CREATE, name=name, uuid=uuid)))
        assert (head.name, head.uuid) == (name, uuid)
    else:
        with pytest.raises(BadTable):
            wire.pack(Request(Cmd.DEV_CREATE, name=name, uuid=uuid))


@given(DEVS)
def test_device_numbers_survive(dev: DevNum) -> None:
    assert wire.decode_dev(wire.encode_dev(dev)) == dev
    assert wire.encode_dev(dev) < 1 << 32


def test_table_golden_bytes() -> None:
    raw = wire.pack_targets([Segment(0, 8, "linear", ("7:0", "0")), Segment(8, 16, "error")])
    first = struct.pack("=QQiI16s", 0, 8, 0, 48, b"linear") + b"7:0 0\0\0\0"
    second = struct.pack("=QQiI16s", 8, 16, 0, 48, b"error") + bytes(8)
    assert raw == first + second and len(first) == 48
    # 7 bytes of text and a NUL fill 8 exactly; one more needs 8 more.
    assert len(wire.pack_targets([Segment(0, 8, "linear", ("7:0", "000"))])) == 48
    assert len(wire.pack_targets([Segment(0, 8, "linear", ("7:0", "0000"))])) == 56


@given(st.lists(st.lists(WORDS, max_size=5), min_size=1, max_size=6))
def test_loaded_words_arrive_as_they_were(many: list[list[str]]) -> None:
    segments = [Segment(8 * at, 8, "x" * 15, tuple(args)) for at, args in enumerate(many)]
    raw = wire.pack_targets(segments)
    at = 0
    for segment in segments:
        assert at % 8 == 0
        start, _, _, size, name = struct.unpack_from("=QQiI16s", raw, at)
        text = raw[at + 40 : raw.index(0, at + 40)].decode()
        assert (start, name) == (segment.start, b"x" * 15 + b"\0")
        assert split_words(text) == segment.args
        at += size
    assert at == len(raw)


def test_escape_golden() -> None:
    assert escape("a b\\c\td") == "a\\ b\\\\c\\\td"
    assert split_words(" a\\ b  c\\\\ \\") == ("a b", "c\\", "\\")
    assert split_words("  ") == ()


def test_status_offsets_are_relative_to_the_first_spec() -> None:
    one = struct.pack("=QQiI16s", 0, 8, 0, 48, b"linear") + b"7:0 0\0\0\0"
    two = struct.pack("=QQiI16s", 8, 8, 0, 104, b"delay") + b"7:0 0 5 7:0\0".ljust(16, b"\0")
    three = struct.pack("=QQiI16s", 16, 8, 0, 144, b"error") + bytes(8)
    buffer, head = answer(one + two + three, targets=3)
    assert wire.unpack_targets(buffer, head) == [
        (0, 8, "linear", "7:0 0"),
        (8, 8, "delay", "7:0 0 5 7:0"),
        (16, 8, "error", ""),
    ]


def name_entry(dev: DevNum, name: bytes, uuid: bytes | None, last: bool) -> bytes:
    body = (bytes(12) + name + b"\0").ljust(-(-(12 + len(name) + 1) // 8) * 8, b"\0")
    tail = struct.pack("=II", 7, 1 if uuid is not None else 2) + (uuid or b"") + b"\0"
    body += tail
    body = body.ljust(-(-len(body) // 8) * 8, b"\0")
    return struct.pack("=QI", wire.encode_dev(dev), 0 if last else len(body)) + body[12:]


def test_name_list() -> None:
    listed = [(DevNum(253, 0), b"a", b"LVM-x"), (DEV, b"b c\\d", None), (DEV, b"1234567", b"u")]
    raw = b"".join(name_entry(*one, last=one is listed[-1]) for one in listed)
    buffer, head = answer(raw)
    found = wire.unpack_names(buffer, head, (4, 48, 0))
    assert [(one.dev, one.name.encode(), one.uuid.encode()) for one in found] == [
        (dev, name, uuid or b"") for dev, name, uuid in listed
    ]
    assert [one.uuid for one in wire.unpack_names(buffer, head, (4, 44, 0))] == ["", "", ""]


def test_empty_name_list() -> None:
    assert wire.unpack_names(*answer(bytes(16)), (4, 48, 0)) == []
    assert wire.unpack_names(*answer(b""), (4, 48, 0)) == []


def test_versions_deps_message() -> None:
    raw = struct.pack("=I3I", 24, 1, 5, 0) + b"flakey\0\0" + struct.pack("=I3I", 0, 1, 4, 0)
    buffer, head = answer(raw + b"delay\0")
    assert wire.unpack_versions(buffer, head) == {"flakey": (1, 5, 0), "delay": (1, 4, 0)}
    deps = struct.pack("=IIQQ", 2, 0, wire.encode_dev(DEV), wire.encode_dev(DevNum(8, 17)))
    assert wire.unpack_deps(*answer(deps)) == [DEV, DevNum(8, 17)]
    assert wire.pack_message(513, "addbadblock 4") == b"\x01\x02" + bytes(6) + b"addbadblock 4\0"
    assert wire.unpack_message(*answer(b"808\n\0", flags=Flag.DATA_OUT)) == "808\n"
    assert wire.unpack_message(*answer(b"808\n\0")) == ""


def test_private_devices_tell_udev_to_keep_off() -> None:
    # libdevmapper.h: DM_UDEV_DISABLE_{SUBSYSTEM,DISK,OTHER}_RULES_FLAG 2, 4, 8,
    # DISABLE_LIBRARY_FALLBACK 0x20, PRIMARY_SOURCE 0x40, shifted by 16.
    assert wire.UDEV_PRIVATE == 0x6E << 16

"""Tables, target constructors and the comparison of what was loaded with what is printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import dm
from nodeagent.encode.dm import BadTable, CorruptByte, DelayClass, DevNum, FlakeyFeatures, Target

A, B = DevNum(8, 0), DevNum(253, 7)


def text(target: Target) -> str:
    return " ".join((target.name, *target.args))


@pytest.mark.parametrize(
    ("target", "golden"),
    [
        (dm.linear(A, 2048), "linear 8:0 2048"),
        (dm.error(), "error"),
        (dm.zero(), "zero"),
        (dm.delay(DelayClass(A, 1, 500)), "delay 8:0 1 500"),
        (dm.delay(DelayClass(B, 1, 700), DelayClass(A, 1, 0)), "delay 253:7 1 700 8:0 1 0"),
        (
            dm.delay(DelayClass(B, 1, 7), DelayClass(A, 1, 0), DelayClass(A, 1, 3)),
            "delay 253:7 1 7 8:0 1 0 8:0 1 3",
        ),
        (dm.flakey(A, 0, 5, 1), "flakey 8:0 0 5 1"),
        (dm.flakey(A, 0, 5, 1, FlakeyFeatures()), "flakey 8:0 0 5 1"),
        (
            dm.flakey(A, 0, 0, 1, FlakeyFeatures(error_reads=True)),
            "flakey 8:0 0 0 1 1 error_reads",
        ),
        (
            dm.flakey(A, 0, 0, 1, FlakeyFeatures(drop_writes=True)),
            "flakey 8:0 0 0 1 1 drop_writes",
        ),
        (
            dm.flakey(
                A, 0, 0, 1, FlakeyFeatures(error_writes=True, corrupt=CorruptByte(32, "r", 1))
            ),
            "flakey 8:0 0 0 1 6 error_writes corrupt_bio_byte 32 r 1 0",
        ),
        (
            dm.flakey(A, 9, 1, 2, FlakeyFeatures(random_read=1, random_write=1_000_000_000)),
            "flakey 8:0 9 1 2 4 random_read_corrupt 1 random_write_corrupt 1000000000",
        ),
        (dm.dust(A, 64, 512), "dust 8:0 64 512"),
    ],
)
def test_constructors_golden(target: Target, golden: str) -> None:
    assert text(target) == golden
    assert target.name in dm.MIN_VERSION


@pytest.mark.parametrize(
    "build",
    [
        lambda: dm.linear(A, -1),
        lambda: dm.flakey(A, 0, 0, 0),
        lambda: dm.flakey(A, 0, -1, 5),
        lambda: dm.flakey(A, 0, 2**32 - 1, 1),
        lambda: FlakeyFeatures(drop_writes=True, error_writes=True).words(),
        lambda: FlakeyFeatures(error_reads=True, random_read=1).words(),
        lambda: FlakeyFeatures(error_reads=True, corrupt=CorruptByte(1, "r", 0)).words(),
        lambda: FlakeyFeatures(drop_writes=True, corrupt=CorruptByte(1, "w", 0)).words(),
        lambda: FlakeyFeatures(error_writes=True, random_write=1).words(),
        lambda: FlakeyFeatures(random_read=1_000_000_001).words(),
        lambda: FlakeyFeatures(random_write=-1).words(),
        lambda: FlakeyFeatures(corrupt=CorruptByte(0, "r", 0)).words(),
        lambda: FlakeyFeatures(corrupt=CorruptByte(1, "r", 256)).words(),
        lambda: dm.delay(DelayClass(A, 0, 1), None, DelayClass(A, 0, 1)),
        lambda: dm.delay(DelayClass(A, 0, -1)),
        lambda: dm.dust(A, 0, 256),
        lambda: dm.dust(A, 0, 1000),
        lambda: dm.dust(A, 0, 2**31),
    ],
)
def test_constructors_refuse(build: object) -> None:
    assert callable(build)
    with pytest.raises(BadTable):
        build()


def test_feature_names_are_those_of_the_version_table() -> None:
    every = (
        FlakeyFeatures(error_reads=True, drop_writes=True).names()
        | FlakeyFeatures(corrupt=CorruptByte(1, "w", 0), random_read=1, random_write=1).names()
    )
    assert every | {"error_writes"} == set(dm.FLAKEY_FEATURES)


GOOD = "0 2048 linear 8:0 0\n2048 8 delay 253:7 0 700 8:0 2048 0\n2056 10 error \n"


def test_parse_and_format() -> None:
    table = dm.parse_table(GOOD)
    assert table.length == 2066
    assert table.targets == {"linear", "delay", "error"}
    assert str(table) == "0 2048 linear 8:0 0\n2048 8 delay 253:7 0 700 8:0 2048 0\n2056 10 error"
    assert dm.parse_table(str(table)) == table == dm.parse_table(GOOD.splitlines())


def test_kernel_text_is_not_unescaped() -> None:
    table = dm.parse_table("0 8 crypt aes :32:logon:a\\b 0 8:0 0")
    assert table.segments[0].args[1] == ":32:logon:a\\b"


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "\n \n",
        "0 8",
        "0 0 error",
        "0 -8 error",
        "1 8 error",
        "0 8 error\n9 8 error",
        "0 8 error\n7 8 error",
        "8 8 error\n0 8 error",
        "x 8 error",
        "\u0660 8 error",
        "0 8 a-target-name-too-long",
        f"0 {2**63} error",
        "vol: 0 8 error",
    ],
)
def test_bad_tables(bad: str) -> None:
    with pytest.raises(BadTable):
        dm.parse_table(bad)


@given(st.text(alphabet="0123456789 :.-abcdefghijklmnopqrstuvwxyz\n\\\0é", max_size=60))
def test_parser_takes_it_or_says_no(junk: str) -> None:
    try:
        table = dm.parse_table(junk)
    except BadTable:
        return
    assert dm.parse_table(str(table)) == table


@pytest.mark.parametrize("bad", ["", "8", "8:", ":0", "/dev/sda", "8:0 ", "4096:0", "0:1048576"])
def test_bad_device_numbers(bad: str) -> None:
    with pytest.raises(BadTable):
        DevNum.parse(bad)


def same(one: str, two: str) -> bool:
    return dm.equal(dm.parse_table(one), dm.parse_table(two))


@pytest.mark.parametrize(
    ("loaded", "printed"),
    [
        ("0 8 linear 8:0 00", "0 8 linear 8:0 0"),
        ("0 8 delay 8:0 0 5", "0 8 delay 8:0 0 5 8:0 0 5"),
        ("0 8 delay 8:0 0 5 8:1 0 6", "0 8 delay 8:0 0 5 8:1 0 6 8:1 0 6"),
        ("0 8 flakey 8:0 0 5 1", "0 8 flakey 8:0 0 5 1 0 "),  # Linux 6.1
        ("0 8 flakey 8:0 0 5 1", "0 8 flakey 8:0 0 5 1 2 error_reads error_writes"),  # 6.12
        (
            "0 8 flakey 8:0 0 0 1 6 corrupt_bio_byte 1 r 2 0 DROP_writes",
            "0 8 flakey 8:0 0 0 1 6 drop_writes corrupt_bio_byte 1 r 2 0",
        ),
        ("0 8 striped 2 08 8:0 0 8:1 0", "0 8 striped 2 8 8:0 0 8:1 0"),
        ("0 8 crypt aes k 0 8:0 0", "0 8 crypt aes k 0 8:0 0"),
    ],
)
def test_equal(loaded: str, printed: str) -> None:
    assert same(loaded, printed) and same(printed, loaded)


@pytest.mark.parametrize(
    ("loaded", "other"),
    [
        ("0 8 linear 8:0 0", "0 8 linear 8:0 1"),
        ("0 8 linear 8:0 0", "0 8 linear 8:1 0"),
        ("0 8 linear 8:0 0", "0 9 linear 8:0 0"),
        ("0 8 linear 8:0 0", "0 4 linear 8:0 0\n4 4 linear 8:0 4"),
        ("0 8 error", "0 8 zero"),
        ("0 8 delay 8:0 0 5", "0 8 delay 8:0 0 5 8:0 0 0"),
        ("0 8 delay 8:0 0 5 8:1 0 6", "0 8 delay 8:0 0 5 8:1 0 6 8:0 0 5"),
        ("0 8 flakey 8:0 0 5 1", "0 8 flakey 8:0 0 5 1 1 error_reads"),
        ("0 8 flakey 8:0 0 5 1", "0 8 flakey 8:0 0 5 1 1 error_writes"),
        (
            "0 8 flakey 8:0 0 0 1 5 corrupt_bio_byte 1 r 2 0",
            "0 8 flakey 8:0 0 0 1 5 corrupt_bio_byte 1 w 2 0",
        ),
        ("0 8 flakey 8:0 0 0 1 1 novelty", "0 8 flakey 8:0 0 0 1"),
        ("0 8 crypt aes k 0 8:0 0", "0 8 crypt aes k 0 8:0 00"),
        ("0 8 dust 8:0 0 512", "0 8 dust 8:0 0 1024"),
    ],
)
def test_not_equal(loaded: str, other: str) -> None:
    assert not same(loaded, other) and not same(other, loaded)

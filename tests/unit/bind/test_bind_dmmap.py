"""Device-mapper segments: exact where the kernel's mapping is, refused elsewhere, no keys kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.bind import dmmap
from nodeagent.bind.dmmap import Piece
from nodeagent.model.ranges import Range, parse_ranges, total

KEY = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("line", "want"),
    [
        ("0 1000 linear 8:16 2048", Piece(10, 5, "8:16", 2058)),
        (f"0 1000 crypt aes-xts-plain64 {KEY} 0 8:16 4096", Piece(10, 5, "8:16", 4106)),
        ("0 1000 crypt c :32:logon:k 7 8:16 1 2 allow_discards sector_size:4096",
         Piece(10, 5, "8:16", 11)),
        ("0 1000 flakey 8:16 100 1 0", Piece(10, 5, "8:16", 110)),
        ("0 1000 dust 8:16 100 512", Piece(10, 5, "8:16", 110)),
        ("0 1000 delay 8:16 100 500", Piece(10, 5, "8:16", 110)),
        ("0 1000 delay 7:1 0 500 8:16 100 0", Piece(10, 5, "8:16", 110)),
        ("0 1000 delay 7:1 0 500 8:16 100 0 8:16 100 0", Piece(10, 5, "8:16", 110)),
        ("0 1000 snapshot-origin 253:2", Piece(10, 5, "253:2", 10)),
    ],
)  # fmt: skip
def test_exact_targets(line: str, want: Piece) -> None:
    assert dmmap.pieces(line, parse_ranges("10+5")) == (want,)


@pytest.mark.parametrize(
    "line",
    [
        "0 1000 error",
        "0 1000 zero",
        "0 1000 thin 253:1 3",
        "0 1000 raid raid1 3 0 region_size 1024 2 - 8:1 - 8:2",
        "0 1000 multipath 0 0 1 1 round-robin 0 2 1 8:16 1 8:32 1",
        "0 1000 cache 253:1 253:2 253:3 128 0 default 0",
        f"0 1000 crypt c {KEY} 0 8:16 0 2 integrity:28:aead sector_size:4096",
        "0 1000 somethingnew 8:16 0",
        "0 1000 linear 8:16",
        "0 1000 linear /dev/sdb 0",
        "0 1000 linear 8:16 -1",
        "0 1000 striped 2 0 8:1 0 8:2 0",
        "0 1000 striped",
        "0 1000 snapshot-origin",
    ],
)
def test_others_end_with_a_reason(line: str) -> None:
    found = dmmap.pieces(line, parse_ranges("10+5"))
    assert isinstance(found, str) and line.split()[2] in found


def test_segments_are_cut_at_their_ends() -> None:
    table = ("0 100 linear 8:1 1000", "100 100 error", "200 100 linear 8:2 0")
    found, stuck = dmmap.down(table, parse_ranges("90+130,290+20"))
    assert found == [
        Piece(90, 10, "8:1", 1090), Piece(200, 20, "8:2", 0), Piece(290, 10, "8:2", 90),
    ]  # fmt: skip
    assert [(why.split(":")[0], part) for why, part in stuck] == [
        ("dm-error", parse_ranges("100+100"))
    ]


def kernel_stripe(sector: int, count: int, chunk: int) -> tuple[int, int]:
    """stripe_map_sector() of drivers/md/dm-stripe.c: (stripe, sector on it)."""
    number, offset = divmod(sector, chunk)
    return number % count, number // count * chunk + offset


@given(
    st.integers(1, 5), st.integers(1, 9), st.integers(0, 200), st.integers(1, 120),
    st.integers(0, 50),
)  # fmt: skip
def test_stripes_sector_by_sector(count: int, chunk: int, at: int, length: int, base: int) -> None:
    legs = " ".join(f"8:{i} {1000 * i}" for i in range(count))
    line = f"{base} 400 striped {count} {chunk} {legs}"
    asked = (Range(start=base + at, length=length),)
    found = dmmap.pieces(line, asked)
    assert isinstance(found, tuple)
    got = {p.start + i: (p.dev, p.low + i) for p in found for i in range(p.length)}
    want = {}
    for sector in range(base + at, min(base + at + length, base + 400)):
        leg, low = kernel_stripe(sector - base, count, chunk)
        want[sector] = (f"8:{leg}", 1000 * leg + low)
    assert got == want


def test_a_whole_striped_giant_is_not_listed() -> None:
    line = f"0 {1 << 40} striped 2 128 8:1 0 8:2 0"
    found = dmmap.pieces(line, (Range(start=0, length=1 << 40),))
    assert isinstance(found, str) and "chunks" in found


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=6),
    st.lists(st.builds(Range, start=st.integers(0, 320), length=st.integers(1, 80)), max_size=5),
)
def test_linear_maps_every_sector_once(lengths: list[int], asked: list[Range]) -> None:
    from nodeagent.model.ranges import intersect, normalise

    table, at = [], 0
    for i, length in enumerate(lengths):
        table.append(f"{at} {length} linear 8:{i} {i * 1000}")
        at += length
    inside = intersect(normalise(asked), (Range(start=0, length=at),))
    found, stuck = dmmap.down(table, inside)
    assert not stuck
    assert sum(p.length for p in found) == total(inside)
    for piece in found:
        assert (
            piece.low - int(piece.dev[2:]) * 1000 + sum(lengths[: int(piece.dev[2:])])
            == piece.start
        )


def test_no_key_stays_in_a_table() -> None:
    crypt = f"0 1000 crypt aes-xts-plain64 {KEY} 0 8:16 4096 1 allow_discards"
    clean = dmmap.redact(crypt)
    assert KEY not in clean and len(clean) == len(crypt)
    assert clean.split()[:4] == crypt.split()[:4] and clean.split()[5:] == crypt.split()[5:]
    assert dmmap.redact(clean) == clean
    keyring = "0 1 crypt aes :32:logon:cryptsetup:uuid-d0 0 8:16 4096"
    assert dmmap.redact(keyring) == keyring
    assert dmmap.redact("0 1 crypt null - 0 8:16 0").split()[4] == "-"
    tags = f"0 1 integrity 8:1 0 32 J 1 internal_hash:hmac(sha256):{KEY}"
    assert KEY not in dmmap.redact(tags) and "hmac(sha256)" in dmmap.redact(tags)
    plain = "0 1000 linear 8:16 2048"
    assert dmmap.redact(plain) == plain

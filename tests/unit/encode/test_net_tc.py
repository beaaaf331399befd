"""Netlink messages for traffic control beside what tc(8) of iproute2 6.1 sent for the same."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import net_attrs as n
from nodeagent.encode import net_filter as nf
from nodeagent.encode import net_link, net_tc
from nodeagent.encode.net_dist import SCALE, table
from nodeagent.encode.net_netem import (
    differences,
    netem_options,
    parse_netem,
    parse_tbf,
    qdisc_options,
    tbf_options,
)
from nodeagent.model.netspec import Flow, parse_remote
from nodeagent.model.steps.net import FULL, NetemQdisc, Slots, TbfQdisc

# What a preloaded sendmsg(2) saw of: tc qdisc add dev lo root handle fa17: ...
NETEM = (
    "c000000024000506d7660d6b000000000000000001000000000017faffffffff000000000a0001006e6574656d000000"
    "9000020084d71700e803000052b81e0505000000295c8f025a6202001000010000000040000000000000000"
    "00c0003009a999919000000800c00040014ae4701000000002c000c008096980000000000002d310100000000"
    "05000000dc050000000000000000000000000000000000000c00080000f2052a0100000014000600ffffffff"
    "140000003000000005000000"
)
"""netem limit 1000 delay 100ms 10ms 25% loss 2% duplicate 1% corrupt 0.5% reorder 10% 50% gap 5
rate 40gbit 20 48 5 slot 10ms 20ms packets 5 bytes 1500"""
GEMODEL = (
    "6400000024000506d7660d6b000000000000000001000000000017faffffffff000000000a0001006e6574656d000000"
    "3400020000000000e8030000000000000000000000000000000000001c00058014000200295c8f029a999919"
    "cdcccc4c37894100"
)
"""netem loss gemodel 1% 10% 70% 0.1%"""
STATE = (
    "6800000024000506d7660d6b000000000000000001000000000017faffffffff000000000a0001006e6574656d000000"
    "3800020000000000e8030000000000000000000000000000000000001c00058018000100295c8f0233333333"
    "7b14ae0714ae4701666666e6"
)
"""netem loss state 1% 20% 3% 90% 0.5%"""
CLSACT = (
    "3000000024000506d7660d6b0000000000000000010000000000fffff1ffffff000000000b000100636c7361637400"
    "00"
)
REDIRECT = (
    "740000002c000506d8660d6b00000000000000000100000000000000f3ffffff000341000b000100666c6f77657200"
    "004400020038000300340001000b0001006d6972726564000024000280200002000000000000000000040000000000"
    "00000000000001000000010000000800160001000000"
)
"""tc filter add dev lo egress pref 65 protocol all flower skip_hw action mirred egress redirect"""
TCP80 = (
    "940000002c000506d8660d6b00000000000000000100000000000000f3ffffff080041000b000100666c6f77657200"
    "0064000200050009000600000008000c000a00000008000d00ff000000060013000050000030000300"
    "2c0001000900010067616374000000001c000280180002000000000000000000000000000000000000000000080016"
    "00010000000600080008000000"
)
"""... protocol ip flower skip_hw ip_proto tcp dst_ip 10.0.0.0/8 dst_port 80 action gact pass"""

ASKED = NetemQdisc(
    limit=1000,
    delay_ns=100_000_000,
    jitter_ns=10_000_000,
    delay_corr=0x40000000,
    loss=85899346,
    duplicate=42949673,
    corrupt=0x0147AE14,
    reorder=0x1999999A,
    reorder_corr=0x80000000,
    gap=5,
    rate=5_000_000_000,
    overhead=20,
    cell_size=48,
    cell_overhead=5,
    slots=Slots(min_ns=10_000_000, max_ns=20_000_000, packets=5, bytes=1500),
)


def sent(text: str) -> n.Message:
    return next(n.messages(bytes.fromhex(text)))


def options(text: str) -> bytes:
    return net_tc.parse(sent(text)).options


def tree(data: bytes) -> dict[int, bytes]:
    return n.attrs(data)


def test_netem_has_the_attributes_that_tc_sends_and_64_bit_times() -> None:
    ours, theirs = netem_options(ASKED), options(NETEM)
    assert ours[:24] == theirs[:24]
    have, want = tree(ours[24:]), tree(theirs[24:])
    assert {k: v for k, v in have.items() if k in want} == want
    assert struct.unpack("=qq", have[10] + have[11]) == (100_000_000, 10_000_000)


@pytest.mark.parametrize(
    ("text", "change"),
    [
        (GEMODEL, {"gilbert": (42949673, 0x1999999A, 0x4CCCCCCD, 4294967)}),
        (STATE, {"states": (42949673, 0x33333333, 128849019, 0x0147AE14, 0xE6666666)}),
    ],
)
def test_loss_models(text: str, change: dict[str, tuple[int, ...]]) -> None:
    asked = NetemQdisc.model_validate({"limit": 1000, **change})
    inner = options(text)[28:]  # behind the nest's header, whose length tc 6.1 gets wrong for GE
    assert tree(netem_options(asked)[24:])[5] == inner


def test_a_whole_qdisc_message() -> None:
    made = net_tc.add_qdisc(1, net_tc.ROOT, net_tc.OUR_HANDLE, "netem", b"")
    theirs = bytes.fromhex(NETEM)
    assert made[4:8] == theirs[4:8]  # type and flags: create, exclusive, acknowledged
    assert made[16:48] == theirs[16:48]
    assert net_tc.add_clsact(1)[16:] == bytes.fromhex(CLSACT)[16:]


def test_filters_as_tc_sends_them() -> None:
    found, ours = net_tc.parse(sent(REDIRECT)), b""
    ours = nf.flower(b"", nf.redirect(1, b"faultctl" + bytes(8)))
    made = net_tc.add_filter(1, "egress", 65, "flower", ours)
    assert made[4:8] == bytes.fromhex(REDIRECT)[4:8]
    assert made[16:48] == bytes.fromhex(REDIRECT)[16:48]
    theirs, mine = nf.actions(found)[0], nf.actions(net_tc.parse(sent(made.hex())))[0]
    assert (mine.kind, mine.options) == (theirs.kind, theirs.options)
    assert mine.redirects_to() == 1
    assert mine.cookie == b"faultctl" + bytes(8)


def test_keys_of_a_flow_as_tc_sends_them() -> None:
    theirs = tree(options(TCP80))
    (key,) = nf.all_keys([parse_remote("10.0.0.0/8:80/tcp")], "egress")
    ours = tree(key)
    assert {k: v for k, v in theirs.items() if k not in (nf.FLOWER_ACT, nf.FLOWER_FLAGS)} == {
        k: v
        for k, v in ours.items()
        if k != 36  # our mask of the port, which tc leaves out
    }
    assert ours[36] == b"\xff\xff"
    (back,) = nf.all_keys([parse_remote("10.0.0.0/8:80/tcp")], "ingress")
    assert set(tree(back)) == {8, 9, 10, 11, 18, 35}  # the source instead


def test_a_flow_without_family_or_protocol_is_all_of_them() -> None:
    assert nf.all_keys([Flow()], "egress") == [b""]
    keys = [tree(key) for key in nf.all_keys([parse_remote("*:53")], "egress")]
    assert sorted((k[8].hex(), k[9][0]) for k in keys) == [
        (eth, protocol) for eth in ("0800", "86dd") for protocol in (6, 17, 132)
    ]
    icmp = [tree(key) for key in nf.all_keys([parse_remote("*/icmp")], "egress")]
    assert [(k[8].hex(), k[9][0]) for k in icmp] == [("0800", 1), ("86dd", 58)]
    assert len(nf.all_keys([parse_remote("10.0.0.1"), parse_remote("10.0.0.1/32")], "egress")) == 1


@given(st.integers(1, 65535), st.integers(1, 65535))
def test_port_masks_cover_a_range_exactly(one: int, other: int) -> None:
    first, last = sorted((one, other))
    blocks = nf.port_blocks((first, last))
    assert len(blocks) <= 30
    covered: list[int] = []
    for value, mask in blocks:
        assert value & ~mask & 0xFFFF == 0
        covered += range(value, value + (0x10000 - mask))
    assert covered == list(range(first, last + 1))


SHARE = st.integers(0, FULL)


@given(
    st.builds(
        NetemQdisc,
        limit=st.integers(1, 0x7FFFFFFF),
        delay_ns=st.integers(0, (1 << 62) - 1),
        jitter_ns=st.integers(0, (1 << 31) - 1),
        delay_corr=SHARE,
        loss=SHARE,
        loss_corr=SHARE,
        duplicate=SHARE,
        duplicate_corr=SHARE,
        corrupt=st.integers(1, FULL),
        corrupt_corr=SHARE,
        reorder=st.integers(1, FULL),
        reorder_corr=SHARE,
        gap=SHARE,
        rate=st.integers(1, (1 << 63) - 1),
        overhead=st.integers(-(1 << 31), (1 << 31) - 1),
        cell_size=SHARE,
        cell_overhead=st.integers(-(1 << 31), (1 << 31) - 1),
        seed=st.integers(0, (1 << 64) - 1),
        gilbert=st.none() | st.tuples(SHARE, SHARE, SHARE, SHARE),
    )
)
def test_netem_reads_back_what_it_wrote(asked: NetemQdisc) -> None:
    assert parse_netem(netem_options(asked)) == asked
    assert differences(asked, "netem", netem_options(asked)) == []


@pytest.mark.parametrize("field", ["delay_ns", "loss", "rate", "limit", "seed", "gap"])
def test_one_parameter_that_is_not_as_asked_is_told(field: str) -> None:
    asked = ASKED.model_copy(update={"seed": 5})
    shown = asked.model_copy(update={field: getattr(asked, field) + 1})
    (wrong,) = differences(asked, "netem", netem_options(shown))
    assert field in wrong
    assert differences(asked, "fq_codel", b"") == ["qdisc fq_codel instead of netem"]


@given(st.integers(1, (1 << 63) - 1))
def test_rates_above_32_bits_are_kept(rate: int) -> None:
    asked = TbfQdisc(rate=rate, burst=10_000, limit=20_000)
    shown = parse_tbf(tbf_options(asked))
    assert (shown.rate, shown.limit) == (rate, 20_000)
    attrs = tree(qdisc_options(asked))
    assert (net_tc.n.number(attrs[4]) if rate > 0xFFFFFFFF else rate) == rate


@pytest.mark.parametrize("name", ["normal", "pareto", "paretonormal"])
def test_a_distribution_is_a_table_of_growing_deviations_around_0(name: str) -> None:
    values = table(name)
    assert list(values) == sorted(values)
    assert len(values) <= 16384
    assert abs(sum(values) / len(values)) < 0.03 * SCALE
    assert max(abs(v) for v in values) <= 32767
    options_ = netem_options(ASKED.model_copy(update={"distribution": name}))
    assert len(tree(options_[24:])[2]) == 2 * len(values)


def test_the_normal_distribution_is_one() -> None:
    values = table("normal")
    within = sum(abs(v) <= SCALE for v in values) / len(values)
    assert abs(within - 0.6827) < 0.001


@pytest.mark.parametrize("index", [0, -1])
def test_index_0_reaches_no_message_that_changes_anything(index: int) -> None:
    with pytest.raises(ValueError, match="interface index"):
        net_link.delete(index)
    with pytest.raises(ValueError, match="interface index"):
        net_tc.delete_clsact(index)
    with pytest.raises(ValueError, match="interface index"):
        net_tc.delete_filters(index, "egress", 1, "flower")
    with pytest.raises(ValueError, match="interface index"):
        nf.redirect(index, b"")
    with pytest.raises(ValueError, match="priority"):
        net_tc.delete_filters(1, "egress", 0, "flower")


@pytest.mark.parametrize("length", [3, 15, 200])
def test_messages_that_are_cut_short_are_refused(length: int) -> None:
    data = bytes.fromhex(NETEM)[:length]
    if length < 16:
        assert list(n.messages(data)) == []
        return
    with pytest.raises(ValueError, match="netlink message"):
        list(n.messages(data[:48]))
    with pytest.raises(ValueError, match="cut short"):
        n.pairs(struct.pack("=HH", 40, 1) + b"abc")


def test_a_random_drop_is_four_instructions() -> None:
    half = n.attrs(nf.random_match(1 << 31, b""))
    ops = [struct.unpack("=HBBI", half[nf.BPF_OPS][i : i + 8]) for i in range(0, 32, 8)]
    assert ops == [
        (0x20, 0, 0, 0xFFFFF038),
        (0x25, 1, 0, (1 << 31) - 1),
        (0x06, 0, 0, FULL),
        (0x06, 0, 0, 0),
    ]
    always = n.attrs(nf.random_match(FULL, b""))[nf.BPF_OPS]
    assert struct.unpack("=HBBI", always[8:16])[3] == FULL


def test_marks_tell_whose_filter_it_is() -> None:
    one, other = nf.mark("one"), nf.mark("other")
    assert len(one) == 16
    assert one != other
    made = net_tc.add_filter(1, "egress", 65, "flower", nf.flower(b"", nf.verdict(0, one)))
    found = net_tc.parse(sent(made.hex()))
    assert nf.owner(found) == one
    assert nf.owner(net_tc.parse(sent(TCP80))) == b""
    assert "cookie=" + one.hex() in nf.stable(found)

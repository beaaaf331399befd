"""What the kernel shows of a token bucket, beside what was asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.encode import net_attrs as n
from nodeagent.encode.net_netem import _RATESPEC, _TBF, differences
from nodeagent.model.steps.net import TbfQdisc


def shown(rate: int, ticks: int, limit: int) -> bytes:
    """TCA_TBF_PARMS as tbf_dump makes it: the burst in ticks of 64 ns, 32 bits of them."""
    spec = _RATESPEC.pack(0, 1, 0, 0, 0, min(rate, 0xFFFFFFFF))
    options = n.attr(1, _TBF.pack(spec, bytes(12), limit, ticks & 0xFFFFFFFF, 0))
    return options + (n.u64(4, rate) if rate > 0xFFFFFFFF else b"")


@given(st.integers(1, 10**12), st.integers(1514, 0xFFFFFFFF))
def test_a_bucket_of_any_rate_and_burst_reads_back_as_asked(rate: int, burst: int) -> None:
    asked = TbfQdisc(rate=rate, burst=burst, limit=burst)
    assert differences(asked, "tbf", shown(rate, burst * 10**9 // rate // 64, burst)) == []


@pytest.mark.parametrize(("rate", "burst"), [(1, 3028), (1000, 1 << 20), (125_000, 3028)])
def test_another_burst_is_told_at_low_rates_too(rate: int, burst: int) -> None:
    asked = TbfQdisc(rate=rate, burst=burst, limit=10_000_000)
    (wrong,) = differences(asked, "tbf", shown(rate, (burst - 9) * 10**9 // rate // 64, 10_000_000))
    assert "burst" in wrong

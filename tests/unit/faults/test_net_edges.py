"""Edges of network specs and plans: large packets, models of losses, names of many addresses."""

from __future__ import annotations

from typing import Any

import pytest

from nodeagent.faults.bandwidth import Spec as Bandwidth
from nodeagent.model.errors import Refused
from nodeagent.model.steps.net import IfbShaper, TbfQdisc
from tests.unit.faults.test_net_plan import ETH0, LO, plan

JUMBO = ETH0.model_copy(update={"name": "eth1", "ifindex": 3, "mtu": 9001})


def bucket(spec: dict[str, Any], *interfaces: Any) -> TbfQdisc:
    made = plan("bandwidth", {"rate": "1mbit", **spec}, interfaces=(LO, *interfaces))
    (qdisc,) = {s.qdisc for s in made.steps if isinstance(s, IfbShaper)}
    assert isinstance(qdisc, TbfQdisc)
    return qdisc


@pytest.mark.parametrize("rate", ["8bit", "1mbit", "10mbit", "10gbit"])
def test_a_bucket_holds_the_largest_packet_of_its_interfaces(rate: str) -> None:
    """sch_tbf drops each packet that is larger than its burst, whatever the rate."""
    made = bucket({"rate": rate}, ETH0, JUMBO)
    assert made.burst >= 9001 + 14
    assert made.limit >= made.burst + 9001 + 14
    assert bucket({"rate": rate, "interface": "lo"}, JUMBO).burst >= 1514
    assert bucket({}, ETH0) == Bandwidth.model_validate({"rate": "1mbit"}).bucket()


def test_a_burst_that_lets_no_full_packet_through_is_refused() -> None:
    with pytest.raises(Refused, match="eth1 has packets of 9015 bytes") as caught:
        bucket({"burst": "2KiB"}, ETH0, JUMBO)
    assert "--burst 9015B" in caught.value.hint
    assert bucket({"burst": "2KiB"}, ETH0).burst == 2048
    assert bucket({"burst": "2KiB", "interface": "eth0"}, ETH0, JUMBO).burst == 2048

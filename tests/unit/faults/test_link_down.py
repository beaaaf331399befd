"""Plans of link-down as data."""

from __future__ import annotations

import pytest
from test_net_plan import ETH0, LO, plan

from nodeagent.faults import kind_named
from nodeagent.model.errors import Refused
from nodeagent.model.kind import Measured
from nodeagent.model.steps.link import LinkDown

UP = ETH0.model_copy(update={"uplink": True})


def test_all_that_are_up_but_lo() -> None:
    eth1 = ETH0.model_copy(update={"name": "eth1", "ifindex": 3})
    off = ETH0.model_copy(update={"name": "eth2", "ifindex": 4, "up": False})
    made = plan("link-down", {}, interfaces=(LO, ETH0, eth1, off))
    assert [s.ifname for s in made.steps if isinstance(s, LinkDown)] == ["eth0", "eth1"]
    assert len({s.key() for s in made.steps}) == 2
    assert made.steps[0].summary() == "ip link set eth0 down"
    with pytest.raises(Refused, match="eth2 is down already"):
        plan("link-down", {"interface": "eth2"}, interfaces=(LO, off))


@pytest.mark.parametrize("names", [None, "eth0,eth0.5,eth0.5.6,a7", "eth0.5.6,a7,eth0,eth0.5"])
def test_a_vlan_goes_down_before_and_so_up_after_what_it_is_on(names: str | None) -> None:
    """Steps are taken back from the last one on; ENETDOWN for the others (vlan_dev_open)."""
    vlans = [
        ETH0.model_copy(update={"name": name, "ifindex": index, "kind": "vlan"})
        for index, name in ((3, "eth0.5"), (4, "eth0.5.6"), (9, "a7"))
    ]
    made = plan("link-down", {"interface": names}, interfaces=(LO, ETH0, *vlans))
    order = [s.ifname for s in made.steps if isinstance(s, LinkDown)]
    assert order == ["a7", "eth0.5.6", "eth0.5", "eth0"]


def test_the_node_s_own_network_and_its_uplink_have_to_be_named() -> None:
    with pytest.raises(Refused, match="node's own network"):
        plan("link-down", {"interface": "eth0"}, interfaces=(LO, UP), host=True)
    asked = {"interface": "eth0", "host_network": True}
    with pytest.raises(Refused, match="default route goes over eth0") as caught:
        plan("link-down", asked, interfaces=(LO, UP), host=True)
    assert "--i-know uplink" in caught.value.hint
    known = plan("link-down", asked, interfaces=(LO, UP), host=True, acknowledge=("uplink",))
    assert known.guards == ("uplink",)
    assert plan("link-down", asked, interfaces=(LO, ETH0), host=True).guards == ()
    assert plan("link-down", {}, interfaces=(LO, UP)).guards == ()  # a workload's own way out


def test_hits_are_packets_without_a_route() -> None:
    kind = kind_named("link-down")
    (step,) = plan("link-down", {}).steps
    found = kind.evidence(kind.spec(), (Measured(step, {"no_route": 3, "up": False}),))
    assert (found.hits, found.biting) == (3, True)
    up = kind.evidence(kind.spec(), (Measured(step, {"no_route": 0, "up": True}),))
    assert any("up again" in s for s in up.statements)
    assert not kind.evidence(kind.spec(), (Measured(step, {}),)).counted

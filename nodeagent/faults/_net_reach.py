"""Whether packets to the ends of a spec can be on a target's interfaces at all."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_interface, ip_network
from typing import TYPE_CHECKING

from nodeagent.faults._net_names import addressed
from nodeagent.model.errors import Refused
from nodeagent.model.net import NetBinding, NetInterface
from nodeagent.model.netspec import Flow, Network

if TYPE_CHECKING:
    from nodeagent.faults._net import NetSpec

ON_LINK = (ip_network("fe80::/10"), ip_network("ff00::/8"))
"""What an interface with a link-local address alone can send to."""


def check_reach(spec: NetSpec, binding: NetBinding, chosen: Sequence[NetInterface]) -> None:
    """Raises Refused for an end that no packet can go to (CASES 45, 51)."""
    for group in _groups(spec, binding):
        _check_families(group, binding, chosen)
        if "egress" in spec.hooks:
            _check_own_addresses(group, binding, chosen)


def peer_flows(binding: NetBinding) -> list[Flow]:
    """The other workload's addresses."""
    return [Flow(remote=str(ip_network(address))) for address in binding.peers]


def _groups(spec: NetSpec, binding: NetBinding) -> list[list[Flow]]:
    """Each network for itself; a name or another workload may have addresses in vain."""
    found = [addressed([flow], binding) for flow in spec.to]
    peers = peer_flows(binding)
    return [*found, peers] if peers else found


def _check_families(
    group: Sequence[Flow], binding: NetBinding, chosen: Sequence[NetInterface]
) -> None:
    """A network of a family that no interface speaks can never match."""
    for flow in group:
        network = flow.network()
        if network is None or _is_spoken(network, binding, chosen):
            return
    names = ", ".join(i.name for i in chosen)
    raise Refused(
        f"no packet can ever go to {group[0].text()}",
        f"{names} has no IPv{ip_network(str(group[0].remote)).version} address",
    )


def _is_spoken(network: Network, binding: NetBinding, chosen: Sequence[NetInterface]) -> bool:
    own = _addresses(chosen)
    lasting = [address for address in own if not _is_on_link(address)]
    if not lasting or network.version in {address.version for address in lasting}:
        return True  # a port of a bridge has no address for what goes over it
    if network.version == 4 or len(lasting) == len(own):
        return False
    if any(network.overlaps(place) for place in ON_LINK):
        return True
    everywhere = _addresses(binding.interfaces)  # its source may be on another one, such as lo
    return any(a.version == 6 and not (a.is_loopback or _is_on_link(a)) for a in everywhere)


def _addresses(interfaces: Sequence[NetInterface]) -> list[IPv4Address | IPv6Address]:
    return [ip_interface(address).ip for i in interfaces for address in i.addresses]


def _is_on_link(address: IPv4Address | IPv6Address) -> bool:
    """IPv6's own, that every interface has; what has no other may still carry either family."""
    return address.version == 6 and address.is_link_local


def _check_own_addresses(
    group: Sequence[Flow], binding: NetBinding, chosen: Sequence[NetInterface]
) -> None:
    """Packets to the namespace's own addresses never leave by its interfaces."""
    own = {str(address) for address in _addresses(binding.interfaces)}
    if any(i.loopback for i in chosen):
        return
    for flow in group:
        network = flow.network()
        if network is None or network.num_addresses != 1 or str(network[0]) not in own:
            return
    raise Refused(
        f"no packet can ever leave to {group[0].text()}",
        "it is an address of the target itself: --to names the far end",
        "to hit its server's answers use --local-ports, for its own traffic --interface lo",
    )

"""The network part of a node's fingerprint: links, qdiscs, classes and filters of namespaces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodeagent.encode import net_filter as nf
from nodeagent.encode import net_link, net_route, net_tc
from nodeagent.netlink import Netlink
from nodeagent.netns import PLACES, open_netlink


def network() -> dict[str, list[str]]:
    """Of the own namespace and of each that has a name, a line for each object, sorted."""
    found = {}
    for name, path in places().items():
        try:
            with open_netlink(path) as link:
                found[name] = lines(link)
        except OSError:
            continue  # no namespace, or gone meanwhile
    return found


def places() -> dict[str, str]:
    """Name -> path: the own namespace as `self`, and each that has a name."""
    found = {"self": "/proc/self/ns/net"}
    return found | {
        str(p): str(p) for folder in PLACES if folder.is_dir() for p in folder.iterdir()
    }


def lines(link: Netlink) -> list[str]:
    """Everything that network faults could touch, without counters and indexes."""
    devices = link.dump(net_link.dump(), net_link.parse)
    names = {d.index: d.name for d in devices}
    found = [
        f"link {d.name} {d.kind or '-'} {'up' if d.up else 'down'} mtu {d.mtu} "
        f"txqlen {d.txqlen} queues {d.tx_queues} {d.alias}".rstrip()
        for d in devices
    ]
    qdiscs = link.dump(net_tc.dump_qdiscs(), net_tc.parse)
    found += [f"qdisc {names.get(q.ifindex)} {_qdisc(q)}" for q in qdiscs]
    for q in qdiscs:
        name = names.get(q.ifindex)
        parents = [*net_tc.HOOKS.values()] if q.parent == net_tc.CLSACT else [q.handle]
        for parent in parents if q.handle else []:
            filters = _dumped(link, net_tc.dump_filters(q.ifindex, parent), net_tc.parse)
            found += [f"filter {name} {nf.stable(f)}" for f in filters if f.options]
    for index, name in names.items():
        classes = _dumped(link, net_tc.dump_classes(index), net_tc.parse)
        found += [f"class {name} {c.describe()}" for c in classes]
    return sorted([*found, *_addressing(link, names)])


def _addressing(link: Netlink, names: dict[int, str]) -> list[str]:
    """Addresses, routes and fixed neighbours that somebody has set."""
    found = link.dump(net_link.dump_addresses(), net_route.parse_address)
    for family in (net_route.AF_INET, net_route.AF_INET6):
        found += _dumped(link, net_route.dump_routes(family), net_route.parse_route)
        for proxies in (False, True):
            request = net_route.dump_neighbours(family, proxies)
            found += _dumped(link, request, net_route.parse_neighbour)
    return [entry.canonical(names) for entry in found if net_route.is_set_by_hand(entry)]


def _qdisc(found: net_tc.TcObject) -> str:
    """Its tcm_info counts references; a netem without a seed of its own shows a random one."""
    if found.kind != "netem":
        return replace(found, info=0).describe()
    return f"netem {found.handle:x} parent {found.parent:x} options {found.options[:24].hex()}"


def _dumped(link: Netlink, request: bytes, parse: Callable[..., Any]) -> list[Any]:
    """A dump; an `ingress` qdisc has no egress hook, a classless one no classes."""
    try:
        return link.dump(request, parse)
    except OSError:
        return []


def main() -> None:
    """Print it, a namespace after the other."""
    for name, found in sorted(network().items()):
        print(Path(name), *found, sep="\n  ")


if __name__ == "__main__":
    main()

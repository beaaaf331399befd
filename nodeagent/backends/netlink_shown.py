"""What the kernel shows of an interface's clsact and its filters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nodeagent.backends.netlink_ifb import links_of
from nodeagent.encode import net_filter as nf
from nodeagent.encode import net_link
from nodeagent.encode import net_tc as tc
from nodeagent.netlink import Netlink


@dataclass(frozen=True)
class Shown:
    """What an interface has: its clsact or ingress qdisc, and the filters of both hooks."""

    link: net_link.Link
    qdisc: tc.TcObject | None
    filters: dict[str, list[tc.TcObject]]

    def with_mark(self, hook: str, mark: bytes) -> list[tc.TcObject]:
        return [f for f in self.filters[hook] if mark in f.options and nf.owner(f) == mark]

    def place(self, hook: str) -> str:
        """Where to add and delete, so that others' filters are shown as before."""
        plain = any(f.parent == tc.CLSACT_HANDLE for f in self.filters[hook])
        return tc.PLAIN_INGRESS if plain else hook

    @property
    def empty_clsact(self) -> bool:
        """As ours is when our filters have gone; an `ingress` qdisc is never ours."""
        is_clsact = self.qdisc is not None and self.qdisc.kind == "clsact"
        return is_clsact and not any(self.filters.values())


def show(link: Netlink, ifindex: int) -> Shown | None:
    """None where there is no such interface (any more)."""
    device = next((found for found in links_of(link) if found.index == ifindex), None)
    if device is None:
        return None
    here = [
        q
        for q in link.dump(tc.dump_qdiscs(), tc.parse)
        if q.ifindex == ifindex and q.parent == tc.CLSACT
    ]
    hooks = tc.HOOKS if here and here[0].kind == "clsact" else ("ingress",) if here else ()
    found = {hook: filters_of(link, ifindex, hook) for hook in hooks}
    return Shown(device, here[0] if here else None, {"ingress": [], "egress": []} | found)


def filters_of(link: Netlink, ifindex: int, hook: str) -> list[tc.TcObject]:
    """Filters of a hook, without the headers of their priorities."""
    found = link.dump(tc.dump_filters(ifindex, tc.HOOKS[hook]), tc.parse)
    return [f for f in found if f.options]


def total(filters: Sequence[tc.TcObject]) -> dict[str, int]:
    """Sums over the actions of some filters."""
    found = {"packets": 0, "bytes": 0}
    for one in filters:
        for action in nf.actions(one):
            for name in found:
                found[name] += action.counters.get(name, 0)
    return found

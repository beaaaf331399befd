"""Links that are down, and all that the kernel drops with one: brought back as it was.

A link that goes down loses its routes, fixed neighbours and IPv6 addresses (fib_disable_ip,
neigh_ifdown, addrconf_ifdown), and VLANs on it go down as well. All are dumped before, and
what is missing is added when the link is up again. What the kernel makes by itself (its local
routes, what routers announce) is left to it.
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Runtime
from nodeagent.backends.netlink_ifb import gone, links_of
from nodeagent.clock import boottime_ns
from nodeagent.crashpoint import crashpoint
from nodeagent.encode import net_link
from nodeagent.encode import net_route as r
from nodeagent.encode.net_link import Link
from nodeagent.model.errors import BackendError, ForeignState, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.link import LinkDown
from nodeagent.netlink import Netlink
from nodeagent.netns import entered, within

FAMILIES = (r.AF_INET, r.AF_INET6)
MOST = 20_000
"""Entries that fit into the journal, and are back within seconds."""
ROUNDS = 8
"""A route may need another one first: so long as a round adds something, there is another."""


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {LinkDown: LinkDownBackend()}


class LinkDownBackend:
    """Down, and up again with everything that was there."""

    def observe(self, fault_id: str, step: LinkDown, peers: Sequence[Peer]) -> Prior:
        """Flags, addresses, routes and fixed neighbours. Raises Refused."""
        what = f"{step.ifname} cannot be taken down"
        with entered(step.netns) as link:
            if link is None:
                raise gone(step.netns)
            links = links_of(link)
            mine = next((found for found in links if found.index == step.ifindex), None)
            if mine is None:
                raise Refused(what, "it is gone", "plan anew")
            if not mine.up:
                raise Refused(what, "it is down already", "name one that is up: --interface")
            _refuse_nexthops(link, what, step.ifindex)
            stack = [mine, *_stacked(links, step.ifindex)]
            entries = _entries(link, {found.index for found in stack})
        if len(entries) > MOST:
            raise Refused(what, f"it has {len(entries)} routes and neighbours, {MOST} at most")
        return {
            "links": [[found.index, found.up] for found in stack],
            "entries": [[e.sort, e.body.hex()] for e in entries],
            "at_ns": boottime_ns(),
            "no_route": within(step.netns, out_no_routes) or 0,
        }

    def status(self, step: LinkDown, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS while it is down, or up without something that it had."""
        with entered(step.netns) as link:
            if link is None:
                return Status.GONE
            links = {found.index: found for found in links_of(link)}
            if step.ifindex not in links:
                return Status.GONE
            if not links[step.ifindex].up:
                return Status.OURS
            missing = _missing(link, prior, set(links))
            if not missing:
                flags = (links[i].up == up for i, up in prior["links"] if i in links)
                return Status.PRIOR if all(flags) else Status.OURS
            return Status.FOREIGN if _replaced(link, missing) else Status.OURS

    def apply(self, fault_id: str, step: LinkDown, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Down. Raises OSError."""
        with entered(step.netns) as link:
            if link is None:
                raise gone(step.netns)
            link.request(net_link.set_down(step.ifindex))
            crashpoint("net:link-down")
        return {}

    def undo(self, fault_id: str, step: LinkDown, prior: Prior, peers: Sequence[Peer]) -> None:
        """Up, then what is missing. Raises ForeignState, BackendError, OSError."""
        with entered(step.netns) as link:
            if link is None:
                return
            links = {found.index for found in links_of(link)}
            for index, up in prior["links"]:
                if index not in links:
                    continue
                change = net_link.set_up if up else net_link.set_down
                link.request(change(index))  # VLANs went up with what they are on
                crashpoint("net:link-up")
            _remove_unasked(link, prior, links)
            _bring_back(link, step, prior, links)

    def measure(self, fault_id: str, step: LinkDown, prior: Prior) -> dict[str, Any]:
        """Packets of the namespace that found no route since, and whether it is down now."""
        now = within(step.netns, out_no_routes)
        with entered(step.netns) as link:
            mine = [] if link is None else [x for x in links_of(link) if x.index == step.ifindex]
        if now is None or not mine:
            return {}
        return {"no_route": now - prior["no_route"], "up": mine[0].up}


# --- before -------------------------------------------------------------------------


def _refuse_nexthops(link: Netlink, what: str, ifindex: int) -> None:
    """Nexthop objects go with the link, and what refers to them in other places too."""
    try:
        found = link.dump(r.dump_nexthops(), r.nexthop_interface)
    except OSError:
        return  # Linux before 5.3
    if ifindex in found:
        raise Refused(
            what,
            "nexthop objects use it, and the kernel drops them and all routes by them",
            "see: ip nexthop",
        )


def _stacked(links: Sequence[Link], below: int) -> Iterator[Link]:
    """VLANs on a link, and those on them: the kernel takes them down and up with it."""
    for found in links:
        if found.kind == "vlan" and found.below == below:
            yield found
            yield from _stacked(links, found.index)


def _entries(link: Netlink, indexes: set[int]) -> list[r.Entry]:
    """What of some interfaces the kernel does not make again by itself."""
    found = link.dump(net_link.dump_addresses(), r.parse_address)
    found += _routes(link)
    for family in FAMILIES:
        for proxies in (False, True):
            with suppress(OSError):  # a kernel without IPv6
                found += link.dump(r.dump_neighbours(family, proxies), r.parse_neighbour)
    return [e for e in found if r.interfaces(e) & indexes and r.is_set_by_hand(e)]


def _routes(link: Netlink) -> list[r.Entry]:
    found: list[r.Entry] = []
    for family in FAMILIES:
        with suppress(OSError):  # a kernel without IPv6
            found += link.dump(r.dump_routes(family), r.parse_route)
    return found


def out_no_routes() -> int:
    """Packets that found no route, both families, of this thread's namespace (snmp_counter)."""
    total = 0
    for name in ("snmp", "snmp6"):
        try:
            lines = Path(f"/proc/thread-self/net/{name}").read_text("ascii").splitlines()
        except OSError:
            continue
        for above, line in itertools.pairwise(lines):
            if line.startswith("Ip: ") and above.startswith("Ip: Forwarding"):
                total += int(line.split()[above.split().index("OutNoRoutes")])
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Ip6OutNoRoutes"))
    return total


# --- back ---------------------------------------------------------------------------


def _had(prior: Prior) -> list[r.Entry]:
    return [r.Entry(sort, bytes.fromhex(body)) for sort, body in prior["entries"]]


def _elapsed_s(prior: Prior) -> int:
    return (boottime_ns() - int(prior["at_ns"])) // 1_000_000_000


def _wanted(prior: Prior, links: set[int]) -> list[r.Entry]:
    """What was there and can be there again: not of interfaces that are gone, not run out."""
    elapsed = _elapsed_s(prior)
    return [
        e
        for e in _had(prior)
        if r.interfaces(e) <= links and (e.sort != "address" or r.lives_on(e, elapsed))
    ]


def _missing(link: Netlink, prior: Prior, links: set[int]) -> list[r.Entry]:
    wanted = _wanted(prior, links)
    there = {e.canonical() for e in _entries(link, {i for i, _ in prior["links"]})}
    return [e for e in wanted if e.canonical() not in there]


def _replaced(link: Netlink, missing: Sequence[r.Entry]) -> list[r.Entry]:
    """Missing routes whose place somebody else's route has now."""
    places = {r.route_place(e) for e in _routes(link) if r.is_set_by_hand(e)}
    return [e for e in missing if e.sort == "route" and r.route_place(e) in places]


def _remove_unasked(link: Netlink, prior: Prior, links: set[int]) -> None:
    """What the kernel makes when a link comes up, and somebody had removed before."""
    before = _had(prior)
    had = {e.canonical() for e in before}
    had_link_local = any(e.sort == "address" and r.is_made_by_kernel(e) for e in before)
    for entry in _entries(link, {i for i, up in prior["links"] if i in links and up}):
        if entry.canonical() in had or not r.is_made_by_kernel(entry):
            continue
        if entry.sort == "address" and not had_link_local:
            continue  # one that is still being made when the link went down
        with suppress(OSError):  # gone already
            link.request(r.remove(entry))
            crashpoint("net:unasked")


def _bring_back(link: Netlink, step: LinkDown, prior: Prior, links: set[int]) -> None:
    """Addresses, then routes and neighbours. Raises ForeignState, BackendError."""
    last = ""
    for _ in range(ROUNDS):
        missing = _missing(link, prior, links)
        if not missing:
            return
        elapsed = _elapsed_s(prior)
        missing.sort(key=lambda e: e.sort != "address")  # a route may need one as its source
        addresses = sum(e.sort == "address" for e in missing)
        # The last one added is shown, and chosen, first (ipv6_link_dev_addr).
        ordered = [*reversed(missing[:addresses]), *missing[addresses:]]
        refused = [words for e in ordered for words in _add(link, e, elapsed)]
        if len(refused) == len(missing):
            last = refused[0]
            break
    missing = _missing(link, prior, links)
    if _replaced(link, missing):
        raise ForeignState(
            f"{step.ifname} is up, but a route of it was not put back",
            "somebody has made another one in its place",
            "look: ip route",
        )
    if missing:
        raise BackendError(f"{len(missing)} things of {step.ifname} are not back", last)


def _add(link: Netlink, entry: r.Entry, elapsed: int) -> list[str]:
    """Words of what was refused; that it is there already is fine."""
    for message in r.add(entry, elapsed):
        try:
            link.request(message)
            crashpoint("net:back")
        except OSError as exc:
            if exc.errno != errno.EEXIST:
                return [f"{entry.sort}: {exc.strerror}"]
    return []

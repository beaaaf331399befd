"""Filters of ours in an interface's clsact, beside whatever else is there.

The interface's qdisc tree is not touched; only a clsact is added where there is none, and
goes again with the last filter. Our filters have priorities of their own, before all that
are there, and every action carries the fault's mark as its cookie.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Residue, Runtime
from nodeagent.backends.name_follower import NameFollower, addresses_now
from nodeagent.backends.netlink_ifb import gone, links_of
from nodeagent.backends.netlink_make import build, extend, read_back
from nodeagent.backends.netlink_room import (
    free_prio,
    keep_txqlen,
    refuse_occupied,
    refuse_passed_by,
)
from nodeagent.backends.netlink_shown import Shown, show, total
from nodeagent.backends.tc_bpf import Program, load
from nodeagent.crashpoint import crashpoint
from nodeagent.encode import net_filter as nf
from nodeagent.encode import net_tc as tc
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.net import Dns, TcFilters
from nodeagent.netlink import Netlink
from nodeagent.netns import all_namespaces, entered, open_netlink

_NOT_THERE = (2, 22)  # ENOENT, EINVAL: no such filter, no clsact any more


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {TcFilters: FilterBackend()}


class FilterBackend:
    """Add, read back and remove one fault's filters."""

    def __init__(self) -> None:
        self._counting: dict[tuple[str, str, str], Program] = {}
        """Programs that count by themselves what they did; only the agent that made them knows."""
        self._followers: dict[tuple[str, str, str], NameFollower] = {}

    def observe(self, fault_id: str, step: TcFilters, peers: Sequence[Peer]) -> Prior:
        """What is there, and the priority that ours get. Raises Refused."""
        with entered(step.netns) as link:
            shown = None if link is None else show(link, step.ifindex)
        if shown is None:
            raise gone(step.netns)
        priors = [p.prior for p in peers if isinstance(p.step, TcFilters)]
        refuse_occupied(shown, step)
        refuse_passed_by(step)
        return {
            # One that is gone by now was somebody else's; what we add in its place is ours.
            "clsact": shown.qdisc is not None and all(prior["clsact"] for prior in priors),
            "prio": free_prio(shown, step),
            "txqlen": priors[0]["txqlen"] if priors else shown.link.txqlen,
        }

    def status(self, step: TcFilters, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS with any filter of ours, or with an empty clsact that was not there before."""
        found = self._shown_status(step, prior)
        if found is not Status.OURS:
            self._forget(step)  # nobody undoes what is not there
        return found

    def _forget(self, step: TcFilters) -> None:
        program = self._counting.pop(_name(step), None)
        if program is not None:
            program.close()
        follower = self._followers.pop(_name(step), None)
        if follower is not None:
            follower.stop()

    @staticmethod
    def _shown_status(step: TcFilters, prior: Prior) -> Status:
        with entered(step.netns) as link:
            shown = None if link is None else show(link, step.ifindex)
        if shown is None:
            return Status.GONE
        if shown.with_mark(step.hook, nf.mark(step.fault)):
            return Status.OURS
        left = not prior["clsact"] and shown.empty_clsact
        return Status.OURS if left else Status.PRIOR

    def apply(self, fault_id: str, step: TcFilters, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Add what is missing and read it back. Raises BackendError, OSError."""
        with ExitStack() as stack:
            program = load(step)
            if program is not None:
                stack.callback(program.close)
            made = self._add(step, prior, program)
            if program is not None and isinstance(step.act, Dns):
                stack.pop_all()
                self._counting[_name(step)] = program
        if step.names and step.refresh_s:
            self._follow(step, prior)
        return {"filters": made}

    def _follow(self, step: TcFilters, prior: Prior) -> None:
        follower = NameFollower(
            step, lambda: addresses_now(step), lambda flows: extend(step, prior, flows)
        )
        self._followers[_name(step)] = follower
        follower.start()

    @staticmethod
    def _add(step: TcFilters, prior: Prior, program: Program | None) -> int:
        with entered(step.netns) as link:
            shown = None if link is None else show(link, step.ifindex)
            if link is None or shown is None:
                raise gone(step.netns)
            wanted = build(link, step, prior["prio"], shown.place(step.hook), program)
            if shown.qdisc is None:
                link.request(tc.add_clsact(step.ifindex))
                crashpoint("net:clsact")
                keep_txqlen(link, step.ifindex, prior)
            else:
                remove(link, shown, step)  # what an apply that was cut short has left
            failures = link.batch(wanted)
            crashpoint("net:filters")
            if failures:
                raise failures[0].error()
            read_back(link, step, prior["prio"], len(wanted))
        return len(wanted)

    def undo(self, fault_id: str, step: TcFilters, prior: Prior, peers: Sequence[Peer]) -> None:
        """Remove our filters, and the clsact if it was not there and nobody uses it."""
        self._forget(step)
        with entered(step.netns) as link:
            shown = None if link is None else show(link, step.ifindex)
            if link is None or shown is None:
                return
            remove(link, shown, step)
            crashpoint("net:filters-gone")
            left = show(link, step.ifindex)
            if left is None or prior["clsact"] or not left.empty_clsact:
                return
            keep_txqlen(link, step.ifindex, prior, left.link.txqlen)
            crashpoint("net:txqlen")
            send(link, tc.delete_clsact(step.ifindex))

    def measure(self, fault_id: str, step: TcFilters, prior: Prior) -> dict[str, Any]:
        """How many packets and bytes our filters matched, and how many they left alone."""
        with entered(step.netns) as link:
            shown = None if link is None else show(link, step.ifindex)
        if shown is None:
            return {}
        mine = shown.with_mark(step.hook, nf.mark(step.fault))
        acting = [f for f in mine if f.prio == prior["prio"] + 1]
        passed = [f for f in mine if f.prio == prior["prio"]]
        dropped = [f for f in acting if f.kind == "bpf"]
        program = self._counting.get(_name(step))
        follower = self._followers.get(_name(step))
        return {
            "matched": total([f for f in acting if f.kind == "flower"]),
            "excluded": total(passed),
            "dropped": total(dropped) if dropped else {},
            "answered": {"packets": program.hits()} if program is not None else {},
            "addresses": follower.added if follower is not None else [],
            "unresolved": follower.failed if follower is not None else "",
        }


def _name(step: TcFilters) -> tuple[str, str, str]:
    return step.fault, step.key(), step.hook


# --- taking away ------------------------------------------------------------------


def remove(link: Netlink, shown: Shown, step: TcFilters) -> None:
    """Our filters and no others; whole priorities at once where they are all ours."""
    mine = shown.with_mark(step.hook, nf.mark(step.fault))
    place = shown.place(step.hook)
    for prio, chain, kind in dict.fromkeys((f.prio, f.chain, f.kind) for f in mine):
        there = [f for f in shown.filters[step.hook] if (f.prio, f.chain) == (prio, chain)]
        if all(f in mine for f in there):
            send(link, tc.delete_filters(step.ifindex, place, prio, kind, chain))
            continue
        for one in there:
            if one in mine:
                send(link, tc.delete_filter(one, place))


def send(link: Netlink, message: bytes) -> None:
    """A deletion; that it is gone already is fine. Raises OSError."""
    try:
        link.request(message)
    except OSError as exc:
        if exc.errno not in _NOT_THERE:
            raise


def residue(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
    """Filters with our mark that no fault claims, in all net namespaces of the node."""
    known = {nf.mark(step.fault) for step in claimed if isinstance(step, TcFilters)}
    found: list[Residue] = []
    for path in all_namespaces():
        try:
            with open_netlink(path) as link:
                for device in links_of(link):
                    found += _unclaimed(link, path, device.index, device.name, known)
        except OSError:
            continue  # the namespace ended meanwhile
    return found


def _unclaimed(
    link: Netlink, path: str, ifindex: int, name: str, known: set[bytes]
) -> list[Residue]:
    shown = show(link, ifindex)
    if shown is None:
        return []
    stray = [
        (hook, f)
        for hook, filters in shown.filters.items()
        for f in filters
        if nf.owner(f) and nf.owner(f) not in known
    ]
    if not stray:
        return []

    def remove_them() -> None:
        with open_netlink(path) as again:
            for hook, one in stray:
                send(again, tc.delete_filter(one, shown.place(hook)))

    return [Residue(f"{len(stray)} filter(s) on {name}", f"in {path}", remove_them)]

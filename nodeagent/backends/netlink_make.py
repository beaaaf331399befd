"""Filters of a step: their messages, and what the kernel shows of them afterwards."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from nodeagent.backends import Prior
from nodeagent.backends.netlink_ifb import links_of
from nodeagent.backends.netlink_shown import show
from nodeagent.backends.tc_bpf import Program
from nodeagent.encode import net_attrs as n
from nodeagent.encode import net_filter as nf
from nodeagent.encode import net_tc as tc
from nodeagent.model.errors import BackendError
from nodeagent.model.netspec import Flow
from nodeagent.model.steps.net import FULL, AnyAct, Dns, Drop, Redirect, Reject, TcFilters
from nodeagent.netlink import Netlink
from nodeagent.netns import entered

MARK = "faultctl"
"""What tc(8) shows as the name of a program."""
_KEYS = frozenset(range(nf.ETH_TYPE, 22)) | frozenset(range(35, 43))
_KEYS |= {nf.ICMPV6_TYPE, nf.ICMPV6_TYPE_MASK}


def build(
    link: Netlink, step: TcFilters, prio: int, place: str, program: Program | None
) -> list[bytes]:
    """All messages that add a step's filters: exceptions first. Raises BackendError."""
    cookie = nf.mark(step.fault)
    index, hook = step.ifindex, step.hook
    leave = nf.verdict(nf.TC_ACT_OK, cookie)
    made = [
        tc.add_filter(index, place, prio, "flower", nf.flower(key, leave))
        for key in nf.spared_keys(step.but, step.flows, hook)
    ]
    if isinstance(step.act, Drop) and step.act.chance != FULL:
        options = nf.random_match(step.act.chance, nf.verdict(nf.TC_ACT_STOLEN, cookie))
        made.append(tc.add_filter(index, place, prio + 1, "bpf", options, chain=prio + 1))
    if program is not None:
        if program.decides:
            options = nf.program(program.fd, MARK, cookie)
        else:
            options = nf.classifier(program.fd, MARK, _redirect(link, step.act, cookie))
        made.append(tc.add_filter(index, place, prio + 1, "bpf", options, chain=prio + 1))
    act = _action(link, step, prio, cookie)
    made += [
        tc.add_filter(index, place, prio + 1, "flower", nf.flower(key, act))
        for key in nf.all_keys(step.flows, hook)
    ]
    return made


def extend(step: TcFilters, prior: Prior, flows: Sequence[Flow]) -> None:
    """More flows beside a step's own; the way back is the same: by its mark. Raises OSError."""
    with entered(step.netns) as link:
        shown = None if link is None else show(link, step.ifindex)
        if link is None or shown is None or not shown.with_mark(step.hook, nf.mark(step.fault)):
            return  # it is gone, or going
        place, prio = shown.place(step.hook), prior["prio"] + 1
        act = _action(link, step, prior["prio"], nf.mark(step.fault))
        failures = link.pour(  # which goes on after a failure
            [
                tc.add_filter(step.ifindex, place, prio, "flower", nf.flower(key, act))
                for key in nf.all_keys(flows, step.hook)
            ]
        )
        # Names may come to share an address, and so a key, which is there once.
        if bad := [f for f in failures if f.errno != errno.EEXIST]:
            raise bad[0].error()


def _action(link: Netlink, step: TcFilters, prio: int, cookie: bytes) -> bytes:
    if isinstance(step.act, Redirect):
        return _redirect(link, step.act, cookie)
    if isinstance(step.act, Reject | Dns) or step.act.chance != FULL:
        return nf.verdict(nf.TC_ACT_GOTO_CHAIN | (prio + 1), cookie)
    return nf.verdict(nf.TC_ACT_STOLEN, cookie)


def _redirect(link: Netlink, act: AnyAct, cookie: bytes) -> bytes:
    device = act.device if isinstance(act, Redirect | Dns) else None
    for found in links_of(link):
        if found.name == device and found.kind == "ifb":
            return nf.redirect(found.index, cookie)
    raise BackendError(f"there is no {device} to redirect to", "it went away")


def read_back(link: Netlink, step: TcFilters, prio: int, count: int) -> None:
    """Every key and every action as asked. Raises BackendError."""
    shown = show(link, step.ifindex)
    mine = [] if shown is None else shown.with_mark(step.hook, nf.mark(step.fault))
    wrong = [] if len(mine) == count else [f"{len(mine)} filters instead of {count}"]
    spared = nf.spared_keys(step.but, step.flows, step.hook)
    for where, keys in ((prio, spared), (prio + 1, nf.all_keys(step.flows, step.hook))):
        want = {_canonical(key) for key in keys}
        have = {_canonical(f.options) for f in mine if f.prio == where and f.kind == "flower"}
        if want != have:
            wrong.append(f"{len(want ^ have)} keys of priority {where} differ")
    if wrong:
        raise BackendError(f"the filters of {step.ifname} are not as asked", "; ".join(wrong))


def _canonical(options: bytes) -> frozenset[tuple[int, bytes]]:
    return frozenset((kind, data) for kind, data in n.pairs(options) if kind in _KEYS)

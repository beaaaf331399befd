"""Room for filters of ours in an interface's clsact: what is there, and where ours can go."""

from __future__ import annotations

from nodeagent.backends import Prior, tcx
from nodeagent.backends.netlink_shown import Shown
from nodeagent.encode import net_attrs as n
from nodeagent.encode import net_filter as nf
from nodeagent.encode import net_link
from nodeagent.encode import net_tc as tc
from nodeagent.model.errors import Refused
from nodeagent.model.steps.net import TcFilters
from nodeagent.netlink import Netlink
from nodeagent.netns import within

FIRST_PRIO = 64
"""Where nothing else filters: low enough to come first, with room before it."""

KERNELS_TXQLEN = 1000
"""DEFAULT_TX_QUEUE_LEN, include/net/pkt_sched.h."""


def refuse_occupied(shown: Shown, step: TcFilters) -> None:
    """What leaves no room for filters beside it. Raises Refused naming it."""
    qdisc = shown.qdisc
    if qdisc is None:
        return
    where = f"{step.ifname} cannot be filtered on {step.hook}"
    if step.hook == "egress" and qdisc.kind != "clsact":
        raise Refused(
            where,
            f"its place for clsact is taken by a qdisc {qdisc.kind} {qdisc.handle >> 16:x}:",
            "use --direction ingress, or replace that qdisc by clsact",
        )
    block = tc.TCA_EGRESS_BLOCK if step.hook == "egress" else tc.TCA_INGRESS_BLOCK
    number = n.number(qdisc.attrs.get(block, b"\0"))
    if number:
        raise Refused(where, f"its {step.hook} filters are the shared block {number}")


def refuse_passed_by(step: TcFilters) -> None:
    """Programs that run before any filter of clsact. Raises Refused, OSError."""
    count = within(step.netns, lambda: tcx.programs(step.ifindex, step.hook))
    if count:
        raise Refused(
            f"{step.ifname} cannot be filtered on {step.hook}",
            f"{count} BPF program{'s' * (count > 1)} of tcx there run before clsact, and can take "
            "packets past all filters, as Cilium's do",
            "see bpftool net; hit the pods' own interfaces instead",
        )


def free_prio(shown: Shown, step: TcFilters) -> int:
    """The first of two priorities before every filter that is not ours. Raises Refused."""
    taken = {f.prio for f in shown.filters[step.hook]}
    chains = {f.chain for f in shown.filters[step.hook]}  # ours has the second one's number
    foreign = [f for f in shown.filters[step.hook] if not nf.owner(f)]
    end = min((f.prio for f in foreign), default=1 << 15)
    prio: int
    for prio in (*range(FIRST_PRIO, end - 1), *range(min(FIRST_PRIO, end - 1) - 1, 0, -1)):
        if not {prio, prio + 1} & taken and prio + 1 not in chains:
            return prio
    first = min(foreign, key=lambda f: f.prio)
    raise Refused(
        f"{step.ifname} has no room for filters on {step.hook}",
        f"the filter {first.kind} of priority {first.prio} comes first and would hide them",
    )


def keep_txqlen(link: Netlink, ifindex: int, prior: Prior, now: int = KERNELS_TXQLEN) -> None:
    """With any qdisc the kernel gives a device of queue length 0 another one (qdisc_create).

    now: its length; any other than the kernel's is somebody else's by now, and stays.
    """
    if prior["txqlen"] == 0 and now == KERNELS_TXQLEN:
        link.request(net_link.set_txqlen(ifindex, 0))

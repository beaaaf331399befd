"""What of traffic control works on this kernel: tried in a namespace that ends with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nodeagent.encode import net_conntrack, net_link, net_tc
from nodeagent.encode import net_filter as nf
from nodeagent.encode.net_netem import parse_netem, qdisc_options
from nodeagent.model.steps.net import FULL, NetemQdisc, TbfQdisc
from nodeagent.netlink import Netlink
from nodeagent.netns import in_thread, open_netlink, unshare

_LO = 1
_SEED = 7
_MARK = nf.mark("probe")


def net_features() -> tuple[str, ...]:
    """Names of what works (nodeagent.model.facts.NET_MODULES, and netem:seed)."""
    try:
        return in_thread(_try_all)
    except OSError:
        return ()  # not root, or a kernel without net namespaces


def _try_all() -> tuple[str, ...]:
    unshare()
    found = []
    with Netlink() as link:
        for name, attempt in _ATTEMPTS.items():
            try:
                found += [name, *attempt(link)]
            except OSError:
                continue
    return tuple(sorted(found))


def ifb_is_there() -> bool:
    """Whether the kernel has ifb by now; asking for a device would load it, with two of its own.

    Built in, it is no module with parameters, but has made two devices at boot.
    """
    if Path("/sys/module/ifb").is_dir():
        return True
    for pid in ("self", "1"):
        try:
            with open_netlink(f"/proc/{pid}/ns/net") as link:
                if any(d.kind == "ifb" for d in link.dump(net_link.dump(), net_link.parse)):
                    return True
        except OSError:
            continue
    return False


def _ifb(link: Netlink) -> list[str]:
    if not ifb_is_there():
        raise FileNotFoundError("ifb")
    link.request(net_link.add_ifb("probe"))
    return []


def _netem(link: Netlink) -> list[str]:
    options = qdisc_options(NetemQdisc(limit=1, loss=1, seed=_SEED))
    link.request(net_tc.add_qdisc(_LO, net_tc.ROOT, net_tc.OUR_HANDLE, "netem", options))
    shown = [q for q in link.dump(net_tc.dump_qdiscs(), net_tc.parse) if q.kind == "netem"]
    link.request(net_tc.delete_qdisc(_LO, net_tc.ROOT, net_tc.OUR_HANDLE, "netem"))
    return ["netem:seed"] if shown and parse_netem(shown[0].options).seed == _SEED else []


def _tbf(link: Netlink) -> list[str]:
    burst = 70_000  # more than lo's MTU, else the kernel warns in its log
    options = qdisc_options(TbfQdisc(rate=1000, burst=burst, limit=2 * burst))
    link.request(net_tc.add_qdisc(_LO, net_tc.ROOT, net_tc.OUR_HANDLE, "tbf", options))
    return []


def _clsact(link: Netlink) -> list[str]:
    link.request(net_tc.add_clsact(_LO))
    return []


def _conntrack(link: Netlink) -> list[str]:
    with Netlink(net_conntrack.NETLINK_NETFILTER) as table:
        table.dump(net_conntrack.dump_statistics(), net_conntrack.parse_statistics)
    return []


def _filter(prio: int, kind: str, options: bytes) -> Callable[[Netlink], list[str]]:
    def attempt(link: Netlink) -> list[str]:
        link.request(net_tc.add_filter(_LO, "egress", prio, kind, options))
        return []

    return attempt


_DROP = nf.verdict(nf.TC_ACT_STOLEN, _MARK)
_ATTEMPTS: dict[str, Callable[[Netlink], list[str]]] = {
    "ifb": _ifb,
    "netem": _netem,
    "tbf": _tbf,
    "clsact": _clsact,
    "flower": _filter(1, "flower", nf.plain_flower()),
    "gact": _filter(2, "bpf", nf.random_match(FULL, _DROP)),
    "mirred": _filter(3, "bpf", nf.random_match(FULL, nf.redirect(_LO, _MARK))),
    "bpf": _filter(4, "bpf", nf.random_match(FULL, b"")),
    "conntrack": _conntrack,
}
"""In this order: the later ones need a clsact."""

"""Private ifb devices with a qdisc, in the net namespace of a target (drivers/net/ifb.c).

Such a device belongs to one fault. Nothing reaches it but what a filter sends there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Residue, Runtime
from nodeagent.crashpoint import crashpoint
from nodeagent.encode import net_link, net_tc
from nodeagent.encode.net_netem import differences, qdisc_options
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.net import IfbShaper, NetnsRef
from nodeagent.net_probe import ifb_is_there
from nodeagent.netlink import Netlink
from nodeagent.netns import all_namespaces, entered, open_netlink

ALIAS = "faultctl fault "
_NAME = re.compile(r"faultctl[0-9a-f]{6}")
ENODEV = 19


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backends of this module."""
    return {IfbShaper: IfbBackend()}


def ours(links: Sequence[net_link.Link], step: IfbShaper) -> net_link.Link | None:
    """The step's device, also when it was renamed; one just made has no alias yet."""
    for link in links:
        named = link.name == step.name and not link.alias
        if link.kind == "ifb" and (link.alias == alias(step) or named):
            return link
    return None


def alias(step: IfbShaper) -> str:
    """What `ip link` shows of whose device it is."""
    return f"{ALIAS}{step.fault} {step.name}"


def links_of(link: Netlink) -> list[net_link.Link]:
    """All interfaces of the namespace."""
    return link.dump(net_link.dump(), net_link.parse)


class IfbBackend:
    """Make the device, give it its qdisc, bring it up; the way back is to delete it."""

    def observe(self, fault_id: str, step: IfbShaper, peers: Sequence[Peer]) -> Prior:
        """Nothing was there, or it is refused."""
        if not ifb_is_there():
            raise Refused("the module ifb is not loaded", "", "modprobe ifb numifbs=0")
        with entered(step.netns) as link:
            if link is None:
                raise gone(step.netns)
            if any(found.name == step.name for found in links_of(link)):
                raise Refused(f"an interface {step.name} is there already", "", "use another --id")
        return {}

    def status(self, step: IfbShaper, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS while our device is there, in whatever state; it is nobody else's."""
        with entered(step.netns) as link:
            if link is None:
                return Status.GONE
            found = links_of(link)
            if ours(found, step) is not None:
                return Status.OURS
            taken = any(other.name == step.name for other in found)
            return Status.FOREIGN if taken else Status.PRIOR

    def apply(self, fault_id: str, step: IfbShaper, prior: Prior, peers: Sequence[Peer]) -> Outcome:
        """Make it so and read every parameter back. Raises BackendError, OSError."""
        with entered(step.netns) as link:
            if link is None:
                raise gone(step.netns)
            device = ours(links_of(link), step)
            if device is None:
                link.request(net_link.add_ifb(step.name))
                crashpoint("net:ifb")
                device = ours(links_of(link), step)
            if device is None:
                raise BackendError(f"{step.name} was not made", "the kernel does not show it")
            self._furnish(link, device, step)
            read_back(link, device.index, step)
        return {"ifindex": device.index}

    @staticmethod
    def _furnish(link: Netlink, device: net_link.Link, step: IfbShaper) -> None:
        """Idempotent: what is there already stays."""
        if device.alias != alias(step):
            link.request(net_link.set_alias(device.index, alias(step)))
            crashpoint("net:ifb-alias")
        link.batch([net_link.silence_ipv6(device.index)])  # refused where there is no IPv6
        root = root_qdisc(link, device.index)
        if root is None or root.handle != net_tc.OUR_HANDLE:
            options = qdisc_options(step.qdisc)
            link.request(
                net_tc.add_qdisc(
                    device.index, net_tc.ROOT, net_tc.OUR_HANDLE, step.qdisc.qdisc, options
                )
            )
            crashpoint("net:ifb-qdisc")
        link.request(net_link.set_up(device.index))
        crashpoint("net:ifb-up")

    def undo(self, fault_id: str, step: IfbShaper, prior: Prior, peers: Sequence[Peer]) -> None:
        """Delete the device; packets that wait in it are lost."""
        with entered(step.netns) as link:
            device = None if link is None else ours(links_of(link), step)
            if link is not None and device is not None:
                delete(link, device.index)

    def measure(self, fault_id: str, step: IfbShaper, prior: Prior) -> dict[str, Any]:
        """The qdisc's counters."""
        with entered(step.netns) as link:
            device = None if link is None else ours(links_of(link), step)
            if link is None or device is None:
                return {}
            root = root_qdisc(link, device.index)
            return {} if root is None else {"qdisc": root.counters()}


def delete(link: Netlink, index: int) -> None:
    """Delete an interface; that it is gone already is fine. Raises OSError."""
    try:
        link.request(net_link.delete(index))
    except OSError as exc:
        if exc.errno != ENODEV:
            raise


def gone(netns: NetnsRef) -> Refused:
    """The target's namespace ended between plan and apply."""
    return Refused(f"the net namespace {netns.path} is gone", "its last process ended", "plan anew")


def root_qdisc(link: Netlink, ifindex: int) -> net_tc.TcObject | None:
    """The root qdisc of an interface; one that never was up has none."""
    for found in link.dump(net_tc.dump_qdiscs(), net_tc.parse):
        if found.ifindex == ifindex and found.parent == net_tc.ROOT:
            return found
    return None


def read_back(link: Netlink, ifindex: int, step: IfbShaper) -> None:
    """Compare every parameter with what was asked. Raises BackendError."""
    shown = root_qdisc(link, ifindex)
    if shown is None:
        raise BackendError(f"{step.name} has no root qdisc", "the kernel does not show it")
    wrong = differences(step.qdisc, shown.kind, shown.options)
    if wrong:
        raise BackendError(f"the kernel did not take {step.qdisc.qdisc} as asked", "; ".join(wrong))


def residue(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
    """Devices with our mark that no fault claims, in all net namespaces of the node."""
    known = {(s.netns.cookie, s.name) for s in claimed if isinstance(s, IfbShaper)}
    found: list[Residue] = []
    for path in all_namespaces():
        try:
            with open_netlink(path) as link:
                cookie = link.cookie()
                for device in links_of(link):
                    if _is_marked(device) and (cookie, device.name) not in known:
                        found.append(_residue_of(path, device))
        except OSError:
            continue  # the namespace ended meanwhile
    return found


def _is_marked(device: net_link.Link) -> bool:
    if device.kind != "ifb":
        return False
    return device.alias.startswith(ALIAS) or _NAME.fullmatch(device.name) is not None


def _residue_of(path: str, device: net_link.Link) -> Residue:
    def remove() -> None:
        with open_netlink(path) as link:
            again = [d for d in links_of(link) if d.index == device.index and _is_marked(d)]
            for one in again:
                delete(link, one.index)

    return Residue(f"interface {device.name}", f"in {path}: {device.alias or 'no alias'}", remove)

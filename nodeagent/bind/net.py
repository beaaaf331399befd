"""Network targets: a process, cgroup or path to its net namespace, and what is in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.lifelines import lifelines
from nodeagent.bind.names import resolve_all
from nodeagent.bind.node import reason
from nodeagent.encode import net_filter as nf
from nodeagent.encode import net_link, net_route, net_tc
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.net import NetBinding, NetInterface
from nodeagent.model.netspec import Flow
from nodeagent.model.steps.net import Hook, NetnsRef
from nodeagent.model.target import CgroupTarget, NetnsTarget, ProcessTarget, TargetBase
from nodeagent.netlink import Netlink
from nodeagent.netns import open_netlink, refer

CGROUPS = Path("/sys/fs/cgroup")
MAX_PROCESSES = 4096


def bind(scene: Scene, ask: Ask) -> NetBinding:
    """The namespace of a target. Raises Refused when there is none, or more than one."""
    netns, processes = resolve(scene.node.proc, ask.target)
    host = netns.inode in _host_inodes(scene.node.proc)
    peer = _peer_of(ask)
    with _opened(netns) as link:
        found = interfaces(link)
    pid = processes[0][0] if processes else None
    names = resolve_all(netns, scene.node.proc, pid, _names_of(ask))
    return NetBinding(
        target=ask.target.label(),
        netns=netns,
        host=host,
        interfaces=found,
        processes=processes,
        peers=() if peer is None else addresses(scene.node.proc, peer),
        names=names,
        lifelines=lifelines(scene.node.proc) if host else (),
        notes=tuple(f"{name} is {', '.join(found)} now" for name, found in names),
    )


def _names_of(ask: Ask) -> list[str]:
    """Host names that a spec has among its networks."""
    flows = (*getattr(ask.spec, "to", ()), *getattr(ask.spec, "but", ()))
    return [flow.name for flow in flows if isinstance(flow, Flow) and flow.name is not None]


def _peer_of(ask: Ask) -> TargetBase | None:
    """The other workload that a spec names, as a target."""
    if (pid := getattr(ask.spec, "to_pid", None)) is not None:
        return ProcessTarget(pid=pid)
    if (cgroup := getattr(ask.spec, "to_cgroup", None)) is not None:
        return CgroupTarget(cgroup=cgroup)
    if (netns := getattr(ask.spec, "to_netns", None)) is not None:
        return NetnsTarget(netns=netns)
    return None


def resolve(proc: Path, target: TargetBase) -> tuple[NetnsRef, tuple[tuple[int, int], ...]]:
    """(the namespace, the processes that led to it). Raises Refused or InvalidSpec."""
    if isinstance(target, NetnsTarget):
        return _refer(target.netns, target), ()
    if isinstance(target, ProcessTarget):
        pids = [target.pid]
    elif isinstance(target, CgroupTarget):
        pids = cgroup_pids(target)
    else:
        raise InvalidSpec(f"{target.label()} has no net namespace", "", "name a pid or a cgroup")
    by_inode: dict[int, list[int]] = {}
    for pid in pids:
        try:
            by_inode.setdefault(os.stat(proc / str(pid) / "ns/net").st_ino, []).append(pid)
        except OSError:
            continue
    if not by_inode:
        raise Refused(f"{target.label()} is not there", "no such process", "is it on this node?")
    if len(by_inode) > 1:
        shown = "; ".join(f"net:[{i}] of pid {p[0]}" for i, p in sorted(by_inode.items()))
        raise Refused(f"{target.label()} is in {len(by_inode)} net namespaces", shown, "name one")
    found = min(next(iter(by_inode.values())))
    return _refer(str(proc / str(found) / "ns/net"), target), ((found, start_time(proc, found)),)


def _refer(path: str, target: TargetBase) -> NetnsRef:
    try:
        return refer(path)
    except OSError as exc:
        raise Refused(
            f"the net namespace of {target.label()} cannot be entered", f"{path}: {reason(exc)}"
        ) from exc


def _opened(netns: NetnsRef) -> Netlink:
    try:
        return open_netlink(netns.path)
    except OSError as exc:
        raise Refused(f"{netns.path} cannot be entered", reason(exc)) from exc


def cgroup_pids(target: CgroupTarget) -> list[int]:
    """Processes of a cgroup and of all below it, in order. Raises Refused."""
    path = Path(target.cgroup)
    folder = path if path.is_relative_to(CGROUPS) else CGROUPS / path.relative_to("/")
    if not (folder / "cgroup.procs").exists():
        raise Refused(f"{target.label()} is not there", f"{folder} is no cgroup (v2)")
    return sorted(_pids_below(folder))[:MAX_PROCESSES]


def _pids_below(folder: Path) -> Iterator[int]:
    for here, _, files in os.walk(folder):
        if "cgroup.procs" in files:
            try:
                yield from map(int, Path(here, "cgroup.procs").read_text("ascii").split())
            except OSError:
                continue  # removed meanwhile, or threaded


def start_time(proc: Path, pid: int) -> int:
    """Start of a process in clock ticks after boot, field 22 of proc_pid_stat(5); 0 when gone."""
    try:
        text = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(text.rpartition(")")[2].split()[19])


def _host_inodes(proc: Path) -> set[int]:
    found = set()
    for pid in ("1", "self"):
        try:
            found.add(os.stat(proc / pid / "ns/net").st_ino)
        except OSError:
            continue
    return found


def interfaces(link: Netlink) -> tuple[NetInterface, ...]:
    """The namespace's interfaces without our own devices, by name."""
    qdiscs = link.dump(net_tc.dump_qdiscs(), net_tc.parse)
    by_index: dict[int, list[str]] = {}
    for index, address in link.dump(net_link.dump_addresses(), net_link.parse_address):
        by_index.setdefault(index, []).append(address)
    found = []
    uplinks = _uplinks(link)
    for device in link.dump(net_link.dump(), net_link.parse):
        if device.kind == "ifb" and device.name.startswith("faultctl"):
            continue
        mine = [q for q in qdiscs if q.ifindex == device.index]
        found.append(
            NetInterface(
                name=device.name,
                ifindex=device.index,
                kind=device.kind,
                up=device.up,
                loopback=device.loopback,
                mtu=device.mtu,
                addresses=tuple(sorted(by_index.get(device.index, ()))),
                qdisc=next((_qdisc(q) for q in mine if q.parent == net_tc.ROOT), ""),
                uplink=device.index in uplinks,
                filters=_foreign(link, device.index, mine),
            )
        )
    return tuple(sorted(found, key=lambda i: i.name))


def _uplinks(link: Netlink) -> set[int]:
    """Interfaces that a default route goes over, of either family."""
    found: set[int] = set()
    for family in (net_route.AF_INET, net_route.AF_INET6):
        try:
            routes = link.dump(net_route.dump_routes(family), net_route.parse_route)
        except OSError:
            continue  # a kernel without IPv6
        for route in filter(net_route.is_default_route, routes):
            found |= net_route.interfaces(route)
    return found


def _qdisc(found: net_tc.TcObject) -> str:
    return f"{found.kind} {found.handle >> 16:x}:"


def _foreign(
    link: Netlink, ifindex: int, qdiscs: list[net_tc.TcObject]
) -> tuple[tuple[Hook, str], ...]:
    """Others' filters in clsact or ingress, a line for each priority."""
    here = [q for q in qdiscs if q.parent == net_tc.CLSACT]
    hooks: tuple[Hook, ...] = ("ingress", "egress")
    if not here:
        return ()
    lines = []
    for hook in hooks if here[0].kind == "clsact" else hooks[:1]:
        request = net_tc.dump_filters(ifindex, net_tc.HOOKS[hook])
        for item in link.dump(request, net_tc.parse):
            if item.options and not nf.owner(item):
                lines.append((hook, f"{item.kind} pref {item.prio}"))
    return tuple(dict.fromkeys(lines))


def addresses(proc: Path, target: TargetBase) -> tuple[str, ...]:
    """All addresses of another workload, as networks of one. Raises Refused."""
    netns, _ = resolve(proc, target)
    with _opened(netns) as link:
        loopbacks = {d.index for d in link.dump(net_link.dump(), net_link.parse) if d.loopback}
        found = link.dump(net_link.dump_addresses(), net_link.parse_address)
    mine = [a.partition("/")[0] for index, a in found if index not in loopbacks]
    peers = tuple(sorted(a for a in mine if not a.startswith("fe80:")))
    if not peers:
        raise Refused(f"{target.label()} has no address", "its namespace has only a loopback")
    return peers

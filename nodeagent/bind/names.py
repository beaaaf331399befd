"""Host names as a workload knows them: its own hosts file and name servers, in its own namespace.

Only dnspython reads and writes messages here; it is loaded when the first name is asked for.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from nodeagent.model.errors import Refused
from nodeagent.model.steps.net import NetnsRef
from nodeagent.netns import PLACES, within

ASKED = 3
"""Times that a name server is asked: some give a few of many addresses, others each time."""
LIFETIME_S = 5.0
LINKS = 8
Names = tuple[tuple[str, tuple[str, ...]], ...]


def resolve_all(netns: NetnsRef, proc: Path, pid: int | None, names: Iterable[str]) -> Names:
    """Every name with all its addresses, sorted. Raises Refused for one that has none."""
    wanted = sorted(set(names))
    if not wanted:
        return ()
    hosts, servers = (_file(netns, proc, pid, name) for name in ("hosts", "resolv.conf"))
    known = parse_hosts(hosts)
    asked = [name for name in wanted if name not in known]
    found = within(netns, lambda: {name: _ask(name, servers) for name in asked}) if asked else {}
    if found is None:
        raise Refused(f"the net namespace {netns.path} is gone", "its last process ended")
    return tuple((name, tuple(sorted(known.get(name) or found[name]))) for name in wanted)


def parse_hosts(text: str) -> dict[str, set[str]]:
    """Names of hosts(5) in lower case with their addresses; what is no address is left out."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        try:
            address = str(ip_address(words[0].partition("%")[0])) if words else ""
        except ValueError:
            continue
        for name in words[1:]:
            found.setdefault(name.lower().rstrip("."), set()).add(address)
    return found


def _ask(name: str, resolv_conf: str) -> set[str]:
    """A and AAAA of all the answers to some questions. Raises Refused."""
    try:
        from dns import exception, resolver
    except ImportError as exc:
        raise Refused(f"{name} cannot be resolved", "dnspython is not installed") from exc
    what = f"{name} cannot be resolved in the target's namespace"
    found: set[str] = set()
    why = "it has no address"
    try:
        asking = resolver.Resolver(configure=False)
        asking.read_resolv_conf(io.StringIO(resolv_conf))
        asking.lifetime = LIFETIME_S
        for kind in ("A", "AAAA"):
            for _ in range(ASKED):
                answer = asking.resolve(name, kind, search=True, raise_on_no_answer=False)
                found |= {item.address for item in answer}
    except (resolver.NXDOMAIN, resolver.NoNameservers, resolver.LifetimeTimeout) as exc:
        why = str(exc)
    except (exception.DNSException, OSError) as exc:
        raise Refused(what, str(exc), "name its addresses") from exc
    if not found:
        raise Refused(what, why, "name its addresses")
    return found


def _file(netns: NetnsRef, proc: Path, pid: int | None, name: str) -> str:
    """/etc/NAME as the target sees it; of a namespace with a name what ip-netns(8) would show."""
    roots = [proc / str(pid) / "root"] if pid is not None else []
    paths = [_inside(root, f"etc/{name}") for root in roots]
    if any(Path(netns.path).parent == place for place in PLACES):
        paths.append(Path("/etc/netns") / Path(netns.path).name / name)
    if pid is None:
        paths.append(Path("/etc") / name)
    for path in paths:
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
    return ""


def _inside(root: Path, path: str) -> Path:
    """A path below another root; links are followed as from there."""
    found = path
    for _ in range(LINKS):
        try:
            link = os.readlink(root / found)
        except OSError:
            break
        found = os.path.normpath(
            link.lstrip("/") if link.startswith("/") else f"{os.path.dirname(found)}/{link}"
        )
        while found.startswith("../"):
            found = found[3:]
    return root / found

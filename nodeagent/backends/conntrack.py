"""A connection table that is filled up with entries of ours, and kept full.

The limit (nf_conntrack_max) is one for all namespaces, the count is each namespace's own; so
others are not touched. A thread adds an entry for each that somebody's ended flow sets free.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nodeagent.backends import Outcome, Peer, Prior, Residue, Runtime
from nodeagent.backends.netlink_ifb import gone
from nodeagent.crashpoint import crashpoint
from nodeagent.encode import net_conntrack as ct
from nodeagent.model.errors import BackendError, Refused
from nodeagent.model.steps import Status, StepBase
from nodeagent.model.steps.conntrack import ConntrackFill
from nodeagent.model.steps.net import NetnsRef
from nodeagent.netlink import Netlink
from nodeagent.netns import all_namespaces, entered_at, within

TIMEOUT_S = 7 * 24 * 3600
"""No fault lives longer; the entries end by themselves then, whatever happens."""
ENTRY_BYTES = 512
"""What an entry takes at most: struct nf_conn, its extensions, its share of a slab."""
MOST = 2_000_000
CHUNK = 4096
PERIOD_S = 0.2
LIMITS = Path("/proc/sys/net/netfilter")
SAMPLES = 64
FIRST = 8


def backends(runtime: Runtime) -> dict[type[StepBase], Any]:
    """The backend of this module."""
    return {ConntrackFill: ConntrackBackend()}


@contextmanager
def opened(netns: NetnsRef) -> Iterator[Netlink | None]:
    """A ctnetlink socket in the namespace, None when that is gone."""
    link = within(netns, lambda: Netlink(ct.NETLINK_NETFILTER))
    if link is None:
        yield None
        return
    with link:
        yield link


def room(netns: NetnsRef) -> tuple[int, int] | None:
    """(entries there are, entries there may be); None when the namespace is gone."""
    return within(netns, lambda: (_limit("nf_conntrack_count"), _limit("nf_conntrack_max")))


def _limit(name: str) -> int:
    return int((LIMITS / name).read_text("ascii"))


class ConntrackBackend:
    """Fill, keep full, and take exactly our entries away."""

    def __init__(self) -> None:
        self._keepers: dict[str, _Keeper] = {}

    def observe(self, fault_id: str, step: ConntrackFill, peers: Sequence[Peer]) -> Prior:
        """Counts before. Raises Refused where the table has no limit, or one that is too high."""
        what = "the connection table cannot be filled"
        with opened(step.netns) as link:
            if link is None:
                raise gone(step.netns)
            dropped, thrown_out = statistics(link)
            if ours(link):
                raise Refused(what, "flows to 198.19.255.254 are in it already", "faultctl doctor")
        found = room(step.netns)
        if found is None:
            raise gone(step.netns)
        count, most = found
        if most == 0:
            raise Refused(what, "it has no limit (nf_conntrack_max is 0)")
        missing = most - step.free - count
        if missing <= 0:
            raise Refused(what, f"it has {count} of {most} entries, and {step.free} are to be free")
        if missing > MOST or missing * ENTRY_BYTES > _available() // 4:
            raise Refused(
                what,
                f"{missing} more entries would take {missing * ENTRY_BYTES >> 20} MiB of the "
                f"kernel's memory, and {_available() >> 20} MiB are available",
                "lower net.netfilter.nf_conntrack_max on this node first",
            )
        return {"count": count, "max": most, "drop": dropped, "early_drop": thrown_out}

    def status(self, step: ConntrackFill, prior: Prior, peers: Sequence[Peer]) -> Status:
        """OURS with any entry of ours, and while a thread of this agent makes new ones."""
        with opened(step.netns) as link:
            if link is None:
                self._keepers.pop(step.fault, None)  # it has ended by itself
                return Status.GONE
            if step.fault in self._keepers:
                return Status.OURS
            if any(_is_there(link, i) for i in _sample(prior["max"])):
                return Status.OURS
            return Status.OURS if ours(link) else Status.PRIOR

    def apply(
        self, fault_id: str, step: ConntrackFill, prior: Prior, peers: Sequence[Peer]
    ) -> Outcome:
        """Full but for what is to be free. Raises BackendError."""
        keeper = _Keeper(step)
        keeper.fill()
        crashpoint("conntrack:filled")
        found = room(step.netns)
        if found is not None and found[1] - found[0] > step.free + CHUNK // 64:
            raise BackendError("the connection table is not full", f"{found[0]} of {found[1]}")
        self._keepers[step.fault] = keeper
        keeper.start()
        return {"entries": keeper.made}

    def undo(self, fault_id: str, step: ConntrackFill, prior: Prior, peers: Sequence[Peer]) -> None:
        """Our entries go, and no others."""
        keeper = self._keepers.pop(step.fault, None)
        if keeper is not None:
            keeper.stop()
        with opened(step.netns) as link:
            if link is None:
                return
            _delete(link)

    def measure(self, fault_id: str, step: ConntrackFill, prior: Prior) -> dict[str, Any]:
        """Packets that were dropped or threw another flow out since, and how full it is."""
        found = room(step.netns)
        with opened(step.netns) as link:
            if link is None or found is None:
                return {}
            dropped, thrown_out = statistics(link)
        return {
            "drop": dropped - prior["drop"],
            "early_drop": thrown_out - prior["early_drop"],
            "count": found[0],
            "max": found[1],
            "count_before": prior["count"],
        }


def residue(node_id: str, claimed: Sequence[StepBase]) -> list[Residue]:
    """Entries of ours that no fault claims; their first ones are looked for in each namespace."""
    known = {step.netns.cookie for step in claimed if isinstance(step, ConntrackFill)}
    found: list[Residue] = []
    for path in all_namespaces() if LIMITS.is_dir() else []:
        try:
            with entered_at(path, lambda: Netlink(ct.NETLINK_NETFILTER)) as link:
                if link.cookie() not in known and any(_is_there(link, i) for i in range(FIRST)):
                    found.append(_residue_of(path))
        except OSError:
            continue  # the namespace ended meanwhile, or no ctnetlink
    return found


def _residue_of(path: str) -> Residue:
    def remove() -> None:
        with entered_at(path, lambda: Netlink(ct.NETLINK_NETFILTER)) as link:
            _delete(link)

    return Residue("entries to 198.19.255.254 in the connection table", f"in {path}", remove)


# --- entries ------------------------------------------------------------------------


class _Keeper:
    """Adds entries until the table is full, and again whenever others have gone."""

    def __init__(self, step: ConntrackFill) -> None:
        self._step = step
        self._end = threading.Event()
        self._next = 0
        self.made = 0
        self._thread = threading.Thread(target=self._run, name="conntrack", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """No further entry after this returns."""
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(PERIOD_S):
            try:
                if not self.fill():
                    return
            except OSError:
                return  # the namespace is going

    def fill(self) -> bool:
        """False when the namespace is gone. Raises OSError."""
        found = room(self._step.netns)
        if found is None:
            return False
        with opened(self._step.netns) as link:
            missing = found[1] - self._step.free - found[0]
            while link is not None and missing > 0 and not self._end.is_set():
                part = range(self._next, self._next + min(missing, CHUNK))
                added, full = _fill(link, part)
                self._next, missing = part.stop, missing - added
                self.made += added
                crashpoint("conntrack:some")
                if full:
                    break
        return True


def _fill(link: Netlink, part: range) -> tuple[int, bool]:
    """(how many were made, whether the table is full); another's traffic fills it as well."""
    requests = [ct.add(i, TIMEOUT_S) for i in part]
    failures = link.pour(requests)
    full = [f for f in failures if f.errno == errno.ENOMEM]
    bad = [f for f in failures if f.errno not in (errno.ENOMEM, errno.EEXIST, errno.ENOSPC)]
    if bad:
        raise bad[0].error()
    return len(part) - len(failures), bool(full)


def _delete(link: Netlink) -> None:
    found = ours(link)
    for start in range(0, len(found), CHUNK):
        _send(link, [ct.delete(i) for i in found[start : start + CHUNK]], errno.ENOENT)
        crashpoint("conntrack:some-gone")


def ours(link: Netlink) -> list[int]:
    """Indexes of the entries that are ours."""
    return [i for i in link.dump(ct.dump(), ct.is_ours) if i is not None]


def statistics(link: Netlink) -> tuple[int, int]:
    """(packets dropped, flows thrown out for a new one) of the namespace, all CPUs."""
    found = link.dump(ct.dump_statistics(), ct.parse_statistics)
    return sum(s.dropped for s in found), sum(s.thrown_out for s in found)


def _sample(most: int) -> range:
    return range(0, max(1, most), max(1, most // SAMPLES))


def _is_there(link: Netlink, index: int) -> bool:
    return not link.batch([ct.get(index)])


def _send(link: Netlink, requests: Sequence[bytes], fine: int) -> None:
    for failure in link.pour(requests):
        if failure.errno != fine:
            raise failure.error()


def _available() -> int:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith("MemAvailable:"))
    return 0

"""Prometheus metrics of an agent, read from its journal when they are asked for.

Off unless `--metrics` names an address: there GET is answered over plain HTTP and nothing
else. It tells kinds and counts, no targets and no ids; in a blind run leave it off, since
whoever can scrape it sees that something is armed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIServer

import nodeagent
from nodeagent.doctor import examine
from nodeagent.listen import parse_listen
from nodeagent.model.errors import FaultError, InvalidSpec, Refused, lacks_package
from nodeagent.model.record import EndReason, FaultRow, FaultState

if TYPE_CHECKING:
    from nodeagent.agent import Agent

RESIDUE_S = 60.0
"""A look for residue walks the node: at most so often."""


class AgentMetrics:
    """A collector (prometheus_client.registry.Collector). Threads share it."""

    def __init__(self, agent: Agent, clock: Callable[[], float] = time.monotonic) -> None:
        self._agent, self._clock = agent, clock
        self._lock = threading.Lock()
        self._looked: float | None = None
        self._residue = 0

    def collect(self) -> Iterator[Any]:
        """All metrics at this moment. A journal that cannot be read gives none of its own."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        info = GaugeMetricFamily("faultctl_agent_info", "The agent's version.", labels=["version"])
        info.add_metric([nodeagent.__version__], 1)
        yield info
        alive = 1 if self._agent.ward.pid else 0
        yield GaugeMetricFamily("faultctl_guardian_up", "Whether the guardian runs.", value=alive)
        try:
            faults = self._agent.journal.faults()
        except FaultError:
            return
        active = GaugeMetricFamily(
            "faultctl_faults", "Faults that have not ended.", labels=["kind", "state"]
        )
        for (kind, state), count in _active(faults).items():
            active.add_metric([kind, state], count)
        yield active
        ended = CounterMetricFamily(
            "faultctl_faults_ended", "Faults that ended, by why.", labels=["kind", "reason"]
        )
        for (kind, reason), count in _ended(faults).items():
            ended.add_metric([kind, reason], count)
        yield ended
        hits = CounterMetricFamily(
            "faultctl_fault_hits", "Hits that evidence counted.", labels=["kind"]
        )
        for kind, count in self._hits(faults).items():
            hits.add_metric([kind], count)
        yield hits
        resisting = sum(bool(one.error) for one in faults if one.active)
        yield GaugeMetricFamily(
            "faultctl_faults_resisting", "Faults whose revert failed so far.", value=resisting
        )
        yield GaugeMetricFamily(
            "faultctl_residue", "What doctor finds left over or wrong.", value=self._left()
        )

    def _hits(self, faults: list[FaultRow]) -> Counter[str]:
        found: Counter[str] = Counter()
        for one in faults:
            evidence = one.evidence
            if one.state is FaultState.ARMED:
                try:
                    evidence = self._agent.evidence(one).model_dump()
                except (FaultError, OSError):
                    continue  # it ends just now
            found[one.kind] += int(evidence.get("hits", 0))
        return found

    def _left(self) -> int:
        with self._lock:
            now = self._clock()
            if self._looked is None or now - self._looked >= RESIDUE_S:
                self._looked = now
                bad = ("residue", "error")
                self._residue = sum(one.severity in bad for one in examine(self._agent))
            return self._residue


def _active(faults: list[FaultRow]) -> Counter[tuple[str, str]]:
    return Counter((one.kind, str(one.state)) for one in faults if one.active)


def _ended(faults: list[FaultRow]) -> Counter[tuple[str, str]]:
    """With a zero for each reason of a kind that was ever there: rates need a start."""
    found: Counter[tuple[str, str]] = Counter()
    for one in faults:
        for reason in EndReason:
            found[one.kind, str(reason)] += one.end_reason is reason
    return found


def serve_metrics(agent: Agent, listen: str) -> WSGIServer:
    """An HTTP server of the metrics, running. Raises InvalidSpec, Refused."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as exc:
        raise lacks_package("--metrics", "prometheus_client", "metrics", exc) from exc
    scheme, address = parse_listen(listen)
    if scheme != "tcp":
        raise InvalidSpec(f"--metrics {listen!r}", "tcp://IP:PORT")
    host, _, port = address.rpartition(":")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(AgentMetrics(agent))
    try:
        server, _ = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as exc:
        raise Refused(f"{listen} cannot be listened on", exc.strerror or str(exc)) from exc
    return server

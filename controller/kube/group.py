"""One fault on many nodes: planned everywhere, then armed everywhere, or nowhere.

Each node is served by one thread at a time, so that its agent is not asked twice at once;
many nodes are served together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from controller.client import AgentAddress, AgentClient
from controller.kube.targets import Item, of_group
from nodeagent.model.errors import FaultError, Refused, StalePlan, UnknownFault, Unreachable
from nodeagent.model.plan import Lease, Plan
from protos import faultd_pb2 as pb

MAX_THREADS = 64
MAX_NAMED = 5
REPLANS = 3
"""Times that a plan that went stale before it was applied is made again."""
T = TypeVar("T")


class Reach(Protocol):
    """How the agent of a node is reached; the way is open as long as the context."""

    def open(self, node: str) -> AbstractContextManager[AgentAddress]:
        """Raises Refused where there is no agent, Unreachable."""


@dataclass(frozen=True)
class Planned:
    """One fault of a group with its plan."""

    item: Item
    plan: Plan
    digest: str


@dataclass(frozen=True)
class Failure:
    """What one node said no to."""

    node: str
    fault: str
    error: FaultError

    def __str__(self) -> str:
        return f"{self.node}: {self.error}"


@dataclass
class Outcome:
    """What became of each fault of a group."""

    done: dict[str, pb.Fault] = field(default_factory=dict)
    failed: list[Failure] = field(default_factory=list)


class Clients:
    """Clients of agents, opened when a node is first asked for. Use it as a context manager."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._stack = ExitStack()
        self._open: dict[str, AgentClient] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *args: object) -> None:
        self._stack.close()

    def of(self, node: str) -> AgentClient:
        """The client of a node's agent."""
        with self._lock:
            known = self._open.get(node)
        if known is not None:
            return known
        with ExitStack() as opening:
            address = opening.enter_context(self._reach.open(node))
            client = opening.enter_context(AgentClient(address))
            with self._lock:
                self._stack.push(opening.pop_all())
                self._open[node] = client
        return client

    def drop(self, node: str) -> None:
        """Forget a way that is broken; the next call opens another."""
        with self._lock:
            self._open.pop(node, None)

    def everywhere(
        self, nodes: Iterable[str], work: Callable[[str, AgentClient], T]
    ) -> tuple[dict[str, T], list[Failure]]:
        """The same work on many nodes at once: (results by node, failures)."""
        names = sorted(set(nodes))
        failures: list[Failure] = []

        def one(node: str) -> T | None:
            try:
                return work(node, self.of(node))
            except FaultError as exc:
                failures.append(Failure(node, "", exc))
                return None

        with ThreadPoolExecutor(max(1, min(MAX_THREADS, len(names)))) as pool:
            results = dict(zip(names, pool.map(one, names), strict=True))
        missed = {failure.node for failure in failures}
        good = {node: value for node, value in results.items() if node not in missed}
        return good, sorted(failures, key=lambda f: f.node)  # type: ignore[return-value]


def plan_group(clients: Clients, items: Sequence[Item]) -> tuple[Planned, ...]:
    """All plans; touches nothing. Raises the first node's error, naming all nodes that say no."""

    def work(node: str, agent: AgentClient) -> list[Planned]:
        return [_planned(agent, item) for item in items if item.node == node]

    done, failed = clients.everywhere([item.node for item in items], work)
    if failed:
        raise _together("nothing was touched", failed)
    found = {one.item.request.id: one for plans in done.values() for one in plans}
    return tuple(found[item.request.id] for item in items)


def _planned(agent: AgentClient, item: Item) -> Planned:
    plan, digest = agent.plan(item.request)
    return Planned(item, plan, digest)


def apply_group(clients: Clients, planned: Sequence[Planned], lease: Lease) -> Outcome:
    """All armed. If one fails, all are taken back and its error is raised: no partial success;
    Ctrl-C in between is such a failure."""
    outcome = Outcome()

    def work(node: str, agent: AgentClient) -> None:
        for one in planned:
            if one.item.node == node and not outcome.failed:
                _apply(agent, node, one, lease, outcome)

    try:
        _, failed = clients.everywhere([one.item.node for one in planned], work)
    except KeyboardInterrupt:
        revert_group(clients, {one.item.request.id: one.item.node for one in planned})
        raise
    outcome.failed += failed
    if outcome.failed:
        _take_back(clients, planned, outcome)
    return outcome


def _apply(
    agent: AgentClient, node: str, one: Planned, lease: Lease, outcome: Outcome
) -> None:  # fmt: skip
    request, digest = one.item.request, one.digest
    for _ in range(REPLANS):
        try:
            outcome.done[request.id] = agent.apply(request, lease, digest)
            return
        except StalePlan as exc:
            error: FaultError = exc
            digest = agent.plan(request)[1]
        except FaultError as exc:
            outcome.failed.append(Failure(node, request.id, exc))
            return
    outcome.failed.append(Failure(node, request.id, error))


def _take_back(clients: Clients, planned: Sequence[Planned], outcome: Outcome) -> None:
    """Revert everything of the group, what may have been armed unheard as well; then raise."""
    ids = {one.item.request.id: one.item.node for one in planned}
    left = revert_group(clients, ids).failed
    error = _together("everything was taken back", outcome.failed)
    if left:
        error = _together("this could NOT be taken back: see faultctl ls --cluster", left)
    raise error


def revert_group(clients: Clients, ids: Mapping[str, str]) -> Outcome:
    """Take faults back, {id: node}; all are tried. One that never came to be is fine."""
    outcome = Outcome()

    def work(node: str, agent: AgentClient) -> None:
        for fault_id in sorted((i for i, at in ids.items() if at == node), reverse=True):
            try:
                outcome.done[fault_id] = _revert(clients, node, fault_id)
            except UnknownFault:
                continue
            except FaultError as exc:
                outcome.failed.append(Failure(node, fault_id, exc))

    _, failed = clients.everywhere(ids.values(), work)
    outcome.failed += failed
    return outcome


def _revert(clients: Clients, node: str, fault_id: str) -> pb.Fault:
    """With a way that is broken, once more by another: a revert is worth it."""
    try:
        return clients.of(node).revert(fault_id).fault
    except Unreachable:
        clients.drop(node)
        return clients.of(node).revert(fault_id).fault


def renew_group(clients: Clients, ids: Mapping[str, str]) -> Outcome:
    """Word from the owner for each."""
    outcome = Outcome()

    def work(node: str, agent: AgentClient) -> None:
        for fault_id in (i for i, at in ids.items() if at == node):
            try:
                outcome.done[fault_id] = agent.renew(fault_id)
            except FaultError as exc:
                outcome.failed.append(Failure(node, fault_id, exc))
                if isinstance(exc, Unreachable):
                    clients.drop(node)  # a restarted agent is another pod: the next time anew
                    return

    _, failed = clients.everywhere(ids.values(), work)
    outcome.failed += failed
    return outcome


def find_group(
    clients: Clients, nodes: Iterable[str], group: str
) -> tuple[dict[str, tuple[str, pb.Fault]], list[Failure]]:
    """({id: (node, fault)} of a group, or of one fault; nodes that did not answer)."""
    done, failed = clients.everywhere(nodes, lambda node, agent: agent.faults())
    found = {
        fault.id: (node, fault)
        for node, faults in done.items()
        for fault in faults
        if of_group(fault.id, group)
    }
    return found, failed


def _together(what: str, failures: Sequence[Failure]) -> FaultError:
    """One error for all nodes' errors; its class, and so the exit code, is the first one's."""
    first = failures[0].error
    # An agent's own words are for who calls it alone.
    hint = first.hint.replace("faultctl revert ", "faultctl revert --cluster ")
    if len(failures) == 1:
        why = f"{first.why}; {what}" if first.why else what
        return type(first)(f"{failures[0].node}: {first.what}", why, hint)
    shown = "; ".join(str(one) for one in failures[:MAX_NAMED])
    more = f"; and {len(failures) - MAX_NAMED} more" if len(failures) > MAX_NAMED else ""
    kind = type(first) if all(type(f.error) is type(first) for f in failures) else Refused
    return kind(f"{len(failures)} nodes say no: {what}", shown + more, hint)

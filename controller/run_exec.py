"""Carries out a run's actions on its nodes, many nodes at once, one thing at a time on each.

Every node has two lanes: what changes it, in order, and what looks after it. A node that
hangs holds up its own lanes and one thread each, nobody else's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

from controller.clock import boottime_ns
from controller.run_plan import PlanItem, fault_id
from controller.run_ports import NodePort, lease_of, look
from controller.run_state import (
    Action,
    Apply,
    Done,
    FaultView,
    Look,
    NodeEvent,
    Prepare,
    Revert,
    Tend,
    TooLate,
    node_of,
)
from nodeagent.model.errors import FaultError, Refused, StalePlan, UnknownFault, Unreachable

MAX_THREADS = 128
CLOCK_EVERY = 15
MIN_LIFE_NS = 1_000_000_000
"""A node takes no shorter hard end."""
TELLING = frozenset({"ended", "remedied", "biting", "reverting"})
"""Events of a node after which a fault is looked at."""

Report = Callable[[Done], None]


class NotSent(Exception):
    """An error before the request of an Apply, which is not on its node from an earlier try."""

    def __init__(self, error: FaultError) -> None:
        super().__init__(str(error))
        self.error = error


LaneName = Literal["act", "keep"]


class Lanes:
    """Actions in order for each key, on threads that all keys share."""

    def __init__(self, threads: int, carry_out: Callable[[Action], Done], report: Report) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="lane")
        self._carry_out = carry_out
        self._report = report
        self._queues: dict[tuple[str, LaneName], deque[Action]] = {}
        self._mutex = threading.Lock()
        self._closed = False

    def put(self, key: tuple[str, LaneName], action: Action) -> None:
        """Append to a lane."""
        with self._mutex:
            queue = self._queues.get(key)
            if queue is not None:
                if isinstance(action, Revert):
                    # What must end goes before what could begin.
                    ahead = sum(isinstance(waiting, Revert) for waiting in queue)
                    queue.insert(ahead, action)
                else:
                    queue.append(action)
                return
            self._queues[key] = deque()
        self._submit(key, action)

    def _submit(self, key: tuple[str, LaneName], action: Action) -> None:
        future = self._pool.submit(self._carry_out, action)
        future.add_done_callback(lambda done: self._after(key, action, done))

    def _after(self, key: tuple[str, LaneName], action: Action, future: Future[Done]) -> None:
        if future.cancelled():
            return
        bug = future.exception()
        if bug is None:
            self._report(future.result())
        else:
            # A lane never dies of a bug of ours: the run then still takes back what it can.
            error = FaultError("a bug in faultctl", repr(bug))
            self._report(Done(action, boottime_ns(), error=error))
        with self._mutex:
            queue = self._queues[key]
            if not queue or self._closed:
                del self._queues[key]
                return
            following = queue.popleft()
        self._submit(key, following)

    def close(self) -> None:
        """Do not wait for what hangs."""
        with self._mutex:
            self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)


class Effects:
    """Performs actions and reports what came of each."""

    def __init__(
        self, run: str, ports: Mapping[str, NodePort], now: Callable[[], int], report: Report
    ) -> None:
        self._run = run
        self._ports = ports
        self._now = now
        self._digests: dict[str, str] = {}
        self._calls: dict[str, int] = {}
        self.lanes = Lanes(MAX_THREADS, self.carry_out, report)

    def perform(self, action: Action) -> None:
        """Start an action; its result comes through `report`."""
        lane: LaneName = "keep" if isinstance(action, (Prepare, Tend)) else "act"
        self.lanes.put((node_of(action), lane), action)

    def carry_out(self, action: Action) -> Done:
        """Do it now, in this thread."""
        sent = self._now()
        try:
            if isinstance(action, Tend):
                return self._tend(action, sent)
            if isinstance(action, Prepare):
                self._plan(action.item)
                return Done(action, sent)
            view, sent = self._one(action, sent)
            return Done(action, sent, () if view is None else (view,))
        except NotSent as exc:
            return Done(action, sent, error=exc.error, unsent=True)
        except FaultError as exc:
            return Done(action, sent, error=exc)

    def _one(self, action: Apply | Revert | Look, sent: int) -> tuple[FaultView | None, int]:
        port = self._ports[action.item.node]
        found = fault_id(self._run, action.item.agent_slot)
        if isinstance(action, Look):
            return look(port, found), sent
        if isinstance(action, Revert):
            return port.revert(found, action.remedy), sent
        return self._apply(port, action, found)

    def _plan(self, item: PlanItem) -> str:
        _, digest = self._ports[item.node].plan(item.request(self._run))
        self._digests[item.agent_slot] = digest
        return digest

    def _apply(self, port: NodePort, action: Apply, found: str) -> tuple[FaultView, int]:
        item = action.item
        if action.look_first:
            known = look(port, found)
            if known is not None:
                return known, self._now()
        try:
            digest = self._digests.pop(item.agent_slot, None) or self._plan(item)
        except FaultError as exc:
            raise NotSent(exc) from exc
        self._digests.pop(item.agent_slot, None)
        try:
            return self._send(port, action, digest)
        except StalePlan:
            # Another fault changed the node since; a plan of this moment counts.
            digest = self._plan(item)
            self._digests.pop(item.agent_slot, None)
            return self._send(port, action, digest)

    def _send(self, port: NodePort, action: Apply, digest: str) -> tuple[FaultView, int]:
        sent = self._now()
        if sent >= action.not_after:
            raise TooLate(
                "its turn came too late", f"by {(sent - action.not_after) // 1_000_000} ms"
            )
        hard = max(action.end_ns - sent, MIN_LIFE_NS) + action.margin_ns
        request = action.item.request(self._run)
        return port.apply(request, lease_of(action.lease_ns, hard), digest), sent

    def _tend(self, action: Tend, sent: int) -> Done:
        port = self._ports[action.node]
        views: dict[str, FaultView] = {}
        for found in action.renew:
            view = self._renew(port, found)
            if view is not None:
                views[found] = view
        events: list[NodeEvent] = port.events(action.after)
        told = {e.fault for e in events if e.name in TELLING and e.fault in action.ids}
        for found in sorted(told - {v.id for v in views.values() if v.state == "ended"}):
            view = look(port, found)
            if view is not None:
                views[found] = view
        clock, node_ns = None, 0
        number = self._calls[action.node] = self._calls.get(action.node, -1) + 1
        if action.measured or number % CLOCK_EVERY == 0:
            node_ns, offset, error = port.clock()
            clock = (offset, error)
        return Done(action, sent, tuple(views.values()), tuple(events), None, clock, node_ns)

    @staticmethod
    def _renew(port: NodePort, found: str) -> FaultView | None:
        try:
            return port.renew(found)
        except Unreachable:
            raise
        except (Refused, UnknownFault):
            # It has ended, or is ending: the node knows how.
            return look(port, found)

    def close(self) -> None:
        """End the threads and the ports."""
        self.lanes.close()
        for port in self._ports.values():
            port.close()

"""Names whose addresses change while a fault is armed: new ones are added to its filters.

Addresses that a name has no more stay: name servers that rotate give them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from nodeagent.bind.names import resolve_all
from nodeagent.model.errors import FaultError
from nodeagent.model.netspec import Flow
from nodeagent.model.steps.net import TcFilters

PROC = Path("/proc")
MOST = 20_000


class NameFollower:
    """Asks again, each so often, on a thread of its own."""

    def __init__(
        self,
        step: TcFilters,
        ask: Callable[[], Iterable[Flow]],
        add: Callable[[Sequence[Flow]], None],
    ) -> None:
        self._period_s = step.refresh_s
        self._ask, self._add = ask, add
        self._known = set(step.flows)
        self._end = threading.Event()
        self._adding = threading.Lock()
        self.added: list[str] = []
        """Addresses that the names have got since, as networks."""
        self.failed = ""
        """Why the last question had no answer; empty when it had one."""
        self._thread = threading.Thread(target=self._run, name="names", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Nothing is added after this returns; a question that is under way is not waited for."""
        self._end.set()
        with self._adding:
            pass

    def _run(self) -> None:
        while not self._end.wait(self._period_s):
            self.look()

    def look(self) -> None:
        """Ask once, and add what is new."""
        try:
            new = [flow for flow in self._ask() if flow not in self._known]
            with self._adding:
                if new and not self._end.is_set() and len(self._known) + len(new) <= MOST:
                    self._add(new)
                    self._known.update(new)
                    self.added += sorted({str(flow.remote) for flow in new})
            self.failed = ""
        except (FaultError, OSError) as exc:  # it is asked again
            self.failed = str(exc)


def addresses_now(step: TcFilters) -> list[Flow]:
    """The flows of a step's names with their addresses now. Raises Refused, OSError."""
    wanted = {flow.name for flow in step.names if flow.name is not None}
    found = dict(resolve_all(step.netns, PROC, step.resolver_pid, wanted))
    return [flow.at(address) for flow in step.names for address in found.get(str(flow.name), ())]

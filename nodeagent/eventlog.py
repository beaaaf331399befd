"""The journal's events as log lines: what was armed, how it ended, and what went wrong."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress

from nodeagent.journal import Journal
from nodeagent.log import about
from nodeagent.model.errors import FaultError
from nodeagent.model.record import EndReason, Event

LOG = logging.getLogger(__name__)
WORDS = {
    "armed": "armed",
    "ended": "ended",
    "remedied": "remedied",
    "apply-failed": "could not be armed",
    "reaction-failed": "a reaction to what happened failed",
    "evidence-lost": "its evidence was lost",
}
"""Events that are lines. Others (a first hit, a healed sector) would tell what sort it is."""
WARNINGS = frozenset({"apply-failed", "reaction-failed", "evidence-lost"})
LOST = frozenset({EndReason.AGENT_LOST, EndReason.REBOOTED})
"""Ends that nobody asked for and no lease brought."""
AGAIN_S = 5.0


class EventLog:
    """Follows a journal, from its newest event on. Not its writer: a line never delays a revert."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._after = 0
        self._stop = False
        self._thread = threading.Thread(target=self._run, name="event-log", daemon=True)

    def skip(self) -> None:
        """What is in the journal already is no line. Raises FaultError."""
        self._after = self._journal.last_event()

    def flush(self) -> bool:
        """Say what is new; whether there was anything. Raises FaultError."""
        events = self._journal.events(self._after)
        for event in events:
            self._say(event)
        return bool(events)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Say what is left, and stop the thread; before the journal is closed."""
        with self._journal.changed:
            self._stop = True
            self._journal.changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(timeout=10)

    def _run(self) -> None:
        while True:
            with self._journal.changed:
                news = self._news()
                if not news:
                    if self._stop:
                        return
                    self._journal.changed.wait()
                    continue
            for event in news:
                self._say(event)

    def _news(self) -> list[Event]:
        try:
            return self._journal.events(self._after)
        except FaultError as exc:  # the next write brings another try
            LOG.error("the journal's events cannot be read", extra={"details": str(exc)})
            return []

    def _say(self, event: Event) -> None:
        """One event as a line, if it is to be one."""
        self._after = event.seq
        words = WORDS.get(event.type)
        if words is None:
            return
        reason = str(event.data.get("reason", "")) if event.type == "ended" else ""
        bad = event.type in WARNINGS or reason in LOST
        LOG.log(
            logging.WARNING if bad else logging.INFO,
            f"{words}: {reason}" if reason else words,
            extra=about(event.fault_id, self._details(event), event=event.type, reason=reason),
        )

    def _details(self, event: Event) -> str:
        """The kind and its target, and what the event tells."""
        found = []
        with suppress(FaultError):
            if (fault := self._journal.find_fault(event.fault_id)) is not None:
                found.append(f"{fault.kind} on {json.dumps(fault.plan['target'])}")
        return "; ".join([*found, json.dumps(event.data)])

"""Takes the samples of many probes at their intervals, each in a thread of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.probes.command import NodeOutcome
from controller.probes.measure import Meter, Surroundings
from controller.probes.outcome import Outcome
from controller.probes.spec import ProbeBase
from controller.records import Phase, SampleRecord


@dataclass(frozen=True)
class RunClock:
    """The clock of a run: (ns from the origin, wall clock in RFC 3339)."""

    now: Callable[[], tuple[int, str]]


Sink = Callable[[SampleRecord], None]


class Sampler:
    """Runs probes until it is stopped; every sample goes to `sink`, from many threads.

    Starts are at fixed multiples of the interval from the start of the sampler, so that a slow
    sample shifts none after it; a start that fell into a running sample is left out, and the
    next sample says how many were.
    """

    def __init__(
        self,
        probes: Mapping[str, ProbeBase],
        sink: Sink,
        clock: RunClock,
        surroundings: Surroundings | None = None,
    ) -> None:
        self._probes = dict(probes)
        self._sink = sink
        self._clock = clock
        self._around = surroundings
        self._phase: Phase = "before"
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    @property
    def phase(self) -> Phase:
        """Of the samples that start now."""
        return self._phase

    @phase.setter
    def phase(self, value: Phase) -> None:
        self._phase = value

    def start(self) -> None:
        """Start sampling."""
        origin = time.monotonic()
        for name, spec in self._probes.items():
            thread = threading.Thread(
                target=self._loop, args=(name, spec, origin), name=f"probe {name}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def stop(self, wait_s: float = 0.0) -> list[str]:
        """Start no more samples; wait for those under way. Names of probes that still hang.

        What is not finished then is not recorded: a hole in the series, which never passes.
        """
        self._stop.set()
        deadline = time.monotonic() + wait_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return [t.name.removeprefix("probe ") for t in self._threads if t.is_alive()]

    def _loop(self, name: str, spec: ProbeBase, origin: float) -> None:
        meter = Meter(spec, self._around)
        interval = spec.interval.total_seconds()
        number, skipped = 0, 0
        while not self._stop.is_set():
            self._take(name, meter, skipped)
            last = number
            number = max(number + 1, int((time.monotonic() - origin) / interval) + 1)
            skipped = number - last - 1
            if self._stop.wait(max(0.0, origin + number * interval - time.monotonic())):
                return

    def _take(self, name: str, meter: Meter, skipped: int) -> None:
        t_ns, wall = self._clock.now()
        phase = self._phase
        outcome, took = meter.sample()
        self._sink(sample_record(name, outcome, took, (t_ns, wall), phase, meter.spec, skipped))


def sample_record(
    name: str,
    outcome: Outcome,
    duration_ns: int,
    at: tuple[int, str],
    phase: Phase,
    spec: ProbeBase,
    skipped: int = 0,
) -> SampleRecord:
    """A sample as it is recorded."""
    data: dict[str, Any] = dict(outcome.data)
    if skipped:
        data["skipped"] = skipped
    return SampleRecord(
        t_ns=at[0],
        wall=at[1],
        probe=name,
        phase=phase,
        verdict=outcome.verdict,
        duration_ns=duration_ns,
        node=next(iter(spec.places), None),
        node_ns=outcome.node_ns if isinstance(outcome, NodeOutcome) else None,
        reason=outcome.reason,
        data=data,
    )

"""All loads of an experiment as one thing that measures beside its probes."""

from __future__ import annotations

import time
from collections.abc import Mapping

from controller.load.driver import LoadDriver, LoadResult
from controller.load.spec import LoadSpec
from controller.probes.sampler import RunClock, Sink
from controller.records import Phase


class LoadSampler:
    """Plays loads until they end or are stopped; every window's sample goes to `sink`.

    Stages count from the origin of the run; before it, the first stage's rate holds.
    """

    def __init__(self, loads: Mapping[str, LoadSpec], sink: Sink, clock: RunClock) -> None:
        self._drivers = [
            LoadDriver(name, spec, sink, clock, aligned=True) for name, spec in loads.items()
        ]
        self.results: dict[str, LoadResult] = {}
        self._phase: Phase = "before"

    @property
    def phase(self) -> Phase:
        """Of the samples from now on."""
        return self._phase

    @phase.setter
    def phase(self, value: Phase) -> None:
        self._phase = value
        for driver in self._drivers:
            driver.phase = value

    def start(self) -> None:
        """Begin all loads."""
        for driver in self._drivers:
            driver.start()

    def stop(self, wait_s: float = 0.0) -> list[str]:
        """Send nothing more, wait for open requests; names of loads that still hang then.

        `results` has the others. Raises what a driver raised.
        """
        for driver in self._drivers:
            driver.cease()
        deadline = time.monotonic() + wait_s
        hanging = []
        for driver in self._drivers:
            if driver.wait(max(0.0, deadline - time.monotonic())):
                self.results[driver.name] = driver.stop()
            else:
                hanging.append(driver.name)
        return hanging

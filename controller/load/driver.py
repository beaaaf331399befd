"""The open-loop driver: every request starts at its time, whatever became of the others.

A request that cannot start in time, or not at all, is the driver's own failure and said so:
a load that slows down when its target does (coordinated omission) measures nothing.
Of the well-kept libraries none is open-loop, seedable and usable from Python at once, so the
clock is here; protocols are theirs (aiohttp, grpc.aio, psycopg).
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from fractions import Fraction
from typing import Any

from controller.load.arrivals import arrivals, total_ns
from controller.load.clients import Client, client_for
from controller.load.spec import LoadSpec
from controller.load.windows import Tally, judge, ns
from controller.probes.sampler import RunClock, Sink
from controller.records import Phase, SampleRecord
from controller.score import fixed

_TAKEN_OVER_NS = 1_000_000_000
_SPIN_NS = 1_000_000
"""Timers of an event loop come up to a millisecond late (epoll_wait(2) counts them)."""


@dataclass(frozen=True)
class LoadResult:
    """A whole load."""

    tally: Tally
    elapsed_ns: int
    planned_ns: int

    @property
    def held(self) -> bool:
        """Whether every request started at its time."""
        return not self.tally.trouble

    def data(self) -> dict[str, Any]:
        """Plain data."""
        seconds = Fraction(max(1, self.planned_ns), 10**9)
        rate = fixed(self.tally.planned / seconds, 2)
        return {"trouble": self.tally.trouble, "rate": rate, **self.tally.data()}


class LoadDriver:
    """One load. `run` blocks; `start` and `stop` run it beside other work, in a thread."""

    def __init__(
        self,
        name: str,
        spec: LoadSpec,
        sink: Sink,
        clock: RunClock,
        client: Client | None = None,
        *,
        aligned: bool = False,
    ) -> None:
        """aligned: the stages count from the origin of the run's clock, not from the moment at
        which the driver is ready."""
        self.name = name
        self.spec = spec
        self.phase: Phase = "during"
        self._sink = sink
        self._clock = clock
        self._client = client or client_for(spec)
        self._aligned = aligned
        self._base_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._result: LoadResult | BaseException | None = None
        self._window_ns = ns(spec.window)
        self._lag_ns = ns(spec.lag)
        self._tallies: dict[int, Tally] = {}
        self._total = Tally()
        self._open: set[asyncio.Task[None]] = set()
        self._emitted = 0

    def start(self) -> None:
        """Begin in a thread of its own."""

        def work() -> None:
            try:
                self._result = self.run()
            except BaseException as exc:  # noqa: BLE001 - raised again by `stop`
                self._result = exc

        self._thread = threading.Thread(target=work, name=f"load {self.name}", daemon=True)
        self._thread.start()

    def cease(self) -> None:
        """No more requests."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """Whether it was over within a time."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def stop(self) -> LoadResult:
        """No more requests; wait for the open ones. Raises what the driver raised."""
        self._stop.set()
        if self._thread is None:
            raise RuntimeError("the load was never started")
        self._thread.join()
        if not isinstance(self._result, LoadResult):
            raise self._result or RuntimeError("the load has no result")
        return self._result

    def run(self) -> LoadResult:
        """All stages. Raises InvalidSpec for a request that cannot be made."""
        return asyncio.run(self._run())

    async def _run(self) -> LoadResult:
        await self._client.open()
        now = self._clock.now()[0]
        began, self._base_ns = (now, 0) if self._aligned else (0, now)
        origin = time.monotonic_ns() - began
        self._emitted = began // self._window_ns
        emitter = asyncio.create_task(self._emit_loop(origin))
        try:
            await self._send_all(origin, began)
            if self._open:
                await asyncio.wait(self._open)
        finally:
            emitter.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await emitter
            await self._client.close()
        ended = time.monotonic_ns() - origin
        last = min(total_ns(self.spec.stages), ended)
        self._emit(-(-last // self._window_ns))
        return LoadResult(self._total, ended - began, max(1, last - began))

    def _dues(self, began: int) -> Iterator[int]:
        """Planned starts from the origin of the run's clock.

        Before the origin the first stage's rate holds, so that a baseline has its load, and
        the stages are the same however long that was. A load that begins later (its run was
        taken over) leaves out what is past.
        """
        if began < 0:
            lead = timedelta(microseconds=-began // 1000)
            first = self.spec.stages[0].model_copy(update={"to": None, "duration": lead})
            before = self.spec.model_copy(update={"stages": (first,), "seed": self.spec.seed + 1})
            if lead:
                yield from (began + due for due in arrivals(before))
        late = began > _TAKEN_OVER_NS
        yield from (due for due in arrivals(self.spec) if not late or due >= began)

    async def _send_all(self, origin: int, began: int) -> None:
        for due in self._dues(began):
            if not await self._until(origin + due):
                return
            self._launch(origin, due)
            await asyncio.sleep(0)  # a driver that is behind must still let requests run
        await self._until(origin + total_ns(self.spec.stages))

    async def _until(self, moment: int) -> bool:
        """Wait for a moment; False if the load is stopped before it."""
        while (left := moment - time.monotonic_ns()) > 0:
            if self._stop.is_set():
                return False
            await asyncio.sleep(min(0.1, max(0, left - _SPIN_NS) / 1e9))
        return not self._stop.is_set()

    def _launch(self, origin: int, due: int) -> None:
        tally = self._tallies.setdefault(due // self._window_ns, Tally())
        tally.planned += 1
        if len(self._open) >= self.spec.in_flight:
            tally.dropped += 1
            return
        task = asyncio.get_running_loop().create_task(self._one(origin + due, tally))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _one(self, due: int, tally: Tally) -> None:
        lag = time.monotonic_ns() - due
        tally.max_lag_ns = max(tally.max_lag_ns, lag)
        if lag > self._lag_ns:
            tally.late += 1
        reason = await self._client.send()
        if reason:
            tally.failed += 1
            tally.reasons[reason] += 1
        else:
            tally.ok += 1
            tally.latencies_ns.append(time.monotonic_ns() - due)

    async def _emit_loop(self, origin: int) -> None:
        while True:
            await asyncio.sleep(self._window_ns / 1e9 / 4)
            self._emit((time.monotonic_ns() - origin) // self._window_ns)

    def _emit(self, until: int) -> None:
        """Samples of the windows before `until`, in order, as soon as all answers are in."""
        while self._emitted < until:
            tally = self._tallies.get(self._emitted, Tally())
            if not tally.done:
                return
            self._tallies.pop(self._emitted, None)
            self._total.add(tally)
            self._sink(self._record(tally, self._base_ns + self._emitted * self._window_ns))
            self._emitted += 1

    def _record(self, tally: Tally, t_ns: int) -> SampleRecord:
        outcome = judge(self.spec, tally)
        return SampleRecord(
            t_ns=t_ns,
            wall=self._clock.now()[1],
            probe=self.name,
            phase=self.phase,
            verdict=outcome.verdict,
            duration_ns=self._window_ns,
            reason=outcome.reason,
            data=outcome.data,
        )

"""The one loop with a clock: wakes when the core has something due, and feeds it what comes in.

The clock is CLOCK_BOOTTIME, counted from the origin of the run; every wake-up is computed
from the plan, never from the last one, so that nothing drifts. Wall time is only recorded.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from controller.clock import boottime_ns
from controller.guards import Watch
from controller.recorder import Recorder, RecordLost, Tail
from controller.records import FILE_OF, AnyRecord, Phase, Record, SampleRecord, Verdict
from controller.run_commands import command
from controller.run_control import answer, pending
from controller.run_core import Core
from controller.run_exec import Effects
from controller.run_results import Results
from controller.run_state import Action, Done

HOUSEKEEPING_NS = 500_000_000
JUMP_NS = 1_000_000_000
AT_ONCE = 32


class Sampler(Protocol):
    """Something that measures in threads of its own, until it is stopped."""

    phase: Phase
    """Of the samples that start from now on."""

    def start(self) -> None:
        """Begin to measure."""

    def stop(self, wait_s: float = 0.0) -> list[str]:
        """Measure no more; names of what still hangs after the wait."""


class View(Protocol):
    """Somebody who watches a run."""

    names: dict[str, str]
    """What to call a fault; set before anything is shown."""

    def show(self, core: Core, health: dict[str, Verdict], now: int) -> None:
        """Called about twice a second."""

    def record(self, record: Record) -> None:
        """Called for every record, in order."""


class Overseer(Protocol):
    """Somebody who reads the record as it is written, and may act on it."""

    def tell(self, records: Iterable[AnyRecord | Record]) -> None:
        """Records of the run and of the operator, in order."""

    def look(self, now: int) -> list[Action]:
        """Called about twice a second; what follows."""


Word = Callable[[int], list[Action]]
"""Something that was seen beside the run: what follows from it at a moment."""


@dataclass
class Wanted:
    """Steady state: probes that must pass before anything is broken, and how often."""

    probes: frozenset[str]
    share: float
    passed: dict[str, int] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def count(self, probe: str, verdict: Verdict) -> None:
        """A sample before the timeline."""
        if probe in self.probes:
            self.seen[probe] = self.seen.get(probe, 0) + 1
            self.passed[probe] = self.passed.get(probe, 0) + (verdict == "pass")

    def unhealthy(self) -> list[str]:
        """Probes that were not healthy, or not measured."""
        return [
            name
            for name in sorted(self.probes)
            if self.passed.get(name, 0) * 100 < self.share * self.seen.get(name, 0)
            or not self.seen.get(name, 0)
        ]


class Runner:
    """Plays one run to its end. Call `play` once."""

    def __init__(
        self,
        core: Core,
        recorder: Recorder,
        watch: Watch,
        origin_ns: int,
        views: Sequence[View] = (),
        steady: Wanted | None = None,
        overseers: Sequence[Overseer] = (),
    ) -> None:
        self.core = core
        self.recorder = recorder
        self.steady = steady
        self._overseers = overseers
        self._operator = Tail(recorder.folder / FILE_OF["submission"])
        self.health: dict[str, Verdict] = {}
        self._watch = watch
        self._results = Results(core)
        self._origin = origin_ns
        self._views = views
        self._inbox: queue.SimpleQueue[Done | SampleRecord | Word | str] = queue.SimpleQueue()
        self._lost: RecordLost | None = None
        self._samplers: list[Sampler] = []
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="disk")
        self._syncing: Future[None] | None = None
        self._perform: Callable[[Action], None] = _nobody
        self._carry_out: Callable[[Action], Done] = _nobody
        self._drift = time.time_ns() - boottime_ns()

    # --- what others call, from any thread ---------------------------------------------------

    def now(self) -> int:
        """Nanoseconds since the origin."""
        return boottime_ns() - self._origin

    def report(self, found: Done | SampleRecord) -> None:
        """A result or a sample."""
        self._inbox.put(found)

    def hear(self, word: Word) -> None:
        """What somebody saw; acted on at once, by the loop's own thread."""
        self._inbox.put(word)

    def interrupt(self, by: str = "interrupt") -> None:
        """End the run and take everything back. Twice is the same as once."""
        self._inbox.put(by)

    def emit(self, record: Record) -> None:
        """Writes a record; a full disk ends the run, but not before everything is back."""
        try:
            self.recorder.write(record)
        except RecordLost as exc:
            self._lost = exc
        for overseer in self._overseers:
            overseer.tell([record])
        for view in self._views:
            view.record(record)

    # --- the loop --------------------------------------------------------------------------------

    def play(
        self, effects: Effects, samplers: Iterable[Sampler], first: Iterable[Action] = ()
    ) -> None:
        """To the end. Raises RecordLost after everything was taken back."""
        self._perform, self._carry_out = effects.perform, effects.carry_out
        self._samplers = list(samplers)
        self._set_phase()
        for sampler in self._samplers:
            sampler.start()
        try:
            self._dispatch(first)
            self._loop()
        finally:
            for sampler in self._samplers:
                sampler.stop()
            self._disk.shutdown()
        if self._lost is not None:
            raise self._lost

    def _loop(self) -> None:
        keeping = self.now()
        while not self.core.finished:
            now = self.now()
            if not self.core.started and now >= 0:
                self._begin(now)
            due = self.core.next_due() if self.core.started else 0
            wake = keeping if due is None else min(due, keeping)
            self._take(max(wake - self.now(), 0))
            now = self.now()
            if self.core.started:
                self._dispatch(self.core.tick(now))
            if now >= keeping:
                keeping = now + HOUSEKEEPING_NS
                self._housekeeping(now)
        for node in self.core.nodes:
            self._last_words(node)

    def _take(self, wait_ns: int) -> None:
        """What has come in, waiting for the first at most so long; never so much that a start
        is late."""
        try:
            self._handle(
                self._inbox.get(timeout=wait_ns / 1e9) if wait_ns else self._inbox.get_nowait()
            )
            for _ in range(AT_ONCE):
                self._handle(self._inbox.get_nowait())
        except queue.Empty:
            return

    def _handle(self, found: Done | SampleRecord | Word | str) -> None:
        now = self.now()
        if isinstance(found, Done):
            self._dispatch(self._results.done(now, found))
        elif isinstance(found, SampleRecord):
            self._sample(now, found)
        elif isinstance(found, str):
            self._dispatch(command(self.core, now, "stop", found)[1])
        else:
            self._dispatch(found(now))

    def _dispatch(self, actions: Iterable[Action]) -> None:
        self._set_phase()
        for action in actions:
            self._perform(action)

    def _begin(self, now: int) -> None:
        bad = self.steady.unhealthy() if self.steady is not None else []
        if not bad:
            self._dispatch(self.core.begin(now))
            return
        self.core.started = True
        self.core.event("not-steady", probes=bad)
        self.core.stop(now, "not-steady")

    def _sample(self, now: int, found: SampleRecord) -> None:
        if found.phase == "before" and self.steady is not None:
            self.steady.count(found.probe, found.verdict)
        self.health[found.probe] = found.verdict
        self.emit(found)
        self._dispatch(self._watch.sample(now, found.probe, found.verdict))

    def _set_phase(self) -> None:
        core = self.core
        phase: Phase = "before" if not core.started else "after" if core.stopping else "during"
        for sampler in self._samplers:
            sampler.phase = phase

    def _housekeeping(self, now: int) -> None:
        if self._syncing is None or self._syncing.done():
            # In a thread of its own: a busy disk takes its time, and starts do not wait.
            self._syncing = self._disk.submit(self.recorder.sync)
        if (self._lost or self.recorder.failed) and not self.core.stopping:
            self._lost = self._lost or RecordLost("the run folder cannot be written")
            self.core.started = True
            self._dispatch(self.core.stop(now, "disk-full"))
        for path, name in pending(self.recorder.folder):
            code, actions = command(self.core, now, name)
            self._dispatch(actions)
            answer(path, code)
        said = self._operator.more()
        for overseer in self._overseers:
            overseer.tell(said)
            self._dispatch(overseer.look(now))
        drift = time.time_ns() - boottime_ns()
        if abs(drift - self._drift) > JUMP_NS:
            self.core.event("clock-jump", by_ns=drift - self._drift)
            self._drift = drift
        for view in self._views:
            view.show(self.core, self.health, now)

    def _last_words(self, node: str) -> None:
        """Events that a node wrote after it was last asked."""
        state = self.core.nodes[node]
        if state.lost_since is None:
            done = self._carry_out(self._results.last_tend(state))
            self._results.done(self.now(), done)


def _nobody(action: Action) -> NoReturn:
    raise RuntimeError(f"nobody carries out {action}: the run is not playing")

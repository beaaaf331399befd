"""While a run is played: when its oracles measure. Noise keeps out then; after it, all is over.

A hold window begins with the operator's word, with a repair, or at the cap, so that most
windows are not known before the run. Pure: records and moments in, actions out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from controller.experiment import Experiment
from controller.experiment_parts import parse_parts
from controller.oracle import nanoseconds, oracles_of
from controller.oracle_spec import OracleSpec
from controller.records import (
    AnyRecord,
    FaultArmed,
    FaultEnded,
    Record,
    RunEvent,
    SampleRecord,
    Submission,
)
from controller.records_base import MOVED_AWAY
from controller.run_core import Core
from controller.run_state import Action, ItemState, Life

PATIENCE_NS = 15_000_000_000
"""After the last hold window: how long samples that began in it are waited for."""

Span = tuple[int, int]


@dataclass(frozen=True)
class Rules:
    """What an experiment says of measuring."""

    oracles: Mapping[str, OracleSpec] = field(default_factory=dict)
    probes: frozenset[str] = frozenset()
    early_end: bool = True
    noise_too: bool = False
    """Noise may go on while an oracle measures."""

    @classmethod
    def of(cls, experiment: Experiment) -> Rules:
        """The rules of an experiment; a metastable one is never ended early, as its overload
        has a hold window of its own."""
        metastable = any(g.overload is not None for g in experiment.groups.values())
        return cls(
            parse_parts("oracles", experiment.oracles),
            frozenset(experiment.probes),
            experiment.early_end and not metastable,
            experiment.noise is not None and experiment.noise.in_oracle_windows,
        )


class Measuring:
    """Knows the hold windows so far. One for a run; records come in any order once."""

    def __init__(self, core: Core, rules: Rules) -> None:
        self._core = core
        self._faults = [s for s in core.order if s.item.role == "fault"]
        self._rules = rules
        self._specs: dict[str, list[OracleSpec]] = {}
        self._armed: dict[str, int] = {}
        self._ended: dict[str, tuple[int, str]] = {}
        self._words: list[Submission] = []
        self._sampled: dict[str, int] = {}

    def tell(self, records: Iterable[AnyRecord | Record]) -> None:
        """Records of the run as they are written."""
        for record in records:
            if isinstance(record, SampleRecord):
                self._sampled[record.probe] = record.t_ns
            elif isinstance(record, FaultArmed) and record.role == "fault":
                self._armed[record.fault] = record.t_ns
            elif isinstance(record, FaultEnded) and record.role == "fault":
                away = record.by == MOVED_AWAY
                self._ended[record.fault] = (record.t_ns, "remedied" if away else record.reason)
            elif isinstance(record, Submission) and record.kind == "mitigation" and record.accepted:
                self._words.append(record)

    def look(self, now: int) -> list[Action]:
        """What follows at a moment: noise is taken back, or the run is over."""
        core = self._core
        if not self._rules.oracles or not core.started or core.stopping:
            return []
        core.now = max(core.now, now)
        windows = self.windows()
        actions: list[Action] = []
        measured = [(node, end) for node, (start, end) in windows if start <= now < end]
        for node, end in measured:
            core.measure(node, end)
        if measured and not self._rules.noise_too:
            actions += self._quiet(max(end for _, end in measured))
        if self._rules.early_end and core.paused_at is None and self._over(now, windows):
            core.event("judged", windows=len(windows))
            actions += core.stop(now, "judged")
        return actions

    def windows(self) -> list[tuple[str, Span]]:
        """(node, hold window), those that are known by now, for each fault and oracle."""
        armed = (s for s in self._faults if s.id in self._armed)
        every = [(s.item.node, w) for s in armed for w in self._windows(s)]
        return [(node, window) for node, window in every if window is not None]

    # --- one fault -------------------------------------------------------------------------

    def _windows(self, state: ItemState) -> list[Span | None]:
        specs = self._specs.get(state.id)
        if specs is None:
            found = oracles_of(state.item.slot, self._rules.oracles)
            specs = self._specs[state.id] = [spec for _, spec in found]
        return [self._window(state, spec) for spec in specs]

    def _window(self, state: ItemState, spec: OracleSpec) -> Span | None:
        """As controller.oracle.moment_of will have it, from what is known while it happens."""
        injected = self._armed.get(state.id)
        if injected is None:
            return None
        hold, cap = nanoseconds(spec.hold), injected + nanoseconds(spec.cap)
        ended, how = self._ended.get(state.id, (None, ""))
        if spec.judge == "repair":
            if ended is not None and how != "remedied":
                return ended, ended  # nobody repaired it: there is nothing to measure
            begun = ended
        else:
            words = [w.t_ns for w in self._words if w.fault in ("", state.id)]
            begun = min((t for t in words if injected < t <= cap), default=None)
        if begun is None or begun > cap:
            begun = cap if cap <= self._core.now else None
        return None if begun is None else (begun, begun + hold)

    # --- what follows ------------------------------------------------------------------------

    def _quiet(self, until: int) -> list[Action]:
        """No noise before a moment: none starts, and what is there is taken back."""
        core = self._core
        if until > core.quiet_until:
            core.quiet_until = until
            core.event("quiet", until_ns=until)
        live = [s for s in core.live() if s.item.role == "noise" and s.life is Life.ARMED]
        return [a for state in live for a in core.take_back(state, "oracle-window")]

    def _over(self, now: int, windows: list[tuple[str, Span]]) -> bool:
        """Whether every fault of the plan was judged, or was never there."""
        last = max((end for _, (_, end) in windows), default=0)
        if now < last:
            return False
        judged = 0
        for state in self._faults:
            if state.life is Life.DROPPED:
                continue
            if state.id not in self._armed:
                return False
            if None in self._windows(state):
                return False
            judged += 1
        if not judged:
            return False
        return now >= last + PATIENCE_NS or all(
            self._sampled.get(name, now) >= last for name in self._rules.probes
        )


def resumed(measuring: Measuring, core: Core, records: Iterable[AnyRecord]) -> None:
    """What the controller before has written; a window that is under way stays quiet."""
    for record in records:
        if isinstance(record, RunEvent) and record.name == "quiet":
            core.quiet_until = max(core.quiet_until, int(record.data["until_ns"]))
        measuring.tell([record])

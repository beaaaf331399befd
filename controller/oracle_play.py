"""Plays the negative control: each fault is left alone, then remedied, then judged as repaired.

The remedy is the act that the experiment has for it; without one the node takes the fault
back in the name of an accepted remedy. `oracle_control.check` reads what came of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from controller.experiment import ActEntry, Experiment
from controller.experiment_parts import parse_parts
from controller.kube.kinds import cluster_kinds
from controller.oracle import nanoseconds, oracles_of
from controller.oracle_control import ACTS
from controller.probes.command import Agents, run
from controller.records import AnyRecord, FaultArmed, FaultEnded, Record
from controller.run_core import Core
from controller.run_plan import PlanItem, RunPlan
from controller.run_state import Action, ItemState, Life
from nodeagent.model.errors import InvalidSpec

MARGIN_NS = 2_000_000_000
UNNAMED = "control"


@dataclass(frozen=True)
class Pacing:
    """Nanoseconds; settle: for a symptom to show, and for a system to recover."""

    settle: int

    def alone(self, hold: int) -> int:
        """How long a fault is left alone: the oracle must fail for a whole hold time."""
        return self.settle + hold + MARGIN_NS


def holds(experiment: Experiment) -> Callable[[str], int]:
    """Slot -> the longest hold time of its oracles."""
    oracles = parse_parts("oracles", experiment.oracles)

    def longest(slot: str) -> int:
        return max(nanoseconds(spec.hold) for _, spec in oracles_of(slot, oracles))

    return longest


def control_plan(plan: RunPlan, experiment: Experiment, pacing: Pacing) -> RunPlan:
    """The faults of a plan, without noise, living long enough. Raises InvalidSpec for a
    metastable group: its trigger is taken away by plan, and the overload is not a fault."""
    hold = holds(experiment)
    items, end = [], plan.end_ns
    for item in plan.of("fault"):
        if item.group_type == "metastable":
            raise InvalidSpec(
                f"{item.slot} is of a metastable group",
                "its trigger goes by plan, so that no control can remedy it",
                "leave the group out of the file that is checked",
            )
        if item.on_objects and cluster_kinds()[item.kind].at_once:
            raise InvalidSpec(
                f"{item.slot} is over at once",
                f"{item.kind} arms nothing that a control could remedy",
                "leave it out of the file that is checked",
            )
        act_s = max([a.timeout.total_seconds() for _, a in acts_of(experiment, item)], default=0)
        last = item.start_ns + pacing.alone(hold(item.slot)) + int(act_s * 10**9)
        items.append(item.model_copy(update={"end_ns": max(item.end_ns, last + MARGIN_NS)}))
        end = max(end, last + 2 * pacing.settle + hold(item.slot) + 10 * MARGIN_NS)
    return plan.model_copy(update={"items": tuple(items), "end_ns": end})


def named(item: PlanItem) -> tuple[str, ...]:
    """A fault's remedies, those of its truth first; never empty."""
    return (*(item.truth.remedies if item.truth else ()), *item.remedies, UNNAMED)


def acts_of(experiment: Experiment, item: PlanItem) -> list[tuple[str, ActEntry]]:
    """The acts for a fault by the names of its remedies, in their order."""
    known = experiment.remedies
    found = {name: known[name] for name in named(item) if name in known}
    return [(name, entry.act) for name, entry in found.items() if entry.act is not None]


class Player:
    """The overseer of a control's run: it acts when a fault was alone for long enough."""

    def __init__(
        self,
        core: Core,
        experiment: Experiment,
        pacing: Pacing,
        agents: Agents,
        submit: Callable[[str], object],
    ) -> None:
        """submit: hands in that a fault, by its id, is repaired."""
        self._core = core
        self._submit = submit
        self._experiment = experiment
        self._pacing = pacing
        self._agents = agents
        self._hold = holds(experiment)
        self._armed: dict[str, int] = {}
        self._acts: dict[str, Future[str]] = {}
        self._done: dict[str, int] = {}
        """Fault -> when its remedy was over."""
        self._submitted: set[str] = set()
        self._hands = ThreadPoolExecutor(4, thread_name_prefix="act")

    def tell(self, records: Iterable[AnyRecord | Record]) -> None:
        """Notes when faults begin and end."""
        for record in records:
            if isinstance(record, FaultArmed) and record.role == "fault":
                self._armed[record.fault] = record.t_ns
            elif isinstance(record, FaultEnded) and record.role == "fault":
                self._done.setdefault(record.fault, record.t_ns)

    def look(self, now: int) -> list[Action]:
        """Begins the remedies that are due, and hands in the word for those that are over."""
        actions: list[Action] = []
        for fault, armed in self._armed.items():
            state = self._core.states[fault]
            if fault not in self._acts and now >= armed + self._alone(state):
                actions += self._act(state)
            act = self._acts.get(fault)
            if act is not None and act.done() and fault not in self._done:
                self._said(state, act)
            since = self._done.get(fault)
            if fault in self._submitted or since is None or now < since + self._pacing.settle:
                continue
            self._submitted.add(fault)
            self._submit(fault)
        return actions

    def _alone(self, state: ItemState) -> int:
        return self._pacing.alone(self._hold(state.item.slot))

    def _act(self, state: ItemState) -> list[Action]:
        acts = acts_of(self._experiment, state.item)
        name = acts[0][0] if acts else named(state.item)[0]
        self._core.event(ACTS, state.item.node, fault=state.id, remedy=name, act=bool(acts))
        if acts:
            self._acts[state.id] = self._hands.submit(self._carry_out, acts[0][1])
            return []
        self._acts[state.id] = Future()
        if state.life is not Life.ARMED:
            return []
        return self._core.take_back(state, f"remedy {name}", name)

    def _carry_out(self, act: ActEntry) -> str:
        found = run(act.command, act.timeout, act.node, self._agents)
        return "" if found.verdict == "pass" else found.reason or found.verdict

    def _said(self, state: ItemState, act: Future[str]) -> None:
        """An act that failed is handed in as well: the oracle has to see through it."""
        self._done[state.id] = self._core.now
        self._core.event("control-acted", state.item.node, fault=state.id, error=act.result())

    def close(self) -> None:
        """Wait for nothing."""
        self._hands.shutdown(wait=False, cancel_futures=True)

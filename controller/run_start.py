"""From an experiment file to a played, judged and sealed run; and from a run folder onwards."""

from __future__ import annotations

import platform
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import nodeagent
from controller.client import AgentClient
from controller.clock import boot_id, boottime_ns, wall
from controller.experiment import Experiment
from controller.experiment_check import Loaded
from controller.experiment_parts import parse_parts
from controller.experiment_plan import ns
from controller.guards import Watch
from controller.kube.reader import ObjectReader
from controller.kube.ways import Ways
from controller.live import names_of
from controller.load.sampler import LoadSampler
from controller.probes.measure import Surroundings
from controller.probes.sampler import RunClock
from controller.probes.sampler import Sampler as ProbeSampler
from controller.recorder import Recorder, read_records
from controller.records import (
    FaultPlanned,
    Record,
    RunEvent,
    RunHeader,
)
from controller.run import Overseer, Runner, Sampler, View, Wanted
from controller.run_core import Core
from controller.run_exec import Effects
from controller.run_finish import Outcome, finish
from controller.run_measuring import Measuring, Rules, resumed
from controller.run_nodes import Ports, open_ports
from controller.run_object_node import with_ledger
from controller.run_plan import RunPlan, fault_id
from controller.run_ports import RunPort
from controller.run_preflight import Preview, describe_nodes, preview, refuse
from controller.run_recover import restore
from controller.run_signals import interrupts
from controller.run_state import Action, Settings
from nodeagent.model.errors import FaultError, InvalidSpec, Refused

LEAD_NS = 3_000_000_000
"""Between the last check and the first moment of a timeline without a steady state."""


@dataclass(frozen=True)
class Options:
    """How to play."""

    run: str
    """From new_run_id()."""
    folder: Path
    noise: bool
    blind: bool
    allow_refused: bool = False
    repeat: int = 1


def new_run_id() -> str:
    """Neutral: nodes show it to anybody who looks."""
    return time.strftime("r%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(2)


def check_nodes(run: str, plan: RunPlan, ports: Mapping[str, RunPort]) -> Preview:
    """The plan of every step on every node; touches nothing. Raises Unreachable, Refused."""
    describe_nodes(ports, lambda: (0, wall()))
    return preview(run, plan, ports)


def play_new(
    loaded: Loaded,
    plan: RunPlan,
    options: Options,
    ways: Ways,
    views: list[View],
    overseer: Callable[[Stage], Overseer] | None = None,
) -> Outcome:
    """A new run, with an overseer of the caller's. Raises Unreachable or Refused before anything
    is touched; a fault that is refused later is a record, not an error."""
    experiment, run = loaded.experiment, options.run
    if plan.open_targets:
        raise Refused("the pods of this plan were not looked up", ", ".join(plan.open_targets))
    plan = with_ledger(plan)
    with open_ports(experiment, plan, ways) as ports:
        nodes = describe_nodes(ports, lambda: (0, wall()))
        found = preview(run, plan, ports)
        if not options.allow_refused:
            refuse(found)
        steady = ns(experiment.steady.duration) if experiment.steady else 0
        origin = boottime_ns() + LEAD_NS + steady
        header = _header(loaded, plan, options, run, origin)
        with Recorder.create(options.folder, header, loaded.raw, plan) as recorder:
            stage = Stage(experiment, plan, header, ports, recorder, views, ways)
            if overseer is not None:
                stage.overseers.append(overseer(stage))
            for node in nodes:
                recorder.write(node.model_copy(update={"t_ns": stage.runner.now()}))
            _write_planned(recorder, plan, run, stage.runner.now())
            stage.play()
    return finish(options.folder, stage.core.stopping)


def _header(loaded: Loaded, plan: RunPlan, options: Options, run: str, origin: int) -> RunHeader:
    return RunHeader(
        run=run,
        experiment=loaded.experiment.name,
        seed=plan.seed,
        noise=options.noise,
        blind=options.blind,
        faultctl=nodeagent.__version__,
        python=platform.python_version(),
        created=wall(),
        origin_boottime_ns=origin,
        boot_id=boot_id(),
        experiment_sha256=sha256(loaded.raw).hexdigest(),
        plan_sha256=sha256(plan.text().encode()).hexdigest(),
        repeat=options.repeat,
    )


def _write_planned(recorder: Recorder, plan: RunPlan, run: str, now: int) -> None:
    for item in plan.items:
        recorder.write(
            FaultPlanned(
                t_ns=now,
                wall=wall(),
                fault=fault_id(run, item.slot),
                slot=item.slot,
                role=item.role,
                node=item.node,
                kind=item.kind,
                target=item.target,
                spec=item.spec,
                group=item.group,
                group_type=item.group_type,
                whole=item.whole,
                start_ns=item.start_ns,
                duration_ns=None if item.to_the_end else item.end_ns - item.start_ns,
                truth=item.truth,
            )
        )


class Stage:
    """A core with everything around it that plays it."""

    def __init__(
        self,
        experiment: Experiment,
        plan: RunPlan,
        header: RunHeader,
        ports: Ports,
        recorder: Recorder,
        views: list[View],
        ways: Ways,
    ) -> None:
        self.experiment, self.header, self._ways = experiment, header, ways
        self._ports = ports
        settings = Settings(
            run=header.run,
            lease_ns=ns(experiment.lease),
            late_ns=ns(experiment.late),
            settle_ns=ns(experiment.lease) + 30_000_000_000,
            max_faults=experiment.caps.faults,
            max_nodes=experiment.caps.nodes,
        )
        self.core = Core(plan, settings, self._emit, wall)
        for view in views:
            view.names = names_of(self.core)
        watch = Watch(self.core, experiment.guards, experiment.remedies)
        origin = header.origin_boottime_ns
        self.measuring = Measuring(self.core, Rules.of(experiment))
        self.overseers: list[Overseer] = [self.measuring]
        self.runner = Runner(
            self.core, recorder, watch, origin, views, _wanted(experiment), self.overseers
        )

    def _emit(self, record: Record) -> None:
        self.runner.emit(record)
        if isinstance(record, RunEvent) and record.name == "node-joined" and record.node:
            # Beside the loop: a node that does not answer takes its time.
            threading.Thread(target=self._describe, args=(record.node,), daemon=True).start()

    def _describe(self, node: str) -> None:
        """A node that a fault has followed its workload to, for the record."""

        def heard(now: int) -> list[Action]:
            for record in found:
                self._emit(record)
            return []

        with suppress(FaultError):  # that it does not answer is on the record anyway
            found = describe_nodes({node: self._ports[node]}, lambda: (self.runner.now(), wall()))
            self.runner.hear(heard)

    def play(self, *, resume: Path | None = None) -> None:
        """To the end; with `resume`, from where the records of that folder end."""
        runner = self.runner
        effects = Effects(self.header.run, self._ports, runner.now, runner.report)
        first: list[Action] = []
        if resume is not None:
            faults = list(read_records(resume, "faults.jsonl"))
            events = list(read_records(resume, "events.jsonl"))
            resumed(self.measuring, self.core, [*faults, *events])
            first = restore(self.core, faults, events, runner.now())
        try:
            with interrupts(runner.interrupt), self._following():
                runner.play(effects, self._samplers(), first)
        finally:
            effects.close()

    def _following(self) -> AbstractContextManager[None]:
        """What watches the pods that faults follow, as long as the run is played."""
        if not any(pods.follow for pods in self.core.plan.pods):
            return nullcontext()
        # Imported late: no other run has to wait for the kubernetes package.
        from controller.kube.podwatch import watching
        from controller.run_follow import Follower

        follower = Follower(self.core, self.experiment)
        self.overseers.append(follower)
        return watching(self._ports.cluster, self.experiment, self.core.plan, lambda word:
                        self.runner.hear(lambda now: follower.heard(now, word)))  # fmt: skip

    def _samplers(self) -> list[Sampler]:
        """The probes, and the loads, whose windows are samples too."""
        experiment, report = self.experiment, self.runner.report
        probes = parse_parts("probes", experiment.probes)
        loads = parse_parts("load", experiment.load)
        clock = RunClock(lambda: (self.runner.now(), wall()))
        found: list[Sampler] = []
        if probes:
            # Objects are read with the user's own kubeconfig, opened when a probe first asks.
            reader = ObjectReader(self._ways.kubeconfig, self._ways.context)
            around = Surroundings(self.client, self.placed, reader)
            found.append(ProbeSampler(probes, report, clock, around))
        if loads:
            found.append(LoadSampler(loads, report, clock))
        return found

    def placed(self, name: str) -> list[tuple[str, str]]:
        """(node, id there) of all slots of a fault of the experiment; no node for one that waits
        for its next pod."""
        items = (s for s in self.core.order if s.item.role == "fault")
        return [at for s in items if s.item.name == name for at in self.core.places(s)]

    def client(self, node: str) -> AgentClient:
        """The agent of a node. Raises InvalidSpec if nothing of the run is on it."""
        if node not in self._ports:
            raise InvalidSpec(f"a probe is on the node {node!r}, which has no target")
        return self._ports[node].client


def _wanted(experiment: Experiment) -> Wanted | None:
    if experiment.steady is None:
        return None
    names = experiment.steady.probes or tuple(experiment.probes)
    return Wanted(frozenset(names), float(experiment.steady.share))

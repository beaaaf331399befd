"""Reads an experiment file and reports everything that is wrong with it at once, by line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from controller.experiment import Experiment
from controller.experiment_object_check import object_problems, on_objects
from controller.experiment_parts import PARTS, part_problems
from controller.experiment_plan import ns, plan_experiment, stage_spans
from controller.experiment_pods import Found
from controller.experiment_refs import check_references
from controller.experiment_samples import sample_spec, sample_target
from controller.experiment_yaml import Document, Path, Problem, dotted, read_document
from controller.kube.kinds import cluster_kinds
from controller.render import BETWEEN_REASONS
from controller.run_plan import PlanItem, RunPlan, most_at_once
from nodeagent.faults import kinds
from nodeagent.model.errors import FaultError, InvalidSpec
from nodeagent.model.plan import FaultRequest
from nodeagent.model.planner import parse_request
from nodeagent.model.units import format_duration

MAX_SHOWN = 50
_CHECK_ID = "check"


@dataclass(frozen=True)
class Loaded:
    """A file that is right, and what comes of it."""

    experiment: Experiment
    plan: RunPlan
    raw: bytes


def load_experiment(
    raw: bytes,
    name: str,
    *,
    nodes: Mapping[str, str] | None = None,
    for_schedule: bool = False,
) -> Loaded:
    """The experiment of a file, its bytes kept.

    `nodes` (name -> agent URL) add to those of the file or replace them; `for_schedule`
    allows a file without faults. Raises InvalidSpec with every problem and its line.
    """
    document = read_document(raw)
    if not document.problems and not isinstance(document.data, dict):
        document.problem((), "an experiment is a mapping: version, name, duration, ...")
    if isinstance(document.data, dict):
        _add_nodes(document.data, nodes or {})
        experiment = _shaped(document)
        if experiment is not None:
            plan = _checked(document, experiment, for_schedule)
            if plan is not None and not document.problems:
                return Loaded(experiment, plan, raw)
    raise _wrong(document, name)


def with_found(loaded: Loaded, found: Found) -> Loaded:
    """The experiment with the pods that its targets came to, checked as a whole again.

    Raises InvalidSpec with every problem and its line.
    """
    document = read_document(loaded.raw)
    plan = plan_experiment(loaded.experiment, found)
    _whole_plan(document, loaded.experiment, plan)
    if document.problems:
        raise _wrong(document, loaded.experiment.name)
    return replace(loaded, plan=plan)


def _wrong(document: Document, name: str) -> InvalidSpec:
    many = len(document.problems)
    what = f"{name} has {many} problem{'s' if many != 1 else ''}"
    return InvalidSpec(what, listed(document.problems))


def listed(problems: list[Problem]) -> str:
    """One problem a line, in the order of the file."""
    ordered = sorted(problems, key=lambda p: (p.line, p.path))
    lines = [str(problem) for problem in ordered[:MAX_SHOWN]]
    if len(ordered) > MAX_SHOWN:
        lines.append(f"... and {len(ordered) - MAX_SHOWN} more")
    return BETWEEN_REASONS.join(lines)


def _add_nodes(data: dict[str, Any], nodes: Mapping[str, str]) -> None:
    if not nodes:
        return
    known = data.setdefault("nodes", {})
    if isinstance(known, dict):
        for name, url in nodes.items():
            entry = known.get(name)
            known[name] = {**entry, "agent": url} if isinstance(entry, dict) else {"agent": url}


def _shaped(document: Document) -> Experiment | None:
    try:
        return Experiment.model_validate(document.data)
    except ValidationError as exc:
        for error in exc.errors(include_url=False, include_input=False):
            path = _known_path(document, error["loc"])
            text = error["msg"].removeprefix("Value error, ")
            if error["type"] == "extra_forbidden":
                text = _unknown_key(path, Experiment)
            elif error["type"] == "missing":
                text = "is missing"
            problem = Problem(document.line(path), dotted(path), text)
            if problem not in document.problems:
                document.problems.append(problem)
        _kinds_in(document)
    return None


def _kinds_in(document: Document) -> None:
    """Unknown kinds are worth saying even in a file whose shape is wrong elsewhere."""
    faults = document.data.get("faults")
    for name, fault in faults.items() if isinstance(faults, dict) else ():
        kind = fault.get("kind") if isinstance(fault, dict) else None
        if isinstance(kind, str) and kind not in {**kinds(), **cluster_kinds()}:
            document.problem(("faults", name, "kind"), f"there is no fault kind {kind!r}")


def _known_path(document: Document, loc: tuple[int | str, ...]) -> Path:
    """pydantic's location without the parts that name a branch of a union."""
    path: Path = ()
    for index, part in enumerate(loc):
        if (*path, part) in document.lines or index == len(loc) - 1:
            path = (*path, part)
    if path and path not in document.lines and "[" in str(path[-1]):
        path = path[:-1]
    return path


def _unknown_key(path: Path, model: type[Experiment]) -> str:
    if len(path) == 1:
        return f"is not a key of an experiment; known: {', '.join(model.model_fields)}"
    return "is not a key that is known here"


# --- across parts ---------------------------------------------------------------------------


def _checked(document: Document, experiment: Experiment, for_schedule: bool) -> RunPlan | None:
    if not experiment.faults and not for_schedule:
        document.problem(("faults",), "there is nothing to do: no fault is named")
    check_references(document, experiment)
    _parts(document, experiment)
    _truths(document, experiment)
    try:
        spans = stage_spans(experiment.stages)
    except InvalidSpec as exc:
        document.problem(("stages",), f"{exc.what}: {exc.why}")
        return None
    if document.problems:
        return None
    for name in experiment.faults:
        _fault(document, experiment, name, spans)
    if document.problems:
        return None
    plan = plan_experiment(experiment)
    _whole_plan(document, experiment, plan)
    return plan


def _whole_plan(document: Document, experiment: Experiment, plan: RunPlan) -> None:
    _exclusions(document, plan.items)
    check_caps(experiment, plan, document.problem)
    _metastable(document, experiment, plan)


def _parts(document: Document, experiment: Experiment) -> None:
    for room in PARTS:
        for name, data in getattr(experiment, room).items():
            for loc, text in part_problems(room, data):
                document.problem((room, name, *loc), text)


def _truths(document: Document, experiment: Experiment) -> None:
    if not experiment.blind:
        return
    for name, fault in experiment.faults.items():
        if fault.truth is None:
            text = "truth is missing: a blind run is judged by it (or say `blind: false`)"
            document.problem(("faults", name), text)


def _fault(
    document: Document, experiment: Experiment, name: str, spans: dict[str, tuple[int, int]]
) -> None:
    fault = experiment.faults[name]
    here: Path = ("faults", name)
    begin, limit = spans.get(fault.stage or "", (0, ns(experiment.duration)))
    limit = min(limit, ns(experiment.duration))
    start = begin + ns(fault.at)
    if start >= limit:
        document.problem((*here, "at"), f"it would start at {_text(start)}, past the end")
    elif fault.duration is not None and start + ns(fault.duration) > limit:
        over = _text(start + ns(fault.duration) - limit)
        what = f"its stage {fault.stage!r}" if fault.stage else "the run"
        document.problem((*here, "for"), f"it would outlive {what} by {over}")
    elif fault.repeat is not None:
        life = fault.duration or fault.repeat.every
        last = start + (fault.repeat.times - 1) * ns(fault.repeat.every)
        if last + ns(life) > limit:
            text = f"the last would outlive the run by {_text(last + ns(life) - limit)}"
            document.problem((*here, "repeat"), text)
    _fault_kind(document, experiment, name)


def _fault_kind(document: Document, experiment: Experiment, name: str) -> None:
    fault = experiment.faults[name]
    here: Path = ("faults", name)
    if on_objects(fault):
        for path, text in object_problems(experiment, name):
            document.problem(path, text)
        return
    kind = kinds().get(fault.kind)
    if kind is None:
        known = ", ".join((*kinds(), *cluster_kinds()))
        text = f"there is no fault kind {fault.kind!r}; known: {known}"
        document.problem((*here, "kind"), text)
        return
    for target_name in fault.targets:
        entry = experiment.targets[target_name]
        if entry.objects is not None:
            text = f"{kind.name} does not act on objects: {target_name!r} is some"
            document.problem((*here, "target"), text)
            continue
        try:
            target = entry.target if entry.pods is None else sample_target(kind, entry.pods)
            spec = sample_spec(kind, fault.spec, fault.to_pods, entry.pods)
            request = FaultRequest(id=_CHECK_ID, kind=fault.kind, target=target, spec=spec)
            parse_request(kind, request)
        except FaultError as exc:
            part = "spec" if "options" in exc.what else "target"
            document.problem((*here, part), str(exc))
    if fault.mechanism is not None and fault.mechanism not in [r.name for r in kind.ladder]:
        known = ", ".join(rung.name for rung in kind.ladder)
        document.problem((*here, "mechanism"), f"{kind.name} has: {known}")


def _text(value_ns: int) -> str:
    return format_duration(timedelta(microseconds=value_ns // 1000))


def _exclusions(document: Document, items: tuple[PlanItem, ...]) -> None:
    """The same kind twice on the same target at once; what else excludes each other is found
    when the nodes plan (run_preflight)."""
    latest: dict[tuple[str, str, str, str], PlanItem] = {}
    for item in items:
        key = (item.node, item.target_name, item.kind, item.mechanism or "")
        other = latest.get(key)
        if other is not None and other.end_ns > item.start_ns and other.spec == item.spec:
            text = f"it excludes {other.name!r}: the same on {item.target_name!r} at the same time"
            document.problem(("faults", item.name), text)
        if other is None or item.end_ns > other.end_ns:
            latest[key] = item


def check_caps(experiment: Experiment, plan: RunPlan, problem: Callable[[Path, str], None]) -> None:
    """Reports every cap that the plan would break, with the number that it would reach."""
    # Pods that were not looked up: how many there are, and on which nodes, is not known.
    faults = [item for item in plan.of("fault") if item.node]
    for what in ("faults", "nodes", "targets"):
        most = getattr(experiment.caps, what)
        reached = most_at_once(faults, what) if most is not None else 0
        if most is not None and reached > most:
            problem(("caps", what), f"the plan has {reached} {what} at once, {most} are allowed")


def _metastable(document: Document, experiment: Experiment, plan: RunPlan) -> None:
    for name, group in experiment.groups.items():
        if group.overload is None:
            continue
        end = max((i.end_ns for i in plan.items if i.group == name), default=0)
        needed = end + ns(group.overload.grace) + ns(group.overload.hold)
        if needed > plan.end_ns:
            over = _text(needed - plan.end_ns)
            text = f"its hold window outlives the run by {over}: end the trigger earlier"
            document.problem(("groups", name, "overload"), text)

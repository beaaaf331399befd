"""From a request, a binding and facts to a plan; pure, so that it can be tested as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.facts import Facts, first_missing
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Rung
from nodeagent.model.plan import FaultRequest, Plan, Rejected
from nodeagent.model.protected import namespace_guards
from nodeagent.model.steps import StepBase
from nodeagent.model.target import TargetBase, accepts, parse_target

MAX_EXPLAINED = 8


@dataclass(frozen=True)
class Choice:
    """The rung that was taken, and why not the others above it."""

    rung: Rung
    why: str
    rejected: tuple[Rejected, ...]


@dataclass(frozen=True)
class Placed:
    """A target in this node's own terms, and how it was found."""

    target: TargetBase
    notes: tuple[str, ...] = ()


def parse_request(kind: FaultKind, request: FaultRequest) -> tuple[TargetBase, FaultSpec]:
    """The validated target and spec of a request. Raises InvalidSpec naming the field."""
    try:
        target = parse_target(request.target)
    except ValidationError as exc:
        raise InvalidSpec(f"the target of {kind.name} is not valid", explain(exc)) from exc
    if not accepts(kind.targets, target):
        raise InvalidSpec(
            f"{kind.name} does not take this type of target",
            f"it takes: {', '.join(kind.targets)}",
        )
    try:
        spec = kind.spec.model_validate(request.spec)
    except ValidationError as exc:
        raise InvalidSpec(f"the options of {kind.name} are not valid", explain(exc)) from exc
    return target, spec


def explain(exc: ValidationError) -> str:
    """A pydantic error as one line: `field: sentence; field: sentence`."""
    parts = []
    for error in exc.errors(include_url=False, include_input=False)[:MAX_EXPLAINED]:
        where = ".".join(str(part)[:64] for part in error["loc"])
        text = error["msg"].removeprefix("Value error, ")
        parts.append(f"{where}: {text}" if where else text)
    more = exc.error_count() - len(parts)
    return "; ".join(parts) + (f"; and {more} more" if more > 0 else "")


def choose(kind: FaultKind, spec: Any, context: Context, forced: str | None) -> Choice:
    """The highest rung that the node offers and that can do what the spec asks.

    Raises Refused with every rung's reason when there is none, InvalidSpec for an
    unknown `forced` mechanism.
    """
    names = [rung.name for rung in kind.ladder]
    if forced is not None and forced not in names:
        raise InvalidSpec(f"{kind.name} has no mechanism {forced!r}", f"it has: {', '.join(names)}")
    rejected: list[Rejected] = []
    for rung in kind.ladder:
        reason = _objection(rung, spec, context, forced)
        if reason is None:
            why = "forced by --mechanism" if forced else rung.summary
            return Choice(rung, why, tuple(rejected))
        rejected.append(Rejected(mechanism=rung.name, reason=reason))
    shown = [r for r in rejected if forced in (None, r.mechanism)]
    raise Refused(
        f"{kind.name} cannot be injected on {context.target.label()}",
        "; ".join(f"{r.mechanism}: {r.reason}" for r in shown),
        f"see: faultctl explain {kind.name}",
    )


def _objection(rung: Rung, spec: Any, context: Context, forced: str | None) -> str | None:
    if forced is not None and rung.name != forced:
        return f"{forced} was forced"
    if forced is None and rung.only_named:
        return f"only when it is asked for: --mechanism {rung.name}"
    return first_missing(rung.needs(spec), context.facts) or rung.supports(spec, context)


def _check_keys(kind: FaultKind, steps: tuple[StepBase, ...]) -> None:
    """Two steps of one fault on one object: cut short in between, it would look foreign."""
    keys = [step.key() for step in steps if not step.composes]
    for key in keys:
        if keys.count(key) > 1:
            raise FaultError(f"{kind.name} would change {key} twice", "a plan changes it once")


def make_plan(
    kind: FaultKind,
    request: FaultRequest,
    target: TargetBase,
    spec: FaultSpec,
    binding: BaseModel,
    facts: Facts,
    placed: Placed | None = None,
) -> Plan:
    """The plan, which keeps a pod's name, whatever it is `placed` as. Raises Refused, ..."""
    placed = placed or Placed(target)
    context = Context(request.id, placed.target, binding, facts)
    guards = (*namespace_guards(target), *kind.guards(spec, context))
    open_guards = [g for g in guards if g.name not in request.acknowledge]
    if open_guards:
        raise Refused(
            f"{kind.name} on {target.label()} is held back by a guard rail",
            "; ".join(g.reason for g in open_guards),
            "if you mean it, add: " + " ".join(f"--i-know {g.name}" for g in open_guards),
        )
    choice = choose(kind, spec, context, request.mechanism)
    steps = tuple(choice.rung.plan(spec, context))
    _check_keys(kind, steps)
    return Plan(
        id=request.id,
        kind=kind.name,
        target=target.model_dump(mode="json"),
        spec=spec.model_dump(mode="json"),
        binding=binding.model_dump(mode="json"),
        mechanism=choice.rung.name,
        why=choice.why,
        rejected=choice.rejected,
        steps=steps,
        guards=tuple(g.name for g in guards),
        collateral=kind.collateral(spec),
        remedies=kind.remedies,
        notes=placed.notes,
    )

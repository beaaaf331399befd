"""Before a run: reach every node, plan every fault, and find what excludes each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from controller.records import NodeRecord
from controller.run_plan import PlanItem, RunPlan
from controller.run_ports import NodePort, RunPort
from nodeagent.model.errors import Conflict, FaultError, Unreachable
from nodeagent.model.plan import Plan
from nodeagent.model.steps import StepBase

MAX_THREADS = 64
MAX_NAMED = 10


@dataclass(frozen=True)
class Refusal:
    """A planned fault that its node would refuse now."""

    item: PlanItem
    error: FaultError


@dataclass(frozen=True)
class Preview:
    """What the nodes would do, and what they would refuse."""

    plans: dict[str, Plan]
    """By slot."""
    refusals: tuple[Refusal, ...]


def describe_nodes(
    ports: Mapping[str, RunPort], stamp: Callable[[], tuple[int, str]]
) -> list[NodeRecord]:
    """Facts of all nodes. Raises Unreachable naming every node that does not answer."""

    def one(name: str) -> NodeRecord | FaultError:
        try:
            return ports[name].record(name, *stamp())
        except FaultError as exc:
            return exc

    names = sorted(ports)
    with ThreadPoolExecutor(min(MAX_THREADS, max(len(names), 1))) as pool:
        found = list(pool.map(one, names))
    failed = [(n, e) for n, e in zip(names, found, strict=True) if isinstance(e, FaultError)]
    if failed:
        named = ", ".join(name for name, _ in failed[:MAX_NAMED])
        raise Unreachable(
            f"{len(failed)} of {len(names)} nodes did not answer: {named}",
            str(failed[0][1]),
            failed[0][1].hint,
        )
    return [record for record in found if isinstance(record, NodeRecord)]


def preview(run: str, plan: RunPlan, ports: Mapping[str, NodePort]) -> Preview:
    """Asks every node to plan its faults; nothing is touched. Noise may be refused."""

    def one(item: PlanItem) -> Plan | Refusal:
        try:
            return ports[item.node].plan(item.request(run))[0]
        except FaultError as exc:
            return Refusal(item, exc)

    with ThreadPoolExecutor(min(MAX_THREADS, 2 * len(ports) or 1)) as pool:
        found = list(pool.map(one, plan.items))
    plans = {
        item.slot: answer
        for item, answer in zip(plan.items, found, strict=True)
        if isinstance(answer, Plan)
    }
    refusals = [answer for answer in found if isinstance(answer, Refusal)]
    refusals += conflicts(plan.items, plans)
    return Preview(plans, tuple(refusals))


def conflicts(items: Iterable[PlanItem], plans: Mapping[str, Plan]) -> list[Refusal]:
    """Faults that live at the same time and would change the same object in ways that do not
    compose: the rule of the nodes' executors, applied to the whole timeline."""
    found: list[Refusal] = []
    live: dict[str, list[PlanItem]] = {}
    for item in sorted(items, key=lambda i: (i.start_ns, i.slot)):
        if item.slot not in plans:
            continue
        peers = [p for p in live.get(item.node, ()) if p.end_ns > item.start_ns]
        live[item.node] = [*peers, item]
        for peer in peers:
            key = _clash(plans[peer.slot].steps, plans[item.slot].steps)
            if key:
                error = Conflict(
                    f"{item.slot} excludes {peer.slot} on {item.node}",
                    f"both would change {key} at the same time",
                    "move one of them on the timeline",
                )
                found.append(Refusal(item, error))
    return found


def _clash(ours: Iterable[StepBase], theirs: Iterable[StepBase]) -> str:
    by_key: dict[str, list[StepBase]] = {}
    for step in ours:
        by_key.setdefault(step.key(), []).append(step)
    for step in theirs:
        for other in by_key.get(step.key(), ()):
            if not (step.composes and other.composes and not step.overlaps(other)):
                return step.key()
    return ""


def refuse(found: Preview) -> None:
    """Raises the first refusal of a fault; its text counts the others."""
    faults = [r for r in found.refusals if r.item.role == "fault"]
    if not faults:
        return
    first = faults[0]
    more = f" (and {len(faults) - 1} more faults)" if len(faults) > 1 else ""
    raise type(first.error)(
        f"{first.item.slot} on {first.item.node} would be refused{more}",
        str(first.error),
        first.error.hint,
    )

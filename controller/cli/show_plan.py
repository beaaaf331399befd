"""A run's plan on the terminal: its pods, its timeline, and every step on every node."""

from __future__ import annotations

from typing import Any

from controller import render
from controller.experiment import Experiment
from controller.kube.ways import Ways
from controller.live import moment
from controller.run_nodes import open_ports
from controller.run_plan import RunPlan
from controller.run_preflight import Preview
from controller.run_start import check_nodes, new_run_id


def show_plan(experiment: Experiment, plan: RunPlan, form: str, through: Ways | None) -> None:
    """The timeline, and every step on every node and what would be refused, unless `through` is
    None, which asks no node."""
    run, found = new_run_id(), Preview({}, ())
    if through is not None:
        with open_ports(experiment, plan, through) as ports:
            found = check_nodes(run, plan, ports)
    if form != "table":
        render.data(plan_data(plan, found), form)
    else:
        _plan_lines(plan, found)
    refused = [r for r in found.refusals if r.item.role == "fault"]
    if refused:
        raise type(refused[0].error)(
            f"{len(refused)} faults would be refused", str(refused[0].error), refused[0].error.hint
        )


def plan_data(plan: RunPlan, found: Preview) -> dict[str, Any]:
    """The plan as plain data; the same experiment and seed give the same."""
    return {
        "experiment": plan.experiment,
        "seed": plan.seed,
        "end_ns": plan.end_ns,
        "pods": [found.model_dump(mode="json") for found in plan.pods],
        "faults": [item.model_dump(mode="json") for item in plan.of("fault")],
        "noise": [item.model_dump(mode="json") for item in plan.of("noise")],
        "changes": [change.model_dump(mode="json") for change in plan.changes],
        "steps": {
            slot: [step.summary() for step in node_plan.steps]
            for slot, node_plan in sorted(found.plans.items())
        },
        "refused": {r.item.slot: str(r.error) for r in found.refusals},
    }


def pods_lines(plan: RunPlan) -> list[str]:
    """What the targets that are pods came to, or that they were not looked up."""
    lines = []
    for found in plan.pods:
        names = ", ".join(pod.pod for pod in found.pods)
        seed = f", seed {found.seed}" if found.seed else ""
        lines.append(f"{found.target}: {len(found.pods)} of {found.matching} pods{seed}: {names}")
        if found.follow:
            lines.append(f"  followed: {found.follow}")
        lines += [f"  left out {pod}: {why}" for pod, why in found.left_out.items()]
        lines += [f"  {note}" for note in found.notes]
    if plan.open_targets:
        names = ", ".join(plan.open_targets)
        lines.append(f"pods that were not looked up, each as one: {names}")
    return lines


def _plan_lines(plan: RunPlan, found: Preview) -> None:
    console = render.out()
    refused = {r.item.slot: str(r.error) for r in found.refusals}
    for line in pods_lines(plan):
        console.print(line, markup=False)
    for item in plan.items:
        console.print(
            f"{moment(item.start_ns)} to {moment(item.end_ns)}  {item.role} {item.slot}: "
            f"{item.kind} on {item.target_name} ({item.service}) at {item.node or '(a cluster)'}",
            markup=False,
        )
        node_plan = found.plans.get(item.slot)
        if node_plan is not None:
            console.print(f"    mechanism: {node_plan.mechanism}", markup=False)
            for number, step in enumerate(node_plan.steps, 1):
                console.print(f"    {number}. {step.summary()}", markup=False)
            for note in node_plan.notes if item.on_objects else ():
                console.print(f"    {note}", markup=False)
        if item.slot in refused:
            console.print(f"    refused: {refused[item.slot]}", markup=False)
    for change in plan.changes:
        console.print(f"{change.action} {change.slot}: {change.rule} {change.detail}", markup=False)
    console.print(f"ends at {moment(plan.end_ns)}  (nothing was touched)", markup=False)

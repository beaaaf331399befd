"""`faultctl inject KIND`: options derived from each kind's spec and targets."""

from __future__ import annotations

import difflib
import importlib
import re
import secrets
import threading
from typing import Any

import click

from controller import render
from controller.cli import inject_kube
from controller.cli.common import client, fault_data, state_word, target_word
from controller.client import AgentClient
from controller.kube.kinds import cluster_kinds
from controller.options import checked, model_options, spec_from, target_from, target_options
from nodeagent.faults import check_preset, kinds
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.kind import FaultKind
from nodeagent.model.plan import FaultRequest, Lease, Plan


def fault_id_for(kind: str) -> str:
    """A new id that says what it is."""
    slug = re.sub("[^a-z0-9]+", "-", kind)[:24].strip("-")
    return f"{slug}-{secrets.token_hex(3)}"


class InjectGroup(click.Group):
    """One command a kind, made from the kind when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*kinds(), *cluster_kinds()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        kind = kinds().get(cmd_name)
        if kind is not None:
            return inject_command(kind)
        other = cluster_kinds().get(cmd_name)
        if other is None:
            return None
        module = importlib.import_module("controller.cli.inject_cluster")
        command: click.Command = module.cluster_command(other, common_options())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """An unknown kind is told with those that are spelled like it."""
        known = self.list_commands(ctx)
        if args and args[0] not in known:
            check_preset(args[0])
            near = difflib.get_close_matches(args[0], known, n=3)
            raise InvalidSpec(
                f"there is no fault kind {args[0]!r}",
                f"did you mean {' or '.join(near)}?" if near else "",
                "all of them: faultctl faults",
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The kinds; presets only by their number, they would hide the rest."""
        own = [kind for kind in kinds().values() if not kind.preset_of]
        presets = sorted(kind.name for kind in kinds().values() if kind.preset_of)
        with formatter.section("Kinds"):
            formatter.write_dl([(kind.name, kind.summary) for kind in own])
        with formatter.section("Kinds on a cluster's objects"):
            formatter.write_dl([(kind.name, kind.summary) for kind in cluster_kinds().values()])
        families = {name.partition(":")[0] for name in presets}
        with formatter.section("Presets"):
            formatter.write_dl(
                [
                    (f"{family}:NAME", f"{sum(n.startswith(family) for n in presets)} names")
                    for family in sorted(families)
                ]
            )


@click.command(name="inject", cls=InjectGroup)
def inject() -> None:
    """Inject a fault and print its id; the fault ends with its lease unless it is renewed."""


def common_options() -> list[click.Parameter]:
    """Options that every kind has."""
    lease = Lease()
    shown = lease.model_dump(mode="json")
    return [
        click.Option(["--id", "fault_id"], metavar="ID", help="choose the fault's id"),
        click.Option(["--mechanism"], metavar="NAME", help="force one mechanism of the ladder"),
        click.Option(
            ["--i-know", "i_know"],
            multiple=True,
            metavar="GUARD",
            help="name a guard rail that you accept to cross",
        ),
        click.Option(
            ["--lease"],
            metavar="DURATION",
            help=f"life without word from its owner [default: {shown['duration']}]",
        ),
        click.Option(
            ["--hard-end", "hard_end"],
            metavar="DURATION",
            help=f"end even if it is renewed [default: {shown['hard_end']}]",
        ),
        click.Option(["--plan", "plan_only"], is_flag=True, help="show the plan, touch nothing"),
        click.Option(["--hold"], is_flag=True, help="stay, renew the lease, revert at Ctrl-C"),
        click.Option(
            ["-o", "--output"],
            type=click.Choice(render.FORMATS),
            default="table",
            show_default=True,
        ),
    ]


def inject_command(kind: FaultKind) -> click.Command:
    """The click command of a kind."""

    def callback(**values: Any) -> None:
        run_inject(kind, values)

    own = [*target_options(kind), *model_options(kind.spec)]
    return inject_kube.KindCommand(
        kind.name,
        callback=callback,
        params=[*own, *inject_kube.kube_options(), *common_options()],
        help=f"{kind.summary[0].upper()}{kind.summary[1:]}.\n\n{kind.doc}",
        short_help=kind.summary,
        epilog="See also: faultctl explain " + kind.name,
    )


def run_inject(kind: FaultKind, values: dict[str, Any]) -> None:
    """Plan, then apply; on one agent, or on those of a cluster."""
    given = {"duration": values["lease"], "hard_end": values["hard_end"]}
    lease = Lease.model_validate(
        checked(Lease, {name: value for name, value in given.items() if value is not None})
    )
    base = {
        "mechanism": values["mechanism"],
        "acknowledge": tuple(values["i_know"]),
        "owner": click.get_current_context().command_path,
    }
    if inject_kube.is_kube(values):
        inject_kube.run_inject_kube(kind, values, base, lease)
        return
    values = inject_kube.strip(values)
    data = {
        **base,
        "id": values["fault_id"] or fault_id_for(kind.name),
        "kind": kind.name,
        "target": target_from(kind, values),
        "spec": spec_from(kind.spec, values),
    }
    request = FaultRequest.model_validate(checked(FaultRequest, data))
    form = values["output"]
    with client() as agent:
        plan, digest = agent.plan(request)
        if values["plan_only"]:
            show_plan(plan, digest, form)
            return
        fault = agent.apply(request, lease, digest)
        if form != "table":
            render.data(fault_data(fault, whole=True), form)
        else:
            show_armed(fault, plan)
        if values["hold"]:
            hold(agent, fault.id, lease)


def show_plan(plan: Plan, digest: str, form: str) -> None:
    """The plan for a person, or as data."""
    if form != "table":
        render.data({"digest": digest, "plan": plan.model_dump(mode="json")}, form)
        return
    console = render.out()
    console.print(f"{plan.kind} on {target_word(plan.target)}", markup=False)
    console.print(f"mechanism: {plan.mechanism} ({plan.why})", markup=False)
    for item in plan.rejected:
        console.print(f"  not {item.mechanism}: {item.reason}", markup=False)
    console.print("steps:")
    for number, step in enumerate(plan.steps, 1):
        console.print(f"  {number}. {step.summary()}", markup=False)
    for title, lines in (
        ("what no revert takes back", plan.collateral),
        ("how an operator can end it", plan.remedies),
        ("guard rails crossed", plan.guards),
        ("notes", plan.notes),
    ):
        if lines:
            console.print(f"{title}:")
        for line in lines:
            console.print(f"  - {line}", markup=False)
    console.print(f"digest: {digest[:16]}  (nothing was touched)", markup=False)


def show_armed(fault: Any, plan: Plan) -> None:
    """What was done, and how to take it back."""
    console = render.out()
    console.print(
        f"{fault.id}: {state_word(fault)}, {plan.kind} on {target_word(plan.target)} "
        f"by {plan.mechanism}",
        markup=False,
    )
    for line in fault_data(fault, whole=True)["evidence"]["statements"]:
        console.print(f"  {line}", markup=False)
    left = render.duration_ns(min(fault.lease_left_ns, fault.hard_end_left_ns))
    console.print(f"  ends by itself in {left}; take it back: faultctl revert {fault.id}")


def hold(agent: AgentClient, fault_id: str, lease: Lease) -> None:
    """Renew the lease at a third of its length until Ctrl-C, then revert."""
    pause = lease.duration.total_seconds() / 3
    stop = threading.Event()
    try:
        while not stop.wait(pause):
            fault = agent.fault(fault_id)
            if fault.state != "armed":
                render.out().print(f"{fault_id}: {state_word(fault)}")
                return
            agent.renew(fault_id)
    except KeyboardInterrupt:
        reply = agent.revert(fault_id)
        render.out().print(f"{fault_id}: {state_word(reply.fault)}")

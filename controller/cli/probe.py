"""`faultctl probe`: one probe on a node, its samples and a verdict."""

from __future__ import annotations

import json
from typing import Any

import click

from controller import render
from controller.cli.common import client, output_option
from controller.options import model_options, spec_from
from nodeagent.model.probe import PROBE_TYPES, ProbeSpec


class ProbeGroup(click.Group):
    """One command a probe, made from its spec."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(PROBE_TYPES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        model = PROBE_TYPES.get(cmd_name)
        return None if model is None else _command(cmd_name, model)


@click.command(cls=ProbeGroup)
def probe() -> None:
    """Run a probe on the node and print its samples; exit 1 unless all of them pass."""


def _command(name: str, model: type[ProbeSpec]) -> click.Command:
    params = model_options(model, skip=("type", "command"))
    if "command" in model.model_fields:
        params.append(click.Argument(["command"], nargs=-1, required=True))

    @output_option
    @click.pass_context
    def callback(ctx: click.Context, /, output: str, **values: Any) -> None:
        samples = _run(name, model, values, output)
        if not samples or any(sample["verdict"] != "pass" for sample in samples):
            ctx.exit(1)

    command = click.command(name, help=model.__doc__)(callback)
    command.params[:0] = params
    command.context_settings = {"ignore_unknown_options": name == "exec"}
    return command


def _run(
    name: str, model: type[ProbeSpec], values: dict[str, Any], output: str
) -> list[dict[str, Any]]:
    data = {"type": name, **spec_from(model, values)}
    longest = model.model_validate(data).longest.total_seconds()
    samples: list[dict[str, Any]] = []
    with client() as agent:
        for sample in agent.probe(data, longest + 30):
            found = {
                "boottime_ns": sample.boottime_ns,
                "verdict": sample.verdict,
                "duration_ns": sample.duration_ns,
                "reason": sample.reason,
                "data": json.loads(sample.data_json),
            }
            samples.append(found)
            if output == "table":
                took = f"{sample.duration_ns / 1e6:.1f} ms"
                reason = render.printable(sample.reason)
                print(f"{sample.verdict:8}{took:>12}  {reason}", flush=True)
    if output != "table":
        render.data(samples, output)
    return samples

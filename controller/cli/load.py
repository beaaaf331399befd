"""`faultctl load`: an open-loop load from the command line or a file."""

from __future__ import annotations

import time
from typing import Any

import click
import yaml
from pydantic import ValidationError

from controller import render
from controller.clock import wall
from controller.load.driver import LoadDriver, LoadResult
from controller.load.spec import LoadSpec, parse_load
from controller.probes.sampler import RunClock
from controller.records import SampleRecord
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.planner import explain

EXIT_FALSE = 1
EXIT_NOT_HELD = 3


@click.command()
@click.argument("file", required=False, type=click.File("rb"))
@click.option("--http", "url", metavar="URL", help="ask this URL")
@click.option("--rate", metavar="RATE", help="such as 50/s, 90/m")
@click.option("--to", metavar="RATE", help="ramp to this rate")
@click.option("--for", "duration", metavar="DURATION", help="how long")
@click.option("--arrivals", type=click.Choice(["poisson", "uniform"]))
@click.option("--seed", type=int, help="of the arrivals; the same seed is the same load")
@click.option("--plan", is_flag=True, help="say what would be sent, and send nothing")
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
@click.pass_context
def load(ctx: click.Context, /, file: Any, plan: bool, output: str, **options: Any) -> None:
    """Send requests at their planned times, whatever becomes of the answers.

    FILE is a load of an experiment (YAML): request, stages, arrivals, seed. Exit 0: the rate
    was held and the answers are good; 1: they are not; 3: the driver could not hold the rate,
    and nothing was measured.
    """
    spec = _spec(file, options)
    if plan:
        _show_plan(spec, output)
        return
    samples: list[SampleRecord] = []

    def sink(sample: SampleRecord) -> None:
        samples.append(sample)
        if output == "table":
            _line(sample)

    origin = time.monotonic_ns()
    clock = RunClock(lambda: (time.monotonic_ns() - origin, wall()))
    result = LoadDriver("load", spec, sink, clock).run()
    if output != "table":
        windows = [s.model_dump(mode="json") for s in samples]
        render.data({"total": result.data(), "windows": windows}, output)
    else:
        _summary(result)
    if not result.held:
        ctx.exit(EXIT_NOT_HELD)
    if any(s.verdict == "fail" for s in samples):
        ctx.exit(EXIT_FALSE)


def _spec(file: Any, options: dict[str, Any]) -> LoadSpec:
    data: Any = {}
    if file is not None:
        try:
            data = yaml.safe_load(file.read())
        except (yaml.YAMLError, UnicodeDecodeError) as exc:
            raise InvalidSpec("the file is not YAML", " ".join(str(exc).split())) from exc
        if not isinstance(data, dict):
            raise InvalidSpec("the file is no load", "a mapping with request and stages is needed")
    if options["url"]:
        data["request"] = {"type": "http", "url": options["url"]}
    if options["rate"] or options["duration"]:
        stage = {"rate": options["rate"], "to": options["to"], "for": options["duration"]}
        data["stages"] = [{key: value for key, value in stage.items() if value}]
    data |= {key: options[key] for key in ("arrivals", "seed") if options[key] is not None}
    try:
        return parse_load(data)
    except ValidationError as exc:
        raise InvalidSpec("the load is not valid", explain(exc)) from exc


def _show_plan(spec: LoadSpec, output: str) -> None:
    data = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    data["requests"] = round(float(sum(s.requests for s in spec.stages)))
    render.data(data, "yaml" if output == "table" else output)


def _line(sample: SampleRecord) -> None:
    d = sample.data
    p99 = "—" if d["p99_ns"] is None else f"{d['p99_ns'] / 1e6:.1f} ms"
    print(
        f"{sample.t_ns / 1e9:8.1f} s  {sample.verdict:8} {d['planned']:6} planned {d['ok']:6} ok "
        f"{d['failed']:6} failed  p99 {p99:>10}  {sample.reason}",
        flush=True,
    )


def _summary(result: LoadResult) -> None:
    data = result.data()
    names = ("planned", "ok", "failed", "dropped", "late", "rate")
    render.table([n.upper() for n in names], [[str(data[n]) for n in names]])
    known = {p: data[f"{p}_ns"] for p in ("p50", "p90", "p99", "max")}
    times = [f"{p} {ns / 1e6:.1f} ms" for p, ns in known.items() if ns is not None]
    if times:
        click.echo("  ".join(times))
    if not result.held:
        click.echo(f"the rate was not held: {data['trouble']}", err=True)

"""`faultctl run`: plays an experiment, or goes on with a run whose controller is gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from controller import render
from controller.cli.kube import ways, with_access
from controller.cli.show_plan import show_plan
from controller.experiment import Experiment
from controller.experiment_check import Loaded, load_experiment
from controller.experiment_plan import plan_experiment
from controller.experiment_pods import in_file_words
from controller.experiment_schema import experiment_schema
from controller.kube.admission import check_policy
from controller.kube.ways import Ways
from controller.live import LiveView, PlainView
from controller.noise import with_noise
from controller.run import View
from controller.run_finish import Outcome
from controller.run_plan import RunPlan
from controller.run_pods import with_pods
from controller.run_resume import take_over
from controller.run_start import Options, new_run_id, play_new
from controller.run_when import parse_at, wait_until
from nodeagent.model.errors import FaultError, InvalidSpec, Refused
from nodeagent.model.policy import namespace_of

RUNS = Path("runs")


def node_options(values: tuple[str, ...]) -> dict[str, str]:
    """--node NAME=URL, as often as needed."""
    found: dict[str, str] = {}
    for value in values:
        name, separator, url = value.partition("=")
        if not separator or not name or not url:
            raise InvalidSpec(f"--node {value!r} is not NAME=URL")
        found[name] = url
    return found


def read_experiment(
    path: Path, nodes: tuple[str, ...], *, seed: int | None = None, for_schedule: bool = False
) -> Loaded:
    """The experiment of a file. Raises InvalidSpec, Refused."""
    found = load_experiment(
        _read(path), path.name, nodes=node_options(nodes), for_schedule=for_schedule
    )
    if seed is None:
        return found
    experiment = found.experiment.model_copy(update={"seed": seed})
    return replace(found, experiment=experiment, plan=plan_experiment(experiment))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as exc:
        raise Refused(f"{path} cannot be read", exc.strerror or str(exc)) from exc


def noise_wanted(choice: str, experiment: Experiment) -> bool:
    """`--noise on|off`; by the file when it is not given."""
    return experiment.noise is not None if choice == "file" else choice == "on"


def _chaos_mesh(file: Path, access: dict[str, Any], values: dict[str, Any]) -> bool:
    """Whether it was such a file, and is done. The kubernetes package is needed only then."""
    from controller.kube.chaosmesh import is_chaos_mesh

    if not file.is_file() or not is_chaos_mesh(raw := _read(file)):
        return False
    from controller.cli.run_chaosmesh import run_file

    run_file(raw, access, plan_only=values["plan_only"], partly=values["allow_refused"],
             seed=values["seed"], output=values["output"], policy=values["policy"])  # fmt: skip
    return True


noise_option = click.option(
    "--noise",
    type=click.Choice(["on", "off", "file"]),
    default="file",
    show_default=True,
    help="background noise; `file`: if the experiment has a noise block",
)
node_option = click.option(
    "--node", "nodes", multiple=True, metavar="NAME=URL", help="where the agent of a node is"
)
folder_option = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="of the record; a new one [default: runs/NAME-ID]",
)


@click.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--plan", "plan_only", is_flag=True, help="show timeline and steps, touch nothing")
@click.option("--offline", is_flag=True, help="with --plan: ask no node, show the timeline only")
@click.option("--schema", is_flag=True, help="print the JSON schema of experiment files")
@click.option("--seed", type=click.IntRange(0, (1 << 63) - 1), help="instead of the file's")
@noise_option
@node_option
@folder_option
@click.option("--at", metavar="TIME", help="start then: 2026-12-01T00:00:00+01:00")
@click.option("--zone", metavar="NAME", help="of --at, if it has no offset: Europe/Berlin")
@click.option("--repeat", type=click.IntRange(1, 1000), default=1, show_default=True)
@click.option("--allow-refused", is_flag=True, help="start though nodes would refuse some faults")
@click.option("--policy", envvar="FAULTCTL_POLICY", type=click.Path(path_type=Path), metavar="FILE",
              help="who may do what to a cluster; see docs/kubernetes.md")  # fmt: skip
@click.option("--take-over", "resume", type=click.Path(path_type=Path), metavar="FOLDER")
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
@with_access
def run(file: Path | None, resume: Path | None, access: dict[str, Any], **values: Any) -> None:
    """Play the experiment FILE; everything is back where it was when it ends.

    FILE may have objects of Chaos Mesh instead: what has an equal here is run, on a cluster.
    """
    if values["schema"]:
        click.echo(json.dumps(experiment_schema(with_kinds=True), indent=2))
        return
    if (file is None) == (resume is None):
        raise click.UsageError("give an experiment file, or --take-over FOLDER")
    if file is not None and _chaos_mesh(file, access, values):
        return
    ctx = click.get_current_context()
    if resume is not None:
        with views() as watching:
            outcome = take_over(resume, ways(access, values["policy"]), watching)
        show_outcome(outcome, values["output"])
        ctx.exit(outcome.exit_code)
    if file is None:
        return
    loaded = read_experiment(file, values["nodes"], seed=values["seed"])
    noise = noise_wanted(values["noise"], loaded.experiment)
    if values["plan_only"]:
        offline = values["offline"]
        through = None if offline else ways(access, values["policy"])
        loaded, plan = planned(loaded, noise, through, values["policy"])
        show_plan(loaded.experiment, plan, values["output"], through)
        return
    if values["at"] is not None:
        planned(
            loaded, noise, ways(access, values["policy"]), values["policy"]
        )  # what is wrong is told now, not then
        moment_at = parse_at(values["at"], values["zone"], datetime.now(UTC))
        wait_until(moment_at, lambda line: render.err().print(line, markup=False))
    ctx.exit(play(loaded, None, noise, values, ways(access, values["policy"])))


def planned(
    loaded: Loaded, noise: bool, through: Ways | None, policy: Path | None = None
) -> tuple[Loaded, RunPlan]:
    """The experiment with the pods that are there now, and its plan with noise; `through` None
    asks nobody. Raises Refused when the policy denies one of its faults to this user."""

    def allowed(cluster: Any, plan: RunPlan) -> None:
        spaces = {(one.fault, one.target): one.spaces for one in plan.objects}
        check_policy(cluster, policy, [
            (item.kind, space, item.hard_end) for item in plan.items
            for space in spaces.get((item.name, item.target_name), (namespace_of(item.target),))
        ])  # fmt: skip

    if through is not None:
        try:
            loaded = with_pods(loaded, through, allowed)
        except FaultError as exc:
            raise type(exc)(exc.what, exc.why, in_file_words(exc.hint)) from exc
    return loaded, with_noise(loaded.plan, loaded.experiment) if noise else loaded.plan


def play(
    loaded: Loaded, plan: RunPlan | None, noise: bool, values: dict[str, Any], through: Ways
) -> int:
    """As often as asked; the worst exit code. Without a plan it is the experiment's own, made
    anew each time: its pods may be others by then."""
    worst, given = 0, plan
    for number in range(1, values["repeat"] + 1):
        if given is None:
            loaded, plan = planned(loaded, noise, through, values.get("policy"))
        name = f"{loaded.experiment.name}-{(run := new_run_id())}"
        options = Options(
            run=run,
            folder=_folder(values["folder"], name, number, values["repeat"]),
            noise=noise,
            blind=loaded.experiment.blind,
            allow_refused=values["allow_refused"],
            repeat=number,
        )
        with views(plan) as watching:
            outcome = play_new(loaded, plan or loaded.plan, options, through, watching)
        show_outcome(outcome, values["output"])
        worst = max(worst, outcome.exit_code)
        if outcome.stopped in ("interrupt", "stop"):
            break
    return worst


def _folder(given: Path | None, name: str, number: int, repeat: int) -> Path:
    if given is None:
        return RUNS / name
    return given if repeat == 1 else given.with_name(f"{given.name}-{number}")


@contextmanager
def views(plan: RunPlan | None = None) -> Iterator[list[View]]:
    """A live picture on a terminal, else plain lines; both on standard error."""
    console = render.err()
    if console.is_terminal:
        with LiveView(console) as view:
            yield [view]
    else:
        yield [PlainView(console)]


def show_outcome(outcome: Outcome, form: str) -> None:
    """What became of a run."""
    data = {
        "run": outcome.run,
        "folder": str(outcome.folder),
        "stopped": outcome.stopped,
        "ended": dict(sorted(outcome.ended.items())),
        "dropped": dict(sorted(outcome.dropped.items())),
        "groups": {
            v.subject: {"verdict": v.verdict, "why": list(v.reasons)} for v in outcome.verdicts
        },
        "bundle": str(outcome.bundle),
        "seal": outcome.seal,
    }
    if form != "table":
        render.data(data, form)
        return
    console = render.out()
    words = [f"{n} {word}" for word, n in sorted((outcome.ended + outcome.dropped).items())]
    console.print(
        f"{outcome.run}: {', '.join(words) or 'no fault'} ({outcome.stopped})", markup=False
    )
    for verdict in outcome.verdicts:
        console.print(f"  {verdict.subject}: {'; '.join(verdict.reasons)}", markup=False)
    console.print(f"  bundle: {outcome.bundle}", markup=False)
    console.print(f"  seal:   {outcome.seal}", markup=False)

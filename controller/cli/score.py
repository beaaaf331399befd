"""`faultctl score`: numbers of one run or of several, from their bundles alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from controller import render
from controller.diagnosis import RULES, rule_named
from controller.diagnosis_judges import PersonJudge
from controller.score import repeated
from controller.score_files import open_run
from controller.score_run import Scored, score_run
from nodeagent.model.errors import InvalidSpec


@click.command()
@click.argument("bundles", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rule", type=click.Choice(sorted(RULES)), default="thirds", show_default=True)
@click.option("--answers", type=click.File("r"), help="a person's answers to the nine questions")
@click.option("--person", default="person", help="who answered")
@click.option("--seal", default="", help="of a single bundle, if it was kept elsewhere")
@click.option("-o", "--output", type=click.Choice(render.FORMATS), default="table")
def score(
    bundles: tuple[Path, ...], rule: str, answers: Any, person: str, seal: str, output: str
) -> None:
    """Score runs: BUNDLES are sealed bundles or run folders.

    Several bundles are repetitions: their rates come after each run's own numbers. The same
    bundles give the same output, byte for byte. Answers that a bundle keeps are used as they
    are; --answers takes a person's in their place.
    """
    judge = None if answers is None else PersonJudge(answers.read(), person)
    if seal and len(bundles) != 1:
        raise InvalidSpec("--seal is of one bundle", f"{len(bundles)} are given")
    runs = [score_run(open_run(path, seal), judge, rule_named(rule)) for path in bundles]
    together = repeated([run.result for run in runs]) if len(runs) > 1 else None
    if output == "table":
        for run in runs:
            _show(run)
        if together is not None:
            _show_repeated(together)
        return
    if output == "json" and len(runs) == 1:
        click.echo(runs[0].text(), nl=False)
        return
    data = [run.data() for run in runs]
    found = data[0] if together is None else {"runs": data, "repeated": together}
    render.data(found, output)


def _show(scored: Scored) -> None:
    data = scored.data()
    score_data, console = data["score"], render.out()
    console.print(
        f"run {data['run']}  score {score_data['score']}  "
        f"({score_data['credit']} of {3 * score_data['faults']} stages in order)  "
        f"verdict {data['verdict']['verdict']}",
        markup=False,
    )
    rows = [
        (stage, f"{s['faults']}/{score_data['faults']}", f"{s['percent']}%", f"{s['median_s']} s")
        for stage, s in score_data["stages"].items()
    ]
    render.table(("STAGE", "FAULTS", "RATE", "MEDIAN"), rows)
    verdicts = {v["subject"]: v for v in data["verdict"]["faults"]}
    times = {t["fault"]: t for t in data["times"]}
    diagnoses = {d["fault"]: d for d in data["diagnosis"]}
    each = [
        (
            row["fault"],
            row["service"],
            verdicts[row["fault"]]["verdict"],
            verdicts[row["fault"]]["ended_as"],
            row["outcome"],
            str(row["credit"]),
            diagnoses[row["fault"]]["verdict"],
            _time(times[row["fault"]], "mitigation"),
            _time(times[row["fault"]], "diagnosis"),
        )
        for row in score_data["each"]
    ]
    columns = ("FAULT", "SERVICE", "VERDICT", "ENDED", "OUTCOME", "CREDIT", "DIAGNOSIS")
    render.table((*columns, "MITIGATED", "DIAGNOSED"), each, "no fault was injected")
    for reason in data["verdict"]["reasons"]:
        console.print(f"  {reason}", markup=False)


def _time(found: dict[str, Any], name: str) -> str:
    seconds = f"{found[f'time_to_{name}_s']} s"
    return seconds if found[f"{name}_came"] else f"never ({seconds})"


def _show_repeated(together: dict[str, Any]) -> None:
    names = [n for n in together["all"] if isinstance(together["all"][n], dict)]
    rows = [
        (group, *(f"{found[n]['of']} {found[n]['percent']}%" for n in names))
        for group, found in together.items()
    ]
    render.table(("RUNS", *(n.replace("_", " ").upper() for n in names)), rows)

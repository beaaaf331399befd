"""Renders the page. One file, nothing fetched, the same bytes for the same records."""

from __future__ import annotations

from fractions import Fraction
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from controller.diagnosis import QUESTIONS
from controller.report.charts import action_chart, seen_chart
from controller.report.model import Axis, clock, page_data
from controller.score import NONE, STAGES, fixed
from controller.score_run import Scored

_QUESTIONS = {q.id: q for q in QUESTIONS}


def _part(name: str) -> str:
    return resources.files("controller.report").joinpath(name).read_text(encoding="utf-8")


def render(scored: Scored) -> str:
    """The HTML of a run's report. All texts of the run are escaped."""
    data = page_data(scored)
    history = scored.run.history
    times = [s.times[0] for s in history.series.values() if s.times]
    axis = Axis(min([0, *times]), max(1, history.end_ns))
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=False)
    template = environment.from_string(_part("page.html.j2"))
    score = data["result"]["score"]
    # Markup: style, script and charts are our own text; nothing of a run is in them but numbers.
    return template.render(
        **data,
        axis=axis,
        style=Markup(_part("page.css")),
        script=Markup(_part("page.js")),
        seen_chart=Markup(seen_chart(score["seen"], axis)),
        action_chart=Markup(action_chart(score["actions"])),
        stages=_stages(data),
        answers=_answers(data),
    )


def _name(data: dict[str, Any], fault: str) -> str:
    return next((str(v["name"]) for v in data["verdicts"] if v["subject"] == fault), fault)


def _stages(data: dict[str, Any]) -> list[dict[str, Any]]:
    """One row a fault: when it passed what."""
    result = data["result"]
    times = {t["fault"]: t for t in result["times"]}
    diagnoses = {d["fault"]: d for d in result["diagnosis"]}
    rows = []
    for each in result["score"]["each"]:
        time, diagnosis = times[each["fault"]], diagnoses[each["fault"]]
        found = diagnosis.get("result")
        rows.append(
            {
                "name": _name(data, each["fault"]),
                "service": each["service"],
                "injected": clock(each["injected_ns"]),
                "stages": [_after(each, stage) for stage in STAGES],
                "credit": each["credit"],
                "outcome": each["outcome"],
                "mitigation": _took(time, "mitigation"),
                "diagnosis": _took(time, "diagnosis"),
                "diagnosed": diagnosis["verdict"] if diagnosis["submitted_ns"] is not None else "",
                "diagnosis_score": None if found is None else found["score_shown"],
            }
        )
    return rows


def _after(each: dict[str, Any], stage: str) -> str:
    at = each[f"{stage}_ns"]
    if at is None:
        return NONE
    return f"+{fixed(Fraction(at - each['injected_ns'], 10**9), 1)} s"


def _took(time: dict[str, Any], name: str) -> str:
    seconds = fixed(Fraction(time[f"time_to_{name}_s"]), 1)
    return f"{seconds} s" if time[f"{name}_came"] else f"never ({seconds} s)"


def _answers(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The nine answers of each diagnosis that was judged."""
    rows = []
    for diagnosis in data["result"]["diagnosis"]:
        found = diagnosis.get("result")
        if found is None:
            continue
        answers = [
            answer
            | {
                "dimension": _QUESTIONS[answer["question"]].dimension,
                "text": _QUESTIONS[answer["question"]].text,
            }
            for answer in found["answers"]
        ]
        rows.append(
            {
                "name": _name(data, diagnosis["fault"]),
                "verdict": diagnosis["verdict"],
                "judge": found["judge"],
                "rule": found["rule"],
                "score": found["score"],
                "threshold": found["threshold"],
                "answers": answers,
            }
        )
    return rows

"""A whole run judged from its bundle: byte-equal, refused when it was touched, and right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from judging_kit import S, action, armed, clocks, ended, planned, samples, submission
from judging_runs import experiment, header, marathon, sealed, write_folder

from controller.cli.main import run as faultctl
from controller.diagnosis import QUESTIONS
from controller.score_files import open_run
from controller.score_run import Scored, score_run, verdict_records
from nodeagent.model.errors import InvalidSpec, Refused

ORACLES = {"repaired": {"hold": "60s", "cap": "600s"}}
PROBES = {"orders": {"type": "exec", "command": ["true"]}}
RIGHT = {
    "service": "postgres",
    "artifact": "/dev/vdb sectors 2048-2055",
    "category": "disk",
    "mechanism": "latent sectors under a table",
    "symptom": "orders",
    "node": "n1",
    "scope": ["postgres", "checkout"],
}


def single(*more: Any) -> list[Any]:
    """One fault that somebody repairs and reports."""
    return [
        planned(),
        armed(60),
        *samples("orders", 0, 61),
        *samples("orders", 61, 110, "fail"),
        *samples("orders", 110, 300),
        *clocks(0, 300),
        *more,
    ]


FIXED = (ended(108, "remedied", "remedy moved"), submission("mitigation", 120))


def scored(tmp_path: Path, records: list[Any], name: str = "run", **head: Any) -> Scored:
    data = experiment(oracles=ORACLES, probes=PROBES)
    return score_run(open_run(write_folder(tmp_path / name, records, data, header(**head))))


def test_stages_and_times_of_a_handled_fault(tmp_path: Path) -> None:
    found = scored(
        tmp_path,
        single(
            *FIXED,
            submission("report", 70, alerts=["orders"]),
            submission("diagnosis", 90, **RIGHT),
            action(100),
        ),
    ).data()
    (each,) = found["score"]["each"]
    assert (each["correlated_ns"], each["localized_ns"], each["repaired_ns"], each["acted_ns"]) == (
        70 * S,
        90 * S,
        108 * S,
        100 * S,
    )
    assert (each["outcome"], found["score"]["score"]) == ("handled", "100.0")
    (times,) = found["times"]
    assert (times["time_to_mitigation_s"], times["time_to_diagnosis_s"]) == ("60.000", "30.000")
    assert found["diagnosis"][0]["verdict"] == "pass"
    assert found["verdict"]["verdict"] == "pass"


def test_what_never_came_counts_as_the_cap(tmp_path: Path) -> None:
    (times,) = scored(tmp_path, single()).data()["times"]
    assert (times["time_to_mitigation_s"], times["mitigation_came"]) == ("600.000", False)
    assert (times["time_to_diagnosis_s"], times["diagnosis_came"]) == ("600.000", False)


@pytest.mark.parametrize(
    ("what", "stage"),
    [
        (submission("report", 59, alerts=["orders"]), "correlated"),
        (submission("report", 109, alerts=["orders"]), "correlated"),
        (submission("report", 70, alerts=["other"]), "correlated"),
        (submission("report", 70, text="orders"), "correlated"),
        (submission("report", 70, service=["postgres", "checkout"]), "localized"),
        (submission("report", 70, service="checkout"), "localized"),
        (submission("report", 50, service="postgres"), "localized"),
        (submission("report", 120, service="postgres"), "localized"),
        (action(50), "acted"),
        (action(120), "acted"),
        (action(70, executed=False), "acted"),
        (action(70, service="checkout"), "acted"),
        (action(70, service=""), "acted"),
    ],
)
def test_what_does_not_count(tmp_path: Path, what: Any, stage: str) -> None:
    (each,) = scored(tmp_path, single(*FIXED, what)).data()["score"]["each"]
    assert each[f"{stage}_ns"] is None


def test_the_orchestrators_revert_is_no_repair(tmp_path: Path) -> None:
    for number, reason in enumerate(("reverted", "expired", "agent-lost")):
        found = scored(tmp_path, single(ended(108, reason), FIXED[1]), f"r{number}")
        (each,) = found.data()["score"]["each"]
        assert (each["repaired_ns"], each["outcome"]) == (None, "missed")


def test_noise_is_never_scored(tmp_path: Path) -> None:
    noise = [planned("z1", "noise", role="noise", truth=None), armed(70, "z1", role="noise")]
    found = scored(tmp_path, single(*FIXED, *noise)).data()
    assert found["score"]["faults"] == 1
    assert len(found["verdict"]["faults"]) == 1


def test_answers_that_are_stored_are_never_asked_for_again(tmp_path: Path) -> None:
    class Broken:
        name = "broken"

        def answer(self, case: Any) -> Any:
            raise AssertionError("asked again")

    records = single(*FIXED, submission("diagnosis", 90, **RIGHT))
    first = scored(tmp_path, records)
    stored = verdict_records(first, 300 * S, "2026-01-01T00:00:00Z")
    assert {v.oracle for v in stored} == {"repaired", "all", "diagnosis"}
    again = scored(tmp_path, [*records, *stored], "again")
    assert again.data()["diagnosis"][0]["stored"] is True
    assert again.data()["diagnosis"][0]["result"] == first.data()["diagnosis"][0]["result"]
    folder = write_folder(tmp_path / "x", [*records, *stored], experiment(oracles=ORACLES))
    with pytest.raises(AssertionError, match="asked again"):
        score_run(open_run(folder), Broken())
    score_run(open_run(folder))


def test_repeated_runs(tmp_path: Path) -> None:
    good = single(*FIXED, submission("diagnosis", 90, **RIGHT))
    results = [
        scored(tmp_path, good, "a", noise=False).result,
        scored(tmp_path, single(), "b", noise=True).result,
        scored(tmp_path, single(*FIXED), "c", noise=True).result,
    ]
    assert [(r.noise, r.mitigated, r.diagnosed) for r in results] == [
        (False, True, True),
        (True, False, False),
        (True, True, False),
    ]


def test_two_replays_are_byte_equal_also_in_another_order(tmp_path: Path) -> None:
    records = marathon()
    first = score_run(open_run(sealed(write_folder(tmp_path / "a", records, experiment()))))
    second = score_run(open_run(sealed(write_folder(tmp_path / "b", records[::-1], experiment()))))
    assert first.text() == second.text()
    assert first.text().encode() == first.text().encode()
    assert json.loads(first.text())["score"]["faults"] == 24


# --- the command line ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sealed(write_folder(tmp_path_factory.mktemp("m") / "run", marathon(), experiment()))


def cli(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = faultctl(list(args))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_score_prints_the_same_bytes(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = {cli(capsys, "score", str(bundle), "-o", "json")[1] for _ in range(3)}
    assert len(outputs) == 1
    code, text, _ = cli(capsys, "score", str(bundle))
    assert code == 0
    assert "score 34.7" in text


def test_a_flipped_byte_is_refused(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = bytearray(bundle.read_bytes())
    for at in (5000, len(raw) // 2, len(raw) - 5):
        changed = bytes(raw[:at]) + bytes([raw[at] ^ 1]) + bytes(raw[at + 1 :])
        path = tmp_path / "changed.bundle.tar"
        path.write_bytes(changed)
        for verb in (["score"], ["report"], ["oracle", "judge"], ["oracle", "check"]):
            code, _, err = cli(capsys, *verb, str(path))
            assert code == 3 or (code == 2 and "bundle" in err), (verb, at, err)
        assert not (tmp_path / "changed.html").exists()


def test_oracle_judge_says_fail_by_its_exit_code(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = cli(capsys, "oracle", "judge", str(bundle))
    assert (code, text.strip().splitlines()[-1]) == (1, "run: fail")
    data = experiment(oracles=ORACLES, probes=PROBES)
    good = sealed(write_folder(tmp_path / "good", single(*FIXED), data))
    assert cli(capsys, "oracle", "judge", str(good))[0] == 0
    empty = sealed(write_folder(tmp_path / "empty", [], data))
    assert cli(capsys, "oracle", "judge", str(empty))[0] == 1


def test_oracle_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = experiment(oracles={"o": {"hold": "30s"}}, probes=PROBES)
    good = write_folder(tmp_path / "good", single(*FIXED), sound)
    assert cli(capsys, "oracle", "check", str(good))[0] == 0
    blind = experiment(
        oracles={"o": {"hold": "30s", "require": {"type": "agent-alive"}}}, probes=PROBES
    )
    bad = write_folder(tmp_path / "bad", single(*FIXED), blind)
    code, text, _ = cli(capsys, "oracle", "check", str(bad))
    assert code == 1
    assert "broken" in text


def test_report_is_written(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out.html"
    assert cli(capsys, "report", str(bundle), "-f", str(target))[0] == 0
    first = target.read_bytes()
    assert cli(capsys, "report", str(bundle), "-f", str(target))[0] == 0
    assert target.read_bytes() == first
    assert cli(capsys, "report", str(bundle), "-f", str(tmp_path / "no" / "x.html"))[0] == 3


def test_a_persons_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = experiment(oracles=ORACLES, probes=PROBES)
    records = single(*FIXED, submission("diagnosis", 90, text="it is DNS"))
    folder = write_folder(tmp_path / "run", records, data)
    answers = tmp_path / "answers.yaml"
    lines = [
        f"  {q.id}: {'no' if q.dimension == 'scope' and q.id != 'node' else 'yes'}"
        for q in QUESTIONS
    ]
    answers.write_text("answers:\n" + "\n".join(lines) + "\n")
    args = ("score", str(folder), "-o", "json", "--answers", str(answers), "--person", "Ada")
    for rule, score, verdict in (("thirds", "7/9", "pass"), ("code", "58/75", "pass")):
        code, text, _ = cli(capsys, *args, "--rule", rule)
        (found,) = json.loads(text)["diagnosis"]
        assert (code, found["result"]["score"], found["verdict"]) == (0, score, verdict)
        assert (found["result"]["judge"], found["result"]["rule"]) == ("Ada", rule)
    answers.write_text("answers: {service: yes}")
    assert cli(capsys, *args)[0] == 2


def test_runs_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = write_folder(tmp_path / "old", [], experiment())
    text = (
        (old / "run.json")
        .read_text()
        .replace('"format":1', '"format":99')
        .replace('"format": 1', '"format": 99')
    )
    (old / "run.json").write_text(text)
    assert cli(capsys, "score", str(old))[0] == 3
    (tmp_path / "empty").mkdir()
    assert cli(capsys, "score", str(tmp_path / "empty"))[0] == 3
    assert cli(capsys, "score", str(tmp_path / "none"))[0] == 3
    assert cli(capsys, "score")[0] == 2
    broken = write_folder(tmp_path / "broken", [planned()], experiment())
    (broken / "faults.jsonl").write_text('{"type": "planned"}\n')
    with pytest.raises(InvalidSpec, match=r"line 1 of faults\.jsonl"):
        open_run(broken)
    yaml = write_folder(tmp_path / "yaml", [], experiment(oracles={"o": {"hold": "1"}}))
    with pytest.raises(InvalidSpec, match="o of the run's experiment"):
        open_run(yaml)
    with pytest.raises(Refused):
        open_run(yaml, seal="abc")

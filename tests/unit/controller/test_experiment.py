"""Experiment files: every problem at once, by line; nothing that a file can do to its reader."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.experiment_check import load_experiment
from controller.experiment_schedule import plan_schedule
from controller.experiment_schema import experiment_schema, schema_text
from controller.experiment_yaml import read_document
from controller.run_plan import RunPlan, fault_id
from controller.schedule import generate
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.plan import FaultRequest

ROOT = Path(__file__).resolve().parents[3]
GOOD = """\
version: 1
name: demo
duration: 10m
blind: false
nodes:
  a: {agent: "unix:///run/a.sock", zone: z1}
  b: {agent: "unix:///run/b.sock", zone: z2}
targets:
  table: {node: a, service: db, target: {type: file, file: /srv/table}}
  disk: {node: b, service: web, target: {type: device, device: /dev/vdb}}
probes:
  alive: {type: exec, node: a, command: ["true"]}
remedies:
  moved: {probe: alive}
guards:
  up: {probe: alive, failures: 5}
faults:
  one:
    kind: latent-sector
    target: table
    at: 1m
    for: 2m
    spec: {count: 1}
    remedies: [moved]
  two: {kind: latent-sector, target: disk, at: 2m, for: 3m, spec: {count: 2}}
"""


def problems(text: str) -> str:
    with pytest.raises(InvalidSpec) as found:
        load_experiment(text.encode(), "x.yaml")
    return found.value.why


def change(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_good_file_gives_a_plan() -> None:
    loaded = load_experiment(GOOD.encode(), "x.yaml")
    assert [
        (i.slot, i.node, i.start_ns // 10**9, i.end_ns // 10**9) for i in loaded.plan.items
    ] == [
        ("one", "a", 60, 180),
        ("two", "b", 120, 300),
    ]
    assert RunPlan.from_text(loaded.plan.text()) == loaded.plan
    assert load_experiment(GOOD.encode(), "x.yaml").plan.text() == loaded.plan.text()


@pytest.mark.parametrize(
    ("old", "new", "line", "word"),
    [
        ("version: 1", "version: 2", 1, "version"),
        ("name: demo", "name: Demo!", 2, "name"),
        ("duration: 10m", "duration: 0s", 3, "more than 0s"),
        ("duration: 10m", "duration: 600", 3, "no unit"),
        ("duration: 10m", "duration: 10m\nunknown: 1", 4, "not a key"),
        ("blind: false", "blind: true", 18, "truth is missing"),
        ("node: a, service: db", "node: z, service: db", 9, "no node 'z'"),
        ("service: db, target", "service: db, targets", 9, "targets"),
        ("{probe: alive, failures: 5}", "{probe: dead}", 16, "no probe 'dead'"),
        ("kind: latent-sector\n", "kind: bogus\n", 19, "no fault kind"),
        ("target: table", "target: tabel", 20, "no target 'tabel'"),
        ("for: 2m", "for: 20m", 22, "outlive the run by 11m"),
        ("for: 2m", "for: 0s", 22, "more than 0s"),
        ("at: 1m", "at: 11m", 21, "past the end"),
        ("spec: {count: 1}", "spec: {count: 0}", 23, "greater than or equal to 1"),
        ("spec: {count: 1}", "spec: {coun: 1}", 23, "coun"),
        ("remedies: [moved]", "remedies: [eaten]", 24, "no remedy 'eaten'"),
        ("faults:\n", "faults:\n  # nothing\nx:\n", 19, "not a key"),
        ("target: disk", "target: [disk, disk]", 25, "twice"),
        ("target: disk,", "target: disk, repeat: {every: 4m, times: 9},", 25, "last would outlive"),
    ],
)
def test_problem_is_named_with_its_line(old: str, new: str, line: int, word: str) -> None:
    found = problems(change(old, new))
    assert f"line {line}: " in found
    assert word in found


def test_all_problems_at_once() -> None:
    text = GOOD.replace("name: demo", "name: 7$").replace("at: 1m", "at: 5").replace("up:", "UP:")
    assert len(problems(text).splitlines()) == 3


@pytest.mark.parametrize("empty", ["faults: {}", "faults:", ""])
def test_experiment_without_faults_is_refused(empty: str) -> None:
    """CASES 164: an empty list of actions never passes."""
    head = GOOD[: GOOD.index("faults:")]
    with pytest.raises(InvalidSpec) as found:
        load_experiment((head + empty).encode(), "x.yaml")
    assert found.value.exit_code == 2


def test_cycle_in_stages_is_named() -> None:
    stages = (
        "stages: {s: {after: [u], for: 1m}, t: {after: [s], for: 1m}, u: {after: [t], for: 1m}}"
    )
    found = problems(change("blind: false", "blind: false\n" + stages))
    assert "circle" in found
    assert all(name in found for name in "stu")


def test_stages_follow_each_other() -> None:
    stages = "stages: {s: {for: 2m}, t: {after: [s], delay: 10s, for: 4m}}"
    text = change("blind: false", "blind: false\n" + stages)
    text = text.replace("at: 1m\n    for: 2m", "stage: t\n    at: 5s")
    plan = load_experiment(text.encode(), "x").plan
    assert [(i.start_ns // 10**9, i.end_ns // 10**9) for i in plan.items if i.slot == "one"] == [
        (135, 370)
    ]


def test_faults_that_exclude_each_other_are_refused() -> None:
    twin = "  three: {kind: latent-sector, target: disk, at: 3m, for: 1m, spec: {count: 2}}\n"
    assert "excludes 'two'" in problems(GOOD + twin)


def test_repeat_without_options_runs_every_period_and_lists_what_it_skips() -> None:
    """CASES 125: all defaults are filled; each decision is in the plan."""
    text = change("    at: 1m\n    for: 2m", "    repeat: {every: 30s, times: 10}\n    for: 70s")
    plan = load_experiment(text.encode(), "x").plan
    starts = [i.start_ns // 10**9 for i in plan.items if i.name == "one"]
    assert starts == [0, 90, 180, 270]
    skipped = [c.slot for c in plan.changes]
    assert [(c.action, c.rule) for c in plan.changes] == [("dropped", "overlap")] * 6
    assert len(skipped) + len(starts) == 10


def test_repeat_with_queue_starts_right_after() -> None:
    text = change(
        "    at: 1m\n    for: 2m",
        "    repeat: {every: 60s, times: 5, overlap: queue}\n    for: 70s",
    )
    plan = load_experiment(text.encode(), "x").plan
    starts = [i.start_ns // 10**9 for i in plan.items if i.name == "one"]
    assert starts == [0, 70, 140, 210, 280]


def test_caps_are_checked_against_the_whole_timeline() -> None:
    found = problems(change("blind: false", "blind: false\ncaps: {nodes: 1, faults: 1}"))
    assert "2 nodes at once" in found
    assert "2 faults at once" in found


def test_correlated_faults_end_together_and_metastable_needs_its_window() -> None:
    group = "groups: {g: {type: correlated, faults: [one, two]}}\n"
    plan = load_experiment((GOOD + group).encode(), "x").plan
    assert {i.end_ns // 10**9 for i in plan.items} == {300}
    group = "groups: {g: {type: metastable, faults: [two], overload: {probe: alive, hold: 8m}}}\n"
    assert "hold window outlives" in problems(GOOD + group)
    group = "groups: {g: {type: metastable, faults: [two]}}\n"
    assert "overload belongs" in problems(GOOD + group)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: !!python/object/apply:os.system [echo]", "tag"),
        ("a: 1\na: 2", "twice"),
        ("? [x, y]\n: 1", "a key must be text"),
        ("a: &x {b: 1}\nc: {<<: *x}", "merge"),
        ("a: &a [*a]", "nested"),
        ("[" * 5000, "YAML"),
        ("a: " + "[" * 40 + "]" * 40, "nested deeper"),
        ("", "empty"),
        ("just text", "mapping"),
        ("\x00", "YAML"),
        ("a: b: c", "YAML"),
        ("--- 1\n--- 2", "YAML"),
        ("x" * (2 << 20), "larger"),
    ],
)
def test_hostile_yaml_is_refused(text: str, word: str) -> None:
    """CASES 181: tags, bombs, depth, duplicate keys."""
    assert word in problems(text)


def test_alias_bomb_is_cut_off() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    began = time.monotonic()
    assert "aliases" in problems("\n".join(lines))
    assert time.monotonic() - began < 20


def test_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="problem"):
        load_experiment(b"\xff\xfe", "x")


def test_yaml_1_1_surprises_stay_text() -> None:
    assert read_document(b"{a: on, b: 01:30, c: no, d: 1_000}").data == {
        "a": "on",
        "b": "01:30",
        "c": "no",
        "d": "1_000",
    }


@pytest.mark.parametrize(
    "text", ["90", "01:30", '""', "-5s", "1d?", "5 min", "５s", "1e3s", "9" * 30]
)
def test_bad_durations_have_one_clear_error(text: str) -> None:
    """CASES 155: one grammar everywhere."""
    found = problems(change("at: 1m", f"at: {text}"))
    assert found.startswith("line 21: faults.one.at: ")


@pytest.mark.parametrize("text", ["90s", "1m30s", "1.5m", "0.025h"])
def test_good_durations_mean_the_same(text: str) -> None:
    plan = load_experiment(change("at: 1m", f"at: {text}").encode(), "x").plan
    assert plan.items[0].start_ns == 90 * 10**9


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_crash_the_reader(raw: bytes) -> None:
    read_document(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(yaml.safe_load(GOOD))), json_values)
def test_any_value_anywhere_is_accepted_or_refused_in_words(key: str, value: object) -> None:
    data = yaml.safe_load(GOOD)
    data[key] = value
    try:
        load_experiment(yaml.safe_dump(data).encode(), "x")
    except InvalidSpec as exc:
        assert exc.why


def test_ids_are_neutral_deterministic_and_valid() -> None:
    ids = {fault_id("r1", f"f{n}") for n in range(1000)}
    assert len(ids) == 1000
    assert fault_id("r1", "f1") == fault_id("r1", "f1") != fault_id("r2", "f1")
    assert FaultRequest(id=fault_id("r1", "latent-sector"), kind="k", target={})
    assert "latent" not in fault_id("r1", "latent-sector")


def test_schedule_needs_its_targets() -> None:
    experiment = load_experiment(GOOD.encode(), "x").experiment
    with pytest.raises(InvalidSpec, match="no target"):
        plan_schedule(generate(1, "short-5"), experiment)


def test_published_schema_is_current() -> None:
    """After a change: python -m controller.experiment_schema > schemas/experiment.schema.json"""
    assert (ROOT / "schemas/experiment.schema.json").read_text() == schema_text()


def test_defaults_in_the_schema_are_written_as_a_file_has_them() -> None:
    """With their units: an editor offers them, and a bare or ISO 8601 number would be refused."""
    text = json.dumps(experiment_schema(with_kinds=True))
    assert not re.search(r'"default": "-?P[T0-9]', text)
    schema = experiment_schema()
    assert schema["properties"]["lease"]["default"] == "1m"
    assert schema["$defs"]["FaultEntry"]["properties"]["at"]["default"] == "0s"
    assert schema["required"] == ["version", "name", "duration"]
    assert schema["$defs"]["FaultEntry"]["required"] == ["kind", "target"]


def test_schema_with_kinds_names_every_kind() -> None:
    schema = experiment_schema(with_kinds=True)
    assert "latent-sector" in schema["$defs"]["FaultEntry"]["properties"]["kind"]["enum"]

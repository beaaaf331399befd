"""Runs at their edges: time of day, fan-out, a full disk, what people see, examples in pages."""

from __future__ import annotations

import io
import re
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Console
from run_sim import MS, Drive, S, SimNode, _Port, item, plan_of
from sim_server import boottime
from test_bundle import HEADER

from controller.cli.main import cli
from controller.experiment_check import load_experiment
from controller.guards import Watch
from controller.live import PlainView, line_of, names_of, picture
from controller.recorder import Recorder, RecordLost
from controller.records import FaultArmed, Record
from controller.run import Runner
from controller.run_core import Core
from controller.run_exec import MAX_THREADS, Effects
from controller.run_state import Apply, Done, Revert, Settings
from controller.run_when import parse_at, wait_until
from controller.schedule_core import Place
from controller.viable import viable_targets
from nodeagent.model.errors import InvalidSpec, Refused

ROOT = Path(__file__).resolve().parents[3]
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


# --- time of day ------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "zone", "utc"),
    [
        ("2026-03-02T00:00:00+01:00", None, "2026-03-01T23:00:00"),
        ("2026-03-02T00:00:00Z", None, "2026-03-02T00:00:00"),
        ("2026-03-28T12:00", "Europe/Berlin", "2026-03-28T11:00:00"),
        ("2026-03-29T12:00", "Europe/Berlin", "2026-03-29T10:00:00"),
        ("2026-10-25T12:00", "Europe/Berlin", "2026-10-25T11:00:00"),
    ],
)
def test_start_time_means_one_moment(text: str, zone: str | None, utc: str) -> None:
    """CASES 129: with the zone, also on the days that summer time begins and ends."""
    assert parse_at(text, zone, NOW).astimezone(UTC).isoformat() == utc + "+00:00"


@pytest.mark.parametrize(
    ("text", "zone", "word"),
    [
        ("2026-03-02T00:00", None, "no zone"),
        ("2026-03-29T02:30", "Europe/Berlin", "does not exist"),
        ("2026-10-25T02:30", "Europe/Berlin", "comes twice"),
        ("2026-03-01T11:59:59Z", None, "past"),
        ("2036-03-01T11:59:59Z", None, "year"),
        ("tomorrow", None, "not a time"),
        ("2026-03-02T00:00", "Nowhere/Here", "no time zone"),
        ("2026-03-02T00:00Z", "Europe/Berlin", "offset already"),
    ],
)
def test_start_time_that_is_not_one_moment_is_refused(
    text: str, zone: str | None, word: str
) -> None:
    with pytest.raises(InvalidSpec) as found:
        parse_at(text, zone, NOW)
    assert word in str(found.value)


def test_waiting_follows_the_wall_clock_when_it_is_set() -> None:
    """It starts neither early when the clock is put back nor late when it is put forward."""
    clock = [NOW]
    jumps = iter([timedelta(hours=-1), timedelta(hours=2)])
    slept: list[float] = []
    said: list[str] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += timedelta(seconds=seconds) + next(jumps, timedelta(0))

    wait_until(NOW + timedelta(minutes=5), said.append, lambda: clock[0], sleep)
    assert clock[0] >= NOW + timedelta(minutes=5)
    assert len(slept) == 2
    assert said[0].startswith("waiting until 2026-03-01T12:05:00+00:00")


# --- many ------------------------------------------------------------


def test_6000_targets_are_reached_in_parallel_and_within_bounds(tmp_path: Path) -> None:
    """CASES 167: bounded fan-out; about targets x 5 ms / threads, never one after the other."""
    live, most, mutex = [0], [0], threading.Lock()

    class Slow(SimNode):
        def apply(self, *args: Any) -> Any:
            with mutex:
                live[0] += 1
                most[0] = max(most[0], live[0])
            time.sleep(0.005)
            with mutex:
                live[0] -= 1
            return super().apply(*args)

    ports = {f"n{n}": _Port(Slow(boottime)) for n in range(600)}
    left, over = [6000], threading.Event()

    def report(done: Done) -> None:
        assert done.error is None, done.error
        with mutex:
            left[0] -= 1
        if not left[0]:
            over.set()

    effects = Effects("r", ports, boottime, report)
    began = time.monotonic()
    for n in range(6000):
        effects.perform(
            Apply(
                item(f"f{n}", 0, 10, f"n{n % 600}"),
                60 * S,
                boottime() + 60 * S,
                boottime() + 60 * S,
            )
        )
    assert over.wait(100)
    took = time.monotonic() - began
    effects.close()
    assert 1 < most[0] <= MAX_THREADS
    assert took < 6000 * 0.005
    assert all(len(port.node.faults) == 10 for port in ports.values())


def test_50_injections_on_one_node_at_once_all_succeed() -> None:
    """CASES 171: a node's own operations are in order, none fails for another."""
    drive = Drive(plan_of(*(item(f"f{n:02d}", 1, 50) for n in range(50)))).run()
    assert set(drive.ends().values()) == {"reverted"}
    drive.armed_once()


def test_a_request_whose_turn_comes_too_late_is_never_sent() -> None:
    """CASES 134: on a node that needs 0.3 s for each, what waited past its end is dropped."""

    class Slow(SimNode):
        def apply(self, *args: Any) -> Any:
            time.sleep(0.3)
            return super().apply(*args)

    node, found, over = Slow(boottime), [], threading.Event()

    def report(done: Done) -> None:
        found.append(done)
        if len(found) == 4:
            over.set()

    effects = Effects("r", {"a": _Port(node)}, boottime, report)
    end = boottime() + 450 * MS
    for n in range(4):
        effects.perform(Apply(item(f"f{n}", 0, 10), 60 * S, end, end))
    assert over.wait(10)
    effects.close()
    assert [type(done.error).__name__ for done in found] == ["NoneType"] * 2 + ["TooLate"] * 2
    assert len(node.faults) == 2


def test_what_must_end_goes_before_what_could_begin() -> None:
    order: list[str] = []

    class Slow(SimNode):
        def apply(self, *args: Any) -> Any:
            time.sleep(0.1)
            order.append("apply")
            return super().apply(*args)

        def revert(self, *args: Any) -> Any:
            order.append("revert")
            return super().revert(*args)

    over = threading.Event()
    effects = Effects(
        "r",
        {"a": _Port(Slow(boottime))},
        boottime,
        lambda done: over.set() if len(order) == 4 else None,
    )
    end = boottime() + 60 * S
    for n in range(3):
        effects.perform(Apply(item(f"f{n}", 0, 10), 60 * S, end, end))
    time.sleep(0.05)
    effects.perform(Revert(item("f0", 0, 10)))
    assert over.wait(10)
    effects.close()
    assert order == ["apply", "revert", "apply", "apply"]


def test_a_bug_in_a_lane_is_an_error_of_one_action_and_the_lane_goes_on() -> None:
    class Broken(SimNode):
        def apply(self, *args: Any) -> Any:
            raise ZeroDivisionError("bug")

    found: list[Done] = []
    over = threading.Event()

    def report(done: Done) -> None:
        found.append(done)
        if len(found) == 3:
            over.set()

    effects = Effects("r", {"a": _Port(Broken(boottime))}, boottime, report)
    for n in range(3):
        effects.perform(
            Apply(item(f"f{n}", 0, 10), 60 * S, boottime() + 60 * S, boottime() + 60 * S)
        )
    assert over.wait(10)
    effects.close()
    assert all("bug in faultctl" in str(done.error) for done in found)


# --- a full disk ------------------------------------------------------------


def test_full_disk_in_the_middle_reverts_everything_and_is_an_error(tmp_path: Path) -> None:
    plan = plan_of(item("f1", 0.2, 50), item("f2", 40, 50))
    node = SimNode(boottime)
    origin = boottime() + 200 * MS
    recorder = Recorder.create(tmp_path / "run", HEADER, b"", plan)
    real, failed = recorder.write, [False]

    def write(record: Record) -> None:
        if isinstance(record, FaultArmed) and not failed[0]:
            failed[0] = True
            raise RecordLost("the run folder cannot be written", "No space left on device")
        real(record)

    recorder.write = write  # type: ignore[method-assign]
    runners: list[Runner] = []
    settings = Settings("r", lease_ns=60 * S, late_ns=30 * S)
    core = Core(plan, settings, lambda record: runners[0].emit(record), lambda: "w")
    runner = Runner(core, recorder, Watch(core, {}, {}), origin)
    runners.append(runner)
    effects = Effects("r", {"a": _Port(node)}, runner.now, runner.report)
    with pytest.raises(RecordLost):
        runner.play(effects, ())
    effects.close()
    recorder.close()
    assert [f.reason for f in node.faults.values()] == ["reverted"]
    assert core.stopping == "disk-full"


# --- what people see ------------------------------------------------------------


def test_plain_lines_name_every_fault_and_its_end() -> None:
    drive = Drive(plan_of(item("f1", 1, 5), item("n1", 1, 3, role="noise"))).run()
    text = io.StringIO()
    view = PlainView(Console(file=text, width=200))
    view.names = names_of(drive.core)
    for record in drive.records:
        view.record(record)
    lines = text.getvalue().splitlines()
    assert any(re.search(r"armed +fault f1 \(sim on t-f1, a\)", line) for line in lines)
    assert any("reverted fault f1" in line and "by plan" in line for line in lines)
    assert any("noise n1" in line for line in lines)
    assert all(line_of(r, {}) is not None for r in drive.records)


def test_live_picture_shows_what_is_armed_where_and_what_comes_next() -> None:
    drive = Drive(plan_of(item("f1", 1, 50), item("f2", 40, 50, node="b"))).begin().until(10)
    text = io.StringIO()
    Console(file=text, width=120).print(picture(drive.core, {"http": "fail"}, drive.t, ["a line"]))
    shown = text.getvalue()
    for word in ("1 live", "next in 30 s", "f1", "armed", "40 s", "http fail", "a line"):
        assert word in shown
    assert "f2" not in shown


# --- viable targets ------------------------------------------------------------


def test_viable_targets_say_why_not() -> None:
    raw = b"""
version: 1
name: x
duration: 1m
blind: false
nodes: {a: {agent: "unix:///a"}, b: {agent: "unix:///b"}}
targets:
  one: {node: a, service: s1, target: {type: device, device: /dev/x}}
  two: {node: b, service: s2, target: {type: device, device: /dev/x}}
  three: {node: a, service: s3, kinds: [], target: {type: device, device: /dev/x}}
"""
    experiment = load_experiment(raw, "x", for_schedule=True).experiment

    class Willing(SimNode):
        def plan(self, request: Any) -> Any:
            from types import SimpleNamespace

            return SimpleNamespace(mechanism="sim"), "d"

    class Unwilling(SimNode):
        def plan(self, request: Any) -> Any:
            raise Refused("no dm", "the module is missing")

    ports: dict[str, Any] = {"a": _Port(Willing(boottime)), "b": _Port(Unwilling(boottime))}
    found = viable_targets(experiment, ports)
    by = {(p.target, p.kind): p for p in found.rows()}
    assert by["one", "latent-sector"].viable
    assert "the module is missing" in by["two", "latent-sector"].why
    assert "does not allow" in by["three", "latent-sector"].why
    places = found.places([Place("s1", "a", ""), Place("s2", "b", "")])
    assert [p.service for p in places] == ["s1"]
    assert ports["a"].node.writes == 0


# --- examples in help and pages ------------------------------------------------------------


def test_example_file_of_the_page_is_valid() -> None:
    """CASES 157: what the documentation shows works."""
    page = (ROOT / "docs/experiments.md").read_text()
    found = re.findall(r"```yaml\n(.*?)```", page, re.S)
    assert len(found) == 2
    loaded = load_experiment(found[0].encode(), "docs/experiments.md")
    assert [i.slot for i in loaded.plan.items] == ["bad-sectors"]
    whole, pods = yaml.safe_load(found[0]), yaml.safe_load(found[1])
    for room in pods:
        whole[room] |= pods[room]
    whole["faults"]["bad-sectors"]["target"] = "table"
    loaded = load_experiment(yaml.safe_dump(whole).encode(), "docs/experiments.md")
    assert loaded.plan.open_targets == ("table",)


@pytest.mark.parametrize("page", ["experiments.md", "schedules.md"])
def test_verbs_and_options_in_pages_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    block = re.search(r"```\n(.*?)```", text, re.S)
    assert block is not None
    for line in re.split(r"[\n;]", re.sub("#.*", "", block[1])):
        words = line.split()
        if not words:
            continue
        assert words[0] == "faultctl"
        verb = [w for w in words[1:3] if re.fullmatch(r"[a-z]+", w)]
        result = CliRunner().invoke(cli, [*verb, "--help"])
        assert result.exit_code == 0, line
        for option in re.findall(r"(?<!\S)--?[a-z][a-z-]*", line):
            assert option in result.output, (line, option)


def test_schedule_generate_prints_the_same_bytes_as_it_writes(tmp_path: Path) -> None:
    args = ["schedule", "generate", "--seed", "5", "--preset", "short-5"]
    first = CliRunner().invoke(cli, args)
    CliRunner().invoke(cli, [*args, "-f", str(tmp_path / "s.json")])
    assert first.stdout_bytes == (tmp_path / "s.json").read_bytes()
    shown = CliRunner().invoke(cli, ["schedule", "show", str(tmp_path / "s.json"), "--plot"])
    assert "seed 5" in shown.output

"""The command line: exit codes, data that machines can read, and a plan that touches nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent_kit import Served, left_as_found, served

from controller import render
from controller.cli import common
from controller.cli import main as main_module
from controller.cli.main import VERBS, cli, run
from nodeagent.faults import kind_named, kinds
from nodeagent.model.errors import FaultError
from nodeagent.model.exposure import Exposure, Workload
from protos import faultd_pb2 as pb

Ctl = Callable[..., int]


@pytest.fixture(scope="module")
def node() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(patch) as found:
        yield found


@pytest.fixture(autouse=True)
def clean(node: Served) -> Iterator[None]:
    with left_as_found(node):
        yield


@pytest.fixture
def ctl(node: Served, monkeypatch: pytest.MonkeyPatch) -> Ctl:
    monkeypatch.setenv("COLUMNS", "200")
    return lambda *args: run(["--agent", node.url, *args])


@pytest.fixture
def nobody(tmp_path: Path) -> Ctl:
    return lambda *args: run(["--agent", f"unix://{tmp_path}/none.sock", *args])


_ids = iter(range(10**6))


def new(ctl: Ctl, *more: str, name: str = "a") -> str:
    fault_id = f"cli-{next(_ids)}"
    code = ctl("inject", "t-set", "--device", "/dev/t", "--name", name, "--id", fault_id, *more)
    assert code == 0
    return fault_id


# --- plan and inject ------------------------------------------------------------------


def test_a_plan_touches_nothing(node: Served, ctl: Ctl, capsys: pytest.CaptureFixture[str]) -> None:
    before, faults = node.kernel.fingerprint(), len(node.agent.journal.faults())
    node.kernel.calls.clear()
    assert ctl("inject", "t-set", "--device", "/dev/t", "--name", "a", "--plan") == 0
    text = capsys.readouterr().out
    for words in ("mechanism: t", "1. set a x", "what no revert takes back", "nothing was touched"):
        assert words in text
    assert node.kernel.fingerprint() == before
    assert node.kernel.calls == []
    assert len(node.agent.journal.faults()) == faults


def test_a_plan_is_data_too(ctl: Ctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl("inject", "t-set", "--device", "/dev/t", "--name", "a", "--plan", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["plan"]["mechanism"] == "t"
    assert len(found["digest"]) == 64


def test_a_fault_is_injected_shown_and_taken_back(
    node: Served, ctl: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    fault_id = new(ctl)
    out = capsys.readouterr().out
    assert f"{fault_id}: armed" in out
    assert f"take it back: faultctl revert {fault_id}" in out
    assert node.kernel.get("a") == "x"
    assert ctl("ls") == 0
    assert fault_id in capsys.readouterr().out
    assert ctl("show", fault_id) == 0
    assert "a is x" in capsys.readouterr().out
    assert ctl("renew", fault_id) == 0
    assert ctl("revert", fault_id) == 0
    assert "reverted" in capsys.readouterr().out
    assert node.kernel.get("a") == "a0"
    assert ctl("revert", fault_id) == 0
    assert "reverted before" in capsys.readouterr().out


def test_a_fault_that_could_not_be_taken_back_is_not_shown_as_ended(
    node: Served, ctl: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    fault_id = new(ctl)
    node.kernel.put("a", "foreign")
    assert ctl("revert", fault_id) == 3
    capsys.readouterr()
    assert ctl("ls", "-o", "json") == 0
    (found,) = [f for f in json.loads(capsys.readouterr().out) if f["id"] == fault_id]
    assert (found["state"], found["end_reason"]) == ("reverting", None)
    assert "neither" in found["error"]
    assert ctl("ls") == 0
    assert "reverting" in capsys.readouterr().out
    node.kernel.put("a", "a0")


# --- exit codes -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        ["no-such-verb"],
        ["inject", "no-such-kind"],
        ["inject", "t-set"],
        ["inject", "t-set", "--device", "/dev/t"],
        ["inject", "t-set", "--device", "relative", "--name", "a"],
        ["inject", "t-set", "--device", "/dev/t", "--name", "a", "--lease", "5"],
        ["inject", "t-set", "--device", "/dev/t", "--name", "a", "--lease", "0s"],
        ["inject", "t-set", "--device", "/dev/t", "--name", "a", "--id", "No Such Id"],
        ["inject", "t-set", "--device", "/dev/t", "--name", "a", "--mechanism", "nope"],
        ["inject", "t-set", "--device", "/dev/t", "--name", "a", "--nope"],
        ["revert"],
        ["revert", "x", "--all"],
        ["ls", "-o", "xml"],
        ["show"],
        ["explain", "no-such-kind"],
        ["probe", "tcp", "--host", "[::1", "--port", "1"],
        ["probe", "exec"],
        ["probe", "read", "--path", "relative"],
        ["completion", "csh"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2_with_words(
    ctl: Ctl, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl(*args) == 2
    said = capsys.readouterr()
    assert said.err.strip()
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    "args",
    [
        ["revert", "nobody"],
        ["show", "nobody"],
        ["renew", "nobody"],
        ["inject", "t-set", "--device", "/dev/t", "--name", "no-object"],
    ],
    ids=" ".join,
)
def test_a_refusal_is_3_in_three_lines(
    ctl: Ctl, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl(*args) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 3


@pytest.mark.parametrize(
    "args",
    [
        ["ls"],
        ["ls", "-o", "json"],
        ["show", "x"],
        ["events"],
        ["doctor"],
        ["volume", "ls"],
        ["agent", "status"],
        ["probe", "exec", "true"],
        ["inject", "t-set", "--device", "/dev/t", "--name", "a"],
    ],
    ids=" ".join,
)
def test_where_no_agent_answers_it_is_4_with_the_way_to_start_one(
    nobody: Ctl, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert nobody(*args) == 4
    said = capsys.readouterr()
    assert "faultctl agent start" in said.err and "--cluster" in said.err
    assert said.out == ""


def test_a_revert_without_an_agent_is_4_and_says_so_of_each(
    nobody: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nobody("revert", "one", "two", "-o", "json") == 4
    assert [r["result"] for r in json.loads(capsys.readouterr().out)] == ["error", "error"]


def test_a_bug_of_ours_is_70_and_says_so(
    ctl: Ctl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(render, "table", broken)
    assert ctl("ls") == 70
    err = capsys.readouterr().err
    assert "ZeroDivisionError" in err
    assert "this is a bug in faultctl" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_ends_the_command_line_is_as_ctrl_c(number: signal.Signals) -> None:
    """So that `--hold` takes its fault back."""
    code = """if True:
        import click, time
        from controller.cli import main

        def hold():
            try:
                print("held", flush=True)
                time.sleep(60)
            except KeyboardInterrupt:
                print("reverted", flush=True)
                raise
        main.cli.add_command(click.Command("hold", callback=hold))
        main.main()
    """
    argv = [sys.executable, "-c", code, "hold"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
                          ) as child:  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        child.send_signal(number)
        out, err = child.communicate(timeout=20)
    assert (out, child.returncode) == ("reverted\n", 130) and "interrupted" in err


def test_an_interrupt_is_130(
    ctl: Ctl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(render, "table", interrupted)
    assert ctl("ls") == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_probe_that_fails_is_1(ctl: Ctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert ctl("probe", "exec", "true") == 0
    assert (
        ctl("probe", "exec", "--count", "2", "--interval", "1ms", "--", "sh", "-c", "exit 3") == 1
    )
    assert capsys.readouterr().out.count("exit status 3") == 2
    assert ctl("probe", "read", "--path", "/no/such/file") == 1
    assert "unknown" in capsys.readouterr().out


# --- several at once ------------------------------------------------------------------


@pytest.mark.parametrize("bad", [0, 1, 2])
def test_of_several_reverts_all_are_tried_and_the_code_tells(
    node: Served, ctl: Ctl, bad: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [new(ctl, name=name) for name in ("a", "b")]
    ids.insert(bad, "nobody")
    capsys.readouterr()
    assert ctl("revert", *ids, "-o", "json") == 3
    found = json.loads(capsys.readouterr().out)
    assert [r["id"] for r in found] == ids
    assert [r["result"] for r in found if r["id"] != "nobody"] == ["reverted", "reverted"]
    assert found[bad]["result"] == "error"
    assert (node.kernel.get("a"), node.kernel.get("b")) == ("a0", "b0")


def test_all_faults_are_taken_back_the_youngest_first(
    node: Served, ctl: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = [new(ctl, name=name) for name in ("a", "b", "c")]
    capsys.readouterr()
    assert ctl("revert", "--all", "-o", "json") == 0
    assert [r["id"] for r in json.loads(capsys.readouterr().out)] == ids[::-1]
    assert ctl("revert", "--all") == 0
    assert "nothing to revert" in capsys.readouterr().out


# --- data for machines ----------------------------------------------------------------

READING = [["ls"], ["ls", "--all"], ["faults"], ["doctor"], ["volume", "ls"], ["agent", "status"]]


@pytest.mark.parametrize("args", READING, ids=" ".join)
@pytest.mark.parametrize("form", ["json", "yaml", "table"])
def test_every_reading_verb_speaks_to_machines(
    ctl: Ctl, args: list[str], form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fault_id = new(ctl)
    capsys.readouterr()
    assert ctl(*args, "-o", form) in (0, 1)
    out = capsys.readouterr().out
    if form == "json":
        assert json.loads(out) is not None
    if form == "yaml":
        assert yaml.safe_load(out) is not None
    if args[0] == "ls":
        assert fault_id in out


def test_one_fault_and_its_events_speak_to_machines(
    ctl: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    fault_id = new(ctl)
    capsys.readouterr()
    assert ctl("show", fault_id, "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["evidence"]["counted"]
    assert ctl("events", fault_id, "-o", "json") == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["type"] for line in lines] == ["intent", "armed"]
    assert ctl("inject", "t-set", "--device", "/dev/t", "--name", "b", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["state"] == "armed"
    assert ctl("probe", "exec", "true", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)[0]["verdict"] == "pass"


def test_words_of_others_are_never_markup(
    node: Served, ctl: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        ctl("inject", "t-set", "--device", "/dev/[red]t[/]", "--name", "a", "--value", "[bold]x")
        == 0
    )
    assert "/dev/[red]t[/]" in capsys.readouterr().out
    assert ctl("ls") == 0
    assert "/dev/[red]t[/]" in capsys.readouterr().out
    assert ctl("revert", "[/red]") == 3
    said = capsys.readouterr()
    assert "'[/red]'" in said.err
    assert "[/red]" in said.out


def test_a_caret_points_at_what_was_written(capsys: pytest.CaptureFixture[str]) -> None:
    render.error(FaultError("what", "when: x is no argument\n  fd > 1 && x\n            ^"))
    lines = capsys.readouterr().err.splitlines()
    assert [line[8:] for line in lines[2:]] == ["fd > 1 && x", "          ^"]
    for text in ("a\nhint: forged", "a\n  b\n  ^\nmore", "a\n  b\n\x1b ^"):
        render.error(FaultError("what", text))
        assert len(capsys.readouterr().err.splitlines()) == 2


def test_an_error_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    render.error(FaultError("what [x] \\[y] [/z]", "why [/a]", "hint [b]"))
    assert capsys.readouterr().err.splitlines() == [
        "error: what [x] \\[y] [/z]",
        "  why:  why [/a]",
        "  hint: hint [b]",
    ]


# --- without an agent -----------------------------------------------------------------


def test_kinds_are_listed_without_an_agent(nobody: Ctl, capsys: pytest.CaptureFixture[str]) -> None:
    assert nobody("faults", "-o", "json") == 0
    found = {k["kind"]: k for k in json.loads(capsys.readouterr().out)}
    assert set(found) == set(kinds())
    assert found["latent-sector"]["schema"]["properties"]["retry_delay"]["default"] == "0s"
    assert nobody("faults") == 0


@pytest.mark.parametrize("name", [name for name in kinds()])
def test_every_kind_is_explained_and_has_help(
    nobody: Ctl, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nobody("explain", name) == 0
    text = capsys.readouterr().out
    for example in kinds()[name].examples:
        assert example in text
    assert nobody("inject", name, "--help") == 0
    assert "--plan" in capsys.readouterr().out


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help(nobody: Ctl, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert nobody(verb, "--help") == 0
    assert "Usage: faultctl" in capsys.readouterr().out


def test_the_help_names_every_verb_and_cuts_no_line(
    nobody: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nobody("--help") == 0
    text = capsys.readouterr().out
    assert "..." not in text.partition("Faults:")[2]
    shown = {line.split()[0] for line in text.splitlines() if line.startswith("  ")}
    assert set(VERBS) | {"completion"} <= shown


def test_inject_lists_kinds_and_only_counts_presets(
    nobody: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nobody("inject", "--help") == 0
    text = capsys.readouterr().out
    assert "latent-sector" in text and "khaos:NAME" in text and "khaos:read_error" not in text


def test_an_unknown_kind_is_told_with_its_neighbours(
    nobody: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nobody("inject", "latent-sectr", "--file", "/x") == 2
    assert "latent-sector" in capsys.readouterr().err


def test_an_experiment_that_cannot_be_read_is_no_bug(
    nobody: Ctl, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for file in ("/proc/self/mem", str(tmp_path), str(tmp_path / "none")):  # EIO, EISDIR, ENOENT
        assert nobody("run", file, "--plan", "--offline") == 3
        assert f"{file} cannot be read" in capsys.readouterr().err.replace("\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_printed_and_their_shell_reads_them(
    nobody: Ctl, shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert nobody("completion", shell) == 0
    script = capsys.readouterr().out
    assert "_FAULTCTL_COMPLETE" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", tmp_path / "script"], check=True, timeout=60)


def test_completion_knows_verbs_and_kinds() -> None:
    from click.shell_completion import ShellComplete

    complete = ShellComplete(cli, {}, "faultctl", "_FAULTCTL_COMPLETE")
    assert {"inject", "revert", "ls"} <= {c.value for c in complete.get_completions([], "")}
    assert "latent-sector" in {c.value for c in complete.get_completions(["inject"], "latent")}
    options = {c.value for c in complete.get_completions(["inject", "latent-sector"], "--")}
    assert {"--file", "--retry-delay", "--plan"} <= options


def test_a_reader_that_goes_away_is_no_error(node: Served) -> None:
    code = "import sys; sys.argv[1:] = ['faults', '-o', 'json']\n"
    code += "from controller.cli.main import main; main()"
    done = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "{sys.executable}" -c "$CODE" | head -c 10 >/dev/null'],
        env={**os.environ, "CODE": code, "FAULTCTL_AGENT": "unix:///none"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "Traceback" not in done.stderr


def test_the_version_is_told(nobody: Ctl, capsys: pytest.CaptureFixture[str]) -> None:
    import nodeagent

    assert nobody("--version") == 0
    assert nodeagent.__version__ in capsys.readouterr().out


def test_no_verb_is_imported_before_it_is_used() -> None:
    script = "import sys, controller.cli.main\n"
    script += "print([m for m in sys.modules if m.startswith('controller.lab')])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
    assert main_module.VERBS


# --- words ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"state": "armed"}, "armed"),
        ({"state": "armed", "biting": True}, "biting"),
        ({"state": "reverting"}, "reverting"),
        ({"state": "applying"}, "applying"),
        ({"state": "ended", "end_reason": "expired"}, "expired"),
        ({"state": "ended", "end_reason": "remedied"}, "remedied"),
    ],
)
def test_one_word_says_where_a_fault_is(fields: dict[str, Any], word: str) -> None:
    assert common.state_word(pb.Fault(**fields)) == word


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0.0s"),
        (800_000_000, "0.8s"),
        (9_990_000_000, "10.0s"),
        (10_000_000_000, "10s"),
        (59_900_000_000, "59s"),
        (60_000_000_000, "1m00s"),
        (299_000_000_000, "4m59s"),
        (3_600_000_000_000, "1h00m"),
    ],
)
def test_durations_for_people(ns: int, text: str) -> None:
    assert render.duration_ns(ns) == text


def test_the_name_of_a_file_does_not_drive_a_terminal(
    ctl: Ctl, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl("inject", "t-set", "--device", "/dev/a\n\x1b[2Jb", "--name", "a") == 0
    assert ctl("ls") == 0
    assert ctl("inject", "t-set", "--device", "/dev/a\n\x1b[2Jb", "--name", "b", "--plan") == 0
    assert ctl("events") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert out.count("/dev/a\\n\\x1b[2Jb") == 3


@pytest.mark.parametrize(
    "name", ["path_read_error", "brk_shrink", "fsync_delay", "read_corruption"]
)
def test_an_experimental_name_of_khaos_is_refused_with_what_comes_closest(
    ctl: Ctl, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert ctl("inject", f"khaos:{name}", "--pid", "1") == 2
    said = capsys.readouterr().err
    (words,) = [line.split("faultctl inject ")[1].split() for line in said.splitlines()
                if "comes closest" in line]  # fmt: skip
    spec = kind_named(words[0]).spec.model_fields
    assert {option[2:].replace("-", "_") for option in words if option.startswith("--")} <= set(
        spec
    )


def test_a_row_stays_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    render.table(("A", "B"), [("one\ntwo", "[b]\x1b\x07")])
    assert capsys.readouterr().out.splitlines()[1].split() == ["one\\ntwo", "[b]\\x1b\\x07"]


def test_exposure_has_an_exit_code_of_its_own(
    node: Served, ctl: Ctl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is exposed: 0. Somebody is, or nobody can tell: 1."""
    fault_id = new(ctl)
    user = Workload(pid=7, comm="postgres", how="file", cgroup="/db.service")
    for found, code in (
        (Exposure(), 0),
        (Exposure(workloads=(user,)), 1),
        (Exposure(known=False), 1),
        (Exposure(complete=False), 1),
    ):
        monkeypatch.setattr(node.agent, "exposure", lambda row, seconds, found=found: found)
        assert ctl("exposure", fault_id) == code
    capsys.readouterr()
    monkeypatch.setattr(node.agent, "exposure", lambda row, seconds: Exposure(workloads=(user,)))
    assert ctl("exposure", fault_id, "-o", "json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["armed"], told["workloads"][0]["comm"]) == (True, "postgres")
    assert ctl("revert", fault_id) == 0
    assert ctl("exposure", fault_id) == 0
    assert "can hit nobody" in capsys.readouterr().out
    assert ctl("exposure", "nobody-knows-it") != 0

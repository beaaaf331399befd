"""The entry point of `faultctl`: global options, the verbs, and what ends in an exit code."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

import click

import nodeagent
from controller import render
from controller.cli.common import agent_options
from controller.client import AgentAddress
from nodeagent.model.errors import FaultError, lacks_package

EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


EXTRAS = {"lab": "lab", "demo": "lab"}
"""Verbs that cannot be loaded without an extra; others say so when they come to need one."""

OURS = ("controller", "nodeagent", "protos")
"""A module of these that is not there is a bug."""


class Verb(NamedTuple):
    """Where a verb's command lives, and its line in the help (which imports nothing)."""

    place: str
    short: str


VERBS = {
    "inject": Verb("controller.cli.inject:inject", "inject a fault"),
    "revert": Verb("controller.cli.faults:revert", "take faults back"),
    "ls": Verb("controller.cli.faults:ls", "list the faults of a node"),
    "show": Verb("controller.cli.faults:show", "one fault with its evidence"),
    "events": Verb("controller.cli.faults:events", "events of a node, or of one fault"),
    "exposure": Verb("controller.cli.exposure:exposure", "workloads that a fault can still hit"),
    "renew": Verb("controller.cli.faults:renew", "let a fault's lease start anew"),
    "faults": Verb("controller.cli.faults:faults", "the kinds, and what the node has for each"),
    "explain": Verb("controller.cli.faults:explain", "what a kind does, and how it ends"),
    "doctor": Verb("controller.cli.faults:doctor", "look for residue; exit 1 if there is any"),
    "fidelity": Verb("controller.cli.fidelity:fidelity", "compare with the kernel's reference"),
    "run": Verb("controller.cli.run:run", "play an experiment"),
    "stop": Verb("controller.cli.stop:stop", "end a run and take everything back"),
    "pause": Verb("controller.cli.stop:pause", "start no more faults in a run"),
    "resume": Verb("controller.cli.stop:resume", "go on with a paused run"),
    "schedule": Verb("controller.cli.schedule:schedule", "draw, show and play schedules"),
    "noise": Verb("controller.cli.noise:noise", "disturbances that are no root cause"),
    "bundle": Verb("controller.cli.bundle:bundle", "seal and verify the records of runs"),
    "probe": Verb("controller.cli.probe:probe", "run a probe and print its samples"),
    "load": Verb("controller.cli.load:load", "send requests at their planned times"),
    "oracle": Verb("controller.cli.oracle:oracle", "verdicts on faults and runs"),
    "submit": Verb("controller.cli.submit:submit", "hand in a diagnosis or a repair"),
    "score": Verb("controller.cli.score:score", "score runs from their bundles"),
    "report": Verb("controller.cli.report:report", "write a run's report, one page"),
    "agent": Verb("controller.cli.agent:agent", "run the agent of this host"),
    "volume": Verb("controller.cli.volume:volume", "prepare a disk for live table swaps"),
    "deploy": Verb("controller.cli.deploy:deploy", "put the agents on a cluster's nodes"),
    "lab": Verb("controller.cli.lab:lab", "boot disposable nodes in QEMU"),
    "demo": Verb("controller.cli.demo:demo", "the main job on a disposable node"),
}
SECTIONS = {
    "Faults": "inject",
    "Experiments": "run",
    "Judging": "probe",
    "Nodes": "agent",
}
"""Headings of the help, and the first verb below each."""


class Verbs(click.Group):
    """Imports a verb's module when the verb is used: a quick start, and no lab needed on nodes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = verb.place.partition(":")
        try:
            command: click.Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as exc:
            package = str(exc.name).partition(".")[0]
            if cmd_name not in EXTRAS or package in OURS:
                raise
            raise lacks_package(cmd_name, package, EXTRAS[cmd_name], exc) from exc
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The verbs by what they are for."""
        shorts = {name: verb.short for name, verb in VERBS.items()}
        shorts |= {name: command.get_short_help_str() for name, command in self.commands.items()}
        heading = {first: text for text, first in SECTIONS.items()}
        rows: dict[str, list[tuple[str, str]]] = {}
        section = ""
        for name, short in shorts.items():
            section = heading.get(name, section)
            rows.setdefault(section, []).append((name, short))
        for text, lines in rows.items():
            with formatter.section(text):
                formatter.write_dl(lines)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(nodeagent.__version__, prog_name="faultctl")
@agent_options
@click.pass_context
def cli(
    ctx: click.Context,
    agent: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tls_server_name: str | None,
    patience: float,
) -> None:
    """Break Linux nodes on purpose, below Kubernetes, exactly and reversibly."""
    ctx.obj = AgentAddress(agent, tls_cert, tls_key, tls_ca, tls_server_name, patience)


@cli.command(short_help="the completion script of a shell")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(faultctl completion bash)"."""
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    if found is None:
        raise click.UsageError(f"no completion for {shell}")
    print(found(cli, {}, "faultctl", "_FAULTCTL_COMPLETE").source())


def run(args: list[str] | None = None) -> int:
    """Run the command line; the exit code of DESIGN section 7."""
    try:
        result = cli.main(args=args, prog_name="faultctl", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except FaultError as exc:
        render.error(exc)
        return exc.exit_code
    except click.ClickException as exc:
        exc.show()
        return EXIT_USAGE
    except (click.Abort, KeyboardInterrupt):
        render.err().print("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception:  # noqa: BLE001 - the outermost edge: our bug, said as such
        traceback.print_exc()
        render.err().print("this is a bug in faultctl: please report it with the lines above")
        return EXIT_BUG


def main() -> None:
    """Console script. What ends it is as Ctrl-C: a fault that is held is taken back."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup(1) has it ignored
            signal.signal(number, signal.default_int_handler)
    sys.exit(run())


if __name__ == "__main__":
    main()

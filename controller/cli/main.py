"""The entry point of `faultctl`: global options, the verbs, and what ends in an exit code."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path

import click

import nodeagent
from controller import render
from controller.cli.common import agent_options
from controller.client import AgentAddress
from nodeagent.model.errors import FaultError

EXIT_USAGE = 2
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


VERBS = {
    "inject": "controller.cli.inject:inject",
    "revert": "controller.cli.faults:revert",
    "ls": "controller.cli.faults:ls",
    "show": "controller.cli.faults:show",
    "events": "controller.cli.faults:events",
    "renew": "controller.cli.faults:renew",
    "faults": "controller.cli.faults:faults",
    "explain": "controller.cli.faults:explain",
    "doctor": "controller.cli.faults:doctor",
    "volume": "controller.cli.volume:volume",
    "probe": "controller.cli.probe:probe",
    "run": "controller.cli.run:run",
    "stop": "controller.cli.stop:stop",
    "pause": "controller.cli.stop:pause",
    "resume": "controller.cli.stop:resume",
    "schedule": "controller.cli.schedule:schedule",
    "noise": "controller.cli.noise:noise",
    "bundle": "controller.cli.bundle:bundle",
    "oracle": "controller.cli.oracle:oracle",
    "load": "controller.cli.load:load",
    "submit": "controller.cli.submit:submit",
    "score": "controller.cli.score:score",
    "report": "controller.cli.report:report",
    "agent": "controller.cli.agent:agent",
    "lab": "controller.cli.lab:lab",
    "demo": "controller.cli.demo:demo",
    "fidelity": "controller.cli.fidelity:fidelity",
}


class Verbs(click.Group):
    """Imports a verb's module when the verb is used: a quick start, and no lab needed on nodes."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*VERBS, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = VERBS.get(cmd_name)
        if place is None:
            return super().get_command(ctx, cmd_name)
        module, _, name = place.partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command


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
) -> None:
    """Break Linux nodes on purpose, below Kubernetes, exactly and reversibly."""
    ctx.obj = AgentAddress(agent, tls_cert, tls_key, tls_ca, tls_server_name)


@cli.command()
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
    """Console script."""
    sys.exit(run())


if __name__ == "__main__":
    main()

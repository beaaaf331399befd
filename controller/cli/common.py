"""Options and helpers that the verbs share."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from controller.client import DEFAULT_AGENT, AgentAddress, AgentClient
from controller.render import FORMATS, printable
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.units import parse_duration
from protos import faultd_pb2 as pb

F = TypeVar("F", bound=Callable[..., Any])
EXIT_EXPOSED = 1
"""Of `faultctl exposure`: somebody can be hit, or it is not known that nobody can."""


def output_option(function: F) -> F:
    """-o table|json|yaml."""
    return click.option(
        "-o", "--output", type=click.Choice(FORMATS), default="table", show_default=True
    )(function)


def agent_options(function: F) -> F:
    """--agent and the files of mutual TLS, on the top group."""
    options = (
        click.option(
            "--agent",
            envvar="FAULTCTL_AGENT",
            default=DEFAULT_AGENT,
            show_default=True,
            metavar="URL",
            help="unix:///PATH or tcp://HOST:PORT",
        ),
        click.option("--tls-cert", envvar="FAULTCTL_TLS_CERT", type=click.Path(path_type=Path)),
        click.option("--tls-key", envvar="FAULTCTL_TLS_KEY", type=click.Path(path_type=Path)),
        click.option("--tls-ca", envvar="FAULTCTL_TLS_CA", type=click.Path(path_type=Path)),
        click.option(
            "--tls-server-name",
            envvar="FAULTCTL_TLS_SERVER_NAME",
            metavar="NAME",
            help="name in the agent's certificate, if it is not the host's",
        ),
        click.option(
            "--patience",
            envvar="FAULTCTL_PATIENCE",
            type=click.FloatRange(1, 1000),
            default=1.0,
            show_default=True,
            metavar="FACTOR",
            help="let agents take this much longer to answer, on slow nodes or ways",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def duration_of(option: str, text: str) -> timedelta:
    """What an option says. Raises InvalidSpec."""
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise InvalidSpec(f"{option} {text!r} is not a duration", str(exc)) from exc


def client() -> AgentClient:
    """A client for the agent that the command line names."""
    address: AgentAddress = click.get_current_context().find_root().obj
    return AgentClient(address)


def fault_data(fault: pb.Fault, *, whole: bool = False) -> dict[str, Any]:
    """A fault as plain data for JSON and YAML."""
    found: dict[str, Any] = {
        "id": fault.id,
        "kind": fault.kind,
        "state": fault.state,
        "end_reason": fault.end_reason or None,
        "biting": fault.biting,
        "mechanism": fault.mechanism,
        "target": json.loads(fault.target),
        "owner": fault.owner,
        "created": fault.created,
        "lease_left_ns": fault.lease_left_ns,
        "hard_end_left_ns": fault.hard_end_left_ns,
        "error": fault.error or None,
    }
    if whole:
        found["evidence"] = json.loads(fault.evidence_json)
        found["plan"] = json.loads(fault.plan_json)
    return found


def state_word(fault: pb.Fault) -> str:
    """One word for a table: biting, armed, reverting, or why it ended."""
    if fault.state == "armed":
        return "biting" if fault.biting else "armed"
    return fault.end_reason or fault.state


def target_word(data: dict[str, Any]) -> str:
    """A target in one cell of a table."""
    kind = data.get("type", "")
    if kind == "node":
        return "node"
    extra = "".join(f" {k}={v}" for k, v in data.items() if k not in ("type", kind) and v)
    return printable(f"{data.get(kind, kind)}{extra}")

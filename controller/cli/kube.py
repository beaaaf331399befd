"""Options of the verbs that reach agents through a cluster, and what they open with them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from controller.client import AgentAddress
from controller.kube.ways import Reached, Ways
from controller.options import option_name
from nodeagent.model.errors import InvalidSpec, Unreachable
from nodeagent.model.protected import AGENT_NAMESPACE

F = TypeVar("F", bound=Callable[..., Any])
ACCESS = ("kubeconfig", "context", "agent_namespace", "direct")


def access_options() -> list[click.Parameter]:
    """Which cluster, and how its agents are reached."""
    return [
        click.Option(["--kubeconfig"], type=click.Path(path_type=Path), metavar="FILE",
                     help="of the cluster [default: KUBECONFIG, ~/.kube/config, in the cluster]"),
        click.Option(["--context"], metavar="NAME", help="a context of the kubeconfig"),
        click.Option(["--agent-namespace"], envvar="FAULTCTL_AGENT_NAMESPACE", metavar="NAME",
                     default=AGENT_NAMESPACE, show_default=True, help="where the agents run"),
        click.Option(["--direct"], is_flag=True,
                     help="reach agents by their pods' addresses, not through the API server"),
    ]  # fmt: skip


def with_access(function: F) -> F:
    """The options of access, given to the function as one dict `access`."""

    @functools.wraps(function)
    def whole(**values: Any) -> Any:
        return function(access={name: values.pop(name) for name in ACCESS}, **values)

    found = getattr(function, "__click_params__", [])
    whole.__click_params__ = [*reversed(access_options()), *found]  # type: ignore[attr-defined]
    return whole  # type: ignore[return-value]


def refuse_stray(flag: str) -> None:
    """Raises InvalidSpec for options of access on a command line without `flag`."""
    ctx = click.get_current_context()
    for name in ACCESS:
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InvalidSpec(f"{option_name(name)} is about a cluster", "", f"add {flag}")


def ways(values: Mapping[str, Any], policy: Path | None = None) -> Ways:
    """How agents are reached, by the options of access and those before the verb."""
    named: AgentAddress = click.get_current_context().find_root().obj
    return Ways(named, **{name: values[name] for name in ACCESS}, policy=policy)


def reached(values: Mapping[str, Any]) -> AbstractContextManager[Reached]:
    """The cluster that the options name. Raises InvalidSpec, Unreachable or Refused."""
    return ways(values).cluster()


def unreachable(failures: list[Any]) -> Unreachable:
    """The error for nodes that did not answer, when all others did."""
    shown = "; ".join(str(one) for one in failures[:5])
    return Unreachable(f"{len(failures)} nodes did not answer", shown, "try again")

"""`--cluster`: a verb of one agent that can be asked of all agents of a cluster."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, TypeVar

import click

from controller.cli.kube import ACCESS, access_options, refuse_stray

F = TypeVar("F", bound=Callable[..., Any])


def cluster_verb(function: F) -> F:
    """--cluster for a verb of one agent: the same verb of cluster_faults then does it."""

    @functools.wraps(function)
    def either(**values: Any) -> None:
        access = {name: values.pop(name) for name in ACCESS}
        if values.pop("cluster"):
            verbs = importlib.import_module("controller.cli.cluster_faults")
            getattr(verbs, function.__name__)(access, **values)
        else:
            refuse_stray("--cluster")
            function(**values)

    flag = click.Option(["--cluster"], is_flag=True, help="all agents of the Kubernetes cluster")
    found = getattr(function, "__click_params__", [])
    either.__click_params__ = [*reversed([flag, *access_options()]), *found]  # type: ignore[attr-defined]
    return either  # type: ignore[return-value]

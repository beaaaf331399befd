"""The rung of syscall that nobody wants: strace(1), where nothing else will do. Pure."""

from __future__ import annotations

from typing import Any

from nodeagent.faults import _syscall_plan as sp
from nodeagent.model.facts import NeedRoot, NeedStrace
from nodeagent.model.kind import Context, Rung
from nodeagent.model.process import PidScope
from nodeagent.model.steps import StepBase
from nodeagent.model.steps.strace import StraceInject


def _fits(spec: Any, context: Context) -> str | None:
    """strace: every call of a process and all its descendants, without a filter."""
    scope = sp.binding_of(context).scope
    if not isinstance(scope, PidScope) or not scope.tree:
        return "it follows children, and no cgroup: it needs --pid with --tree"
    if spec.after:
        return "it skips the call and cannot act after it"
    if not 0 <= sp.return_value(spec) < 1 << 31 and spec.errno is None:
        return "it returns an errno or a small number"
    if spec.rate != 100 or spec.every != 1 or spec.first or spec.at_most:
        return "it counts for each thread apart: every call fails, or none"
    filters = ("uid", "exe", "fd_type", "path", "on_device", "port", "address", "when")
    used = [name for name in filters if getattr(spec, name, None) not in (None, (), "")]
    if used:
        return f"it has no filter by {used[0]}"
    if not sp.calls_here(spec, context.facts):
        return f"{context.facts.arch} has none of {', '.join(spec.call)}"
    return None


def _plan(spec: Any, context: Context) -> list[StepBase]:
    """One tracer for all calls."""
    scope = sp.binding_of(context).scope
    assert isinstance(scope, PidScope)  # noqa: S101 - see _fits
    result = f"error={spec.errno}" if spec.errno else f"retval={sp.return_value(spec)}"
    calls = tuple(call.name for call in sp.calls_here(spec, context.facts))
    return [StraceInject(calls=calls, result=result, scope=scope)]


STRACE = Rung(
    "strace",
    "strace -e inject: slow, and seen by the process; only when asked for",
    lambda spec: (NeedRoot(), NeedStrace()),
    _plan,
    _fits,
    only_named=True,
)

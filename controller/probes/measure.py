"""One sample of any probe, within its time-out, whatever the probed system does."""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from controller.probes import command, exposed, tcp
from controller.probes.command import Agents, ProbeAgent
from controller.probes.exposed import Placed
from controller.probes.log import LogWatch
from controller.probes.outcome import Outcome, timed_out, unknown
from controller.probes.spec import (
    ExecProbe,
    ExposureProbe,
    K8sProbe,
    LogProbe,
    ProbeBase,
    ProcessProbe,
    ReadProbe,
    TcpProbe,
)
from nodeagent.model.errors import FaultError, InvalidSpec, Unreachable

if TYPE_CHECKING:
    from controller.probes.k8s import ReadObject

SLACK_S = 0.5
"""After the time-out, before a sample that still hangs is given up."""
_AGENT_SLACK_S = command.RPC_SLACK_S + 1.0
_LIBRARIES = {
    "http": "controller.probes.http",
    "promql": "controller.probes.promql",
    "dns": "controller.probes.dns",
    "grpc-health": "controller.probes.grpc_health",
    "sql": "controller.probes.sql",
}
"""Probes with a library of their own, imported when one is used (extra `judge`)."""


def _no_agents(node: str) -> ProbeAgent:
    raise Unreachable(f"node {node} is not known to this run")


def _no_faults(name: str) -> list[tuple[str, str]]:
    raise InvalidSpec(f"no fault {name!r} is known here", "it is measured in a run")


@dataclass(frozen=True)
class Surroundings:
    """What probes are given: clients of the agents, where faults are, and a reader of cluster
    objects."""

    agents: Agents = _no_agents
    faults: Placed = _no_faults
    read_object: ReadObject | None = None


class Meter:
    """Takes samples of one probe; keeps what must be kept between them."""

    def __init__(self, spec: ProbeBase, surroundings: Surroundings | None = None) -> None:
        self.spec = spec
        self._around = surroundings or Surroundings()
        self._log = LogWatch(spec) if isinstance(spec, LogProbe) else None

    def sample(self) -> tuple[Outcome, int]:
        """(outcome, duration in ns). Never raises for what the probed system does, nor for a
        probe that cannot measure: that is unknown."""
        began = time.monotonic_ns()
        limit = self.spec.timeout.total_seconds() + SLACK_S
        if self.spec.places or getattr(self.spec, "fault", None):
            limit += _AGENT_SLACK_S
        outcome = bounded(self._measure, limit)
        took = time.monotonic_ns() - began
        if isinstance(outcome, command.NodeOutcome) and outcome.duration_ns is not None:
            took = outcome.duration_ns
        return outcome, took

    def _measure(self) -> Outcome:
        try:
            return self._dispatch()
        except FaultError as exc:
            return unknown(str(exc), cause="configuration")
        except ImportError as exc:
            text = f"library {exc.name} is missing: install faultctl[judge]"
            return unknown(text, cause="configuration")

    def _dispatch(self) -> Outcome:
        spec, agents = self.spec, self._around.agents
        if self._log is not None:
            return self._log.measure(time.monotonic(), agents)
        match spec:
            case ExecProbe():
                return command.measure_exec(spec, agents)
            case ReadProbe():
                return command.measure_read(spec, agents)
            case ProcessProbe():
                return command.measure_process(spec, agents)
            case ExposureProbe(fault=str()):
                return exposed.measure(spec, agents, self._around.faults)
            case ExposureProbe():
                return command.measure_exposure(spec, agents)
            case TcpProbe(node=str(node)):
                return command.measure_tcp(spec, node, agents)
            case TcpProbe():
                return tcp.measure(spec)
            case K8sProbe():
                return self._k8s(spec)
        kind = str(getattr(spec, "type", ""))
        return _module(_LIBRARIES[kind]).measure(spec)  # type: ignore[no-any-return]

    def _k8s(self, spec: K8sProbe) -> Outcome:
        module = _module("controller.probes.k8s")
        outcome: Outcome = module.measure(spec, self._around.read_object)
        return outcome


def _module(name: str) -> Any:
    return importlib.import_module(name)


def bounded(function: Callable[[], Outcome], limit_s: float) -> Outcome:
    """The outcome, or a time-out: what still hangs then (a resolver, a driver) is left alone.

    An exception of the function is raised here.
    """
    box: list[Outcome | BaseException] = []

    def work() -> None:
        try:
            box.append(function())
        except BaseException as exc:  # noqa: BLE001 - carried to the caller, who raises it
            box.append(exc)

    thread = threading.Thread(target=work, name="probe", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not box:
        return timed_out(abandoned=True)
    if isinstance(box[0], BaseException):
        raise box[0]
    return box[0]

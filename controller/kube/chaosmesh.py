"""Chaos Mesh's objects as our faults: what maps one to one, and what does not, by name; pure.

Fields as in its api/v1alpha1. Nothing is left out in silence: a field that would change what
the fault does, and that has no equal here, makes the object unmapped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import yaml

from controller.kube.chaosmesh_select import Unmappable, go_duration, only, selected
from controller.kube.chaosmesh_spec import (
    block,
    io_fault,
    memory_of,
    network,
    percent,
)
from controller.kube.discover import Query
from controller.kube.select import Ask
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.units import format_duration

GROUP = "chaos-mesh.org/"
MAX_BYTES = 1 << 20
MAX_OBJECTS = 100
MAX_DEPTH = 32
ONCE = timedelta(seconds=1)
NOT_HERE = {
    "TimeChaos": "there is no clock of one pod below the vDSO; clock faults are of a whole node",
    "KernelChaos": "its call chains have no equal; see the kernel's fault points of a node",
    "DNSChaos": "answers of a name server are above the node",
    "HTTPChaos": "requests are above the node",
    "JVMChaos": "the Java machine is above the node",
    "AWSChaos": "a cloud's machines are not the node's",
    "GCPChaos": "a cloud's machines are not the node's",
    "AzureChaos": "a cloud's machines are not the node's",
    "PhysicalMachineChaos": "it is for machines without Kubernetes: name the fault on its agent",
    "Workflow": "see experiments: faultctl run with a schedule of its own",
}


@dataclass(frozen=True)
class Mapped:
    """One object as a fault. kind: of a node's agent, or of the cluster's objects."""

    source: str
    kind: str
    spec: Mapping[str, Any]
    query: Query
    ask: Ask
    part: Mapping[str, Any] = field(default_factory=dict)
    peers: Query | None = None
    duration: timedelta | None = None
    every: timedelta | None = None
    """Of a Schedule: again and again, so long from start to start, and from the file's run to the
    first: there it counts from the object's creation."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Unmapped:
    """One object that has no equal, and which of its fields is why."""

    source: str
    reason: str


Body = Mapping[str, Any]
Map = Callable[[str, Body, str], Mapped]


def is_chaos_mesh(raw: bytes) -> bool:
    """Whether a file looks like Chaos Mesh's objects, before it is parsed."""
    head = raw[:MAX_BYTES].decode("utf-8", "replace").splitlines()
    return any(line.replace("'", "").replace('"', "").startswith(f"apiVersion: {GROUP}")
               for line in head)  # fmt: skip


def parse(raw: bytes) -> list[Mapped | Unmapped]:
    """All objects of a file. Raises InvalidSpec for what is no such file."""
    if len(raw) > MAX_BYTES:
        raise InvalidSpec("the file is too large", f"{len(raw)} bytes, {MAX_BYTES} at most")
    try:
        _check_shape(raw)
        found = [one for one in yaml.safe_load_all(raw) if one is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise InvalidSpec("the file is not YAML", " ".join(str(exc).split())[:200]) from exc
    if not found or len(found) > MAX_OBJECTS:
        raise InvalidSpec(f"the file has {len(found)} objects", f"from 1 to {MAX_OBJECTS}")
    return [_one(one) for one in found]


def _check_shape(raw: bytes) -> None:
    """Raises InvalidSpec for aliases, and for what is nested deeper than any of these objects."""
    depth = 0
    for event in yaml.parse(raw, yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidSpec("the file has YAML aliases", "objects of Chaos Mesh need none")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InvalidSpec("the file is nested too deep", f"at most {MAX_DEPTH} levels")


def _one(data: Any) -> Mapped | Unmapped:
    if not isinstance(data, dict) or not str(data.get("apiVersion", "")).startswith(GROUP):
        raise InvalidSpec("the file has an object that is not Chaos Mesh's", str(data)[:80])
    kind, meta = str(data.get("kind", "")), data.get("metadata") or {}
    source = f"{kind} {meta.get('namespace', 'default')}/{meta.get('name', '?')}"
    body = data.get("spec")
    if not isinstance(body, dict):
        return Unmapped(source, "spec: is missing")
    try:
        return _mapped(kind, source, body, str(meta.get("namespace", "default")))
    except Unmappable as exc:
        return Unmapped(source, str(exc))
    except (KeyError, TypeError, ValueError, AttributeError, InvalidSpec) as exc:
        return Unmapped(source, f"spec: not as Chaos Mesh has it ({type(exc).__name__}: {exc})")


def _mapped(kind: str, source: str, body: Body, namespace: str) -> Mapped:
    if kind == "Schedule":
        return _schedule(source, body, namespace)
    if kind in NOT_HERE:
        raise Unmappable(f"kind {kind}: {NOT_HERE[kind]}")
    if kind not in _MAPS:
        raise Unmappable(f"kind {kind}: not known here")
    if "remoteCluster" in body:
        raise Unmappable("remoteCluster: name that cluster's kubeconfig")
    found = _MAPS[kind](source, body, namespace)
    length = body.get("duration")
    return replace(found, duration=go_duration(length) if length else found.duration)


def _schedule(source: str, body: Body, namespace: str) -> Mapped:
    """`@every D` of one kind; cron expressions have no equal here."""
    text, sort = str(body["schedule"]), str(body["type"])
    if not text.startswith("@every "):
        raise Unmappable(f"schedule {text!r}: only @every; for others see experiments' schedules")
    if body.get("concurrencyPolicy", "Forbid") != "Forbid":
        raise Unmappable("concurrencyPolicy: only Forbid")
    inner = next((v for k, v in body.items() if k.lower() == sort.lower()), None)
    if not isinstance(inner, dict):
        raise Unmappable(f"type {sort}: its spec is missing")
    found = _mapped(sort, source, inner, namespace)
    every = go_duration(text.removeprefix("@every "))
    if found.duration is None and found.kind != "pod-kill":
        raise Unmappable("duration: is missing, so that the first would never end")
    if not every or (found.duration is not None and found.duration >= every):
        raise Unmappable("schedule: each has to end before the next")
    note = f"every {format_duration(every)}, the first time after as long"
    return replace(found, every=every, notes=(*found.notes, note))


# --- kinds ------------------------------------------------------------------------


def _pod(source: str, body: Body, namespace: str) -> Mapped:
    action = body["action"]
    only(body, "action", "mode", "value", "selector", "duration", "containerNames", "gracePeriod")
    query, ask = selected(body, namespace)
    if action == "pod-kill":
        spec: Body = {"grace": f"{int(body.get('gracePeriod', 0))}s"}
        return Mapped(source, "pod-kill", spec, query, ask)
    if action == "pod-failure":
        return Mapped(source, "pod-failure", {}, query, ask)
    if action == "container-kill":
        names = tuple(body["containerNames"])
        # It is done at once; a duration is no more than how long the fault stays listed.
        return Mapped(source, "kill", {}, query, replace(ask, containers=names), duration=ONCE)
    raise Unmappable(f"action {action}: not known")


def _network(source: str, body: Body, namespace: str) -> Mapped:
    query, ask = selected(body, namespace)
    kind, spec = network(body)
    peers = None
    target = body.get("target")
    if target:
        only(target, "mode", "value", "selector")
        if target.get("mode", "all") != "all":
            raise Unmappable("target.mode: only all; our far ends are all that match")
        far, far_ask = selected({**target, "mode": "all"}, namespace)
        if far.names or far.fields or far.node_labels or far_ask.nodes:
            raise Unmappable("target.selector: only namespace and labels")
        peers = Query(far.namespace, labels=far.labels)
    notes = ("far ends are those at the start",) if peers else ()
    return Mapped(source, kind, spec, query, ask, peers=peers, notes=notes)


def _stress(source: str, body: Body, namespace: str) -> Mapped:
    only(body, "mode", "value", "selector", "duration", "containerNames", "stressors")
    query, ask = selected(body, namespace)
    stressors = body.get("stressors") or {}
    only(stressors, "cpu", "memory")
    spec: dict[str, Any] = {}
    if cpu := stressors.get("cpu"):
        only(cpu, "workers", "load")
        spec["cpu"] = int(cpu["workers"])
        spec["load"] = percent(cpu.get("load", 100))
    if memory := stressors.get("memory"):
        only(memory, "workers", "size")
        spec |= memory_of(str(memory.get("size", "")))
    if not spec:
        raise Unmappable("stressors: none")
    return Mapped(source, "stress", spec, query, _containers(ask, body), notes=_first(body))


def _io(source: str, body: Body, namespace: str) -> Mapped:
    query, ask = selected(body, namespace)
    return Mapped(
        source, "syscall", io_fault(body), query, _containers(ask, body), notes=_first(body)
    )


def _block(source: str, body: Body, namespace: str) -> Mapped:
    query, ask = selected(body, namespace)
    volume, spec = block(body)
    return Mapped(source, "disk-delay", spec, query, replace(_containers(ask, body), volume=volume))


def _containers(ask: Ask, body: Body) -> Ask:
    return replace(ask, containers=tuple(body.get("containerNames") or ()))


def _first(body: Body) -> tuple[str, ...]:
    """Chaos Mesh hits the first container where none is named."""
    if body.get("containerNames"):
        return ()
    return ("all containers but sidecars are hit; Chaos Mesh would hit the first one",)


_MAPS: dict[str, Map] = {
    "PodChaos": _pod,
    "NetworkChaos": _network,
    "StressChaos": _stress,
    "IOChaos": _io,
    "BlockChaos": _block,
}

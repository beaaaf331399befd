"""Nodes that an upgrade to another node selector takes the agents off, and what cleans them (pure).

They are remembered at the DaemonSet until they are clean, whatever becomes of the upgrade.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controller.kube.manifests import Object, Options, cleaning, installed

ANNOTATION = "faultctl/left-nodes"
Selector = Mapping[str, str]


def selector(daemonset: Object) -> Selector:
    """A DaemonSet's node selector."""
    found: Selector = daemonset["spec"]["template"]["spec"].get("nodeSelector") or {}
    return found


def text(one: Selector) -> str:
    """As kubectl takes and prints it."""
    return ",".join(f"{key}={value}" for key, value in sorted(one.items()))


def _parsed(said: str) -> list[Selector]:
    found: list[Selector] = []
    for one in filter(None, said.split(";")):
        pairs = [pair.partition("=") for pair in one.split(",")]
        found.append({key: value for key, _, value in pairs})
    return found


def _wanted(options: Options) -> Selector:
    (one,) = (one for one in installed(options) if one["kind"] == "DaemonSet")
    return selector(one)


def left(present: Object, options: Options) -> list[Selector]:
    """Of nodes that have or had agents and, by the options, some of which will have none."""
    wanted = _wanted(options)
    said = (present["metadata"].get("annotations") or {}).get(ANNOTATION, "")
    had = {text(one): one for one in (*_parsed(said), selector(present))}
    return [one for one in had.values() if not wanted.items() <= one.items()]


def marked(options: Options, found: Sequence[Selector]) -> list[Object]:
    """The objects of an installation, which remembers these nodes."""
    objects = installed(options)
    for one in objects:
        if one["kind"] == "DaemonSet" and found:
            said = ";".join(map(text, found))
            one["metadata"].setdefault("annotations", {})[ANNOTATION] = said
    return objects


def cleaning_left(options: Options, one: Selector) -> list[Object]:
    """What cleans the nodes of a selector, without those of the options."""
    others = [
        {"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]}
        for key, value in _wanted(options).items()
        if one.get(key) != value
    ]  # terms are alternatives; NotIn is true of a node without the label too
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": others}}
    objects = cleaning(options)
    for each in objects:
        spec = each["spec"]["template"]["spec"]
        spec["nodeSelector"] = dict(one)
        spec["affinity"] = {"nodeAffinity": required}
    return objects

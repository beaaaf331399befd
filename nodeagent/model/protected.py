"""Namespaces that keep a cluster going: faults on their pods are held back by a guard; pure."""

from __future__ import annotations

from nodeagent.model.kind import Guard
from nodeagent.model.target import PodTarget, PodVolumeTarget, TargetBase

AGENT_NAMESPACE = "faultctl-system"
NAMESPACES = ("kube-system", "kube-public", "kube-node-lease", AGENT_NAMESPACE)
GUARD = "protected-namespace"


def namespace_guards(
    target: TargetBase, namespaces: tuple[str, ...] = NAMESPACES
) -> tuple[Guard, ...]:
    """The guard rail before a pod of a protected namespace."""
    if not isinstance(target, PodTarget | PodVolumeTarget):
        return ()
    name = target.pod.partition("/")[0]
    if name not in namespaces:
        return ()
    return (Guard(GUARD, f"namespace {name} keeps the cluster, or faultctl itself, going"),)

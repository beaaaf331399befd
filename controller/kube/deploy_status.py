"""What the DaemonSet's and its pods' objects say of an installation (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller.kube.objects import condition

Object = Mapping[str, Any]


@dataclass(frozen=True)
class PodState:
    """One pod of a DaemonSet. why: what keeps it from being ready, or empty. begun: its container
    has been started once; a Pending pod's never was (k8s.io/api/core/v1, PodPhase)."""

    node: str
    pod: str
    ready: bool
    why: str
    image: str
    begun: bool = True


@dataclass(frozen=True)
class Rollout:
    """How far a DaemonSet is: pods wanted, of the newest template, ready."""

    wanted: int
    updated: int
    ready: int
    seen: bool

    @property
    def done(self) -> bool:
        """Whether every node has a ready pod of the newest template."""
        return self.seen and self.wanted == self.updated == self.ready

    def text(self) -> str:
        """For a line of progress."""
        if not self.seen:
            return "the controller has not seen it yet"
        return f"{self.ready} of {self.wanted} nodes are ready ({self.updated} up to date)"


def rollout(daemonset: Object) -> Rollout:
    """From a DaemonSet object."""
    status = daemonset.get("status") or {}
    generation = daemonset["metadata"].get("generation", 0)
    return Rollout(
        wanted=status.get("desiredNumberScheduled", 0),
        updated=status.get("updatedNumberScheduled", 0),
        ready=status.get("numberReady", 0),
        seen=status.get("observedGeneration", -1) >= generation,
    )


def pod_state(pod: Object) -> PodState:
    """From a Pod object."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    leaving = "deletionTimestamp" in pod["metadata"]
    ready = condition(pod, "Ready") and not leaving
    return PodState(
        node=spec.get("nodeName") or "",
        pod=pod["metadata"]["name"],
        ready=ready,
        why="" if ready else "it is being deleted" if leaving else _why(status),
        image=spec["containers"][0]["image"],
        begun=status.get("phase") != "Pending",
    )


def _why(status: Object) -> str:
    for container in status.get("containerStatuses") or ():
        for form in ("waiting", "terminated"):
            state = (container.get("state") or {}).get(form)
            if state:
                words = [state.get("reason") or form, state.get("message") or ""]
                ended = (container.get("lastState") or {}).get("terminated") or {}
                if ended:
                    words.append(f"before, it ended with {ended.get('exitCode')}")
                return ": ".join(filter(None, words))
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return str(one.get("message") or "it is not scheduled")
    return "it is not ready yet" if status.get("phase") == "Running" else "its container is made"


def not_ready(pods: Iterable[PodState]) -> str:
    """The pods that keep a rollout waiting, in one line; empty when there are none."""
    return "; ".join(f"{one.node or one.pod}: {one.why}" for one in pods if not one.ready)

"""The far ends of a network fault: other pods, and the services that stand before them; pure.

A packet to a Service leaves the pod with the Service's address: kube-proxy rewrites it only in
the node's own namespace. So those addresses are far ends as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.kube.objects import Pod
from controller.kube.select import AGENT_LABEL
from nodeagent.model.errors import Refused


@dataclass(frozen=True)
class Peers:
    """Addresses, and what is to be said about them."""

    networks: tuple[str, ...]
    notes: tuple[str, ...] = ()


def peers_of(
    pods: Sequence[Pod],
    services: Sequence[Mapping[str, Any]],
    others: Sequence[Pod],
    selector: str,
) -> Peers:
    """The addresses of the peers that are chosen, and of their services. Raises Refused.

    others: all pods of the namespace, for services that lead to more than the peers.
    An empty list would mean all traffic, so nothing found is an error.
    """
    good = [pod for pod in pods if _can_be_met(pod)]
    found = {ip for pod in good for ip in pod.ips}
    if not found:
        left = [pod.full_name for pod in pods if pod.host_network]
        why = f"{left[0]} uses its node's own network" if left else f"{selector or 'all'}: none"
        raise Refused(
            "no pod to talk to is found", why, "an empty far end would mean all traffic: refused"
        )
    chosen = {pod.uid for pod in good}
    notes = []
    for service in services:
        wanted = service.get("spec", {}).get("selector") or {}
        behind = [pod for pod in others if wanted and _has(pod, wanted)]
        if not chosen & {pod.uid for pod in behind}:
            continue
        found |= set(_addresses(service["spec"]))
        more = sorted(pod.name for pod in behind if pod.uid not in chosen)
        if more:
            name = service["metadata"]["name"]
            notes.append(f"service {name} leads to other pods as well: {', '.join(more[:5])}")
    return Peers(tuple(sorted(found)), tuple(notes))


def _can_be_met(pod: Pod) -> bool:
    ours = pod.labels.get(AGENT_LABEL[0]) == AGENT_LABEL[1]
    return not (pod.host_network or pod.deleting or ours) and pod.phase == "Running"


def _has(pod: Pod, wanted: Mapping[str, str]) -> bool:
    return all(pod.labels.get(key) == value for key, value in wanted.items())


def _addresses(spec: Mapping[str, Any]) -> list[str]:
    listed = spec.get("clusterIPs") or [spec.get("clusterIP", "")]
    return [ip for ip in [*listed, *(spec.get("externalIPs") or ())] if ip and ip != "None"]

"""Events on what is hit, for whoever wonders; only when asked for, never in a blind run."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from controller.kube.answers import ApiPath
from controller.kube.client import Cluster
from controller.kube.targets import Item
from nodeagent.model.errors import FaultError

COMPONENT = "faultctl"
NODE_EVENTS = "default"
"""The namespace of events on nodes, which have none."""


def event(item: Item, reason: str, message: str, now: datetime) -> dict[str, Any]:
    """An Event (core/v1) on the pod that is hit, or on the node; pure."""
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    namespace, _, name = item.pod.partition("/")
    about = {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": name,
             "uid": str(item.request.target.get("uid", ""))}  # fmt: skip
    if not item.pod:
        namespace, name = NODE_EVENTS, item.node
        about = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": name}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{name}.{secrets.token_hex(8)}", "namespace": namespace},
        "involvedObject": about,
        "reason": reason,
        "message": message,
        "type": "Warning" if reason == "FaultArmed" else "Normal",
        "source": {"component": COMPONENT},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
        "reportingComponent": COMPONENT,
        "reportingInstance": COMPONENT,
    }


def announce(cluster: Cluster, items: Iterable[Item], reason: str, message: str) -> list[str]:
    """One event for each pod or node; what could not be written, a line each, and no error:
    a fault that is armed must not look as if it were not."""
    failed = []
    about = {item.pod or item.node: item for item in items}
    for item in about.values():
        body = event(item, reason, message, datetime.now(UTC))
        try:
            cluster.create(ApiPath("events", body["metadata"]["namespace"]), body)
        except FaultError as exc:
            failed.append(f"no event on {item.pod or item.node}: {exc}")
    return failed

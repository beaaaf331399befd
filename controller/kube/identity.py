"""Which cluster it is, by what no two have alike."""

from __future__ import annotations

from typing import Any

from controller.kube.answers import ApiPath
from nodeagent.model.errors import Refused


def identity(cluster: Any) -> str:
    """Which cluster it is: the UID of a namespace that every one has and none ever loses; its
    address for those who may not read that."""
    try:
        space = cluster.get(ApiPath("namespaces", name="kube-system"))
    except Refused:
        space = None
    return str(space["metadata"]["uid"]) if space is not None else str(cluster.server)


def check_same(cluster: Any, name: str) -> None:
    """Raises Refused when it is another cluster than the one that a run was played on."""
    if identity(cluster) != name:
        raise Refused(
            f"{cluster.server} is not the cluster of this run",
            f"the run is on {name}",
            "name that one: --kubeconfig FILE, --context NAME",
        )

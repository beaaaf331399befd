"""Live objects of a cluster for k8s probes: by apiVersion and kind, as a manifest names them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from controller.kube.answers import ApiPath
from controller.kube.client import Cluster
from nodeagent.model.errors import FaultError, InvalidSpec, Refused, Unreachable


class Ref(Protocol):
    """What names an object in a manifest; controller.probes.k8s.ObjectRef is one."""

    @property
    def api_version(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


@dataclass(frozen=True)
class ObjectName:
    """A Ref without a probe's libraries."""

    api_version: str
    kind: str
    namespace: str
    name: str


class ObjectReader:
    """Reads objects; opens the cluster when it is first asked, and keeps it.

    A call gives None where there is no such object, and raises Unreachable where that could
    not be found out, rights included: a probe that may not look has not seen a failure.
    """

    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        self._named = (kubeconfig, context)
        self._cluster: Cluster | None = None
        self._kinds: dict[str, dict[str, tuple[str, bool]]] = {}
        self._lock = threading.Lock()

    def __call__(self, ref: Ref) -> dict[str, Any] | None:
        try:
            with self._lock:
                if self._cluster is None:
                    self._cluster = Cluster(*self._named)
                path = path_of(self._cluster, ref, self._kinds)
            return self._cluster.get(path)
        except Unreachable:
            raise
        except FaultError as exc:
            raise Unreachable(exc.what, exc.why, exc.hint) from exc


def path_of(
    cluster: Cluster, ref: Ref, known: dict[str, dict[str, tuple[str, bool]]] | None = None
) -> ApiPath:
    """Where an object is, by the server's own discovery. Raises InvalidSpec or Refused."""
    known = {} if known is None else known
    group, _, version = ref.api_version.rpartition("/")
    if ref.api_version not in known:
        known[ref.api_version] = _kinds(cluster, group, version)
    found = known[ref.api_version].get(ref.kind)
    if found is None:
        raise InvalidSpec(
            f"the cluster has no {ref.kind} in {ref.api_version}", "",
            "kubectl api-resources shows what it has",
        )  # fmt: skip
    resource, namespaced = found
    if namespaced and not ref.namespace:
        raise InvalidSpec(f"{ref.kind} {ref.name} lies in a namespace", "which one is not said")
    return ApiPath(resource, ref.namespace if namespaced else "", ref.name, group, version)


def _kinds(cluster: Cluster, group: str, version: str) -> dict[str, tuple[str, bool]]:
    """APIResourceList of a group's version: kind to (resource, whether it is namespaced)."""
    found = cluster.get(ApiPath("", group=group, version=version))
    if found is None:
        raise Refused(f"the cluster has no API {group}/{version}".replace(" /", " "))
    return {
        one["kind"]: (one["name"], bool(one["namespaced"]))
        for one in found.get("resources", ())
        if "/" not in one["name"]
    }

"""The objects of `daemonset/` as data: kustomize's `resources` and JSON patches, and no more.

So `faultctl deploy` and `kubectl apply -k` mean the same objects, and no kustomize is needed.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controller.kube.answers import ApiPath
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.protected import AGENT_NAMESPACE

Object = dict[str, Any]
RESOURCES: Mapping[str, tuple[str, str, str, bool]] = {
    "ClusterRole": ("clusterroles", "rbac.authorization.k8s.io", "v1", False),
    "DaemonSet": ("daemonsets", "apps", "v1", True),
    "Namespace": ("namespaces", "", "v1", False),
    "NetworkPolicy": ("networkpolicies", "networking.k8s.io", "v1", True),
    "PriorityClass": ("priorityclasses", "scheduling.k8s.io", "v1", False),
    "Role": ("roles", "rbac.authorization.k8s.io", "v1", True),
    "Secret": ("secrets", "", "v1", True),
    "ServiceAccount": ("serviceaccounts", "", "v1", True),
}
"""Kind -> (resource, group, version, whether it lies in a namespace)."""


@dataclass(frozen=True)
class Options:
    """What an installation may choose; the rest is as in the files.

    capabilities: named ones instead of `privileged`. nodes: a node selector's labels.
    """

    image: str = ""
    pull_policy: str = ""
    capabilities: bool = False
    nodes: tuple[tuple[str, str], ...] = ()


def home() -> Path:
    """The folder `daemonset`: beside the package in a wheel, in the root of a checkout."""
    here = Path(__file__).resolve()
    for found in (here.parent / "daemonset", here.parents[2] / "daemonset"):
        if (found / "base").is_dir():
            return found
    raise Refused("the manifests are not installed", f"no daemonset folder beside {here.parent}")


def load(folder: Path) -> list[Object]:
    """All objects of a kustomization, patched, in its order. Raises InvalidSpec."""
    spec = yaml.safe_load((folder / "kustomization.yaml").read_text(encoding="utf-8"))
    unknown = set(spec) - {"apiVersion", "kind", "resources", "patches"}
    if unknown:
        raise InvalidSpec(f"{folder}: kustomize's {', '.join(sorted(unknown))} are not understood")
    found: list[Object] = []
    for name in spec.get("resources", ()):
        path = folder / name
        if path.is_dir():
            found += load(path.resolve())
        else:
            found += [one for one in yaml.safe_load_all(path.read_text("utf-8")) if one]
    for item in spec.get("patches", ()):
        target = item["target"]
        operations = yaml.safe_load((folder / item["path"]).read_text(encoding="utf-8"))
        for one in found:
            if one["kind"] == target["kind"] and one["metadata"]["name"] == target["name"]:
                patch(one, operations)
    return found


def patch(target: Object, operations: Sequence[Mapping[str, Any]]) -> None:
    """Change an object by add and replace of RFC 6902. Raises InvalidSpec."""
    for operation in operations:
        *way, last = (part.replace("~1", "/").replace("~0", "~")
                      for part in operation["path"].lstrip("/").split("/"))  # fmt: skip
        at: Any = target
        try:
            for part in way:
                at = at[int(part)] if isinstance(at, list) else at[part]
            if operation["op"] == "replace" and not isinstance(at, list):
                at[last]
            if operation["op"] not in ("add", "replace"):
                raise InvalidSpec(f"the patch operation {operation['op']!r} is not understood")
            if not isinstance(at, list):
                at[last] = copy.deepcopy(operation["value"])
            elif last == "-":
                at.append(copy.deepcopy(operation["value"]))
            else:
                at[int(last)] = copy.deepcopy(operation["value"])
        except (KeyError, IndexError, ValueError, TypeError) as exc:
            raise InvalidSpec(f"a patch leads to nothing: {operation['path']}", str(exc)) from exc


def installed(options: Options) -> list[Object]:
    """The objects of an installation, the certificates apart."""
    folder = home() / ("overlays/capabilities" if options.capabilities else "base")
    return [_chosen(one, options) for one in load(folder)]


def cleaning(options: Options) -> list[Object]:
    """What takes everything off the nodes again."""
    return [_chosen(one, options) for one in load(home() / "clean")]


def _chosen(one: Object, options: Options) -> Object:
    if one["kind"] != "DaemonSet":
        return one
    spec = one["spec"]["template"]["spec"]
    for container in spec["containers"]:
        container["image"] = options.image or container["image"]
        container["imagePullPolicy"] = options.pull_policy or container["imagePullPolicy"]
    spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **dict(options.nodes)}
    return one


def path_of(one: Object, *, subresource: str = "") -> ApiPath:
    """Where an object lies in the API. Raises InvalidSpec for a kind that is not ours."""
    try:
        resource, group, version, inside = RESOURCES[one["kind"]]
    except KeyError:
        raise InvalidSpec(f"{one.get('kind')} is no kind that faultctl deploys") from None
    meta = one["metadata"]
    namespace = meta["namespace"] if inside else ""
    return ApiPath(resource, namespace, meta["name"], group, version, subresource)


def secret(name: str, files: Mapping[str, bytes]) -> Object:
    """A Secret of PEM files, as cert-manager makes them."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/tls",
        "metadata": {
            "name": name,
            "namespace": AGENT_NAMESPACE,
            "labels": {"app.kubernetes.io/part-of": "faultctl"},
        },
        "data": {key: base64.b64encode(data).decode("ascii") for key, data in files.items()},
    }

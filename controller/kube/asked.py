"""Options that name pods and nodes: a query to the API server, and an ask over its answer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from controller.kube.choose import ALL, NARROW, parse_how_many
from controller.kube.discover import Query
from controller.kube.select import Ask
from nodeagent.model.errors import InvalidSpec


def asked(default_namespace: str, values: Mapping[str, Any]) -> tuple[Query, Ask]:
    """The query to the API server, and the ask that decides over its answer. Raises InvalidSpec."""
    namespace, names = pod_names(values["pod"], values["namespace"], default_namespace)
    if values["everything"] and values["pick"]:
        raise InvalidSpec("--all and --pick exclude each other")
    picked = ALL if values["everything"] else None
    query = Query(
        namespace,
        names,
        values["selector"] or "",
        values["field_selector"] or "",
        values["owner"] or "",
        values["node_selector"] or "",
    )
    ask = Ask(
        namespace=namespace,
        names=names,
        selective=any(values[name] for name in NARROW),
        nodes=tuple(values["on_node"]),
        zones=tuple(values["zone"]),
        node_labels=bool(values["node_selector"]),
        how_many=parse_how_many(values["pick"]) if values["pick"] else picked,
        seed=values["pick_seed"] or secrets.token_hex(4),
        zone_cap=parse_how_many(values["zone_cap"]) if values["zone_cap"] else None,
        containers=tuple(values.get("container", ())),
        volume=values.get("volume"),
    )
    return query, ask


def pod_names(
    pods: tuple[str, ...], namespace: str | None, default: str
) -> tuple[str, tuple[str, ...]]:
    """(namespace, names) of `--pod NS/NAME` and `-n NS --pod NAME`. Raises InvalidSpec."""
    spaces, names = {namespace} - {None}, []
    for pod in pods:
        space, slash, name = pod.rpartition("/")
        if "/" in space or not name or (slash and not space):
            raise InvalidSpec(f"--pod {pod!r} is not a pod", "NAME or NAMESPACE/NAME")
        spaces |= {space} if space else set()
        names.append(name)
    if len(spaces) > 1:
        raise InvalidSpec("pods of one namespace at a time", ", ".join(sorted(map(str, spaces))))
    return str(spaces.pop()) if spaces else default, tuple(dict.fromkeys(names))

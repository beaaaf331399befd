"""What a kind would be asked for on pods that are not known yet: for checks without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from controller.experiment_pods import PeersEntry, PodsEntry, in_file_words, several
from controller.kube.select import Ask
from controller.kube.targets import check_ask
from nodeagent.model.errors import FaultError, InvalidSpec
from nodeagent.model.kind import FaultKind

_POD = {"pod": "default/any", "uid": "00000000-0000-4000-8000-000000000000"}
_ID = "0" * 64
_ADDRESS = "192.0.2.1"


def sample_target(kind: FaultKind, pods: PodsEntry) -> dict[str, Any]:
    """A target as one of the pods would be. Raises InvalidSpec when the kind takes none such."""
    ask = Ask(pods.namespace or "default", containers=several(pods.container), volume=pods.volume)
    try:
        check_ask(kind, ask, pods.part)
    except FaultError as exc:
        raise type(exc)(in_file_words(str(exc)), in_file_words(exc.hint)) from exc
    if pods.volume is None:
        return {"type": "pod", **_POD}
    seen = {"container_id": _ID, "path": "/", "volume": pods.volume}
    return {"type": "pod-volume", **_POD, **seen, **pods.part}


def sample_spec(
    kind: FaultKind, spec: Mapping[str, Any], peers: PeersEntry | None, on: PodsEntry | None
) -> dict[str, Any]:
    """The spec as it would be with the far ends' addresses. Raises InvalidSpec."""
    if peers is None:
        return dict(spec)
    if on is None:
        raise InvalidSpec("to_pods is about pods", "the target is none")
    return with_far_ends(kind, spec, [_ADDRESS])


def with_far_ends(
    kind: FaultKind, spec: Mapping[str, Any], networks: Iterable[str]
) -> dict[str, Any]:
    """A spec whose `to` has these as well. Raises InvalidSpec for a kind without far ends."""
    if "to" not in kind.spec.model_fields:
        raise InvalidSpec(f"{kind.name} has no far end", "", "leave to_pods out")
    given = spec.get("to") or ()
    return {**spec, "to": ",".join([*several(given), *networks])}

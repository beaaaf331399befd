"""The policy of a user's own machine: who may do what to a cluster."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nodeagent.model.errors import InvalidSpec


def check_policy(cluster: Any, file: Path | None, asked: Iterable[tuple[str, str, Any]]) -> None:
    """Raises Refused when the policy denies one of (kind, namespace, hard end) to this user."""
    if file is None:
        return
    from nodeagent.model.policy import check, policy_from_yaml

    try:
        policy = policy_from_yaml(file.read_bytes())
    except OSError as exc:
        raise InvalidSpec(f"the policy {file} cannot be read", exc.strerror or str(exc)) from exc
    who = cluster.whoami()
    for kind, namespace, hard_end in dict.fromkeys(asked):
        check(policy, who, kind, namespace, hard_end)

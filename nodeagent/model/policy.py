"""A policy: who may break what; pure. The first rule that fits decides, like a firewall's.

    version: 1
    default: deny
    rules:
      - verdict: allow
        who: [team-shop, "ci-*"]
        kinds: [netem, "disk-*"]
        namespaces: ["shop", "shop-*"]
        max_hard_end: 10m
      - verdict: deny
        kinds: [disk-corrupt]
        why: nobody may lose data here

The same file is checked by the controller, by the user's name at the API server, and by the
agent, by the name in the client's certificate (`root` on its Unix socket).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.units import Duration

NODE = "(node)"
"""Stands for a namespace where the target is the node's own: a device, a process, the node."""
MAX_BYTES = 1 << 20
Verdict = Literal["allow", "deny"]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Rule(_Model):
    """Holds for whom and what all of its lists name, by shell patterns; `*` is everything."""

    verdict: Verdict
    who: tuple[str, ...] = ("*",)
    kinds: tuple[str, ...] = ("*",)
    namespaces: tuple[str, ...] = Field(
        default=("*",), description=f"of pods; `{NODE}` for targets of the node itself"
    )
    max_hard_end: Duration | None = Field(
        default=None, description="with allow: no fault may live longer"
    )
    why: str = ""


class Policy(_Model):
    """All rules, in order."""

    version: Literal[1]
    default: Verdict = "deny"
    rules: tuple[Rule, ...] = ()


def parse_policy(data: Any) -> Policy:
    """A policy from decoded YAML. Raises InvalidSpec naming the field."""
    try:
        return Policy.model_validate(data)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InvalidSpec("the policy is not valid", f"{where}: {first['msg']}") from exc


def policy_from_yaml(raw: bytes) -> Policy:
    """A policy from the text of its file. Raises InvalidSpec."""
    import yaml  # an agent without a policy need not hold it

    if len(raw) > MAX_BYTES:
        raise InvalidSpec("the policy is not valid", "the file is larger than 1 MiB")
    try:
        return parse_policy(yaml.safe_load(raw))
    except (yaml.YAMLError, RecursionError, ValueError) as exc:
        raise InvalidSpec("the policy is not valid", " ".join(str(exc).split())[:200]) from exc


def namespace_of(target: Mapping[str, Any]) -> str:
    """The namespace of a target, NODE for one of the node's own."""
    pod = str(target.get("pod", ""))
    return pod.partition("/")[0] if "/" in pod else NODE


def check(
    policy: Policy | None, who: str, kind: str, namespace: str, hard_end: timedelta | None = None
) -> None:
    """Raises Refused when the policy does not let `who` do it."""
    if policy is None:
        return
    for number, rule in enumerate(policy.rules, 1):
        if not (
            _fits(rule.who, who) and _fits(rule.kinds, kind) and _fits(rule.namespaces, namespace)
        ):
            continue
        if rule.verdict == "deny":
            raise _refused(who, kind, namespace, rule.why or f"rule {number} denies it")
        if rule.max_hard_end is not None and hard_end is not None and hard_end > rule.max_hard_end:
            shown = rule.model_dump(mode="json")["max_hard_end"]
            raise _refused(
                who, kind, namespace, f"rule {number} allows it for {shown} at most",
                f"add: --hard-end {shown}",
            )  # fmt: skip
        return
    if policy.default == "deny":
        raise _refused(who, kind, namespace, "no rule allows it")


def _fits(patterns: tuple[str, ...], text: str) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _refused(who: str, kind: str, namespace: str, why: str, hint: str = "") -> Refused:
    where = "on nodes themselves" if namespace == NODE else f"in namespace {namespace}"
    return Refused(f"the policy does not let {who} inject {kind} {where}", why, hint)

"""Label and field selectors in Kubernetes' grammar; pure.

As k8s.io/apimachinery/pkg/labels reads them: `k`, `!k`, `k=v`, `k==v`, `k!=v`, `k in (a,b)`,
`k notin (a,b)`, `k>1`, `k<1`, joined by commas; a value may be empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nodeagent.model.errors import InvalidSpec

_TOKEN = re.compile(r"\s*(==|!=|[=!,()<>]|[^\s=!,()<>]+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", re.ASCII)
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", re.ASCII)
_SYMBOLS = ("==", "!=", "=", "!", ",", "(", ")", "<", ">")
_FIELD = re.compile(r"([A-Za-z0-9.\[\]'-]+)(==|!=|=)([^,=!\\]*)", re.ASCII)
_OPERATORS = {"In": "{k} in ({v})", "NotIn": "{k} notin ({v})", "Exists": "{k}",
              "DoesNotExist": "!{k}"}  # fmt: skip
"""Of a LabelSelectorRequirement (k8s.io/apimachinery/pkg/apis/meta/v1)."""


@dataclass(frozen=True)
class Requirement:
    """One condition on labels. op: exists, !, in, notin, gt or lt."""

    key: str
    op: str
    values: tuple[str, ...] = ()

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is meant; `notin` holds without the key, too."""
        found = labels.get(self.key)
        if self.op == "exists":
            return found is not None
        if self.op == "!":
            return found is None
        if self.op == "in":
            return found in self.values
        if self.op == "notin":
            return found not in self.values
        if found is None or not re.fullmatch(r"-?[0-9]+", found):
            return False
        bound = int(self.values[0])
        return int(found) > bound if self.op == "gt" else int(found) < bound


@dataclass(frozen=True)
class Selector:
    """All requirements have to hold; none of them means everything."""

    requirements: tuple[Requirement, ...] = ()
    text: str = ""

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether an object with these labels is selected."""
        return all(one.holds(labels) for one in self.requirements)


def parse_selector(text: str) -> Selector:
    """A label selector. Raises InvalidSpec with the column that is wrong."""
    if not text.strip():
        return Selector((), "")
    return Selector(tuple(_Parser(text).all()), text)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, int]] = []
        at = 0
        while at < len(text.rstrip()):
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._wrong(at, "this is no part of a selector")
            self._tokens.append((found[1], found.start(1)))
            at = found.end()
        self._next = 0

    def _wrong(self, at: int, why: str) -> InvalidSpec:
        return InvalidSpec(
            f"{self._text!r} is not a label selector",
            f"column {at + 1}: {why}",
            "write for example: app=cart,tier!=cache,track in (stable,canary),!legacy",
        )

    def _take(self) -> tuple[str, int]:
        if self._next == len(self._tokens):
            return "", len(self._text.rstrip())
        self._next += 1
        return self._tokens[self._next - 1]

    def _peek(self) -> str:
        return self._tokens[self._next][0] if self._next < len(self._tokens) else ""

    def all(self) -> list[Requirement]:
        found = [self._requirement()]
        while self._next < len(self._tokens):
            word, at = self._take()
            if word != ",":
                raise self._wrong(at, f"a comma is needed before {word!r}")
            found.append(self._requirement())
        return found

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._take()
            return Requirement(self._key(), "!")
        key = self._key()
        word = self._peek()
        if word in ("", ","):
            return Requirement(key, "exists")
        _, at = self._take()
        if word in ("=", "=="):
            return Requirement(key, "in", (self._value(),))
        if word == "!=":
            return Requirement(key, "notin", (self._value(),))
        if word in ("in", "notin"):
            return Requirement(key, word, self._values())
        if word in ("<", ">"):
            return Requirement(key, "gt" if word == ">" else "lt", (self._number(),))
        raise self._wrong(at, f"{word!r} is no operator: = != in notin < > are")

    def _key(self) -> str:
        word, at = self._take()
        prefix, slash, name = word.rpartition("/")
        good_prefix = not slash or (len(prefix) <= 253 and _PREFIX.fullmatch(prefix))
        if word in (*_SYMBOLS, "") or not good_prefix or not _NAME.fullmatch(name):
            raise self._wrong(at, f"{word!r} is no label key" if word else "a label key is missing")
        return word

    def _value(self) -> str:
        if self._peek() in ("", ",", ")"):
            return ""
        word, at = self._take()
        if word in _SYMBOLS or not _NAME.fullmatch(word):
            raise self._wrong(at, f"{word!r} is no label value")
        return word

    def _number(self) -> str:
        word, at = self._take()
        if not re.fullmatch(r"-?[0-9]+", word, re.ASCII):
            raise self._wrong(at, f"{word!r} is no whole number")
        return word

    def _values(self) -> tuple[str, ...]:
        word, at = self._take()
        if word != "(":
            raise self._wrong(at, "the values are in parentheses: (a,b)")
        values = [self._value()]
        while True:
            word, at = self._take()
            if word == ")":
                return tuple(sorted(set(values)))
            if word != ",":
                raise self._wrong(at, "a comma or ) is needed between values")
            values.append(self._value())


def selector_text(labels: Mapping[str, Any], expressions: Iterable[Mapping[str, Any]]) -> str:
    """matchLabels and matchExpressions as one label selector. Raises KeyError for a bad one."""
    parts = [f"{k}={v}" for k, v in labels.items()]
    parts += [_OPERATORS[one["operator"]].format(k=one["key"], v=",".join(one.get("values") or ()))
              for one in expressions]  # fmt: skip
    return ",".join(parts)


def parse_field_selector(text: str) -> str:
    """A field selector such as `spec.nodeName=n1,status.phase!=Failed`, as the API server takes it.

    Which fields there are it knows itself (metadata.name, spec.nodeName, status.phase, ...).
    Raises InvalidSpec with the column that is wrong.
    """
    at = 0
    for part in text.split(","):
        if not _FIELD.fullmatch(part.strip()):
            raise InvalidSpec(
                f"{text!r} is not a field selector",
                f"column {at + 1}: {part!r} is not FIELD=VALUE or FIELD!=VALUE",
                "write for example: spec.nodeName=node-1",
            )
        at += len(part) + 1
    return text

"""Reads YAML as data with the line of every key; safe against what a file can do to a reader.

Plain scalars follow the YAML 1.2 core schema: `on`, `no` and `12:30` stay text, where YAML
1.1 makes booleans and base-60 numbers of them. Tags other than the core ones, duplicate
keys, keys that are not text, deep nesting and alias bombs are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_NODES = 100_000
"""Nodes after aliases are expanded."""

Path = tuple[str | int, ...]

_CORE = {
    "tag:yaml.org,2002:str",
    "tag:yaml.org,2002:int",
    "tag:yaml.org,2002:float",
    "tag:yaml.org,2002:bool",
    "tag:yaml.org,2002:null",
    "tag:yaml.org,2002:map",
    "tag:yaml.org,2002:seq",
}
_INT = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: dict[str, Any] = {"": None, "~": None, "null": None, "true": True, "false": False}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a file. Line and column count from 1; 0 is unknown."""

    line: int
    path: str
    message: str

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.path}: {self.message}" if self.path else f"{where}{self.message}"


@dataclass
class Document:
    """Data, where each part of it stands, and what is wrong with it so far."""

    data: Any = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line(self, path: Path) -> int:
        """The line of a path, or of the nearest part above it that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 0)

    def problem(self, path: Path, message: str) -> None:
        """Note something wrong at a path."""
        self.problems.append(Problem(self.line(path), dotted(path), message))


def dotted(path: Path) -> str:
    """`faults.bad.spec.count`, `guards[0].probe`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class _TooMuch(Exception):
    pass


class _Loader(yaml.SafeLoader):
    """Composes nodes only; what a plain scalar means is decided below."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 - PyYAML's own class attribute


def read_document(raw: bytes) -> Document:
    """The document of a file; problems are collected, never raised."""
    document = Document()
    if len(raw) > MAX_BYTES:
        document.problem((), f"the file is larger than {MAX_BYTES >> 20} MiB")
        return document
    try:
        node = yaml.compose(raw.decode("utf-8"), Loader=_Loader)
    except UnicodeDecodeError as exc:
        document.problem((), f"the file is not UTF-8 ({exc.reason} at byte {exc.start})")
        return document
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 0
        document.problems.append(Problem(line, "", f"not YAML: {exc.problem or exc.context}"))
        return document
    except (yaml.YAMLError, RecursionError) as exc:
        document.problem((), f"not YAML: {' '.join(str(exc).split())[:200]}")
        return document
    if node is None:
        document.problem((), "the file is empty")
        return document
    try:
        document.data = _Reader(document).value(node, (), 1)
    except _TooMuch as exc:
        document.data = None
        document.problem((), str(exc))
    return document


class _Reader:
    def __init__(self, document: Document) -> None:
        self._document = document
        self._count = 0

    def value(self, node: yaml.Node, path: Path, depth: int) -> Any:
        self._count += 1
        if self._count > MAX_NODES:
            raise _TooMuch(f"more than {MAX_NODES} values (aliases count each time)")
        if depth > MAX_DEPTH:
            raise _TooMuch(f"nested deeper than {MAX_DEPTH} levels")
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if node.tag not in _CORE and node.tag != "!":
            self._document.problem(path, f"the tag {node.tag} is not allowed here")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, depth)
        if isinstance(node, yaml.SequenceNode):
            return [
                self.value(item, (*path, index), depth + 1) for index, item in enumerate(node.value)
            ]
        return self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, path: Path, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._document.problems.append(Problem(line, dotted(path), "a key must be text"))
                continue
            key = str(key_node.value)
            if key == "<<" and key_node.style is None:
                text = "merge keys (<<) are not allowed"
                self._document.problems.append(Problem(line, dotted(path), text))
                continue
            if key in found:
                text = f"the key {key!r} is there twice (first on line {first[key]})"
                self._document.problems.append(Problem(line, dotted(path), text))
                continue
            first[key] = line
            self._document.lines[(*path, key)] = line
            found[key] = self.value(value_node, (*path, key), depth + 1)
        return found

    @staticmethod
    def _scalar(node: yaml.Node) -> Any:
        text = str(node.value)
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        if not plain or node.tag == "!":
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text) and len(text) <= 40:
            return int(text)
        if _FLOAT.fullmatch(text):
            return float(text)
        return text

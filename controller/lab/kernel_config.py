"""Kernel configurations: what one has, and what a flavour still lacks in it (pure)."""

from __future__ import annotations

from collections.abc import Iterable


def parse(text: str) -> dict[str, str]:
    """Option -> value of a .config or fragment; `# X is not set` counts as `n`."""
    options: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("CONFIG_"):
            name, _, value = line.partition("=")
            options[name] = value
        elif line.startswith("# CONFIG_") and line.endswith(" is not set"):
            options[line.split()[1]] = "n"
    return options


def lacking(config: str, wanted: Iterable[str]) -> list[str]:
    """Options of `wanted` that the configuration has not built in."""
    have = parse(config)
    return [name for name in wanted if have.get(name) != "y"]

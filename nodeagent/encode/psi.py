"""Pressure stall information as text and numbers (Documentation/accounting/psi.rst). Pure."""

from __future__ import annotations

from collections.abc import Mapping

RESOURCES = ("cpu", "io", "memory")
Stalls = dict[str, dict[str, int]]
"""Resource -> {some, full} -> microseconds in all that tasks of a group waited for it."""


def parse(text: str) -> dict[str, int]:
    """`some avg10=0.00 ... total=123` as {"some": 123}; what is not known is left out."""
    found = {}
    for line in text.splitlines():
        kind, *pairs = line.split() or [""]
        for pair in pairs:
            name, _, value = pair.partition("=")
            if name == "total" and kind in ("some", "full") and value.isdigit():
                found[kind] = int(value)
    return found


def since(now: Stalls, before: Mapping[str, Mapping[str, int]]) -> Stalls:
    """What was added; resources that one of the two lacks are left out."""
    return {
        resource: {k: v - before[resource][k] for k, v in kinds.items() if k in before[resource]}
        for resource, kinds in now.items()
        if resource in before
    }


def told(stalls: Mapping[str, Mapping[str, int]], seconds: float) -> str:
    """One line for a person; empty where the kernel tells nothing, or nobody waited."""
    parts = [
        f"{resource} {kinds['some'] / 1e6:.2f} s"
        for resource, kinds in stalls.items()
        if kinds.get("some")
    ]
    return f"of {seconds:.1f} s some task waited for {', '.join(parts)} (PSI)" if parts else ""

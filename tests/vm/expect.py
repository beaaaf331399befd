"""Which tests may be skipped on which flavour, and why; any other skip is a failure.

A test's id is its file and function without parameters, `test_lab.py::test_udev`.
"""

from __future__ import annotations

SKIPS: dict[tuple[str, str], str] = {
    ("test_lab.py::test_two_nodes_on_one_network", "*"): "taps and namespaces need root",
}


def skip_reason(test: str, flavour: str | None) -> str | None:
    """Why this test may be skipped on this flavour, or None when it must run."""
    return SKIPS.get((test, flavour or "")) or SKIPS.get((test, "*"))

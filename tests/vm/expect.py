"""Which tests may be skipped on which flavour, and why; any other skip is a failure.

A test's id is its file and function without parameters, `test_lab.py::test_udev`.
"""

from __future__ import annotations

SKIPS: dict[tuple[str, str], str] = {
    # ("test_file.py::test_name", "debian-12"): "dm-flakey 1.5.0 has no error_reads",
}


def skip_reason(test: str, flavour: str | None) -> str | None:
    """Why this test may be skipped on this flavour, or None when it must run."""
    return SKIPS.get((test, flavour or "")) or SKIPS.get((test, "*"))

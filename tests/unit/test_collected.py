"""Tests that run for long, on nodes, can be set up: their fixtures and parameters are there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("folder", ["vm", "cluster", "bench"])
def test_every_test_has_what_it_asks_for(folder: str) -> None:
    """--setup-plan resolves what a test needs, and runs neither fixtures nor tests."""
    argv = [sys.executable, "-m", "pytest", "--setup-plan", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*argv, f"tests/{folder}"],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    wrong = [
        line for line in done.stdout.splitlines() if line.startswith(("ERROR", "FAILED", "E "))
    ]
    assert not wrong, "\n".join(wrong)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

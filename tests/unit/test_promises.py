"""docs/promises.md names only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = sorted(set(re.findall(r"`((?:unit|vm)/[\w/]+\.py)::(\w+)`",
                              (ROOT / "docs" / "promises.md").read_text())))  # fmt: skip


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_it_exists(file: str, name: str) -> None:
    text = (ROOT / "tests" / file).read_text()
    assert f"\ndef {name}(" in text


def test_every_promise_has_one() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "promises.md").read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| promise")
    ]
    assert len(rows) > 15
    bare = [row for row in rows if "::test_" not in row.split("|")[2]]
    assert all("the same two" in row for row in bare), bare

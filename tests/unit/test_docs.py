"""The reference pages say what the kinds say; other pages lead nowhere that does not exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from controller import docs
from nodeagent.faults import kinds

ROOT = Path(docs.__file__).resolve().parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"]


def test_the_committed_pages_of_all_kinds_are_current() -> None:
    """If not: make docs."""
    assert docs.stale(docs.PLACE) == []


def test_every_kind_has_a_page_with_its_options_and_ways_out() -> None:
    pages = docs.pages()
    for kind in kinds().values():
        if docs.family(kind):
            assert f"| {kind.name} | " in pages[f"{docs.family(kind)}.md"]
            continue
        text = pages[f"{kind.name}.md"]
        assert f"[{kind.name}]({kind.name}.md)" in pages["README.md"]
        for line in (*kind.examples, *kind.remedies, *(f"`{r.name}`" for r in kind.ladder)):
            assert line in text
        for name in kind.spec.model_fields:
            assert f"`--{name.replace('_', '-')}`" in text


def test_the_generator_writes_what_it_checks(tmp_path: Path) -> None:
    place = tmp_path / "kinds"
    assert len(docs.stale(place)) == len(docs.pages())
    docs.write(place)
    assert docs.stale(place) == []
    (place / "no-such-kind.md").write_text("old")
    (place / "README.md").write_text("old")
    assert docs.stale(place) == ["README.md", "no-such-kind.md"]
    done = subprocess.run(
        [sys.executable, "-m", "controller.docs", "--check", str(place)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == 1
    assert "no-such-kind.md" in done.stderr
    docs.write(place)
    assert docs.stale(place) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"

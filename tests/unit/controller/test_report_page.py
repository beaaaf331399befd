"""The report in a real headless Chromium: with and without JavaScript, and on paper."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from judging_kit import armed, ended, planned, sample, samples, submission
from judging_runs import experiment, header, marathon, sealed, write_folder

from controller.report.charts import seen_chart
from controller.report.model import Axis, clock, page_data
from controller.report.page import render
from controller.score_files import RunFiles, open_run
from controller.score_run import Scored, score_run

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    folder = write_folder(tmp_path_factory.mktemp("run") / "run", marathon(), experiment())
    return score_run(open_run(sealed(folder)))


def scored_of(tmp_path: Path, records: list[Any], **parts: Any) -> Scored:
    return score_run(open_run(write_folder(tmp_path / "run", records, experiment(**parts))))


class Reader(HTMLParser):
    """Checks that tags match, and collects what a page refers to."""

    VOID = frozenset({"meta", "input", "br", "link", "img", "path", "rect", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.refers: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.refers += [f"{k}={v}" for k, v in attrs if k in ("src", "href", "action", "data")]
        self.refers += [f"{k}={v}" for k, v in attrs if k.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def chromium(folder: Path, page: str, *flags: str) -> str:
    path = folder / "page.html"
    path.write_text(page, encoding="utf-8")
    command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags]
    done = subprocess.run(
        [*command, path.as_uri()], capture_output=True, timeout=90, check=True, cwd=folder
    )
    return done.stdout.decode()


def test_the_page_needs_nothing_else_and_is_the_same_every_time(scored: Scored) -> None:
    page = render(scored)
    assert page == render(scored)
    reader = read(page)
    assert reader.refers == []
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert "url(" not in page


def test_lanes_are_grey_while_armed_and_dark_while_the_symptom_fails(tmp_path: Path) -> None:
    records = [
        planned(),
        armed(100),
        *samples("orders", 0, 150, every=10),
        *samples("orders", 150, 200, "fail", every=10),
        *samples("orders", 200, 410, every=10),
        ended(300, "remedied"),
        planned("z1", "noise-1", role="noise", truth=None, kind="latency"),
        armed(50, "z1", role="noise"),
    ]
    data = page_data(scored_of(tmp_path, records))
    (lane,) = data["faults"]
    end = 400.01
    assert float(lane["bar"]["at"]) == pytest.approx(100 / end * 100, abs=0.01)
    assert float(lane["bar"]["width"]) == pytest.approx(200 / end * 100, abs=0.01)
    (dark,) = lane["dark"]
    assert float(dark["at"]) == pytest.approx(150 / end * 100, abs=0.01)
    assert float(dark["width"]) == pytest.approx(50 / end * 100, abs=0.01)
    assert (lane["ended"], lane["start"], lane["end"]) == ("remedied", "1:40", "5:00")
    assert [n["kind"] for n in data["noise"]] == ["latency"]


def test_runs_with_nothing_in_them_still_have_a_page(tmp_path: Path) -> None:
    for number, records in enumerate(([], [planned()], [sample("orders", 0, "unknown")])):
        scored = scored_of(tmp_path / str(number), list(records))
        page = render(scored)
        read(page)
        assert "nothing to judge" in page


EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&{{7*7}}"


def test_nothing_of_a_run_becomes_markup(tmp_path: Path) -> None:
    truth = planned().truth
    assert truth is not None
    evil = truth.model_copy(update={"service": EVIL, "root_cause": EVIL, "symptom_probe": EVIL})
    records = [
        planned("x1", EVIL, kind=EVIL, node=EVIL, truth=evil),
        armed(10, node=EVIL),
        *samples(EVIL, 0, 60, "fail", reason=EVIL),
        submission("diagnosis", 20, text=EVIL, service=EVIL, scope=[EVIL]),
        submission("mitigation", 30, text=EVIL),
    ]
    folder = write_folder(
        tmp_path / "run", records, experiment(), header(experiment=EVIL, run=EVIL)
    )
    page = render(score_run(open_run(folder)))
    reader = read(page)
    assert [t for t, _ in reader.tags].count("script") == 1
    assert "img" not in [t for t, _ in reader.tags]
    assert reader.refers == []
    assert "49" not in re.findall(r"\{\{.*?\}\}", page)
    assert html.escape(EVIL, quote=False)[:20] in page
    if CHROMIUM is not None:
        assert "<title>owned" not in chromium(tmp_path, page, "--dump-dom")


@needs_browser
def test_filter_and_zoom_work(scored: Scored, tmp_path: Path) -> None:
    steps = """<script>
    const out = {};
    const shown = (lane) => lane.offsetHeight > 0;
    const lanes = () => [...document.querySelectorAll(".lane.fault")].filter(shown).length;
    const bar = () => document.querySelector(".plane i.armed").getBoundingClientRect();
    const near = (a, b) => Math.abs(a - b) < 0.5;
    out.controls = document.querySelector(".controls").hidden;
    out.all = lanes();
    const box = document.getElementById("filter");
    box.value = "NETEM n1"; box.dispatchEvent(new Event("input")); out.filtered = lanes();
    box.value = "nobody"; box.dispatchEvent(new Event("input")); out.none = lanes();
    box.value = ""; box.dispatchEvent(new Event("input")); out.again = lanes();
    const faults = document.querySelector("input[data-group=faults]");
    faults.click(); out.hidden = lanes(); faults.click();
    const before = bar();
    document.getElementById("in").click(); document.getElementById("in").click();
    const after = bar();
    out.wider = Math.round(after.width / before.width);
    out.moved = after.left < before.left;
    out.ticks = [...document.querySelectorAll(".ticks span")].map(t => t.textContent).join(" ");
    document.getElementById("reset").click();
    out.back = near(bar().left, before.left) && near(bar().width, before.width);
    document.body.dataset.out = JSON.stringify(out);
    </script></body>"""
    page = render(scored).replace("</body>", steps)
    dom = chromium(tmp_path, page, "--dump-dom", "--window-size=1320,2000")
    found = re.search(r'data-out="([^"]*)"', dom)
    assert found is not None
    out = json.loads(html.unescape(found[1]))
    wanted = sum(
        1
        for f in scored.run.history.injected()
        if f.planned.kind == "netem" and f.planned.node == "n1"
    )
    assert (out["all"], out["filtered"], out["none"], out["again"]) == (24, wanted, 0, 24)
    assert 0 < wanted < 24
    assert (out["controls"], out["hidden"], out["wider"], out["moved"], out["back"]) == (
        False,
        0,
        4,
        True,
        True,
    )
    assert out["ticks"].split() == [f"{minute}:00" for minute in range(22, 37, 2)]


@needs_browser
def test_readable_without_javascript(scored: Scored, tmp_path: Path) -> None:
    page = render(scored)
    banned = page.replace("script-src 'unsafe-inline'", "script-src 'none'")
    assert banned != page
    dom = chromium(tmp_path, banned, "--dump-dom")
    assert re.search(r'<div class="controls" hidden(="")?>', dom)
    picture = tmp_path / "noscript.png"
    flags = ("--window-size=1320,1900", f"--screenshot={picture}")
    chromium(tmp_path, banned, *flags)
    assert picture.stat().st_size > 50_000
    assert dom.count('class="lane fault"') == 24
    for word in ("0:00", "expired", "remedied", "f0023"):
        assert word in dom


@needs_browser
def test_on_paper(scored: Scored, tmp_path: Path) -> None:
    target = tmp_path / "page.pdf"
    chromium(tmp_path, render(scored), f"--print-to-pdf={target}", "--no-pdf-header-footer")
    raw = target.read_bytes()
    assert raw.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", raw)) <= 12


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (59, "0:59"), (61, "1:01"), (3600, "1:00:00"), (-30, "-0:30")],
)
def test_clock(seconds: int, text: str) -> None:
    assert clock(seconds * 10**9) == text


def test_ticks_are_few_and_round() -> None:
    for minutes in (0, 1, 5, 59, 90, 600, 5000):
        axis = Axis(-60 * 10**9, minutes * 60 * 10**9)
        ticks = axis.ticks()
        assert 0 < len(ticks) <= 9
        assert all(0 <= float(t["at"]) <= 100 for t in ticks)


def test_charts_of_nothing() -> None:
    assert "<svg" in seen_chart([], Axis(0, 1))


def test_page_of_the_files_alone(scored: Scored) -> None:
    assert isinstance(scored.run, RunFiles)


def test_noise_that_was_never_there_is_not_counted(tmp_path: Path) -> None:
    """A run that ended before all of its noise came."""
    noise = [
        planned(f"n{n}", f"n000{n}-1", role="noise", kind="netem", truth=None) for n in (1, 2, 3)
    ]
    there = [armed(5, "n1", role="noise"), armed(9, "n2", role="noise")]
    found = scored_of(tmp_path, [planned(), armed(3), *noise, *there, *samples("orders", 0, 20)])
    text = render(found)
    assert "2 times" in text
    assert "3 times" not in text

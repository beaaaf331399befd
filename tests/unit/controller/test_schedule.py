"""Schedules: the same bytes everywhere, limits that hold and say what they did."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
import schedule_golden
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.schedule import generate, overlaps, presets, profile_named, schedule_from
from controller.schedule_core import LimitSet, Mix, Place, Quiet, Recipe, draw, peak
from controller.schedule_draw import Distribution, Stream, normal_quantile
from controller.schedule_fit import best, fit
from controller.schedule_model import Limits
from controller.schedule_show import plot
from nodeagent.faults import kinds
from nodeagent.model.errors import InvalidSpec

GOLDEN_1000 = "6cded0e362ae102062a2865d737552b1fc114812f6c66bc10d2cde8d702b9d86"
GOLDEN_PRESETS = {
    "short-5": "9227e277d75e1477ce0505f1ba6668ea63104bdcc519c66feed73223d3d9fa6a",
    "short-10": "e0f130821058dc49cd605fcebb9965ad4e191b087ae95e1c9e5ef446fa1488a5",
    "marathon": "a19c695c34f81ffe3bdc80b342a804726a7137bceff15f94803e6a3677cb144b",
}
"""Of seed 17; they change with the numbers of presets and profiles, and with nothing else."""
OTHERS = [
    *(str(found) for n in (12, 13, 14) if (found := shutil.which(f"python3.{n}"))),
    *(
        str(p)
        for n in (12, 13, 14)
        for p in Path.home().glob(f".pyenv/versions/3.{n}.*/bin/python")
    ),
    *(str(p) for p in Path.home().glob(".local/share/uv/python/*/bin/python3.1[2-9]")),
]


def test_1000_seeds_give_the_golden_digest() -> None:
    assert schedule_golden.digest(1000) == GOLDEN_1000


def test_1000_seeds_give_the_golden_digest_on_another_python() -> None:
    tried = []
    for name in OTHERS:
        found = subprocess.run(
            [name, schedule_golden.__file__], capture_output=True, text=True, timeout=110
        )
        tried.append(name)
        if found.returncode == 0:  # a pyenv shim without a version fails: try the next
            assert found.stdout.strip() == GOLDEN_1000
            return
    pytest.skip(f"no other Python is installed here (tried {', '.join(tried) or 'none'})")


def test_decimal_without_its_c_library_draws_the_same() -> None:
    """The arithmetic is specified to the last digit: the pure implementation agrees."""
    code = (
        "import sys; sys.modules['_decimal'] = None\n"
        f"sys.path.insert(0, {str(Path(schedule_golden.__file__).parent)!r})\n"
        "import schedule_golden; print(schedule_golden.digest(10))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=110
    )
    assert found.stdout.strip() == schedule_golden.digest(10), found.stderr


@pytest.mark.parametrize("preset", sorted(GOLDEN_PRESETS))
def test_presets_give_the_same_file_byte_for_byte(preset: str) -> None:
    assert generate(17, preset).digest == GOLDEN_PRESETS[preset]
    assert generate(17, preset).text() == generate(17, preset).text()


def test_marathon_is_not_thinned_and_overlaps_as_promised() -> None:
    drawn = [generate(seed, "marathon") for seed in range(40)]
    counts = [len(s.faults) for s in drawn]
    assert 55 < statistics.mean(counts) < 65
    assert 7 <= statistics.mean(overlaps(s)[0] for s in drawn) <= 27
    assert sum(len(s.changes) for s in drawn) <= 2
    for schedule in drawn:
        assert all(600_000 <= f.end_ms - f.start_ms <= 2_400_000 for f in schedule.faults)


def test_short_presets_have_their_number_of_faults() -> None:
    for seed in range(30):
        assert len(generate(seed, "short-5").faults) == 5
        assert len(generate(seed, "short-10").faults) == 10


limit_sets = st.builds(
    LimitSet,
    max_concurrent=st.none() | st.integers(1, 6),
    per_service=st.none() | st.integers(1, 2),
    per_node=st.none() | st.integers(1, 3),
    per_zone=st.none() | st.integers(1, 3),
    cool_down=st.integers(0, 50),
    quiet=st.lists(
        st.builds(
            lambda a, n, live: Quiet(a, a + n, live),
            st.integers(0, 900),
            st.integers(1, 100),
            st.booleans(),
        ),
        max_size=3,
    ).map(tuple),
    max_delay=st.integers(0, 200),
)


@settings(max_examples=300, deadline=None)
@given(limits=limit_sets, seed=st.integers(0, 1 << 40))
def test_limits_hold_and_everything_drawn_is_accounted_for(limits: LimitSet, seed: int) -> None:
    places = tuple(Place(f"s{n}", f"n{n % 3}", f"z{n % 2}") for n in range(5))
    recipe = Recipe(
        Distribution("exponential", {"mean": Decimal(20)}),
        Distribution("uniform", {"low": Decimal(5), "high": Decimal(80)}),
        Mix((("k", 1),)),
        limits,
        places,
        window=1000,
    )
    drawn = draw(recipe, seed)
    spans = [(f.start, f.end) for f in drawn.faults]
    _check(limits.max_concurrent, spans)
    for key, most in (
        ("service", limits.per_service),
        ("node", limits.per_node),
        ("zone", limits.per_zone),
    ):
        for value in {getattr(f.place, key) for f in drawn.faults}:
            _check(most, [(f.start, f.end) for f in drawn.faults if getattr(f.place, key) == value])
    for f in drawn.faults:
        assert not any(q.start <= f.start < q.end for q in limits.quiet)
        assert not any(q.live and f.start < q.end and f.end > q.start for q in limits.quiet)
        for g in drawn.faults:
            if limits.cool_down and g is not f and g.place.service == f.place.service:
                assert g.start >= f.end + limits.cool_down or f.start >= g.end + limits.cool_down
    delayed = {c.slot: c.by for c in drawn.changes if c.action == "delayed"}
    dropped = {c.slot for c in drawn.changes if c.action == "dropped"}
    assert {f.slot: f.start - f.arrival for f in drawn.faults if f.start != f.arrival} == delayed
    assert all(0 < by <= limits.max_delay for by in delayed.values())
    slots = {f.slot for f in drawn.faults} | dropped
    assert slots == {f"f{n + 1:04d}" for n in range(len(slots))}
    assert not dropped & {f.slot for f in drawn.faults}


def _check(most: int | None, spans: list[tuple[int, int]]) -> None:
    if most is not None and spans:
        assert peak(spans, 0, max(b for _, b in spans)) <= most


@given(st.integers(0, 1 << 60))
def test_a_limit_changes_no_other_draw(seed: int) -> None:
    """The kind, life and arrival of a slot do not depend on what limits do to others."""
    places = tuple(Place(f"s{n}", "n", "z") for n in range(3))

    def facts(limits: LimitSet) -> dict[str, tuple[int, int, str, int]]:
        recipe = Recipe(
            Distribution("exponential", {"mean": Decimal(50)}),
            Distribution("exponential", {"mean": Decimal(100)}, 1),
            Mix((("a", 1), ("b", 1))),
            limits,
            places,
            window=500,
        )
        return {
            f.slot: (f.arrival, f.end - f.start, f.kind, f.seed) for f in draw(recipe, seed).faults
        }

    free, bound = facts(LimitSet(per_service=None)), facts(LimitSet(max_concurrent=1, max_delay=30))
    assert all(free[slot] == value for slot, value in bound.items())


@pytest.mark.parametrize(
    ("limits", "word"),
    [
        ({"max_concurrent": 1, "max_delay": "0s"}, "max_concurrent"),
        ({"quiet": [{"start": "0s", "end": "10h"}], "max_delay": "1m"}, "quiet"),
        ({"cool_down": "10h", "per_zone": 1, "max_delay": "0s"}, "per_zone"),
    ],
)
def test_limits_that_cannot_be_satisfied_are_named(limits: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidSpec, match=word):
        for seed in range(10):
            generate(seed, "short-10", limits=Limits.model_validate(limits))


def test_every_spec_of_the_default_profile_is_valid_for_kinds_that_exist() -> None:
    profile = profile_named("default")
    for name, share in profile.mix.items():
        if name in kinds():
            for severity in share.severities:
                kinds()[name].spec.model_validate(profile.spec(name, severity, 5))


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "null", "{", '{"format": 2}', '{"format": 1, "seed": 1}', "\0"],
)
def test_bad_schedule_files_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpec):
        schedule_from(text, "x.json")


def test_schedule_file_reads_back_and_plots() -> None:
    found = generate(3, "marathon")
    assert schedule_from(found.text(), "x") == found
    lanes = plot(found, 120)
    assert len(lanes) == len({f.service for f in found.faults}) + 1
    assert all(len(line) <= 120 for line in lanes)


def test_presets_are_documented() -> None:
    assert all(preset.about for preset in presets().values())
    assert not profile_named("default").calibrated


# --- draws --------------------------------------------------------------------------------------


def test_normal_quantile_agrees_with_the_standard_library() -> None:
    normal = statistics.NormalDist()
    for n in range(1, 2000):
        p = Decimal(n) / 2000
        assert abs(float(normal_quantile(p)) - normal.inv_cdf(n / 2000)) < 1e-12


@pytest.mark.parametrize(
    ("made", "mean"),
    [
        (Distribution("exponential", {"mean": Decimal(90_000)}), 90_000),
        (Distribution("uniform", {"low": Decimal(0), "high": Decimal(10_000)}), 5_000),
        (Distribution("lognormal", {"median": Decimal(1000), "sigma": Decimal("0.5")}), 1133.1),
        (Distribution("weibull", {"scale": Decimal(1000), "shape": Decimal(2)}), 886.2),
    ],
)
def test_distributions_have_their_means(made: Distribution, mean: float) -> None:
    stream = Stream(1, "test")
    found = statistics.mean(made.draw(stream) for _ in range(4000))
    assert abs(found - mean) < 0.06 * mean


@given(st.integers(0, 1 << 62), st.integers(1, 1000))
def test_below_stays_below(seed: int, bound: int) -> None:
    stream = Stream(seed, "x")
    assert all(0 <= stream.below(bound) < bound for _ in range(20))


# --- fit ------------------------------------------------------------------------------------------


def _csv(count: int) -> str:
    stream = Stream(5, "incidents")
    gap = Distribution("exponential", {"mean": Decimal(3_600_000)})
    life = Distribution("lognormal", {"median": Decimal(1_200_000), "sigma": Decimal("0.8")}, 1)
    rows, at = ["start,duration,kind,severity"], 0
    for n in range(count):
        at += gap.draw(stream)
        stamp = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at)).isoformat()
        rows.append(f"{stamp},{life.draw(stream)}ms,{'disk' if n % 3 else 'net'},major")
    return "\n".join(rows) + "\n"


def test_fit_finds_the_distributions_that_the_data_came_from() -> None:
    profile, fits = fit(_csv(400), "incidents.csv")
    assert profile.calibrated
    assert profile.lives.distribution == "lognormal"
    assert profile.lives.sigma is not None
    assert abs(float(profile.lives.sigma) - 0.8) < 0.1
    assert fits["arrivals"].ks < Decimal("0.1")
    assert "incidents.csv" in profile.origin
    assert fit(_csv(400), "incidents.csv")[0] == profile


@pytest.mark.parametrize(
    "text",
    [
        "start,kind\n",
        "start,end,kind\n2026-01-01T00:00:00,2026-01-01T01:00:00Z,x\n",
        "start,duration,kind\n" + "2026-01-01T00:00:00Z,5,x\n" * 20,
        "start,duration,kind\n" + "2026-01-01T00:00:00Z,0s,x\n" * 20,
        "start,duration,kind\n2026-01-01T00:00:00Z,5s,x\n",
    ],
)
def test_fit_refuses_bad_incidents(text: str) -> None:
    with pytest.raises(InvalidSpec):
        fit(text, "x.csv")


def test_fit_prefers_the_exponential_for_exponential_data() -> None:
    stream = Stream(9, "x")
    made = Distribution("exponential", {"mean": Decimal(50_000)}, 1)
    found = best([made.draw(stream) for _ in range(500)])
    assert found.spec.distribution == "exponential"
    assert found.ks < Decimal("0.08")


def test_every_spec_of_the_default_profile_is_one_of_a_kind_that_exists() -> None:
    """With any seed in it, as a drawn fault has it."""
    profile = profile_named("default")
    for name, share in profile.mix.items():
        assert share.severities, name
        for severity in share.severities:
            kinds()[name].spec.model_validate(profile.spec(name, severity, (1 << 63) - 1))

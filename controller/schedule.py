"""Seeded schedules: presets and profiles to a list of timed faults, and what limits did to it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from importlib.resources import files

import yaml
from pydantic import ValidationError

from controller.schedule_core import Change, Draw, Drawn, Place, Recipe, draw
from controller.schedule_model import (
    MAX_FAULTS,
    SCHEDULE_FORMAT,
    Limits,
    Preset,
    Profile,
    Schedule,
    ScheduleChange,
    ScheduledFault,
    milliseconds,
)
from nodeagent.model.errors import InvalidSpec

MAX_SCHEDULE_BYTES = 64 << 20
MAX_SEED = 1 << 63


def presets() -> dict[str, Preset]:
    """The presets that ship, by name."""
    text = (files("controller") / "profiles" / "presets.yaml").read_text(encoding="utf-8")
    return {name: Preset.model_validate(data) for name, data in yaml.safe_load(text).items()}


def preset_named(name: str) -> Preset:
    """Raises InvalidSpec that lists the known ones."""
    known = presets()
    if name not in known:
        raise InvalidSpec(f"there is no preset {name!r}", f"known presets: {', '.join(known)}")
    return known[name]


def profile_named(name: str) -> Profile:
    """A profile that ships. Raises InvalidSpec."""
    folder = files("controller") / "profiles"
    known = sorted(
        item.name.removesuffix(".yaml")
        for item in folder.iterdir()
        if item.name.endswith(".yaml") and item.name not in ("presets.yaml", "noise.yaml")
    )
    if name not in known:
        raise InvalidSpec(f"there is no profile {name!r}", f"known profiles: {', '.join(known)}")
    return profile_from((folder / f"{name}.yaml").read_text(encoding="utf-8"), name)


def profile_from(text: str, name: str) -> Profile:
    """A profile from YAML. Raises InvalidSpec naming every wrong field."""
    try:
        return Profile.model_validate(yaml.safe_load(text))
    except (yaml.YAMLError, ValidationError) as exc:
        raise InvalidSpec(f"{name} is not a profile", problems_of(exc)) from exc


def problems_of(exc: Exception) -> str:
    """All problems of a validation error, one line."""
    if not isinstance(exc, ValidationError):
        return " ".join(str(exc).split())
    return "; ".join(
        ".".join(str(part) for part in e["loc"]) + ": " + e["msg"].removeprefix("Value error, ")
        for e in exc.errors(include_url=False, include_input=False)
    )


def generate(
    seed: int,
    preset_name: str,
    *,
    profile: Profile | None = None,
    limits: Limits | None = None,
    places: Iterable[Place] | None = None,
) -> Schedule:
    """The schedule of a seed: the same bytes on every machine.

    `places` replace the preset's placeholder pool, `profile` its profile (and then also its
    arrivals and lives), `limits` its limits. Raises InvalidSpec when the limits cannot be
    satisfied, naming the limit.
    """
    if not 0 <= seed < MAX_SEED:
        raise InvalidSpec(f"{seed} is not a seed", "a seed is a whole number from 0 to 2^63 - 1")
    preset = preset_named(preset_name)
    used = profile or profile_named(preset.profile)
    recipe, left_out = _recipe(preset, profile, used, limits or preset.limits, places)
    _possible(recipe)
    try:
        drawn = draw(recipe, seed)
    except ValueError as exc:
        raise InvalidSpec("nothing can be drawn from this profile", str(exc)) from exc
    _satisfied(recipe, drawn)
    return Schedule(
        format=SCHEDULE_FORMAT,
        seed=seed,
        preset=preset_name,
        profile=used.name,
        calibrated=used.calibrated,
        origin=used.origin,
        left_out=left_out,
        window_ms=recipe.window,
        limits=limits or preset.limits,
        faults=tuple(_scheduled(item, used) for item in drawn.faults),
        changes=tuple(_changed(change) for change in drawn.changes),
    )


def _recipe(
    preset: Preset,
    given: Profile | None,
    used: Profile,
    limits: Limits,
    places: Iterable[Place] | None,
) -> tuple[Recipe, tuple[str, ...]]:
    """What is drawn from, and the kinds of the mix that no place takes."""
    arrivals = used.arrivals if given else preset.arrivals or used.arrivals
    lives = used.lives if given else preset.lives or used.lives
    pool = tuple(sorted(places, key=lambda p: p.service)) if places is not None else preset.pool()
    takes_all = any(place.kinds is None for place in pool)
    takes = frozenset[str]().union(*(place.kinds or () for place in pool))
    left_out = tuple(sorted(kind for kind in used.mix if not takes_all and kind not in takes))
    recipe = Recipe(
        arrivals.made(),
        lives.made(),
        used.made_mix(left_out),
        limits.made(),
        pool,
        milliseconds(preset.window),
        preset.count,
    )
    return recipe, left_out


def _changed(change: Change) -> ScheduleChange:
    data = {"slot": change.slot, "action": change.action, "rule": change.rule, "kind": change.kind}
    times = {"arrival_ms": change.arrival, "by_ms": change.by}
    return ScheduleChange.model_validate({**data, **times})


def _scheduled(item: Draw, profile: Profile) -> ScheduledFault:
    return ScheduledFault(
        slot=item.slot,
        arrival_ms=item.arrival,
        start_ms=item.start,
        end_ms=item.end,
        kind=item.kind,
        severity=item.severity,
        service=item.place.service,
        node=item.place.node,
        zone=item.place.zone,
        seed=item.seed,
        spec=profile.spec(item.kind, item.severity, item.seed),
    )


def _possible(recipe: Recipe) -> None:
    """What no draw can satisfy is said before one is made."""
    if not recipe.places:
        raise InvalidSpec("there is nothing to draw from", "no target is given")
    if not recipe.mix.kinds:
        raise InvalidSpec("there is nothing to draw from", "no target takes a kind of the profile")
    services = [place.service for place in recipe.places]
    if len(set(services)) != len(services):
        twice = sorted(name for name, n in Counter(services).items() if n > 1)
        raise InvalidSpec("a service is there twice", ", ".join(twice))
    mean = recipe.arrivals.parameters.get("mean")
    if mean is not None and mean <= 0 and recipe.arrivals.least <= 0:
        raise InvalidSpec("the schedule would never end", "arrivals: the mean is 0s")
    if recipe.arrivals.name == "constant" and recipe.arrivals.parameters["value"] <= 0:
        raise InvalidSpec("the schedule would never end", "arrivals: the gap is 0s")
    if recipe.lives.name == "constant" and recipe.lives.parameters["value"] <= 0:
        raise InvalidSpec("a fault of no duration cannot be scheduled", "lives: value is 0s")
    if mean and recipe.count is None and recipe.window / int(mean or 1) > MAX_FAULTS:
        raise InvalidSpec(f"more than {MAX_FAULTS} faults would be drawn", "arrivals: mean")


def _satisfied(recipe: Recipe, drawn: Drawn) -> None:
    dropped = [change for change in drawn.changes if change.action == "dropped"]
    if not dropped or (recipe.count is None and drawn.faults):
        return
    rules = Counter(change.rule for change in dropped)
    named = ", ".join(f"{rule} (keeps out {n})" for rule, n in sorted(rules.items()))
    raise InvalidSpec(
        f"the schedule cannot satisfy its limits: {named}",
        f"{len(drawn.faults)} of {len(drawn.faults) + len(dropped)} faults fit",
        "loosen the limit, allow a longer max_delay, or give more targets",
    )


def schedule_from(text: str, name: str) -> Schedule:
    """A schedule file. Raises InvalidSpec."""
    if len(text) > MAX_SCHEDULE_BYTES:
        raise InvalidSpec(f"{name} is larger than 64 MiB")
    try:
        data = json.loads(text)
        if isinstance(data, dict) and data.get("format") != SCHEDULE_FORMAT:
            raise InvalidSpec(
                f"{name} is a schedule of format {data.get('format')!r}",
                f"this faultctl reads format {SCHEDULE_FORMAT}",
            )
        return Schedule.model_validate(data)
    except (json.JSONDecodeError, ValidationError) as exc:
        raise InvalidSpec(f"{name} is not a schedule", problems_of(exc)) from exc


def overlaps(schedule: Schedule) -> tuple[int, int]:
    """The most faults at once, and how many at once on average while there are any (rounded)."""
    edges = sorted(
        [(f.start_ms, 1) for f in schedule.faults] + [(f.end_ms, -1) for f in schedule.faults]
    )
    live = most = area = busy = last = 0
    for moment, step in edges:
        area += live * (moment - last)
        busy += (moment - last) if live else 0
        live, last = live + step, moment
        most = max(most, live)
    return most, (area + busy // 2) // busy if busy else 0

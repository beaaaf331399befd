"""The schedule engine: draws arrivals, lives, kinds and places, and keeps the limits.

Pure and of the standard library only, so that any Python can repeat a draw. Everything
of one slot comes from streams of its own: a limit that moves one fault changes no other
draw. Times are whole milliseconds from the start of the schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from controller.schedule_draw import Distribution, Stream


@dataclass(frozen=True)
class Place:
    """A target that can be drawn: a service on a node in a zone, and the kinds it takes."""

    service: str
    node: str
    zone: str
    kinds: frozenset[str] | None = None
    """None takes any kind."""


@dataclass(frozen=True)
class Quiet:
    """A window without starts, or with `live` without any fault at all."""

    start: int
    end: int
    live: bool = False


@dataclass(frozen=True)
class LimitSet:
    """What a schedule may not do; None is no limit."""

    max_concurrent: int | None = None
    per_service: int | None = 1
    per_node: int | None = None
    per_zone: int | None = None
    cool_down: int = 0
    """Between the end of a fault and the next start on the same service."""
    quiet: tuple[Quiet, ...] = ()
    max_delay: int = 0
    """How long a limit may delay a start before it is dropped instead."""


@dataclass(frozen=True)
class Mix:
    """Kinds and severities with integer weights."""

    kinds: tuple[tuple[str, int], ...]
    severities: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Draw:
    """One drawn fault, as it will be played."""

    slot: str
    arrival: int
    start: int
    end: int
    kind: str
    severity: str
    place: Place
    seed: int


@dataclass(frozen=True)
class Change:
    """What a limit did to a drawn fault."""

    slot: str
    action: str
    """dropped or delayed."""
    rule: str
    arrival: int
    by: int = 0
    kind: str = ""


@dataclass(frozen=True)
class Drawn:
    """The result of a draw."""

    faults: tuple[Draw, ...]
    changes: tuple[Change, ...]


@dataclass(frozen=True)
class Recipe:
    """All that a draw depends on, beside the seed."""

    arrivals: Distribution
    lives: Distribution
    mix: Mix
    limits: LimitSet
    places: tuple[Place, ...]
    window: int
    count: int | None = None


def peak(spans: Iterable[tuple[int, int]], start: int, end: int) -> int:
    """The most spans that live at one moment of [start, end)."""
    inside = [(max(a, start), min(b, end)) for a, b in spans if a < end and b > start]
    edges = sorted([(a, 1) for a, _ in inside] + [(b, -1) for _, b in inside])
    most = live = 0
    for _, step in edges:
        live += step
        most = max(most, live)
    return most


class Book:
    """What is placed already; answers which rule stands in the way of one more."""

    def __init__(self, limits: LimitSet) -> None:
        self.limits = limits
        self._spans: list[tuple[int, int, Place]] = []
        self._of_service: dict[str, list[tuple[int, int]]] = {}

    def forget(self, now: int) -> None:
        """Arrivals never go back: what has ended and cooled down by `now` binds nobody."""
        kept = now - self.limits.cool_down
        gone = [span for span in self._spans if span[1] <= kept]
        if gone:
            self._spans = [span for span in self._spans if span[1] > kept]
            for start, end, place in gone:
                self._of_service[place.service].remove((start, end))

    def add(self, start: int, end: int, place: Place) -> None:
        """Place a span."""
        self._spans.append((start, end, place))
        self._of_service.setdefault(place.service, []).append((start, end))

    def everywhere(self, start: int, end: int) -> str | None:
        """The rule that forbids the span on any place."""
        for quiet in self.limits.quiet:
            if quiet.live and start < quiet.end and end > quiet.start:
                return "quiet"
            if quiet.start <= start < quiet.end:
                return "quiet"
        most = self.limits.max_concurrent
        if most is not None and peak(((a, b) for a, b, _ in self._spans), start, end) >= most:
            return "max_concurrent"
        return None

    def at(self, place: Place, start: int, end: int) -> str | None:
        """The rule that forbids the span on this place."""
        limits = self.limits
        near = self._of_service.get(place.service, [])
        most = limits.per_service
        if most is not None and near and peak(near, start, end) >= most:
            return "per_service"
        cool = limits.cool_down
        if cool and any(a < end + cool and b + cool > start for a, b in near):
            return "cool_down"
        if limits.per_node is not None:
            same = [(a, b) for a, b, p in self._spans if p.node == place.node]
            if peak(same, start, end) >= limits.per_node:
                return "per_node"
        if limits.per_zone is not None:
            same = [(a, b) for a, b, p in self._spans if p.zone == place.zone]
            if peak(same, start, end) >= limits.per_zone:
                return "per_zone"
        return None

    def later_starts(self, arrival: int, life: int) -> Iterator[int]:
        """The moments after `arrival` at which a rule may stop to bind, in order."""
        cool = self.limits.cool_down
        found = {b for _, b, _ in self._spans} | {b + cool for _, b, _ in self._spans}
        found |= {quiet.end for quiet in self.limits.quiet}
        latest = arrival + self.limits.max_delay
        yield from sorted(moment for moment in found if arrival < moment <= latest)


def draw(recipe: Recipe, seed: int) -> Drawn:
    """The schedule of a seed; the same everywhere, always. Raises ValueError."""
    arrivals = Stream(seed, "arrivals")
    book = Book(recipe.limits)
    faults: list[Draw] = []
    changes: list[Change] = []
    moment, number = 0, 0
    while recipe.count is None or number < recipe.count:
        moment += recipe.arrivals.draw(arrivals)
        if moment >= recipe.window and recipe.count is None:
            break
        number += 1
        slot = f"f{number:04d}"
        book.forget(moment)
        placed, change = _place(recipe, book, seed, slot, moment)
        if placed is not None:
            faults.append(placed)
            book.add(placed.start, placed.end, placed.place)
        if change is not None:
            changes.append(change)
    faults.sort(key=lambda item: (item.start, item.slot))
    return Drawn(tuple(faults), tuple(changes))


def _place(
    recipe: Recipe, book: Book, seed: int, slot: str, arrival: int
) -> tuple[Draw | None, Change | None]:
    life = recipe.lives.draw(Stream(seed, f"life/{slot}"))
    kind = Stream(seed, f"kind/{slot}").weighted(recipe.mix.kinds)
    severities = recipe.mix.severities.get(kind, ())
    severity = Stream(seed, f"severity/{slot}").weighted(severities) if severities else ""
    places = [p for p in recipe.places if p.kinds is None or kind in p.kinds]
    first_rule = ""
    for start in (arrival, *book.later_starts(arrival, life)):
        rule, free = _free(book, places, start, start + life)
        if free:
            place = Stream(seed, f"place/{slot}").choice(free)
            own = Stream(seed, f"spec/{slot}").below(1 << 32)
            found = Draw(slot, arrival, start, start + life, kind, severity, place, own)
            moved = start - arrival
            change = Change(slot, "delayed", first_rule, arrival, moved, kind) if moved else None
            return found, change
        first_rule = first_rule or rule
    return None, Change(slot, "dropped", first_rule, arrival, 0, kind)


def _free(book: Book, places: Sequence[Place], start: int, end: int) -> tuple[str, list[Place]]:
    rule = book.everywhere(start, end)
    if rule is not None:
        return rule, []
    if not places:
        return "no_target", []
    rules = [(book.at(place, start, end), place) for place in places]
    free = [place for found, place in rules if found is None]
    most = Counter(found for found, _ in rules if found).most_common()
    # The rule that binds most places is named; by name where two bind as many.
    named = min((name for name, n in most if n == most[0][1]), default="") if most else ""
    return named, free

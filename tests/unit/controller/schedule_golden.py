"""Draws 1,000 seeds and prints one digest of them; of the standard library only, any Python."""

from __future__ import annotations

import hashlib
import sys
from decimal import Decimal
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from controller.schedule_core import LimitSet, Mix, Place, Quiet, Recipe, draw
from controller.schedule_draw import Distribution

SECOND = 1000
MINUTE = 60 * SECOND

PLACES = tuple(Place(f"s{n:02d}", f"n{n % 6}", f"z{n % 3}") for n in range(24))
ARRIVALS = {
    "exponential": Distribution("exponential", {"mean": Decimal(90 * SECOND)}),
    "weibull": Distribution("weibull", {"scale": Decimal(90 * SECOND), "shape": Decimal("0.7")}),
    "uniform": Distribution("uniform", {"low": Decimal(SECOND), "high": Decimal(180 * SECOND)}),
}
LIVES = Distribution(
    "lognormal", {"median": Decimal(20 * MINUTE), "sigma": Decimal("0.5")}, 10 * MINUTE, 40 * MINUTE
)
MIX = Mix((("a", 3), ("b", 1)), {"a": (("minor", 2), ("major", 1))})
LIMITS = LimitSet(
    max_concurrent=12,
    per_node=4,
    per_zone=6,
    cool_down=5 * MINUTE,
    quiet=(Quiet(20 * MINUTE, 25 * MINUTE),),
    max_delay=5 * MINUTE,
)


def digest(seeds: int) -> str:
    """SHA-256 over all that was drawn."""
    total = hashlib.sha256()
    for seed in range(seeds):
        name = sorted(ARRIVALS)[seed % 3]
        drawn = draw(Recipe(ARRIVALS[name], LIVES, MIX, LIMITS, PLACES, window=60 * MINUTE), seed)
        for f in drawn.faults:
            words = (f.slot, f.arrival, f.start, f.end, f.kind, f.severity, f.place.service, f.seed)
            total.update(repr(words).encode())
        for c in drawn.changes:
            total.update(repr((c.slot, c.action, c.rule, c.arrival, c.by, c.kind)).encode())
    return total.hexdigest()


if __name__ == "__main__":
    print(digest(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))

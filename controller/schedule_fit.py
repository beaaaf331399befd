"""A profile fitted to real incidents: the only profiles that may be called calibrated.

Maximum likelihood in decimal arithmetic, so that the same file always gives the same
profile: exponential (the mean) and log-normal (mean and deviation of the logarithms) are
compared by their likelihood; the distance of Kolmogorov and Smirnov says how well the
better one fits.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal, localcontext

from controller.schedule_draw import ARITHMETIC, INVERSE_CDF
from controller.schedule_model import DistributionSpec, KindShare, Profile, Severity
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.units import parse_duration

MIN_INCIDENTS = 10
MAX_ROWS = 1_000_000
COLUMNS = ("start", "end", "duration", "kind", "severity")
_PI = Decimal("3.14159265358979323846264338327950288")


@dataclass(frozen=True)
class Incident:
    """One row."""

    start: datetime
    life_ms: int
    kind: str
    severity: str


@dataclass(frozen=True)
class Fit:
    """A fitted distribution; `ks` is the greatest distance between the two CDFs."""

    spec: DistributionSpec
    ks: Decimal


def read_incidents(text: str, name: str) -> list[Incident]:
    """Rows of a CSV with `start` (RFC 3339), `end` or `duration`, `kind`, and perhaps
    `severity`. Raises InvalidSpec listing every bad row."""
    rows = csv.DictReader(io.StringIO(text))
    columns = set(rows.fieldnames or ())
    if not {"start", "kind"} <= columns or not columns & {"end", "duration"}:
        raise InvalidSpec(
            f"{name} lacks columns",
            "it needs start, kind, and end or duration; severity is optional",
        )
    found: list[Incident] = []
    problems: list[str] = []
    for number, row in enumerate(rows, 2):
        if number > MAX_ROWS:
            raise InvalidSpec(f"{name} has more than {MAX_ROWS} rows")
        try:
            found.append(_incident(row))
        except (ValueError, TypeError) as exc:
            problems.append(f"line {number}: {exc}")
    if problems:
        raise InvalidSpec(f"{name} has {len(problems)} bad rows", "; ".join(problems[:10]))
    if len(found) < MIN_INCIDENTS:
        raise InvalidSpec(
            f"{name} has {len(found)} incidents", f"at least {MIN_INCIDENTS} are needed for a fit"
        )
    return sorted(found, key=lambda incident: incident.start)


def _incident(row: dict[str, str]) -> Incident:
    start = _moment(row["start"])
    if row.get("end"):
        life = _moment(row["end"]) - start
    else:
        life = parse_duration(row["duration"])
    life_ms = life // timedelta(milliseconds=1)
    if life_ms <= 0:
        raise ValueError("it ends before it starts, or at once")
    if not row["kind"]:
        raise ValueError("kind is empty")
    return Incident(start, life_ms, row["kind"], row.get("severity") or "")


def _moment(text: str) -> datetime:
    found = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if found.tzinfo is None:
        raise ValueError(f"{text!r} has no zone: write 2026-01-31T12:00:00Z")
    return found


def fit(text: str, name: str) -> tuple[Profile, dict[str, Fit]]:
    """A calibrated profile and how well each distribution fits. Raises InvalidSpec."""
    incidents = read_incidents(text, name)
    gaps = [
        max((b.start - a.start) // timedelta(milliseconds=1), 1)
        for a, b in itertools.pairwise(incidents)
    ]
    fits = {"arrivals": best(gaps), "lives": best([i.life_ms for i in incidents])}
    digest = hashlib.sha256(text.encode()).hexdigest()
    profile = Profile(
        name="fitted",
        calibrated=True,
        origin=(
            f"fitted to {len(incidents)} incidents of {name} (SHA-256 {digest[:16]}); "
            f"distance of Kolmogorov and Smirnov: arrivals {fits['arrivals'].ks}, "
            f"lives {fits['lives'].ks}"
        ),
        arrivals=fits["arrivals"].spec,
        lives=fits["lives"].spec,
        mix=_mix(incidents),
    )
    return profile, fits


def _mix(incidents: Sequence[Incident]) -> dict[str, KindShare]:
    kinds = Counter(incident.kind for incident in incidents)
    pairs = Counter((i.kind, i.severity) for i in incidents if i.severity)
    return {
        kind: KindShare(
            weight=count,
            severities={s: Severity(weight=n) for (k, s), n in sorted(pairs.items()) if k == kind},
        )
        for kind, count in sorted(kinds.items())
    }


def best(values: Sequence[int]) -> Fit:
    """The likelier of exponential and log-normal for positive milliseconds."""
    with localcontext(ARITHMETIC):
        count = Decimal(len(values))
        mean = sum(map(Decimal, values)) / count
        logs = [Decimal(value).ln() for value in values]
        centre = sum(logs) / count
        sigma = (sum((x - centre) ** 2 for x in logs) / count).sqrt()
        exponential = -count * (mean.ln() + 1)
        lognormal = None
        if sigma > Decimal("0.001"):
            each = sigma.ln() + (2 * _PI).ln() / 2 + Decimal("0.5")
            lognormal = -count * each - sum(logs)
        if lognormal is not None and lognormal > exponential:
            spec = _spec("lognormal", centre.exp(), sigma)
        else:
            spec = _spec("exponential", mean)
        return Fit(spec, _distance(sorted(values), spec))


def _spec(name: str, middle: Decimal, sigma: Decimal | None = None) -> DistributionSpec:
    length = timedelta(milliseconds=max(int(middle.to_integral_value()), 1))
    if sigma is None:
        return DistributionSpec.model_validate({"distribution": name, "mean": length})
    rounded = sigma.quantize(Decimal("0.0001"))
    data = {"distribution": name, "median": length, "sigma": rounded}
    return DistributionSpec.model_validate(data)


def _distance(values: Sequence[int], spec: DistributionSpec) -> Decimal:
    """Over the quantiles of the fit: at u, the data's CDF should be u."""
    made = spec.made()
    inverse = INVERSE_CDF[made.name][1]
    worst = Decimal(0)
    steps = 200
    position = 0
    for step in range(1, steps):
        u = Decimal(step) / steps
        quantile = inverse(made.parameters, u)
        while position < len(values) and values[position] <= quantile:
            position += 1
        worst = max(worst, abs(Decimal(position) / len(values) - u))
    return worst.quantize(Decimal("0.001"))

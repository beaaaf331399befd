"""Two small charts as SVG text: stages over time, and actions in ten minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from controller.report.model import Axis, clock
from controller.score import STAGES, fixed

_COLOURS = {"correlated": "#8a94a6", "localized": "#2f62b5", "repaired": "#3f9c6b"}
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 760, 190, 40, 22


def _x(axis: Axis, t_ns: int) -> str:
    place = Fraction(t_ns - axis.start_ns, axis.length) * (_WIDTH - _LEFT - 90)
    return fixed(_LEFT + place, 1)


def _y(share: Fraction) -> str:
    return fixed(10 + (1 - share) * (_HEIGHT - _BOTTOM - 10), 1)


def seen_chart(seen: Sequence[Mapping[str, Any]], axis: Axis) -> str:
    """Step lines, one a stage, named at their ends."""
    parts = [_frame(axis)]
    ends: list[tuple[Fraction, str]] = []
    for stage in STAGES:
        share = Fraction(0)
        points = []
        for row in seen:
            x = _x(axis, int(row["t_ns"]))
            points.append(f"{x},{_y(share)}")
            share = Fraction(row[stage]["share"] or 0)
            points.append(f"{x},{_y(share)}")
        if points:
            points.append(f"{_x(axis, axis.end_ns)},{_y(share)}")
            line = f'points="{" ".join(points)}" fill="none" stroke="{_COLOURS[stage]}"'
            parts.append(f'<polyline {line} stroke-width="2"/>')
            ends.append((Fraction(_y(share)), stage))
    return _svg([*parts, *_labels(ends, axis)], _WIDTH)


def _labels(ends: Sequence[tuple[Fraction, str]], axis: Axis) -> list[str]:
    """Names at the ends of lines, from the top, none nearer than 13 px to the one above."""
    found, above = [], Fraction(-13)
    x = fixed(Fraction(_x(axis, axis.end_ns)) + 6, 1)
    for wanted, stage in sorted(ends):
        above = max(wanted, above + 13)
        place = f'x="{x}" y="{fixed(above + 4, 1)}"'
        found.append(f'<text {place} style="fill:{_COLOURS[stage]}">{stage}</text>')
    return found


def _frame(axis: Axis) -> str:
    lines = []
    for share in (Fraction(0), Fraction(1, 2), Fraction(1)):
        y, right = _y(share), _x(axis, axis.end_ns)
        text = f"{fixed(100 * share, 0)}%"
        lines.append(f'<path d="M{_LEFT} {y}H{right}" stroke="#e3e6eb"/>')
        lines.append(f'<text x="{_LEFT - 6}" y="{y}" dy="4" text-anchor="end">{text}</text>')
    for at in (0, axis.end_ns):
        x = _x(axis, at)
        lines.append(f'<text x="{x}" y="{_HEIGHT - 5}" text-anchor="middle">{clock(at)}</text>')
    return "".join(lines)


def action_chart(bins: Sequence[Mapping[str, int]]) -> str:
    """Bars with their counts."""
    width = 380
    most = max([1, *(b["actions"] for b in bins)])
    step = Fraction(width - 20, max(1, len(bins)))
    every = -(-len(bins) // 7)
    wide = step if step < 60 else Fraction(60)
    parts = []
    for number, one in enumerate(bins):
        x, count = 10 + number * step, one["actions"]
        tall = Fraction(count, most) * (_HEIGHT - _BOTTOM - 26)
        y = _HEIGHT - _BOTTOM - tall
        middle = fixed(x + wide / 2, 1)
        parts.append(
            f'<rect x="{fixed(x + 2, 1)}" y="{fixed(y, 1)}" width="{fixed(wide - 4, 1)}" '
            f'height="{fixed(max(tall, Fraction(1)), 1)}" fill="#9db9e3"/>'
        )
        if number % every == 0:
            left = fixed(x + 2, 1)
            label = clock(one["from_ns"])
            parts.append(f'<text x="{left}" y="{_HEIGHT - 5}">{label}</text>')
        parts.append(
            f'<text x="{middle}" y="{fixed(y - 4, 1)}" text-anchor="middle">{count}</text>'
        )
    return _svg(parts, width)


def _svg(parts: Sequence[str], width: int) -> str:
    return f'<svg viewBox="0 0 {width} {_HEIGHT}" role="img">{"".join(parts)}</svg>'

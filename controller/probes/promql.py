"""PromQL probes. A Prometheus that does not answer measures nothing: unknown, not fail."""

from __future__ import annotations

import asyncio
from decimal import Decimal, InvalidOperation
from typing import Any

import httpx

from controller.probes.http import client
from controller.probes.outcome import Outcome, failed, passed, unknown
from controller.probes.spec import PromqlProbe

MAX_SERIES = 100
"""Kept in a sample; all of them are judged."""


def measure(spec: PromqlProbe) -> Outcome:
    """One instant query (Prometheus HTTP API v1)."""
    try:
        reply = asyncio.run(_query(spec))
    except (TimeoutError, httpx.HTTPError, OSError) as exc:
        return unknown(f"Prometheus does not answer: {exc or type(exc).__name__}")
    try:
        body = reply.json()
    except ValueError:
        return unknown(f"Prometheus answers {reply.status_code} and no JSON")
    if not isinstance(body, dict) or body.get("status") != "success":
        text = body.get("error", "") if isinstance(body, dict) else ""
        return unknown(f"the query is refused: {text or reply.status_code}")
    return judge(spec, body.get("data"))


async def _query(spec: PromqlProbe) -> httpx.Response:
    async with asyncio.timeout(spec.timeout.total_seconds()):
        async with client(spec) as session:
            url = spec.url.rstrip("/") + "/api/v1/query"
            return await session.get(url, params={"query": spec.query})


def judge(spec: PromqlProbe, data: Any) -> Outcome:
    """All series of an answer against the bounds; NaN is no measurement."""
    try:
        series = [data["result"]] if data["resultType"] == "scalar" else list(data["result"])
        pairs = [(_labels(s), Decimal(_value(s))) for s in series]
    except (KeyError, TypeError, IndexError, InvalidOperation) as exc:
        return unknown(f"the answer cannot be read: {exc!r}")
    if not pairs:
        return Outcome(spec.empty, "the query gives no series", {"series": 0})
    kept = {name: str(value) for name, value in pairs[:MAX_SERIES]}
    values = [value for _, value in pairs]
    if any(value.is_nan() for value in values):
        return unknown("a series is NaN", series=len(pairs), values=kept)
    worst = {"min": str(min(values)), "max": str(max(values))}
    for name, value in pairs:
        if spec.at_most is not None and value > spec.at_most:
            return failed(f"{name}: {value} > {spec.at_most}", values=kept, **worst)
        if spec.at_least is not None and value < spec.at_least:
            return failed(f"{name}: {value} < {spec.at_least}", values=kept, **worst)
    return passed(values=kept, **worst)


def _value(series: Any) -> str:
    """A scalar is [time, value]; a series of a vector has that under `value`."""
    return str(series[1] if isinstance(series, list) else series["value"][1])


def _labels(series: Any) -> str:
    if isinstance(series, list):
        return "scalar"
    found = dict(series.get("metric", {}))
    name = found.pop("__name__", "")
    inside = ",".join(f'{k}="{v}"' for k, v in sorted(found.items()))
    return f"{name}{{{inside}}}" if inside or not name else str(name)

"""Chaos Mesh's actions as our specs; pure."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

from controller.kube.chaosmesh_select import Unmappable, go_duration, only
from nodeagent.model.netspec import parse_rate
from nodeagent.model.units import format_duration

Body = Mapping[str, Any]
DIRECTIONS = {"to": "egress", "from": "ingress", "both": "both"}
CALLS = {
    "read": "read-family", "write": "write-family", "open": "open-family",
    "fsync": "fsync-family", "mkdir": "mkdir-family", "rename": "rename-family",
    "unlink": "unlink-family",
}  # fmt: skip
"""FUSE operations with a family of system calls that does the same."""
MAX_LATENCY = timedelta(minutes=1)
_RATE = re.compile(r"(\d+)\s*(bps|kbps|mbps|gbps|tbps)", re.ASCII | re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.ASCII | re.IGNORECASE)


def percent(value: Any) -> str:
    """`50` or `"12.5"` as `50%`."""
    return f"{Decimal(str(value or 0)).normalize():f}%"


def network(body: Body) -> tuple[str, dict[str, Any]]:
    """(kind, spec) of a NetworkChaos. Raises Unmappable."""
    action = body["action"]
    only(body, "action", "mode", "value", "selector", "duration", "direction", "target",
         "externalTargets", "device", "delay", "loss", "duplicate", "corrupt", "rate",
         "bandwidth")  # fmt: skip
    spec: dict[str, Any] = {}
    if "direction" in body or action == "partition":
        spec["direction"] = DIRECTIONS[body.get("direction", "to")]
    if body.get("device"):
        spec["interface"] = body["device"]
    if body.get("externalTargets"):
        spec["to"] = ",".join(map(_external, body["externalTargets"]))
    if action == "partition":
        return "partition", spec
    if action == "bandwidth":
        return "bandwidth", spec | _bandwidth(body["bandwidth"])
    return "netem", spec | _netem_of(action, body)


def _netem_of(action: str, body: Body) -> dict[str, Any]:
    """One of netem's parts, or with action netem all that are there."""
    if action not in ("netem", "delay", "loss", "duplicate", "corrupt"):
        raise Unmappable(f"action {action}: not known")
    spec: dict[str, Any] = {}
    wanted = _NETEM if action == "netem" else (action,)
    for name in _NETEM:
        if name in wanted and body.get(name):
            spec |= _netem(name, body[name])
        elif body.get(name):
            raise Unmappable(f"{name}: not with action {action}")
    if not spec:
        raise Unmappable(f"{action}: says nothing to do")
    return spec


_NETEM = ("delay", "loss", "duplicate", "corrupt", "rate")


def _external(text: str) -> str:
    """An address or network; names mean other addresses from time to time."""
    if re.search(r"[g-zG-Z]", text) and ":" not in text:
        raise Unmappable(f"externalTargets: {text} is a name: name its addresses")
    return text


def _netem(name: str, part: Body) -> dict[str, Any]:
    if name == "delay":
        return _delay(part)
    if name == "rate":
        only(part, "rate")
        return {"rate": rate(part["rate"])}
    only(part, name, "correlation")
    found: dict[str, Any] = {name: percent(part[name])}
    if Decimal(str(part.get("correlation") or 0)):
        found[f"{name}_correlation"] = percent(part["correlation"])
    return found


def _delay(part: Body) -> dict[str, Any]:
    only(part, "latency", "jitter", "correlation", "reorder")
    found: dict[str, Any] = {"delay": format_duration(go_duration(part["latency"]))}
    if part.get("jitter") and go_duration(part["jitter"]):
        found["jitter"] = format_duration(go_duration(part["jitter"]))
        if Decimal(str(part.get("correlation") or 0)):
            found["delay_correlation"] = percent(part["correlation"])
    if reorder := part.get("reorder"):
        only(reorder, "reorder", "correlation", "gap")
        found["reorder"] = percent(reorder["reorder"])
        if Decimal(str(reorder.get("correlation") or 0)):
            found["reorder_correlation"] = percent(reorder["correlation"])
        if reorder.get("gap"):
            found["gap"] = int(reorder["gap"])
    return found


def rate(text: str) -> str:
    """Chaos Mesh counts bytes: its `1mbps` is 1 MiB a second."""
    found = _RATE.fullmatch(str(text).strip())
    if found is None:
        raise Unmappable(f"rate {text!r}: not a rate")
    unit = {"bps": "B/s", "kbps": "KiB/s", "mbps": "MiB/s", "gbps": "GiB/s", "tbps": "TiB/s"}
    return f"{found[1]}{unit[found[2].lower()]}"


def _bandwidth(part: Body) -> dict[str, Any]:
    only(part, "rate", "limit", "buffer")
    found: dict[str, Any] = {"rate": rate(part["rate"])}
    if part.get("buffer"):
        found["burst"] = f"{int(part['buffer'])}B"
    if part.get("limit"):
        found["latency"] = _latency(parse_rate(found["rate"]) // 8, part)
    return found


def _latency(per_second: int, part: Body) -> str:
    """How long a packet waits in a queue of so many bytes, those of the burst among them: as
    tc(8) makes tbf's limit of its latency. per_second: in bytes."""
    waiting = int(part["limit"]) - int(part.get("buffer") or 0)
    latency = timedelta(microseconds=max(1, waiting * 1_000_000 // per_second))
    if latency > MAX_LATENCY:
        raise Unmappable(
            f"bandwidth.limit: {part['limit']} bytes are {latency.total_seconds():.0f}s at "
            f"{part['rate']}; ours keeps packets for a minute at most"
        )
    return format_duration(latency)


def memory_of(text: str) -> dict[str, Any]:
    """`256MB` or `50%` of StressChaos. Raises Unmappable."""
    if text.endswith("%"):
        return {"memory_percent": percent(text[:-1])}
    found = _SIZE.fullmatch(text.strip())
    if found is None or not text.strip():
        raise Unmappable(f"stressors.memory.size {text!r}: not a size")
    power = " KMGT".index(found[2].upper() or " ")
    factor = 1024 if found[3] else 1000
    return {"memory": f"{int(Decimal(found[1]) * factor**power)}B"}


def io_fault(body: Body) -> dict[str, Any]:
    """The syscall spec of an IOChaos. Raises Unmappable."""
    action = body["action"]
    only(body, "action", "mode", "value", "selector", "duration", "containerNames", "errno", "path",
         "methods", "percent", "volumePath")  # fmt: skip
    if action != "fault":
        raise Unmappable(f"action {action}: only fault has an equal")
    methods = body.get("methods") or ()
    missing = [name for name in methods if name not in CALLS]
    if missing or not methods:
        which = missing[0] if missing else "all of them"
        raise Unmappable(f"methods: {which}; those with an equal: {', '.join(CALLS)}")
    number = int(body["errno"])
    if number not in errno.errorcode:
        raise Unmappable(f"errno {number}: not known")
    found = {
        "call": [CALLS[name] for name in methods],
        "errno": errno.errorcode[number],
        "path": [_glob(str(body.get("path") or ""), str(body["volumePath"]))],
    }
    if int(body.get("percent", 100)) != 100:
        found["rate"] = percent(body["percent"])
    return found


def _glob(path: str, volume: str) -> str:
    """A path, or a folder with all below it."""
    if path in ("", "*", "**", "/**/*", "**/*"):
        return f"{volume.rstrip('/')}/**"
    base = re.sub(r"/\*\*(/\*)?$|/\*$", "", path)
    if any(sign in base for sign in "*?["):
        raise Unmappable(f"path {path!r}: only a file, or a folder with all below it")
    return path if base == path else f"{base}/**"


def block(body: Body) -> tuple[str, dict[str, Any]]:
    """(volume, spec) of a BlockChaos. Raises Unmappable."""
    only(body, "action", "mode", "value", "selector", "duration", "containerNames", "volumeName",
         "delay")  # fmt: skip
    if body["action"] != "delay":
        raise Unmappable(f"action {body['action']}: only delay has an equal")
    part = body["delay"]
    for name in ("jitter", "correlation"):
        value = str(part.get(name) or "0")
        if value.rstrip("nsmuh") not in ("0", "0.0"):
            raise Unmappable(f"delay.{name}: a disk's delay is the same for each request here")
    latency = format_duration(go_duration(part["latency"]))
    return str(body["volumeName"]), {"read": latency, "write": latency}

"""Runs probes on this node: a measured failure is `fail`, what could not be measured `unknown`."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from nodeagent import child
from nodeagent.backends.disk_checks import direct_read
from nodeagent.clock import boottime_ns
from nodeagent.model import strictjson
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.planner import explain
from nodeagent.model.probe import (
    ExecProbe,
    ProbeSpec,
    ReadProbe,
    Sample,
    TcpProbe,
    Verdict,
    parse_probe,
)

MAX_OUTPUT = 4096
MAX_BAD = 16
Result = tuple[Verdict, str, dict[str, object]]


def run_probe(probe_json: str, gone: threading.Event) -> Iterator[Sample]:
    """Take the samples of a probe until they are all there or nobody waits for them any more.

    Raises InvalidSpec.
    """
    try:
        spec = parse_probe(strictjson.loads(probe_json))
    except ValidationError as exc:
        raise InvalidSpec("the probe is not valid", explain(exc)) from exc
    except ValueError as exc:
        raise InvalidSpec("the probe is not JSON", str(exc)) from exc
    start = time.monotonic()
    for number in range(spec.count):
        pause = start + number * spec.interval.total_seconds() - time.monotonic()
        if gone.wait(max(0.0, pause)):
            return
        yield sample(spec, gone)


def sample(spec: ProbeSpec, gone: threading.Event | None = None) -> Sample:
    """One sample; a program that it runs ends early when nobody waits for it any more."""
    gone = gone or threading.Event()
    began = boottime_ns()
    match spec:
        case ExecProbe():
            verdict, reason, data = _exec(spec, gone)
        case TcpProbe():
            verdict, reason, data = _tcp(spec)
        case ReadProbe():
            verdict, reason, data = _read(spec)
        case _:
            verdict, reason, data = "unknown", f"no way to run {type(spec).__name__}", {}
    return Sample(
        boottime_ns=began,
        verdict=verdict,
        duration_ns=boottime_ns() - began,
        reason=reason,
        data=data,
    )


def _exec(spec: ExecProbe, gone: threading.Event) -> Result:
    try:
        done = child.run(spec.command, spec.timeout.total_seconds(), gone)
    except OSError as exc:
        return "unknown", f"{spec.command[0]} cannot be run: {exc.strerror}", {}
    if done.code is None:
        if gone.is_set():
            return "unknown", "nobody waits for the result any more", {}
        return "fail", "no result within the time-out", {"timed_out": True}
    data: dict[str, object] = {
        "exit": done.code,
        "stdout": done.out[:MAX_OUTPUT].decode(errors="replace"),
        "stderr": done.err[:MAX_OUTPUT].decode(errors="replace"),
    }
    if done.code:
        last = data["stderr"] or data["stdout"]
        lines = str(last).strip().splitlines()
        return "fail", f"{_status(done.code)}" + (f": {lines[-1]}" if lines else ""), data
    if spec.contains is not None and spec.contains not in done.out.decode(errors="replace"):
        return "fail", f"the output does not contain {spec.contains!r}", data
    return "pass", "", data


def _status(code: int) -> str:
    return f"exit status {code}" if code > 0 else f"killed by signal {-code}"


def _tcp(spec: TcpProbe) -> Result:
    host = spec.host.removeprefix("[").removesuffix("]")
    try:
        with socket.create_connection((host, spec.port), timeout=spec.timeout.total_seconds()) as s:
            return "pass", "", {"peer": s.getpeername()[0]}
    except TimeoutError:
        return "fail", "no answer within the time-out", {"timed_out": True}
    except OSError as exc:
        name = errno.errorcode.get(exc.errno or 0, type(exc).__name__)
        return "fail", f"{name}: {exc.strerror or exc}", {"errno": name}


def _read(spec: ReadProbe) -> Result:
    path = Path(spec.path)
    try:
        info = path.stat()
        size = _size(path, info)
    except OSError as exc:
        return "unknown", f"{spec.path}: {exc.strerror}", {}
    end = size if spec.length is None else min(size, spec.offset + spec.length)
    deadline = time.monotonic() + spec.timeout.total_seconds()
    bad: list[int] = []
    errors: set[str] = set()
    blocks = 0
    for offset in range(spec.offset, end, spec.block):
        if time.monotonic() > deadline:
            return "fail", "not read within the time-out", {"blocks": blocks, "timed_out": True}
        code = _read_block(path, offset, spec.block)
        if code is None:
            return "unknown", "the file cannot be read with O_DIRECT", {}
        blocks += 1
        if code:
            bad.append(offset)
            errors.add(errno.errorcode.get(code, str(code)))
    data: dict[str, object] = {"blocks": blocks, "bad": bad[:MAX_BAD], "bad_blocks": len(bad)}
    if bad:
        return "fail", f"{len(bad)} of {blocks} blocks: {', '.join(sorted(errors))}", data
    if not blocks:
        return "unknown", "there is nothing to read", data
    return "pass", "", data


def _size(path: Path, info: os.stat_result) -> int:
    if not stat.S_ISBLK(info.st_mode):
        return info.st_size
    with path.open("rb") as device:
        return device.seek(0, os.SEEK_END)


def _read_block(path: Path, offset: int, block: int) -> int | None:
    """0, the errno of the read, or None if O_DIRECT is not possible there."""
    try:
        code = direct_read(path, offset, block)
    except OSError:
        return None
    return None if code == errno.EINVAL else code

"""Runs probes on this node: a measured failure is `fail`, what could not be measured `unknown`."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import ValidationError

from nodeagent.backends.disk_checks import direct_read
from nodeagent.clock import boottime_ns
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


def run_probe(probe_json: str, go_on: Callable[[], bool]) -> Iterator[Sample]:
    """Take the samples of a probe until they are all there or `go_on` says no.

    Raises InvalidSpec.
    """
    try:
        spec = parse_probe(json.loads(probe_json))
    except ValidationError as exc:
        raise InvalidSpec("the probe is not valid", explain(exc)) from exc
    except ValueError as exc:
        raise InvalidSpec("the probe is not JSON", str(exc)) from exc
    start = time.monotonic()
    for number in range(spec.count):
        time.sleep(max(0.0, start + number * spec.interval.total_seconds() - time.monotonic()))
        if not go_on():
            return
        yield sample(spec)


def sample(spec: ProbeSpec) -> Sample:
    """One sample."""
    began = boottime_ns()
    match spec:
        case ExecProbe():
            verdict, reason, data = _exec(spec)
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


def _exec(spec: ExecProbe) -> Result:
    try:
        child = subprocess.Popen(
            spec.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as exc:
        return "unknown", f"{spec.command[0]} cannot be run: {exc.strerror}", {}
    try:
        out, err = child.communicate(timeout=spec.timeout.total_seconds())
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        return "fail", "no result within the time-out", {"timed_out": True}
    data: dict[str, object] = {
        "exit": child.returncode,
        "stdout": out[:MAX_OUTPUT].decode(errors="replace"),
        "stderr": err[:MAX_OUTPUT].decode(errors="replace"),
    }
    if child.returncode:
        last = data["stderr"] or data["stdout"]
        lines = str(last).strip().splitlines()
        return "fail", f"exit status {child.returncode}" + (f": {lines[-1]}" if lines else ""), data
    if spec.output is not None and spec.output not in out.decode(errors="replace"):
        return "fail", f"the output does not contain {spec.output!r}", data
    return "pass", "", data


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
    if spec.block <= 0 or spec.block % 512 or spec.offset % spec.block:
        return "unknown", "block must be a multiple of 512B, and offset of block", {}
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

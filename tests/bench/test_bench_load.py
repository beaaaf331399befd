"""The load driver's rate and latencies beside hey's, one after the other against one server.

hey keeps a rate by workers that wait for their answers, so that a slow server slows it down;
the server here is never slow. Both share the machine with the server, and with whatever else
runs on it: processor time a request says what either could do on a machine of its own.
Without hey (Debian: apt install hey) only the driver is measured.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.load.driver import LoadDriver
from controller.load.spec import parse_load
from controller.probes.sampler import RunClock

SERVER = Path(__file__).parents[1] / "unit/controller/load_server.py"
SECONDS = 5
WORKERS = 50
RATES = (100, 300, 600, 1000, 1500)
MS = 10**6


@pytest.fixture
def port() -> Iterator[int]:
    with subprocess.Popen([sys.executable, str(SERVER)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        yield int(child.stdout.readline())
        child.kill()


def quantile(ordered: list[int], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / MS


def children_cpu() -> float:
    """Processor time of children that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ours(port: int, rate: int) -> str:
    spec = parse_load(
        {
            "request": {"type": "http", "host": "127.0.0.1", "port": port, "path": "/fast"},
            "stages": [{"rate": f"{rate}/s", "for": f"{SECONDS}s"}],
            "arrivals": "uniform",
        }
    )
    clock = RunClock(lambda: (time.monotonic_ns(), "x"))
    began = time.process_time()
    result = LoadDriver("web", spec, lambda sample: None, clock).run()
    spent = time.process_time() - began
    tally = result.tally
    assert tally.failed == 0
    assert tally.planned == rate * SECONDS
    assert tally.ok + tally.dropped == tally.planned
    taken = sorted(tally.latencies_ns)
    word = "held" if result.held else f"NOT HELD, as it says: {tally.trouble}"
    cost = f"{spent / tally.planned * 1e6:.0f} µs of CPU a request"
    return f"p50 {quantile(taken, 0.5):.1f} ms, p99 {quantile(taken, 0.99):.1f} ms, {cost}, {word}"


def theirs(port: int, rate: int) -> str:
    hey = shutil.which("hey")
    if hey is None:
        return "not there"
    began = children_cpu()
    words = [hey, "-z", f"{SECONDS}s", "-c", str(WORKERS), "-q", str(rate / WORKERS)]
    out = subprocess.run(
        [*words, f"http://127.0.0.1:{port}/fast"], capture_output=True, text=True, check=True
    ).stdout
    spent = children_cpu() - began
    reached = re.search(r"Requests/sec:\s+([\d.]+)", out)
    found = dict(re.findall(r"(50|99)% in ([\d.]+) secs", out))
    assert reached is not None
    shown = ", ".join(f"p{p} {float(secs) * 1000:.1f} ms" for p, secs in found.items())
    cost = f"{spent / (float(reached[1]) * SECONDS) * 1e6:.0f} µs of CPU a request"
    return f"{shown}, {cost}, {float(reached[1]):.0f}/s reached"


@pytest.mark.timeout(300)
def test_rate_and_latencies_beside_hey(port: int) -> None:
    for rate in RATES:
        print(f"\nload at {rate}/s: driver {ours(port, rate)}; hey {theirs(port, rate)}", end="")

"""A schedule of 10,000 events on 1,000 agents: start error, and what the controller costs.

An event is a start or an end: 5,000 faults. The agents are simulated. `--grpc N` puts them
behind N gRPC servers in a process of their own (the agents share the servers); without it
they live in the controller's process and answer after 5 ms, so that only the controller is
measured. Prints one line of JSON, with what the machine did meanwhile to a process that
only sleeps to set times. Start error: from the planned start to the moment before
the Apply call.

    python tests/bench/bench_schedule.py [--faults 5000] [--agents 1000] [--seconds 60]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "unit" / "controller")]

from run_sim import SimNode, item, plan_of  # noqa: E402
from sim_server import boottime, serve  # noqa: E402

from controller.client import AgentAddress  # noqa: E402
from controller.clock import wall  # noqa: E402
from controller.guards import Watch  # noqa: E402
from controller.recorder import Recorder, read_records  # noqa: E402
from controller.records import FaultArmed, FaultEnded, RunHeader  # noqa: E402
from controller.run import Runner  # noqa: E402
from controller.run_core import Core  # noqa: E402
from controller.run_exec import Effects  # noqa: E402
from controller.run_ports import AgentPort  # noqa: E402
from controller.run_state import Settings  # noqa: E402
from controller.schedule_draw import Stream  # noqa: E402

S = 1_000_000_000
LEAD_S = 6


class SlowNode:
    """A simulated node in this process that needs 5 ms for each change."""

    def __init__(self) -> None:
        self._node = SimNode(boottime)
        self._mutex = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._node, name)

        def locked(*args: Any) -> Any:
            with self._mutex:
                return found(*args)

        return locked

    def clock(self) -> tuple[int, int, int]:
        return boottime(), 0, 0

    def apply(self, *args: Any) -> Any:
        time.sleep(0.005)
        with self._mutex:
            return self._node.apply(*args)

    def revert(self, *args: Any) -> Any:
        time.sleep(0.005)
        with self._mutex:
            return self._node.revert(*args)


def _child(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *words]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def serve_until_told(folder: str, count: int) -> None:
    """`--serve`: so many gRPC servers, until standard input ends."""
    kept = serve(Path(folder), "".join(chr(ord("a") + n) for n in range(count)), 4)
    print("ready", len(kept), flush=True)
    sys.stdin.read()
    os._exit(0)


def wake_up_until_told() -> None:
    """`--wake-up`: what this machine does to a process that only sleeps to set times."""
    found: list[int] = []
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
    due = boottime()
    while not told.is_set():
        due += 10_000_000
        time.sleep(max(due - boottime(), 0) / 1e9)
        found.append(boottime() - due)
        due = max(due, boottime() - 10_000_000)
    print(json.dumps(_quantiles(sorted(found))))


def measure(faults: int, agents: int, seconds: int, servers: int) -> dict[str, Any]:
    """Play it; the numbers."""
    stream = Stream(1, "bench")
    items = []
    for n in range(faults):
        start = stream.below(seconds * 1000) / 1000
        life = 2 + stream.below(8000) / 1000
        items.append(item(f"f{n:05d}", start, start + life, f"n{n % agents:04d}"))
    plan = plan_of(*items, end=seconds + 11)
    with tempfile.TemporaryDirectory() as folder:
        names = sorted({i.node for i in items})
        ports: dict[str, Any] = {name: SlowNode() for name in names}
        with ExitStack() as stack:
            if servers:
                child = stack.enter_context(_child("--serve", folder, "--grpc", str(servers)))
                stack.callback(child.kill)
                child.stdout.readline()  # type: ignore[union-attr]
                for number, name in enumerate(names):
                    url = f"unix://{folder}/{chr(ord('a') + number % servers)}.sock"
                    ports[name] = AgentPort(AgentAddress(url))
            sleeper = stack.enter_context(_child("--wake-up"))
            stack.callback(sleeper.kill)
            found = _play(plan, ports, Path(folder) / "run")
            machine, _ = sleeper.communicate(timeout=30)
            return {**found, "machine_wakeup_ms": json.loads(machine)}


def _play(plan: Any, ports: Any, folder: Path) -> dict[str, Any]:
    origin = boottime() + LEAD_S * S
    header = RunHeader(
        run="bench",
        experiment="bench",
        seed=1,
        noise=False,
        blind=False,
        faultctl="bench",
        created=wall(),
        origin_boottime_ns=origin,
        boot_id="bench",
    )
    with Recorder.create(folder, header, b"", plan) as recorder:
        runners: list[Runner] = []
        core = Core(
            plan,
            Settings("bench", lease_ns=60 * S, late_ns=30 * S),
            lambda record: runners[0].emit(record),
            wall,
        )
        runner = Runner(core, recorder, Watch(core, {}, {}), origin)
        runners.append(runner)
        effects = Effects("bench", ports, runner.now, runner.report)
        before, began = time.process_time(), time.monotonic()
        runner.play(effects, ())
        cpu, took = time.process_time() - before, time.monotonic() - began
        effects.close()
    records = list(read_records(folder, "faults.jsonl"))
    errors = sorted(r.sent_ns - r.start_ns for r in records if isinstance(r, FaultArmed))
    ends = {
        r.fault: r.t_ns - core.states[r.fault].end_ns for r in records if isinstance(r, FaultEnded)
    }
    late_ends = sorted(ends.values())
    return {
        "events": len(errors) + len(ends),
        "faults": len(plan.items),
        "agents": len(ports),
        "start_error_ms": _quantiles(errors),
        "end_confirmed_ms": _quantiles(late_ends),
        "cpu_share_of_one_core": round(cpu / took, 3),
        "max_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "seconds": round(took, 1),
    }


def _quantiles(values: list[int]) -> dict[str, float]:
    return {
        name: round(values[min(len(values) - 1, int(len(values) * q))] / 1e6, 3)
        for name, q in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
    }


def main() -> None:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=5000)
    parser.add_argument("--agents", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--grpc", type=int, default=0, metavar="SERVERS")
    parser.add_argument("--serve", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--wake-up", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve_until_told(args.serve, args.grpc)
    if args.wake_up:
        wake_up_until_told()
        return
    print(json.dumps(measure(args.faults, args.agents, args.seconds, args.grpc)))


if __name__ == "__main__":
    main()

"""A whole run of a retry storm between two processes: judged metastable only when it is."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from retry_storm import __file__ as storm
from run_sim import SimNode
from sim_server import boottime, serve
from test_run_whole import experiment, faultctl, written

from controller.run_state import FaultView


class Trigger(SimNode):
    """Its fault makes the server ten times slower while it is armed."""

    flag: Path

    def apply(self, *args: Any) -> FaultView:
        found = super().apply(*args)
        self.flag.touch()
        return found

    def end(self, name: str, reason: str) -> None:
        self.flag.unlink(missing_ok=True)
        super().end(name, reason)


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("tries", "verdict", "code"), [(12, "pass", 0), (1, "fail", 1)], ids=["storm", "no-retries"]
)
def test_retry_storm_is_judged_right(tmp_path: Path, tries: int, verdict: str, code: int) -> None:
    node = Trigger(boottime)
    node.flag = tmp_path / "slow"
    nodes = serve(tmp_path, "a", nodes={"a": node})
    status = tmp_path / "status"
    port = str(free_port())
    group = {
        "type": "metastable",
        "faults": ["slow"],
        "overload": {"probe": "requests", "hold": "8s", "grace": "5s"},
    }
    probe = {
        "type": "exec",
        "command": ["grep", "-q", "ok", str(status)],
        "interval": "500ms",
        "timeout": "5s",
    }
    data = experiment(
        nodes,
        {"slow": (4, 5, "a")},
        duration="24s",
        groups={"storm": group},
        probes={"requests": probe},
    )
    words = [sys.executable, str(storm)]
    processes = [
        subprocess.Popen([*words, "server", port, str(node.flag)]),
        subprocess.Popen([*words, "client", port, str(tries), str(status)]),
    ]
    try:
        run = faultctl("run", written(tmp_path, data), "-o", "json", cwd=tmp_path)
        out, err = run.communicate(timeout=120)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        nodes["a"].server.stop(0)
    found = json.loads(out)["groups"]["storm"]
    assert found["verdict"] == verdict, (found, err)
    assert run.returncode == code
    assert ("not metastable" in found["why"][0]) == (verdict == "fail")

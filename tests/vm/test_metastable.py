"""A retry storm between two processes on a lab node, set off by a real fault that is taken away:
judged metastable where the clients try again and again, and not where they do not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from agentkit import ROOT, Bench, faultctl

from controller.lab import Node
from controller.recorder import read_records
from controller.records import FaultArmed, FaultEnded

STORM = ROOT / "tests/unit/controller/retry_storm.py"
STATUS = "/run/storm-status"


@contextmanager
def storm(node: Node, tries: int) -> Iterator[None]:
    """The server in a cgroup of its own, and its client outside of it."""
    node.put("/run/retry_storm.py", STORM.read_bytes())
    node.sh(
        f"rm -f {STATUS}; mkdir -p /sys/fs/cgroup/storm; "
        "setsid sh -c 'echo $$ > /sys/fs/cgroup/storm/cgroup.procs; "
        "exec python3 /run/retry_storm.py server 9399 /run/never' >/dev/null 2>&1 & "
        f"setsid python3 /run/retry_storm.py client 9399 {tries} {STATUS} >/dev/null 2>&1 & "
        f"for i in $(seq 100); do grep -qs ok {STATUS} && exit 0; sleep 0.2; done; exit 1",
        timeout=60,
    )
    try:
        yield
    finally:
        node.sh(
            "pkill -KILL -f '[r]etry_storm.py'; "
            "for i in $(seq 50); do rmdir /sys/fs/cgroup/storm && exit 0; sleep 0.1; done; exit 1"
        )


def experiment(bench: Bench) -> dict[str, Any]:
    return {
        "version": 1,
        "name": "retry-storm",
        "duration": "30s",
        "blind": False,
        "nodes": {"a": bench.entry()},
        "targets": {
            "server": {
                "node": "a",
                "service": "server",
                "target": {"type": "cgroup", "cgroup": "/sys/fs/cgroup/storm"},
            }
        },
        "probes": {
            "requests": {
                "type": "exec",
                "node": "a",
                "command": ["grep", "-q", "ok", STATUS],
                "interval": "1s",
                "timeout": "5s",
            }
        },
        "faults": {"stall": {"kind": "pause", "target": "server", "at": "3s", "for": "6s"}},
        "groups": {
            "storm": {
                "type": "metastable",
                "faults": ["stall"],
                "overload": {"probe": "requests", "hold": "8s", "grace": "11s"},
            }
        },
    }


@pytest.mark.vm("debian-13")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("tries", "verdict", "code"), [(12, "pass", 0), (1, "fail", 1)], ids=["storm", "no-retries"]
)
def test_the_overload_goes_on_by_itself_or_it_is_not_metastable(
    vm_node: Node, bench: Bench, tmp_path: Path, tries: int, verdict: str, code: int
) -> None:
    file, folder = tmp_path / "experiment.yaml", tmp_path / "run"
    file.write_text(json.dumps(experiment(bench)))
    with storm(vm_node, tries):
        run = faultctl("run", str(file), "-o", "json", "--folder", str(folder), cwd=tmp_path)
        out, err = run.communicate(timeout=200)
    assert out, err
    found = json.loads(out)["groups"]["storm"]
    print(f"\ntries {tries}: {found}")
    assert found["verdict"] == verdict, (found, err)
    assert run.returncode == code
    assert ("not metastable" in found["why"][0]) == (verdict == "fail")
    records = list(read_records(folder, "faults.jsonl"))
    assert [r.mechanism for r in records if isinstance(r, FaultArmed)] == ["cgroup-freezer"]
    assert [r.reason for r in records if isinstance(r, FaultEnded)] == ["reverted"]
    assert bench.residue() == []

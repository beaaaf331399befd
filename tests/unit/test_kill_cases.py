"""The kill matrix knows every rung of every kind, and every flavour has its say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from nodeagent.faults import kinds
from nodeagent.model.plan import FaultRequest
from nodeagent.model.planner import parse_request

sys.path.insert(0, str(Path(__file__).parent.parent / "vm"))
import kill_cases as table


def test_every_rung_of_every_kind_is_killed() -> None:
    """A new kind or rung: add a Case to tests/vm/kill_cases.py."""
    due = [
        kind for name, kind in kinds().items() if name not in table.WAITING and not kind.preset_of
    ]
    wanted = {f"{kind.name}/{rung.name}" for kind in due for rung in kind.ladder}
    assert wanted == {case.name for case in table.CASES}


@pytest.mark.parametrize("case", table.CASES, ids=lambda case: case.name)
def test_what_is_asked_for_is_valid(case: table.Case) -> None:
    assert "full" in case.on or case.systemd or case.kind in ("reboot", "panic")
    kind = kinds()[case.kind]
    targets: dict[str, dict[str, object]] = {
        "file": {"type": "file", "file": "/x"},
        "process": {"type": "pid", "pid": 1},
        "cgroup": {"type": "cgroup", "cgroup": "/kill"},
        "kubelet": {"type": "node"},
        "fs": {"type": "volume", "volume": "/mnt/data"},
        "netns": {"type": "netns", "netns": "/run/netns/kill"},
        "node": {"type": "node"},
        "unit": {"type": "unit", "unit": "kill"},
    }
    target = targets.get(case.target, {"type": "device", "device": "/dev/mapper/x"})
    asked = FaultRequest(id="k-1", kind=case.kind, target=target, spec=case.spec)
    parse_request(kind, asked)

"""The block-layer programs in lab nodes; dd, dmsetup, losetup and bpftool are the witnesses.

All checks of one guest script run in one boot of each flavour; here each is a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.lab.config import NodeConfig
from controller.lab.launcher import launch, unique

HERE = Path(__file__).parent
# Script -> the flavours whose kernels can run it.
SCRIPTS = {
    "guest_bio_trace.py": ("debian-12", "debian-13", "full"),
    "guest_bio_fail.py": ("full",),
    "guest_bio_fail_sets.py": ("full",),
}
_ran: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}


def checks(script: str) -> list[str]:
    source = (HERE / script).read_text()
    return [rest.split("def ")[1].split("(")[0] for rest in source.split("@check\n")[1:]]


def cases() -> list[Any]:
    return [
        pytest.param(flavour, script, name, marks=pytest.mark.vm(flavour), id=f"{flavour}-{name}")
        for script, flavours in SCRIPTS.items()
        for flavour in flavours
        for name in checks(script)
    ]


def results(flavour: str, script: str) -> dict[str, dict[str, Any]]:
    """One boot a flavour and script, all its checks in it."""
    if (flavour, script) not in _ran:
        with launch(unique(NodeConfig(flavour=flavour))) as node:
            for name in ("guest_bio.py", script):
                node.put(f"/tmp/{name}", (HERE / name).read_bytes())
            done = node.run(["python3", f"/tmp/{script}"], timeout=200, check=False)
        lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
        _ran[flavour, script] = {line["check"]: line for line in lines}
        assert "all" in _ran[flavour, script], f"it did not end: {done.how}\n{done.err}"
    return _ran[flavour, script]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("flavour", "script", "name"), cases())
def test_in_guest(flavour: str, script: str, name: str) -> None:
    found = results(flavour, script)[name]
    assert found["ok"], found["detail"]

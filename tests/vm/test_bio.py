"""The block-layer programs in lab nodes; dd, dmsetup, losetup and bpftool are the witnesses.

All checks of one guest script run in one boot of each flavour; here each is a test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.lab import Node, NodeConfig, launch, unique

HERE = Path(__file__).parent
# Script -> the flavours whose kernels can run it.
SCRIPTS = {
    "guest_bio_trace.py": ("debian-12", "debian-13", "full"),
    "guest_bio_refusals.py": ("debian-12", "debian-13", "full"),
    "guest_bio_fail.py": ("full",),
    "guest_bio_fail_sets.py": ("full",),
}
Results = dict[str, dict[str, Any]]
_ran: dict[str, dict[str, Results]] = {}


def checks(script: str) -> list[str]:
    source = (HERE / script).read_text()
    return [rest.split("def ")[1].split("(")[0] for rest in source.split("@check\n")[1:]]


def cases() -> list[Any]:
    """By flavour, so that each is booted once."""
    return [
        pytest.param(flavour, script, name, marks=pytest.mark.vm(flavour), id=f"{flavour}-{name}")
        for flavour in ("debian-12", "debian-13", "full")
        for script, flavours in SCRIPTS.items()
        for name in checks(script)
        if flavour in flavours
    ]


def run(node: Node, script: str) -> Results:
    node.put(f"/tmp/{script}", (HERE / script).read_bytes())
    done = node.run(["python3", f"/tmp/{script}"], timeout=200, check=False)
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    found = {line["check"]: line for line in lines}
    assert "all" in found, f"{script} did not end: {done.how}\n{done.err}"
    return found


def results(flavour: str, script: str) -> Results:
    """One boot a flavour, with all scripts in it."""
    if flavour not in _ran:
        mine = _ran[flavour] = {}
        with launch(unique(NodeConfig(flavour=flavour))) as node:
            node.put("/tmp/guest_bio.py", (HERE / "guest_bio.py").read_bytes())
            for name in (name for name, flavours in SCRIPTS.items() if flavour in flavours):
                mine[name] = run(node, name)
    return _ran[flavour][script]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("flavour", "script", "name"), cases())
def test_in_guest(flavour: str, script: str, name: str) -> None:
    found = results(flavour, script)[name]
    assert found["ok"], found["detail"]

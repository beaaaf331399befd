"""Disk targets in lab nodes: filefrag, mincore, sfdisk, LVM and O_DIRECT reads are the witnesses.

All checks of guest_bind_*.py run in one boot of each flavour; here each becomes a test
of its own, and which of them a flavour cannot run is asserted too.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from controller.lab.config import NodeConfig
from controller.lab.launcher import launch, unique

GUEST = sorted(Path(__file__).parent.glob("guest_bind_*.py"))
CHECKS = [name for file in GUEST for name in re.findall(r"@check\ndef (\w+)", file.read_text())]
FLAVOURS = ["debian-12", "debian-13", "full"]
# No skip but these.
SKIPS: dict[str, dict[str, str]] = {
    "debian-12": {},
    "debian-13": {},
    "full": {
        "real_time_files_are_refused": "kernel without CONFIG_XFS_RT",
    },
}
# cachestat(2) is new in Linux 6.5.
# Pages that an RWF_NOWAIT read of an uncached page brings in.
NOWAIT = {"debian-12": "0", "debian-13": "1", "full": "1"}
METHOD = {"debian-12": "mincore", "debian-13": "cachestat", "full": "cachestat"}
_ran: dict[str, dict[str, dict[str, Any]]] = {}


def results(flavour: str) -> dict[str, dict[str, Any]]:
    """One boot a flavour, all checks in it."""
    if flavour not in _ran:
        with launch(unique(NodeConfig(flavour=flavour))) as node:
            for file in GUEST:
                node.put(f"/tmp/{file.name}", file.read_bytes())
            argv = ["python3", "/tmp/guest_bind_block.py"]
            done = node.run(argv, timeout=180, check=False)
        lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
        _ran[flavour] = {line["check"]: line for line in lines}
        assert "end" in _ran[flavour], f"it did not end: {done.how}\n{done.err}"
    return _ran[flavour]


def flavoured(flavour: str) -> Any:
    return pytest.param(flavour, marks=pytest.mark.vm(flavour), id=flavour)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", CHECKS)
@pytest.mark.parametrize("flavour", [flavoured(one) for one in FLAVOURS])
def test_in_guest(flavour: str, name: str) -> None:
    found = results(flavour)[name]
    assert found["ok"], found["detail"]
    assert found.get("skip") == SKIPS[flavour].get(name)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", [flavoured(one) for one in FLAVOURS])
def test_flavours_differ_as_expected(flavour: str) -> None:
    found = results(flavour)
    assert set(found) == {*CHECKS, "end"}
    assert found["cache_of_ext4"]["detail"].startswith(METHOD[flavour])
    came = found["nowait_reads_fill_the_cache"]["detail"]
    assert came == f"{NOWAIT[flavour]} pages came in"

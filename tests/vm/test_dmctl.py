"""The device-mapper library in lab nodes; dmsetup, dd, fio and fsck are the witnesses.

All checks of guest_dmctl.py run in one boot of each flavour; here each becomes a
test of its own, and the flavours' differences are asserted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.lab.config import NodeConfig
from controller.lab.launcher import launch, unique

GUEST = Path(__file__).with_name("guest_dmctl.py")
CHECKS = [lines.split("def ")[1].split("(")[0] for lines in GUEST.read_text().split("@check\n")[1:]]
FLAVOURS = ["debian-12", "debian-13", "full"]
# What the kernels differ in, seen in the lab: dm-flakey is 1.5.0 on all of them.
NEWER_FLAKEY = ["error_reads", "random_read_corrupt", "random_write_corrupt"]
FLAKEY = {"debian-12": [], "debian-13": NEWER_FLAKEY, "full": NEWER_FLAKEY}
PLAIN_FLAKEY = {
    "debian-12": "7:0 0 5 1 0",
    "debian-13": "7:0 0 5 1 2 error_reads error_writes",
    "full": "7:0 0 5 1 2 error_reads error_writes",
}
_ran: dict[str, dict[str, dict[str, Any]]] = {}


def results(flavour: str) -> dict[str, dict[str, Any]]:
    """One boot a flavour, all checks in it."""
    if flavour not in _ran:
        with launch(unique(NodeConfig(flavour=flavour))) as node:
            node.put("/tmp/guest_dmctl.py", GUEST.read_bytes())
            done = node.run(["python3", "/tmp/guest_dmctl.py"], timeout=120, check=False)
        lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
        _ran[flavour] = {line["check"]: line for line in lines}
        assert "all" in _ran[flavour], f"it did not end: {done.how}\n{done.err}"
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


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("flavour", [flavoured(one) for one in FLAVOURS])
def test_flavours_differ_as_expected(flavour: str) -> None:
    found = results(flavour)
    assert found["all"]["detail"] == len(CHECKS)
    interface = found["interface"]["detail"]
    assert interface["flakey"] == FLAKEY[flavour]
    assert interface["targets"]["flakey"] == [1, 5, 0]
    printed = found["golden_round_trip"]["detail"]
    assert printed["flakey"] == PLAIN_FLAKEY[flavour]
    assert ("dust" in printed) == (flavour == "full")
    assert (found["dust_messages"]["detail"] == "no dm-dust here") == (flavour != "full")

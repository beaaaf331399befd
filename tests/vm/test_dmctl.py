"""The device-mapper library in lab nodes; dmsetup, dd, fio and fsck are the witnesses.

All checks of guest_dmctl.py run in one boot of each flavour; here each becomes a
test of its own, and the flavours' differences are asserted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.lab import Node

GUEST = Path(__file__).with_name("guest_dmctl.py")
CHECKS = [lines.split("def ")[1].split("(")[0] for lines in GUEST.read_text().split("@check\n")[1:]]
# What the kernels differ in, seen in the lab: dm-flakey is 1.5.0 on all of them.
NEWER_FLAKEY = ["error_reads", "random_read_corrupt", "random_write_corrupt"]
FLAKEY = {"debian-12": [], "debian-13": NEWER_FLAKEY, "full": NEWER_FLAKEY}
PLAIN_FLAKEY = {  # behind the device: offset, up, down, feature count, features
    "debian-12": "0 5 1 0",
    "debian-13": "0 5 1 2 error_reads error_writes",
    "full": "0 5 1 2 error_reads error_writes",
}
_ran: dict[str, dict[str, dict[str, Any]]] = {}

pytestmark = [pytest.mark.slow, pytest.mark.vm("debian-12", "debian-13", "full")]


def results(node: Node) -> dict[str, dict[str, Any]]:
    """All checks in one run a flavour."""
    flavour = node.config.flavour
    if flavour not in _ran:
        node.put("/tmp/guest_dmctl.py", GUEST.read_bytes())
        done = node.run(["python3", "/tmp/guest_dmctl.py"], timeout=120, check=False)
        lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
        _ran[flavour] = {line["check"]: line for line in lines}
        assert "all" in _ran[flavour], f"it did not end: {done.how}\n{done.err}"
    return _ran[flavour]


@pytest.mark.parametrize("name", CHECKS)
def test_in_guest(vm_node: Node, name: str) -> None:
    found = results(vm_node)[name]
    assert found["ok"], found["detail"]


def test_flavours_differ_as_expected(vm_node: Node) -> None:
    flavour = vm_node.config.flavour
    found = results(vm_node)
    assert found["all"]["detail"] == len(CHECKS)
    interface = found["interface"]["detail"]
    assert interface["flakey"] == FLAKEY[flavour]
    assert interface["targets"]["flakey"] == [1, 5, 0]
    printed = found["golden_round_trip"]["detail"]
    assert printed["flakey"].split(" ", 1)[1] == PLAIN_FLAKEY[flavour]
    assert ("dust" in printed) == (flavour == "full")
    assert (found["dust_messages"]["detail"] == "no dm-dust here") == (flavour != "full")

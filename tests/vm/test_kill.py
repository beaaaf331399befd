"""SIGKILL of the agent at every step of inject, revert and heal of every mechanism.

The matrix (kill_cases.py) runs inside one boot of a flavour by guest_kill.py; each case is a
test here, and a run of its own, so that some can be chosen by `-k`. A place is tried with the
guardian alone or with the next agent's start alone to bring the node back, in turns.
FAULTCTL_KILL says how many places: `some` (the default: all of one mechanism, and each
EVERY-th of the others), `all`, or `both` (all, both ways). Deaths of other sorts are
guest_kill_scenes.py's. What comes back is judged by the node's fingerprint, byte for byte
(docs/fingerprint.md).
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kill_cases import CASES, Case, is_tried

from controller.lab import Disk, Node, NodeConfig

HERE = Path(__file__).parent
FILES = ("kill_cases", *sorted(path.stem for path in HERE.glob("guest_kill*.py")))
SCENES = [
    lines.split("def ")[1].split("(")[0]
    for lines in (HERE / "guest_kill_scenes.py").read_text().split("@scene\n")[1:]
]
FLAVOURS = ("debian-12", "debian-13", "full")
MANY = 40
MODE = os.environ.get("FAULTCTL_KILL", "some")
EVERY = 4 if MODE == "some" else 1
HOW = {"some": ["--every", str(EVERY)], "all": [], "both": ["--both"]}
CLEAN_MS = 2000.0
"""From SIGKILL to the last step read back, on an idle native machine."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5400), pytest.mark.vm(*FLAVOURS)]
_ran: dict[tuple[str, str], list[dict[str, Any]]] = {}


def results(node: Node, script: str, *arguments: str, key: str = "") -> list[dict[str, Any]]:
    """All lines of a guest script, run once a flavour and `key`."""
    found = (node.config.flavour, key or script)
    if found not in _ran:
        node.push_code()
        for name in FILES:
            node.put(f"/tmp/{name}.py", (HERE / f"{name}.py").read_bytes())
        argv = ["python3", f"/tmp/{script}.py", *arguments]
        done = node.run(argv, timeout=900, check=False)
        _ran[found] = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
        if not done.ok:
            _ran[found].append({"case": "broken", "why": f"{done.how}\n{done.err[-4000:]}"})
    return _ran[found]


def matrix(node: Node, case: Case) -> list[dict[str, Any]]:
    return results(node, "guest_kill", *HOW[MODE], case.name, key=case.name)


def objection(line: dict[str, Any]) -> str:
    """Why a result is not good; empty when it is."""
    reasons = ("agent-lost", "reverted", "remedied")
    bad = [
        "it was not killed" if not line["killed"] else "",
        f"the node differs: {line['differs']}" if line["differs"] else "",
        f"{line['active']} faults are still active" if line["active"] else "",
        f"{line['failed']}" if line.get("failed") else "",
        f"its error is {line['error']}" if line.get("error") else "",
        "the guardian did not end" if line.get("guardian_ended") is False else "",
    ]
    if line["state"] not in ("ended", "none"):
        bad.append(f"its state is {line['state']}")
    if line["state"] == "none" and line["place"] != "journal.begin:before":
        bad.append("the kernel was touched and the journal knows nothing")
    if line["state"] == "ended" and line["reason"] not in reasons:
        bad.append(f"it ended as {line['reason']}")
    return "; ".join(text for text in bad if text)


def judge(case: Case, lines: list[dict[str, Any]], why: str) -> None:
    """Runs that nobody killed end clean; every place that is due was tried, and came back."""
    whole = {line["phase"]: line for line in lines if line.get("at") == 0}
    for line in whole.values():
        assert not line["differs"], line
        assert line["active"] == 0, line
    killed = [line for line in lines if line.get("at")]
    wrong = [f"{x['phase']} {x['at']} {x['place']} by {x['by']}: {objection(x)}"
             for x in killed if objection(x)]  # fmt: skip
    assert not wrong, "\n".join(wrong)
    assert set(whole) == {"inject", "revert", *(["heal"] if case.heals else [])}, why
    for phase, line in whole.items():
        tried = {x["at"] for x in killed if x["phase"] == phase}
        every = range(1, line["places"] + 1)
        assert tried == {at for at in every if is_tried(case, at, EVERY)}, phase


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_killed_at_every_step(vm_node: Node, case: Case) -> None:
    found = matrix(vm_node, case)
    lines = [line for line in found if line["case"] == case.name]
    why = str(found[-1].get("why", lines))
    if vm_node.config.flavour not in case.on:
        assert [line for line in lines if line.get("refused")], why
        return
    judge(case, lines, why)
    assert lines[-1] == {"case": case.name, "phase": "witness", "same": True}


def test_the_guardian_is_quick(vm_node: Node) -> None:
    """Within 2 s on an idle native machine; here stretched by what the guest is slower.

    Of all cases that ran before, and of the first one in any case.
    """
    matrix(vm_node, CASES[0] if vm_node.config.flavour in CASES[0].on else CASES[2])
    flavour = vm_node.config.flavour
    lines = [x for (on, _), found in _ran.items() if on == flavour for x in found]
    times = [line["clean_ms"] for line in lines if line.get("clean_ms")]
    places = sum(1 for line in lines if line.get("at"))
    print(f"\n{vm_node.config.flavour}: {places} deaths, {len(times)} by the guardian: "
          f"p50 {statistics.median(times):.0f} ms, max {max(times):.0f} ms")  # fmt: skip
    assert max(times) < CLEAN_MS * vm_node.pace.stretch(1.0)


@pytest.mark.vm("debian-13", "full")
@pytest.mark.parametrize("name", SCENES)
def test_scene(vm_node: Node, name: str) -> None:
    lines = results(vm_node, "guest_kill_scenes", *SCENES)
    found = [line for line in lines if line.get("scene") == name]
    assert found, lines[-1]
    assert found[0]["ok"], found[0]["detail"]


@pytest.mark.vm("debian-13")
def test_with_udev_looking_into_our_devices(fresh_node: Callable[[NodeConfig], Node]) -> None:
    """udev and blkid open every new device, private ones too if they are not told not to."""
    node = fresh_node(NodeConfig(udev=True, disks=(Disk("d0", 1 << 30), Disk("d1", 1 << 28))))
    name = "latent-sector/dm-delay"
    lines = results(node, "guest_kill", name, key="udev")
    killed = [line for line in lines if line.get("at")]
    assert lines[-1] == {"case": "all", "ended": True}, lines[-1]
    assert len(killed) > MANY
    assert [f"{x['at']} {x['place']}: {objection(x)}" for x in killed if objection(x)] == []


@pytest.mark.vm("debian-13")
def test_with_systemd_as_process_1(fresh_node: Callable[[NodeConfig], Node]) -> None:
    """Kinds that only systemd's nodes have; the fingerprint has the states of all units."""
    disks = (Disk("d0", 1 << 30), Disk("d1", 1 << 28))
    node = fresh_node(NodeConfig(init="systemd", disks=disks))
    due = [case for case in CASES if case.systemd]
    lines = results(node, "guest_kill", *HOW[MODE], *(case.name for case in due), key="systemd")
    assert lines[-1] == {"case": "all", "ended": True}, lines[-1]
    for case in due:
        judge(case, [line for line in lines if line["case"] == case.name], str(lines))

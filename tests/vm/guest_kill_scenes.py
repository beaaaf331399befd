"""Runs inside a lab node as root: deaths that the kill matrix does not have. See SCENES.

    python3 guest_kill_scenes.py [SCENE...]

Prints one JSON line a scene: {"scene", "ok", "detail"}.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import guest_kill_faults as gf
import guest_kill_kit as kit
from guest_kill_faults import Say, tell
from guest_kill_scene_kit import (
    SCENES,
    Idle,
    clean,
    ended,
    ident,
    idle_agent,
    kill_both,
    scene,
    wait_for,
)
from kill_cases import case

from nodeagent import agent as agent_module
from nodeagent import crashpoint, facts
from nodeagent.agent import Agent
from nodeagent.model.plan import Lease

SPLIT = case("disk-outage/dm-delay")
BPF = case("syscall/bpf-lsm")
SLOW = case("disk-delay/dm-delay")
FLAKY = case("disk-flaky/dm-flakey")
PLACES = Path("/run/places")
MAX_POINTS = 80


# --- agents that hang -------------------------------------------------------------


@scene
def hung_agent_loses_its_device_mapper_fault() -> object:
    """SIGSTOP past the lease: the guardian takes the tables back, and leaves the agent alive."""
    before = gf.witness()
    fault = ident()
    child = kit.agent(gf.hold(SPLIT, fault, "1s"))
    child.hear("armed")
    child.kill(signal.SIGSTOP)
    assert gf.witness() != before
    took = wait_for(lambda: gf.journal(fault)["state"] == "ended")
    ended(fault, "expired")
    assert gf.witness() == before
    child.kill()
    child.join()
    assert clean() >= 0
    return took


@scene
def hung_agent_with_a_bpf_fault_is_killed() -> object:
    """What dies only with the agent: the guardian ends it."""
    fault = ident()
    child = kit.agent(gf.hold(BPF, fault, "1s"))
    assert child.hear("armed"), child.heard
    child.kill(signal.SIGSTOP)
    child.join()
    assert child.killed
    clean()
    ended(fault, "agent-lost", "expired")
    return round((gf.journal(fault)["ended"] - child.died_ns) / 1e6, 1)


@scene
def hung_in_mid_swap_with_the_lock_held() -> object:
    """SIGSTOP between load and resume: the guardian cannot have the lock until it kills."""
    fault = ident()

    def script(agent: Agent, say: Say) -> None:
        asked = gf.request(SLOW, fault)
        digest = agent.plan(asked).digest
        places = [line.split(" ", 1)[1] for line in PLACES.read_text().splitlines()]
        at = places.index("dm:TABLE_LOAD") + 1
        crashpoint.arm(at, "", signal.SIGSTOP)
        say("ready")
        agent.apply(asked, Lease.model_validate({"duration": "1s"}), digest)

    PLACES.unlink(missing_ok=True)
    gf.end_quietly(kit.agent(gf.inject(SLOW, ident(), 0, str(PLACES))))
    child = kit.agent(script)
    child.hear("ready")
    started = time.monotonic()
    child.join()
    took = round(time.monotonic() - started, 1)
    assert child.killed
    clean()
    ended(fault, "agent-lost", "expired")
    return took


@scene
def successor_waits_for_a_hung_agent() -> object:
    """Two agents never work on one node: the second is refused, and nothing changes."""
    fault = ident()
    child = kit.agent(gf.hold(SPLIT, fault))
    child.hear("armed")
    child.kill(signal.SIGSTOP)
    armed = gf.witness()
    second = kit.agent(lambda agent, say: None)
    assert second.hear("started") is None
    assert "another agent" in second.heard[-1]["error"], second.heard
    assert gf.witness() == armed
    assert gf.journal(fault)["state"] == "armed"
    child.kill()
    child.join()
    clean()
    ended(fault, "agent-lost")
    idle_agent()
    return second.heard[-1]["error"]


# --- guardians that die -----------------------------------------------------------


@scene
def a_killed_guardian_is_replaced() -> object:
    fault = ident()

    def script(agent: Agent, say: Say) -> None:
        gf.arm(agent, SPLIT, fault)
        first = agent.ward.pid
        say("armed")
        while agent.ward.pid in (None, first):
            time.sleep(0.02)
        time.sleep(1)
        say("replaced", guardian=agent.ward.pid)
        time.sleep(3600)

    child = kit.agent(script)
    child.hear("armed")
    os.kill(gf.guardian_of(child), signal.SIGKILL)
    assert child.hear("replaced") is not None
    assert gf.journal(fault)["state"] == "armed"
    child.kill()
    child.join()
    clean()
    ended(fault, "agent-lost")
    return child.heard[-1]


@scene
def guardian_killed_at_every_step_of_its_clean_up() -> object:
    """The next agent's start ends what the guardian had begun."""
    for at in range(1, MAX_POINTS):
        fault = ident()
        kit.guardian_at = at
        child = kit.agent(gf.hold(SPLIT, fault))
        child.hear("armed")
        guardian = os.pidfd_open(gf.guardian_of(child))
        child.kill()
        child.join()
        assert kit.wait_end(guardian)
        kit.guardian_at = 0
        survived = gf.journal(fault)["state"] == "ended"
        idle_agent()
        clean()
        ended(fault, "agent-lost")
        if survived:
            return at
    raise AssertionError("it never survived")


# --- starts that are killed -------------------------------------------------------


@scene
def recovery_killed_at_every_step() -> object:
    """The agent that takes back what another left is killed too: its guardian goes on."""
    for at in range(1, MAX_POINTS):
        fault = ident()
        child = kit.agent(gf.hold(SPLIT, fault))
        child.hear("armed")
        kill_both(child)
        second = kit.agent(lambda agent, say: None, start_at=at)
        second.hear("closed")
        second.join()
        clean()
        ended(fault, "agent-lost")
        if not second.killed:
            return at
    raise AssertionError("it never survived")


@scene
def start_killed_at_every_probe() -> object:
    """Probe devices are made when an agent starts; none is left."""
    known = agent_module.read_facts
    agent_module.read_facts = facts.read_facts
    try:
        for at in range(1, MAX_POINTS):
            child = kit.agent(lambda agent, say: None, start_at=at)
            child.hear("closed")
            child.join()
            clean()
            if not child.killed:
                return at
    finally:
        agent_module.read_facts = known
    raise AssertionError("it never survived")


# --- any moment -------------------------------------------------------------------


@scene
def killed_at_random_moments_with_two_faults() -> object:
    """Not between our calls but anywhere, SQLite's and the kernel's work included."""
    draw = random.Random(20)  # noqa: S311
    times: list[float] = []

    def script(agent: Agent, say: Say) -> None:
        say("ready")
        while True:
            began = time.monotonic()
            one, two = ident(), ident()
            gf.arm(agent, SPLIT, one)
            gf.arm(agent, FLAKY, two)
            agent.revert(one)
            agent.revert(two)
            say("round", seconds=time.monotonic() - began)

    first = kit.agent(script)
    told = first.hear("round")
    assert told is not None, first.heard
    length = float(told["seconds"])
    first.kill()
    first.join()
    clean()
    for round_ in range(12):
        child = kit.agent(script)
        child.hear("ready")
        time.sleep(draw.uniform(0, 2 * length))
        if round_ % 2:
            kill_both(child)
            idle_agent()
        else:
            child.kill()
            child.join()
        assert child.killed, child.heard
        times.append(clean())
    return {"length": round(length, 2), "clean_s": times}


def main() -> None:
    names = sys.argv[1:] or list(SCENES)
    kit.prepare()
    gf.set_up()
    idle_agent()
    Idle.text = gf.now()
    for name in names:
        begun = time.monotonic()
        kit.with_bpf = "bpf" in name
        try:
            detail, ok = SCENES[name](), True
        except Exception:  # noqa: BLE001 - each scene reports for itself
            detail, ok = traceback.format_exc(), False
        tell(scene=name, ok=ok, detail=detail, seconds=round(time.monotonic() - begun, 1))
    gf.tear_down()
    tell(scene="all", ok=True, detail=len(names))


if __name__ == "__main__":
    main()

"""Runs inside a lab node as root: the kill matrix of some cases of kill_cases.py.

    python3 guest_kill.py [--both] [--every N] CASE...

For each case, the places (crash points) that inject, revert and heal pass are listed by a
run that nobody kills. Then the agent is killed at each of them: with its guardian alive,
which alone must bring the node back; or with the guardian killed too, so that the start of
the next agent must. These take turns, and what only counts hits by BPF goes without; with
--both each place is tried both ways, counters and all. With --every N only each N-th place
of a case is tried, others for other cases. Prints one JSON line a result; the host judges.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any, NamedTuple

import guest_kill_faults as gf
import guest_kill_kit as kit
from guest_kill_faults import PHASES, Say, tell
from guest_kill_kit import Child
from kill_cases import Case, case, is_tried

from nodeagent.agent import Agent
from nodeagent.model.errors import Refused

PLACES = Path("/run/places")
GUARDIAN_S = 40.0


def check(clean: bool) -> None:
    """What is left would spoil all that comes after."""
    if not clean:
        raise AssertionError("the node is not clean: the matrix ends here")


class Killed(NamedTuple):
    """A fault that agent and guardian left: the next agent must take it back."""

    ident: str
    told: dict[str, Any]


SERIAL = itertools.count(1)
"""One for all cases: the journal keeps the ids of every fault."""


class Matrix:
    """One case on this node. idle, running: fingerprints without and with an idle agent."""

    def __init__(self, chosen: Case, both: bool, every: int) -> None:
        self.case = chosen
        self.both = both
        self.every = every
        kit.with_bpf = both or chosen.heals or chosen.mechanism.startswith(("bpf", "tc-"))
        self.left: Killed | None = None
        self.idle = gf.now()
        self.running = ""

    def run(self) -> None:
        """All phases; a plan that is refused is told instead."""
        refusal = self._refused()
        if refusal is not None:
            tell(case=self.case.name, refused=refusal)
            return
        before = gf.witness()
        for phase in PHASES:
            if phase != "heal" or self.case.heals:
                self._phase(phase)
        gf.end_quietly(self._agent(lambda agent, say: None))
        tell(case=self.case.name, phase="witness", same=gf.witness() == before)

    def _agent(self, script: gf.Script) -> Child:
        """Start an agent; what was left is taken back by then, and is judged."""
        left = self.left
        ident = left.ident if left else ""

        def whole(agent: Agent, say: Say) -> None:
            say("row", **gf.row_of(agent, ident))
            os.read(gate, 1)
            script(agent, say)

        gate, go = os.pipe()
        child = kit.agent(whole)
        os.close(gate)
        row = child.hear("row")
        assert row is not None, child.heard
        if not self.running:
            self.running = gf.now()
        if left is not None:
            seconds, differs = gf.settled(self.running)
            failed = child.heard[0]["failed"]
            known = {name: value for name, value in row.items() if name != "say"}
            tell(**left.told, failed=failed, settle_s=seconds, differs=differs, **known)
            check(not failed and not differs)
            self.left = None
        os.write(go, b"x")
        os.close(go)
        return child

    def _refused(self) -> str | None:
        def script(agent: Agent, say: Say) -> None:
            try:
                agent.plan(gf.request(self.case, "k-plan"))
            except Refused as exc:
                say("refused", why=str(exc))

        child = self._agent(script)
        gf.end_quietly(child)
        return next((said["why"] for said in child.heard if said["say"] == "refused"), None)

    def _phase(self, phase: str) -> None:
        turn = itertools.cycle((True, False))
        for at, place in enumerate(self._places(phase), 1):
            if not is_tried(self.case, at, self.every):
                continue
            told = {"case": self.case.name, "phase": phase, "at": at, "place": place}
            guarded = next(turn)
            if self.both or guarded:
                self._with_guardian(phase, at, told)
            if self.both or not guarded:
                self._without(phase, at, told)

    def _ident(self, phase: str) -> str:
        return f"k-{phase}-{next(SERIAL)}-{os.getpid()}"

    def _places(self, phase: str) -> list[str]:
        """Where a run that nobody kills passes; it must end clean as well."""
        PLACES.unlink(missing_ok=True)
        ident = self._ident(phase)
        child = self._agent(PHASES[phase](self.case, ident, 0, str(PLACES)))
        self._drive(child, phase)
        gf.end_quietly(child)
        _, differs = gf.settled(self.idle)
        places = [line.split(" ", 1)[1] for line in PLACES.read_text().splitlines()]
        told = {"places": len(places), "differs": differs, **gf.journal(ident)}
        tell(case=self.case.name, phase=phase, at=0, **told)
        return places

    @staticmethod
    def _drive(child: Child, phase: str) -> None:
        if child.hear("ready") and phase == "heal":
            gf.write_blocks()
        child.hear("closed")
        child.join()

    def _with_guardian(self, phase: str, at: int, told: dict[str, Any]) -> None:
        ident = self._ident(phase)
        child = self._agent(PHASES[phase](self.case, ident, at))
        guardian = os.pidfd_open(gf.guardian_of(child))
        self._drive(child, phase)
        ended = kit.wait_end(guardian, GUARDIAN_S)
        seconds, differs = gf.settled(self.idle)
        row = gf.journal(ident)
        at_ns = row.pop("ended", None)
        clean = round((at_ns - child.died_ns) / 1e6, 1) if at_ns else None
        judged = {"guardian_ended": ended, "clean_ms": clean, "settle_s": seconds}
        tell(**told, by="guardian", killed=child.killed, differs=differs, **judged, **row)
        check(ended and not differs)

    def _without(self, phase: str, at: int, told: dict[str, Any]) -> None:
        ident = self._ident(phase)
        child = self._agent(PHASES[phase](self.case, ident, at))
        pid = gf.guardian_of(child)
        os.kill(pid, signal.SIGSTOP)  # so that both are killed as if at once
        guardian = os.pidfd_open(pid)
        self._drive(child, phase)
        os.kill(pid, signal.SIGKILL)
        kit.wait_end(guardian)
        self.left = Killed(ident, {**told, "by": "successor", "killed": child.killed})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--both", action="store_true")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("cases", nargs="+")
    args = parser.parse_args()
    kit.prepare()
    gf.set_up()
    gf.end_quietly(kit.agent(lambda agent, say: None))  # makes the state directory
    try:
        for name in args.cases:
            begun = time.monotonic()
            Matrix(case(name), args.both, args.every).run()
            gf.trace(f"{name} {time.monotonic() - begun:.1f} s")
    finally:
        gf.tear_down()
    tell(case="all", ended=True)


if __name__ == "__main__":
    main()

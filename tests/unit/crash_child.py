"""Runs scenarios in forked children that kill themselves at their N-th crashpoint.

Reads JSON lines from standard input and answers each with one line. Started once for all
crash tests, since a fork is a hundred times cheaper than a new interpreter; it has no
threads of its own, so that a fork is safe.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import core_kit
from core_kit import AddPart, Core, FakeKernel, HoldLink, Look, SetOnDisk, SetValue

from nodeagent import crashpoint, revert
from nodeagent.model.record import EndReason

Scenario = Callable[[Core], None]

ONE = (
    SetValue(name="a", value="x"),
    HoldLink(name="l"),
    AddPart(name="b", part=1),
    AddPart(name="b", part=4),
    SetOnDisk(name="disk", value="y"),
    Look(name="a"),
)


def apply_and_revert(core: Core) -> None:
    core.apply("one", *ONE)
    core.executor.revert("one")


def overlapping(core: Core) -> None:
    """Three faults compose on one object; they leave it in another order than they came."""
    core.apply("one", AddPart(name="b", part=1), SetValue(name="a", value="x"))
    core.apply("two", AddPart(name="b", part=2), HoldLink(name="l"))
    core.executor.revert("one")
    core.apply("three", AddPart(name="b", part=1), AddPart(name="b", part=3))
    core.executor.revert("three")
    core.executor.revert("two")


def change_step(core: Core) -> None:
    core.apply("one", AddPart(name="b", part=1))
    core.apply("two", AddPart(name="b", part=2))
    core.executor.replace_step("one", 0, AddPart(name="b", part=1, form="y"))
    core.executor.replace_step("two", 0, AddPart(name="b", part=2, form="z"))
    core.executor.revert("one")


def failing_apply(core: Core) -> None:
    core.kernel.fail["apply:c"] = [OSError(5, "Input/output error")]
    try:
        core.apply(
            "one", SetValue(name="a", value="x"), HoldLink(name="l"), SetValue(name="c", value="x")
        )
    except OSError:
        return


SCENARIOS: dict[str, Scenario] = {
    f.__name__: f for f in (apply_and_revert, overlapping, change_step, failing_apply)
}


def play(scenario: str, home: Path) -> None:
    SCENARIOS[scenario](Core(home, FakeKernel(home / "kernel.json")))


def recover(how: str, home: Path) -> None:
    """As the guardian does it, or the next agent, or the next agent after a reboot."""
    kernel = FakeKernel(home / "kernel.json")
    if how == "guardian":
        core = Core.__new__(Core)  # a guardian takes no epoch
        core.kernel = kernel
        core.backends = core_kit.registry(kernel)
        core.journal = core_kit.Journal(home / "state")
        failed = core.guardian().revert_all(EndReason.AGENT_LOST, core.journal.epoch())
    else:
        if how == "reboot":
            revert.boot_id = lambda: "another boot"  # type: ignore[assignment]
        failed = Core(home, kernel).executor.recover()
    if failed:
        raise AssertionError(failed)


def forked(act: Callable[[], None], at: int, log: str) -> tuple[int, str]:
    """(status as os.waitstatus_to_exitcode, traceback) of a child that may die at a crashpoint."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        crashpoint._at, crashpoint._log, crashpoint._passed = at, log, 0
        code = 0
        try:
            act()
        except BaseException:  # noqa: BLE001 - the child's outermost edge
            os.write(write, traceback.format_exc()[-4000:].encode())
            code = 1
        os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), said


def main() -> None:
    with core_kit.registered():
        for line in sys.stdin:
            ask: dict[str, Any] = json.loads(line)
            home = Path(ask["home"])
            act = recover if ask["act"] == "recover" else play

            def run(
                act: Callable[[str, Path], None] = act, ask: Any = ask, home: Path = home
            ) -> None:
                act(ask["name"], home)

            code, said = forked(run, ask["at"], ask["log"])
            print(json.dumps({"code": code, "said": said}), flush=True)


if __name__ == "__main__":
    main()

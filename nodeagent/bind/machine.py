"""The node as what can go down: how it would come up again."""

from __future__ import annotations

import os
from pathlib import Path

from nodeagent.bind.family import Ask, Scene
from nodeagent.model.errors import InvalidSpec
from nodeagent.model.machine import MachineBinding
from nodeagent.model.target import NodeTarget


def bind(scene: Scene, ask: Ask) -> MachineBinding:
    """The node itself. Raises InvalidSpec for anything else."""
    if not isinstance(ask.target, NodeTarget):
        raise InvalidSpec("the node is needed", ask.target.label())
    return MachineBinding(
        target=ask.target.label(),
        boot_id=ask.facts.boot_id,
        panic_s=int(_read(scene.node.proc / "sys/kernel/panic") or 0),
        crash_kernel=_read(scene.node.sys / "kernel/kexec_crash_loaded") == "1",
        sysrq=os.access(scene.node.proc / "sysrq-trigger", os.W_OK),
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""

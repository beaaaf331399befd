"""The kubelet of this node: its process, what it was started with, its unit."""

from __future__ import annotations

import os
from collections.abc import Sequence

from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.node import Node
from nodeagent.bind.process import comm_of, start_ticks, stat_fields
from nodeagent.bind.systemd import is_running, unit_of
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.kubelet import KubeletBinding
from nodeagent.model.target import NodeTarget

COMM = "kubelet"
ROOT_DIR = "/var/lib/kubelet"


def bind(scene: Scene, ask: Ask) -> KubeletBinding:
    """The one kubelet that runs here. Raises Refused or InvalidSpec."""
    what = "the kubelet's threshold cannot be raised"
    if not isinstance(ask.target, NodeTarget):
        raise InvalidSpec("the node is needed", ask.target.label(), "name it: --node")
    found = kubelets(scene.node)
    if not found:
        raise Refused(what, "no kubelet runs on this node", "see: pgrep -a kubelet")
    if len(found) > 1:
        pids = ", ".join(str(pid) for pid, _ in found)
        raise Refused(what, f"more than one kubelet runs on this node: {pids}")
    pid, args = found[0]
    named = option(args, "config")
    if not named:
        raise Refused(
            what, "it was started without --config", "its thresholds are on its command line"
        )
    config = os.path.realpath(named)
    if not os.path.isfile(config):
        raise Refused(what, f"{config} is no file here", "faultd must see the node's own files")
    return KubeletBinding(
        config=config,
        named=named,
        root_dir=option(args, "root-dir") or ROOT_DIR,
        unit=unit_of(scene.node, pid) if is_running() else "",
        overridden="--eviction-hard" if option(args, "eviction-hard") is not None else "",
    )


def kubelets(node: Node) -> list[tuple[int, list[str]]]:
    """(pid, arguments) of each process of this name; not a child of one that is yet to exec."""
    found: dict[int, tuple[int, list[str]]] = {}
    for pid in sorted(map(int, filter(str.isdigit, os.listdir(node.proc)))):
        try:
            if comm_of(node, pid) == COMM:
                raw = (node.proc / str(pid) / "cmdline").read_bytes()
                if raw:  # else it has ended, or is a kernel thread
                    parent = int(stat_fields(node, pid)[1])
                    found[pid] = parent, os.fsdecode(raw).rstrip("\0").split("\0")
        except OSError:
            continue
    return [(pid, args) for pid, (parent, args) in found.items() if parent not in found]


def running(node: Node, named: str) -> tuple[int, int] | None:
    """(pid, start time in ticks) of the kubelet with this --config; None when none runs."""
    for pid, args in kubelets(node):
        if option(args, "config") == named:
            try:
                return pid, start_ticks(node, pid)
            except OSError:
                continue
    return None


def option(args: Sequence[str], name: str) -> str | None:
    """The value of `--name=VALUE` or `--name VALUE`, the last one; None without it."""
    found = None
    for at, word in enumerate(args):
        if word.startswith(f"--{name}="):
            found = word.partition("=")[2]
        elif word == f"--{name}" and at + 1 < len(args):
            found = args[at + 1]
    return found

"""Puts a node together and starts it; finds nodes that run already."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import filelock

from controller.lab import accel, bzimage, image, initrd, kernel, libs, network, proc, store
from controller.lab.accel import Accel
from controller.lab.config import PORTS, Disk, Machine, NodeConfig, qemu_argv
from controller.lab.errors import NodeFailed
from controller.lab.flavours import Flavour, flavour
from controller.lab.node import Node
from controller.lab.supervise import start_time
from nodeagent.model.errors import Refused

COPY_TIMEOUT = 600.0  # seconds, for a disk that starts as a copy
DEFAULT_TTL = 2 * 3600.0  # seconds that a node without an owner may live


@dataclass(frozen=True)
class Parts:
    """Everything that must be built or found before a flavour can boot."""

    kernel: Path
    root: Path
    lib: Path
    initrd: bytes
    accel: Accel


def prepare(chosen: Flavour, progress: proc.Progress = proc.quiet) -> Parts:
    """Build what the cache lacks for a flavour; seconds when it lacks nothing."""
    proc.require("qemu-system-x86_64")
    built = image.ensure(chosen, progress)
    lib = libs.ensure(chosen, built, progress)
    vmlinuz = kernel.ensure(progress) if chosen.own_kernel else built.vmlinuz
    accelerator = accel.choose(vmlinuz, progress)
    if accelerator.name == "tcg":
        vmlinuz = bzimage.fast(vmlinuz)
    ram = initrd.build(built, chosen.python, modules=not chosen.own_kernel)
    return Parts(vmlinuz, built.root, lib, ram, accelerator)


def unique(config: NodeConfig) -> NodeConfig:
    """The same with a name that nobody else has."""
    return replace(config, name=f"{config.flavour}-{secrets.token_hex(3)}")


def launch(
    config: NodeConfig,
    *,
    ttl: float | None = None,
    progress: proc.Progress = proc.quiet,
) -> Node:
    """Boot a node and return it when its guest answers.

    Without `ttl` the node belongs to this process and ends with it, however
    that ends; with it (seconds) it stays until then, or `faultctl lab down`.
    """
    parts = prepare(flavour(config.flavour), progress)
    entry = store.create(config.name, _description(config, parts, ttl))
    try:
        network.sweep()
        port = None if config.network is None else network.join(config.network, config.name)
        _write(config, entry, parts, port, ttl)
        node = Node(config, entry, parts.accel)
        progress(f"booting {config.name} ({config.flavour}, {parts.accel.name}: {parts.accel.why})")
        node.power_on()
    except BaseException as exc:
        entry.stop()
        _discard(entry, exc)
        if config.network is not None:
            network.leave(config.network, config.name)
        raise
    return node


def _discard(entry: store.Entry, exc: BaseException) -> None:
    """Remove a node that did not boot; its console stays, for whoever looks into it."""
    if os.environ.get("FAULTCTL_LAB_KEEP"):
        return
    kept = entry.home.with_name(".last-failed-console.log")
    if (entry.home / "console.log").exists():
        (entry.home / "console.log").replace(kept)
        if isinstance(exc, NodeFailed):
            exc.hint = f"whole console: {kept}"
    entry.remove()


def _description(config: NodeConfig, parts: Parts, ttl: float | None) -> dict[str, Any]:
    me = os.getpid()
    return {
        "config": asdict(config),
        "accel": asdict(parts.accel),
        "ttl": ttl,
        "created": time.time(),
        "maker": {"pid": me, "start": start_time(me)},
    }


def _write(
    config: NodeConfig,
    entry: store.Entry,
    parts: Parts,
    port: network.Port | None,
    ttl: float | None,
) -> None:
    """Disks, initrd and launch.json, which the supervisor starts QEMU from."""
    home = entry.home
    for disk in config.disks:
        path = home / "disks" / f"{disk.name}.raw"
        if disk.source:
            copy = ["cp", "--sparse=always", "--reflink=auto", disk.source, str(path)]
            proc.run(copy, timeout=COPY_TIMEOUT)
        with path.open("ab") as file:
            file.truncate(disk.size)
    (home / "initrd").write_bytes(parts.initrd)
    machine = Machine(
        home=home,
        kernel=parts.kernel,
        root=parts.root,
        lib=parts.lib,
        accel=parts.accel.name,
        address=port.address if port else None,
        qemu=proc.find("qemu-system-x86_64") or "qemu-system-x86_64",
    )
    described = entry.read("node.json")
    launch_json = {
        "argv": qemu_argv(config, machine),
        "owner": described["maker"] if ttl is None else None,
        "ttl": ttl,
        "tap": {"netns": port.netns, "bridge": network.BRIDGE, "name": port.tap} if port else None,
    }
    (home / "launch.json").write_text(json.dumps(launch_json))
    if port is not None:
        (home / "node.json").write_text(json.dumps({**described, "address": port.address}))


def config_of(entry: store.Entry) -> NodeConfig:
    """The configuration that a node was made with."""
    data: dict[str, Any] = dict(entry.read("node.json")["config"])
    data["disks"] = tuple(Disk(**disk) for disk in data["disks"])
    data["forward"], data["append"] = tuple(data["forward"]), tuple(data["append"])
    return NodeConfig(**data)


@contextmanager
def attached(name: str) -> Iterator[Node]:
    """A running node, by name, over one of its spare channels; left running afterwards."""
    entry = store.find(name)
    if entry.supervisor is None:
        raise Refused(f"lab node {name} does not run", entry.state, f"faultctl lab down {name}")
    with _spare_port(entry) as port:
        node = Node(config_of(entry), entry, Accel(**entry.read("node.json")["accel"]), port)
        node.attach(60.0 * node.pace.busy())
        try:
            yield node
        finally:
            node.detach()


@contextmanager
def _spare_port(entry: store.Entry) -> Iterator[int]:
    for port in range(1, PORTS):
        lock = filelock.FileLock(entry.home / f"p{port}.lock")
        try:
            lock.acquire(timeout=0)
        except filelock.Timeout:
            continue
        try:
            yield port
        finally:
            lock.release()
        return
    raise Refused(
        f"all channels of {entry.name} are in use", f"{PORTS - 1} commands can run beside its owner"
    )

"""`faultctl lab`: a disposable node in QEMU."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from controller.lab import store
from controller.lab.config import AGENT_PORT, Disk, NodeConfig
from controller.lab.errors import NodeFailed
from controller.lab.flavours import FLAVOURS
from controller.lab.guestio import Process
from controller.lab.launcher import DEFAULT_TTL, attached, launch
from nodeagent.model.errors import FaultError, InvalidSpec, Refused

if TYPE_CHECKING:
    _Int = click.ParamType[int]
    _Float = click.ParamType[float]
    _Disk = click.ParamType[tuple[str, int, bool]]
else:  # older releases of click have no generic ParamType
    _Int = _Float = _Disk = click.ParamType

_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
_SECONDS = {"s": 1, "m": 60, "h": 3600}


class Size(_Int):
    """A size with a unit, in bytes."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        found = re.fullmatch(r"(\d+)(Ki|Mi|Gi)", str(value))
        if isinstance(value, int):
            return value
        if not found:
            self.fail(f"{value!r}: a size has a unit, as in 64Mi or 1Gi", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


class Span(_Float):
    """A duration with units, in seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        if isinstance(value, float):
            return value
        if not re.fullmatch(r"(\d+[hms])+", str(value)):
            self.fail(f"{value!r}: a duration has a unit, as in 90s or 1h30m", param, ctx)
        parts = re.findall(r"(\d+)([hms])", str(value))
        return float(sum(int(n) * _SECONDS[unit] for n, unit in parts))


class DiskOption(_Disk):
    """`[NAME:]SIZE[:4k]`, unnamed disks are d0, d1, ..."""

    name = "[name:]size[:4k]"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int, bool]:
        found = re.fullmatch(r"(?:([A-Za-z0-9_.-]+):)?(\d+(?:Ki|Mi|Gi))(:4k)?", str(value))
        if not found:
            self.fail(f"{value!r}: as in 1Gi, data:1Gi or data:1Gi:4k", param, ctx)
        return found[1] or "", Size().convert(found[2], param, ctx), bool(found[3])


def _progress(line: str) -> None:
    """Plain lines: they read well on a terminal and in a log alike."""
    click.echo(f"{time.strftime('%H:%M:%S')} {line}", err=True)


@click.group()
def lab() -> None:
    """Boot disposable nodes in QEMU: real kernels, no root or KVM needed."""


@lab.command()
@click.option(
    "--flavour", type=click.Choice(list(FLAVOURS)), default="debian-13", show_default=True
)
@click.option("--name", default=None, help="Name of the node.  [default: the flavour]")
@click.option("--disk", "disks", type=DiskOption(), multiple=True, help="Add a scratch disk.")
@click.option("--memory", type=Size(), default="1536Mi", show_default=True)
@click.option("--cpus", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--network", default=None, help="Bridge shared with other nodes (root).")
@click.option("--forward", type=int, multiple=True, help="Guest TCP port to reach from here.")
@click.option("--append", multiple=True, help="Word for the kernel's command line.")
@click.option("--udev", is_flag=True, help="Run systemd-udevd in the guest.")
@click.option("--clock", type=click.Choice(["real", "icount"]), default="real", show_default=True)
@click.option("--ttl", type=Span(), default=DEFAULT_TTL, help="Ends by itself.  [default: 2h]")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text")
def up(disks: tuple[tuple[str, int, bool], ...], ttl: float, output: str, **options: Any) -> None:
    """Boot a node and leave it running until `lab down` or its time is over."""
    options["name"] = options["name"] or options["flavour"]
    scratch = tuple(
        Disk(name or f"d{index}", size, 4096 if four_k else 512)
        for index, (name, size, four_k) in enumerate(disks)
    )
    config = NodeConfig(disks=scratch, **options)
    begin = time.monotonic()
    node = launch(config, ttl=ttl, progress=_progress)
    try:
        ports = {port: node.port(port) for port in (AGENT_PORT, *config.forward)}
        facts = {
            "name": node.name,
            "flavour": config.flavour,
            "kernel": node.kernel,
            "accelerator": node.accel.name,
            "why": node.accel.why,
            "seconds": round(time.monotonic() - begin, 1),
            "ports": ports,
            "address": node.address,
            "disks": [disk.path for disk in config.disks],
            "folder": str(node.home),
        }
    finally:
        node.detach()
    if output == "json":
        click.echo(json.dumps(facts))
        return
    click.echo(
        f"{node.name} is up: {facts['kernel']} under {facts['accelerator']} ({facts['why']})"
    )
    for guest, host in ports.items():
        click.echo(f"  its port {guest} is 127.0.0.1:{host}")
    for disk in config.disks:
        click.echo(f"  {disk.path}: {disk.size >> 20} MiB, {disk.block_size}-byte sectors")
    click.echo(f"  faultctl lab shell {node.name}    faultctl lab down {node.name}")


@lab.command()
@click.argument("names", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All nodes of this user.")
def down(names: tuple[str, ...], everything: bool) -> None:
    """End nodes and remove their disks."""
    from controller.lab import network
    from controller.lab.launcher import config_of

    if not names and not everything:
        raise InvalidSpec("no node named", "", "name one, or use --all")
    chosen = store.entries() if everything else [store.find(name) for name in names]
    for entry in chosen:
        joined = config_of(entry).network
        entry.stop()
        entry.remove()
        if joined is not None:
            network.leave(joined, entry.name)
        click.echo(f"{entry.name} is gone")


@lab.command("ls")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table")
def list_nodes(output: str) -> None:
    """List this user's nodes."""
    rows = []
    for entry in store.entries():
        data = entry.read("node.json")
        row = {"name": entry.name, "flavour": data["config"]["flavour"]}
        row |= {"accelerator": data["accel"]["name"], "state": entry.state}
        ttl = data.get("ttl")
        row["left"] = None if ttl is None else max(0, round(data["created"] + ttl - time.time()))
        row["address"] = data.get("address")
        rows.append(row)
    if output == "json":
        click.echo(json.dumps(rows))
    elif output == "yaml":
        import yaml

        click.echo(yaml.safe_dump(rows, sort_keys=False), nl=False)
    else:
        _table(rows)


def _table(rows: list[dict[str, Any]]) -> None:
    if not rows:
        click.echo("no lab nodes; `faultctl lab up` boots one")
        return
    cells = [[key.upper() for key in rows[0]]]
    cells += [["-" if value is None else str(value) for value in row.values()] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    for line in cells:
        click.echo("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())


@lab.command("exec", context_settings={"ignore_unknown_options": True})
@click.option("--timeout", type=Span(), default=300.0, help="On a native machine.  [default: 5m]")
@click.option("--push", is_flag=True, help="Bring this checkout's code to the node first.")
@click.argument("name")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED)
def execute(timeout: float, push: bool, name: str, argv: tuple[str, ...]) -> None:
    """Run a command in a node; its output and exit status become ours."""
    with attached(name) as node:
        if push:
            node.push_code()
        process = node.popen(argv, timeout=timeout)
        deadline = node.deadline(timeout) + 10
        feeder = threading.Thread(target=_feed, args=(process,), daemon=True)
        feeder.start()  # beside it: our input may never end though the command does
        while process.read(deadline, _forward):
            pass
        result = process.result()
    if result.timed_out:
        raise Refused(f"the command {result.how}", "", "use a longer --timeout")
    sys.exit(result.code if result.code is not None else 128 + (result.signum or 0))


def _feed(process: Process) -> None:
    """Our standard input becomes the command's, unless it is a terminal."""
    more = not sys.stdin.isatty()
    with contextlib.suppress(NodeFailed):  # it has ended, or the node has: told elsewhere
        while more:
            data = os.read(sys.stdin.fileno(), 65536)
            process.write(data, deadline=time.monotonic() + 60)
            more = bool(data)
        process.write(b"", eof=True, deadline=time.monotonic() + 60)


def _forward(stream: str, data: bytes) -> None:
    target = sys.stdout.buffer if stream == "out" else sys.stderr.buffer
    target.write(data)
    target.flush()


@lab.command()
@click.option("-f", "--follow", is_flag=True, help="Go on until the node ends.")
@click.option("--qemu", is_flag=True, help="What QEMU itself said.")
@click.argument("name")
def logs(follow: bool, qemu: bool, name: str) -> None:
    """Print a node's console."""
    entry = store.find(name)
    path = entry.home / ("qemu.log" if qemu else "console.log")
    with path.open("rb") as file:
        while True:
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            if not follow or entry.supervisor is None:
                return
            time.sleep(0.3)


@lab.command()
@click.argument("name")
def shell(name: str) -> None:
    """A root shell in a node."""
    from controller.lab.shell import interactive

    if not sys.stdin.isatty():
        raise InvalidSpec("`lab shell` needs a terminal", "", f"faultctl lab exec {name} -- CMD")
    with attached(name) as node:
        sys.exit(interactive(node))


@lab.command()
@click.argument("name")
def push(name: str) -> None:
    """Replace the code in a node by this checkout's, without a reboot."""
    with attached(name) as node:
        node.push_code()


@lab.group("kernel")
def kernel_group() -> None:
    """The kernel of the `full` flavour."""


@kernel_group.command()
@click.option("--rebuild", is_flag=True, help="Build even where a prebuilt kernel would do.")
def build(rebuild: bool) -> None:
    """Find or build it (about 20 minutes on two cores) and print its path."""
    from controller.lab import kernel

    click.echo(kernel.build(_progress) if rebuild else kernel.ensure(_progress))


def main() -> None:
    """Entry for `python -m controller.cli.lab`, with the errors of the main command."""
    try:
        lab(standalone_mode=True)
    except FaultError as exc:
        for line in (exc.what, exc.why, exc.hint):
            if line:
                click.echo(line, err=True)
        sys.exit(exc.exit_code)


if __name__ == "__main__":
    main()

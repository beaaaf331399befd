"""`faultctl volume`: pass-through volumes that take live table swaps."""

from __future__ import annotations

import click

from controller import render
from controller.cli.common import client, output_option
from protos import faultd_pb2 as pb


@click.group()
def volume() -> None:
    """Prepare a device for faults that swap a live device-mapper table."""


def _show(volumes: list[pb.Volume], output: str) -> None:
    if output == "table":
        rows = [
            (v.name, v.path, v.device, str(v.sectors * 512), ", ".join(v.mountpoints))
            for v in volumes
        ]
        render.table(("NAME", "PATH", "DEVICE", "BYTES", "MOUNTED"), rows, "no prepared volumes")
        return
    found = [
        {
            "name": v.name,
            "path": v.path,
            "device": v.device,
            "bytes": v.sectors * 512,
            "mountpoints": list(v.mountpoints),
        }
        for v in volumes
    ]
    render.data(found, output)


@volume.command()
@click.argument("device")
@click.option("--name", required=True, help="name of the volume below /dev/mapper")
@output_option
def prepare(device: str, name: str, output: str) -> None:
    """Put a pass-through table over DEVICE, which must not be in use; then mount the volume."""
    with client() as agent:
        found = agent.volumes(pb.VolumeRequest.PREPARE, device=device, name=name)
    _show([v for v in found if v.name == name], output)


@volume.command()
@click.argument("name")
@output_option
def release(name: str, output: str) -> None:
    """Take a prepared volume away; it must not be in use."""
    with client() as agent:
        _show(agent.volumes(pb.VolumeRequest.RELEASE, name=name), output)


@volume.command(name="ls")
@output_option
def list_volumes(output: str) -> None:
    """List prepared volumes."""
    with client() as agent:
        _show(agent.volumes(), output)

"""`faultctl volume`: pass-through volumes that take live table swaps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from controller import render
from controller.cli.common import client, output_option
from controller.cli.kube import reached, refuse_stray, with_access
from controller.client import AgentClient
from protos import faultd_pb2 as pb

on_node = click.option(
    "--on-node", metavar="NAME", help="a node of the Kubernetes cluster, by its agent there"
)


@click.group()
def volume() -> None:
    """Prepare a device for faults that swap a live device-mapper table."""


@contextmanager
def _agent(node: str | None, access: Mapping[str, Any]) -> Iterator[AgentClient]:
    """The agent of a node of the cluster, or the one that the options before the verb name."""
    if node is None:
        refuse_stray("--on-node")
        with client() as agent:
            yield agent
        return
    with reached(access) as there:
        yield there.clients.of(node)


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
@on_node
@output_option
@with_access
def prepare(
    device: str, name: str, on_node: str | None, output: str, access: Mapping[str, Any]
) -> None:
    """Put a pass-through table over DEVICE, which must not be in use; then mount the volume."""
    with _agent(on_node, access) as agent:
        found = agent.volumes(pb.VolumeRequest.PREPARE, device=device, name=name)
    _show([v for v in found if v.name == name], output)


@volume.command()
@click.argument("name")
@on_node
@output_option
@with_access
def release(name: str, on_node: str | None, output: str, access: Mapping[str, Any]) -> None:
    """Take a prepared volume away; it must not be in use."""
    with _agent(on_node, access) as agent:
        _show(agent.volumes(pb.VolumeRequest.RELEASE, name=name), output)


@volume.command(name="ls")
@on_node
@output_option
@with_access
def list_volumes(on_node: str | None, output: str, access: Mapping[str, Any]) -> None:
    """List prepared volumes."""
    with _agent(on_node, access) as agent:
        _show(agent.volumes(), output)

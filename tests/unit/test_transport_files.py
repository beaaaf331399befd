"""Certificates that change below a running agent, not all at once as they should."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_kit import Served, left_as_found, served
from test_server import free_port

from controller.client import AgentAddress, AgentClient
from controller.lab import certs
from nodeagent.listen import TlsFiles
from nodeagent.model.errors import Unreachable


@pytest.fixture(scope="module")
def node() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(patch) as found:
        yield found


@pytest.fixture(autouse=True)
def clean(node: Served) -> Iterator[None]:
    with left_as_found(node):
        yield


def key_of_another(old: certs.Files, new: certs.Files) -> None:
    old.server_cert.write_bytes(new.server_cert.read_bytes())


def no_certificate(old: certs.Files, new: certs.Files) -> None:
    old.server_cert.write_bytes(b"-----BEGIN CERTIFICATE-----\nhalf")


def no_file(old: certs.Files, new: certs.Files) -> None:
    old.ca.unlink()


@pytest.mark.parametrize("half", [key_of_another, no_certificate, no_file])
def test_files_that_do_not_fit_leave_the_last_ones_in_force(
    node: Served, tmp_path: Path, half: Callable[[certs.Files, certs.Files], None]
) -> None:
    for name in ("mine", "new", "client"):
        (tmp_path / name).mkdir()
    mine, new = (certs.write_all(tmp_path / name, "node") for name in ("mine", "new"))
    at = f"tcp://127.0.0.1:{free_port()}"
    server = node.serve((at,), TlsFiles(mine.server_cert, mine.server_key, mine.ca))
    ca = tmp_path / "client" / "ca"
    ca.write_bytes(mine.ca.read_bytes())
    old = AgentAddress(at, mine.client_cert, mine.client_key, ca)
    later = AgentAddress(at, new.client_cert, new.client_key, new.ca)

    def accepted(who: AgentAddress) -> bool:
        try:
            with AgentClient(who) as client:
                return bool(client.describe())
        except Unreachable:
            return False

    assert accepted(old)
    half(mine, new)
    assert accepted(old) and not accepted(later)
    for there, source in ((mine.server_cert, new.server_cert), (mine.ca, new.ca),
                          (mine.server_key, new.server_key)):  # fmt: skip
        there.write_bytes(source.read_bytes())
    assert accepted(later) and not accepted(old)
    server.stop(0).wait()

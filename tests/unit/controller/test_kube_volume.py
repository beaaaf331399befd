"""Volumes of a cluster's nodes, and options of access that have nothing to open."""

from __future__ import annotations

import json

import pytest
from test_kube_inject import World, _world, world  # noqa: F401 - fixtures

from controller.cli.main import run
from nodeagent.volumes import VolumeInfo, Volumes


def test_a_nodes_agent_is_asked_through_the_cluster(
    world: World,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ready: list[VolumeInfo] = []

    def prepare(self: Volumes, device: str, name: str) -> VolumeInfo:
        ready.append(VolumeInfo(name, f"/dev/mapper/{name}", device, 8, ()))
        return ready[-1]

    monkeypatch.setattr(Volumes, "prepare", prepare)
    monkeypatch.setattr(Volumes, "list", lambda self: ready)
    asked = ("volume", "prepare", "/dev/vdb", "--name", "data", "--on-node")
    assert world.run(*asked, "n2", "-o", "json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert (found["path"], found["bytes"]) == ("/dev/mapper/data", 4096)
    assert world.run(*asked, "n9") == 3
    assert "no agent runs on node n9" in capsys.readouterr().err and len(ready) == 1


@pytest.mark.parametrize(
    ("words", "flag"),
    [("ls --kubeconfig x", "--cluster"), ("revert x-1 --context x", "--cluster"),
     ("ls --direct", "--cluster"), ("volume ls --agent-namespace x", "--on-node")],
)  # fmt: skip
def test_options_of_access_without_a_cluster_to_reach_are_refused(
    words: str, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words.split()) == 2
    assert f"is about a cluster\n  hint: add {flag}\n" in capsys.readouterr().err

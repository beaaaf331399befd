"""`faultctl lab`: what it takes, refuses and prints, without booting anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from controller.cli import lab as verb
from controller.lab import store
from controller.lab.config import NodeConfig
from nodeagent.model.errors import FaultError, InvalidSpec


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, short_path: Path) -> None:
    monkeypatch.setenv("FAULTCTL_STATE", str(short_path))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NodeConfig, float]]:
    """Configurations that `up` would boot; booting itself is not wanted here."""
    seen: list[tuple[NodeConfig, float]] = []

    def launch(config: NodeConfig, *, ttl: float, progress: Any) -> None:
        seen.append((config, ttl))
        raise InvalidSpec("enough")

    monkeypatch.setattr(verb, "launch", launch)
    return seen


def call(*argv: str) -> Any:
    return CliRunner().invoke(verb.lab, argv)


def test_up_takes_units(launched: list[tuple[NodeConfig, float]]) -> None:
    call("up", "--disk", "1Gi", "--disk", "k:256Mi:4k", "--memory", "512Mi", "--ttl", "1h30m")
    ((config, ttl),) = launched
    assert [(d.name, d.size, d.block_size) for d in config.disks] == [
        ("d0", 1 << 30, 512),
        ("k", 1 << 28, 4096),
    ]
    assert config.memory == 512 << 20 and ttl == 5400 and config.name == "debian-13"


@pytest.mark.parametrize(
    "argv",
    [
        ["--disk", "1024"],
        ["--disk", "1G"],
        ["--disk", "-1Gi"],
        ["--disk", ""],
        ["--memory", "512"],
        ["--ttl", "3600"],
        ["--ttl", "1 h"],
        ["--ttl", ""],
        ["--flavour", "debian-99"],
        ["--cpus", "0"],
        ["--forward", "x"],
    ],
)
def test_up_refuses(argv: list[str], launched: list[tuple[NodeConfig, float]]) -> None:
    assert call("up", *argv).exit_code == 2 and not launched


@pytest.mark.parametrize(
    "argv",
    [
        ["--disk", "0Gi"],
        ["--name", "A"],
        ["--forward", "0"],
        ["--disk", "a:1Gi", "--disk", "a:1Gi"],
    ],
)
def test_up_refuses_what_the_model_does(argv: list[str], launched: list[Any]) -> None:
    error = call("up", *argv).exception
    assert isinstance(error, InvalidSpec) and error.exit_code == 2 and not launched


def test_unknown_nodes() -> None:
    for argv in (["down", "x"], ["exec", "x", "true"], ["logs", "x"], ["push", "x"]):
        error = call(*argv).exception
        assert isinstance(error, FaultError) and "x" in str(error), argv


def test_a_node_that_has_ended_is_not_reached() -> None:
    _entry("n1")
    error = call("exec", "n1", "true").exception
    assert isinstance(error, FaultError) and "does not run" in error.what


def _entry(name: str) -> store.Entry:
    config = {"flavour": "debian-12", "name": name, "network": None}
    config |= {"disks": [], "forward": [], "append": []}  # type: ignore[dict-item]
    data = {"config": config, "accel": {"name": "tcg", "why": ""}, "ttl": 60.0, "created": 0.0}
    return store.create(name, data)


def test_ls_in_all_forms() -> None:
    assert "lab up" in call("ls").output
    assert json.loads(call("ls", "-o", "json").output) == []
    _entry("n1")
    (row,) = json.loads(call("ls", "-o", "json").output)
    assert yaml.safe_load(call("ls", "-o", "yaml").output) == [row]
    assert row["name"] == "n1" and row["state"].startswith("ended") and row["left"] == 0
    head, line = call("ls").output.splitlines()
    assert head.split()[:2] == ["NAME", "FLAVOUR"] and line.split()[:2] == ["n1", "debian-12"]


def test_down_removes_a_dead_node_too() -> None:
    entry = _entry("n1")
    assert call("down", "n1").exit_code == 0 and not entry.home.exists()
    assert isinstance(call("down").exception, InvalidSpec)


def test_every_verb_has_help() -> None:
    def walk(command: click.Command, path: list[str]) -> None:
        assert command.help, path
        assert call(*path, "--help").exit_code == 0
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, [*path, name])

    walk(verb.lab, [])

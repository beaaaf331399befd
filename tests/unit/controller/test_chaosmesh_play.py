"""Chaos Mesh's objects, run on agents: when each begins and ends, and what ends them all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
import yaml
from test_kube_inject import World, _world, uid, world  # noqa: F401 - fixtures

from controller.cli import run_chaosmesh
from controller.cli.run_chaosmesh import Play
from controller.kube.agents import Access, Agents
from controller.kube.chaosmesh import Mapped
from controller.kube.choose import ALL
from controller.kube.client import Cluster
from controller.kube.discover import Query
from controller.kube.group import Clients
from controller.kube.select import Ask
from controller.kube.ways import Reached
from nodeagent.model.errors import Refused


@contextmanager
def reach(world: World) -> Iterator[Reached]:  # noqa: F811
    tls = {"cert": world.files.client_cert, "key": world.files.client_key, "ca": world.files.ca}
    cluster = Cluster(world.kubeconfig)
    access = Access(direct=True, tls=tls, server_name="localhost")
    with Agents(cluster, access) as agents, Clients(agents) as clients:
        yield Reached(cluster, agents, clients)


def test_each_is_held_for_its_duration_and_taken_back(world: World) -> None:  # noqa: F811
    short = Mapped("A", "t-pods", {}, Query("shop", ("cart-1",)), Ask("shop", ("cart-1",)),
                   duration=timedelta(seconds=1))  # fmt: skip
    long = Mapped("B", "t-pods", {}, Query("shop", ("cart-2",)), Ask("shop", ("cart-2",)))
    lines: list[str] = []
    with reach(world) as there:
        play = Play(there, [short, long], 7, lines.append)
        thread = threading.Thread(target=play.run)
        thread.start()
        for _ in range(200):
            if any("A: ended" in line for line in lines):
                break
            play.stop.wait(0.05)
        assert world.hit("n1") == set() and world.hit("n2") == {uid(2)}
        play.stop.set()
        thread.join(20)
    assert world.active() == [] and world.hit("n2") == set()
    assert [line for line in lines if "ended" in line][-1] == "B: ended, the run is over"


def test_a_schedule_begins_after_one_interval_and_goes_on(world: World) -> None:  # noqa: F811
    every = timedelta(seconds=1.5)
    it = Mapped("A", "t-pods", {}, Query("shop", ("cart-1",)), Ask("shop", ("cart-1",)),
                duration=timedelta(seconds=0.3), every=every)  # fmt: skip
    at: list[float] = []
    lines: list[str] = []
    begun = time.monotonic()

    def say(line: str) -> None:
        lines.append(line)
        at.append(time.monotonic() - begun)

    with reach(world) as there:
        play = Play(there, [it], 7, say)
        thread = threading.Thread(target=play.run)
        thread.start()
        end = begun + 30
        while sum("ended" in line for line in lines) < 2 and time.monotonic() < end:
            play.stop.wait(0.05)
        play.stop.set()
        thread.join(20)
    starts = [when for when, line in zip(at, lines, strict=True) if "t-pods on" in line]
    assert len(starts) == 2, lines
    assert starts[0] >= every.total_seconds() and starts[1] >= 2 * every.total_seconds()
    assert world.active() == []


def test_one_that_has_ended_by_itself_is_told_once(
    world: World, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(run_chaosmesh, "LEASE_S", 1.5)
    it = Mapped("A", "t-pods", {}, Query("shop", ("cart-1",)), Ask("shop", ("cart-1",)))
    lines: list[str] = []
    with reach(world) as there:
        play = Play(there, [it], 7, lines.append)
        thread = threading.Thread(target=play.run)
        thread.start()
        while not world.active():
            play.stop.wait(0.05)
        world.agents["n1"].client.revert(world.active()[0][1])
        play.stop.wait(2.5)
        play.stop.set()
        thread.join(20)
    assert len([line for line in lines if line.startswith("t-pods-")]) == 1, lines


def test_one_that_fails_ends_all(world: World) -> None:  # noqa: F811
    good = Mapped("A", "t-pods", {}, Query("shop", ("cart-1",)), Ask("shop", ("cart-1",)))
    bad = Mapped("B", "t-pods", {}, Query("shop", labels="app=none"), Ask("shop", how_many=ALL))
    with reach(world) as there, pytest.raises(Refused, match="no pod"):
        Play(there, [good, bad], 7, lambda line: None).run()
    assert world.active() == []


def test_a_policy_holds_for_them_as_well(world: World, tmp_path: Path) -> None:  # noqa: F811
    policy = tmp_path / "policy.yaml"
    deny = {"verdict": "deny", "kinds": ["t-pods", "pod-kill"], "why": "not here"}
    policy.write_text(yaml.safe_dump({"version": 1, "default": "allow", "rules": [deny]}))
    pods = Mapped("A", "t-pods", {}, Query("shop", ("cart-1",)), Ask("shop", ("cart-1",)))
    kill = Mapped("B", "pod-kill", {}, Query("shop", ("cart-1",)), Ask("shop", ("cart-1",)))
    for one in (pods, kill):
        with reach(world) as there, pytest.raises(Refused, match="not here"):
            Play(there, [one], 7, lambda line: None, policy=policy).run()
    assert world.active() == []
    assert "/api/v1/namespaces/shop/pods/cart-1" in world.api.objects

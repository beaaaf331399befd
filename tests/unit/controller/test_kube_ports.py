"""A node whose agent is a pod: the way is opened late, and looked for anew when it is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from sim_server import serve

from controller.client import AgentAddress
from controller.kube import ports
from controller.kube.ports import ClusterPort
from nodeagent.model.errors import FaultError, Refused, Unreachable


class Ways:
    """The pods that a node's agent was, one after the other."""

    def __init__(self, *urls: str | FaultError) -> None:
        self.urls = list(urls)
        self.opened = 0
        self.open_now: set[str] = set()

    @contextmanager
    def open(self, node: str) -> Iterator[AgentAddress]:
        self.opened += 1
        found = self.urls[0] if len(self.urls) == 1 else self.urls.pop(0)
        if isinstance(found, FaultError):
            raise found
        self.open_now.add(found)
        try:
            yield AgentAddress(found)
        finally:
            self.open_now.discard(found)


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[dict[str, SimpleNamespace]]:
    found = serve(tmp_path, "ab")
    yield found
    for entry in found.values():
        entry.server.stop(0)


def test_nothing_is_opened_before_it_is_needed(agents: dict[str, SimpleNamespace]) -> None:
    ways = Ways(agents["a"].url)
    port = ClusterPort("n1", ways)
    assert (port.url, ways.opened) == ("kube://n1", 0)
    port.describe()
    port.describe()
    assert ways.opened == 1
    port.close()
    assert ways.open_now == set()


def test_an_agent_that_is_another_pod_now_is_found_by_the_next_call(
    agents: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = Ways(agents["a"].url, agents["b"].url)
    port = ClusterPort("n1", ways)
    port.describe()
    agents["a"].server.stop(0).wait()
    with pytest.raises(Unreachable):
        port.describe()
    port.describe()
    assert ways.opened == 2
    assert ways.open_now == {agents["a"].url, agents["b"].url}, (
        "calls may be under way on the old one: cut off they would not tell what they did"
    )
    monkeypatch.setattr(ports, "RETIRED_S", 0.0)
    agents["b"].server.stop(0).wait()
    with pytest.raises(Unreachable):
        port.describe()
    with pytest.raises(Unreachable):
        port.describe()
    assert agents["a"].url not in ways.open_now
    port.close()
    assert ways.open_now == set()


def test_no_agent_for_a_while_is_a_node_that_does_not_answer(
    agents: dict[str, SimpleNamespace],
) -> None:
    """Refused would mean that it said no to the fault, for good."""
    gone = Refused("no agent runs on node n1", "none", "look")
    port = ClusterPort("n1", Ways(gone, Unreachable("the API server is away"), agents["a"].url))
    with pytest.raises(Unreachable, match="no agent runs on node n1"):
        port.describe()
    with pytest.raises(Unreachable, match="API server"):
        port.describe()
    port.describe()
    port.close()


def test_a_late_answer_gives_no_young_way_up(
    agents: dict[str, SimpleNamespace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A probe that times out every two seconds is no reason for a port-forward each time."""
    ways = Ways(agents["a"].url)
    port = ClusterPort("n1", ways)
    client = port.client
    port._lost(client, False)
    assert port.client is client and ways.opened == 1
    monkeypatch.setattr(ports, "PATIENCE_S", 0.0)
    port._lost(client, False)
    assert port.client is not client and ways.opened == 2
    for _ in range(2 * ports.MAX_RETIRED):
        port._lost(port.client, True)
    assert len(port._retired) <= ports.MAX_RETIRED + 1
    port.close()
    assert port._retired == []


def test_threads_share_one_way(agents: dict[str, SimpleNamespace]) -> None:
    ways = Ways(agents["a"].url)
    port = ClusterPort("n1", ways)
    threads = [threading.Thread(target=port.describe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ways.opened == 1
    port.close()

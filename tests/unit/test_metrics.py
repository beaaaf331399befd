"""Prometheus metrics of a real agent: what a scrape shows as faults come and go."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import core_kit
import pytest
from agent_kit import Served, served
from core_kit import SetValue
from prometheus_client.parser import text_string_to_metric_families

from nodeagent import metrics
from nodeagent.metrics import AgentMetrics, serve_metrics
from nodeagent.model.errors import BackendError, FaultError, InvalidSpec, Refused
from nodeagent.model.evidence import Evidence
from nodeagent.model.plan import Lease


@pytest.fixture
def node() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(patch) as found:
        yield found


@pytest.fixture
def url(node: Served) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    server = serve_metrics(node.agent, f"tcp://127.0.0.1:{port}")
    yield f"http://127.0.0.1:{port}/metrics"
    server.shutdown()
    server.server_close()


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - loopback
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def arm(node: Served, fault: str, name: str) -> None:
    asked = core_kit.request(fault, SetValue(name=name, value="x"))
    _, digest = node.client.plan(asked)
    node.client.apply(asked, Lease(), digest)


def test_faults_by_kind_and_state_ends_hits_and_residue(
    node: Served, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node.agent, "evidence", lambda fault: Evidence(counted=True, hits=3))
    before = scrape(url)
    assert before["faultctl_guardian_up{}"] == 1 and before["faultctl_residue{}"] == 0
    assert not [name for name in before if name.startswith("faultctl_faults{")]
    arm(node, "t-1", "a")
    arm(node, "t-2", "b")
    now = scrape(url)
    assert now["faultctl_faults{kind=t-steps,state=armed}"] == 2
    assert now["faultctl_faults_ended_total{kind=t-steps,reason=expired}"] == 0
    assert now["faultctl_fault_hits_total{kind=t-steps}"] == 6
    node.client.revert("t-1")
    after = scrape(url)
    assert after["faultctl_faults{kind=t-steps,state=armed}"] == 1
    assert after["faultctl_faults_ended_total{kind=t-steps,reason=reverted}"] == 1
    assert after["faultctl_fault_hits_total{kind=t-steps}"] == 6, "those of ended faults stay"
    text = str(after)
    assert "t-1" not in text and "/dev" not in text, "no ids and no targets"


def test_a_fault_that_resists_is_seen(node: Served, url: str) -> None:
    arm(node, "t-3", "a")
    node.kernel.fail["undo:a"] = [BackendError("busy", "the kernel said no")] * 500
    with pytest.raises(FaultError):
        node.client.revert("t-3")
    assert scrape(url)["faultctl_faults_resisting{}"] == 1
    node.kernel.fail.clear()


def test_residue_is_looked_for_once_a_minute(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    now = [0.0]
    monkeypatch.setattr(metrics, "examine", lambda agent: looks.append(now[0]) or [])
    collector = AgentMetrics(node.agent, lambda: now[0])
    for now[0] in (0.0, 1.0, 59.0, 60.0, 61.0):
        list(collector.collect())
    assert looks == [0.0, 60.0]


def test_it_takes_no_orders_and_says_where_it_cannot_listen(node: Served, url: str) -> None:
    for method in ("POST", "PUT", "DELETE"):
        asked = urllib.request.Request(url, method=method, data=b"x")  # noqa: S310
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(asked, timeout=10)  # noqa: S310
        assert refused.value.code == 405
    assert node.client.faults() == []
    with pytest.raises(Refused, match="cannot be listened on"):
        serve_metrics(node.agent, url.replace("http", "tcp").removesuffix("/metrics"))
    for bad in ("unix:///run/x", "tcp://localhost:1", "9100"):
        with pytest.raises(InvalidSpec):
            serve_metrics(node.agent, bad)

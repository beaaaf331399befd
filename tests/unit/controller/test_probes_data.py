"""PromQL and Kubernetes probes, and the sampler."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from probe_kit import answering, closed_port, reply, take

from controller.probes.k8s import ObjectRef
from controller.probes.measure import Surroundings
from controller.probes.outcome import Outcome
from controller.probes.sampler import RunClock, Sampler
from controller.probes.spec import parse_probe
from controller.records import SampleRecord, parse_record, record_line
from nodeagent.model.errors import Unreachable


def vector(*values: str, **labels: str) -> dict[str, Any]:
    series = [
        {"metric": {"__name__": "up", "n": str(i)}, "value": [0, v]} for i, v in enumerate(values)
    ]
    return {"status": "success", "data": {"resultType": "vector", "result": series}}


SCALAR = {"status": "success", "data": {"resultType": "scalar", "result": [0, "0.5"]}}


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (vector("0.5"), "pass"),
        (vector("0.5", "1"), "pass"),
        (vector("0.5", "1.01"), "fail"),
        (vector("-1"), "fail"),
        (vector("+Inf"), "fail"),
        (vector("NaN"), "unknown"),
        (vector("2", "NaN"), "unknown"),
        (vector(), "unknown"),
        (SCALAR, "pass"),
        ({"status": "error", "error": "parse error"}, "unknown"),
        ({"status": "success"}, "unknown"),
        ({"status": "success", "data": {"resultType": "vector", "result": [{}]}}, "unknown"),
        (vector("x"), "unknown"),
        ([], "unknown"),
        (None, "unknown"),
    ],
)
def test_promql(answer: Any, verdict: str) -> None:
    with answering(reply(json.dumps(answer))) as server:
        url = f"http://127.0.0.1:{server.port}"
        data = {"type": "promql", "url": url, "query": "up", "at_most": 1, "at_least": 0}
        assert take(data).verdict == verdict
        assert b"GET /api/v1/query?query=up " in server.requests[0]


def test_no_series_means_what_the_probe_says() -> None:
    with answering(reply(json.dumps(vector()))) as server:
        data = {"type": "promql", "url": f"http://127.0.0.1:{server.port}/", "query": "up"}
        for word in ("pass", "fail"):
            assert take(data | {"at_most": 1, "empty": word}).verdict == word


def test_a_prometheus_that_is_down_measures_nothing() -> None:
    data = {"type": "promql", "query": "up", "at_most": 1}
    assert take(data | {"url": f"http://127.0.0.1:{closed_port()}"}).verdict == "unknown"
    with answering(b"rubbish") as server:
        assert take(data | {"url": f"http://127.0.0.1:{server.port}"}).verdict == "unknown"


# --- k8s -----------------------------------------------------------------------------------------

DEPLOYMENT = {
    "metadata": {"name": "db", "uid": "u1"},
    "spec": {"replicas": 2, "image": "pg:16"},
    "status": {"readyReplicas": 2, "conditions": [{"type": "Available", "status": "True"}]},
}


def k8s(expression: str, found: Any = DEPLOYMENT, **fields: str) -> Outcome:
    def read(ref: ObjectRef) -> Any:
        assert str(ref) == "Deployment shop/db"
        if isinstance(found, Exception):
            raise found
        return found

    data = {
        "type": "k8s",
        "api_version": "apps/v1",
        "kind": "Deployment",
        "namespace": "shop",
        "name": "db",
        "expression": expression,
        "fields": fields,
    }
    return take(data, Surroundings(read_object=read))


@pytest.mark.parametrize(
    ("expression", "verdict"),
    [
        ("object.status.readyReplicas >= object.spec.replicas", "pass"),
        ("object.status.readyReplicas > object.spec.replicas", "fail"),
        ("object.status.conditions.exists(c, c.type == 'Available' && c.status == 'True')", "pass"),
        ("object.status.nothing == 1", "fail"),
        ("has(object.status.nothing)", "fail"),
        ("object.status.readyReplicas", "fail"),
        ("null", "fail"),
        ("''", "fail"),
        ("'true'", "fail"),
        ("1", "fail"),
        ("[true]", "fail"),
        ("true", "pass"),
        ("false", "fail"),
        ("object.status.readyReplicas +", "unknown"),
        ("1/0 == 1", "fail"),
    ],
)
def test_only_true_is_healthy(expression: str, verdict: str) -> None:
    assert k8s(expression).verdict == verdict


def test_objects_that_are_not_there_or_cannot_be_read() -> None:
    gone = k8s("true", None)
    assert (gone.verdict, gone.reason) == ("fail", "there is no Deployment shop/db")
    assert k8s("true", Unreachable("the API server does not answer")).verdict == "unknown"
    data = {"type": "k8s", "kind": "Pod", "name": "x", "expression": "true"}
    assert take(data).verdict == "unknown"


def test_fields_are_kept_for_oracles() -> None:
    found = k8s(
        "false",
        count="object.status.readyReplicas",
        image="object.spec.image",
        none="object.status.nothing",
        ready="object.status.readyReplicas > 1",
    )
    assert found.verdict == "fail"
    assert found.data == {"count": 2, "image": "pg:16", "none": None, "ready": True}


# --- the sampler -------------------------------------------------------------------------


def clock() -> RunClock:
    origin = time.monotonic_ns()
    return RunClock(lambda: (time.monotonic_ns() - origin, "2026-01-01T00:00:00Z"))


def collect(
    probes: dict[str, dict[str, Any]],
    seconds: float,
    during: Callable[[Sampler], None] | None = None,
) -> list[SampleRecord]:
    found: list[SampleRecord] = []
    specs = {name: parse_probe(data) for name, data in probes.items()}
    sampler = Sampler(specs, found.append, clock())
    sampler.start()
    if during:
        during(sampler)
    time.sleep(seconds)
    sampler.stop(5)
    return found


def test_samples_keep_their_rhythm_phase_and_clock() -> None:
    probe = {"type": "exec", "command": ["true"], "interval": "100ms"}

    def later(sampler: Sampler) -> None:
        time.sleep(0.35)
        sampler.phase = "hold"

    found = collect({"a": probe, "b": probe}, 0.4, later)
    for name in "ab":
        times = [s.t_ns for s in found if s.probe == name]
        assert 6 <= len(times) <= 9
        offsets = [(t - times[0]) / 1e8 for t in times]
        assert all(abs(o - round(o)) < 0.4 for o in offsets), "no drift"
    assert {s.phase for s in found} == {"before", "hold"}
    assert all(parse_record(record_line(s)) == s for s in found)


def test_a_slow_sample_leaves_out_starts_and_says_so() -> None:
    slow = {"type": "exec", "command": ["sleep", "0.25"], "interval": "100ms"}
    found = collect({"slow": slow}, 0.9)
    assert len(found) >= 2
    assert found[0].verdict == "pass"
    assert found[0].data.get("skipped") is None
    assert found[1].data["skipped"] == 2
    assert 2 * 10**8 < found[1].t_ns - found[0].t_ns < 4.5 * 10**8


def test_a_hanging_probe_does_not_stop_the_others_and_ends_as_a_failure() -> None:
    hang = {"type": "exec", "command": ["sleep", "60"], "interval": "100ms", "timeout": "400ms"}
    quick = {"type": "exec", "command": ["true"], "interval": "100ms"}
    found = collect({"hang": hang, "quick": quick}, 1.0)
    assert {s.verdict for s in found if s.probe == "hang"} == {"fail"}
    assert len([s for s in found if s.probe == "quick"]) >= 7


def test_stop_names_what_still_hangs_and_records_nothing_for_it() -> None:
    found: list[SampleRecord] = []
    hang = parse_probe({"type": "exec", "command": ["sleep", "2"], "timeout": "3s"})
    sampler = Sampler({"hang": hang}, found.append, clock())
    sampler.start()
    time.sleep(0.2)
    assert sampler.stop() == ["hang"]
    assert found == []
    before = threading.active_count()
    assert before >= 1

"""Chaos Mesh's objects: what each becomes, and that nothing is left out in silence."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from controller.cli.main import run
from controller.kube.chaosmesh import NOT_HERE, Mapped, Unmapped, is_chaos_mesh, parse
from controller.kube.chaosmesh_select import Unmappable, go_duration
from controller.kube.choose import ALL, HowMany
from controller.kube.discover import Query
from controller.kube.kinds import cluster_kinds
from controller.options import checked
from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec

SELECTOR = {"namespaces": ["shop"], "labelSelectors": {"app": "cart"}}


def document(kind: str, **spec: Any) -> dict[str, Any]:
    base = {"mode": "one", "selector": SELECTOR}
    return {"apiVersion": "chaos-mesh.org/v1alpha1", "kind": kind,
            "metadata": {"name": "x", "namespace": "chaos"}, "spec": {**base, **spec}}  # fmt: skip


def one(kind: str, **spec: Any) -> Mapped | Unmapped:
    return parse(json.dumps(document(kind, **spec)).encode())[0]  # JSON is YAML


DELAY = {"latency": "500ms", "jitter": "200ms", "correlation": "50"}
NOISE = [
    document("PodChaos", action="pod-kill", gracePeriod=0, duration="120s"),
    document("PodChaos", action="pod-failure", duration="45s"),
    document("NetworkChaos", action="delay", delay=DELAY, duration="120s"),
    document("NetworkChaos", action="loss", loss={"loss": "50", "correlation": "50"},
             duration="120s"),
]  # fmt: skip
"""The four entries of SREGym's catalogue of noise."""


def test_sregyms_four_noise_entries_map() -> None:
    raw = yaml.safe_dump_all(NOISE).encode()
    assert is_chaos_mesh(raw)
    found = [m for m in parse(raw) if isinstance(m, Mapped)]
    assert [(m.kind, dict(m.spec)) for m in found] == [
        ("pod-kill", {"grace": "0s"}),
        ("pod-failure", {}),
        ("netem", {"delay": "500ms", "jitter": "200ms", "delay_correlation": "50%"}),
        ("netem", {"loss": "50%", "loss_correlation": "50%"}),
    ]
    assert [m.duration for m in found] == [timedelta(seconds=n) for n in (120, 45, 120, 120)]
    for m in found:
        assert (m.query.namespace, m.query.labels) == ("shop", "app=cart")
        assert m.ask.how_many == HowMany(number=1)
        own = cluster_kinds().get(m.kind)
        checked(own.spec if own else kind_named(m.kind).spec, dict(m.spec))


PEER = {"mode": "all", "selector": {"namespaces": ["data"], "labelSelectors": {"app": "db"}}}
BW = {"rate": "10mbps", "limit": 0, "buffer": 10000}
IO = {"volumePath": "/data", "errno": 5}
CASES: list[tuple[str, dict[str, Any], str, dict[str, Any]]] = [
    ("NetworkChaos", {"action": "partition", "direction": "both", "target": PEER}, "partition",
     {"direction": "both"}),
    ("NetworkChaos", {"action": "partition", "externalTargets": ["10.0.0.0/8", "fd00::1"]},
     "partition", {"direction": "egress", "to": "10.0.0.0/8,fd00::1"}),
    ("NetworkChaos", {"action": "bandwidth", "bandwidth": BW, "device": "eth1"}, "bandwidth",
     {"interface": "eth1", "rate": "10MiB/s", "burst": "10000B"}),
    ("NetworkChaos", {"action": "bandwidth",
                      "bandwidth": {"rate": "1mbps", "limit": 20_981_520, "buffer": 10_000}},
     "bandwidth", {"rate": "1MiB/s", "burst": "10000B", "latency": "20s"}),
    ("NetworkChaos", {"action": "netem", "direction": "from", "duplicate": {"duplicate": "1.50"},
                      "corrupt": {"corrupt": "2", "correlation": "0"}, "rate": {"rate": "8bps"}},
     "netem", {"direction": "ingress", "duplicate": "1.5%", "corrupt": "2%", "rate": "8B/s"}),
    ("NetworkChaos", {"action": "delay", "delay": {"latency": "1m30s", "jitter": "0ms",
                      "reorder": {"reorder": "25", "correlation": "10", "gap": 5}}},
     "netem", {"delay": "1m30s", "reorder": "25%", "reorder_correlation": "10%", "gap": 5}),
    ("StressChaos", {"stressors": {"cpu": {"workers": 2, "load": 50},
                                   "memory": {"workers": 1, "size": "256MB"}}},
     "stress", {"cpu": 2, "load": "50%", "memory": "256000000B"}),
    ("StressChaos", {"stressors": {"memory": {"size": "50%"}}, "containerNames": ["app"]},
     "stress", {"memory_percent": "50%"}),
    ("IOChaos", {"action": "fault", "methods": ["read", "fsync"], "percent": 10,
                 "path": "/data/base/**/*", **IO},
     "syscall", {"call": ["read-family", "fsync-family"], "errno": "EIO", "rate": "10%",
                 "path": ["/data/base/**"]}),
    ("BlockChaos", {"action": "delay", "volumeName": "data", "delay": {"latency": "300ms"}},
     "disk-delay", {"read": "300ms", "write": "300ms"}),
    ("PodChaos", {"action": "container-kill", "containerNames": ["app"]}, "kill", {}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "spec", "becomes", "wanted"), CASES)
def test_what_maps(kind: str, spec: dict[str, Any], becomes: str, wanted: dict[str, Any]) -> None:
    found = one(kind, **spec)
    assert isinstance(found, Mapped), found
    assert (found.kind, dict(found.spec)) == (becomes, wanted)
    own = cluster_kinds().get(becomes)
    checked(own.spec if own else kind_named(becomes).spec, dict(found.spec))
    if spec.get("target"):
        assert found.peers == Query("data", labels="app=db")
    if "containerNames" in spec:
        assert found.ask.containers == ("app",)
    if becomes == "disk-delay":
        assert found.ask.volume == "data"


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("PodChaos", {"action": "pod-kill", "newField": 1}, "newField"),
    ("PodChaos", {"action": "melt"}, "action melt"),
    ("PodChaos", {"action": "container-kill"}, "containerNames"),
    ("PodChaos", {"action": "pod-kill", "mode": "random-max-percent", "value": "50"}, "mode"),
    ("PodChaos", {"action": "pod-kill", "mode": "fixed", "value": "0"}, "how many"),
    ("PodChaos", {"action": "pod-kill", "duration": "5"}, "not a duration"),
    ("PodChaos", {"action": "pod-kill", "remoteCluster": "b"}, "remoteCluster"),
    ("PodChaos", {"action": "pod-kill", "selector": {"namespaces": ["a", "b"]}}, "namespaces"),
    ("PodChaos", {"action": "pod-kill", "selector": {"annotationSelectors": {"a": "b"}}},
     "annotationSelectors"),
    ("PodChaos", {"action": "pod-kill", "selector": {"podPhaseSelectors": ["Pending"]}}, "Phase"),
    ("PodChaos", {"action": "pod-kill", "selector": {"pods": {"a": ["p"]}}}, "mode all"),
    ("PodChaos", {"action": "pod-kill", "selector": {"labelSelectors": {"-": "x"}}}, "label"),
    ("NetworkChaos", {"action": "delay", "loss": {"loss": "1"}, "delay": {"latency": "1s"}},
     "loss: not with action delay"),
    ("NetworkChaos", {"action": "netem"}, "nothing to do"),
    ("NetworkChaos", {"action": "delay", "delay": {"latency": "1s", "slot": 1}}, "slot"),
    ("NetworkChaos", {"action": "partition", "externalTargets": ["example.com"]}, "is a name"),
    ("NetworkChaos", {"action": "partition", "targetDevice": "eth0"}, "targetDevice"),
    ("NetworkChaos", {"action": "partition", "target": {**PEER, "mode": "one"}}, "target.mode"),
    ("NetworkChaos", {"action": "bandwidth", "bandwidth": {"rate": "1kbps", "limit": 70_000}},
     "a minute at most"),
    ("NetworkChaos", {"action": "bandwidth", "bandwidth": {"rate": "10mbit"}}, "not a rate"),
    ("StressChaos", {"stressngStressors": "--cpu 1"}, "stressngStressors"),
    ("StressChaos", {"stressors": {}}, "none"),
    ("StressChaos", {"stressors": {"cpu": {"workers": 1, "options": ["x"]}}}, "options"),
    ("StressChaos", {"stressors": {"memory": {"size": "lots"}}}, "not a size"),
    ("IOChaos", {"action": "latency", "delay": "1s", **IO}, "delay"),
    ("IOChaos", {"action": "attrOverride", **IO}, "only fault"),
    ("IOChaos", {"action": "fault", **IO}, "all of them"),
    ("IOChaos", {"action": "fault", "methods": ["statfs"], **IO}, "statfs"),
    ("IOChaos", {"action": "fault", "methods": ["read"], "path": "/data/*.db", **IO}, "path"),
    ("IOChaos", {"action": "fault", "methods": ["read"], "volumePath": "/d", "errno": 9999},
     "errno 9999"),
    ("BlockChaos", {"action": "delay", "volumeName": "d",
                    "delay": {"latency": "1s", "jitter": "1ms"}}, "jitter"),
    ("Schedule", {"schedule": "*/5 * * * *", "type": "PodChaos"}, "only @every"),
    ("Schedule", {"schedule": "@every 5m", "type": "PodChaos"}, "its spec is missing"),
    ("Schedule", {"schedule": "@every 5m", "type": "PodChaos", "podChaos": {
        "action": "pod-failure", "mode": "one", "selector": SELECTOR}}, "duration: is missing"),
    ("NewChaos", {}, "not known here"),
    *((kind, {}, kind) for kind in NOT_HERE),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "spec", "words"), BAD)
def test_what_does_not_map_is_named(kind: str, spec: dict[str, Any], words: str) -> None:
    found = one(kind, **spec)
    assert isinstance(found, Unmapped), found
    assert words in found.reason and found.source == f"{kind} chaos/x"


def test_selectors_become_ours() -> None:
    selector = {
        "labelSelectors": {"a": "b"}, "nodes": ["n1"], "nodeSelectors": {"disk": "ssd"},
        "expressionSelectors": [{"key": "t", "operator": "In", "values": ["x", "y"]},
                                {"key": "u", "operator": "DoesNotExist"}],
        "fieldSelectors": {"metadata.name": "p"}, "podPhaseSelectors": ["Running"],
    }  # fmt: skip
    found = one("PodChaos", action="pod-kill", selector=selector, mode="fixed-percent", value="30")
    assert isinstance(found, Mapped)
    assert found.query == Query("chaos", labels="a=b,t in (x,y),!u", fields="metadata.name=p",
                                node_labels="disk=ssd")  # fmt: skip
    assert str(found.ask.how_many) == "30%" and found.ask.nodes == ("n1",)
    named = one("PodChaos", action="pod-kill", mode="all", selector={"pods": {"shop": ["a", "b"]}})
    assert isinstance(named, Mapped) and named.query.names == ("a", "b")
    all_of = one("PodChaos", action="pod-kill", mode="all")
    assert isinstance(all_of, Mapped) and all_of.ask.how_many == ALL


def test_a_schedule_of_every_so_long() -> None:
    inner = {"mode": "one", "selector": SELECTOR, "action": "pod-failure", "duration": "30s"}
    spec = {"schedule": "@every 5m", "type": "PodChaos", "podChaos": inner, "historyLimit": 2}
    found = one("Schedule", **spec)
    assert isinstance(found, Mapped)
    assert (found.kind, found.every) == ("pod-failure", timedelta(minutes=5))
    assert found.notes[-1] == "every 5m, the first time after as long"
    late = one("Schedule", **{**spec, "schedule": "@every 30s"})
    assert isinstance(late, Unmapped) and "before the next" in late.reason


@pytest.mark.parametrize(
    "raw",
    [b"", b"a: 1", b"apiVersion: v1\nkind: Pod", b"- [", b"x: &a 1\ny: *a", b"\xff\xfe",
     b"!!python/object/apply:os.system [x]", b"[" * 5000],
)  # fmt: skip
def test_what_is_no_such_file_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidSpec):
        parse(raw)
    assert not is_chaos_mesh(raw)


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=2),
                            st.dictionaries(st.text(max_size=6), inner, max_size=2)),
    max_leaves=6,
)  # fmt: skip


@given(
    st.sampled_from(["PodChaos", "NetworkChaos", "StressChaos", "IOChaos", "BlockChaos",
                     "Schedule"]),
    st.dictionaries(
        st.sampled_from(["action", "mode", "value", "selector", "duration", "delay", "stressors",
                         "methods", "errno", "schedule", "type", "target", "direction"]),
        st.one_of(JSON, st.sampled_from(["delay", "one", "fault", "pod-kill", "netem"])),
    ),
)  # fmt: skip
def test_any_spec_maps_or_is_named(kind: str, spec: dict[str, Any]) -> None:
    raw = json.dumps({**document(kind), "spec": spec}).encode()
    (found,) = parse(raw)
    assert isinstance(found, Mapped | Unmapped)
    if isinstance(found, Unmapped):
        assert found.reason


def test_go_durations() -> None:
    assert go_duration("1h2m3.5s") == timedelta(hours=1, minutes=2, seconds=3.5)
    for bad in ("", "5", "1 s", "1d", "s"):
        with pytest.raises(Unmappable):
            go_duration(bad)


# --- the run ----------------------------------------------------------------------


def test_a_file_is_shown_and_refused_unless_all_of_it_maps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chaos.yaml"
    path.write_text(yaml.safe_dump_all([*NOISE, document("TimeChaos", timeOffset="1h")]))
    assert run(["run", str(path), "--plan", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["kind"] for row in rows] == ["pod-kill", "pod-failure", "netem", "netem", None]
    assert run(["run", str(path)]) == 3
    said = capsys.readouterr()
    assert "NOT MAPPED" in said.out and "1 of 5 objects have no equal" in said.err


def test_a_container_kill_is_over_at_once() -> None:
    found = one("PodChaos", action="container-kill", containerNames=["app"])
    assert isinstance(found, Mapped) and found.duration == timedelta(seconds=1)
    inner = {"action": "container-kill", "mode": "one", "selector": SELECTOR,
             "containerNames": ["app"]}  # fmt: skip
    every = one("Schedule", schedule="@every 1m", type="PodChaos", podChaos=inner)
    assert isinstance(every, Mapped) and every.every == timedelta(minutes=1)

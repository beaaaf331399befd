"""The API client over HTTP: pages, expired things, refusals by verb and resource, watches."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_api import FakeApi, fake_api

from controller.kube import client as client_module
from controller.kube.agents import Access, Agents, agent_pods
from controller.kube.answers import ApiPath, Expired
from controller.kube.client import Cluster
from controller.kube.discover import Query, find_nodes, find_pods, owner_of
from controller.kube.reader import ObjectReader
from controller.probes.measure import Meter, Surroundings
from controller.probes.spec import K8sProbe
from nodeagent.model.errors import Conflict, InvalidSpec, Refused, Unreachable

PODS = ApiPath("pods", "shop")
AGENT = {"app.kubernetes.io/name": "faultd"}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    monkeypatch.setattr(client_module, "PAUSE_S", 0.01)
    with fake_api(tmp_path) as found:
        found.namespace("shop")
        found.node("n1")
        yield found


@pytest.fixture
def cluster(api: FakeApi) -> Cluster:
    return Cluster(api.kubeconfig())


def test_five_thousand_agents_are_found_in_pages(api: FakeApi, cluster: Cluster) -> None:
    """CASES 166."""
    for number in range(5000):
        api.pod("faultctl-system", f"faultd-{number:04}", f"node-{number}", AGENT)
    with Agents(cluster, Access()) as agents:
        assert len(agents.pods()) == 5000
    pages = [path for _, path in api.requests if "faultctl-system/pods" in path]
    assert len(pages) == 10 and "limit=500" in pages[0]


def test_a_list_that_expired_between_pages_is_begun_anew(api: FakeApi, cluster: Cluster) -> None:
    for number in range(1200):
        api.pod("shop", f"p{number}")
    api.expire_lists = 1
    items, version = cluster.listed(PODS)
    assert len({one["metadata"]["name"] for one in items}) == len(items) == 1200
    assert version == str(api.version)


def test_a_refusal_names_verb_resource_and_namespace(api: FakeApi, cluster: Cluster) -> None:
    api.forbidden |= {("list", "pods"), ("get", "nodes"), ("list", "nodes")}
    with pytest.raises(Refused) as no:
        cluster.listed(PODS)
    assert no.value.what == "you may not list pods in namespace shop"
    assert "cannot list" in no.value.why and "verb 'list' on resource 'pods'" in no.value.hint
    with pytest.raises(Refused, match="in the whole cluster") as no:
        find_nodes(cluster)
    assert "ClusterRole" in no.value.hint
    with pytest.raises(Refused, match="you may not get nodes"):
        cluster.get(ApiPath("nodes", name="n1"))
    path = ApiPath("pods", "shop", "x", subresource="portforward")
    assert path.shown == "pods/portforward"
    assert ApiPath("jobs", "a", "b", "batch").url == "/apis/batch/v1/namespaces/a/jobs/b"


def test_an_expired_token_is_renewed_once_and_then_said(api: FakeApi, cluster: Cluster) -> None:
    api.bearer = "new"
    with pytest.raises(Refused, match="does not accept your credentials"):
        cluster.listed(PODS)
    api.kubeconfig(bearer="new")  # as a plugin or a login does
    assert cluster.listed(PODS)[0] == []


def test_a_bad_moment_passes(api: FakeApi, cluster: Cluster) -> None:
    api.bad = [503, 429, 500]
    assert cluster.listed(PODS)[0] == []
    api.bad = [503] * 9
    with pytest.raises(Unreachable, match="503"):
        cluster.listed(PODS)
    api.bad = [409]
    with pytest.raises(Conflict):
        cluster.patch(ApiPath("namespaces", name="shop"), {"a": 1})
    api.bad = [422]
    with pytest.raises(InvalidSpec, match="a bad moment"):
        cluster.create(PODS, {"metadata": {"name": "x"}})


def test_a_create_is_never_tried_twice(api: FakeApi, cluster: Cluster) -> None:
    api.bad = [500]
    with pytest.raises(Unreachable):
        cluster.create(PODS, {"metadata": {"name": "x"}})
    assert len([1 for method, _ in api.requests if method == "POST"]) == 1


def test_no_server_and_no_kubeconfig_are_one_error_each(
    tmp_path: Path, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = api.kubeconfig()
    config.write_text(config.read_text().replace(api.url, "http://127.0.0.1:9"))
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9 does not answer"):
        Cluster(config).listed(PODS)
    for text in ("", "{", "[]", "clusters: []", "a: b"):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(InvalidSpec, match="no cluster is known"):
            Cluster(tmp_path / "bad")
    with pytest.raises(InvalidSpec, match="no cluster is known"):
        Cluster(tmp_path / "missing")
    with pytest.raises(InvalidSpec, match="no cluster is known"):
        Cluster(api.kubeconfig(), "nobody")


def test_single_objects_come_and_go(api: FakeApi, cluster: Cluster) -> None:
    path = ApiPath("pods", "shop", "a")
    assert cluster.get(path) is None and cluster.delete(path) is False
    cluster.create(PODS, {"metadata": {"name": "a"}, "x": {"y": 1, "z": 2}})
    assert cluster.patch(path, {"x": {"y": None}})["x"] == {"z": 2}
    assert cluster.delete(path) is True
    with pytest.raises(Refused, match="there is no pods a"):
        cluster.patch(path, {})


def test_a_watch_gives_what_comes_and_says_when_it_is_too_old(
    api: FakeApi, cluster: Cluster
) -> None:
    api.pod("shop", "a", labels={"app": "x"})
    _, version = cluster.listed(PODS)
    seen: list[tuple[str, str]] = []

    def follow() -> None:
        for event in cluster.watch(PODS, version, "app=x", seconds=1):
            seen.append((event["type"], event["object"]["metadata"]["name"]))

    thread = threading.Thread(target=follow)
    thread.start()
    time.sleep(0.1)
    api.pod("shop", "b", labels={"app": "x"})
    api.pod("shop", "c", labels={"app": "y"})
    api.drop("/api/v1/namespaces/shop/pods/a")
    thread.join(10)
    assert seen == [("ADDED", "b"), ("DELETED", "a")]
    api.log = api.log[-1:]
    with pytest.raises(Expired):
        list(cluster.watch(PODS, "1", seconds=1))
    api.forbidden.add(("watch", "pods"))
    with pytest.raises(Refused, match="you may not watch pods"):
        list(cluster.watch(PODS, version, seconds=1))


# --- discovery --------------------------------------------------------------------


def test_pods_of_an_owner_are_its_own_not_those_with_the_same_labels(
    api: FakeApi, cluster: Cluster
) -> None:
    head = "/apis/apps/v1/namespaces/shop"
    spec = {"selector": {"matchLabels": {"app": "cart"}}}
    dep = api.put(f"{head}/deployments/cart", {"spec": spec})["metadata"]["uid"]
    mine = {"ownerReferences": [{"uid": dep, "controller": True}], "labels": {"app": "cart"}}
    rs = api.put(f"{head}/replicasets/cart-1", {"metadata": mine})["metadata"]["uid"]
    owner = {"kind": "ReplicaSet", "name": "cart-1", "uid": rs, "controller": True}
    api.pod("shop", "cart-1-a", labels={"app": "cart"}, meta={"ownerReferences": [owner]})
    api.pod("shop", "stray", labels={"app": "cart"})
    found = find_pods(cluster, Query("shop", owner="deploy/cart"))
    assert [pod.name for pod in found] == ["cart-1-a"]
    with pytest.raises(Refused, match="no deployment shop/none"):
        find_pods(cluster, Query("shop", owner="deployment/none"))


@pytest.mark.parametrize("text", ["cart", "service/x", "deployment/", "/x", ""])
def test_an_owner_is_kind_and_name(text: str) -> None:
    with pytest.raises(InvalidSpec):
        owner_of(text)
    assert owner_of("StatefulSets/db") == ("statefulset", "db")


def test_a_namespace_has_to_be_there_and_stay(api: FakeApi, cluster: Cluster) -> None:
    with pytest.raises(Refused, match="no namespace nope"):
        find_pods(cluster, Query("nope"))
    api.namespace("going", deletionTimestamp="2026-01-01T00:00:00Z")
    with pytest.raises(Refused, match="being deleted"):
        find_pods(cluster, Query("going"))
    api.forbidden.add(("get", "namespaces"))
    assert find_pods(cluster, Query("nope")) == [], "who may not read namespaces may go on"


# --- agents -----------------------------------------------------------------------


def test_of_two_agents_on_a_node_the_ready_one_is_asked(api: FakeApi) -> None:
    old = api.pod("faultctl-system", "a", "n1", AGENT, meta={"deletionTimestamp": "now"})
    new = api.pod("faultctl-system", "b", "n1", AGENT)
    late = {**new, "status": {"podIP": "10.0.0.9", "conditions": []}}
    assert agent_pods([old, new, late])["n1"].name == "b"
    assert agent_pods([late, new])["n1"].ready
    port = {"spec": {"nodeName": "n", "containers": [{"ports": [
        {"name": "grpc", "containerPort": 9}]}]}, "metadata": {"name": "x"},
        "status": {"podIP": "fd00::1"}}  # fmt: skip
    assert agent_pods([port])["n"].direct == "tcp://[fd00::1]:9"


def test_nodes_without_an_agent_are_named(api: FakeApi, cluster: Cluster) -> None:
    with Agents(cluster, Access(direct=True)) as agents:
        with pytest.raises(Refused, match="no agent runs in this cluster"):
            agents.pods()
        api.pod("faultctl-system", "a", "n1", AGENT)
        with pytest.raises(Refused, match="no agent runs on node n2"), agents.open("n2"):
            pass
        with pytest.raises(Refused, match="no client certificate"), agents.open("n1"):
            pass
        api.put("/api/v1/namespaces/faultctl-system/secrets/faultctl-client", {"data": {
            "tls.crt": "YQ==", "tls.key": "Yg==", "ca.crt": "!"}})  # fmt: skip
        with pytest.raises(Refused, match=r"has no ca\.crt"), agents.open("n1"):
            pass
        api.put("/api/v1/namespaces/faultctl-system/secrets/faultctl-client", {"data": {
            "tls.crt": "YQ==", "tls.key": "Yg==", "ca.crt": "Yw=="}})  # fmt: skip
        with agents.open("n1") as address:
            assert address.url == "tcp://10.0.0.1:7443" and address.server_name == "faultd"
            assert address.key is not None and address.key.read_text() == "b"
            assert address.key.stat().st_mode & 0o777 == 0o600
            home = address.key.parent
        api.drop("/api/v1/namespaces/faultctl-system/pods/a")
        api.pod("faultctl-system", "b", "n1", AGENT, ip="10.0.0.2")
        with agents.open("n1") as address:
            assert address.url == "tcp://10.0.0.2:7443", "a restarted agent is another pod"
    assert not home.exists(), "keys of a Secret do not stay behind"


# --- k8s probes -------------------------------------------------------------------


def test_a_k8s_probe_reads_with_the_users_kubeconfig_and_not_before_it_is_asked(
    api: FakeApi, tmp_path: Path
) -> None:
    api.put("/api/v1", {"resources": [
        {"name": "pods", "kind": "Pod", "namespaced": True},
        {"name": "pods/status", "kind": "Pod", "namespaced": True}]})  # fmt: skip
    api.pod("shop", "a")
    read = ObjectReader(api.kubeconfig())
    around = Surroundings(read_object=read)

    def sample(**more: str) -> tuple[str, str]:
        spec = {"type": "k8s", "kind": "Pod", "namespace": "shop", "name": "a",
                "expression": "object.status.phase == 'Running'", **more}  # fmt: skip
        outcome, _ = Meter(K8sProbe.model_validate(spec), around).sample()
        return str(outcome.verdict), outcome.reason

    assert sample()[0] == "pass"
    assert sample(name="b") == ("fail", "there is no Pod shop/b")
    assert sample(kind="Nope")[0] == "unknown"
    assert sample(namespace="")[0] == "unknown"
    api.forbidden.add(("get", "pods"))
    verdict, why = sample()
    assert verdict == "unknown" and "you may not get pods" in why, "no right is no failure"
    nowhere = Meter(K8sProbe.model_validate({"type": "k8s", "kind": "Pod", "name": "a",
        "namespace": "x", "expression": "true"}),
        Surroundings(read_object=ObjectReader(tmp_path / "none")))  # fmt: skip
    assert str(nowhere.sample()[0].verdict) == "unknown"


def test_many_that_look_for_their_agents_anew_at_once_are_a_few_lists(
    api: FakeApi, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a hiccup of the API server each node's way is opened again."""
    api.pod("faultctl-system", "faultd-1", "n1", AGENT)
    lists, real, together = [], cluster.listed, threading.Barrier(50)

    def listed(*args: str) -> object:
        lists.append(args)
        time.sleep(0.3)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cluster, "listed", listed)

    def look(_: int) -> bool:
        together.wait(20)
        return "n1" in agents.pods(fresh=True)

    with Agents(cluster, Access()) as agents, ThreadPoolExecutor(50) as pool:
        assert all(pool.map(look, range(50)))
        assert 1 <= len(lists) < 10
        api.pod("faultctl-system", "faultd-new", "new", AGENT)
        assert "new" in agents.pods(fresh=True), "who asks later asks anew"

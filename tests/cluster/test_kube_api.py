"""What the unit tests' small API server stands for, against the real one."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubeapi import Api

from controller.kube import node_condition
from controller.kube.announce import announce
from controller.kube.answers import ApiPath
from controller.kube.client import JSON_PATCH, Cluster
from controller.kube.discover import Query, denied, find_nodes, find_pods
from controller.kube.labels import parse_selector
from controller.kube.node_condition import Said, refresh, settle
from controller.kube.reader import ObjectReader
from controller.kube.resolve import Wanted, resolve_pods
from controller.kube.select import Ask
from controller.probes.k8s import ObjectRef, measure
from controller.probes.spec import K8sProbe
from nodeagent.faults import kind_named
from nodeagent.model.errors import InvalidSpec, Refused, Unreachable

IMAGE = "registry.invalid/none"
ANNOUNCER = Path(__file__).parents[2] / "daemonset" / "announcer.yaml"


def pod(name: str, namespace: str, node: str = "t-node", **labels: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": namespace, "labels": labels}
    spec = {"nodeName": node, "containers": [{"name": "app", "image": IMAGE}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def running(name: str, namespace: str, ip: str = "10.1.0.1") -> dict[str, Any]:
    """The status that a kubelet would write."""
    state = {"name": "app", "containerID": "containerd://" + "a" * 64, "ready": True,
             "image": IMAGE, "imageID": "", "restartCount": 0,
             "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}  # fmt: skip
    status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}],
              "containerStatuses": [state],
              "conditions": [{"type": "Ready", "status": "True"}]}  # fmt: skip
    meta = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "status": status}


@pytest.fixture
def client(api: Api) -> Cluster:
    return Cluster(api.kubeconfig)


@pytest.fixture
def space(api: Api) -> str:
    """A namespace with three running pods on a node that is Ready, and one that is Pending."""
    name = api.namespace()
    api.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "t-node"}})
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "test"}]}
    api.apply(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "t-node"}, "status": ready},
        subresource="status",
    )
    api.apply(*(pod(f"cart-{n}", name, app="cart") for n in range(3)), pod("late", name, app="x"))
    api.apply(*(running(f"cart-{n}", name) for n in range(3)), subresource="status")
    return name


def test_selectors_mean_what_the_server_means(api: Api, client: Cluster) -> None:
    """CASES 35: each text, by our own matching and by the API server's."""
    name = api.namespace()
    labels = [{}, {"a": ""}, {"a": "x"}, {"a": "x", "b": "1"}, {"b": "7"}, {"c.d/e": "x"}]
    api.apply(*(pod(f"p{n}", name, **one) for n, one in enumerate(labels)))
    for text in ("a", "!a", "a=", "a=x", "a==x", "a!=x", "a in (x,)", "a notin (x)", "b>1", "b<7",
                 "c.d/e=x,!a", "a , b", "a in (x,y),b!=2", "in in (in)"):  # fmt: skip
        found = {one.name for one in find_pods(client, Query(name, labels=text))}
        mine = {f"p{n}" for n, one in enumerate(labels) if parse_selector(text).matches(one)}
        assert found == mine, text


@pytest.mark.parametrize(
    "text", ["a=b=c", "a in x", "(a)", "a,,b", "=x", "a=" + "v" * 64, "-a", "a!b", "a>x"]
)
def test_what_we_refuse_the_server_refuses_too(api: Api, client: Cluster, text: str) -> None:
    with pytest.raises(InvalidSpec, match="column"):
        parse_selector(text)
    with pytest.raises(InvalidSpec, match="does not take this"):
        client.listed(ApiPath("pods", "default"), text)


def test_a_selection_over_the_real_api(api: Api, client: Cluster, space: str) -> None:
    query = Query(space, labels="app=cart", fields="spec.nodeName=t-node")
    ask = Ask(space, selective=True, seed="1")
    wanted = Wanted("g-1", kind_named("netem"), query, ask, {}, {"spec": {"delay": "1ms"}})
    with pytest.raises(Refused, match="3 pods match"):
        resolve_pods(client, wanted)
    named = Wanted("g-1", wanted.kind, Query(space, ("cart-1",)), Ask(space, ("cart-1",)), {},
                   wanted.base)  # fmt: skip
    found = resolve_pods(client, named)
    uid = api.json("get", "pod", "-n", space, "cart-1")["metadata"]["uid"]
    assert [item.request.target["uid"] for item in found.items] == [uid]
    pending = Wanted("g-1", wanted.kind, Query(space, ("late",)), Ask(space, ("late",)), {}, {})
    with pytest.raises(Refused, match="Pending"):
        resolve_pods(client, pending)
    assert "t-node" in find_nodes(client) and not find_nodes(client, "no=such")
    api.kubectl("delete", "pod", "-n", space, "cart-1", "--wait=false")
    with pytest.raises(Refused, match="being deleted"):
        resolve_pods(client, named)


def test_pods_of_a_deployment_are_found_through_its_replica_sets(api: Api, client: Cluster) -> None:
    name = api.namespace()
    template = {"metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "app", "image": IMAGE}]}}  # fmt: skip
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template}
    api.apply(
        {"apiVersion": "apps/v1", "kind": "Deployment",
         "metadata": {"name": "web", "namespace": name}, "spec": spec},
        pod("stray", name, app="web", x="y"),
    )  # fmt: skip
    end = time.monotonic() + 60
    found: list[str] = []
    while len(found) < 2 and time.monotonic() < end:
        found = [p.name for p in find_pods(client, Query(name, owner="deployment/web"))]
        time.sleep(0.2)
    assert len(found) == 2 and all(one.startswith("web-") for one in found)


def test_a_long_list_comes_in_pages(api: Api, client: Cluster) -> None:
    name = api.namespace()
    names = [f"c{n:04}" for n in range(620)]
    api.apply(*({"apiVersion": "v1", "kind": "ConfigMap",
                 "metadata": {"name": one, "namespace": name}} for one in names))  # fmt: skip
    items, version = client.listed(ApiPath("configmaps", name))
    assert set(names) <= {one["metadata"]["name"] for one in items} and version.isdigit()


def test_rights_and_credentials_are_named(api: Api, client: Cluster, space: str) -> None:
    assert denied(client, (space,)) == ()
    if api.plane is None:
        return  # the user's own cluster: its users are not ours to make
    limited = Cluster(api.plane.kubeconfig("limited"))
    with pytest.raises(Refused) as no:
        find_pods(limited, Query(space))
    assert no.value.what == f"you may not list pods in namespace {space}"
    assert "cannot list resource" in no.value.why and "'list'" in no.value.hint
    assert denied(limited, (space,)) == (space,)
    with pytest.raises(Refused, match="you may not patch nodes in the whole cluster"):
        limited.patch(ApiPath("nodes", name="t-node"), {})
    with pytest.raises(Refused, match="does not accept your credentials"):
        Cluster(api.plane.kubeconfig(token="wrong")).listed(ApiPath("nodes"))  # noqa: S106
    with pytest.raises(Unreachable, match="does not answer"):
        Cluster(api.plane.kubeconfig(url="https://127.0.0.1:9")).listed(ApiPath("nodes"))


def test_a_watch_and_its_end(api: Api, client: Cluster, space: str) -> None:
    path = ApiPath("pods", space)
    _, version = client.listed(path)
    seen: list[tuple[str, str]] = []

    def follow() -> None:
        for event in client.watch(path, version, "app=new", seconds=4):
            if event["type"] != "BOOKMARK":
                seen.append((event["type"], event["object"]["metadata"]["name"]))

    thread = threading.Thread(target=follow)
    thread.start()
    api.apply(pod("new-1", space, app="new"), pod("old-1", space, app="old"))
    api.kubectl("delete", "pod", "-n", space, "new-1", "--force", "--grace-period=0")
    thread.join(60)
    assert seen[0] == ("ADDED", "new-1") and ("DELETED", "new-1") in seen
    assert {name for _, name in seen} == {"new-1"}


def test_patches_and_conflicts(api: Api, client: Cluster, space: str) -> None:
    path = ApiPath("pods", space, "cart-0")
    client.patch(path, {"metadata": {"labels": {"new": "x"}}})
    good = [{"op": "test", "path": "/metadata/labels/new", "value": "x"},
            {"op": "remove", "path": "/metadata/labels/new"}]  # fmt: skip
    found = client.patch(path, good, JSON_PATCH)
    assert "new" not in found["metadata"]["labels"]
    with pytest.raises(InvalidSpec):
        client.patch(path, good, JSON_PATCH)
    assert client.get(ApiPath("pods", space, "none")) is None
    assert client.delete(ApiPath("pods", space, "none")) is False


def test_a_k8s_probe_reads_live_objects(api: Api, tmp_path: Path, space: str) -> None:
    read = ObjectReader(api.kubeconfig)

    def sample(**more: Any) -> Any:
        spec = {
            "type": "k8s",
            "api_version": "v1",
            "kind": "Pod",
            "namespace": space,
            "name": "cart-0",
            "expression": "object.status.phase == 'Running'",
            **more,
        }
        return measure(K8sProbe.model_validate(spec), read)  # fmt: skip

    assert str(sample().verdict) == "pass"
    assert str(sample(name="late").verdict) == "fail"
    assert "no Pod" in sample(name="none").reason
    assert str(sample(kind="Nope").verdict) == "unknown"
    assert str(sample(api_version="no.such/v9", kind="X").verdict) == "unknown"
    quotas = sample(api_version="apps/v1", kind="Deployment", name="none")
    assert "there is no Deployment" in quotas.reason
    ref = ObjectRef("v1", "Node", "", "t-node")
    found = read(ref)
    assert found is not None and found["kind"] == "Node"
    gone = ObjectReader(tmp_path / "none")
    with pytest.raises(Unreachable):
        gone(ref)


def test_an_event_is_taken_and_shown_by_describe(api: Api, client: Cluster, space: str) -> None:
    named = Wanted("g-2", kind_named("netem"), Query(space, ("cart-0",)), Ask(space, ("cart-0",)),
                   {}, {"spec": {"delay": "1ms"}})  # fmt: skip
    items = resolve_pods(client, named).items
    assert announce(client, items, "FaultArmed", "netem (g-2)") == []
    assert "netem (g-2)" in api.kubectl("describe", "pod", "-n", space, "cart-0").stdout


class Agents:
    """Stands for the agents of all nodes, which have these faults; the API server is real."""

    def __init__(self, *active: str) -> None:
        self.active = active

    def everywhere(self, nodes: Any, work: Any) -> Any:
        return {node: work(node, self) for node in nodes}, []

    def faults(self, *, active_only: bool) -> list[Any]:
        assert active_only
        return [SimpleNamespace(id=one) for one in self.active]


def said(group: str, minutes: int = 5) -> Said:
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=minutes)
    return Said("netem", group, until)


def condition(api: Api, name: str) -> dict[str, Any]:
    found = {one["type"]: one for one in api.json("get", "node", name)["status"]["conditions"]}
    assert found["Ready"]["status"] == "True", "others' conditions are theirs"
    return dict(found.get("FaultInjected", {}))


@pytest.fixture
def bare_node(api: Api) -> Iterator[str]:
    name = f"t-{secrets.token_hex(3)}"
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    ready = {"conditions": [{"type": "Ready", "status": "True", "reason": "test"}]}
    api.apply(made)
    api.apply({**made, "status": ready}, subresource="status")
    yield name
    api.kubectl("delete", "node", name, "--wait=false")


def test_a_nodes_condition_tells_of_announced_faults(
    api: Api, client: Cluster, bare_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bare_node
    assert settle(client, Agents("x-1"), {name}) == [] and condition(api, name) == {}  # type: ignore[arg-type]
    one, two = said("g-1"), said("g-2", 9)
    assert refresh(client, Agents("g-1-1"), {name}, one) == []  # type: ignore[arg-type]
    first = condition(api, name)
    assert (first["status"], first["reason"], first["message"]) == (
        "True", "FaultArmed", one.text()
    )  # fmt: skip
    real, races = node_condition.change, [2]

    def raced(*given: Any) -> Any:
        """The kubelet writes between our read and our write."""
        body = real(*given)
        if races[0]:
            races[0] -= 1
            api.kubectl("label", "node", name, "--overwrite", f"race={races[0]}")
        return body

    monkeypatch.setattr(node_condition, "change", raced)
    assert refresh(client, Agents("g-1-1", "g-2-1"), {name}, two) == []  # type: ignore[arg-type]
    assert races == [0] and condition(api, name)["message"] == f"{one.text()}; {two.text()}"
    assert condition(api, name)["lastTransitionTime"] == first["lastTransitionTime"]
    assert settle(client, Agents("g-2-1", "x-1"), {name}) == []  # type: ignore[arg-type]
    assert condition(api, name)["message"] == two.text()
    api.kubectl("wait", "--for=condition=FaultInjected", f"node/{name}", "--timeout=5s")
    assert settle(client, Agents("x-1"), {name}) == []  # type: ignore[arg-type]
    last = condition(api, name)
    assert (last["status"], last["reason"], last.get("message", "")) == ("False", "NoFault", "")
    assert refresh(client, Agents(), {"no-such-node"}, one) == []  # type: ignore[arg-type]


def test_the_condition_takes_the_rights_of_the_announcer_and_no_more(
    api: Api, bare_node: str
) -> None:
    if api.plane is None:
        return  # the user's own cluster: its users are not ours to make
    limited = Cluster(api.plane.kubeconfig("limited"))
    (line,) = refresh(limited, Agents("g-3-1"), {bare_node}, said("g-3"))  # type: ignore[arg-type]
    assert f"no condition FaultInjected on {bare_node}: you may not get nodes" in line
    assert "a ClusterRole is missing with verb 'get' on resource 'nodes'" in line
    assert condition(api, bare_node) == {}
    api.kubectl("apply", "-f", str(ANNOUNCER))
    role = ("clusterrolebinding", "faultctl-announcer")
    api.kubectl("create", *role, "--clusterrole=faultctl-announcer", "--user=limited")
    try:
        end = time.monotonic() + 30  # the authorizer hears of it by a watch
        while refresh(limited, Agents("g-3-1"), {bare_node}, said("g-3")):  # type: ignore[arg-type]
            assert time.monotonic() < end
            time.sleep(0.2)
        assert condition(api, bare_node)["status"] == "True"
        assert settle(limited, Agents(), {bare_node}) == []  # type: ignore[arg-type]
        assert condition(api, bare_node)["status"] == "False"
    finally:
        api.kubectl("delete", *role)
        api.kubectl("delete", "-f", str(ANNOUNCER))

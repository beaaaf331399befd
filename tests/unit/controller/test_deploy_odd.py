"""Installing, upgrading and uninstalling in odd states, on an API server in small."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_api import FakeApi, fake_api

from controller.cli.main import run
from controller.kube import deploy, deploy_certs, deploy_left, manifests
from controller.kube.client import Cluster
from controller.kube.deploy import CLEAN, FAULTD, Deployment
from controller.kube.deploy_status import Rollout
from controller.kube.manifests import Options
from controller.kube.select import AGENT_LABEL
from nodeagent.model.errors import Refused, Unreachable
from nodeagent.model.protected import AGENT_NAMESPACE

SETS = f"/apis/apps/v1/namespaces/{AGENT_NAMESPACE}/daemonsets"
NEVER = {"phase": "Pending",
         "containerStatuses": [{"name": "faultd", "state": {"waiting": {
             "reason": "ImagePullBackOff"}}}]}  # fmt: skip
BROKEN = {"phase": "Running",
          "containerStatuses": [{"name": "faultd", "state": {"waiting": {
              "reason": "CrashLoopBackOff"}}}]}  # fmt: skip


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    with fake_api(tmp_path) as found:
        found.namespace(AGENT_NAMESPACE)
        found.namespace("kube-system")
        yield found


@pytest.fixture
def at(api: FakeApi) -> Deployment:
    return Deployment(Cluster(api.kubeconfig()), lambda line: None, 0.0)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The DaemonSets that were waited for; they are ready at once."""
    found: list[str] = []

    def wait(at: Deployment, name: str = FAULTD, again: str = "") -> Rollout:
        found.append(name)
        return Rollout(1, 1, 1, True)

    monkeypatch.setattr(deploy, "wait", wait)
    return found


def installed(api: FakeApi, image: str = "me/x:1", **options: Any) -> None:
    for one in manifests.installed(Options(image, "Never", **options)):
        if one["kind"] == "DaemonSet":
            api.put(f"{SETS}/{FAULTD}", one)


def agent(api: FakeApi, name: str, node: str, status: dict[str, Any]) -> None:
    found = [{"name": "faultd", "image": "i"}]
    api.pod(AGENT_NAMESPACE, name, node, dict([AGENT_LABEL]), containers=found)
    path = f"/api/v1/namespaces/{AGENT_NAMESPACE}/pods/{name}"
    api.put(path, {**api.objects[path], "status": status})


def image_of(api: FakeApi, name: str) -> str:
    found: str = api.objects[f"{SETS}/{name}"]["spec"]["template"]["spec"]["containers"][0]["image"]
    return found


def test_agents_that_never_ran_keep_no_upgrade_from_mending_them(
    api: FakeApi, at: Deployment, waited: list[str]
) -> None:
    """A wrong --image: install says that it is installed, and upgrade has nobody to ask."""
    installed(api, "me/x:wrong")
    agent(api, "faultd-1", "n1", NEVER)
    deploy.upgrade(at, Options("me/x:right"))
    assert waited == [FAULTD] and image_of(api, FAULTD) == "me/x:right"


def test_an_agent_that_ran_and_does_not_answer_is_still_in_the_way(
    api: FakeApi, at: Deployment, waited: list[str]
) -> None:
    installed(api)
    agent(api, "faultd-1", "n1", NEVER)
    agent(api, "faultd-2", "n2", BROKEN)
    with pytest.raises(Unreachable, match="1 agents do not say") as no:
        deploy.upgrade(at, Options("me/x:right"))
    assert "n2" in no.value.why and "n1" not in no.value.why
    assert image_of(api, FAULTD) == "me/x:1" and waited == []


def test_an_install_that_takes_too_long_says_what_goes_on_from_there(
    api: FakeApi, at: Deployment
) -> None:
    with pytest.raises(Unreachable, match="not done within") as late:
        deploy.install(at, Options("me/x:wrong"))
    assert "deploy status" in late.value.hint and "deploy upgrade" in late.value.hint
    with pytest.raises(Refused, match="is installed"):
        deploy.install(at, Options("me/x:wrong"))


def test_an_uninstall_that_is_said_again_cleans_with_the_same_image_on_the_same_nodes(
    api: FakeApi, at: Deployment, waited: list[str]
) -> None:
    """The agents have gone already: what they were is in the DaemonSet that cleans."""
    (cleaner,) = manifests.cleaning(Options("me/x:1", "Never", nodes=(("pool", "chaos"),)))
    api.put(f"{SETS}/{CLEAN}", cleaner)
    seen: list[dict[str, Any]] = []
    before = api.put

    def put(path: str, data: dict[str, Any], event: str = "") -> dict[str, Any]:
        seen.append(data)
        return before(path, data, event)

    api.put = put  # type: ignore[method-assign]
    deploy.uninstall(at, Options())
    assert waited == [CLEAN]
    (applied,) = seen
    spec = applied["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == "me/x:1"
    assert spec["containers"][0]["imagePullPolicy"] == "Never"
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "chaos"}
    assert f"/api/v1/namespaces/{AGENT_NAMESPACE}" not in api.objects


def test_the_nodes_are_cleaned_by_another_image_where_the_agents_is_not_to_be_had(
    api: FakeApi, waited: list[str]
) -> None:
    installed(api, "me/x:wrong")
    agent(api, "faultd-1", "n1", NEVER)
    before, seen = api.put, []

    def put(path: str, data: dict[str, Any], event: str = "") -> dict[str, Any]:
        seen.append(path)
        found = before(path, data, event)
        if path.endswith(CLEAN):
            assert image_of(api, CLEAN) == "me/x:right"
        return found

    api.put = put  # type: ignore[method-assign]
    api.drop(f"/api/v1/namespaces/{AGENT_NAMESPACE}/pods/faultd-1")
    config = str(api.kubeconfig())
    assert run(["deploy", "--kubeconfig", config, "uninstall", "--image", "me/x:right"]) == 0
    assert f"{SETS}/{CLEAN}" in seen


def test_an_uninstall_takes_the_condition_of_the_nodes_along(
    api: FakeApi, at: Deployment, waited: list[str]
) -> None:
    ready = {"type": "Ready", "status": "True"}
    said = {"type": "FaultInjected", "status": "True", "message": "x (g-1) until T at most"}
    api.put("/api/v1/nodes/n1", {"status": {"conditions": [ready, said]}})
    installed(api)
    deploy.uninstall(at, Options())
    assert api.objects["/api/v1/nodes/n1"]["status"]["conditions"] == [ready]


@pytest.mark.parametrize(("asked", "told"), [(False, True), (True, False)])
def test_an_upgrade_to_privileged_is_said(
    api: FakeApi, at: Deployment, waited: list[str], asked: bool, told: bool
) -> None:
    installed(api, capabilities=True)
    lines: list[str] = []
    deploy.upgrade(Deployment(at.cluster, lines.append, 0.0), Options(capabilities=asked))
    assert any("become privileged" in line for line in lines) is told


def test_certificates_that_cert_manager_issues_are_not_replaced(api: FakeApi) -> None:
    """One of the two is enough: it is about to write the other."""
    where = f"/api/v1/namespaces/{AGENT_NAMESPACE}/secrets/{deploy_certs.AGENT_SECRET}"
    held = {deploy_certs.CERT_MANAGER: "faultd"}
    before = api.put(where, {"metadata": {"annotations": held}, "data": {}})
    with pytest.raises(Refused, match="is cert-manager's") as caught:
        deploy_certs.put(Cluster(api.kubeconfig()))
    assert "cmctl renew" in caught.value.hint
    assert api.objects[where] == before
    api.put(where, {"data": {}})
    deploy_certs.put(Cluster(api.kubeconfig()))
    assert api.objects[where]["data"]["tls.crt"]


# --- other nodes --------------------------------------------------------------------


CHAOS = (("pool", "chaos"),)
ALL = {"kubernetes.io/os": "linux"}


@pytest.fixture
def cleaners(api: FakeApi) -> list[dict[str, Any]]:
    """The pod templates of all DaemonSets that clean, as they are applied."""
    found: list[dict[str, Any]] = []
    before = api.put

    def put(path: str, data: dict[str, Any], event: str = "") -> dict[str, Any]:
        if path == f"{SETS}/{CLEAN}":
            found.append(data["spec"]["template"]["spec"])
        return before(path, data, event)

    api.put = put  # type: ignore[method-assign]
    return found


def remembered(api: FakeApi) -> str:
    meta = api.objects[f"{SETS}/{FAULTD}"]["metadata"]
    return str(meta.get("annotations", {}).get(deploy_left.ANNOTATION, ""))


def test_nodes_that_an_upgrade_leaves_are_cleaned_by_it(
    api: FakeApi, at: Deployment, waited: list[str], cleaners: list[dict[str, Any]]
) -> None:
    installed(api)
    deploy.upgrade(at, Options(nodes=CHAOS))
    assert waited == [FAULTD, CLEAN]
    (spec,) = cleaners
    assert spec["nodeSelector"] == ALL
    assert spec["containers"][0]["image"] == "me/x:1"
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    expression = {"key": "pool", "operator": "NotIn", "values": ["chaos"]}
    assert required == {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    assert remembered(api) == "" and f"{SETS}/{CLEAN}" not in api.objects


def test_nodes_that_could_not_be_cleaned_are_remembered_for_the_uninstall(
    api: FakeApi,
    at: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    cleaners: list[dict[str, Any]],
) -> None:
    done = Rollout(1, 1, 1, True)

    def late(at: Deployment, name: str = FAULTD, again: str = "") -> Rollout:
        if name == CLEAN:
            raise Unreachable("not done within 0s")
        return done

    installed(api)
    monkeypatch.setattr(deploy, "wait", late)
    for pool in ("chaos", "other", "other"):
        with pytest.raises(Unreachable):
            deploy.upgrade(at, Options(nodes=(("pool", pool),)))
    assert remembered(api) == "kubernetes.io/os=linux;kubernetes.io/os=linux,pool=chaos"
    monkeypatch.setattr(deploy, "wait", lambda *_, **__: done)
    cleaners.clear()
    deploy.uninstall(at, Options())
    chaos, other = ({**ALL, "pool": pool} for pool in ("chaos", "other"))
    assert [one["nodeSelector"] for one in cleaners] == [ALL, chaos, other]
    assert ["affinity" in one for one in cleaners] == [True, True, False]


@pytest.mark.parametrize("nodes", [(), CHAOS, (("kubernetes.io/os", "linux"),)])
def test_an_upgrade_that_leaves_no_node_cleans_none(
    api: FakeApi,
    at: Deployment,
    waited: list[str],
    cleaners: list[dict[str, Any]],
    nodes: tuple[tuple[str, str], ...],
) -> None:
    installed(api, nodes=CHAOS)
    deploy.upgrade(at, Options(nodes=nodes))
    assert waited == [FAULTD] and cleaners == [] and remembered(api) == ""

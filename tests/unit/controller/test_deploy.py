"""Manifests, certificates, what an installation's objects say, and the way to an agent."""

from __future__ import annotations

import base64
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from cryptography import x509
from fake_api import fake_api

from controller.cli.main import cli
from controller.kube import agents, deploy, deploy_certs, manifests, portforward
from controller.kube.deploy_status import not_ready, pod_state, rollout
from controller.kube.select import AGENT_LABEL
from nodeagent.model.errors import InvalidSpec, Refused, Unreachable
from nodeagent.model.protected import AGENT_NAMESPACE
from nodeagent.pod import HEALTH_PORT, PORT, TLS_DIR
from nodeagent.statedir import DEFAULT_STATE_DIR


def only(objects: list[Any], kind: str) -> Any:
    (found,) = (one for one in objects if one["kind"] == kind)
    return found


def container(objects: list[Any]) -> Any:
    (found,) = only(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"]
    return found


# --- manifests ----------------------------------------------------------------------


def test_the_manifests_say_what_the_code_expects() -> None:
    objects = manifests.installed(manifests.Options())
    daemonset = only(objects, "DaemonSet")
    pod = daemonset["spec"]["template"]
    agent = container(objects)
    assert pod["metadata"]["labels"][AGENT_LABEL[0]] == AGENT_LABEL[1] == deploy.FAULTD
    assert {port["name"]: port["containerPort"] for port in agent["ports"]} == {
        agents.PORT_NAME: PORT,
        "health": HEALTH_PORT,
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert mounts == {"state": str(DEFAULT_STATE_DIR), "tls": str(TLS_DIR)}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert volumes["tls"]["secret"]["secretName"] == deploy_certs.AGENT_SECRET
    assert volumes["state"]["hostPath"]["path"] == str(DEFAULT_STATE_DIR)
    assert pod["spec"]["hostPID"] is True
    assert {one["metadata"].get("namespace", AGENT_NAMESPACE) for one in objects} == {
        AGENT_NAMESPACE
    }


def test_the_agent_has_no_rights_in_the_cluster() -> None:
    objects = manifests.installed(manifests.Options())
    spec = only(objects, "DaemonSet")["spec"]["template"]["spec"]
    assert only(objects, "ServiceAccount")["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is False
    assert not [one for one in objects if one["kind"].endswith("Binding")]


def test_named_capabilities_come_without_privileged() -> None:
    plain = container(manifests.installed(manifests.Options()))
    named = container(manifests.installed(manifests.Options(capabilities=True)))
    assert plain["securityContext"]["privileged"] is True
    assert named["securityContext"]["privileged"] is False
    assert {"SYS_ADMIN", "SYS_CHROOT"} <= set(named["securityContext"]["capabilities"]["add"])
    assert named["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_image_policy_and_nodes_are_the_users_in_every_daemonset() -> None:
    options = manifests.Options("me/x:1", "Never", nodes=(("pool", "chaos"),))
    for objects in (manifests.installed(options), manifests.cleaning(options)):
        spec = only(objects, "DaemonSet")["spec"]["template"]["spec"]
        assert spec["containers"][0]["image"] == "me/x:1"
        assert spec["containers"][0]["imagePullPolicy"] == "Never"
        assert spec["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "chaos"}


def test_an_upgrade_keeps_what_it_is_not_told() -> None:
    there = only(manifests.installed(manifests.Options("me/x:1", "Never", nodes=(("a", "b"),))),
                 "DaemonSet")  # fmt: skip
    kept = deploy._kept(there, manifests.Options(capabilities=True))
    assert kept.image == "me/x:1" and kept.pull_policy == "Never" and kept.capabilities
    assert dict(kept.nodes) == {"a": "b", "kubernetes.io/os": "linux"}
    assert deploy._kept(there, manifests.Options(image="me/x:2")).image == "me/x:2"


def test_all_files_below_daemonset_are_yaml_of_known_kinds() -> None:
    for path in manifests.home().rglob("*.yaml"):
        for one in yaml.safe_load_all(path.read_text()):
            if isinstance(one, dict) and "certificates" not in path.name:
                assert one["kind"] in {*manifests.RESOURCES, "Kustomization"}, path


def test_a_kustomization_beyond_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("kind: Kustomization\nnamePrefix: x-\n")
    with pytest.raises(InvalidSpec, match="namePrefix"):
        manifests.load(tmp_path)


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "replace", "path": "/a/missing", "value": 1},
        {"op": "replace", "path": "/list/7", "value": 1},
        {"op": "remove", "path": "/a/b"},
        {"op": "replace", "path": "/nowhere/b", "value": 1},
    ],
)
def test_a_patch_that_leads_to_nothing_is_refused(operation: dict[str, Any]) -> None:
    target: dict[str, Any] = {"a": {"b": 0}, "list": [1]}
    with pytest.raises(InvalidSpec):
        manifests.patch(target, [operation])
    assert target == {"a": {"b": 0}, "list": [1]}


def test_patches_of_rfc_6902() -> None:
    target: dict[str, Any] = {"a": {"x/y": 0}, "list": [1, 2]}
    operations: list[dict[str, Any]] = [
        {"op": "replace", "path": "/a/x~1y", "value": 5},
        {"op": "add", "path": "/list/-", "value": 3},
        {"op": "replace", "path": "/list/0", "value": 9},
    ]
    manifests.patch(target, operations)
    assert target == {"a": {"x/y": 5}, "list": [9, 2, 3]}


# --- certificates -------------------------------------------------------------------


def pem(one: dict[str, Any], name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(base64.b64decode(one["data"][name]))


def test_certificates_name_the_agents_and_are_of_one_ca() -> None:
    server, client = deploy_certs.make(timedelta(days=2))
    names = pem(server, "tls.crt").extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [agents.SERVER_NAME]
    assert server["metadata"]["name"] == deploy_certs.AGENT_SECRET
    assert client["metadata"]["name"] == agents.SECRET
    assert set(client["data"]) == set(agents.FILES.values())
    assert server["data"]["ca.crt"] == client["data"]["ca.crt"]
    for one in (server, client):
        pem(one, "tls.crt").verify_directly_issued_by(pem(one, "ca.crt"))


def test_certificates_that_end_at_once_are_refused() -> None:
    with pytest.raises(InvalidSpec, match="worth nothing"):
        deploy_certs.make(timedelta(seconds=5))


# --- what the objects say -----------------------------------------------------------


def pod(**status: Any) -> dict[str, Any]:
    spec = {"nodeName": "n1", "containers": [{"image": "i"}]}
    return {"metadata": {"name": "p"}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("status", "why"),
    [
        ({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}, ""),
        ({"phase": "Running"}, "it is not ready yet"),
        ({"phase": "Pending"}, "its container is made"),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "no room"}]},
            "no room",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                        "lastState": {"terminated": {"exitCode": 3}},
                    }
                ]
            },
            "CrashLoopBackOff: before, it ended with 3",
        ),
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]},
            "ErrImagePull",
        ),
    ],
)
def test_why_a_pod_is_not_ready(status: dict[str, Any], why: str) -> None:
    state = pod_state(pod(**status))
    assert state.ready is (why == "")
    assert state.why == why
    assert not_ready([state]) == (f"n1: {why}" if why else "")


def test_a_pod_that_is_being_deleted_is_not_ready() -> None:
    leaving = pod(conditions=[{"type": "Ready", "status": "True"}])
    leaving["metadata"]["deletionTimestamp"] = "now"
    assert pod_state(leaving).why == "it is being deleted"


@pytest.mark.parametrize(
    ("status", "done"),
    [
        ({}, False),
        (
            {"observedGeneration": 1, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
             "numberReady": 2},
            False,
        ),
        (
            {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 1,
             "numberReady": 2},
            False,
        ),
        ({"observedGeneration": 2, "desiredNumberScheduled": 0}, True),
        (
            {"observedGeneration": 2, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2,
             "numberReady": 2},
            True,
        ),
    ],
)  # fmt: skip
def test_a_rollout_is_done_when_every_node_has_the_newest(
    status: dict[str, int], done: bool
) -> None:
    found = rollout({"metadata": {"generation": 2}, "status": status})
    assert found.done is done


# --- the way ------------------------------------------------------------------------


class Echo:
    """Stands for kubernetes.stream's PortForward: a socket pair, whose far end echoes once."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()

    def socket(self, _port: int) -> socket.socket:
        return self.near

    connected = True

    def close(self) -> None:
        self.near.close()


def test_each_connection_is_a_port_forward_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Echo] = []

    def open_stream(*_: Any) -> Echo:
        made.append(Echo())
        return made[-1]

    monkeypatch.setattr(portforward, "open_stream", open_stream)
    with portforward.forward(None, "ns", "pod", 7443) as (host, port):  # type: ignore[arg-type]
        for number in (1, 2):
            with socket.create_connection((host, port), 10) as one:
                one.sendall(b"ping")
                while len(made) < number:  # the first one was made at once
                    time.sleep(0.01)
                assert made[-1].far.recv(10) == b"ping"
                made[-1].far.sendall(b"pong" * 100_000)
                got = b""
                while len(got) < 400_000:
                    got += one.recv(1 << 16)
                made[-1].far.close()
                assert one.recv(10) == b""  # its end is passed on
    assert len(made) == 2
    with pytest.raises(OSError):
        socket.create_connection((host, port), 1)


def test_what_is_in_the_way_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_stream(*_: Any) -> Echo:
        raise Refused("you may not reach it")

    monkeypatch.setattr(portforward, "open_stream", open_stream)
    way = portforward.forward(None, "ns", "pod", 7443)  # type: ignore[arg-type]
    with pytest.raises(Refused, match="you may not reach it"), way:
        pass


def test_a_way_that_closes_later_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Echo()]

    def open_stream(*_: Any) -> Echo:
        if len(made) == 2:
            raise Unreachable("the node is gone")
        made.append(made[0])
        return made[0]

    monkeypatch.setattr(portforward, "open_stream", open_stream)
    with portforward.forward(None, "ns", "pod", 7443) as way:  # type: ignore[arg-type]
        made[0].connected = False  # the API server has cut it meanwhile
        with socket.create_connection(way, 10) as one:
            assert one.recv(10) == b""


# --- the command line ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["install", "--node-label", "novalue"], "'novalue' is not a label"),
        (["install", "--valid", "12"], "--valid '12' is not a duration"),
        (["install", "--timeout", "soon"], "--timeout 'soon' is not a duration"),
        (["certs", "--valid", "-1d"], "--valid '-1d' is not a duration"),
    ],
)
def test_bad_options_are_wrong_usage(words: list[str], said: str, tmp_path: Path) -> None:
    with fake_api(tmp_path) as api:
        done = CliRunner().invoke(cli, ["deploy", "--kubeconfig", str(api.kubeconfig()), *words])
        assert isinstance(done.exception, InvalidSpec)
        assert said in done.exception.what
        assert api.requests == []

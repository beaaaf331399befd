"""The manifests, judged by the API server itself and by kustomize."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubeapi import Api

import schemas
from controller.kube import deploy_certs, manifests
from controller.kube.client import APPLY, Cluster
from controller.kube.manifests import Options, path_of
from nodeagent.model.protected import AGENT_NAMESPACE

HOME = manifests.home()
KUSTOMIZATIONS = sorted(path.parent for path in HOME.rglob("kustomization.yaml"))


def key(one: dict[str, Any]) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=lambda p: str(p.relative_to(HOME)))
def test_we_read_a_kustomization_as_kustomize_does(api: Api, folder: Path) -> None:
    built = api.kubectl("kustomize", str(folder)).stdout
    theirs = sorted((one for one in yaml.safe_load_all(built) if one), key=key)
    assert sorted(manifests.load(folder), key=key) == theirs


@pytest.mark.parametrize("capabilities", [False, True])
def test_the_api_server_takes_every_field(api: Api, capabilities: bool) -> None:
    """Strict field validation: a misspelt or unknown field would be an error."""
    objects = [
        *manifests.installed(Options(capabilities=capabilities)),
        *manifests.cleaning(Options()),
        *deploy_certs.make(),
    ]
    space = api.namespace()
    for one in objects:
        if "namespace" in one["metadata"]:
            one["metadata"]["namespace"] = space
        argv = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"]
        api.kubectl(*argv, stdin=json.dumps(one))


@pytest.mark.parametrize("version", schemas.VERSIONS)
def test_other_versions_know_every_field(version: str) -> None:
    """The newest version, and the one before that of the API server here."""
    objects = [
        *manifests.installed(Options()),
        *manifests.installed(Options(capabilities=True)),
        *manifests.cleaning(Options()),
        *deploy_certs.make(),
    ]
    done = schemas.decode(version, objects)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(objects)
    objects[0]["spec"] = {"finalisers": []}
    assert "finalisers" in schemas.decode(version, objects).stderr


def test_a_misspelt_field_would_be_seen(api: Api) -> None:
    objects = manifests.installed(Options())
    daemonset = next(one for one in objects if one["kind"] == "DaemonSet")
    daemonset["metadata"]["namespace"] = api.namespace()
    daemonset["spec"]["template"]["spec"]["hostPid"] = True
    argv = ["apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-"]
    done = api.kubectl(*argv, stdin=json.dumps(daemonset), check=False)
    assert done.returncode != 0
    assert "hostPid" in done.stderr


def test_objects_are_applied_by_our_own_client(api: Api) -> None:
    """Server-side apply twice: the second changes nothing, and the fields are ours."""
    space = api.namespace()
    (account,) = (one for one in manifests.installed(Options()) if one["kind"] == "ServiceAccount")
    account["metadata"]["namespace"] = space
    cluster = Cluster(api.kubeconfig)
    made = [
        cluster.patch(path_of(account), account, APPLY, fieldManager="faultctl", force="true")
        for _ in range(2)
    ]
    assert made[0]["metadata"]["resourceVersion"] == made[1]["metadata"]["resourceVersion"]
    assert made[0]["metadata"]["managedFields"][0]["manager"] == "faultctl"


def test_the_agents_account_may_do_nothing(api: Api) -> None:
    space = api.namespace()
    for one in manifests.installed(Options()):
        if one["kind"] not in ("Namespace", "DaemonSet", "NetworkPolicy", "PriorityClass"):
            api.apply(json.loads(json.dumps(one).replace(AGENT_NAMESPACE, space)))
    assert api.json("get", "serviceaccount", "-n", space, "faultd")
    who = f"--as=system:serviceaccount:{space}:faultd"
    for verb, resource in (("get", "pods"), ("list", "secrets"), ("create", "pods/exec")):
        done = api.kubectl("auth", "can-i", verb, resource, "-n", space, who, check=False)
        assert done.stdout.strip() == "no"


def test_the_users_role_reaches_agents_and_no_more(api: Api) -> None:
    """What `faultctl-user` allows, asked of the server for somebody who has nothing else."""
    space = api.namespace()
    (role,) = (one for one in manifests.installed(Options()) if one["kind"] == "Role")
    role["metadata"]["namespace"] = space
    api.apply(role)
    api.kubectl("create", "rolebinding", "x", "-n", space, "--role=faultctl-user", "--user=eve")

    def may(verb: str, resource: str) -> bool:
        argv = ["auth", "can-i", verb, resource, "-n", space, "--as=eve"]
        return api.kubectl(*argv, check=False).stdout.strip() == "yes"

    assert may("list", "pods")
    assert may("get", "pods/portforward")
    assert may("get", "secrets/faultctl-client")
    assert not may("get", "secrets/faultd-tls")
    assert not may("list", "secrets")
    assert not may("create", "pods/exec")
    assert not may("delete", "pods")

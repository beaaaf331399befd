"""`faultctl deploy` without nodes: what it refuses, and that it takes back what it made."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import FAULTCTL
from kubeapi import Api

from controller.kube import deploy_left
from controller.kube.manifests import Options

KINDS = "namespaces,priorityclasses,clusterroles,clusterrolebindings"


def faultctl(kubeconfig: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    return subprocess.run(
        [*FAULTCTL, *arguments], capture_output=True, text=True, timeout=240, env=env, check=False
    )


@pytest.fixture
def empty(api: Api) -> Iterator[Api]:
    """A cluster without nodes; the user's own is left alone."""
    if api.plane is None:
        pytest.skip("a cluster without nodes is needed")
    yield api
    api.kubectl("delete", "namespace", "faultctl-system", "--ignore-not-found", timeout=120)


def there(api: Api) -> list[str]:
    """Names of all objects, but for the namespaces of earlier tests."""
    names = api.kubectl("get", KINDS, "-o", "name").stdout.split()
    return [name for name in names if name.partition("/")[2] not in api.made]


def test_what_is_not_installed_is_said(empty: Api) -> None:
    for verb in ("status", "upgrade", "uninstall"):
        done = faultctl(empty.kubeconfig, "deploy", verb)
        assert done.returncode == 3, done.stderr
        assert "not installed" in done.stderr


def test_without_nodes_install_says_so_and_uninstall_takes_everything_back(empty: Api) -> None:
    before = there(empty)
    done = faultctl(empty.kubeconfig, "deploy", "install", "--node-label", "pool=chaos")
    assert done.returncode == 3
    assert "no node takes an agent" in done.stderr
    assert "pool=chaos" in done.stderr
    secrets = empty.kubectl("get", "secrets", "-n", "faultctl-system", "-o", "name").stdout
    assert set(secrets.split()) == {"secret/faultd-tls", "secret/faultctl-client"}
    again = faultctl(empty.kubeconfig, "deploy", "install")
    assert again.returncode == 3
    assert "is installed" in again.stderr
    gone = faultctl(empty.kubeconfig, "deploy", "uninstall")
    assert gone.returncode == 0, gone.stderr
    assert there(empty) == before


def test_certificates_that_are_there_are_kept_and_replaced_when_asked(empty: Api) -> None:
    def shown() -> str:
        argv = ["get", "secret", "faultd-tls", "-n", "faultctl-system"]
        return empty.kubectl(*argv, "-o", "jsonpath={.data.tls\\.crt}").stdout

    empty.kubectl("create", "namespace", "faultctl-system")
    assert faultctl(empty.kubeconfig, "deploy", "certs", "--valid", "1d").returncode == 0
    first = shown()
    faultctl(empty.kubeconfig, "deploy", "install")
    assert shown() == first
    assert faultctl(empty.kubeconfig, "deploy", "certs").returncode == 0
    assert shown() != first
    assert faultctl(empty.kubeconfig, "deploy", "uninstall").returncode == 0


def test_a_user_without_rights_is_told_which_one_is_missing(empty: Api) -> None:
    assert empty.plane is not None
    limited = empty.plane.kubeconfig("limited")
    done = faultctl(limited, "deploy", "status")
    assert done.returncode == 3
    assert "you may not get daemonsets.apps in namespace faultctl-system" in done.stderr


def test_an_expired_token_is_said_as_such(empty: Api) -> None:
    assert empty.plane is not None
    wrong = empty.plane.kubeconfig(token="expired")  # noqa: S106 - nobody's
    done = faultctl(wrong, "deploy", "install")
    assert done.returncode == 3
    assert "does not accept your credentials" in done.stderr


def test_an_api_server_that_is_not_there_is_exit_4(empty: Api, tmp_path: Path) -> None:
    text = empty.kubeconfig.read_text().replace(str(empty.plane.port), "1")  # type: ignore[union-attr]
    config = tmp_path / "kubeconfig"
    config.write_text(text)
    assert faultctl(config, "deploy", "status").returncode == 4


def test_the_nodes_that_an_upgrade_leaves_are_those_that_are_cleaned(empty: Api) -> None:
    """By the DaemonSet controller's own reading of selector and affinity."""
    labels = {"left-a": {}, "left-b": {"pool": "x"}, "left-c": {"pool": "chaos"}, "left-d": {}}
    for name, more in labels.items():
        system = {} if name == "left-d" else {"kubernetes.io/os": "linux"}
        meta = {"name": name, "labels": {**system, **more}}
        empty.apply({"apiVersion": "v1", "kind": "Node", "metadata": meta})
    empty.kubectl("create", "namespace", "faultctl-system")
    options = Options(nodes=(("pool", "chaos"),))
    (cleaner,) = deploy_left.cleaning_left(options, {"kubernetes.io/os": "linux"})
    argv = ["apply", "--server-side", "--validate=strict", "-f", "-"]
    empty.kubectl(*argv, stdin=json.dumps(cleaner))
    where = ("-n", "faultctl-system")
    empty.kubectl("wait", "--for=jsonpath={.status.desiredNumberScheduled}=2",
                  "daemonset/faultd-clean", *where)  # fmt: skip
    chosen = "{.items[*].spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    chosen += ".nodeSelectorTerms[0].matchFields[0].values[0]}"
    end = time.monotonic() + 30
    while True:
        found = empty.kubectl("get", "pods", *where, "-o", f"jsonpath={chosen}").stdout.split()
        if len(found) >= 2:
            break
        assert time.monotonic() < end
        time.sleep(0.2)
    empty.kubectl("delete", "node", *labels)
    assert sorted(found) == ["left-a", "left-b"]

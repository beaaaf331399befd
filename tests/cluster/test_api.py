"""The fixture itself: what the tests build on is a real API server."""

from __future__ import annotations

import components
from kubeapi import Api


def test_the_api_server_is_the_one_that_was_built(api: Api) -> None:
    said = api.json("version")["serverVersion"]["gitVersion"]
    assert api.plane is None or said == components.version()


def test_objects_of_a_test_are_seen_and_go_with_it(api: Api) -> None:
    name = api.namespace()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": name},
        "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "none"}]},
    }
    api.apply(pod)
    status = {"phase": "Running", "podIP": "10.0.0.1"}
    api.apply({**{k: pod[k] for k in ("apiVersion", "kind", "metadata")}, "status": status},
              subresource="status")  # fmt: skip
    found = api.json("get", "pod", "-n", name, "a")
    assert found["spec"]["nodeName"] == "n1"
    assert found["status"]["podIP"] == "10.0.0.1"


def test_a_user_without_rights_is_refused(api: Api) -> None:
    if api.plane is None:
        return  # the user's own cluster: its users are not ours to make
    limited = api.plane.kubeconfig("limited")
    done = api.kubectl(f"--kubeconfig={limited}", "get", "pods", "-A", check=False)
    assert done.returncode != 0
    assert 'cannot list resource "pods"' in done.stderr

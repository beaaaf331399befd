"""A real Kubernetes for tests: its API alone, or with nodes.

    def test_a(api):                     # etcd, API server, controller manager on loopback
        api.kubeconfig                   # Path of an administrator's kubeconfig
        api.kubectl("get", "nodes")      # subprocess.CompletedProcess; raises when it fails
        api.apply({...}, {...})          # objects, server-side
        api.json("get", "pod", "x")      # parsed
        api.namespace()                  # name of a new namespace, deleted with the test

    api.plane                            # the ControlPlane: kubeconfig("limited") is of a user
                                         # without rights, kubeconfig(token="x") a wrong one

There are no nodes behind `api` and no scheduler: Node and Pod objects are made as the test
needs them, with `spec.nodeName` and a status by the `/status` subresource. It is up within
about five seconds, once the components are built (tests/cluster/components.py).

    def test_b(cluster):                 # control plane and nodes in VMs, Ready
        cluster.api                      # as above, of this cluster
        cluster.faultctl("ls")           # the command line, as a user of this host
        cluster.node("node-a").node      # the lab's Node; .node.sh("...") runs there

With KUBECONFIG set, `api` is the user's own cluster, and `api.plane` is None.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import certmanager
import components
import nodedisk
import pytest
from cluster import Cluster, start
from control import ControlPlane
from kubeapi import Api

HERE = Path(__file__).parent
TIMEOUT = 900.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the components before any test is on the clock."""
    mine = [item for item in session.items if HERE in item.path.parents]
    if mine and not (session.config.option.collectonly or session.config.option.setupplan):
        writer = session.config.get_terminal_writer()

        def say(line: str) -> None:
            writer.line(f"cluster: {line}")

        components.ensure(say)
        if any("cluster" in getattr(item, "fixturenames", ()) for item in mine):
            nodedisk.ensure(say)
        if any("cert_manager" in getattr(item, "fixturenames", ()) for item in mine):
            certmanager.ensure(say)


@pytest.fixture(scope="session")
def _api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    binaries = components.ensure()
    own = os.environ.get("KUBECONFIG")
    if own:
        yield Api(Path(own), binaries, None)
        return
    home = tmp_path_factory.mktemp("cluster")
    plane = ControlPlane(home, binaries)
    try:
        plane.start()
        yield Api(plane.kubeconfig(), binaries, plane)
    finally:
        plane.close()
        shutil.rmtree(home / "etcd", ignore_errors=True)


@pytest.fixture
def api(_api: Api) -> Iterator[Api]:
    """The API of the session's cluster; the namespaces that a test has made go with it."""
    yield _api
    _api.sweep()


@pytest.fixture(scope="session")
def cert_manager() -> Path:
    """The folder with cert-manager's controllers and CRDs: certmanager.CertManager runs them."""
    return certmanager.ensure()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes in VMs that are Ready; FAULTCTL_CLUSTER_NODES of them, two by default."""
    if os.geteuid() != 0:
        pytest.skip("nodes share a network that only root can make")
    count = int(os.environ.get("FAULTCTL_CLUSTER_NODES", "2"))
    flavour = os.environ.get("FAULTCTL_CLUSTER_FLAVOUR", "full")
    found = start(tmp_path_factory.mktemp("nodes"), count, flavour)
    yield found
    found.close()

"""The way to an agent through a real API server: a real agent of this host stands behind a pod.

Only the kubelet is a stand-in (kubelet_kit.py); test_deploy_nodes.py has real ones.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from hostagent import SYSTEM, Agent, manifest, secret
from kubeapi import Api
from kubelet_kit import Kubelet

from controller.kube import deploy_certs
from controller.kube.agents import Access, Agents
from controller.kube.client import Cluster
from controller.kube.deploy import armed
from controller.kube.group import Clients
from controller.kube.portforward import forward
from nodeagent.model.errors import Refused, Unreachable

NODE, POD = "forward-node", "faultd-forward"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    if os.geteuid() != 0:
        pytest.skip("faultd needs root")
    found = Agent(tmp_path_factory.mktemp("agent"))
    yield found
    found.kill(signal.SIGTERM)


@pytest.fixture(scope="module")
def way(_api: Api, agent: Agent) -> Iterator[tuple[Cluster, Kubelet]]:
    """A cluster with one agent's pod on one node."""
    if _api.plane is None:
        pytest.skip("the API server must trust a kubelet of ours")
    kubelet = Kubelet(_api.plane.pki.cert, _api.plane.pki.key, lambda: agent.port)
    cluster = Cluster(_api.kubeconfig)
    _api.kubectl("create", "namespace", SYSTEM)
    _api.kubectl("wait", "--for=create", "-n", SYSTEM, "serviceaccount/default", timeout=90)
    deploy_certs.put(cluster)
    agent.mount(secret(_api, deploy_certs.AGENT_SECRET))
    agent.start()
    node, node_status, pod, pod_status = manifest(NODE, POD, kubelet_port=kubelet.port)
    _api.apply(node)
    _api.apply(node_status, subresource="status")
    _api.apply(pod)
    _api.apply(pod_status, subresource="status")
    yield cluster, kubelet
    _api.kubectl("delete", "node", NODE)
    _api.kubectl("delete", "namespace", SYSTEM, "--wait=false")
    _api.kubectl("delete", "pod", "-n", SYSTEM, POD, "--force", "--grace-period=0", check=False)
    kubelet.close()


def test_an_agent_answers_through_the_api_server(way: tuple[Cluster, Kubelet]) -> None:
    cluster, kubelet = way
    with Agents(cluster, Access(forward=forward)) as agents, Clients(agents) as clients:
        reply, facts = clients.of(NODE).describe()
        assert reply.guardian.startswith("running")
        assert facts.root
        for _ in range(20):
            assert clients.of(NODE).faults() == []
    assert set(kubelet.asked) == {f"/portForward/{SYSTEM}/{POD}"}


def test_large_answers_come_whole(way: tuple[Cluster, Kubelet]) -> None:
    """Everything that an agent knows of its kinds, many times at once over one connection."""
    cluster, _ = way
    with Agents(cluster, Access(forward=forward)) as agents, Clients(agents) as clients:
        sizes = {clients.of(NODE).describe()[0].ByteSize() for _ in range(30)}
        assert len({size // 100 for size in sizes}) == 1
        assert min(sizes) > 5000


def test_after_the_agents_restart_the_next_call_goes_through(
    way: tuple[Cluster, Kubelet], agent: Agent
) -> None:
    cluster, _ = way
    with Agents(cluster, Access(forward=forward)) as agents, Clients(agents) as clients:
        before = clients.of(NODE).describe()[0].epoch
        agent.kill()
        with pytest.raises(Unreachable):
            clients.of(NODE).faults()
        agent.start()
        end = time.monotonic() + 60
        while True:  # gRPC makes new connections at its own pace
            try:
                assert clients.of(NODE).describe()[0].epoch > before
                return
            except Unreachable:
                assert time.monotonic() < end
                time.sleep(0.2)


def test_who_may_not_forward_is_told_so_in_place_of_no_answer(
    way: tuple[Cluster, Kubelet], _api: Api
) -> None:
    """A role that lacks pods/portforward alone."""
    assert _api.plane is not None
    _api.kubectl("create", "role", "seer", "-n", SYSTEM, "--verb=get,list",
                 "--resource=pods,secrets")  # fmt: skip
    _api.kubectl("create", "rolebinding", "seer", "-n", SYSTEM, "--role=seer", "--user=limited")
    cluster = Cluster(_api.plane.kubeconfig("limited"))
    access = Agents(cluster, Access(forward=forward))
    with pytest.raises(Refused, match="you may not reach") as caught, access as agents:  # noqa: SIM117
        with Clients(agents) as clients:
            clients.of(NODE).faults()
    assert "pods/portforward" in caught.value.hint


def test_a_node_whose_kubelet_is_gone_is_unreachable_and_named(
    way: tuple[Cluster, Kubelet],
) -> None:
    cluster, kubelet = way
    kubelet.close()
    found, failed = armed(cluster)
    assert found == {}
    assert [one.node for one in failed] == [NODE]
    assert isinstance(failed[0].error, Unreachable)

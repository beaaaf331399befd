"""Certificates from cert-manager: its own controllers issue what the overlay asks for.

They run against the API server here, without their webhook; the agent is real too, and its
files change as a kubelet changes them.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from certmanager import CertManager
from cluster import FAULTCTL
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
from hostagent import SYSTEM, Agent, manifest, secret
from kubeapi import Api

from controller.client import AgentAddress, AgentClient
from controller.kube import deploy_certs, manifests
from controller.kube.agents import FILES, SECRET, SERVER_NAME, Access, Agents
from controller.kube.client import Cluster
from controller.kube.group import Clients
from nodeagent.model.errors import Unreachable
from nodeagent.pod import agent_argv

OVERLAY = manifests.home() / "overlays" / "cert-manager"
APPLY = ("apply", "--server-side", "--validate=strict")
NODE, POD = "cert-node", "faultd-cert"
ISSUED = ("faultctl-ca", deploy_certs.AGENT_SECRET, SECRET)
CERTIFICATE = {deploy_certs.AGENT_SECRET: "faultd", SECRET: SECRET, "faultctl-ca": "faultctl-ca"}
WAIT_S = 60.0  # seconds; an issue takes one


@pytest.fixture(scope="module")
def issued(
    _api: Api, cert_manager: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Api]:
    """The overlay in a cluster with cert-manager, all certificates Ready."""
    if _api.plane is None:
        pytest.skip("no cert-manager is put into a cluster of the user's own")
    crds = str(cert_manager / "crds")
    _api.kubectl("wait", "--for=delete", f"namespace/{SYSTEM}", timeout=120)
    _api.kubectl(*APPLY, "-f", crds)
    _api.kubectl("wait", "--for=condition=Established", "-f", crds)
    _api.kubectl(*APPLY, "-k", str(OVERLAY))
    log = tmp_path_factory.mktemp("cert-manager") / "log"
    manager = CertManager(_api.kubeconfig, SYSTEM, log)
    argv = ["wait", "--for=condition=Ready", "certificate", "--all", "-n", SYSTEM]
    done = _api.kubectl(*argv, f"--timeout={WAIT_S:.0f}s", check=False, timeout=2 * WAIT_S)
    try:
        assert done.returncode == 0, f"{done.stderr}\n{manager.said()}"
        yield _api
    finally:
        _api.kubectl("delete", "node", NODE, "--ignore-not-found")
        argv = ["delete", "pod", "-n", SYSTEM, POD, "--force", "--grace-period=0"]
        _api.kubectl(*argv, "--ignore-not-found")
        _api.kubectl("delete", "-k", str(OVERLAY), "--ignore-not-found", timeout=120)
        _api.kubectl("delete", "-f", crds, timeout=120)
        manager.close()


@pytest.fixture(scope="module")
def agent(issued: Api, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """faultd with the agents' Secret."""
    if os.geteuid() != 0:
        pytest.skip("faultd needs root")
    found = Agent(tmp_path_factory.mktemp("agent"))
    found.mount(secret(issued, deploy_certs.AGENT_SECRET))
    found.start()
    yield found
    found.kill(signal.SIGTERM)


def certificate(data: dict[str, bytes], key: str = "tls.crt") -> x509.Certificate:
    (found,) = x509.load_pem_x509_certificates(data[key])
    return found


def client(agent: Agent, data: dict[str, bytes], home: Path) -> AgentClient:
    """One with these files, which asks for the agents by their name."""
    for key in FILES.values():
        (home / key).write_bytes(data[key])
    files = {name: home / key for name, key in FILES.items()}
    url = f"tcp://127.0.0.1:{agent.port}"
    return AgentClient(AgentAddress(url, **files, server_name=SERVER_NAME))


def accepted(agent: Agent, data: dict[str, bytes], home: Path) -> bool:
    try:
        with client(agent, data, home) as one:
            return one.faults() == []
    except Unreachable as exc:
        assert "do not trust each other" in exc.what or "no agent answers" in exc.what, exc
        return False


def served(agent: Agent, data: dict[str, bytes], home: Path) -> str:
    """What a second program, openssl, says of the connection and the agent's certificate."""
    for key in FILES.values():
        (home / key).write_bytes(data[key])
    argv = ["openssl", "s_client", "-connect", f"127.0.0.1:{agent.port}", "-alpn", "h2"]
    argv += ["-CAfile", str(home / "ca.crt"), "-verify_hostname", SERVER_NAME]
    argv += ["-cert", str(home / "tls.crt"), "-key", str(home / "tls.key")]
    done = subprocess.run(argv, input=b"", capture_output=True, timeout=60, check=False)
    return done.stdout.decode(errors="replace")


def renew(api: Api, name: str) -> dict[str, bytes]:
    """What `cmctl renew` does: the condition Issuing; the Secret's data when it is another."""
    which = CERTIFICATE[name]
    before = secret(api, name)["tls.crt"]
    one = api.json("get", "certificate", "-n", SYSTEM, which)
    asked = {
        "type": "Issuing",
        "status": "True",
        "reason": "ManuallyTriggered",
        "message": "Certificate re-issuance manually triggered",
        "observedGeneration": one["metadata"]["generation"],
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    one["status"]["conditions"].append(asked)
    api.kubectl("replace", "--subresource=status", "-f", "-", stdin=json.dumps(one))
    return changed(api, name, before)


def changed(api: Api, name: str, before: bytes) -> dict[str, bytes]:
    """The Secret's data, once its certificate is there and is not `before`."""
    end = time.monotonic() + WAIT_S
    while True:
        done = api.kubectl("get", "secret", "-n", SYSTEM, name, check=False)
        data = secret(api, name) if done.returncode == 0 else {}
        if data.get("tls.crt", before) != before:
            return data
        assert time.monotonic() < end, f"Secret {name} is not renewed"
        time.sleep(0.2)


def test_a_misspelt_field_of_a_certificate_would_be_seen(issued: Api) -> None:
    wrong = issued.json("get", "certificate", "-n", SYSTEM, "faultd")
    wrong["metadata"].pop("managedFields", None)
    wrong["spec"]["dnsName"] = [SERVER_NAME]
    argv = [*APPLY, "--dry-run=server", "--force-conflicts", "-f", "-"]
    done = issued.kubectl(*argv, stdin=json.dumps(wrong), check=False)
    assert done.returncode != 0
    assert "dnsName" in done.stderr


def test_the_secrets_are_those_that_the_daemonset_mounts_and_the_controller_reads(
    issued: Api,
) -> None:
    daemonset: dict[str, Any] = issued.json("get", "daemonset", "-n", SYSTEM, "faultd")
    pod = daemonset["spec"]["template"]["spec"]
    (mounted,) = (one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one)
    data = secret(issued, mounted)
    argv = agent_argv(Path("/r"), Path("/s"), Path("/t"), ())
    read = {Path(argv[argv.index(option) + 1]).name for option in ("--tls-cert", "--tls-key")}
    read.add(Path(argv[argv.index("--tls-ca") + 1]).name)
    assert {name for name in read if data[name]} == read
    assert all(secret(issued, SECRET)[key] for key in FILES.values())
    assert deploy_certs.there(Cluster(issued.kubeconfig))


def test_certificates_are_of_one_ca_and_say_what_they_are_for(issued: Api, tmp_path: Path) -> None:
    both = {name: secret(issued, name) for name in (deploy_certs.AGENT_SECRET, SECRET)}
    authority = certificate(secret(issued, "faultctl-ca"))
    authority.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    for name, data in both.items():
        one = certificate(data)
        assert certificate(data, "ca.crt") == authority
        one.verify_directly_issued_by(authority)
        assert not one.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        uses = list(one.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        assert uses == [Usage.CLIENT_AUTH if name == SECRET else Usage.SERVER_AUTH]
        assert one.not_valid_after_utc - one.not_valid_before_utc == timedelta(days=90)
    agents = certificate(both[deploy_certs.AGENT_SECRET])
    names = agents.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [SERVER_NAME]
    keys = {data["tls.key"] for data in (*both.values(), secret(issued, "faultctl-ca"))}
    assert len(keys) == 3


def test_a_controller_reaches_an_agent_with_what_it_finds_in_the_cluster(
    issued: Api, agent: Agent
) -> None:
    """By the pod's address: the way through the API server has the same certificates."""
    issued.kubectl("delete", "daemonset", "-n", SYSTEM, "faultd")  # it would take our pod for its
    node, node_status, pod, pod_status = manifest(NODE, POD, port=agent.port)
    issued.apply(node, pod)
    issued.apply(node_status, pod_status, subresource="status")
    cluster = Cluster(issued.kubeconfig)
    with Agents(cluster, Access(direct=True)) as agents, Clients(agents) as clients:
        assert clients.of(NODE).faults() == []


def test_an_agent_takes_the_clients_certificate_and_no_other(
    issued: Api, agent: Agent, tmp_path: Path
) -> None:
    good = secret(issued, SECRET)
    assert accepted(agent, good, tmp_path)
    _, foreign = deploy_certs.make()
    other = {**good}
    for key in ("tls.crt", "tls.key"):
        other[key] = base64.b64decode(foreign["data"][key])
    assert not accepted(agent, other, tmp_path)
    assert not accepted(agent, secret(issued, deploy_certs.AGENT_SECRET), tmp_path)
    assert accepted(agent, good, tmp_path)


def test_an_agent_hangs_up_on_who_shows_no_certificate(
    issued: Api, agent: Agent, tmp_path: Path
) -> None:
    data = secret(issued, SECRET)
    context = ssl.create_default_context(cadata=data["ca.crt"].decode())
    context.set_alpn_protocols(["h2"])

    def first_byte() -> bytes:
        """Of HTTP/2's settings, which a server sends once the handshake is done."""
        address = ("127.0.0.1", agent.port)
        with (
            socket.create_connection(address, 30) as plain,
            context.wrap_socket(plain, server_hostname=SERVER_NAME) as wrapped,
        ):
            return wrapped.recv(1)

    assert first_byte() == b""
    for key in ("tls.crt", "tls.key"):
        (tmp_path / key).write_bytes(data[key])
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    assert first_byte() != b""


def test_who_holds_the_clients_key_cannot_play_an_agent(issued: Api, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("faultd needs root")
    fake = Agent(tmp_path / "fake")
    fake.home.mkdir()
    fake.mount(secret(issued, SECRET))
    fake.start()
    try:
        assert not accepted(fake, secret(issued, SECRET), tmp_path)
    finally:
        fake.kill(signal.SIGTERM)


def test_a_renewed_certificate_is_what_the_agent_serves(
    issued: Api, agent: Agent, tmp_path: Path
) -> None:
    held = secret(issued, SECRET)
    with client(agent, held, tmp_path) as before:
        assert before.faults() == []
        new = renew(issued, deploy_certs.AGENT_SECRET)
        assert new["tls.key"] != secret(issued, SECRET)["tls.key"]
        agent.mount(new)
        said = served(agent, held, tmp_path)
        assert "Verification: OK" in said
        assert new["tls.crt"].decode().strip() in said
        assert before.faults() == []  # the connection that was there goes on


def test_a_secret_that_was_deleted_comes_again_and_is_taken(
    issued: Api, agent: Agent, tmp_path: Path
) -> None:
    old = secret(issued, SECRET)
    issued.kubectl("delete", "secret", "-n", SYSTEM, SECRET)
    new = changed(issued, SECRET, old["tls.crt"])
    assert new["tls.key"] != old["tls.key"]
    assert accepted(agent, new, tmp_path)


def test_a_renewed_ca_is_no_time_without_trust(issued: Api, agent: Agent, tmp_path: Path) -> None:
    """Its key stays, so that certificates of before and after verify by either."""
    old = secret(issued, SECRET)
    authority = renew(issued, "faultctl-ca")
    assert accepted(agent, old, tmp_path)
    new = renew(issued, SECRET)
    assert new["ca.crt"] == authority["tls.crt"] != old["ca.crt"]
    assert accepted(agent, new, tmp_path)  # the agent still has the old CA
    agent.mount(renew(issued, deploy_certs.AGENT_SECRET))
    assert accepted(agent, old, tmp_path)
    assert accepted(agent, new, tmp_path)


def test_deploy_certs_leaves_what_is_cert_managers(issued: Api) -> None:
    before = {name: secret(issued, name) for name in ISSUED}
    env = {**os.environ, "KUBECONFIG": str(issued.kubeconfig)}
    argv = [*FAULTCTL, "deploy", "certs"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=env, check=False)
    assert done.returncode == 3, done.stdout
    assert "cert-manager" in done.stderr
    assert {name: secret(issued, name) for name in ISSUED} == before

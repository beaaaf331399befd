"""Who may break what: rules as data, the file as it changes, and the agent that asks it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import core_kit
import pytest
from agent_kit import Served, served
from hypothesis import given
from hypothesis import strategies as st

from controller.client import AgentAddress, AgentClient
from controller.lab import certs
from nodeagent.listen import TlsFiles
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.plan import FaultRequest, Lease
from nodeagent.model.policy import NODE, Policy, check, namespace_of, parse_policy, policy_from_yaml
from nodeagent.policyfile import PolicyFile

TEXT = """
version: 1
rules:
- {verdict: deny, kinds: [disk-corrupt], why: nobody may lose data here}
- {verdict: allow, who: [team-shop, "ci-*"], kinds: [netem, "disk-*"],
   namespaces: [shop, "shop-*"], max_hard_end: 10m}
- {verdict: allow, who: [root]}
"""
POLICY = policy_from_yaml(TEXT.encode())


@pytest.mark.parametrize(
    ("who", "kind", "namespace", "why"),
    [
        ("team-shop", "netem", "shop", None),
        ("ci-7", "disk-delay", "shop-eu", None),
        ("root", "stress", NODE, None),
        ("team-shop", "stress", "shop", "no rule"),
        ("team-shop", "netem", "bank", "no rule"),
        ("team-shop", "netem", NODE, "no rule"),
        ("other", "netem", "shop", "no rule"),
        ("Team-Shop", "netem", "shop", "no rule"),
        ("root", "disk-corrupt", "shop", "lose data"),
    ],
)
def test_the_first_rule_that_fits_decides(
    who: str, kind: str, namespace: str, why: str | None
) -> None:
    if why is None:
        check(POLICY, who, kind, namespace, timedelta(minutes=10))
        return
    with pytest.raises(Refused) as no:
        check(POLICY, who, kind, namespace)
    assert why in no.value.why and who in no.value.what and kind in no.value.what


def test_a_rule_bounds_how_long() -> None:
    with pytest.raises(Refused, match="10m at most") as no:
        check(POLICY, "ci-1", "netem", "shop", timedelta(minutes=11))
    assert no.value.hint == "add: --hard-end 10m"


def test_without_a_policy_all_and_with_an_empty_one_nothing() -> None:
    check(None, "x", "y", "z")
    with pytest.raises(Refused):
        check(Policy(version=1), "x", "y", "z")
    check(Policy(version=1, default="allow"), "x", "y", "z")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "version: 2", "version: 1\nrules: x", "version: 1\nrules: [{verdict: maybe}]",
     "version: 1\nnope: 1", "version: 1\nrules: [{verdict: allow, max_hard_end: 5}]", "a: [", "\0",
     "!!python/object/apply:os.system [id]"],
)  # fmt: skip
def test_a_policy_that_is_wrong_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="policy is not valid"):
        policy_from_yaml(text.encode())


DATA = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
)


@given(DATA)
def test_no_data_crashes_it(data: Any) -> None:
    try:
        parse_policy(data)
    except InvalidSpec as exc:
        assert exc.why


def test_namespaces_of_targets() -> None:
    assert namespace_of({"type": "pod", "pod": "shop/a"}) == "shop"
    assert namespace_of({"type": "device", "device": "/dev/x"}) == NODE


def request(**more: Any) -> FaultRequest:
    target = {"type": "pod", "pod": "shop/a", "uid": "0" * 32}
    return FaultRequest.model_validate({"id": "t-1", "kind": "netem", "target": target, **more})


def test_a_file_is_read_again_and_a_broken_one_allows_nothing(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    found = PolicyFile(path)
    with pytest.raises(Refused, match="cannot be read"):
        found.check("root", request())
    path.write_text(TEXT)
    found.check("root", request())
    path.write_text("version: 1\nrules: [{verdict: deny, why: closed}]")
    with pytest.raises(Refused, match="policy does not let root"):
        found.check("root", request())
    path.write_text("version: 1\nrules: [")
    for _ in range(2):
        with pytest.raises(Refused, match="cannot be read"):
            found.check("root", request())
    new = tmp_path / "new"
    new.write_text(TEXT)
    os.utime(new, ns=(0, path.stat().st_mtime_ns))
    new.rename(path)
    found.check("root", request())


# --- the agent --------------------------------------------------------------------


@pytest.fixture
def node() -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch, served(patch) as found:
        yield found


def test_the_agent_asks_it_by_the_name_in_the_certificate(node: Served, tmp_path: Path) -> None:
    files = certs.write_all(tmp_path / "tls", "node")
    port = _free_port()
    server = node.serve(
        (f"tcp://127.0.0.1:{port}",), TlsFiles(files.server_cert, files.server_key, files.ca)
    )
    rules = "rules: [{verdict: allow, who: ['node client'], max_hard_end: 10m}]"
    path = tmp_path / "policy.yaml"
    path.write_text(f"version: 1\n{rules}")
    node.agent.policy = PolicyFile(path)
    asked = core_kit.request("t-policy", core_kit.SetValue(name="a", value="x"))
    with pytest.raises(Refused, match="does not let root"):
        node.client.plan(asked)
    with pytest.raises(Refused, match="does not let root"):
        node.client.apply(asked, Lease(), "0" * 64)
    assert node.kernel.get("a") == "a0"
    address = AgentAddress(f"tcp://127.0.0.1:{port}", files.client_cert, files.client_key, files.ca)
    with AgentClient(address) as client:
        _, digest = client.plan(asked)
        with pytest.raises(Refused, match="10m at most"):
            client.apply(asked, Lease(), digest)
        short = Lease.model_validate({"hard_end": "10m"})
        assert client.apply(asked, short, digest).state == "armed"
        path.write_text("version: 1")
        with pytest.raises(Refused):
            client.plan(asked)
        # Who may not inject any more may still take back.
        assert client.revert("t-policy").fault.end_reason == "reverted"
    server.stop(0).wait()


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])

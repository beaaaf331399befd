"""service: what systemctl and a client of the service see, and that the state comes back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from agentkit import Bench
from cgroup_kit import cpu_share, revert_all, until

from nodeagent.model.errors import Refused

pytestmark = pytest.mark.vm("debian-12+systemd", "debian-13+systemd")
WEB: dict[str, Any] = {"type": "unit", "unit": "web"}
QUICK = "[Unit]\nDefaultDependencies=no\nStartLimitBurst=1000\n"
"""Else the first start in a boot would bring up all of sysinit.target."""
UNITS = {
    "web.service": f"{QUICK}[Service]\nRestart=on-failure\nRestartSec=500ms\n"
    "SuccessExitStatus=143\n"
    "ExecStart=/usr/bin/socat TCP-LISTEN:7070,fork,reuseaddr EXEC:/usr/bin/hostname\n",
    "busy.service": f"{QUICK}[Service]\nCPUQuota=90%\nExecStart=/bin/sh -c 'while :; do :; done'\n",
    "user.service": f"{QUICK}Requires=web.service\nAfter=web.service\n"
    "[Service]\nExecStart=/usr/bin/sleep 100000\n",
    "woken.service": f"{QUICK}[Service]\nExecStart=/usr/bin/sleep 100000\n",
    "woken.socket": f"{QUICK}[Socket]\nListenStream=/run/woken\n",
}


@pytest.fixture
def units(bench: Bench) -> Iterator[None]:
    """web and what needs it, one that is busy, one behind a socket: all running."""
    for name, text in UNITS.items():
        bench.node.put(f"/run/systemd/system/{name}", text.encode())
    names = " ".join(UNITS)
    bench.node.sh("systemctl daemon-reload", timeout=60)
    bench.node.sh("systemctl start web busy user woken.socket", timeout=60)
    until(lambda: answers(bench))
    yield
    revert_all(bench)
    bench.node.sh(f"systemctl stop {names}", timeout=60)
    folder = "/run/systemd/system"
    bench.node.sh(f"cd {folder} && rm {names} && systemctl daemon-reload", timeout=60)


def answers(bench: Bench, seconds: int = 20) -> bool:
    """Whether the service serves a client that knows nothing of systemd."""
    ask = f"timeout {seconds} socat -T {seconds} - TCP:127.0.0.1:7070 </dev/null"
    return bool(bench.node.run(ask, check=False).out.strip())


def states(bench: Bench) -> str:
    return bench.node.sh(
        f"systemctl show -p Id,ActiveState,UnitFileState,FragmentPath {' '.join(UNITS)}"
    )


def active(bench: Bench, unit: str) -> str:
    return bench.node.run(["systemctl", "is-active", unit], check=False).out.strip()


@pytest.mark.usefixtures("units")
def test_stopped_with_what_needs_it_and_all_up_again(bench: Bench) -> None:
    before = states(bench)
    fault = bench.inject("service", WEB)
    assert not answers(bench, 3)
    assert (active(bench, "web"), active(bench, "user")) == ("inactive", "inactive")
    assert active(bench, "busy") == "active"
    found = bench.evidence(fault.id)
    assert (found["hits"], found["details"]["stopped_with_it"]) == (1, ["user.service"])
    with pytest.raises(Refused, match="nothing to break"):
        bench.plan("service", WEB)
    bench.client.revert(fault.id)
    assert states(bench) == before
    until(lambda: answers(bench))
    assert bench.residue() == []


@pytest.mark.usefixtures("units")
def test_a_socket_does_not_wake_it(bench: Bench) -> None:
    wake = "socat -u /dev/null UNIX-CONNECT:/run/woken"
    bench.node.sh(f"{wake}; systemctl start woken")
    before = states(bench)
    fault = bench.inject("service", {"type": "unit", "unit": "woken"})
    assert bench.node.run(wake, check=False).code != 0
    assert active(bench, "woken.service") == "inactive"
    bench.client.revert(fault.id)
    assert states(bench) == before


@pytest.mark.usefixtures("units")
def test_killed_each_time_it_is_back(bench: Bench) -> None:
    before = states(bench)
    show = "systemctl show -p NRestarts --value web"
    fault = bench.inject("service", WEB, spec={"action": "kill", "every": "2s"})
    until(lambda: int(bench.node.sh(show)) >= 2)
    assert bench.evidence(fault.id)["hits"] >= 2
    bench.client.revert(fault.id)
    until(lambda: states(bench) == before)
    until(lambda: answers(bench))
    kept = bench.node.sh(show)
    bench.node.sh("sleep 4")
    assert bench.node.sh(show) == kept


@pytest.mark.usefixtures("units")
def test_one_that_systemd_gave_up_is_started(bench: Bench) -> None:
    before = states(bench)
    fault = bench.inject("service", WEB, spec={"action": "kill", "signal": "TERM"})
    until(lambda: active(bench, "web") == "inactive")  # a clean end: on-failure leaves it
    bench.client.revert(fault.id)
    assert states(bench).replace("\n", "") == before.replace("\n", "")


@pytest.mark.usefixtures("units")
def test_frozen_it_is_active_and_answers_nothing(bench: Bench) -> None:
    fault = bench.inject("service", WEB, spec={"action": "freeze"})
    assert active(bench, "web") == "active"
    assert not answers(bench, 3)
    bench.client.revert(fault.id)
    until(lambda: answers(bench))
    fault = bench.inject("service", WEB, spec={"action": "freeze"})
    bench.node.sh("systemctl kill -s KILL web")  # an operator's restart
    until(lambda: answers(bench))
    bench.client.revert(fault.id)
    until(lambda: answers(bench))
    assert bench.residue() == []


@pytest.mark.usefixtures("units")
@pytest.mark.parametrize("mechanism", ["cpu-max", "cgroup-freezer"])
def test_slow_by_what_was_asked(bench: Bench, mechanism: str) -> None:
    pid = int(bench.node.sh("systemctl show -p MainPID --value busy"))
    limit = "cat /sys/fs/cgroup/system.slice/busy.service/cpu.max"
    before, full = bench.node.sh(limit), cpu_share(bench, pid)
    spec = {"action": "slow", "speed": "20%"}
    target = {"type": "unit", "unit": "busy"}
    fault = bench.inject("service", target, spec=spec, mechanism=mechanism)
    # Under emulation the freezer's turns are late by as much as a turn is long.
    assert 0.04 < cpu_share(bench, pid) / full < (0.45 if mechanism == "cpu-max" else 0.7)
    assert bench.evidence(fault.id)["hits"] > 10
    bench.client.revert(fault.id)
    assert bench.node.sh(limit) == before
    assert cpu_share(bench, pid) > full / 2


@pytest.mark.usefixtures("units")
def test_the_guardian_starts_it(bench: Bench) -> None:
    before = states(bench)
    bench.inject("service", WEB)
    bench.node.sh(f"kill -9 {bench.pids()[0]}")
    until(lambda: states(bench) == before, patience=120)


def test_what_cannot_be_is_refused(bench: Bench) -> None:
    for unit, why in (("nosuch", "no such service"), ("lab", "faultd itself runs in it")):
        with pytest.raises(Refused, match=why):
            bench.plan("service", {"type": "unit", "unit": unit})


@pytest.mark.vm("debian-13")
def test_without_systemd_it_is_refused(bench: Bench) -> None:
    with pytest.raises(Refused, match="systemd does not run this node"):
        bench.plan("service", WEB)

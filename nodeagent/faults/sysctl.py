"""sysctl: parameters of the kernel get other values, of the node or of one net namespace."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from pydantic import Field, model_validator

from nodeagent.model.evidence import Evidence
from nodeagent.model.facts import NeedRoot
from nodeagent.model.kind import Context, FaultKind, FaultSpec, Guard, Measured, Rung
from nodeagent.model.steps.sysctl import SysctlWrite
from nodeagent.model.sysctl import (
    GUARDS,
    SysctlBinding,
    SysctlValue,
    assignment,
    guards_of,
    is_net,
    is_numbers,
    name_of,
    reaches,
)


class Spec(FaultSpec):
    """Which values; those that are not named stay as they are."""

    set: tuple[str, ...] = Field(
        min_length=1,
        max_length=64,
        description="NAME=VALUE, as sysctl -w takes it; may be given several times",
    )

    @model_validator(mode="after")
    def _sound(self) -> Spec:
        paths = [path for path, _ in self.wanted()]
        for one, other in combinations(paths, 2):
            if reaches(one, other):
                raise ValueError(
                    f"{name_of(one)} and {name_of(other)} change each other: one of them"
                )
        return self

    def wanted(self) -> list[tuple[str, str]]:
        """(path, value) of each. Raises ValueError."""
        return [assignment(text) for text in self.set]


def _supports(spec: Spec, context: Context) -> str | None:
    binding: SysctlBinding = context.binding
    known = {found.path: found for found in binding.values}
    for path, value in spec.wanted():
        if (reason := _objection(known[path], value)) is not None:
            return f"{name_of(path)} {reason}"
    return None


def _objection(now: SysctlValue, value: str) -> str | None:
    if value == now.value:
        return f"is {value!r} already"
    if now.partner not in ("", "0"):
        return f"is not in force: the other of its pair is, with {now.partner}; set that one"
    if is_numbers(now.value):
        if not is_numbers(value):
            return f"holds numbers ({now.value}), written in decimal: {value!r} is none"
        if len(value.split()) != len(now.value.split()):
            return f"holds {len(now.value.split())} number(s): {now.value}"
    return None


def _plan(spec: Spec, context: Context) -> list[SysctlWrite]:
    binding: SysctlBinding = context.binding
    return [
        SysctlWrite(netns=binding.netns if is_net(path) else None, path=path, value=value)
        for path, value in spec.wanted()
    ]


def _guards(spec: Spec, context: Context) -> tuple[Guard, ...]:
    binding: SysctlBinding = context.binding
    paths = [path for path, _ in spec.wanted()]
    by_name: dict[str, list[str]] = {}
    for path in paths:
        for name in guards_of(path):
            by_name.setdefault(name, []).append(name_of(path))
    found = [Guard(name, f"{', '.join(who)}: {GUARDS[name][0]}") for name, who in by_name.items()]
    ours = [name_of(path) for path in paths if is_net(path)]
    if binding.host and ours:
        why = f"{', '.join(ours)}: the node's own network, the kubelet's and the agent's way out"
        found.append(Guard("host-network", why))
    return tuple(found)


def evidence(spec: Any, measured: tuple[Measured, ...]) -> Evidence:
    """What each of them is now; nothing counts how often the kernel looked."""
    found = [item.data for item in measured if "sysctl" in item.data]
    said = []
    for data in found:
        name, now, was = data["sysctl"], data["now"], data["prior"]
        if now == data["asked"]:
            said.append(f"{name} is {now!r}, was {was!r}")
        elif now is None:
            said.append(f"{name} is gone, with its interface, module or net namespace")
        else:
            by = "the operator has put it back" if now == was else "somebody has set it"
            said.append(f"{name} is {now!r}, not {data['asked']!r}: {by}")
    return Evidence(
        counted=False,
        statements=tuple(said),
        details={data["sysctl"]: {k: data[k] for k in ("prior", "now")} for data in found},
    )


KIND = FaultKind(
    name="sysctl",
    summary="parameters of the kernel get other values",
    doc="""\
Files below /proc/sys are written and read back; what the kernel would make another value of is
put back and refused. With --node they are the node's; with --netns, --pid or --cgroup they are
those of that net namespace (net.* only), which is found again by its cookie and not by its name.
Names are as sysctl(8) takes them: net.ipv4.conf.eth0/1.rp_filter or net/ipv4/conf/eth0.1/rp_filter.

Where one write changes other files as well (net.ipv4.ip_forward and the forwarding of every
interface, conf.all of IPv6, conf.default of IPv4), these are recorded and put back too. Refused:
unknown and read-only names, triggers, and what stays until the next boot, such as
kernel.modules_disabled. Held back by a guard rail: what can kill the whole node, names of programs
that the kernel runs, the node's own network. A value that somebody has changed meanwhile is left,
and the revert says so.""",
    spec=Spec,
    targets=("node", "netns", "pid", "cgroup"),
    family="sysctl",
    ladder=(Rung("procfs", "files below /proc/sys", lambda spec: (NeedRoot(),), _plan, _supports),),
    evidence=evidence,
    collateral=lambda spec: (
        "connections, forks and packets that failed meanwhile have failed",
        "what the kernel freed or dropped for the new value (caches, queue entries) is gone",
    ),
    remedies=("sysctl -w NAME=VALUE", "sysctl --system, where a file of /etc/sysctl.d has it"),
    guards=_guards,
    no_hits_hint="nothing counts how often the kernel looks at a sysctl",
    examples=(
        "faultctl inject sysctl --netns /run/netns/pod1 --set net.ipv4.ip_forward=0",
        "faultctl inject sysctl --pid 4242 --set 'net.ipv4.ip_local_port_range=40000 40010'",
        "faultctl inject sysctl --node --set vm.swappiness=100 --set kernel.pid_max=600 "
        "--i-know node-life",
    ),
)

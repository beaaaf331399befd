"""The node's clock as a target: who keeps it, and what its new time would break."""

from __future__ import annotations

import os
import time
from datetime import timedelta

from nodeagent.bind import systemd
from nodeagent.bind.family import Ask, Scene
from nodeagent.bind.node import Node
from nodeagent.bind.process import comm_of, stat_fields
from nodeagent.model.errors import InvalidSpec, Refused
from nodeagent.model.target import NodeTarget
from nodeagent.model.timekeeping import ClockBinding, TimeDaemon

DAEMONS = ("systemd-timesyncd", "chronyd", "ntpd", "openntpd", "ntpsec-ntpd", "ptp4l", "phc2sys",
           "timemaster", "htpdate", "rdate", "sntp", "ntpdate")  # fmt: skip
"""Programs that set the system's clock, as they name themselves."""
GUEST_TOOLS = ("VBoxService", "vmtoolsd", "qemu-ga", "prl_tools_serv", "xe-daemon")
"""Helpers of hypervisors: some set the guest's clock from the host's."""
COMM_LENGTH = 15
"""TASK_COMM_LEN without its NUL, include/linux/sched.h."""


def bind(scene: Scene, ask: Ask) -> ClockBinding:
    """The node's clock. Raises Refused for processes: they have no clock of their own."""
    if not isinstance(ask.target, NodeTarget):
        raise _per_process(ask.target.label())
    daemons, tools = _keepers(scene.node)
    notes = [f"{name} may set the clock from its host" for name in tools]
    offset: timedelta | None = getattr(ask.spec, "offset", None)
    return ClockBinding(
        target=ask.target.label(),
        daemons=daemons,
        tls=tls_objections(ask.facts.tls_ca, offset) if offset is not None else (),
        notes=tuple(notes),
    )


def _per_process(label: str) -> Refused:
    return Refused(
        f"{label} has no wall clock of its own",
        "CLOCK_REALTIME is one for the whole kernel: a time namespace shifts CLOCK_MONOTONIC and "
        "CLOCK_BOOTTIME only, and only for processes that are started in it later "
        "(time_namespaces(7)); a running process keeps the namespace that it has",
        "name the node: --node; for a new process: unshare --time --boottime SECONDS COMMAND",
    )


def _keepers(node: Node) -> tuple[tuple[TimeDaemon, ...], tuple[str, ...]]:
    """(daemons that run, by pid; hypervisor helpers that run, by name)."""
    short = {name[:COMM_LENGTH]: name for name in (*DAEMONS, *GUEST_TOOLS)}
    found: list[TimeDaemon] = []
    tools: set[str] = set()
    for pid in sorted(int(name) for name in os.listdir(node.proc) if name.isdigit()):
        try:
            comm = comm_of(node, pid)
            if (name := short.get(comm)) is None:
                continue
            fields = stat_fields(node, pid)
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] in "ZX":
            continue
        if name in GUEST_TOOLS:
            tools.add(name)
            continue
        found.append(TimeDaemon(comm=name, pid=pid, start_ticks=int(fields[19])))
    if systemd.is_running():
        found = _with_units(node, found)
    return tuple(found), tuple(sorted(tools))


def _with_units(node: Node, daemons: list[TimeDaemon]) -> list[TimeDaemon]:
    """With the units that run them: where the main process is one of them, not a shell or a pod."""
    units = {one.pid: systemd.unit_of(node, one.pid) for one in daemons}
    mains = {unit: systemd.show(unit, "MainPID")["MainPID"] for unit in {*units.values()} - {""}}
    ours = {unit for unit, main in mains.items() if int(main) in units}
    return [
        one.model_copy(update={"unit": units[one.pid]}) if units[one.pid] in ours else one
        for one in daemons
    ]


def tls_objections(ca: str, offset: timedelta) -> tuple[str, ...]:
    """Certificates of the clients' CA that are not valid at the shifted time, a sentence each.

    A client's own certificate is seen only when it connects; it can only be narrower.
    Raises InvalidSpec when the file cannot be read.
    """
    if not ca:
        return ()
    import ssl  # only here: it would cost every agent 3 MB

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(cafile=ca)
    except OSError as exc:  # ssl.SSLError is one
        raise InvalidSpec(f"the CA {ca} cannot be read", str(exc)) from exc
    at = time.time() + offset.total_seconds()
    found = []
    for cert in context.get_ca_certs():
        first = ssl.cert_time_to_seconds(str(cert["notBefore"]))
        last = ssl.cert_time_to_seconds(str(cert["notAfter"]))
        if not first <= at <= last:
            found.append(
                f"the CA of {ca} is valid from {cert['notBefore']} to {cert['notAfter']}, "
                "and the node's time would be outside of that"
            )
    return tuple(found)

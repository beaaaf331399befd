"""Host names among the networks of a spec: their addresses, and that they are followed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from nodeagent.model.errors import Refused
from nodeagent.model.kind import Measured
from nodeagent.model.net import NetBinding
from nodeagent.model.netspec import Flow, PortRange


def addressed(flows: Sequence[Flow], binding: NetBinding) -> list[Flow]:
    """Each name as all its addresses. Raises Refused for one that the binding does not know."""
    known, found = dict(binding.names), []
    for flow in flows:
        if flow.name is None:
            found.append(flow)
            continue
        if not known.get(flow.name):
            raise Refused(f"{flow.name} has no address", "it was not resolved")
        found += map(flow.at, known[flow.name])
    return found


def from_ports(flows: Sequence[Flow], local_ports: Sequence[PortRange]) -> list[Flow]:
    """Each flow once for each of the own ports; as they are without any."""
    if not local_ports:
        return list(flows)
    return [
        flow.model_copy(update={"local_port": ports}) for flow in flows for ports in local_ports
    ]


def followed(
    flows: Sequence[Flow], local_ports: Sequence[PortRange], refresh: timedelta, binding: NetBinding
) -> dict[str, Any]:
    """What of a step follows its names; nothing without names."""
    names = tuple(from_ports([flow for flow in flows if flow.name is not None], local_ports))
    if not names:
        return {}
    pid = binding.processes[0][0] if binding.processes else None
    return {"names": names, "refresh_s": refresh.total_seconds(), "resolver_pid": pid}


def resolved(measured: Sequence[Measured]) -> dict[str, Any]:
    """Addresses that names have got since the plan, as details of an evidence."""
    added = {a for item in measured for a in item.data.get("addresses", ())}
    failed = next((t for item in measured if (t := item.data.get("unresolved"))), "")
    found: dict[str, Any] = {"new_addresses": sorted(added)} if added else {}
    return found | ({"unresolved": failed} if failed else {})

"""BPF programs behind the filters of a fault: those that refuse packets, and answer DNS queries.

A filter that has taken one over holds it: it goes with the filter, whoever removes that.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from nodeagent.backends.bpf_object import BpfObject
from nodeagent.backends.libbpf import lib
from nodeagent.encode import net_dns
from nodeagent.encode.net_filter import REJECT_CONFIG
from nodeagent.model.steps.net import Dns, Reject, TcFilters

_CODES = {"reset": (3, 4), "unreachable": (1, 3)}
"""Of ICMP and ICMPv6: port unreachable; host, and address, unreachable (RFC 792, RFC 4443)."""
_FIRST = struct.pack("=I", 0)


@dataclass(frozen=True)
class Program:
    """A program that is loaded, and not yet, or not only, a filter's."""

    whole: BpfObject
    fd: int
    decides: bool = True
    """By itself what becomes of a packet; else it only says whether the filter matches."""

    def close(self) -> None:
        """A filter that has it keeps it."""
        self.whole.close()

    def hits(self) -> int:
        """Queries for chosen names so far. Raises OSError."""
        counted = self.whole.map("fc_dns_hits").lookup(_FIRST)
        return int(struct.unpack("=Q", counted)[0]) if counted else 0


def load(step: TcFilters) -> Program | None:
    """What a step's packets go through; None for one that needs none.

    Raises Refused, BackendError.
    """
    if isinstance(step.act, Reject):
        config = REJECT_CONFIG.pack(
            step.hook == "ingress", step.act.how == "reset", *_CODES[step.act.how]
        )
        return _loaded("net_reject", "fc_net_reject", config)
    if isinstance(step.act, Dns):
        return _dns(step.act)
    return None


def _dns(act: Dns) -> Program:
    everything = net_dns.EVERYTHING in act.names
    config = net_dns.config(act.how, everything, act.answers, act.ttl_s)
    only_matches = act.how == "delay"
    name = "fc_net_dns_match" if only_matches else "fc_net_dns"
    made = _loaded("net_dns", name, config, decides=not only_matches)
    names = made.whole.map("fc_dns_names")
    for key, which in net_dns.chosen_names(act.names).items():
        names.update(struct.pack("=Q", key), struct.pack("=I", which))
    return made


def _loaded(object_name: str, name: str, config: bytes, decides: bool = True) -> Program:
    whole = BpfObject(object_name)
    try:
        whole.preset(".rodata.fc", config)
        whole.load()
        fd = int(lib().bpf_program__fd(whole.program(name)))
    except BaseException:
        whole.close()
        raise
    return Program(whole, fd, decides)

"""Units and words of network faults: bandwidths, remote ends, port ranges.

One grammar for the command line, files and the wire, as in nodeagent.model.units.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

Network = IPv4Network | IPv6Network
Protocol = Literal["tcp", "udp", "sctp", "icmp"]
PortRange = tuple[int, int]

MAX_RATE = (1 << 63) - 8
PORT_PROTOCOLS: tuple[Protocol, ...] = ("tcp", "udp", "sctp")
_PROTOCOLS: dict[str, Protocol] = {p: p for p in PORT_PROTOCOLS}
_PROTOCOLS |= {"icmp": "icmp", "icmpv6": "icmp"}

# --- bandwidth --------------------------------------------------------------------

_RATE = re.compile(r"(\d+(?:\.\d+)?)([A-Za-z/]+)", re.ASCII)
_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BITS = {f"{p}bit": f for p, f in _DECIMAL.items()}
_BITS |= {f"{p}bit/s": f for p, f in _DECIMAL.items()}
_BITS |= {f"{p}i{u}": 1024**i for i, p in enumerate("kmgt", 1) for u in ("bit", "bit/s")}
_BYTES = {f"{p}byte{s}": f for p, f in _DECIMAL.items() for s in ("", "s", "/s")}
_BYTES |= {f"{p}B/s": f for p, f in [("", 1), ("k", 10**3), ("M", 10**6), ("G", 10**9)]}
_BYTES |= {f"{p}iB/s": 1024**i for i, p in enumerate("KMGT", 1)}


def parse_rate(value: object) -> int:
    """A bandwidth in bits per second: `10mbit`, `1.5gbit`, `125kbyte`, `5MB/s`, `1MiB/s`.

    At least 8 bit/s, and whole bytes per second, which is what the kernel counts in.
    Raises ValueError for a person; `bps` and the like are refused as bits or bytes.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _rate_in_range(Decimal(value), f"{value}bit")
    text = str(value)
    match = _RATE.fullmatch(text)
    if match is None:
        hint = (
            f": write {text}mbit or {text}kbit" if text.isdigit() else ": write for example 10mbit"
        )
        raise ValueError(f"{text!r} is not a bandwidth{hint}")
    return _rate_in_range(Decimal(match[1]) * _unit_bits(match[2], text), text)


def _unit_bits(unit: str, text: str) -> int:
    if unit in _BYTES:
        return 8 * _BYTES[unit]
    if unit.lower() in _BITS:
        return _BITS[unit.lower()]
    if unit.lower() in {f"{p}bps" for p in ("", "k", "m", "g", "t")}:
        raise ValueError(f"{text!r} may mean bits or bytes: write for example 10mbit or 10MB/s")
    raise ValueError(f"{text!r} is not a bandwidth: units are bit, kbit, mbit, gbit, kB/s, MB/s")


def _rate_in_range(bits: Decimal, text: str) -> int:
    if bits != bits.to_integral_value() or bits % 8:
        raise ValueError(f"{text!r} is not a whole number of bytes per second")
    if not 8 <= bits <= MAX_RATE:
        raise ValueError(f"{text!r} is not between 8bit and {MAX_RATE}bit")
    return int(bits)


def format_rate(bits: int) -> str:
    """The largest exact unit: `10mbit`, `1500kbit`, `8bit`."""
    for unit in ("t", "g", "m", "k"):
        if bits % _DECIMAL[unit] == 0:
            return f"{bits // _DECIMAL[unit]}{unit}bit"
    return f"{bits}bit"


Bandwidth = Annotated[
    int,
    BeforeValidator(parse_rate),
    PlainSerializer(format_rate, return_type=str),
    WithJsonSchema({"type": "string", "format": "bandwidth", "examples": ["10mbit"]}),
    Field(json_schema_extra={"metavar": "BANDWIDTH"}),
]

# --- ports ------------------------------------------------------------------------


def parse_ports(text: str) -> PortRange:
    """`80` or `8000-8010`, from 1 to 65535. Raises ValueError for a person."""
    match = re.fullmatch(r"(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII)
    if match is None:
        raise ValueError(f"{text!r} is not a port or a range of ports such as 8000-8010")
    first, last = int(match[1]), int(match[2] or match[1])
    if not 1 <= first <= last <= 65535:
        raise ValueError(f"{text!r} is not a range within 1-65535")
    return first, last


def format_ports(ports: PortRange) -> str:
    """As `parse_ports` reads it."""
    return str(ports[0]) if ports[0] == ports[1] else f"{ports[0]}-{ports[1]}"


# --- remote ends ------------------------------------------------------------------


class Flow(BaseModel):
    """Packets that are meant: every part that is given must hold. Without any, all packets.

    `remote` and `remote_port` are the far end's, whatever the direction of a packet. A `name`
    stands for addresses that the binding knows; it is in no step.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    remote: str | None = None
    protocol: Protocol | None = None
    remote_port: PortRange | None = None
    local_port: PortRange | None = None
    name: str | None = None

    def network(self) -> Network | None:
        """Raises ValueError for a name, which could be taken for everything."""
        if self.name is not None:
            raise ValueError(f"{self.name} is not resolved")
        return None if self.remote is None else ip_network(self.remote)

    def at(self, address: str) -> Flow:
        """The same of one address instead of its name."""
        return self.model_copy(update={"name": None, "remote": str(ip_network(address))})

    def text(self) -> str:
        """As `parse_remote` reads it; the local port after `<-`."""
        host = self.name or ("*" if self.remote is None else self.remote)
        if self.remote_port is not None:
            host = (
                f"[{self.remote.partition('/')[0]}]/{self.remote.partition('/')[2]}"
                if (self.remote is not None and ":" in self.remote)
                else host
            )
            host += f":{format_ports(self.remote_port)}"
        host += f"/{self.protocol}" if self.protocol else ""
        return host + (f"<-:{format_ports(self.local_port)}" if self.local_port else "")


EVERYTHING = Flow()
_LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}$)(?=[^:/]*[A-Za-z])(?:{_LABEL}\.)*{_LABEL}\.?", re.ASCII)
"""A host name has a letter somewhere; else it is an address, or meant to be one."""
_REMOTE = re.compile(
    r"(?P<host>\[[^\]]*\](?:/\d+)?|[^\[\]]*?)"
    r"(?P<ports>:[^:/\]]*)?"
    r"(?:/(?P<proto>[A-Za-z][A-Za-z0-9]*))?",
    re.ASCII,
)


def parse_remote(text: str) -> Flow:
    """`NETWORK[:PORTS][/PROTOCOL]`, such as `10.0.0.0/8:5432/tcp`, `[2001:db8::1]:80`, `*:53`.

    An IPv6 network with a port stands in brackets. A port without a protocol means TCP, UDP
    and SCTP. A host name stands for all its addresses. Raises ValueError for a person.
    """
    match = _REMOTE.fullmatch(text)
    host, ports, proto = (match["host"], match["ports"], match["proto"]) if match else ("", "", "")
    if match is not None and not host.startswith("[") and (host + (ports or "")).count(":") > 1:
        host, ports = host + (ports or ""), None  # an IPv6 network without brackets has no port
    if not host:
        raise ValueError(
            f"{text!r} names no network: write for example 10.0.0.0/8:5432/tcp or *:53"
        )
    name = host.lower().rstrip(".") if _NAME.fullmatch(host) else None
    flow = Flow(
        name=name,
        remote=None if host == "*" or name else _network(host, text),
        protocol=_protocol(proto, text) if proto else None,
        remote_port=parse_ports(ports[1:]) if ports else None,
    )
    if flow.protocol == "icmp" and flow.remote_port is not None:
        raise ValueError(f"{text!r}: ICMP has no ports")
    return flow


def _network(host: str, text: str) -> str:
    bare = host.replace("[", "").replace("]", "")
    if "%" in bare:
        raise ValueError(f"{text!r}: choose the interface by --interface, not by a zone")
    try:
        found = ip_network(bare)
    except ValueError as exc:
        if "host bits" in str(exc):
            raise ValueError(f"{text!r}: write {ip_network(bare, strict=False)}") from exc
        raise ValueError(f"{text!r} is not a network: {exc}") from exc
    return str(_unmapped(found))


def _unmapped(found: Network) -> Network:
    """::ffff:10.0.0.1 is IPv4 on the wire."""
    if isinstance(found, IPv6Network) and found.prefixlen >= 96:
        inner = IPv6Address(found.network_address).ipv4_mapped
        if inner is not None:
            return IPv4Network((inner, found.prefixlen - 96))
    return found


def _protocol(word: str, text: str) -> Protocol:
    found = _PROTOCOLS.get(word.lower())
    if found is None:
        raise ValueError(f"{text!r}: protocol {word!r} is none of tcp, udp, sctp, icmp")
    return found


def _parse_remotes(value: object) -> tuple[Flow, ...]:
    if isinstance(value, str):
        value = [part for part in re.split(r"[,\s]+", value) if part] or [""]
    if not isinstance(value, Sequence):
        raise ValueError("networks are text such as 10.0.0.0/8:5432/tcp, separated by commas")  # noqa: TRY004 - what pydantic turns into an error of the field
    found = [item if isinstance(item, Flow) else parse_remote(str(item)) for item in value]
    return tuple(dict.fromkeys(found))


Remotes = Annotated[
    tuple[Flow, ...],
    BeforeValidator(_parse_remotes),
    PlainSerializer(lambda flows: ",".join(f.text() for f in flows) if flows else []),
    WithJsonSchema(
        {"type": "string", "format": "networks", "examples": ["10.0.0.0/8:5432/tcp,*:53/udp"]}
    ),
    Field(json_schema_extra={"metavar": "NETWORKS"}),
]


def _parse_port_list(value: object) -> tuple[PortRange, ...]:
    if isinstance(value, str | int):
        value = str(value).split(",")
    if not isinstance(value, Sequence):
        raise ValueError("ports are text such as 80,443,8000-8010")  # noqa: TRY004 - as above
    return tuple(sorted({parse_ports(_port_text(item)) for item in value}))


def _port_text(item: object) -> str:
    """One of a list: text, a number, or the first and the last of a range."""
    if isinstance(item, tuple | list) and len(item) == 2:
        return f"{item[0]}-{item[1]}"
    return str(item)


Ports = Annotated[
    tuple[PortRange, ...],
    BeforeValidator(_parse_port_list),
    PlainSerializer(lambda ports: ",".join(map(format_ports, ports)) if ports else []),
    WithJsonSchema({"type": "string", "format": "ports", "examples": ["80,443,8000-8010"]}),
    Field(json_schema_extra={"metavar": "PORTS"}),
]

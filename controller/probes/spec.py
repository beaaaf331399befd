"""Probes of an experiment as data. `node` runs one through that node's agent."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from controller.probes.address import Host, bare_host
from nodeagent.model.target import AbsolutePath
from nodeagent.model.units import Duration, Size


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"not a regular expression: {exc}") from None
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


class ProbeBase(BaseModel):
    """What all probes share."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    timeout: Duration = Field(default=timedelta(seconds=5), description="for one sample, in all")
    interval: Duration = Field(default=timedelta(seconds=1), description="between two starts")
    failures: int = Field(default=1, ge=1, le=1000, description="in a row that make it unhealthy")
    successes: int = Field(default=1, ge=1, le=1000, description="in a row that make it healthy")

    @model_validator(mode="after")
    def _bounded(self) -> ProbeBase:
        if self.timeout <= timedelta(0) or self.interval <= timedelta(0):
            raise ValueError("timeout and interval must be more than 0s")
        return self

    @property
    def gap_ns(self) -> int:
        """The longest time between two starts that is no hole in the series: the time-out or
        interval, twice, and one second for a busy machine."""
        longest = max(self.timeout, self.interval)
        return 2 * (longest // timedelta(microseconds=1)) * 1000 + 10**9

    @property
    def places(self) -> tuple[str, ...]:
        """The nodes that must answer for it to measure."""
        node = getattr(self, "node", None)
        return (node,) if node else ()


class Tls(ProbeBase):
    """TLS of a client."""

    ca: Path | None = Field(default=None, description="PEM file; absent: the system's CAs")
    cert: Path | None = Field(default=None, description="client certificate, PEM")
    key: Path | None = Field(default=None, description="its key, PEM")
    server_name: str | None = Field(default=None, description="name in the certificate and SNI")
    verify: bool = Field(default=True, description="false accepts any certificate")


class HttpProbe(Tls):
    """An HTTP request; the status is judged as it comes, redirects are not followed."""

    type: Literal["http"] = "http"
    url: str | None = Field(default=None, description="http:// or https://; or give host")
    scheme: Literal["http", "https"] = "http"
    host: Host | None = Field(default=None, description="name or address; IPv6 bare or bracketed")
    port: int | None = Field(default=None, ge=1, le=65535)
    path: str = Field(default="/", pattern=r"^/")
    method: str = Field(default="GET", pattern=r"^[A-Z]+$")
    headers: dict[str, str] = {}
    body: str | None = None
    status: tuple[int, int] = Field(default=(200, 299), description="first and last that pass")
    contains: str | None = Field(default=None, description="text that the body must contain")
    matches: Pattern | None = Field(default=None, description="regular expression for the body")
    max_body: Size = Field(default=1 << 20, description="more than this is a failure")
    follow: bool = Field(default=False, description="follow redirects, ten at most")
    final_host: Host | None = Field(default=None, description="host that must answer in the end")
    latency: Duration | None = Field(default=None, description="slower than this is a failure")

    @model_validator(mode="after")
    def _one_place(self) -> HttpProbe:
        if (self.url is None) == (self.host is None):
            raise ValueError("give url or host, one of them")
        if self.url is not None:
            parts = urlsplit(self.url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"url: {self.url!r} is not http:// or https:// with a host")
            literal = parts.netloc.rpartition("@")[2].startswith("[")
            bare_host(f"[{parts.hostname}]" if literal else parts.hostname)
            _ = parts.port
        return self


class TcpProbe(ProbeBase):
    """Connects to a TCP port; an accepted connection is healthy."""

    type: Literal["tcp"] = "tcp"
    host: Host
    port: int = Field(ge=1, le=65535)
    node: str | None = None


class DnsProbe(ProbeBase):
    """Asks a name server; /etc/hosts and search domains play no part."""

    type: Literal["dns"] = "dns"
    name: str = Field(min_length=1, max_length=253)
    record: Literal["A", "AAAA", "CNAME", "MX", "NS", "PTR", "SRV", "TXT"] = "A"
    server: Host | None = Field(default=None, description="absent: those of /etc/resolv.conf")
    port: int = Field(default=53, ge=1, le=65535)
    tcp: bool = False
    expect: tuple[str, ...] = Field(default=(), description="answers that must be there")


class GrpcPlace(Tls):
    """Where a gRPC server is."""

    host: Host
    port: int = Field(ge=1, le=65535)
    tls: bool = False


class GrpcHealthProbe(GrpcPlace):
    """grpc.health.v1.Health/Check; SERVING is healthy."""

    type: Literal["grpc-health"] = "grpc-health"
    service: str = ""


class ExecProbe(ProbeBase):
    """Runs a program; exit status 0 is healthy. No shell."""

    type: Literal["exec"] = "exec"
    command: tuple[str, ...] = Field(min_length=1)
    output: str | None = Field(default=None, description="text that standard output must contain")
    node: str | None = Field(default=None, description="absent: on the controller's machine")
    inside: str | None = Field(
        default=None,
        max_length=15,
        description="in the namespaces of the oldest process of this name",
    )


class ReadProbe(ProbeBase):
    """Reads a range of a file or block device of a node, past the page cache."""

    type: Literal["read"] = "read"
    node: str
    path: AbsolutePath
    offset: Size = 0
    length: Size | None = None
    block: Size = 4096


class ProcessProbe(ProbeBase):
    """Counts processes by name and keeps who they are, so that restarts show."""

    type: Literal["process"] = "process"
    name: str = Field(
        min_length=1, max_length=15, description="the kernel's comm: at most 15 bytes (proc(5))"
    )
    node: str | None = None
    at_least: int = Field(default=1, ge=0)
    at_most: int | None = Field(default=None, ge=0)


class ExposureProbe(ProbeBase):
    """Passes when no process can be hit: by a fault, or by what is at or below a path."""

    type: Literal["exposure"] = "exposure"
    path: AbsolutePath | None = Field(
        default=None, description="no process has a file open or mapped at or below it"
    )
    node: str | None = Field(default=None, description="of the path")
    fault: str | None = Field(
        default=None, description="fault of the experiment, asked of its nodes, while it is armed"
    )
    reach: Literal["volume", "file"] = Field(
        default="volume",
        description="of a fault on a file: who uses its file system, or who has the file open now",
    )

    @model_validator(mode="after")
    def _one(self) -> ExposureProbe:
        if (self.path is None) == (self.fault is None):
            raise ValueError("give path or fault, one of them")
        if self.fault is not None and self.node is not None:
            raise ValueError("node goes with path; a fault knows its nodes")
        return self


class PromqlProbe(Tls):
    """A PromQL instant query; every series must keep the bounds."""

    type: Literal["promql"] = "promql"
    url: str = Field(pattern=r"^https?://", description="of the Prometheus server")
    query: str = Field(min_length=1)
    at_most: Decimal | None = None
    at_least: Decimal | None = None
    empty: Literal["pass", "fail", "unknown"] = Field(
        default="unknown", description="what no series at all means"
    )

    @model_validator(mode="after")
    def _some(self) -> PromqlProbe:
        if self.at_most is None and self.at_least is None:
            raise ValueError("at_most or at_least is needed")
        return self


class LogProbe(ProbeBase):
    """Looks for a pattern in the lines that were added to a log file lately."""

    type: Literal["log"] = "log"
    path: AbsolutePath
    node: str | None = None
    pattern: Pattern = Field(description="on a node: a POSIX extended regular expression")
    expect: Literal["absent", "present"] = "absent"
    within: Duration = Field(default=timedelta(seconds=10), description="how lately")


class SqlProbe(ProbeBase):
    """A query on PostgreSQL or MySQL."""

    type: Literal["sql"] = "sql"
    engine: Literal["postgresql", "mysql"] = "postgresql"
    host: str = Field(min_length=1, description="host, or directory of the Unix socket")
    port: int | None = Field(default=None, ge=1, le=65535)
    database: str = ""
    user: str = ""
    password_file: Path | None = Field(default=None, description="never written to the record")
    query: str = "SELECT 1"
    expect: str | None = Field(default=None, description="first value of the first row, as text")
    at_least_rows: int = Field(default=0, ge=0)


class K8sProbe(ProbeBase):
    """A CEL expression over a live object of the cluster; only `true` is healthy."""

    type: Literal["k8s"] = "k8s"
    api_version: str = "v1"
    kind: str = Field(min_length=1)
    namespace: str = ""
    name: str = Field(min_length=1)
    expression: str = Field(min_length=1, description="CEL over `object`")
    fields: dict[str, str] = Field(default={}, description="name -> CEL, kept in the sample")


Probe = Annotated[
    HttpProbe
    | TcpProbe
    | DnsProbe
    | GrpcHealthProbe
    | ExecProbe
    | ReadProbe
    | ProcessProbe
    | ExposureProbe
    | PromqlProbe
    | LogProbe
    | SqlProbe
    | K8sProbe,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[ProbeBase] = TypeAdapter(Probe)


def parse_probe(data: Any) -> ProbeBase:
    """A probe from decoded YAML or JSON. Raises pydantic.ValidationError."""
    return _ADAPTER.validate_python(data)

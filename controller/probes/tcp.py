"""TCP probes from the controller: every address of a name, one limit for all together."""

from __future__ import annotations

import socket
import time

from controller.probes.outcome import Outcome, network_failure, passed, timed_out, unknown
from controller.probes.spec import TcpProbe


def measure(spec: TcpProbe) -> Outcome:
    """One connection; the first address that accepts is enough."""
    deadline = time.monotonic() + spec.timeout.total_seconds()
    try:
        found = socket.getaddrinfo(spec.host, spec.port, type=socket.SOCK_STREAM)
    except socket.gaierror as exc:
        return network_failure(exc) or unknown(str(exc))
    last: OSError | None = None
    for family, kind, protocol, _, address in found:
        left = deadline - time.monotonic()
        if left <= 0:
            return timed_out(addresses=len(found))
        with socket.socket(family, kind, protocol) as one:
            one.settimeout(left)
            try:
                one.connect(address)
            except ConnectionResetError:
                # Accepted, then reset: a refusal of the handshake itself is ECONNREFUSED
                # (tcp_reset() in net/ipv4/tcp_input.c).
                return passed(peer=str(address[0]))
            except OSError as exc:
                last = exc
                continue
            return passed(peer=str(address[0]))
    if last is None:
        return unknown("the name has no address")
    return network_failure(last) or unknown(str(last))

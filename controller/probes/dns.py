"""DNS probes: what a name server says, and nothing else on this machine."""

from __future__ import annotations

import dns.exception
import dns.name
import dns.resolver

from controller.probes.outcome import Outcome, failed, passed, timed_out, unknown
from controller.probes.spec import DnsProbe


def measure(spec: DnsProbe) -> Outcome:
    """One question, with repetitions inside the time-out."""
    try:
        resolver = dns.resolver.Resolver(configure=spec.server is None)
    except dns.resolver.NoResolverConfiguration as exc:
        return unknown(f"there is no name server to ask: {exc}")
    if spec.server is not None:
        resolver.nameservers = [spec.server]
        resolver.port = spec.port
    lifetime = spec.timeout.total_seconds()
    resolver.timeout = max(0.5, lifetime / 3)
    try:
        name = dns.name.from_text(spec.name)
        answer = resolver.resolve(name, spec.record, tcp=spec.tcp, lifetime=lifetime, search=False)
    except dns.resolver.NXDOMAIN:
        return failed("the name does not exist (NXDOMAIN)", cause="nxdomain")
    except dns.resolver.NoAnswer:
        return failed(f"the name has no {spec.record} record", cause="no-answer")
    except dns.resolver.NoNameservers as exc:
        return failed(f"no server gives an answer: {_words(exc)}", cause="servfail")
    except dns.exception.Timeout:
        return timed_out()
    except dns.exception.DNSException as exc:
        return unknown(f"the question cannot be asked: {_words(exc)}")
    found = sorted(_text(record.to_text()) for record in answer)
    missing = [want for want in spec.expect if _text(want) not in found]
    ttl = answer.rrset.ttl if answer.rrset is not None else 0
    if missing:
        text = f"{', '.join(missing)} is missing in {', '.join(found)}"
        return failed(text, answers=found, ttl=ttl, cause="answer")
    return passed(answers=found, ttl=ttl)


def _words(exc: Exception) -> str:
    return str(exc).split("\n")[0]


def _text(value: str) -> str:
    """Names compare without their final dot and case; text records without quotes."""
    return value.rstrip(".").strip('"').casefold()

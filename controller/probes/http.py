"""HTTP probes: the status as it comes, a limit for everything together, reasons told apart."""

from __future__ import annotations

import asyncio
import codecs
import re
import time
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import httpx

from controller.probes import tls
from controller.probes.address import bare_host, host_header, url_host
from controller.probes.outcome import Outcome, failed, network_failure, passed, timed_out
from controller.probes.spec import HttpProbe, Tls

MAX_REDIRECTS = 10
_DEFAULT_PORTS = {"http": 80, "https": 443}


def target_of(spec: HttpProbe) -> tuple[str, str]:
    """(URL, Host header) of the request."""
    if spec.url is not None:
        parts = urlsplit(spec.url)
        scheme, host = parts.scheme, bare_host(_literal(parts.hostname or ""))
        port = parts.port or _DEFAULT_PORTS[scheme]
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    else:
        scheme, host, path = spec.scheme, spec.host or "", spec.path
        port = spec.port or _DEFAULT_PORTS[scheme]
    url = f"{scheme}://{url_host(host)}:{port}{path}"
    return url, host_header(host, port, _DEFAULT_PORTS[scheme])


def _literal(hostname: str) -> str:
    """A literal of a URL has its zone escaped as %25 (RFC 6874)."""
    return hostname.replace("%25", "%") if ":" in hostname else hostname


class _ZonedUrl(httpx.URL):
    """A URL whose zone reaches getaddrinfo(3) as it is spelt there: `%`, not `%25`."""

    @property
    def raw_host(self) -> bytes:
        return super().raw_host.replace(b"%25", b"%")


def client(spec: Tls, *, follow: bool = False) -> httpx.AsyncClient:
    """No proxy, no cookies between samples, one connection a sample."""
    return httpx.AsyncClient(
        verify=tls.context(spec),
        trust_env=False,
        follow_redirects=follow,
        max_redirects=MAX_REDIRECTS,
        timeout=spec.timeout.total_seconds(),
    )


def measure(spec: HttpProbe) -> Outcome:
    """One request. Raises InvalidSpec for TLS files that cannot be used."""
    return asyncio.run(_measure(spec))


async def _measure(spec: HttpProbe) -> Outcome:
    began = time.monotonic_ns()
    data: dict[str, Any] = {}
    try:
        async with asyncio.timeout(spec.timeout.total_seconds()):
            async with client(spec, follow=spec.follow) as session:
                return await _request(spec, session, began, data)
    except (TimeoutError, httpx.TimeoutException):
        return timed_out(**data)
    except httpx.TooManyRedirects:
        return failed(f"more than {MAX_REDIRECTS} redirects", **data, cause="redirects")
    except httpx.DecodingError as exc:
        return failed(f"the body cannot be decoded: {exc}", **data, cause="garbage")
    except (httpx.TransportError, OSError) as exc:
        found = network_failure(exc, **data)
        if found is not None:
            return found
        closed = "closed connection" in str(exc) or "disconnected" in str(exc)
        cause = "cut" if closed else "garbage"
        return failed(f"the answer is broken: {exc or type(exc).__name__}", **data, cause=cause)
    except (httpx.InvalidURL, httpx.HTTPError) as exc:
        return failed(f"the answer is broken: {exc}", **data, cause="garbage")


async def _request(
    spec: HttpProbe, session: httpx.AsyncClient, began: int, data: dict[str, Any]
) -> Outcome:
    url, host = target_of(spec)
    headers = {"Host": host, "User-Agent": "faultctl-probe", **spec.headers}
    extensions = {"sni_hostname": spec.server_name} if spec.server_name else {}
    request = session.build_request(
        spec.method, url, headers=headers, content=spec.body, extensions=extensions
    )
    if "%25" in request.url.host:
        request.url = _ZonedUrl(url)
    response = await session.send(request, stream=True)
    body = bytearray()
    try:
        data["status"] = response.status_code
        data["first_byte_ns"] = time.monotonic_ns() - began
        data["final_host"] = response.url.host
        if response.history:
            data["redirects"] = len(response.history)
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > spec.max_body:
                return failed(f"the body is longer than {spec.max_body} bytes", **data)
    finally:
        await response.aclose()
    data["bytes"] = len(body)
    location = response.headers.get("location", "")
    text = bytes(body).decode(_encoding(response.charset_encoding), errors="replace")
    return _judge(spec, data, text, location, time.monotonic_ns() - began)


def _encoding(name: str | None) -> str:
    try:
        return codecs.lookup(name or "utf-8").name
    except LookupError:
        return "utf-8"


def _judge(
    spec: HttpProbe, data: dict[str, Any], text: str, location: str, took_ns: int
) -> Outcome:
    status, (first, last) = data["status"], spec.status
    if not first <= status <= last:
        to = f", redirects to {location}" if 300 <= status < 400 and location else ""
        return failed(f"status {status}{to}", **data, cause="status")
    if spec.final_host is not None and spec.final_host != data["final_host"]:
        return failed(f"answered by {data['final_host']}", **data, cause="host")
    if spec.contains is not None and spec.contains not in text:
        return failed(f"the body does not contain {spec.contains!r}", **data, cause="body")
    if spec.matches is not None and not re.search(spec.matches, text):
        return failed(f"the body does not match {spec.matches!r}", **data, cause="body")
    if spec.latency is not None and timedelta(microseconds=took_ns / 1000) > spec.latency:
        return failed(f"it took {took_ns / 1e6:.1f} ms", **data, cause="slow")
    return passed(**data)

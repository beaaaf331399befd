"""Clients of the load driver: one request each, no waiting for each other."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from typing import Any, Protocol

from controller.load.spec import GrpcCall, LoadSpec
from controller.probes.outcome import network_failure
from controller.probes.spec import HttpProbe, SqlProbe


class Client(Protocol):
    """Sends one request; an empty string is success, anything else why not."""

    async def open(self) -> None: ...

    async def send(self) -> str: ...

    async def close(self) -> None: ...


def client_for(spec: LoadSpec) -> Client:
    """The client of a load's protocol."""
    if isinstance(spec.request, HttpProbe):
        return HttpClient(spec.request)
    if isinstance(spec.request, GrpcCall):
        return GrpcClient(spec.request)
    return SqlClient(spec.request)


async def limited(work: Awaitable[str], seconds: float) -> str:
    """A request with its time-out, and reasons for what the network does."""
    try:
        async with asyncio.timeout(seconds):
            return await work
    except TimeoutError:
        return "time-out"
    except (OSError, EOFError) as exc:
        found = network_failure(exc)
        return str(found.data.get("cause")) if found else type(exc).__name__


class HttpClient:
    """HTTP/1.1 with connections kept open, as many as it takes."""

    def __init__(self, spec: HttpProbe) -> None:
        self._spec = spec
        self._session: Any = None
        self._pattern = re.compile(spec.matches.encode()) if spec.matches else None
        self._text = spec.contains.encode() if spec.contains else None

    async def open(self) -> None:
        """Raises InvalidSpec for TLS files that cannot be used."""
        import aiohttp

        from controller.probes import tls
        from controller.probes.http import target_of

        self._url, host = target_of(self._spec)
        secure = tls.context(self._spec) if self._url.startswith("https:") else False
        connector = aiohttp.TCPConnector(limit=0, ssl=secure)
        headers = {"Host": host, "User-Agent": "load", **self._spec.headers}
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
        )

    async def send(self) -> str:
        """One request and its whole answer."""
        return await limited(self._send(), self._spec.timeout.total_seconds())

    async def _send(self) -> str:
        import aiohttp

        spec = self._spec
        try:
            async with self._session.request(
                spec.method,
                self._url,
                data=spec.body,
                allow_redirects=False,
                server_hostname=spec.server_name,
            ) as response:
                body = await response.read()
        except aiohttp.ClientConnectorDNSError:
            return "dns"
        except aiohttp.ClientError as exc:
            found = network_failure(exc)
            return str(found.data.get("cause")) if found else "broken"
        first, last = spec.status
        if not first <= response.status <= last:
            return f"status {response.status}"
        if self._text is not None and self._text not in body:
            return "body"
        if self._pattern is not None and not self._pattern.search(body):
            return "body"
        return ""

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


class GrpcClient:
    """Unary calls on one channel."""

    def __init__(self, spec: GrpcCall) -> None:
        self._spec = spec
        self._message = bytes.fromhex(spec.message)
        self._channel: Any = None

    async def open(self) -> None:
        """Raises InvalidSpec for TLS files that cannot be used."""
        import grpc

        from controller.probes.grpc_health import channel_place

        target, options, credentials = channel_place(self._spec)
        if credentials is not None:
            self._channel = grpc.aio.secure_channel(target, credentials, options)
        else:
            self._channel = grpc.aio.insecure_channel(target, options)
        self._call = self._channel.unary_unary(self._spec.method)

    async def send(self) -> str:
        """One call."""
        import grpc

        try:
            await self._call(self._message, timeout=self._spec.timeout.total_seconds())
        except grpc.aio.AioRpcError as exc:
            code: str = exc.code().name
            return "time-out" if code == "DEADLINE_EXCEEDED" else code.lower()
        return ""

    async def close(self) -> None:
        """Close the channel."""
        if self._channel is not None:
            await self._channel.close()


class SqlClient:
    """PostgreSQL, a connection for each request that is open at once."""

    def __init__(self, spec: SqlProbe) -> None:
        self._spec = spec
        self._free: list[Any] = []

    async def open(self) -> None:
        """Connections come with the first requests."""

    async def send(self) -> str:
        """One query and all of its rows."""
        return await limited(self._send(), self._spec.timeout.total_seconds())

    async def _send(self) -> str:
        import psycopg

        from controller.probes.sql import judge, postgresql_connection

        connection: Any = None
        try:
            connection = self._free.pop() if self._free else await postgresql_connection(self._spec)
            cursor = await connection.execute(self._spec.query.encode())
            rows = [] if cursor.description is None else await cursor.fetchall()
        except psycopg.Error as exc:
            if connection is not None:
                await connection.close()
            return f"sqlstate {exc.sqlstate}" if exc.sqlstate else "connection"
        except asyncio.CancelledError:
            if connection is not None:
                connection.pgconn.finish()
            raise
        self._free.append(connection)
        return "" if judge(self._spec, rows).verdict == "pass" else "answer"

    async def close(self) -> None:
        """Close all connections."""
        for connection in self._free:
            await connection.close()

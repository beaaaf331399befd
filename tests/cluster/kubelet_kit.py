"""The part of a kubelet that serves port-forward, for tests of the way through the API server.

It speaks what kubelets speak to a websocket client (v4.channel.k8s.io: a data and an error
channel for each port, the port's number first), to a port of this host's loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

PROTOCOLS = ("v4.channel.k8s.io", "portforward.k8s.io")
DATA, ERROR = b"\x00", b"\x01"


class Kubelet:
    """Serves until close(). `port`: where; `target`: local port that all pods' ports lead to."""

    def __init__(self, cert: Path, key: Path, target: Callable[[], int]) -> None:
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(cert, key)
        self._target = target
        self.asked: list[str] = []
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kubelet", daemon=True)
        self._thread.start()
        self._ready.wait(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(_end_tasks())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/portForward/{namespace}/{pod}", self._forward)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._context)
        await site.start()
        server: Any = site._server
        self.port = server.sockets[0].getsockname()[1]

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.path)
        socket = web.WebSocketResponse(protocols=PROTOCOLS)
        await socket.prepare(request)
        number = struct.pack("<H", int(request.query.get("ports") or request.query["port"]))
        await socket.send_bytes(DATA + number)
        await socket.send_bytes(ERROR + number)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._target())
        except OSError as exc:
            await socket.send_bytes(ERROR + f"an error occurred forwarding: {exc}".encode())
            await socket.close()
            return socket
        back = asyncio.create_task(_back(reader, socket))
        async for message in socket:
            if message.type == WSMsgType.BINARY and message.data[:1] == DATA:
                writer.write(message.data[1:])
                await writer.drain()
        back.cancel()
        writer.close()
        return socket

    def close(self) -> None:
        """Cut everything and stop listening; twice is the same as once."""
        if self._loop.is_running():
            self._close()

    def _close(self) -> None:
        async def stop() -> None:
            await self._runner.cleanup()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)


async def _end_tasks() -> None:
    """The garbage collector would complain of them later, in the midst of others' work."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _back(reader: asyncio.StreamReader, socket: web.WebSocketResponse) -> None:
    with contextlib.suppress(ConnectionError):  # of an agent that was killed
        while data := await reader.read(1 << 15):
            await socket.send_bytes(DATA + data)
    await socket.close()

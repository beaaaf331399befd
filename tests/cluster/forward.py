"""A port of this host's loopback that leads to the same port inside a network namespace."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading
from contextlib import suppress

CLONE_NEWNET = 0x40000000


class Forward:
    """127.0.0.1:`port` here goes to 127.0.0.1:`port` in the namespace at a path.

    One thread is moved into the namespace for good: sockets that it opens lie there, the
    listening one was opened before, here.
    """

    def __init__(self, netns: str, port: int) -> None:
        self._netns, self._port = netns, port
        self._listener = socket.create_server(("127.0.0.1", port))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="forward", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(self._netns, os.O_RDONLY)
        if libc.setns(fd, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(fd)
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connected, sock=self._listener)
        with suppress(asyncio.CancelledError):
            async with server:
                await server.serve_forever()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pump(reader, back), _pump(there, writer))

    def close(self) -> None:
        """Stop listening; what is connected is cut."""

        def stop() -> None:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()

        self._loop.call_soon_threadsafe(stop)
        self._thread.join(5)
        self._listener.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError, asyncio.CancelledError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()

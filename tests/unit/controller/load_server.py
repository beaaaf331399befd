"""A server in a process of its own, with service times that are known. Prints its port.

GET /fast answers after 5 ms, and each tenth request of a path (/fast?x is another) after
60 ms; /stall?MS answers nothing
for so long, to anybody; /log gives the arrival times of all requests (CLOCK_MONOTONIC, ns);
/bad?N fails each N-th request. It keeps connections open.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter

arrived: list[int] = []
asked: Counter[str] = Counter()
stalled_until = 0.0


async def answer(path: str, number: int) -> tuple[int, str]:
    global stalled_until
    await asyncio.sleep(max(0.0, stalled_until - time.monotonic()))
    name, _, argument = path.partition("?")
    if name == "/stall":
        stalled_until = time.monotonic() + int(argument) / 1000
        return 200, ""
    if name == "/bad" and number % int(argument) == 0:
        return 503, ""
    await asyncio.sleep(0.06 if number % 10 == 0 else 0.005)
    return 200, "ok"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            path = head.split()[1].decode()
            if path == "/log":
                status, body = 200, json.dumps(arrived)
            else:
                asked[path] += 1
                if not path.startswith("/stall"):
                    arrived.append(time.monotonic_ns())
                status, body = await answer(path, asked[path])
            text = f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            writer.write(text.encode())
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())

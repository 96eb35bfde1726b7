"""A server on loopback for a test's own event loop, that leaves no connection open when it stops."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]

ROUNDS = 5
"""Turns of the event loop from `accept` to the call of `connected`, and from `abort` to the closed socket, at most."""


@asynccontextmanager
async def listening(talk: Talk, *, tls: ssl.SSLContext | None = None, limit: int = 1 << 16) -> AsyncIterator[int]:
    """Let `talk` serve every connection to a port, and yield the port. At the end, cancel `talk` and close them all.

    An exception of `talk` fails the test, unless the client closed the connection.
    """
    connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    # Not a coroutine: asyncio would start a task for it, and a task that is cancelled before it starts closes nothing.
    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections[asyncio.create_task(talk(reader, writer))] = writer

    server = await asyncio.start_server(connected, "127.0.0.1", ssl=tls, limit=limit)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await stopped(server)
        for task, writer in connections.items():
            task.cancel()
            writer.transport.abort()
        ends = await asyncio.gather(*connections, return_exceptions=True)
        for _ in range(ROUNDS):
            await asyncio.sleep(0)
    for end in ends:
        if end is not None and not isinstance(end, asyncio.CancelledError | ConnectionError | EOFError):
            raise end


async def stopped(*servers: asyncio.Server) -> None:
    """Stop servers; what they have accepted is connected then.

    A server that is closed at once leaves a socket open whose connection it has accepted, but not made yet.
    """
    for each in (listener for server in servers for listener in server.sockets):
        asyncio.get_running_loop().remove_reader(each.fileno())
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    for server in servers:
        server.close()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write to `writer` what `reader` gets, until its end; then close the writer."""
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
    finally:
        writer.close()

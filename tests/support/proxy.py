"""A proxy on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def tunnel(port: int, status: bytes = b"200 Connection established") -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that opens tunnels, all of them to one port of this machine."""
    heads: list[bytes] = []
    tasks: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        try:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
        except asyncio.IncompleteReadError:
            return
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        if not status.startswith(b"200"):
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", port)
        writers.append(back)
        tasks.append(asyncio.create_task(pass_on(reader, back)))
        tasks.append(asyncio.create_task(pass_on(there, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1")
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()
        for each in writers:
            each.close()
        await asyncio.gather(*tasks, *(each.wait_closed() for each in writers), return_exceptions=True)

"""A proxy on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.listening import carry, listening


@asynccontextmanager
async def tunnel(port: int, status: bytes = b"200 Connection established") -> AsyncIterator[tuple[str, list[bytes]]]:
    """A proxy that opens tunnels, all of them to one port of this machine."""
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 " + status + b"\r\n\r\n")
        if not status.startswith(b"200"):
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(carry(reader, back), carry(there, writer))

    async with listening(serve) as here:
        yield f"http://127.0.0.1:{here}", heads

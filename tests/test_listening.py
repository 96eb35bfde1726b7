"""The server that tests start in their own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from tests.support.listening import listening


@pytest.mark.parametrize("turns", range(6))
async def test_a_server_that_stops_closes_a_connection_however_new_it_is(turns: int) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with listening(talk) as port:
        connection = socket.create_connection(("127.0.0.1", port), timeout=5)
        for _ in range(turns):  # accepted, connected, or its task begun
            await asyncio.sleep(0)

    with connection, contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""


async def test_a_mistake_of_the_server_fails_the_test() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        begun.set()
        raise KeyError("mine")

    async def stops_after_a_mistake() -> None:
        async with listening(talk) as port:
            with socket.create_connection(("127.0.0.1", port)):
                await begun.wait()

    begun = asyncio.Event()
    with pytest.raises(KeyError, match="mine"):
        await stops_after_a_mistake()

"""Default store: one SQLite file, shared by all processes of a machine.

The file must be on a local disk, because locks over a network are unreliable. A killed process loses no answered
update. A power cut may lose the last moments, because SQLite waits for the disk only at checkpoints
(`synchronous = NORMAL`). Beside the file are SQLite's `-wal` and `-shm`, and the empty `.lock` that writing processes
lock. `sqlite_records.py` manages the file, `sqlite_writer.py` the thread that writes it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

from curtsy.core.errors import StoreError
from curtsy.core.message import Now
from curtsy.stores.protocol import Answer, AsyncStore, Loss, Step
from curtsy.stores.sqlite_writer import Writer, enter, leave
from curtsy.system.clock import BootClock, Clock
from curtsy.system.threads import in_thread

PATIENCE = 5.0
"""Seconds to wait for a file that another program keeps locked."""


class AsyncSQLiteStore(AsyncStore):
    """Records in a file, which is opened at the first use: the constructor does not fail.

    Calls raise `StoreError` if another program keeps the file locked for `patience` seconds. The first store of a
    process on a file sets `patience` for all. If a task is cancelled while it waits, its step is either done already or
    never done.
    """

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None, patience: float = PATIENCE) -> None:
        self._path = os.path.realpath(path)
        self._clock = clock or BootClock()
        self._writer = enter(self._path, patience)
        self._is_closed = False
        self._closing = threading.Lock()

    @property
    def identity(self) -> str:
        return f"sqlite:{self._path}"

    @property
    def losses(self) -> Sequence[Loss]:
        """Losses: the file was removed, replaced or damaged."""
        return self._writer.database.losses

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        [answer] = await self._opened().run([(key, step)], self._clock)
        result: Answer = answer
        return result

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        return await self._opened().run(steps, self._clock)

    async def read(self, key: str) -> Any:
        return await self._opened().read(lambda database: database.read(key), self._clock, key)

    async def peek(self, key: str) -> Any:
        return await in_thread(self._opened().database.peek, key)

    async def keys(self, prefix: str = "") -> list[str]:
        return await self._opened().read(lambda database: database.keys(prefix), self._clock)

    async def records(self, prefix: str) -> list[tuple[str, Any]]:
        """Return all records whose keys begin with `prefix`, by one query. Unreadable ones are skipped."""
        return [*await self._opened().read(lambda database: database.records(prefix), self._clock)]

    async def now(self) -> Now:
        return self._clock.now()

    async def close(self) -> None:
        """Answer the waiting callers, then release the file. Idempotent."""
        await in_thread(self._close)

    def _opened(self) -> Writer:
        if self._is_closed:
            raise StoreError(f"{self._path} was used after close(). Open another store.")
        return self._writer

    def _close(self) -> None:
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                leave(self._path)

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
from curtsy.core.record import Record
from curtsy.stores import Answer, Loss, Step
from curtsy.stores.sqlite_writer import Writer, enter, leave
from curtsy.system.clock import BootClock, Clock
from curtsy.system.threads import in_thread

PATIENCE = 5.0
"""Seconds to wait for a file that another program keeps locked."""


class _Handle:
    """Base of both stores: the use of a file until `close()`."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None, patience: float = PATIENCE) -> None:
        self._path = os.path.realpath(path)
        self._clock = clock or BootClock()
        self._writer = enter(self._path, patience)
        self._is_closed = False
        self._closing = threading.Lock()

    @property
    def identity(self) -> str:
        """Text that identifies the records; see `Store.identity`."""
        return f"sqlite:{self._path}"

    @property
    def losses(self) -> list[Loss]:
        """Losses: the file was removed, replaced or damaged."""
        return self._writer.database.losses

    def _opened(self) -> Writer:
        if self._is_closed:
            raise StoreError(f"{self._path} was used after close(). Open another store.")
        return self._writer

    def _close(self) -> None:
        with self._closing:
            if not self._is_closed:
                self._is_closed = True
                leave(self._path)


class SQLiteStore(_Handle):
    """Records in a file, which is opened at the first use: the constructor does not fail.

    Calls raise `StoreError` if another program keeps the file locked for `patience` seconds. The first store of a
    process on a file sets `patience` for all.
    """

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
        [answer] = self._opened().wait([(key, step)], self._clock)
        result: Answer = answer
        return result

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        return self._opened().wait(steps, self._clock)

    def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        return self._opened().read(lambda database: database.read(key), self._clock, key)

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        return self._opened().read(lambda database: database.keys(prefix), self._clock)

    def records(self, prefix: str) -> list[tuple[str, Any]]:
        """Return all records whose keys begin with `prefix`, by one query; see `read_all`."""
        return [*self._opened().read(lambda database: database.records(prefix), self._clock)]

    def peek(self, key: str) -> Any:
        """Return the record under `key` of an unwritable file; None if it is unreadable."""
        return self._opened().database.peek(key)

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        self.update(key, _remove)

    def now(self) -> Now:
        """Return the store's current time."""
        return self._clock.now()

    def close(self) -> None:
        """Answer the waiting callers, then release the file. Idempotent."""
        self._close()


class AsyncSQLiteStore(_Handle):
    """Async variant of `SQLiteStore`; its methods do not block the event loop.

    If a task is cancelled while it waits, its step is either done already or never done.
    """

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
        [answer] = await self._opened().wait_async([(key, step)], self._clock)
        result: Answer = answer
        return result

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        return await self._opened().wait_async(steps, self._clock)

    async def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        return await self._opened().read_async(lambda database: database.read(key), self._clock, key)

    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        return await self._opened().read_async(lambda database: database.keys(prefix), self._clock)

    async def peek(self, key: str) -> Any:
        """Return the record under `key` of an unwritable file; None if it is unreadable."""
        return await in_thread(self._opened().database.peek, key)

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        await self.update(key, _remove)

    async def now(self) -> Now:
        """Return the store's current time."""
        return self._clock.now()

    async def close(self) -> None:
        """Answer the waiting callers, then release the file. Idempotent."""
        await in_thread(self._close)


def _remove(record: Record | None, now: Now) -> tuple[None, None]:
    return None, None

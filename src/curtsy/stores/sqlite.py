"""The default store: one SQLite file, shared by all processes of a machine.

The file must be on a local disk (locks over a network are not to be relied on). A process that is killed loses
nothing that was answered; a power cut may lose the last moments, for SQLite waits for the disk only at checkpoints
(`synchronous = NORMAL`). Beside the file lie SQLite's own `-wal` and `-shm` and the empty `.lock`, by which processes
take turns. `database.py` has the file, `writer.py` the thread that writes it.
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
"""Seconds to wait for a file that somebody else keeps locked."""


class _Handle:
    """What both stores have: a file that is open until it is closed."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None, patience: float = PATIENCE) -> None:
        self._path = os.path.realpath(path)
        self._clock = clock or BootClock()
        self._writer = enter(self._path, patience)
        self._is_closed = False
        self._closing = threading.Lock()

    @property
    def identity(self) -> str:
        """The same text for two stores of one process exactly if they hold the same records."""
        return f"sqlite:{self._path}"

    @property
    def losses(self) -> list[Loss]:
        """What was lost with a file that was removed, replaced or damaged."""
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
    """Records in a file. Nothing is opened before the first use, so that making one never fails.

    `patience` is how many seconds to wait for a file that another program keeps locked; then `StoreError`. The first
    store of a process on a file decides it for all.
    """

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
        [answer] = self._opened().wait([(key, step)], self._clock)
        result: Answer = answer
        return result

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates at once: each is atomic by itself. An exception comes out after the others are done."""
        return self._opened().wait(steps, self._clock)

    def read(self, key: str) -> Any:
        """The record under `key`, or None."""
        return self._opened().read(lambda database: database.read(key), self._clock, key)

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order."""
        return self._opened().read(lambda database: database.keys(prefix), self._clock)

    def records(self, prefix: str) -> list[tuple[str, Any]]:
        """All records whose keys begin with `prefix`, by one query; see `read_all`."""
        return [*self._opened().read(lambda database: database.records(prefix), self._clock)]

    def peek(self, key: str) -> Any:
        """The record under `key` in a file that cannot be written, if it can be read; else None."""
        return self._opened().database.peek(key)

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        self.update(key, _remove)

    def now(self) -> Now:
        """The store's own present."""
        return self._clock.now()

    def close(self) -> None:
        """Answer those who still wait, then let go of the file. Idempotent."""
        self._close()


class AsyncSQLiteStore(_Handle):
    """The same for tasks; nothing here blocks the event loop.

    A task that is cancelled while it waits does not know whether its step was done: either it was, or it never is.
    """

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
        [answer] = await self._opened().wait_async([(key, step)], self._clock)
        result: Answer = answer
        return result

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates at once: each is atomic by itself. An exception comes out after the others are done."""
        return await self._opened().wait_async(steps, self._clock)

    async def read(self, key: str) -> Any:
        """The record under `key`, or None."""
        return await self._opened().read_async(lambda database: database.read(key), self._clock, key)

    async def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order."""
        return await self._opened().read_async(lambda database: database.keys(prefix), self._clock)

    async def peek(self, key: str) -> Any:
        """The record under `key` in a file that cannot be written, if it can be read; else None."""
        return await in_thread(self._opened().database.peek, key)

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        await self.update(key, _remove)

    async def now(self) -> Now:
        """The store's own present."""
        return self._clock.now()

    async def close(self) -> None:
        """Answer those who still wait, then let go of the file. Idempotent."""
        await in_thread(self._close)


def _remove(record: Record | None, now: Now) -> tuple[None, None]:
    return None, None

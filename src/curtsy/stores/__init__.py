"""What remembers: one small contract, kept by memory, SQLite and Redis alike.

A store holds records under keys and changes them one atomic step at a time:

    def step(record, now):          # pure and quick: it may be run again
        return changed, answer

    answer = store.update("host:example.org", step)

A missing record is None; returning None removes it; returning the very record that was given changes nothing. A step
that raises changes nothing, and its exception comes out. No update is lost among tasks and threads, nor among
processes (SQLite, Redis) or machines (Redis). `now.at` never runs backwards for one key, whatever the system's clock
does. Any text is a key. A store that cannot be read or written raises `StoreError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from curtsy.core.message import Now
from curtsy.core.record import Record

Answer = TypeVar("Answer")
Step = Callable[[Any, Now], tuple[Record | None, Answer]]
"""`step(record, now) -> (record, answer)`; the record given is the one under the key, or None."""


class Store(Protocol):
    """A blocking store. Safe to share among threads."""

    @property
    def identity(self) -> str:
        """The same text for two stores of one process exactly if they hold the same records."""
        ...

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
        ...

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates at once: each is atomic by itself, together they cost little more than one.

        An exception of any step comes out after the others are done.
        """
        ...

    def read(self, key: str) -> Any:
        """The record under `key`, or None."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order."""
        ...

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        ...

    def now(self) -> Now:
        """The store's own present."""
        ...

    def close(self) -> None:
        """Give back what is held open. Idempotent."""
        ...


class AsyncStore(Protocol):
    """The same for tasks; nothing here blocks the event loop."""

    @property
    def identity(self) -> str:
        """The same text for two stores of one process exactly if they hold the same records."""
        ...

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
        ...

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates at once: each is atomic by itself."""
        ...

    async def read(self, key: str) -> Any:
        """The record under `key`, or None."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order."""
        ...

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        ...

    async def now(self) -> Now:
        """The store's own present."""
        ...

    async def close(self) -> None:
        """Give back what is held open. Idempotent."""
        ...

"""Interfaces of stores: `Store` for threads, `AsyncStore` for tasks.

A store keeps records under keys and changes each record by an atomic step:

    def step(record, now):          # pure and quick: it may run again
        return changed, answer

    answer = store.update("host:example.org", step)

A missing record is None. A step removes the record by returning None, and keeps it by returning the same object. If a
step raises, the record stays unchanged and the exception propagates. No update is lost among tasks and threads, among
processes (SQLite, Redis) or among machines (Redis). `now.at` never decreases for one key, even if the system clock is
set. Any text is a key. A store that cannot be read or written raises `StoreError`.

Each store of curtsy is an `AsyncStore`; `stores/blocking.py` makes a `Store` of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from curtsy.core.errors import CurtsyError
from curtsy.core.record import Record
from curtsy.core.time import Now
from curtsy.stores.survey import HOSTS, Survey, survey_of

Answer = TypeVar("Answer")
Step = Callable[[Any, Now], tuple[Record | None, Answer]]
"""Function `step(record, now) -> (record, answer)`; its argument is the record under the key, or None."""


class NotNow(Enum):
    """Type of NOT_NOW."""

    NOT_NOW = "not now"


NOT_NOW: Final = NotNow.NOT_NOW
"""Answer of `AsyncStore.update_now` if the update must wait. Nothing has changed then."""


class Proposal:
    """Change that only this process knows until it is written. The result of `AsyncStore.propose`."""

    __slots__ = ("is_void", "is_written")

    def __init__(self) -> None:
        self.is_written = False
        self.is_void = False
        """True if it will not be written. The user of the store may set it, too, before it is written."""


class Shared(Generic[Answer]):
    """Step that spends a limit common to all processes.

    Its answer is NOT_NOW while the store is unreachable and memory must not answer for it (`outage: wait`).
    """

    __slots__ = ("_step",)

    def __init__(self, step: Step[Answer]) -> None:
        self._step = step

    def __call__(self, record: Any, now: Now) -> tuple[Record | None, Answer | NotNow]:
        """Run the step."""
        return self._step(record, now)


class Loss(NamedTuple):
    """Loss of a store's records: they are gone, or older than before."""

    name: object
    """Identifier, equal for all stores that detect the same loss."""

    why: str = ""
    """Reason for the log message; empty if the loss is already logged."""

    key: str | None = None
    """Key of the one damaged record that was lost; None for all records."""


class Store(Protocol):
    """Blocking store. Thread-safe. A user's own store needs these methods."""

    @property
    def identity(self) -> str:
        """Text that is equal for two stores of one process if and only if they hold the same records."""
        ...

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record atomically by `step`, and return its answer."""
        ...

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `AsyncStore.update_many`."""
        ...

    def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        ...

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        ...

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        ...

    def now(self) -> Now:
        """Return the store's current time."""
        ...

    def close(self) -> None:
        """Release all open resources. Idempotent."""
        ...


class Outages(NamedTuple):
    """Outages of a store, as one process saw them."""

    times: int = 0
    seconds: float = 0.0
    """Their duration, including the time so far of one that lasts."""


class AsyncStore(ABC):
    """Base class of async stores. Its methods do not block the event loop.

    The methods and attributes that are not abstract have defaults that suit any store.
    """

    is_immediate: bool = False
    """True if no call waits: `update_now` always answers, and no task can be cancelled in the middle of a call."""

    is_per_loop: bool = False
    """True if each event loop has connections of its own, which only a `close()` in that loop closes."""

    @property
    def is_out(self) -> bool:
        """True while the store is unreachable and memory answers for it."""
        return False

    @property
    def is_waiting(self) -> bool:
        """True while the store is unreachable and no request may be admitted until it answers (`outage: wait`)."""
        return False

    @property
    def outage(self) -> CurtsyError | None:
        """Latest error of an outage that lasts; None while the store works."""
        return None

    @property
    def held(self) -> int:
        """Number of keys that memory answers for: 0 in normal operation, decreasing after an outage."""
        return 0

    @property
    def share(self) -> float:
        """This process's share of a limit common to all processes: 1.0 unless the store is out."""
        return 1.0

    def divide(self, among: int) -> None:  # noqa: B027  a store without outages has nothing to divide
        """Set how many processes divide the common limits equally in an outage, unless a share was given."""

    @property
    def outages(self) -> Outages:
        """Outages of the store that this process has seen so far."""
        return Outages()

    @property
    def losses(self) -> Sequence[Loss]:
        """Losses detected so far, from which the store's user restores records; empty for a store that loses none."""
        return ()

    @property
    @abstractmethod
    def identity(self) -> str:
        """Text that is equal for two stores of one process if and only if they hold the same records."""

    @abstractmethod
    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record atomically by `step`, and return its answer."""

    def update_now(self, key: str, step: Step[Answer]) -> Answer | NotNow:
        """Try `update` at once, in the caller's thread; return NOT_NOW if it must wait, also for an error to raise.

        It does not overtake an `update` of the same key that already waits in this process.
        """
        return NOT_NOW

    def update_soon(self, key: str, step: Step[Answer]) -> Answer | NotNow:
        """Do `update_now`, but the change may be written some milliseconds later.

        This process sees it at once, other processes when it is written. If the process is killed before, the change
        is lost. The answer is that of the record as this process knows it.
        """
        return self.update_now(key, step)

    def propose(self, key: str, step: Step[Answer]) -> tuple[Answer, Proposal] | NotNow:
        """Do `update_now` on the record as this process knows it; the caller confirms the change before it acts on it.

        Several proposals are written together.
        """
        return NOT_NOW

    def confirm(self, proposal: Proposal) -> bool:
        """Write a proposal at once; return False if it is void: that is impossible, or the record has changed."""
        return proposal.is_written

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates in one batch, which costs little more than one update.

        Each update is atomic by itself. An exception of any step propagates after the others are done.
        """
        answers: list[Any] = []
        failure: Exception | None = None
        for key, step in steps:
            try:
                answers.append(await self.update(key, step))
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    @abstractmethod
    async def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""

    async def peek(self, key: str) -> Any:
        """Return the record under `key` of a store that cannot be written; None if it is unreadable too."""
        return None

    @abstractmethod
    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""

    async def records(self, prefix: str) -> list[tuple[str, Any]]:
        """Return all records whose keys begin with `prefix`, with their keys, sorted."""
        found = [(key, await self.read(key)) for key in await self.keys(prefix)]
        return [(key, record) for key, record in found if record is not None]

    async def page(self, prefix: str, *, part: str = "", after: str = "", most: int) -> list[tuple[str, Any]]:
        """Return the first `most` records of a prefix, sorted by key.

        Only keys that have `part` after the prefix and sort after the key `after` count, so that a caller can read
        page by page.
        """
        keys = [key for key in await self.keys(prefix) if part in key[len(prefix) :] and (not after or key > after)]
        found = [(key, await self.read(key)) for key in keys[:most]]
        return [(key, record) for key, record in found if record is not None]

    async def survey(self, recent: int, troubled: int) -> Survey:
        """Return up to `recent` hosts used last and up to `troubled` hosts in trouble, with counts of all hosts.

        The order of use is exact to the minute.
        """
        return survey_of(await self.records(HOSTS), recent, troubled)

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        await self.update(key, _remove)

    @abstractmethod
    async def now(self) -> Now:
        """Return the store's current time."""

    @abstractmethod
    async def close(self) -> None:
        """Release all open resources. Idempotent."""


class WrappedStore(AsyncStore):
    """Base class of wrappers: it forwards every attribute and call to another store.

    `is_immediate` is False, `update_now` never answers, and all updates pass through `update`.
    """

    def __init__(self, inner: AsyncStore) -> None:
        self.inner = inner
        self.is_per_loop = inner.is_per_loop

    @property
    def identity(self) -> str:
        return self.inner.identity

    @property
    def is_out(self) -> bool:
        return self.inner.is_out

    @property
    def is_waiting(self) -> bool:
        return self.inner.is_waiting

    @property
    def outage(self) -> CurtsyError | None:
        return self.inner.outage

    @property
    def held(self) -> int:
        return self.inner.held

    @property
    def share(self) -> float:
        return self.inner.share

    def divide(self, among: int) -> None:
        self.inner.divide(among)

    @property
    def outages(self) -> Outages:
        return self.inner.outages

    @property
    def losses(self) -> Sequence[Loss]:
        return self.inner.losses

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        return await self.inner.update(key, step)

    async def read(self, key: str) -> Any:
        return await self.inner.read(key)

    async def peek(self, key: str) -> Any:
        return await self.inner.peek(key)

    async def keys(self, prefix: str = "") -> list[str]:
        return await self.inner.keys(prefix)

    async def records(self, prefix: str) -> list[tuple[str, Any]]:
        return await self.inner.records(prefix)

    async def page(self, prefix: str, *, part: str = "", after: str = "", most: int) -> list[tuple[str, Any]]:
        return await self.inner.page(prefix, part=part, after=after, most=most)

    async def survey(self, recent: int, troubled: int) -> Survey:
        return await self.inner.survey(recent, troubled)

    async def now(self) -> Now:
        return await self.inner.now()

    async def close(self) -> None:
        await self.inner.close()


def _remove(record: Record | None, now: Now) -> tuple[None, None]:
    return None, None

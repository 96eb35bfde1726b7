"""Fallback to memory while a store is out, and the merge of the counts afterwards (B8, F55).

While the store works, calls go straight to it, and the last record of each key is remembered. When it raises
StoreError, an outage begins, with one warning. Steps then run in memory on the remembered records, on a continuation of
the store's clock. A key that is not remembered starts from the store's record, if the store can still be read. A
background probe retries the store after 1, 2, 4 … 30 seconds; calls do not wait for it. When the store accepts a write,
`Record.joined` merges each record into it. Until then, the key stays in memory, so that a host always has exactly one
record. Records that a working store has lost are restored in the background too (see `loss.py`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from curtsy.core.errors import StoreError
from curtsy.core.message import Now
from curtsy.stores import Answer, AsyncStore, Step, Store
from curtsy.stores.fallback_state import FallbackState, Gone
from curtsy.stores.loss import Watch, Watched

Result = TypeVar("Result")


class FallbackStore:
    """Blocking store that continues in memory when the inner store fails. Thread-safe.

    `share` returns this process's share, in an outage, of a limit common to all processes. `monotonic` is a clock in
    seconds, for tests. `fallback_state` is the state to use, if other stores share it.
    """

    def __init__(
        self,
        inner: Store,
        *,
        share: Callable[[], float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        fallback_state: FallbackState | None = None,
    ) -> None:
        self._inner = inner
        self._fallback_state = fallback_state or FallbackState(inner.identity, share, monotonic)
        self._watch = Watch(inner, self._fallback_state)
        self._looking: threading.Thread | None = None

    @property
    def identity(self) -> str:
        """Identity of the inner store."""
        return self._inner.identity

    @property
    def sheltered(self) -> bool:
        """True while the inner store is out."""
        return self._fallback_state.is_out

    @property
    def held(self) -> int:
        """Number of keys that memory answers for: 0 in normal operation, decreasing after an outage."""
        return len(self._fallback_state.bases)

    @property
    def share(self) -> float:
        """This process's share of a limit common to all processes: 1.0 unless the store is out."""
        return self._fallback_state.share()

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
        fallback_state = self._fallback_state
        while True:
            if fallback_state.is_out or fallback_state.bases:
                self._look()
                if fallback_state.holds(key):
                    if fallback_state.is_new(key):
                        fallback_state.adopt(key, self._peek(key))
                    try:
                        return fallback_state.update(key, step)
                    except Gone:
                        continue
            since, watched = fallback_state.outages, Watched(self._watch, key, step)
            try:
                answer: Answer = self._inner.update(key, watched)
            except StoreError as error:
                if error is watched.raised:
                    raise
                fallback_state.failed(error, since)
                continue
            fallback_state.note(watched)
            if fallback_state.lost:
                self._look()
            return answer

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        fallback_state = self._fallback_state
        if not fallback_state.is_out and fallback_state.bases.keys().isdisjoint(key for key, _ in steps):
            since, watched = fallback_state.outages, [Watched(self._watch, key, step) for key, step in steps]
            try:
                answers = self._inner.update_many([(each.key, each) for each in watched])
            except Exception as error:
                if isinstance(error, StoreError) and not any(error is each.raised for each in watched):
                    fallback_state.failed(error, since)
                else:
                    fallback_state.note_all(watched)
                    raise
            else:
                fallback_state.note_all(watched)
                if fallback_state.lost:
                    self._look()
                return answers
        return _answers([self._attempt(key, step) for key, step in steps])

    def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        if not self._fallback_state.holds(key):
            return self._ask(lambda store: store.read(key), lambda: self.read(key))
        if self._fallback_state.is_new(key):
            self._fallback_state.adopt(key, self._peek(key))
        return self._fallback_state.read(key)

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted; in an outage, the remembered ones."""
        found: list[str] = self._ask(lambda store: store.keys(prefix), list)
        return sorted({*found, *self._fallback_state.keys(prefix)})

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        self.update(key, _remove)

    def now(self) -> Now:
        """Return the store's current time; in an outage, its continuation."""
        return self._ask(lambda store: store.now(), self._fallback_state.now)

    def close(self) -> None:
        """Write the records in memory to the store, if it works, and close it. Idempotent."""
        if self._looking is not None:
            self._looking.join()
        if self._fallback_state.claim(_for_good):
            self._come_back()
        self._fallback_state = self._fallback_state.left()
        self._inner.close()

    def _peek(self, key: str) -> Any:
        """Return the record under `key` of an unwritable store; None if it is unreadable."""
        peek = getattr(self._inner, "peek", None)
        return None if peek is None else peek(key)

    def _attempt(self, key: str, step: Step[Any]) -> Any:
        try:
            return self.update(key, step)
        except Exception as error:
            return error

    def _ask(self, ask: Callable[[Store], Result], otherwise: Callable[[], Result]) -> Result:
        while not self._fallback_state.is_out:
            since = self._fallback_state.outages
            try:
                return ask(self._inner)
            except StoreError as error:
                self._fallback_state.failed(error, since)
        self._look()
        return otherwise()

    def _look(self) -> None:
        if self._fallback_state.is_due(_for_good):
            self._looking = threading.Thread(target=self._come_back, name="curtsy-shelter", daemon=True)
            self._looking.start()

    def _come_back(self) -> None:
        work = self._fallback_state.come_back(self._watch)
        try:
            ask = next(work)
            while True:
                try:
                    answer = ask(self._inner)
                except Exception as error:
                    ask = work.throw(error)
                else:
                    ask = work.send(answer)
        except StopIteration:
            pass


class AsyncFallbackStore:
    """Async variant of `FallbackStore`."""

    def __init__(
        self,
        inner: AsyncStore,
        *,
        share: Callable[[], float] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
        fallback_state: FallbackState | None = None,
    ) -> None:
        self._inner = inner
        self._fallback_state = fallback_state or FallbackState(inner.identity, share, monotonic)
        self._watch = Watch(inner, self._fallback_state)
        self._looking: asyncio.Task[None] | None = None

    @property
    def identity(self) -> str:
        """Identity of the inner store."""
        return self._inner.identity

    @property
    def sheltered(self) -> bool:
        """True while the inner store is out."""
        return self._fallback_state.is_out

    @property
    def held(self) -> int:
        """Number of keys that memory answers for: 0 in normal operation, decreasing after an outage."""
        return len(self._fallback_state.bases)

    @property
    def share(self) -> float:
        """This process's share of a limit common to all processes: 1.0 unless the store is out."""
        return self._fallback_state.share()

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
        fallback_state = self._fallback_state
        while True:
            if fallback_state.is_out or fallback_state.bases:
                self._look()
                if fallback_state.holds(key):
                    if fallback_state.is_new(key):
                        fallback_state.adopt(key, await self._peek(key))
                    try:
                        return fallback_state.update(key, step)
                    except Gone:
                        continue
            since, watched = fallback_state.outages, Watched(self._watch, key, step)
            try:
                answer: Answer = await self._inner.update(key, watched)
            except StoreError as error:
                if error is watched.raised:
                    raise
                fallback_state.failed(error, since)
                continue
            fallback_state.note(watched)
            if fallback_state.lost:
                self._look()
            return answer

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        fallback_state = self._fallback_state
        if not fallback_state.is_out and fallback_state.bases.keys().isdisjoint(key for key, _ in steps):
            since, watched = fallback_state.outages, [Watched(self._watch, key, step) for key, step in steps]
            try:
                answers = await self._inner.update_many([(each.key, each) for each in watched])
            except Exception as error:
                if isinstance(error, StoreError) and not any(error is each.raised for each in watched):
                    fallback_state.failed(error, since)
                else:
                    fallback_state.note_all(watched)
                    raise
            else:
                fallback_state.note_all(watched)
                if fallback_state.lost:
                    self._look()
                return answers
        updates = (self.update(key, step) for key, step in steps)
        return _answers(await asyncio.gather(*updates, return_exceptions=True))

    async def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        if not self._fallback_state.holds(key):
            found, is_known = await self._ask(lambda store: _known(store.read(key)), lambda: (None, False))
            if is_known:
                return found
        if self._fallback_state.is_new(key):
            self._fallback_state.adopt(key, await self._peek(key))
        return self._fallback_state.read(key)

    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted; in an outage, the remembered ones."""
        found: list[str] = await self._ask(lambda store: store.keys(prefix), list)
        return sorted({*found, *self._fallback_state.keys(prefix)})

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        await self.update(key, _remove)

    async def now(self) -> Now:
        """Return the store's current time; in an outage, its continuation."""
        return await self._ask(lambda store: store.now(), self._fallback_state.now)

    async def close(self) -> None:
        """Write the records in memory to the store, if it works, and close it. Idempotent."""
        loop = asyncio.get_running_loop()
        if self._looking is not None and self._looking.get_loop() is loop:  # another loop may be closed by now
            await asyncio.wait([self._looking])
        if self._fallback_state.claim(lambda: not loop.is_closed()):
            await self._come_back()
        self._fallback_state = self._fallback_state.left()
        await self._inner.close()

    async def _peek(self, key: str) -> Any:
        """Return the record under `key` of an unwritable store; None if it is unreadable."""
        peek = getattr(self._inner, "peek", None)
        return None if peek is None else await peek(key)

    async def _ask(self, ask: Callable[[AsyncStore], Awaitable[Result]], otherwise: Callable[[], Result]) -> Result:
        while not self._fallback_state.is_out:
            since = self._fallback_state.outages
            try:
                return await ask(self._inner)
            except StoreError as error:
                self._fallback_state.failed(error, since)
        self._look()
        return otherwise()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        if self._fallback_state.is_due(lambda: not loop.is_closed()):
            self._looking = loop.create_task(self._come_back())

    async def _come_back(self) -> None:
        work = self._fallback_state.come_back(self._watch)
        try:
            ask = next(work)
            while True:
                try:
                    answer = await ask(self._inner)
                except Exception as error:
                    ask = work.throw(error)
                else:
                    ask = work.send(answer)
        except StopIteration:
            pass
        finally:
            work.close()


def _answers(outcomes: list[Any]) -> list[Any]:
    """Return the answers, or raise the first error among the outcomes."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


async def _known(read: Awaitable[Any]) -> tuple[Any, bool]:
    return await read, True


def _for_good() -> bool:
    """Return True: a thread, unlike a task, always ends its work."""
    return True


def _remove(record: Any, now: Now) -> tuple[None, None]:
    return None, None

"""Shelter: keeps a program going while its store is out, and brings home what was counted meanwhile (B8, F55).

While the store works, everything goes straight through, and the last record of each key is remembered. When the store
raises StoreError, it is out: one warning, and from then on steps run in memory on what is remembered, on a continuation
of the store's own clock. A key that is not remembered starts from what a store that cannot be written lets be read. The
store is tried again after 1, 2, 4 … 30 seconds, beside the calls and never by one of them. When it takes a write, each
record goes home by `Record.joined`, and until it has, its key stays in memory: there is no moment at which a host has
two records or none. What a store that works has lost is put there again, likewise beside the calls (see `watched.py`).
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
    """A blocking store that goes on when the one inside fails. Safe to share among threads.

    `share` says what part of a limit that all processes have together is this one's while the store is out.
    `monotonic` is a clock in seconds, for tests. `fallback_state` is where it goes on, if that is shared with others.
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
        """That of the store inside."""
        return self._inner.identity

    @property
    def sheltered(self) -> bool:
        """Whether the store inside is out."""
        return self._fallback_state.is_out

    @property
    def held(self) -> int:
        """How many keys memory answers for: 0 when all is well, and sinking while they go home."""
        return len(self._fallback_state.bases)

    @property
    def share(self) -> float:
        """This process's share of a limit that all processes have together: 1.0 unless the store is out."""
        return self._fallback_state.share()

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
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
        """Do several updates at once. An exception of any step comes out after the others are done."""
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
        """The record under `key`, or None."""
        if not self._fallback_state.holds(key):
            return self._ask(lambda store: store.read(key), lambda: self.read(key))
        if self._fallback_state.is_new(key):
            self._fallback_state.adopt(key, self._peek(key))
        return self._fallback_state.read(key)

    def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order; in an outage, those that are remembered."""
        found: list[str] = self._ask(lambda store: store.keys(prefix), list)
        return sorted({*found, *self._fallback_state.keys(prefix)})

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        self.update(key, _remove)

    def now(self) -> Now:
        """The store's own present; in an outage, its continuation."""
        return self._ask(lambda store: store.now(), self._fallback_state.now)

    def close(self) -> None:
        """Bring home what is in memory, if the store lets us, and close it. Idempotent."""
        if self._looking is not None:
            self._looking.join()
        if self._fallback_state.claim(_for_good):
            self._come_back()
        self._fallback_state = self._fallback_state.left()
        self._inner.close()

    def _peek(self, key: str) -> Any:
        """What a store that cannot be written has under `key`, if it can be read."""
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
    """The same for tasks."""

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
        """That of the store inside."""
        return self._inner.identity

    @property
    def sheltered(self) -> bool:
        """Whether the store inside is out."""
        return self._fallback_state.is_out

    @property
    def held(self) -> int:
        """How many keys memory answers for: 0 when all is well, and sinking while they go home."""
        return len(self._fallback_state.bases)

    @property
    def share(self) -> float:
        """This process's share of a limit that all processes have together: 1.0 unless the store is out."""
        return self._fallback_state.share()

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, as one atomic step, and return its answer."""
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
        """Do several updates at once. An exception of any step comes out after the others are done."""
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
        """The record under `key`, or None."""
        if not self._fallback_state.holds(key):
            found, is_known = await self._ask(lambda store: _known(store.read(key)), lambda: (None, False))
            if is_known:
                return found
        if self._fallback_state.is_new(key):
            self._fallback_state.adopt(key, await self._peek(key))
        return self._fallback_state.read(key)

    async def keys(self, prefix: str = "") -> list[str]:
        """All keys that begin with `prefix`, in order; in an outage, those that are remembered."""
        found: list[str] = await self._ask(lambda store: store.keys(prefix), list)
        return sorted({*found, *self._fallback_state.keys(prefix)})

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if there is one."""
        await self.update(key, _remove)

    async def now(self) -> Now:
        """The store's own present; in an outage, its continuation."""
        return await self._ask(lambda store: store.now(), self._fallback_state.now)

    async def close(self) -> None:
        """Bring home what is in memory, if the store lets us, and close it. Idempotent."""
        loop = asyncio.get_running_loop()
        if self._looking is not None and self._looking.get_loop() is loop:  # another may be closed by now
            await asyncio.wait([self._looking])
        if self._fallback_state.claim(lambda: not loop.is_closed()):
            await self._come_back()
        self._fallback_state = self._fallback_state.left()
        await self._inner.close()

    async def _peek(self, key: str) -> Any:
        """What a store that cannot be written has under `key`, if it can be read."""
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
    """The answers; or the first error among them, if there is one."""
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes


async def _known(read: Awaitable[Any]) -> tuple[Any, bool]:
    return await read, True


def _for_good() -> bool:
    """A thread ends what it has begun."""
    return True


def _remove(record: Any, now: Now) -> tuple[None, None]:
    return None, None

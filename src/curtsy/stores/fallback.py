"""Fallback to memory while a store is out, and the merge of the counts afterwards (B8, F55).

While the store works, calls go straight to it, and the last record of each key is remembered. When it raises
StoreError, except for a record of a later version, an outage begins, with one warning. Steps then run in memory on the
remembered records, on a continuation of the store's clock. A key that is not remembered starts from the store's record,
if the store can still be read. A background probe retries the store after 1, 2, 4 … 30 seconds; calls do not wait for
it. When the store accepts a write, `Record.joined` merges each changed record into it. Until then, the key stays in
memory, so that a host always has exactly one record. Records that a working store has lost are restored in the
background too.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from curtsy.core.errors import CurtsyError, RecordTooNew, StoreError
from curtsy.core.host import fresh
from curtsy.core.record import Record
from curtsy.core.time import Now
from curtsy.stores.fallback_state import FallbackState, Gone, Sight, WatchedStep
from curtsy.stores.protocol import NOT_NOW, Answer, AsyncStore, NotNow, Outages, Proposal, Shared, Step
from curtsy.stores.survey import HOSTS, Survey, survey_of
from curtsy.system.threads import in_thread, is_blocking, run_blocking

PROBE = "\0probe"
"""Reserved key, written to test whether a store accepts writes."""

MOVED_AT_ONCE = 128
"""Records that a task writes at once after an outage: requests to their hosts wait meanwhile."""

logger = logging.getLogger("curtsy")

Result = TypeVar("Result")


class _Out(Exception):
    """Signal that the store is out, so that memory must answer."""


class AsyncFallbackStore(AsyncStore):
    """Store that continues in memory when the inner store fails.

    `share` is this process's share, in an outage, of a limit common to all processes; None for that of `divide`. With
    `waits`, no common limit is spent in an outage: a `Shared` step is answered NOT_NOW, and memory answers for the
    other steps only. `monotonic` is a clock in seconds, for tests. `state` is the state to use, if other stores share
    it.
    """

    def __init__(
        self,
        inner: AsyncStore,
        *,
        share: float | None = None,
        waits: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
        state: FallbackState | None = None,
    ) -> None:
        self._inner = inner
        self.is_per_loop = inner.is_per_loop
        self._state = state or FallbackState(inner.identity, share, waits, monotonic)
        self._known_losses = len(inner.losses)
        self._recovery: threading.Thread | asyncio.Task[None] | None = None

    @property
    def identity(self) -> str:
        return self._inner.identity

    @property
    def is_out(self) -> bool:
        return self._state.is_out

    @property
    def is_waiting(self) -> bool:
        return self._state.is_out and self._state.waits

    @property
    def outage(self) -> CurtsyError | None:
        return self._state.error if self._state.is_out else None

    @property
    def held(self) -> int:
        return len(self._state.bases)

    @property
    def share(self) -> float:
        return self._state.share if self._state.is_out else 1.0

    def divide(self, among: int) -> None:
        self._state.divide(among)

    @property
    def outages(self) -> Outages:
        return self._state.seen_outages()

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        while (answer := await self._attempt(key, step)) is NOT_NOW:
            if self._state.waits and isinstance(step, Shared):
                unanswered: Any = NOT_NOW
                reply: Answer = unanswered
                return reply
            await self._adopt(key)
            with suppress(Gone):
                return self._state.update(key, step)
        return answer

    async def _attempt(self, key: str, step: Step[Answer]) -> Answer | NotNow:
        """Update a record in the store; return NOT_NOW if memory answers for its key."""
        state = self._state
        if state.is_out or state.bases:
            self._recover_if_due()
            if state.holds(key):
                return NOT_NOW
        since, watched = state.outages, WatchedStep(self._lost, key, step)
        try:
            answer: Answer = await self._inner.update(key, watched)
        except RecordTooNew:
            raise
        except StoreError as error:
            if error is watched.raised:
                raise
            state.failed(error, since)
            return NOT_NOW
        state.note(watched)
        if state.lost:
            self._recover_if_due()
        return answer

    def update_now(self, key: str, step: Step[Answer]) -> Answer | NotNow:
        answer: Answer | NotNow = self._attempt_now(self._inner.update_now, key, step)
        return answer

    def update_soon(self, key: str, step: Step[Answer]) -> Answer | NotNow:
        answer: Answer | NotNow = self._attempt_now(self._inner.update_soon, key, step)
        return answer

    def propose(self, key: str, step: Step[Answer]) -> tuple[Answer, Proposal] | NotNow:
        answer: tuple[Answer, Proposal] | NotNow = self._attempt_now(self._inner.propose, key, step)
        return answer

    def confirm(self, proposal: Proposal) -> bool:
        return self._inner.confirm(proposal)

    def _attempt_now(self, update: Callable[..., Any], key: str, step: Step[Any]) -> Any:
        state = self._state
        if state.is_out or state.bases or state.lost:
            return NOT_NOW
        watched = WatchedStep(self._lost, key, step)
        answer = update(key, watched)
        if answer is not NOT_NOW:
            state.note(watched)
            if state.lost:
                self._recover_if_due()
        return answer

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        state = self._state
        if state.is_out or not state.bases.keys().isdisjoint(key for key, _ in steps):
            return await super().update_many(steps)
        since, watched = state.outages, [WatchedStep(self._lost, key, step) for key, step in steps]
        try:
            answers = await self._inner.update_many([(each.key, each) for each in watched])
        except RecordTooNew:
            raise
        except Exception as error:
            if isinstance(error, StoreError) and not any(error is each.raised for each in watched):
                state.failed(error, since)
                return await super().update_many(steps)
            state.note(*watched)
            raise
        state.note(*watched)
        if state.lost:
            self._recover_if_due()
        return answers

    async def read(self, key: str) -> Any:
        if not self._state.holds(key):
            with suppress(_Out):
                return await self._ask(lambda: self._inner.read(key))
        await self._adopt(key)
        return self._state.read(key)

    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted; in an outage, the remembered ones."""
        found: list[str] = []
        with suppress(_Out):
            found = await self._ask(lambda: self._inner.keys(prefix))
        return sorted({*found, *self._state.memory.keys(prefix)})

    async def records(self, prefix: str) -> list[tuple[str, Any]]:
        if not self._state.bases:
            with suppress(_Out):
                return await self._ask(lambda: self._inner.records(prefix))
        return await super().records(prefix)

    async def page(self, prefix: str, *, part: str = "", after: str = "", most: int) -> list[tuple[str, Any]]:
        if not self._state.bases:
            with suppress(_Out):
                return await self._ask(lambda: self._inner.page(prefix, part=part, after=after, most=most))
        return await super().page(prefix, part=part, after=after, most=most)

    async def survey(self, recent: int, troubled: int) -> Survey:
        """Return hosts used last and hosts in trouble; in an outage, the remembered ones."""
        held = dict(await self._state.memory.inner.records(HOSTS))
        with suppress(_Out):
            found = await self._ask(lambda: self._inner.survey(recent, troubled))
            return found.overlaid(held) if held else found
        return survey_of(held.items(), recent, troubled)

    async def now(self) -> Now:
        """Return the store's current time; in an outage, its continuation."""
        with suppress(_Out):
            return await self._ask(self._inner.now)
        return self._state.now()

    async def close(self) -> None:
        """Write the records in memory to the store, if it works, and close it. Idempotent."""
        has_tried = False
        match self._recovery:
            case threading.Thread() as thread:
                has_tried = thread.is_alive()
                await in_thread(thread.join)
            case asyncio.Task() as task if task.get_loop() is _loop():  # another loop may be closed by now
                has_tried = not task.done()
                await asyncio.wait([task])
        if not (has_tried and self._state.is_out) and self._state.claim(_loop()):
            await self._recover()
        self._state = self._state.left()
        await self._inner.close()

    async def _ask(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        """Return the answer of the inner store. Raises _Out if it is out."""
        state = self._state
        while not state.is_out:
            since = state.outages
            try:
                return await ask()
            except RecordTooNew:
                raise
            except StoreError as error:
                state.failed(error, since)
        self._recover_if_due()
        raise _Out

    async def _adopt(self, key: str) -> None:
        """Start a key that memory does not know from the record of a store that cannot be written."""
        if self._state.is_new(key):
            self._state.adopt(key, await self._inner.peek(key))

    def _lost(self) -> dict[str, Sight]:
        """Return the records to restore, by key."""
        losses = self._inner.losses
        if len(losses) > self._known_losses:
            new = losses[self._known_losses :]
            self._known_losses += len(new)
            for loss in new:
                self._state.lose(loss)
        return self._state.lost

    # Return to the store, in a background task or thread.

    def _recover_if_due(self) -> None:
        loop = _loop()
        if not self._state.is_due(loop):
            return
        if loop is not None:
            self._recovery = loop.create_task(self._recover())
        else:
            name = "curtsy-fallback"
            thread = threading.Thread(target=lambda: run_blocking(self._recover()), name=name, daemon=True)
            self._recovery = thread
            thread.start()

    async def _recover(self) -> None:
        """Probe the store; if it works, write the records in memory to it, and restore those it has lost."""
        state, stuck, moved = self._state, set[str](), 0
        was_well = not (state.is_out or state.bases)
        try:
            if not was_well:
                await self._probe()
                state.end()
            while keys := state.to_move(stuck):
                at_once = 1 if is_blocking() else MOVED_AT_ONCE
                for start in range(0, len(keys), at_once):
                    if state.is_out:
                        return  # another call has begun a new outage
                    chunk = keys[start : start + at_once]
                    failed = await self._move_all(chunk)
                    moved += len(chunk) - len(failed)
                    stuck |= failed
            state.returned(moved)
            await self._restore()
        except CurtsyError as error:
            state.begin(error)
        finally:
            state.recovered(was_well)

    async def _probe(self) -> None:
        """Test whether the store accepts writes: a full or locked store can often still be read."""
        await self._inner.update(PROBE, lambda record, now: (fresh(now), None))
        await self._inner.forget(PROBE)

    async def _move_all(self, keys: Sequence[str]) -> set[str]:
        """Write records to the store; return the keys of unusable records. Raises StoreError if the store is out."""
        attempts = map(self._is_moved, keys)
        are_moved = [await each for each in attempts] if is_blocking() else await asyncio.gather(*attempts)
        failed = {key for key, is_moved in zip(keys, are_moved, strict=True) if not is_moved}
        if failed:
            await self._probe()  # if that works, only these records are unusable
        return failed

    async def _is_moved(self, key: str) -> bool:
        try:
            await self._move(key)
        except StoreError:
            return False
        return True

    async def _move(self, key: str) -> None:
        """Write one record to the store, again if it changes meanwhile."""
        state = self._state
        while True:
            ours, merge = state.merging(key)
            step = WatchedStep(self._lost, key, merge)
            try:
                await self._inner.update(key, step)
                state.remember(step)
            except StoreError:
                raise
            except Exception as error:
                text = "the record under %r cannot be joined with the store's, which is kept"
                logger.error(text, key, exc_info=error)
            if state.moved(key, ours):
                return

    async def _restore(self) -> None:
        """Restore the records that the store has lost; other processes may not remember them."""
        state = self._state
        while not state.is_out and (lost := next(iter(state.lost.copy().items()), None)):
            key, sight = lost
            step = WatchedStep(self._lost, key, _keep)
            for _ in range(2):
                try:
                    await self._inner.update(key, step)
                    break
                except StoreError:
                    await self._probe()  # if that works, this record may be unusable
                    step.restored = None
            state.restored(step, sight)


def _loop() -> asyncio.AbstractEventLoop | None:
    return None if is_blocking() else asyncio.get_running_loop()


def _keep(record: Record | None, now: Now) -> tuple[Record | None, None]:
    return record, None

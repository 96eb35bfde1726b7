"""Procedures: generators of updates and waits, and the driver that executes them.

A procedure yields `Update`, `Read`, `Sleep`, `Finish` or `Limit` and receives the answer. The gate consists of
procedures. `engine/driver.py` turns a whole flow into one procedure, and adds the effects that are not of the store.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar

import msgspec

from curtsy.core.decision import Late
from curtsy.core.errors import RecordTooNew, StoreError
from curtsy.engine.timers import Timers, Waiter
from curtsy.stores import NOT_NOW, AsyncStore, Step

Result = TypeVar("Result")

STORE_GRACE = 0.1
"""Seconds after which a `Limit` aborts a procedure that should have ended by itself."""


class Update(msgspec.Struct, frozen=True, gc=False):
    """Effect: change a record by a step. Answer: that of the step."""

    key: str
    step: Step[Any]
    undo: Callable[[Any], Procedure[None]] | None = None
    """Function from the answer to the procedure that reverts the change, if the task is cancelled meanwhile.

    Its argument is None if the store failed. The cancelled procedure keeps its place in every queue until the change is
    reverted. Without a function the update is cancelled, too.
    """


class Read(msgspec.Struct, frozen=True, gc=False):
    """Effect: read a record. Answer: the record, or None."""

    key: str


class Sleep(msgspec.Struct, frozen=True, gc=False):
    """Effect: wait until the waiter is woken, at most `seconds`; None for no limit."""

    waiter: Waiter
    seconds: float | None


class Finish(msgspec.Struct, frozen=True):
    """Effect: run a procedure to its end, even if the task is cancelled. Answer: its result."""

    procedure: Procedure[Any]


class Limit(msgspec.Struct, frozen=True):
    """Effect: run a procedure for at most `seconds`. Answer: its result, or `Late`.

    A procedure knows its deadline, but a store that hangs does not (C18).
    """

    procedure: Procedure[Any]
    seconds: float


class Finished(msgspec.Struct, frozen=True, gc=False):
    """End of a procedure, with its result."""

    result: Any


StoreEffect = Update | Read | Sleep | Finish | Limit
Procedure = Generator[Any, Any, Result]
"""Generator of effects. Those of the gate yield a `StoreEffect`, that of a flow also `Send` and `Keep`."""


class StoreDriver:
    """Executes procedures in tasks, on one store."""

    def __init__(self, store: AsyncStore, timers: Timers, background: set[asyncio.Future[Any]] | None = None) -> None:
        self.store = store
        self.timers = timers
        self.is_immediate = store.is_immediate
        """True if the store never suspends, as with memory."""
        self.update_now: Callable[[str, Step[Any]], Any] = store.update_now
        """Function that tries an update in this thread, and returns NOT_NOW if it must wait."""
        self.update_soon: Callable[[str, Step[Any]], Any] = (
            store.update_now if store.is_immediate else store.update_soon
        )
        """Function that does the same, but may write the change some milliseconds later."""
        self.background: set[asyncio.Future[Any]] = set() if background is None else background
        """Work that continues after its caller was cancelled: it completes or reverts changes of the store."""
        self._reverting: set[Procedure[Any]] = set()
        """Cancelled procedures with a change that is being reverted. They are closed after that."""

    async def run(self, procedure: Procedure[Result]) -> Result:
        """Run a procedure to its end and return its result."""
        result: Result = await self.resume(procedure, self.advance(procedure))
        return result

    def advance(self, procedure: Procedure[Any], answer: Any = None) -> Any:
        """Run a procedure until an effect must wait; return that effect, or `Finished` at the end."""
        update_now = self.update_now
        try:
            effect = procedure.send(answer)
            while type(effect) is Update and (answer := update_now(effect.key, effect.step)) is not NOT_NOW:
                effect = procedure.send(answer)
        except StopIteration as end:
            return Finished(end.value)
        except RecordTooNew as error:
            return self.raise_in(procedure, error)
        except BaseException:
            procedure.close()
            raise
        return effect

    def raise_in(self, procedure: Procedure[Any], error: RecordTooNew) -> Any:
        """Raise an error in a procedure, which may refuse its request; return the next effect, or `Finished`."""
        try:
            return procedure.throw(error)
        except StopIteration as end:
            return Finished(end.value)

    async def resume(self, procedure: Procedure[Any], effect: Any) -> Any:
        """Run a procedure from an effect of `advance()` to its end and return its result."""
        try:
            while type(effect) is not Finished:
                effect = self.advance(procedure, await self.execute(effect, procedure))
            return effect.result
        finally:
            self.close(procedure)

    def close(self, procedure: Procedure[Any]) -> None:
        """Close a procedure, unless a change of it is being reverted."""
        if procedure not in self._reverting:
            procedure.close()

    async def execute(self, effect: Any, procedure: Procedure[Any]) -> Any:
        """Execute one effect of a procedure and return its answer."""
        match effect:
            case Update(key, step, None):
                return await self.store.update(key, step)
            case Update(undo=undo):
                assert undo is not None
                return await self._update(effect, undo, procedure)
            case Sleep(waiter, seconds):
                return await self.timers.sleep(waiter, seconds)
            case Read(key):
                return await self.store.read(key)
            case Finish(inner):
                effect = self.advance(inner)  # a task is needed only if the procedure must wait
                return effect.result if type(effect) is Finished else await self.finish(self.resume(inner, effect))
            case Limit(inner, seconds):
                effect = self.advance(inner)
                return effect.result if type(effect) is Finished else await self._limit(inner, effect, seconds)
            case _:
                raise AssertionError(f"{effect!r} is no effect of the store")

    def finishing(self, procedure: Procedure[Result]) -> Procedure[Result]:
        """Return a procedure that completes even if its task is cancelled."""
        return procedure if self.is_immediate else single(Finish(procedure))

    def limited(self, procedure: Procedure[Result], seconds: float | None) -> Procedure[Result | Late]:
        """Return a procedure that ends in time even if the store hangs; None for no limit."""
        return procedure if seconds is None or self.is_immediate else single(Limit(procedure, seconds))

    def start(self, procedure: Procedure[Any]) -> None:
        """Run a procedure in the background. Its errors of the store are ignored."""
        with contextlib.suppress(StoreError):
            effect = self.advance(procedure)
            if type(effect) is not Finished:
                self._in_background(_quiet(self.resume(procedure, effect)))

    async def finish(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Complete work even if its caller is cancelled."""
        if self.is_immediate:
            return await work  # it never suspends, so no cancellation can come between
        return await asyncio.shield(self._in_background(work))

    def _in_background(self, work: Coroutine[Any, Any, Result]) -> asyncio.Future[Result]:
        task = asyncio.ensure_future(work)
        self.background.add(task)
        task.add_done_callback(self.background.discard)
        return task

    async def _update(self, effect: Update, undo: Callable[[Any], Procedure[None]], procedure: Procedure[Any]) -> Any:
        update = asyncio.ensure_future(self.store.update(effect.key, effect.step))
        try:
            return await asyncio.shield(update)
        except asyncio.CancelledError:
            self._reverting.add(procedure)
            self._in_background(self._revert(update, undo, procedure))
            raise

    async def _revert(
        self, update: asyncio.Future[Any], undo: Callable[[Any], Procedure[None]], procedure: Procedure[Any]
    ) -> None:
        answer = None
        try:
            # If the store is unreachable, a slot is freed when its lease expires.
            with contextlib.suppress(StoreError):
                answer = await update
            with contextlib.suppress(StoreError):
                await self.run(undo(answer))
        finally:
            self._reverting.discard(procedure)
            procedure.close()

    @property
    def cause_in_queue(self) -> str:
        """Return `outage` if a request that has not asked the store itself would find it out; else empty text."""
        return "outage" if self.store.is_waiting else ""

    async def _limit(self, procedure: Procedure[Any], effect: Any, seconds: float) -> Any:
        try:
            async with asyncio.timeout(seconds + STORE_GRACE) as limit:
                return await self.resume(procedure, effect)
        except TimeoutError:
            if not limit.expired():
                raise
            return Late(0.0, "outage")


async def _quiet(work: Coroutine[Any, Any, Any]) -> None:
    with contextlib.suppress(StoreError):
        await work


def single(effect: Any) -> Procedure[Any]:
    """Return the procedure of one effect."""
    return (yield effect)

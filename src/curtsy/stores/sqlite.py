"""Default store: one SQLite file, shared by all processes of a machine.

The file must be on a local disk, because locks over a network are unreliable. A killed process loses no answered
update, except those of `update_soon` in its last milliseconds. A power cut may lose the last moments, because SQLite
waits for the disk only at checkpoints (`synchronous = NORMAL`). Beside the file are SQLite's `-wal` and `-shm`, and the
empty `.lock` that writing processes lock. `sqlite_records.py` reads and writes the file.

A caller changes a record in its own thread if the lock among processes is free (`sqlite_inline.py`). Otherwise it waits
for the writer: one thread for all stores, threads and tasks of a process that use a file. The writer takes the lock,
runs all waiting steps in one transaction, commits, and then answers. Either reads the clock while it holds the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from curtsy.core.errors import CurtsyError, PolicyError, StoreError
from curtsy.core.record import Record
from curtsy.core.time import Now
from curtsy.stores.protocol import NOT_NOW, Answer, AsyncStore, Loss, NotNow, Proposal, Step
from curtsy.stores.sqlite_inline import SOON, InlineUpdates
from curtsy.stores.sqlite_records import RecordFile, Unready
from curtsy.stores.sqlite_rows import Row, Transaction
from curtsy.stores.survey import Survey
from curtsy.system.clock import BootClock, Clock
from curtsy.system.shutdown import at_exit
from curtsy.system.threads import in_thread, is_blocking

PATIENCE = 5.0
"""Seconds to wait for a file that another program keeps locked."""

_HOLD = 0.002
"""Seconds after which a transaction accepts no further steps, so that other processes get the lock."""

_GRACE = 0.5
"""Extra seconds that a caller waits, because the writer's error message is more precise."""

_TICKS = 200
"""Times that the thread looks for pending changes before it waits for a call: waking it takes longer than looking."""

_CHUNK = 100
"""Maximum steps of one `update_many` that must be in one transaction together."""

Result = TypeVar("Result")
Steps = Sequence[tuple[str, Step[Any]]]


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
        return self._writer.file.losses

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        [answer] = await self._opened().run([(key, step)], self._clock)
        result: Answer = answer
        return result

    def update_now(self, key: str, step: Step[Answer]) -> Answer | NotNow:
        return NOT_NOW if self._is_closed else self._writer.update_now(key, step, self._clock)

    def update_soon(self, key: str, step: Step[Answer]) -> Answer | NotNow:
        return NOT_NOW if self._is_closed else self._writer.update_soon(key, step, self._clock)

    def propose(self, key: str, step: Step[Answer]) -> tuple[Answer, Proposal] | NotNow:
        return NOT_NOW if self._is_closed else self._writer.propose(key, step, self._clock)

    def confirm(self, proposal: Proposal) -> bool:
        return self._writer.confirm(proposal)

    async def update_many(self, steps: Steps) -> list[Any]:
        return await self._opened().run(steps, self._clock)

    async def read(self, key: str) -> Any:
        return await self._opened().read(lambda file: file.read(key), self._clock, key)

    async def peek(self, key: str) -> Any:
        return await in_thread(self._opened().file.peek, key)

    async def keys(self, prefix: str = "") -> list[str]:
        return await self._opened().read(lambda file: file.keys(prefix), self._clock)

    async def records(self, prefix: str) -> list[tuple[str, Any]]:
        """Return all records whose keys begin with `prefix`, by one query. Unreadable ones are skipped."""
        return [*await self._opened().read(lambda file: file.records(prefix), self._clock)]

    async def page(self, prefix: str, *, part: str = "", after: str = "", most: int) -> list[tuple[str, Any]]:
        return [*await self._opened().read(lambda file: file.page(prefix, part, after, most), self._clock)]

    async def survey(self, recent: int, troubled: int) -> Survey:
        return await self._opened().read(lambda file: file.survey(recent, troubled), self._clock)

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


class _Call:
    """Steps of a waiting thread or task, and their outcomes."""

    def __init__(self, steps: Steps, clock: Clock, *, is_awaited: bool = True) -> None:
        self.steps = steps
        self._clock = clock
        self._outcomes: list[tuple[Any, BaseException | None]] = []
        self._failure: CurtsyError | None = None
        self.is_over = False
        """True if the caller has stopped waiting: steps not yet begun are skipped."""
        self.loop = None if not is_awaited or is_blocking() else asyncio.get_running_loop()
        """Event loop of the task; None for a thread, which waits on a lock, the cheapest primitive."""
        self._wakeup: asyncio.Future[bool] | threading.Lock
        if self.loop is not None:
            self._wakeup = self.loop.create_future()
        else:
            self._wakeup = threading.Lock()
            self._wakeup.acquire()

    def run(self, draft: Transaction) -> None:
        """Run the steps; a repeated transaction runs them again."""
        self._outcomes = [self._outcome(draft, key, step) for key, step in self.steps]

    def _outcome(self, draft: Transaction, key: str, step: Step[Any]) -> tuple[Any, BaseException | None]:
        try:
            record = draft.load(key)
        except StoreError as error:  # of this record alone; errors of the file are not StoreErrors yet
            return None, error
        try:
            now = self._clock.now()
            changed, answer = step(record, now)
            if changed is not record:
                draft.put(key, changed, now)
        except BaseException as error:  # the caller gets it, and the writer thread must survive
            return None, error
        return answer, None

    def fail(self, message: str, cause: Exception | None = None) -> None:
        """Set the error that `answers()` raises: PolicyError if `cause` is one, else StoreError."""
        self._failure = (PolicyError if isinstance(cause, PolicyError) else StoreError)(message)
        self._failure.__cause__ = cause

    def answers(self) -> list[Any]:
        """Return the answers of the steps, or raise the first exception among them."""
        for error in (self._failure, *[error for _, error in self._outcomes]):
            if error is not None:
                raise error
        return [answer for answer, _ in self._outcomes]

    def ring(self, in_time: bool = True) -> None:
        """Wake the caller, on its event loop if it has one. After a timeout, this may be called twice."""
        if isinstance(self._wakeup, asyncio.Future):
            if not self._wakeup.done():
                self._wakeup.set_result(in_time)
        elif self._wakeup.locked():
            self._wakeup.release()

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether `ring()` came in time."""
        if not isinstance(self._wakeup, asyncio.Future):
            return self._wakeup.acquire(timeout=seconds)
        timer = self._wakeup.get_loop().call_later(seconds, self.ring, False)
        try:
            return await self._wakeup
        finally:
            timer.cancel()


class Writer:
    """One file in this process: the thread that writes it, and the waiting calls."""

    def __init__(self, path: str, patience: float) -> None:
        self.users = 0
        self.patience = patience
        self.file = RecordFile(path, patience=patience)
        self.begin()

    def begin(self) -> None:
        """Start without a thread, also in a forked child."""
        self._gate = threading.Lock()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._unanswered: dict[str, int] = {}
        """Number of steps that wait for the thread or are in its hands, by key. No update of a key overtakes them."""
        self._inline = InlineUpdates(self.file)
        self._is_ticking = False
        """True if the thread looks for pending changes by itself."""
        self._thread: threading.Thread | None = None

    def update_now(self, key: str, step: Step[Answer], clock: Clock) -> Answer | NotNow:
        """Run a step in the caller's thread; return NOT_NOW if it must wait."""
        return NOT_NOW if key in self._unanswered else self._inline.update(key, step, clock)

    def update_soon(self, key: str, step: Step[Answer], clock: Clock) -> Answer | NotNow:
        """Do the same, but the thread may write the change later."""
        if key in self._unanswered:
            return NOT_NOW
        answer = self._inline.update_soon(key, step, clock)
        if self._inline.is_pending and not self._is_ticking:
            self._is_ticking = True
            with contextlib.suppress(StoreError):  # the next update writes it, or the end of the program
                self._submit(None)
        return answer

    def propose(self, key: str, step: Step[Answer], clock: Clock) -> tuple[Answer, Proposal] | NotNow:
        """Run a step on the record as this process knows it; see `AsyncStore.propose`."""
        return NOT_NOW if key in self._unanswered else self._inline.propose(key, step, clock)

    def confirm(self, proposal: Proposal) -> bool:
        """Write a proposal; see `AsyncStore.confirm`."""
        return self._inline.confirm(proposal)

    def _pending_calls(self, *, are_overdue: bool = False) -> list[_Call]:
        """Return the calls of pending changes, which then count as unanswered; their proposals are void.

        Requires `_gate`.
        """
        taken = self._inline.take(are_overdue=are_overdue)
        calls = [_Call([(each.key, step) for step in each.steps], each.clock, is_awaited=False) for each in taken]
        self._count(calls, 1)
        return calls

    def _count(self, calls: Iterable[_Call], change: int) -> None:
        """Count calls as unanswered, or as answered if `change` is -1. Requires `_gate`."""
        unanswered = self._unanswered
        for call in calls:
            for key, _ in call.steps:
                if count := unanswered.get(key, 0) + change:
                    unanswered[key] = count
                else:
                    del unanswered[key]

    def _submit(self, calls: Sequence[_Call] | None) -> None:
        """Queue calls for the thread, after the pending changes; None only wakes it.

        Raises StoreError if the thread cannot start.
        """
        with self._gate:
            if self._thread is None:
                thread = threading.Thread(target=self._write, args=(self._calls,), name="curtsy-sqlite", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    path = self.file.path
                    raise StoreError(f"{path} cannot be used: {error}. Close stores before the end.") from error
                self._thread = thread
            if calls is None:
                self._calls.put(None)
                return
            self._count(calls, 1)
            for call in (*self._pending_calls(), *calls):
                self._calls.put(call)

    def stop(self, seconds: float) -> None:
        """Answer the waiting callers, write the pending changes, end the thread and close the file.

        If the thread does not end within `seconds`, the file stays open.
        """
        if not self._inline.flush():
            with contextlib.suppress(StoreError):
                self._submit(())
        with self._gate:
            thread, calls = self._thread, self._calls
            self._thread, self._calls = None, SimpleQueue()
            calls.put(None)
        if thread is not None:
            thread.join(seconds)
        if thread is None or not thread.is_alive():
            self.file.close()

    def _write(self, calls: SimpleQueue[_Call | None]) -> None:
        """Run one transaction after the other, in the thread."""
        while (batch := self._next_batch(calls)) is not None:
            rows: dict[str, Row] = {}
            try:
                rows = self.file.transact(partial(_run, batch, calls)).rows
            except Exception as error:
                # Calls that wait already would meet the same error, after as long a wait.
                batch += _waiting(calls)
                is_ours = isinstance(error, StoreError | PolicyError)
                message = str(error) if is_ours else f"{self.file.path} cannot be used: {error!r}."
                for each in batch:
                    each.fail(message, error)
            self._answered(batch, rows)
            self.file.checkpoint_if_due()

    def _next_batch(self, calls: SimpleQueue[_Call | None]) -> list[_Call] | None:
        """Wait for a call or for pending changes; return None at the end of the thread."""
        ticks = 0
        while True:
            try:
                call = calls.get(timeout=SOON if self._is_ticking else None)
            except Empty:
                ticks += 1
                with self._gate:
                    if batch := self._pending_calls(are_overdue=True):
                        return batch
                if ticks >= _TICKS:
                    self._is_ticking = False
                    self._is_ticking = self._inline.is_pending  # one that has come meanwhile
            else:
                if call is not None:
                    return [call]
                if calls is not self._calls:
                    return None

    def _answered(self, batch: list[_Call], rows: Mapping[str, Row]) -> None:
        """Wake the callers of a batch after a transaction of these rows."""
        for call in batch:
            for key, _ in call.steps:
                if key not in rows:
                    self._inline.forget(key)
        self._inline.remember(rows)
        with self._gate:
            self._count(batch, -1)
        _ring(batch)

    async def run(self, steps: Steps, clock: Clock) -> list[Any]:
        """Run steps in the writer thread, and return their answers."""
        calls = [_Call(steps[start : start + _CHUNK], clock) for start in range(0, len(steps), _CHUNK)]
        self._submit(calls)
        try:
            for call in calls:
                if not await call.wait(self.patience + _GRACE):
                    self._give_up(call)
        finally:
            for call in calls:
                call.is_over = True
        return [answer for call in calls for answer in call.answers()]

    def _give_up(self, call: _Call) -> None:
        """Fail a call and those queued after it, because all wait for the same process."""
        waiting = _waiting(self._calls)
        with self._gate:
            self._count(waiting, -1)
        failed = [call, *waiting]
        for each in failed:
            each.is_over = True
            each.fail(
                f"{self.file.path} cannot be used: our turn to write it did not come within {self.patience:g} s. "
                "Another process seems to stand still in the middle of its own: end that one, or use another store."
            )
        _ring(failed)

    async def read(self, look: Callable[[RecordFile], Result], clock: Clock, key: str = "") -> Result:
        """Return the result of `look`. If the file is not ready, let the writer load `key` first.

        No thread of the pool waits for the writer, because the same pool resolves host names.
        """
        if not self._inline.flush():
            await self.run([(key, _keep)], clock)
        try:
            return await in_thread(look, self.file)
        except Unready:
            await self.run([(key, _keep)], clock)
            return await in_thread(look, self.file)


def _run(batch: list[_Call], calls: SimpleQueue[_Call | None], draft: Transaction) -> None:
    """Run the calls of a batch, and add waiting calls to it for up to _HOLD seconds."""
    give_way_at = time.monotonic() + _HOLD
    done = 0
    while done < len(batch):
        if not batch[done].is_over:
            batch[done].run(draft)
        done += 1
        if done == len(batch) and time.monotonic() < give_way_at:
            batch += _waiting(calls, 1)


def _waiting(calls: SimpleQueue[_Call | None], most: int | None = None) -> list[_Call]:
    """Remove and return the waiting calls, at most `most`."""
    found: list[_Call] = []
    with contextlib.suppress(Empty):
        while most is None or len(found) < most:
            call = calls.get_nowait()
            if call is None:  # for the thread's own loop
                calls.put(None)
                break
            found.append(call)
    return found


def _ring(batch: list[_Call]) -> None:
    """Wake the callers; those of one event loop together, because each wake-up is a system call."""
    loops: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
    for call in batch:
        if call.loop is None:
            call.ring()
        else:
            loops.setdefault(call.loop, []).append(call)
    for loop, calls in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits there
            loop.call_soon_threadsafe(_ring_all, calls)


def _ring_all(calls: list[_Call]) -> None:
    for call in calls:
        call.ring()


def _keep(record: Record | None, now: Now) -> tuple[Record | None, None]:
    return record, None


_writers: dict[str, Writer] = {}
"""Writers by the real path of their file: all stores of a process share one per file."""

_lock = threading.Lock()


def enter(path: str, patience: float) -> Writer:
    """Return the writer of a file, and count one more user of it."""
    with _lock:
        writer = _writers.get(path) or _writers.setdefault(path, Writer(path, patience))
        writer.users += 1
        return writer


def leave(path: str) -> None:
    """Count one user less; the last one ends the thread and closes the file."""
    with _lock:
        writer = _writers[path]
        writer.users -= 1
        if not writer.users:
            del _writers[path]
            writer.stop(writer.patience)


def _stop_all() -> None:
    for writer in list(_writers.values()):
        writer.stop(_GRACE)


def _after_fork_in_child() -> None:
    for writer in _writers.values():
        writer.begin()
    _lock.release()


at_exit(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_after_fork_in_child)

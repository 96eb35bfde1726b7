"""Writer: the one thread of a process that writes an SQLite file.

All stores, threads and tasks of a process that use a file share this thread. It takes the lock among processes, runs
all waiting steps in one transaction, commits, and then answers. It reads the clock while it holds the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from curtsy.core.errors import CurtsyError, PolicyError, StoreError
from curtsy.core.message import Now
from curtsy.core.record import Record
from curtsy.stores.protocol import Step
from curtsy.stores.sqlite_records import Database, Unready
from curtsy.stores.transaction import Transaction
from curtsy.system.clock import Clock
from curtsy.system.shutdown import at_exit
from curtsy.system.threads import in_thread, is_blocking

_HOLD = 0.002
"""Seconds after which a transaction accepts no further steps, so that other processes get the lock."""

_GRACE = 0.5
"""Extra seconds that a caller waits, because the writer's error message is more precise."""

_CHUNK = 100
"""Maximum steps of one `update_many` that must be in one transaction together."""

Result = TypeVar("Result")
Steps = Sequence[tuple[str, Step[Any]]]


class _Call:
    """Steps of a waiting caller, and their outcomes."""

    def __init__(self, steps: Steps, clock: Clock) -> None:
        self._steps = steps
        self._clock = clock
        self._outcomes: list[tuple[Any, BaseException | None]] = []
        self._failure: CurtsyError | None = None
        self.is_over = False
        """True if the caller has stopped waiting: steps not yet begun are skipped."""

    def run(self, draft: Transaction) -> None:
        """Run the steps; a repeated transaction runs them again."""
        self._outcomes = [self._outcome(draft, key, step) for key, step in self._steps]

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
        if self._failure is not None:
            raise self._failure
        for _, error in self._outcomes:
            if error is not None:
                raise error
        return [answer for answer, _ in self._outcomes]


class _ThreadCall(_Call):
    """Call of a thread, which waits on a lock because that is the cheapest primitive."""

    def __init__(self, steps: Steps, clock: Clock) -> None:
        super().__init__(steps, clock)
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def ring(self) -> None:
        """Wake the caller. After a timeout, this may be called twice."""
        with contextlib.suppress(RuntimeError):
            self._wakeup.release()

    async def wait(self, seconds: float) -> bool:
        """Block up to `seconds`; return whether `ring()` came in time."""
        return self._wakeup.acquire(timeout=seconds)


class _TaskCall(_Call):
    """Call of a task, which waits on a future of its event loop."""

    def __init__(self, steps: Steps, clock: Clock) -> None:
        super().__init__(steps, clock)
        self.loop = asyncio.get_running_loop()
        self._wakeup: asyncio.Future[bool] = self.loop.create_future()

    def ring(self, in_time: bool = True) -> None:
        """Wake the caller. Must be called on the caller's event loop."""
        if not self._wakeup.done():
            self._wakeup.set_result(in_time)

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; return whether `ring()` came in time."""
        timer = self.loop.call_later(seconds, self.ring, False)
        try:
            return await self._wakeup
        finally:
            timer.cancel()


class Writer:
    """One file in this process: the thread that writes it, and the waiting calls."""

    def __init__(self, path: str, patience: float) -> None:
        self.users = 0
        self.patience = patience
        self.database = Database(path, patience=patience)
        self._path = path
        self._begin()

    def renew(self) -> None:
        """Start over in a forked child, which must not keep its parent's lock."""
        self.database = self.database.heir()
        self._begin()

    def _begin(self) -> None:
        self._gate = threading.Lock()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._waiting: set[_Call] = set()
        self._thread: threading.Thread | None = None

    def submit(self, calls: Sequence[_Call]) -> None:
        """Queue calls for the thread. Raises StoreError if the thread cannot start."""
        with self._gate:
            if self._thread is None:
                thread = threading.Thread(target=self._write, args=(self._calls,), name="curtsy-sqlite", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:
                    raise StoreError(f"{self._path} cannot be used: {error}. Close stores before the end.") from error
                self._thread = thread
            self._waiting.update(calls)
            for call in calls:
                self._calls.put(call)

    def stop(self, seconds: float) -> None:
        """Answer the waiting callers, end the thread and close the file.

        If the thread does not end within `seconds`, the file stays open.
        """
        with self._gate:
            thread, calls = self._thread, self._calls
            self._thread, self._calls = None, SimpleQueue()
            calls.put(None)
        if thread is not None:
            thread.join(seconds)
        if thread is None or not thread.is_alive():
            self.database.close()

    def _write(self, calls: SimpleQueue[_Call | None]) -> None:
        """Run one transaction after the other, in the thread."""
        while (call := calls.get()) is not None:
            batch = [call]
            try:
                self.database.transact(partial(_run, batch, calls))
            except Exception as error:
                # Calls that wait already would meet the same error, after as long a wait.
                while further := _further(calls):
                    batch += further
                is_ours = isinstance(error, StoreError | PolicyError)
                message = str(error) if is_ours else f"{self._path} cannot be used: {error!r}."
                for each in batch:
                    each.fail(message, error)
            _ring(batch)

    async def run(self, steps: Steps, clock: Clock) -> list[Any]:
        """Run steps in the writer thread, and wait for their answers."""
        kind = _ThreadCall if is_blocking() else _TaskCall
        calls = [kind(chunk, clock) for chunk in _chunks(steps)]
        self.submit(calls)
        try:
            for call in calls:
                if not await call.wait(self.patience + _GRACE):
                    self._give_up()
        finally:
            self._end(calls)
        return [answer for call in calls for answer in call.answers()]

    def _give_up(self) -> None:
        """Fail all waiting calls, because all wait for the same process."""
        message = (
            f"{self._path} cannot be used: our turn to write it did not come within {self.patience:g} s. Another "
            "process seems to stand still in the middle of its own: end that one, or use another store."
        )
        with self._gate:
            waiting, self._waiting = [*self._waiting], set()
        for call in waiting:
            call.is_over = True
            call.fail(message)
        _ring(waiting)

    def _end(self, calls: Sequence[_Call]) -> None:
        with self._gate:
            self._waiting.difference_update(calls)
        for call in calls:
            call.is_over = True

    async def read(self, look: Callable[[Database], Result], clock: Clock, key: str = "") -> Result:
        """Return the result of `look`. If the file is not ready, let the writer load `key` first.

        No thread of the pool waits for the writer, because the same pool resolves host names.
        """
        try:
            return await in_thread(look, self.database)
        except Unready:
            await self.run([(key, _keep)], clock)
            return await in_thread(look, self.database)


def _run(batch: list[_Call], calls: SimpleQueue[_Call | None], draft: Transaction) -> None:
    """Run the calls of a batch, and add waiting calls to it for up to _HOLD seconds."""
    give_way_at = time.monotonic() + _HOLD
    done = 0
    while done < len(batch):
        if not batch[done].is_over:
            batch[done].run(draft)
        done += 1
        if done == len(batch) and time.monotonic() < give_way_at:
            batch += _further(calls)


def _further(calls: SimpleQueue[_Call | None]) -> list[_Call]:
    """Return a list of the next waiting call; empty if no call waits."""
    try:
        call = calls.get_nowait()
    except Empty:
        return []
    if call is None:  # the end marker is for the thread's own loop
        calls.put(None)
        return []
    return [call]


def _ring(batch: list[_Call]) -> None:
    """Wake the callers; those of one event loop together, because each wake-up is a system call."""
    loops: dict[asyncio.AbstractEventLoop, list[_TaskCall]] = {}
    for call in batch:
        if isinstance(call, _TaskCall):
            loops.setdefault(call.loop, []).append(call)
        elif isinstance(call, _ThreadCall):
            call.ring()
    for loop, calls in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, so no task waits there
            loop.call_soon_threadsafe(_ring_all, calls)


def _ring_all(calls: list[_TaskCall]) -> None:
    for call in calls:
        call.ring()


def _chunks(steps: Steps) -> list[Steps]:
    return [steps[start : start + _CHUNK] for start in range(0, len(steps), _CHUNK)]


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


def _before_fork() -> None:
    _lock.acquire()
    for writer in _writers.values():
        writer.database.pause()


def _after_fork_in_parent() -> None:
    for writer in _writers.values():
        writer.database.resume()
    _lock.release()


def _after_fork_in_child() -> None:
    for writer in _writers.values():
        writer.renew()
    _lock.release()


at_exit(_stop_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)

"""Writer: the one thread of a process that writes a file.

However many stores, threads and tasks of a process use a file, one thread writes it: it takes the process's turn, runs
all steps that wait by then in one transaction, commits, and only then answers. The clock is read once the lock is held.
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
from curtsy.stores import Step
from curtsy.stores.sqlite_records import Database, Unready
from curtsy.stores.transaction import Transaction
from curtsy.system.clock import Clock
from curtsy.system.shutdown import at_exit
from curtsy.system.threads import in_thread

_HOLD = 0.002
"""Seconds after which a transaction takes in no further steps, so that other processes come to their turn."""

_GRACE = 0.5
"""Seconds more that a caller waits: the writer can say better what is wrong."""

_CHUNK = 100
"""Steps of one `update_many` that go into a transaction together."""

Result = TypeVar("Result")
Steps = Sequence[tuple[str, Step[Any]]]


class _Call:
    """Some steps that a caller waits for, and what came of them."""

    def __init__(self, steps: Steps, clock: Clock) -> None:
        self._steps = steps
        self._clock = clock
        self._outcomes: list[tuple[Any, BaseException | None]] = []
        self._failure: CurtsyError | None = None
        self.is_over = False
        """Nobody waits any more: what was not begun is not to be done."""

    def run(self, draft: Transaction) -> None:
        """Do the steps; again, if need be."""
        self._outcomes = [self._outcome(draft, key, step) for key, step in self._steps]

    def _outcome(self, draft: Transaction, key: str, step: Step[Any]) -> tuple[Any, BaseException | None]:
        try:
            record = draft.load(key)
        except StoreError as error:  # this record alone; what is wrong with the file is no StoreError yet
            return None, error
        try:
            now = self._clock.now()
            changed, answer = step(record, now)
            if changed is not record:
                draft.put(key, changed, now)
        except BaseException as error:  # all of it is the caller's, and none may end this thread
            return None, error
        return answer, None

    def fail(self, message: str, cause: Exception | None = None) -> None:
        """Have an error come out instead of answers: a wrong setting is none of the store's."""
        self._failure = (PolicyError if isinstance(cause, PolicyError) else StoreError)(message)
        self._failure.__cause__ = cause

    def answers(self) -> list[Any]:
        """What the steps answered, or the first exception among them."""
        if self._failure is not None:
            raise self._failure
        for _, error in self._outcomes:
            if error is not None:
                raise error
        return [answer for answer, _ in self._outcomes]


class _ThreadCall(_Call):
    """A call of a thread, which waits on a lock: the lightest thing there is to wait on."""

    def __init__(self, steps: Steps, clock: Clock) -> None:
        super().__init__(steps, clock)
        self._wakeup = threading.Lock()
        self._wakeup.acquire()

    def ring(self) -> None:
        """Wake the caller. One that was given up may be rung for twice."""
        with contextlib.suppress(RuntimeError):
            self._wakeup.release()

    def wait(self, seconds: float) -> bool:
        """Whether the bell rang in time."""
        return self._wakeup.acquire(timeout=seconds)


class _TaskCall(_Call):
    """A call of a task, which waits on a future of its loop."""

    def __init__(self, steps: Steps, clock: Clock) -> None:
        super().__init__(steps, clock)
        self.loop = asyncio.get_running_loop()
        self._wakeup: asyncio.Future[bool] = self.loop.create_future()

    def ring(self, in_time: bool = True) -> None:
        """Wake the caller; to be called on its loop."""
        if not self._wakeup.done():
            self._wakeup.set_result(in_time)

    async def wait(self, seconds: float) -> bool:
        """Whether the bell rang in time."""
        timer = self.loop.call_later(seconds, self.ring, False)
        try:
            return await self._wakeup
        finally:
            timer.cancel()


class Writer:
    """One file, as this process uses it: the thread that writes, and those who wait for it."""

    def __init__(self, path: str, patience: float) -> None:
        self.users = 0
        self.patience = patience
        self.database = Database(path, patience=patience)
        self._path = path
        self._begin()

    def renew(self) -> None:
        """Begin anew in a forked child, which must not keep its parent's turn."""
        self.database = self.database.heir()
        self._begin()

    def _begin(self) -> None:
        self._gate = threading.Lock()
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._waiting: set[_Call] = set()
        self._thread: threading.Thread | None = None

    def submit(self, calls: Sequence[_Call]) -> None:
        """Queue some calls for the writer."""
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
        """Answer those who wait, then end the thread and close the file; give up on a thread that hangs."""
        with self._gate:
            thread, calls = self._thread, self._calls
            self._thread, self._calls = None, SimpleQueue()
            calls.put(None)
        if thread is not None:
            thread.join(seconds)
        if thread is None or not thread.is_alive():
            self.database.close()

    def _write(self, calls: SimpleQueue[_Call | None]) -> None:
        """The thread: one transaction after the other."""
        while (call := calls.get()) is not None:
            batch = [call]
            try:
                self.database.transact(partial(_run, batch, calls))
            except Exception as error:
                # Whoever waits by now would meet the same trouble, after as long a wait.
                while further := _further(calls):
                    batch += further
                is_ours = isinstance(error, StoreError | PolicyError)
                message = str(error) if is_ours else f"{self._path} cannot be used: {error!r}."
                for each in batch:
                    each.fail(message, error)
            _ring(batch)

    def wait(self, steps: Steps, clock: Clock) -> list[Any]:
        """Have steps done, and block until they are."""
        calls = [_ThreadCall(chunk, clock) for chunk in _chunks(steps)]
        self.submit(calls)
        try:
            for call in calls:
                if not call.wait(self.patience + _GRACE):
                    self._give_up()
        finally:
            self._end(calls)
        return _answers(calls)

    async def wait_async(self, steps: Steps, clock: Clock) -> list[Any]:
        """Have steps done, and await them."""
        calls = [_TaskCall(chunk, clock) for chunk in _chunks(steps)]
        self.submit(calls)
        try:
            for call in calls:
                if not await call.wait(self.patience + _GRACE):
                    self._give_up()
        finally:
            self._end(calls)
        return _answers(calls)

    def _give_up(self) -> None:
        """Fail all who wait: each of them would wait for the same process."""
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

    def read(self, look: Callable[[Database], Result], clock: Clock, key: str = "") -> Result:
        """Look something up, under `key` for example; if the file is not ready for that, let the writer see to it."""
        try:
            return look(self.database)
        except Unready:
            self.wait([(key, _keep)], clock)
            return look(self.database)

    async def read_async(self, look: Callable[[Database], Result], clock: Clock, key: str = "") -> Result:
        """The same for a task. No thread of the pool waits for the writer: names are resolved in the same pool."""
        try:
            return await in_thread(look, self.database)
        except Unready:
            await self.wait_async([(key, _keep)], clock)
            return await in_thread(look, self.database)


def _run(batch: list[_Call], calls: SimpleQueue[_Call | None], draft: Transaction) -> None:
    """Do the calls of a batch, and take in what else waits while there is time."""
    give_way_at = time.monotonic() + _HOLD
    done = 0
    while done < len(batch):
        if not batch[done].is_over:
            batch[done].run(draft)
        done += 1
        if done == len(batch) and time.monotonic() < give_way_at:
            batch += _further(calls)


def _further(calls: SimpleQueue[_Call | None]) -> list[_Call]:
    """The next call that waits already, if there is one."""
    try:
        call = calls.get_nowait()
    except Empty:
        return []
    if call is None:  # the end: the thread itself has to see it
        calls.put(None)
        return []
    return [call]


def _ring(batch: list[_Call]) -> None:
    """Wake the callers; those of one loop all at once, for that costs a system call."""
    loops: dict[asyncio.AbstractEventLoop, list[_TaskCall]] = {}
    for call in batch:
        if isinstance(call, _TaskCall):
            loops.setdefault(call.loop, []).append(call)
        elif isinstance(call, _ThreadCall):
            call.ring()
    for loop, calls in loops.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            loop.call_soon_threadsafe(_ring_all, calls)


def _ring_all(calls: list[_TaskCall]) -> None:
    for call in calls:
        call.ring()


def _chunks(steps: Steps) -> list[Steps]:
    return [steps[start : start + _CHUNK] for start in range(0, len(steps), _CHUNK)]


def _answers(calls: Sequence[_Call]) -> list[Any]:
    return [answer for call in calls for answer in call.answers()]


def _keep(record: Record | None, now: Now) -> tuple[Record | None, None]:
    return record, None


_writers: dict[str, Writer] = {}
"""The files in use, by their real path: all stores of a process share one writer for each."""

_lock = threading.Lock()


def enter(path: str, patience: float) -> Writer:
    """The writer of a file, for one more user of it."""
    with _lock:
        writer = _writers.get(path) or _writers.setdefault(path, Writer(path, patience))
        writer.users += 1
        return writer


def leave(path: str) -> None:
    """One user less; with the last one, the thread ends and the file is closed."""
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

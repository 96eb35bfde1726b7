"""Pipelines of one event loop to a Redis server: the updates of one loop iteration go out together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from curtsy.core.message import Now
from curtsy.core.record import Record
from curtsy.stores import Step
from curtsy.stores.cas import Attempt, Outcome
from curtsy.stores.redis_server import PATIENCE, Server, aexchange, look, pause_before
from curtsy.stores.redis_url import FAILURES, NoPermission

BATCH = 128
"""Maximum number of keys in one pipeline: all their steps run in one callback, which must not block the loop long."""

FLIGHTS = 4
"""Maximum number of pipelines under way. Later updates go together in the next one."""

Result = TypeVar("Result")
Jobs = list[tuple[Step[Any], asyncio.Future[Any]]]
"""Steps of one key, with the futures of their answers."""


class Pipeline:
    """Connection of one event loop to the server, with the waiting steps of each key and the running pipelines."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._client: Any = None
        self._closers: list[Any] = []
        self._opening = asyncio.Lock()
        self._waiting: dict[str, Jobs] = {}
        self._busy: set[str] = set()
        self._single_flight: set[asyncio.Task[None]] = set()
        self._is_called = False

    async def client(self) -> Any:
        """Return the client, connected and checked. Raises StoreError or PolicyError."""
        async with self._opening:
            if self._client is None:
                await self._open()
        return self._client

    async def _open(self) -> None:
        client, closers = self._server.address.open_async(self._server.timeout)
        try:
            async with asyncio.timeout(self._server.timeout):
                self._server.filters(await client.info(**self._server.everywhere))
        except NoPermission:
            self._server.not_judged()
        except BaseException as error:
            for each in closers:
                await each.aclose()
            if isinstance(error, FAILURES):
                raise self._server.failed(error) from error
            raise
        self._client, self._closers = client, closers

    async def call(self, ask: Callable[[Any], Awaitable[Result]], bounded: bool = True) -> Result:
        """Run `ask` with the client; raise StoreError for an error of redis-py.

        `bounded` applies the server's timeout.
        """
        client = await self.client() if self._client is None else self._client
        try:
            async with asyncio.timeout(self._server.timeout if bounded else None):
                return await ask(client)
        except FAILURES as error:
            raise self._server.failed(error) from error

    def enqueue(self, key: str, step: Step[Any]) -> asyncio.Future[Any]:
        """Queue a step until this loop iteration ends and no other step of its key is under way."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def unless_cancelled(record: Any, now: Now) -> tuple[Record | None, Any]:
            return (record, None) if answer.cancelled() else step(record, now)

        self._waiting.setdefault(key, []).append((unless_cancelled, answer))
        self._call_soon()
        return answer

    def _call_soon(self) -> None:
        if not self._is_called and len(self._single_flight) < FLIGHTS:
            self._is_called = True
            self._loop.call_soon(self._depart)

    def _depart(self) -> None:
        self._is_called = False
        keys = [key for key in self._waiting if key not in self._busy][:BATCH]
        if not keys:
            return
        self._busy.update(keys)
        jobs = {key: self._waiting.pop(key) for key in keys}
        flight = self._loop.create_task(self._fly(jobs))
        self._single_flight.add(flight)
        flight.add_done_callback(self._landed)
        if self._waiting:
            self._call_soon()

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._single_flight.discard(flight)
        if self._waiting:
            self._call_soon()

    async def _fly(self, jobs: dict[str, Jobs]) -> None:
        futures = {
            Attempt(key, [step for step, _ in each]): [answer for _, answer in each] for key, each in jobs.items()
        }

        def deliver(attempt: Attempt) -> None:
            for outcome, answer in zip(attempt.outcomes, futures.pop(attempt), strict=True):
                _settle(answer, outcome)
            self._busy.discard(attempt.key)
            if attempt.key in self._waiting:
                self._call_soon()

        try:
            await self.take(list(futures), deliver)
        except Exception as error:
            for attempt, answers in futures.items():
                # Later steps of the key would wait for the same server in vain.
                later = [answer for _, answer in self._waiting.pop(attempt.key, [])]
                for answer in answers + later:
                    _settle(answer, Outcome(error=error))
        finally:
            for attempt, answers in futures.items():
                self._busy.discard(attempt.key)
                for answer in answers:
                    answer.cancel()  # has an effect only if the loop is being closed

    async def take(self, attempts: list[Attempt], done: Callable[[Attempt], None] = lambda attempt: None) -> None:
        """Send the attempts until each is accepted or has failed; call `done` for each as soon as it is."""
        client = await self.client() if self._client is None else self._client
        deadline = time.monotonic() + PATIENCE * self._server.timeout
        while attempts:
            await self._look_at_marks(client, attempts)
            replies = await self.call(partial(aexchange, self._server.ask(attempts)))
            left = self._server.hear(attempts, replies, deadline)
            for attempt in set(attempts).difference(left):
                done(attempt)
            attempts = left
            if attempts and (pause := pause_before(attempts)):
                await asyncio.sleep(pause)

    async def _look_at_marks(self, client: Any, attempts: list[Attempt]) -> None:
        for each in self._server.looks(client, attempts):
            self._server.swap.marked(each, await self.call(partial(look, each.words)))

    async def close(self) -> None:
        """Wait for the running pipelines, and disconnect."""
        while self._single_flight or self._is_called:
            await asyncio.wait(self._single_flight) if self._single_flight else await asyncio.sleep(0)
        for each in self._closers:
            await each.aclose()


def _settle(answer: asyncio.Future[Any], outcome: Outcome) -> None:
    if answer.done():
        return  # cancelled
    if outcome.error is not None:
        answer.set_exception(outcome.error)
    else:
        answer.set_result(outcome.answer)

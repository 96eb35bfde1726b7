"""Store that machines share: Redis or Valkey, 7.0 or later; one server, Sentinel or Cluster.

Each update is one compare-and-swap (`stores/cas.py`). All times are the server's. A client's clock only measures the
time between two replies.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from curtsy.core.crawl_record import crawl_key
from curtsy.core.errors import PolicyError, RecordTooNew, StoreError
from curtsy.core.host import Host
from curtsy.core.record import Record
from curtsy.core.statistics import stats_key
from curtsy.core.time import Instant, Now
from curtsy.stores.cas import Attempt, Outcome
from curtsy.stores.protocol import Answer, AsyncStore, Loss, Step
from curtsy.stores.redis_server import (
    FAILURES,
    PATIENCE,
    NoPermission,
    Server,
    close_all,
    exchange,
    is_wrong_url,
    look,
    names_of,
    pause_before,
    pipelined,
    reply_of,
    sample_of,
)
from curtsy.stores.survey import HOSTS, Survey, survey_of
from curtsy.system.clock import Clock
from curtsy.system.threads import is_blocking, pause

BATCH = 128
"""Maximum number of keys in one pipeline: all their steps run in one callback, which must not block the loop long."""

SAMPLE = 5_000
"""Number of keys from which the number of all hosts is estimated."""

LISTED = (crawl_key(""), stats_key(""))
"""Prefixes of the keys that are entered in lists: they are few, and may be among millions of hosts."""

LISTED_FOR = 60.0
"""Seconds after which a key is entered again."""

FLIGHTS = 4
"""Maximum number of pipelines under way. Later updates go together in the next one."""

logger = logging.getLogger("curtsy")

Result = TypeVar("Result")
Steps = Sequence[tuple[str, Step[Any]]]
Jobs = list[tuple[Step[Any], asyncio.Future[Any]]]
"""Steps of one key, with the futures of their answers."""


class AsyncRedisStore(AsyncStore):
    """Records on a Redis or Valkey server. Usable after a fork.

    `timeout` is the number of seconds to wait for a connection, and for a reply; None for that of the URL, or 5. A
    write that timed out is not accepted later, because the script refuses a write older than half the timeout. `clock`
    is for tests: its `epoch` replaces the server's time, and keys do not expire.

    The updates of one event loop iteration go out in one pipeline. Each event loop has its own connections, and so have
    threads. `close()` closes those of the current loop, or of all threads.
    """

    is_per_loop = True

    def __init__(
        self, url: str, *, clock: Clock | None = None, prefix: str = "curtsy:", timeout: float | None = None
    ) -> None:
        self._server = Server(url, clock, prefix, timeout)
        self._swap = self._server.swap
        self._connections: dict[asyncio.AbstractEventLoop | None, Connection] = {}
        self._listed: tuple[tuple[str, str], list[str]] = (("", ""), [])
        """Prefix, part and keys of the last list that was read page by page."""
        self._enlisted: dict[str, float] = {}
        """Monotonic second at which each key was last entered in the list of its kind."""
        self._is_closed = False

    @property
    def identity(self) -> str:
        return self._server.identity

    @property
    def losses(self) -> Sequence[Loss]:
        return self._swap.marks.losses

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record atomically by `step`, and return its answer.

        If the task is cancelled after the update was sent, the update may still take effect.
        """
        if not is_blocking():
            queued: Answer = await self._connection().enqueue(key, step)
            if key.startswith(LISTED):
                await self._enlist(key)
            return queued
        attempt = Attempt(key, [step])
        await self._connection().take([attempt])
        [outcome] = attempt.outcomes
        if outcome.error is not None:
            raise outcome.error
        if key.startswith(LISTED):
            await self._enlist(key)
        answer: Answer = outcome.answer
        return answer

    async def _enlist(self, key: str) -> None:
        """Enter a key in the list of its kind; again after LISTED_FOR seconds, because a server may lose the list."""
        now = time.monotonic()
        if now >= self._enlisted.get(key, 0.0) + LISTED_FOR:
            entry = ("SADD", self._swap.list_of(key), self._swap.name(key))
            with contextlib.suppress(StoreError):
                await self._connection().call(partial(pipelined, [entry], is_raised=True))
                self._enlisted[key] = now

    async def update_many(self, steps: Steps) -> list[Any]:
        return await self._connection().run(steps)

    async def read(self, key: str) -> Any:
        name = self._swap.name(key)
        value = await self._connection().call(lambda client: reply_of(client.execute_command("GET", name)))
        return self._swap.record(key, value)

    async def keys(self, prefix: str = "") -> list[str]:
        names = await self._connection().call(partial(names_of, self._swap.pattern(prefix)), bounded=False)
        return sorted(map(self._swap.key, names))

    async def records(self, prefix: str) -> list[tuple[str, Any]]:
        """Return all records whose keys begin with `prefix`, in a few round trips.

        On a server with many keys, those of crawls and statistics are found by their lists.
        """
        call = self._connection().call
        if not prefix.startswith(LISTED) or await call(lambda client: reply_of(client.dbsize())) <= SAMPLE:
            return await self._records(await self.keys(prefix))
        place = self._swap.list_of(prefix)
        [names] = await call(partial(pipelined, [("SMEMBERS", place)], is_raised=True))
        keys = {self._swap.key(name): name for name in names}
        found = await self._records(sorted(key for key in keys if key.startswith(prefix)))
        known = {key for key, _ in found}
        if gone := [name for key, name in keys.items() if key.startswith(prefix) and key not in known]:
            await call(partial(pipelined, [("SREM", place, *gone)]))
        return found

    async def page(self, prefix: str, *, part: str = "", after: str = "", most: int) -> list[tuple[str, Any]]:
        """Return the first `most` records. The keys are read with the first page, and kept for the next ones."""
        if not after or self._listed[0] != (prefix, part):
            pattern = self._swap.pattern(prefix, part)
            names = await self._connection().call(partial(names_of, pattern), bounded=False)
            keys = sorted(map(self._swap.key, names))
            self._listed = (prefix, part), keys
        keys = self._listed[1]
        start = bisect_right(keys, after) if after else 0
        return await self._records(keys[start : start + most])

    async def survey(self, recent: int, troubled: int) -> Survey:
        """Return hosts used last and hosts in trouble; see `AsyncStore.survey`. Of many hosts, `total` is an estimate.

        Of many hosts in a cluster, which has no index, the survey has any hosts.
        """
        call, prefix = self._connection().call, self._swap.name(HOSTS)[:-1]
        names, total, is_exact = await call(partial(sample_of, prefix, SAMPLE), bounded=False)
        if is_exact and total <= recent:
            return survey_of(await self._records([self._swap.key(name) for name in names]), recent, troubled)
        by_use, in_trouble = self._swap.indexes
        commands = [("ZREVRANGE", by_use, 0, recent - 1), ("ZREVRANGE", in_trouble, 0, troubled - 1)]
        used, trouble, count = await call(partial(pipelined, [*commands, ("ZCARD", in_trouble)], is_raised=True))
        chosen = dict.fromkeys([*used, *trouble, *names[: recent - len(used)]])
        found = dict(await self._records([self._swap.key(name) for name in chosen]))
        hosts = {key: host for key, host in found.items() if isinstance(host, Host)}
        if gone := [name for name in trouble if self._swap.key(name) not in found]:  # expired since
            await call(partial(pipelined, [("ZREM", in_trouble, *gone)]))
        return Survey(hosts, total, count - len(gone), is_exact)

    async def _records(self, keys: list[str]) -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            commands = [("GET", self._swap.name(key)) for key in batch]  # in a cluster, MGET does not work
            values = await self._connection().call(partial(pipelined, commands, is_raised=True))
            for key, value in zip(batch, values, strict=True):
                with contextlib.suppress(RecordTooNew):
                    found.append((key, self._swap.record(key, value)))
        return [(key, record) for key, record in found if record is not None]

    async def forget(self, key: str) -> None:
        name = self._swap.name(key)
        await self._connection().call(lambda client: reply_of(client.execute_command("DEL", name)))
        self._swap.forget(key)

    async def now(self) -> Now:
        """Return the server's current time."""
        attempt = Attempt("", [])
        await self._connection().take([attempt])
        return Now(Instant(attempt.at), attempt.at)

    async def close(self) -> None:
        """Wait for the running pipelines, and close the connections. Idempotent."""
        self._is_closed = True
        if connection := self._connections.pop(_loop(), None):
            await connection.close()

    def _connection(self) -> Connection:
        if self._is_closed:
            raise StoreError(f"{self._server.address.shown} was used after close(). Open another store.")
        loop = _loop()
        connection = self._connections.get(loop)
        if connection is None:
            # Drop only the connections of closed loops: after a fork, the parent's loop must stay untouched.
            for each in [each for each in self._connections if each is not None and each.is_closed()]:
                self._connections.pop(each, None)
            connection = self._connections.setdefault(loop, Connection(self._server))
        return connection


def _loop() -> asyncio.AbstractEventLoop | None:
    return None if is_blocking() else asyncio.get_running_loop()


class Connection:
    """Connection of one event loop, or of all threads, to the server.

    For tasks, it holds the waiting steps of each key and the running pipelines.
    """

    def __init__(self, server: Server, on_connect: Callable[[], None] | None = None) -> None:
        """Create it, closed. For tasks, `on_connect` is called for each connection of the client, but in a cluster."""
        self._server = server
        self._on_connect = on_connect
        self._client: Any = None
        self._closers: list[Any] = []
        self._opening = asyncio.Lock()
        self._waiting: dict[str, Jobs] = {}
        self._busy: set[str] = set()
        self._flights: set[asyncio.Task[None]] = set()
        self._is_called = False

    async def client(self) -> Any:
        """Return the client, connected and checked. Raises StoreError or PolicyError."""
        if self._client is not None:
            return self._client
        if is_blocking():  # without a lock, which a fork could leave locked: two threads may both connect
            return await self._open()
        async with self._opening:
            return self._client or await self._open()

    async def _open(self) -> Any:
        closers: list[Any] = []
        try:
            client, closers = self._server.address.open(self._server.timeout, self._on_connect)
            async with self._limit():
                self._server.check(await reply_of(client.info(**self._server.everywhere)))
        except NoPermission:  # a managed server hides its settings
            shown = self._server.address.shown
            logger.debug("%s does not let us see its settings: not checked for version and eviction", shown)
        except BaseException as error:
            await close_all(closers)
            if not isinstance(error, FAILURES):
                raise
            failed = self._server.failed(error)
            if is_wrong_url(error):  # no outage: the next attempt would fail too
                raise PolicyError(str(failed)) from error
            raise failed from error
        if self._client is None:
            self._client, self._closers = client, closers
        return client  # if another thread was faster, this client is used once

    def _limit(self, bounded: bool = True) -> contextlib.AbstractAsyncContextManager[Any]:
        """Return a context that applies the server's timeout; the clients of threads have their own."""
        return asyncio.timeout(self._server.timeout) if bounded and not is_blocking() else contextlib.nullcontext()

    async def call(self, ask: Callable[[Any], Awaitable[Result]], bounded: bool = True) -> Result:
        """Run `ask` with the client; raise StoreError for an error of redis-py.

        `bounded` applies the server's timeout.
        """
        client = self._client or await self.client()
        try:
            async with self._limit(bounded):
                return await ask(client)
        except FAILURES as error:
            raise self._server.failed(error) from error

    async def run(self, steps: Steps) -> list[Any]:
        """Run steps and return their answers; raise the first exception among them after all are done."""
        if is_blocking():
            attempts: dict[str, Attempt] = {}
            for key, step in steps:
                attempts.setdefault(key, Attempt(key, [])).steps.append(step)
            waiting = list(attempts.values())
            for start in range(0, len(waiting), BATCH):
                await self.take(waiting[start : start + BATCH])
            for outcome in (each for attempt in waiting for each in attempt.outcomes):
                if outcome.error is not None:
                    raise outcome.error
            answers = {key: iter(attempt.outcomes) for key, attempt in attempts.items()}
            return [next(answers[key]).answer for key, _ in steps]
        futures = [self.enqueue(key, step) for key, step in steps]
        await asyncio.gather(*futures, return_exceptions=True)
        return [future.result() for future in futures]

    def enqueue(self, key: str, step: Step[Any]) -> asyncio.Future[Any]:
        """Queue a step until this loop iteration ends and no other step of its key is under way."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def unless_cancelled(record: Any, now: Now) -> tuple[Record | None, Any]:
            return (record, None) if answer.cancelled() else step(record, now)

        self._waiting.setdefault(key, []).append((unless_cancelled, answer))
        self._call_soon()
        return answer

    def _call_soon(self) -> None:
        if self._waiting and not self._is_called and len(self._flights) < FLIGHTS:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._depart)

    def _depart(self) -> None:
        self._is_called = False
        keys = [key for key in self._waiting if key not in self._busy][:BATCH]
        if not keys:
            return
        self._busy.update(keys)
        jobs = {key: self._waiting.pop(key) for key in keys}
        flight = asyncio.get_running_loop().create_task(self._fly(jobs))
        self._flights.add(flight)
        flight.add_done_callback(self._landed)
        self._call_soon()

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        self._call_soon()

    async def _fly(self, jobs: dict[str, Jobs]) -> None:
        futures = {
            Attempt(key, [step for step, _ in each]): [answer for _, answer in each] for key, each in jobs.items()
        }

        def deliver(attempt: Attempt) -> None:
            for outcome, answer in zip(attempt.outcomes, futures.pop(attempt), strict=True):
                _settle(answer, outcome)
            self._busy.discard(attempt.key)
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
        client = self._client or await self.client()
        deadline = time.monotonic() + PATIENCE * self._server.timeout
        while attempts:
            for each in self._server.looks(client, attempts):
                self._server.swap.marked(each, await self.call(partial(look, each.words)))
            asked = [self._server.swap.ask(attempt) for attempt in attempts]
            replies = await self.call(partial(exchange, asked, self._server.entries()))
            left = self._server.hear(attempts, replies, deadline)
            for attempt in set(attempts).difference(left):
                done(attempt)
            attempts = left
            if attempts and (seconds := pause_before(attempts)):
                await pause(seconds)

    async def close(self) -> None:
        """Wait for the running pipelines, and disconnect."""
        while self._flights or self._is_called:
            await asyncio.wait(self._flights) if self._flights else await asyncio.sleep(0)
        if self._client is not None and (entries := self._server.entries(is_last=True)):
            with contextlib.suppress(StoreError):
                await self.call(partial(pipelined, entries))
        await close_all(self._closers)


def _settle(answer: asyncio.Future[Any], outcome: Outcome) -> None:
    if answer.done():
        return  # cancelled
    if outcome.error is not None:
        answer.set_exception(outcome.error)
    else:
        answer.set_result(outcome.answer)

"""Store that machines share: Redis or Valkey, 7.0 or later; one server, Sentinel or Cluster.

Each update is one compare-and-swap (`stores/cas.py`). All times are the server's. A client's clock only measures the
time between two replies.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from curtsy.core.message import Instant, Now
from curtsy.stores import Answer, Loss, Step
from curtsy.stores.cas import Attempt, Outcome
from curtsy.stores.pipeline import BATCH, Pipeline
from curtsy.stores.redis_server import PATIENCE, Server, exchange, look, pause_before
from curtsy.stores.redis_url import FAILURES, NoPermission
from curtsy.system.clock import Clock

Result = TypeVar("Result")


class RedisStore:
    """Records on a Redis or Valkey server. Thread-safe, and usable after a fork.

    `timeout` is the number of seconds to wait for a connection, and for a reply. A write that timed out is not
    accepted later, because the script refuses a write older than half the timeout. `clock` is for tests: its `epoch`
    replaces the server's time, and keys do not expire.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, prefix: str = "curtsy:", timeout: float = 1.0) -> None:
        self._server = Server(url, clock, prefix, timeout)
        self._client: Any = None
        self._closers: list[Any] = []
        self._is_closed = False

    @property
    def identity(self) -> str:
        """Text that identifies the records; see `Store.identity`."""
        return self._server.identity

    @property
    def losses(self) -> list[Loss]:
        """Losses detected on the server."""
        return self._server.swap.marks.losses

    def check(self) -> None:
        """Connect, and raise PolicyError for a server that is too old or evicts keys.

        Without this, the first call does it.
        """
        self._connected()

    def _connected(self) -> Any:
        client = self._client
        if client is not None:
            return client
        if self._is_closed:
            raise self._server.closed()
        try:
            client, closers = self._server.address.open(self._server.timeout)
            try:
                self._server.filters(client.info(**self._server.everywhere))
            except NoPermission:
                self._server.not_judged()
            except BaseException:
                for each in closers:
                    each.close()
                raise
        except FAILURES as error:
            raise self._server.failed(error) from error
        if self._client is None:
            self._client, self._closers = client, closers
        return client  # if another thread was faster, this client is used once

    def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record by `step`, and return its answer."""
        attempt = Attempt(key, [step])
        self._take([attempt])
        answer: Answer = _answers(attempt.outcomes)[0]
        return answer

    def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates by pipelines; see `Store.update_many`."""
        attempts: dict[str, Attempt] = {}
        for key, step in steps:
            attempts.setdefault(key, Attempt(key, [])).steps.append(step)
        waiting = list(attempts.values())
        for start in range(0, len(waiting), BATCH):
            self._take(waiting[start : start + BATCH])
        outcomes = {key: iter(attempt.outcomes) for key, attempt in attempts.items()}
        return _answers(next(outcomes[key]) for key, _ in steps)

    def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        swap = self._server.swap
        return swap.record(key, self._call(lambda client: client.execute_command("GET", swap.name(key))))

    def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        swap = self._server.swap
        names = self._call(lambda client: set(client.scan_iter(match=swap.pattern(prefix), count=1000)))
        return sorted(map(swap.key, names))

    def records(self, prefix: str) -> list[tuple[str, Any]]:
        """Return all records whose keys begin with `prefix`, in a few round trips; see `read_all`."""
        keys, found, swap = self.keys(prefix), [], self._server.swap
        for start in range(0, len(keys), BATCH):
            batch = keys[start : start + BATCH]
            values = self._call(partial(_values, [swap.name(key) for key in batch]))
            found += [(key, swap.record(key, value)) for key, value in zip(batch, values, strict=True)]
        return [(key, record) for key, record in found if record is not None]

    def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        swap = self._server.swap
        self._call(lambda client: client.execute_command("DEL", swap.name(key)))
        swap.forget(key)

    def now(self) -> Now:
        """Return the server's current time."""
        attempt = Attempt("", [])
        self._take([attempt])
        return Now(Instant(attempt.at), attempt.at)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._is_closed = True
        closers, self._closers, self._client = self._closers, [], None
        for each in closers:
            each.close()

    def _call(self, ask: Callable[[Any], Result]) -> Result:
        client = self._connected()
        try:
            return ask(client)
        except FAILURES as error:
            raise self._server.failed(error) from error

    def _look_at_marks(self, attempts: list[Attempt]) -> None:
        for each in self._server.looks(self._connected(), attempts):
            self._server.swap.marked(each, self._call(partial(look, each.words)))

    def _take(self, attempts: list[Attempt]) -> None:
        """Send the attempts until each is accepted or has failed."""
        deadline = time.monotonic() + PATIENCE * self._server.timeout
        while attempts:
            self._look_at_marks(attempts)
            words = self._server.ask(attempts)
            attempts = self._server.hear(attempts, self._call(partial(exchange, words)), deadline)
            if attempts and (pause := pause_before(attempts)):
                time.sleep(pause)


class AsyncRedisStore:
    """Async variant of `RedisStore`. The updates of one event loop iteration go out in one pipeline.

    It works in several event loops, each with its own connections. `close()` closes those of the current loop.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, prefix: str = "curtsy:", timeout: float = 1.0) -> None:
        self._server = Server(url, clock, prefix, timeout)
        self._lines: dict[asyncio.AbstractEventLoop, Pipeline] = {}
        self._is_closed = False

    @property
    def identity(self) -> str:
        """Text that identifies the records; see `Store.identity`."""
        return self._server.identity

    @property
    def losses(self) -> list[Loss]:
        """Losses detected on the server."""
        return self._server.swap.marks.losses

    async def check(self) -> None:
        """Connect, and raise PolicyError for a server that is too old or evicts keys.

        Without this, the first call does it.
        """
        await self._line().client()

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Change one record atomically by `step`, and return its answer.

        If the task is cancelled after the update was sent, the update may still take effect.
        """
        answer: Answer = await self._line().enqueue(key, step)
        return answer

    async def update_many(self, steps: Sequence[tuple[str, Step[Any]]]) -> list[Any]:
        """Do several updates; see `Store.update_many`."""
        line = self._line()
        answers = await asyncio.gather(*(line.enqueue(key, step) for key, step in steps), return_exceptions=True)
        return _answers(Outcome(each, each if isinstance(each, Exception) else None) for each in answers)

    async def read(self, key: str) -> Any:
        """Return the record under `key`, or None."""
        swap = self._server.swap
        return swap.record(key, await self._line().call(lambda client: client.execute_command("GET", swap.name(key))))

    async def keys(self, prefix: str = "") -> list[str]:
        """Return all keys that begin with `prefix`, sorted."""
        swap = self._server.swap

        async def scan(client: Any) -> set[bytes]:
            return {name async for name in client.scan_iter(match=swap.pattern(prefix), count=1000)}

        return sorted(map(swap.key, await self._line().call(scan, bounded=False)))

    async def forget(self, key: str) -> None:
        """Remove the record under `key`, if present."""
        swap = self._server.swap
        await self._line().call(lambda client: client.execute_command("DEL", swap.name(key)))
        swap.forget(key)

    async def now(self) -> Now:
        """Return the server's current time."""
        attempt = Attempt("", [])
        await self._line().take([attempt])
        return Now(Instant(attempt.at), attempt.at)

    async def close(self) -> None:
        """Wait for the running pipelines, and close the connections. Idempotent."""
        self._is_closed = True
        if line := self._lines.pop(asyncio.get_running_loop(), None):
            await line.close()

    def _line(self) -> Pipeline:
        if self._is_closed:
            raise self._server.closed()
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            # Drop only the pipelines of closed loops: after a fork, the parent's loop must stay untouched.
            self._lines = {each: line for each, line in self._lines.items() if not each.is_closed()}
            line = self._lines[loop] = Pipeline(self._server, loop)
        return line


def _values(names: list[bytes], client: Any) -> list[bytes | None]:
    """Return the value of each name. MGET does not work in a cluster, where they are in many slots."""
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.get(name)
    values: list[bytes | None] = pipeline.execute()
    return values


def _answers(outcomes: Iterable[Outcome]) -> list[Any]:
    """Return the answers, or raise the first error among the outcomes."""
    outcomes = list(outcomes)
    for outcome in outcomes:
        if outcome.error is not None:
            raise outcome.error
    return [outcome.answer for outcome in outcomes]

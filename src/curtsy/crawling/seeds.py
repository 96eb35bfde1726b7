"""Seeds: the start URLs of a crawl, read while it runs, and their way into the frontier (Feeder).

The first seeds of a collection are read at once. Any other iterable may block (a pipe, a database query). So a thread
reads it, and the rest of a collection. A task reads an async iterable. Both read at most AHEAD URLs in advance. So
limits and signals work while seeds are read, and a million seeds need no more memory than a thousand.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Iterator
from itertools import islice

from curtsy.core.errors import PolicyError, Reason
from curtsy.core.url import MAX_URL, InvalidUrl, Url, parse_url, with_scheme
from curtsy.crawling.filters import Filters
from curtsy.crawling.frontier.protocol import AsyncFrontier, Found
from curtsy.crawling.reader import SEED_PRIORITY
from curtsy.crawling.worker_pool import WorkerPool
from curtsy.engine.arguments import wrong
from curtsy.engine.session import Session

HEAD = 1000
"""Seeds checked before a crawl begins: an invalid one is an error. Later invalid ones are skipped."""

STEP = 250
"""Seeds parsed in one turn of the event loop."""

AHEAD = 2000
"""Maximum seeds read in advance."""

SETTLED = 0.25
"""Seconds to wait for more seeds of a pipe after the first one."""

Given = str | Iterable[str] | AsyncIterable[str]
"""Accepted types of seeds."""


class Seeds:
    """Start URLs of a crawl. `take` never blocks; the `ring` given to `start` is called when seeds are available."""

    def __init__(self, given: Given) -> None:
        if isinstance(given, bytes) or not isinstance(given, str | Iterable | AsyncIterable):
            raise wrong("seeds", given, "a URL as text, or several, such as a list or a generator")
        self.head: tuple[str, ...] = ()
        """First seeds, canonical, as far as they are known."""
        self._ready: deque[str] = deque()
        self._place = 0
        self._error: BaseException | None = None
        self._has_ended = self._is_closed = False
        self._change = threading.Condition()
        self._ring: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()
        if isinstance(given, str):
            given = [given]
        self._source = given if isinstance(given, AsyncIterable) else iter(given)
        if isinstance(given, Collection) and not isinstance(self._source, AsyncIterable):
            self._see(list(islice(self._source, HEAD)))
            self._has_ended = len(given) <= HEAD

    def _see(self, first: list[str]) -> None:
        """Check the first seeds. Raises PolicyError."""
        if not first:
            raise no_seeds()
        for text in first:
            self._check(text)
        self.head = tuple(dict.fromkeys(canonical(text) for text in first))
        self._ready = deque(first)

    def _check(self, text: object) -> None:
        if not isinstance(text, str):
            raise wrong(f"seeds[{self._place}]", text, "a URL as text, such as 'https://example.org/'")
        self._place += 1

    @property
    def is_over(self) -> bool:
        """Return whether all seeds were taken."""
        return self._has_ended and not self._ready and self._error is None

    @property
    def is_ready(self) -> bool:
        """Return whether seeds or an error can be taken."""
        return bool(self._ready) or self._error is not None

    def start(self, ring: Callable[[], None]) -> None:
        """Start to read. `ring` is called, from any thread, when seeds are available."""
        self._ring = ring
        if self._has_ended or self._thread is not None or self._task is not None:
            return
        if isinstance(self._source, AsyncIterable):
            self._task = asyncio.ensure_future(self._read_async(self._source))
        else:
            self._thread = threading.Thread(target=self._read, args=(self._source,), name="curtsy-seeds", daemon=True)
            self._thread.start()

    def peek(self, seconds: float | None = None) -> None:
        """Wait for the first seeds of an iterable and check them. Blocks, so not for an event loop.

        `seconds` bounds the wait; None for no limit. Raises PolicyError if the iterable is empty or a seed is invalid.
        """
        if self.head:
            return
        self.start(self._ring)
        with self._change:
            self._change.wait_for(lambda: self._ready or self._has_ended, seconds)
            until = time.monotonic() + SETTLED
            while self._ready and len(self._ready) < HEAD and not self._has_ended:
                if not self._change.wait(max(0.0, until - time.monotonic())):
                    break
            if self._error is not None:
                raise self._error
            if self._ready or self._has_ended:
                first = list(self._ready)
                self._see(first[:HEAD])
                self._ready.extend(first[HEAD:])

    def take(self, most: int) -> list[str]:
        """Return the next available seeds, as given. Raises the error of the iterable."""
        with self._change:
            taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._change.notify_all()
        self._taken.set()
        if not taken and self._error is not None:
            error, self._error = self._error, None
            raise error
        return taken

    def _read(self, source: Iterator[str]) -> None:
        try:
            for text in source:
                self._check(text)
                with self._change:
                    self._change.wait_for(lambda: len(self._ready) < AHEAD or self._is_closed)
                    if self._is_closed:
                        return
                    self._put(text)
        except BaseException as error:  # `take` raises it
            self._error = error
        finally:
            self._end()

    async def _read_async(self, source: AsyncIterable[str]) -> None:
        try:
            async for text in source:
                self._check(text)
                if len(self._ready) >= AHEAD:
                    self._taken.clear()
                    await self._taken.wait()
                with self._change:
                    self._put(text)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._error = error
        finally:
            self._end()

    def _put(self, text: str) -> None:
        self._ready.append(text)
        if len(self._ready) in (1, HEAD):
            self._change.notify_all()
            self._ring()

    def _end(self) -> None:
        with self._change:
            self._has_ended = True
            self._change.notify_all()
        self._ring()

    async def close(self) -> None:
        """Stop reading. A thread that blocks in its iterable ends at the next URL."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class Feeder:
    """Way of the seeds into the frontier of a crawl.

    A kill on the way repeats it safely, because the frontier queues each URL once.
    """

    def __init__(
        self,
        seeds: Seeds,
        session: Session,
        filters: Filters,
        frontier: AsyncFrontier,
        leave: Callable[[str, Reason, str], None],
        pool: WorkerPool | None,
    ) -> None:
        """Create a feeder. `leave` reports a seed that is skipped."""
        self._seeds = seeds
        self._session = session
        self._filters = filters
        self._frontier = frontier
        self._leave = leave
        self._pool = pool
        self._taken: list[str] = []
        """Canonical seeds that were taken but are not queued yet."""

    @property
    def is_ready(self) -> bool:
        """Return whether there are seeds to queue, or an error of their source."""
        return bool(self._taken) or self._seeds.is_ready

    async def take(self, most: int) -> list[str]:
        """Return the canonical URLs of the next seeds. Raises the error of their source."""
        while len(self._taken) < most and (given := self._seeds.take(STEP)):
            self._taken += [url for seed in given if (url := self._canonical(seed)) is not None]
            await asyncio.sleep(0)
        return self._taken

    def _canonical(self, seed: str) -> str | None:
        """Return the canonical URL of a seed. An invalid seed is reported as skipped, and the result is None."""
        try:
            return canonical(seed)
        except PolicyError as error:
            self._leave(seed[:MAX_URL], Reason.INVALID_URL, str(error))
            return None

    async def put(self) -> None:
        """Queue the seeds that were taken, and extend the scope by them.

        A forbidden seed stays out of the frontier, because settings may change.
        """
        wanted, new = [], []
        for seed in self._taken:
            url = parse_url(seed)
            assert isinstance(url, Url)
            if (refusal := self._session.refusal(url)) is not None:
                self._leave(seed, *refusal)
                continue
            wanted.append(seed)
            if self._filters.scope.admit(seed):
                new.append(seed)
        self._taken = wanted
        if new and self._pool is not None:
            self._pool.admit(new)
        if wanted:
            await self._frontier.add(Found(wanted, priority=SEED_PRIORITY))
        self._taken = []


def no_seeds() -> PolicyError:
    """Return the error for a crawl without seeds."""
    return PolicyError("There is nothing to crawl. Give at least one URL to start from.")


def canonical(seed: str) -> str:
    """Return the canonical URL of a seed. A bare host means https. Raises PolicyError."""
    url = parse_url(with_scheme(seed))
    if isinstance(url, InvalidUrl):
        raise PolicyError(f"{seed!r} cannot be requested: {url.why}. Give a URL such as https://example.org/.")
    return url.text

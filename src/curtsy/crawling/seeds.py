"""Seeds: the URLs that a crawl begins with, read while it runs.

A list is read where it is. Another iterable may block (a pipe, a generator that asks a database), so it is read in a
thread of its own, and an async one in a task; both are never more than a few thousand URLs ahead. So limits and signals
hold while seeds are still being read, and a million of them take no more memory than a thousand.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterable, Callable, Collection, Iterable, Iterator
from itertools import islice

from curtsy.core.errors import PolicyError
from curtsy.core.message import InvalidUrl, parse_url
from curtsy.engine.arguments import wrong

HEAD = 1000
"""Seeds that are looked at before a crawl begins: one of them that is no URL is an error. Later ones are skipped."""

AHEAD = 2000
"""Seeds that are read before they are wanted."""

SETTLED = 0.25
"""Seconds after which a pipe is not waited for any more, once a first URL has come."""

Given = str | Iterable[str] | AsyncIterable[str]
"""What may be given as seeds."""


class Seeds:
    """Where a crawl begins. `take` never blocks; the `ring` given to `start` says when there is something to take."""

    def __init__(self, given: Given) -> None:
        if isinstance(given, bytes) or not isinstance(given, str | Iterable | AsyncIterable):
            raise wrong("seeds", given, "a URL as text, or several, such as a list or a generator")
        self.head: tuple[str, ...] = ()
        """The first ones, canonical, as far as they are known."""
        self._ready: deque[str] = deque()
        self._place = 0
        self._error: BaseException | None = None
        self._has_ended = self._is_closed = False
        self._source = given
        self._here: Iterator[str] | None = None
        """What is read without blocking."""
        self._change = threading.Condition()
        self._ring: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None
        self._taken = asyncio.Event()
        if isinstance(given, str):
            given = [given]
        if isinstance(given, Collection):
            self._here = iter(given)
            self._see(list(islice(self._here, HEAD)))
            self._has_ended = len(given) <= HEAD

    def _see(self, first: list[str]) -> None:
        """Check the first ones. Raises PolicyError."""
        if not first:
            raise PolicyError("There is nothing to crawl. Give at least one URL to start from.")
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
        """Whether all were taken."""
        return self._has_ended and not self._ready and self._error is None

    @property
    def is_ready(self) -> bool:
        """Whether some can be taken."""
        return bool(self._ready) or self._error is not None or (self._here is not None and not self._has_ended)

    def start(self, ring: Callable[[], None]) -> None:
        """Begin to read; `ring` is called, from any thread, when there is something to take."""
        self._ring = ring
        if self._here is not None or self._thread is not None or self._task is not None:
            return
        if isinstance(self._source, AsyncIterable):
            self._task = asyncio.ensure_future(self._read_async(self._source))
        else:
            self._thread = threading.Thread(target=self._read, name="curtsy-seeds", daemon=True)
            self._thread.start()

    def peek(self, seconds: float | None = None) -> None:
        """Wait for the first ones of an iterable, for so long at most, and check them. Raises PolicyError if there are
        none, or if one is wrong. Not for an event loop.
        """
        if self._here is not None:
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
        """The next ones that are there, as they were given. Raises what the iterable has raised."""
        with self._change:
            taken = [self._ready.popleft() for _ in range(min(most, len(self._ready)))]
            self._change.notify_all()
        self._taken.set()
        if self._here is not None and len(taken) < most and not self._has_ended:
            more = list(islice(self._here, most - len(taken)))
            self._has_ended = len(more) < most - len(taken)
            for text in more:
                self._check(text)
            taken += more
        if not taken and self._error is not None:
            error, self._error = self._error, None
            raise error
        return taken

    def _read(self) -> None:
        assert isinstance(self._source, Iterable)
        try:
            for text in self._source:
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
        """Read nothing more. An iterable that blocks is left to its thread, which ends with its next URL."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def canonical(seed: str) -> str:
    """A seed as `parse_url` makes it; a bare host is taken for its front page, over TLS. Raises PolicyError."""
    is_bare = "://" not in seed
    url = parse_url(f"https://{seed}" if is_bare else seed)
    if isinstance(url, InvalidUrl):
        raise PolicyError(f"{seed!r} cannot be asked for: {url.why}. Give a URL such as https://example.org/.")
    if is_bare and (url.port != 443 or url.host == "localhost"):  # where a guess would often be wrong
        raise PolicyError(
            f"{seed!r} cannot be asked for: it has no scheme. Write http:// before it, or https:// if it has TLS."
        )
    return url.text

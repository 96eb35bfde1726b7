"""The everyday way in for tasks: `AsyncClient`, and `fetch_url()` for one line."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from curtsy.alarm import Alarm, FakeAlarm, SystemAlarm
from curtsy.clock import FakeClock
from curtsy.cookies import Cookies
from curtsy.core import explain
from curtsy.core.cache import Fields
from curtsy.core.effects import Ask
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.flow import closed, fetch, refused_by_settings
from curtsy.core.heeding import rules_for
from curtsy.core.journey import NO_TIME, Journey, Refusal
from curtsy.core.message import NO_HEADERS, SECOND, Failure, Headers, InvalidUrl, Request, Url, parse_url
from curtsy.core.policy import Policies, number, rule, whole
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.core.rules import Rules
from curtsy.core.secrets import mask_url
from curtsy.download import GIB, DownloadResult, Part
from curtsy.drive import AsyncDriver
from curtsy.gate import AsyncGate
from curtsy.http import AiohttpSender, Sender
from curtsy.log import LibraryLogger, library_logger
from curtsy.settings import CacheMode, names_contact
from curtsy.settings.live import LiveSettings
from curtsy.stores import AsyncStore, open_async_store
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore
from curtsy.stores.pages import PageCache
from curtsy.surroundings import Passage, Surroundings, rules_key
from curtsy.tally import Tally
from curtsy.watch.publishing import EVERY, Publisher
from curtsy.watch.reporting import Reporter
from curtsy.watch.rhythm import Rhythm
from curtsy.watch.statistics import StatisticsSnapshot

_log: LibraryLogger = library_logger("client")

T = TypeVar("T")

MOST_AT_ONCE = 1000
"""Fetches that `fetch_many` has under way; what waits in a host's line is one of them."""

_WORDS = {
    Reason.ROBOTS_DISALLOWED.value: "Blocked by robots.txt",
    Reason.DOMAIN_BUDGET_EXCEEDED.value: "Domain daily budget exceeded",
}

UNBOUNDED = 2**62
"""Bytes: more than any disk has."""

END: Any = object()


def _always(result: object) -> bool:
    return True


def _never(ask: Ask) -> bool:
    return False


def many(urls: Iterable[str]) -> Iterable[str]:
    """URLs, but not one: a text would be taken for its letters."""
    if isinstance(urls, str | bytes):
        raise PolicyError(
            f"urls = {mask_url(str(urls))!r} must be several URLs, not one. Put it in a list, or use fetch()."
        )
    return urls


class _Flight:
    """Work under way in the task that asked first, and the others that wait for what comes of it."""

    __slots__ = ("_waiting", "is_closing", "task", "was_cancelling")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.was_cancelling = task.cancelling()
        self.is_closing = False
        self._waiting: list[asyncio.Future[tuple[bool, Any]]] = []

    def end(self) -> asyncio.Future[tuple[bool, Any]]:
        """Its end, to be waited for: whether it came to it by itself, and what came of it."""
        future: asyncio.Future[tuple[bool, Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def land(self, is_whole: bool, result: Any = None) -> None:
        """Tell those who wait."""
        for future in self._waiting:
            if not future.done():
                future.set_result((is_whole, result))

    def close(self) -> None:
        """End it before its time: the client is being closed."""
        self.is_closing = True
        self.task.cancel()

    def was_closed(self) -> bool:
        """Whether that is what its cancellation meant, and not that its task is to end (as in `asyncio.timeout`)."""
        return self.is_closing and self.task.uncancel() <= self.was_cancelling


class AsyncClient:
    """Fetches politely, for tasks. Ten of them or ten thousand may share one.

    Settings come from files and environment; what is given here goes before them, and any key of the settings'
    reference may be. `store` is a URL such as `redis://host`, or a store; `cache` a folder, a cache, or False for none.
    A kept page that its site lets be used while a new one is asked for is given out at once, and renewed afterwards if
    the client stays open; without `stale_while_revalidate` it is renewed first. `connections` is how many requests may
    be in flight over all hosts. With `cookies`, they are kept as long as the client, each for the host that set it.
    `on_record` is called with the record of each fetch. `clock` may be a
    `FakeClock`: then waits take no time.
    """

    def __init__(
        self,
        *,
        preset: str | None = None,
        config: str | os.PathLike[str] | None = None,
        store: str | AsyncStore | MemoryStore | None = None,
        cache: str | os.PathLike[str] | PageCache | bool | None = None,
        cache_mode: CacheMode | None = None,
        stale_if_error: float = 0.0,
        stale_while_revalidate: bool = True,
        user_agent: str | None = None,
        allow_private: bool | None = None,
        respect_robots: bool | None = None,
        max_retries: int | None = None,
        deadline: float | None = None,
        on_record: Callable[[FetchRecord], None] | None = None,
        proxy: str | None = None,
        verify: bool | str | os.PathLike[str] | ssl.SSLContext = True,
        cookies: bool = False,
        connections: int = 100,
        sender: Sender | None = None,
        clock: FakeClock | None = None,
        alarm: Alarm | None = None,
        **settings: Any,
    ) -> None:
        named = {
            "user_agent": user_agent,
            "allow_private": allow_private,
            "respect_robots": respect_robots,
            "cache_mode": cache_mode,
            "store": store if isinstance(store, str) else None,
        }
        given = settings | {name: value for name, value in named.items() if value is not None}
        if max_retries is not None:
            whole("max_retries", max_retries, 0)
        whole("connections", connections, 1)
        number("stale_if_error", stale_if_error)
        self._settings = LiveSettings(config=config, preset=preset, **given)
        for warning in self._settings.current.warnings:
            _log.warning(warning)
        self._deadline = None if deadline is None else number("deadline", deadline)
        self._on_record = on_record
        self._store = self._open_store(store, clock)
        self._owns_store = store is None or isinstance(store, str)
        self._alarm = alarm or (FakeAlarm(clock) if clock is not None else SystemAlarm())
        self.gate = AsyncGate(self._store, alarm=self._alarm)
        if isinstance(self._alarm, FakeAlarm):
            self._alarm.quiet = lambda: self.gate.lines.out == 0
        self._owns_cache = cache is None or isinstance(cache, bool | str | os.PathLike)
        mode = self._settings.current.cache_mode
        self._cache = self._open_cache(cache, mode)
        self._sender = sender or AiohttpSender(
            verify=Path(verify) if isinstance(verify, os.PathLike) else verify,
            proxy=proxy,
            use_environment=True,
            connections=connections,
            idle=2 * connections,
        )
        epoch = time.time if clock is None else lambda: clock.now().epoch / SECOND
        self.tally = Tally(epoch=epoch)
        self.gate.tripped = lambda key: self.tally.count_trip(key.removeprefix("host:"))
        self._around = Surroundings(
            settings=lambda: self._settings.check().policies,
            now=self._alarm.now,
            epoch=epoch,
            cache=self._cache,
            cache_mode="normal" if mode == "off" else mode,
            stale_if_error=stale_if_error,
            max_retries=max_retries,
            told=self._told,
        )
        if cookies:
            self._around.cookies = Cookies(self._around.epoch)
        later = self._later if stale_while_revalidate else _never
        self._driver = AsyncDriver(self._around, self._store, self.gate, self._sender, later)
        self._renewing = AsyncDriver(
            replace(self._around, cache_mode="revalidate"), self._store, self.gate, self._sender
        )
        # Nobody else can read what is in memory, so it is not told there.
        self._publisher = None if self.gate.is_immediate else Publisher(self.tally, self._store)
        self._rhythms = self._watching(self._settings.current.stats_every)
        self._flights: dict[object, _Flight] = {}
        self._renewals: dict[str, asyncio.Task[FetchResult]] = {}
        self._paths: set[Path] = set()
        self._is_closed = False
        if not names_contact(self.policies.user_agent):
            _log.warning(
                "The user agent names no contact; add a page or an address where a site's owner can reach you",
                user_agent=self.policies.user_agent,
            )

    def _open_store(self, store: str | AsyncStore | MemoryStore | None, clock: FakeClock | None) -> AsyncStore:
        if isinstance(store, MemoryStore):
            return AsyncMemoryStore(store)
        if store is None and clock is not None:
            return AsyncMemoryStore(MemoryStore(clock))
        if store is None or isinstance(store, str):
            current = self._settings.current
            return open_async_store(current.store, clock=clock, share=current.outage_share)
        return store

    def _open_cache(self, cache: str | os.PathLike[str] | PageCache | bool | None, mode: str) -> PageCache | None:
        if cache is False or mode == "off":
            return None
        if cache is None or cache is True:
            from platformdirs import user_cache_path

            cache = self._settings.current.cache_dir or user_cache_path("curtsy", appauthor=False)
        if isinstance(cache, str | os.PathLike):
            size = self._settings.current.cache_size
            path = Path(cache)
            if path.suffix == ".sqlite":
                from curtsy.stores.packed import DELAY, PackedCache

                return PackedCache(path, max_size=UNBOUNDED if size is None else size, delay=DELAY)
            from curtsy.stores.disk import DiskCache

            return DiskCache(path, max_size=UNBOUNDED if size is None else size)
        return cache

    def _watching(self, stats_every: float | None) -> tuple[Rhythm, ...]:
        """What is done with the counts now and then, while there is something to count."""
        rhythms = [] if self._publisher is None else [Rhythm(self._publisher.publish, EVERY)]
        if stats_every is not None:
            rhythms.append(Rhythm(Reporter(self.tally, self._store, lambda: self.policies).report, stats_every))
        return tuple(rhythms)

    @property
    def policies(self) -> Policies:
        """The policies in force: files that have changed are read again."""
        return self._around.policies

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        deadline: float | None = None,
        repeatable: bool | None = None,
    ) -> FetchResult:
        """Fetch one URL, when its turn comes. Never raises for what the web does: look at `ok` and `reason`.

        `deadline` is for all of it, in seconds; one that cannot be met is refused at once. `repeatable` says that a
        request which is not GET or HEAD may be sent again. Tasks that ask for the same page at once share one fetch.
        """
        if not isinstance(method, str):
            raise rule("method", method, "text, such as GET")
        if body is not None and not isinstance(body, bytes):
            raise rule("body", type(body).__name__, "bytes. Encode text first")
        if deadline is not None and not isinstance(deadline, int | float):
            raise rule("deadline", deadline, "a number of seconds")
        ask = Ask(
            url,
            method.upper(),
            _checked(headers),
            body,
            self._deadline if deadline is None else deadline,
            repeatable,
        )
        self._check_open()
        # What may change something is nobody else's: a key that no other has.
        is_shared = ask.method in ("GET", "HEAD") and body is None
        key = (ask.method, _identity(url), _folded(ask.headers), ask.deadline) if is_shared else object()
        if key in self._flights:
            return await self._joined(
                key, self._taking_over(ask), lambda: closed(ask, self._around), self._is_for_all(ask)
            )  # fmt: skip
        flow, passage = fetch(ask, self._around), Passage()
        effect = self._driver.begin(flow, passage)
        if effect is None:  # a kept page, or a refusal: nobody could have joined it
            result: FetchResult = passage.result
            return result
        return await self._joined(
            key,
            lambda: self._driver.go_on(flow, effect, passage),
            lambda: closed(ask, self._around),
            self._is_for_all(ask),
        )

    def _taking_over(self, ask: Ask) -> Callable[[], Coroutine[Any, Any, FetchResult]]:
        """The work of one who joins another: if that one is cancelled, he has waited already."""
        began = self._around.now()

        def work() -> Coroutine[Any, Any, FetchResult]:
            asked = ask
            if ask.deadline is not None:
                asked = msgspec.structs.replace(ask, deadline=ask.deadline - (self._around.now() - began))
            return self._driver.run(fetch(asked, self._around))

        return work

    def _is_for_all(self, ask: Ask) -> Callable[[FetchResult], bool]:
        """Whether what comes of a fetch is also for those who join it: a deadline is each one's own."""
        if ask.deadline is None:
            return _always
        until = self._around.now() + ask.deadline - NO_TIME

        def is_for_all(result: FetchResult) -> bool:
            is_cut_off = result.reason is Reason.TIMEOUT and self._around.now() >= until
            return result.reason is not Reason.DEADLINE and not is_cut_off

        return is_for_all

    async def visit(self, ask: Ask, on_wire: Callable[[bool], None] | None = None) -> FetchResult:
        """Fetch one URL by itself, as the crawler does. `on_wire` hears when a request goes out, and is answered."""
        self._check_open()
        return await self._joined(
            object(),
            lambda: self._driver.run(fetch(ask, self._around), on_wire=on_wire),
            lambda: closed(ask, self._around),
        )

    def refuses(self, url: Url) -> tuple[Reason, str] | None:
        """Why the settings alone forbid to ask for a URL, with what to do about it; None if they do not."""
        refused = refused_by_settings(url, self.policies.of(url.domain), self._around)
        if refused is None:
            return None
        if isinstance(refused, Failure):
            return refused.reason, explain.failed(url, refused, 1)
        return refused.reason, refused.message

    @property
    def alarm(self) -> Alarm:
        """What its waits are waited on."""
        return self._alarm

    @property
    def store(self) -> AsyncStore:
        """Where its hosts' records are."""
        return self._store

    @property
    def store_url(self) -> str | None:
        """The URL that its store was opened by; None if it was given a store."""
        return self._settings.current.store if self._owns_store else None

    @property
    def keeps_cookies(self) -> bool:
        """Whether it sends back what cookies it was given."""
        return self._around.keeps_cookies

    def epoch(self) -> float:
        """The calendar's second."""
        return self._around.epoch()

    async def _joined(
        self,
        key: object,
        work: Callable[[], Coroutine[Any, Any, T]],
        closed: Callable[[], T],
        is_for_all: Callable[[T], bool] = _always,
    ) -> T:
        """Do work that others may join.

        It runs in the task of the first; if that is cancelled, or what came of it is for the first alone, the next
        takes over.
        """
        while (flight := self._flights.get(key)) is not None:
            is_whole, result = await flight.end()
            if is_whole:
                shared: T = result
                return shared
        flight = self._flights[key] = _Flight()
        is_whole, result = False, None
        try:
            result = await work()
            is_whole = is_for_all(result)
        except asyncio.CancelledError:
            if not flight.was_closed():
                raise
            result, is_whole = closed(), True
        finally:
            del self._flights[key]
            flight.land(is_whole, result)
        return result

    async def fetch_many(
        self, urls: Iterable[str], *, at_once: int = MOST_AT_ONCE, **options: Any
    ) -> AsyncGenerator[FetchResult, None]:
        """Fetch many URLs, and yield each result as it comes. One that fails does not stop the others."""
        waiting = iter(many(urls))
        under_way: set[asyncio.Task[FetchResult]] = set()
        done: asyncio.Queue[asyncio.Task[FetchResult]] = asyncio.Queue()  # asyncio.wait() would look at all each time
        try:
            while True:
                while len(under_way) < at_once and (url := next(waiting, END)) is not END:
                    task = asyncio.ensure_future(self.fetch(url, **options))
                    under_way.add(task)
                    task.add_done_callback(done.put_nowait)
                if not under_way:
                    return
                under_way.discard(task := await done.get())
                yield task.result()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def download(
        self, url: str, path: str | os.PathLike[str], *, max_size: int | None = GIB, deadline: float | None = None
    ) -> DownloadResult:
        """Save a URL as a file, in its turn; it is there only when whole.

        What an earlier try has left is gone on with, if the server can. The body may be up to `max_size` bytes, and
        take as long as it likes while it comes at all: `deadline` is for what comes before it.
        """
        self._check_open()
        part = Part(url, Path(path), max_size)
        if part.path in self._paths:
            raise PolicyError(f"path = {str(path)!r} is being written by another download. Wait for it.")
        self._paths.add(part.path)
        ask = Ask(url, deadline=deadline)
        try:
            return await self._joined(
                object(), lambda: self._download(ask, part), lambda: part.result(closed(ask, self._around))
            )  # fmt: skip
        finally:
            self._paths.discard(part.path)
            part.close()

    async def _download(self, ask: Ask, part: Part) -> DownloadResult:
        around = replace(self._around, cache=None)
        driver = AsyncDriver(around, self._store, self.gate, self._sender)
        result = await driver.run(fetch(ask, around), part)
        if part.is_of_no_use:
            part.discard()
            result = await driver.run(fetch(ask, around), part)
        if result.reason is Reason.TOO_LARGE:
            part.discard()
        return await asyncio.to_thread(part.result, result)

    async def rules_of(self, url: Url, user_agent: str) -> Rules | None:
        """The rules of a URL's origin, fetched in its turn if need be; None if not even that may be asked."""
        answer = await self.rules_or_why(url, user_agent)
        return answer if isinstance(answer, Rules) else None

    async def rules_or_why(self, url: Url, user_agent: str) -> Rules | Refusal | Failure | None:
        """The same, or why they cannot be had: the host may not be asked now, or never; None if this is closed."""
        policy = self.policies.of(url.domain)
        request = Request(url, headers=Headers([("User-Agent", user_agent)]))
        journey = Journey(Ask(url.text), self._around, self._around.now(), self.policies)
        self._check_open()
        if self._around.cache_mode == "offline":  # nobody is asked: what is remembered holds, however old
            kept: Rules | None = await self.store.read(rules_key(url.origin))
            is_known = kept is not None and kept.is_known
            return kept if is_known else Refusal(Reason.NOT_IN_CACHE, explain.not_kept(url))
        return await self._joined(
            object(), lambda: self._driver.run(rules_for(request, policy, journey)), lambda: None
        )  # fmt: skip

    def known_rules(self, origin: str) -> Rules | None:
        """The rules of an origin that this client knows without asking anybody."""
        known = self._around.known_rules(origin)
        return None if known is None else known.rules

    def forget_rules(self) -> None:
        """Have every origin's rules fetched again."""
        self._around.forget_rules()

    def stats(self) -> StatisticsSnapshot:
        """What this client has done so far."""
        return self.tally.snapshot()

    def _told(self, record: FetchRecord) -> None:
        self.tally.count(record)
        for rhythm in self._rhythms:
            if not rhythm.is_running:
                rhythm.start()
        if _log.hears(logging.INFO):
            words = "Fetched" if record.reason is None else _WORDS.get(record.reason, "Not fetched")
            _log.info(words, **record.as_dict())
        if self._on_record is not None:
            try:
                self._on_record(record)
            except Exception as error:  # the page has come all the same
                _log.warning("on_record raised an error, which was not expected of it", error=repr(error))

    def _later(self, ask: Ask) -> bool:
        """Renew a kept copy when the one who asked has been served with it."""
        if ask.url not in self._renewals:
            task = asyncio.ensure_future(self._renewing.run(fetch(ask, self._renewing.surroundings)))
            self._renewals[ask.url] = task
            task.add_done_callback(lambda _: self._renewals.pop(ask.url, None))
        return True

    def _check_open(self) -> None:
        if self._is_closed:
            raise PolicyError("This client is closed. Make another one, or keep it open for longer.")

    async def close(self) -> None:
        """End what is under way, and give back what is held open. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        for task in self._renewals.values():
            task.cancel()
        while flights := list(self._flights.values()):  # what is cancelled gives back what it held
            ends = [flight.end() for flight in flights]
            for flight in flights:
                flight.close()
            await asyncio.gather(*ends)
        while under_way := {*self._renewals.values(), *self._around.unfinished, *self.gate._background}:
            await asyncio.wait(under_way)
        await self._sender.close()
        for rhythm in self._rhythms:
            await rhythm.stop()
        if self._publisher is not None:
            await self._publisher.publish()
        if self._owns_store:
            await self._store.close()
        if self._cache is not None and self._owns_cache:
            self._cache.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _identity(url: str) -> object:
    """What is the same for all spellings of a URL."""
    parsed = parse_url(url)
    return url if isinstance(parsed, InvalidUrl) else (parsed.text, parsed.credentials)


def _folded(headers: Headers) -> Fields:
    """The fields with their names in one spelling."""
    return tuple((name.lower(), value) for name, value in headers.fields)


def _checked(headers: Mapping[str, str] | None) -> Headers:
    """The caller's headers; nothing in them may end a line (F26)."""
    if not headers:
        return NO_HEADERS
    if not isinstance(headers, Mapping):
        raise rule("headers", type(headers).__name__, "a mapping of names and values")
    fields = tuple(headers.items())
    for name, value in fields:
        if not (isinstance(name, str) and isinstance(value, str)):
            raise PolicyError(f"header {name!r} must be text, its value too. Write it in quotes.")
        if not name or any(letter in name + value for letter in "\r\n\0"):
            raise PolicyError(f"header {name!r} must not be empty or contain a line end or NUL. Leave it out.")
    return Headers(fields)


async def fetch_url(url: str, **settings: Any) -> FetchResult:
    """Fetch one URL politely, with a client of its own; pace and budgets are those of the default store."""
    async with AsyncClient(**{"stale_while_revalidate": False, **settings}) as client:
        return await client.fetch(url)

"""Client for tasks: `AsyncClient`, and `fetch_url()` for a single URL."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from curtsy.cache.keys import PageCache
from curtsy.core import messages
from curtsy.core.effects import FetchRequest
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.fetch_state import NO_TIME, Again, FetchState, Refusal
from curtsy.core.flow import closed, fetch, refused_by_settings, set_out
from curtsy.core.message import SECOND, Failure, Headers, InvalidUrl, Request, Url, parse_url
from curtsy.core.policy import Policies, number, whole
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.core.robots_flow import rules_for
from curtsy.core.rules import Rules
from curtsy.core.statistics import StatisticsSnapshot
from curtsy.engine.arguments import ask_for, check_parts, part_for, patience_of
from curtsy.engine.batch import DEFAULT_CONCURRENCY, Batch, NoUrl
from curtsy.engine.context import Context, HeldResources, rules_key
from curtsy.engine.counters import Counters
from curtsy.engine.download import GIB, DownloadResult
from curtsy.engine.download_task import DownloadTask
from curtsy.engine.driver import Driver, never
from curtsy.engine.gate import AsyncGate
from curtsy.engine.keywords import OWN, ClientKeywords, FetchKeywords, SettingKeywords
from curtsy.engine.opening import opened_cache, opened_store
from curtsy.engine.periodic import Periodic
from curtsy.engine.single_flight import SingleFlight, always
from curtsy.engine.stats_log import StatsLog
from curtsy.engine.stats_publisher import EVERY, Publisher
from curtsy.engine.timers import FakeTimers, SystemTimers, Timers
from curtsy.http.cookies import Cookies
from curtsy.http.sender import AiohttpSender, Limits, Sender, check_environment
from curtsy.settings import CacheMode, Preset, names_contact, new_notices
from curtsy.settings.live import LiveSettings
from curtsy.stores import AsyncStore, Store
from curtsy.system.clock import FakeClock
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import Once

_log: LibraryLogger = library_logger("client")

_WORDS = {
    Reason.ROBOTS_DISALLOWED.value: "Blocked by robots.txt",
    Reason.DOMAIN_BUDGET_EXCEEDED.value: "Domain daily budget exceeded",
}


class AsyncClient:
    """Polite HTTP client for tasks. Any number of tasks may share one.

    Settings come from files and the environment. Keyword arguments override them; every key of the settings' reference
    is accepted. `store` is a URL such as `redis://host` or `sqlite:///state.sqlite`, the `Path` of an SQLite file, or a
    store. `cache` is a folder, a cache, or False for no cache. If a site allows it, a stale cached page is returned
    immediately and revalidated afterwards, while the client is open. Without `stale_while_revalidate`, it is
    revalidated first. `connections` limits the requests in flight over all hosts. With `cookies`, the client keeps
    cookies until it is closed, each for the host that set it. `on_record` is called with the record of each fetch. With
    a `FakeClock` as `clock`, waits take no real time.
    """

    def __init__(
        self,
        *,
        preset: Preset | None = None,
        config: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | Store | AsyncStore | None = None,
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
        timers: Timers | None = None,
        **settings: Unpack[SettingKeywords],
    ) -> None:
        check_parts(
            store=store, cache=cache, stale_while_revalidate=stale_while_revalidate, on_record=on_record, proxy=proxy,
            verify=verify, cookies=cookies, sender=sender, clock=clock, timers=timers,
        )  # fmt: skip
        named = {
            "user_agent": user_agent,
            "allow_private": allow_private,
            "respect_robots": respect_robots,
            "cache_mode": cache_mode,
            "store": store if isinstance(store, str | os.PathLike) else None,
        }
        given: dict[str, Any] = {**settings, **{name: value for name, value in named.items() if value is not None}}
        if max_retries is not None:
            whole("max_retries", max_retries, 0)
        whole("connections", connections, 1)
        number("stale_if_error", stale_if_error)
        self._deadline = None if deadline is None else number("deadline", deadline)
        self._settings = LiveSettings(config=config, preset=preset, beside=OWN, **given)
        current = self._settings.current
        for warning in (*current.warnings, *new_notices(current)):
            _log.warning(warning)
        self._on_record = on_record
        self._store = opened_store(store, current, clock)
        self._owns_store = store is None or isinstance(store, str | os.PathLike)
        self._timers = timers or (FakeTimers(clock) if clock is not None else SystemTimers())
        self.gate = AsyncGate(self._store, timers=self._timers)
        if isinstance(self._timers, FakeTimers):
            self._timers.quiet = lambda: self.gate.lines.out == 0
        self._owns_cache = cache is None or isinstance(cache, bool | str | os.PathLike)
        mode = current.cache_mode
        self._cache = opened_cache(cache, current)
        if sender is None and proxy is None:
            check_environment()
        self._sender = sender or AiohttpSender(
            verify=Path(verify) if isinstance(verify, os.PathLike) else verify,
            proxy=proxy,
            use_environment=True,
            connections=connections,
            idle=2 * connections,
        )
        self._locate: Callable[[Url, Limits], Awaitable[str]] | None = getattr(self._sender, "locate", None)
        epoch = time.time if clock is None else lambda: clock.now().epoch / SECOND
        self.counters = Counters(epoch=epoch)
        self.gate.tripped = lambda key: self.counters.count_trip(key.removeprefix("host:"))
        self._around = Context(
            settings=lambda: self._settings.check().policies,
            now=self._timers.now,
            epoch=epoch,
            cache=self._cache,
            cache_mode="normal" if mode == "off" else mode,
            stale_if_error=stale_if_error,
            max_retries=max_retries,
            told=self._told,
        )
        if cookies:
            self._around.cookies = Cookies(self._around.epoch)
        later = self._later if stale_while_revalidate else never
        self._driver = Driver(self._around, self._store, self.gate, self._sender, later)
        self._renewing = Driver(replace(self._around, cache_mode="revalidate"), self._store, self.gate, self._sender)
        # Only this process can read a memory store, so it has no publisher.
        self._publisher = None if self.gate.is_immediate else Publisher(self.counters, self._store)
        self._rhythms = self._watching(current.stats_every)
        self._single_flight = SingleFlight()
        self._renewals: dict[object, asyncio.Task[FetchResult]] = {}
        self._paths: set[Path] = set()
        self._is_closed = False
        self._closing = Once(self._give_back)
        if not names_contact(self.policies.user_agent):
            _log.warning(
                "The user agent names no contact; add a page or an address where a site's owner can reach you",
                user_agent=self.policies.user_agent,
            )

    def _watching(self, stats_every: float | None) -> tuple[Periodic, ...]:
        """Return the periodic jobs that publish and log the counts."""
        rhythms = [] if self._publisher is None else [Periodic(self._publisher.publish, EVERY)]
        if stats_every is not None:
            rhythms.append(Periodic(StatsLog(self.counters, self._store, lambda: self.policies).report, stats_every))
        return tuple(rhythms)

    @property
    def policies(self) -> Policies:
        """Return the policies in force. Changed files are read again."""
        return self._around.policies

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        deadline: float | None = None,
        idempotent: bool | None = None,
    ) -> FetchResult:
        """Fetch one URL when its turn comes. Web errors do not raise: check `ok` and `reason`.

        `deadline` is the limit for the whole fetch in seconds; a deadline that cannot be met is refused immediately.
        `idempotent` allows retries of methods other than GET and HEAD. Tasks that request the same page at the same
        time share one fetch.
        """
        patience = self._deadline if deadline is None else patience_of(deadline)
        ask = ask_for(url, method, headers, body, patience, idempotent)
        self._check_open()
        key = _key_of(ask) if self._single_flight.under_way else None
        if key is not None and key in self._single_flight:
            return await self._single_flight.join(key, *self._trip(ask), self._is_for_all(ask))
        state, resources = set_out(ask, self._around), HeldResources()
        flow = fetch(ask, self._around, state)
        effect = self._driver.begin(flow, resources)
        if effect is None:  # a cached page or a refusal, done before another task could join
            result: FetchResult = resources.result
            return result
        return await self._single_flight.join(
            key or _key_of(ask),
            lambda: self._driver.go_on(flow, effect, resources),
            lambda: self._closed(state, resources),
            self._is_for_all(ask),
        )

    def _trip(
        self,
        ask: FetchRequest,
        on_wire: Callable[[bool], None] | None = None,
        place: Callable[[], Awaitable[None] | None] | None = None,
    ) -> tuple[Callable[[], Coroutine[Any, Any, FetchResult]], Callable[[], FetchResult]]:
        """Return the function that starts a fetch, and the one that returns its result after `close()`."""
        state, resources = set_out(ask, self._around), HeldResources(on_wire=on_wire, place=place)

        def work() -> Coroutine[Any, Any, FetchResult]:
            # A task that takes over a shared fetch has waited: the settings may have changed.
            state.policies = self._around.policies
            flow = fetch(ask, self._around, state)
            return self._driver.go_on(flow, self._driver.begin(flow, resources), resources)

        return work, lambda: self._closed(state, resources)

    def _closed(self, state: FetchState, resources: HeldResources) -> FetchResult:
        """Return and report the result of a fetch that `close()` ended."""
        result = closed(state, resources.is_sent, resources.is_robots)
        self._told(result.record)
        return result

    def _is_for_all(self, ask: FetchRequest) -> Callable[[FetchResult], bool]:
        """Return the check for a result that callers that joined may share: each has its own deadline."""
        if ask.deadline is None:
            return always
        until = self._around.now() + ask.deadline - NO_TIME

        def is_for_all(result: FetchResult) -> bool:
            is_cut_off = result.reason is Reason.TIMEOUT and self._around.now() >= until
            return result.reason is not Reason.DEADLINE and not is_cut_off

        return is_for_all

    async def visit(
        self,
        ask: FetchRequest,
        on_wire: Callable[[bool], None] | None = None,
        place: Callable[[], Awaitable[None] | None] | None = None,
    ) -> FetchResult:
        """Fetch one URL without sharing the fetch, as the crawler does.

        `on_wire` is called with True when a request is sent, and with False after its response. `place` is called
        before each request, which waits for the returned awaitable, if any.
        """
        self._check_open()
        return await self._single_flight.join(object(), *self._trip(ask, on_wire, place))

    async def locate(self, url: str) -> str:
        """Return the address of a URL's host, from the sender; empty if unknown."""
        found = parse_url(url)
        if self._locate is None or not isinstance(found, Url):
            return ""
        return await self._locate(found, Limits.of(self.policies.of(found.domain)))

    def refuses(self, url: Url) -> tuple[Reason, str] | None:
        """Return why the settings forbid a URL, with advice; None if they allow it."""
        refused = refused_by_settings(url, self.policies.of(url.domain), self._around)
        if refused is None:
            return None
        if isinstance(refused, Failure):
            return refused.reason, messages.failed(url, refused, 1)
        return refused.reason, refused.message

    @property
    def timers(self) -> Timers:
        """Return the timers of the client's waits."""
        return self._timers

    @property
    def store(self) -> AsyncStore:
        """Return the store of the host records."""
        return self._store

    @property
    def store_url(self) -> str | None:
        """Return the URL that the store was opened by; None if a store was given."""
        return self._settings.current.store if self._owns_store else None

    @property
    def keeps_cookies(self) -> bool:
        """Return whether the client stores cookies and sends them back."""
        return self._around.keeps_cookies

    def epoch(self) -> float:
        """Return the calendar time in seconds since 1970."""
        return self._around.epoch()

    async def fetch_many(
        self, urls: Iterable[str], *, concurrency: int = DEFAULT_CONCURRENCY, **options: Unpack[FetchKeywords]
    ) -> AsyncGenerator[FetchResult, None]:
        """Fetch many URLs with the same options and yield each result as it arrives. Failures do not stop others.

        `urls` is read while fewer than `concurrency` fetches are active. While a host has a hundred active fetches,
        other hosts go first: up to 10,000 of its URLs are deferred to find them.
        """
        batch = Batch(urls, concurrency)
        under_way: dict[asyncio.Task[FetchResult], str] = {}
        done: asyncio.Queue[asyncio.Task[FetchResult]] = asyncio.Queue()  # asyncio.wait() would scan all tasks
        try:
            while True:
                while (url := batch.next()) is not NoUrl.NOW:
                    if url is not NoUrl.YET:
                        task = asyncio.ensure_future(self.fetch(url, **options))
                        under_way[task] = url
                        task.add_done_callback(done.put_nowait)
                    elif done.empty():
                        await asyncio.sleep(0)  # without a result yet, there is time to read on
                    else:
                        break
                if not under_way:
                    return
                task = await done.get()
                batch.end(under_way.pop(task))
                yield task.result()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def download(
        self,
        url: str,
        path: str | os.PathLike[str],
        *,
        max_size: int | None = GIB,
        deadline: float | None = None,
        decode: bool = False,
    ) -> DownloadResult:
        """Save a URL as a file when its turn comes. The file appears only when it is complete.

        A partial file of an earlier attempt is resumed if the server can. The body is limited to `max_size` bytes.
        `deadline` is in seconds and covers the time before the body; the body may take any time while data arrives. The
        file has the bytes that the server sends. `decode` decodes a Content-Encoding; such a body cannot be resumed.
        """
        self._check_open()
        ask = FetchRequest(url, deadline=patience_of(deadline))
        part = part_for(url, path, max_size, decode)
        if part.path in self._paths:
            raise PolicyError(f"path = {str(path)!r} is being written by another download. Wait for it.")
        around = replace(self._around, cache=None, told=lambda record: None)
        driver = Driver(around, self._store, self.gate, self._sender)
        saving = DownloadTask(ask, part, driver, self._told)
        self._paths.add(part.path)
        try:
            return await self._single_flight.join(object(), saving.work, saving.closed)
        finally:
            self._paths.discard(part.path)
            part.close()

    async def rules_of(self, url: Url, user_agent: str) -> Rules | None:
        """Return the rules of a URL's origin, fetched if necessary; None if they are unavailable."""
        answer = await self.rules_or_why(url, user_agent)
        return answer if isinstance(answer, Rules) else None

    async def rules_or_why(self, url: Url, user_agent: str) -> Rules | Refusal | Failure | None:
        """Return the rules, or why they are unavailable; None if the client was closed meanwhile.

        A Refusal or Failure says that the host may not be contacted now, or ever.
        """
        policy = self.policies.of(url.domain)
        request = Request(url, headers=Headers([("User-Agent", user_agent)]))
        state = FetchState(FetchRequest(url.text), self._around, self._around.now(), self.policies)
        self._check_open()
        if self._around.cache_mode == "offline":  # no host is contacted: stored rules apply at any age
            kept: Rules | None = await self.store.read(rules_key(url.origin))
            is_known = kept is not None and kept.is_known
            return kept if is_known else Refusal(Reason.NOT_IN_CACHE, messages.not_kept(url))
        answer = await self._single_flight.join(
            object(), lambda: self._driver.run(rules_for(request, policy, state)), lambda: None
        )  # fmt: skip
        return await self.rules_or_why(url, user_agent) if isinstance(answer, Again) else answer

    def known_rules(self, origin: str) -> Rules | None:
        """Return the rules of an origin from memory; None if they are unknown or expired."""
        known = self._around.known_rules(origin)
        return None if known is None else known.rules

    def forget_rules(self) -> None:
        """Make every origin's rules expire, so that they are fetched again."""
        self._around.forget_rules()

    def stats(self) -> StatisticsSnapshot:
        """Return the counts of this client so far."""
        return self.counters.snapshot()

    def _told(self, record: FetchRecord) -> None:
        self.counters.count(record)
        for periodic in self._rhythms:
            if not periodic.is_running:
                periodic.start()
        if _log.hears(logging.INFO):
            words = "Fetched" if record.reason is None else _WORDS.get(record.reason, "Not fetched")
            _log.info(words, **record.as_dict())
        if self._on_record is not None:
            try:
                self._on_record(record)
            except Exception as error:  # the callback's error does not affect the fetched page
                _log.warning("on_record raised an error, which was not expected of it", error=repr(error))

    def _later(self, ask: FetchRequest) -> bool:
        """Revalidate a cached page after it was served; once at a time for each variant."""
        key = _key_of(ask)
        if key not in self._renewals:
            task = asyncio.ensure_future(self._renewing.run(fetch(ask, self._renewing.context)))
            self._renewals[key] = task
            task.add_done_callback(lambda _: self._renewals.pop(key, None))
        return True

    def _check_open(self) -> None:
        if self._is_closed:
            raise PolicyError("This client is closed. Make another one, or keep it open for longer.")

    async def close(self) -> None:
        """End active fetches and close all resources. Idempotent.

        A cancelled caller does not stop it: call it again to wait for its end.
        """
        self._is_closed = True
        await self._closing.wait()

    async def _give_back(self) -> None:
        async with contextlib.AsyncExitStack() as stack:  # runs in reverse order, each even if another raises
            if self._cache is not None and self._owns_cache:
                stack.callback(self._cache.close)
            if self._owns_store:
                stack.push_async_callback(self._store.close)
            if self._publisher is not None:
                stack.push_async_callback(self._publisher.publish)
            for periodic in self._rhythms:
                stack.push_async_callback(periodic.stop)
            stack.push_async_callback(self._sender.close)
            for task in self._renewals.values():
                task.cancel()
            await self._single_flight.close()
            while under_way := {*self._renewals.values(), *self._around.unfinished, *self.gate._background}:
                await asyncio.wait(under_way)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _key_of(ask: FetchRequest) -> object:
    """Return the key by which fetches are shared; equivalent URLs have the same key.

    A request that may change something has a unique key.
    """
    if ask.method not in ("GET", "HEAD") or ask.body is not None:
        return object()
    url = parse_url(ask.url)
    named = url if isinstance(url, InvalidUrl) else (url.text, url.credentials)
    fields = ask.headers.fields and tuple([(name.lower(), value) for name, value in ask.headers.fields])
    return ask.method, named, fields, ask.deadline


async def fetch_url(url: str, **settings: Unpack[ClientKeywords]) -> FetchResult:
    """Fetch one URL politely with a temporary client. Pace and budgets come from the default store."""
    settings.setdefault("stale_while_revalidate", False)
    async with AsyncClient(**settings) as client:
        return await client.fetch(url)

"""Session: the parts of one client, and the operations that other packages need besides its public ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import msgspec

from curtsy.cache.keys import PageCache
from curtsy.cache.opening import cache_path, open_cache
from curtsy.core import messages
from curtsy.core.crawl_record import CrawlRecord
from curtsy.core.effects import FetchRequest, Render
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.fetch_state import NO_TIME, Again, FetchState, Refusal
from curtsy.core.flow import closed, fetch, fetch_hop, refused_by_settings, set_out
from curtsy.core.policy import Policies
from curtsy.core.record import FetchRecord
from curtsy.core.request import Failure, Headers, Reply, Request
from curtsy.core.result import FetchResult
from curtsy.core.robots_flow import rules_for
from curtsy.core.rules import Rules
from curtsy.core.time import SECOND
from curtsy.core.url import InvalidUrl, Url, parse_url
from curtsy.engine.alerts import Periodic, StatsLog
from curtsy.engine.body_slot import BodySlot, Hop, Send
from curtsy.engine.context import Context, HeldResources, rules_key
from curtsy.engine.counters import EVERY, Counters, Publisher
from curtsy.engine.crawl_view import CrawlView, crawls_of
from curtsy.engine.download import DownloadResult, DownloadTask, Part
from curtsy.engine.driver import Driver, never
from curtsy.engine.gate import Gate
from curtsy.engine.part_driver import PartDriver
from curtsy.engine.renderer import Renderer
from curtsy.engine.single_flight import SingleFlight, always
from curtsy.engine.store_driver import Finished
from curtsy.engine.timers import SystemTimers, Timers, VirtualClock
from curtsy.http.cookies import Cookies
from curtsy.http.exchange import note_unsent
from curtsy.http.sender import Limits, Sender
from curtsy.settings import Settings
from curtsy.settings.live import LiveSettings
from curtsy.stores import AsyncMemoryStore, AsyncStore, Store, open_async_store
from curtsy.stores.blocking import for_tasks
from curtsy.system.clock import Clock
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import Once

_log: LibraryLogger = library_logger("client")

_MESSAGES = {
    Reason.ROBOTS_DISALLOWED.value: "Blocked by robots.txt",
    Reason.DOMAIN_BUDGET_EXCEEDED.value: "Domain daily budget exceeded",
}


OnWire = Callable[[bool, Reply | None], None]
"""Callback for the start (True) and the end (False) of each request on the wire."""

BeforeSend = Callable[[], Awaitable[None] | None]
"""Callback before each request on the wire. The request waits for the awaitable that it returns, if any."""


class Session:
    """Store, gate, cache, sender and driver of one client.

    `AsyncClient` is its public interface. Crawls and other parts of curtsy use it directly. The parameters have the
    meaning of `AsyncClient`'s.
    """

    def __init__(
        self,
        settings: LiveSettings,
        sender: Sender,
        *,
        store: str | os.PathLike[str] | Store | AsyncStore | None = None,
        cache: str | os.PathLike[str] | PageCache | bool | None = None,
        stale_if_error: float = 0.0,
        stale_while_revalidate: bool = True,
        max_retries: int | None = None,
        on_record: Callable[[FetchRecord], None] | None = None,
        cookies: bool = False,
        clock: VirtualClock | None = None,
        timers: Timers | None = None,
        renderer: Renderer | None = None,
    ) -> None:
        self.settings = settings
        current = settings.current
        self._sender = sender
        self._owns_store = store is None or isinstance(store, str | os.PathLike)
        self._owns_cache = cache is None or isinstance(cache, bool | str | os.PathLike)
        self.store: AsyncStore = _opened_store(store, current, clock)
        self.timers = timers or (SystemTimers() if clock is None else clock.timers())
        self.gate = Gate(self.store, timers=self.timers)
        self.gate.max_outage = settings.current.max_outage
        self.timers.stop_while(lambda: self.gate.queues.out > 0)
        self.epoch: Callable[[], float] = time.time if clock is None else lambda: clock.now().epoch / SECOND
        """Calendar time in seconds since 1970."""
        self.counters = Counters(epoch=self.epoch, outages=lambda: self.store.outages)
        self.gate.on_trip = lambda key: self.counters.count_trip(key.removeprefix("host:"))
        self.context = Context(
            settings=lambda: settings.check().policies, now=self.timers.now, epoch=self.epoch,
            cache=_opened_cache(cache, current),
            cache_mode="normal" if current.cache_mode == "off" else current.cache_mode,
            stale_if_error=stale_if_error, max_retries=max_retries,
            cookies=Cookies(self.epoch) if cookies else None, told=self._report, render=self._render,
            postponed=self._count_requests,
        )  # fmt: skip
        self._renderer = renderer
        later = self._revalidate_later if stale_while_revalidate else never
        self._driver = Driver(self.context, self.gate, sender, later)
        self._parts = PartDriver(replace(self.context, max_retries=0), self.gate, sender)
        self._revalidating = Driver(replace(self.context, cache_mode="revalidate"), self.gate, sender)
        self.revalidations: dict[object, asyncio.Task[FetchResult]] = {}
        """Background revalidations of stale pages, by key."""
        # Only this process can read a memory store, so it has no publisher.
        self._publisher = None if self.gate.is_immediate else Publisher(self.counters, self.store)
        self._crawls: dict[str, CrawlRecord] = {}
        """Last published records of the crawls that use this client, by key."""
        self.periodic = self._periodic_jobs(current.stats_every)
        """Jobs that publish and log the counts while there are fetches."""
        self.gate.on_outage = self._start_jobs
        self.on_record = on_record
        self._single_flight = SingleFlight()
        self._download_paths: set[Path] = set()
        self._slots: WeakSet[BodySlot] = WeakSet()
        """Slots of responses that other libraries are reading."""
        self._is_closed = False
        self._closing = Once(self._release)

    def _periodic_jobs(self, stats_every: float | None) -> tuple[Periodic, ...]:
        jobs = [] if self._publisher is None else [Periodic(self._publisher.publish, EVERY)]
        if stats_every is not None:
            jobs.append(
                Periodic(StatsLog(self.counters, self.store, lambda: self.policies, self.crawls).report, stats_every)
            )
        return tuple(jobs)

    @property
    def policies(self) -> Policies:
        """Return the policies in force. Changed files are read again."""
        return self.context.policies

    @property
    def is_offline(self) -> bool:
        """Return whether pages come from the cache only, so that no site is contacted."""
        return self.context.cache_mode == "offline"

    @property
    def store_url(self) -> str | None:
        """Return the URL that the store was opened by; None if a store was given."""
        return self.settings.current.store if self._owns_store else None

    # Fetches

    async def fetch(self, ask: FetchRequest) -> FetchResult:
        """Fetch one URL. Tasks that request the same page at the same time share one fetch."""
        self._check_open()
        ask, driver = self._rendered(ask), self._driver_of(ask)
        state, resources = set_out(ask, driver.context), HeldResources()
        key = _key_of(ask, state.asked) if self._single_flight.under_way else None
        if key is not None and key in self._single_flight.under_way:
            return await self._single_flight.join(key, *self._work(ask), self._is_for_all(ask))
        procedure = driver.procedure(fetch(ask, driver.context, state), resources)
        effect = driver.advance(procedure)
        if isinstance(effect, Finished):  # a cached page or a refusal, done before another task could join
            result: FetchResult = effect.result
            return result
        return await self._single_flight.join(
            key or _key_of(ask, state.asked),
            lambda: driver.complete(procedure, effect, resources),
            lambda: self._closed(state, resources),
            self._is_for_all(ask),
        )

    async def fetch_alone(
        self, ask: FetchRequest, on_wire: OnWire | None = None, before_send: BeforeSend | None = None
    ) -> FetchResult:
        """Fetch one URL without sharing the fetch."""
        self._check_open()
        return await self._single_flight.join(object(), *self._work(self._rendered(ask), on_wire, before_send))

    def _rendered(self, ask: FetchRequest) -> FetchRequest:
        """Return the fetch, rendered if this client renders its pages."""
        is_rendered = self._renderer is not None and not ask.is_part
        return msgspec.structs.replace(ask, renders=True) if is_rendered else ask

    def _driver_of(self, ask: FetchRequest) -> Driver:
        return self._parts if ask.follows else self._driver

    async def _render(self, effect: Render) -> Reply:
        assert self._renderer is not None
        policy = self.policies.of(effect.request.url.domain)
        return await self._renderer.render(effect, policy.max_body, self.fetch)

    async def download(self, ask: FetchRequest, part: Part) -> DownloadResult:
        """Save the body of one URL as a file."""
        self._check_open()
        if part.path in self._download_paths:
            raise PolicyError(f"path = {str(part.path)!r} is being written by another download. Wait for it.")
        context = replace(self.context, cache=None, told=lambda record: None)
        task = DownloadTask(ask, part, Driver(context, self.gate, self._sender), self._sender, self._report)
        self._download_paths.add(part.path)
        try:
            return await self._single_flight.join(object(), task.work, task.closed)
        finally:
            self._download_paths.discard(part.path)
            part.close()

    async def hop(self, ask: FetchRequest, send: Send, connections: asyncio.Semaphore | None = None) -> Hop:
        """Let a library send one request of its own: admit it, call `send`, and settle the reply.

        Cookies, redirects and retries are the library's. robots.txt is requested by the built-in sender. `connections`
        limits the requests on the wire.
        """
        self._check_open()
        state = set_out(ask, self.context)
        resources = HeldResources(partial(self._send_guarded, send), reads_later=True)
        if connections is not None:
            resources.place = connections.acquire
            resources.on_wire = lambda is_on_wire, _: None if is_on_wire else connections.release()
        return await self._single_flight.join(
            object(), lambda: self._hop(ask, state, resources), lambda: self._hop_closed(state, resources)
        )

    async def _hop(self, ask: FetchRequest, state: FetchState, resources: HeldResources) -> Hop:
        try:
            end, result = await self._driver_of(ask).run_flow(fetch_hop(ask, state), resources)
        except BaseException:
            if resources.open_ticket is not None:
                BodySlot(self.gate, resources.open_ticket).close()
            raise
        if resources.open_ticket is None:
            return Hop(end, result, None)
        slot = BodySlot(self.gate, resources.open_ticket)
        self._slots.add(slot)
        return Hop(end, result, slot)

    async def _send_guarded(self, send: Send, request: Request, limits: Limits) -> Reply:
        """Send a request by a library, unless the name has an address that is refused.

        The library resolves the name again, so this check does not pin the address.
        """
        try:
            refused = await self._sender.refused_address(request.url, limits)
        except asyncio.CancelledError as error:
            note_unsent(error)
            raise
        return await send(request) if refused is None else Failure(Reason.ADDRESS_REFUSED, refused)

    def _hop_closed(self, state: FetchState, resources: HeldResources) -> Hop:
        result = self._closed(state, resources)
        return Hop(Refusal(Reason.CLOSED, result.message), result, None)

    def _work(
        self, ask: FetchRequest, on_wire: OnWire | None = None, before_send: BeforeSend | None = None
    ) -> tuple[Callable[[], Coroutine[Any, Any, FetchResult]], Callable[[], FetchResult]]:
        """Return the function that starts a fetch, and the one that returns its result after `close()`."""
        driver = self._driver_of(ask)
        state, resources = set_out(ask, driver.context), HeldResources(on_wire=on_wire, place=before_send)

        def work() -> Coroutine[Any, Any, FetchResult]:
            # A task that takes over a shared fetch has waited: the settings may have changed.
            state.policies = self.policies
            return driver.run_flow(fetch(ask, driver.context, state), resources)

        return work, lambda: self._closed(state, resources)

    def _closed(self, state: FetchState, resources: HeldResources) -> FetchResult:
        """Return and report the result of a fetch that `close()` ended."""
        result = closed(state, resources.is_sent, resources.is_robots)
        self._report(result.record)
        return result

    def _is_for_all(self, ask: FetchRequest) -> Callable[[FetchResult], bool]:
        """Return the check for a result that callers that joined may share: each has its own deadline."""
        if ask.deadline is None:
            return always
        until = self.context.now() + ask.deadline - NO_TIME

        def is_for_all(result: FetchResult) -> bool:
            is_cut_off = result.reason is Reason.TIMEOUT and self.context.now() >= until
            return result.reason is not Reason.DEADLINE and not is_cut_off

        return is_for_all

    def _revalidate_later(self, ask: FetchRequest) -> bool:
        """Revalidate a cached page after it was served; once at a time for each variant."""
        key = _key_of(ask, parse_url(ask.url))
        if key not in self.revalidations:
            task = asyncio.ensure_future(self._revalidating.run_flow(fetch(ask, self._revalidating.context)))
            self.revalidations[key] = task
            task.add_done_callback(lambda _: self.revalidations.pop(key, None))
        return True

    def _start_jobs(self) -> None:
        for job in self.periodic:
            if not job.is_running:
                job.start()

    def note_crawl(self, key: str, record: CrawlRecord | None) -> None:
        """Note the published record of a crawl that uses this client; None after its end."""
        if record is None:
            self._crawls.pop(key, None)
        else:
            self._crawls[key] = record
            self._start_jobs()

    def crawls(self) -> list[CrawlView]:
        """Return the crawls that use this client, each as of its last record. Any thread may call it."""
        return [view for each in list(self._crawls.values()) for view in crawls_of([each], each.updated_at)]

    def _report(self, record: FetchRecord) -> None:
        """Count and log the record of a fetch, and pass it to the user's callback."""
        self.counters.count(record)
        self._start_jobs()
        if _log.hears(logging.INFO):
            message = "Fetched" if record.reason is None else _MESSAGES.get(record.reason, "Not fetched")
            _log.info(message, **record.as_dict())
        if self.on_record is not None:
            try:
                self.on_record(record)
            except Exception as error:  # the callback's error does not affect the fetched page
                _log.warning("on_record raised an error, which was not expected of it", error=repr(error))

    def _count_requests(self, record: FetchRecord) -> None:
        """Count the requests of a fetch that is repeated later."""
        self.counters.count_requests(record)
        self._start_jobs()

    # Questions about a URL or host

    def refusal(self, url: Url) -> tuple[Reason, str] | None:
        """Return why the settings forbid a URL, with advice; None if they allow it."""
        refused = refused_by_settings(url, self.policies.of(url.domain), self.context)
        if refused is None:
            return None
        if isinstance(refused, Failure):
            return refused.reason, messages.failed(url, refused, 1)
        return refused.reason, refused.message

    async def address_of(self, url: str) -> str:
        """Return the address of a URL's host, from the sender; empty if unknown."""
        found = parse_url(url)
        if not isinstance(found, Url):
            return ""
        return await self._sender.locate(found, Limits.of(self.policies.of(found.domain)))

    async def rules_of(self, url: Url, user_agent: str) -> Rules | Refusal | Failure | None:
        """Return the rules of a URL's origin, fetched if necessary, or why they are unavailable.

        A Refusal or Failure says that the host may not be contacted now, or ever. None: the session was closed
        meanwhile.
        """
        self._check_open()
        if self.is_offline:  # no host is contacted: stored rules apply at any age
            stored: Rules | None = await self.store.read(rules_key(url.origin))
            is_known = stored is not None and stored.is_known
            return stored if is_known else Refusal(Reason.NOT_IN_CACHE, messages.not_kept(url))
        request = Request(url, headers=Headers([("User-Agent", user_agent)]))
        state = FetchState(FetchRequest(url.text), self.context, self.context.now(), self.policies, url)
        policy = self.policies.of(url.domain)
        answer = await self._single_flight.join(
            object(), lambda: self._driver.run_flow(rules_for(request, policy, state)), lambda: None
        )
        if state.robots_requests:
            self._count_requests(state.result(Refusal(Reason.CLOSED, "")).record)
        return await self.rules_of(url, user_agent) if isinstance(answer, Again) else answer

    def known_rules(self, origin: str) -> Rules | None:
        """Return the rules of an origin from memory; None if they are unknown or expired."""
        known = self.context.known_rules(origin)
        return None if known is None else known.rules

    def crawl_delay(self, origin: str) -> float:
        """Return the seconds between two requests that the known robots.txt of an origin wants; 0 without a value."""
        return max(self.context.heeded(origin).values(), default=0.0)

    def forget_rules(self) -> None:
        """Make every origin's rules expire, so that they are fetched again."""
        self.context.forget_rules()

    # End

    def _check_open(self) -> None:
        if self._is_closed:
            raise PolicyError("This client is closed. Make another one, or keep it open for longer.")

    async def close(self) -> None:
        """End active fetches and close all resources. Idempotent.

        A cancelled caller does not stop it: call it again to wait for its end.
        """
        self._is_closed = True
        await self._closing.wait()

    async def _release(self) -> None:
        async with contextlib.AsyncExitStack() as stack:  # runs in reverse order, each even if another raises
            if self.context.cache is not None and self._owns_cache:
                stack.callback(self.context.cache.close)
            if self._owns_store:
                stack.push_async_callback(self.store.close)
            if self._publisher is not None:
                stack.push_async_callback(self._publisher.publish)
            for job in self.periodic:
                stack.push_async_callback(job.stop)
            stack.push_async_callback(self._sender.close)
            if self._renderer is not None:
                stack.push_async_callback(self._renderer.close)
            for task in self.revalidations.values():
                task.cancel()
            for slot in list(self._slots):
                slot.close()
            await self._single_flight.close()  # lets scheduled callbacks run, such as those of the slots
            while active := {*self.revalidations.values(), *self.gate.driver.background}:
                await asyncio.wait(active)


def _key_of(ask: FetchRequest, url: Url | InvalidUrl) -> object:
    """Return the key by which fetches are shared; equivalent URLs have the same key.

    A request that may change something has a unique key.
    """
    if ask.method not in ("GET", "HEAD") or ask.body is not None:
        return object()
    named = url if isinstance(url, InvalidUrl) else (url.text, url.credentials)
    fields = ask.headers.fields and tuple([(name.lower(), value) for name, value in ask.headers.fields])
    return ask.method, named, fields, ask.deadline, ask.timeout, ask.is_part


def _opened_store(
    store: str | os.PathLike[str] | Store | AsyncStore | None, settings: Settings, clock: Clock | None
) -> AsyncStore:
    """Return the client's store for tasks: the given one, memory with a fake clock, or that of the settings."""
    if store is None and clock is not None:
        return AsyncMemoryStore(clock)
    if store is None or isinstance(store, str | os.PathLike):
        return open_async_store(settings.store, clock=clock, **settings.outages())
    return for_tasks(store)


def _opened_cache(
    cache: str | os.PathLike[str] | PageCache | bool | None, settings: Settings
) -> PageCache | None:  # fmt: skip
    """Return the client's cache: the given one or that of the settings; None if caching is off."""
    if cache is False or settings.cache_mode == "off":
        return None
    if cache is None or cache is True:
        cache = cache_path(settings.cache_dir)
    if not isinstance(cache, str | os.PathLike):
        return cache
    return open_cache(Path(cache), settings.cache_size, may_wait=True)

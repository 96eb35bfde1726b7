"""Dry run of a fetch: the same flow and driver, on a copy of the records, in virtual time, up to the first request.

The store is only read, and a wait takes no real time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from curtsy.cache.keys import PageCache
from curtsy.core.cache import Mode
from curtsy.core.effects import Effect, FetchRequest, Flow, Keep, Later, Recall, Send, Tell
from curtsy.core.flow import fetch
from curtsy.core.host import Host
from curtsy.core.policy import Policies
from curtsy.core.record import Record
from curtsy.core.result import FetchResult
from curtsy.core.rules import Rules
from curtsy.core.time import SECOND, Instant, Now
from curtsy.core.url import Url
from curtsy.engine.context import Context, rules_key
from curtsy.engine.driver import Driver
from curtsy.engine.gate import GLOBAL, Gate
from curtsy.engine.timers import TaskWaiter, Waiter
from curtsy.stores import AsyncStore, Step
from curtsy.stores.memory import AsyncMemoryStore, MemoryStore


@dataclass(frozen=True, slots=True)
class HostRecords:
    """Stored records that decide about a URL, as read at `now`."""

    now: Now
    host: Host | None = None
    overall: Host | None = None
    """Record of the global rate."""

    rules: Rules | None = None


async def read_records(url: Url, policies: Policies, store: AsyncStore) -> HostRecords:
    """Read the records that decide about a URL. Raises StoreError."""
    host, overall = await store.read(policies.of(url.domain).key_for(url.domain)), await store.read(GLOBAL)
    rules = await store.read(rules_key(url.origin))
    return HostRecords(await store.now(), host, overall, rules)


@dataclass(frozen=True, slots=True)
class DryRun:
    """Outcome of a dry run: the first request that would be sent, or the result without a request."""

    seconds: float
    """Seconds until the request would be sent, or until the result is known."""

    end: Send | FetchResult
    private: str | None
    """Kind of the private address in the URL, permitted or not; None for other hosts."""

    effects: tuple[tuple[Effect, Any], ...]
    """Effects of the flow before the end, with their answers."""


async def dry_run(
    url: Url, policies: Policies, records: HostRecords, cache: PageCache | None = None, cache_mode: Mode = "normal"
) -> DryRun:
    """Run a fetch of a URL up to its first request. Nothing is sent, stored or logged.

    A stale copy is not served before its revalidation.
    """
    clock = _VirtualClock(records.now)
    store = AsyncMemoryStore(MemoryStore(clock))
    key = policies.of(url.domain).key_for(url.domain)
    for name, record in ((key, records.host), (GLOBAL, records.overall), (rules_key(url.origin), records.rules)):
        await store.update(name, _replaced_by(record))
    timers = _VirtualTimers(clock)
    context = Context(
        lambda: policies, timers.now, lambda: clock.now().epoch / SECOND, cache=cache, cache_mode=cache_mode
    )
    driver = Driver(context, Gate(store, timers=timers, roll=lambda: 0.5))
    effects: list[tuple[Effect, Any]] = []
    flow = fetch(FetchRequest(url.with_credentials), context)
    end = await driver.run_flow(_until_sent(flow, cache, effects))
    seconds = (clock.now().at - records.now.at) / SECOND
    return DryRun(seconds, end, context.refused_address(url), tuple(effects))


def _replaced_by(record: Record | None) -> Step[None]:
    """Return the step that stores a record."""
    return lambda _, now: (record, None)


def _until_sent(
    flow: Flow[FetchResult], cache: PageCache | None, effects: list[tuple[Effect, Any]]
) -> Generator[Effect, Any, Send | FetchResult]:
    """Forward and list the effects of a flow up to the first request; return that or the flow's result.

    A cached copy is answered without its body, so that its last use is not recorded. Nothing is cached or reported.
    """
    answer: Any = None
    while True:
        try:
            effect = flow.send(answer)
        except StopIteration as end:
            result: FetchResult = end.value
            return result
        match effect:
            case Send():
                flow.close()
                return effect
            case Recall(request):
                entry = None if cache is None else cache.entry(request)
                answer = None if entry is None else (entry, b"")
            case Later():
                answer = False
            case Keep() | Tell():
                answer = None
            case _:
                answer = yield effect
        effects.append((effect, answer))


class _VirtualClock:
    """Clock that starts at a given time and moves only by waits."""

    def __init__(self, now: Now) -> None:
        self._now = now

    def now(self) -> Now:
        return self._now

    def advance(self, microseconds: int) -> None:
        now = self._now
        self._now = Now(Instant(now.at + microseconds), now.epoch + microseconds, now.boot)


class _VirtualTimers:
    """Timers whose waits only advance a virtual clock."""

    def __init__(self, clock: _VirtualClock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now().at / SECOND

    def waiter(self) -> Waiter:
        return TaskWaiter()

    def stop_while(self, is_busy: Callable[[], bool]) -> None:
        """Do nothing: a dry run sends nothing that takes real time."""

    async def sleep(self, waiter: Waiter, seconds: float | None, *, is_exact: bool = True) -> None:
        assert seconds is not None, "a dry run has its queues for itself, so nothing would wake it"
        self._clock.advance(-int(-max(0.0, seconds) * SECOND // 1))  # rounded up

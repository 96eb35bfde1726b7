"""Download in progress: one fetch, or two if the earlier partial file is unusable, reported as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from curtsy.core.effects import FetchRequest
from curtsy.core.errors import Reason
from curtsy.core.fetch_state import FetchState
from curtsy.core.flow import closed, fetch, set_out
from curtsy.core.message import Url, parse_url
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.engine.context import HeldResources
from curtsy.engine.download import DownloadResult, Part
from curtsy.engine.driver import Driver
from curtsy.system.threads import begun_in_thread

T = TypeVar("T")


class DownloadTask:
    """Download of one file and its move into place.

    `driver` reports no records; `told` receives the only record of the download.
    """

    def __init__(self, ask: FetchRequest, part: Part, driver: Driver, told: Callable[[FetchRecord], None]) -> None:
        self._part = part
        self._driver = driver
        self._told = told
        self._state = set_out(ask, driver.context)
        self._resources = HeldResources(part)
        self._placed: asyncio.Future[DownloadResult] | None = None
        """Result of moving the file into place, once that has started."""

    async def work(self) -> DownloadResult:
        """Fetch the file and move it into place when complete."""
        result = await self._fetch()
        if self._part.is_of_no_use and result.reason is not Reason.TOO_LARGE:
            self._part.discard()
            self._state = _anew(self._state)
            result = await self._fetch()
        self._told(result.record)
        if result.reason is Reason.TOO_LARGE:
            self._part.discard()
        self._placed = begun_in_thread(self._part.result, result)
        return await _seen_through(self._placed)

    def closed(self) -> DownloadResult:
        """Return the result after the client was closed: the finished one if the move has started."""
        if self._placed is not None:
            return self._placed.result()
        result = closed(self._state, self._resources.is_sent, self._resources.is_robots)
        self._told(result.record)
        return self._part.result(result)

    async def _fetch(self) -> FetchResult:
        flow = fetch(self._state.ask, self._driver.context, self._state)
        return await self._driver.run_flow(flow, self._resources)


def _anew(state: FetchState) -> FetchState:
    """Return a new state that starts over, with the costs and the start time of the old one."""
    first = parse_url(state.ask.url)
    assert isinstance(first, Url)
    assert state.url is not None
    if state.url.domain != first.domain:
        state.leave_host()
    return FetchState(
        state.ask,
        state.world,
        state.began,
        state.world.policies,
        attempts=state.attempts,
        retries=state.retries,
        waited=state.waited,
        bytes=state.bytes,
        go=state.go,
        latency=state.latency,
        robots_requests=state.robots_requests,
        elsewhere=state.elsewhere,
    )


async def _seen_through(work: asyncio.Future[T]) -> T:
    """Return the result of work in a thread; raise a cancellation only after the work ends.

    A thread cannot be stopped: it could otherwise move another download's partial file into place.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return work.result()

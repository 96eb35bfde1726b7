"""Worker process of a crawl: it fetches and reads the URLs that the crawl's process claims.

`python -m curtsy.crawling.worker FD LOOP` serves the socket FD on an event loop of the library LOOP. The process has a
client, filters and running fetches of its own. Frontier, outputs and limits belong to the crawl's process
(worker_pool.py). A worker ends when its socket closes, so it never outlives the crawl.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import logging
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from curtsy.client import AsyncClient, session_of
from curtsy.crawling.channel import (
    Admit,
    Answer,
    Begin,
    Broken,
    Cancel,
    Channel,
    Divide,
    Enter,
    Fetch,
    FetchAll,
    Forget,
    Load,
    LogSender,
    Question,
    Report,
    Widen,
    Withdraw,
)
from curtsy.crawling.extract.scope import Scope
from curtsy.crawling.filters import Filters
from curtsy.crawling.frontier.protocol import Deferred
from curtsy.crawling.progress import Hosts
from curtsy.crawling.results import Finished, Results
from curtsy.crawling.running_fetches import RunningFetches
from curtsy.engine.timers import BatchWaiter, SystemTimers

LOGGER = "curtsy"


class Worker:
    """State of a worker process."""

    def __init__(self) -> None:
        self._channel = Channel(self._receive, lambda: self._ended.set())
        self._ended = asyncio.Event()
        self._numbers = itertools.count()
        self._questions: dict[int, asyncio.Future[bool]] = {}
        self._pending: deque[Fetch] = deque()
        """Claims that wait for a slot."""
        self._received = 0
        self._places = 1
        self._wanted: int | None = None
        self._located: list[tuple[str, str]] = []
        self._learned: dict[int, tuple[str, Mapping[str, str]]] = {}
        """Hrefs that need no further check when the claim is written, by its ticket."""
        self._told = Load()
        self._waiter = BatchWaiter(SystemTimers())
        """Waiter for the events of a turn."""
        self._results = Results()
        self._client: AsyncClient | None = None

    async def run(self, end: socket.socket) -> None:
        """Serve the socket to its end."""
        sender = LogSender(self._channel)
        logging.getLogger(LOGGER).addHandler(sender)
        await self._channel.open(end)
        turns = asyncio.ensure_future(self._take_turns())
        await self._ended.wait()
        turns.cancel()
        logging.getLogger(LOGGER).removeHandler(sender)
        if self._client is not None:
            await self._fetches.cancel_all()
            with contextlib.suppress(Exception):  # nobody is left to be told
                await self._client.close()

    def _receive(self, message: Any) -> None:
        self._guarded(lambda: self._obey(message))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Run a step; an error of our own ends the crawl instead of stopping it silently."""
        try:
            work()
        except Exception as error:
            self._channel.send(Broken(error))

    def _obey(self, message: Any) -> None:
        match message:
            case Begin():
                self._begin(message)
            case Enter(scope, widened, sitemaps):
                self._filters.scope = Scope.from_plain(scope)
                for url in widened:
                    self._filters.scope.widen(url)
                self._filters.sitemaps.resume(sitemaps)
            case Divide(among):
                self._fetches.divide(among)
            case Admit():
                for url in message.urls:
                    self._filters.scope.admit(url)
            case Widen(url):
                self._filters.scope.widen(url)
            case FetchAll(fetches, wanted, written):
                self._received += len(fetches)
                self._wanted = wanted
                for ticket in written:
                    if (learned := self._learned.pop(ticket, None)) is not None:
                        self._filters.known.learn(*learned)
                self._pending.extend(fetches)
                self._wake()
            case Forget():
                self._filters.known.clear()
                self._learned.clear()  # some may have been written before, which the next claims would report
            case Withdraw():
                self._give_back_pending()
                self._fetches.withdraw()
                self._wake()
            case Cancel():
                self._give_back_pending()
                self._cancelling = asyncio.ensure_future(self._cancel())
            case Answer(number, result):
                if (waiter := self._questions.pop(number, None)) is not None and not waiter.done():
                    if isinstance(result, Exception):
                        waiter.set_exception(result)
                    else:
                        waiter.set_result(result)

    def _begin(self, message: Begin) -> None:
        self._client = message.client
        session, options = session_of(message.client), message.options
        self._places = message.places
        self._filters = Filters(options, session, self, lambda: self._wanted)
        self._fetches = RunningFetches(
            session, self._filters, self._results, self._wake, self._locate, places=message.places,
            is_shared=message.is_shared, hosts=Hosts(options.max_pages_per_host),
        )  # fmt: skip
        session.timers.stop_while(lambda: self._fetches.places_in_use > 0)

    async def pass_over(self, url: str, other: str) -> bool:
        """Ask the frontier to skip a page in favour of another, unless the other was skipped."""
        number = next(self._numbers)
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._questions[number] = waiter
        self._channel.send(Question(number, url, other))
        return await waiter

    def _locate(self, host: str, address: str) -> None:
        self._located.append((host, address))

    def _give_back_pending(self) -> None:
        for each in self._pending:
            self._results.put(Finished(each.claimed, Deferred(0.0)))
        self._pending.clear()

    async def _cancel(self) -> None:
        await self._fetches.cancel_all()
        self._wake()

    def _wake(self) -> None:
        """Take a turn soon."""
        self._waiter.wake()

    async def _take_turns(self) -> None:
        """Take a turn after events, with all those of the same moment: each report costs both processes a wake-up."""
        while True:
            await self._waiter.sleep(None)
            self._guarded(self._turn)

    def _turn(self) -> None:
        """Start the claims that have a slot, and report what is new."""
        fetches = self._fetches
        while self._pending and fetches.places_in_use < self._places:
            each = self._pending.popleft()
            fetches.start(each.claimed, may_crowd=each.may_crowd)
        if fetches.broken is not None:
            self._channel.send(Broken(fetches.broken))
        load, returned = self._load(), self._results.finished
        believed = self._told.places + load.received - self._told.received  # by the crawl's process
        if returned or self._located or load.places < believed:
            for finished in returned:
                self._keep_learned(finished)
            self._channel.send(Report(load, returned, self._located))
            self._told, self._located = load, []
            returned.clear()

    def _load(self) -> Load:
        fetches, pending = self._fetches, len(self._pending)
        room = fetches.room()
        return Load(
            received=self._received,
            places=fetches.places_in_use + pending,
            on_wire=fetches.on_wire,
            looked_up=fetches.looked_up,
            queued_for_rate=fetches.queued_for_rate(),
            retrying=fetches.waiting_to_retry(),
            sites=dict(room.sites),
            addresses=dict(room.addresses or {}),
        )

    def _keep_learned(self, finished: Finished) -> None:
        """Keep what the crawl's process does not need, until it reports that the claim was written."""
        if finished.learned[1]:
            self._learned[finished.claimed.ticket] = finished.learned
            finished.learned = ("", {})


async def _serve(end: socket.socket) -> None:
    await Worker().run(end)


def main() -> None:
    """Run the process."""
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the crawl's process gets them too, and decides
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    end = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()  # as in the command: collections skip the modules
    with asyncio.Runner(loop_factory=import_module(sys.argv[2]).new_event_loop) as runner:
        runner.run(_serve(end))


if __name__ == "__main__":
    main()

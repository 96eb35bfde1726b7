"""Worker processes of a crawl on this machine (`workers=2`), as the crawl's loop sees them.

The crawl's process owns frontier, outputs and limits, so a crawl with workers has the guarantees of one without: pages
are written exactly once, and each host has one queue. Fetching and reading take most of the CPU time of a crawl, and
they are what the workers do (worker.py). All URLs of a registered domain go to one worker, which therefore has their
connections, rules and slots. Limits of hosts are in the store, which all processes share.

A worker that dies is started again. Its URLs go back to the frontier. If a URL was with several workers that died, it
is read alone, and at last given up, as after kills of the whole crawl.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import socket
import subprocess
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from curtsy.client import AsyncClient, session_of
from curtsy.core import crawl_messages
from curtsy.core.errors import CurtsyError, PolicyError
from curtsy.core.fair_share import FairShares
from curtsy.core.setting import rule
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
    Load,
    Logged,
    Question,
    Report,
    Widen,
    Withdraw,
    start_worker,
)
from curtsy.crawling.filters import Filters
from curtsy.crawling.frontier.protocol import AsyncFrontier, Claimed, Deferred, Room
from curtsy.crawling.jobs import SITEMAPS, WIDENED, widened_by
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.progress import Hosts
from curtsy.crawling.results import Finished, Results
from curtsy.crawling.running_fetches import SUSPECT
from curtsy.http.registered_domain import site_of
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.threads import in_thread

_log: LibraryLogger = library_logger("crawl")

MOST_DEATHS = 20
"""Maximum number of workers that are started again in one run."""

CLOSING, HASTY = 5.0, 1.0
"""Seconds for the workers to end, and if the crawl was stopped."""

RETURNING = 0.75
"""Seconds for workers to return their URLs at the end of a crawl. Later ones are killed, so that it ends in order."""

MOST_WORKERS = 256


class WorkersDied(CurtsyError):
    """Error: more worker processes died than are started again."""


def workers_of(given: int | Literal["auto"]) -> int:
    """Return the number of worker processes; `auto` stands for the cores of this process. Raises PolicyError."""
    if given == "auto":
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= MOST_WORKERS:
        raise rule("workers", given, f"a number of processes from 1 to {MOST_WORKERS}, or 'auto'", 1)
    return given


def check_workers(count: int, client: AsyncClient, extract: object) -> None:
    """Raise PolicyError if a client, or the function `extract`, cannot be used by several processes."""
    session = session_of(client)
    if not hasattr(socket, "AF_UNIX"):
        raise PolicyError(crawl_messages.no_workers(count, "this system cannot pass sockets to processes"))
    if session.on_record is not None:
        raise PolicyError(crawl_messages.no_workers(count, "on_record would be called in other processes"))
    if session.gate.is_immediate:
        raise PolicyError(crawl_messages.no_workers(count, "the store is in memory, which other processes cannot see"))
    if inspect.isfunction(extract) and extract.__module__ == "__main__":
        why = "worker processes do not import the main file, which has the function extract. Put it into a module"
        raise PolicyError(crawl_messages.no_workers(count, why))
    try:
        pickle.dumps(extract)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        why = f"extract cannot be pickled ({error}). Put the function into a module, at its top level"
        raise PolicyError(crawl_messages.no_workers(count, why)) from None
    try:
        pickle.dumps(client)
    except PolicyError as error:
        raise PolicyError(crawl_messages.no_workers(count, str(error).rstrip("."))) from None
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise PolicyError(
            crawl_messages.no_workers(count, f"an argument of the client cannot be pickled ({error})")
        ) from None


@dataclass(slots=True, eq=False)
class SentClaim:
    """Claim that a worker has."""

    claimed: Claimed
    worker: int
    began_at: float


@dataclass(slots=True, eq=False)
class _Process:
    """Worker process."""

    channel: Channel
    process: subprocess.Popen[bytes]
    sent: int = 0
    """Number of claims sent."""
    recent: list[str] = field(default_factory=list)
    """Registered domains of the latest claims, which `load` may not include yet."""
    load: Load = field(default_factory=Load)
    batch: list[Fetch] = field(default_factory=list)
    """Claims to send together."""
    written: list[int] = field(default_factory=list)
    """Tickets of its claims that were written, to send with the next batch: a message of its own would wake the worker
    for each page."""

    def unseen(self) -> list[str]:
        """Return the registered domains of the claims that `load` does not include."""
        missing = self.sent - self.load.received
        return self.recent[-missing:] if missing else []


class WorkerPool:
    """Worker processes. It takes the place of `RunningFetches` in the crawl's loop."""

    def __init__(self, count: int, client: AsyncClient, options: CrawlOptions, *, is_shared: bool) -> None:
        """Create a pool of at most `count` workers; `open` starts them."""
        self._count = min(count, options.max_in_flight)
        self._client = client
        self._options = options
        self._is_shared = is_shared
        self._timers = session_of(client).timers
        self._places = options.max_in_flight // self._count
        self.ahead = 0 if is_shared else self._places * self._count
        """Number of URLs that may be claimed before they have a slot, so that no worker waits for the answer to its
        report. In a shared frontier, other machines may have a slot for them."""
        self._sites: FairShares[str] = FairShares(self._places)
        """Unfinished fetches of each registered domain."""
        self._processes: list[_Process | None] = [None] * self._count
        """Workers; None while one is started again."""
        self._sent: dict[int, SentClaim] = {}
        """Unfinished claims, by ticket."""
        self._returned_by: dict[int, _Process] = {}
        """Workers of the claims that are to be written, by ticket."""
        self._entered: Enter | None = None
        self._admitted: list[Admit] = []
        self._widened: list[str] = []
        self._crashes: Counter[str] = Counter()
        """How many workers died that had a URL."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._returned = asyncio.Event()
        self._is_closed = False
        self._among = 1
        """Number of processes that divide the common limits in an outage, as the workers know it."""
        self.deaths = 0
        """Number of workers that died in this run."""
        self.hosts = Hosts()
        self.broken: BaseException | None = None

    def bind(
        self, filters: Filters, results: Results, wake: Callable[[], None], frontier: AsyncFrontier,
        wanted: Callable[[], int | None],
    ) -> None:  # fmt: skip
        """Connect the pool with the crawl's loop."""
        self._filters = filters
        self._results = results
        self._wake = wake
        self._frontier = frontier
        self._wanted = wanted

    # Processes

    async def open(self) -> None:
        """Start the workers."""
        for number in range(self._count):
            await self._start(number)

    async def _start(self, number: int) -> None:
        end, process = start_worker()
        channel = Channel(lambda message: self._receive(number, message), lambda: self._lose(number))
        await channel.open(end)
        self._processes[number] = _Process(channel, process)
        if channel.is_lost:  # already
            self._lose(number)
            return
        channel.send(Begin(self._client, self._options, self._places, self._is_shared))
        channel.send(Divide(self._among))
        if self._entered is not None:
            channel.send(msgspec.structs.replace(self._entered, widened=self._widened))
            for each in self._admitted:
                channel.send(each)

    def _lose(self, number: int) -> None:
        """Put back the URLs of a worker that died, and start it again."""
        lost, self._processes[number] = self._processes[number], None
        if lost is None or self._is_closed:
            return
        self.deaths += 1
        held = [sent.claimed for sent in self._sent.values() if sent.worker == number]
        for claimed in held:
            self._take(claimed.ticket)
            self._crashes[claimed.url] += 1
            self._put_back(claimed)
        _log.warning(crawl_messages.worker_died(number, lost.process.pid, len(held)))
        if self.deaths > MOST_DEATHS:
            self.broken = WorkersDied(crawl_messages.workers_died(self.deaths))
        else:
            self._begin(self._replace(number, lost.process))
        self._wake()

    async def _replace(self, number: int, process: subprocess.Popen[bytes]) -> None:
        process.kill()  # it may have closed its socket only
        await in_thread(process.wait)
        if not self._is_closed:
            await self._start(number)
            self._wake()

    def divide(self, among: int) -> None:
        """Divide the common limits of an outage among so many crawls, each with as many workers."""
        if (among := among * self._count) != self._among:
            self._among = among
            for each in self._processes:
                if each is not None:
                    each.channel.send(Divide(among))

    def _begin(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self, seconds: float = CLOSING) -> None:
        """End the workers; kill those that take longer than `seconds`."""
        self._is_closed = True
        if self._tasks:
            await asyncio.wait(self._tasks)
        processes, self._processes = [each for each in self._processes if each], [None] * self._count
        for each in processes:
            each.channel.close()
        until = time.monotonic() + seconds
        for each in processes:
            try:
                await in_thread(each.process.wait, max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                each.process.kill()
                await in_thread(each.process.wait)

    def broadcast(self, message: Any, but: int | None = None) -> None:
        """Send a message to all workers, or to all but one."""
        for number, process in enumerate(self._processes):
            if process is not None and number != but:
                process.channel.send(message)

    # Messages

    def _receive(self, number: int, message: Any) -> None:
        match message:
            case Report():
                self._read(number, message)
            case Question():
                self._begin(self._answer(number, message))
            case Broken(error):
                self.broken = self.broken or error
                self._wake()
            case Logged():
                message.log()

    def _read(self, number: int, report: Report) -> None:
        process = self._processes[number]
        assert process is not None
        process.load = report.load
        process.recent = process.unseen()
        for host, address in report.located:
            self._frontier.locate(host, address)
        now = self._timers.now()
        for finished in report.returned:
            if (sent := self._take(finished.claimed.ticket)) is None:
                continue
            finished.claimed = sent.claimed  # its lease may have been renewed
            self._returned_by[finished.claimed.ticket] = process
            self._learn(number, finished)
            self._results.put(finished)
            self.hosts.ended(finished, now)
        self._wake()

    def _learn(self, number: int, finished: Finished) -> None:
        """Take what a worker has learned about the scope and sitemaps."""
        for name in finished.notes:
            if name.startswith(WIDENED):
                url = name.removeprefix(WIDENED)
                self._filters.scope.widen(url)
                self._widened.append(url)
                self.broadcast(Widen(url), but=number)
        if SITEMAPS in finished.notes:  # each worker counts those of its own sites
            self._filters.sitemaps.resume(finished.notes[SITEMAPS])
            finished.notes = {**finished.notes, SITEMAPS: self._filters.sitemaps.noted()}

    async def _answer(self, number: int, question: Question) -> None:
        result: bool | Exception
        try:
            result = await self._frontier.pass_over(question.url, question.other)
        except CurtsyError as error:
            result = error
        if (process := self._processes[number]) is not None:
            process.channel.send(Answer(question.number, result))

    # What the crawl says

    def enter(self, notes: Mapping[str, Any]) -> None:
        """Give the scope to the workers, with what the job's notes say about it."""
        self._widened = widened_by(notes)
        self._entered = Enter(self._filters.scope.as_plain(), self._widened, notes.get(SITEMAPS))
        self.broadcast(self._entered)

    def admit(self, urls: Sequence[str]) -> None:
        """Extend the scope by further seeds."""
        self._admitted.append(Admit.of(urls))
        self.broadcast(self._admitted[-1])

    def written(self, batch: Sequence[Finished]) -> None:
        """Report that claims were written, each to the worker that had it."""
        for each in batch:
            ticket = each.claimed.ticket
            process = self._returned_by.pop(ticket, None)
            if process is not None:
                process.written.append(ticket)

    def suspected(self, claims: Sequence[Claimed]) -> list[Claimed]:
        """Count workers that died with a URL as tries of its claim."""
        if not self._crashes:
            return list(claims)
        return [msgspec.structs.replace(each, tries=each.tries + self._crashes[each.url]) for each in claims]

    # In place of RunningFetches

    def __len__(self) -> int:
        return len(self._sent)

    def _loads(self) -> list[Load]:
        return [each.load for each in self._processes if each is not None]

    def _unseen(self) -> list[str]:
        return [site for each in self._processes if each is not None for site in each.unseen()]

    @property
    def on_wire(self) -> int:
        """Return the number of fetches on the wire."""
        return sum(each.on_wire for each in self._loads())

    @property
    def looked_up(self) -> int:
        """Return the number of fetches that wait for the lookup of their host."""
        return sum(each.looked_up for each in self._loads())

    @property
    def places_in_use(self) -> int:
        """Return the number of claims that have a slot or wait for one; the maximum while no worker is ready."""
        if not any(self._processes):
            return self._options.max_in_flight + self.ahead
        return sum(each.places for each in self._loads()) + len(self._unseen())

    @property
    def is_suspect_running(self) -> bool:
        """Return whether the only fetch is one that must be the only fetch."""
        return len(self) == 1 and any(each.claimed.tries >= SUSPECT for each in self._sent.values())

    @property
    def oldest_at(self) -> float | None:
        """Return when the oldest running fetch began; None if there is none."""
        oldest = next(iter(self._sent.values()), None)
        return None if oldest is None else oldest.began_at

    def unanswered(self) -> list[SentClaim]:
        """Return the claims that the workers have."""
        return list(self._sent.values())

    def queued_for_rate(self) -> int:
        """Return the number of fetches that know their rules and wait for their first request."""
        return sum(each.queued_for_rate for each in self._loads())

    def waiting_to_retry(self) -> Counter[str]:
        """Return the number of fetches that had a reply and wait for a retry, by the reason of the reply."""
        return sum((Counter(each.retrying) for each in self._loads()), Counter())

    def room(self) -> Room:
        """Return the current shares of slots."""
        sites, addresses = Counter(self._unseen()), Counter[str]()
        for each in self._loads():
            sites.update(each.sites)
            addresses.update(each.addresses)
        return Room(self._sites.share, sites, addresses)

    def wider_room(self, claims: Sequence[Claimed]) -> Room | None:
        """Return the shares to use if `room` yields only these claims; None if they are the same.

        If all present and recent fetches are of one registered domain, it may use all slots of its worker. The same
        holds for one address; its registered domains keep their shares.
        """
        room, now = self.room(), self._timers.now()
        sites = {site_of(each.host) for each in claims} | set(self._sites.held)
        if len(sites) == 1 and self._sites.is_alone(site := sites.pop(), now):
            held = room.sites.get(site, 0) + len(claims)
            return Room(self._places, {site: held}, None) if room.share <= held < self._places else None
        held_at = room.addresses or {}
        is_one_address = not claims and len(held_at) == 1 and sum(held_at.values()) >= room.share
        return Room(room.share, room.sites, None) if is_one_address else None

    def start(self, claimed: Claimed, *, may_crowd: bool = False) -> None:
        """Give a claim to the worker of its registered domain."""
        site, now = site_of(claimed.host), self._timers.now()
        number = zlib.crc32(site.encode()) % self._count
        if (process := self._processes[number]) is None:  # it is started again
            ready = [place for place, each in enumerate(self._processes) if each is not None]
            if not ready:
                self._results.put(Finished(claimed, Deferred(0.0)))
                return
            number = ready[zlib.crc32(site.encode()) % len(ready)]
            process = self._processes[number]
            assert process is not None
        process.sent += 1
        process.recent.append(site)
        self._sent[claimed.ticket] = SentClaim(claimed, number, now)
        self._sites.take(site, now)
        self.hosts.began(claimed.host)
        if not process.batch:
            asyncio.get_running_loop().call_soon(self._send, process)
        process.batch.append(Fetch(claimed, may_crowd))

    def _send(self, process: _Process) -> None:
        """Send the claims of one moment, so that the worker starts them together."""
        process.channel.send(FetchAll(process.batch, self._wanted(), process.written))
        process.batch, process.written = [], []

    def _take(self, ticket: int) -> SentClaim | None:
        """Remove a claim that a worker has; return None if it has no such claim."""
        sent = self._sent.pop(ticket, None)
        if sent is not None:
            self._sites.give_back(site_of(sent.claimed.host), self._timers.now())
            if not self._sent:
                self._returned.set()
        return sent

    def withdraw(self) -> None:
        """Put back the URLs that wait for a request. A received page is kept, so call this repeatedly."""
        self.broadcast(Withdraw())

    async def cancel_all(self) -> None:
        """Cancel all running fetches at the end of the crawl, and put back their URLs. May kill workers."""
        if self._sent:
            self._returned.clear()
            self.broadcast(Cancel())
            try:
                await asyncio.wait_for(self._returned.wait(), RETURNING)
            except TimeoutError:
                await self._kill_holders()

    async def _kill_holders(self) -> None:
        """Kill the workers that still have URLs, and put these back."""
        self._is_closed = True  # so that no worker is started again
        held = list(self._sent.values())
        for each in held:
            self._take(each.claimed.ticket)
            self._put_back(each.claimed)
        for number in {each.worker for each in held}:
            if (process := self._processes[number]) is not None:
                process.process.kill()
                await in_thread(process.process.wait)

    def _put_back(self, claimed: Claimed) -> None:
        finished = Finished(claimed, Deferred(0.0))
        self._results.put(finished)
        self.hosts.ended(finished, self._timers.now())

"""The loop of a crawl: claim what is due, fetch it, read it, write it down; until nothing is left or enough is enough.

One task turns the loop (`_turn`); every URL that was claimed has a task of its own until its answer has been read. What
is finished is written before more is claimed, so a kill repeats no more than what was in flight. Admission alone says
when a host may be asked: a URL whose turn has not come is put back with the time that admission named, and costs no
place meanwhile. In flight is what is on the wire, never what waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from curtsy.alarm import FakeAlarm, Waiter
from curtsy.client import AsyncClient
from curtsy.core.effects import Ask
from curtsy.core.errors import CurtsyError, PolicyError
from curtsy.core.explain import span
from curtsy.core.message import SECOND, InvalidUrl, parse_url
from curtsy.crawling.frontier import LEASE, AsyncFrontier, Claimed, Counts, Deferred, Found, host_of
from curtsy.crawling.gauge import Gauge, time_left
from curtsy.crawling.harvest import TOTALS, Finished, Harvest, counted
from curtsy.crawling.hosts import Hosts
from curtsy.crawling.jobs import Identity
from curtsy.crawling.judge import SCOPE, Judge
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.outputs import Output
from curtsy.crawling.page import CrawledPage
from curtsy.crawling.progress import Plan, Snapshot, Summary, Totals, gap_of, pages_left, plan
from curtsy.crawling.publishing import Bulletin
from curtsy.crawling.reader import SEED_PRIORITY
from curtsy.crawling.scope import Scope
from curtsy.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("crawl")

LINGER = 0.05
"""Seconds that a URL stands in its host's line; if its turn comes later, it goes back to the frontier until then."""

GRACE = 8.0
"""Seconds that what is in flight has to end when a crawl is stopped; what is left goes back to the frontier (F46)."""

SUSPECT, GUILTY = 3, 6
"""How often a URL went out and nothing was heard again, before it is read with nothing else in flight, and before it
is given up: a page on which the reader crashes would else end every run."""

MOST_REASONS = 10_000
"""URLs whose reasons a summary names."""

SHARED_LOOK = 1.0
"""Seconds after which a frontier is looked at again that others add to."""

LONGEST_TROUBLE = 30.0
"""Seconds after which a full disk or a lost server is tried again, at the longest."""

SEEDS, PAGES = "seeds", "pages:"
"""Notes: where a job began, and the pages of each host if they are counted."""


class _Visit:
    """One URL that was claimed, while it is being fetched."""

    __slots__ = ("claimed", "crawl", "is_answered", "is_called_off", "is_on_wire", "is_starting")

    def __init__(self, crawl: AsyncCrawl, claimed: Claimed) -> None:
        self.crawl = crawl
        self.claimed = claimed
        self.is_starting = True
        self.is_on_wire = self.is_answered = self.is_called_off = False
        crawl.starting += 1

    def on_wire(self, is_on_wire: bool) -> None:
        """Count what is on the wire."""
        self.is_on_wire = is_on_wire
        self.crawl.on_wire += 1 if is_on_wire else -1
        self.started()
        if not is_on_wire:
            self.crawl.wake()

    def started(self) -> None:
        """It is on the wire, or will never be."""
        if self.is_starting:
            self.is_starting = False
            self.crawl.starting -= 1


class AsyncCrawl:
    """A crawl, for tasks: iterate over it for its pages, or `run()` it for its outputs' sake. `acrawl()` makes one.

    A page that was handed out counts as done when the next one is asked for: killed before, it comes again.
    """

    def __init__(
        self,
        seeds: Sequence[str],
        options: CrawlOptions,
        client: AsyncClient,
        frontier: AsyncFrontier,
        *,
        outputs: Sequence[Output] = (),
        job: str = "",
        lease: float | None = None,
        who: Identity | None = None,
        owns_client: bool = False,
    ) -> None:
        """`lease` says for how long a URL is ours if others work on the same frontier, and `who` we are among them."""
        self.options = options
        self.client = client
        self.frontier = frontier
        self.seeds = tuple(canonical(seed) for seed in seeds)
        self.totals = Totals()
        """What the job has done, over all its runs."""
        self.summary: Summary | None = None
        """What came of it; None before its end."""
        self.starting = 0
        """Visits that are not on the wire yet."""
        self.on_wire = 0
        self._lease = lease
        self._identity = who
        self._who = "" if who is None else f":{who.name}"
        self._owns_client = owns_client
        self._alarm = client.alarm
        self._harvest = Harvest(frontier, outputs, self._who)
        self._judge = Judge(self.seeds, options, client)
        self._hosts = Hosts()
        self._gauge = Gauge()
        self._bulletin = Bulletin(client, job, self._who, self.seeds, self.snapshot)
        self._visits: dict[asyncio.Task[None], _Visit] = {}
        self._broken: BaseException | None = None
        self._suspects = 0
        """Visits with which nothing else is to be in flight."""
        self._finished: list[Finished] = []
        """To be written."""
        self._unread: deque[Finished] = deque()
        """To be handed out."""
        self._handed: dict[int, Finished] = {}
        """What was handed out and not dealt with yet, by ticket."""
        self._is_iterated = False
        self._others = 0
        """Pages of other workers on the same frontier."""
        self._pages_before: dict[str, int] = {}
        self._before = Totals()
        self._counts = Counts(0, 0, 0, 0, 0)
        self._waiter: Waiter | None = None
        self._is_waking = False
        """Whether a turn is on its way, which will see all that happens until then."""
        self._news = asyncio.Event()
        self._stopping: str | None = None
        self._stop_by = 0.0
        self._due: float | None = 0.0
        self._due_at = 0.0
        self._trouble: str | None = None
        """What keeps the crawl from writing, in words."""
        self._began = self._looked_at = self._renewed_at = self._alarm.now()
        self._main: asyncio.Task[None] | None = None
        self._is_closing = self._is_closed = False
        if isinstance(self._alarm, FakeAlarm):
            quiet = self._alarm.quiet
            self._alarm.quiet = lambda: quiet() and not self.starting and not self.on_wire and not self._is_waking

    @property
    def scope(self) -> Scope:
        """Which URLs belong to it; where a seed redirects to may widen it."""
        return self._judge.scope

    @property
    def is_shared(self) -> bool:
        """Whether others may be at it too."""
        return self._lease is not None

    # What users call.

    async def run(self) -> Summary:
        """Crawl to the end, pages going to the outputs alone."""
        main = await self._started()
        try:
            await asyncio.shield(main)
        except asyncio.CancelledError:
            if not main.done():  # whoever is called off wants an end, and what is in flight goes back
                self.stop()
                self.stop()
                await asyncio.wait([main])
            raise
        assert self.summary is not None
        return self.summary

    def __aiter__(self) -> AsyncIterator[CrawledPage]:
        """The pages, as they come."""
        return self._pages()

    async def _pages(self) -> AsyncGenerator[CrawledPage, None]:
        self._is_iterated = True
        main = await self._started()
        try:
            while True:
                while not self._unread and not main.done():
                    self._news.clear()
                    await self._news.wait()
                if not self._unread:
                    break
                finished = self._unread.popleft()
                assert finished.page is not None
                self._handed[finished.claimed.ticket] = finished
                try:
                    yield finished.page
                finally:  # whoever breaks off has had it
                    if self._handed.pop(finished.claimed.ticket, None) is not None:
                        self._finished.append(finished)
                    self.wake()
        finally:
            if not main.done():  # what nobody asks for any more goes back at once
                self.stop()
                self.stop()
            await asyncio.shield(main)

    async def plan(self) -> Plan:
        """Say what it may take, before it starts. Asks nothing of any site."""
        self._check_open()
        policies = self.client.policies
        allowed: int | None = 0
        gaps = []
        for host in dict.fromkeys(host_of(seed) for seed in self.seeds):
            policy = policies.of(host)
            record = await self.client.store.read(policy.key_for(host))
            gaps.append(gap_of(policy, 0.0 if record is None else record.crawl_delay / SECOND))
            left = pages_left(policy, record, self.client.epoch())
            allowed = None if left is None or allowed is None else allowed + left
        pages = self.options.max_pages
        if pages is not None:  # of which a job may have some already
            pages = max(0, pages - sum(each.pages for each in _totals(await self.frontier.notes())))
        return plan(pages, gaps, policies.overall, allowed)

    async def snapshot(self, hosts: int = 50) -> Snapshot:
        """How far it has come, with the state of so many hosts."""
        now, summary = self._alarm.now(), self.summary
        queues = [] if summary is not None or self._is_closed else await self.frontier.busiest(hosts)
        pages = self.totals.pages
        most, patience = self.options.max_pages, self.options.patience
        if most is not None:
            most = max(0, most - pages - self._others)
        rate = self._gauge.rate(now, pages)
        left = time_left(self._counts.queued, most, queues, self.client.policies, rate, patience)
        return Snapshot(
            state=self._state(),
            totals=self.totals,
            queued=self._counts.queued,
            in_flight=self.on_wire,
            hosts_seen=max(self._counts.hosts, self._hosts.count()),
            rate=rate,
            elapsed=now - self._began,
            time_left=None if summary is not None else left,
            waiting_for=self._waiting_for(),
            hosts=self._hosts.progress(queues, now, hosts),
        )

    async def snapshots(self, every: float = 1.0) -> AsyncGenerator[Snapshot, None]:
        """How far it has come, again and again until it has ended."""
        while self.summary is None and not self._is_closed:
            yield await self.snapshot()
            if self._main is None:
                await asyncio.sleep(every)
            else:
                await asyncio.wait([self._main], timeout=every)
        yield await self.snapshot()

    def stop(self, why: str = "stopped") -> None:
        """Ask for nothing more, let what is in flight end, and keep everything else for another time.

        Called again, it ends what is in flight at once.
        """
        self._stop_by = self._alarm.now() + GRACE if self._stopping is None else 0.0
        self._stopping = why
        if self._waiter is not None:
            self._waiter.wake()  # from any thread

    async def close(self) -> None:
        """End it, wherever it is, and give back what is held open. Idempotent."""
        if self._main is not None:
            if not self._main.done():
                self._is_closing = True
                self._finished += self._handed.values()  # whoever closes it has had them
                self._handed.clear()
                self.stop()
            await asyncio.wait([self._main])
            error = None if self._main.cancelled() else self._main.exception()
            if error is not None and not isinstance(error, CurtsyError):
                raise error
        await self._shut()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # The loop.

    async def _started(self) -> asyncio.Task[None]:
        if self._main is None:
            self._check_open()
            try:
                await self._open()
            except BaseException:
                await self._shut()
                raise
            self._main = asyncio.ensure_future(self._loop())
            self._main.add_done_callback(lambda _: self._news.set())
        return self._main

    def _check_open(self) -> None:
        if self._is_closed:
            raise PolicyError("This crawl is closed. Make another one; with the same job it goes on.")

    async def _open(self) -> None:
        notes = await self._harvest.open()
        if (kept := notes.get(TOTALS + self._who)) is not None:
            self._before = msgspec.convert(kept, Totals)
            self.totals = self._before
        self._pages_before = {name[len(PAGES) :]: n for name, n in notes.items() if name.startswith(PAGES)}
        self._count_others(notes)
        if (old := notes.get(SCOPE)) is not None:
            for change in self._judge.scope.changes(old):
                _log.warning(
                    f"The crawl goes on with another scope: {change}. What was left out before stays left out."
                )
            self._judge.scope = self._judge.scope.resumed(old)
        await self.frontier.note({SCOPE: self._judge.scope.as_plain(), SEEDS: list(self.seeds)})
        await self.frontier.add(Found(self.seeds, priority=SEED_PRIORITY))
        self._counts = await self.frontier.counts()
        self._began = self._looked_at = self._renewed_at = self._alarm.now()

    async def _shut(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        wrong = self._harvest.close()
        await self.frontier.close()
        if self._identity is not None:
            self._identity.close()
        if self._owns_client:
            await self.client.close()
        if wrong is not None:
            raise wrong

    async def _loop(self) -> None:
        self._waiter, self._events = self._alarm.async_waiter(), asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(each) for each in (self._tick(), self._bulletin.run())]
        wait = 1.0
        try:
            while True:
                try:
                    ended = await self._turn()
                except CurtsyError as error:  # the disk is full, the server is gone: what is finished is kept
                    if self._stopping is not None or isinstance(error, PolicyError):
                        raise
                    if self._trouble is None:
                        _log.warning(f"{error} The crawl pauses, and goes on by itself when that is mended.")
                    self._trouble = str(error)
                    await self._wait(wait)
                    wait = min(2 * wait, LONGEST_TROUBLE)
                    continue
                wait, self._trouble = 1.0, None
                if ended is not None:
                    await self._end(ended)
                    return
        finally:
            self._waiter, self._is_waking = None, False
            for task in (*tasks, *self._visits):
                task.cancel()
            await asyncio.gather(*tasks, *self._visits, return_exceptions=True)
            await self._bulletin.tell(is_over=True)
            await self._shut()

    async def _turn(self) -> str | None:
        """Write what is finished, start what is due, then wait for news; why the crawl is over, if it is."""
        self._is_waking = False
        if self._finished:
            await self._write()
        if self._broken is not None:
            raise self._broken
        await self._renew()
        over = self._over()
        if over is None:
            for each in await self._claim():
                self._start(each)
        elif self._stopping is not None and (self._alarm.now() >= self._stop_by or self._is_abandoned()):
            await self._call_off()
            return over
        else:
            self._withdraw()
        if self._finished:
            return None
        is_idle = not self._visits and not self._unread and not self._handed
        if over is not None:
            if is_idle:
                return over
            await self._wait(self._renew_in() if self._stopping is None else self._stop_by - self._alarm.now())
            return None
        due = self._due = await self.frontier.due_in()
        self._due_at = self._alarm.now() + (due or 0.0)
        await self._look()
        if is_idle:
            if due is None:
                return "done"
            if due > self.options.patience:
                return "later"
        await self._wait(self._pause(due))
        return None

    def _pause(self, due: float | None) -> float | None:
        """Seconds to wait if there is no news; None for any number."""
        waits = [self._renew_in()] if self._visits or self._unread or self._handed else []
        if due is not None and self._room() > 0:
            waits.append(due)
        if self._lease is not None:
            waits.append(SHARED_LOOK)
        if self.options.max_time is not None:
            waits.append(self.options.max_time - (self._alarm.now() - self._began))
        return max(0.0, min(waits)) if waits else None

    async def _wait(self, seconds: float | None) -> None:
        assert self._waiter is not None
        if seconds is None or isinstance(self._alarm, FakeAlarm):
            await self._alarm.async_sleep(self._waiter, seconds)
            return
        # The alarm is exact to microseconds, which costs it half a millisecond of CPU each time. Here the event loop's
        # own timer will do: it is never early, and a millisecond late at most.
        timer = self._events.call_later(seconds, self._waiter.wake)
        try:
            await self._alarm.async_sleep(self._waiter, None)
        finally:
            timer.cancel()

    def wake(self) -> None:
        """Have the loop turn, once for all that comes at the same time."""
        if self._waiter is not None and not self._is_waking:
            self._is_waking = True
            self._events.call_soon(self._waiter.wake)

    def _over(self) -> str | None:
        """Why nothing more is to be claimed; None if something is."""
        options = self.options
        if self._stopping is not None:
            return self._stopping
        if options.max_pages is not None and self.totals.pages + self._others >= options.max_pages:
            return "max_pages"
        if options.max_time is not None and self._alarm.now() - self._began >= options.max_time:
            return "max_time"
        if options.max_bytes is not None and self.totals.bytes - self._before.bytes >= options.max_bytes:
            return "max_bytes"
        return None

    def _room(self) -> int:
        """How many more may be claimed."""
        options = self.options
        unread = len(self._unread) + len(self._handed)
        if unread >= options.max_concurrent or self._suspects:
            return 0
        most, qps = options.max_concurrent, self.client.policies.global_qps
        if qps is not None:
            most = min(most, _line(qps) - (len(self._visits) - self.starting - self.on_wire))
        room = most - self.on_wire - self.starting
        if options.max_pages is not None:
            under_way = len(self._visits) + len(self._finished) + unread
            room = min(room, options.max_pages - self.totals.pages - self._others - under_way)
        return room

    async def _claim(self) -> list[Claimed]:
        room = self._room()
        if room <= 0:
            return []
        claimed = await self.frontier.claim(room)
        suspects = [each for each in claimed if each.tries >= SUSPECT]
        if not suspects:
            return claimed
        # A suspect is read alone, so that what happens can be nobody else's fault; the others wait for a moment.
        alone = [] if self._visits else suspects[:1]
        self._finished += [Finished(each, Deferred(LINGER)) for each in claimed if each not in alone]
        return alone

    def _start(self, claimed: Claimed) -> None:
        if (refused := self._refused(claimed)) is not None:
            self._finished.append(refused)
            return
        visit = _Visit(self, claimed)
        self._hosts.began(claimed.host)
        task = asyncio.ensure_future(self._visit(visit))
        self._visits[task] = visit
        self._suspects += claimed.tries >= SUSPECT
        task.add_done_callback(self._ended)

    def _refused(self, claimed: Claimed) -> Finished | None:
        """What is not fetched though it was queued."""
        most = self.options.max_pages_per_host
        if most is not None:
            pages = self._pages_of(claimed.host)
            if pages >= most:
                return self._judge.skipped(claimed, "host_limit", f"its host has had its {most} pages in this crawl")
            if pages + self._hosts.out(claimed.host) >= most:  # what is under way may be the last of them, or no page
                return Finished(claimed, Deferred(LINGER))
        if claimed.tries >= GUILTY:
            why = "the process ended each time that it was read"
            return self._judge.skipped(claimed, "reader_crashed", why, failed=True)
        return None

    def _pages_of(self, host: str) -> int:
        return self._hosts.pages(host) + self._pages_before.get(host, 0)

    def _ended(self, task: asyncio.Task[None]) -> None:
        visit = self._visits.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken = error  # a fault of our own: better to end than to go on with a URL that nobody has
        visit.started()
        self._suspects -= visit.claimed.tries >= SUSPECT
        self.wake()

    async def _visit(self, visit: _Visit) -> None:
        """Fetch one URL, and put what came of it where it is written or handed out."""
        claimed, result, heard_at = visit.claimed, None, None
        finished = Finished(claimed, Deferred(0.0))  # if it is called off
        try:
            result = await self.client.visit(self._ask(claimed), visit.on_wire)
            visit.is_answered = True
            heard_at = self._alarm.now()
            finished = await self._judge.judge(claimed, result)
        except PolicyError as error:  # not this page's fault, and so the next one's too: the client is closed, say
            self._broken = error
        except Exception as error:  # one that fails does not stop the others (N10)
            _log.error("A page could not be dealt with", url=claimed.url, error=repr(error))
            finished = self._judge.skipped(claimed, "error", f"{type(error).__name__}: {error}", failed=True)
        finally:
            end = finished.end
            wait = end.seconds if isinstance(end, Deferred) else end.after
            finished.heard_at = heard_at
            finished.bytes = 0 if result is None else result.record.bytes
            self._hosts.ended(
                claimed.host, result, wait, heard_at or self._alarm.now(), is_page=finished.page is not None
            )  # fmt: skip
            if finished.page is not None and self.options.max_pages_per_host is not None:
                finished.notes = {PAGES + claimed.host: self._pages_of(claimed.host)}
            if finished.page is not None and self._is_iterated:
                self._unread.append(finished)
                self._news.set()
            else:
                self._finished.append(finished)

    def _ask(self, claimed: Claimed) -> Ask:
        # Nothing is sent when the lease may be another's (F60).
        deadline = None if self._lease is None else max(0.001, claimed.leased_until - self._alarm.now())
        qps = self.client.policies.global_qps
        linger = LINGER if qps is None else _line(qps) / qps
        return Ask(claimed.url, linger=linger, follow=False, deadline=deadline)

    async def _write(self) -> None:
        batch = list(self._finished)
        now = self._alarm.now()
        totals = counted(self.totals, batch, self._before.seconds + now - self._began)
        await self._harvest.write(batch, totals, now)
        del self._finished[: len(batch)]
        self.totals = totals
        for finished in batch:
            self._judge.known.learn(*finished.learned)

    def _is_abandoned(self) -> bool:
        """Whether nothing is in flight any more, and nobody takes what has come."""
        return self._is_closing and not self._visits

    def _withdraw(self) -> None:
        """Ask for nothing more: what stands in line goes back to its place."""
        for task, visit in self._visits.items():
            if not (visit.is_on_wire or visit.is_answered or visit.is_called_off):
                visit.is_called_off = True
                task.cancel()

    async def _call_off(self) -> None:
        """End what is still in flight: it goes back to its place."""
        for task in self._visits:
            task.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)
        self._finished += [Finished(each.claimed, Deferred(0.0)) for each in (*self._handed.values(), *self._unread)]
        self._handed.clear()
        self._unread.clear()
        await self._write()

    async def _look(self) -> None:
        """See how much there is; if others are at it too, only once in a while."""
        now = self._alarm.now()
        if self._lease is None:
            self._counts = await self.frontier.counts()
            return
        if now - self._looked_at >= SHARED_LOOK:
            self._looked_at = now
            self._counts = await self.frontier.counts()
            self._count_others(await self.frontier.notes())

    def _renew_in(self) -> float:
        return self._renewed_at + (self._lease or LEASE) / 4 - self._alarm.now()

    async def _renew(self) -> None:
        """Keep the leases alive: of what is in flight, and of pages for as long as nobody takes them."""
        if self._renew_in() > 0:
            return
        self._renewed_at = self._alarm.now()
        held: list[_Visit | Finished] = [*self._visits.values(), *self._unread, *self._handed.values()]
        for each in held:
            each.claimed = await self.frontier.renew(each.claimed) or each.claimed

    def _count_others(self, notes: dict[str, Any]) -> None:
        self._others = sum(each.pages for each in _totals(notes, but=TOTALS + self._who))

    async def _end(self, ended: str) -> None:
        self._counts = await self.frontier.counts()
        reasons = dict((await self.frontier.failures())[:MOST_REASONS])
        left = self._counts.queued + self._counts.leased
        resume_in = self._due if ended == "later" else None
        message = self._words(ended) + (f"; {left:,} URLs are left" if left else "")
        self.summary = Summary(ended, self.totals, left, resume_in, reasons, message)
        _log.info(f"Crawl ended: {message}", **self.summary.as_dict())

    def _words(self, ended: str) -> str:
        match ended:
            case "done":
                return "all that may be fetched was"
            case "max_pages":
                return f"it has its {self.options.max_pages:,} pages"
            case "max_time":
                return "its time is up"
            case "max_bytes":
                return "it has downloaded as much as it may"
            case "later":
                return f"what is left may be asked for in {span(self._due or 0.0)} at the earliest: go on then"
            case _:
                return "it was stopped"

    # What is told of it.

    async def _tick(self) -> None:
        while True:
            self._gauge.mark(self._alarm.now(), self.totals.pages)
            await asyncio.sleep(1.0)  # in real time, for it is people who look

    def _state(self) -> str:
        if self.summary is not None:
            return self.summary.ended
        if self._stopping is not None:
            return "stopping"
        return "running" if self._visits or self._unread or self._handed else "waiting"

    def _waiting_for(self) -> str | None:
        if self._trouble is not None:
            return self._trouble
        if self._state() != "waiting" or not self._due:
            return None
        return f"the next host may be asked in {span(max(0.0, self._due_at - self._alarm.now()))}"


def _line(qps: float) -> int:
    """How many may stand in line for the rate of all hosts: a few are enough to use it, and none waits for long."""
    return max(4, int(10 * qps))


def canonical(seed: str) -> str:
    """A seed as `parse_url` makes it; a bare host is taken for its front page."""
    url = parse_url(seed if "://" in seed else f"https://{seed}")
    if isinstance(url, InvalidUrl):
        raise PolicyError(f"seed {seed!r} is no URL to fetch: {url.why}. Give one such as https://example.org/.")
    return url.text


def _totals(notes: Mapping[str, Any], but: str | None = None) -> list[Totals]:
    """What each worker has noted that it has done."""
    kept = [value for name, value in notes.items() if name.startswith(TOTALS) and name != but]
    return [msgspec.convert(each, Totals) for each in kept]

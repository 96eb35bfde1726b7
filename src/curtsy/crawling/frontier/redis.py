"""Frontier shared by many machines, on a Redis or Valkey server 7.0 or later.

The server may be a single one, Sentinel or Cluster. Workers may join and leave. A URL is leased to a worker; if the
lease expires, another worker gets it. A host is served by one worker at a time. Every change is one short script
(lua_partition.py) on one partition (partition.py) of the job (redis_jobs.py). A killed worker leaves no partial change.
All instants are the server's, except the end of a lease. A worker counts that by its own clock from before its request,
and stops a margin earlier.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress
from typing import Any

import msgspec

from curtsy.core.errors import CurtsyError, PolicyError, StoreError
from curtsy.core.time import SECOND
from curtsy.crawling.frontier import redis_codec
from curtsy.crawling.frontier.local import microseconds
from curtsy.crawling.frontier.lua_job import BEAT
from curtsy.crawling.frontier.lua_partition import ADD, CLAIM, END, HASTEN, PASS_OVER, RENEW, REPORT
from curtsy.crawling.frontier.partition import LOOK, NEVER, PARTITIONS, WIDTHS, Partitions, check_partitions, total
from curtsy.crawling.frontier.protocol import (
    MOST_FAILURES,
    Claimed,
    Concurrency,
    Counts,
    Ending,
    Found,
    HostQueue,
    Lapsed,
    Outlook,
    Room,
    host_of,
)
from curtsy.crawling.frontier.redis_codec import Call, Script
from curtsy.crawling.frontier.redis_jobs import FORMAT, MOST_SEEN, PRESENCE, RedisJobs, SharedJob, home
from curtsy.crawling.frontier.redis_notes import Notes
from curtsy.crawling.frontier.url_table import fingerprint, skip_mark
from curtsy.http.registered_domain import site_of

LEASE = 120.0
"""Seconds for which a URL is leased: the delay until a dead worker's URLs go to others.

A longer fetch renews its lease.
"""

MARGIN = 5.0
"""Seconds before the end of a lease at which its holder treats it as expired; at most a tenth of it."""


class RedisFrontier:
    """Frontier on a Redis server, common to all workers that give the same `job` on any machine.

    `worker` names this worker and must be unique; None generates a name. `restart` starts the job over. While other
    workers are active, it raises PolicyError. `partitions` applies to a new job only. `timeout` is the seconds to wait
    for the server. Server problems raise StoreError, and the call may then be repeated. `clock` replaces the server's
    time, in tests. With the option `replicas` in the URL, URLs count as added when so many replicas have them.

    The frontier belongs to one event loop. `check` or the first call connects it.
    """

    def __init__(
        self,
        url: str,
        job: str,
        *,
        worker: str | None = None,
        concurrency: Concurrency = 1,
        lease: float = LEASE,
        restart: bool = False,
        partitions: int = PARTITIONS,
        timeout: float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not job:
            raise PolicyError("a shared crawl needs a name. Give job, the same on every machine.")
        if not lease > 0:
            raise PolicyError(f"lease = {lease!r} must be above 0 seconds. Leave it out to use {LEASE:g}.")
        self._registry = RedisJobs(url, timeout=timeout, clock=clock)
        self._replicas = self._registry.server.address.replicas
        self._name = job
        self._worker = worker or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._concurrency = concurrency
        self._lease = microseconds(lease)
        self._margin = microseconds(min(MARGIN, lease / 10))
        self._restart = restart
        self._count = check_partitions(partitions)
        self._clock = clock or time.monotonic
        self._job: SharedJob | None = None
        self._notes = Notes(self._registry, self._worker)
        self._partitions = Partitions(self._worker, partitions)
        self._claims: dict[int, Claimed] = {}
        """Claims of this worker, by ticket."""
        self._unconfirmed: set[int] = set()
        """Tickets of claims whose end was sent but not confirmed: only this worker can have ended them."""
        self._look_at = -NEVER
        self._told = 0
        """Leased URLs of this worker by its last heartbeat."""
        self._is_unsettled = False
        """True if, by the last heartbeat, no worker has leased a URL, and the reports were not checked against it."""
        self._is_hungry = True
        """True if the last claim got fewer URLs than it wanted."""
        self._format = FORMAT
        self._is_closed = False

    @property
    def worker(self) -> str:
        """Return the name of this worker."""
        return self._worker

    @property
    def pages(self) -> int:
        """Return the pages of all workers, as of the last reply."""
        return self._notes.pages

    @property
    def workers(self) -> int:
        """Return the number of present workers, as of the last heartbeat."""
        return self._partitions.workers

    @property
    def connections(self) -> int:
        """Return the number of connections opened so far, and of calls that failed."""
        return self._registry.connections

    async def check(self) -> None:
        """Connect, as the first call does otherwise; raise PolicyError if the server is too old or may evict data."""
        await self._opened()

    def outlast(self, seconds: float, tell: Callable[[StoreError], None]) -> contextlib.AbstractContextManager[None]:
        """Return a context in which calls wait up to `seconds` for a server that does not answer."""
        return self._registry.outlast(seconds, tell)

    async def add(self, found: Found) -> int:
        """Queue URLs; return how many were new."""
        return await self._add([found])

    async def _add(self, founds: Sequence[Found]) -> int:
        job = await self._opened()
        added = 0
        for chunk in redis_codec.chunks(founds):
            pieces = redis_codec.pieces(chunk, self._partitions.of, self._limit)
            calls = [self._call(job, ADD, partition, *words) for partition, words in pieces]
            replies = await self._registry.demand(calls, self._replicas)
            for (partition, _), reply in zip(pieces, replies, strict=True):
                added += redis_codec.read_number(self._learn(partition, reply).answer)
        return added

    def locate(self, host: str, address: str) -> None:
        """Do nothing: registered domains take turns here without regard to addresses."""

    async def claim(self, limit: int = 1, room: Room | None = None) -> list[Claimed]:
        """Claim the next URLs of due hosts, in turn by domain and host, own partitions first.

        The addresses of `room` are ignored. With a `limit` of 0, only expired leases are taken back.
        """
        job = await self._opened()
        await self._keep_up(job)
        claimed: list[Claimed] = []
        held = Counter(room.sites) if room is not None else Counter()
        self._partitions.reopen(room, held, self._now())
        waiting = self._partitions.due(self._now())
        for width in WIDTHS:
            if not waiting or (limit and len(claimed) >= limit):
                break
            width = min(width, limit - len(claimed)) if limit else width
            asked, waiting = waiting[:width], waiting[width:]
            try:
                claimed += await self._claim_from(job, asked, limit - len(claimed), room, held)
            except CurtsyError:
                if not claimed:
                    raise
                break
            due = set(self._partitions.due(self._now())) if limit else set()
            waiting = [each for each in asked if each in due] + waiting
        self._is_hungry = len(claimed) < limit if limit else self._is_hungry
        self._partitions.fill(room, held)
        return await self._take_over(job, claimed)

    async def _take_over(self, job: SharedJob, claimed: list[Claimed]) -> list[Claimed]:
        """Return the claims, with those marked that an earlier worker has written; give these back if that fails."""
        expired = [each for each in claimed if each.tries]
        if not expired:
            return claimed
        claimed = [each for each in claimed if not each.tries]
        try:
            expired = await self._notes.take_over(job, expired)
        except CurtsyError:
            with contextlib.suppress(StoreError):
                await self._put_back(job, expired)
            if not claimed:
                raise
            return claimed
        self._claims.update((each.ticket, each) for each in expired)
        return claimed + expired

    async def _claim_from(
        self, job: SharedJob, asked: Sequence[int], limit: int, room: Room | None, held: Counter[str]
    ) -> list[Claimed]:
        """Claim up to `limit` URLs from some partitions, and add their slots to `held`.

        If some partitions fail, return the claims of the others; raise the error if there are none.
        """
        share, rest = divmod(limit, len(asked))
        common = "" if callable(self._concurrency) else self._limit("")
        nonce = secrets.randbits(redis_codec.NONCE)
        calls = []
        for place, partition in enumerate(asked):
            slots = self._partitions.slots(partition, room, held, share + 1)
            lost = self._partitions.lost_calls(partition, self._now())
            words = share + (place < rest), self._lease, nonce, common, lost, *slots
            calls.append(self._call(job, CLAIM, partition, *words))
        until, claimed, errors = self._leased_until(), list[Claimed](), list[CurtsyError]()
        with self._partitions.unanswered(asked, nonce, self._now() + 2 * self._lease) as unanswered:
            replies = await self._registry.ask(calls)
            unanswered -= {at for at, reply in zip(asked, replies, strict=True) if not isinstance(reply, CurtsyError)}
        for partition, reply in zip(asked, replies, strict=True):
            if isinstance(reply, CurtsyError):
                errors.append(reply)
                continue
            handed = redis_codec.read_handed(self._learn(partition, reply).answer)
            claimed += [redis_codec.claimed_of(each, until, nonce, partition, job.partitions) for each in handed]
        if errors and not claimed:
            raise errors[0]
        self._claims.update((each.ticket, each) for each in claimed)
        held.update(site_of(each.host) for each in claimed)
        return claimed

    async def unreported(self, urls: Iterable[str], *, marks: bool = False) -> list[str]:
        """Return the URLs that are not marked as reported, each once; with `marks`, mark them."""
        job, new = await self._opened(), list[str]()
        parts = redis_codec.report_parts(urls, job.partitions)
        calls = [self._call(job, REPORT, at, *redis_codec.report_words(each, marks=marks)) for at, each in parts]
        for (at, each), reply in zip(parts, await self._registry.demand(calls), strict=True):
            new += compress(each, redis_codec.read_numbers(self._learn(at, reply).answer))
        return new

    async def conclude(
        self, endings: Sequence[Ending], notes: Mapping[str, Any] | None = None, reported: Iterable[str] = ()
    ) -> list[bool]:
        """Add the URLs found, then end the claims; raise Lapsed if any claim is lost.

        The notes are stored before the claims end, unless another worker has taken over a claim meanwhile. If one does
        so afterwards, it finds the page marked as written. So one of the two writes it.
        """
        job = await self._opened()
        connections, founds = self.connections, [found for each in endings for found in each.found]
        await self._add(founds)
        claims = [ending.claimed for ending in endings]
        if lost := (await self.keep(claims)).count(False):
            raise Lapsed(f"{lost} of {len(claims)} claims are another's now, so none was ended. End the others alone.")
        self._unconfirmed.update(claimed.ticket for claimed in claims)
        try:
            await self._notes.store(job, notes or {}, [each.claimed for each in endings if each.is_written_now])
        except Lapsed:
            self._unconfirmed -= self._notes.taken
            raise
        await self.unreported(reported, marks=True)
        batches: dict[int, list[int]] = {}
        words: dict[int, list[Any]] = {}
        for place, ending in enumerate(endings):
            partition = self._partitions.of(site_of(ending.claimed.host))
            batches.setdefault(partition, []).append(place)
            words.setdefault(partition, []).extend(redis_codec.end_words(ending, job.partitions))
        replies = await self._registry.demand([self._call(job, END, each, *words[each]) for each in batches])
        ended = [False] * len(endings)
        for (partition, places), reply in zip(batches.items(), replies, strict=True):
            for place, answer in zip(
                places, redis_codec.read_numbers(self._learn(partition, reply).answer), strict=True
            ):
                ended[place] = bool(answer)
        if self.connections != connections:  # the claims may have ended on a replica that lacks the URLs
            await self._add(founds)
        for ending, is_ended in zip(endings, ended, strict=True):
            self._claims.pop(ending.claimed.ticket, None)
            self._unconfirmed.discard(ending.claimed.ticket)
            if notes and ending.is_written_now and not is_ended:
                self._notes.dispute(ending.claimed)
        return ended

    async def pass_over(self, url: str, other: str) -> bool:
        """Skip a page unless `other` was skipped; return whether it was."""
        job = await self._opened()
        here, there = (self._partitions.of(site_of(host_of(each))) for each in (url, other))
        mark, others = fingerprint(skip_mark(url)), fingerprint(skip_mark(other))
        if here == there:
            return await self._pass_over(job, here, mark, others)
        # The second check after the mark: of two workers that do this at once, at least one sees the other's mark.
        return (
            await self._pass_over(job, there, "", others)
            or await self._pass_over(job, here, mark, "")
            or await self._pass_over(job, there, "", others)
        )

    async def _pass_over(self, job: SharedJob, partition: int, mark: int | str, other: int | str) -> bool:
        [reply] = await self._registry.demand([self._call(job, PASS_OVER, partition, mark, other)])
        return bool(redis_codec.read_number(self._learn(partition, reply).answer))

    async def renew(self, claimed: Claimed) -> Claimed | None:
        """Restart the lease; return None if the claim is invalid."""
        [renewed] = await self._renew([claimed])
        return renewed

    async def keep(self, claims: Sequence[Claimed]) -> list[bool]:
        """Renew the claims that must be treated as expired; return which of all are valid."""
        now = self._clock()
        late = [each for each in claims if self._claims.get(each.ticket, each).leased_until <= now]
        late = [each for each in late if each.ticket not in self._unconfirmed]
        renewals = zip(late, await self._renew(late), strict=True)
        lost = self._notes.taken | {claimed.ticket for claimed, renewed in renewals if renewed is None}
        return [claimed.ticket not in lost for claimed in claims]

    async def _renew(self, claims: Sequence[Claimed]) -> list[Claimed | None]:
        """Restart leases; return None for each claim that is no longer valid."""
        job = await self._opened()
        until = self._leased_until()
        partitions = [self._partitions.of(site_of(claimed.host)) for claimed in claims]
        calls = [
            self._call(job, RENEW, partition, *redis_codec.ticket_words(claimed, job.partitions), self._lease)
            for partition, claimed in zip(partitions, claims, strict=True)
        ]
        renewals: list[Claimed | None] = []
        for partition, claimed, reply in zip(partitions, claims, await self._registry.demand(calls), strict=True):
            if redis_codec.read_number(self._learn(partition, reply).answer):
                renewed = self._claims[claimed.ticket] = msgspec.structs.replace(claimed, leased_until=until)
                renewals.append(renewed)
            else:
                self._claims.pop(claimed.ticket, None)
                renewals.append(None)
        return renewals

    async def hasten(self, hosts: Collection[str]) -> None:
        """Make hosts due now that are due later, except for those with a leased URL."""
        job, parts = await self._opened(), self._partitions.of_hosts(hosts)
        calls = [self._call(job, HASTEN, partition, *names) for partition, names in parts.items()]
        for partition, reply in zip(parts, await self._registry.demand(calls), strict=True):
            self._learn(partition, reply)

    async def due_in(self) -> float | None:
        """Return the seconds until `claim` may find a URL; None if no worker has any left.

        While other workers have leased URLs it is at most `LOOK`, because they may add URLs at any time.
        """
        job = await self._opened()
        await self._keep_up(job)
        if self._told and not self._claims:  # the others may wait for the last page of this worker
            await self._beat(job)
        if self._is_unsettled and not self._claims:  # reports of URLs that others have ended since
            self._is_unsettled = False
            await self._poll(job, self._partitions.leased)
        if self._partitions.due_at() == NEVER and await self._is_over(job):
            return None
        wait = max(0, self._partitions.due_at() - self._now()) / SECOND
        are_others_at_work = not self._partitions.is_alone and self._partitions.leased
        return min(wait, LOOK) if are_others_at_work else wait

    async def _is_over(self, job: SharedJob) -> bool:
        """Return whether no partition has a URL left.

        The partitions are read one after another, so a page that ends may add URLs to one that was read as empty. Each
        must be idle in its last report and again now, with nothing added in between: all were empty at one instant.
        """
        before = self._partitions.reports()
        both = zip(before, await self._poll(job), strict=True)
        return all(
            one is not None and one.is_idle and other.is_idle and one.added == other.added for one, other in both
        )

    async def counts(self) -> Counts:
        """Return the counts over all workers."""
        return total(await self._poll(await self._opened()))

    async def recent_counts(self) -> Counts:
        """Return the counts by the last report on each partition, which may be OTHER_TURNS seconds old."""
        await self._keep_up(await self._opened())
        return self._partitions.counts()

    def outlook(self) -> Outlook:
        """Return what this worker waits for, by the last reports on the partitions and the last heartbeat."""
        return self._partitions.outlook(self._now(), len(self._claims))

    async def busiest(self, limit: int) -> list[HostQueue]:
        """Return no hosts: finding them would mean reading all hosts of all partitions."""
        return []

    async def failures(self, limit: int = MOST_FAILURES) -> list[tuple[str, str]]:
        """Return failed URLs with their reasons, by time; of very many, the first ones of each partition."""
        job = await self._opened()
        counts = [report.failed for report in await self._poll(job)]
        replies = await self._registry.demand(redis_codec.failure_calls(job.base, counts, limit))
        return redis_codec.read_failures(replies)[:limit]

    async def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name, common to all workers."""
        await self._notes.store(await self._opened(), notes)

    async def notes(self, worker: str = "") -> dict[str, Any]:
        """Return all stored notes; see `Notes.read`."""
        return await self._notes.read(await self._opened(), worker)

    async def close(self) -> None:
        """Queue the leased URLs again, or let them expire, and close the connections; idempotent."""
        if self._is_closed:
            return
        if self._job is not None:
            with contextlib.suppress(StoreError):
                await self._give_back(self._job)
        self._is_closed = True
        await self._registry.aclose()

    async def _give_back(self, job: SharedJob) -> None:
        """Sign off. Claims that may have ended are left to expire, so that another worker looks for their pages."""
        lists = (("ZREM", "workers"), ("HDEL", "leased"))
        calls = [Call((word, f"{home(self._name)}:{key}", self._worker)) for word, key in lists]
        if not self._unconfirmed:
            calls += self._notes.forget(job)
        await self._registry.ask(calls)
        await self._put_back(job, [each for each in self._claims.values() if each.ticket not in self._unconfirmed])

    async def _put_back(self, job: SharedJob, claims: Sequence[Claimed]) -> None:
        """Queue claimed URLs again, as far as their servers answer; the others expire."""
        back = [(self._partitions.of(site_of(each.host)), each) for each in claims]
        await self._registry.ask(
            [self._call(job, END, at, *redis_codec.back_words(each, job.partitions, None)) for at, each in back]
        )
        for each in claims:
            self._claims.pop(each.ticket, None)

    async def _opened(self) -> SharedJob:
        if self._is_closed:
            raise StoreError(f"the job {self._name!r} was used after close(). Open another frontier.")
        if self._job is None:
            self._job = await self._registry.open(
                self._name, self._worker, partitions=self._count, restart=self._restart
            )
            self._partitions = Partitions(self._worker, self._job.partitions)
            self._format = self._job.format
        return self._job

    async def _keep_up(self, job: SharedJob) -> None:
        """Send the heartbeat if it is time, and read what other workers added."""
        now = self._now()
        if now < self._look_at:
            return
        await self._beat(job)
        known, polled = len(self._partitions.due(now)), self._partitions.to_poll(now, self._is_hungry)
        await self._poll(job, polled)
        if len(polled) == job.partitions:
            self._partitions.polled_all(now, is_in_vain=len(self._partitions.due(now)) <= known)
        self._look_at = now + round(LOOK * SECOND)

    async def _beat(self, job: SharedJob) -> None:
        """Send the heartbeat, and read which workers are present and whether they are at work."""
        told = len(self._claims)
        words = (self._registry.now(), job.born, self._worker, round(PRESENCE * SECOND), FORMAT, told, MOST_SEEN)
        [answer] = await self._registry.demand([BEAT.on(home(self._name), *words, int(self._look_at == -NEVER))])
        self._format, self._notes.pages, workers, leased, lost = answer
        self._registry.check(self._name, self._format)  # it may have been upgraded while this worker was away
        self._told = told
        self._partitions.hear(leased, told, None if lost < 0 else self._now() - lost + self._lease)
        self._is_unsettled = all(count == b"0" for count in leased)
        self._partitions.share(worker.decode() for worker in workers)

    async def _poll(self, job: SharedJob, partitions: Sequence[int] | None = None) -> list[redis_codec.Report]:
        """Return a report on each partition, or on each of some."""
        numbers = range(job.partitions) if partitions is None else partitions
        calls = [self._call(job, CLAIM, number, 0, 0, "", "", "") for number in numbers]
        replies = await self._registry.demand(calls)
        return [self._learn(number, reply) for number, reply in zip(numbers, replies, strict=True)]

    def _call(self, job: SharedJob, script: Script, partition: int, *words: Any) -> Call:
        grace = self._partitions.grace(partition)
        return script.on(job.base(partition), self._registry.now(), self._worker, grace, self._format, *words)

    def _learn(self, partition: int, reply: Any) -> redis_codec.Report:
        report = redis_codec.read_report(reply)
        self._partitions.learn(partition, report, self._now())
        return report

    def _leased_until(self) -> float:
        """Return when a lease that is requested now must be treated as expired."""
        return (self._now() + self._lease - self._margin) / SECOND

    def _now(self) -> int:
        return round(self._clock() * SECOND)

    def _limit(self, host: str) -> int:
        limit = self._concurrency(host) if callable(self._concurrency) else self._concurrency
        return redis_codec.ANY if limit is None else limit

"""Queue finished URLs of a shared job again: failed ones, or pages of workers whose outputs are lost."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from curtsy.core.crawl_messages import no_job, present_workers, unknown_worker
from curtsy.core.errors import PolicyError, StoreError
from curtsy.crawling.frontier import redis_codec
from curtsy.crawling.frontier.lua_partition import REQUEUE
from curtsy.crawling.frontier.protocol import Requeue
from curtsy.crawling.frontier.redis_codec import Call
from curtsy.crawling.frontier.redis_jobs import PRESENCE, RedisJobs, SharedJob, home
from curtsy.crawling.frontier.redis_notes import forget_pages, note_calls
from curtsy.crawling.frontier.url_table import rank_of

_BATCH = 400
"""Entries of a list that are read and queued at once."""

Adapt = Callable[[Mapping[str, Any], Mapping[str, int]], Mapping[str, Any]]
"""Function of the notes and the numbers of URLs that are queued again, which returns the notes that change."""


async def requeue_shared(
    url: str,
    name: str,
    choice: Requeue,
    workers: list[str],
    adapt: Adapt,
    unstored_since: Callable[[Mapping[str, Any], str], float],
) -> Counter[str]:
    """Queue finished URLs of a job again; return their numbers, by reason of failure or `page`.

    `workers` are those of the job. `unstored_since` is a function of the notes and a worker: without a time in
    `choice`, earlier pages of that worker are left out. Raises PolicyError for a worker that is present, because it
    counts its own pages.
    """
    async with contextlib.aclosing(RedisJobs(url)) as registry:
        job, summary = await registry.find(name), await registry.job(name)
        if job is None or summary is None:
            raise StoreError(no_job(name))
        if choice.reasons is not None:
            found = await _Requeue(registry, job, choice).failed()
            await registry.demand(note_calls(job, adapt(summary.notes, found)))
            return found
        if choice.worker is not None and choice.worker not in workers:
            raise PolicyError(unknown_worker(name, choice.worker, workers))
        chosen = workers if choice.worker is None else [choice.worker]
        if choice.worker is not None and not choice.since:
            choice = msgspec.structs.replace(choice, since=unstored_since(summary.notes, choice.worker))
        present = {worker for worker, ago in summary.heard.items() if ago <= PRESENCE}
        if busy := sorted(present.intersection(chosen)):
            raise PolicyError(present_workers(name, busy))
        requeue = _Requeue(registry, job, choice)
        return Counter(page=sum([await requeue.pages(each, summary.notes, adapt) for each in chosen]))


class _Requeue:
    """One run over the partitions of a job."""

    def __init__(self, registry: RedisJobs, job: SharedJob, choice: Requeue) -> None:
        self._registry, self._job, self._choice = registry, job, choice

    async def failed(self) -> Counter[str]:
        """Queue failed URLs again."""
        found: Counter[str] = Counter()

        def reason_of(entry: bytes) -> tuple[str, str]:
            found = redis_codec.read_failure(entry)
            is_chosen = found.reason in (self._choice.reasons or ()) and self._choice.chooses(found.url)
            return found.reason if is_chosen else "", found.url

        for number in range(self._job.partitions):
            await self._work(number, ":failures", "failed", reason_of, found)
        return found

    async def pages(self, worker: str, notes: Mapping[str, Any], adapt: Adapt) -> int:
        """Queue pages of a worker again, and subtract them from its totals."""
        found: Counter[str] = Counter()

        def reason_of(entry: bytes) -> tuple[str, str]:
            page = redis_codec.read_logged(entry)
            is_chosen = page.at >= self._choice.since and self._choice.chooses(page.url)
            return "page" if is_chosen else "", page.url

        for number in range(self._job.partitions):
            await self._work(number, f":log:{worker}", "done", reason_of, found)
        own = {name: value for name, value in notes.items() if name.endswith(f":{worker}")}
        base, count = home(self._job.name), found["page"]
        counts = (f"{base}:meta", "pages"), (f"{base}:pages", f":{worker}")
        calls = [Call(("HINCRBY", *each, -count)) for each in counts]
        await self._registry.demand([*note_calls(self._job, adapt(own, found)), *calls])
        return count

    async def _work(
        self,
        number: int,
        key: str,
        counter: str,
        reason_of: Callable[[bytes], tuple[str, str]],
        found: Counter[str],
    ) -> None:
        """Queue the chosen entries of a list of one partition again, the last ones first: others keep their places.

        `reason_of` returns the reason, empty if the entry is not chosen, and the URL.
        """
        base = self._job.base(number)
        [end] = await self._registry.demand([Call(("LLEN", base + key))])
        while end > 0:
            start = max(0, end - _BATCH)
            [entries] = await self._registry.demand([Call(("LRANGE", base + key, start, end - 1))])
            found_reasons = [(place, entry, *reason_of(entry)) for place, entry in enumerate(entries, start)]
            chosen = [each for each in found_reasons if each[2]]
            if chosen:
                await forget_pages(self._registry, self._job, (url for *_, url in chosen))
                words = [word for place, entry, *_ in chosen for word in (place, entry)]
                rank = redis_codec.packed(rank_of(0, 0))
                call = REQUEUE.on(base, self._registry.now(), "", 0, self._job.format, key, counter, rank, *words)
                [reply] = await self._registry.demand([call])
                if redis_codec.read_number(redis_codec.read_report(reply).answer) < len(chosen):
                    raise StoreError(f"the job {self._job.name!r} was changed meanwhile. Run the command again.")
                found.update(reason for _, _, reason, _ in chosen)
            end = start

"""Notes of a shared job, and who writes which page.

The notes, which have the ends of the outputs, are on another server than the claims in a cluster. So a page is written
when its worker stores its notes, in one script with the list of its pages. A worker that claims a URL whose lease had
expired takes it over in another script on the same server: one of the two comes first. Either the page is marked as
written, and only its links count, or the earlier worker can no longer store it.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from curtsy.crawling.frontier.lua_job import FORGET, NOTE, READ, TAKE
from curtsy.crawling.frontier.protocol import PAGES, Claimed, Lapsed
from curtsy.crawling.frontier.redis_codec import Call
from curtsy.crawling.frontier.redis_jobs import RedisJobs, SharedJob, home, read_notes
from curtsy.crawling.frontier.url_table import fingerprint

_NO_CALLER = ("", "", "", 0)


class Notes:
    """Notes as one process reads and stores them."""

    def __init__(self, registry: RedisJobs, worker: str) -> None:
        self._registry, self._worker = registry, worker
        self._caller = secrets.token_hex(8)
        self._calls = 0
        self._is_any_lost = False
        """True if a call was not answered: it may reach the server at any later time."""
        self._disputed: set[int] = set()
        """Fingerprints of written pages whose claims this worker could not end: others have, or will."""
        self.taken: set[int] = set()
        """Tickets of claims that other workers took over before the notes were stored."""
        self.pages = 0
        """Pages of all workers, as of the last reply."""

    async def store(self, job: SharedJob, notes: Mapping[str, Any], written: Sequence[Claimed] = ()) -> None:
        """Store notes with the claims whose pages they cover.

        Raises Lapsed, and stores nothing, if other workers have taken over some of these claims.
        """
        caller = (*self._next(), " ".join(map(str, self._disputed)), len(written), *_marks(written))
        replies = await self._demand(note_calls(job, notes, caller))
        if replies and isinstance(replies[0], list):
            self.taken.update(written[place].ticket for place in replies[0])
            raise Lapsed(f"other workers have taken over {len(replies[0])} of {len(written)} pages.")
        if replies:
            self.pages = replies[-1]

    async def read(self, job: SharedJob, worker: str = "") -> dict[str, Any]:
        """Return all notes.

        Earlier calls of this process have no effect after this one, nor have those of an earlier process with its name,
        or with the name `worker`.
        """
        owner = worker or self._worker
        words = ("", job.born, *self._next(), owner, int(owner == self._worker))
        [reply] = await self._demand([READ.on(home(job.name), *words)])
        return read_notes(reply)

    async def take_over(self, job: SharedJob, claims: Sequence[Claimed]) -> list[Claimed]:
        """Take over claims whose leases had expired; return them, with those marked whose pages are written."""
        [written] = await self._demand([TAKE.on(home(job.name), "", job.born, *_marks(claims))])
        both = zip(claims, written, strict=True)
        return [msgspec.structs.replace(each, is_written=bool(is_written)) for each, is_written in both]

    def dispute(self, claimed: Claimed) -> None:
        """Record that a claim of a written page was another worker's at its end. Its mark is kept for that worker."""
        self._disputed.add(fingerprint(claimed.url))

    def forget(self, job: SharedJob) -> list[Call]:
        """Return the calls that forget this process and its last pages.

        It is not forgotten if some of their claims have not ended, or if a call that was not answered may still arrive.
        """
        if self._disputed or self._is_any_lost:
            return []
        key = home(job.name)
        return [Call(("HDEL", f"{key}:written", self._caller)), Call(("HDEL", f"{key}:callers", self._worker))]

    def _next(self) -> tuple[str, int]:
        self._calls += 1
        return self._caller, self._calls

    async def _demand(self, calls: list[Call]) -> list[Any]:
        try:
            return await self._registry.demand(calls, self._registry.server.address.replicas)
        except BaseException:
            self._is_any_lost = True
            raise


def _marks(claims: Sequence[Claimed]) -> list[int]:
    """Return the script arguments that name claims: the fingerprint of each URL, and its ticket."""
    return [number for each in claims for number in (fingerprint(each.url), each.ticket)]


def note_calls(job: SharedJob, notes: Mapping[str, Any], caller: Sequence[Any] = _NO_CALLER) -> list[Call]:
    """Return the calls that store notes. The reply of each is the pages of all workers.

    `caller` are the script arguments of the first call for the process, and for the pages that it writes. See NOTE for
    the reply if another worker has taken over one of them.
    """
    pages = [(name.removeprefix(PAGES), count) for name, count in notes.items() if name.startswith(PAGES)]
    pairs = [(name, msgspec.json.encode(value)) for name, value in notes.items() if not name.startswith(PAGES)]
    if not notes:
        return []
    counted, *others = pages or [("", "")]
    first = NOTE.on(home(job.name), "", job.born, *counted, *caller, *itertools.chain(*pairs))
    return [first, *(NOTE.on(home(job.name), "", job.born, *each, *_NO_CALLER) for each in others)]


async def forget_pages(registry: RedisJobs, job: SharedJob, urls: Iterable[str]) -> None:
    """Forget who wrote the pages of some finished URLs, before they are queued again."""
    await registry.demand([FORGET.on(home(job.name), "", job.born, *map(fingerprint, urls))])

"""Running fetches: the claimed URLs, each with a task of its own until its response is read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from curtsy.client import AsyncClient
from curtsy.core.effects import FetchRequest
from curtsy.core.errors import PolicyError, Reason, StoreError
from curtsy.core.fair_share import AddressShares, FairShares
from curtsy.core.result import FetchResult
from curtsy.crawling import messages
from curtsy.crawling.committer import Finished
from curtsy.crawling.filters import Filters, Slices
from curtsy.crawling.frontier.protocol import Claimed, Deferred, Room
from curtsy.crawling.host_stats import Hosts
from curtsy.crawling.quota import Quota
from curtsy.crawling.results import Results
from curtsy.http.registered_domain import name_and_port, site_of
from curtsy.http.sender import SLOW
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("crawl")

MAX_WAIT = 0.05
"""Seconds that a URL waits for its host. If it is due later, it goes back to the frontier until then."""

CROWDED = 5.0
"""Seconds until the retry of a URL whose address has no free slot, if the frontier does not know that address."""

GLANCE = 0.05
"""Seconds for which a fetch keeps its slot while the name of its host is looked up."""

LOOKUPS = 96
"""Maximum number of fetches that wait longer for a lookup. The system's resolver runs some more at once, so that other
names find room."""

MOST_LOCATED = 10_000
"""Maximum number of registered domains whose reported addresses are remembered."""

SETTLING = 1.0
"""Seconds for which a received reply may be processed. After that, an unanswered fetch is waiting for its next
request."""

SUSPECT, GUILTY = 3, 6
"""Numbers of claims without a result after which a URL is read alone, and after which it is given up. Otherwise a page
that crashes the reader would end every run."""


class RunningFetch:
    """Claimed URL that is being fetched."""

    __slots__ = (
        "address", "claimed", "has_place", "is_answered", "is_asked", "is_called_off", "is_looked_up",
        "is_on_wire", "is_starting", "left_wire_at", "site",
    )  # fmt: skip

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed
        self.site = site_of(claimed.host)
        self.address = ""
        """Address of its host, or the last known one of its site; empty if unknown."""
        self.has_place = False
        """True if it counts as in flight."""
        self.is_starting = True
        """True if it is not on the wire yet but may get there."""
        self.is_looked_up = False
        """True while its host is looked up. Then it holds a slot of its site, but none on the wire."""
        self.is_on_wire = self.is_answered = self.is_called_off = False
        self.is_asked = False
        """True after a reply to more than robots.txt. A retry then waits for its own host."""
        self.left_wire_at: float | None = None
        """Time of the last reply, including one to robots.txt."""

    @property
    def is_suspect(self) -> bool:
        """Return whether it must be the only fetch in flight."""
        return self.claimed.tries >= SUSPECT


class Turn:
    """CPU time of all fetches in one iteration of the event loop.

    Checking or reading a malicious robots.txt or page takes some hundredth of a second on the loop. Many at once would
    block all other tasks.
    """

    def __init__(self) -> None:
        self._slice: Slices | None = None

    async def has_time(self) -> None:
        """Wait for an iteration of the loop with time left."""
        while True:
            if self._slice is None:
                self._slice = Slices()
                asyncio.get_running_loop().call_soon(self._end)
            if not self._slice.is_over():
                return
            await asyncio.sleep(0)

    def _end(self) -> None:
        self._slice = None


class RunningFetches:
    """All running fetches. Their results go to `results`."""

    def __init__(
        self,
        client: AsyncClient,
        filters: Filters,
        quota: Quota,
        results: Results,
        ring: Callable[[], None],
        locate: Callable[[str, str], None],
        *,
        places: int,
        is_shared: bool = False,
    ) -> None:
        """Create the set of running fetches.

        `ring` is called when more fetches may start. `locate` is called when the address of a host is known. `places`
        is the maximum number of requests in flight. `is_shared` means that another worker may take over an expired
        lease.
        """
        self._client = client
        self._filters = filters
        self._quota = quota
        self._results = results
        self._ring = ring
        self._tell_address = locate
        self._places = places
        self._sites: FairShares[str] = FairShares(places)
        self._addresses: AddressShares[str] = AddressShares(places)
        self._unlocated: dict[RunningFetch, None] = {}
        """Fetches that started without an address lookup, because few slots were in use."""
        self._located: dict[str, str] = {}
        """Address last reported to the frontier, by registered domain."""
        self._lookups: set[asyncio.Task[None]] = set()
        self._nameless: set[str] = set()
        """Hosts whose lookups were slow and failed. The next fetch of each is sent anyway."""
        self.looked_up = 0
        """Number of fetches that wait for the lookup of their host."""
        self._is_shared = is_shared
        self._timers = client.timers
        self._loop_turn = Turn()
        self._visits: dict[asyncio.Task[None], RunningFetch] = {}
        self._returning: dict[RunningFetch, asyncio.Future[None]] = {}
        """Fetches that left the wire and wait for a slot to return."""
        self.hosts = Hosts()
        self.starting = 0
        """Number of fetches that are not on the wire yet."""
        self.on_wire = 0
        self.suspects = 0
        """Number of fetches that must be the only one in flight."""
        self.broken: BaseException | None = None
        """Internal error. The crawl ends, because the URL of the failed task has no owner."""
        self.paused_at: float | None = None
        """Time since which the only result is that hosts are paused indefinitely; None after any other result."""

    def __len__(self) -> int:
        return len(self._visits)

    def under_way(self) -> list[RunningFetch]:
        """Return the fetches whose responses are not read yet."""
        return list(self._visits.values())

    def in_line(self) -> int:
        """Return the number of fetches that know their rules and wait for their first request."""
        visits = self._visits.values()
        return sum(not (visit.is_starting or visit.is_on_wire or visit.is_asked) for visit in visits) - self.looked_up

    def to_be_repeated(self) -> int:
        """Return the number of fetches that had a reply and wait for a retry."""
        visits = self._visits.values()
        return sum(visit.is_asked and not (visit.is_on_wire or visit.is_answered) for visit in visits)

    def room(self) -> Room:
        """Return the current shares of slots. If LOOKUPS names are being looked up, further slow names wait."""
        share, addresses = self._sites.share, self._addresses.all_counted()
        if self.looked_up >= LOOKUPS:
            addresses[SLOW] = share
        return Room(share, self._sites.held, addresses)

    def wider_room(self, claims: Sequence[Claimed]) -> Room | None:
        """Return the shares to use if `room` yields only these claims; None if they are the same.

        If all present and recent fetches are of one registered domain, it may use all slots. The same holds for one
        address. Its registered domains keep their shares.
        """
        now, sites = self._timers.now(), {site_of(claimed.host) for claimed in claims} | set(self._sites.held)
        if len(sites) == 1 and self._sites.is_alone(site := sites.pop(), now):
            is_at_its_share = self._sites.held[site] + len(claims) >= self._sites.share
            return Room(self._places, {}, None) if is_at_its_share else None
        held = self._addresses.held
        if claims or len(held) != 1 or sum(held.values()) < self.on_wire + self.starting:
            return None  # the address of the claims is unknown
        [address] = held
        is_at_its_share = held[address] >= self._addresses.share
        is_alone = is_at_its_share and self._addresses.is_alone(address, now)
        return Room(self._sites.share, self._sites.held, None) if is_alone else None

    def start(self, claimed: Claimed, *, may_crowd: bool = False) -> None:
        """Start to fetch a URL, unless it is refused. With `may_crowd`, the share of its address is ignored."""
        if (refused := self._refused(claimed)) is not None:
            self._results.put(refused)
            return
        visit = RunningFetch(claimed)
        if (address := self._located.get(visit.site, SLOW)) != SLOW:
            visit.address = address
        self.starting += 1
        self._count(visit)
        self.suspects += visit.is_suspect
        self.hosts.began(claimed.host)
        self._quota.begin(claimed.host)
        task = asyncio.ensure_future(self._visit(visit, may_crowd))
        self._visits[task] = visit
        task.add_done_callback(self._ended)

    def _refused(self, claimed: Claimed) -> Finished | None:
        """Return the result of a URL that is not fetched although it was queued; None if it may be fetched."""
        self._quota.learn(claimed.host, claimed.host_pages)
        if self._quota.is_used_up(claimed.host):
            return self._filters.skipped(claimed, "host_limit", messages.host_limit(claimed.url, self._quota.most))
        if self._quota.is_taken(claimed.host):
            return Finished(claimed, Deferred(MAX_WAIT))
        if claimed.tries >= GUILTY:
            return self._filters.skipped(claimed, "reader_crashed", messages.reader_crashed(claimed.url), failed=True)
        return None

    async def _visit(self, visit: RunningFetch, may_crowd: bool) -> None:
        """Fetch one URL and add its result."""
        claimed, result, heard_at = visit.claimed, None, None
        finished = Finished(claimed, Deferred(0.0))  # if the task is cancelled
        try:
            if (put_off := await self._finds_no_place(visit, may_crowd)) is not None:
                finished = Finished(claimed, Deferred(put_off))
                return
            await self._loop_turn.has_time()
            result = await self._client.visit(
                self._ask(claimed), lambda is_on_wire: self._wired(visit, is_on_wire), lambda: self._place(visit)
            )
            visit.is_answered = True
            heard_at = self._timers.now()
            await self._loop_turn.has_time()
            finished = await self._filters.filters(claimed, result)
        except (
            PolicyError
        ) as error:  # not specific to this page, so it ends the crawl: for example, the client is closed
            self.broken = error
        except StoreError as error:  # not this page's failure: it stays queued until the store is back
            _log.warning(f"{error} A page is put back.", url=claimed.url)
        except Exception as error:  # one failure does not stop the others (N10)
            _log.error("A page could not be dealt with", url=claimed.url, error=repr(error))
            finished = self._filters.skipped(claimed, "error", f"{type(error).__name__}: {error}", failed=True)
        finally:
            self._finish(finished, result, heard_at)

    async def _finds_no_place(self, visit: RunningFetch, may_crowd: bool) -> float | None:
        """Return the seconds until the retry of a fetch that cannot be sent now; None if it can.

        It cannot be sent if its address has no free slot. It cannot be sent either if the lookup of its host took long,
        because other fetches used its slot meanwhile. The frontier knows the address by then.

        While at most a quarter of the slots is in use, no address can exceed its share, so none is looked up.
        """
        if self.starting + self.on_wire <= self._addresses.share:
            self._unlocated[visit] = None
            return None
        others, self._unlocated = self._unlocated, {}
        if self.looked_up >= LOOKUPS and self._is_strange(visit):
            self._tell(visit, SLOW)
            return CROWDED
        lookup = self._look_up(visit)
        await asyncio.wait([lookup, *map(self._look_up, others)], timeout=GLANCE)
        if not may_crowd and self._is_crowded(visit):
            lookup.cancel()
            return CROWDED if self._is_shared else 0.0
        if not lookup.done():
            await self._wait_for_name(visit, lookup)
            return 0.0
        lookup.result()
        self._nameless.discard(visit.claimed.host)
        return None

    def _is_crowded(self, visit: RunningFetch) -> bool:
        """Return whether the address of a fetch has no free slot. If so, the fetch no longer counts there."""
        address, now = visit.address, self._timers.now()
        if not address:
            return False
        self._addresses.give_back_for(visit.site, address, now)
        if self._addresses.counted(address) >= self._addresses.share:
            visit.address = ""
            return True
        self._addresses.take_for(visit.site, address, now)
        return False

    def _is_strange(self, visit: RunningFetch) -> bool:
        """Return whether the lookup of a fetch's host may take long."""
        is_number = name_and_port(visit.claimed.host)[0][-1:] in "]0123456789"
        return not (visit.address or is_number or visit.claimed.host in self._nameless)

    def _look_up(self, visit: RunningFetch) -> asyncio.Task[None]:
        lookup = asyncio.ensure_future(self._locate(visit))
        self._lookups.add(lookup)
        lookup.add_done_callback(self._lookups.discard)
        return lookup

    async def _wait_for_name(self, visit: RunningFetch, lookup: asyncio.Task[None]) -> None:
        """Release the slot of a fetch until its host is looked up."""
        visit.is_looked_up = True
        self.looked_up += 1
        self._started(visit)
        self._hand_on()
        self._ring()
        try:
            await lookup
        finally:
            visit.is_looked_up = False
            self.looked_up -= 1
            self._count(visit)
        if visit.address in ("", SLOW):
            if len(self._nameless) >= MOST_LOCATED:
                self._nameless.clear()
            self._nameless.add(visit.claimed.host)
            self._tell(visit, SLOW)

    async def _locate(self, visit: RunningFetch) -> None:
        """Look up the address of a fetch and count the fetch there."""
        claimed, now = visit.claimed, self._timers.now
        address = SLOW if claimed.host in self._nameless else await self._client.locate(claimed.url)
        if address != visit.address and visit.has_place:
            if visit.address:
                self._addresses.give_back_for(visit.site, visit.address, now())
            if address:
                self._addresses.take_for(visit.site, address, now())
        visit.address = address
        if address:
            self._tell(visit, address)

    def _tell(self, visit: RunningFetch, address: str) -> None:
        """Report the address of a fetch to the frontier, if it has changed."""
        if self._located.get(visit.site) != address:
            if len(self._located) >= MOST_LOCATED:
                self._located.clear()
            self._located[visit.site] = address
            self._tell_address(visit.claimed.host, address)

    def _count(self, visit: RunningFetch) -> None:
        """Update whether a fetch counts as in flight at its registered domain and its address."""
        has_place = visit.is_starting or visit.is_on_wire or visit.is_looked_up
        now = self._timers.now()
        if has_place == visit.has_place:
            return
        visit.has_place = has_place
        (self._sites.take if has_place else self._sites.give_back)(visit.site, now)
        if visit.address:
            count = self._addresses.take_for if has_place else self._addresses.give_back_for
            count(visit.site, visit.address, now)

    def _finish(self, finished: Finished, result: FetchResult | None, heard_at: float | None) -> None:
        host, end, is_page = finished.claimed.host, finished.end, finished.page is not None
        now = self._timers.now() if heard_at is None else heard_at
        wait = end.seconds if isinstance(end, Deferred) else end.after
        self.hosts.ended(host, result, wait, now, is_page=is_page)
        finished.heard_at = heard_at
        self._quota.end(host, is_page=is_page)
        if result is not None:
            finished.bytes = result.record.bytes
            is_paused = result.reason is Reason.PAUSED and result.retry_after is None
            self.paused_at = (now if self.paused_at is None else self.paused_at) if is_paused else None
        self._results.put(finished)

    def _ask(self, claimed: Claimed) -> FetchRequest:
        # Nothing is sent after the lease may have been taken over (F60).
        deadline = max(0.001, claimed.leased_until - self._timers.now()) if self._is_shared else None
        qps = self._client.policies.global_qps
        max_wait = MAX_WAIT if qps is None else longest_line(qps) / qps
        follow, is_foreign = claimed.url in self._filters.led_back, self._filters.is_foreign(claimed)
        return FetchRequest(claimed.url, max_wait=max_wait, follow=follow, deadline=deadline, is_foreign=is_foreign)

    def _wired(self, visit: RunningFetch, is_on_wire: bool) -> None:
        visit.is_on_wire = is_on_wire
        self.on_wire += 1 if is_on_wire else -1
        self._started(visit)
        self._count(visit)
        if not is_on_wire:
            visit.left_wire_at = self._timers.now()
            url = visit.claimed.url
            visit.is_asked = (
                self._client.known_rules(url[: url.index("/", 8)]) is not None
            )  # None: the reply was robots.txt
            self._hand_on()
            self._ring()

    def _place(self, visit: RunningFetch) -> Awaitable[None] | None:
        """Return an awaitable for a slot; None if the fetch may use the wire now.

        A fetch returns to the wire for its page or a retry. It holds no slot while it waits. Without this check, all
        fetches whose pauses end together would be on the wire at once.
        """
        return None if visit.is_starting or self._may_return(visit) else self._turn(visit)

    async def _turn(self, visit: RunningFetch) -> None:
        turn = self._returning[visit] = asyncio.get_running_loop().create_future()
        try:
            await turn
        except asyncio.CancelledError:
            self._started(visit)  # a slot may have been granted in the same moment
            self._hand_on()
            raise
        finally:
            self._returning.pop(visit, None)

    def _may_return(self, visit: RunningFetch) -> bool:
        now = self._timers.now()
        if self.starting + self.on_wire >= self._places or self._sites.is_full(visit.site, now):
            return False
        return not (visit.address and self._addresses.is_full(visit.address, now))

    def _hand_on(self) -> None:
        """Grant free slots to the fetches that have waited longest."""
        for visit, turn in list(self._returning.items()):
            if self.starting + self.on_wire >= self._places:
                return
            if not turn.done() and self._may_return(visit):
                visit.is_starting = True
                self.starting += 1
                self._count(visit)
                turn.set_result(None)

    def _started(self, visit: RunningFetch) -> None:
        """Record that a fetch is on the wire, or will not get there."""
        if visit.is_starting:
            visit.is_starting = False
            self.starting -= 1
            self._count(visit)

    def _ended(self, task: asyncio.Task[None]) -> None:
        visit = self._visits.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = error
        self._started(visit)
        self._unlocated.pop(visit, None)
        self._hand_on()
        self.suspects -= visit.is_suspect
        self._ring()

    def withdraw(self) -> None:
        """Cancel the fetches that wait for a request; their URLs are put back.

        A received page is kept while its reply is processed, so call this repeatedly.
        """
        self._filters.read_no_longer()
        settled = self._timers.now() - SETTLING
        for task, visit in self._visits.items():
            is_settling = visit.left_wire_at is not None and visit.left_wire_at > settled
            if not (visit.is_on_wire or is_settling or visit.is_answered or visit.is_called_off):
                visit.is_called_off = True
                task.cancel()

    async def call_off(self) -> None:
        """Cancel all running fetches; their URLs are put back."""
        tasks = [*self._visits, *self._lookups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def longest_line(qps: float) -> int:
    """Return how many fetches may wait for the global rate: enough to use it, few enough for short waits."""
    return max(4, int(10 * qps))

"""Running fetches: the claimed URLs, each with a task of its own until its response is read."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from curtsy.core import crawl_messages
from curtsy.core.effects import FetchRequest
from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.fair_share import AddressShares, FairShares
from curtsy.core.outcome import retry_reason
from curtsy.core.request import Reply
from curtsy.core.result import FetchResult
from curtsy.crawling.estimate import gap_of
from curtsy.crawling.filters import Filters
from curtsy.crawling.frontier.protocol import Claimed, Deferred, Room
from curtsy.crawling.progress import Hosts
from curtsy.crawling.reader import origin_of
from curtsy.crawling.requisites import is_requisite
from curtsy.crawling.results import Finished, HostNews, Results
from curtsy.engine.session import Session
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
"""Maximum number of fetches that wait longer for a lookup. The system's resolver has room for some more."""

MOST_LOCATED = 10_000
"""Maximum number of hosts and registered domains whose addresses are remembered."""

LOCATED = 60.0
"""Seconds for which the address of a host is used without another lookup, as long as a name lookup is cached."""

TURN = 0.01
"""Seconds of reading and checking after which other tasks of the event loop run."""

SETTLING = 1.0
"""Seconds for which a received reply may be processed. Then an unanswered fetch waits for its next request."""

SUSPECT, GUILTY = 3, 6
"""Numbers of claims without a result after which a URL is read alone, and given up. Else it could end every run."""


class Phase(IntEnum):
    """What a running fetch does. In all phases but WAITING it counts as in flight at its domain and address."""

    WAITING = 0
    """It waits for its turn, or its response is processed."""
    STARTING = 1
    """It is not on the wire yet but may get there."""
    LOOKED_UP = 2
    """Its host is looked up. It holds a slot of its domain, but none on the wire."""
    ON_WIRE = 3


@dataclass(slots=True, eq=False)
class RunningFetch:
    """Claimed URL that is being fetched."""

    claimed: Claimed
    site: str
    """Registered domain."""
    address: str = ""
    """Address of its host, or the last known one of its site; empty if unknown."""
    phase: Phase = Phase.WAITING
    is_asked: bool = False
    """True after a reply to more than robots.txt. A retry then waits for its own host."""
    is_answered: bool = False
    is_withdrawn: bool = False
    retry_reason: str = ""
    """Reason why the last reply is worth a retry, such as `timeout`; empty if it is not."""
    began_at: float = 0.0
    left_wire_at: float = -math.inf
    """Time of the last reply, including one to robots.txt."""


class RunningFetches:
    """All running fetches. Their results go to `results`."""

    def __init__(
        self, session: Session, filters: Filters, results: Results, wake: Callable[[], None],
        locate: Callable[[str, str], None], *, places: int, hosts: Hosts, is_shared: bool = False,
    ) -> None:  # fmt: skip
        """Create the set of running fetches.

        `wake` is called when more fetches may start. `locate` is called when the address of a host is known. `places`
        is the maximum number of requests in flight, `hosts` has the quota of pages of each host. `is_shared` means that
        another worker may take over an expired lease."""
        self._session = session
        self._filters = filters
        self._results = results
        self._wake = wake
        self._report_address = locate
        self._places = places
        self._sites: FairShares[str] = FairShares(places)
        self._addresses: AddressShares[str] = AddressShares(places)
        self._unlocated: dict[RunningFetch, None] = {}
        """Fetches that started without an address lookup, because few slots were in use."""
        self._located: dict[str, str] = {}
        """Address last reported to the frontier, by registered domain."""
        self._located_hosts: dict[str, tuple[str, float]] = {}
        """Address of each host that was looked up, and the time until which it is used."""
        self._lookups: set[asyncio.Task[None]] = set()
        self._nameless: set[str] = set()
        """Hosts whose lookups were slow and failed. The next fetch of each is sent anyway."""
        self._is_shared = is_shared
        self._timers = session.timers
        self._turn_until: float | None = None
        """End of the time of all fetches in this iteration of the event loop; None before the first of them."""
        self._fetches: dict[asyncio.Task[None], RunningFetch] = {}
        self._returning: dict[RunningFetch, asyncio.Future[None]] = {}
        """Fetches that left the wire and wait for a slot to return."""
        self.hosts = hosts
        self._phases = [0] * len(Phase)
        """Number of fetches in each phase."""
        self.broken: BaseException | None = None
        """Internal error. The crawl ends, because the URL of the failed task has no owner."""

    def __len__(self) -> int:
        return len(self._fetches)

    @property
    def on_wire(self) -> int:
        """Return the number of fetches on the wire."""
        return self._phases[Phase.ON_WIRE]

    @property
    def looked_up(self) -> int:
        """Return the number of fetches that wait for the lookup of their host."""
        return self._phases[Phase.LOOKED_UP]

    @property
    def places_in_use(self) -> int:
        """Return the number of fetches that are on the wire or may get there."""
        return self._phases[Phase.ON_WIRE] + self._phases[Phase.STARTING]

    def divide(self, among: int) -> None:
        """Divide the common limits of an outage among so many processes."""
        self._session.store.divide(among)

    @property
    def is_suspect_running(self) -> bool:
        """Return whether the only fetch is one that must be the only fetch."""
        return len(self) == 1 and any(fetch.claimed.tries >= SUSPECT for fetch in self._fetches.values())

    @property
    def oldest_at(self) -> float | None:
        """Return when the oldest running fetch began; None if there is none."""
        return next((fetch.began_at for fetch in self._fetches.values()), None)

    def unanswered(self) -> list[RunningFetch]:
        """Return the fetches whose responses are not read yet."""
        return list(self._fetches.values())

    def queued_for_rate(self) -> int:
        """Return the number of fetches that know their rules and wait for their first request."""
        return sum(fetch.phase is Phase.WAITING and not fetch.is_asked for fetch in self._fetches.values())

    def waiting_to_retry(self) -> Counter[str]:
        """Return the number of fetches that had a reply and wait for a retry, by the reason of the reply."""
        waiting = (each for each in self._fetches.values() if each.is_asked and not each.is_answered)
        return Counter(each.retry_reason for each in waiting if each.retry_reason and each.phase != Phase.ON_WIRE)

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
        if claims or len(held) != 1 or sum(held.values()) < self.places_in_use:
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
        fetch = RunningFetch(claimed, site_of(claimed.host), began_at=self._timers.now())
        if (address := self._located.get(fetch.site, SLOW)) != SLOW:
            fetch.address = address
        self._phases[fetch.phase] += 1
        self._enter(fetch, Phase.STARTING)
        self.hosts.began(claimed.host)
        task = asyncio.get_running_loop().create_task(self._fetch(fetch, may_crowd))
        self._fetches[task] = fetch
        task.add_done_callback(self._ended)

    def _refused(self, claimed: Claimed) -> Finished | None:
        """Return the result of a URL that is not fetched although it was queued; None if it may be fetched."""
        if (to_go := self.hosts.pages_to_go(claimed)) is not None:
            left, sure = to_go
            if left <= 0:
                words = crawl_messages.host_limit(claimed.url, self.hosts.most_pages)
                return self._filters.skip(claimed, "host_limit", words)
            if sure <= 0:
                return Finished(claimed, Deferred(MAX_WAIT))
        if claimed.tries >= GUILTY:
            words = crawl_messages.reader_crashed(claimed.url)
            return self._filters.skip(claimed, "reader_crashed", words, failed=True)
        return None

    async def _fetch(self, fetch: RunningFetch, may_crowd: bool) -> None:
        """Fetch one URL and add its result."""
        claimed, result, answered_at = fetch.claimed, None, None
        finished = Finished(claimed, Deferred(0.0))  # if the task is cancelled
        try:
            if (put_off := await self._delay_for_slot(fetch, may_crowd)) is not None:
                finished = Finished(claimed, Deferred(put_off))
                return
            await self._have_time()
            result = await self._session.fetch_alone(
                self._ask(claimed),
                lambda is_on_wire, reply: self._on_wire(fetch, is_on_wire, reply),
                lambda: self._before_send(fetch),
            )
            fetch.is_answered = True
            answered_at = self._timers.now()
            await self._have_time()
            finished = await self._filters.decide(claimed, result)
        except PolicyError as error:  # not this page's failure, as of a closed client: it ends the crawl
            self.broken = error
        except StoreError as error:  # not this page's failure: it stays queued until the store is back
            _log.warning(f"{error} A page is put back.", url=claimed.url)
        except Exception as error:  # one failure does not stop the others (N10)
            _log.error("A page could not be dealt with", url=claimed.url, error=repr(error))
            finished = self._filters.skip(claimed, "error", f"{type(error).__name__}: {error}", failed=True)
        finally:
            self._finish(finished, result, answered_at)

    async def _have_time(self) -> None:
        """Wait for an iteration of the event loop with time left.

        Checking or reading a malicious robots.txt or page takes some hundredth of a second on the loop. Many at once
        would block all other tasks.
        """
        while True:
            now = time.perf_counter()  # the thread's CPU time would cost a system call
            if self._turn_until is None:
                self._turn_until = now + TURN
                asyncio.get_running_loop().call_soon(self._end_turn)
            if now < self._turn_until:
                return
            await asyncio.sleep(0)

    def _end_turn(self) -> None:
        self._turn_until = None

    async def _delay_for_slot(self, fetch: RunningFetch, may_crowd: bool) -> float | None:
        """Return the seconds until the retry of a fetch that cannot be sent now; None if it can.

        It cannot be sent if its address has no free slot. It cannot be sent either if the lookup of its host took long,
        because other fetches used its slot meanwhile. The frontier knows the address by then.

        While at most a quarter of the slots is in use, no address can exceed its share, so none is looked up.
        """
        if self.places_in_use <= self._addresses.share:
            self._unlocated[fetch] = None
            return None
        others, self._unlocated = self._unlocated, {}
        if self.looked_up >= LOOKUPS and self._is_unknown(fetch):
            self._report(fetch, SLOW)
            return CROWDED
        lookups = {each: self._look_up(each) for each in (fetch, *others) if not self._is_located(each)}
        if lookups:
            await asyncio.wait(lookups.values(), timeout=GLANCE)
        lookup = lookups.get(fetch)
        if not may_crowd and self._is_crowded(fetch):
            if lookup is not None:
                lookup.cancel()
            return CROWDED if self._is_shared else 0.0
        if lookup is not None:
            if not lookup.done():
                await self._wait_for_name(fetch, lookup)
                return 0.0
            lookup.result()
            self._nameless.discard(fetch.claimed.host)
        return None

    def _is_located(self, fetch: RunningFetch) -> bool:
        """Count a fetch at the address of its host, if that is known; return whether it is."""
        address, until = self._located_hosts.get(fetch.claimed.host, ("", 0.0))
        if self._timers.now() >= until:
            return False
        self._count_at(fetch, address)
        return True

    def _is_crowded(self, fetch: RunningFetch) -> bool:
        """Return whether the address of a fetch has no free slot. If so, the fetch no longer counts there."""
        address, now = fetch.address, self._timers.now()
        if not address:
            return False
        self._addresses.give_back_for(fetch.site, address, now)
        if self._addresses.counted(address) >= self._addresses.share:
            fetch.address = ""
            return True
        self._addresses.take_for(fetch.site, address, now)
        return False

    def _is_unknown(self, fetch: RunningFetch) -> bool:
        """Return whether the lookup of a fetch's host may take long."""
        is_number = name_and_port(fetch.claimed.host)[0][-1:] in "]0123456789"
        return not (fetch.address or is_number or fetch.claimed.host in self._nameless)

    def _look_up(self, fetch: RunningFetch) -> asyncio.Task[None]:
        lookup = asyncio.ensure_future(self._locate(fetch))
        self._lookups.add(lookup)
        lookup.add_done_callback(self._lookups.discard)
        return lookup

    async def _wait_for_name(self, fetch: RunningFetch, lookup: asyncio.Task[None]) -> None:
        """Release the slot of a fetch until its host is looked up."""
        self._enter(fetch, Phase.LOOKED_UP)
        self._grant_slots()
        self._wake()
        try:
            await lookup
        finally:
            self._enter(fetch, Phase.WAITING)
        if fetch.address in ("", SLOW):
            if len(self._nameless) >= MOST_LOCATED:
                self._nameless.clear()
            self._nameless.add(fetch.claimed.host)
            self._report(fetch, SLOW)

    async def _locate(self, fetch: RunningFetch) -> None:
        """Look up the address of a fetch and count the fetch there."""
        claimed = fetch.claimed
        address = SLOW if claimed.host in self._nameless else await self._session.address_of(claimed.url)
        if address not in ("", SLOW):
            if len(self._located_hosts) >= MOST_LOCATED:
                self._located_hosts.clear()
            self._located_hosts[claimed.host] = address, self._timers.now() + LOCATED
        self._count_at(fetch, address)

    def _count_at(self, fetch: RunningFetch, address: str) -> None:
        """Count a fetch at an address, instead of the one where it is counted."""
        if address != fetch.address and fetch.phase is not Phase.WAITING:
            now = self._timers.now()
            if fetch.address:
                self._addresses.give_back_for(fetch.site, fetch.address, now)
            if address:
                self._addresses.take_for(fetch.site, address, now)
        fetch.address = address
        if address:
            self._report(fetch, address)

    def _report(self, fetch: RunningFetch, address: str) -> None:
        """Report the address of a fetch to the frontier, if it has changed."""
        if self._located.get(fetch.site) != address:
            if len(self._located) >= MOST_LOCATED:
                self._located.clear()
            self._located[fetch.site] = address
            self._report_address(fetch.claimed.host, address)

    def _enter(self, fetch: RunningFetch, phase: Phase) -> None:
        """Set the phase of a fetch, and count whether it is in flight at its registered domain and its address."""
        before, fetch.phase = fetch.phase, phase
        self._phases[before] -= 1
        self._phases[phase] += 1
        if (before is Phase.WAITING) == (phase is Phase.WAITING):
            return
        is_over, now = phase is Phase.WAITING, self._timers.now()
        (self._sites.give_back if is_over else self._sites.take)(fetch.site, now)
        if fetch.address:
            count = self._addresses.give_back_for if is_over else self._addresses.take_for
            count(fetch.site, fetch.address, now)

    def _finish(self, finished: Finished, result: FetchResult | None, answered_at: float | None) -> None:
        finished.answered_at = answered_at
        if result is not None:
            delay = self._session.crawl_delay(origin_of(finished.claimed.url))
            if delay and delay <= gap_of(self._session.policies.of(finished.claimed.host)):
                delay = 0.0
            finished.bytes, finished.news = result.record.bytes, HostNews.of(result, delay)
        self._results.put(finished)
        self.hosts.ended(finished, self._timers.now())

    def _ask(self, claimed: Claimed) -> FetchRequest:
        # Nothing is sent after the lease may have been taken over (F60).
        deadline = max(0.001, claimed.leased_until - self._timers.now()) if self._is_shared else None
        qps = self._session.policies.global_qps
        max_wait = MAX_WAIT if qps is None else longest_queue(qps) / qps
        return FetchRequest(
            claimed.url, max_wait=max_wait, follow=claimed.url in self._filters.followed_at_once, deadline=deadline,
            is_foreign=self._filters.is_foreign(claimed), is_part=is_requisite(claimed),
        )  # fmt: skip

    def _on_wire(self, fetch: RunningFetch, is_on_wire: bool, reply: Reply | None) -> None:
        self._enter(fetch, Phase.ON_WIRE if is_on_wire else Phase.WAITING)
        if not is_on_wire:
            fetch.left_wire_at = self._timers.now()
            url = fetch.claimed.url
            fetch.is_asked = self._session.known_rules(origin_of(url)) is not None  # None: the reply was robots.txt
            fetch.retry_reason = "" if reply is None else retry_reason(reply)
            self._grant_slots()
            self._wake()

    def _before_send(self, fetch: RunningFetch) -> Awaitable[None] | None:
        """Return an awaitable for a slot; None if the fetch may use the wire now.

        A fetch that waits for its page or a retry holds no slot. All whose pauses end together come back at once.
        """
        return None if fetch.phase is Phase.STARTING or self._may_return(fetch) else self._turn(fetch)

    async def _turn(self, fetch: RunningFetch) -> None:
        turn = self._returning[fetch] = asyncio.get_running_loop().create_future()
        try:
            await turn
        except asyncio.CancelledError:
            self._enter(fetch, Phase.WAITING)  # a slot may have been granted in the same moment
            self._grant_slots()
            raise
        finally:
            self._returning.pop(fetch, None)

    def _may_return(self, fetch: RunningFetch) -> bool:
        now = self._timers.now()
        if self.places_in_use >= self._places or self._sites.is_full(fetch.site, now):
            return False
        return not (fetch.address and self._addresses.is_full(fetch.address, now))

    def _grant_slots(self) -> None:
        """Grant free slots to the fetches that have waited longest."""
        for fetch, turn in list(self._returning.items()):
            if self.places_in_use >= self._places:
                return
            if not turn.done() and self._may_return(fetch):
                self._enter(fetch, Phase.STARTING)
                turn.set_result(None)

    def _ended(self, task: asyncio.Task[None]) -> None:
        fetch = self._fetches.pop(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = error
        self._enter(fetch, Phase.WAITING)
        self._phases[Phase.WAITING] -= 1
        self._unlocated.pop(fetch, None)
        self._grant_slots()
        self._wake()

    def withdraw(self) -> None:
        """Cancel the fetches that wait for a request; their URLs are put back.

        A received page is kept while its reply is processed, so call this repeatedly.
        """
        self._filters.stop_reading()
        settled = self._timers.now() - SETTLING
        for task, fetch in self._fetches.items():
            is_settling = fetch.left_wire_at > settled
            if not (fetch.phase is Phase.ON_WIRE or is_settling or fetch.is_answered or fetch.is_withdrawn):
                fetch.is_withdrawn = True
                task.cancel()

    async def cancel_all(self) -> None:
        """Cancel all running fetches; their URLs are put back."""
        tasks = [*self._fetches, *self._lookups]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def longest_queue(qps: float) -> int:
    """Return how many fetches may wait for the global rate: enough to use it, few enough for short waits."""
    return max(4, int(10 * qps))

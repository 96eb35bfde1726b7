"""Context of flows: settings, clocks, cache, known rules and cookies, and the resources that a flow holds."""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import msgspec

from curtsy.cache.keys import Page, PageCache
from curtsy.core.bounded import Bounded
from curtsy.core.cache import Absorbed, Drop, Mode, Refresh
from curtsy.core.cache import Store as StorePage
from curtsy.core.decision import No
from curtsy.core.effects import Claim, Enter, Hold, Learn, Recall, Render, Send
from curtsy.core.errors import Reason
from curtsy.core.fair_share import QUARTER
from curtsy.core.policy import Policies, Policy
from curtsy.core.record import FetchRecord
from curtsy.core.request import Headers, Reply, Request
from curtsy.core.rules import TEXTS, Busy, Claimed, Known, Rules, claim, learned, released
from curtsy.core.time import SECOND, Now
from curtsy.core.url import Url
from curtsy.engine.gate import Ticket
from curtsy.engine.gate_steps import Request as GateRequest
from curtsy.engine.timers import Waiter
from curtsy.engine.wait_queue import WaitQueues
from curtsy.http.address import refusal
from curtsy.http.cookies import Cookies
from curtsy.http.registered_domain import are_apart, site_of
from curtsy.http.sender import Limits
from curtsy.stores import Step

KNOWN = 4096
"""Maximum number of origins whose rules are cached in memory."""

MOST_TAKERS = 4096
"""Maximum number of registered domains whose retries are remembered."""


class HeldResources:
    """Resources that a flow currently holds."""

    __slots__ = (
        "claimed", "has_open_body", "is_robots", "is_sent", "on_wire", "open_ticket", "place", "reads_later", "send",
        "ticket", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        send: Callable[[Request, Limits], Awaitable[Reply]] | None = None,
        on_wire: Callable[[bool, Reply | None], None] | None = None,
        place: Callable[[], Awaitable[object] | None] | None = None,
        *,
        reads_later: bool = False,
    ) -> None:
        self.send = send
        """Function that sends the requests for the page; None for the sender's."""
        self.reads_later = reads_later
        """True if a reply of `send` that is not whole has a body that the caller reads after the flow."""
        self.has_open_body = False
        """True if the last request for the page has such a reply."""
        self.open_ticket: Ticket | None = None
        """Settled ticket whose slot that body keeps, until `BodySlot` returns it."""
        self.on_wire = on_wire
        """Callback for the start (True) and the end (False) of each request on the wire, with its reply if any."""
        self.place = place
        """Callback before each request on the wire; the request waits for the awaitable it returns, if any."""
        self.ticket: Ticket | None = None
        self.is_sent = False
        """True while the flow's request may be on the wire."""
        self.is_robots = False
        """True if that request is for robots.txt, not for the page."""
        self.waiters: dict[str, Waiter] = {}
        """Waiters of this flow by the origin whose rules queue they are in."""
        self.claimed: set[str] = set()
        """Origins whose rules this flow has claimed to fetch."""

    def leave_queue(self, origin: str, queues: WaitQueues) -> None:
        """Leave the rules queue of an origin, so that the next waiter continues."""
        self.claimed.discard(origin)
        waiter = self.waiters.pop(origin, None)
        if waiter is not None:
            queues.leave(rules_key(origin), waiter, holding=False)


class RetryShare:
    """Limit on retries: a bucket of 10 that each sent request refills by a tenth.

    In an outage, retries then add at most a tenth more requests, not three times as many. A registered domain that has
    taken a quarter of the bucket, less what its own requests refilled since, leaves half of it to the others.
    """

    def __init__(self, capacity: float = 10.0, share: float = 0.1) -> None:
        self._capacity, self._share = capacity, share
        self._left = capacity
        self._lock = threading.Lock()
        self._host: str | None = None
        self._is_shared = False
        """True if requests went to more than one host. A single host needs no lookup of its registered domain."""
        self._taken: dict[str, float] = {}
        """Retries that each registered domain has taken and not refilled; the first to take one is first."""

    def count(self, host: str) -> None:
        """Count a request sent to a host."""
        with self._lock:
            if self._left < self._capacity:
                self._left = min(self._capacity, self._left + self._share)
            if host != self._host:
                self._is_shared, self._host = self._host is not None or self._is_shared, host
            if self._taken and (taken := self._taken.get(site := site_of(host))) is not None:
                self._taken[site] = taken - self._share
                if taken <= self._share:
                    del self._taken[site]

    def take(self, host: str) -> bool:
        """Take one retry for a host; return False if the bucket is empty, or the rest is for other hosts."""
        with self._lock:
            if self._left < 1:
                return False
            if self._is_shared:
                site = site_of(host)
                taken = self._taken.get(site, 0.0)
                if taken >= self._capacity / QUARTER and self._left - 1 < self._capacity / 2:
                    return False
                self._taken[site] = min(self._capacity, taken + 1)
                if len(self._taken) > MOST_TAKERS:
                    del self._taken[next(iter(self._taken))]
            self._left -= 1
            return True

    def put_back(self) -> None:
        """Return a retry that was not sent."""
        with self._lock:
            self._left = min(self._capacity, self._left + 1)


class _CachedRules(msgspec.Struct, frozen=True, gc=False):
    """Rules of an origin in memory."""

    rules: Rules
    until: float
    """Their expiry by `Context.now`."""

    heeded: dict[str, float]
    """Crawl-delays by agent, for agents that already follow them."""

    ttl: float
    """Setting in seconds when the rules were learned."""


class RulesCache:
    """In-memory cache of robots.txt rules beside the store, shared by all contexts of a client."""

    def __init__(self) -> None:
        self.by_origin: Bounded[str, _CachedRules] = Bounded(KNOWN, TEXTS, lambda known: known.rules.weight)
        """Rules by origin. Evicted entries are read from the store again."""

        self.since = 0.0
        """Epoch second; rules learned before it are ignored."""


@dataclass
class Context:
    """Environment of flows (`core.flow.World`) and of their drivers."""

    settings: Callable[[], Policies]
    now: Callable[[], float]
    epoch: Callable[[], float]
    cache: PageCache | None = None
    cache_mode: Mode = "normal"
    stale_if_error: float = 0.0
    max_retries: int | None = None
    cookies: Cookies | None = None
    roll: Callable[[], float] = random.random
    told: Callable[[FetchRecord], None] = lambda record: None
    postponed: Callable[[FetchRecord], None] = lambda record: None
    """Function that counts the requests of a fetch that is repeated later."""
    render: Callable[[Render], Awaitable[Reply]] | None = None
    """Function that renders a page in a browser; None without one."""
    retries: RetryShare = field(default_factory=RetryShare)
    rules: RulesCache = field(default_factory=RulesCache)
    number: int = field(default_factory=lambda: random.getrandbits(52))

    @property
    def who(self) -> int:
        """Return the number that claims rules in the store. A forked child has a different one."""
        return self.number ^ os.getpid()

    def forget_rules(self) -> None:
        """Make every origin's rules expire, so that they are fetched again."""
        self.rules.since = self.epoch()
        self.rules.by_origin.clear()

    @property
    def has_cache(self) -> bool:
        """Return whether pages are cached."""
        return self.cache is not None

    @property
    def policies(self) -> Policies:
        """Return the policies in force."""
        return self.settings()

    def refused_address(self, url: Url) -> str | None:
        """Return why the URL's host is a forbidden address; None if it is allowed or a name.

        `localhost` counts as an address (RFC 6761, 6.3).
        """
        last = url.host.rpartition(".")[2]
        is_address = ":" in url.host or last.isdigit()
        kind = refusal(url.host) if is_address else "loopback" if last == "localhost" else None
        return None if kind is None else f"{url.host} is {kind}"

    def is_foreign(self, one: Url, other: Url) -> bool:
        """Return whether two URLs belong to different registered domains (Public Suffix List)."""
        return are_apart(one.domain, other.domain)

    @property
    def keeps_cookies(self) -> bool:
        """Return whether cookies are stored."""
        return self.cookies is not None

    def cookies_for(self, url: Url) -> str | None:
        """Return the `Cookie` header for a URL; None if there is nothing to send."""
        return None if self.cookies is None else self.cookies.header_for(url)

    def take_cookies(self, url: Url, headers: Headers) -> None:
        """Store the cookies of a response, if cookies are enabled."""
        if self.cookies is not None:
            self.cookies.take(url, headers)

    def gate_request(self, effect: Enter, policies: Policies) -> GateRequest:
        """Return the gate request for an effect under the policies in force."""
        domain = effect.domain

        def renewed() -> tuple[str, Policy, Policy] | No:
            now = self.policies
            policy = now.of(domain)
            if policy.denied:
                return No(Reason.DOMAIN_DENIED, None)
            return policy.key_for(domain), policy, now.overall_for(policy)

        return GateRequest(
            effect.key, effect.policy, policies.overall_for(effect.policy), effect.page, effect.robots, 1,
            effect.deadline, renewed, effect.crawl_delay, effect.rank, effect.foreign, effect.guest,
        )  # fmt: skip

    def known_rules(self, origin: str, ttl: float = math.inf) -> Known | None:
        """Return an origin's unexpired rules from memory, unless `ttl` is below the setting by which they were learned.

        A shorter setting makes their expiry earlier than this memory knows.
        """
        found = self.rules.by_origin.get(origin)
        if found is None or ttl < found.ttl:
            return None
        left = found.until - self.now()
        return Known(found.rules, left, found.heeded) if left > 0 else None

    def put_back_retry(self) -> None:
        """Return a retry that was granted but not sent."""
        self.retries.put_back()

    def heeded(self, origin: str) -> dict[str, float]:
        """Return the Crawl-delay of an origin's known rules, by each agent that already follows it."""
        found = self.rules.by_origin.get(origin)
        return {} if found is None else found.heeded

    def remember(self, origin: str, rules: Rules, seconds: float, ttl: float) -> None:
        """Cache rules in memory for `seconds`; `ttl` is the setting in force."""
        self.rules.by_origin.put(origin, _CachedRules(rules, self.now() + seconds, {}, ttl))

    def claim_step(self, effect: Claim | Hold) -> Step[Known | Claimed | Busy]:
        """Return the step that reads an origin's rules or claims them."""
        who, since = self.who, self.rules.since

        def step(rules: Rules | None, now: Now) -> tuple[Rules | None, Known | Claimed | Busy]:
            return claim(rules, now, who, since, effect.ttl, effect.lasts)

        return step

    def recall(self, effect: Recall) -> Page | None:
        """Return the cached page for a request."""
        return None if self.cache is None else self.cache.get(effect.request)

    def keep(self, url: Url, what: Absorbed) -> None:
        """Apply the core's decision to the cache."""
        if self.cache is None:
            return
        match what:
            case StorePage(entry, body):
                self.cache.keep(entry, body)
            case Refresh(entry):
                self.cache.refresh(entry)
            case Drop(variant):
                self.cache.drop(url, variant)
            case _:
                pass


def limits_of(effect: Send) -> Limits:
    """Return the limits for one request."""
    limits = Limits.of(effect.policy)
    if effect.left is None and not effect.cut and effect.timeout == limits.timeout:
        return limits
    return replace(
        limits,
        timeout=effect.timeout,
        connect_timeout=min(limits.connect_timeout, effect.timeout),
        max_body=effect.max_body,
        cut=effect.cut,
        # A timeout below the setting is the rest of the caller's deadline, which includes waiting.
        counts_waiting=effect.timeout < (effect.policy.robots_timeout if effect.cut else limits.timeout),
        patience=effect.left,
    )


def learn_step(effect: Learn) -> Step[Known]:
    """Return the step that records the result of fetching rules."""

    def step(rules: Rules | None, now: Now) -> tuple[Rules, Known]:
        changed = learned(rules, now, effect.policy, effect.body, effect.why, effect.part, effect.no_answer)
        return changed, Known(changed, changed.valid_until - now.epoch / SECOND)

    return step


def release_step(who: int) -> Step[None]:
    """Return the step that releases a claim."""

    def step(rules: Rules | None, now: Now) -> tuple[Rules | None, None]:
        return released(rules, who), None

    return step


def rules_key(origin: str) -> str:
    """Return the store key of an origin's rules."""
    return "rules:" + origin

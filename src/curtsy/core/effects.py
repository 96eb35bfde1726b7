"""Effects that a flow yields, with their results, and the context (`World`) that it reads."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

import msgspec

from curtsy.core.amendment import Amendment
from curtsy.core.cache import Absorbed, Mode
from curtsy.core.decision import Go
from curtsy.core.masking import masked_repr
from curtsy.core.outcome import Outcome
from curtsy.core.policy import Policies, Policy
from curtsy.core.record import FetchRecord
from curtsy.core.request import NO_HEADERS, Headers, Request, Response
from curtsy.core.rules import Known
from curtsy.core.url import Url

Result = TypeVar("Result")


class FetchRequest(msgspec.Struct, frozen=True):
    """Fetch as the caller requests it."""

    url: str
    method: str = "GET"
    headers: Headers = NO_HEADERS
    body: bytes | None = None
    deadline: float | None = None
    """Seconds for the whole fetch, waits and retries included; None: no limit."""

    idempotent: bool | None = None
    """True if it may be retried; None: the method decides."""

    max_wait: float | None = None
    """Seconds to wait at most before the first request; None: no limit. The result of a longer wait is `DEADLINE`."""

    follow: bool = True
    """True if redirects are followed."""

    is_foreign: bool = False
    """True if a redirect from another registered domain led here: failures do not count against the host (C22)."""

    is_part: bool = False
    """True for a part of a page that a browser shows, such as an image. No page is charged."""

    obeys_robots: bool = True
    """True if robots.txt applies. A browser's user has asked for a page with all its parts."""

    timeout: float | None = None
    """Seconds for each attempt; None: the policy decides."""

    follows: bool = False
    """True for a part from the page's own site: it is charged, but does not wait, in the turn of its page."""

    renders: bool = False
    """True if a browser renders the page."""

    is_renewal: bool = False
    """True if it renews a cached copy. A redirect is then not an error."""

    __repr__ = masked_repr


class World(Protocol):
    """Context of a flow: settings, clocks and random numbers."""

    cache_mode: Mode
    """Use of cached pages."""

    stale_if_error: float
    """Seconds beyond its lifetime for which a cached page may replace a failed reply."""

    max_retries: int | None
    """Most retries, instead of the policies' setting; None: the policies decide."""

    @property
    def has_cache(self) -> bool:
        """True if pages are cached."""
        ...

    @property
    def policies(self) -> Policies:
        """Policies in force."""
        ...

    def refused_address(self, url: Url) -> str | None:
        """Return why the URL's address is refused; None if it is allowed, or if the host is a name."""
        ...

    def now(self) -> float:
        """Return the seconds of a monotonic clock."""
        ...

    def epoch(self) -> float:
        """Return the epoch second."""
        ...

    def known_rules(self, origin: str, ttl: float = math.inf) -> Known | None:
        """Return the rules of an origin from memory that are valid by a setting `ttl`; None if memory holds none."""
        ...

    def put_back_retry(self) -> None:
        """Give back a granted retry that was not sent."""
        ...

    def is_foreign(self, one: Url, other: Url) -> bool:
        """Return whether two URLs belong to different registered domains, by the Public Suffix List."""
        ...

    def heeded(self, origin: str) -> dict[str, float]:
        """Return the Crawl-delay (seconds) of an origin by user agent, for agents that `heed()` has recorded."""
        ...

    @property
    def keeps_cookies(self) -> bool:
        """True if cookies are kept."""
        ...

    def cookies_for(self, url: Url) -> str | None:
        """Return the value of the Cookie header for a URL; None without cookies."""
        ...

    def take_cookies(self, url: Url, headers: Headers) -> None:
        """Store the cookies of a reply, if cookies are kept."""
        ...

    def roll(self) -> float:
        """Return a random number in [0, 1)."""
        ...


class Admitted(Protocol):
    """Ticket of the gate: a request that may be sent now."""

    @property
    def go(self) -> Go:
        """Decision of admission, with the lease."""
        ...

    @property
    def waited(self) -> float:
        """Seconds spent in the queue."""
        ...


class Enter(msgspec.Struct, frozen=True, gc=False):
    """Effect: wait in the host's queue and be charged. Result: `Admitted`, `No` or `Late`."""

    key: str
    policy: Policy
    page: bool
    robots: bool
    deadline: float | None
    domain: str = ""
    """Domain of the policy: settings that change during the wait apply to it."""

    crawl_delay: int = 0
    """Crawl-delay of the sending user agent, in microseconds."""

    rank: float | None = None
    """Position among the requests in front of the queue, lowest first; None: the end of the queue."""

    foreign: bool = False
    """True if a redirect from another registered domain led here (C22)."""

    guest: bool = False
    """True if that redirect was of a robots.txt: such requests have an allowance of their own."""


class Send(msgspec.Struct, frozen=True, gc=False):
    """Effect: send a request. Result: a `Reply`; None, with nothing sent, if the lease ends before `timeout`."""

    request: Request
    policy: Policy
    ticket: Admitted
    timeout: float
    max_body: int | None
    cut: bool = False
    """True if a body that is too long is cut, not refused."""

    left: float | None = None
    """Seconds until the caller's deadline; None without a deadline."""


class PutBack(msgspec.Struct, frozen=True, gc=False):
    """Effect: give back an unused ticket, with its turn."""

    ticket: Admitted


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Effect: write the consequences of a reply into the host's record. Result: `Settled`."""

    ticket: Admitted
    outcome: Outcome


class Recall(msgspec.Struct, frozen=True, gc=False):
    """Effect: look up the cached copy for a request. Result: `(entry, body)` or None."""

    request: Request


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Effect: change the cache as `absorb()` has decided."""

    url: Url
    what: Absorbed


class Remember(msgspec.Struct, frozen=True, gc=False):
    """Effect: read the stored rules of an origin, expired or not, without a request. Result: `Rules` or None."""

    origin: str


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Effect: get an origin's rules or the task of fetching them. Result: `Known`, `Claimed` or `Late`.

    It waits while another task or process fetches them.
    """

    origin: str
    deadline: float | None
    ttl: float
    """Seconds for which a copy is valid, by the present settings."""

    lasts: float
    """Seconds until the claim expires if its holder dies."""


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Effect: renew a claim. Result: `Claimed`; `Known` or `Busy` if another process was faster."""

    origin: str
    ttl: float
    lasts: float


class Learn(msgspec.Struct, frozen=True, gc=False):
    """Effect: store the result of fetching the rules and resume the waiters. Result: `Rules`.

    `body` is None if the file is unreachable.
    """

    origin: str
    policy: Policy
    body: bytes | None
    why: str = ""
    part: bytes = b""
    """Received part of an incomplete body (C21)."""

    no_answer: str = ""
    """Why the origin gave no response at all; empty after any response."""


class Release(msgspec.Struct, frozen=True, gc=False):
    """Effect: release the claim on the rules without a result."""

    origin: str


class Amend(msgspec.Struct, frozen=True, gc=False):
    """Effect: change a host's record independently of a request."""

    key: str
    policy: Policy
    change: Amendment


class MayRetry(msgspec.Struct, frozen=True, gc=False):
    """Effect: reserve a retry of the retry budget for a host. Result: a bool."""

    host: str


class Later(msgspec.Struct, frozen=True, gc=False):
    """Effect: fetch a page again after this fetch, to renew its copy. Result: a bool, False if impossible."""

    ask: FetchRequest


class Render(msgspec.Struct, frozen=True, gc=False):
    """Effect: let a browser run the scripts of a page. Result: a `Reply` with the DOM as its body.

    A redirect by a script is a reply with a Location.
    """

    request: Request
    page: Response
    left: float | None
    """Seconds until the caller's deadline; None without a deadline."""


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Effect: report the record to log, metrics and statistics."""

    record: FetchRecord
    is_postponed: bool = False
    """True if the fetch is repeated later, so that only its requests count now, such as that for robots.txt."""


Effect = (
    Enter | Send | PutBack | Settle | Recall | Keep | Remember | Claim | Hold | Learn | Release | Amend | MayRetry
    | Later | Render | Tell
)  # fmt: skip

Flow = Generator[Effect, Any, Result]
"""Generator that yields effects and returns a result."""

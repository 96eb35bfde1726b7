"""What a flow asks to have done, each with what it is answered by, and what it may look at meanwhile."""

from __future__ import annotations

from typing import Protocol

import msgspec

from curtsy.core.admission import Amendment, Go
from curtsy.core.cache import Absorbed, Mode
from curtsy.core.message import NO_HEADERS, Headers, Request, Url
from curtsy.core.outcome import Outcome
from curtsy.core.policy import Policies, Policy
from curtsy.core.record import FetchRecord
from curtsy.core.rules import Known
from curtsy.core.secrets import masked_repr


class FetchRequest(msgspec.Struct, frozen=True):
    """What the caller wants."""

    url: str
    method: str = "GET"
    headers: Headers = NO_HEADERS
    body: bytes | None = None
    deadline: float | None = None
    """Seconds for all of it, waits and retries included; None for as long as it takes."""

    idempotent: bool | None = None
    """Whether it may be sent again; None for what its method says."""

    max_wait: float | None = None
    """Seconds to stand in line for the first request at most, else the answer is when to come back; None for any."""

    follow: bool = True
    """Whether redirects are followed."""

    is_foreign: bool = False
    """Whether a redirect from another registered domain led here: what fails says nothing of the host (C22)."""

    is_renewal: bool = False
    """Whether it is a kept copy that is to be renewed: of a redirect, too, there is nothing to complain of then."""

    __repr__ = masked_repr


class World(Protocol):
    """What a flow may look at while it runs: settings, a clock and dice."""

    @property
    def policies(self) -> Policies:
        """The policies in force."""
        ...

    @property
    def has_cache(self) -> bool:
        """Whether pages are kept."""
        ...

    @property
    def cache_mode(self) -> Mode:
        """How kept pages are used."""
        ...

    @property
    def stale_if_error(self) -> float:
        """Seconds beyond its lifetime that a kept page may stand in for an answer that failed."""
        ...

    @property
    def max_retries(self) -> int | None:
        """Instead of the policies'; None to leave it to them."""
        ...

    def refused_address(self, url: Url) -> str | None:
        """Why the URL's host, if it is an address, may not be connected to; None if it may, or is a name."""
        ...

    def now(self) -> float:
        """Seconds of a clock that never jumps."""
        ...

    def epoch(self) -> float:
        """The calendar's second."""
        ...

    def known_rules(self, origin: str) -> Known | None:
        """The rules of an origin that hold now, as far as they are in memory."""
        ...

    def put_back_retry(self) -> None:
        """Give back a retry that was allowed and not sent after all."""
        ...

    def is_foreign(self, one: Url, other: Url) -> bool:
        """Whether two URLs belong to different registered domains, by the Public Suffix List."""
        ...

    def heeded(self, origin: str) -> dict[str, float]:
        """The Crawl-delay in the rules that are known of an origin, by the agents that have heeded it already."""
        ...

    @property
    def keeps_cookies(self) -> bool:
        """Whether cookies are kept."""
        ...

    def cookies_for(self, url: Url) -> str | None:
        """What was kept of the host's cookies, as a header; None if nothing, or if none are kept."""
        ...

    def take_cookies(self, url: Url, headers: Headers) -> None:
        """Keep the cookies of an answer, if they are kept at all."""
        ...

    def roll(self) -> float:
        """Dice, in [0, 1)."""
        ...


class Admitted(Protocol):
    """A request that may leave now, as the gate gives it."""

    @property
    def go(self) -> Go:
        """What was granted."""
        ...

    @property
    def waited(self) -> float:
        """Seconds spent in line."""
        ...


# The effects, each with what it is answered by.


class Enter(msgspec.Struct, frozen=True, gc=False):
    """Wait for the host's turn and be charged: `Admitted`, `No` or `Late`."""

    key: str
    policy: Policy
    page: bool
    robots: bool
    deadline: float | None
    domain: str = ""
    """Whose policy it is: settings that change while it waits hold for it."""

    crawl_delay: int = 0
    """Microseconds that robots.txt asks of who sends it."""

    rank: float | None = None
    """If it goes before those who stand in line: where among those who do so, too."""

    foreign: bool = False
    """Whether a redirect from another registered domain led here (C22)."""

    guest: bool = False
    """Whether that was one of a robots.txt: these have an allowance of their own."""


class Send(msgspec.Struct, frozen=True, gc=False):
    """Send: a `Reply`; None if the place has run out meanwhile, and nothing was sent."""

    request: Request
    policy: Policy
    ticket: Admitted
    timeout: float
    max_body: int | None
    cut: bool = False
    """Whether a body that is too long is cut instead of refused."""

    left: float | None = None
    """Seconds until the caller's deadline; None without one."""


class PutBack(msgspec.Struct, frozen=True, gc=False):
    """Give back a place that is not needed after all, with its turn."""

    ticket: Admitted


class Settle(msgspec.Struct, frozen=True, gc=False):
    """Write the consequences into the host's record: `Settled`, what holds for it then."""

    ticket: Admitted
    outcome: Outcome


class Recall(msgspec.Struct, frozen=True, gc=False):
    """Look for the kept copy that answers a request: `(entry, body)` or None."""

    request: Request


class Keep(msgspec.Struct, frozen=True, gc=False):
    """Do to the cache what `absorb()` said."""

    url: Url
    what: Absorbed


class Remember(msgspec.Struct, frozen=True, gc=False):
    """What is known of an origin's rules, however old: `Rules` or None. Asks nobody."""

    origin: str


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Have an origin's rules, or the task of fetching them: `Known`, `Claimed` or `Late`. Waits for who is at it."""

    origin: str
    deadline: float | None
    ttl: float
    """Seconds for which a copy holds, by the settings of this moment."""

    lasts: float
    """Seconds for which the claim holds, should its holder die."""


class Hold(msgspec.Struct, frozen=True, gc=False):
    """Claim once more what was claimed a while ago: `Claimed`, or `Known` or `Busy` if another was quicker."""

    origin: str
    ttl: float
    lasts: float


class Learn(msgspec.Struct, frozen=True, gc=False):
    """Write down what came of fetching the rules (None: could not be had), and let those who wait have it: `Rules`."""

    origin: str
    policy: Policy
    body: bytes | None
    why: str = ""
    part: bytes = b""
    """What came of a body that broke off (C21)."""


class Release(msgspec.Struct, frozen=True, gc=False):
    """Give the task of fetching the rules back, undone."""

    origin: str


class Amend(msgspec.Struct, frozen=True, gc=False):
    """Change a host's record for another reason than a request."""

    key: str
    policy: Policy
    change: Amendment


class MayRetry(msgspec.Struct, frozen=True, gc=False):
    """Ask whether the share of retries allows one more: a bool."""


class Later(msgspec.Struct, frozen=True, gc=False):
    """Ask for a page once more when this is over, to renew its copy: whether that can be done."""

    ask: FetchRequest


class Tell(msgspec.Struct, frozen=True, gc=False):
    """Tell log, metrics and statistics."""

    record: FetchRecord


Effect = (
    Enter | Send | PutBack | Settle | Recall | Keep | Remember | Claim | Hold | Learn | Release | Amend | MayRetry
    | Later | Tell
)  # fmt: skip

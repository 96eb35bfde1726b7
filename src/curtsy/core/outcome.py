"""What a reply means for the host that gave it."""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from curtsy.core.dates import http_date
from curtsy.core.errors import Reason
from curtsy.core.message import Failure, Headers, Reply, whole_number


class Kind(Enum):
    """How a request ended, as far as manners go."""

    ANSWERED = "answered"
    """The site answered: 2xx, 3xx, and every 4xx but 403 and 429 (U6)."""

    NOT_MODIFIED = "not_modified"
    """304: the site sent nothing, so it costs nothing (B5)."""

    FAILED = "failed"
    """5xx, a timeout, a connection that broke."""

    BLOCKED = "blocked"
    """403: the site does not want us."""

    SLOWED = "slowed"
    """429: the site wants us to be slower."""

    ABANDONED = "abandoned"
    """Nobody waited for the answer: cancelled, refused later in the chain, or ended at a proxy."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What a reply means: all that `settle()` needs to know of it. Durations are seconds."""

    kind: Kind
    status: int = 0
    sent: bool = True
    """Whether the request was written; a connection that could not be made costs no budget (B5)."""

    page: bool = False
    """A successful answer with a body."""

    retry_after: float | None = None
    """What the site said, in seconds from now; None if it did not say, or nothing that can be read."""

    rest: float = 0.0
    """A rest of our own: the backoff before a retry."""

    quota: float | None = None
    """Seconds that the site asks for though it answered; None if it does not: until a RateLimit window ends in which
    nothing is left, or before a redirect is followed."""

    latency: float | None = None
    """Response time."""

    sent_ago: float | None = None
    """How long ago the request was really written; None if that is not known."""

    foreign: bool = False
    """Whether a redirect from another registered domain led there: then it says nothing to the breaker (C22)."""


_NOT_OURS = frozenset({Reason.ADDRESS_REFUSED, Reason.INVALID_URL, Reason.CLOSED, Reason.DEADLINE})
"""Failures that say nothing of the host: we did not ask it, or did not wait for it."""

PASSING = frozenset({Reason.TIMEOUT, Reason.DNS_ERROR, Reason.CONNECTION_ERROR, Reason.INCOMPLETE})
"""Failures that may be over in a moment (N3)."""


def classify(reply: Reply, epoch: float, *, robots: bool = False, foreign: bool = False) -> Outcome:
    """Say what a reply that came at epoch second `epoch` means for its host.

    `foreign` says that a redirect from another registered domain led there (C22).

    On robots.txt itself every 4xx but 429 is a plain answer: the file is not there, and that is no block.
    """
    if isinstance(reply, Failure):
        sent = reply.sent_ago is not None
        if reply.reason in _NOT_OURS or reply.ended_at_proxy:
            return Outcome(Kind.ABANDONED, sent=sent)
        if reply.is_answer:  # as a 400 is one; and though no request was written, the host had its work with us
            return Outcome(Kind.ANSWERED, foreign=foreign)
        # A page that is too large was answered well; it is only too much for us, or for our disk.
        kind = Kind.ANSWERED if reply.reason in (Reason.TOO_LARGE, Reason.NOT_WRITTEN) else Kind.FAILED
        return Outcome(kind, reply.status or 0, sent=sent, sent_ago=reply.sent_ago, foreign=foreign)
    status, headers = reply.status, reply.headers
    if status == 304:
        kind = Kind.NOT_MODIFIED
    elif status == 429:
        kind = Kind.SLOWED
    elif status == 403 and not robots:
        kind = Kind.BLOCKED
    else:
        kind = Kind.FAILED if status >= 500 else Kind.ANSWERED
    after = quota = None
    if kind in (Kind.SLOWED, Kind.FAILED, Kind.BLOCKED):
        after = retry_after(headers, epoch)
    elif 300 <= status < 400 and status != 304:
        quota = retry_after(headers, epoch)  # RFC 9110, 10.2.3
    if after is None and quota is None:  # Retry-After takes precedence
        quota = exhausted_for(headers, epoch)
    return Outcome(
        kind,
        status,
        page=200 <= status < 300 and bool(reply.body or reply.wire_bytes) and not robots,
        retry_after=after,
        quota=quota,
        latency=reply.latency,
        sent_ago=reply.sent_ago,
        foreign=foreign,
    )


def is_sent(reply: Reply) -> bool:
    """Whether a request was written, or the host had its work with us all the same."""
    return reply.sent_ago is not None or (isinstance(reply, Failure) and reply.is_answer)


def is_worth_repeating(reply: Reply) -> bool:
    """Whether the same request may fare better in a while (N3)."""
    if isinstance(reply, Failure):
        return reply.reason in PASSING and not (reply.ended_at_proxy and reply.is_lasting)
    return reply.status == 429 or 500 <= reply.status < 600


def backoff(attempt: int, initial: float, roll: float) -> float:
    """Seconds before the retry after the `attempt`-th try: initial x 2^(attempt-1), give or take 25 % (N2)."""
    return initial * float(1 << min(attempt - 1, 20)) * (0.75 + 0.5 * roll)


def retry_after(headers: Headers, epoch: float) -> float | None:
    """Seconds until the site wants to be asked again (RFC 9110, 10.2.3); None if it does not say, or not legibly.

    A date is read against the response's own `Date`, so that the two machines' clocks are not compared. What has
    passed already is 0. Of several the longest counts.
    """
    if "retry-after" not in headers:
        return None
    said = [_seconds(value.strip(), headers, epoch) for value in headers.all("retry-after")]
    return max((each for each in said if each is not None), default=None)


def _seconds(value: str, headers: Headers, epoch: float) -> float | None:
    """What one `Retry-After` says."""
    seconds = whole_number(value)
    if seconds is not None:
        return float(seconds)
    at = http_date(value)
    if at is None:
        return None
    sent = http_date(headers.get("date"))
    return max(0.0, at - (epoch if sent is None else sent))


_BETWEEN_COMMAS = re.compile(r'(?:[^",]|"(?:[^"\\]|\\.)*+"?)+', re.DOTALL)
_BETWEEN_SEMICOLONS = re.compile(r'(?:[^";]|"(?:[^"\\]|\\.)*+"?)+', re.DOTALL)
_RESET = re.compile(r"[0-9]{1,18}(?:\.[0-9]{0,9})?")
_MILLISECONDS = 100_000_000_000
"""No epoch second is as large for three thousand years: such a reset is counted in thousandths, or smaller parts."""

_PREFIXES = ("ratelimit-", "x-ratelimit-", "x-rate-limit-")
_QUOTA_FIELDS = frozenset({"ratelimit", *(prefix + "remaining" for prefix in _PREFIXES)})


def exhausted_for(headers: Headers, epoch: float) -> float | None:
    """Seconds until a rate limit's window ends, if the reply says that nothing is left of it; else None.

    Read are `RateLimit` of the IETF draft (`"default";r=0;t=30`, one or several, and the older `limit=10, remaining=0,
    reset=30`), `RateLimit-Remaining` with `RateLimit-Reset`, and `X-RateLimit-*`, whose reset may be an epoch second.
    A `RateLimit` that does not say when it ends does so after the window that `RateLimit-Policy` has for it.
    Of several limits that are used up, the one that ends last counts.
    """
    if _QUOTA_FIELDS.isdisjoint(headers):
        return None  # as nearly always
    resets = [] if (field := headers.get("ratelimit")) is None else _resets(field, headers.get("ratelimit-policy"))
    for prefix in _PREFIXES:
        left, reset = headers.get(prefix + "remaining"), _RESET.fullmatch((headers.get(prefix + "reset") or "").strip())
        if whole_number(left) != 0 or reset is None:
            continue
        ends = float(reset[0])
        if ends > 1_000_000_000:  # an epoch second, read against the response's own clock if it has one
            while ends > _MILLISECONDS:
                ends /= 1000
            sent = http_date(headers.get("date"))
            ends -= epoch if sent is None else sent
        if ends > 0:
            resets.append(ends)
    return max(resets, default=None)


def _resets(field: str, policies: str | None) -> list[float]:
    """Seconds until each limit of a `RateLimit` field ends that is used up."""
    older: dict[str, int | None] = {}
    """`limit=10, remaining=0, reset=30` is one limit, whose parts stand between the commas."""
    resets = []
    for item in _BETWEEN_COMMAS.findall(field):
        name, said = _item(item)
        key, equals, value = name.partition("=")
        if equals and not name.startswith('"'):
            older[key.strip().lower()] = _integer(value)
        elif said.get("r") == 0:
            reset = said.get("t")
            resets.append(_window(policies, name) if reset is None else reset)
    if older.get("remaining") == 0:
        resets.append(older.get("reset"))
    return [float(reset) for reset in resets if reset is not None]


def _item(text: str) -> tuple[str, dict[str, int | None]]:
    """The name of an item of a structured field, and its parameters that are numbers (RFC 9651, 3.1)."""
    name, *parameters = _BETWEEN_SEMICOLONS.findall(text) or [""]
    said: dict[str, int | None] = {}
    for each in parameters:
        key, _, value = each.partition("=")
        said[key.strip().lower()] = _integer(value)
    return name.strip(), said


def _integer(text: str) -> int | None:
    """A number of at most 15 digits without sign (RFC 9651, 3.3.1), also in quotes, as some servers write it."""
    number = whole_number(text.strip().strip('"'))
    return None if number is None or number >= 10**15 else number


def _window(policies: str | None, limit: str) -> int | None:
    """The seconds of a limit's window (`"default";q=100;w=60`), as the policy of its name has it; None if none does."""
    for policy in _BETWEEN_COMMAS.findall(policies or ""):
        name, said = _item(policy)
        if name == limit and said.get("w") is not None:
            return said["w"]
    return None

"""Outcome: meaning of a reply for its host, with the seconds that `Retry-After` and RateLimit fields say."""

from __future__ import annotations

import re
from enum import Enum

import msgspec

from curtsy.core.errors import Reason
from curtsy.core.request import Failure, Headers, Reply, whole_number
from curtsy.core.time import http_date


class Kind(Enum):
    """Result of a request, as far as it affects the host's limits."""

    ANSWERED = "answered"
    """Answer: 2xx, 3xx, and every 4xx but 403 and 429 (U6)."""

    NOT_MODIFIED = "not_modified"
    """Status 304: the site sent no body, so nothing is charged (B5)."""

    FAILED = "failed"
    """5xx, a timeout or a broken connection."""

    BLOCKED = "blocked"
    """Status 403: the site blocks the client."""

    SLOWED = "slowed"
    """Status 429: the site wants slower requests."""

    ABANDONED = "abandoned"
    """Result that says nothing about the host: cancelled, refused later in the chain, or ended at a proxy."""


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """Consequences of a reply: the input of `settle()`. Durations are seconds."""

    kind: Kind
    status: int = 0
    sent: bool = True
    """True if the request was written. A failed connection costs no budget (B5)."""

    page: bool = False
    """True for a successful answer with a body."""

    retry_after: float | None = None
    """Seconds from now given by Retry-After; None if absent or unreadable."""

    rest: float = 0.0
    """Backoff before a retry."""

    quota: float | None = None
    """Seconds of rest that the site requests although it answered; None if it does not. The rest lasts until an
    exhausted RateLimit window ends, or until a redirect may be followed."""

    latency: float | None = None
    """Response time; None if unknown."""

    sent_ago: float | None = None
    """Seconds since the request was really written; None if unknown."""

    foreign: bool = False
    """True if a redirect from another registered domain led to the host. The breaker then ignores the reply (C22)."""

    failure: str = ""
    """Reason code of a failure, such as `timeout`; empty if the reply was a response."""

    keeps_slot: bool = False
    """True if the body is still being read, so that the request keeps its slot until `amendment.Release`."""

    @property
    def is_free(self) -> bool:
        """True if the request costs no budget: it was not sent, or its page is unchanged (B5)."""
        return not self.sent or self.kind is Kind.NOT_MODIFIED

    @property
    def is_plain(self) -> bool:
        """True if the host has answered and wants no change of its pace."""
        is_answer = self.kind is Kind.ANSWERED or self.kind is Kind.NOT_MODIFIED
        return is_answer and self.quota is None and not self.rest and self.retry_after is None


_KINDS = {304: Kind.NOT_MODIFIED, 403: Kind.BLOCKED, 429: Kind.SLOWED}

_NOT_OURS = frozenset({Reason.ADDRESS_REFUSED, Reason.INVALID_URL, Reason.CLOSED, Reason.DEADLINE})
"""Failures that say nothing about the host, because curtsy did not contact it or did not wait for it."""

PASSING = frozenset({Reason.TIMEOUT, Reason.DNS_ERROR, Reason.CONNECTION_ERROR, Reason.INCOMPLETE})
"""Failures that may be temporary (N3)."""


def classify(reply: Reply, epoch: float, *, robots: bool = False, foreign: bool = False) -> Outcome:
    """Return the consequences of a reply received at epoch second `epoch`.

    `foreign`: a redirect from another registered domain led to the host (C22). `robots`: for robots.txt itself every
    4xx but 429 is a plain answer, because an absent file is not a block.
    """
    if isinstance(reply, Failure):
        return _classify_failure(reply, foreign)
    status, headers = reply.status, reply.headers
    if 200 <= status < 300:
        is_page = not robots and (bool(reply.body or reply.wire_bytes) or not reply.is_whole)
        quota = exhausted_for(headers, epoch)
        return Outcome(Kind.ANSWERED, status, True, is_page, None, 0.0, quota, reply.latency, reply.sent_ago, foreign)
    kind = _KINDS.get(status, Kind.FAILED if status >= 500 else Kind.ANSWERED)
    if kind is Kind.BLOCKED and robots:
        kind = Kind.ANSWERED
    after = quota = None
    if kind in (Kind.SLOWED, Kind.FAILED, Kind.BLOCKED):
        after = retry_after(headers, epoch)
    elif 300 <= status < 400 and status != 304:
        quota = retry_after(headers, epoch)  # RFC 9110, 10.2.3
    if after is None and quota is None:  # Retry-After takes precedence
        quota = exhausted_for(headers, epoch)
    return Outcome(kind, status, True, False, after, 0.0, quota, reply.latency, reply.sent_ago, foreign)


def _classify_failure(reply: Failure, foreign: bool) -> Outcome:
    sent = reply.sent_ago is not None
    if reply.reason in _NOT_OURS or reply.ended_at_proxy:
        return Outcome(Kind.ABANDONED, sent=sent)
    if reply.is_answer:  # equivalent to a 400; the host did work although no request was written
        return Outcome(Kind.ANSWERED, foreign=foreign)
    # An answer that exceeds the size limit, or that cannot be written to disk, is still an answer of the site.
    kind = Kind.ANSWERED if reply.reason in (Reason.TOO_LARGE, Reason.NOT_WRITTEN) else Kind.FAILED
    return Outcome(
        kind, reply.status or 0, sent=sent, sent_ago=reply.sent_ago, foreign=foreign, failure=reply.reason.value
    )


def is_sent(reply: Reply) -> bool:
    """Return whether a request was written, or the host did work without one."""
    return reply.sent_ago is not None or (isinstance(reply, Failure) and reply.is_answer)


def is_worth_repeating(reply: Reply) -> bool:
    """Return whether a retry of the same request may succeed (N3)."""
    if isinstance(reply, Failure):
        return reply.reason in PASSING and not (reply.ended_at_proxy and reply.is_lasting)
    return reply.status == 429 or 500 <= reply.status < 600


def retry_reason(reply: Reply) -> str:
    """Return why a retry of the request may succeed, such as `timeout` or `http_status 503`; empty if it may not."""
    if not is_worth_repeating(reply):
        return ""
    return str(reply.reason) if isinstance(reply, Failure) else f"{Reason.HTTP_STATUS} {reply.status}"


def backoff(attempt: int, initial: float, roll: float) -> float:
    """Return the seconds before the retry after attempt number `attempt` (N2).

    initial x 2^(attempt-1), ± 25 %; `roll` is a random number in [0, 1).
    """
    return initial * float(1 << min(attempt - 1, 20)) * (0.75 + 0.5 * roll)


def retry_after(headers: Headers, epoch: float) -> float | None:
    """Return the seconds of Retry-After (RFC 9110, 10.2.3); None if absent or unreadable.

    A date is compared with the response's own `Date`, so that clock differences do not matter. A past date is 0. The
    longest of several fields counts.
    """
    if "retry-after" not in headers:
        return None
    said = [_seconds(value.strip(), headers, epoch) for value in headers.all("retry-after")]
    return max((each for each in said if each is not None), default=None)


def _seconds(value: str, headers: Headers, epoch: float) -> float | None:
    """Return the seconds of one `Retry-After` value; None if unreadable."""
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
"""Larger than any epoch second for three thousand years: a larger reset is in milliseconds or smaller units."""

_PREFIXES = ("ratelimit-", "x-ratelimit-", "x-rate-limit-")
_QUOTA_FIELDS = frozenset({"ratelimit", *(prefix + "remaining" for prefix in _PREFIXES)})


def exhausted_for(headers: Headers, epoch: float) -> float | None:
    """Return the seconds until an exhausted rate limit's window ends; None if no limit is exhausted.

    These fields are read: `RateLimit` of the IETF draft (`"default";r=0;t=30`, one or several, and the older `limit=10,
    remaining=0, reset=30`), `RateLimit-Remaining` with `RateLimit-Reset`, and `X-RateLimit-*`, whose reset may be an
    epoch second. A `RateLimit` without a reset ends after the window that `RateLimit-Policy` gives. Of several
    exhausted limits, the latest end counts.
    """
    if _QUOTA_FIELDS.isdisjoint(headers.by_name):
        return None  # nearly all replies
    resets = [] if (field := headers.get("ratelimit")) is None else _resets(field, headers.get("ratelimit-policy"))
    for prefix in _PREFIXES:
        left, reset = headers.get(prefix + "remaining"), _RESET.fullmatch((headers.get(prefix + "reset") or "").strip())
        if whole_number(left) != 0 or reset is None:
            continue
        ends = float(reset[0])
        if ends > 1_000_000_000:  # an epoch second, compared with the response's own `Date` if present
            while ends > _MILLISECONDS:
                ends /= 1000
            sent = http_date(headers.get("date"))
            ends -= epoch if sent is None else sent
        if ends > 0:
            resets.append(ends)
    return max(resets, default=None)


def _resets(field: str, policies: str | None) -> list[float]:
    """Return the seconds until each exhausted limit of a `RateLimit` field ends."""
    older: dict[str, int | None] = {}
    """Parts of the older form: `limit=10, remaining=0, reset=30` is one limit, despite the commas."""
    resets: list[int | None] = []
    windows: dict[str, int | None] | None = None  # parsed once, because a site may send thousands of items
    for item in _BETWEEN_COMMAS.findall(field):
        name, said = _item(item)
        key, equals, value = name.partition("=")
        if equals and not name.startswith('"'):
            older[key.strip().lower()] = _integer(value)
        elif said.get("r") == 0:
            reset = said.get("t")
            if reset is None:
                windows = _windows(policies) if windows is None else windows
                reset = windows.get(name)
            resets.append(reset)
    if older.get("remaining") == 0:
        resets.append(older.get("reset"))
    return [float(reset) for reset in resets if reset is not None]


def _item(text: str) -> tuple[str, dict[str, int | None]]:
    """Return the name of a structured field's item and its numeric parameters (RFC 9651, 3.1)."""
    name, *parameters = _BETWEEN_SEMICOLONS.findall(text) or [""]
    pairs = (each.partition("=") for each in parameters)
    return name.strip(), {key.strip().lower(): _integer(value) for key, _, value in pairs}


def _integer(text: str) -> int | None:
    """Return an unsigned number of at most 15 digits (RFC 9651, 3.3.1); None for other text.

    Quotes are accepted, because some servers send them.
    """
    number = whole_number(text.strip().strip('"'))
    return None if number is None or number >= 10**15 else number


def _windows(policies: str | None) -> dict[str, int | None]:
    """Return the window in seconds of each limit with a policy (`"default";q=100;w=60`). The first policy counts."""
    items = [_item(policy) for policy in _BETWEEN_COMMAS.findall(policies or "")]
    return {name: said["w"] for name, said in reversed(items) if said.get("w") is not None}

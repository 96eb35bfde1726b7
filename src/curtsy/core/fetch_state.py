"""State of a fetch, and the steps that pages and robots.txt have in common."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from curtsy.core import messages
from curtsy.core.decision import Go, Late, No
from curtsy.core.effects import Admitted, Effect, Enter, FetchRequest, World
from curtsy.core.errors import Reason
from curtsy.core.message import (
    SECOND,
    Failure,
    Headers,
    InvalidUrl,
    Reply,
    Request,
    Response,
    Url,
    octets_of,
    parse_url,
)
from curtsy.core.outcome import Kind, Outcome
from curtsy.core.policy import Policies, Policy
from curtsy.core.record import Share

NOT_ADMITTED = (No, Late)
REDIRECTS = frozenset({301, 302, 303, 307, 308})

UNSENT = Outcome(Kind.ABANDONED, sent=False)
"""Outcome of an admission that was not used."""

UNHEARD = Outcome(Kind.ABANDONED)
"""Outcome of a request that the caller stopped waiting for: no evidence about the host."""


NO_TIME = 0.05
"""Seconds before a deadline from which on a timeout is the deadline's: timers fire slightly early."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Decision not to send a request."""

    reason: Reason
    message: str
    retry_after: float | None = None


class Again(msgspec.Struct, frozen=True, gc=False):
    """Signal to start over: the rules expired or the settings changed during the wait."""


AGAIN = Again()


class FetchState(msgspec.Struct):
    """Progress of one fetch."""

    ask: FetchRequest
    world: World
    began: float
    policies: Policies
    """Policies in force at the start, or at the last start over."""

    url: Url | None = None
    tries: int = 0
    """Tries of all pages, with or without a request sent."""

    attempts: int = 0
    """Requests sent for pages."""

    retries: int = 0
    """Requests among `attempts` that were retries."""

    again: int = 0
    """Tries of the last page after the first."""

    page_tries: int = 0
    """Tries of the current page. A start over keeps this and `page_sent` (True if a request was sent for the page)."""

    page_sent: bool = False
    has_retry: bool = False
    """True if a retry was granted and not yet sent."""

    waited: float = 0.0
    bytes: int = 0
    cache: str | None = None
    robots_line: int | None = None
    go: Go | None = None
    retry_after: float | None = None
    asked_for: float | None = None
    """Seconds of rest that the site requested, if above `max_retry_after`; else None."""

    next_in: float | None = None
    latency: float | None = None
    robots_requests: int = 0
    had_its_turn: bool = False
    """True if this hop started over: it keeps its position in the queue."""

    redirected_by: tuple[str, ...] = ()
    """URLs that redirected the fetch, in order."""

    is_foreign: bool = False
    """True if a redirect led to another registered domain: failures since then do not count against the host (C22)."""

    elsewhere: tuple[Share, ...] = ()
    """Traffic to hosts that redirected the fetch to another host."""

    def leave_host(self) -> None:
        """Record the traffic to this host before a redirect to another host."""
        assert self.url is not None
        before = self.elsewhere
        share = Share(
            self.url.domain,
            self.attempts - sum(each.attempts for each in before),
            self.retries - sum(each.retries for each in before),
            self.robots_requests - sum(each.robots_requests for each in before),
            self.bytes - sum(each.bytes for each in before),
        )
        self.elsewhere = (*before, share)
        self.go = None  # the remaining budget belongs to the old host

    def patience(self) -> float | None:
        """Return the seconds to wait in a queue; None: no limit. Before the first try `max_wait` applies, too."""
        left, max_wait = self.left(), self.ask.max_wait
        if max_wait is None or self.tries:
            return left
        return max_wait if left is None else min(left, max_wait)

    def left(self) -> float | None:
        """Return the seconds until the deadline; None without a deadline."""
        if self.ask.deadline is None:
            return None
        return max(0.0, self.began + self.ask.deadline - self.world.now())


def is_another(policies: Policies, url: Url, policy: Policy) -> bool:
    """Return whether the policy for a URL's host differs from `policy`."""
    present = policies.of(url.domain)
    return present is not policy and present != policy


def entrance(
    url: Url,
    policy: Policy,
    state: FetchState,
    *,
    page: bool = False,
    robots: bool = False,
    first: bool = False,
    crawl_delay: float = 0.0,
    guest: bool = False,
) -> Enter | Late:
    """Return the effect that admits a request; `Late` if the deadline has passed.

    `first`: it goes before the whole queue, which waits for its result. `guest`: another site's robots.txt redirects
    here.
    """
    if state.left() == 0:
        return Late(0.0)
    return Enter(
        policy.key_for(url.domain), policy, page, robots, state.patience(), url.domain,
        round(crawl_delay * SECOND) if crawl_delay else 0,
        # After a start over a request keeps its position in the queue.
        -1.0 if first else state.began if state.had_its_turn else None,
        state.is_foreign or guest, guest,
    )  # fmt: skip


def admission(enter: Enter | Late, state: FetchState) -> Generator[Effect, Any, Admitted | No | Late]:
    """Ask the gate for admission, and count the seconds waited."""
    world = state.world
    began = world.now()
    ticket: Admitted | No | Late = enter if isinstance(enter, Late) else (yield enter)
    state.waited += world.now() - began if isinstance(ticket, NOT_ADMITTED) else ticket.waited
    return ticket


def not_admitted(url: Url, policy: Policy, answer: No | Late) -> Refusal:
    """Return the refusal that corresponds to the gate's decision."""
    if isinstance(answer, Late):
        return Refusal(Reason.DEADLINE, messages.late(url, answer.needed), answer.needed)
    return Refusal(answer.reason, messages.refused(url, policy, answer), answer.retry_after)


def is_cut_off(reply: Reply, state: FetchState) -> bool:
    """Return whether a timeout was the caller's deadline, and not the host's fault."""
    if not isinstance(reply, Failure) or reply.reason is not Reason.TIMEOUT:
        return False
    left = state.left()
    return left is not None and left < NO_TIME


def shorter(timeout: float, left: float | None) -> float:
    """Return the timeout of a request in seconds, limited to the time left and at least 1 ms."""
    return timeout if left is None else min(timeout, max(left, 0.001))


def redirect_target(url: Url, reply: Response) -> Url | InvalidUrl | None:
    """Return the target of a redirect; None if the reply is not one.

    Credentials in the target are dropped: a site must not choose the credentials to send (RFC 9110, 4.2.4).
    """
    if reply.status not in REDIRECTS:
        return None
    location = reply.headers.all("location")
    if not location or not location[0].strip():
        return InvalidUrl("", "it names no place to go to")
    target = parse_url(location[0], url)
    if isinstance(target, Url) and target.credentials is not None:
        return msgspec.structs.replace(target, credentials=None)
    return target


def agent_of(request: Request, state: FetchState) -> str:
    """Return the user agent of a request."""
    return request.headers.get("user-agent") or state.policies.user_agent


def agent_only(headers: Headers) -> tuple[tuple[str, str], ...]:
    """Return the User-Agent field alone."""
    return tuple(each for each in headers.fields if each[0].lower() == "user-agent")


def own_headers(headers: Headers, url: Url, policies: Policies) -> Headers:
    """Return the caller's headers with User-Agent and, if the URL has credentials, Authorization."""
    if "user-agent" not in headers:
        headers = _with_agent(headers.fields, policies.user_agent)
    if url.credentials and "authorization" not in headers:
        name, _, password = octets_of(url.credentials).partition(b":")
        secret = unquote_to_bytes(name) + b":" + unquote_to_bytes(password)
        return Headers((*headers.fields, ("Authorization", "Basic " + b64encode(secret).decode())))
    return headers


@lru_cache(maxsize=256)  # most fetches of a program have the same headers
def _with_agent(fields: tuple[tuple[str, str], ...], agent: str) -> Headers:
    return Headers((("User-Agent", agent), *fields))

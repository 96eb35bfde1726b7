"""A fetch on its way: what has happened to it so far, and the steps that pages and robots.txt have in common."""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import msgspec

from curtsy.core import messages
from curtsy.core.admission import Go, Late, No
from curtsy.core.effects import Enter, FetchRequest, World
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
"""A place that was not used after all."""

UNHEARD = Outcome(Kind.ABANDONED)
"""A request whose answer nobody waited for: it says nothing of the host."""


NO_TIME = 0.05
"""Seconds before a deadline at which nobody waits any more: timers go off a little early."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """We chose not to ask."""

    reason: Reason
    message: str
    retry_after: float | None = None


class Again(msgspec.Struct, frozen=True, gc=False):
    """What was decided before the wait holds no more: the rules have ended, or the settings are others. Begin anew."""


AGAIN = Again()


class FetchState(msgspec.Struct):
    """What has happened to one fetch so far."""

    ask: FetchRequest
    world: World
    began: float
    policies: Policies
    """Those in force when it began, or when it began anew."""

    url: Url | None = None
    tries: int = 0
    """Times that a page was asked for, whether or not a request could be sent."""

    attempts: int = 0
    """Requests sent."""

    retries: int = 0
    """Those among them that were sent again."""

    again: int = 0
    """Tries of the last page that came after one that failed."""

    page_tries: int = 0
    """Tries of the page that is asked for now, and whether a request was sent for it: they hold if it begins anew."""

    page_sent: bool = False
    has_retry: bool = False
    """Whether it was allowed to ask again, and has not yet done so."""

    waited: float = 0.0
    bytes: int = 0
    cache: str | None = None
    robots_line: int | None = None
    go: Go | None = None
    retry_after: float | None = None
    asked_for: float | None = None
    """Seconds that the site wished to be left alone, where `max_retry_after` is less."""

    next_in: float | None = None
    latency: float | None = None
    robots_requests: int = 0
    had_its_turn: bool = False
    """Whether it has stood in line for this page already, and could not use its turn."""

    redirected_by: tuple[str, ...] = ()
    """The URLs that have redirected it, in order."""

    is_foreign: bool = False
    """Whether a redirect has led it from one registered domain to another: nothing that fails since then says anything
    of the host that it was led to (C22)."""

    elsewhere: tuple[Share, ...] = ()
    """What was sent to hosts that have redirected it to another one."""

    def leave_host(self) -> None:
        """It goes on to another host: note what was sent to this one."""
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
        self.go = None  # what is left of its budget is not the next one's

    def patience(self) -> float | None:
        """Seconds that may be stood in line: to the deadline, and before the first try no longer than wished."""
        left, max_wait = self.left(), self.ask.max_wait
        if max_wait is None or self.tries:
            return left
        return max_wait if left is None else min(left, max_wait)

    def left(self) -> float | None:
        """Seconds until the deadline; None without one."""
        if self.ask.deadline is None:
            return None
        return max(0.0, self.began + self.ask.deadline - self.world.now())


def is_another(policies: Policies, url: Url, policy: Policy) -> bool:
    """Whether these policies have another one for a URL's host than `policy`."""
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
    """The way in for a request, `first` if all others of the line wait for what it brings.

    It is a `guest` if another site's robots.txt redirects here.

    `Late` if there would be no time to hear the answer.
    """
    if state.left() == 0:
        return Late(0.0)
    return Enter(
        policy.key_for(url.domain), policy, page, robots, state.patience(), url.domain,
        round(crawl_delay * SECOND) if crawl_delay else 0,
        # Who comes back goes where he was.
        -1.0 if first else state.began if state.had_its_turn else None,
        state.is_foreign or guest, guest,
    )  # fmt: skip


def not_admitted(url: Url, policy: Policy, answer: No | Late) -> Refusal:
    """What the gate's answer means for who asked."""
    if isinstance(answer, Late):
        return Refusal(Reason.DEADLINE, messages.late(url, answer.needed), answer.needed)
    return Refusal(answer.reason, messages.refused(url, policy, answer), answer.retry_after)


def is_cut_off(reply: Reply, state: FetchState) -> bool:
    """Whether it was the caller's patience that ended, and not the host's time."""
    if not isinstance(reply, Failure) or reply.reason is not Reason.TIMEOUT:
        return False
    left = state.left()
    return left is not None and left < NO_TIME


def shorter(timeout: float, left: float | None) -> float:
    """The timeout of a request that has so many seconds left."""
    return timeout if left is None else min(timeout, max(left, 0.001))


def redirect_target(url: Url, reply: Response) -> Url | InvalidUrl | None:
    """Where a reply sends us; None if it does not.

    User and password in the target are dropped: a site does not choose the credentials that are sent (RFC 9110, 4.2.4).
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
    """Who sends a request."""
    return request.headers.get("user-agent") or state.policies.user_agent


def agent_only(headers: Headers) -> tuple[tuple[str, str], ...]:
    """Of all headers, who is asking."""
    return tuple(each for each in headers.fields if each[0].lower() == "user-agent")


def own_headers(headers: Headers, url: Url, policies: Policies) -> Headers:
    """The caller's headers, with who we are and, if the URL has credentials, who the caller is."""
    if "user-agent" not in headers:
        headers = _with_agent(headers.fields, policies.user_agent)
    if url.credentials and "authorization" not in headers:
        name, _, password = octets_of(url.credentials).partition(b":")
        secret = unquote_to_bytes(name) + b":" + unquote_to_bytes(password)
        return Headers((*headers.fields, ("Authorization", "Basic " + b64encode(secret).decode())))
    return headers


@lru_cache(maxsize=256)  # most fetches of a program have the same ones
def _with_agent(fields: tuple[tuple[str, str], ...], agent: str) -> Headers:
    return Headers((("User-Agent", agent), *fields))

"""State of a fetch, with the steps that pages and robots.txt have in common, and its result."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from curtsy.core import messages
from curtsy.core.decision import Go, Late, No
from curtsy.core.effects import Admitted, Enter, FetchRequest, World
from curtsy.core.errors import Reason
from curtsy.core.masking import mask_url
from curtsy.core.outcome import Kind, Outcome, classify, is_sent
from curtsy.core.policy import Policies, Policy
from curtsy.core.record import FetchRecord, Share, share_of
from curtsy.core.request import NO_HEADERS, Failure, Headers, Reply, Request, Response
from curtsy.core.result import FetchResult
from curtsy.core.time import SECOND
from curtsy.core.url import InvalidUrl, Url, parse_url

REDIRECTS = frozenset({301, 302, 303, 307, 308})

UNSENT = Outcome(Kind.ABANDONED, sent=False)
"""Outcome of an admission that was not used."""

UNHEARD = Outcome(Kind.ABANDONED)
"""Outcome of a request that the caller stopped waiting for: no evidence about the host."""

NO_TIME = 0.05
"""Seconds before a deadline from which on a timeout is the deadline's: timers fire slightly early."""

NOT_ADMITTED = (No, Late)
"""Answers of the gate that admit nothing."""

PROXY_REST = 60.0
"""Seconds until a retry through a failed proxy makes sense."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """Decision not to send a request."""

    reason: Reason
    message: str
    retry_after: float | None = None
    cause: str = ""
    """What opened a breaker, in words; empty for other refusals."""


class Again(msgspec.Struct, frozen=True, gc=False):
    """Signal to start over: the rules expired or the settings changed during the wait."""


class FetchState(msgspec.Struct):
    """Progress of one fetch."""

    ask: FetchRequest
    world: World
    began: float
    policies: Policies
    """Policies in force at the start, or at the last start over."""

    asked: Url | InvalidUrl
    """URL of the request, parsed."""

    url: Url | None = None
    has_tried: bool = False
    """True after the first try of a page, with or without a request sent."""

    attempts: int = 0
    """Requests sent for pages."""

    retries: int = 0
    """Requests among `attempts` that were retries."""

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
        self.elsewhere = (*self.elsewhere, share_of(self, self.url.domain, self.elsewhere))
        self.go = None  # the remaining budget belongs to the old host

    def left(self) -> float | None:
        """Return the seconds until the deadline; None without a deadline."""
        if self.ask.deadline is None:
            return None
        return max(0.0, self.began + self.ask.deadline - self.world.now())

    def patience(self) -> float | None:
        """Return the seconds to wait in a queue; None: no limit. Before the first try `max_wait` applies, too."""
        left, max_wait = self.left(), self.ask.max_wait
        if max_wait is None or self.has_tried:
            return left
        return max_wait if left is None else min(left, max_wait)

    def limits_of(self, policy: Policy) -> Policy:
        """Return the policy of the host, with the caller's timeout for each attempt if there is one."""
        return policy if self.ask.timeout is None else policy.replace(timeout=self.ask.timeout)

    def time_for(self, seconds: float) -> tuple[float, float | None]:
        """Return the timeout of a request in seconds, limited to the time left and at least 1 ms; and the time left."""
        left = self.left()
        return (seconds, None) if left is None else (min(seconds, max(left, 0.001)), left)

    def has_another(self, url: Url, policy: Policy) -> bool:
        """Return whether the policy in force for a URL's host differs from `policy`."""
        present = self.world.policies.of(url.domain)
        return present is not policy and present != policy

    def own_headers(self, headers: Headers, url: Url) -> Headers:
        """Return the caller's headers with User-Agent and, if the URL has credentials, Authorization."""
        if "user-agent" not in headers:
            headers = _with_agent(headers.fields, self.policies.user_agent)
        if url.credentials and "authorization" not in headers:
            return Headers((*headers.fields, ("Authorization", url.authorization)))
        return headers

    def is_page(self, request: Request) -> bool:
        """Return whether a request charges a page."""
        return request.method != "HEAD" and not self.ask.is_part

    def agent_of(self, request: Request) -> str:
        """Return the user agent of a request."""
        return request.headers.get("user-agent") or self.policies.user_agent

    def enter(
        self,
        url: Url,
        policy: Policy,
        *,
        page: bool = False,
        robots: bool = False,
        first: bool = False,
        crawl_delay: float = 0.0,
        guest: bool = False,
    ) -> Enter | None:
        """Return the effect that asks the gate for admission; None if no time is left.

        `first`: the request goes before the whole queue, which waits for its result. `guest`: another site's robots.txt
        redirects here.
        """
        if self.ask.deadline is not None and self.left() == 0:
            return None
        return Enter(
            policy.key_for(url.domain), policy, page, robots, self.patience(), url.domain,
            round(crawl_delay * SECOND) if crawl_delay else 0,
            # After a start over a request keeps its position in the queue.
            -1.0 if first else self.began if self.had_its_turn else None,
            self.is_foreign or guest, guest,
        )  # fmt: skip

    def count_wait(self, answer: Admitted | No | Late, began: float) -> None:
        """Count the seconds waited for the gate's answer, requested at `began`."""
        self.waited += self.world.now() - began if isinstance(answer, NOT_ADMITTED) else answer.waited

    def is_cut_off(self, reply: Reply) -> bool:
        """Return whether a timeout was the caller's deadline, and not the host's fault."""
        if not isinstance(reply, Failure) or reply.reason is not Reason.TIMEOUT:
            return False
        left = self.left()
        return left is not None and left < NO_TIME

    def outcome(self, reply: Reply, *, robots: bool = False, guest: bool = False) -> Outcome:
        """Return the consequences of a reply for its host: none if the caller's deadline cut it off."""
        if self.is_cut_off(reply):
            return UNHEARD if is_sent(reply) else UNSENT
        return classify(reply, self.world.epoch(), robots=robots, foreign=self.is_foreign or guest)

    def result(self, end: Reply | Refusal) -> FetchResult:
        """Return the result for the caller, with the record of the fetch."""
        ask, url, asked = self.ask, self.url, self.asked
        status: int | None = None
        reason: Reason | None = None
        message = cause = ""
        retry_after, tries = self.retry_after, max(1, self.page_tries)
        headers, body = NO_HEADERS, b""
        match end:
            case Response() if url is not None:
                status, headers, body = end.status, end.headers, end.body
                if 200 <= status < 300:
                    pass
                elif not ask.follow and status in REDIRECTS:
                    if not ask.is_renewal:
                        reason, message = Reason.REDIRECTED, messages.redirected(url, status)
                else:
                    reason, cause = Reason.HTTP_STATUS, f"status {status}{messages.tries(tries)}"
                    message = messages.bad_status(url, status, retry_after, tries, self.asked_for)
            case Refusal():
                reason, message, retry_after, cause = end.reason, end.message, end.retry_after, end.cause
            case Failure() if url is not None:
                if self.is_cut_off(end):
                    end = msgspec.structs.replace(end, advice="Allow more time, or try again later.")
                status, reason, cause = end.status, end.reason, mask_url(end.detail)
                is_chain = end.reason is Reason.TOO_MANY_REDIRECTS
                message = messages.failed(asked if is_chain and isinstance(asked, Url) else url, end, tries)
                if end.ended_at_proxy and not end.is_lasting:
                    retry_after = PROXY_REST
        message = mask_url(message) if message else ""
        shown = asked.text if isinstance(asked, Url) else messages.given(asked)
        final = shown if url is None else url.text
        go, world = self.go, self.world
        requests_left, pages_left = (None, None) if go is None else (go.requests_left, go.pages_left)
        record = FetchRecord(
            shown, final, "" if url is None else url.domain, ask.method.upper(), status,
            None if reason is None else reason.value, self.attempts, self.retries, self.waited,
            world.now() - self.began, self.bytes, self.cache, self.robots_line, requests_left, pages_left, retry_after,
            world.epoch(), self.latency, self.robots_requests, self.elsewhere, message, ask.is_part,
        )  # fmt: skip
        return FetchResult(
            reason is None, shown, final, status, reason, message, retry_after, headers, body,
            self.cache is not None, record, self.next_in, self.redirected_by, cause,
            isinstance(end, Response) and end.rendered,
        )  # fmt: skip


def not_admitted(url: Url, policy: Policy, answer: No | Late, robots: Url | None = None) -> Refusal:
    """Return the refusal of a page that corresponds to the gate's decision on it, or on the `robots` fetched first."""
    if isinstance(answer, Late):
        held = messages.SLOT_HELD if answer.because == "in_flight" else ""
        return Refusal(Reason.DEADLINE, messages.late(url, answer, robots), answer.needed, held)
    cause = messages.opened_by(answer.opened_by) if answer.opened_by else ""
    return Refusal(answer.reason, messages.refused(url, policy, answer), answer.retry_after, cause)


def remaining(go: Go, outcome: Outcome) -> Go:
    """Return the host's remaining daily budget after an outcome.

    Admission charges a request and a page. Settling refunds unsent requests, 304s and replies that are not pages.
    """
    requests, pages = go.requests_left, go.pages_left
    if requests is None and pages is None:
        return go
    if requests is not None:
        requests += outcome.is_free
    if pages is not None:
        pages += go.lease.page and not outcome.page
    return Go(go.lease, requests, pages)


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


@lru_cache(maxsize=256)  # most fetches of a program have the same headers
def _with_agent(fields: tuple[tuple[str, str], ...], agent: str) -> Headers:
    return Headers((("User-Agent", agent), *fields))

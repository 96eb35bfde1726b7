"""The whole way of a request, top to bottom.

A flow is a generator: it yields effects, what is to be done, and is sent the answers. `drive.py` carries them out,
blocking or async; so the way exists once. It runs

    fetch ──▶ hop, once per redirect ──▶ recall the kept copy: fresh ends here
                                    ──▶ rules_for its origin, and their verdict
                                    ──▶ exchange: enter the gate, send, settle, perhaps again
                                    ──▶ keep what came
          ──▶ tell
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Generator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from curtsy.core import explain
from curtsy.core.admission import CrawlDelay, Go, Late, No
from curtsy.core.cache import (
    Absent,
    Drop,
    Entry,
    Fresh,
    Freshness,
    Leave,
    Refresh,
    Stale,
    Unusable,
    absorb,
    freshness,
)
from curtsy.core.cache import Store as StorePage
from curtsy.core.effects import (
    Admitted,
    Amend,
    Ask,
    Claim,
    Effect,
    Enter,
    Hold,
    Keep,
    Later,
    Learn,
    MayRetry,
    Recall,
    Release,
    Remember,
    Send,
    Settle,
    Tell,
    World,
)
from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.message import NO_HEADERS, Failure, Headers, InvalidUrl, Reply, Request, Response, Url, parse_url
from curtsy.core.outcome import Kind, Outcome, backoff, classify, is_worth_repeating
from curtsy.core.policy import Policies, Policy
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.core.rules import CLAIM, MOST, Busy, Claimed, Known, Rules, crawl_delay, crawl_delay_in, judge
from curtsy.core.secrets import mask_url

ROBOTS_REDIRECTS = 5
"""Redirects that are followed to a robots.txt (RFC 9309, 2.3.1.2)."""

REPEATABLE = frozenset({"GET", "HEAD"})
"""Methods that may be sent again without asking the caller."""

# What may follow a redirect to another origin: nothing that could be a secret (F25).
_HARMLESS = frozenset(
    {"accept", "accept-language", "accept-encoding", "user-agent", "cache-control", "content-type"}
)  # fmt: skip

_NOT_ADMITTED = (No, Late)
_REDIRECTS = frozenset({301, 302, 303, 307, 308})

UNSENT = Outcome(Kind.ABANDONED, sent=False)
"""A place that was not used after all."""

UNHEARD = Outcome(Kind.ABANDONED)
"""A request whose answer nobody waited for: it says nothing of the host."""


class Refusal(msgspec.Struct, frozen=True, gc=False):
    """We chose not to ask."""

    reason: Reason
    message: str
    retry_after: float | None = None


@dataclass(slots=True)
class Journey:
    """What has happened to one fetch so far."""

    ask: Ask
    world: World
    began: float
    policies: Policies
    """Those in force when it began."""

    url: Url | None = None
    attempts: int = 0
    retries: int = 0
    waited: float = 0.0
    bytes: int = 0
    cache: str | None = None
    robots_line: int | None = None
    go: Go | None = None
    retry_after: float | None = None
    next_in: float | None = None
    latency: float | None = None
    robots_requests: int = 0

    def patience(self) -> float | None:
        """Seconds that may be stood in line: to the deadline, and before the first request no longer than wished."""
        left, linger = self.left(), self.ask.linger
        if linger is None or self.attempts:
            return left
        return linger if left is None else min(left, linger)

    def left(self) -> float | None:
        """Seconds until the deadline; None without one."""
        if self.ask.deadline is None:
            return None
        return max(0.0, self.began + self.ask.deadline - self.world.now())


def fetch(ask: Ask, world: World) -> Generator[Effect, Any, FetchResult]:
    """Fetch one URL politely, following redirects; every hop with every check of its own host."""
    journey = Journey(ask, world, world.now(), world.policies)
    first = parse_url(ask.url)
    if isinstance(first, InvalidUrl):
        end: Reply | Refusal = Refusal(Reason.INVALID_URL, explain.invalid(first))
    else:
        end = yield from _travel(first, journey)
    result = _result(journey, end, first)
    if ask.linger is None or result.reason is not Reason.DEADLINE:  # else nothing has happened yet
        yield Tell(result.record)
    return result


def closed(ask: Ask, world: World) -> FetchResult:
    """What is left to say to somebody whose client was closed under him."""
    refusal = Refusal(Reason.CLOSED, explain.closed(ask.url))
    return _result(Journey(ask, world, world.now(), world.policies), refusal, parse_url(ask.url))


def _travel(first: Url, journey: Journey) -> Generator[Effect, Any, Reply | Refusal]:
    ask = journey.ask
    request = Request(first, ask.method.upper(), _own_headers(ask.headers, first, journey.policies), ask.body)
    most, status = journey.policies.of(first.domain).max_redirects, 0
    asked: set[str] = set()
    wants_cookie = False
    for _ in range(most + 1):
        journey.url, journey.cache = request.url, None
        sent = _with_cookies(request, journey.world)
        end = yield from hop(sent, journey)
        if not isinstance(end, Response) or end.status not in _REDIRECTS:
            return end
        target = redirect_target(request.url, end)
        if target is None:
            return end
        asked.add(request.url.text)
        wants_cookie = wants_cookie or ("set-cookie" in end.headers and not journey.world.keeps_cookies)
        if not ask.follow:
            if not isinstance(target, Url) or target.text != request.url.text:
                return end
            if wants_cookie:
                return Failure(Reason.TOO_MANY_REDIRECTS, explain.WANTS_COOKIE, 0.0, end.status)
            if _with_cookies(request, journey.world).headers == sent.headers:
                return end
            # A redirect to itself is no other URL: it is asked for again at once, with the cookie that it has set.
        if isinstance(target, InvalidUrl):
            return Failure(
                Reason.BAD_REDIRECT, f"it redirects to where nobody can follow: {target.why}", 0.0, end.status
            )
        request, status = _redirected(request, target, end.status), end.status
    is_circle = len(asked) <= most
    detail = explain.WANTS_COOKIE if is_circle and wants_cookie else f"it was redirected more than {most} times"
    return Failure(Reason.TOO_MANY_REDIRECTS, detail, 0.0, status)


def hop(request: Request, journey: Journey) -> Generator[Effect, Any, Reply | Refusal]:
    """One URL, one host: denied, kept, forbidden, or asked."""
    world, url = journey.world, request.url
    policy = journey.policies.of(url.domain)
    refused = refused_by_settings(url, policy, world)
    if refused is not None:
        return refused

    found: Freshness = Absent()
    kept: tuple[Entry, bytes] | None = None
    if world.has_cache or world.cache_mode == "offline":
        kept = yield Recall(url)
        found = freshness(kept[0] if kept else None, request, world.epoch(), world.cache_mode, world.stale_if_error)
        if isinstance(found, Absent) and not found.may_ask:
            return Refusal(Reason.NOT_IN_CACHE, explain.not_kept(url))
    is_renewed_later = isinstance(found, Stale) and found.may_serve_meanwhile
    # Later it is this hop alone: what led here is not to be done again.
    if isinstance(found, Fresh) or (is_renewed_later and (yield Later(Ask(url.text, request.method, request.headers)))):
        # A hit costs the site nothing: it is judged by the rules remembered, even old ones, and asks for none.
        if policy.respect_robots and (rules := (yield Remember(url.origin))) is not None and rules.is_known:
            refusal = _judged(rules, request, policy, journey)
            if refusal is not None:
                return refusal
        journey.cache = "hit" if isinstance(found, Fresh) else "stale"
        assert kept is not None
        return _from_cache(kept[0], kept[1], request.method)

    if policy.respect_robots:
        rules_or_not = yield from rules_for(request, policy, journey)
        if not isinstance(rules_or_not, Rules):
            return rules_or_not
        refusal = _judged(rules_or_not, request, policy, journey)
        if refusal is not None:
            return refusal
    sent = found.conditional(request) if isinstance(found, Stale) else request
    end = yield from exchange(sent, policy, journey)
    if isinstance(end, Refusal) or not world.has_cache:
        return end
    return (yield from _kept(request, end, found, kept, journey))


def refused_by_settings(url: Url, policy: Policy, world: World) -> Refusal | Failure | None:
    """Why the user's settings alone forbid to ask for a URL; None if they do not."""
    if policy.denied:
        return Refusal(Reason.DOMAIN_DENIED, explain.denied(url))
    if policy.deny_paths and (pattern := policy.refuses_path(url.target)):
        return Refusal(Reason.PATH_DENIED, explain.path_denied(url, pattern))
    if not policy.allow_private and (why := world.refused_address(url)):
        # A name is judged when it is resolved; an address need not wait for that, nor for its turn.
        return Failure(Reason.ADDRESS_REFUSED, why)
    return None


def _judged(rules: Rules, request: Request, policy: Policy, journey: Journey) -> Refusal | None:
    """The verdict of the rules, as a refusal that names the line, or None."""
    agent = request.headers.get("user-agent") or journey.policies.user_agent
    verdict = judge(rules, policy, agent, request.url.text)
    journey.robots_line = verdict.line
    if verdict.allowed:
        return None
    if verdict.line is None:
        return Refusal(Reason.ROBOTS_UNREACHABLE, explain.disallowed(request.url, verdict, agent))
    return Refusal(Reason.ROBOTS_DISALLOWED, explain.disallowed(request.url, verdict, agent))


def rules_for(request: Request, policy: Policy, journey: Journey) -> Generator[Effect, Any, Rules | Refusal | Failure]:
    """The rules of an origin: remembered, or by one polite request, which whoever else wants them waits for."""
    url = request.url
    while True:
        claim = yield Claim(url.origin, journey.patience())
        if isinstance(claim, Known):
            return claim.rules
        if isinstance(claim, Late):
            return Refusal(Reason.DEADLINE, explain.late(url, claim.needed), claim.needed)
        assert isinstance(claim, Claimed)
        found = yield from _robots_txt(request, policy, journey)
        if isinstance(found, Refusal | Failure | Known | Busy):
            yield Release(url.origin)
            if isinstance(found, Busy):
                continue
            return found.rules if isinstance(found, Known) else found
        if found.body is not None:
            agent = request.headers.get("user-agent") or journey.policies.user_agent
            delay, before = crawl_delay_in(found.body, agent), claim.rules and crawl_delay(claim.rules, agent)
            # First of all, for whoever waits for the rules goes on when they are learned (R8).
            if delay is not None or before is not None:
                yield Amend(policy.key_for(url.domain), policy, CrawlDelay(delay, url.origin))
        rules: Rules = yield Learn(url.origin, policy, found.body, found.why)
        return rules


class Found(msgspec.Struct, frozen=True, gc=False):
    """What came of asking for robots.txt."""

    body: bytes | None
    """Empty if there is no such file; None if it could not be had."""

    why: str = ""
    """Why not, in words."""


NO_FILE = Found(b"")


def _robots_txt(
    request: Request, policy: Policy, journey: Journey
) -> Generator[Effect, Any, Found | Refusal | Failure | Known | Busy]:
    """Fetch robots.txt.

    When not even this may be asked of the host, the page may not either: then the refusal comes back. `Known` and
    `Busy` come back if the wait was so long that somebody else has fetched it meanwhile, or is at it.
    """
    first = url = parse_url(request.url.origin + "/robots.txt")
    headers = _own_headers(Headers(_agent_only(request.headers)), request.url, journey.policies)
    claimed_at = journey.world.now()
    redirects = 0
    while redirects <= ROBOTS_REDIRECTS:
        if isinstance(url, InvalidUrl):
            return NO_FILE  # RFC 9309, 2.3.1.3: unavailable, so everything is allowed
        is_own = url.origin == request.url.origin
        there = policy if is_own else journey.policies.of(url.domain)
        if there.denied:
            return NO_FILE
        ticket = yield from _enter(url, there, journey, robots=True)
        if isinstance(ticket, _NOT_ADMITTED):
            if is_own or isinstance(ticket, Late):
                return _not_admitted(url, there, ticket)
            return Found(None, f"{url.text}, where it redirects to, may not be asked now")
        journey.waited += ticket.waited
        if journey.world.now() - claimed_at > CLAIM / 3:
            claimed_at = journey.world.now()
            held: Known | Claimed | Busy = yield Hold(request.url.origin)
            if not isinstance(held, Claimed):
                yield Settle(ticket, UNSENT)
                return held
        asked = Request(url, "GET", headers if is_own else Headers(_agent_only(headers)))
        timeout = _shorter(there.robots_timeout, journey.left())
        reply = yield Send(asked, there, ticket, timeout, MOST + 1, cut=True)
        if reply is None:
            continue
        journey.robots_requests += reply.sent_ago is not None
        is_cut_off = _is_cut_off(reply, journey)
        yield Settle(ticket, UNHEARD if is_cut_off else classify(reply, journey.world.epoch(), robots=True))
        if is_cut_off:
            return Refusal(Reason.DEADLINE, explain.cut_off(request.url))
        if isinstance(reply, Failure):
            if reply.reason in REFUSALS and (url is first or reply.reason is Reason.CLOSED):
                return reply
            if reply.reason in REFUSALS:
                return NO_FILE
            return Found(None, f"{url.text} could not be fetched: {reply.detail}")
        if 200 <= reply.status < 300:
            return Found(reply.body)
        if reply.status == 429 or reply.status >= 500:
            return Found(None, f"{url.text} answered with status {reply.status}")
        target = redirect_target(url, reply)
        if target is None:
            return NO_FILE  # RFC 9309, 2.3.1.3
        url, redirects = target, redirects + 1
    return NO_FILE  # RFC 9309, 2.3.1.2: after five redirects it is unavailable


def exchange(request: Request, policy: Policy, journey: Journey) -> Generator[Effect, Any, Reply | Refusal]:
    """Ask, and ask again while that is worth it. Retry says whether, admission says when."""
    world, url = journey.world, request.url
    repeatable = journey.ask.repeatable
    may_repeat = request.method in REPEATABLE if repeatable is None else repeatable
    most = policy.max_retries if world.max_retries is None else world.max_retries
    last: Reply | None = None
    tries = 0
    while True:
        ticket = yield from _enter(url, policy, journey, page=request.method != "HEAD")
        if isinstance(ticket, _NOT_ADMITTED):
            if last is None:
                return _not_admitted(url, policy, ticket)
            # A retry that may not go any more: the result keeps the last answer, and says when to come back.
            yield MayRetry(unused=True)
            journey.retry_after = ticket.needed if isinstance(ticket, Late) else ticket.retry_after
            return last
        journey.waited += ticket.waited
        reply = yield Send(request, policy, ticket, _shorter(policy.timeout, journey.left()), policy.max_body)
        if reply is None:
            continue
        journey.attempts += 1
        journey.retries += last is not None
        tries += 1
        last = reply
        journey.bytes += reply.wire_bytes
        journey.latency = reply.sent_ago
        if isinstance(reply, Response):
            world.take_cookies(url, reply.headers)
        is_cut_off = _is_cut_off(reply, journey)
        outcome = UNHEARD if is_cut_off else classify(reply, world.epoch())
        journey.go = _left(ticket.go, outcome)
        may_pass = not is_cut_off and is_worth_repeating(reply)
        again = may_repeat and tries <= most and may_pass and (yield MayRetry())
        if again and outcome.retry_after is None:
            outcome = msgspec.structs.replace(
                outcome, rest=max(outcome.rest, backoff(tries, policy.retry_delay, world.roll()))
            )
        journey.next_in = yield Settle(ticket, outcome)
        if not again:
            journey.retry_after = outcome.retry_after
            if outcome.retry_after is not None:
                journey.retry_after = min(outcome.retry_after, policy.max_retry_after)
            return last


def _left(go: Go, outcome: Outcome) -> Go:
    """What is left of the host's day: admission has charged a request and a page, settling gives back what was none."""
    is_free = not outcome.sent or outcome.kind is Kind.NOT_MODIFIED
    is_no_page = go.lease.page and not outcome.page
    if not (is_free or is_no_page):
        return go
    requests, pages = go.requests_left, go.pages_left
    return Go(
        go.lease,
        None if requests is None else requests + is_free,
        None if pages is None else pages + is_no_page,
    )


def _enter(
    url: Url, policy: Policy, journey: Journey, *, page: bool = False, robots: bool = False
) -> Generator[Effect, Any, Admitted | No | Late]:
    left = journey.left()
    if left == 0:
        return Late(0.0)  # there would be no time to hear the answer
    answer: Admitted | No | Late = yield Enter(
        policy.key_for(url.domain), policy, page, robots, journey.patience(), url.domain
    )  # fmt: skip
    return answer


def _kept(
    request: Request,
    reply: Reply,
    found: Freshness,
    kept: tuple[Entry, bytes] | None,
    journey: Journey,
) -> Generator[Effect, Any, Reply]:
    """Let the cache absorb a reply, and answer with the kept body where the reply is that it still holds."""
    what = absorb(found, request, reply, journey.world.epoch())
    if not isinstance(what, Leave):
        yield Keep(request.url, Drop() if isinstance(what, Unusable) else what)
    if isinstance(what, Unusable):
        return Failure(Reason.BAD_RESPONSE, what.why, 0.0, 304)
    if isinstance(reply, Response) and reply.status == 304 and isinstance(found, Stale) and kept is not None:
        journey.cache = "revalidated"
        entry = what.entry if isinstance(what, Refresh | StorePage) else kept[0]
        return _from_cache(entry, kept[1], request.method)
    is_failed = isinstance(reply, Failure) or reply.status in (500, 502, 503, 504)
    if is_failed and isinstance(found, Stale) and found.may_serve_on_error and kept is not None:
        journey.cache = "stale"
        return _from_cache(*kept, request.method)
    return reply


def _from_cache(entry: Entry, body: bytes, method: str) -> Response:
    return Response(entry.status, Headers(entry.headers), b"" if method == "HEAD" else body)


def _not_admitted(url: Url, policy: Policy, answer: No | Late) -> Refusal:
    if isinstance(answer, Late):
        return Refusal(Reason.DEADLINE, explain.late(url, answer.needed), answer.needed)
    return Refusal(answer.reason, explain.refused(url, policy, answer), answer.retry_after)


def _is_cut_off(reply: Reply, journey: Journey) -> bool:
    """Whether it was the caller's patience that ended, and not the host's time. Timers go off a little early."""
    if not isinstance(reply, Failure) or reply.reason is not Reason.TIMEOUT:
        return False
    left = journey.left()
    return left is not None and left < 0.05


def _shorter(timeout: float, left: float | None) -> float:
    return timeout if left is None else min(timeout, max(left, 0.001))


def redirect_target(url: Url, reply: Response) -> Url | InvalidUrl | None:
    """Where a reply sends us; None if it does not."""
    if reply.status not in _REDIRECTS:
        return None
    location = reply.headers.all("location")
    if not location or not location[0].strip():
        return InvalidUrl("", "it names no place to go to")
    return parse_url(location[0], url)


def _redirected(request: Request, target: Url, status: int) -> Request:
    """The request that follows a redirect. What might be a secret stays with the origin that it was meant for (F25)."""
    method, body, fields = request.method, request.body, request.headers.fields
    if (status == 303 and method != "HEAD") or (status in (301, 302) and method == "POST"):
        method, body = "GET", None
        fields = tuple(each for each in fields if not each[0].lower().startswith("content-"))
    if target.origin != request.url.origin:
        fields = tuple(each for each in fields if each[0].lower() in _HARMLESS)
    return Request(target, method, Headers(fields), body)


def _with_cookies(request: Request, world: World) -> Request:
    cookies = world.cookies_for(request.url)
    if cookies is None or "cookie" in request.headers:
        return request
    return Request(
        request.url, request.method, Headers((*request.headers.fields, ("Cookie", cookies))), request.body
    )  # fmt: skip


def _agent_only(headers: Headers) -> tuple[tuple[str, str], ...]:
    return tuple(each for each in headers.fields if each[0].lower() == "user-agent")


def _own_headers(headers: Headers, url: Url, policies: Policies) -> Headers:
    """The caller's headers, with who we are and, if the URL has credentials, who the caller is."""
    if "user-agent" not in headers:
        headers = _with_agent(headers.fields, policies.user_agent)
    if url.credentials and "authorization" not in headers:
        name, _, password = url.credentials.encode("utf-8", "surrogatepass").partition(b":")
        secret = unquote_to_bytes(name) + b":" + unquote_to_bytes(password)
        return Headers((*headers.fields, ("Authorization", "Basic " + b64encode(secret).decode())))
    return headers


@lru_cache(maxsize=256)  # most fetches of a program have the same ones
def _with_agent(fields: tuple[tuple[str, str], ...], agent: str) -> Headers:
    return Headers((("User-Agent", agent), *fields))


def _result(journey: Journey, end: Reply | Refusal, asked: Url | InvalidUrl) -> FetchResult:
    """What the caller gets, and the one record of it."""
    ask, world, url = journey.ask, journey.world, journey.url
    status: int | None = None
    reason: Reason | None = None
    message = ""
    retry_after = journey.retry_after
    headers, body = NO_HEADERS, b""
    match end:
        case Refusal():
            reason, message, retry_after = end.reason, end.message, end.retry_after
        case Failure() if url is not None:
            status, reason, message = end.status, end.reason, explain.failed(url, end, journey.retries + 1)
        case Response() if url is not None:
            status, headers, body = end.status, end.headers, end.body
            if not ask.follow and status in _REDIRECTS:
                reason, message = Reason.REDIRECTED, explain.redirected(url, status)
            elif not 200 <= status < 300:
                reason, message = Reason.HTTP_STATUS, explain.bad_status(url, status, retry_after, journey.retries + 1)
    shown = asked.text if isinstance(asked, Url) else explain.given(asked)
    final = shown if url is None else url.text
    record = FetchRecord(
        url=shown,
        final_url=final,
        domain="" if url is None else url.domain,
        method=ask.method.upper(),
        status=status,
        reason=None if reason is None else reason.value,
        attempts=journey.attempts,
        retries=journey.retries,
        waited=journey.waited,
        took=world.now() - journey.began,
        bytes=journey.bytes,
        cache=journey.cache,
        robots_line=journey.robots_line,
        requests_left=None if journey.go is None else journey.go.requests_left,
        pages_left=None if journey.go is None else journey.go.pages_left,
        retry_after=retry_after,
        at=world.epoch(),
        latency=journey.latency,
        robots_requests=journey.robots_requests,
    )
    return FetchResult(
        reason is None, shown, final, status, reason, mask_url(message) if message else "", retry_after, headers, body,
        journey.cache is not None, record, journey.next_in,
    )  # fmt: skip

"""Complete path of a fetch, as generators.

A flow yields effects and receives their results. `engine/driver.py` executes effects, blocking or async. The steps:

    fetch ──▶ hop, once per redirect ──▶ look up the cached copy: a fresh one ends the hop
                                    ──▶ exchange: get the rules of the origin, apply them;
                                        wait for admission, send, settle, perhaps retry
                                    ──▶ update the cache
          ──▶ report the record
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from curtsy.core import messages
from curtsy.core.cache import (
    Absent,
    Absorbed,
    Drop,
    Entry,
    Fresh,
    Freshness,
    Leave,
    Refresh,
    Stale,
    Store,
    Unusable,
    absorb,
    contradicts,
    freshness,
    names_another,
)
from curtsy.core.decision import Go, Late, No, Settled
from curtsy.core.effects import (
    Admitted,
    Effect,
    FetchRequest,
    Keep,
    Later,
    MayRetry,
    PutBack,
    Recall,
    Remember,
    Send,
    Settle,
    Tell,
    World,
)
from curtsy.core.errors import Reason
from curtsy.core.fetch_state import (
    AGAIN,
    NOT_ADMITTED,
    REDIRECTS,
    UNHEARD,
    UNSENT,
    Again,
    FetchState,
    Refusal,
    admission,
    agent_of,
    entrance,
    is_another,
    is_cut_off,
    not_admitted,
    own_headers,
    redirect_target,
    shorter,
)  # fmt: skip
from curtsy.core.message import NO_HEADERS, Failure, Headers, InvalidUrl, Reply, Request, Response, Url, parse_url
from curtsy.core.outcome import Kind, Outcome, backoff, classify, is_sent, is_worth_repeating, retry_after
from curtsy.core.policy import Policy
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.core.robots_flow import heed, judged, rules_for
from curtsy.core.rules import Rules
from curtsy.core.rules import crawl_delay as crawl_delay_of
from curtsy.core.secrets import mask_url

REPEATABLE = frozenset({"GET", "HEAD"})
"""Methods that are retried without the caller's permission."""

PROXY_REST = 60.0
"""Seconds until a retry through a failed proxy makes sense."""

# Header fields that follow a redirect to another origin: none of them can hold a secret (F25).
_HARMLESS = frozenset(
    {"accept", "accept-language", "accept-encoding", "user-agent", "cache-control", "content-type"}
)  # fmt: skip


def fetch(ask: FetchRequest, world: World, state: FetchState | None = None) -> Generator[Effect, Any, FetchResult]:
    """Fetch one URL politely and follow redirects. Each hop passes all checks of its own host.

    `state` records the progress, for callers that need it before the end.
    """
    state = state or set_out(ask, world)
    first = parse_url(ask.url)
    if isinstance(first, InvalidUrl):
        end: Reply | Refusal = Refusal(Reason.INVALID_URL, messages.invalid(first))
    else:
        try:
            end = yield from _travel(first, state)
        finally:
            if state.has_retry:
                world.put_back_retry()
    result = _result(state, end, first)
    if ask.max_wait is None or result.reason is not Reason.DEADLINE:  # a postponed fetch has no record yet
        yield Tell(result.record)
    return result


def set_out(ask: FetchRequest, world: World) -> FetchState:
    """Return the state of a fetch that starts now."""
    return FetchState(ask, world, world.now(), world.policies, is_foreign=ask.is_foreign)


def closed(state: FetchState, is_sent: bool = False, is_robots: bool = False) -> FetchResult:
    """Return the result of a fetch whose client was closed.

    `is_sent`: a request was in progress. `is_robots`: that request was for robots.txt.
    """
    url = state.ask.url
    if is_sent and is_robots:
        state.robots_requests += 1
    elif is_sent:
        state.attempts += 1
        state.retries += state.page_sent
    return _result(state, Refusal(Reason.CLOSED, messages.closed(url)), parse_url(url))


def _travel(first: Url, state: FetchState) -> Generator[Effect, Any, Reply | Refusal]:
    """Fetch a URL and follow its redirects; return the last reply."""
    ask, world = state.ask, state.world
    request = Request(first, ask.method.upper(), own_headers(ask.headers, first, state.policies), ask.body)
    most, status = state.policies.of(first.domain).max_redirects, 0
    requested: set[str] = set()
    wants_cookie = False
    for _ in range(most + 1):
        sent = _with_cookies(request, world)
        end = yield from _hop_to_its_end(sent, state)
        if not isinstance(end, Response) or end.status not in REDIRECTS:
            return end
        requested.add(request.url.text)
        wants_cookie = wants_cookie or ("set-cookie" in end.headers and not world.keeps_cookies)
        target = _followed(request, sent, end, wants_cookie, state)
        if not isinstance(target, Url):
            return target
        state.redirected_by = (*state.redirected_by, request.url.text)
        if target.domain != request.url.domain:
            state.leave_host()
            state.is_foreign = state.is_foreign or world.is_foreign(request.url, target)
        request, status = _redirected(request, target, end.status), end.status
    is_circle = len(requested) <= most
    detail = messages.WANTS_COOKIE if is_circle and wants_cookie else f"it was redirected more than {most} times"
    return Failure(Reason.TOO_MANY_REDIRECTS, detail, 0.0, status)


def _hop_to_its_end(request: Request, state: FetchState) -> Generator[Effect, Any, Reply | Refusal]:
    """Fetch one URL, and start over as long as the settings or rules change during the wait."""
    state.url, state.cache = request.url, None
    state.page_tries, state.page_sent, state.again = 0, False, 0
    end = yield from hop(request, state)
    while isinstance(end, Again):
        state.policies, state.had_its_turn = state.world.policies, True
        end = yield from hop(request, state)
    state.had_its_turn = False
    return end


def _followed(
    request: Request, sent: Request, reply: Response, wants_cookie: bool, state: FetchState
) -> Url | Reply | Refusal:
    """Return the target of a redirect, or the end of the fetch if the redirect is not followed."""
    target = redirect_target(request.url, reply)
    if not state.ask.follow:
        if not isinstance(target, Url) or target.text != request.url.text:
            return reply
        if wants_cookie:
            return Failure(Reason.TOO_MANY_REDIRECTS, messages.WANTS_COOKIE, 0.0, reply.status)
        if _with_cookies(request, state.world).headers == sent.headers:
            return reply
        # A redirect to the same URL that sets a cookie: it is requested again at once, with the cookie.
    if isinstance(target, InvalidUrl):
        return Failure(Reason.BAD_REDIRECT, f"it redirects to an invalid URL: {target.why}", 0.0, reply.status)
    assert target is not None  # the reply is a redirect
    return _before_redirect(request.url, reply, state) or target


def _before_redirect(url: Url, reply: Response, state: FetchState) -> Refusal | None:
    """Refuse to follow a redirect whose Retry-After exceeds `obey_retry_after` (RFC 9110, 10.2.3).

    The redirecting host rests by its own record. A target on another host is not delayed.
    """
    policy = state.policies.of(url.domain)
    asked = retry_after(reply.headers, state.world.epoch()) if state.cache is None else None
    if asked is None or asked <= policy.obey_retry_after:
        return None
    return not_admitted(url, policy, No(Reason.CIRCUIT_OPEN, min(asked, policy.max_retry_after)))


def hop(request: Request, state: FetchState) -> Generator[Effect, Any, Reply | Refusal | Again]:
    """Fetch one URL of one host: apply the settings, then the cache, then send a request."""
    world, url = state.world, request.url
    policy = state.policies.of(url.domain)
    refused = refused_by_settings(url, policy, world)
    if refused is not None:
        return refused

    found: Freshness = Absent()
    cached: tuple[Entry, bytes] | None = None
    if world.has_cache or world.cache_mode == "offline":
        cached = yield Recall(request)
        entry = cached[0] if cached else None
        found = freshness(entry, request, world.epoch(), world.cache_mode, world.stale_if_error)
        if isinstance(found, Absent) and not found.may_ask:
            return Refusal(Reason.NOT_IN_CACHE, messages.not_kept(url))
    if isinstance(found, Stale) and found.may_serve_meanwhile and (yield Later(_alone(request, state))):
        return (yield from _served(request, found, cached, policy, state))
    if isinstance(found, Fresh):
        return (yield from _served(request, found, cached, policy, state))

    end = yield from exchange(request, found, policy, state)
    condition: Freshness = found
    if not isinstance(end, Refusal | Again) and names_another(found, end):
        # This 304 is about a version that is not cached, so the page is requested without conditions.
        condition = Absent()
        end = yield from exchange(request, condition, policy, state)
    if isinstance(found, Stale) and found.may_serve_on_error and _has_failed(end):
        # The exchange takes time: the copy must still be usable now.
        late = freshness(found.entry, request, world.epoch(), world.cache_mode, world.stale_if_error)
        if isinstance(late, Stale) and late.may_serve_on_error:
            return (yield from _served(request, late, cached, policy, state))
    if isinstance(end, Refusal | Again) or not world.has_cache or state.cache is not None:
        return end
    changes, answer = _cached_now(request, end, condition, cached, state)
    for change in changes:
        yield Keep(url, change)
    return answer


def _served(
    request: Request, copy: Fresh | Stale, cached: tuple[Entry, bytes] | None, policy: Policy, state: FetchState
) -> Generator[Effect, Any, Response | Refusal]:
    """Return the cached copy, at no cost for the site, unless known rules forbid it.

    Expired rules apply, too. No rules are requested, and unreachable rules do not forbid the copy.
    """
    world, origin = state.world, request.url.origin
    if policy.respect_robots:
        known = world.known_rules(origin)
        rules: Rules | None = (yield Remember(origin)) if known is None else known.rules
        if rules is not None and rules.is_known:
            refusal = judged(rules, agent_of(request, state), request, policy, state)
            if refusal is not None and refusal.reason is Reason.ROBOTS_DISALLOWED:
                return refusal
    state.cache = "hit" if isinstance(copy, Fresh) else "stale"
    assert cached is not None
    entry, body = cached
    return entry.response(body, request.method, copy.age)


def _alone(request: Request, state: FetchState) -> FetchRequest:
    """Return the request that renews the cached copy of this hop alone, without its redirects."""
    url, foreign = request.url.with_credentials, state.is_foreign
    return FetchRequest(url, request.method, request.headers, follow=False, is_renewal=True, is_foreign=foreign)


def _has_failed(end: Reply | Refusal | Again) -> bool:
    """Return whether the exchange failed, so that a stale copy may be served (RFC 5861, 4)."""
    if isinstance(end, Refusal):
        return end.reason in (Reason.CIRCUIT_OPEN, Reason.ROBOTS_UNREACHABLE)
    return isinstance(end, Failure) or (isinstance(end, Response) and end.status in (500, 502, 503, 504))


def refused_by_settings(url: Url, policy: Policy, world: World) -> Refusal | Failure | None:
    """Return the refusal by the user's settings alone; None if the URL may be requested."""
    if policy.denied:
        return Refusal(Reason.DOMAIN_DENIED, messages.denied(url))
    if policy.deny_paths and (pattern := policy.refuses_path(url.target)):
        return Refusal(Reason.PATH_DENIED, messages.path_denied(url, pattern))
    if not policy.allow_private and (why := world.refused_address(url)):
        # Names are checked when they are resolved. A literal address is refused before it enters a queue.
        return Failure(Reason.ADDRESS_REFUSED, why)
    return None


class Permission(msgspec.Struct, frozen=True, gc=False):
    """Permission of robots.txt to request a page."""

    rules: Rules | None = None
    """Rules that permit it; None if robots.txt is not respected."""

    crawl_delay: float = 0.0
    """Seconds between two requests, for the user agent of this request."""


def exchange(
    request: Request, found: Freshness, policy: Policy, state: FetchState
) -> Generator[Effect, Any, Reply | Refusal | Again]:
    """Request the page if the rules allow it, and retry temporary errors.

    The retry policy decides whether to retry, admission decides when.
    """
    url = request.url
    permission = (yield from _permission(request, policy, state)) if policy.respect_robots else Permission()
    if not isinstance(permission, Permission):
        return permission
    sent = found.conditional(request) if isinstance(found, Stale) else request
    last: Reply | None = None
    while True:
        is_page, delay = request.method != "HEAD", permission.crawl_delay
        ticket = yield from admission(entrance(url, policy, state, page=is_page, crawl_delay=delay), state)
        if isinstance(ticket, NOT_ADMITTED):
            if last is None:
                return not_admitted(url, policy, ticket)
            # The retry is not admitted: the result keeps the last reply, and the seconds until a retry if known.
            if not (isinstance(last, Failure) and last.is_lasting):
                state.retry_after = ticket.needed if isinstance(ticket, Late) else ticket.retry_after
            return last
        change = (yield from _change(request, permission, policy, state)) if ticket.waited else None
        if change is not None:
            yield PutBack(ticket)
            return change
        had_retry, state.has_retry = state.has_retry, False
        left = state.left()
        timeout = shorter(policy.timeout, left)
        reply: Reply | None = yield Send(sent, policy, ticket, timeout, policy.max_body, left=left)
        if reply is None:
            state.has_retry = had_retry
            continue
        last = reply
        if not (yield from _settle(request, reply, ticket, policy, state)):
            return reply


def _permission(
    request: Request, policy: Policy, state: FetchState
) -> Generator[Effect, Any, Permission | Refusal | Failure | Again]:
    """Get the rules of the origin and apply them to the request."""
    url, policies = request.url, state.policies
    rules = yield from rules_for(request, policy, state)
    if state.policies is not policies and is_another(state.policies, url, policy):
        return AGAIN
    if not isinstance(rules, Rules):
        return rules
    agent = agent_of(request, state)
    refusal = judged(rules, agent, request, policy, state)
    if refusal is not None:
        return refusal
    known = state.world.heeded(url.origin).get(agent)
    crawl_delay = (yield from heed(rules, agent, url, policy, state)) if known is None else known
    if crawl_delay > policy.max_crawl_delay:
        return not_admitted(url, policy, No(Reason.CRAWL_DELAY_TOO_LONG, None))
    return Permission(rules, crawl_delay)


def _settle(
    request: Request, reply: Reply, ticket: Admitted, policy: Policy, state: FetchState
) -> Generator[Effect, Any, bool]:
    """Record the consequences of a reply; return whether the request is to be retried."""
    world, url = state.world, request.url
    was_sent = _count(reply, state)
    if isinstance(reply, Response):
        world.take_cookies(url, reply.headers)
    has_run_out = is_cut_off(reply, state)
    unheard = UNHEARD if was_sent else UNSENT
    outcome = unheard if has_run_out else classify(reply, world.epoch(), foreign=state.is_foreign)
    state.go = _remaining(ticket.go, outcome)
    is_temporary = not has_run_out and is_worth_repeating(reply)
    again = is_temporary and _may_retry(request, policy, state) and (yield MayRetry(url.domain))
    state.has_retry = again
    if again and outcome.retry_after is None:
        pause = backoff(state.page_tries, policy.retry_delay, world.roll())
        outcome = msgspec.structs.replace(outcome, rest=max(outcome.rest, pause))
    settled: Settled = yield Settle(ticket, outcome)
    state.next_in = max(settled.next_in, settled.open_for)
    wanted = outcome.retry_after
    state.asked_for = wanted if wanted is not None and wanted > policy.max_retry_after else None
    if not again:
        # A temporary error can be retried when the breaker closes, even if Retry-After is shorter.
        if wanted is not None:
            state.retry_after = max(min(wanted, policy.max_retry_after), settled.open_for)
        elif is_temporary and not (isinstance(reply, Failure) and reply.is_lasting):
            state.retry_after = settled.open_for or None
        else:
            state.retry_after = None
    return bool(again)


def _count(reply: Reply, state: FetchState) -> bool:
    """Count a try; return whether a request was sent.

    A failed name lookup or a refused connection counts as a try, but not as a sent request.
    """
    was_sent = reply.sent_ago is not None or is_sent(reply)
    state.tries += 1
    state.attempts += was_sent
    state.retries += was_sent and state.page_sent
    state.page_sent = state.page_sent or was_sent
    state.again, state.page_tries = state.page_tries, state.page_tries + 1
    state.bytes += reply.wire_bytes
    state.latency = reply.sent_ago
    return was_sent


def _may_retry(request: Request, policy: Policy, state: FetchState) -> bool:
    """Return whether the caller and the settings allow another try."""
    idempotent, most = state.ask.idempotent, state.world.max_retries
    may_repeat = request.method in REPEATABLE if idempotent is None else idempotent
    return may_repeat and state.page_tries <= (policy.max_retries if most is None else most)


def _change(
    request: Request, permission: Permission, policy: Policy, state: FetchState
) -> Generator[Effect, Any, Response | Refusal | Again | None]:
    """Return the result that a change during the wait requires; None if the request can be sent.

    Changes are new settings, new or expired rules, and a fresh copy in the cache.
    """
    world, url, rules = state.world, request.url, permission.rules
    if is_another(world.policies, url, policy):
        return AGAIN
    if rules is not None:
        known, agent = world.known_rules(url.origin), agent_of(request, state)
        # After a start over the rules count, even if they expired in the queue: else a short TTL would loop forever.
        if known is None and not state.had_its_turn:
            return AGAIN
        if known is not None and known.rules is not rules:
            refusal = judged(known.rules, agent, request, policy, state)
            if refusal is not None:
                return refusal
            if (crawl_delay_of(known.rules, agent) or 0.0) != permission.crawl_delay:
                return AGAIN
    return (yield from _cached_meanwhile(request, state)) if world.has_cache and not state.page_tries else None


def _cached_meanwhile(request: Request, state: FetchState) -> Generator[Effect, Any, Response | None]:
    """Return a fresh copy that another task or process has cached during the wait, or None."""
    world = state.world
    kept = yield Recall(request)
    # A renewal accepts a copy that another client has renewed, so the cache mode does not apply.
    mode = "normal" if state.ask.is_renewal else world.cache_mode
    found = freshness(kept[0] if kept else None, request, world.epoch(), mode)
    if not isinstance(found, Fresh):
        return None
    state.cache = "hit"
    return found.entry.response(kept[1], request.method, found.age)


def _remaining(go: Go, outcome: Outcome) -> Go:
    """Return the host's remaining daily budget after an outcome.

    Admission charges a request and a page. Settling refunds unsent requests, 304s and replies that are not pages.
    """
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


def _cached_now(
    request: Request,
    reply: Reply,
    found: Freshness,
    kept: tuple[Entry, bytes] | None,
    state: FetchState,
) -> tuple[tuple[Absorbed, ...], Reply]:
    """Return the changes to the cache, and the reply for the caller: after a 304 the cached page."""
    what = absorb(found, request, reply, state.world.epoch())
    if request.method == "HEAD" and kept is not None and isinstance(reply, Response) and contradicts(reply, kept[0]):
        return (Drop(kept[0].variant),), reply
    if isinstance(what, Unusable):
        gone = () if kept is None else (Drop(kept[0].variant),)
        return gone, Failure(Reason.BAD_RESPONSE, what.why, 0.0, 304)
    if isinstance(what, Drop) and what.variant is not None and kept is not None:
        what = Drop(kept[0].variant)
    changes: tuple[Absorbed, ...] = () if isinstance(what, Leave) else (what,)
    if isinstance(what, Store) and kept is not None and kept[0].variant != what.entry.variant:
        # The page has another `Vary` than the old copy, which would still be found first.
        changes = Drop(kept[0].variant), what
    if not isinstance(found, Stale) or kept is None or not isinstance(reply, Response) or reply.status != 304:
        return changes, reply
    state.cache = "revalidated"
    entry = what.entry if isinstance(what, Refresh) else kept[0]
    if entry.variant != kept[0].variant:  # the 304 has another `Vary`: the copy moves to another variant
        changes = Drop(kept[0].variant), Store(entry, kept[1])
    return changes, entry.response(kept[1], request.method)


def _redirected(request: Request, target: Url, status: int) -> Request:
    """Return the request that follows a redirect. Possible secrets stay with their origin (F25)."""
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


def _result(state: FetchState, end: Reply | Refusal, asked: Url | InvalidUrl) -> FetchResult:
    """Return the result for the caller, with the record of the fetch."""
    ask, world, url = state.ask, state.world, state.url
    status: int | None = None
    reason: Reason | None = None
    message = cause = ""
    retry_after = state.retry_after
    headers, body = NO_HEADERS, b""
    match end:
        case Response() if url is not None:
            status, headers, body = end.status, end.headers, end.body
            if not ask.follow and status in REDIRECTS:
                if not ask.is_renewal:
                    reason, message = Reason.REDIRECTED, messages.redirected(url, status)
            elif not 200 <= status < 300:
                reason = Reason.HTTP_STATUS
                message = messages.bad_status(url, status, retry_after, state.again + 1, state.asked_for)
                cause = f"status {status}{messages.tries(state.again + 1)}"
        case Refusal():
            reason, message, retry_after = end.reason, end.message, end.retry_after
        case Failure() if url is not None:
            status, reason, cause = end.status, end.reason, mask_url(end.detail)
            message = messages.failed(url, end, state.again + 1)
            if end.ended_at_proxy and not end.is_lasting:
                retry_after = PROXY_REST
    message = mask_url(message) if message else ""
    shown = asked.text if isinstance(asked, Url) else messages.given(asked)
    final = shown if url is None else url.text
    record = FetchRecord(
        url=shown,
        final_url=final,
        domain="" if url is None else url.domain,
        method=ask.method.upper(),
        status=status,
        reason=None if reason is None else reason.value,
        attempts=state.attempts,
        retries=state.retries,
        waited=state.waited,
        took=world.now() - state.began,
        bytes=state.bytes,
        cache=state.cache,
        robots_line=state.robots_line,
        requests_left=None if state.go is None else state.go.requests_left,
        pages_left=None if state.go is None else state.go.pages_left,
        retry_after=retry_after,
        at=world.epoch(),
        latency=state.latency,
        robots_requests=state.robots_requests,
        elsewhere=state.elsewhere,
        message=message,
    )
    return FetchResult(
        reason is None, shown, final, status, reason, message, retry_after, headers, body,
        state.cache is not None, record, state.next_in, state.redirected_by, cause,
    )  # fmt: skip

"""Complete path of a fetch, as generators.

A flow yields effects and receives their results. `engine/driver.py` executes the effects. The steps:

    fetch ──▶ hop, once per redirect ──▶ look up the cached copy: a fresh one ends the hop
                                    ──▶ exchange: get the rules of the origin, apply them;
                                        wait for admission, send, settle, perhaps retry
                                    ──▶ update the cache
          ──▶ report the record
"""

from __future__ import annotations

import msgspec

from curtsy.core import cache, messages
from curtsy.core.cache import Absent, Drop, Entry, Fresh, Freshness, Stale, freshness
from curtsy.core.decision import Late, No, Settled
from curtsy.core.effects import (
    Admitted,
    FetchRequest,
    Flow,
    Keep,
    Later,
    MayRetry,
    PutBack,
    Recall,
    Render,
    Send,
    Settle,
    Tell,
    World,
)
from curtsy.core.errors import Reason, RecordTooNew
from curtsy.core.fetch_state import (
    NOT_ADMITTED,
    REDIRECTS,
    Again,
    FetchState,
    Refusal,
    not_admitted,
    redirect_target,
    remaining,
)
from curtsy.core.outcome import Outcome, backoff, is_sent, is_worth_repeating, retry_after
from curtsy.core.policy import Policy
from curtsy.core.request import Failure, Headers, Reply, Request, Response
from curtsy.core.result import FetchResult
from curtsy.core.robots_flow import heed, judged, remembered, rules_for
from curtsy.core.rules import Known, Rules, crawl_delay
from curtsy.core.url import InvalidUrl, Url, parse_url

REPEATABLE = frozenset({"GET", "HEAD"})
"""Methods that are retried without the caller's permission."""

_UNCACHED = Absent()

# Header fields that follow a redirect to another origin: none of them can hold a secret (F25).
_HARMLESS = frozenset(
    {"accept", "accept-language", "accept-encoding", "user-agent", "cache-control", "content-type"}
)  # fmt: skip


def fetch(ask: FetchRequest, world: World, state: FetchState | None = None) -> Flow[FetchResult]:
    """Fetch one URL politely and follow redirects. Each hop passes all checks of its own host.

    `state` records the progress, for callers that need it before the end.
    """
    state = state or set_out(ask, world)
    first = state.asked
    if isinstance(first, InvalidUrl):
        end: Reply | Refusal = Refusal(Reason.INVALID_URL, messages.invalid(first))
    else:
        try:
            end = yield from _travel(first, state)
        finally:
            if state.has_retry:
                world.put_back_retry()
    result = state.result(end)
    is_postponed = ask.max_wait is not None and result.reason is Reason.DEADLINE
    if not is_postponed or state.attempts or state.robots_requests:
        yield Tell(result.record, is_postponed)
    return result


def fetch_hop(ask: FetchRequest, state: FetchState) -> Flow[tuple[Reply | Refusal, FetchResult]]:
    """Fetch one URL for a library that follows redirects, keeps cookies and retries by itself (an adapter).

    Return the reply or the refusal, and the result with its record.
    """
    url = state.asked
    if isinstance(url, InvalidUrl):
        end: Reply | Refusal = Refusal(Reason.INVALID_URL, messages.invalid(url))
    else:
        end = yield from _visit(Request(url, ask.method, state.own_headers(ask.headers, url), ask.body), state)
    result = state.result(end)
    yield Tell(result.record)
    return end, result


def set_out(ask: FetchRequest, world: World) -> FetchState:
    """Return the state of a fetch that starts now."""
    return FetchState(ask, world, world.now(), world.policies, parse_url(ask.url), is_foreign=ask.is_foreign)


def closed(state: FetchState, is_sent: bool = False, is_robots: bool = False) -> FetchResult:
    """Return the result of a fetch whose client was closed.

    `is_sent`: a request was in progress. `is_robots`: that request was for robots.txt.
    """
    if is_sent and is_robots:
        state.robots_requests += 1
    elif is_sent:
        state.attempts += 1
        state.retries += state.page_sent
    return state.result(Refusal(Reason.CLOSED, messages.closed(state.ask.url)))


def _travel(first: Url, state: FetchState) -> Flow[Reply | Refusal]:
    """Fetch a URL and follow its redirects; return the last reply."""
    ask, world = state.ask, state.world
    request = Request(first, ask.method.upper(), state.own_headers(ask.headers, first), ask.body)
    most, status = state.policies.of(first.domain).max_redirects, 0
    requested: set[str] = set()
    wants_cookie = False
    for _ in range(most + 1):
        sent = _with_cookies(request, world)
        end = yield from _visit(sent, state)
        if ask.renders and isinstance(end, Response) and 200 <= end.status < 300:
            end = yield Render(sent, end, state.left())
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
    often = f"it was redirected more than {most} times, the last time by {state.redirected_by[-1]}"
    detail = messages.WANTS_COOKIE if is_circle and wants_cookie else often
    return Failure(Reason.TOO_MANY_REDIRECTS, detail, 0.0, status)


def _visit(request: Request, state: FetchState) -> Flow[Reply | Refusal]:
    """Fetch one URL of a redirect chain, and start over while its settings or rules change during the wait."""
    state.url, state.cache, state.page_tries, state.page_sent = request.url, None, 0, False
    try:
        end = yield from hop(request, state)
        while isinstance(end, Again):
            state.policies, state.had_its_turn = state.world.policies, True
            end = yield from hop(request, state)
    except RecordTooNew as error:
        end = Refusal(Reason.RECORD_TOO_NEW, messages.too_new(request.url, str(error)))
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
    # RFC 9110, 10.2.3: a redirect may have a Retry-After. The redirecting host rests by its own record; a target on
    # another host is not delayed.
    policy = state.policies.of(request.url.domain)
    asked = retry_after(reply.headers, state.world.epoch()) if state.cache is None else None
    if asked is None or asked <= policy.obey_retry_after:
        return target
    return not_admitted(request.url, policy, No(Reason.CIRCUIT_OPEN, min(asked, policy.max_retry_after)))


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
    return msgspec.structs.replace(request, headers=Headers((*request.headers.fields, ("Cookie", cookies))))


def hop(request: Request, state: FetchState) -> Flow[Reply | Refusal | Again]:
    """Fetch one URL of one host: apply the settings, then the cache, then send a request."""
    world, url = state.world, request.url
    policy = state.policies.of(url.domain)
    refused = refused_by_settings(url, policy, world)
    if refused is not None:
        return refused

    if not world.has_cache and world.cache_mode != "offline":
        return (yield from exchange(request, _UNCACHED, policy, state))
    kept: tuple[Entry, bytes] | None = yield Recall(request)
    found = freshness(kept and kept[0], request, world.epoch(), world.cache_mode, world.stale_if_error)
    if isinstance(found, Absent) and not found.may_ask:
        return Refusal(Reason.NOT_IN_CACHE, messages.not_kept(url))
    body = kept[1] if kept else b""
    if isinstance(found, Stale) and found.may_serve_meanwhile and (yield Later(_alone(request, state))):
        return (yield from _served(request, found, body, policy, state))
    if isinstance(found, Fresh):
        return (yield from _served(request, found, body, policy, state))

    end, condition = (yield from exchange(request, found, policy, state)), found
    if not isinstance(end, Refusal | Again) and cache.names_another(found, end):
        # This 304 is about a version that is not cached, so the page is requested without conditions.
        condition = Absent()
        end = yield from exchange(request, condition, policy, state)
    if isinstance(found, Stale) and found.may_serve_on_error and _has_failed(end):
        # The exchange takes time: the copy must still be usable now.
        late = freshness(found.entry, request, world.epoch(), world.cache_mode, world.stale_if_error)
        if isinstance(late, Stale) and late.may_serve_on_error:
            return (yield from _served(request, late, body, policy, state))
    if isinstance(end, Refusal | Again) or not world.has_cache or state.cache is not None:
        return end
    changes, answer = _cached_now(request, end, condition, kept, state)
    for change in changes:
        yield Keep(url, change)
    return answer


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


def _served(
    request: Request, copy: Fresh | Stale, body: bytes, policy: Policy, state: FetchState
) -> Flow[Response | Refusal]:
    """Return the cached copy, at no cost for the site, unless known rules forbid it.

    Expired rules apply, too. No rules are requested, and unreachable rules do not forbid the copy.
    """
    if policy.respect_robots:
        rules = yield from remembered(request.url.origin, state)
        if rules is not None and rules.is_known:
            refusal = judged(rules, request, policy, state)
            if refusal is not None and refusal.reason is Reason.ROBOTS_DISALLOWED:
                return refusal
    state.cache = "hit" if isinstance(copy, Fresh) else "stale"
    return copy.entry.response(body, request.method, copy.age)


def _alone(request: Request, state: FetchState) -> FetchRequest:
    """Return the request that renews the cached copy of this hop alone, without its redirects."""
    url, foreign = request.url.with_credentials, state.is_foreign
    return FetchRequest(url, request.method, request.headers, follow=False, is_renewal=True, is_foreign=foreign)


def _has_failed(end: Reply | Refusal | Again) -> bool:
    """Return whether the exchange failed, so that a stale copy may be served (RFC 5861, 4)."""
    if isinstance(end, Refusal):
        return end.reason in (Reason.CIRCUIT_OPEN, Reason.ROBOTS_UNREACHABLE)
    return isinstance(end, Failure) or (isinstance(end, Response) and end.status in (500, 502, 503, 504))


class Permission(msgspec.Struct, frozen=True, gc=False):
    """Permission of robots.txt to request a page."""

    rules: Rules | None = None
    """Rules that permit it; None if robots.txt is not respected."""

    crawl_delay: float = 0.0
    """Seconds between two requests, for the user agent of this request."""


def exchange(request: Request, found: Freshness, policy: Policy, state: FetchState) -> Flow[Reply | Refusal | Again]:
    """Request the page if the rules allow it, and retry temporary errors.

    The retry policy decides whether to retry, admission decides when.
    """
    url, is_page = request.url, state.is_page(request)
    permission: Permission | Refusal | Failure | Again = Permission()
    if policy.respect_robots and state.ask.obeys_robots:
        known = state.world.known_rules(url.origin, policy.robots_ttl)
        permission = _heeded(known, request, policy, state) or (yield from _permission(known, request, policy, state))
    if not isinstance(permission, Permission):
        return permission
    sent = found.conditional(request) if isinstance(found, Stale) else request
    limits = state.limits_of(policy)
    last: Reply | None = None
    while True:
        enter, began = state.enter(url, policy, page=is_page, crawl_delay=permission.crawl_delay), state.world.now()
        ticket: Admitted | No | Late = Late(0.0) if enter is None else (yield enter)
        state.count_wait(ticket, began)
        if isinstance(ticket, NOT_ADMITTED):
            return not_admitted(url, policy, ticket) if last is None else _not_repeated(last, ticket, state)
        change = (yield from _change(request, permission, policy, state)) if ticket.waited else None
        if change is not None:
            yield PutBack(ticket)
            return change
        had_retry, state.has_retry = state.has_retry, False
        timeout, left = state.time_for(limits.timeout)
        reply: Reply | None = yield Send(sent, limits, ticket, timeout, policy.max_body, False, left)
        if reply is None:
            state.has_retry = had_retry
            continue
        last, outcome = reply, _outcome(request, reply, ticket, state)
        is_temporary = is_worth_repeating(reply) and not state.is_cut_off(reply)
        again = (yield from _retry(request, outcome, policy, state)) if is_temporary else None
        state.has_retry = again is not None
        settled: Settled = yield Settle(ticket, again or outcome)
        _take_rest(settled, outcome, policy, state)
        if again is None:
            state.retry_after = _retry_after(outcome, settled, reply, policy, is_temporary)
            return reply


def _heeded(known: Known | None, request: Request, policy: Policy, state: FetchState) -> Permission | Refusal | None:
    """Return the answer of known rules whose Crawl-delay is recorded already; None if it is not, or too long."""
    delay = None if known is None else known.heeded.get(state.agent_of(request))
    if known is None or delay is None or delay > policy.max_crawl_delay:
        return None
    return judged(known.rules, request, policy, state) or Permission(known.rules, delay)


def _permission(
    known: Known | None, request: Request, policy: Policy, state: FetchState
) -> Flow[Permission | Refusal | Failure | Again]:
    """Get the rules of the origin unless they are known, and apply them to the request."""
    url, policies = request.url, state.policies
    if known is not None:
        rules: Rules | Refusal | Failure | Again = known.rules
    else:
        rules = yield from rules_for(request, policy, state)
        if state.policies is not policies and state.has_another(url, policy):
            return Again()
    if not isinstance(rules, Rules):
        return rules
    refusal = judged(rules, request, policy, state)
    if refusal is not None:
        return refusal
    delay = yield from heed(rules, request, policy, state)
    if delay > policy.max_crawl_delay:
        return not_admitted(url, policy, No(Reason.CRAWL_DELAY_TOO_LONG, None))
    return Permission(rules, delay)


def _change(
    request: Request, permission: Permission, policy: Policy, state: FetchState
) -> Flow[Response | Refusal | Again | None]:
    """Return the result that a change during the wait requires; None if the request can be sent.

    Changes are new settings, new or expired rules, and a fresh copy in the cache.
    """
    world, url, rules = state.world, request.url, permission.rules
    if state.has_another(url, policy):
        return Again()
    if rules is not None:
        known = world.known_rules(url.origin)
        # After a start over the rules count, even if they expired in the queue: else a short TTL would loop forever.
        if known is None and not state.had_its_turn:
            return Again()
        if known is not None and known.rules is not rules:
            refusal = judged(known.rules, request, policy, state)
            if refusal is not None:
                return refusal
            if (crawl_delay(known.rules, state.agent_of(request)) or 0.0) != permission.crawl_delay:
                return Again()
    if not world.has_cache or state.page_tries:
        return None
    kept = yield Recall(request)
    # A renewal accepts a copy that another client has renewed, so the cache mode does not apply.
    mode = "normal" if state.ask.is_renewal else world.cache_mode
    found = freshness(kept and kept[0], request, world.epoch(), mode)
    if not isinstance(found, Fresh):
        return None
    state.cache = "hit"
    return found.entry.response(kept[1], request.method, found.age)


def _outcome(request: Request, reply: Reply, ticket: Admitted, state: FetchState) -> Outcome:
    """Count a reply and return its consequences for the host."""
    _count(reply, state)
    if isinstance(reply, Response):
        state.world.take_cookies(request.url, reply.headers)
    outcome = state.outcome(reply)
    state.go = remaining(ticket.go, outcome)
    return outcome


def _retry(request: Request, outcome: Outcome, policy: Policy, state: FetchState) -> Flow[Outcome | None]:
    """Return the outcome of a temporary error that is to be retried, with the pause before that; None if it is not."""
    if not (_may_retry(request, policy, state) and (yield MayRetry(request.url.domain))):
        return None
    if outcome.retry_after is not None:
        return outcome
    pause = backoff(state.page_tries, policy.retry_delay, state.world.roll())
    return msgspec.structs.replace(outcome, rest=max(outcome.rest, pause))


def _not_repeated(last: Reply, answer: No | Late, state: FetchState) -> Reply:
    """Return the last reply of a request whose retry is not admitted; keep the seconds until a retry if known."""
    if not (isinstance(last, Failure) and last.is_lasting):
        state.retry_after = answer.needed if isinstance(answer, Late) else answer.retry_after
    return last


def _take_rest(settled: Settled, outcome: Outcome, policy: Policy, state: FetchState) -> None:
    """Record how long the host must rest after a reply."""
    state.next_in = settled.next_in if settled.next_in > settled.open_for else settled.open_for
    wanted = outcome.retry_after
    state.asked_for = wanted if wanted is not None and wanted > policy.max_retry_after else None


def _retry_after(outcome: Outcome, settled: Settled, reply: Reply, policy: Policy, is_temporary: bool) -> float | None:
    """Return the seconds until the caller may retry; None if a retry is useless or the time unknown."""
    if outcome.retry_after is not None:
        # A temporary error can be retried when the breaker closes, even if Retry-After is shorter.
        return max(min(outcome.retry_after, policy.max_retry_after), settled.open_for)
    is_lasting = isinstance(reply, Failure) and reply.is_lasting
    return settled.open_for or None if is_temporary and not is_lasting else None


def _count(reply: Reply, state: FetchState) -> None:
    """Count a try. A failed name lookup or a refused connection counts as a try, but not as a sent request."""
    state.has_tried = True
    if is_sent(reply):
        state.attempts += 1
        state.retries += state.page_sent
        state.page_sent = True
    state.page_tries += 1
    state.bytes += reply.wire_bytes
    state.latency = reply.sent_ago


def _may_retry(request: Request, policy: Policy, state: FetchState) -> bool:
    """Return whether the caller and the settings allow another try."""
    idempotent, most = state.ask.idempotent, state.world.max_retries
    may_repeat = request.method in REPEATABLE if idempotent is None else idempotent
    return may_repeat and state.page_tries <= (policy.max_retries if most is None else most)


def _cached_now(
    request: Request, reply: Reply, found: Freshness, kept: tuple[Entry, bytes] | None, state: FetchState
) -> tuple[tuple[cache.Absorbed, ...], Reply]:
    """Return the changes to the cache, and the reply for the caller: after a 304 the cached page."""
    what = cache.absorb(found, request, reply, state.world.epoch())
    if isinstance(what, cache.Unusable):
        return _changes(what, kept), Failure(Reason.BAD_RESPONSE, what.why, 0.0, 304)
    if kept is None or not isinstance(reply, Response):
        return _changes(what, kept), reply
    if request.method == "HEAD" and cache.contradicts(reply, kept[0]):
        what = Drop(kept[0].variant)
    answer = reply
    if isinstance(found, Stale) and reply.status == 304:
        state.cache = "revalidated"
        entry = what.entry if isinstance(what, cache.Refresh) else kept[0]
        answer = entry.response(kept[1], request.method)
    return _changes(what, kept), answer


def _changes(what: cache.Absorbed, kept: tuple[Entry, bytes] | None) -> tuple[cache.Absorbed, ...]:
    """Return the changes to a cache that holds the copy `kept`."""
    old = None if kept is None else Drop(kept[0].variant)
    match what:
        case cache.Leave():
            return ()
        case cache.Unusable():
            return () if old is None else (old,)
        case Drop(variant):
            return (what if variant is None or old is None else old,)
        case cache.Store(entry) | cache.Refresh(entry) if kept is not None and old is not None:
            if entry.variant == old.variant:
                return (what,)
            # The reply has another `Vary` than the old copy, which would still be found first.
            return old, what if isinstance(what, cache.Store) else cache.Store(entry, kept[1])
        case _:
            return (what,)

"""Robots.txt rules as part of a fetch: from the store, or requested as politely as a page (R5 to R8)."""

from __future__ import annotations

import msgspec

from curtsy.core import messages
from curtsy.core.amendment import CrawlDelay
from curtsy.core.decision import Late, No
from curtsy.core.effects import Admitted, Amend, Claim, Flow, Hold, Learn, PutBack, Release, Remember, Send, Settle
from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.fetch_state import Again, FetchState, Refusal, not_admitted, redirect_target
from curtsy.core.outcome import is_sent
from curtsy.core.policy import Policy
from curtsy.core.request import Failure, Headers, Reply, Request
from curtsy.core.robots import product_token
from curtsy.core.robots_lines import whole_lines
from curtsy.core.rules import MOST, Busy, Claimed, Known, Rules, crawl_delay, filters
from curtsy.core.url import InvalidUrl, Url, parse_url

ROBOTS_REDIRECTS = 5
"""Redirects that are followed for a robots.txt (RFC 9309, 2.3.1.2)."""


def rules_for(request: Request, policy: Policy, state: FetchState) -> Flow[Rules | Refusal | Failure | Again]:
    """Return the rules of an origin, from the store or by one request that all others wait for.

    `Again`: new settings have turned `respect_robots` off during the wait.
    """
    url = request.url
    while True:
        claim = yield Claim(url.origin, state.patience(), policy.robots_ttl, policy.robots_lease)
        if isinstance(claim, Known):
            return claim.rules
        if isinstance(claim, Late):
            return Refusal(Reason.DEADLINE, messages.late(url, claim), claim.needed)
        assert isinstance(claim, Claimed)
        earlier = claim.rules if claim.rules is not None and claim.rules.text else None
        found = yield from _robots_txt(request, policy, state)
        if isinstance(found, Found):
            break
        yield Release(url.origin)
        match found:
            case Known():
                return found.rules
            case Failure() if found.ended_at_proxy and earlier is not None:
                return earlier  # R6: an earlier copy stays in use; a proxy's failure says nothing about the site
            case Refusal() | Failure():
                return found
            case Again():
                was_wanted, state.policies = policy.respect_robots, state.world.policies
                policy = state.policies.of(url.domain)
                if was_wanted and not policy.respect_robots:
                    return found
    if found.body is not None and earlier is not None:
        # The Crawl-delay of the old file ends. `heed()` records that of the new file for each agent.
        yield Amend(policy.key_for(url.domain), policy, CrawlDelay(None, url.origin))
    rules: Rules = yield Learn(url.origin, policy, found.body, found.why, found.part, found.no_answer)
    return rules


def remembered(origin: str, state: FetchState) -> Flow[Rules | None]:
    """Return the known rules of an origin, expired or not, without a request; None if there are none."""
    known = state.world.known_rules(origin)
    rules: Rules | None = (yield Remember(origin)) if known is None else known.rules
    return rules


def heed(rules: Rules, request: Request, policy: Policy, state: FetchState) -> Flow[float]:
    """Return the Crawl-delay in seconds for the request's agent, and record it at its first use (R8).

    The delay is recorded for the host, because all agents share one pace per host. A delay above `max_crawl_delay` is
    not recorded: requests are then refused.
    """
    url, agent = request.url, state.agent_of(request)
    heeded = state.world.heeded(url.origin)
    delay = heeded.get(agent)
    if delay is None:
        delay = crawl_delay(rules, agent) or 0.0
        if 0 < delay <= policy.max_crawl_delay:
            yield Amend(policy.key_for(url.domain), policy, CrawlDelay(delay, url.origin, joined=True))
        state.world.heeded(url.origin)[agent] = delay
    return delay


def judged(rules: Rules, request: Request, policy: Policy, state: FetchState) -> Refusal | None:
    """Return the refusal by the rules, with the line; None if they allow the request."""
    agent = state.agent_of(request)
    verdict = filters(rules, policy, agent, request.url.text)
    state.robots_line = verdict.line
    if verdict.allowed:
        return None
    message = messages.disallowed(request.url, verdict, product_token(agent) or agent)
    if verdict.line is None:
        return Refusal(Reason.ROBOTS_UNREACHABLE, message, max(0.0, rules.valid_until - state.world.epoch()))
    return Refusal(Reason.ROBOTS_DISALLOWED, message)


class Found(msgspec.Struct, frozen=True, gc=False):
    """Result of requesting robots.txt."""

    body: bytes | None
    """Content, empty if there is no file; None if the file is unreachable."""

    why: str = ""
    """Reason why it is unreachable, in words."""

    part: bytes = b""
    """Received part of an incomplete body (C21)."""

    no_answer: str = ""
    """Why the origin gave no response at all; empty after any response."""


NO_FILE = Found(b"")


def _robots_txt(
    request: Request, policy: Policy, state: FetchState
) -> Flow[Found | Refusal | Failure | Known | Busy | Again]:
    """Fetch robots.txt.

    A refusal also applies to the page: the host may not be contacted. `Known` or `Busy`: another process has fetched
    the file during a long wait, or is fetching it. `Again`: the settings have changed.
    """
    world, origin = state.world, request.url.origin
    first = url = parse_url(origin + "/robots.txt")
    headers = state.own_headers(_agent_only(request.headers), request.url)
    claimed_at, redirects = world.now(), 0
    while redirects <= ROBOTS_REDIRECTS:
        if isinstance(url, InvalidUrl):
            return NO_FILE  # RFC 9309, 2.3.1.3: unavailable, so everything is allowed
        is_own = url.origin == origin
        there = policy if is_own else state.policies.of(url.domain)
        refused = yield from _refused(request, url, headers, there, state)
        if refused is not None:
            return refused
        is_guest = not is_own and world.is_foreign(request.url, url)
        ticket = yield from _ticket(request.url, url, there, state, is_own=is_own, is_guest=is_guest)
        if isinstance(ticket, Found | Refusal | Again):
            return ticket
        # The claim must last until the reply, but expire soon if this process dies.
        if world.now() - claimed_at > (policy.robots_lease - policy.robots_timeout) / 2:
            claimed_at = world.now()
            held: Known | Claimed | Busy = yield Hold(origin, policy.robots_ttl, policy.robots_lease)
            if not isinstance(held, Claimed):
                yield PutBack(ticket)
                return held
        asked = Request(url, "GET", headers if is_own else _agent_only(headers))
        timeout, left = state.time_for(there.robots_timeout)
        reply: Reply | None = yield Send(asked, there, ticket, timeout, MOST + 1, cut=True, left=left)
        if reply is None:
            continue
        state.robots_requests += is_sent(reply)
        has_run_out = state.is_cut_off(reply)
        yield Settle(ticket, state.outcome(reply, robots=True, guest=is_guest))
        if has_run_out:
            return Refusal(Reason.DEADLINE, messages.late(request.url, None))
        found = _meant(reply, url, is_first=url is first)
        if isinstance(found, Found | Failure):
            return found
        url, redirects = found, redirects + 1
    return NO_FILE  # RFC 9309, 2.3.1.2: after five redirects it is unavailable


def _agent_only(headers: Headers) -> Headers:
    """Return the User-Agent field alone."""
    return Headers(each for each in headers.fields if each[0].lower() == "user-agent")


def _refused(
    request: Request, url: Url, headers: Headers, there: Policy, state: FetchState
) -> Flow[Found | Refusal | None]:
    """Return why a robots.txt may not be requested, by the settings or the rules of another host; else None."""
    if url.origin == request.url.origin:
        return Refusal(Reason.DOMAIN_DENIED, messages.denied(request.url)) if there.denied else None
    why = None
    if there.denied or there.refuses_path(url.target):
        why = "the settings deny it"
    elif not there.allow_private:
        why = state.world.refused_address(url)  # the rule for pages, which a proxy could not apply (F19)
    if why is None and there.respect_robots and (rules := (yield from remembered(url.origin, state))) is not None:
        verdict = filters(rules, there, headers["user-agent"], url.text)
        if not verdict.allowed and verdict.line is not None:
            why = f"line {verdict.line} of its own robots.txt forbids it"
    # Unreachable, not absent: another process with other settings may be able to request it.
    return Found(None, f"{url.text}, where it redirects to, may not be requested: {why}") if why else None


def _ticket(
    page: Url, url: Url, there: Policy, state: FetchState, *, is_own: bool, is_guest: bool
) -> Flow[Admitted | Found | Refusal | Again]:
    """Wait for admission of a request for the robots.txt of a page, which is at `url`.

    `Again`: the settings have changed meanwhile. A refusal names the page.
    """
    enter, began = state.enter(url, there, robots=True, first=is_own, guest=is_guest), state.world.now()
    ticket: Admitted | No | Late = Late(0.0) if enter is None else (yield enter)
    state.count_wait(ticket, began)
    if isinstance(ticket, No | Late):
        if is_own or isinstance(ticket, Late):
            return not_admitted(page, there, ticket, url)
        return Found(None, f"{url.text}, where it redirects to, may not be requested now")
    if ticket.waited and state.has_another(url, there):
        yield PutBack(ticket)
        return Again()
    return ticket


def _meant(reply: Reply, url: Url, *, is_first: bool) -> Found | Failure | Url | InvalidUrl:
    """Return the meaning of a reply: a file, no file, an unreachable file, a failure to report or a redirect target."""
    if isinstance(reply, Failure):
        if reply.ended_at_proxy:
            return reply
        if reply.reason in REFUSALS and (is_first or reply.reason in (Reason.CLOSED, Reason.DEADLINE)):
            return reply
        no_answer = reply.detail if is_first else ""
        return Found(None, f"{url.text} could not be fetched: {reply.detail}", reply.part, no_answer)
    if 200 <= reply.status < 300:
        return Found(whole_lines(reply.body, is_cut=not reply.is_whole))
    if reply.status == 429 or reply.status >= 500:
        return Found(None, f"{url.text} answered with status {reply.status}")
    target = redirect_target(url, reply)
    leads_nowhere = target is None or (isinstance(target, InvalidUrl) and not target.given)
    if leads_nowhere and reply.status < 400:
        # 304 without a condition, 3xx without Location: a server error, so the rules are undefined (RFC 9309, 2.3.1.4).
        # Unlike a 4xx it does not mean that the file is absent.
        return Found(None, f"{url.text} answered with status {reply.status} and no Location")
    return target or NO_FILE  # RFC 9309, 2.3.1.3

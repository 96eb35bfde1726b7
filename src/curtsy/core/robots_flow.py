"""The rules of an origin, as part of a fetch: remembered, or asked for as politely as a page (R5 to R8)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from curtsy.core import messages
from curtsy.core.admission import CrawlDelay, Late, No
from curtsy.core.effects import Admitted, Amend, Claim, Effect, Hold, Learn, PutBack, Release, Remember, Send, Settle
from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.fetch_state import (
    AGAIN,
    NOT_ADMITTED,
    UNHEARD,
    UNSENT,
    Again,
    FetchState,
    Refusal,
    agent_only,
    entrance,
    is_another,
    is_cut_off,
    not_admitted,
    own_headers,
    redirect_target,
    shorter,
)  # fmt: skip
from curtsy.core.message import Failure, Headers, InvalidUrl, Reply, Request, Url, parse_url
from curtsy.core.outcome import classify, is_sent
from curtsy.core.policy import Policy
from curtsy.core.robots_lines import whole_lines
from curtsy.core.rules import MOST, Busy, Claimed, Known, Rules, crawl_delay, filters

ROBOTS_REDIRECTS = 5
"""Redirects that are followed to a robots.txt (RFC 9309, 2.3.1.2)."""


def rules_for(
    request: Request, policy: Policy, state: FetchState
) -> Generator[Effect, Any, Rules | Refusal | Failure | Again]:
    """The rules of an origin: remembered, or by one polite request, which whoever else wants them waits for.

    `Again` comes back if they were wanted because of the settings, and these have changed.
    """
    url = request.url
    while True:
        claim = yield Claim(url.origin, state.patience(), policy.robots_ttl, policy.robots_lease)
        if isinstance(claim, Known):
            return claim.rules
        if isinstance(claim, Late):
            return Refusal(Reason.DEADLINE, messages.late(url, claim.needed), claim.needed)
        assert isinstance(claim, Claimed)
        found = yield from _robots_txt(request, policy, state)
        if isinstance(found, Refusal | Failure | Known | Busy | Again):
            yield Release(url.origin)
            if isinstance(found, Failure) and found.ended_at_proxy and claim.rules is not None and claim.rules.text:
                return claim.rules  # an earlier copy goes on being used (R6); nothing was learned of the site
            if isinstance(found, Again):
                was_wanted, state.policies = policy.respect_robots, state.world.policies
                policy = state.policies.of(url.domain)
                if was_wanted and not policy.respect_robots:
                    return AGAIN
            if isinstance(found, Busy | Again):
                continue
            return found.rules if isinstance(found, Known) else found
        if found.body is not None and claim.rules is not None and claim.rules.text:
            # What the file before asked for has ended; who goes on asking is told by `heed()` what this one does.
            yield Amend(policy.key_for(url.domain), policy, CrawlDelay(None, url.origin))
        rules: Rules = yield Learn(url.origin, policy, found.body, found.why, found.part)
        return rules


def heed(rules: Rules, agent: str, url: Url, policy: Policy, state: FetchState) -> Generator[Effect, Any, float]:
    """The seconds that the rules ask of an agent that has not heeded them yet (R8).

    The host's record is told, unless that is too long and nobody will ask: a host has one pace, and who asks it under
    another name shares that.
    """
    delay = crawl_delay(rules, agent) or 0.0
    if 0 < delay <= policy.max_crawl_delay:
        yield Amend(policy.key_for(url.domain), policy, CrawlDelay(delay, url.origin, joined=True))
    state.world.heeded(url.origin)[agent] = delay
    return delay


class Found(msgspec.Struct, frozen=True, gc=False):
    """What came of asking for robots.txt."""

    body: bytes | None
    """Empty if there is no such file; None if it could not be had."""

    why: str = ""
    """Why not, in words."""

    part: bytes = b""
    """What came of a body that broke off (C21)."""


NO_FILE = Found(b"")


def _robots_txt(
    request: Request, policy: Policy, state: FetchState
) -> Generator[Effect, Any, Found | Refusal | Failure | Known | Busy | Again]:
    """Fetch robots.txt.

    When not even this may be asked of the host, the page may not either: then the refusal comes back. `Known` and
    `Busy` come back if the wait was so long that somebody else has fetched it meanwhile, or is at it; `Again` if the
    settings have changed.
    """
    first = url = parse_url(request.url.origin + "/robots.txt")
    headers = own_headers(Headers(agent_only(request.headers)), request.url, state.policies)
    claimed_at = state.world.now()
    redirects = 0
    while redirects <= ROBOTS_REDIRECTS:
        if isinstance(url, InvalidUrl):
            return NO_FILE  # RFC 9309, 2.3.1.3: unavailable, so everything is allowed
        is_own = url.origin == request.url.origin
        there = policy if is_own else state.policies.of(url.domain)
        if there.denied and is_own:
            return Refusal(Reason.DOMAIN_DENIED, messages.denied(request.url))
        if not is_own and (why := (yield from _barred(url, headers, there, state))):
            # Not "there is none": another process with other settings may well request it.
            return Found(None, f"{url.text}, where it redirects to, is not to be asked for: {why}")
        is_guest = not is_own and state.world.is_foreign(request.url, url)
        way = entrance(url, there, state, robots=True, first=is_own, guest=is_guest)
        asked_at = state.world.now()
        ticket: Admitted | No | Late = way if isinstance(way, Late) else (yield way)
        if isinstance(ticket, NOT_ADMITTED):
            state.waited += state.world.now() - asked_at
            if is_own or isinstance(ticket, Late):
                return not_admitted(url, there, ticket)
            return Found(None, f"{url.text}, where it redirects to, may not be asked now")
        state.waited += ticket.waited
        if ticket.waited and is_another(state.world.policies, url, there):
            yield PutBack(ticket)
            return AGAIN
        # The claim must hold until the answer is there, and is to run out soon if this process dies meanwhile.
        if state.world.now() - claimed_at > (policy.robots_lease - policy.robots_timeout) / 2:
            claimed_at = state.world.now()
            held: Known | Claimed | Busy = yield Hold(request.url.origin, policy.robots_ttl, policy.robots_lease)
            if not isinstance(held, Claimed):
                yield PutBack(ticket)
                return held
        asked = Request(url, "GET", headers if is_own else Headers(agent_only(headers)))
        timeout = shorter(there.robots_timeout, state.left())
        reply = yield Send(asked, there, ticket, timeout, MOST + 1, cut=True, left=state.left())
        if reply is None:
            continue
        state.robots_requests += is_sent(reply)
        has_run_out = is_cut_off(reply, state)
        unheard = UNHEARD if is_sent(reply) else UNSENT
        is_foreign = state.is_foreign or is_guest
        outcome = classify(reply, state.world.epoch(), robots=True, foreign=is_foreign)
        yield Settle(ticket, unheard if has_run_out else outcome)
        if has_run_out:
            return Refusal(Reason.DEADLINE, messages.cut_off(request.url))
        found = _meant(reply, url, is_first=url is first)
        if isinstance(found, Found | Failure):
            return found
        url, redirects = found, redirects + 1
    return NO_FILE  # RFC 9309, 2.3.1.2: after five redirects it is unavailable


def _meant(reply: Reply, url: Url, *, is_first: bool) -> Found | Failure | Url | InvalidUrl:
    """What a reply means: a file, none, one that cannot be had, a failure that is to be told, or where to go on."""
    if isinstance(reply, Failure):
        if reply.ended_at_proxy:
            return reply
        if reply.reason in REFUSALS and (is_first or reply.reason in (Reason.CLOSED, Reason.DEADLINE)):
            return reply
        return Found(None, f"{url.text} could not be fetched: {reply.detail}", reply.part)
    if 200 <= reply.status < 300:
        return Found(whole_lines(reply.body, is_cut=not reply.is_whole))
    if reply.status == 429 or reply.status >= 500:
        return Found(None, f"{url.text} answered with status {reply.status}")
    target = redirect_target(url, reply)
    leads_nowhere = target is None or (isinstance(target, InvalidUrl) and not target.given)
    if leads_nowhere and reply.status < 400:
        # 304 without a condition, 3xx without Location: an error of the server, so the rules are undefined
        # (RFC 9309, 2.3.1.4). It does not say that there is no file, as a 4xx does.
        return Found(None, f"{url.text} answered with status {reply.status} and no Location")
    return target or NO_FILE  # RFC 9309, 2.3.1.3


def _barred(url: Url, headers: Headers, policy: Policy, state: FetchState) -> Generator[Effect, Any, str | None]:
    """Why another host is not to be asked for a robots.txt: by the settings, or by what is known of its own rules."""
    if policy.denied or policy.refuses_path(url.target):
        return "the settings deny it"
    if not policy.allow_private and (why := state.world.refused_address(url)):
        return why  # the rule for pages, which a proxy would not know (F19)
    if not policy.respect_robots:
        return None
    known = state.world.known_rules(url.origin)
    rules: Rules | None = (yield Remember(url.origin)) if known is None else known.rules
    if rules is None:
        return None
    verdict = filters(rules, policy, headers.get("user-agent") or state.policies.user_agent, url.text)
    return None if verdict.allowed or verdict.line is None else f"line {verdict.line} of its own robots.txt forbids it"


def judged(rules: Rules, agent: str, request: Request, policy: Policy, state: FetchState) -> Refusal | None:
    """The verdict of the rules, as a refusal that names the line, or None."""
    verdict = filters(rules, policy, agent, request.url.text)
    state.robots_line = verdict.line
    if verdict.allowed:
        return None
    if verdict.line is None:
        left = max(0.0, rules.valid_until - state.world.epoch())
        return Refusal(Reason.ROBOTS_UNREACHABLE, messages.disallowed(request.url, verdict, agent), left)
    return Refusal(Reason.ROBOTS_DISALLOWED, messages.disallowed(request.url, verdict, agent))

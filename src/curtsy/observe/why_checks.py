"""Checks that decide about a URL, from stored records. Pure functions without network access."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any, Literal

from curtsy.core.admission import admit
from curtsy.core.cache import Absent, Entry, Fresh, Stale, freshness
from curtsy.core.decision import Wait
from curtsy.core.fetch_state import own_headers
from curtsy.core.host import Host
from curtsy.core.message import SECOND, Headers, Now, Request, Url
from curtsy.core.messages import span
from curtsy.core.policy import Policy
from curtsy.core.rules import Rules, agent_rules, crawl_delay, filters
from curtsy.engine.host_view import HostView, pace_alone, view_of
from curtsy.observe.messages import as_one, because, budget_origins, pace, pace_origins
from curtsy.observe.messages import origin as where
from curtsy.settings import Settings
from curtsy.settings.keys import names

State = Literal["yes", "no", "wait", "unknown", "off"]
"""State of a check, shown as a mark."""


def plain_request(url: Url, settings: Settings) -> Request:
    """Return the request of a fetch without custom headers; it selects the cached variant."""
    return Request(url, headers=own_headers(Headers(), url, settings.policies))


@dataclass(frozen=True, slots=True)
class Known:
    """Stored records that concern a URL."""

    now: Now
    host: Host | None = None
    overall: Host | None = None
    """Record of the global rate."""

    rules: Rules | None = None
    kept: Entry | None = None
    trouble: str | None = None
    """Error of the store; the records are then unknown. None if the store was read."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a URL."""

    name: str
    state: State
    says: str
    origin: str = ""
    """Origin of its setting, or age of its data."""

    after: float | None = None
    """Seconds until the check stops blocking; None if it does not block, or the time is unknown."""

    facts: dict[str, Any] = field(default_factory=dict)


def checks_of(url: Url, settings: Settings, policy: Policy, known: Known) -> list[Check]:
    """Return all checks of a URL, in the order of a fetch."""
    view = view_of(url.domain, known.host, known.now, policy)
    checks = [_policy(url, settings, policy)]
    if (address := address_of(url, policy)) is not None:
        checks.append(address)
    checks.append(_cache(url, settings, known))
    if known.trouble is not None:
        return [*checks, Check("store", "no", known.trouble)]
    checks.append(_robots(url, settings, policy, known))
    checks += _by_hand(view)
    checks += [_breaker(view, settings, policy), _budget(view, settings, policy)]
    checks += _rest(known, policy)
    return [*checks, _pace(view, settings, policy, known), _global(settings, policy, known)]


def _policy(url: Url, settings: Settings, policy: Policy) -> Check:
    entry = settings.policies.entry(url.domain)
    facts = {"entry": entry, "category": policy.category, "preset": settings.preset, "denied": policy.denied}
    if policy.denied:
        return Check("policy", "no", f"{entry} is on the denylist", where(settings, url.domain, "denied"), facts=facts)
    if (pattern := policy.refuses_path(url.target)) is not None:
        origin = where(settings, url.domain, "deny_paths")
        return Check("policy", "no", f'deny_paths has "{pattern}"', origin, facts=facts)
    preset = "" if settings.preset == "gentle" else f", preset {settings.preset}"
    if entry is None:
        return Check("policy", "yes", f"the default policy{preset}", _default_origin(settings), facts=facts)
    kind = "" if policy.category == "default" else f" ({policy.category})"
    shared = ", shared by all hosts under it" if policy.key else ""
    return Check("policy", "yes", f"the entry {entry}{kind}{shared}{preset}", _entry_origin(url, settings), facts=facts)


def _default_origin(settings: Settings) -> str:
    """Return the first file or variable that changed the default policy; `built-in` without one."""
    origins = (where(settings, None, name) for name in names("policy") if name != "pause")
    ours = ("built-in", "preset", "command line")
    return next((origin for origin in origins if not origin.startswith(ours)), "built-in")


def _entry_origin(url: Url, settings: Settings) -> str:
    """Return the origin of an entry: that of its first key that differs from the default policy's."""
    for name in ("domain_category", *(name for name in names("policy") if name != "pause"), "shared"):
        origin = where(settings, url.domain, name)
        if origin != where(settings, None, name):
            return origin
    return "built-in"


def address_of(url: Url, policy: Policy) -> Check | None:
    """Check an IP address or localhost in the URL; return None for other names, which are not resolved here."""
    try:
        ipaddress.ip_address(url.host)
        from curtsy.http.address import refusal  # lazy: imports an HTTP library

        kind = refusal(url.host)
    except ValueError:
        if url.host != "localhost" and not url.host.endswith(".localhost"):
            return None
        kind = "loopback"
    if kind is None:
        return Check("address", "yes", f"{url.host} is a public address")
    if policy.allow_private:
        return Check("address", "yes", f"{url.host} is {kind}, and allow_private opens it")
    return Check("address", "no", f"{url.host} is {kind}: --allow-private opens it, for a site of your own")


def _cache(url: Url, settings: Settings, known: Known) -> Check:
    found = freshness_of(url, settings, known)
    age = None if known.kept is None else max(0.0, known.now.epoch / SECOND - known.kept.fetched_at)
    facts = {"mode": settings.cache_mode, "kept_ago": age}
    origin = where(settings, None, "cache_mode")
    if settings.cache_mode == "off":
        return Check("cache", "off", "pages are not kept", origin, facts=facts)
    if age is None:
        return Check("cache", "off", "no copy is kept", "", facts=facts)
    match found:
        case Fresh():
            return Check("cache", "yes", f"a copy from {span(age)} ago is fresh: nothing is asked", "", facts=facts)
        case Stale(validators=validators):
            asks = "asked about first" if validators else "to be fetched anew"
            return Check("cache", "off", f"a copy from {span(age)} ago, {asks}", "", facts=facts)
        case _:
            return Check("cache", "off", f"a copy from {span(age)} ago is of no use here", "", facts=facts)


def freshness_of(url: Url, settings: Settings, known: Known) -> Fresh | Stale | Absent:
    """Return the usability of the cached copy."""
    if settings.cache_mode == "off":
        return Absent()
    return freshness(known.kept, plain_request(url, settings), known.now.epoch / SECOND, settings.cache_mode)


def _robots(url: Url, settings: Settings, policy: Policy, known: Known) -> Check:
    if not policy.respect_robots:
        origin = where(settings, url.domain, "respect_robots")
        return Check("robots.txt", "off", "not asked for and not obeyed", origin, facts={"known": False})
    rules, second = known.rules, known.now.epoch / SECOND
    if rules is None or not rules.is_known:
        return Check("robots.txt", "unknown", "not known: it comes first", "never asked", facts={"known": False})
    verdict = filters(rules, policy, settings.user_agent, url.text)
    facts = {
        "known": True,
        "allowed": verdict.allowed,
        "line": verdict.line,
        "rule": verdict.rule,
        "group": verdict.group,
        "asked_ago": second - rules.checked_at,
        "valid_for": max(0.0, rules.valid_until - second),
        "crawl_delay": crawl_delay(rules, settings.user_agent),
        "sitemaps": list(agent_rules(rules.text, settings.user_agent).sitemaps) if rules.text else [],
        "failure": rules.why or None,
    }
    origin = f"asked {span(max(0.0, second - rules.checked_at))} ago"
    if verdict.line is not None:
        says = f'line {verdict.line}, "{verdict.rule}"'
    elif not rules.body:
        says = "the site has none: everything is allowed" if rules.body is not None else _not_had(rules, policy)
    else:
        says = verdict.reason
    if rules.valid_until <= second:
        says += "; it would be asked for again first"
    state: State = "no" if not verdict.allowed else "unknown" if unanswered(url, known) else "yes"
    return Check("robots.txt", state, says, origin, facts=facts)


def unanswered(url: Url, known: Known) -> str:
    """Return why the last robots.txt request got no response; empty if any response came then or since.

    An error status counts as a response.
    """
    rules, host = known.rules, known.host
    start = f"{url.origin}/robots.txt could not be fetched: "
    if rules is None or not rules.why.startswith(start):
        return ""
    sent_at = 0 if host is None or host.failures else host.sent_at + known.now.epoch - known.now.at
    return "" if sent_at > rules.checked_at * SECOND else rules.why.removeprefix(start)


def _not_had(rules: Rules, policy: Policy) -> str:
    says = "everything is allowed" if policy.robots_unreachable == "allow" else "nothing is allowed"
    return f"it could not be had ({rules.why}), so {says}"


def _by_hand(view: HostView) -> list[Check]:
    found = []
    if view.paused:
        left = "until it is resumed" if view.paused_left is None else f"for {span(view.paused_left)} more"
        says = f"paused {left} (curtsy resume {view.domain})"
        found.append(Check("by hand", "no", says, "curtsy pause", view.paused_left))
    if view.changed_limits:
        limits = ", ".join(
            f"{name} = {value:g}" if value is not None else f"{name} = none"
            for name, value in view.changed_limits.items()
        )
        found.append(Check("by hand", "yes", f"limits changed: {limits}"))
    return found


def _breaker(view: HostView, settings: Settings, policy: Policy) -> Check:
    origin = where(settings, view.domain, "breaker_cooldown")
    facts = {"breaker": view.breaker, "failures": view.failures, "trips": view.trips}
    if not policy.breaker:
        return Check("breaker", "off", "switched off", where(settings, view.domain, "breaker"), facts=facts)
    if view.breaker_left is not None:
        says = (
            f"open for {span(view.breaker_left)}: it failed, refused us, asked for a long rest, or was tripped by hand"
        )
        return Check("breaker", "no", says, origin, view.breaker_left, facts)
    if view.breaker == "half_open":
        return Check(
            "breaker", "yes", "half open: the next request tries whether the host is well", origin, facts=facts
        )
    failures = f", {view.failures} of {policy.breaker_failures} failures in a row" if view.failures else ""
    return Check("breaker", "yes", f"closed{failures}", origin, facts=facts)


def _budget(view: HostView, settings: Settings, policy: Policy) -> Check:
    limits = {"requests": policy.max_requests_per_day, "pages": policy.max_pages_per_day}
    spent = {"requests": view.requests_today, "pages": view.pages_today}
    facts = {
        "requests_today": view.requests_today,
        "max_requests_per_day": policy.max_requests_per_day,
        "pages_today": view.pages_today,
        "max_pages_per_day": policy.max_pages_per_day,
        "resets_in": view.budget_resets_in,
    }
    over = next((noun for noun, limit in limits.items() if limit and spent[noun] >= limit), None)
    origins = budget_origins(settings, view.domain, view.changed_limits)
    origin = as_one(origins) if over is None else origins[over]
    words = [f"{spent[noun]} of {limit} {noun}" if limit else f"{spent[noun]} {noun}" for noun, limit in limits.items()]
    says = ", ".join(words) + " today"
    if not any(limits.values()):
        return Check("budget", "off", f"{says}, no limit", origin, facts=facts)
    if over is None:
        return Check("budget", "yes", says, origin, facts=facts)
    return Check(
        "budget",
        "no",
        f"{says}; a new day begins in {span(view.budget_resets_in)}",
        origin,
        view.budget_resets_in,
        facts,
    )


def _rest(known: Known, policy: Policy) -> list[Check]:
    left = 0 if known.host is None else known.host.retry_after_until - known.now.at
    if left <= 0:
        return []
    seconds = left / SECOND
    is_refused = known.host is not None and known.host.told_at and known.host.closed_until(policy) > known.now.at
    says = f"the host rests for {span(seconds)} more: it said so, or it failed"
    return [Check("rest", "no" if is_refused else "wait", says, "", seconds)]


def _pace(view: HostView, settings: Settings, policy: Policy, known: Known) -> Check:
    facts = {
        "qps": policy.qps,
        "pause_min": policy.pause_min,
        "pause_max": policy.pause_max,
        "delay": policy.delay,
        "crawl_delay": view.crawl_delay,
        "adapted_delay": view.adapted_delay,
        "concurrency": policy.concurrency,
        "in_flight": view.in_flight,
        "last_asked_ago": view.last_asked_ago,
    }
    origin = as_one(pace_origins(settings, view.domain, policy))
    if view.crawl_delay is not None and view.crawl_delay > policy.max_crawl_delay:
        says = f"its Crawl-delay of {span(view.crawl_delay)} is above max_crawl_delay ({span(policy.max_crawl_delay)})"
        return Check("pace", "no", says, where(settings, view.domain, "max_crawl_delay"), facts=facts)
    if policy.concurrency is not None and view.in_flight >= policy.concurrency:
        noun = "request" if view.in_flight == 1 else "requests"
        says = f"{view.in_flight} {noun} to it under way, {policy.concurrency} at most"
        return Check("pace", "wait", says, where(settings, view.domain, "concurrency"), facts=facts)
    wait = pace_alone(known.host, known.now, policy)
    if wait is not None:
        says = f"free in {span(wait.seconds)}, after {because(wait.because, policy, known.host)}"
        return Check("pace", "wait", says, origin, wait.seconds, facts)
    asked = "never asked" if view.last_asked_ago is None else f"asked {span(view.last_asked_ago)} ago"
    return Check("pace", "yes", f"free ({pace(policy)}), {asked}", origin, facts=facts)


def _global(settings: Settings, policy: Policy, known: Known) -> Check:
    overall, origin = settings.policies.overall_for(policy), where(settings, None, "global_qps")
    facts = {"global_qps": overall.qps}
    if overall.qps is None:
        says = "no limit over all hosts together" if policy.global_rate else "this host is outside the global rate"
        return Check("global", "off", says, origin, facts=facts)
    rate = f"{overall.qps:g} requests a second over all hosts"
    decision = admit(known.overall, known.now, overall, page=False)[1]
    if isinstance(decision, Wait):
        return Check("global", "wait", f"free in {span(decision.seconds)}: {rate}", origin, decision.seconds, facts)
    return Check("global", "yes", f"free, {rate}", origin, facts=facts)

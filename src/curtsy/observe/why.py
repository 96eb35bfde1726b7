"""Explanation of whether a URL would be fetched now (`curtsy why`).

The verdict is that of a dry run of the fetch (`engine/dry_driver.py`). The checks show the state behind it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from curtsy.cache.keys import PageCache
from curtsy.core.admission import admit
from curtsy.core.amendment import CrawlDelay, amend
from curtsy.core.cache import Absent, Entry, Fresh, Stale, freshness
from curtsy.core.decision import Wait
from curtsy.core.effects import Claim, Recall
from curtsy.core.errors import Reason, StoreError
from curtsy.core.host import in_time
from curtsy.core.masking import mask_url
from curtsy.core.messages import because, opened_by, pace
from curtsy.core.policy import Policy
from curtsy.core.result import FetchResult
from curtsy.core.robots import Verdict as RobotsVerdict
from curtsy.core.rules import Claimed, Known, Rules, agent_rules, crawl_delay, filters
from curtsy.core.time import SECOND, span
from curtsy.core.url import Url
from curtsy.engine.dry_driver import DryRun, HostRecords, dry_run, read_records
from curtsy.engine.host_view import HostView, changed, pace_alone, view_of
from curtsy.observe.policy_view import as_one, budget_origins, pace_origins
from curtsy.observe.policy_view import origin as where
from curtsy.settings import Settings
from curtsy.settings.general import names
from curtsy.stores import AsyncStore
from curtsy.system.clock import SystemClock

Verdict = Literal["allowed", "cached", "refused", "unknown"]
State = Literal["yes", "no", "wait", "unknown", "off"]
"""State of a check, shown as a mark."""


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


@dataclass(frozen=True, slots=True)
class Explanation:
    """Verdict on a URL, with the checks behind it."""

    url: str
    domain: str
    user_agent: str
    verdict: Verdict
    reason: Reason | None
    message: str
    """The verdict in one or two sentences."""

    allowed_in: float | None
    """Seconds until the earliest fetch; None if it is refused for good, or unknown."""

    checks: tuple[Check, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values for JSON; a check's facts are merged into its fields."""
        checks = [
            {**_some(each, "name", "state", "says", "origin", "after"), "says": mask_url(each.says), **each.facts}
            for each in self.checks
        ]
        return {**_some(self, *self.__slots__), "checks": checks}


async def explain(url: Url, settings: Settings, store: AsyncStore, cache: PageCache | None) -> Explanation:
    """Return whether a URL would be fetched now, and the checks that decide. The store is only read.

    If the store cannot be read, a check says so.
    """
    try:
        return await assess(url, settings, await read_records(url, settings.policies, store), cache)
    except StoreError as error:
        return await assess(url, settings, HostRecords(SystemClock().now()), cache, str(error))


async def assess(
    url: Url, settings: Settings, records: HostRecords, cache: PageCache | None = None, trouble: str | None = None
) -> Explanation:
    """Return the explanation for known records. `trouble` is the error of a store that cannot be read."""
    mode = settings.cache_mode
    if mode == "off":
        dry = await dry_run(url, settings.policies, records, None, "normal")
    else:
        dry = await dry_run(url, settings.policies, records, cache, mode)
    case = _case(url, settings, records, dry)
    verdict, reason, message, allowed_in = _conclude(case, trouble)
    return Explanation(
        mask_url(url.text), url.domain, settings.user_agent, verdict, reason, mask_url(message), allowed_in,
        tuple(_checks(case, trouble)),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Case:
    """A URL and the state that several checks look at."""

    url: Url
    settings: Settings
    policy: Policy
    """Policy of the host, with the limits that a user changed."""

    records: HostRecords
    view: HostView
    dry: DryRun

    @property
    def second(self) -> float:
        """Epoch second of the records."""
        return self.records.now.epoch / SECOND

    @property
    def rules(self) -> Rules | None:
        """Rules of the origin, valid or not; None if they are unknown or not obeyed."""
        rules = self.records.rules
        return rules if self.policy.respect_robots and rules is not None and rules.is_known else None

    @property
    def claim(self) -> Known | Claimed | None:
        """Answer to the fetch's request for the rules: valid ones, or the task of fetching them; None without one."""
        return next((answer for effect, answer in self.dry.effects if isinstance(effect, Claim)), None)

    def where(self, key: str) -> str:
        """Return the origin of a setting of the host."""
        return where(self.settings, self.url.domain, key)

    def judge(self, rules: Rules) -> RobotsVerdict:
        """Return the verdict of rules on the URL."""
        return filters(rules, self.policy, self.settings.user_agent, self.url.text)


def _case(url: Url, settings: Settings, records: HostRecords, dry: DryRun) -> _Case:
    policy, host = settings.policies.of(url.domain), records.host
    rules = records.rules if policy.respect_robots else None
    if rules is not None and (delay := crawl_delay(rules, settings.user_agent)):
        # Another user agent may have fetched the rules: our Crawl-delay joins the record only with our first page.
        host = amend(host, records.now, policy, CrawlDelay(delay, url.origin, joined=True))
    if host is not None:
        host = in_time(host, records.now)
        policy = changed(policy, host)
    records = replace(records, host=host)
    return _Case(url, settings, policy, records, view_of(url.domain, host, records.now, policy), dry)


_Conclusion = tuple[Verdict, Reason | None, str, float | None]


def _conclude(case: _Case, trouble: str | None) -> _Conclusion:
    """Return verdict, reason, message and `allowed_in`."""
    end = case.dry.end
    if isinstance(end, FetchResult):
        if end.reason is not None:
            return "refused", end.reason, end.message, end.retry_after
        return "cached", None, "The cached copy would be used, without a request to the site.", 0.0
    if trouble is not None:
        return "unknown", None, "Unknown: the records of the host cannot be read.", None
    seconds = case.dry.seconds
    when = "now" if not seconds else f"in {span(seconds)}"
    rules = case.rules
    if rules is not None and _is_unanswered(case, rules):
        ago = span(max(0.0, case.second - rules.checked_at))
        text = f"{case.url.domain} gave no answer {ago} ago: {rules.no_answer}. It may be tried again {when}."
        return "unknown", None, text, None
    if not end.cut:
        after = f", after {_cause(case)}" if seconds else ""
        return "allowed", None, f"It may be fetched {when}{after}.", seconds
    least, most = _gap(case)
    between = span(least) if most - least < 0.05 else f"{least:g} to {most:g} s"
    later = f"the page {between} later" if most else "the page right after it"
    if rules is not None and case.judge(rules).allowed:
        text = f"It may be fetched: robots.txt would be requested again {when}, and {later}."
        return "allowed", None, text, seconds + least
    again, then = ("", "") if rules is None else (" again", " then")
    text = f"Unknown: robots.txt would be requested{again} {when}, and {later}, if it is{then} allowed."
    return "unknown", None, text, None


def _cause(case: _Case) -> str:
    """Return the cause of the wait before the page, in words."""
    token, view = _token_wait(case), case.view
    if token is not None and token.seconds > (view.next_in or 0.0):
        return f"the global rate of {case.settings.policies.overall.qps:g} requests a second"
    if view.waiting_for is None:
        return "another process, which requests its robots.txt"
    return because(view.waiting_for, case.policy, case.records.host)


def _gap(case: _Case) -> tuple[float, float]:
    """Return the minimum and maximum seconds between two requests to the host."""
    policy = case.policy
    rate = 0.0 if policy.qps is None or policy.burst > 1 else 1 / policy.qps
    fixed = max(rate, policy.delay, case.view.crawl_delay or 0.0)
    return max(fixed, policy.pause_min), max(fixed, policy.pause_max)


def _checks(case: _Case, trouble: str | None) -> list[Check]:
    """Return all checks of a URL, in the order of a fetch."""
    checks = [_policy(case), *_address(case), _cache(case)]
    if trouble is not None:
        return [*checks, Check("store", "no", trouble)]
    checks += [_robots(case), *_by_hand(case.view), _breaker(case), _budget(case), *_rest(case)]
    return [*checks, _pace(case), _global(case)]


def _some(source: object, *names: str) -> dict[str, Any]:
    """Return some attributes by name."""
    return {name: getattr(source, name) for name in names}


def _policy(case: _Case) -> Check:
    settings, policy = case.settings, case.policy
    entry = settings.policies.entry(case.url.domain)
    facts = {"entry": entry, "category": policy.domain_category, "preset": settings.preset, "denied": policy.denied}
    if policy.denied:
        return Check("policy", "no", f"{entry} is on the denylist", case.where("denied"), facts=facts)
    if (pattern := policy.refuses_path(case.url.target)) is not None:
        return Check("policy", "no", f'deny_paths has "{pattern}"', case.where("deny_paths"), facts=facts)
    preset = "" if settings.preset == "gentle" else f", preset {settings.preset}"
    kind = "" if policy.domain_category == "default" else f" ({policy.domain_category})"
    shared = ", shared by all hosts under it" if policy.key else ""
    name = "the default policy" if entry is None else f"the entry {entry}{kind}{shared}"
    return Check("policy", "yes", name + preset, _policy_origin(case, entry), facts=facts)


def _policy_origin(case: _Case, entry: str | None) -> str:
    """Return the first file or variable that sets a key of the entry or, without one, of the default policy."""
    keys = ("domain_category", *(name for name in names("policy") if name != "pause"), "shared")
    settings, ours = case.settings, ("built-in", "preset", "command line")
    for key in keys:
        origin, default = case.where(key), where(settings, None, key)
        if origin != default if entry is not None else not origin.startswith(ours):
            return origin
    return "built-in"


def _address(case: _Case) -> list[Check]:
    """Check an IP address or localhost in the URL. Other names are not resolved here."""
    if (kind := case.dry.private) is None:
        return []
    if case.policy.allow_private:
        return [Check("address", "yes", f"{kind}: allow_private permits it")]
    return [Check("address", "no", f"{kind}: --allow-private permits it, for a site of your own")]


def _cache(case: _Case) -> Check:
    mode = case.settings.cache_mode
    found = next(((effect.request, answer) for effect, answer in case.dry.effects if isinstance(effect, Recall)), None)
    entry: Entry | None = None if found is None or found[1] is None else found[1][0]
    age = None if entry is None else max(0.0, case.second - entry.fetched_at)
    state: State = "off"
    origin = ""
    if mode == "off":
        says, origin = "pages are not cached", where(case.settings, None, "cache_mode")
    elif found is None or age is None:
        says = "no cached copy" if found is not None else "not looked up"  # the settings refuse the URL
    else:
        match freshness(entry, found[0], case.second, mode):
            case Fresh():
                state, says = "yes", f"a copy from {span(age)} ago is fresh: no request is needed"
            case Stale(validators=validators):
                says = f"a copy from {span(age)} ago, to be {'revalidated' if validators else 'fetched again'}"
            case Absent():
                says = f"a copy from {span(age)} ago cannot be used here"
    return Check("cache", state, says, origin, facts={"mode": mode, "kept_ago": age})


def _robots(case: _Case) -> Check:
    if not case.policy.respect_robots:
        origin = case.where("respect_robots")
        return Check("robots.txt", "off", "not requested and not obeyed", origin, facts={"known": False})
    rules, agent = case.rules, case.settings.user_agent
    if rules is None:
        says = "unknown: it would be requested first" if case.claim else "unknown"
        return Check("robots.txt", "unknown", says, "never requested", facts={"known": False})
    verdict, ago = case.judge(rules), case.second - rules.checked_at
    claim = case.claim
    valid_for = claim.seconds if isinstance(claim, Known) else 0.0 if claim else rules.valid_until - case.second
    facts = {
        "known": True,
        **_some(verdict, "allowed", "line", "rule", "group"),
        "asked_ago": ago,
        "valid_for": max(0.0, valid_for),
        "crawl_delay": crawl_delay(rules, agent),
        "sitemaps": list(agent_rules(rules.text, agent).sitemaps) if rules.text else [],
        "failure": rules.why or None,
    }
    if verdict.line is not None:
        says = f'line {verdict.line}, "{verdict.rule}"'
    elif rules.body:
        says = verdict.reason
    elif rules.body is not None:
        says = "the site has none: everything is allowed"
    else:
        what = "everything" if case.policy.robots_unreachable == "allow" else "nothing"
        says = f"unreachable ({rules.why}), so {what} is allowed"
    if valid_for <= 0:
        says += "; it would be requested again first"
    state: State = "no" if not verdict.allowed else "unknown" if _is_unanswered(case, rules) else "yes"
    return Check("robots.txt", state, says, f"requested {span(max(0.0, ago))} ago", facts=facts)


def _is_unanswered(case: _Case, rules: Rules) -> bool:
    """Return whether the last robots.txt request got no response, and no response came since."""
    host, now = case.records.host, case.records.now
    sent_at = 0 if host is None or host.failures else host.sent_at + now.epoch - now.at
    return bool(rules.no_answer) and sent_at <= rules.checked_at * SECOND


def _by_hand(view: HostView) -> list[Check]:
    found = []
    if view.paused:
        left = "until it is resumed" if view.paused_left is None else f"for {span(view.paused_left)} more"
        says = f"paused {left} (curtsy resume {view.domain})"
        found.append(Check("by hand", "no", says, "curtsy pause", view.paused_left))
    if view.changed_limits:
        limits = [
            f"{name} = {'none' if value is None else f'{value:g}'}" for name, value in view.changed_limits.items()
        ]
        found.append(Check("by hand", "yes", f"limits changed: {', '.join(limits)}"))
    return found


def _breaker(case: _Case) -> Check:
    view, policy, origin = case.view, case.policy, case.where("breaker_cooldown")
    facts = _some(view, "breaker", "failures", "trips")
    if not policy.breaker:
        return Check("breaker", "off", "switched off", case.where("breaker"), facts=facts)
    if view.breaker_left is not None:
        says = f"open for {span(view.breaker_left)}: {opened_by(view.opened_by or '')}"
        return Check("breaker", "no", says, origin, view.breaker_left, facts)
    if view.breaker == "half_open":
        return Check("breaker", "yes", "half open: the next request tests the host", origin, facts=facts)
    failures = f", {view.failures} of {policy.breaker_failures} failures in a row" if view.failures else ""
    return Check("breaker", "yes", f"closed{failures}", origin, facts=facts)


def _budget(case: _Case) -> Check:
    view = case.view
    limits = {"requests": view.max_requests_per_day, "pages": view.max_pages_per_day}
    spent = {"requests": view.requests_today, "pages": view.pages_today}
    facts = _some(view, "requests_today", "max_requests_per_day", "pages_today", "max_pages_per_day")
    facts["resets_in"] = view.budget_resets_in
    over = next((noun for noun, limit in limits.items() if limit and spent[noun] >= limit), None)
    origins = budget_origins(case.settings, view.domain, view.changed_limits)
    origin = as_one(origins) if over is None else origins[over]
    words = [f"{spent[noun]} of {limit} {noun}" if limit else f"{spent[noun]} {noun}" for noun, limit in limits.items()]
    says = ", ".join(words) + " today"
    if not any(limits.values()):
        return Check("budget", "off", f"{says}, no limit", origin, facts=facts)
    if over is None:
        return Check("budget", "yes", says, origin, facts=facts)
    says += f"; a new day begins in {span(view.budget_resets_in)}"
    return Check("budget", "no", says, origin, view.budget_resets_in, facts)


def _rest(case: _Case) -> list[Check]:
    host, now = case.records.host, case.records.now
    if host is None or host.retry_after_until <= now.at:
        return []
    seconds = (host.retry_after_until - now.at) / SECOND
    is_refused = host.told_at and host.closed_until(case.policy) > now.at
    says = f"the host rests for {span(seconds)} more, after a Retry-After or a failure"
    return [Check("rest", "no" if is_refused else "wait", says, "", seconds)]


def _pace(case: _Case) -> Check:
    view, policy, host = case.view, case.policy, case.records.host
    facts = _some(policy, "qps", "pause_min", "pause_max", "delay", "concurrency")
    facts |= _some(view, "crawl_delay", "adapted_delay", "in_flight", "last_asked_ago")
    origin = as_one(pace_origins(case.settings, view.domain, policy))
    if view.crawl_delay is not None and view.crawl_delay > policy.max_crawl_delay:
        says = f"its Crawl-delay of {span(view.crawl_delay)} is above max_crawl_delay ({span(policy.max_crawl_delay)})"
        return Check("pace", "no", says, case.where("max_crawl_delay"), facts=facts)
    if policy.concurrency is not None and view.in_flight >= policy.concurrency:
        noun = "request" if view.in_flight == 1 else "requests"
        says = f"{view.in_flight} {noun} in flight, {policy.concurrency} at most"
        return Check("pace", "wait", says, case.where("concurrency"), facts=facts)
    wait = pace_alone(host, case.records.now, policy)
    if wait is not None:
        says = f"free in {span(wait.seconds)}, after {because(wait.because, policy, host)}"
        return Check("pace", "wait", says, origin, wait.seconds, facts)
    last = "never requested" if view.last_asked_ago is None else f"last request {span(view.last_asked_ago)} ago"
    return Check("pace", "yes", f"free ({pace(policy)}), {last}", origin, facts=facts)


def _token_wait(case: _Case) -> Wait | None:
    """Return the wait for the global rate alone; None without one."""
    overall = case.settings.policies.overall_for(case.policy)
    if overall.qps is None:
        return None
    decision = admit(case.records.overall, case.records.now, overall, page=False)[1]
    return decision if isinstance(decision, Wait) else None


def _global(case: _Case) -> Check:
    qps, origin = case.settings.policies.overall_for(case.policy).qps, where(case.settings, None, "global_qps")
    facts = {"global_qps": qps}
    if qps is None:
        says = "no limit over all hosts together" if case.policy.global_rate else "this host is outside the global rate"
        return Check("global", "off", says, origin, facts=facts)
    rate, wait = f"{qps:g} requests a second over all hosts", _token_wait(case)
    if wait is not None:
        return Check("global", "wait", f"free in {span(wait.seconds)}: {rate}", origin, wait.seconds, facts)
    return Check("global", "yes", f"free, {rate}", origin, facts=facts)

"""Verdict on a URL, without network access.

It predicts the path of a request (`core/flow.py`) from stored records. The functions are pure, except `recall`, which
reads the store.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from curtsy.core import messages
from curtsy.core.admission import admit
from curtsy.core.amendment import CrawlDelay, amend
from curtsy.core.cache import Absent, Entry, Fresh
from curtsy.core.decision import No, Wait
from curtsy.core.errors import Reason
from curtsy.core.host import in_time
from curtsy.core.message import SECOND, Failure, Url
from curtsy.core.messages import span
from curtsy.core.policy import Policy
from curtsy.core.rules import crawl_delay, filters
from curtsy.core.secrets import mask_url
from curtsy.engine.host_view import changed
from curtsy.observe.messages import because
from curtsy.observe.why_checks import Check, Known, address_of, checks_of, freshness_of, unanswered
from curtsy.settings import Settings
from curtsy.stores import Store

Verdict = Literal["allowed", "cached", "refused", "unknown"]


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
        plain = {name: getattr(self, name) for name in self.__slots__ if name != "checks"}
        checks = [
            {"name": each.name, "state": each.state, "says": mask_url(each.says), "origin": each.origin,
             "after": each.after}
            | each.facts
            for each in self.checks
        ]  # fmt: skip
        return plain | {"checks": checks}


def recall(url: Url, settings: Settings, store: Store, kept: Entry | None) -> Known:
    """Read the stored records that concern a URL; `kept` is its cache entry. Raises StoreError."""
    policy = settings.policies.of(url.domain)
    host, overall = store.read(policy.key_for(url.domain)), store.read("global")
    rules, now = store.read(f"rules:{url.origin}"), store.now()
    if host is not None and rules is not None and policy.respect_robots:
        # Another user agent may have fetched the rules: our Crawl-delay joins the record only with our first page.
        delay = CrawlDelay(crawl_delay(rules, settings.user_agent), url.origin, joined=True)
        host = amend(host, now, policy, delay)
    return Known(now, host, overall, rules, kept)


def assess(url: Url, settings: Settings, known: Known) -> Explanation:
    """Return whether a URL would be fetched now, and the checks that decide."""
    policy = settings.policies.of(url.domain)
    if known.host is not None:
        host = in_time(known.host, known.now)
        known, policy = replace(known, host=host), changed(policy, host)
    checks = checks_of(url, settings, policy, known)
    verdict, reason, message, allowed_in = _conclude(url, settings, policy, known)
    return Explanation(
        mask_url(url.text),
        url.domain,
        settings.user_agent,
        verdict,
        reason,
        mask_url(message),
        allowed_in,
        tuple(checks),
    )


_Conclusion = tuple[Verdict, Reason | None, str, float | None]


def _conclude(url: Url, settings: Settings, policy: Policy, known: Known) -> _Conclusion:
    """Return the first refusal; without one, the longest wait."""
    if policy.denied:
        return "refused", Reason.DOMAIN_DENIED, messages.denied(url), None
    if (pattern := policy.refuses_path(url.target)) is not None:
        return "refused", Reason.PATH_DENIED, messages.path_denied(url, pattern), None
    found, rules = freshness_of(url, settings, known), known.rules
    if isinstance(found, Absent) and not found.may_ask:
        return "refused", Reason.NOT_IN_CACHE, messages.not_kept(url), None
    if policy.respect_robots and rules is not None and rules.is_known:
        verdict = filters(rules, policy, settings.user_agent, url.text)
        if not verdict.allowed:
            reason = Reason.ROBOTS_DISALLOWED if verdict.line is not None else Reason.ROBOTS_UNREACHABLE
            return "refused", reason, messages.disallowed(url, verdict, settings.user_agent), None
    if isinstance(found, Fresh):
        return "cached", None, "It would be answered from the cache, and the site not be asked at all.", 0.0
    if (address := address_of(url, policy)) is not None and address.state == "no":
        failure = Failure(Reason.ADDRESS_REFUSED, f"{url.host} is no public address")
        return "refused", Reason.ADDRESS_REFUSED, messages.failed(url, failure, 1), None
    if known.trouble is not None:
        return "unknown", None, "What is known of the host cannot be read, so nobody can say.", None
    return _admitted(url, settings, policy, known)


def _admitted(url: Url, settings: Settings, policy: Policy, known: Known) -> _Conclusion:
    """Return the admission of the page, or of robots.txt if it must be fetched first."""
    rules, second = known.rules, known.now.epoch / SECOND
    is_known = not policy.respect_robots or (rules is not None and rules.is_known)
    rules_first = policy.respect_robots and (rules is None or not rules.is_known or rules.valid_until <= second)
    decision = admit(known.host, known.now, policy)[1]
    if isinstance(decision, No):
        return "refused", decision.reason, messages.refused(url, policy, decision), decision.retry_after
    seconds, words = 0.0, ""
    if isinstance(decision, Wait):
        seconds, words = decision.seconds, because(decision.because, policy, known.host)
    overall = settings.policies.overall_for(policy)
    if overall.qps is not None:
        token = admit(known.overall, known.now, overall, page=False)[1]
        if isinstance(token, Wait) and token.seconds > seconds:
            seconds, words = token.seconds, f"the global rate of {overall.qps:g} requests a second"
    when = "now" if not seconds else f"in {span(seconds)}"
    if policy.respect_robots and rules is not None and (why := unanswered(url, known)):
        ago = span(max(0.0, second - rules.checked_at))
        text = f"No answer came from {url.domain} {ago} ago: {why}. It may be tried again {when}."
        return "unknown", None, text, None
    if not rules_first:
        if not seconds:
            return "allowed", None, "It may be fetched now.", 0.0
        return "allowed", None, f"It may be fetched in {span(seconds)}, after {words}.", seconds
    least, most = _gap(policy, known)
    between = span(least) if most - least < 0.05 else f"{least:g} to {most:g} s"
    later = f"and the page {between} later" if most else "and the page right after it"
    if not is_known:
        text = f"Nobody knows yet: robots.txt would be asked for {when}, {later}, if it is allowed."
        return "unknown", None, text, None
    return "allowed", None, f"It may be fetched: robots.txt would be asked for again {when}, {later}.", seconds + least


def _gap(policy: Policy, known: Known) -> tuple[float, float]:
    """Return the minimum and maximum seconds between two requests to the host."""
    crawl = 0.0 if known.host is None else known.host.crawl_delay / SECOND
    fixed = max(0.0 if policy.qps is None or policy.burst > 1 else 1 / policy.qps, policy.delay, crawl)
    return max(fixed, policy.pause_min), max(fixed, policy.pause_max)

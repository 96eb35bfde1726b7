"""Messages for users about a fetch: results, refusals and waits, with reason and remedy."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from curtsy.core.crawl_messages import describe
from curtsy.core.errors import Reason
from curtsy.core.masking import mask_url
from curtsy.core.time import SECOND, span

if TYPE_CHECKING:
    from curtsy.core.decision import Late, No
    from curtsy.core.host import Host
    from curtsy.core.policy import Policy
    from curtsy.core.request import Failure
    from curtsy.core.robots import Verdict
    from curtsy.core.url import InvalidUrl, Url

_BEFORE_HOST = re.compile(r"(?<=://)[^/?#]*@")
_BLANK = frozenset(" \"'<>\t\r\n")
"""Characters that end a URL in a text, but can be part of a password here."""


def given(url: InvalidUrl) -> str:
    """Return the text given as a URL, without a possible password before an @ (F62)."""
    text = _BEFORE_HOST.sub("***@", url.given)
    is_odd = "://" not in text or not _BLANK.isdisjoint(text)
    if "@" in text and is_odd and "***@" not in text:
        text = "…" + text[text.rindex("@") :]
    return mask_url(text)


def invalid(url: InvalidUrl) -> str:
    """Describe an invalid URL."""
    return f"not fetching {given(url)!r}: {url.why}. Give an http or https URL."


def too_new(url: Url, why: str) -> str:
    """Describe a request that depends on a record of a later version."""
    return f"not requesting {url.domain}: {why}"


def refused(url: Url, policy: Policy, no: No) -> str:
    """Describe a request that was not admitted."""
    domain = policy.key or url.domain
    wait = f" The next request is allowed in {span(no.retry_after)}." if no.retry_after is not None else ""
    match no.reason:
        case Reason.DOMAIN_BUDGET_EXCEEDED:
            limit = f"max_{no.limit}_per_day"
            count = policy.max_pages_per_day if no.limit == "pages" else policy.max_requests_per_day
            when = f"for {policy.calendar.date_of(no.day)}" if no.day else "within 24 h (the system clock was changed)"
            return f"{domain} has used its {count} {no.limit} {when}.{wait} Raise {limit} only if the site agreed."
        case Reason.CIRCUIT_OPEN if not policy.breaker:
            return f"not requesting {domain}: the site sent a Retry-After longer than obey_retry_after.{wait}"
        case Reason.CIRCUIT_OPEN:
            return (
                f"not requesting {domain}: its circuit breaker is open, because {opened_by(no.opened_by)}."
                f"{wait} Wait until then, or reset the breaker if you know that the host works."
            )
        case Reason.DOMAIN_DENIED:
            return denied(url)
        case Reason.PAUSED:
            return f"not requesting {domain}: a user paused it.{wait} Resume it to send requests again."
        case Reason.STORE_UNREACHABLE:
            return (
                f"not requesting {domain}: the store with its limits does not answer. Try again later, check the "
                "store, or set outage to alone to continue with limits of this process."
            )
        case Reason.CRAWL_DELAY_TOO_LONG:
            return (
                f"not requesting {domain}: its robots.txt sets a Crawl-delay above max_crawl_delay "
                f"({policy.max_crawl_delay:g} s). Raise max_crawl_delay to wait that long, or leave the site out."
            )
        case _:
            return closed(url.text)


_OPENED_BY = {
    "block": "it denied access",
    "failures": "its requests failed",
    "rest": "it requested a long rest",
    "trial": "the request that tested it failed",
    "user": "a user opened it",
}


def opened_by(cause: str) -> str:
    """Describe what opened a breaker. `cause` is that of the host's record; it is empty in records of version 0.1."""
    name, _, detail = cause.partition(":")
    words = _OPENED_BY.get(name, "it failed, denied access or requested a long rest, or a user opened it")
    return f"{words} ({detail if detail.isdecimal() else describe(detail).what})" if detail else words


def late(url: Url, answer: Late | None, robots: Url | None = None) -> str:
    """Describe a deadline that cannot be met; None: one that passed before robots.txt was fetched.

    `robots` is the robots.txt whose request would be too late; None if it is that of the page.
    """
    if answer is not None and answer.because == "outage":
        return (
            f"not fetching {url.text} in time: the store with the limits of {url.domain} did not answer before the "
            "deadline. Check the store, allow more time, or try again later."
        )
    why = "the deadline passed before its robots.txt was fetched"
    if answer is not None:
        why = f"its request is allowed in {span(answer.needed)} at the earliest, after the deadline"
        if answer.because == "in_flight":
            why = f"{slot_held(answer.needed)}, after the deadline"
        if robots is not None:
            why = f"{robots.text} is fetched first, and {why}"
    return f"not fetching {url.text} in time: {why}. Allow more time, or try again later."


SLOT_HELD = "another request to it is in flight, or was when its process was killed"
"""Why a host waits for a slot."""


def slot_held(seconds: float) -> str:
    """Describe the wait for a slot of a host. `seconds` is the time until it is free at the latest."""
    return f"{SLOT_HELD}; its slot is free in {span(seconds)} at the latest"


def closed(url: str) -> str:
    """Describe a fetch that was running or waiting when its client was closed."""
    return f"not fetching {url}: the client was closed. Close it later, or use another client."


def disallowed(url: Url, verdict: Verdict, agent: str) -> str:
    """Describe a page that robots.txt forbids to a product token."""
    if verdict.line is None:
        return f"not fetching {url.text}: {verdict.reason}. Try again later."
    return (
        f'not fetching {url.text}: robots.txt line {verdict.line} says "{verdict.rule}" to {agent}. '
        "Ask the site's owner, or leave this URL out."
    )


def denied(url: Url) -> str:
    """Describe a domain on the denylist."""
    return f"not fetching {url.text}: {url.domain} is on the denylist. Remove it from the list to fetch it."


def path_denied(url: Url, pattern: str) -> str:
    """Describe a path that the settings refuse."""
    return f'not fetching {url.text}: deny_paths has "{pattern}" for {url.domain}. Change the settings to fetch it.'


def not_kept(url: Url) -> str:
    """Describe a cache miss in offline mode."""
    return (
        f"{url.text} is not in the cache, and the cache is offline. "
        "Fetch it once online; if it redirects, use the URL that it redirects to."
    )


def tries(attempts: int) -> str:
    """Return ` after 3 tries`; empty for one attempt."""
    return f" after {attempts} tries" if attempts > 1 else ""


def failed(url: Url, failure: Failure, attempts: int) -> str:
    """Describe a request without a usable reply."""
    advice = _ADVICE.get(failure.reason, "Try again later.") if failure.advice is None else failure.advice
    if failure.reason is Reason.TIMEOUT and failure.advice is None and failure.sent_ago is not None:
        advice = BODY_TIMEOUT if failure.status is not None else ANSWER_TIMEOUT
    if failure.detail == WANTS_COOKIE:
        advice = "Keep cookies (cookies=True, --cookies), or leave it out."
    if failure.is_answer:
        advice = "Write http:// instead of https://."
    return f"{url.text} could not be fetched{tries(attempts)}: {failure.detail.rstrip('.')}. {advice}".rstrip()


TOO_LARGE = "Raise max_body, or save it as a file: curtsy download --max-size, or download(max_size=…)."
"""Advice about a body that is too large."""

BODY_TIMEOUT = "Raise timeout (--timeout) for a slow site, or save a large file with curtsy download or download()."
"""Advice about a body that takes longer than `timeout`."""

ANSWER_TIMEOUT = "Try again later, or raise timeout (--timeout)."
"""Advice about a reply that does not begin within `timeout`."""

WANTS_COOKIE = "it sets a cookie, and redirects in a circle until the cookie is returned; cookies are not kept"
"""Detail of a failure at a site that requires cookies."""

_ADVICE = {
    Reason.ADDRESS_REFUSED: "Set allow_private (--allow-private) if this is a site of your own.",
    Reason.BAD_REDIRECT: "Tell the site's owner, or leave it out.",
    Reason.CLOSED: "Close the client later, or use another client.",
    Reason.DNS_ERROR: "Check the name.",
    Reason.INVALID_URL: "Correct the request.",
    Reason.NOT_RENDERED: "Fetch it without render (--render).",
    Reason.NOT_WRITTEN: "Free some space, or choose another path.",
    Reason.TLS_ERROR: "If the site is yours, pass the CA of its certificate as verify.",
    Reason.TOO_LARGE: TOO_LARGE,
    Reason.TOO_MANY_REDIRECTS: "Raise max_redirects, or leave it out.",
    Reason.TOO_SLOW: "Lower min_speed, or try again later.",
}


def redirected(url: Url, status: int) -> str:
    """Describe a redirect that was not followed."""
    return f"{url.text} redirects ({status}), and redirects are not followed here. Fetch the URL in its Location."


def bad_status(url: Url, status: int, retry_after: float | None, attempts: int, asked_for: float | None = None) -> str:
    """Describe an error status. `asked_for`: seconds of Retry-After, if above `max_retry_after`."""
    if status in (404, 410):
        return f"{url.text} does not exist ({status}). Correct the link, or leave it out."
    if status in (401, 403):
        wanted = "" if asked_for is None else f" Its Retry-After of {span(asked_for)} is above max_retry_after."
        return f"{url.text}: access denied ({status}). Ask the site's owner for access, or leave it out.{wanted}"
    if status == 429 or status >= 500:
        advice = "Try again later." if retry_after is None else f"Try again in {span(retry_after)}."
        if asked_for is not None:
            advice = f"{advice[:-1]}; its Retry-After of {span(asked_for)} is above max_retry_after."
    else:
        advice = "Correct the request, or leave it out."
    return f"{url.text} answered with status {status}{tries(attempts)}. {advice}"


def because(name: str, policy: Policy, host: Host | None = None) -> str:
    """Describe the cause of a wait; the names are those of `Wait.because`."""
    delay = "" if host is None else f" of {host.crawl_delay / SECOND:g} s"
    causes = {
        "rate": f"the rate of {policy.qps or 0:g} requests per second",
        "pause": f"the random pause of {policy.pause_min:g} to {policy.pause_max:g} s between two requests",
        "delay": f"the delay of {policy.delay:g} s between two requests",
        "crawl_delay": f"the Crawl-delay{delay} of its robots.txt",
        "adapted": "its pace, slowed down after a 429",
        "slow_site": "its pace, slowed down because it answers slowly",
        "rest": "its Retry-After, or the delay after a failure",
        "in_flight": "another request to it, which is in flight",
        "trial": "the trial request that tests whether it works again",
        "outage": "the store of the limits, which does not answer",
    }
    return causes.get(name, name)


def pace(policy: Policy) -> str:
    """Return the maximum request rate to a host as a short text."""
    parts = []
    if policy.qps is not None:
        parts.append(f"{policy.qps:g}/s")
    if policy.pause_max:
        parts.append(f"pause {policy.pause_min:g}–{policy.pause_max:g} s")
    if policy.delay:
        parts.append(f"delay {policy.delay:g} s")
    return ", ".join(parts) or "no limit"

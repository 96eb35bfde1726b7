"""Messages for users: the refused or failed action, its reason and a remedy."""

from __future__ import annotations

import re

from curtsy.core.decision import No
from curtsy.core.errors import Reason
from curtsy.core.message import Failure, InvalidUrl, Url
from curtsy.core.policy import Policy
from curtsy.core.robots import Verdict, product_token
from curtsy.core.secrets import mask_url


def span(seconds: float) -> str:
    """Format a duration for people: `12 s`, `4 min 30 s`, `3 h 12 min`, `2 days 3 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    minutes, rest = divmod(total, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest else "")
    hours, minutes = divmod(round(total / 60), 60)
    if hours < 24:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    days, hours = divmod(hours, 24)
    return f"{days} day{'s' if days > 1 else ''}" + (f" {hours} h" if hours else "")


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


def refused(url: Url, policy: Policy, no: No) -> str:
    """Describe a request that was not admitted."""
    domain = policy.key or url.domain
    wait = f" The next can go in {span(no.retry_after)}." if no.retry_after is not None else ""
    match no.reason:
        case Reason.DOMAIN_BUDGET_EXCEEDED:
            limit = f"max_{no.limit}_per_day"
            count = policy.max_pages_per_day if no.limit == "pages" else policy.max_requests_per_day
            when = f"for {policy.calendar.date_of(no.day)}" if no.day else "within 24 h (the system clock was changed)"
            return f"{domain} has had its {count} {no.limit} {when}.{wait} Raise {limit} only if the site agreed."
        case Reason.CIRCUIT_OPEN if not policy.breaker:
            return f"not requesting {domain}: the site asked for a rest longer than obey_retry_after.{wait}"
        case Reason.CIRCUIT_OPEN:
            return (
                f"not asking {domain}: its circuit breaker is open "
                "(it failed, refused us, asked for a long rest, or was tripped by hand)."
                f"{wait} Leave it alone until then, or reset its breaker if you know that it is well."
            )
        case Reason.DOMAIN_DENIED:
            return denied(url)
        case Reason.PAUSED:
            return f"not asking {domain}: it was paused by hand.{wait} Resume it to go on."
        case Reason.CRAWL_DELAY_TOO_LONG:
            return (
                f"not asking {domain}: its robots.txt wants a Crawl-delay above max_crawl_delay "
                f"({policy.max_crawl_delay:g} s). Raise max_crawl_delay to wait that long, or leave the site out."
            )
        case _:
            return closed(url.text)


def late(url: Url, needed: float) -> str:
    """Describe a deadline that cannot be met."""
    return (
        f"not fetching {url.text} in time: its turn comes in {span(needed)} at the earliest, after the deadline. "
        "Allow more time, or ask again later."
    )


def cut_off(url: Url) -> str:
    """Describe a deadline that passed before robots.txt came."""
    return (
        f"not fetching {url.text} in time: the deadline came before its robots.txt. "
        "Allow more time, or ask again later."
    )  # fmt: skip


def closed(url: str) -> str:
    """Describe a fetch that was running or waiting when its client was closed."""
    return f"not fetching {url}: the client was closed meanwhile. Close it later, or ask another one."


def disallowed(url: Url, verdict: Verdict, user_agent: str) -> str:
    """Describe a page that robots.txt forbids."""
    agent = product_token(user_agent) or user_agent
    if verdict.line is None:
        return f"not fetching {url.text}: {verdict.reason}. Ask again later."
    return (
        f'not fetching {url.text}: robots.txt line {verdict.line} says "{verdict.rule}" to {agent}. '
        "Ask the site's owner, or leave this URL out."
    )


def denied(url: Url) -> str:
    """Describe a domain on the denylist."""
    return f"not fetching {url.text}: {url.domain} is on the denylist. Take it off the list to ask it."


def path_denied(url: Url, pattern: str) -> str:
    """Describe a path that the settings refuse."""
    return f'not fetching {url.text}: deny_paths has "{pattern}" for {url.domain}. Change the settings to ask for it.'


def not_kept(url: Url) -> str:
    """Describe a cache miss in offline mode."""
    return (
        f"{url.text} is not in the cache, and the cache is offline. "
        "Fetch it once online; if it only redirects, ask for where it leads."
    )  # fmt: skip


def failed(url: Url, failure: Failure, attempts: int) -> str:
    """Describe a request without a usable reply."""
    tries = f" after {attempts} tries" if attempts > 1 else ""
    advice = _ADVICE.get(failure.reason, "Try again later.") if failure.advice is None else failure.advice
    if failure.detail == WANTS_COOKIE:
        advice = "Keep them (cookies=True, --cookies), or leave it out."
    if failure.is_answer:
        advice = "Write http:// instead of https://."
    return f"{url.text} could not be fetched{tries}: {failure.detail.rstrip('.')}. {advice}".rstrip()


TOO_LARGE = "Raise max_body, or use download(), whose limit is max_size."
"""Advice for programs about a body that is too large. The command line has its own."""

WANTS_COOKIE = "it sets a cookie, wants it back, and redirects in a circle until it comes; cookies are not kept"
"""Detail of a failure at a site that requires cookies."""

_ADVICE = {
    Reason.ADDRESS_REFUSED: "Set allow_private (--allow-private) if this is a site of your own.",
    Reason.BAD_REDIRECT: "Tell the site's owner, or leave it out.",
    Reason.CLOSED: "Close the client later, or ask another one.",
    Reason.DNS_ERROR: "Check the name.",
    Reason.INVALID_URL: "Correct the request.",
    Reason.NOT_WRITTEN: "Make room, or choose another place.",
    Reason.TLS_ERROR: "Give the CA that signed it by verify=, if the site is yours.",
    Reason.TOO_LARGE: TOO_LARGE,
    Reason.TOO_MANY_REDIRECTS: "Raise max_redirects, or leave it out.",
    Reason.TOO_SLOW: "Lower min_speed, or try again later.",
}


def redirected(url: Url, status: int) -> str:
    """Describe a redirect that was not followed."""
    return f"{url.text} redirects ({status}), and was not to be followed. Ask for the URL in its Location."


def bad_status(url: Url, status: int, retry_after: float | None, attempts: int, asked_for: float | None = None) -> str:
    """Describe an error status. `asked_for`: seconds of rest that the site requested, if above `max_retry_after`."""
    tries = f" after {attempts} tries" if attempts > 1 else ""
    if status in (404, 410):
        return f"{url.text} does not exist ({status}). Correct the link, or leave it out."
    if status in (401, 403):
        wanted = "" if asked_for is None else f" It asks for {span(asked_for)} of rest, which is above max_retry_after."
        return f"{url.text} is not for us ({status}). Ask the site's owner for access, or leave it out.{wanted}"
    if status == 429 or status >= 500:
        advice = "Try again later." if retry_after is None else f"Come back in {span(retry_after)}."
        if asked_for is not None:
            advice = f"{advice[:-1]}; it asks for {span(asked_for)}, which is above max_retry_after."
    else:
        advice = "Correct the request, or leave it out."
    return f"{url.text} answered with status {status}{tries}. {advice}"

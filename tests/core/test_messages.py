"""The sentences that people read: what, why and what to do, with the values, for every reason there is."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core import messages
from curtsy.core.decision import Late, No
from curtsy.core.errors import (
    REFUSALS,
    BadStatus,
    CurtsyError,
    FetchError,
    Reason,
    Refused,
    RefusedByBreaker,
    RefusedByBudget,
    RefusedByPolicy,
    RefusedByRobots,
    Unreachable,
)
from curtsy.core.policy import UTC, Policy
from curtsy.core.record import FetchRecord
from curtsy.core.request import Failure, Headers
from curtsy.core.result import FetchResult
from curtsy.core.robots import parse
from curtsy.core.rules import UNREACHABLE
from curtsy.core.time import span
from curtsy.core.url import InvalidUrl, Url, parse_url
from tests.strategies import ANY
from tests.support.said import missing
from tests.support.snapshot import Snapshot

FOUND = parse_url("https://example.org/private/a")
assert isinstance(FOUND, Url)
PAGE: Url = FOUND
RULES = parse_url("https://example.org/robots.txt")
assert isinstance(RULES, Url)
ROBOTS: Url = RULES
POLICY = Policy(timezone=UTC)
DAY = 1_794_700_800  # 2026-11-15


def all_messages() -> dict[Reason, list[str]]:
    """A message for every reason that a fetch can end with."""
    verdict = parse(b"User-agent: *\n\n\n\n\n\n\n\n\n\n\nDisallow: /private").verdict("curtsy/1.0", PAGE.text)
    said = {
        Reason.INVALID_URL: [messages.invalid(InvalidUrl("ftp://x", "its scheme is ftp, not http or https"))],
        Reason.DOMAIN_DENIED: [messages.denied(PAGE)],
        Reason.PATH_DENIED: [messages.path_denied(PAGE, "/private")],
        Reason.ROBOTS_DISALLOWED: [messages.disallowed(PAGE, verdict, "curtsy")],
        Reason.ROBOTS_UNREACHABLE: [messages.disallowed(PAGE, UNREACHABLE, "curtsy")],
        Reason.DEADLINE: [
            messages.late(PAGE, late) for late in (Late(12.0), Late(33.0, "in_flight"), Late(0.5, "outage"), None)
        ]
        + [messages.late(PAGE, late, ROBOTS) for late in (Late(12.0), Late(33.0, "in_flight"), Late(0.5, "outage"))],
        Reason.NOT_IN_CACHE: [messages.not_kept(PAGE)],
        Reason.RECORD_TOO_NEW: [messages.too_new(PAGE, "a host record has format 9. Upgrade curtsy.")],
        Reason.CLOSED: [messages.closed(PAGE.text), messages.refused(PAGE, POLICY, No(Reason.CLOSED, None))],
        Reason.DOMAIN_BUDGET_EXCEEDED: [
            messages.refused(PAGE, POLICY, No(Reason.DOMAIN_BUDGET_EXCEEDED, 11_520.0, limit, DAY))
            for limit in ("requests", "pages")
        ],
        Reason.HTTP_STATUS: [
            messages.bad_status(PAGE, status, after, tries)
            for status in (304, 400, 401, 403, 404, 410, 418, 429, 500, 503)
            for after in (None, 90.0)
            for tries in (1, 3)
        ],
        Reason.REDIRECTED: [messages.redirected(PAGE, 301)],
    }
    for reason in (Reason.CIRCUIT_OPEN, Reason.PAUSED, Reason.CRAWL_DELAY_TOO_LONG, Reason.STORE_UNREACHABLE):
        said[reason] = [messages.refused(PAGE, POLICY, No(reason, after)) for after in (None, 300.0)]
    for reason in Reason:
        failed = [messages.failed(PAGE, Failure(reason, "it broke off after 3 bytes"), tries) for tries in (1, 3)]
        said.setdefault(reason, failed)
        if reason not in REFUSALS:
            said[reason] += failed
    return said


def test_every_reason_has_a_message_that_says_what_why_and_what_to_do(snapshot: Snapshot) -> None:
    """Conventions: errors"""
    said = all_messages()

    assert set(said) == set(Reason)
    for reason, texts in said.items():
        for text in texts:
            assert re.fullmatch(r"\S.*[^.]\.", text), (reason, text)
            assert ".." not in text
            assert "None" not in text
            assert re.search(r"[.:] \S", text), (reason, text)
            assert re.search(r"[.:] [A-Z][a-z]+ .*\.$", text), (reason, text)  # a sentence about what to do
            assert "example.org" in text or reason is Reason.INVALID_URL
        snapshot("\n".join(dict.fromkeys(texts)), reason.value)


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        pytest.param(
            Reason.ROBOTS_DISALLOWED,
            [PAGE.text, "robots.txt", "line 12", '"Disallow: /private"', "curtsy"],
            id="robots",
        ),
        pytest.param(
            Reason.DOMAIN_BUDGET_EXCEEDED,
            ["example.org", "200", "2026-11-15", "3 h 12 min", "max_requests_per_day"],
            id="budget",
        ),
    ],
)
def test_the_examples_of_the_conventions_are_said_word_for_word(
    snapshot: Snapshot, reason: Reason, data: list[str]
) -> None:
    """Conventions: errors"""
    text = all_messages()[reason][0]

    assert missing(text, *data) == []
    snapshot(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.25, "0.2 s"), (1, "1 s"), (9.96, "10 s"), (12, "12 s"), (59.4, "59 s"), (59.6, "1 min"),
     (60, "1 min"), (90, "1 min 30 s"), (3599, "59 min 59 s"), (3599.7, "1 h"), (3600, "1 h"), (11_520, "3 h 12 min"),
     (86_399, "1 day"), (86_400, "1 day"), (183_600, "2 days 3 h"), (8_640_000, "100 days")],
)  # fmt: skip
def test_a_duration_is_said_as_people_say_it(seconds: float, text: str) -> None:
    """Conventions: errors"""
    assert span(seconds) == text


@given(st.floats(0, 1e9))
@ANY
def test_any_duration_is_said_shortly_and_nearly_right(seconds: float) -> None:
    """Conventions: errors"""
    text = span(seconds)
    units = {"s": 1, "min": 60, "h": 3600, "day": 86_400, "days": 86_400}

    words = text.split()
    told = sum(float(number) * units[unit] for number, unit in zip(words[::2], words[1::2], strict=True))
    assert len(words) <= 4
    assert abs(told - seconds) <= max(0.1, 0.03 * seconds)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("ftp://x/", "ftp://x/"),
        ("ftp://u:pw@x/", "ftp://***@x/"),
        ("u:pw@host", "…@host"),
        ("nonsense", "nonsense"),
        ("http://u:p w@x:99999/", "http://***@x:99999/"),
        ("http://u:p w/x@y", "…@y"),
        ("http://x:0/@u", "http://x:0/@u"),
    ],
)
def test_what_was_given_is_shown_without_its_password(given: str, shown: str) -> None:
    """F62"""
    assert messages.given(InvalidUrl(given, "no")) == shown


def result(reason: Reason | None, status: int | None = None) -> FetchResult:
    record = FetchRecord(
        PAGE.text, PAGE.text, PAGE.domain, "GET", status, reason, 1, 0, 0.0, 0.0, 0, None, None, None, None, 7.0, 0.0
    )
    return FetchResult(
        reason is None, PAGE.text, PAGE.text, status, reason, "a message.", 7.0, Headers(), b"", False, record
    )  # fmt: skip


ERRORS = {
    Reason.ROBOTS_DISALLOWED: RefusedByRobots,
    Reason.ROBOTS_UNREACHABLE: RefusedByRobots,
    Reason.CRAWL_DELAY_TOO_LONG: RefusedByRobots,
    Reason.DOMAIN_BUDGET_EXCEEDED: RefusedByBudget,
    Reason.CIRCUIT_OPEN: RefusedByBreaker,
    Reason.HTTP_STATUS: BadStatus,
    Reason.REDIRECTED: BadStatus,
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_raised_as_its_own_error_with_what_a_program_needs(reason: Reason) -> None:
    """Conventions: errors; N5"""
    status = 503 if reason is Reason.HTTP_STATUS else None
    expected = ERRORS.get(reason, RefusedByPolicy if reason in REFUSALS else Unreachable)

    with pytest.raises(CurtsyError) as caught:
        result(reason, status).raise_for_reason()

    error = caught.value
    assert type(error) is expected
    assert str(error) == "a message."
    assert isinstance(error, Refused) == (reason in REFUSALS)
    if isinstance(error, Refused | FetchError):
        assert (error.url, error.retry_after, error.reason) == (PAGE.text, 7.0, reason)
    if isinstance(error, FetchError):
        assert error.status == status


def test_a_success_raises_nothing() -> None:
    """Conventions: errors"""
    good = result(None, 200)

    assert good.raise_for_reason() is good

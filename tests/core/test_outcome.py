"""What a reply means: for the breaker, for the budget, for a retry; and what it says of when to come back."""

from __future__ import annotations

from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.errors import Reason
from curtsy.core.outcome import Kind, backoff, classify, exhausted_for, is_worth_repeating, retry_after
from curtsy.core.request import Failure, Headers, Response
from tests.strategies import ANY
from tests.support.bounds import cpu_within

NOW = 1_800_000_000.0


def response(status: int, body: bytes = b"", **fields: str) -> Response:
    headers = Headers((name.replace("_", "-"), value) for name, value in fields.items())
    return Response(status, headers, body, 0.3, 0.2, len(body))


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, Kind.ANSWERED), (204, Kind.ANSWERED), (301, Kind.ANSWERED), (304, Kind.NOT_MODIFIED), (400, Kind.ANSWERED),
     (401, Kind.ANSWERED), (403, Kind.BLOCKED), (404, Kind.ANSWERED), (429, Kind.SLOWED), (451, Kind.ANSWERED),
     (500, Kind.FAILED), (503, Kind.FAILED), (599, Kind.FAILED)],
)  # fmt: skip
def test_a_status_means_this(status: int, kind: Kind) -> None:
    """U6, Q5, B5"""
    outcome = classify(response(status), NOW)

    assert (outcome.kind, outcome.status, outcome.sent) == (kind, status, True)
    assert (outcome.latency, outcome.sent_ago) == (0.2, 0.3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_on_robots_txt_a_4xx_is_a_plain_answer(status: int) -> None:
    """Design, section 2"""
    assert classify(response(status), NOW, robots=True).kind is Kind.ANSWERED


@pytest.mark.parametrize(("status", "kind"), [(429, Kind.SLOWED), (500, Kind.FAILED)])
def test_on_robots_txt_a_429_and_a_5xx_are_what_they_are(status: int, kind: Kind) -> None:
    """Design, section 2"""
    assert classify(response(status), NOW, robots=True).kind is kind


def test_a_page_is_a_success_with_a_body() -> None:
    """B5"""
    assert classify(response(200, b"x"), NOW).page
    assert not classify(response(200), NOW).page
    assert not classify(response(404, b"x"), NOW).page
    assert not classify(response(200, b"x"), NOW, robots=True).page
    assert classify(Response(200, Headers(), b"", wire_bytes=9), NOW).page  # written to disk as it came


@pytest.mark.parametrize("reason", [each for each in Reason if each is not Reason.HTTP_STATUS])
@pytest.mark.parametrize("sent_ago", [None, 0.5])
def test_a_failure_costs_budget_only_if_it_was_sent(reason: Reason, sent_ago: float | None) -> None:
    """B5, U6"""
    outcome = classify(Failure(reason, "no", sent_ago), NOW)

    assert outcome.sent == (sent_ago is not None)
    assert not outcome.page
    if reason in (Reason.ADDRESS_REFUSED, Reason.INVALID_URL, Reason.CLOSED, Reason.DEADLINE):
        assert outcome.kind is Kind.ABANDONED
    elif reason in (Reason.TOO_LARGE, Reason.NOT_WRITTEN):
        assert outcome.kind is Kind.ANSWERED
    else:
        assert outcome.kind is Kind.FAILED


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.DNS_ERROR, Reason.CONNECTION_ERROR, Reason.TLS_ERROR])
@pytest.mark.parametrize("robots", [True, False])
def test_a_failure_of_a_proxy_says_nothing_of_the_host(reason: Reason, robots: bool) -> None:
    """U6, B5"""
    outcome = classify(Failure(reason, "no", ended_at_proxy=True), NOW, robots=robots)

    assert (outcome.kind, outcome.sent) == (Kind.ABANDONED, False)


def test_a_failure_of_a_proxy_is_worth_repeating_unless_it_lasts() -> None:
    """N3: a name of a site that does not exist may be there in a moment, for a resolver may err"""
    for reason in (Reason.TIMEOUT, Reason.DNS_ERROR, Reason.CONNECTION_ERROR):
        assert is_worth_repeating(Failure(reason, "no", ended_at_proxy=True))
        assert is_worth_repeating(Failure(reason, "no", is_lasting=True))
        assert not is_worth_repeating(Failure(reason, "no", is_lasting=True, ended_at_proxy=True))


def test_what_may_pass_is_worth_repeating_and_nothing_else() -> None:
    """N3"""
    assert [status for status in range(200, 620) if is_worth_repeating(response(status))] == [429, *range(500, 600)]
    passing = {reason for reason in Reason if is_worth_repeating(Failure(reason, "no"))}
    assert passing == {Reason.TIMEOUT, Reason.DNS_ERROR, Reason.CONNECTION_ERROR, Reason.INCOMPLETE}


@given(st.integers(1, 100), st.floats(0.001, 60), st.floats(0, 1, exclude_max=True))
@ANY
def test_the_backoff_doubles_give_or_take_a_quarter(attempt: int, initial: float, roll: float) -> None:
    """N2"""
    wait, ideal = backoff(attempt, initial, roll), initial * 2.0 ** min(attempt - 1, 20)

    assert 0.75 * ideal <= wait <= 1.25 * ideal


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("120", 120.0), ("0", 0.0), (" 7 ", 7.0), ("1" + "0" * 12, 1e12), ("9" * 50, 1e18),
     ("9" * 5000, 1e18), ("0" * 20 + "60", 60.0), ("0" * 5000, 0.0), ("+5", None), ("1_0", None), ("nan", None),
     ("-1", None), ("1.5", None), ("", None), ("soon", None), ("٣", None), ("1e3", None), ("0x10", None),
     ("10, 20", None), ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0), ("Sun, 99 Nov 2094 08:49:37 GMT", None)],
)  # fmt: skip
def test_retry_after_is_seconds_or_a_date_or_nothing(said: str, seconds: float | None) -> None:
    """N4, F50: what has passed already is 0, garbage counts as absent"""
    assert retry_after(Headers([("Retry-After", said)]), NOW) == seconds


def test_a_date_is_read_against_the_responses_own() -> None:
    """N4: two machines' clocks are not compared"""
    at = formatdate(5_000_060, usegmt=True)

    own = retry_after(Headers([("Retry-After", at), ("Date", formatdate(5_000_000, usegmt=True))]), NOW)
    ours = retry_after(Headers([("Retry-After", formatdate(NOW + 90, usegmt=True))]), NOW)
    broken = retry_after(Headers([("Retry-After", formatdate(NOW + 90, usegmt=True)), ("Date", "today")]), NOW)

    assert (own, ours, broken) == (60.0, 90.0, 90.0)


@pytest.mark.parametrize("status", [200, 301, 404])
def test_retry_after_means_nothing_where_nothing_is_wrong(status: int) -> None:
    """C2"""
    assert classify(response(status, Retry_After="60"), NOW).retry_after is None


@pytest.mark.parametrize(
    ("field", "seconds"),
    [('"default";r=0;t=30', 30.0), ('"default";r=1;t=30', None), ("limit=10, remaining=0, reset=30", 30.0),
     ("limit=10, remaining=4, reset=30", None), ('"a";r=0;t=10, "b";r=9;t=500', 10.0),
     ('"a";r=0;t=10,"b";r=0;t=500', 500.0), ('"a";r=5;t=10, "b";r=0;t=500', 500.0), ('"a";t=10;r=0', 10.0),
     ('"a";r=0', None), ("", None), ("r=0", None), ('"a";r=00;t=5', 5.0), ('"a";r=-1;t=5', None),
     ('"a";r=0;t=' + "9" * 40, None), ('"remaining";r=5;t=30, "b";r=0;t=60', 60.0), ('"remaining";r=0;t=9', 9.0),
     ('"a, b";r=0;t=7', 7.0), ('"x;r=0;t=99";r=5;t=30', None), ('"a";r=5;t=30;u="r=0;t=9"', None),
     ('"a\\"";r=0;t=8', 8.0), ("Default ; R=0 ; T=6", 6.0), ('limit=10;w=60, remaining="0", reset="30"', 30.0),
     ("reset=30, remaining=000", 30.0)],
)  # fmt: skip
def test_a_ratelimit_field_says_when_nothing_is_left(field: str, seconds: float | None) -> None:
    """Issue 4, 4: of several limits the longest counts"""
    assert exhausted_for(Headers([("RateLimit", field)]), NOW) == seconds


@pytest.mark.parametrize(
    ("field", "policy", "seconds"),
    [('"a";r=0', '"a";q=9;w=60', 60.0), ('"a";r=0', '"b";q=9;w=60', None), ('"a";r=0', '"b";w=5, "a";q=9;w=60', 60.0),
     ('"a";r=0;t=10', '"a";q=9;w=60', 10.0), ('"a";r=1', '"a";q=9;w=60', None), ('"a";r=0', '"a";q=9', None),
     ('"a";r=0, "b";r=0;t=5', '"a";q=9;w=60', 60.0), ('"a;b";r=0', '"a";w=5, "a;b";q=9;w=60', 60.0)],
)  # fmt: skip
def test_a_limit_that_does_not_say_when_it_ends_has_the_window_of_its_policy(
    field: str, policy: str, seconds: float | None
) -> None:
    """Issue 4, 4: RateLimit-Policy"""
    assert exhausted_for(Headers([("RateLimit", field), ("RateLimit-Policy", policy)]), NOW) == seconds


def test_thousands_of_limits_and_policies_take_linear_time() -> None:
    """Within the 64 KiB of a head, they took 20 s of CPU on the event loop"""
    limits, policies = '"";r=0,' * 4000 + '"last";r=0', "a," * 12_000 + '"last";q=1;w=60'

    with cpu_within(1):
        assert exhausted_for(Headers([("RateLimit", limits), ("RateLimit-Policy", policies)]), NOW) == 60


@pytest.mark.parametrize("prefix", ["RateLimit-", "X-RateLimit-", "X-Rate-Limit-"])
@pytest.mark.parametrize(
    ("left", "reset", "seconds"),
    [("0", "30", 30.0), (" 0 ", " 30.5 ", 30.5), ("1", "30", None), ("0", "0", None), ("0", "-5", None),
     ("0", "nan", None), ("0", "inf", None), ("0", "soon", None), ("0", str(int(NOW) + 60), 60.0),
     ("0", str(int(NOW) - 60), None), ("0", f"{int(NOW) + 60}000", 60.0),
     ("00", "0030", 30.0), ("0", f"{int(NOW) + 60}000000", 60.0), ("0", "1_0", None), ("0", "9" * 5000, None)],
)  # fmt: skip
def test_the_older_fields_say_it_too(prefix: str, left: str, reset: str, seconds: float | None) -> None:
    """Issue 4, 4: the reset may be an epoch second, or a thousandth of one"""
    headers = Headers([(prefix + "Remaining", left), (prefix + "Reset", reset)])

    assert exhausted_for(headers, NOW) == seconds


@pytest.mark.parametrize(
    "fields",
    [
        {"RateLimit-Remaining": "0", "RateLimit-Reset": "10", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "50"},
        {"RateLimit-Remaining": "0", "RateLimit-Reset": "50", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "10"},
        {"RateLimit": '"a";r=0;t=10', "X-Rate-Limit-Remaining": "0", "X-Rate-Limit-Reset": str(int(NOW) + 50)},
        {"RateLimit": '"a";r=0;t=50', "RateLimit-Remaining": "0", "RateLimit-Reset": "10"},
        {"RateLimit": '"a";r=0;t=50', "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "soon"},
    ],
)
def test_of_several_limits_that_are_used_up_the_one_that_ends_last_counts(fields: dict[str, str]) -> None:
    """Issue 4, 4: whatever fields they stand in"""
    assert exhausted_for(Headers(fields.items()), NOW) == 50


@given(st.dictionaries(
    st.sampled_from(["RateLimit", "RateLimit-Remaining", "RateLimit-Reset", "X-RateLimit-Remaining",
                     "X-RateLimit-Reset", "Retry-After", "Date"]),
    st.one_of(st.text(max_size=30), st.integers(-5, 10**18).map(str), st.sampled_from(["0", '"a";r=0;t=5'])),
), st.sampled_from([200, 304, 403, 429, 500, 503]))  # fmt: skip
@ANY
def test_whatever_the_fields_say_a_rest_is_a_number_of_seconds(fields: dict[str, str], status: int) -> None:
    """F50: never an exception, never a negative wait, never not a number"""
    outcome = classify(Response(status, Headers(fields.items()), b""), NOW)

    assert 0 <= outcome.rest < float("inf")
    assert outcome.retry_after is None or 0 <= outcome.retry_after < float("inf")


def test_of_several_retry_afters_the_longest_counts() -> None:
    """N4: RFC 9110, 5.3: who sends it twice means both"""
    fields = [("Retry-After", "2"), ("retry-after", formatdate(NOW + 90, usegmt=True)), ("Retry-After", "soon")]

    assert retry_after(Headers(fields), NOW) == pytest.approx(90, abs=1)

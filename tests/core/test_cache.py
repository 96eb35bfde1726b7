"""RFC 9111 as a private cache reads it: what is kept, how long it is good, and what a 304 does to it."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping
from email.utils import formatdate

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.cache import (
    Absent,
    Absorbed,
    Drop,
    Entry,
    Fresh,
    Freshness,
    Leave,
    Mode,
    Refresh,
    Stale,
    Store,
    Unusable,
    absorb,
    contradicts,
    freshness,
    names_another,
)
from curtsy.core.cache_control import FOREVER, directives
from curtsy.core.errors import Reason
from curtsy.core.request import Failure, Headers, Request, Response
from curtsy.core.time import http_date
from curtsy.core.url import Url, parse_url
from curtsy.core.variant import HARMLESS, variant_of

NOW = 1_800_000_000.0
DAY = 86_400.0
NOTHING: Mapping[str, str] = {}

PASSED_BY = {
    "range", "if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "if-range", "cache-control"
}  # fmt: skip
"""Headers with which a request passes by the cache, or says how fresh the answer must be."""


def date(at: float) -> str:
    return formatdate(at, usegmt=True)


def ask(method: str = "GET", url: str = "https://example.org/a", **headers: str) -> Request:
    parsed = parse_url(url)
    assert isinstance(parsed, Url)
    return Request(parsed, method, Headers((name.replace("_", "-"), value) for name, value in headers.items()))


def reply(
    status: int = 200,
    body: bytes = b"hello",
    said: Mapping[str, str] = NOTHING,
    *,
    sent_ago: float = 0.0,
    latency: float = 0.0,
    **headers: str,
) -> Response:
    fields = Headers((name.replace("_", "-"), value) for name, value in {**said, **headers}.items())
    return Response(status, fields, body, sent_ago, latency)


def stored(outcome: Absorbed) -> Entry:
    assert isinstance(outcome, Store), outcome
    return outcome.entry


def kept(request: Request | None = None, said: Mapping[str, str] = NOTHING, **headers: str) -> Entry:
    return stored(absorb(Absent(), request or ask(), reply(said={**said, **headers}), NOW))


def renewed(outcome: Absorbed) -> Entry:
    assert isinstance(outcome, Refresh), outcome
    return outcome.entry


def stale(found: Freshness) -> Stale:
    assert isinstance(found, Stale), found
    return found


# --- How long ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "lifetime"),
    [
        ({"cache_control": "max-age=60"}, 60),
        ({"cache_control": 'max-age="60"'}, 60),
        ({"cache_control": "MAX-AGE=60"}, 60),
        ({"cache_control": "public, max-age = 60 , foo"}, 60),
        ({"cache_control": "max-age=60, max-age=5"}, 60),
        ({"cache_control": "s-maxage=900, max-age=60"}, 60),
        ({"cache_control": "s-maxage=900"}, 0),
        ({"cache_control": 'foo="max-age=900, x", max-age=60'}, 60),
        ({"cache_control": "max-age=60.5"}, 0),
        ({"cache_control": "max-age=-1"}, 0),
        ({"cache_control": "max-age="}, 0),
        ({"cache_control": "max-age"}, 0),
        ({"cache_control": "max-age=" + "9" * 5000}, FOREVER),
        ({"cache_control": "max-age=60, no-cache"}, 0),
        ({"cache_control": 'max-age=60, no-cache="Set-Cookie"'}, 0),
        ({"cache_control": "max-age=60", "expires": date(NOW + 900)}, 60),
        ({"expires": date(NOW + 900)}, 900),
        ({"expires": date(NOW + 900), "date": date(NOW + 600)}, 300),
        ({"expires": date(NOW - 900)}, 0),
        ({"expires": date(NOW + 900).lower()}, 900),
        ({"expires": date(NOW + 900).replace("GMT", "UTC")}, 0),
        ({"expires": date(NOW + 900).replace("GMT", "+0000")}, 0),
        ({"expires": "0"}, 0),
        ({"expires": "-1", "last_modified": date(NOW - DAY)}, 0),
        ({"last_modified": date(NOW - 1000)}, 100),
        ({"last_modified": date(NOW - 100 * DAY)}, DAY),
        ({"last_modified": date(NOW + 1000)}, 0),
        ({"last_modified": "yesterday"}, 0),
        ({}, 0),
    ],
)
def test_a_lifetime_is_read_from_what_the_response_says(headers: dict[str, str], lifetime: float) -> None:
    """N6: RFC 9111, 4.2.1 and 4.2.2"""
    entry = kept(said=headers)

    assert entry.lifetime == pytest.approx(lifetime, abs=0.2)


@pytest.mark.parametrize(
    ("headers", "age"),
    [
        ({"age": "30"}, 30),
        ({"age": "30, 90"}, 30),
        ({"age": "soon"}, 0),
        ({"date": date(NOW - 40)}, 40),
        ({"date": date(NOW + 40)}, 0),
        ({"date": date(NOW - 40), "age": "90"}, 90),
    ],
)
def test_the_age_that_a_page_arrives_with_counts(headers: dict[str, str], age: float) -> None:
    """N6: RFC 9111, 4.2.3"""
    entry = kept(said=headers, cache_control="max-age=100")

    assert entry.age == pytest.approx(age, abs=0.01)
    assert isinstance(freshness(entry, ask(), NOW + 99 - age), Fresh)
    assert isinstance(freshness(entry, ask(), NOW + 100 - age), Stale)


def test_a_copy_from_the_future_is_not_fresh_for_nobody_knows_its_age() -> None:
    """N6: the calendar was set back"""
    entry = kept(cache_control="max-age=60")

    assert isinstance(freshness(entry, ask(), NOW - 1), Fresh)
    assert isinstance(freshness(entry, ask(), NOW - 3600), Stale)
    assert freshness(entry, ask(), NOW - 3600, "offline") == Fresh(entry, math.inf)


# --- What the request wishes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "response", "after", "is_fresh"),
    [
        ("no-cache", "max-age=100", 1, False),
        ("max-age=10", "max-age=100", 9, True),
        ("max-age=10", "max-age=100", 11, False),
        ("max-age=0", "max-age=100", 1, False),
        ("max-age=0", "max-age=100, immutable", 1, True),
        ("max-age=0", "max-age=100, immutable", 101, False),
        ("max-age=soon", "max-age=100", 1, False),
        ("min-fresh=20", "max-age=100", 70, True),
        ("min-fresh=20", "max-age=100", 90, False),
        ("min-fresh=x", "max-age=100", 1, False),
        ("max-stale", "max-age=100", 5000, True),
        ("max-stale=50", "max-age=100", 140, True),
        ("max-stale=50", "max-age=100", 160, False),
        ("max-stale=x", "max-age=100", 101, False),
        ("max-stale", "max-age=100, must-revalidate", 101, False),
        ("max-stale", "no-cache", 1, False),
        ("max-stale, max-age=120", "max-age=100", 130, False),
        ("no-store", "max-age=100", 1, True),
        ("only-if-cached", "max-age=100", 1, True),
    ],
)
def test_a_request_can_ask_for_more_or_less(wanted: str, response: str, after: float, is_fresh: bool) -> None:
    """N6: RFC 9111, 5.2.1"""
    entry = kept(cache_control=response)

    found = freshness(entry, ask(cache_control=wanted), NOW + after)

    assert isinstance(found, Fresh if is_fresh else Stale)


def test_only_if_cached_never_asks() -> None:
    """N6: RFC 9111, 5.2.1.7"""
    entry = kept(cache_control="max-age=10", etag='"1"')
    request = ask(cache_control="only-if-cached")

    assert freshness(entry, request, NOW + 20) == Absent(may_ask=False)
    assert freshness(None, request, NOW) == Absent(may_ask=False)


# --- Modes ---------------------------------------------------------------------------------------------------------


def test_refresh_asks_as_if_nothing_were_kept() -> None:
    """N6"""
    assert freshness(kept(cache_control="max-age=60", etag='"1"'), ask(), NOW, "refresh") == Absent()


def test_revalidate_always_asks_with_validators() -> None:
    """N6, N11"""
    said = {"cache_control": "max-age=60, immutable", "etag": '"1"', "last_modified": date(NOW - DAY)}
    entry = kept(ask(accept="text/html"), said)

    found = stale(freshness(entry, ask(accept="text/html"), NOW, "revalidate"))

    assert found.conditional(ask(accept="text/html")).headers.fields == (
        ("accept", "text/html"),
        ("If-None-Match", '"1"'),
        ("If-Modified-Since", date(NOW - DAY)),
    )
    assert not found.may_serve_on_error
    assert not found.may_serve_meanwhile


def test_a_stale_page_without_validators_is_asked_for_whole() -> None:
    """N6"""
    assert stale(freshness(kept(), ask(), NOW)).validators == ()


# --- Serving stale -------------------------------------------------------------------------------------------------


def test_a_stale_page_stands_in_for_an_error_as_long_as_the_site_allows() -> None:
    """N6: RFC 5861"""
    entry = kept(cache_control="max-age=10, stale-if-error=100, stale-while-revalidate=30")

    early, later, late = (stale(freshness(entry, ask(), NOW + after)) for after in (20, 60, 111))

    assert (early.may_serve_on_error, early.may_serve_meanwhile) == (True, True)
    assert (later.may_serve_on_error, later.may_serve_meanwhile) == (True, False)
    assert (late.may_serve_on_error, late.may_serve_meanwhile) == (False, False)


def test_the_user_may_allow_more_on_errors_but_never_against_must_revalidate() -> None:
    """N6: RFC 9111, 5.2.2.2"""
    plain, bound = kept(cache_control="max-age=10"), kept(cache_control="max-age=10, must-revalidate")

    assert stale(freshness(plain, ask(), NOW + 20, stale_if_error=60)).may_serve_on_error
    assert not stale(freshness(plain, ask(), NOW + 20)).may_serve_on_error
    assert not stale(freshness(bound, ask(), NOW + 20, stale_if_error=60)).may_serve_on_error
    assert not stale(freshness(plain, ask(cache_control="no-cache"), NOW, stale_if_error=60)).may_serve_on_error


@pytest.mark.parametrize("bound", ["must-revalidate", "no-cache"])
def test_no_stale_page_is_served_meanwhile_if_the_site_or_the_caller_wants_it_asked_about_first(bound: str) -> None:
    """N6: RFC 9111, 5.2.2.2 and 5.2.2.4, whatever stale-while-revalidate says"""
    served = "max-age=10, stale-while-revalidate=600"
    plain, bounded = kept(cache_control=served), kept(cache_control=f"{served}, {bound}")

    assert stale(freshness(plain, ask(), NOW + 20)).may_serve_meanwhile
    assert not stale(freshness(bounded, ask(), NOW + 20)).may_serve_meanwhile
    assert not stale(freshness(plain, ask(cache_control="no-cache"), NOW + 20)).may_serve_meanwhile


# --- Vary, credentials ---------------------------------------------------------------------------------------------


def test_credentials_in_the_url_are_a_login_and_are_not_kept() -> None:
    """F62"""
    entry = kept(ask(url="https://alice:hunter2@example.org/a"), cache_control="max-age=60")

    assert "hunter2" not in repr(entry)
    assert freshness(entry, ask(url="https://bob:other@example.org/a"), NOW) == Absent()


# --- What is kept --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 203, 204, 300, 301, 308, 404, 410])
def test_answers_are_kept_even_without_a_lifetime_for_validators_and_offline(status: int) -> None:
    """N6"""
    assert stored(absorb(Absent(), ask(), reply(status, location="/b"), NOW)).lifetime == 0


@pytest.mark.parametrize("status", [301, 302, 404])
def test_an_answer_whose_body_is_not_all_there_is_not_kept(status: int) -> None:
    """F06"""
    whole = reply(status, location="/b", cache_control="max-age=60")

    assert isinstance(absorb(Absent(), ask(), whole, NOW), Store)
    assert absorb(Absent(), ask(), msgspec.structs.replace(whole, is_whole=False), NOW) == Leave()


@pytest.mark.parametrize("status", [302, 303, 307])
def test_passing_redirects_are_kept_only_if_they_say_how_long(status: int) -> None:
    """N6: RFC 9111, 3"""
    said = reply(status, location="/b", cache_control="max-age=60")

    assert stored(absorb(Absent(), ask(), said, NOW)).lifetime == 60
    assert absorb(Absent(), ask(), reply(status, location="/b"), NOW) == Drop("")
    assert absorb(Absent(), ask(), reply(status, location="/b", last_modified=date(NOW - DAY)), NOW) == Drop("")


@pytest.mark.parametrize("status", [206, 400, 401, 403, 416, 429, 500, 502, 503])
def test_parts_and_errors_leave_the_kept_page_alone(status: int) -> None:
    """N6, F06"""
    assert absorb(Absent(), ask(), reply(status, cache_control="max-age=60"), NOW) == Leave()


def test_a_redirect_without_a_location_is_not_kept() -> None:
    """N6"""
    assert absorb(Absent(), ask(), reply(301, cache_control="max-age=60"), NOW) == Drop("")


def test_a_failure_leaves_the_kept_page_alone() -> None:
    """N6, F06"""
    assert absorb(Absent(), ask(), Failure(Reason.INCOMPLETE, "cut short", 1.0, 200), NOW) == Leave()


def test_a_newer_answer_that_may_not_be_kept_drops_the_older_one() -> None:
    """N6: RFC 9111, 5.2.2.5 and 4.1"""
    assert absorb(Absent(), ask(), reply(cache_control="no-store, max-age=60"), NOW) == Drop("")
    assert absorb(Absent(), ask(), reply(vary="Accept, *"), NOW) == Drop("")


def test_a_request_that_forbids_it_is_not_kept() -> None:
    """N6: RFC 9111, 5.2.1.5"""
    request = ask(cache_control="no-store")
    found = freshness(kept(etag='"1"'), request, NOW)

    assert absorb(Absent(), request, reply(cache_control="max-age=60"), NOW) == Leave()
    assert absorb(found, request, reply(304, b""), NOW) == Leave()


def test_a_request_with_a_range_or_conditions_of_its_own_passes_by() -> None:
    """N6, F15"""
    entry = kept(cache_control="max-age=60", etag='"1"')
    for header in ("range", "if_none_match", "if_modified_since", "If_Match", "if_range"):
        request = ask(**{header: "x"})

        assert freshness(entry, request, NOW) == Absent()
        assert absorb(Absent(), request, reply(cache_control="max-age=60"), NOW) == Leave()
        assert absorb(Absent(), request, reply(304, b""), NOW) == Leave()


def test_a_request_with_a_body_passes_by() -> None:
    """N6"""
    request = Request(ask().url, body=b"{}")

    assert freshness(kept(cache_control="max-age=60"), request, NOW) == Absent()
    assert absorb(Absent(), request, reply(cache_control="max-age=60"), NOW) == Leave()


def test_a_change_by_post_drops_the_page_unless_it_failed() -> None:
    """N6: RFC 9111, 4.4"""
    assert absorb(Absent(), ask("POST"), reply(201), NOW) == Drop()
    assert absorb(Absent(), ask("DELETE"), reply(303, location="/"), NOW) == Drop()
    assert absorb(Absent(), ask("POST"), reply(500), NOW) == Leave()
    assert absorb(Absent(), ask("OPTIONS"), reply(200), NOW) == Leave()


def test_head_is_answered_by_a_fresh_page_and_otherwise_asked_plainly() -> None:
    """N6: RFC 9111, 4"""
    entry = kept(cache_control="max-age=60", etag='"1"')

    assert isinstance(freshness(entry, ask("HEAD"), NOW), Fresh)
    assert freshness(entry, ask("HEAD"), NOW + 60) == Absent()
    assert absorb(Absent(), ask("HEAD"), reply(cache_control="max-age=60"), NOW) == Leave()


def test_cookies_credentials_and_the_connection_s_own_headers_are_not_kept() -> None:
    """F62: RFC 9111, 3.1"""
    entry = kept(
        set_cookie="sid=hunter2", WWW_Authenticate="x", connection="close, X-Hop", x_hop="1", keep_alive="1", server="s"
    )

    assert entry.headers == (("server", "s"),)


# --- 304 -----------------------------------------------------------------------------------------------------------


def test_a_304_renews_the_page_and_keeps_its_body() -> None:
    """N6, N11: RFC 9111, 4.3.4 and 3.2"""
    old = kept(
        cache_control="max-age=60", etag='"1"', age="50", content_type="text/html", content_length="5", x_a="old"
    )
    found = freshness(old, ask(), NOW + 100)
    answer = reply(304, b"", etag='"1"', date=date(NOW + 100), x_a="new", content_type="text/plain", content_length="0")

    entry = renewed(absorb(found, ask(), answer, NOW + 100))

    assert dict(entry.headers) == {
        "cache-control": "max-age=60",
        "etag": '"1"',
        "content-type": "text/html",
        "content-length": "5",
        "x-a": "new",
        "date": date(NOW + 100),
    }
    assert (entry.body_sha256, entry.body_size) == (old.body_sha256, old.body_size)
    assert (entry.age, entry.lifetime) == (0, 60)
    assert isinstance(freshness(entry, ask(), NOW + 159), Fresh)


def test_a_304_without_a_date_renews_from_when_it_came() -> None:
    """N6: RFC 9110, 6.6.1"""
    old = kept(cache_control="max-age=60", etag='"1"', date=date(NOW))
    found = freshness(old, ask(), NOW + 1000)

    entry = renewed(absorb(found, ask(), reply(304, b""), NOW + 1000))

    assert isinstance(freshness(entry, ask(), NOW + 1059), Fresh)


def test_a_304_can_give_a_page_another_lifetime_or_take_it_away() -> None:
    """N6"""
    found = freshness(kept(cache_control="max-age=60", etag='"1"'), ask(), NOW + 60)

    assert renewed(absorb(found, ask(), reply(304, b"", cache_control="max-age=5"), NOW + 60)).lifetime == 5
    assert absorb(found, ask(), reply(304, b"", cache_control="no-store"), NOW + 60) == Drop("")
    assert absorb(found, ask(), reply(304, b"", vary="*"), NOW + 60) == Drop("")


def test_a_304_that_says_nothing_new_of_a_page_asked_about_each_time_is_not_written_down() -> None:
    """N11: but once a day, and whenever a field has changed, be it only in how often it is there."""
    said = {"ETag": '"1"', "Cache-Control": "no-cache", "X-A": "1"}
    old = kept(said=said, date=date(NOW))
    twice = msgspec.structs.replace(old, headers=(*old.headers, ("X-A", "2")))

    def after(entry: Entry, seconds: float, more: Mapping[str, str] = NOTHING) -> Absorbed:
        found = stale(freshness(entry, ask(), NOW + seconds))
        return absorb(found, ask(), reply(304, b"", {**said, **more}, date=date(NOW + seconds)), NOW + seconds)

    assert after(old, 60) == Leave()
    assert isinstance(after(old, DAY + 1), Refresh)
    assert isinstance(after(old, 60, {"X-B": "2"}), Refresh)
    assert isinstance(after(twice, 60), Refresh)


def test_a_304_that_nobody_asked_for_is_an_error() -> None:
    """F15"""
    entry = kept(cache_control="max-age=60", etag='"1"')
    unasked = [
        Absent(),
        freshness(entry, ask(), NOW, "refresh"),
        freshness(entry, ask(), NOW),
        freshness(kept(), ask(), NOW),
    ]

    for found in unasked:
        assert isinstance(absorb(found, ask(), reply(304, b""), NOW), Unusable)
    assert isinstance(absorb(Absent(), ask("HEAD"), reply(304, b""), NOW), Unusable)


def test_a_304_for_another_version_confirms_nothing_and_a_weak_one_for_ours_does() -> None:
    """F15: RFC 9111, 4.3.4"""
    found = freshness(kept(etag='"1"'), ask(), NOW)

    assert names_another(found, reply(304, b"", etag='"2"'))
    assert isinstance(absorb(found, ask(), reply(304, b"", etag='"2"'), NOW), Unusable)
    assert not names_another(found, reply(304, b"", etag='W/"1"'))
    assert isinstance(absorb(found, ask(), reply(304, b"", etag='W/"1"'), NOW), Refresh)


@pytest.mark.parametrize("weak", ["", "W/"])
@pytest.mark.parametrize("coding", ["-gzip", "-br", "--gzip", "-zstd"])
def test_the_etag_of_a_compressed_page_is_sent_in_both_forms_and_either_confirms_it(weak: str, coding: str) -> None:
    """N6: Apache compares before it adds the suffix"""
    etag, plain = f'{weak}"x{coding}"', f'{weak}"x"'
    entry = kept(etag=etag)
    found = stale(freshness(entry, ask(), NOW))

    assert found.validators == (("If-None-Match", f"{etag}, {plain}"),)
    for named in (etag, plain, '"x"', f'W/"x{coding}"'):
        assert not names_another(found, reply(304, b"", etag=named))
        again = renewed(absorb(found, ask(), reply(304, b"", etag=named), NOW))
        assert dict(stale(freshness(again, ask(), NOW)).validators)["If-None-Match"].count(",") == 1
    for named in ('"y"', '"x-deflate"', f'"y{coding}"'):
        assert names_another(found, reply(304, b"", etag=named))
    assert not contradicts(reply(200, b"", etag=plain), entry)
    assert contradicts(reply(200, b"", etag='"y"'), entry)


@pytest.mark.parametrize("etag", ['"-gzip"', '"gzip"', '"a-gzip-b"', "a-gzip", '"x-gzip "', 'W/"-br"'])
def test_an_etag_that_shows_no_compression_is_sent_as_it_is(etag: str) -> None:
    """N6"""
    assert stale(freshness(kept(etag=etag), ask(), NOW)).validators == (("If-None-Match", etag),)


@pytest.mark.parametrize(
    "etag", ['"a\r\nX-Injected: 1"', '"a\x00"', "*", "", '"' + "x" * 2000 + '"', '"a", "b"', "a b"]
)
def test_a_hostile_validator_is_dropped(etag: str) -> None:
    """F15, F26"""
    entry = kept(etag=etag, last_modified="Sun, 06 Nov 1994 08:49:37 GMT\r\nX-Injected: 1")

    assert (entry.etag, entry.last_modified) == (None, None)
    assert stale(freshness(entry, ask(), NOW)).validators == ()


# --- Dates ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("Sun, 06 Nov 1994 08:49:37 GMT", 784_111_777),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 784_111_777),
        ("Sun Nov  6 08:49:37 1994", 784_111_777),
        (" Sun, 6 Nov 1994 08:49:37 UTC ", 784_111_777),
        ("sun, 06 NOV 1994 08:49:37 gmt", 784_111_777),
        ("Sun, 06-Nov-2033 08:49:37 GMT", 2_014_879_777),
        ("Sat, 31 Dec 2016 23:59:60 GMT", 1_483_228_799),
        ("Sun, 06 Nov 1994 08:49:37 PST", None),
        ("Sun, 31 Feb 2021 08:49:37 GMT", None),
        ("Sun, 06 Foo 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 0000 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 GMT, Sun, 06 Nov 1994 08:49:37 GMT", None),
        ("784111777", None),
        ("", None),
    ],
)
def test_a_date_is_read_in_all_three_forms(text: str, at: int | None) -> None:
    """N6: RFC 9110, 5.6.7"""
    assert http_date(text) == at


# --- For any history -----------------------------------------------------------------------------------------------

seconds = st.floats(0, 10 * DAY)
moments = st.floats(NOW - 10 * DAY, NOW + 10 * DAY)
header_text = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=40)
any_text = (
    st.sampled_from(["caf\udce9", "\ud800"])
    | st.text(max_size=40)
    | st.text("max-age=,no-store\" \t0123456789\\'*W/GMT:", max_size=40)
)
any_headers = st.lists(
    st.tuples(
        st.sampled_from(
            ["Cache-Control", "Expires", "Date", "Age", "ETag", "Last-Modified", "Vary", "Location", "Connection", "X"]
        ),
        any_text,
    ),
    max_size=8,
)


@given(
    max_age=st.none() | st.integers(0, 5 * 86_400),
    expires=st.none() | moments,
    dated=st.none() | moments,
    age=st.none() | st.integers(0, 5 * 86_400),
    modified=st.none() | moments,
    waited=seconds,
    read=seconds,
    after=seconds,
)
def test_no_page_is_ever_fresh_beyond_its_lifetime(
    max_age: int | None,
    expires: float | None,
    dated: float | None,
    age: int | None,
    modified: float | None,
    waited: float,
    read: float,
    after: float,
) -> None:
    """N6: RFC 9111, 4.2: whatever clocks and caches on the way say, each bound on the age holds by itself"""
    headers = {
        name: value
        for name, value in (
            ("cache_control", None if max_age is None else f"max-age={max_age}"),
            ("expires", None if expires is None else date(expires)),
            ("date", None if dated is None else date(dated)),
            ("age", None if age is None else str(age)),
            ("last_modified", None if modified is None else date(modified)),
        )
        if value is not None
    }
    came_at = NOW - read
    entry = stored(absorb(Absent(), ask(), reply(said=headers, sent_ago=waited + read, latency=waited), NOW))

    found = freshness(entry, ask(), NOW + after)

    if isinstance(found, Fresh):
        day = came_at if dated is None else dated
        allowed = (
            max_age if max_age is not None else expires - day if expires is not None
            else min(DAY, (day - (modified or day)) / 10)
        )  # fmt: skip
        here = NOW + after - came_at
        ages = [here, (age or 0) + waited + here, NOW + after - day]
        assert max(ages) < allowed + 2  # dates have whole seconds


@given(
    vary=st.lists(st.sampled_from(["Accept", "Accept-Language", "User-Agent", "X-A"]), min_size=1, unique=True),
    ours=st.dictionaries(st.sampled_from(["accept", "accept-language", "user-agent", "x-a"]), header_text),
    theirs=st.dictionaries(st.sampled_from(["accept", "accept-language", "user-agent", "x-a"]), header_text),
    mode=st.sampled_from(["normal", "revalidate", "offline"]),
)
def test_no_page_answers_a_request_that_it_varies_from(
    vary: list[str], ours: dict[str, str], theirs: dict[str, str], mode: Mode
) -> None:
    """N6: RFC 9111, 4.1"""
    entry = kept(Request(ask().url, headers=Headers(ours.items())), cache_control="max-age=60", vary=", ".join(vary))

    found = freshness(entry, Request(ask().url, headers=Headers(theirs.items())), NOW, mode)

    if isinstance(found, Absent):
        assert ours != theirs
    else:
        for name in map(str.lower, vary):
            assert (name in ours) == (name in theirs)
            assert ours.get(name, "").split() == theirs.get(name, "").split()


names = st.from_regex(r"[a-z][a-z-]{0,15}", fullmatch=True) | st.sampled_from(["cookie", "x-api-key", "accept"])
harmless = st.sampled_from(["user-agent", "accept-encoding", "pragma", "from"])


@given(
    ours=st.dictionaries(names, header_text, max_size=3),
    theirs=st.dictionaries(names, header_text, max_size=3),
    noise=st.dictionaries(harmless, header_text),
    mode=st.sampled_from(["normal", "revalidate", "offline"]),
)
def test_a_page_answers_only_requests_with_the_headers_that_it_was_requested_with(
    ours: dict[str, str], theirs: dict[str, str], noise: dict[str, str], mode: Mode
) -> None:
    """F62: `Vary` or not, what one key was shown is not for another, and the harmless headers make no difference"""

    def request(headers: dict[str, str]) -> Request:
        fields = [(name, value) for name, value in headers.items() if name not in PASSED_BY]
        return Request(ask().url, headers=Headers(fields))

    entry = kept(request(ours), cache_control="max-age=60")

    assert not isinstance(freshness(entry, request(noise | ours), NOW, mode), Absent)
    if not isinstance(freshness(entry, request(noise | theirs), NOW, mode), Absent):
        assert set(request(theirs).headers.by_name) - HARMLESS == set(request(ours).headers.by_name) - HARMLESS
        for name, value in request(ours).headers.by_name.items():
            assert name in HARMLESS or value.split() == theirs[name].split()


@given(st.lists(st.sampled_from(["max-age=60", "public", "private", "immutable", 'x="a, b"', "no-cache"]), max_size=4))
def test_no_store_is_never_kept_whatever_stands_beside_it(others: list[str]) -> None:
    """N6: RFC 9111, 5.2.2.5"""
    for place in range(len(others) + 1):
        said = ", ".join([*others[:place], "No-Store", *others[place:]])

        assert absorb(Absent(), ask(), reply(cache_control=said), NOW) == Drop("")


@given(any_headers, any_headers, any_headers, st.sampled_from([200, 301, 302, 304, 404, 500]))
def test_nothing_that_a_site_or_a_caller_says_raises_and_what_is_kept_can_be_written(
    first: list[tuple[str, str]], wanted: list[tuple[str, str]], second: list[tuple[str, str]], status: int
) -> None:
    """F12, F15, N7"""
    request = Request(ask().url, headers=Headers(wanted))
    outcome = absorb(Absent(), ask(), Response(200, Headers(first), b"x"), NOW)
    entry = outcome.entry if isinstance(outcome, Store) else None
    found = freshness(entry, request, NOW + 5)
    later = absorb(found, request, Response(status, Headers(second), b"y"), NOW + 6)

    for kept_one in (outcome, later):
        if isinstance(kept_one, Store | Refresh):
            assert msgspec.json.decode(msgspec.json.encode(kept_one.entry), type=Entry) == kept_one.entry
            for value in (kept_one.entry.etag, kept_one.entry.last_modified):
                assert value is None or all(" " <= letter <= "\xff" and letter != "\x7f" for letter in value)


@given(any_headers, st.floats(-DAY, DAY), st.sampled_from(["GET", "HEAD", "POST"]))
def test_offline_never_asks(headers: list[tuple[str, str]], after: float, method: str) -> None:
    """N6"""
    outcome = absorb(Absent(), ask(), Response(200, Headers(headers), b"x"), NOW)
    entry = outcome.entry if isinstance(outcome, Store) else None

    found = freshness(entry, ask(method), NOW + after, "offline")

    assert isinstance(found, Fresh) or found == Absent(may_ask=False)


@given(any_text)
def test_any_cache_control_and_any_date_can_be_read(text: str) -> None:
    """F12"""
    said = directives(text)

    assert said.max_age is None or 0 <= said.max_age <= FOREVER
    assert http_date(text) is None or isinstance(http_date(text), int)


@given(st.dictionaries(st.sampled_from(["authorization", "cookie", "accept"]), header_text, min_size=1))
def test_no_secret_shows_in_a_variant(headers: dict[str, str]) -> None:
    """F62"""
    variant = variant_of(["accept"], Request(ask().url, headers=Headers(headers.items())))

    assert len(variant) == 16
    assert all(digit in "0123456789abcdef" for digit in variant)


@pytest.mark.parametrize("name", ["Connection", "Cache-Control", "Vary"])
def test_long_fields_take_no_memory_once_they_were_read(name: str) -> None:
    """F01, F32"""
    tracemalloc.start()
    try:
        for number in range(20):
            value = ",".join(f"{number}x{each}" for each in range(1200))
            absorb(Absent(), ask(), reply(said={name: value}), NOW)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 64 << 10

"""One fetch, from the call to the result: answers of every kind, and everything that can go wrong on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import fetch_url
from curtsy.core.errors import BadStatus, PolicyError, Reason, RefusedByRobots
from curtsy.core.record import FetchRecord
from curtsy.core.time import SECOND
from curtsy.http.sender import HttpSender
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, DAWN, TICK, UNPACED, client, host_of
from tests.support.site import (
    Reply,
    Site,
    hang,
    later,
)
from tests.support.snapshot import Snapshot

ONCE: dict[str, Any] = {"max_retries": 0}


async def test_a_page_comes_with_all_that_is_known_of_it(site: Site) -> None:
    """U10, R1"""
    site.page("/a", "grüß dich", content_type="text/html; charset=utf-8")

    async with client() as web:
        result = await web.fetch(site.url("/a#top"))

    assert (result.ok, result.status, result.reason, result.message) == (True, 200, None, "")
    assert (result.text, result.encoding) == ("grüß dich", "utf-8")
    assert result.url == result.final_url == site.url("/a")
    assert not result.from_cache
    assert result.raise_for_reason() is result
    assert site.paths() == ["/robots.txt", "/a"]
    assert {visit.header("User-Agent") for visit in site.journal} == {AGENT}


async def test_the_record_of_a_fetch_says_what_happened(site: Site) -> None:
    """N1, B2"""
    site.robots("User-agent: *\nAllow: /a\n")
    site.page("/a", "12345")
    told: list[FetchRecord] = []

    async with client(on_record=told.append) as web:
        result = await web.fetch(site.url("/a"))
        [record] = told

        assert result.record is record
        assert (record.url, record.status, record.reason, record.attempts, record.retries) == (
            site.url("/a"), 200, None, 1, 0,
        )  # fmt: skip
        assert (record.bytes, record.robots_line, record.cache) == (5, 2, None)
        assert (record.requests_left, record.pages_left) == (198, 99)
        assert 1.5 - TICK <= record.waited <= 5.5
        assert record.waited <= record.took <= record.waited + 1
        stats = web.stats()
        assert (stats.fetches, stats.ok, stats.requests, stats.bytes) == (1, 1, 1, 5)


@pytest.mark.parametrize("status", [201, 203, 204, 206])
async def test_every_status_of_success_is_ok(site: Site, status: int) -> None:
    """N3: a part only if a range was requested"""
    site.reply("/", Reply(status))

    async with client() as web:
        result = await web.fetch(site.url("/"), headers={"Range": "bytes=0-9"} if status == 206 else {})

    assert (result.ok, result.status, result.reason) == (True, status, None)


async def test_a_part_that_was_not_requested_is_no_page(site: Site) -> None:
    """F12: RFC 9110, 15.3.7"""
    site.reply("/", Reply(206, "par", {"Content-Range": "bytes 0-2/100"}))

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert (result.ok, result.status, result.reason, result.body) == (False, 206, Reason.BAD_RESPONSE, b"")


@pytest.mark.parametrize("status", [300, 304, 400, 401, 402, 404, 410, 418, 451])
async def test_a_status_that_says_no_is_a_result_and_is_not_asked_for_again(site: Site, status: int) -> None:
    """N3, U6, F15: a 304 that nobody asked for is no success either"""
    site.reply("/", Reply(status, "no"))

    async with client() as web:
        result = await web.fetch(site.url("/"))
        host = await host_of(web, site.url("/"))

    assert (result.ok, result.status, result.reason) == (False, status, Reason.HTTP_STATUS)
    assert site.count("/") == 1
    assert host.failures == 0
    with pytest.raises(BadStatus) as caught:
        result.raise_for_reason()
    assert (caught.value.status, caught.value.url) == (status, site.url("/"))


@pytest.mark.parametrize(
    ("path", "params", "target"),
    [
        ("/a", {"q": "a b&c", "page": 2}, "/a?q=a+b%26c&page=2"),
        ("/a?x=1#end", [("y", True), ("y", None), ("y", 0.5)], "/a?x=1&y=true&y=0.5"),
        ("/a", {"tag": ["one", "two"], "none": None}, "/a?tag=one&tag=two"),
        ("/a?", {"ü": "é"}, "/a?%C3%BC=%C3%A9"),
        ("/a", {}, "/a"),
    ],
)
async def test_parameters_are_added_to_the_query(site: Site, path: str, params: Any, target: str) -> None:
    """Issue 18, 4: as users of requests expect"""
    site.page("/a", "x")

    async with client(respect_robots=False) as web:
        await web.fetch(site.url(path), params=params)

    assert [visit.target for visit in site.visits()] == [target]


async def test_json_goes_and_comes_as_users_of_requests_expect(site: Site) -> None:
    """Issue 18, 4"""
    site.on("/", lambda visit: Reply(200, b'{"got": ' + visit.body + b"}", {"Content-Type": "application/json"}))
    site.reply("/odd", Reply(200, "[" * 200_000))

    async with client(respect_robots=False, **UNPACED) as web:
        posted = await web.fetch(site.url("/"), json={"name": "é"})
        put = await web.fetch(site.url("/"), method="put", json=[1], headers={"Content-Type": "application/ld+json"})
        odd = await web.fetch(site.url("/odd"))

    assert posted.json() == {"got": {"name": "é"}}
    assert (posted.status_code, posted.content, posted.raise_for_status()) == (200, posted.body, posted)
    assert put.json() == {"got": [1]}
    assert [(visit.method, visit.header("Content-Type")) for visit in site.visits()] == [
        ("POST", "application/json"), ("PUT", "application/ld+json"), ("GET", None),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="nested"):
        odd.json()


@pytest.mark.parametrize(("setting", "timeout"), [(30.0, 0.05), (0.05, 30.0)], ids=["shorter", "longer"])
async def test_a_timeout_is_of_each_attempt_of_one_fetch(site: Site, setting: float, timeout: float) -> None:
    """N9, issue 18, 4: shorter than the setting or longer"""
    site.reply("/", hang() if timeout < setting else Reply(200, "x", wait=0.2))

    async with client(
        clock=None, timeout=setting, respect_robots=False, max_retries=1, retry_delay=0, **UNPACED
    ) as web:
        result = await web.fetch(site.url("/"), timeout=timeout)

    assert (result.ok, result.reason) == ((True, None) if timeout > setting else (False, Reason.TIMEOUT))
    assert site.count("/") == (1 if timeout > setting else 2)


async def test_a_body_of_an_error_page_is_there_to_be_read(site: Site, snapshot: Snapshot) -> None:
    """U6"""
    site.reply("/", Reply(404, "gone fishing", {"Content-Type": "text/plain"}))

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert result.text == "gone fishing"
    assert site.url("/") in result.message
    assert "(404)" in result.message
    snapshot(result.message)


async def test_a_403_opens_the_breaker_at_once(site: Site) -> None:
    """Q5, C2"""
    site.reply("/", Reply(403))
    site.page("/other", "x")

    async with client() as web:
        first = await web.fetch(site.url("/"))
        second = await web.fetch(site.url("/other"))

    assert (first.status, first.reason) == (403, Reason.HTTP_STATUS)
    assert second.reason is Reason.CIRCUIT_OPEN
    assert second.retry_after == pytest.approx(300, abs=1)
    assert site.paths() == ["/robots.txt", "/"]


async def test_a_304_nobody_asked_for_costs_no_budget(site: Site) -> None:
    """B5, F15"""
    site.reply("/", Reply(304))

    async with client(max_requests_per_day=2) as web:
        for _ in range(3):
            result = await web.fetch(site.url("/"))
            assert (result.status, result.record.requests_left) == (304, 1)


@pytest.mark.parametrize(
    "url",
    ["", "   ", "example.org", "ftp://example.org/", "http://", "http://[::1", "http://a b/", "http://x:99999/",
     "javascript:alert(1)", "http://exa\x00mple/", pytest.param("http://" + "a" * 9000, id="a long host"),
     "mailto:a@b", "//host/path"],
)  # fmt: skip
async def test_what_is_no_url_is_refused_in_words(url: str, snapshot: Snapshot) -> None:
    """U1"""
    async with client() as web:
        result = await web.fetch(url)

    assert (result.ok, result.status, result.reason) == (False, None, Reason.INVALID_URL)
    if len(url) < 100:  # else the words are those of a library
        snapshot(result.message)
    assert len(result.message) < 400


@pytest.mark.parametrize("url", [None, 7, b"http://x/", "http://x/\ud800", "http://us\ud800er:pw@127.0.0.1:1/"])
async def test_not_even_what_is_no_text_raises(url: Any, tmp_path: Path) -> None:
    """U1: never an exception out of the blue"""
    async with client(**ONCE, respect_robots=False, sender=HttpSender(resolver={})) as web:
        fetched = await web.fetch(url)
        downloaded = await web.download(url, tmp_path / "file")

    assert not fetched.ok
    assert not downloaded.ok


@pytest.mark.parametrize(
    "headers",
    [{"X": "a\r\nX-Injected: 1"}, {"X\r\nX-Injected": "1"}, {"X": "nul\0"}, {"": "empty"}, {"X": "a\nb"}],
)
async def test_a_header_that_ends_a_line_is_refused_before_the_wire(site: Site, headers: dict[str, str]) -> None:
    """F26"""
    async with client() as web:
        with pytest.raises(PolicyError, match="header"):
            await web.fetch(site.url("/"), headers=headers)

    assert site.journal == []


@pytest.mark.parametrize("method", ["GET / HTTP/1.1\r\nX-Injected: 1", "GE T", "", "CONNECT", "GET\0"])
async def test_a_method_that_is_none_never_reaches_the_wire(site: Site, method: str) -> None:
    """F26"""
    async with client(respect_robots=False) as web:
        result = await web.fetch(site.url("/"), method=method)

    assert (result.ok, result.reason) == (False, Reason.INVALID_URL)
    assert site.journal == []


@pytest.mark.parametrize("agent", ["bot\r\nX-Injected: 1", "bot\0", "", "bøt/1.0", "(no token)"])
async def test_a_user_agent_that_cannot_be_sent_is_refused_at_the_start(agent: str) -> None:
    """F26"""
    with pytest.raises(PolicyError, match="user_agent"):
        client(user_agent=agent)


async def test_control_characters_in_a_url_are_encoded_or_dropped(site: Site) -> None:
    """F26, F65"""
    site.page("/*", "x")

    async with client() as web:
        for path in ("/a\r\nX-Injected: 1", "/a b", "/a\x01b", "/a\tb", '/a"b<c>', "/ü"):
            assert (await web.fetch(site.url(path))).ok

    assert all(visit.header("X-Injected") is None for visit in site.journal)
    assert site.paths()[1:] == ["/aX-Injected:%201", "/a%20b", "/a%01b", "/ab", "/a%22b%3Cc%3E", "/%C3%BC"]


async def test_a_callback_that_fails_costs_nobody_his_page(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Issue 4, 9"""
    site.page("/", "x")

    def broken(record: FetchRecord) -> None:
        raise RuntimeError("not my day")

    async with client(on_record=broken) as web:
        result = await web.fetch(site.url("/"))

    assert result.ok
    assert "not my day" in caplog.text


async def test_the_log_has_one_line_for_each_fetch(
    site: Site, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """N1, R1, B2"""
    site.robots("User-agent: *\nDisallow: /private")
    site.page("/", "x")

    with caplog.at_level("INFO", logger="curtsy"):
        async with client(max_pages_per_day=1) as web:
            for path in ("/", "/private", "/2"):
                await web.fetch(site.url(path))

    lines = [str(record.msg).partition(" {") for record in caplog.records if record.name == "curtsy.client"]
    told = [(words, json.loads(brace + fields)) for words, brace, fields in lines if brace]
    reasons = [None, Reason.ROBOTS_DISALLOWED, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert [fields["reason"] for _, fields in told] == reasons
    snapshot("\n".join(words for words, _ in told))


async def test_a_user_agent_without_a_contact_is_warned_about(
    caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """U10"""
    async with client(user_agent="anybot/1.0"):
        pass

    [warning] = [record.getMessage() for record in caplog.records if "anybot/1.0" in record.getMessage()]
    snapshot(warning)


async def test_the_denylist_and_denied_paths_end_a_fetch_before_anything_is_sent(site: Site) -> None:
    """U9"""
    async with client(denylist=["127.0.0.2"], deny_paths=["/private"]) as web:
        denied = await web.fetch(site.url("/", host="127.0.0.2"))
        path = await web.fetch(site.url("/private/a"))

    assert denied.reason is Reason.DOMAIN_DENIED
    assert path.reason is Reason.PATH_DENIED
    assert site.journal == []


async def test_an_address_that_may_not_be_asked_is_refused_before_a_connection(site: Site) -> None:
    """U2, F19"""
    async with client(allow_private=False) as web:
        literal = await web.fetch(site.url("/"))
        local = await web.fetch(site.url("/", host="localhost"))
    async with client(allow_private=False, sender=HttpSender(resolver=site.names)) as web:
        named = await web.fetch(site.url("/", host="shop.test"))
        host = await host_of(web, site.url("/", host="shop.test"))

    assert literal.reason is local.reason is named.reason is Reason.ADDRESS_REFUSED
    assert (literal.record.attempts, local.record.attempts) == (0, 0)
    assert site.connections == 0
    assert host.failures == 0
    assert [(day.requests, day.pages) for day in host.days] == [(0, 0)]


async def test_a_disallowed_page_can_be_raised_as_what_it_is(site: Site, snapshot: Snapshot) -> None:
    """R1"""
    site.robots("User-agent: *\nDisallow: /\n")

    async with client() as web:
        result = await web.fetch(site.url("/a"))

    with pytest.raises(RefusedByRobots) as caught:
        result.raise_for_reason()
    said = str(caught.value)
    assert [each in said for each in (site.url("/a"), "line 2", '"Disallow: /"', "testbot")] == [True] * 4
    snapshot(said)
    assert caught.value.url == site.url("/a")


async def test_fetch_url_is_one_line(site: Site) -> None:
    """B2"""
    site.page("/", "one line")

    result = await fetch_url(site.url("/"), allow_private=True, user_agent=AGENT, **UNPACED)

    assert result.text == "one line"


async def test_a_policy_of_each_domain_holds_for_it_alone(site: Site) -> None:
    """B3, U9"""
    site.page("/*", "x")
    entries = [{"domain": "127.0.0.2", "max_pages_per_day": 1}]

    async with client(allowlist=entries) as web:
        there = [(await web.fetch(site.url(f"/{n}", host="127.0.0.2"))).reason for n in range(2)]
        here = [(await web.fetch(site.url(f"/{n}"))).reason for n in range(2)]

    assert there == [None, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert here == [None, None]


async def test_a_429_that_says_nothing_names_the_time_to_come_back(site: Site, snapshot: Snapshot) -> None:
    """C2, U4: the result keeps the last status"""
    site.reply("/", later())

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert (result.status, result.reason, result.record.attempts) == (429, Reason.HTTP_STATUS, 1)
    assert result.retry_after == pytest.approx(300, abs=1)
    assert site.url("/") in result.message
    assert "status 429" in result.message
    assert "5 min" in result.message
    snapshot(result.message)


async def test_the_headers_of_an_answer_can_be_sent_as_they_are(site: Site) -> None:
    """Issue 4, 1: they are a mapping as any other, and repeated fields stay so"""
    site.reply("/a", Reply(body="x", headers=[("X-Part", "1"), ("X-Part", "2")]))
    site.page("/b", "x")

    async with client() as web:
        first = await web.fetch(site.url("/a"))
        assert (await web.fetch(site.url("/b"), headers=first.headers.without({"content-length"}))).ok

    sent = [value for name, value in site.visits("/b")[0].headers if name.lower() == "x-part"]
    assert sent == ["1", "2"]


async def test_a_host_that_is_not_limited_neither_waits_for_the_global_rate_nor_uses_it(
    site: Site, tmp_path: Path
) -> None:  # fmt: skip
    """C16: its requests take no time of the clock, and the next host is admitted at once."""
    settings, clock = tmp_path / "domains.yaml", FakeClock(DAWN)
    settings.write_text("allowlist: [{domain: 127.0.0.2, limited: false}]\nglobal_qps: 0.001\n")
    free, other = (site.url("/", host=host) for host in ("127.0.0.2", "127.0.0.3"))

    async with client(config=settings, clock=clock, respect_robots=False) as web:
        for _ in range(3):
            await web.fetch(free)
        await web.fetch(other)
        took = clock.now().epoch / SECOND - DAWN

    assert (site.count(host="127.0.0.2"), site.count(host="127.0.0.3")) == (3, 1)
    assert took < 1

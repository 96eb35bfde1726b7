"""One fetch, from the call to the result: answers of every kind, and everything that can go wrong on the way."""

from __future__ import annotations

import asyncio
import gc
import itertools
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import fetch_url
from curtsy.clock import FakeClock
from curtsy.core.errors import BadStatus, PolicyError, Reason, RefusedByRobots, Unreachable
from curtsy.core.record import FetchRecord
from curtsy.http import AiohttpSender
from tests.client.fetching import AGENT, TICK, UNPACED, client, host_of, until
from tests.support.bounds import MIB, bounded_memory, ends_within
from tests.support.certificates import Authority
from tests.support.site import (
    Reply,
    Site,
    bomb,
    closed_port,
    cut_short,
    deaf_port,
    dripping,
    endless,
    garbage,
    hang,
    has_ipv6,
    later,
    reset,
)


def kept_in(place: Path) -> list[Path]:
    return list(place.rglob("*.meta.json"))


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
        assert record.took >= record.waited
        stats = web.stats()
        assert (stats.fetches, stats.ok, stats.requests, stats.bytes) == (1, 1, 1, 5)


@pytest.mark.parametrize("status", [201, 203, 204, 206])
async def test_every_status_of_success_is_ok(site: Site, status: int) -> None:
    """N3"""
    site.reply("/", Reply(status))

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert (result.ok, result.status, result.reason) == (True, status, None)


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


async def test_a_body_of_an_error_page_is_there_to_be_read(site: Site) -> None:
    site.reply("/", Reply(404, "gone fishing", {"Content-Type": "text/plain"}))

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert result.text == "gone fishing"
    assert result.message == f"{site.url('/')} does not exist (404). Correct the link, or leave it out."


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
            assert (await web.fetch(site.url("/"))).status == 304


BROKEN = {
    "a reset": (reset(), Reason.CONNECTION_ERROR),
    "no answer": (garbage(b""), Reason.CONNECTION_ERROR),
    "not HTTP": (garbage(b"220 ready\r\n"), Reason.BAD_RESPONSE),
    "a status that is no number": (garbage(b"HTTP/1.1 abc OK\r\n\r\n"), Reason.BAD_RESPONSE),
    "a body cut short": (cut_short(b"x" * 100, 10), Reason.INCOMPLETE),
    "a chunked body cut short": (cut_short(b"x" * 100, 10, chunked=True), Reason.INCOMPLETE),
    "a body reset": (cut_short(b"x" * 100, 10, "reset"), Reason.INCOMPLETE),
    "a length that is none": (garbage(b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\nabc"), Reason.BAD_RESPONSE),
    "a chunk size that is none": (
        garbage(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc\r\n0\r\n\r\n"), Reason.BAD_RESPONSE,
    ),
    "a head too large": (Reply(headers={"X": "y" * 70_000}), Reason.TOO_LARGE),
    "a length over the cap": (Reply(length=1 << 50, end="hang"), Reason.TOO_LARGE),
    "a coding unasked for": (Reply(body=b"x", headers={"Content-Encoding": "lzma"}), Reason.BAD_RESPONSE),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_answer_is_a_result_and_never_an_exception(site: Site, kind: str, tmp_path: Path) -> None:
    """F03, F06, F08, F11, F12: counted by the breaker where it is a fault of the site, kept nowhere"""
    reply, reason = BROKEN[kind]
    site.reply("/", reply)

    async with client(**ONCE, cache=tmp_path / "pages") as web:
        result = await web.fetch(site.url("/"))
        host = await host_of(web, site.url("/"))

    assert (result.ok, result.reason, result.body) == (False, reason, b"")
    assert host.failures == (0 if reason is Reason.TOO_LARGE else 1)
    assert host.places == ()
    assert host.requests == 2  # robots.txt is one of them
    assert not kept_in(tmp_path)
    with pytest.raises(Unreachable):
        result.raise_for_reason()


async def test_a_body_that_never_ends_is_given_up_at_the_cap_and_not_asked_for_again(site: Site) -> None:
    """F03"""
    site.reply("/", endless())

    with bounded_memory():
        async with client(max_body=1 * MIB) as web:
            result = await web.fetch(site.url("/"))

    assert (result.reason, result.record.attempts) == (Reason.TOO_LARGE, 1)
    assert site.visits("/")[0].taken <= 2 * MIB


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
async def test_a_bomb_is_given_up_at_the_cap(site: Site, coding: str, tmp_path: Path) -> None:
    """F01: one request, nothing handed on, nothing kept"""
    site.reply("/", bomb(coding, 256 * MIB))

    with bounded_memory():
        async with client(cache=tmp_path / "pages") as web:
            result = await web.fetch(site.url("/"))

    assert (result.reason, result.body) == (Reason.TOO_LARGE, b"")
    assert site.count("/") == 1
    assert not kept_in(tmp_path)


async def test_a_body_that_drips_ends_at_the_timeout_and_frees_the_host(site: Site) -> None:
    """F04, N9"""
    site.reply("/drip", dripping(b"x" * 1000, 0.05))
    site.page("/next", "x")

    async with client(**ONCE, timeout=0.4) as web:
        with ends_within(2):
            result = await web.fetch(site.url("/drip"))
        following = await web.fetch(site.url("/next"))

    assert result.reason is Reason.TIMEOUT
    assert following.ok


async def test_no_answer_within_the_timeout_is_a_timeout(site: Site) -> None:
    """N9, U6"""
    site.reply("/", hang())

    async with client(**ONCE, timeout=0.3) as web:
        with ends_within(2):
            result = await web.fetch(site.url("/"))
        host = await host_of(web, site.url("/"))

    assert result.reason is Reason.TIMEOUT
    assert host.failures == 1
    assert "no answer within 0.3 s" in result.message


async def test_a_connection_that_is_not_made_in_time_costs_no_budget() -> None:
    """N9, B5"""
    with deaf_port() as port:
        async with client(**ONCE, connect_timeout=0.2, respect_robots=False) as web:
            result = await web.fetch(f"http://127.0.0.1:{port}/")
            host = await host_of(web, f"http://127.0.0.1:{port}/")

    assert result.reason is Reason.TIMEOUT
    assert [(day.requests, day.pages) for day in host.days] == [(0, 0)]


async def test_a_port_that_refuses_is_a_connection_error_and_opens_the_breaker_after_three() -> None:
    """Q5, U6, F12"""
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/"
        async with client(respect_robots=False) as web:
            first = await web.fetch(url)
            second = await web.fetch(url)

    assert (first.reason, first.record.attempts) == (Reason.CONNECTION_ERROR, 3)
    assert first.retry_after == pytest.approx(300, abs=10)
    assert second.reason is Reason.CIRCUIT_OPEN


async def test_a_name_that_does_not_exist_is_a_dns_error() -> None:
    """F12, N3"""
    async with client(**ONCE, respect_robots=False, sender=AiohttpSender(resolver={})) as web:
        result = await web.fetch("http://nobody.test/")

    assert result.reason is Reason.DNS_ERROR
    assert result.message.endswith("Check the name.")


@pytest.mark.parametrize("kind", ["self-signed", "expired", "wrong host"])
async def test_a_certificate_that_is_not_good_is_refused(kind: Any) -> None:
    """F36"""
    authority = Authority()
    with Site(tls=authority.server(kind)) as site:
        site.page("/", "secret")
        async with client(**ONCE, verify=authority.client(), respect_robots=False) as web:
            result = await web.fetch(site.url("/"))

    assert (result.reason, result.body) == (Reason.TLS_ERROR, b"")
    assert site.journal == []


async def test_a_good_certificate_of_ones_own_authority_is_taken(tmp_path: Path) -> None:
    """F36"""
    authority = Authority()
    authority.write(tmp_path / "ca.pem")
    with Site(tls=authority.server()) as site:
        site.page("/", "fine")
        async with client(verify=tmp_path / "ca.pem") as web:
            result = await web.fetch(site.url("/"))

    assert result.text == "fine"


async def test_plain_http_on_a_tls_port_is_a_tls_error(site: Site) -> None:
    """F36"""
    async with client(**ONCE, respect_robots=False) as web:
        result = await web.fetch(site.url("/", scheme="https"))

    assert result.reason is Reason.TLS_ERROR


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
async def test_an_ipv6_address_is_a_host_like_any_other(site: Site) -> None:
    """U1"""
    site.page("/a", "six")

    async with client() as web:
        result = await web.fetch(site.url("/a", host="::1"))

    assert result.text == "six"
    assert site.paths("::1") == ["/robots.txt", "/a"]


async def test_http_1_0_and_connections_closed_after_each_answer_do_no_harm() -> None:
    """F12"""
    with Site(requests_per_connection=1) as site:
        site.reply("/old", Reply(body="old", version="1.0"))
        site.reply("/until-close", Reply(body="open end", length=None))
        site.page("/new", "new")

        async with client() as web:
            texts = [(await web.fetch(site.url(path))).text for path in ("/old", "/until-close", "/new", "/new")]

    assert texts == ["old", "open end", "new", "new"]


async def test_a_connection_that_was_closed_while_idle_is_not_a_failure() -> None:
    """F12: keep-alive ended under us"""
    with Site() as site:
        site.reply("/", Reply(body="x", end="close"))

        async with client() as web:
            for _ in range(3):
                assert (await web.fetch(site.url("/"))).ok
                await site.left()
            host = await host_of(web, site.url("/"))

    assert host.failures == 0
    assert site.count("/") == 3


@pytest.mark.parametrize(
    "url",
    ["", "   ", "example.org", "ftp://example.org/", "http://", "http://[::1", "http://a b/", "http://x:99999/",
     "javascript:alert(1)", "http://exa\x00mple/", "http://" + "a" * 9000, "mailto:a@b", "//host/path"],
)  # fmt: skip
async def test_what_is_no_url_is_refused_in_words(url: str) -> None:
    """U1"""
    async with client() as web:
        result = await web.fetch(url)

    assert (result.ok, result.status, result.reason) == (False, None, Reason.INVALID_URL)
    assert result.message.startswith("not fetching ")
    assert len(result.message) < 400


@pytest.mark.parametrize("url", [None, 7, b"http://x/", "http://x/\ud800", "http://us\ud800er:pw@127.0.0.1:1/"])
async def test_not_even_what_is_no_text_raises(url: Any, tmp_path: Path) -> None:
    """U1: never an exception out of the blue"""
    async with client(**ONCE, respect_robots=False, sender=AiohttpSender(resolver={})) as web:
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


async def test_a_hundred_tasks_for_one_page_are_one_fetch(site: Site) -> None:
    """Issue 4, 5: one fetch however many tasks ask for the same URL at once"""
    site.page("/a", "x")

    async with client() as web:
        results = await asyncio.gather(*(web.fetch(site.url("/a")) for _ in range(100)))

    assert all(result.ok for result in results)
    assert site.paths() == ["/robots.txt", "/a"]


async def test_tasks_that_differ_in_their_headers_do_not_share(site: Site) -> None:
    site.on("/a", lambda visit: Reply(body=visit.header("Accept-Language") or ""))

    async with client() as web:
        texts = await asyncio.gather(
            web.fetch(site.url("/a"), headers={"Accept-Language": "de"}),
            web.fetch(site.url("/a"), headers={"Accept-Language": "fr"}),
        )

    assert [each.text for each in texts] == ["de", "fr"]


async def test_one_of_those_who_share_may_go_without_harm_to_the_others(site: Site) -> None:
    site.reply("/a", Reply(body="x", wait=0.1))

    async with client() as web:
        leaver = asyncio.ensure_future(web.fetch(site.url("/a")))
        stayer = asyncio.ensure_future(web.fetch(site.url("/a")))
        await until(lambda: site.count("/a"))
        leaver.cancel()

        assert (await stayer).ok

    assert leaver.cancelled()
    assert site.count("/a") == 2  # the first one's request ended with it: the one who stayed asked anew, in its turn
    assert site.max_concurrency() == 1


async def test_posts_are_never_shared(site: Site) -> None:
    site.on("/form", lambda visit: Reply(body=visit.body))

    async with client() as web:
        results = await asyncio.gather(
            *(web.fetch(site.url("/form"), method="POST", body=each) for each in (b"1", b"2"))
        )

    assert [each.body for each in results] == [b"1", b"2"]


async def test_a_hundred_tasks_are_served_first_come_first_served_and_one_at_a_time(site: Site) -> None:
    """P1, issue 4, 1"""
    site.reply("/*", Reply(body="x", wait=0.001))
    told: list[FetchRecord] = []

    async with client(on_record=told.append, max_requests_per_day=0, max_pages_per_day=0) as web:
        await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(100)))

    assert site.paths() == ["/robots.txt", *(f"/{number}" for number in range(100))]
    assert site.max_concurrency() == 1
    gaps = [b.at - a.at for a, b in itertools.pairwise(told)]
    assert min(gaps) >= 1.5 - TICK


@pytest.mark.alone
async def test_in_real_time_no_two_requests_are_closer_than_the_pause(site: Site) -> None:
    """P1, Q1: by the site's own clock"""
    site.page("/*", "x")

    async with client(clock=None, global_qps=None, qps=None, pause_min=0.1, pause_max=0.15) as web:
        await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(10)))

    assert site.count() == 11
    assert min(site.gaps()) >= 0.0995
    assert sum(site.gaps()) < 10 * 0.15 + 0.5
    assert site.max_concurrency() == 1


async def test_many_are_given_out_as_they_come_and_one_that_fails_stops_nobody(site: Site) -> None:
    """N10"""
    site.reply("/slow", Reply(body="slow", wait=0.3))
    site.page("/quick", "quick", host="127.0.0.2")
    urls = [site.url("/slow"), "nonsense", site.url("/quick", host="127.0.0.2")]

    async with client(clock=None, **UNPACED, respect_robots=False) as web:
        results = [result async for result in web.fetch_many(iter(urls))]

    assert [result.reason for result in results] == [Reason.INVALID_URL, None, None]
    assert [result.text for result in results[1:]] == ["quick", "slow"]


async def test_many_may_be_endless_and_what_is_not_wanted_any_more_is_given_back(site: Site) -> None:
    """B5"""
    site.page("/*", "x")

    def numbers() -> Any:
        number = 0
        while True:
            yield site.url(f"/{number}")
            number += 1

    async with client(**UNPACED) as web:
        results = web.fetch_many(numbers(), at_once=4)
        got = [await anext(results) for _ in range(3)]
        await results.aclose()

        assert all(result.ok for result in got)
        assert web.gate.lines.waiting == 0
        assert web.gate.lines.out == 0


async def test_a_batch_that_cannot_be_sent_is_one_error(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """F26: and nothing is left over that nobody looks at"""
    async with client() as web:
        with pytest.raises(PolicyError, match="header"):
            async for _ in web.fetch_many([site.url(f"/{number}") for number in range(5)], headers={"X": "a\nb"}):
                pass
    gc.collect()

    assert site.journal == []
    assert "never retrieved" not in caplog.text


async def test_an_url_that_is_none_does_not_end_a_batch(site: Site) -> None:
    """N10"""
    site.page("/*", "x")
    urls: list[Any] = [site.url("/1"), None, site.url("/2")]

    async with client() as web:
        results = [result async for result in web.fetch_many(urls)]

    assert sorted(result.ok for result in results) == [False, True, True]


async def test_a_client_that_is_closed_ends_what_is_under_way_with_a_result(site: Site, tmp_path: Path) -> None:
    """Issue 4, 1: a task that was not cancelled itself is not told that it was"""
    site.reply("/*", hang())
    web = client(respect_robots=False, concurrency=4, **UNPACED)
    waiting: list[asyncio.Future[Any]] = [
        asyncio.ensure_future(web.fetch(site.url("/get"))),
        asyncio.ensure_future(web.fetch(site.url("/post"), method="POST", body=b"x")),
        asyncio.ensure_future(web.download(site.url("/file"), tmp_path / "file")),
    ]
    await until(lambda: site.count() == 3)

    await web.close()

    results = await asyncio.gather(*waiting)
    assert [result.reason for result in results] == [Reason.CLOSED] * 3
    assert "was closed" in results[0].message
    assert web.gate.lines.out == 0
    await web.close()
    with pytest.raises(PolicyError, match="closed"):
        await web.fetch(site.url("/late"))


async def test_a_callback_that_fails_costs_nobody_his_page(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.page("/", "x")

    def broken(record: FetchRecord) -> None:
        raise RuntimeError("not my day")

    async with client(on_record=broken) as web:
        result = await web.fetch(site.url("/"))

    assert result.ok
    assert "not my day" in caplog.text


async def test_the_log_has_one_line_for_each_fetch(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """N1, R1, B2"""
    site.robots("User-agent: *\nDisallow: /private")
    site.page("/", "x")

    with caplog.at_level("INFO", logger="curtsy"):
        async with client(max_pages_per_day=1) as web:
            for path in ("/", "/private", "/2"):
                await web.fetch(site.url(path))

    words = [str(record.msg).partition(" {")[0] for record in caplog.records if record.name == "curtsy.client"]
    assert words == ["Fetched", "Blocked by robots.txt", "Domain daily budget exceeded"]


async def test_a_user_agent_without_a_contact_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """U10"""
    async with client(user_agent="anybot/1.0"):
        pass

    assert "names no contact" in caplog.text


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
    async with client(allow_private=False, sender=AiohttpSender(resolver=site.names)) as web:
        named = await web.fetch(site.url("/", host="shop.test"))
        host = await host_of(web, site.url("/", host="shop.test"))

    assert literal.reason is named.reason is Reason.ADDRESS_REFUSED
    assert site.connections == 0
    assert host.failures == 0
    assert [(day.requests, day.pages) for day in host.days] == [(0, 0)]


async def test_a_disallowed_page_can_be_raised_as_what_it_is(site: Site) -> None:
    """R1"""
    site.robots("User-agent: *\nDisallow: /\n")

    async with client() as web:
        result = await web.fetch(site.url("/a"))

    with pytest.raises(RefusedByRobots) as caught:
        result.raise_for_reason()
    assert str(caught.value) == (
        f'not fetching {site.url("/a")}: robots.txt line 2 says "Disallow: /" to testbot. '
        "Ask the site's owner, or leave this URL out."
    )
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


async def test_requests_to_all_hosts_together_keep_the_global_rate(site: Site) -> None:
    """Q1, C8: 0.8 a second, or none with the preset for many hosts"""
    clock = FakeClock()
    came: list[float] = []
    site.on("/*", lambda visit: came.append(clock.now().at / 1e6) or Reply(body="x"))  # type: ignore[func-returns-value]
    urls = [site.url("/", host=f"127.0.0.{number}") for number in range(1, 7)]

    async with client(clock=clock) as web:
        await asyncio.gather(*(web.fetch(url) for url in urls))
    gaps = [b - a for a, b in itertools.pairwise(came)]
    came.clear()
    async with client(clock=clock, preset="broad") as web:
        await asyncio.gather(*(web.fetch(url) for url in urls))

    assert len(gaps) == 11
    assert min(gaps) >= 1.25 - TICK
    assert came[5] == came[0]


async def test_a_site_of_ones_own_is_asked_sixteen_times_at_once(site: Site) -> None:
    """C8"""
    site.reply("/*", Reply(body="x", wait=0.05))

    async with client(clock=None, preset="own", respect_robots=False) as web:
        results = await asyncio.gather(*(web.fetch(site.url(f"/{number}")) for number in range(40)))

    assert all(result.ok for result in results)
    assert 8 < site.max_concurrency() <= 16


async def test_a_store_that_cannot_be_used_stops_no_fetch_and_lifts_no_limit(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B8, U16: counted in memory, and told once"""
    site.page("/*", "x")
    (tmp_path / "file").write_text("not a folder")
    store = f"sqlite:///{tmp_path}/file/hosts.sqlite"

    async with client(store=store, max_pages_per_day=3) as web:
        reasons = [(await web.fetch(site.url(f"/{number}"))).reason for number in range(4)]

    assert reasons == [None, None, None, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1


async def test_a_429_that_says_nothing_names_the_time_to_come_back(site: Site) -> None:
    """C2, U4: the result keeps the last status"""
    site.reply("/", later())

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert (result.status, result.reason, result.record.attempts) == (429, Reason.HTTP_STATUS, 1)
    assert result.retry_after == pytest.approx(300, abs=1)
    assert result.message == f"{site.url('/')} answered with status 429. Come back in 5 min."

"""What sites and networks do wrong: every fault is a result, costs what it should, and frees the host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import Reason, Unreachable
from curtsy.http.sender import HttpSender
from curtsy.testing import FakeClock
from tests.client.fetching import UNPACED, client, host_of
from tests.support.bounds import MIB, bounded_memory, ends_within
from tests.support.certificates import Authority
from tests.support.polling import block_until
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
    reset,
)
from tests.support.snapshot import Snapshot


def kept_in(place: Path) -> list[Path]:
    return list(place.rglob("*.meta.json"))


ONCE: dict[str, Any] = {"max_retries": 0}

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


DAMAGED = {
    "cut short": Reply(body="busy", length=100, end="close"),
    "not gzip": Reply(body="busy", headers={"Content-Encoding": "gzip"}),
    "a coding unasked for": Reply(body="busy", headers={"Content-Encoding": "lzma"}),
    "over the cap": Reply(length=1 << 50, end="close"),
}


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_site_that_asks_for_a_rest_gets_it_however_its_page_came(site: Site, kind: str, status: int) -> None:
    """C2, F50"""
    damaged = DAMAGED[kind]
    site.reply("/", replace(damaged, status=status, headers={**dict(damaged.headers), "Retry-After": "60"}))

    async with client(**ONCE, respect_robots=False) as web:
        first = await web.fetch(site.url("/"))
        second = await web.fetch(site.url("/other"), deadline=30)

    assert (first.reason, first.status, first.retry_after) == (Reason.HTTP_STATUS, status, 60)
    assert second.reason in (Reason.DEADLINE, Reason.CIRCUIT_OPEN)
    assert site.paths() == ["/"]


@pytest.mark.parametrize("kind", DAMAGED)
async def test_a_site_that_does_not_want_us_is_left_alone_however_its_page_came(site: Site, kind: str) -> None:
    """U6"""
    site.reply("/", replace(DAMAGED[kind], status=403))

    async with client(respect_robots=False) as web:
        first = await web.fetch(site.url("/"))
        second = await web.fetch(site.url("/other"))

    assert (first.status, second.reason) == (403, Reason.CIRCUIT_OPEN)
    assert site.paths() == ["/"]


@pytest.mark.parametrize("kind", DAMAGED)
async def test_a_redirect_is_followed_however_its_page_came(site: Site, kind: str) -> None:
    """U3"""
    damaged = DAMAGED[kind]
    site.reply("/", replace(damaged, status=302, headers={**dict(damaged.headers), "Location": "/there"}))
    site.page("/there", "found")

    async with client(respect_robots=False) as web:
        assert (await web.fetch(site.url("/"))).text == "found"


async def test_an_error_page_that_is_not_all_there_is_not_kept(site: Site, place: Path, clock: FakeClock) -> None:
    """F06"""
    whole = Reply(404, "gone for good", {"Cache-Control": "max-age=600"})
    site.script("/", [replace(whole, length=100, end="close"), whole])

    async with client(respect_robots=False, cache=place, clock=clock) as web:
        bodies = [(await web.fetch(site.url("/"))).body for _ in range(3)]

    assert bodies == [b"gone for good"] * 3
    assert site.count("/") == 2


async def test_what_follows_a_whole_answer_is_no_failure_of_the_site(site: Site) -> None:
    """F12"""
    site.reply("/", Reply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok, and more"))

    async with client(respect_robots=False) as web:
        texts = [(await web.fetch(site.url("/"))).text for _ in range(3)]
        host = await host_of(web, site.url("/"))

    assert texts == ["ok"] * 3
    assert host.failures == 0


async def test_a_body_that_never_ends_is_given_up_at_the_cap_and_not_asked_for_again(site: Site) -> None:
    """F03"""
    site.reply("/", endless())

    with bounded_memory():
        async with client(max_body=1 * MIB) as web:
            result = await web.fetch(site.url("/"))

    assert (result.reason, result.record.attempts) == (Reason.TOO_LARGE, 1)
    assert site.visits("/")[0].taken <= 2 * MIB


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
async def test_a_bomb_is_given_up_at_the_cap(site: Site, coding: str, tmp_path: Path, snapshot: Snapshot) -> None:
    """F01: one request, nothing handed on, nothing kept"""
    site.reply("/", bomb(coding, 256 * MIB))

    with bounded_memory():
        async with client(cache=tmp_path / "pages") as web:
            result = await web.fetch(site.url("/"))

    assert (result.reason, result.body) == (Reason.TOO_LARGE, b"")
    assert site.count("/") == 1
    assert not kept_in(tmp_path)
    assert "max_body" in result.message
    if coding == "gzip":
        snapshot(result.message)


async def test_a_body_that_drips_ends_at_the_timeout_and_frees_the_host(site: Site) -> None:
    """F04, N9"""
    site.reply("/drip", dripping(b"x" * 1000, 0.05))
    site.page("/next", "x")

    async with client(**ONCE, timeout=1.5) as web:
        with ends_within(8):
            result = await web.fetch(site.url("/drip"))
        following = await web.fetch(site.url("/next"))

    assert result.reason is Reason.TIMEOUT
    assert following.ok


async def test_no_answer_within_the_timeout_is_a_timeout(site: Site, snapshot: Snapshot) -> None:
    """N9, U6"""
    site.reply("/", hang())

    async with client(**ONCE, timeout=1.5) as web:
        with ends_within(8):
            result = await web.fetch(site.url("/"))
        host = await host_of(web, site.url("/"))

    assert result.reason is Reason.TIMEOUT
    assert host.failures == 1
    assert "1.5 s" in result.message
    snapshot(result.message)


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

    assert first.reason is Reason.CONNECTION_ERROR
    assert "3 tries" in first.message
    assert first.record.attempts == 0  # nothing could be sent
    assert first.retry_after == pytest.approx(300, abs=10)
    assert second.reason is Reason.CIRCUIT_OPEN


async def test_a_name_that_does_not_exist_is_a_dns_error(snapshot: Snapshot) -> None:
    """F12, N3"""
    async with client(**ONCE, respect_robots=False, sender=HttpSender(resolver={})) as web:
        result = await web.fetch("http://nobody.test/")

    assert result.reason is Reason.DNS_ERROR
    assert "http://nobody.test/" in result.message
    snapshot(result.message)
    assert (result.record.attempts, result.record.requests_left) == (0, 200)


@pytest.mark.parametrize(
    ("names", "reason"),
    [({}, Reason.DNS_ERROR), ({"shop.test": ["10.0.0.1"]}, Reason.ADDRESS_REFUSED)],
)
async def test_what_was_never_sent_is_counted_as_no_request(names: dict[str, list[str]], reason: Reason) -> None:
    """Issue 4, 9, B5: tries without a request cost no budget, and are none in record, statistics and log"""
    async with client(sender=HttpSender(resolver=names), allow_private=False, respect_robots=False) as web:
        result = await web.fetch("http://shop.test/")
        stats = web.stats()

    assert result.reason is reason
    assert (result.record.attempts, result.record.retries, result.record.latency) == (0, 0, None)
    assert (stats.fetches, stats.requests, stats.retries) == (1, 0, 0)


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


async def test_a_site_that_closes_after_each_answer_does_no_harm_without_a_pause() -> None:
    """F12: then the event loop has not seen it close"""
    with Site() as site:
        site.reply("/", Reply(body="x", end="close"))

        async with client(**ONCE, **UNPACED, clock=None, respect_robots=False) as web:
            for _ in range(5):
                assert (await web.fetch(site.url("/"))).ok
                block_until(lambda: not site.open_connections)

    assert site.count("/") == 5


async def test_a_store_that_cannot_be_used_stops_no_fetch_and_lifts_no_limit(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """B8, U16: counted in memory, and told once"""
    site.page("/*", "x")
    (tmp_path / "file").write_text("not a folder")
    store = f"sqlite:///{tmp_path}/file/hosts.sqlite"

    async with client(store=store, max_pages_per_day=3, **UNPACED) as web:
        reasons = [(await web.fetch(site.url(f"/{number}"))).reason for number in range(4)]

    assert reasons == [None, None, None, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 1

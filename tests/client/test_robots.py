"""robots.txt on the way of a request: fetched once, obeyed by everybody, survived whatever it does."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from curtsy.client import session_of
from curtsy.core.errors import Reason
from curtsy.core.rules import Rules
from curtsy.http.sender import HttpSender
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import DAWN, TICK, UNPACED, client, domain_of, host_of
from tests.support.bounds import MIB, bounded_memory, ends_within
from tests.support.polling import until
from tests.support.site import Reply, Site, bomb, encoded, endless, hang, later, redirect, reset
from tests.support.snapshot import Snapshot

PRIVATE = "User-agent: *\nDisallow: /private\n"


def allowing(site: Site) -> None:
    site.page("/page", "x")
    site.page("/private", "x")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
async def test_a_robots_txt_that_is_not_there_allows_everything(site: Site, status: int) -> None:
    """R6: and none of these is a block, though a page that answered 403 would be"""
    site.robots("User-agent: *\nDisallow: /\n", status=status)
    allowing(site)

    async with client() as web:
        result = await web.fetch(site.url("/private"))

    assert result.ok
    assert site.paths() == ["/robots.txt", "/private"]


UNREACHABLE: dict[str, Reply] = {
    "500": Reply(500, PRIVATE),
    "503": later(status=503),
    "a reset": reset(),
    "silence": hang(),
    "a body that breaks off": Reply(body=PRIVATE, stop_after=10, end="close"),
    "nonsense": Reply(raw=b"nonsense\r\n\r\n", end="close"),
}


SILENCE = 1.2
"""Seconds of silence that are enough: a busy machine must have sent the request by then."""


@pytest.mark.parametrize("kind", UNREACHABLE)
async def test_a_robots_txt_that_cannot_be_had_allows_everything(site: Site, kind: str) -> None:
    """R6, C5, F27: the document's reading; one attempt, and not one more for the next page"""
    site.reply("/robots.txt", UNREACHABLE[kind])
    allowing(site)

    async with client(robots_timeout=SILENCE) as web:
        results = [await web.fetch(site.url(path)) for path in ("/private", "/page")]
        host = await host_of(web, site.url("/"))

    assert [result.ok for result in results] == [True, True]
    assert site.paths() == ["/robots.txt", "/private", "/page"]
    assert host.failures == 0  # the pages that came set it back


@pytest.mark.parametrize("kind", UNREACHABLE)
async def test_by_the_strict_reading_it_forbids_everything(site: Site, kind: str, snapshot: Snapshot) -> None:
    """R6, F27: no page is asked for, robots.txt at most three times in the cooldown"""
    site.reply("/robots.txt", UNREACHABLE[kind])
    allowing(site)

    async with client(robots_timeout=SILENCE, robots_unreachable="disallow") as web:
        results = [await web.fetch(site.url(path)) for path in ("/private", "/page", "/page")]

    assert {result.reason for result in results} == {Reason.ROBOTS_UNREACHABLE}
    assert "robots.txt" in results[0].message
    snapshot(results[0].message)
    assert [result.retry_after for result in results] == [pytest.approx(300, abs=40)] * 3
    assert site.paths() == ["/robots.txt"]


WHOLE = PRIVATE + "Crawl-delay: 2\n"
LONG = (WHOLE + "# and so on\n" * 400 + "Disallow: /zzz\n" * 400).encode()
CUT = len(WHOLE) + len("Disallow: /")
"""Octets after which it breaks off: half a line that says another thing than the whole one."""

PACKED = encoded(LONG, "gzip").body
assert isinstance(PACKED, bytes)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n"
BROKEN_OFF: dict[str, Reply] = {
    "closed": Reply(body=WHOLE + "Disallow: /zzz\n", stop_after=CUT, end="close"),
    "silent": Reply(body=WHOLE + "Disallow: /zzz\n", stop_after=CUT, end="hang"),
    "a chunk that is none": Reply(raw=CHUNKED % (CUT, f"{WHOLE}Disallow: /".encode()) + b"zz\r\n", end="close"),
    "a chunk that is missing": Reply(raw=CHUNKED % (CUT, f"{WHOLE}Disallow: /".encode()), end="close"),
    "a part that was not requested": Reply(206, f"{WHOLE}Disallow: /", {"Content-Range": f"bytes 0-{CUT - 1}/900"}),
    "a coded body that ends": encoded(LONG, "gzip", stop_after=len(PACKED) - 20, end="close"),
    "a coded body whose end is missing": Reply(body=PACKED[:-20], headers={"Content-Encoding": "gzip"}),
    "a coded body that is damaged": Reply(body=PACKED[:-12] + b"\xff" * 12, headers={"Content-Encoding": "gzip"}),
}


@pytest.mark.parametrize("unreachable", ["allow", "disallow"])
@pytest.mark.parametrize("kind", BROKEN_OFF)
async def test_rules_that_came_before_a_robots_txt_broke_off_bind(site: Site, kind: str, unreachable: str) -> None:
    """C21, R6: the rest counts as unreachable, and half a line as none"""
    site.reply("/robots.txt", BROKEN_OFF[kind])
    allowing(site)

    async with client(robots_timeout=SILENCE, robots_unreachable=unreachable) as web:
        forbidden = await web.fetch(site.url("/private"))
        page = await web.fetch(site.url("/page"))
        host = await host_of(web, site.url("/"))

    assert (forbidden.reason, forbidden.record.robots_line) == (Reason.ROBOTS_DISALLOWED, 2)
    assert page.reason is (None if unreachable == "allow" else Reason.ROBOTS_UNREACHABLE)
    assert site.paths() == ["/robots.txt", *(["/page"] if unreachable == "allow" else [])]
    assert host.crawl_delay == (2_000_000 if unreachable == "allow" else 0)


async def test_an_earlier_copy_holds_for_what_a_robots_txt_that_broke_off_does_not_forbid(site: Site) -> None:
    """C21, R6: and what either forbids is forbidden, until a whole one comes"""
    clock = FakeClock(DAWN)
    texts = [Reply(body="User-agent: *\nDisallow: /old\n"), BROKEN_OFF["closed"], reset(), Reply(body="")]
    site.script("/robots.txt", texts)
    for path in ("/old", "/private", "/page"):
        site.page(path, "x")
    seen = []

    async with client(clock=clock) as web:
        for _ in texts:
            seen.append([(await web.fetch(site.url(path))).ok for path in ("/old", "/private", "/page")])
            clock.advance(3700)

    assert seen == [[False, True, True], [False, False, True], [False, False, True], [True, True, True]]
    assert site.count("/robots.txt") == 4


async def test_a_429_on_robots_txt_is_obeyed(site: Site) -> None:
    """R6, C2: the host rests as long as it says"""
    site.script("/robots.txt", [later(20)])
    site.page("/page", "x")

    async with client() as web:
        result = await web.fetch(site.url("/page"))

    assert result.ok
    assert result.record.waited >= 20 - TICK
    assert site.paths() == ["/robots.txt", "/page"]


async def test_a_429_on_robots_txt_that_says_nothing_opens_the_breaker(site: Site) -> None:
    """C2"""
    site.reply("/robots.txt", later())

    async with client() as web:
        result = await web.fetch(site.url("/page"))

    assert result.reason is Reason.CIRCUIT_OPEN
    assert site.paths() == ["/robots.txt"]


@pytest.mark.parametrize("hops", [1, 5])
async def test_up_to_five_redirects_lead_to_a_robots_txt(site: Site, hops: int) -> None:
    """R7, F30: each hop paced"""
    site.reply("/robots.txt", redirect("/r/1"))
    for hop in range(1, hops):
        site.reply(f"/r/{hop}", redirect(f"/r/{hop + 1}"))
    site.reply(f"/r/{hops}", Reply(body=PRIVATE))
    allowing(site)
    clock = FakeClock()
    began = clock.now().at

    async with client(clock=clock) as web:
        result = await web.fetch(site.url("/private"))

    assert result.reason is Reason.ROBOTS_DISALLOWED
    assert result.record.robots_line == 2
    assert len(site.paths()) == hops + 1
    assert clock.now().at - began >= hops * 1_500_000


@pytest.mark.parametrize("to", ["chain", "loop"])
async def test_a_sixth_redirect_ends_it_and_everything_is_allowed(site: Site, to: str) -> None:
    """R7, F30: RFC 9309, 2.3.1.2"""
    site.reply("/robots.txt", redirect("/robots.txt" if to == "loop" else "/r/1"))
    for hop in range(1, 9):
        site.reply(f"/r/{hop}", redirect(f"/r/{hop + 1}"))
    allowing(site)

    async with client() as web:
        result = await web.fetch(site.url("/private"))

    assert result.ok
    assert len(site.paths()) == 6 + 1


async def test_a_robots_txt_of_another_host_holds_for_the_host_that_sent_us_there(site: Site) -> None:
    """R7, F30"""
    site.reply("/robots.txt", redirect(site.url("/robots.txt", host="127.0.0.2")), host="127.0.0.1")
    site.robots(PRIVATE, host="127.0.0.2")
    allowing(site)

    async with client() as web:
        forbidden = await web.fetch(site.url("/private"))
        page = await web.fetch(site.url("/page"))

    assert forbidden.reason is Reason.ROBOTS_DISALLOWED
    assert page.ok
    assert site.paths("127.0.0.1") == ["/robots.txt", "/page"]
    assert site.paths("127.0.0.2") == ["/robots.txt"]


@pytest.mark.parametrize("status", [300, 301, 302, 304, 305, 307, 308])
@pytest.mark.parametrize("unreachable", ["allow", "disallow"])
async def test_a_redirect_that_leads_nowhere_does_not_say_that_there_is_none(
    site: Site, clock: FakeClock, status: int, unreachable: str
) -> None:
    """R6: RFC 9309, 2.3.1.4: it is an error of the server, and an earlier copy goes on being used"""
    site.script("/robots.txt", [Reply(200, PRIVATE), Reply(status)])
    site.reply("/robots.txt", Reply(status), host="127.0.0.2")
    allowing(site)

    async with client(clock=clock, robots_unreachable=unreachable, robots_ttl=3600) as web:
        first = await web.fetch(site.url("/private"))
        clock.advance(4000)
        later = await web.fetch(site.url("/private"))
        without = await web.fetch(site.url("/private", host="127.0.0.2"))

    assert site.paths("127.0.0.1") == ["/robots.txt", "/robots.txt"]
    assert first.reason is later.reason is Reason.ROBOTS_DISALLOWED
    assert without.reason is (None if unreachable == "allow" else Reason.ROBOTS_UNREACHABLE)


@pytest.mark.parametrize("target", ["http://127.0.0.66:1/robots.txt", "http://a.localhost/robots.txt"])
async def test_by_a_proxy_robots_txt_leads_no_further_than_a_page(site: Site, target: str) -> None:
    """F19: the proxy would ask whatever it is told to"""
    site.reply("http://out.test/robots.txt", redirect(target))
    site.reply("http://out.test/page", Reply(200, "page"))
    site.reply("http://out.test/away", redirect(target))
    sender = HttpSender(proxy=site.url(""), resolver={"out.test": "93.184.216.34"})

    async with client(sender=sender, allow_private=False) as web:
        page = await web.fetch("http://out.test/page")
        away = await web.fetch("http://out.test/away")

    assert page.ok
    assert away.reason is Reason.ADDRESS_REFUSED
    assert site.paths() == ["http://out.test/robots.txt", "http://out.test/page", "http://out.test/away"]


@pytest.mark.parametrize("location", ["", "ftp://example.org/robots.txt", "http://127.0.0.66:1/robots.txt"])
async def test_a_redirect_to_where_nobody_may_go_means_that_there_is_none(site: Site, location: str) -> None:
    """F19, F22: for robots.txt as for pages"""
    site.reply("/robots.txt", redirect(location) if location else Reply(302))
    allowing(site)
    entries = [{"domain": "127.0.0.1", "allow_private": True}]

    async with client(allow_private=False, allowlist=entries) as web:
        result = await web.fetch(site.url("/private"))

    assert result.ok
    assert site.paths() == ["/robots.txt", "/private"]


@pytest.mark.parametrize(
    "denying",
    [{"denylist": ["127.0.0.2"]}, {"allowlist": [{"domain": "127.0.0.2", "deny_paths": ["/robots"]}]}],
    ids=["its host", "its path"],
)
async def test_a_redirect_to_where_our_settings_forbid_to_go_does_not_say_that_there_is_none(
    site: Site, denying: dict[str, Any]
) -> None:
    """R6, U9: others, who share what is remembered, may well go there; an earlier copy goes on being used"""
    clock = FakeClock(DAWN)
    store = MemoryStore(clock)
    site.reply("/robots.txt", redirect(site.url("/robots.txt", host="127.0.0.2")), host="127.0.0.1")
    site.robots(PRIVATE, host="127.0.0.2")
    allowing(site)

    async with client(clock=clock, store=store, **denying) as web:
        unknown = await web.fetch(site.url("/private"))
        asked = site.paths("127.0.0.2")
    clock.advance(301)
    async with client(clock=clock, store=store) as other:
        forbidden = await other.fetch(site.url("/private"))
    clock.advance(3601)
    async with client(clock=clock, store=store, **denying) as web:
        still = await web.fetch(site.url("/private"))

    assert (unknown.ok, forbidden.reason, still.reason) == (True, *[Reason.ROBOTS_DISALLOWED] * 2)
    assert (asked, site.paths("127.0.0.2")) == ([], ["/robots.txt"])


@pytest.mark.parametrize("kind", ["endless", "100 MiB", "a bomb"])
async def test_no_more_than_a_mebibyte_of_a_robots_txt_is_taken(site: Site, kind: str) -> None:
    """F28, R4: early rules are obeyed all the same"""
    early = PRIVATE.encode() + b"#" * 70_000 + b"\n"
    filler = b"# and so on\n" * 6000
    replies = {
        "endless": endless(early + filler),
        "100 MiB": Reply(body=lambda: [early, *[filler] * 1450], length=len(early) + 1450 * len(filler)),
        "a bomb": bomb("gzip", 256 * MIB),
    }
    site.reply("/robots.txt", replies[kind])
    allowing(site)

    with bounded_memory(), ends_within(5, work=2):
        async with client() as web:
            result = await web.fetch(site.url("/private"))

    assert result.reason is (None if kind == "a bomb" else Reason.ROBOTS_DISALLOWED)
    assert site.visits("/robots.txt")[0].taken <= 1 * MIB


LEGIBLE: dict[str, Reply] = {
    "gzip": encoded(PRIVATE.encode(), "gzip"),
    "brotli": encoded(PRIVATE.encode(), "br"),
    "a wrong charset": Reply(
        body=("# zażółć\n" + PRIVATE).encode("iso-8859-2"), headers={"Content-Type": "text/plain; charset=utf-16"}
    ),
    "a byte order mark": Reply(body=b"\xef\xbb\xbf" + PRIVATE.encode()),
    "UTF-16": Reply(body=PRIVATE.encode("utf-16")),
    "line ends of old": Reply(body=PRIVATE.replace("\n", "\r")),
    "noise before it": Reply(body=bytes(range(128, 256)) + b"\0\n" + PRIVATE.encode()),
    "a type of its own": Reply(body=PRIVATE, headers={"Content-Type": "application/octet-stream"}),
}


@pytest.mark.parametrize("kind", LEGIBLE)
async def test_what_can_be_read_of_a_robots_txt_is_obeyed(site: Site, kind: str) -> None:
    """F32, R4"""
    site.reply("/robots.txt", LEGIBLE[kind])
    allowing(site)

    async with client() as web:
        forbidden = await web.fetch(site.url("/private"))
        page = await web.fetch(site.url("/page"))

    assert forbidden.reason is Reason.ROBOTS_DISALLOWED
    assert page.ok
    assert site.count("/private") == 0


async def test_a_page_instead_of_a_robots_txt_forbids_nothing(site: Site) -> None:
    """F32"""
    site.reply("/robots.txt", Reply(body="<!doctype html><html><body><h1>Welcome</h1></body></html>"))
    allowing(site)

    async with client() as web:
        assert (await web.fetch(site.url("/private"))).ok


async def test_fifty_tasks_on_a_fresh_origin_make_one_request_for_robots_txt(site: Site) -> None:
    """R5, F35: and none of them goes past its answer"""
    site.reply("/robots.txt", Reply(body=PRIVATE, wait=0.05))
    site.page("/open/*", "x")

    async with client() as web:
        results = await asyncio.gather(
            *(web.fetch(site.url(f"/{'private' if number % 2 else 'open'}/{number}")) for number in range(50))
        )

    assert site.count("/robots.txt") == 1
    assert site.paths()[0] == "/robots.txt"
    assert [path for path in site.paths() if path.startswith("/private")] == []
    assert [result.reason for result in results] == [None, Reason.ROBOTS_DISALLOWED] * 25


async def test_when_the_first_of_many_gives_up_the_next_one_asks(site: Site) -> None:
    """R5, F35: the task of fetching it is handed on"""
    site.script("/robots.txt", [hang(), Reply(body=PRIVATE)])
    allowing(site)

    async with client() as web:
        first = asyncio.ensure_future(web.fetch(site.url("/page?1")))
        await until(lambda: site.count("/robots.txt"))
        others = [asyncio.ensure_future(web.fetch(site.url(f"/private?{number}"))) for number in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        results = await asyncio.gather(*others)

    assert {result.reason for result in results} == {Reason.ROBOTS_DISALLOWED}
    assert site.paths() == ["/robots.txt", "/robots.txt"]


async def test_it_is_asked_for_again_after_an_hour_and_not_before(site: Site) -> None:
    """R5"""
    site.robots(PRIVATE)
    allowing(site)
    clock = FakeClock()

    async with client(clock=clock) as web:
        await web.fetch(site.url("/page"))
        clock.advance(3500)
        await web.fetch(site.url("/page"))
        before = site.count("/robots.txt")
        clock.advance(100)
        await web.fetch(site.url("/page"))

    assert (before, site.count("/robots.txt")) == (1, 2)


async def test_it_is_asked_for_again_though_all_pages_stand_in_line_already(site: Site) -> None:
    """R5: what is forbidden meanwhile is not fetched, and what is allowed keeps its turn"""
    site.robots("User-agent: *\nCrawl-delay: 60\n")
    site.page("/*", "x")

    async with client(max_requests_per_day=0, max_pages_per_day=0) as web:
        waiting = [asyncio.ensure_future(web.fetch(site.url(f"/{number}"))) for number in range(100)]
        await until(lambda: site.count("/3"))
        site.robots("User-agent: *\nDisallow: /9\nCrawl-delay: 60\n")
        results = await asyncio.gather(*waiting)

    refused = [result.url.rpartition("/")[2] for result in results if not result.ok]
    assert site.count("/robots.txt") == 2
    assert refused == ["90", "91", "92", "93", "94", "95", "96", "97", "98", "99"]
    assert [path for path in site.paths() if path in ("/90", "/95")] == []


async def test_rules_that_are_forgotten_do_not_hold_for_who_stands_in_line(site: Site) -> None:
    """R5"""
    site.robots("User-agent: *\nCrawl-delay: 60\n")
    site.page("/*", "x")

    async with client() as web:
        waiting = [asyncio.ensure_future(web.fetch(site.url(f"/{number}"))) for number in range(10)]
        await until(lambda: site.count("/3"))
        site.robots("User-agent: *\nDisallow: /9\nCrawl-delay: 60\n")
        session_of(web).forget_rules()
        results = await asyncio.gather(*waiting)

    assert [result.reason for result in results] == [None] * 9 + [Reason.ROBOTS_DISALLOWED]
    assert (site.count("/robots.txt"), site.count("/9")) == (2, 0)


async def test_a_robots_txt_that_another_host_sends_us_for_goes_before_nobody(site: Site) -> None:
    """Issue 4, 1: first come, first served; it is not this host's line that waits for it"""
    site.robots("", host="127.0.0.2")
    site.page("/*", "x", host="127.0.0.2")
    site.reply("/robots.txt", redirect(site.url("/robots-of-1", host="127.0.0.2")), host="127.0.0.1")
    site.page("/page", "x", host="127.0.0.1")

    async with client(global_qps=None) as web:
        first = [asyncio.ensure_future(web.fetch(site.url(f"/{each}", host="127.0.0.2"))) for each in range(4)]
        await until(lambda: site.count("/0"))
        await asyncio.gather(web.fetch(site.url("/page")), *first)

    assert site.paths("127.0.0.2") == ["/robots.txt", "/0", "/1", "/2", "/3", "/robots-of-1"]


async def test_a_failure_is_remembered_for_five_minutes_then_ten_then_twenty(site: Site) -> None:
    """R5, F27: asked again after a back-off, not for every page"""
    site.reply("/robots.txt", Reply(500))
    site.page("/page", "x")
    clock = FakeClock()
    asked = []

    async with client(clock=clock, max_requests_per_day=0, max_pages_per_day=0) as web:
        for minute in range(45):
            before = site.count("/robots.txt")
            await web.fetch(site.url("/page"))
            if site.count("/robots.txt") > before:
                asked.append(minute)
            clock.advance(60)

    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert gaps[0] == pytest.approx(5, abs=1)
    assert gaps[1] == pytest.approx(10, abs=2)
    assert gaps[2] == pytest.approx(20, abs=3)


@pytest.mark.parametrize("unreachable", ["allow", "disallow"])
async def test_an_earlier_good_copy_goes_on_being_used_while_the_site_is_unreachable(
    site: Site, unreachable: str
) -> None:
    """R6, C5, F27"""
    site.script("/robots.txt", [Reply(body=PRIVATE), Reply(500)])
    allowing(site)
    clock = FakeClock()

    async with client(clock=clock, robots_unreachable=unreachable) as web:
        await web.fetch(site.url("/page"))
        clock.advance(4000)
        forbidden = await web.fetch(site.url("/private"))
        page = await web.fetch(site.url("/page"))

    assert forbidden.reason is Reason.ROBOTS_DISALLOWED
    assert page.ok
    assert site.count("/robots.txt") == 2


async def test_a_restart_does_not_ask_again(site: Site) -> None:
    """R5, issue 4, 3: it is kept in the store"""
    site.robots(PRIVATE)
    allowing(site)
    clock = FakeClock()
    store = MemoryStore(clock)

    for _ in range(3):
        async with client(clock=clock, store=store) as web:
            assert (await web.fetch(site.url("/page"))).ok
            assert (await web.fetch(site.url("/private"))).reason is Reason.ROBOTS_DISALLOWED

    assert site.count("/robots.txt") == 1


async def test_every_origin_has_its_own(site: Site) -> None:
    """C14, R5"""
    site.robots(PRIVATE, host="127.0.0.1")
    allowing(site)

    async with client() as web:
        results = [await web.fetch(site.url("/private", host=host)) for host in ("127.0.0.1", "127.0.0.2")]

    assert [result.reason for result in results] == [Reason.ROBOTS_DISALLOWED, None]
    assert site.paths("127.0.0.2") == ["/robots.txt", "/private"]


async def test_it_counts_as_a_request_and_never_as_a_page(site: Site) -> None:
    """B1, design section 2"""
    site.robots(PRIVATE)
    allowing(site)

    async with client(max_requests_per_day=3, max_pages_per_day=2) as web:
        results = [await web.fetch(site.url("/page")) for _ in range(3)]
        host = await host_of(web, site.url("/"))

    assert [result.reason for result in results] == [None, None, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert [(day.requests, day.pages) for day in host.days] == [(3, 2)]


async def test_a_caller_who_cannot_wait_for_robots_txt_does_not_open_the_site_for_others(site: Site) -> None:
    """U5, R6: his deadline is no failure of the site"""
    site.script("/robots.txt", [hang(), Reply(body=PRIVATE)])
    allowing(site)

    async with client(clock=None, **UNPACED) as web:
        hasty = await web.fetch(site.url("/private"), deadline=0.2)
        patient = await web.fetch(site.url("/private"))
        host = await host_of(web, site.url("/"))

    assert hasty.reason is Reason.DEADLINE
    assert patient.reason is Reason.ROBOTS_DISALLOWED
    assert host.failures == 0
    assert site.count("/private") == 0


async def test_the_agent_of_a_single_request_is_the_one_that_robots_txt_is_asked_for(site: Site) -> None:
    """U10"""
    site.robots("User-agent: otherbot\nDisallow: /\n\nUser-agent: *\nAllow: /\n")
    allowing(site)

    async with client() as web:
        own = await web.fetch(site.url("/page"))
        other = await web.fetch(site.url("/page"), headers={"User-Agent": "otherbot/2.0"})

    assert own.ok
    assert other.reason is Reason.ROBOTS_DISALLOWED


async def test_robots_txt_may_itself_be_fetched(site: Site) -> None:
    """U11"""
    site.robots("User-agent: *\nDisallow: /\n")

    async with client() as web:
        result = await web.fetch(site.url("/robots.txt"))

    assert result.text.startswith("User-agent")


async def test_not_respected_it_is_not_asked_for(site: Site) -> None:
    """R10, C12"""
    site.robots("User-agent: *\nDisallow: /\n")
    allowing(site)

    async with client(respect_robots=False) as web:
        assert (await web.fetch(site.url("/private"))).ok

    assert site.paths() == ["/private"]


async def test_secrets_of_the_page_are_not_sent_for_robots_txt(site: Site) -> None:
    """F25"""
    site.page("/page", "x")

    async with client(cookies=True) as web:
        await web.fetch(site.url("/page"), headers={"Authorization": "Bearer abc", "X-Key": "k"})

    robots = site.visits("/robots.txt")[0]
    assert robots.header("Authorization") is None
    assert robots.header("X-Key") is None


async def test_a_record_of_rules_never_grows_beyond_what_is_read(site: Site) -> None:
    """R4, F28"""
    site.reply("/robots.txt", Reply(body=PRIVATE.encode() + b"#" * 999 + b"\n# and so on" * 200_000))
    allowing(site)

    async with client() as web:
        await web.fetch(site.url("/page"))
        rules = await session_of(web).store.read(f"rules:http://{domain_of(site.url('/'))}")

    assert isinstance(rules, Rules)
    assert rules.body is not None
    assert 511_900 < len(rules.body) <= 512_000


async def test_one_client_that_asks_often_does_not_make_the_others_do_so(site: Site) -> None:
    """R5: a copy holds for each as long as its own settings say"""
    site.robots("")
    site.page("/*", "x")
    clock = FakeClock(DAWN)
    store = MemoryStore(clock)

    for ttl, path in ((3600, "/a"), (30, "/b"), (3600, "/c")):
        async with client(clock=clock, store=store, robots_ttl=ttl) as web:
            await web.fetch(site.url(path))
        clock.advance(60)

    assert site.paths() == ["/robots.txt", "/a", "/robots.txt", "/b", "/c"]

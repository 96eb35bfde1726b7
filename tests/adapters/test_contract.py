"""The contract of adapters, for each library and for `AsyncClient` itself. The site's journal is the judge."""

from __future__ import annotations

import asyncio
import gc
import gzip
import time
from pathlib import Path

import pytest

import curtsy
from curtsy.core.errors import Reason
from curtsy.http.sender import HttpSender
from tests.adapters.doors import DOORS, Door, Opener
from tests.client.fetching import domain_of
from tests.support.polling import until
from tests.support.site import Reply, Site, closed_port, hang, redirect

LONG = 3600
"""Seconds of a Retry-After that is too long to be waited for."""

LARGE = b"x" * 4_000_000
"""A body that no library reads before it is asked to."""


async def test_the_librarys_own_response_comes_back(opened: Opener, site: Site) -> None:
    """Adapters: decoded by the library, in its own class"""
    door = opened()
    coded = Reply(200, gzip.compress(b"hello"), {"Content-Encoding": "gzip", "X-Said": "yes"})
    site.reply("/a", coded)

    page = await door.get(site.url("/a"))

    assert (page.status, page.text, page.native.headers["X-Said"]) == (200, "hello", "yes")
    assert door.name == "curtsy" or type(page.native).__module__.partition(".")[0] == door.name.split()[0]
    assert site.paths() == ["/robots.txt", "/a"]


async def test_cookies_are_the_librarys(opened: Opener, site: Site) -> None:
    """Adapters: its users know how they work"""
    door = opened()
    site.reply("/in", Reply(200, "in", {"Set-Cookie": "a=1; Path=/"}))
    site.page("/next", "next")

    await door.get(site.url("/in"))
    await door.get(site.url("/next"))

    assert site.visits("/next")[0].header("Cookie") == (None if door.name == "curtsy" else "a=1")


async def test_a_post_has_its_body(opened: Opener, site: Site) -> None:
    """Adapters: other methods than GET are admitted and sent, once"""
    door = opened()
    site.reply("/form", Reply(503, "sorry"))

    page = await door.post(site.url("/form"), b"name=value")

    assert page.status == 503
    assert [(visit.method, visit.body) for visit in site.visits("/form")] == [("POST", b"name=value")]


async def test_every_hop_of_a_redirect_is_judged(opened: Opener, site: Site) -> None:
    """Adapters: each request of the library passes the flow"""
    door = opened()
    site.robots("User-agent: *\nDisallow: /private")
    site.reply("/old", redirect("/new"))
    site.page("/new", "here")
    site.reply("/trap", redirect("/private/x"))

    page = await door.get(site.url("/old"))
    with pytest.raises(curtsy.Refused) as refused:
        await door.get(site.url("/trap"))

    assert page.text == "here"
    assert refused.value.reason == Reason.ROBOTS_DISALLOWED
    assert site.paths() == ["/robots.txt", "/old", "/new", "/trap"]


async def test_a_refusal_is_an_exception_of_the_library_and_of_curtsy(opened: Opener, site: Site) -> None:
    """Adapters: existing `except` clauses see it"""
    door = opened()
    site.robots("User-agent: *\nDisallow: /private")

    with pytest.raises(door.error) as refused:
        await door.get(site.url("/private"))

    assert isinstance(refused.value, curtsy.Refused)
    assert refused.value.reason == Reason.ROBOTS_DISALLOWED
    assert refused.value.url == site.url("/private")
    assert site.paths() == ["/robots.txt"]


async def test_robots_txt_is_judged_by_the_user_agent_that_is_sent(opened: Opener, site: Site) -> None:
    """Adapters: the library's own, or the caller's"""
    door = opened()
    site.robots("User-agent: special\nDisallow: /")
    site.page("/a")

    await door.get(site.url("/a"))
    with pytest.raises(curtsy.Refused):
        await door.get(site.url("/a"), {"User-Agent": "Special/2.0"})

    assert site.paths() == ["/robots.txt", "/a"]
    for visit in site.visits():
        assert (visit.header("User-Agent") or "").startswith(door.agent)


async def test_a_status_is_settled(opened: Opener, site: Site) -> None:
    """Adapters: 503 with a long Retry-After closes the host to every request, with the time that is left"""
    door = opened()
    site.reply("/busy", Reply(503, "busy", {"Retry-After": str(LONG)}))

    page = await door.get(site.url("/busy"))
    with pytest.raises(curtsy.Refused) as refused:
        await door.get(site.url("/a"))

    assert page.status == 503
    assert refused.value.reason == Reason.CIRCUIT_OPEN
    assert refused.value.retry_after == pytest.approx(LONG, abs=60)
    assert site.paths() == ["/robots.txt", "/busy"]


async def test_a_connection_error_is_the_librarys_and_is_settled(opened: Opener) -> None:
    """Adapters: three in a row open the breaker"""
    door = opened(respect_robots=False)

    with closed_port() as port:
        for _ in range(3):
            with pytest.raises(door.broken) as error:
                await door.get(f"http://127.0.0.1:{port}/")
            assert not isinstance(error.value, curtsy.Refused)
        with pytest.raises(curtsy.Refused) as refused:
            await door.get(f"http://127.0.0.1:{port}/")

    assert refused.value.reason == Reason.CIRCUIT_OPEN


async def test_tasks_and_threads_share_the_pace(opened: Opener, site: Site) -> None:
    """Adapters: however many there are"""
    door = opened(qps=200, respect_robots=False)
    site.page("/a")
    began = time.monotonic()

    await asyncio.gather(*(door.get(site.url(f"/a?{n}")) for n in range(50)))

    assert site.count() == 50
    assert site.max_concurrency() == 1
    assert site.visits()[-1].at - began >= 49 / 200


@pytest.mark.parametrize("end", ["read", "close", "delete"])
async def test_the_end_of_a_body_returns_its_slot(opened: Opener, site: Site, end: str) -> None:
    """Adapters: the slot is held while the body is read, and no longer"""
    door = opened(respect_robots=False)
    if door.name == "curtsy":
        pytest.skip("AsyncClient reads the body by itself")
    if (door.name, end) == ("aiohttp", "delete"):
        pytest.skip("aiohttp keeps a response that is on the network: its lease ends")
    site.reply("/long", Reply(200, LARGE))
    site.page("/next")
    queues, key = door.session.gate.queues, "host:" + domain_of(site.url())

    body = await door.open(site.url("/long"))
    following = asyncio.ensure_future(door.get(site.url("/next")))
    await until(lambda: queues.is_queued(key))
    seen = site.paths()
    if end == "read":
        await body.read()
    elif end == "close":
        await body.close()
    else:
        del body
        gc.collect()
    await following

    assert seen == ["/long"]
    assert site.paths() == ["/long", "/next"]


async def test_a_lease_ends_a_slot_that_nobody_returns(opened: Opener, site: Site) -> None:
    """Adapters: a response that is kept and neither read nor closed"""
    door = opened(respect_robots=False, timeout=0.1)
    if door.name == "curtsy":
        pytest.skip("AsyncClient reads the body by itself")
    site.reply("/long", Reply(200, LARGE))

    body = await door.open(site.url("/long"))
    (place,) = (await door.session.store.read("host:" + domain_of(site.url()))).places
    await body.close()

    assert 0 < place.until - place.left_at <= 60_000_000


@pytest.mark.parametrize("moment", ["waiting", "sent"])
async def test_a_cancelled_request_gives_everything_back(opened: Opener, site: Site, moment: str) -> None:
    """Adapters: in the queue, and on the wire"""
    door = opened(respect_robots=False, qps=0.01 if moment == "waiting" else None)
    if not door.is_for_tasks:
        pytest.skip("a thread cannot be cancelled")
    site.page("/a")
    site.reply("/never", hang())
    key = "host:" + domain_of(site.url())

    if moment == "waiting":
        await door.get(site.url("/a"))
    task = asyncio.ensure_future(door.get(site.url("/never")))
    if moment == "waiting":
        await until(lambda: door.session.gate.queues.is_queued(key))
    else:
        await until(lambda: site.count("/never") == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not door.session.gate.queues.is_queued(key)
    assert (await door.session.store.read(key)).places == ()
    if moment == "sent":
        assert (await door.get(site.url("/a"))).status == 200


async def test_the_address_guard_checks_a_name_before_the_library_connects(opened: Opener, site: Site) -> None:
    """Adapters: a public name with a private address"""
    door = opened(allow_private=False, respect_robots=False, sender=HttpSender(resolver=site.names))

    with pytest.raises(curtsy.Refused) as refused:
        await door.get(site.url("/", host="shop.example"))

    assert refused.value.reason == Reason.ADDRESS_REFUSED
    assert site.connections == 0


async def test_a_budget_is_shared_by_all_libraries(opened: Opener, site: Site, tmp_path: Path) -> None:
    """Adapters: the store is the settings', or the given one"""
    shared = {"store": tmp_path / "state.sqlite", "max_requests_per_day": 3, "respect_robots": False}
    door, own = opened(**shared), DOORS[0](**shared)
    site.page("/a")

    done = await asyncio.gather(
        *(each.get(site.url(f"/a?{n}")) for n in range(3) for each in (door, own)), return_exceptions=True
    )
    await own.close()

    assert [each.reason for each in done if isinstance(each, curtsy.Refused)] == [Reason.DOMAIN_BUDGET_EXCEEDED] * 3
    assert site.count() == 3


async def test_the_cache_answers_with_the_librarys_own_response(opened: Opener, site: Site, tmp_path: Path) -> None:
    """Adapters: if asked for; marked as such"""
    try:
        door = opened(respect_robots=False, cache=tmp_path / "pages")
    except curtsy.PolicyError as error:
        pytest.skip(str(error))
    fields = {"Content-Encoding": "gzip", "Cache-Control": "max-age=600"}
    site.reply("/fresh", Reply(200, gzip.compress(b"fresh"), fields))
    site.page("/stale", "stale", etag='"1"', headers={"Cache-Control": "max-age=0"})

    pages = [await door.get(site.url(path)) for path in ("/fresh", "/fresh", "/stale", "/stale")]

    assert [page.text for page in pages] == ["fresh", "fresh", "stale", "stale"]
    assert [page.cache for page in pages] == [None, "hit", None, "revalidated"]
    assert [page.status for page in pages] == [200] * 4
    assert type(pages[1].native).__module__.partition(".")[0] in (
        type(pages[0].native).__module__,
        "curtsy",
        "httpx",
        "httpx2",
    )
    assert site.paths() == ["/fresh", "/stale", "/stale"]


@pytest.mark.parametrize(
    "body", [b"x" * 50_000, gzip.compress(b"x" * 50_000), b"damaged"], ids=["large", "bomb", "damaged"]
)
async def test_a_body_that_the_cache_cannot_keep_reaches_the_reader_and_is_not_kept(
    opened: Opener, site: Site, tmp_path: Path, body: bytes
) -> None:
    """F01, F03: what the adapter reads and decodes for the cache has a limit; what the library does is its own"""
    try:
        door = opened(respect_robots=False, cache=tmp_path / "pages", max_body=20_000)
    except curtsy.PolicyError as error:
        pytest.skip(str(error))
    if door.name == "curtsy":
        pytest.skip("it has the limit itself")
    coding = {} if body.startswith(b"x") else {"Content-Encoding": "gzip"}
    site.reply("/page", Reply(200, body, {"Cache-Control": "max-age=600", **coding}, chunked=True))

    for _ in range(2):
        if body == b"damaged":
            with pytest.raises(door.error):
                await door.get(site.url("/page"))
        else:
            assert (await door.get(site.url("/page"))).text == "x" * 50_000

    assert site.paths() == ["/page", "/page"]


async def test_a_closed_client_refuses(opened: Opener, site: Site) -> None:
    """Adapters: the error of `AsyncClient`"""
    door: Door = opened()
    await door.client.close() if door.is_for_tasks else await door.shut()

    with pytest.raises((curtsy.PolicyError, RuntimeError)):
        await door.get(site.url("/"))

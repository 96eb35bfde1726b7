"""The contract of adapters, for each library and for `AsyncClient` itself. The site's journal is the judge."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import subprocess
import time
from pathlib import Path

import pytest

import curtsy
from curtsy.core.errors import Reason
from curtsy.http.sender import HttpSender
from tests.adapters.doors import DOORS, PLAIN, Door, Opener
from tests.client.fetching import domain_of
from tests.support.polling import until
from tests.support.site import Reply, Site, closed_port, endless, hang, redirect
from tests.support.warm import Process

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

    assert (page.status, page.text, door.field(page.native, "X-Said")) == (200, "hello", "yes")
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


async def test_a_body_is_sent_in_parts(opened: Opener, site: Site) -> None:
    """Adapters: from an iterator, as the library does it"""
    door = opened()
    if not door.uploads:
        pytest.skip("it sends whole bodies")
    site.reply("/form", redirect("/seen", 303))
    site.page("/seen", "seen")

    page = await door.upload(site.url("/form"), [b"a" * 1000, b"b"])

    assert (page.status, page.text) == (200, "seen")
    assert [(visit.method, len(visit.body)) for visit in site.visits()] == [("GET", 0), ("POST", 1001), ("GET", 0)]


async def test_a_body_is_read_in_parts(opened: Opener, site: Site) -> None:
    """Adapters: its first part comes before its end, here without one"""
    door = opened(respect_robots=False)
    if not door.streams:
        pytest.skip("its users do not read the body by themselves")
    site.reply("/endless", endless(b"x" * 1000))
    site.page("/next")

    body = await door.open(site.url("/endless"))
    part = await body.part()
    await body.close()
    page = await door.get(site.url("/next"))

    assert part.startswith(b"x")
    assert page.status == 200


async def test_a_bad_status_is_raised_by_the_library(opened: Opener, site: Site) -> None:
    """Adapters: `raise_for_status` works as its users know"""
    door = opened()
    if door.bad_status is None:
        pytest.skip("it has no such method")

    page = await door.get(site.url("/absent"))

    with pytest.raises(door.bad_status):
        page.native.raise_for_status()


async def test_authentication_passes_the_gate(opened: Opener, site: Site) -> None:
    """Adapters: also the request that answers a challenge"""
    door = opened()
    if type(door).login is Door.login:
        pytest.skip("it has no digest authentication, or sends the answer inside")
    challenge = Reply(401, b"no" * 1000, {"WWW-Authenticate": 'Digest realm="a", nonce="b", qop="auth", algorithm=MD5'})
    site.on("/in", lambda visit: Reply(200, "in") if visit.header("Authorization") else challenge)

    page = await door.login(site.url("/in"))

    assert (page.status, page.text) == (200, "in")
    assert site.paths() == ["/robots.txt", "/in", "/in"]
    assert door.client.stats().requests == 2


async def test_a_timeout_is_the_librarys_and_is_settled(opened: Opener, site: Site) -> None:
    """Adapters: three in a row open the breaker; a browser's user only stops waiting"""
    door = opened(respect_robots=False)
    site.reply("/never", hang())

    for _ in range(3):
        with pytest.raises(door.timed_out) as error:
            await door.hurry(site.url("/never"))
        assert not isinstance(error.value, curtsy.Refused)
    if door.name == "playwright":
        site.page("/a")
        assert (await door.get(site.url("/a"))).status == 200
    else:
        with pytest.raises(curtsy.Refused) as refused:
            await door.get(site.url("/a"))
        assert refused.value.reason == Reason.CIRCUIT_OPEN


@pytest.mark.parametrize("status", [204, 304, 404])
async def test_a_response_without_a_body_keeps_no_slot(opened: Opener, site: Site, status: int) -> None:
    """Adapters: the answer to HEAD, and a status that has none"""
    door = opened(respect_robots=False)
    if type(door).head is Door.head:
        pytest.skip("a browser sends no HEAD")
    site.reply("/none", Reply(status))
    site.page("/a", LARGE)

    assert await door.head(site.url("/a")) == 200
    assert (await door.get(site.url("/none"))).status == status
    assert await door.head(site.url("/none")) == status
    assert (await door.get(site.url("/a"))).status == 200
    assert site.max_concurrency() == 1


async def test_closing_ends_waits(opened: Opener, site: Site) -> None:
    """Adapters: with a refusal that says so"""
    door = opened(respect_robots=False, delay=LONG)
    site.page("/a")
    await door.get(site.url("/a"))
    key = "host:" + domain_of(site.url())

    waiting = asyncio.ensure_future(door.get(site.url("/a")))
    await until(lambda: door.session.gate.queues.is_queued(key))
    await door.close_client()
    with pytest.raises(curtsy.Refused) as refused:
        await waiting

    assert refused.value.reason == Reason.CLOSED
    assert site.count() == 1


async def test_closing_does_not_lose_a_response(opened: Opener, site: Site) -> None:
    """Adapters: the request is on the wire, and its response the library's"""
    door = opened(respect_robots=False)
    if door.is_for_tasks or door.name == "scrapy":
        pytest.skip("closing cancels its requests")
    site.reply("/slow", Reply(200, "slow", wait=0.3))

    coming = asyncio.ensure_future(door.get(site.url("/slow")))
    await until(lambda: site.count() == 1)
    await door.close_client()

    assert (await coming).text == "slow"


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
    if door.name != "playwright":  # the browser sends that of the settings
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

    await asyncio.gather(*(door.get(site.url(f"/a?{n}")) for n in range(door.many)))

    assert site.count("/a") == door.many
    assert site.max_concurrency() == 1
    assert site.visits()[-1].at - began >= (door.many - 1) / 200


@pytest.mark.parametrize("end", ["read", "close", "delete"])
async def test_the_end_of_a_body_returns_its_slot(opened: Opener, site: Site, end: str) -> None:
    """Adapters: the slot is held while the body is read, and no longer"""
    door = opened(respect_robots=False)
    if not door.streams:
        pytest.skip("its users do not read the body by themselves")
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
    if not door.streams:
        pytest.skip("its users do not read the body by themselves")
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

    await until(lambda: not door.session.gate.queues.is_queued(key))

    async def is_free() -> bool:
        host = await door.session.store.read(key)
        return host is None or not host.places

    await until(is_free)  # a page of a browser closes a moment later
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


PROGRAM = """
import json, sys
import requests
import curtsy.adapters.requests

task = json.loads(sys.argv[1])
with requests.Session() as session:
    curtsy.adapters.requests.mount(session, **task["settings"])
    for url in task["urls"]:
        try:
            print(session.get(url).status_code)
        except curtsy.Refused as refused:
            print(refused.reason)
"""


async def test_two_processes_share_one_budget(opened: Opener, site: Site, tmp_path: Path) -> None:
    """Adapters: by the store of the settings; the other process uses requests"""
    settings = PLAIN | {
        "store": f"sqlite:///{tmp_path}/state.sqlite", "respect_robots": False,
        "max_requests_per_day": 5,
    }  # fmt: skip
    door = opened(**settings)
    site.page("/*", "x")
    urls = [site.url(f"/{number}") for number in range(4)]

    for url in urls:
        await door.get(url)
    task = json.dumps({"settings": settings, "urls": urls})
    process: Process[str] = Process("tests.support.program", PROGRAM, task, text=True, stdout=subprocess.PIPE)
    out, _ = await door.aside(process.communicate, 60)  # a body that has been read returns its slot meanwhile

    assert out.split() == ["200", *["domain_budget_exceeded"] * 3]
    assert site.count() == 5


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
    homes = [type(page.native).__module__.partition(".")[0] for page in pages]
    assert homes[1] in (homes[0], "curtsy")
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
    if not door.streams:
        pytest.skip("it has a limit of its own")
    coding = {} if body.startswith(b"x") else {"Content-Encoding": "gzip"}
    site.reply("/page", Reply(200, body, {"Cache-Control": "max-age=600", **coding}, chunked=True))

    for _ in range(2):
        if body == b"damaged":
            with pytest.raises(door.error):
                await door.get(site.url("/page"))
        else:
            assert (await door.get(site.url("/page"))).text == "x" * 50_000

    assert site.paths() == ["/page", "/page"]


@pytest.mark.parametrize("has_own", [True, False], ids=["asked", "unasked"])
async def test_a_304_is_the_users(opened: Opener, site: Site, tmp_path: Path, has_own: bool) -> None:
    """Adapters: to conditions of its own, or of no one; the cache neither answers nor complains"""
    try:
        door = opened(respect_robots=False, cache=tmp_path / "pages")
    except curtsy.PolicyError as error:
        pytest.skip(str(error))
    if not has_own and door.name == "curtsy":
        pytest.skip("its user asked for a page")
    site.reply("/page", Reply(304, headers={"ETag": '"1"'}))

    page = await door.get(site.url("/page"), {"If-None-Match": '"1"'} if has_own else None)

    assert page.status == 304
    assert page.cache is None


async def test_a_body_until_the_end_of_the_connection_is_cached(opened: Opener, site: Site, tmp_path: Path) -> None:
    """Adapters: without a limit of its size, too"""
    try:
        door = opened(respect_robots=False, cache=tmp_path / "pages", max_body=None)
    except curtsy.PolicyError as error:
        pytest.skip(str(error))
    fields = {"Cache-Control": "max-age=600"}
    site.reply("/page", Reply(200, b"x" * 100_000, fields, version="1.0", length=None, end="close"))

    pages = [await door.get(site.url("/page")) for _ in range(2)]

    assert [len(page.text) for page in pages] == [100_000] * 2
    assert pages[1].cache == "hit"


async def test_a_closed_client_refuses(opened: Opener, site: Site) -> None:
    """Adapters: the error of `AsyncClient`"""
    door: Door = opened()
    await door.close_client()

    with pytest.raises((curtsy.PolicyError, door.broken)):
        await door.get(site.url("/"))

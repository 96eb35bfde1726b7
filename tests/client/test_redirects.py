"""Redirects: followed five times, every hop with every check of its own host, and nothing secret taken along."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import pytest

from curtsy.core.errors import Reason
from curtsy.core.record import FetchRecord
from curtsy.http.sender import HttpSender
from curtsy.testing import FakeClock
from tests.client.fetching import DAWN, TICK, UNPACED, client, domain_of, host_of
from tests.support.certificates import Authority
from tests.support.site import Reply, Site, Visit, redirect
from tests.support.snapshot import Snapshot


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_on_the_same_host_is_followed(site: Site, status: int) -> None:
    """U3: paced and counted like any request"""
    site.reply("/old", redirect("/new?x=1", status))
    site.page("/new", "here")
    told: list[FetchRecord] = []

    async with client(on_record=told.append) as web:
        result = await web.fetch(site.url("/old"))
        host = await host_of(web, site.url("/"))

    assert (result.text, result.url, result.final_url) == ("here", site.url("/old"), site.url("/new?x=1"))
    assert (result.record.attempts, result.record.retries) == (2, 0)
    assert result.record.waited >= 2 * 1.5 - TICK
    assert [(day.requests, day.pages) for day in host.days] == [(3, 1)]
    assert len(told) == 1
    assert result.redirected_by == (result.url,)


@pytest.mark.parametrize(
    ("location", "target"),
    [
        (b"/caf\xe9", "/caf%E9"),
        (b"/caf\xc3\xa9", "/caf%C3%A9"),
        (b"/\xd6\xd0\xce\xc4.html?\xe9=100%", "/%D6%D0%CE%C4.html?%E9=100%25"),
        (b"/a?", "/a?"),
    ],
    ids=["Latin-1", "UTF-8", "GBK", "an empty query"],
)
async def test_a_redirect_leads_to_the_very_octets_that_it_names(site: Site, location: bytes, target: str) -> None:
    """U3: in whatever encoding they were written"""
    site.reply(
        "/old", Reply(raw=b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n")
    )  # fmt: skip

    async with client() as web:
        result = await web.fetch(site.url("/old"))

    assert site.journal[-1].target == target
    assert result.final_url == site.url(target)


async def test_a_redirect_within_a_path_that_has_a_url_in_it_stays_there(site: Site) -> None:
    """U3: as archives have them"""
    site.reply("/web/2020/http://shop.test/a/b", redirect("c"))
    site.page("/web/2020/http://shop.test/a/c", "here")

    async with client() as web:
        assert (await web.fetch(site.url("/web/2020/http://shop.test/a/b"))).text == "here"


async def test_a_redirect_to_another_host_asks_its_own_robots_txt_first(site: Site) -> None:
    """U3, R1"""
    site.reply("/", redirect(site.url("/there", host="127.0.0.2")), host="127.0.0.1")
    site.page("/there", "yes", host="127.0.0.2")

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert result.text == "yes"
    assert result.record.domain.startswith("127.0.0.2")
    assert site.paths("127.0.0.2") == ["/robots.txt", "/there"]


async def test_a_loop_ends_after_five_hops(site: Site, snapshot: Snapshot) -> None:
    """U3, F17: six requests, each paced, each charged"""
    site.reply("/loop", redirect("/loop"))
    clock = FakeClock()

    async with client(clock=clock) as web:
        result = await web.fetch(site.url("/loop"))
        host = await host_of(web, site.url("/"))

    assert (result.ok, result.reason, result.status) == (False, Reason.TOO_MANY_REDIRECTS, 302)
    assert site.count("/loop") == 6
    assert result.record.waited >= 6 * 1.5 - TICK
    assert [(day.requests, day.pages) for day in host.days] == [(7, 0)]
    assert [each in result.message for each in (site.url("/loop"), "5 times", "max_redirects")] == [True] * 3
    snapshot(result.message)


async def test_new_urls_without_end_are_ended_too(site: Site) -> None:
    """F17"""
    site.on("/n/*", lambda visit: redirect(visit.path + "x"))

    async with client(max_redirects=2) as web:
        result = await web.fetch(site.url("/n/"))

    assert result.reason is Reason.TOO_MANY_REDIRECTS
    assert len(site.paths()) == 1 + 3
    assert result.message.startswith(f"{site.url('/n/')} "), "the URL that was requested"
    assert f" {site.url('/n/xx')}." in result.message, "the last one that redirected"
    assert result.final_url == site.url("/n/xx")


async def test_a_redirect_to_a_disallowed_path_is_not_followed(site: Site) -> None:
    """F23"""
    site.robots("User-agent: *\nDisallow: /private\n")
    site.reply("/open", redirect("/private/a"))

    async with client() as web:
        result = await web.fetch(site.url("/open"))

    assert result.reason is Reason.ROBOTS_DISALLOWED
    assert result.final_url == site.url("/private/a")
    assert site.paths() == ["/robots.txt", "/open"]


@pytest.mark.parametrize(
    "target", ["http://127.0.0.66:9/", "http://169.254.169.254/latest", "http://[::1]:9/", "http://0/"]
)
async def test_a_redirect_to_a_private_address_is_refused_before_a_connection(site: Site, target: str) -> None:
    """F19, U2: that the first domain may be private says nothing of the next"""
    site.reply("/", redirect(target))
    entries = [{"domain": "127.0.0.1", "allow_private": True}]

    async with client(allow_private=False, allowlist=entries) as web:
        result = await web.fetch(site.url("/"))

    assert (result.ok, result.reason) == (False, Reason.ADDRESS_REFUSED)
    assert site.paths() == ["/robots.txt", "/"]


async def test_a_name_that_turns_private_is_refused_where_it_is_connected_to(site: Site) -> None:
    """F19: no rebinding"""
    site.reply("/", redirect(site.url("/inside", host="inside.test")), host="127.0.0.1")
    site.page("/inside", "secret")
    entries = [{"domain": "127.0.0.1", "allow_private": True}]
    sender = HttpSender(resolver=site.names)

    async with client(allow_private=False, allowlist=entries, sender=sender) as web:
        result = await web.fetch(site.url("/"))

    assert result.reason is Reason.ADDRESS_REFUSED
    assert site.paths("inside.test") == []


LOCATIONS = {
    "a file": "file:///etc/passwd",
    "gopher": "gopher://127.0.0.1/",
    "ftp": "ftp://127.0.0.1/",
    "data": "data:text/html,hi",
    "a script": "javascript:alert(1)",
    "no host": "http://a b/",
    "a port that is none": "http://127.0.0.1:99999/",
    "a mebibyte": "/" + "x" * 60_000,
    "blank": "  ",
}


@pytest.mark.parametrize("kind", LOCATIONS)
async def test_a_location_that_nobody_can_follow_is_one_clear_error(site: Site, kind: str) -> None:
    """F22: and no second request"""
    site.reply("/", redirect(LOCATIONS[kind]))

    async with client(max_head=65_536) as web:
        result = await web.fetch(site.url("/"))

    assert (result.ok, result.reason, result.status, result.body) == (False, Reason.BAD_REDIRECT, 302, b"")
    assert len(result.message) < 500
    assert site.paths() == ["/robots.txt", "/"]


async def test_a_redirect_without_a_location_is_an_error(site: Site, snapshot: Snapshot) -> None:
    """F22"""
    site.reply("/", Reply(302, "nowhere"))

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert result.reason is Reason.BAD_REDIRECT
    snapshot(result.message)


async def test_a_location_of_a_mebibyte_is_refused_with_the_head(site: Site) -> None:
    """F22, F11"""
    site.reply("/", redirect("/" + "x" * 1_048_576))

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert result.reason is Reason.TOO_LARGE
    assert site.count("/") == 1


async def test_line_ends_in_a_location_inject_nothing(site: Site) -> None:
    """F26"""
    site.reply(
        "/", Reply(raw=b"HTTP/1.1 302 Found\r\nLocation: /a%0d%0aX-Injected:%201\tb\r\nContent-Length: 0\r\n\r\n")
    )
    site.page("/*", "x")

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert result.ok
    assert all(visit.header("X-Injected") is None for visit in site.journal)


@pytest.mark.parametrize(
    ("status", "method", "followed"),
    [(301, "POST", "GET"), (302, "POST", "GET"), (303, "POST", "GET"), (307, "POST", "POST"), (308, "POST", "POST"),
     (303, "PUT", "GET"), (302, "PUT", "PUT"), (303, "HEAD", "HEAD"), (302, "HEAD", "HEAD")],
)  # fmt: skip
async def test_the_method_after_a_redirect_is_what_the_status_says(
    site: Site, status: int, method: str, followed: str
) -> None:
    """U3: RFC 9110, 15.4"""
    site.reply("/", redirect("/next", status))
    site.page("/next", "x")
    body = None if method == "HEAD" else b"data"

    async with client() as web:
        await web.fetch(site.url("/"), method=method, body=body, headers={"Content-Type": "text/x"})

    last = site.journal[-1]
    assert (last.method, last.target) == (followed, "/next")
    assert last.body == (b"data" if followed in ("POST", "PUT") else b"")
    assert (last.header("Content-Type") == "text/x") == (followed != "GET")


SECRETS = {
    "Authorization": "Bearer s3cret",
    "Cookie": "sid=s3cret",
    "X-Api-Key": "s3cret",
    "Proxy-Authorization": "s3cret",
}


async def test_secrets_stay_with_the_origin_that_they_were_meant_for(site: Site) -> None:
    """F25: another host"""
    site.reply("/", redirect(site.url("/there", host="127.0.0.2")), host="127.0.0.1")
    site.reply("/there", redirect(site.url("/back")), host="127.0.0.2")
    site.page("/back", "x")

    async with client() as web:
        result = await web.fetch(site.url("/"), headers={**SECRETS, "Accept-Language": "de"})

    assert result.ok
    first = site.visits("/")[0]
    assert first.header("Authorization") == "Bearer s3cret"
    for visit in (*site.visits(host="127.0.0.2"), *site.visits("/back")):
        assert "s3cret" not in repr(visit.headers)
    assert site.visits("/there")[0].header("Accept-Language") == "de"


async def test_another_port_is_another_origin(site: Site) -> None:
    """F25"""
    with Site() as other:
        site.reply("/", redirect(other.url("/there")))
        other.page("/there", "x")

        async with client() as web:
            assert (await web.fetch(site.url("/"), headers=SECRETS)).ok

        assert all("s3cret" not in repr(visit.headers) for visit in other.journal)


async def test_from_https_to_http_nothing_secret_goes_along(site: Site) -> None:
    """F25"""
    authority = Authority()
    with Site(tls=authority.server()) as safe:
        safe.reply("/", redirect(site.url("/there")))
        site.page("/there", "x")

        async with client(verify=authority.client()) as web:
            assert (await web.fetch(safe.url("/"), headers=SECRETS)).ok

    assert all("s3cret" not in repr(visit.headers) for visit in site.journal)


async def test_secrets_go_along_within_their_origin(site: Site) -> None:
    """F25"""
    site.reply("/", redirect("/next"))
    site.page("/next", "x")

    async with client() as web:
        await web.fetch(site.url("/").replace("://", "://user:p%40ss@"), headers={"X-Api-Key": "k"})

    last = site.visits("/next")[0]
    assert last.header("X-Api-Key") == "k"
    assert last.header("Authorization") == "Basic dXNlcjpwQHNz"  # user:p@ss


@pytest.mark.parametrize("by", ["settings", "robots.txt"])
async def test_what_is_left_of_a_budget_is_not_told_for_a_host_that_was_only_redirected_to(site: Site, by: str) -> None:
    """U3, B1: it is the first one's, and the result is the second one's"""
    site.reply("/", redirect(site.url("/there", host="127.0.0.2")), host="127.0.0.1")
    site.page("/here", "x", host="127.0.0.1")
    site.robots("User-agent: *\nDisallow: /there", host="127.0.0.2")

    async with client(denylist=["127.0.0.2"] if by == "settings" else []) as web:
        refused = (await web.fetch(site.url("/"))).record
        own = (await web.fetch(site.url("/here"))).record

    assert (refused.domain, refused.attempts) == (domain_of(site.url("/", host="127.0.0.2")), 1)
    assert (refused.requests_left, refused.pages_left) == (None, None)
    assert (own.requests_left, own.pages_left) == (197, 99)


async def test_a_redirect_to_a_denied_domain_ends_there(site: Site) -> None:
    """U9, U3"""
    site.reply("/", redirect(site.url("/", host="127.0.0.2")), host="127.0.0.1")

    async with client(denylist=["127.0.0.2"]) as web:
        result = await web.fetch(site.url("/"))

    assert result.reason is Reason.DOMAIN_DENIED
    assert site.paths("127.0.0.2") == []


async def test_each_hop_is_charged_to_its_own_host(site: Site) -> None:
    """F17, B1"""
    site.reply("/*", redirect(site.url("/page", host="127.0.0.2")), host="127.0.0.1")
    site.page("/page", "x", host="127.0.0.2")
    entries = [{"domain": "127.0.0.2", "max_pages_per_day": 1}]

    async with client(allowlist=entries) as web:
        results = [await web.fetch(site.url(f"/{number}")) for number in range(2)]
        here = await host_of(web, site.url("/"))

    assert [result.reason for result in results] == [None, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert [(day.requests, day.pages) for day in here.days] == [(3, 0)]


async def test_an_answer_after_a_kept_redirect_is_the_sites_own(site: Site, tmp_path: Path) -> None:
    """N1: the record says where the answer came from"""
    site.reply("/old", Reply(301, headers={"Location": "/new", "Cache-Control": "max-age=900"}))
    site.reply("/new", Reply(body="x", headers={"Cache-Control": "no-store"}))
    clock = FakeClock(time.time())

    async with client(clock=clock, cache=tmp_path / "pages") as web:
        await web.fetch(site.url("/old"))
        again = await web.fetch(site.url("/old"))

    assert site.paths() == ["/robots.txt", "/old", "/new", "/new"]
    assert (again.from_cache, again.record.cache, again.record.attempts) == (False, None, 1)


async def test_tasks_that_meet_at_the_same_target_keep_its_pace(site: Site) -> None:
    """P1, U3"""
    for number in range(5):
        site.reply(f"/{number}", redirect(site.url(f"/to/{number}", host="127.0.0.9")), host=f"127.0.0.{number + 2}")
    site.reply("/to/*", Reply(body="x", wait=0.01), host="127.0.0.9")
    told: list[FetchRecord] = []

    async with client(on_record=told.append) as web:
        await asyncio.gather(*(web.fetch(site.url(f"/{n}", host=f"127.0.0.{n + 2}")) for n in range(5)))

    assert site.count("/robots.txt", host="127.0.0.9") == 1
    assert site.max_concurrency("127.0.0.9") == 1
    assert min(b.at - a.at for a, b in itertools.pairwise(told)) >= 1.5 - TICK


async def test_a_redirect_may_ask_for_a_short_rest_before_it_is_followed(site: Site) -> None:
    """RFC 9110, 10.2.3"""
    clock = FakeClock()
    came: list[float] = []

    def answer(visit: Visit) -> Reply:
        came.append(clock.now().at / 1e6)
        return Reply(302, headers={"Location": "/new", "Retry-After": "20"}) if len(came) == 1 else Reply()

    site.on("/*", answer)

    async with client(clock=clock, respect_robots=False, **UNPACED) as web:
        assert (await web.fetch(site.url("/old"))).ok

    assert came[1] - came[0] == pytest.approx(20, abs=1)


@pytest.mark.parametrize("breaker", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_a_redirect_that_asks_for_a_long_rest_is_not_followed_before_it_ends(
    site: Site, host: str, breaker: bool
) -> None:
    """RFC 9110, 10.2.3; C2: refused, and never waited for in silence"""
    clock = FakeClock(DAWN)
    headers = {"Location": site.url("/new", host=host), "Retry-After": "50000"}
    site.script("/old", [Reply(302, headers=headers), redirect("/new")])
    site.page("/new", "x")
    site.page("/new", "x", host=host)

    async with client(clock=clock, respect_robots=False, breaker=breaker, **UNPACED) as web:
        first = await web.fetch(site.url("/old"))
        second = await web.fetch(site.url("/new"))
        clock.advance(50_000)
        later = await web.fetch(site.url("/old"))

    for refused in (first, second):
        assert (refused.reason, refused.record.waited) == (Reason.CIRCUIT_OPEN, 0)
        assert refused.retry_after == pytest.approx(50_000, abs=1)
    assert later.ok
    assert site.paths() == ["/old", "/old", "/new"]


@pytest.mark.parametrize("form", ["http://us:s3cret@{}/there", "//us:s3cret@{}/there", "http:\\\\us:s3cret@{}\\there"])
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2"])
async def test_a_login_in_a_location_is_neither_sent_nor_told(site: Site, form: str, host: str) -> None:
    """F25, F62: a site does not choose the credentials that are sent"""
    place = site.url("", host=host).removeprefix("http://")
    site.reply("/", redirect(form.format(place)))
    site.page("/there", "x")
    site.robots("", host=host)

    async with client() as web:
        result = await web.fetch(site.url("/"))

    assert result.ok
    assert result.final_url == site.url("/there", host=host)
    assert all(visit.header("Authorization") is None for visit in site.journal)
    assert "s3cret" not in repr((result, result.headers, result.record, result.redirected_by))


async def test_a_login_in_the_location_of_a_robots_txt_is_not_sent(site: Site) -> None:
    """F25"""
    site.script("/robots.txt", [redirect(site.url("/rules").replace("://", "://us:s3cret@"))])
    site.page("/rules", "User-agent: *\nDisallow: /private")

    async with client() as web:
        result = await web.fetch(site.url("/private"))

    assert result.reason is Reason.ROBOTS_DISALLOWED
    assert all(visit.header("Authorization") is None for visit in site.journal)

"""Cookies: kept only if asked for, sent only to the very host that set them, and bounded."""

from __future__ import annotations

from email.utils import formatdate
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.client import session_of
from curtsy.core.errors import Reason
from curtsy.core.request import Headers
from curtsy.core.time import cookie_date
from curtsy.core.url import Url, parse_url
from curtsy.http.cookies import Cookies
from curtsy.http.sender import HttpSender
from curtsy.testing import FakeClock
from tests.client.fetching import DAWN, client
from tests.strategies import ANY
from tests.support.certificates import Authority
from tests.support.proxy import tunnel
from tests.support.site import Reply, Site, redirect
from tests.support.snapshot import Snapshot
from tests.support.wall import wall

DATE_PIECES = (
    "1",
    "31",
    "99",
    "1970",
    "0000",
    "9999",
    "12:",
    "99:99:99",
    "0:0:0",
    "jan",
    "Feb",
    " ",
    "-",
    ",",
    "GMT",
    "\u0661",
)


def at(url: str) -> Url:
    parsed = parse_url(url)
    assert isinstance(parsed, Url)
    return parsed


def jar(*lines: str, url: str = "https://shop.example/cart/list", now: float = 1000.0) -> Cookies:
    cookies = Cookies(lambda: now)
    cookies.take(at(url), Headers([("Set-Cookie", line) for line in lines]))
    return cookies


async def test_cookies_are_not_kept_unless_they_are_asked_for(site: Site) -> None:
    """Issue 4, 6"""
    site.reply("/*", Reply(body="x", headers={"Set-Cookie": "sid=1"}))

    async with client() as web:
        for _ in range(2):
            await web.fetch(site.url("/a"))

    assert [visit.header("Cookie") for visit in site.journal] == [None] * 3


async def test_a_cookie_goes_back_to_the_host_that_set_it_and_to_no_other(site: Site) -> None:
    """F64"""
    site.reply("/*", Reply(body="x", headers={"Set-Cookie": "sid=1"}), host="127.0.0.1")
    site.page("/*", "x", host="127.0.0.2")

    async with client(cookies=True) as web:
        for host in ("127.0.0.1", "127.0.0.1", "127.0.0.2"):
            await web.fetch(site.url("/a", host=host))

    assert [visit.header("Cookie") for visit in site.visits(host="127.0.0.1")] == [None, None, "sid=1"]
    assert all(visit.header("Cookie") is None for visit in site.visits(host="127.0.0.2"))


async def test_a_cookie_of_the_callers_own_goes_instead_of_those_kept(site: Site) -> None:
    """F64: there is one Cookie field (RFC 6265, 5.4)"""
    site.reply("/*", Reply(body="x", headers={"Set-Cookie": "sid=1"}))

    async with client(cookies=True) as web:
        await web.fetch(site.url("/a"))
        await web.fetch(site.url("/b"), headers={"Cookie": "mine=2"})

    sent = [value for name, value in site.visits("/b")[0].headers if name.lower() == "cookie"]
    assert sent == ["mine=2"]


async def test_another_port_is_another_host(site: Site) -> None:
    """F64"""
    site.reply("/*", Reply(body="x", headers={"Set-Cookie": "sid=1"}))
    with Site() as other:
        async with client(cookies=True) as web:
            await web.fetch(site.url("/"))
            await web.fetch(other.url("/"))

        assert all(visit.header("Cookie") is None for visit in other.journal)


async def test_a_cookie_of_a_redirect_is_sent_on_the_next_hop_of_the_same_host_only(site: Site) -> None:
    """F64, F25: a login"""
    site.reply("/login", Reply(302, headers=[("Location", "/home"), ("Set-Cookie", "sid=1")]), host="127.0.0.1")
    site.reply("/home", redirect(site.url("/away", host="127.0.0.2")), host="127.0.0.1")
    site.page("/away", "x", host="127.0.0.2")

    async with client(cookies=True) as web:
        assert (await web.fetch(site.url("/login"))).ok

    assert site.visits("/home")[0].header("Cookie") == "sid=1"
    assert site.visits("/away")[0].header("Cookie") is None


async def test_a_cookie_for_another_host_or_for_a_public_suffix_is_refused(site: Site) -> None:
    """F64"""
    lines = ["a=1; Domain=elsewhere.test", "b=1; Domain=test", "c=1; Domain=.shop.test", "d=1; Domain=b.a.shop.test"]
    site.reply("/*", Reply(body="x", headers=[("Set-Cookie", line) for line in lines]))

    async with client(cookies=True, sender=HttpSender(resolver=site.names)) as web:
        for host in ("a.shop.test", "a.shop.test", "shop.test", "elsewhere.test"):
            await web.fetch(site.url("/", host=host))

    sent = {visit.host: visit.header("Cookie") for visit in site.visits("/")}
    assert sent == {"a.shop.test": "c=1", "shop.test": None, "elsewhere.test": None}


def test_three_thousand_cookies_of_four_kibibytes_are_bounded() -> None:
    """F64: the longest of names, values and paths"""
    lines = [f"c{number}={'x' * 4080}; Path=/{'p' * 1000}" for number in range(3000)]

    cookies = jar(*lines)

    assert len(cookies) == Cookies.PER_HOST
    sent = cookies.header_for(at(f"https://shop.example/{'p' * 1000}"))
    assert sent is not None
    assert 4080 < len(sent) <= Cookies.SENT
    assert len(jar("a=1; Path=/" + "p" * 60_000)._hosts["shop.example"].popitem()[1].path) <= 1024


def test_the_latest_cookies_go_if_not_all_fit() -> None:
    """F64: servers refuse a line above 8 KiB, and with it every request"""
    cookies = jar("old=1; Path=/", *(f"c{number}={'x' * 1500}; Path=/" for number in range(20)), "new=1; Path=/")

    sent = cookies.header_for(at("https://shop.example/"))

    assert sent is not None
    names = [each.partition("=")[0] for each in sent.split("; ")]
    assert names == ["old", "c15", "c16", "c17", "c18", "c19", "new"]
    assert len(f"Cookie: {sent}\r\n") <= 8190


@pytest.mark.parametrize("domain", ["0.0.1", "1", ".0.0.1", "0.1", "127.0.0.1."])
async def test_an_address_has_no_domain_above_it(site: Site, domain: str) -> None:
    """F64: RFC 6265, 5.1.3"""
    site.reply("/", Reply(body="x", headers={"Set-Cookie": f"a=1; Domain={domain}; Path=/"}))

    async with client(cookies=True) as web:
        for _ in range(2):
            await web.fetch(site.url("/"))

    assert [visit.header("Cookie") for visit in site.visits("/")] == [None, None]


@pytest.mark.parametrize(
    ("age", "is_kept"),
    [("9" * 5000, True), ("0" * 5000 + "9", True), ("-" + "9" * 5000, False), ("0", False), ("٣", True), ("1_0", True)],
)
def test_the_age_of_a_cookie_may_be_any_number(age: str, is_kept: bool) -> None:
    """F64: RFC 6265, 5.2.2: what is no number is ignored, so that the cookie stays"""
    assert bool(jar(f"a=1; Max-Age={age}; Path=/").header_for(at("https://shop.example/"))) == is_kept


def test_a_cookie_may_name_its_own_host() -> None:
    """F64"""
    assert jar("a=1; Domain=shop.example; Path=/").header_for(at("https://shop.example/")) == "a=1"
    assert jar("a=1; Domain=.Shop.Example; Path=/").header_for(at("https://shop.example/")) == "a=1"


async def test_a_site_that_goes_on_setting_cookies_fills_no_more_than_its_share(site: Site) -> None:
    """F64"""
    lines = [("Set-Cookie", f"c{number}={'x' * 1000}") for number in range(40)]
    site.on(
        "/*", lambda visit: Reply(body="x", headers=[(n, v.replace("c", f"c{visit.path[1:]}_", 1)) for n, v in lines])
    )

    async with client(cookies=True, max_requests_per_day=0, max_pages_per_day=0) as web:
        for number in range(8):
            await web.fetch(site.url(f"/{number}"))
        cookies = session_of(web).context.cookies

    assert isinstance(cookies, Cookies)
    assert len(cookies) == Cookies.PER_HOST


def test_large_cookies_of_many_hosts_take_a_few_megabytes() -> None:
    """F64"""
    cookies = Cookies(lambda: 1000.0)

    for number in range(3000):
        line = f"c{number % 30}={'x' * 4000}"
        cookies.take(at(f"https://shop{number // 30}.example/"), Headers([("Set-Cookie", line)]))

    held = sum(len(cookies.header_for(at(f"https://shop{number}.example/")) or "") for number in range(100))
    assert len(cookies) * 4000 < Cookies.BYTES
    assert cookies.header_for(at("https://shop0.example/")) is None
    assert 0 < held <= Cookies.BYTES


def test_the_jar_is_bounded_in_all() -> None:
    """F64"""
    cookies = Cookies(lambda: 0.0)
    for number in range(3000):
        cookies.take(at(f"http://h{number}.example/"), Headers([("Set-Cookie", "a=1")]))

    assert len(cookies) == Cookies.HOSTS


@pytest.mark.parametrize(
    "line",
    [
        "",
        "novalue",
        "=x",
        "bad name=1",
        "a=" + "x" * 5000,
        "a=b\x01c",
        "a\r\nX=1",
        "a=1\r\nX-Injected: 1",
        "ü=1",
        "a=ü",
    ],
)
def test_what_is_no_cookie_is_not_kept(line: str) -> None:
    """F64, F26"""
    assert len(jar(line)) == 0


@pytest.mark.parametrize(
    ("line", "path", "sent"),
    [
        ("a=1", "/cart/other", True), ("a=1", "/cart", True), ("a=1", "/", False), ("a=1", "/carton", False),
        ("a=1; Path=/", "/any", True), ("a=1; Path=/cart/", "/cart/x", True), ("a=1; Path=nonsense", "/cart/x", True),
        ("a=1; Max-Age=0", "/cart/x", False), ("a=1; Max-Age=-5", "/cart/x", False),
        ("a=1; Max-Age=60", "/cart/x", True), ("a=1; Max-Age=soon", "/cart/x", True),
        (f"a=1; Expires={formatdate(500, usegmt=True)}", "/cart/x", False),
        (f"a=1; Expires={formatdate(5000, usegmt=True)}", "/cart/x", True), ("a=1; Expires=never", "/cart/x", True),
        (f"a=1; Max-Age=60; Expires={formatdate(500, usegmt=True)}", "/cart/x", True),
    ],
)  # fmt: skip
def test_path_and_end_of_a_cookie_are_kept_to(line: str, path: str, sent: bool) -> None:
    """F64: RFC 6265, 5.1.4 and 5.3"""
    assert (jar(line).header_for(at(f"https://shop.example{path}")) == "a=1") == sent


@ANY
@given(st.text(max_size=30) | st.lists(st.sampled_from(DATE_PIECES), max_size=8).map("".join))
@example("0:0:0 1 jan 0000")
def test_no_date_raises(text: str) -> None:
    """F64"""
    assert len(jar(f"a=1; Expires={text.partition(';')[0]}")) <= 1
    assert cookie_date(text) is None or isinstance(cookie_date(text), int)


def test_longer_paths_go_first() -> None:
    """RFC 6265, 5.4"""
    cookies = jar("a=1; Path=/", "b=2; Path=/cart")

    assert cookies.header_for(at("https://shop.example/cart/x")) == "b=2; a=1"


def test_a_later_cookie_replaces_or_removes_an_earlier_one() -> None:
    """F64: RFC 6265, 5.3"""
    cookies = jar("a=1", "a=2", "b=1", "b=1; Max-Age=0")

    assert cookies.header_for(at("https://shop.example/cart/x")) == "a=2"


def test_a_cookie_ends_in_its_time() -> None:
    """F64"""
    clock = FakeClock(DAWN)
    cookies = Cookies(lambda: clock.now().epoch / 1e6)
    cookies.take(at("http://a.example/"), Headers([("Set-Cookie", "a=1; Max-Age=60")]))

    clock.advance(59)
    before = cookies.header_for(at("http://a.example/"))
    clock.advance(2)

    assert (before, cookies.header_for(at("http://a.example/"))) == ("a=1", None)


def test_a_secure_cookie_is_neither_set_nor_sent_nor_overwritten_by_plain_http() -> None:
    """F25"""
    url = "https://shop.example/"
    cookies = jar("a=safe; Secure", url=url)
    plain = at("http://shop.example/")

    cookies.take(plain, Headers([("Set-Cookie", "a=forged"), ("Set-Cookie", "b=1; Secure"), ("Set-Cookie", "c=1")]))

    assert cookies.header_for(plain) == "c=1"
    assert cookies.header_for(at(url)) == "a=safe; c=1"


def test_a_cookie_of_https_stays_there_until_http_sets_one_of_its_own() -> None:
    """F25; RFC 6265bis, 5.7: without Secure it may be written over, and then it has been in clear already"""
    safe, plain = at("https://shop.example/"), at("http://shop.example/")
    cookies = jar("a=1", url=safe.text)

    before = cookies.header_for(plain), cookies.header_for(safe)
    cookies.take(plain, Headers([("Set-Cookie", "a=2")]))

    assert before == (None, "a=1")
    assert (cookies.header_for(plain), cookies.header_for(safe)) == ("a=2", "a=2")


@pytest.mark.parametrize("name", ["__Secure-a", "__Host-a", "__secure-a"])
def test_names_that_promise_safety_must_keep_it(name: str) -> None:
    """F64: RFC 6265bis, 4.1.3"""
    assert len(jar(f"{name}=1; Path=/")) == 0
    assert len(jar(f"{name}=1; Path=/; Secure", url="http://shop.example/")) == 0
    assert len(jar(f"{name}=1; Path=/; Secure")) == 1


@pytest.mark.parametrize("name", ["__Host-a", "__host-a"])
@pytest.mark.parametrize("rest", ["Path=/; Domain=shop.example", "Path=/cart", "Path=/; Path=/cart", ""])
def test_a_name_that_promises_one_host_is_of_all_its_paths_and_names_no_domain(name: str, rest: str) -> None:
    """F64: RFC 6265bis, 4.1.3.2"""
    assert len(jar(f"{name}=1; Secure; {rest}")) == 0
    assert len(jar(f"__Secure-a=1; Secure; {rest}")) == 1


@pytest.mark.parametrize("name", ["basket[three]", "a:b", "a/b", 'a"b', "{a}"])
def test_a_name_may_have_more_than_letters(name: str) -> None:
    """F64: RFC 6265, 5.2; PHP's arrays have brackets"""
    assert jar(f"{name}=1").header_for(at("https://shop.example/cart/x")) == f"{name}=1"


@pytest.mark.parametrize(
    ("date", "sent"),
    [
        ("Thu, 01 Jan 1970 00:00:00", False), ("thu, 01 jan 1970 00:00:00 gmt", False),
        ("Thu, 01 Jan 1970 00:00:00 PST", False), ("Thu Jan 01 1970 00:00:00 GMT+0000 (UTC)", False),
        ("Thu, 01-Jan-70 0:0:1", False), ("1970 January 1st, 00:00:00", False), ("1 Jan 99 00:00:00", True),
        ("1 Jan 69 00:00:00", True), ("Thursday, 01/Jan/2099 00:00:00 GMT", True), ("00:00:00 1 Jan", True),
        ("31 Feb 1970 00:00:00", True), ("1 Jan 1970 25:00:00", True), ("1 Jan 19700 00:00:00", True), ("", True),
    ],
)  # fmt: skip
def test_the_date_of_a_cookie_may_be_written_in_many_ways(date: str, sent: bool) -> None:
    """F64: RFC 6265, 5.1.1; one that cannot be read is none"""
    cookies = jar("a=1", f"a=1; Expires={date}")

    assert (cookies.header_for(at("https://shop.example/cart/x")) == "a=1") == sent


def by_proxies(monkeypatch: pytest.MonkeyPatch, authority: Authority, *, https: str, http: str) -> HttpSender:
    """A sender that reaches the default ports, which are not ours, by proxies."""
    for name, value in (("https_proxy", https), ("http_proxy", http), ("no_proxy", "")):
        monkeypatch.setenv(name, value)
    return HttpSender(use_environment=True, verify=authority.client())


@pytest.mark.parametrize("secure", ["", "; Secure"])
async def test_cookies_over_tls(site: Site, secure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F25: from https to http of the same name, on the ports of both; by proxies, for those ports are not ours"""
    authority = Authority()
    with Site(tls=authority.server()) as safe:
        headers = [("Location", "http://shop.test/plain"), ("Set-Cookie", f"a=1; Path=/{secure}")]
        safe.reply("/", Reply(302, headers=headers))
        site.reply("http://shop.test/plain", redirect("https://shop.test/back"))
        safe.page("/back", "x")
        async with tunnel(safe.port) as (url, _):
            sender = by_proxies(monkeypatch, authority, https=url, http=site.url(""))
            async with client(cookies=True, sender=sender) as web:
                assert (await web.fetch("https://shop.test/")).ok

    assert [visit.header("Cookie") for visit in safe.visits() if visit.path != "/robots.txt"] == [None, "a=1"]
    assert [visit.header("Cookie") for visit in site.visits("http://shop.test/plain")] == [None]


async def test_a_cookie_of_http_goes_along_when_a_site_sends_its_visitors_to_https(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F64: the upgrade that most sites make"""
    authority = Authority()
    headers = [("Location", "https://shop.test/safe"), ("Set-Cookie", "a=1; Path=/")]
    site.reply("http://shop.test/", Reply(302, headers=headers))
    with Site(tls=authority.server()) as safe:
        safe.page("/safe", "x")
        async with tunnel(safe.port) as (url, _):
            sender = by_proxies(monkeypatch, authority, https=url, http=site.url(""))
            async with client(cookies=True, sender=sender) as web:
                assert (await web.fetch("http://shop.test/")).ok

    assert [visit.header("Cookie") for visit in safe.visits("/safe")] == ["a=1"]


async def test_a_cookie_that_the_caller_gives_goes_before_the_jars(site: Site) -> None:
    """F64"""
    site.reply("/*", Reply(body="x", headers={"Set-Cookie": "sid=1"}))

    async with client(cookies=True) as web:
        await web.fetch(site.url("/a"))
        await web.fetch(site.url("/b"), headers={"Cookie": "own=1"})

    assert site.visits("/b")[0].header("Cookie") == "own=1"


async def test_cookies_are_written_nowhere(site: Site, tmp_path: Path) -> None:
    """F62"""
    site.reply("/*", Reply(body="x", headers={"Set-Cookie": "sid=s3cr3t-cookie", "Cache-Control": "max-age=900"}))

    async with client(cookies=True, cache=tmp_path / "pages") as web:
        for _ in range(2):
            await web.fetch(site.url("/a"))

    written = b"".join(path.read_bytes() for path in (tmp_path / "pages").rglob("*") if path.is_file())
    assert written
    assert b"s3cr3t-cookie" not in written


# Sites that want their cookie back before they show anything.


async def test_a_page_that_sets_a_cookie_and_redirects_to_itself_is_fetched_if_cookies_are_kept(site: Site) -> None:
    """U3, F64"""
    wall(site, "behind")

    async with client(cookies=True) as web:
        result = await web.fetch(site.url("/a"))

    assert (result.ok, result.text) == (True, "behind")
    assert [visit.header("Cookie") for visit in site.visits("/a")] == [None, "seen=yes"]


async def test_without_cookies_it_is_told_that_the_site_wants_one(site: Site, snapshot: Snapshot) -> None:
    """U3, F17: what, why and what to do"""
    wall(site, "behind")

    async with client() as web:
        result = await web.fetch(site.url("/a"))

    assert (result.reason, result.status) == (Reason.TOO_MANY_REDIRECTS, 302)
    assert site.url("/a") in result.message
    assert "(cookies=True, --cookies)" in result.message
    snapshot(result.message)


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_cookie_on_the_way_is_not_blamed_for_what_it_has_not_done(site: Site, is_kept: bool) -> None:
    """F17: a circle though cookies are kept, and new URLs without end"""
    if is_kept:
        wall(site, "", last=False)
    else:
        site.on("/*", lambda visit: Reply(302, headers=[("Location", visit.path + "x"), ("Set-Cookie", "a=1")]))

    async with client(cookies=is_kept, respect_robots=False) as web:
        result = await web.fetch(site.url("/a"))

    assert result.reason is Reason.TOO_MANY_REDIRECTS
    assert "5 times" in result.message
    assert "max_redirects" in result.message
    assert "cookie" not in result.message


async def test_a_redirect_to_itself_that_sets_a_cookie_is_not_kept_for_the_cookie_is_not_either(
    site: Site, tmp_path: Path
) -> None:
    """U3, F17: whoever does as he was told, and keeps cookies from then on, is not sent in a circle by the cache"""
    headers = [
        ("Location", "/a"),
        ("Set-Cookie", "seen=yes"),
        ("Cache-Control", "max-age=600"),
        ("Date", formatdate(DAWN, usegmt=True)),
    ]
    site.on("/a", lambda visit: Reply(body="behind") if visit.header("Cookie") else Reply(302, headers=headers))

    results = []
    for cookies in (False, False, True):
        async with client(cookies=cookies, cache=tmp_path) as web:
            results.append(await web.fetch(site.url("/a")))

    assert [result.ok for result in results] == [False, False, True]
    assert all("--cookies" in result.message for result in results[:2])

"""Mistakes that newcomers make, and what they are told."""

from __future__ import annotations

import asyncio
import functools
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from curtsy import (
    AsyncClient,
    Client,
    DiskCache,
    DomainDailyBudgetManager,
    PolicyError,
    RateLimiter,
    Reason,
    RobotsTxtChecker,
    WebCrawler,
    acrawl,
    crawl,
    get,
    with_retry,
)
from curtsy.cache.packed import PackedCache
from curtsy.client import session_of
from curtsy.core import messages
from curtsy.core.url import Url, parse_url
from curtsy.http.sender import HttpSender
from curtsy.limits import PDFDownloader
from curtsy.stores.sqlite import AsyncSQLiteStore
from tests.client.fetching import client
from tests.support.polling import until
from tests.support.sending import OPEN, fail, request
from tests.support.site import Site, hang
from tests.support.snapshot import Snapshot


async def test_one_url_in_place_of_many_is_told_apart(snapshot: Snapshot) -> None:
    async with client() as web:
        with pytest.raises(PolicyError, match=r"^urls = ") as caught:
            await anext(web.fetch_many("http://127.0.0.1/"))

    snapshot(str(caught.value))


async def test_an_address_that_may_not_be_asked_costs_no_turn(site: Site) -> None:
    """U2: it is refused before anything is taken, and the message says what opens it."""
    async with client(allow_private=False) as web:
        result = await web.fetch(site.url("/"))

        assert result.reason is Reason.ADDRESS_REFUSED
        assert "loopback" in result.message
        assert "allow_private" in result.message
        assert (result.record.waited, await session_of(web).store.keys()) == (0.0, [])
    assert site.connections == 0


@pytest.mark.parametrize(
    ("given", "shown"), [({"headers": {"Bad Name": "x"}}, "'Bad Name'"), ({"method": "GE T"}, "method = 'GE T'")]
)
async def test_a_request_that_cannot_be_written_is_told_with_one_advice(
    site: Site, given: dict[str, Any], shown: str, snapshot: Snapshot
) -> None:
    """Conventions: errors; F26"""
    async with client(respect_robots=False) as web:
        result = await web.fetch(site.url("/a"), **given)

    assert result.reason is Reason.INVALID_URL
    assert site.url("/a") in result.message
    assert shown in result.message
    snapshot(result.message)


async def test_a_sender_that_is_closed_is_told_with_one_advice(site: Site, snapshot: Snapshot) -> None:
    """Conventions: errors"""
    sender = HttpSender()
    await sender.close()

    async with client(respect_robots=False, sender=sender) as web:
        result = await web.fetch(site.url("/"))

    assert result.reason is Reason.CLOSED
    assert site.url("/") in result.message
    snapshot(result.message)


async def test_all_connections_in_use_is_told_with_one_advice(site: Site, snapshot: Snapshot) -> None:
    """Conventions: errors"""
    site.reply("/hang", hang())
    site.page("/b", "x", host="127.0.0.2")
    sender = HttpSender(connections=1)
    waiting = asyncio.ensure_future(sender.send(request(site.url("/hang")), OPEN))
    await until(lambda: site.count("/hang"))

    failure = await fail(
        sender, site.url("/b", host="127.0.0.2"), replace(OPEN, timeout=0.05, counts_waiting=True)
    )  # fmt: skip
    waiting.cancel()
    await asyncio.wait([waiting])
    await sender.close()

    url = parse_url(site.url("/b"))
    assert isinstance(url, Url)
    said = messages.failed(url, failure, 1)
    assert [each in said for each in (url.text, "1 connections", "0.05 s")] == [True] * 3
    snapshot(said)


@pytest.mark.parametrize(
    ("mistake", "shown"),
    [
        (lambda: RateLimiter(2), "config = 2"),  # type: ignore[arg-type]
        (lambda: DomainDailyBudgetManager({"x.org": 2}, store="memory:"), "policies = "),  # type: ignore[arg-type]
        (lambda: AsyncClient(deadline=-1, store="memory:", cache=False), "deadline = -1"),
        (lambda: AsyncClient(max_retries=-1), "max_retries = -1 .* 0"),
        (lambda: AsyncClient(max_in_flight=0), "max_in_flight = 0 .* 1"),
        (lambda: AsyncClient(stale_if_error=-1), "stale_if_error = -1 .* 0"),
        (lambda: AsyncClient(cache_mode="ofline"), "cache_mode = 'ofline'"),  # type: ignore[arg-type]
        (lambda: AsyncClient(proxy="127.0.0.1:3128"), "proxy = '127.0.0.1:3128'"),
    ],
    ids=["limiter", "budget", "deadline", "retries", "connections", "stale", "cache mode", "proxy"],
)
async def test_a_wrong_argument_is_an_error_at_once(mistake: Any, shown: str, snapshot: Snapshot) -> None:
    with pytest.raises(PolicyError, match=rf"\b{shown}") as caught:
        mistake()
    snapshot(str(caught.value))


async def awaited(record: object) -> None:
    """What nobody awaits."""


class Awaited:
    """The same, as an object."""

    async def __call__(self, record: object) -> None:
        pass


def iterated(record: object) -> Iterator[object]:
    """What nobody iterates over."""
    yield record


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("store", 3, "store = 3"),
        ("store", AsyncSQLiteStore, "store = "),
        ("cache", 5, "cache = 5"),
        ("cache", {}, r"cache = \{\}"),
        ("cache", "", "cache = ''"),
        ("cache", DiskCache, "cache = "),
        ("cache", "a\0b", r"cache = 'a\\x00b' .*'\\x00'"),
        ("cache", "a\0b.sqlite", r"cache = 'a\\x00b.sqlite'"),
        ("cache", Path("a\0b"), r"cache = 'a\\x00b'"),
        ("cache", "a\ud800b", r"cache = 'a\\ud800b' .*'\\ud800'"),
        ("cache_dir", "a\0b", r"cache_dir = 'a\\x00b' .*'\\x00'"),
        ("cache_dir", "a\ud800b", r"cache_dir = 'a\\ud800b'"),
        ("store", "sqlite:///a\0b", r"store = 'sqlite:///a\\x00b' .*'\\x00'"),
        ("store", Path("a\0b"), r"store = 'sqlite:///a\\x00b'"),
        ("clock", 3, "clock = 3"),
        ("on_record", 3, "on_record = 3"),
        ("on_record", awaited, r"on_record = .* async"),
        ("on_record", functools.partial(awaited), r"on_record = .* async"),
        ("on_record", Awaited(), r"on_record = .* async"),
        ("on_record", iterated, r"on_record = .* async"),
        ("sender", 3, "sender = 3"),
        ("sender", HttpSender, "sender = "),
        ("timers", 3, "timers = 3"),
        ("verify", 3, "verify = 3"),
        ("verify", None, "verify = None"),
        ("proxy", 3, "proxy = 3"),
        ("stale_while_revalidate", "x", "stale_while_revalidate = 'x'"),
        ("cookies", "x", "cookies = 'x'"),
        ("config", 3, "config = 3"),
        ("deadline", math.inf, "deadline = inf"),
    ],
)
async def test_so_is_one_that_is_no_setting(name: str, value: Any, shown: str, snapshot: Snapshot) -> None:
    """U6"""
    given: dict[str, Any] = {"store": "memory:", "cache": False, name: value}

    with pytest.raises(PolicyError, match=rf"\b{shown}") as caught:
        AsyncClient(**given)

    snapshot(re.sub("0x[0-9a-f]+", "<address>", str(caught.value)))


@pytest.mark.parametrize("kind", [DiskCache, PackedCache])
@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("a\0b", r"= 'a\\x00b' .*'\\x00'"),
        ("a\ud800b", r"= 'a\\ud800b' .*'\\ud800'"),
        (None, "= None "),
        (b"pages", "= b'pages' "),
    ],
    ids=["nul", "surrogate", "none", "bytes"],
)
def test_a_cache_is_not_made_where_no_file_can_be(kind: Any, path: Any, shown: str, snapshot: Snapshot) -> None:
    """U6: else it would fail the first fetch"""
    with pytest.raises(PolicyError, match=shown) as caught:
        kind(path)

    snapshot(str(caught.value))


@pytest.mark.parametrize("kind", [str.encode, Path], ids=["bytes", "path"])
async def test_a_wrong_argument_is_shown_without_its_secrets(kind: Callable[[str], Any]) -> None:
    """F62: a path has one / before the login"""
    proxy = kind("http://me:secret@proxy.example:3128")

    with pytest.raises(PolicyError, match="proxy = ") as caught:
        AsyncClient(proxy=proxy)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("cookeis", "cookies"),
        ("verfy", "verify"),
        ("deadlin", "deadline"),
        ("stale_if_errors", "stale_if_error"),
        ("max_inflight", "max_in_flight"),
        ("connections", "max_in_flight"),
        ("rate", "qps"),
        ("follow_redirects", "max_redirects"),
        ("proxies", "proxy"),
        ("user_agnet", "user_agent"),
        ("max_request_per_day", "max_requests_per_day"),
    ],
)
async def test_a_misspelt_argument_is_told_with_the_one_that_was_meant(
    name: str, meant: str, snapshot: Snapshot
) -> None:
    """U6"""
    misspelt: dict[str, Any] = {name: 1}

    with pytest.raises(PolicyError, match=rf"\b{name}\b.*\b{meant}\b") as caught:
        AsyncClient(**misspelt)

    snapshot(str(caught.value))


@pytest.mark.parametrize(("name", "meant"), [("concurrency", "max_in_flight"), ("data", "body")])
async def test_a_wrong_option_of_a_batch_is_told_before_anything_is_sent(site: Site, name: str, meant: str) -> None:
    """U6"""
    wrong: dict[str, Any] = {name: 1}

    async with client() as web:
        with pytest.raises(PolicyError, match=rf"{name} .* {meant}\?"):
            await anext(web.fetch_many([site.url("/")], **wrong))

    assert site.connections == 0


async def test_one_that_is_like_none_is_told_where_all_are_listed(snapshot: Snapshot) -> None:
    """U6"""
    unknown: dict[str, Any] = {"http2": True}

    with pytest.raises(PolicyError, match="http2") as caught:
        AsyncClient(**unknown)

    said = str(caught.value)
    assert "`curtsy config show`" in said
    assert "help(curtsy.AsyncClient)" in said
    snapshot(said)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"body": "text"}, "body = 'str'"),
        ({"deadline": "5"}, "deadline = '5' .* 0"),
        ({"deadline": math.nan}, "deadline = nan .* 0"),
        ({"deadline": math.inf}, "deadline = inf"),
        ({"deadline": True}, "deadline = True .* 0"),
        ({"idempotent": "x"}, "idempotent = 'x'"),
        ({"headers": {"X-Count": 1}}, "header 'X-Count'"),
        ({"headers": ["X-Count"]}, "headers = 'list'"),
        ({"method": 3}, "method = 3"),
        ({"json": {1: object()}}, "json = dict"),
        ({"json": 1, "body": b"1"}, "json and body"),
        ({"params": 5}, "params = 'int'"),
        ({"timeout": 0}, "timeout = 0 .* 0"),
    ],
    ids=[
        "body",
        "text",
        "nan",
        "inf",
        "true",
        "idempotent",
        "header",
        "headers",
        "method",
        "json",
        "two",
        "params",
        "timeout",
    ],
)
async def test_a_mistake_of_the_callers_is_never_laid_at_the_hosts_door(
    site: Site, options: dict[str, Any], shown: str, snapshot: Snapshot
) -> None:
    """U6: it is told at once, and no breaker hears of it."""
    async with client() as web:
        with pytest.raises(PolicyError, match=shown) as caught:
            await web.fetch(site.url("/"), **options)
        snapshot(str(caught.value))

        assert await session_of(web).store.keys() == []
    assert site.connections == 0


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"path": 3}, "path = 3"),
        ({"path": ""}, "path = ''"),
        ({"path": "a\0b"}, r"path = 'a\\x00b' .*'\\x00'"),
        ({"path": Path("a\ud800b")}, r"path = 'a\\ud800b' .*'\\ud800'"),
        ({"max_size": "1G"}, "max_size = '1G'"),
        ({"deadline": math.inf}, "deadline = inf"),
    ],
    ids=["number", "nothing", "nul", "surrogate", "size", "deadline"],
)
async def test_nor_is_one_of_a_downloads(
    site: Site, tmp_path: Path, options: dict[str, Any], shown: str, snapshot: Snapshot
) -> None:
    """U6"""
    async with client() as web:
        with pytest.raises(PolicyError, match=shown) as caught:
            await web.download(site.url("/"), **{"path": tmp_path / "a", **options})

    snapshot(str(caught.value))
    assert site.connections == 0


async def test_who_has_counted_down_too_far_has_no_time_left(site: Site) -> None:
    """U5: that is no mistake"""
    async with client() as web:
        result = await web.fetch(site.url("/"), deadline=-0.5)

    assert result.reason is Reason.DEADLINE
    assert site.connections == 0


async def test_what_an_argument_says_goes_before_any_file(tmp_path: Path) -> None:
    """Issue 2, 2: also when it says what would hold without any file"""
    file = tmp_path / "curtsy.yaml"
    file.write_text("default_policy:\n  respect_robots: false\n  allow_private: true\n")

    async with AsyncClient(config=file, store="memory:", cache=False) as web:
        by_file = web.policies.default
    async with AsyncClient(config=file, store="memory:", cache=False, respect_robots=True, allow_private=False) as web:
        by_argument = web.policies.default

    assert (by_file.respect_robots, by_file.allow_private) == (False, True)
    assert (by_argument.respect_robots, by_argument.allow_private) == (True, False)


async def test_what_cannot_be_called_again_is_not_retried() -> None:
    """N2"""
    with pytest.raises(PolicyError, match="fn = "):
        await with_retry(42)  # type: ignore[call-overload]
    with pytest.raises(PolicyError, match="max_retries = -1"):
        await with_retry(lambda: 1, -1)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("data", "Did you mean body?"), ("content", "Did you mean body?"), ("heders", "Did you mean headers?"),
        ("verify", "It is an argument of the client"), ("retries", "max_retries is an argument of the client"),
        ("rate", "qps is an argument of the client"), ("stream", "download()"), ("auth", "Authorization"),
        ("cookies", "Cookie"), ("files", "Content-Type"), ("cert", "verify="), ("allow_redirects", "max_redirects"),
        ("proxies", "proxy is an argument of the client"), ("zzz", "zzz is not an argument"),
    ],
)  # fmt: skip
async def test_a_keyword_of_another_library_is_told_the_right_one(name: str, meant: str) -> None:
    """Issue 18, point 4: by a fetch as by many"""
    given: dict[str, Any] = {name: 1}

    with Client(cache=False, store="memory:") as threads:
        with pytest.raises(PolicyError, match=re.escape(meant)):
            threads.fetch("https://example.org/", **given)
        with pytest.raises(PolicyError, match=re.escape(meant)):
            list(threads.fetch_many(["https://example.org/"], **given))
    async with AsyncClient(cache=False, store="memory:") as tasks:
        with pytest.raises(PolicyError, match=re.escape(meant)):
            await tasks.fetch("https://example.org/", **given)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("limit", "max_pages"), ("rate", "qps"), ("output", "outputs"), ("fresh", "restart"), ("depth", "max_depth"),
     ("max_concurrent", "max_in_flight"), ("processes", "workers")],
)  # fmt: skip
async def test_an_option_of_another_crawler_is_told_the_right_one(name: str, meant: str) -> None:
    """Issue 18, point 4"""
    given: dict[str, Any] = {name: 1}

    with pytest.raises(PolicyError, match=f"^(argument: )?{name} is not .* Did you mean {meant}[?]$"):
        acrawl("https://example.org/", cache=False, store="memory:", **given)


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("example.org", "https://example.org"),
        ("localhost:8000/x", "https://localhost:8000/x"),
        ("//example.org/x", "https://example.org/x"),
        ("install.sh", "https://install.sh"),
        ("foo", "https://foo"),
        ("http//example.org", "https:// or http://"),
        ("/x", "https://"),
        ("../x", "https://"),
        ("mailto:x", "mailto"),
    ],
)
async def test_a_url_without_a_scheme_is_never_guessed_at_and_the_message_says_what_to_write(
    given: str, written: str
) -> None:
    """U1: in a program it may be a relative link, which would be requested from the host of that name"""
    async with client(respect_robots=False, sender=HttpSender(resolver={})) as web:
        result = await web.fetch(given)

    assert result.reason is Reason.INVALID_URL
    assert written in result.message


async def test_a_seed_without_a_scheme_means_https_as_on_the_command_line() -> None:
    """U1: a person writes seeds"""
    async with acrawl(["example.org", "localhost:8000/x"], store="memory:", cache=False) as crawl:
        assert crawl.seeds == ("https://example.org/", "https://localhost:8000/x")


@pytest.mark.parametrize("name", ["auth", "cert", "files", "stream"])
def test_what_a_client_has_not_is_told_with_the_other_way(name: str, snapshot: Snapshot) -> None:
    """By all that take its arguments"""
    given: dict[str, Any] = {name: 1, "cache": False, "store": "memory:"}

    with pytest.raises(PolicyError, match=name) as caught:
        AsyncClient(**given)
    with pytest.raises(PolicyError, match=re.escape(str(caught.value))):
        get("https://example.org/", **given)

    snapshot(str(caught.value))


@pytest.mark.parametrize(
    ("call", "name", "meant"),
    [
        (WebCrawler, "crawldelay", "crawl_delay"), (WebCrawler, "max_concurrency", "max_concurrent"),
        (WebCrawler, "limit", "max_pages"), (WebCrawler, "user_agnet", "user_agent"),
        (RobotsTxtChecker, "cachettl", "cache_ttl"), (RobotsTxtChecker, "clients", "client"),
        (PDFDownloader, "enable_ratelimit", "enable_rate_limit"), (PDFDownloader, "proxi", "proxy"),
        (partial(get, "https://example.org/"), "heders", "headers"),
        (partial(get, "https://example.org/"), "prox", "proxy"),
        (partial(crawl, "https://example.org/"), "restrat", "restart"), (Client, "deadlin", "deadline"),
    ],
)  # fmt: skip
def test_an_argument_of_the_callable_itself_is_suggested(call: Any, name: str, meant: str) -> None:
    """Conventions: errors; it is nearer than any setting"""
    given: dict[str, Any] = {name: 1}

    with pytest.raises(PolicyError, match=rf"^(argument: )?{name} is not .* Did you mean {meant}[?]$"):
        call(**given)


@pytest.mark.parametrize(
    ("name", "instead"), [("max_in_flight", "max_concurrent"), ("respect_robots", "robots_checker")]
)
def test_a_crawler_of_pages_names_its_own_word_for_an_argument_of_the_client(name: str, instead: str) -> None:
    given: dict[str, Any] = {name: 1}

    with pytest.raises(PolicyError, match=f"^{name} = 1 must be .*{instead}"):
        WebCrawler(**given)


async def test_the_headers_that_stand_for_auth_and_cookies_arrive(site: Site) -> None:
    """F62: the hints name them"""
    async with client() as web:
        await web.fetch(site.url("/"), headers={"Authorization": "Bearer a", "Cookie": "b=c"})

    (seen,) = site.visits("/")
    assert {("Authorization", "Bearer a"), ("Cookie", "b=c")} <= {*seen.headers}

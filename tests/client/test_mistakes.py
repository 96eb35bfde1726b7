"""Mistakes that newcomers make, and what they are told."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curtsy import (
    AsyncClient,
    DiskCache,
    DomainDailyBudgetManager,
    PackedCache,
    PolicyError,
    RateLimiter,
    Reason,
    with_retry,
)
from curtsy.core import messages
from curtsy.core.message import Url, parse_url
from curtsy.http.sender import AiohttpSender
from curtsy.stores.sqlite import SQLiteStore
from tests.client.fetching import client, until
from tests.support.sending import OPEN, fail, request
from tests.support.site import Site, hang


async def test_one_url_in_place_of_many_is_told_apart() -> None:
    async with client() as web:
        with pytest.raises(PolicyError, match="must be several URLs, not one"):
            await anext(web.fetch_many("http://127.0.0.1/"))


async def test_an_address_that_may_not_be_asked_costs_no_turn(site: Site) -> None:
    """U2: it is refused before anything is taken, and the message says what opens it."""
    async with client(allow_private=False) as web:
        result = await web.fetch(site.url("/"))

        assert result.reason is Reason.ADDRESS_REFUSED
        assert "loopback" in result.message
        assert "allow_private" in result.message
        assert (result.record.waited, await web._store.keys()) == (0.0, [])
    assert site.connections == 0


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"headers": {"Bad Name": "x"}},
            "the header field 'Bad Name' has characters that cannot be sent. Leave them out.",
        ),
        ({"method": "GE T"}, "method = 'GE T' cannot be sent. Use GET, HEAD, POST or another name."),
    ],
)
async def test_a_request_that_cannot_be_written_is_told_with_one_advice(
    site: Site, given: dict[str, Any], why: str
) -> None:
    """Conventions: errors; F26"""
    async with client(respect_robots=False) as web:
        result = await web.fetch(site.url("/a"), **given)

    assert result.reason is Reason.INVALID_URL
    assert result.message == f"{site.url('/a')} could not be fetched: {why}"


async def test_a_sender_that_is_closed_is_told_with_one_advice(site: Site) -> None:
    """Conventions: errors"""
    sender = AiohttpSender()
    await sender.close()

    async with client(respect_robots=False, sender=sender) as web:
        result = await web.fetch(site.url("/"))

    why = "the sender was closed. Make a new one, or close it later."
    assert result.message == f"{site.url('/')} could not be fetched: {why}"


async def test_all_connections_in_use_is_told_with_one_advice(site: Site) -> None:
    """Conventions: errors"""
    site.reply("/hang", hang())
    site.page("/b", "x", host="127.0.0.2")
    sender = AiohttpSender(connections=1)
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
    why = "all 1 connections were in use for 0.05 s. Allow more, or send less."
    assert messages.failed(url, failure, 1) == f"{url.text} could not be fetched: {why}"


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (lambda: RateLimiter(2), "config = 2 must be a LimitConfig"),  # type: ignore[arg-type]
        (lambda: DomainDailyBudgetManager({"x.org": 2}, store="memory:"), "policies = "),  # type: ignore[arg-type]
        (lambda: AsyncClient(deadline=-1, store="memory:", cache=False), "deadline = -1 must be"),
        (lambda: AsyncClient(max_retries=-1), "max_retries = -1 must be a whole number of at least 0"),
        (lambda: AsyncClient(connections=0), "connections = 0 must be a whole number of at least 1"),
        (lambda: AsyncClient(stale_if_error=-1), "stale_if_error = -1 must be"),
        (lambda: AsyncClient(cache_mode="ofline"), "cache_mode = 'ofline' must be"),  # type: ignore[arg-type]
        (lambda: AsyncClient(proxy="127.0.0.1:3128"), "proxy = '127.0.0.1:3128' must be an http or https URL"),
    ],
    ids=["limiter", "budget", "deadline", "retries", "connections", "stale", "cache mode", "proxy"],
)
async def test_a_wrong_argument_is_an_error_at_once(mistake: Any, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        mistake()


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
    ("name", "value", "message"),
    [
        (
            "store",
            3,
            "store = 3 must be a URL such as 'redis://host' or 'sqlite:///state.sqlite', the Path of an SQLite",
        ),
        ("store", SQLiteStore, "must be a URL such as"),
        ("cache", 5, "cache = 5 must be a folder"),
        ("cache", {}, r"cache = \{\} must be a folder"),
        ("cache", "", "cache = '' must be a folder"),
        ("cache", DiskCache, "must be a folder"),
        (
            "cache",
            "a\0b",
            r"cache = 'a\\x00b' must be a path without '\\x00', which no file's name can have. Take it out",
        ),
        ("cache", "a\0b.sqlite", r"cache = 'a\\x00b.sqlite' must be a path without"),
        ("cache", Path("a\0b"), r"cache = 'a\\x00b' must be a path without"),
        ("cache", "a\ud800b", r"cache = 'a\\ud800b' must be a path without '\\ud800'"),
        ("cache_dir", "a\0b", r"cache_dir = 'a\\x00b' must be a path without '\\x00'"),
        ("cache_dir", "a\ud800b", r"cache_dir = 'a\\ud800b' must be text without half of a pair of surrogates"),
        ("store", "sqlite:///a\0b", r"store = 'sqlite:///a\\x00b' must be a path without '\\x00'"),
        ("store", Path("a\0b"), r"store = 'sqlite:///a\\x00b' must be a path without"),
        ("clock", 3, "clock = 3 must be a FakeClock"),
        ("on_record", 3, "on_record = 3 must be a function"),
        ("on_record", awaited, r"on_record = .* takes a FetchRecord, and neither async .* Start a task in it"),
        ("on_record", functools.partial(awaited), "on_record = .* neither async nor a generator"),
        ("on_record", Awaited(), "on_record = .* neither async nor a generator"),
        ("on_record", iterated, "on_record = .* neither async nor a generator"),
        ("sender", 3, "sender = 3 must be a Sender"),
        ("sender", AiohttpSender, "must be a Sender"),
        ("timers", 3, "timers = 3 must be a Timers"),
        ("verify", 3, "verify = 3 must be True, the path of a CA file"),
        ("verify", None, "verify = None must be True, the path of a CA file"),
        ("proxy", 3, "proxy = 3 must be an http or https URL"),
        ("stale_while_revalidate", "x", "stale_while_revalidate = 'x' must be True or False"),
        ("cookies", "x", "cookies = 'x' must be True or False"),
        ("config", 3, "config = 3 must be the path of a settings file"),
        ("deadline", math.inf, "deadline = inf must be a finite number"),
    ],
)
async def test_so_is_one_that_is_no_setting(name: str, value: Any, message: str) -> None:
    """U6"""
    given: dict[str, Any] = {"store": "memory:", "cache": False, name: value}

    with pytest.raises(PolicyError, match=message):
        AsyncClient(**given)


@pytest.mark.parametrize("kind", [DiskCache, PackedCache])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a\0b", r"= 'a\\x00b' must be a path without '\\x00', which no file's name can have. Take it out"),
        ("a\ud800b", r"= 'a\\ud800b' must be a path without '\\ud800'"),
        (None, "= None must be a path"),
        (b"pages", "= b'pages' must be a path"),
    ],
    ids=["nul", "surrogate", "none", "bytes"],
)
def test_a_cache_is_not_made_where_no_file_can_be(kind: Any, path: Any, message: str) -> None:
    """U6: else it would fail the first fetch"""
    with pytest.raises(PolicyError, match=message):
        kind(path)


async def test_a_wrong_argument_is_shown_without_its_secrets() -> None:
    """F62"""
    proxy: Any = b"http://me:secret@proxy.example:3128"

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
        ("conections", "connections"),
        ("proxies", "proxy"),
        ("user_agnet", "user_agent"),
        ("max_request_per_day", "max_requests_per_day"),
    ],
)
async def test_a_misspelt_argument_is_told_with_the_one_that_was_meant(name: str, meant: str) -> None:
    """U6"""
    misspelt: dict[str, Any] = {name: 1}

    with pytest.raises(PolicyError, match=rf"^argument: {name} is not a setting here\. Did you mean {meant}\?$"):
        AsyncClient(**misspelt)


async def test_one_that_is_like_none_is_told_where_all_are_listed() -> None:
    """U6"""
    unknown: dict[str, Any] = {"http2": True}

    with pytest.raises(PolicyError, match=r"`curtsy config show` lists the settings, help\(curtsy\.AsyncClient\) "):
        AsyncClient(**unknown)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"body": "text"}, "body = 'str' must be bytes"),
        ({"deadline": "5"}, "deadline = '5' must be a number of at least 0"),
        ({"deadline": math.nan}, "deadline = nan must be a number of at least 0"),
        ({"deadline": math.inf}, "deadline = inf must be a finite number of at least 0"),
        ({"deadline": True}, "deadline = True must be a number of at least 0"),
        ({"idempotent": "x"}, "idempotent = 'x' must be True or False"),
        ({"headers": {"X-Count": 1}}, "header 'X-Count' must be text"),
        ({"headers": ["X-Count"]}, "headers = 'list' must be a mapping"),
        ({"method": None}, "method = None must be text"),
    ],
    ids=["body", "text", "nan", "inf", "true", "idempotent", "header", "headers", "method"],
)
async def test_a_mistake_of_the_callers_is_never_laid_at_the_hosts_door(
    site: Site, options: dict[str, Any], message: str
) -> None:
    """U6: it is told at once, and no breaker hears of it."""
    async with client() as web:
        with pytest.raises(PolicyError, match=message):
            await web.fetch(site.url("/"), **options)

        assert await web._store.keys() == []
    assert site.connections == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": 3}, "path = 3 must be the path of a file"),
        ({"path": ""}, "path = '' must be the path of a file"),
        (
            {"path": "a\0b"},
            r"path = 'a\\x00b' must be a path without '\\x00', which no file's name can have. Take it out",
        ),
        ({"path": Path("a\ud800b")}, r"path = 'a\\ud800b' must be a path without '\\ud800'"),
        ({"max_size": "1G"}, "max_size = '1G' must be a whole number"),
        ({"deadline": math.inf}, "deadline = inf must be a finite number"),
    ],
    ids=["number", "nothing", "nul", "surrogate", "size", "deadline"],
)
async def test_nor_is_one_of_a_downloads(site: Site, tmp_path: Path, options: dict[str, Any], message: str) -> None:
    """U6"""
    async with client() as web:
        with pytest.raises(PolicyError, match=message):
            await web.download(site.url("/"), **{"path": tmp_path / "a", **options})

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

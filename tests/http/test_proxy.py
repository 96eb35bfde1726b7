"""The built-in sender behind a proxy."""

import asyncio
import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from curtsy.blocking import Client
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.request import Failure
from curtsy.http.sender import HttpSender, Limits
from tests.support.certificates import Authority
from tests.support.listening import listening
from tests.support.proxy import tunnel
from tests.support.sending import OPEN, fail, get
from tests.support.site import Reply, Site, closed_port, deaf_port, garbage
from tests.support.snapshot import Snapshot

AUTHORITY = Authority()


@pytest.fixture
def proxy() -> Iterator[Site]:
    """A site that is asked for whole URLs answers as a proxy does."""
    with Site() as proxy:
        proxy.reply("http://*", Reply(body="by proxy"))
        yield proxy


async def test_a_proxy_is_asked_for_the_whole_url(proxy: Site) -> None:
    """U2"""
    sender = HttpSender(proxy=proxy.url("").replace("http://", "http://us:pw@"), resolver={})

    answer = await get(sender, "http://example.test/a?b=1", OPEN)
    await sender.close()

    assert answer.body == b"by proxy"
    assert proxy.paths() == ["http://example.test/a?b=1"]
    assert proxy.journal[0].header("Proxy-Authorization") == "Basic dXM6cHc="


async def test_the_guard_judges_the_name_as_it_resolves_here(proxy: Site) -> None:
    """U2: the proxy's own address may be private; the site's may not."""
    sender = HttpSender(proxy=proxy.url(""), resolver={"in.test": "10.0.0.1", "out.test": "93.184.216.34"})

    refused = [await fail(sender, f"http://{host}/", Limits()) for host in ("in.test", "127.0.0.1", "[::1]")]
    allowed = await get(sender, "http://out.test/", Limits())
    unknown = await get(sender, "http://unknown.test/", Limits())
    await sender.close()

    assert {(failure.reason, failure.sent_ago) for failure in refused} == {(Reason.ADDRESS_REFUSED, None)}
    assert allowed.body == unknown.body == b"by proxy"
    assert proxy.count() == 2


async def test_tls_goes_through_a_tunnel_and_is_verified() -> None:
    """F36"""
    with Site(tls=AUTHORITY.server("good")) as good, Site(tls=AUTHORITY.server("expired")) as bad:
        good.page("/", "through")
        async with tunnel(good.port) as (url, heads):
            sender = HttpSender(proxy=url, verify=AUTHORITY.client())
            answer = await get(sender, "https://shop.test/", OPEN)
            await sender.close()
        async with tunnel(bad.port) as (url, _):
            sender = HttpSender(proxy=url, verify=AUTHORITY.client())
            failure = await fail(sender, "https://shop.test/", OPEN)
            await sender.close()

    assert answer.body == b"through"
    assert heads[0].startswith(b"CONNECT shop.test:443 HTTP/1.1\r\n")
    assert (failure.reason, failure.sent_ago, failure.ended_at_proxy) == (Reason.TLS_ERROR, None, False)


async def test_a_tunnel_to_a_site_that_falls_silent_is_no_failure_of_the_proxys() -> None:
    """U6: it is there as soon as the proxy says so"""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65_536):
            pass

    async with listening(say_nothing) as silent, tunnel(silent) as (url, heads):
        sender = HttpSender(proxy=url)
        failure = await fail(sender, "https://shop.test/", replace(OPEN, connect_timeout=0.3))
        await sender.close()

    assert len(heads) == 1
    assert (failure.reason, failure.ended_at_proxy) == (Reason.TIMEOUT, False)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    ("kind", "reason", "is_lasting", "why"),
    [
        ("nameless", Reason.DNS_ERROR, True, "proxy.test"),
        ("closed", Reason.CONNECTION_ERROR, False, os.strerror(errno.ECONNREFUSED)),
        ("deaf", Reason.TIMEOUT, False, "0.3 s"),
    ],
    ids=["nameless", "closed", "deaf"],
)
async def test_a_proxy_that_cannot_be_reached_is_named_and_says_nothing_of_the_host(
    scheme: str, kind: str, reason: Reason, is_lasting: bool, why: str, snapshot: Snapshot
) -> None:
    """U6, F62: named without its password"""
    with closed_port() as closed, deaf_port() as deaf:
        place = {"nameless": "proxy.test:3128", "closed": f"127.0.0.1:{closed}", "deaf": f"127.0.0.1:{deaf}"}[kind]
        sender = HttpSender(proxy=f"http://us:hunter2@{place}", resolver={})
        failure = await fail(sender, f"{scheme}://shop.test/", replace(OPEN, connect_timeout=0.3))
        await sender.close()

    assert f"http://{place} " in failure.detail
    assert why.lower() in failure.detail
    assert "hunter2" not in failure.detail
    snapshot(failure.detail)
    assert (failure.reason, failure.is_lasting) == (reason, is_lasting)
    assert (failure.ended_at_proxy, failure.sent_ago) == (True, None)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 500 Oh\r\n\r\n", b"", b"220 ready\r\n"], ids=["status 500", "nothing", "unreadable"]
)
async def test_a_proxy_that_opens_no_tunnel_says_nothing_of_the_host(answer: bytes, snapshot: Snapshot) -> None:
    """U6"""
    with Site() as proxy:
        proxy.reply("shop.test:443", garbage(answer))
        sender = HttpSender(proxy=proxy.url(""))
        failure = await fail(sender, "https://shop.test/", OPEN)
        await sender.close()

    assert f"{proxy.url('')} " in failure.detail
    assert ("500" in failure.detail.split()) == (b" 500 " in answer)
    snapshot(failure.detail)
    assert (failure.reason, failure.is_lasting) == (Reason.CONNECTION_ERROR, False)
    assert (failure.ended_at_proxy, failure.sent_ago) == (True, None)


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_a_proxy_that_has_no_way_to_a_host_speaks_of_the_host(status: int, snapshot: Snapshot) -> None:
    """U6; RFC 9110, 15.6"""
    async with tunnel(1, b"%d Oh" % status) as (url, _):
        sender = HttpSender(proxy=url)
        failure = await fail(sender, "https://shop.test/", OPEN)
        await sender.close()

    assert f"{url} " in failure.detail
    assert str(status) in failure.detail.split()
    snapshot(failure.detail)
    assert (failure.reason, failure.ended_at_proxy) == (Reason.CONNECTION_ERROR, False)


async def test_a_proxy_that_is_down_is_not_tried_for_every_request() -> None:
    """N4's like: nobody knocks again and again"""
    sender = HttpSender(proxy="http://proxy.test:3128", resolver=(names := Counting()))
    failures = [await fail(sender, f"http://shop{number}.test/", OPEN) for number in range(9)]
    await sender.close()

    assert {failure.detail for failure in failures} == {failures[0].detail}
    assert names.asked == 1


class Counting:
    """A resolver that knows no name, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    async def resolve(self, host: str) -> list[str]:
        self.asked += 1
        raise OSError(None, "Domain name not found")


async def test_an_https_proxy_that_is_not_trusted_or_speaks_no_tls_says_nothing_of_the_host(snapshot: Snapshot) -> None:
    """U6, F36"""
    failures: list[Failure] = []
    with Site(tls=AUTHORITY.server("good")) as secured, Site() as plain:
        for proxy in (secured, plain):
            sender = HttpSender(proxy=f"https://127.0.0.1:{proxy.port}")
            failures.append(await fail(sender, "http://shop.test/", OPEN))
            await sender.close()

    assert [each.reason for each in failures] == [Reason.TLS_ERROR] * 2
    assert [each.ended_at_proxy for each in failures] == [True, True]
    assert f"https://127.0.0.1:{secured.port} " in failures[0].detail
    assert f"https://127.0.0.1:{plain.port} " in failures[1].detail
    snapshot(failures[0].detail.rpartition(": ")[0], "not trusted")  # without the reason that OpenSSL gives
    snapshot(failures[1].detail, "no TLS")
    assert not any(each.is_answer for each in failures)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(("login", "names_place"), [("", True), ("us:hunter2@", False)], ids=["no login", "login"])
async def test_a_407_is_the_proxys_word_and_says_how_to_give_a_login(
    scheme: str, login: str, names_place: bool, snapshot: Snapshot
) -> None:
    """U6, F62"""
    async with tunnel(1, b"407 Proxy Authentication Required") as (url, heads):
        place = url.removeprefix("http://")
        sender = HttpSender(proxy=f"http://{login}{place}")
        failure = await fail(sender, f"{scheme}://shop.test/", OPEN)
        await sender.close()

    assert len(heads) == 1
    assert f"{url} " in failure.detail
    assert "407" in failure.detail
    assert failure.advice is not None
    assert (place in failure.advice) == names_place
    snapshot(f"{failure.detail}. {failure.advice}")
    assert (failure.reason, failure.is_lasting) == (Reason.CONNECTION_ERROR, True)
    assert (failure.ended_at_proxy, failure.sent_ago, failure.status) == (True, None, None)


async def test_a_407_of_a_site_is_its_own() -> None:
    """U6: without a proxy, and through a tunnel"""
    with Site(tls=AUTHORITY.server("good")) as secured, Site() as plain:
        for site in (secured, plain):
            site.reply("/", Reply(407))
        async with tunnel(secured.port) as (url, _):
            sender = HttpSender(proxy=url, verify=AUTHORITY.client())
            through = await get(sender, "https://shop.test/", OPEN)
            await sender.close()
        sender = HttpSender()
        direct = await get(sender, plain.url("/"), OPEN)
        await sender.close()

    assert (through.status, direct.status) == (407, 407)


async def test_a_proxy_that_refuses_is_a_connection_error_and_nothing_was_sent() -> None:
    """B5"""
    async with tunnel(1, b"403 Forbidden") as (url, _):
        sender = HttpSender(proxy=url)
        failure = await fail(sender, "https://shop.test/", OPEN)
        await sender.close()

    assert (failure.reason, failure.sent_ago) == (Reason.CONNECTION_ERROR, None)
    assert "403" in failure.detail


async def test_a_proxy_that_is_not_there_is_a_connection_error() -> None:
    """B5"""
    with closed_port() as port:
        sender = HttpSender(proxy=f"http://us:secret@127.0.0.1:{port}")
        failure = await fail(sender, "http://shop.test/", replace(OPEN, timeout=2))
        await sender.close()

    assert (failure.reason, failure.sent_ago) == (Reason.CONNECTION_ERROR, None)
    assert "proxy" in failure.detail
    assert "secret" not in failure.detail


async def test_the_environment_names_a_proxy_only_if_that_is_wanted(
    proxy: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U2"""
    monkeypatch.setenv("http_proxy", proxy.url(""))
    monkeypatch.setenv("no_proxy", "127.0.0.1,.direct.test")
    with Site() as site:
        site.page("/", "direct")
        obeying = HttpSender(use_environment=True, resolver=site.names)
        ignoring = HttpSender(resolver=site.names)

        by_proxy = await get(obeying, site.url("/", host="shop.test"), OPEN)
        bypassed = await get(obeying, site.url("/", host="www.direct.test"), OPEN)
        direct = await get(ignoring, site.url("/", host="shop.test"), OPEN)
        await obeying.close()
        await ignoring.close()

    assert by_proxy.body == b"by proxy"
    assert bypassed.body == direct.body == b"direct"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("{}", None),
        (" {} ", None),
        ("HTTP://{}/", None),
        ("us:pw@{}", "Basic dXM6cHc="),
        ("us:p[w@{}", "Basic dXM6cFt3"),
        ("http://us:p%5Bw@{}", "Basic dXM6cFt3"),
    ],
)
async def test_the_environment_may_name_a_proxy_as_curl_takes_it(
    proxy: Site, monkeypatch: pytest.MonkeyPatch, form: str, said: str | None
) -> None:
    """U2: without a scheme, too"""
    monkeypatch.setenv("http_proxy", form.format(f"127.0.0.1:{proxy.port}"))
    sender = HttpSender(use_environment=True, resolver={})

    answer = await get(sender, "http://example.test/a", OPEN)
    await sender.close()

    assert answer.body == b"by proxy"
    assert proxy.journal[0].header("Proxy-Authorization") == said


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("socks5://us:hunter2@127.0.0.1:1", "'socks5://***@127.0.0.1:1'"),
        ("us:hunter2@127.0.0.1:99999", "'http://***@127.0.0.1:99999'"),
        ("us:hun/ter2@127.0.0.1:1", "'http://***@127.0.0.1:1'"),
        ("us:hunter2@pro xy:1", "'http://***@pro xy:1'"),
    ],
)
async def test_what_would_go_by_a_proxy_that_cannot_be_used_is_not_sent_and_says_why(
    proxy: Site, monkeypatch: pytest.MonkeyPatch, value: str, shown: str
) -> None:
    """F62: without its password; what does not go by it is not held up"""
    monkeypatch.setenv("https_proxy", value)
    monkeypatch.setenv("http_proxy", proxy.url(""))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Site(tls=AUTHORITY.server("good")) as site:
        site.page("/", "direct")
        sender = HttpSender(use_environment=True, resolver=site.names, verify=AUTHORITY.client())

        failure = await fail(sender, site.url("/", host="shop.test"), OPEN)
        by_other = await get(sender, "http://shop.test/", OPEN)
        bypassed = await get(sender, site.url("/"), OPEN)
        await sender.close()

    assert (failure.reason, failure.sent_ago) == (Reason.INVALID_URL, None)
    assert failure.detail.startswith(f"HTTPS_PROXY = {shown} ")
    assert "NO_PROXY" in failure.detail
    assert "ter2" not in failure.detail
    assert (by_other.body, bypassed.body) == (b"by proxy", b"direct")


@pytest.mark.parametrize(
    "given", ["us:hunter2@127.0.0.1:3128", "socks5://us:hunter2@127.0.0.1:1", "http://us:hunter2@:1"]
)
def test_a_proxy_that_is_none_is_an_error_without_its_password(given: str, snapshot: Snapshot) -> None:
    """F62"""
    with pytest.raises(PolicyError, match=r"^proxy = ") as caught:
        HttpSender(proxy=given)

    assert "hunter2" not in str(caught.value)
    snapshot(str(caught.value))


async def test_an_error_that_was_not_foreseen_is_named_without_its_words() -> None:
    """F62: they may be anything, a proxy's password among them"""

    class Odd:
        async def resolve(self, host: str) -> list[str]:
            raise ValueError(f"cannot look up {host} by us:hunter2")

    sender = HttpSender(resolver=Odd())
    failure = await fail(sender, "http://shop.test/", OPEN)
    await sender.close()

    assert failure.reason is Reason.INVALID_URL
    assert "ValueError" in failure.detail
    assert "hunter2" not in failure.detail
    assert "look up" not in failure.detail


def test_a_client_says_at_once_that_a_proxy_of_the_environment_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    """F62: before a crawl takes every URL for a wrong one; unless no host goes by it"""
    monkeypatch.setenv("https_proxy", "socks5://us:hunter2@127.0.0.1:1")
    settings: dict[str, Any] = {"store": "memory:", "cache": False, "user_agent": "testbot/1.0 (+https://example.org)"}

    with pytest.raises(PolicyError, match=r"^HTTPS_PROXY = ") as caught:
        Client(**settings)
    monkeypatch.setenv("no_proxy", "*")
    Client(**settings).close()

    assert "hunter2" not in str(caught.value)
    snapshot(str(caught.value))

"""The built-in sender before there is an answer: connecting, the address guard, and cancellation."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from curtsy.core.errors import Reason
from curtsy.http.sender import HttpSender, Limits
from tests.support.bounds import ends_within
from tests.support.polling import until
from tests.support.sending import OPEN, fail, get, request
from tests.support.site import (
    Reply,
    Site,
    closed_port,
    cut_short,
    deaf_port,
    dripping,
    hang,
    has_ipv6,
)
from tests.support.snapshot import Snapshot

QUICK = replace(OPEN, timeout=1.0, connect_timeout=0.8)
GUARDED = Limits(timeout=2, connect_timeout=1)


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[HttpSender]:
    sender = HttpSender(resolver=site.names, connections=1)
    yield sender
    await sender.close()


async def test_no_answer_in_time_is_a_timeout(site: Site, sender: HttpSender) -> None:
    """N9"""
    site.reply("/", hang())

    with ends_within(4):
        failure = await fail(sender, site.url("/"), QUICK)

    assert failure.reason is Reason.TIMEOUT
    assert failure.sent_ago is not None
    await site.left()


@pytest.mark.parametrize(("first", "second"), [(0.2, 0.4), (30.0, 0.1)], ids=["longer", "shorter"])
async def test_each_answer_over_a_kept_connection_has_its_own_time(
    site: Site, sender: HttpSender, first: float, second: float
) -> None:
    """N9: the time of the answer before says nothing."""
    site.reply("/hang", hang())
    await get(sender, site.url("/"), replace(OPEN, timeout=first))
    began = time.monotonic()

    with ends_within(second + 1):
        failure = await fail(sender, site.url("/hang"), replace(OPEN, timeout=second))

    assert failure.reason is Reason.TIMEOUT
    assert time.monotonic() - began >= second
    assert [visit.connection for visit in site.journal] == [1, 1]


async def test_no_connection_in_time_is_a_timeout_and_nothing_was_sent(sender: HttpSender) -> None:
    """N9, B5"""
    with deaf_port() as port, ends_within(4):
        failure = await fail(sender, f"http://127.0.0.1:{port}/", QUICK)

    assert (failure.reason, failure.sent_ago) == (Reason.TIMEOUT, None)


async def test_a_refused_connection_is_a_connection_error_and_nothing_was_sent(sender: HttpSender) -> None:
    """N3, B5"""
    with closed_port() as port:
        failure = await fail(sender, f"http://127.0.0.1:{port}/secret?key=1")

    assert (failure.reason, failure.sent_ago) == (Reason.CONNECTION_ERROR, None)
    assert "secret" not in failure.detail


async def test_a_name_that_does_not_exist_is_a_dns_error() -> None:
    """N3, B5"""
    sender = HttpSender(resolver={"empty.test": []})

    failures = [
        await fail(sender, f"http://{host}.test/", limits) for host in ("no", "empty") for limits in (OPEN, GUARDED)
    ]
    await sender.close()

    assert {(failure.reason, failure.sent_ago) for failure in failures} == {(Reason.DNS_ERROR, None)}


async def test_the_next_address_is_tried_when_one_does_not_answer(site: Site) -> None:
    """N3"""
    sender = HttpSender(resolver={"two.test": ["127.0.0.9", "127.0.0.1"]})

    answer = await get(sender, site.url("/", host="two.test"))
    await sender.close()

    assert answer.status == 404


# The address guard


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.66", "inside.test", "both.test", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
async def test_a_private_address_is_never_connected_to(site: Site, host: str) -> None:
    """U2, F19"""
    sender = HttpSender(resolver={"inside.test": "127.0.0.1", "both.test": ["127.0.0.1", "169.254.169.254"]})
    site.url("/", host="127.0.0.66")

    failure = await fail(sender, f"http://{host}:{site.port}/", GUARDED)
    await sender.close()

    assert (failure.reason, failure.sent_ago) == (Reason.ADDRESS_REFUSED, None)
    assert site.connections == 0


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
@pytest.mark.parametrize("host", ["[::1]", "six.test"])
async def test_an_ipv6_loopback_address_is_never_connected_to(site: Site, host: str) -> None:
    """U2, F19"""
    sender = HttpSender(resolver={"six.test": "::1"})
    site.url("/", host="::1")

    failure = await fail(sender, f"http://{host}:{site.port}/", GUARDED)
    await sender.close()

    assert failure.reason is Reason.ADDRESS_REFUSED
    assert site.connections == 0


async def test_the_metadata_service_is_refused_and_named(sender: HttpSender, snapshot: Snapshot) -> None:
    """U2, F19"""
    failure = await fail(sender, "http://169.254.169.254/latest/meta-data/", GUARDED)

    assert failure.reason is Reason.ADDRESS_REFUSED
    assert "169.254.169.254" in failure.detail
    assert "link-local" in failure.detail
    snapshot(failure.detail)


async def test_a_connection_opened_without_the_guard_is_not_used_with_it(site: Site, sender: HttpSender) -> None:
    """U2"""
    await get(sender, site.url("/"))

    failure = await fail(sender, site.url("/"), GUARDED)

    assert failure.reason is Reason.ADDRESS_REFUSED
    assert site.count() == 1


# Cancellation


@pytest.mark.parametrize("where", ["head", "body", "drip"])
async def test_cancelling_closes_the_connection_and_frees_the_slot(site: Site, sender: HttpSender, where: str) -> None:
    """B5"""
    site.reply("/head", hang())
    site.reply("/body", cut_short(b"x" * 1000, 10, end="hang"))
    site.reply("/drip", dripping(b"x" * 1000, 0.01))
    task = asyncio.create_task(sender.send(request(site.url("/" + where)), OPEN))
    await until(lambda: site.journal and (where == "head" or site.journal[0].taken))

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await site.left()
    assert (await get(sender, site.url("/other"))).status == 404
    assert site.max_concurrency() == 1


async def test_cancelling_at_any_step_leaves_nothing_behind(site: Site, sender: HttpSender) -> None:
    """B5"""
    site.reply("/", Reply(body=b"x" * 200_000, chunked=True, drip=(50_000, 0.001)))

    for steps in range(40):
        task = asyncio.create_task(sender.send(request(site.url("/")), OPEN))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    await site.left()
    assert len((await get(sender, site.url("/"))).body) == 200_000


async def test_cancelling_while_connecting_leaves_nothing_behind(sender: HttpSender, site: Site) -> None:
    """B5"""
    with deaf_port() as port:
        task = asyncio.create_task(sender.send(request(f"http://127.0.0.1:{port}/"), OPEN))
        for _ in range(10):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert (await get(sender, site.url("/"))).status == 404


async def test_an_answer_that_came_while_this_program_stood_still_is_read(site: Site, sender: HttpSender) -> None:
    """N9: that time has passed is no fault of the site's"""
    site.reply("/", Reply(body="x", wait=0.1))
    task = asyncio.create_task(get(sender, site.url("/"), replace(OPEN, timeout=0.5)))
    await until(lambda: bool(site.journal))

    time.sleep(1.7)  # noqa: ASYNC251 (this is what is tested)

    assert (await task).body == b"x"


async def test_a_body_that_came_while_this_program_stood_still_is_read(site: Site, sender: HttpSender) -> None:
    """N9"""
    site.reply("/", dripping(b"x" * 4, every=0.1, size=1))
    task = asyncio.create_task(get(sender, site.url("/"), replace(OPEN, timeout=1.0)))
    await until(lambda: site.journal and site.journal[0].taken)  # its head is sent

    time.sleep(2.2)  # noqa: ASYNC251 (this is what is tested)

    assert (await task).body == b"xxxx"

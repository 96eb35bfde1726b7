"""Names, looked up by the system: silent name servers hold up nothing but their own names."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from curtsy.core.errors import Reason
from curtsy.core.request import Failure
from curtsy.core.url import Url, parse_url
from curtsy.http.address import AddressInfo, NamesBusy, SystemResolver, open_resolver
from curtsy.http.sender import HttpSender
from tests.client.fetching import UNPACED, client, host_of
from tests.support.polling import until
from tests.support.sending import OPEN, request
from tests.support.site import Site
from tests.support.snapshot import Snapshot


class NameServer:
    """Knows `127.0.0.1` for every name, and is silent about those that begin with `dead` until it is told to speak."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.speaks = threading.Event()

    def __call__(self, host: str, port: int, family: int, kind: int, *, flags: int) -> Sequence[AddressInfo]:
        self.asked.append(host)
        if host.startswith("dead"):
            self.speaks.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return socket.getaddrinfo("127.0.0.1", port, family, kind)


@pytest.fixture
def server() -> Iterator[NameServer]:
    server = NameServer()
    yield server
    server.speaks.set()


def lookups(host: str) -> list[threading.Thread]:
    """The threads that look a name up."""
    return [each for each in threading.enumerate() if each.name == f"name {host}"]


PROGRAM = """
import asyncio, socket, sys, threading, curtsy

port, path = sys.argv[1:]
known, asked = socket.getaddrinfo, []

def silent(host, *rest, **more):
    asked.append(host)
    if host.startswith("dead"):
        threading.Event().wait()
    return known("127.0.0.1", *rest, **more)

socket.getaddrinfo = silent

async def main():
    settings = {"preset": "own", "allow_private": True, "respect_robots": False, "cache": False, "store": "memory:"}
    async with curtsy.AsyncClient(**settings) as web:
        dead = [asyncio.ensure_future(web.fetch(f"http://dead{number}.test/")) for number in range(50)]
        while len(asked) < 50:
            await asyncio.sleep(0.01)
        page = await web.fetch(f"http://good.test:{port}/page")
        file = await web.download(f"http://127.0.0.1:{port}/page", path)
    print(page.text, file.size, {each.result().reason.value for each in dead})

asyncio.run(main())
"""


def test_names_that_nobody_answers_for_hold_up_no_other_host_no_file_and_not_the_end(
    site: Site, tmp_path: Path
) -> None:
    """Q1: lookups that never end, more of them than asyncio has threads"""
    site.page("/page", "here")

    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, str(site.port), str(tmp_path / "file")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )

    assert (done.stdout, done.stderr) == ("here 4 {'closed'}\n", "")


async def test_who_must_wait_too_long_for_a_lookup_of_others_is_told_and_the_host_is_not_blamed(
    site: Site, server: NameServer, snapshot: Snapshot
) -> None:
    """Q1, U6: what waits in our own line is no failure of the host's"""
    site.page("/", "here")
    url = site.url("/", host="good.test")
    sender = HttpSender(resolver=SystemResolver(concurrency=2, max_wait=0.05, getaddrinfo=server))

    async with client(sender=sender, respect_robots=False, max_retries=0, **UNPACED) as web:
        dead = [asyncio.ensure_future(web.fetch(f"http://dead{number}.test/")) for number in range(2)]
        await until(lambda: len(server.asked) == 2)
        refused = await web.fetch(url)
        host = await host_of(web, url)
        server.speaks.set()
        failed = await asyncio.gather(*dead)
        fetched = await web.fetch(url)

    assert (refused.reason, host.failures, [day.requests for day in host.days]) == (Reason.DEADLINE, 0, [0])
    assert "2" in refused.message.split()
    snapshot(refused.message)
    assert [each.reason for each in failed] == [Reason.DNS_ERROR] * 2
    assert fetched.text == "here"


async def test_a_lookup_that_nobody_waits_for_any_more_takes_up_its_place_until_it_ends(server: NameServer) -> None:
    """Q1: so that there are never more threads than allowed"""
    resolver = SystemResolver(concurrency=1, max_wait=0.05, getaddrinfo=server)
    dead = asyncio.ensure_future(resolver.resolve("dead.test"))
    await until(lambda: server.asked)
    dead.cancel()

    with pytest.raises(NamesBusy):
        await resolver.resolve("good.test")
    (thread,) = lookups("dead.test")
    server.speaks.set()

    assert await SystemResolver(getaddrinfo=server).resolve("good.test") == ["127.0.0.1"]
    await until(lambda: not thread.is_alive())
    assert await resolver.resolve("good.test") == ["127.0.0.1"]


async def test_short_lookups_wait_for_one_another(server: NameServer) -> None:
    """Q1"""
    resolver = SystemResolver(concurrency=2, getaddrinfo=server)

    found = await asyncio.gather(*(resolver.resolve(f"{number}.test") for number in range(50)))

    assert found == [["127.0.0.1"]] * 50
    assert sorted(server.asked) == sorted(f"{number}.test" for number in range(50))


def test_a_lookup_may_outlive_its_event_loop(server: NameServer) -> None:
    """Q1: it ends by itself, and in silence"""

    async def main() -> None:
        asyncio.ensure_future(SystemResolver(getaddrinfo=server).resolve("dead.loop.test"))  # noqa: RUF006
        await until(lambda: server.asked)

    asyncio.run(main())
    (thread,) = lookups("dead.loop.test")
    server.speaks.set()
    thread.join(60)

    assert not lookups("dead.loop.test")


async def test_without_threads_no_name_is_looked_up_and_none_is_blamed() -> None:
    """Q1"""
    resolver = SystemResolver(concurrency=1)
    before = threading.stack_size(1 << 46)  # more than there is memory for
    try:
        with pytest.raises(NamesBusy, match="thread"):
            await resolver.resolve("localhost")
    finally:
        threading.stack_size(before)

    assert await resolver.resolve("localhost")


LINK = socket.if_nameindex()[0][1]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", "::1"])
async def test_a_name_has_the_addresses_that_the_system_finds(host: str) -> None:
    """U2"""
    ours = open_resolver(None)
    known = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)

    assert isinstance(ours, SystemResolver)
    assert await ours.resolve(host) == [address[0] for *_, address in known]


async def test_a_link_local_address_keeps_its_scope() -> None:
    """U2: it means nothing without"""
    assert await open_resolver(None).resolve(f"fe80::1%{LINK}") == [f"fe80::1%{LINK}"]


async def test_a_name_that_cannot_be_written_is_an_error() -> None:
    """U2"""
    with pytest.raises(UnicodeError):
        await open_resolver(None).resolve("a" * 64)


class Mute:
    """A resolver that never answers."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()

    async def resolve(self, host: str) -> Sequence[str]:
        self.is_asked.set()
        await asyncio.Event().wait()
        return []


async def test_a_sender_that_is_closed_cancels_no_task_that_waits_for_a_name() -> None:
    """L2: only the lookup is cancelled. Another client that shares the sender is not closed, and gets an answer"""
    names = Mute()
    sender = HttpSender(resolver=names)
    url = parse_url("http://slow.test/")
    assert isinstance(url, Url)
    locating = asyncio.ensure_future(sender.locate(url, OPEN))
    sending = asyncio.ensure_future(sender.send(request("http://slow.test/"), OPEN))
    await names.is_asked.wait()

    await sender.close()
    reply = await asyncio.wait_for(sending, 60)

    assert await asyncio.wait_for(locating, 60) == ""
    assert isinstance(reply, Failure)
    assert reply.reason is Reason.CLOSED

"""The built-in sender's connections: kept, bounded, closed, and never shared with another loop or process."""

import asyncio
import contextlib
import errno
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

import pytest

from curtsy.core.errors import Reason
from curtsy.core.request import Response
from curtsy.http.sender import HttpSender
from tests.support.bounds import ends_within
from tests.support.listening import listening
from tests.support.polling import block_until, until
from tests.support.reply import End
from tests.support.sending import OPEN, fail, get, request
from tests.support.site import Reply, Site, hang
from tests.support.snapshot import Snapshot


@pytest.fixture
async def sender(site: Site) -> AsyncIterator[HttpSender]:
    sender = HttpSender(resolver=site.names)
    yield sender
    await sender.close()


async def test_a_connection_is_kept_for_the_next_request(site: Site, sender: HttpSender) -> None:
    """Q11"""
    for _ in range(3):
        await get(sender, site.url("/"))

    assert [visit.connection for visit in site.journal] == [1, 1, 1]


async def test_a_connection_that_the_site_closed_is_not_used_again() -> None:
    """F12"""
    with Site(requests_per_connection=1) as site:
        sender = HttpSender()
        for _ in range(3):
            await get(sender, site.url("/"))
            await site.left()
        await sender.close()

        assert site.count() == 3


@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_connection_that_was_closed_is_not_used_though_the_event_loop_has_not_seen_it(
    site: Site, sender: HttpSender, end: End
) -> None:
    """F12: as without a pause, or when the program has been busy since"""
    site.reply("/", Reply(body="x", end=end))

    for _ in range(3):
        await get(sender, site.url("/"))
        block_until(lambda: not site.open_connections)

    assert site.connections == 3


async def test_a_connection_closed_under_us_is_a_failure_and_no_second_request(site: Site, sender: HttpSender) -> None:
    """B4: aiohttp would send it again by itself, and nobody would count it."""
    site.script("/", [Reply(), Reply(raw=b"", end="close")])
    await get(sender, site.url("/"))

    failure = await fail(sender, site.url("/"))

    assert failure.reason is Reason.CONNECTION_ERROR
    assert failure.sent_ago is not None
    assert site.count() == 2


async def test_no_more_requests_are_in_flight_than_connections_are_allowed(site: Site) -> None:
    """Q11"""
    site.reply("/*", Reply(wait=0.02))
    sender = HttpSender(connections=3, resolver=site.names)

    await asyncio.gather(*(get(sender, site.url("/", host=f"h{n}.test")) for n in range(12)))
    await sender.close()

    under_way = sorted([(v.at, 1) for v in site.journal] + [(v.answered_at or 0, -1) for v in site.journal])
    most, now = 0, 0
    for _, change in under_way:
        now += change
        most = max(most, now)
    assert most <= 3


async def test_a_request_that_finds_no_free_connection_in_time_was_not_sent(site: Site) -> None:
    """B5"""
    site.reply("/hang", hang())
    sender = HttpSender(connections=1)
    first = asyncio.create_task(fail(sender, site.url("/hang")))
    await until(lambda: bool(site.journal))

    failure = await fail(sender, site.url("/"), replace(OPEN, timeout=0.1, counts_waiting=True))

    assert (failure.reason, failure.sent_ago) == (Reason.DEADLINE, None)
    assert "all 1 connections" in failure.detail
    await sender.close()
    assert (await first).sent_ago is not None
    assert site.paths() == ["/hang"]


async def test_the_time_of_a_site_begins_when_there_is_a_connection_for_it(site: Site) -> None:
    """Q11, U6: what others take is no fault of its own"""
    site.reply("/slow", Reply(wait=0.6))
    site.reply("/", Reply(wait=0.1))
    sender = HttpSender(connections=1)
    first = asyncio.create_task(get(sender, site.url("/slow")))
    await until(lambda: bool(site.journal))

    reply = await sender.send(request(site.url("/")), replace(OPEN, timeout=0.5))
    await first
    await sender.close()

    assert isinstance(reply, Response)


async def test_a_callers_time_goes_on_while_a_connection_is_waited_for(site: Site) -> None:
    """U5"""
    site.reply("/slow", Reply(wait=0.6))
    site.reply("/hang", hang())
    sender = HttpSender(connections=1)
    first = asyncio.create_task(get(sender, site.url("/slow")))
    await until(lambda: bool(site.journal))
    began = time.monotonic()

    with ends_within(1.5):
        failure = await fail(sender, site.url("/hang"), replace(OPEN, timeout=1.0, counts_waiting=True))
    took = time.monotonic() - began
    await first
    await sender.close()

    assert failure.reason is Reason.TIMEOUT
    assert failure.sent_ago is not None
    assert failure.sent_ago < 1.0, "the time that it waited counts"
    assert took > 0.9


async def test_who_waits_for_a_connection_is_served_in_turn_and_who_gave_up_is_passed_over(site: Site) -> None:
    """Q11, B5"""
    site.reply("/*", Reply(wait=0.02))
    sender = HttpSender(connections=1)
    waiting = [asyncio.create_task(get(sender, site.url(f"/{n}"))) for n in range(6)]
    await until(lambda: bool(site.journal))

    waiting[2].cancel()
    waiting[4].cancel()
    await asyncio.wait(waiting)
    await get(sender, site.url("/last"))
    await sender.close()

    assert site.paths() == ["/0", "/1", "/3", "/5", "/last"]


async def test_a_connection_that_is_handed_to_one_who_gives_up_goes_to_the_next(site: Site) -> None:
    """B5"""
    sender = HttpSender(connections=1)
    first, second, third = (asyncio.create_task(get(sender, site.url(f"/{n}"))) for n in range(3))

    while not first.done():  # noqa: ASYNC110 (an event would be seen a step too late)
        await asyncio.sleep(0)
    second.cancel()  # before it has run again: the connection is its own already
    await asyncio.wait_for(third, 60)
    await sender.close()

    assert second.cancelled()
    assert site.paths() == ["/0", "/2"]


async def test_only_the_latest_idle_connections_are_kept(site: Site) -> None:
    """Q11: a broad crawl must not run out of files."""
    sender = HttpSender(idle=2, resolver=site.names)

    for n in range(6):
        await get(sender, site.url("/", host=f"h{n}.test"))
    await site.left(most=2)
    await get(sender, site.url("/", host="h5.test"))
    await get(sender, site.url("/", host="h0.test"))
    await sender.close()

    assert site.journal[6].connection == site.journal[5].connection
    assert site.journal[7].connection == 7


async def test_a_closed_sender_says_so(site: Site) -> None:
    """N9"""
    sender = HttpSender()
    await get(sender, site.url("/"))

    await sender.close()
    await sender.close()
    failure = await fail(sender, site.url("/"))

    assert (failure.reason, failure.sent_ago) == (Reason.CLOSED, None)
    assert site.count() == 1


async def test_closing_ends_what_is_in_flight(site: Site) -> None:
    """U17"""
    site.reply("/hang", hang())
    sender = HttpSender()
    under_way = asyncio.create_task(fail(sender, site.url("/hang")))
    await until(lambda: bool(site.journal))

    await sender.close()

    assert (await under_way).reason is Reason.CLOSED


def test_a_sender_works_in_one_loop_after_another(site: Site) -> None:
    """N9: in a notebook, and with asyncio.run() more than once; what was kept in a loop that has ended is closed."""
    sender = HttpSender()

    for _ in range(3):
        asyncio.run(get(sender, site.url("/")))
    asyncio.run(sender.close())
    asyncio.run(site.left())

    assert site.count() == 3
    assert site.connections == 3


def test_a_sender_works_in_several_threads_at_once(site: Site) -> None:
    """L9"""
    sender = HttpSender()
    failures: list[BaseException] = []

    async def use() -> None:
        for _ in range(20):
            await get(sender, site.url("/"))
        pool = sender._pools.pop(asyncio.get_running_loop())
        await pool.close()

    def run() -> None:
        try:
            asyncio.run(use())
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not failures
    assert site.count() == 80


def test_a_sender_survives_a_fork(site: Site) -> None:
    """U2: parent and child do not speak over the same connection."""
    script = f"""
        import asyncio, os
        from curtsy.http.sender import HttpSender
        from tests.support.sending import get

        sender = HttpSender()
        loop = asyncio.new_event_loop()
        loop.run_until_complete(get(sender, {site.url("/parent")!r}))
        child = os.fork()
        if child == 0:
            asyncio.run(get(sender, {site.url("/child")!r}))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        loop.run_until_complete(get(sender, {site.url("/parent")!r}))
        loop.run_until_complete(sender.close())
        loop.close()
    """

    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert site.paths() == ["/parent", "/child", "/parent"]
    assert [visit.connection for visit in site.journal] == [1, 2, 1]


async def test_what_comes_over_an_idle_connection_is_no_answer_to_the_next_request(sender: HttpSender) -> None:
    """F12: a site that says more than it was asked would else be one answer ahead from then on."""
    writers: list[asyncio.StreamWriter] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        number = len(writers)
        while (await reader.readline()).strip():
            pass
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number)

    async with listening(talk) as port:
        url = f"http://127.0.0.1:{port}/"
        first = await get(sender, url)
        writers[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nwrong")
        for _ in range(10):  # it is there at once, and read in the loop's next turn
            await asyncio.sleep(0)
        second = await get(sender, url)

    assert (first.body, second.body) == (b"1", b"2")


@pytest.mark.parametrize("junk", [b"HTTP/1.1 200 OK\r\nX: ", b"\r\n", b"<html>"])
async def test_a_connection_over_which_anything_comes_while_it_is_idle_is_closed(
    site: Site, sender: HttpSender, junk: bytes
) -> None:
    """F12: half an answer, too, whose rest would be taken for the next"""

    def raw() -> Iterable[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
        block_until(is_read.is_set)  # in the site's thread
        yield junk

    is_read = threading.Event()
    site.reply("/", Reply(raw=raw, end="hang"))

    await get(sender, site.url("/"))
    is_read.set()

    await site.left()


@pytest.mark.parametrize("is_closed", [False, True], ids=["given up", "closed"])
async def test_a_request_that_is_given_up_is_not_sent_on(sender: HttpSender, is_closed: bool) -> None:
    """F12: the rest of its body would hold the connection, and its memory"""
    taken = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal taken
        await reader.readuntil(b"\r\n\r\n")
        is_begun.set()
        await is_over.wait()
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(1 << 20):
                taken += len(piece)
        writer.close()
        is_read.set()

    is_begun, is_over, is_read = asyncio.Event(), asyncio.Event(), asyncio.Event()
    async with listening(talk, limit=1024) as port:
        url = f"http://127.0.0.1:{port}/"
        task = asyncio.create_task(sender.send(request(url, "POST", body=bytes(50_000_000)), OPEN))
        await is_begun.wait()

        if is_closed:
            await sender.close()
        else:
            task.cancel()
        await asyncio.wait([task])
        is_over.set()
        await is_read.wait()

    assert taken < 25_000_000


async def test_a_connection_whose_request_was_answered_before_it_was_all_sent_is_closed(sender: HttpSender) -> None:
    """F12: what is left of the body would be taken for the next request."""
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\n\r\n")
        await asyncio.Event().wait()  # the rest is never read

    async with listening(talk, limit=1024) as port:
        post = request(f"http://127.0.0.1:{port}/", "POST", body=bytes(20_000_000))
        replies = [await sender.send(post, OPEN) for _ in range(2)]

    assert [isinstance(reply, Response) and reply.status for reply in replies] == [413, 413]
    assert len(heads) == 2


async def test_a_connection_that_nobody_uses_is_closed_after_a_while(site: Site) -> None:
    """Q11"""
    sender = HttpSender(keep_alive=0.05)
    await asyncio.gather(*(get(sender, site.url(f"/{number}")) for number in range(3)))

    await site.left()

    assert site.open_connections == 0
    await get(sender, site.url("/"))  # and the next one opens another
    await sender.close()


def test_requests_wait_for_a_connection_where_few_files_may_be_open(site: Site) -> None:
    """Q11: none is lost for want of room, however many connections the settings allow"""
    program = """
        import asyncio, collections, resource, sys
        from curtsy.client import AsyncClient

        async def main(url):
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            settings = dict(preset="own", store="memory:", cache=False, allow_private=True, max_retries=0)
            settings |= dict(concurrency=None, max_in_flight=1000, respect_robots=False)
            async with AsyncClient(**settings, user_agent="testbot/1.0 (+https://example.org)") as web:
                results = await asyncio.gather(*(web.fetch(f"{url}{number}") for number in range(120)))
                print(collections.Counter(str(result.reason) for result in results))

        asyncio.run(main(sys.argv[1]))
    """
    site.reply("/*", Reply(body="x", wait=0.25))  # long enough that all are under way before the first is answered
    command = [sys.executable, "-c", textwrap.dedent(program), site.url("/")]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == "Counter({'None': 120})\n", done.stderr


@pytest.mark.parametrize("taken", [0, 30])
def test_many_hosts_wait_for_a_connection_where_few_files_may_be_open(site: Site, taken: int) -> None:
    """Q11: 55 to 90 of 400 URLs failed as `deadline_exceeded`, though no deadline was given"""
    program = """
        import asyncio, collections, resource, sys
        from curtsy.client import AsyncClient

        async def main(taken, *urls):
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
            settings = dict(preset="own", cache=False, allow_private=True, max_retries=0, concurrency=None)
            async with AsyncClient(**settings, user_agent="testbot/1.0 (+https://example.org)") as web:
                results = [await web.fetch(urls[0])]
                held = [open("/dev/null") for _ in range(int(taken))]  # which the sender could not know of
                results += await asyncio.gather(*(web.fetch(url) for url in urls[1:]))
                print(collections.Counter(str(result.reason) for result in results))

        asyncio.run(main(*sys.argv[1:]))
    """
    site.reply("/*", Reply(body="x", wait=0.02))
    site.robots("")
    urls = [site.url(f"/{number}", host=f"127.0.1.{1 + number % 80}") for number in range(400)]
    command = [sys.executable, "-c", textwrap.dedent(program), str(taken), *urls]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.stdout == "Counter({'None': 400})\n", done.stderr
    assert len(set(site.paths()) - {"/robots.txt"}) == 400
    assert site.count("/robots.txt") == 80


def test_a_machine_without_room_for_a_connection_closes_idle_ones_and_blames_no_host(
    site: Site, snapshot: Snapshot
) -> None:
    """U6, R6: too many open files is no failure of the host's, and no word of its robots.txt"""
    program = """
        import asyncio, os, resource, sys
        from curtsy.client import AsyncClient, session_of

        async def main(*urls):
            resource.setrlimit(resource.RLIMIT_NOFILE, (96, 96))
            settings = dict(preset="own", store="memory:", cache=False, allow_private=True, max_retries=0)
            settings |= dict(connect_timeout=0.3)
            async with AsyncClient(**settings, user_agent="testbot/1.0 (+https://example.org)") as web:
                assert (await web.fetch(urls[0])).ok
                taken = []
                while True:  # all that is left
                    try:
                        taken.append(os.dup(0))
                    except OSError:
                        break
                results = [await web.fetch(url) for url in urls[1:-1]]
                print(sum(result.ok for result in results))
                os.close(taken.pop())  # and what the idle one took is taken by something else
                await session_of(web)._sender.close()
                session_of(web)._sender._closed = False
                while True:
                    try:
                        taken.append(os.dup(0))
                    except OSError:
                        break
                lack, *others = await asyncio.gather(*(web.fetch(url) for url in (urls[-1], *urls[:5])))
                assert not any(other.ok for other in others)
                origin = urls[-1].removesuffix("/")
                print(lack.reason, await session_of(web).store.read(f"rules:{origin}"))
                print((await session_of(web).store.read("host:" + origin.partition("//")[2])).failures, lack.message)
                for each in taken:
                    os.close(each)

        asyncio.run(main(*sys.argv[1:]))
    """
    site.page("/*", "x")
    urls = [site.url("/", host=f"127.0.1.{number}") for number in range(1, 41)]
    command = [sys.executable, "-c", textwrap.dedent(program), *urls]

    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr
    served, lack, failures = done.stdout.splitlines()
    assert served == "38"
    assert lack.startswith("deadline_exceeded Rules(")
    assert "body=None" in lack
    failed, _, message = failures.partition(" ")
    assert failed == "0"
    assert os.strerror(errno.EMFILE).lower() in message
    snapshot(message)

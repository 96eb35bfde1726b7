"""Downloads: streamed to disk, gone on with after a cut, there only when whole."""

# ruff: noqa: ASYNC240 -- a test may look at its files

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import session_of
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.record import FetchRecord
from curtsy.limits import PDFDownloader
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, UNPACED, client, host_of, lease_is_renewed, lease_until
from tests.client.filing import CONTENT, SHA256, SlowThreads, cut, files, served
from tests.support.bounds import MIB, bounded_memory, ends_within
from tests.support.polling import until
from tests.support.site import Reply, Site, dripping, endless, hang, later, redirect
from tests.support.snapshot import Snapshot


async def test_a_file_is_saved_whole_with_its_hash(site: Site, path: Path) -> None:
    """Q8, U15: through the same gate"""
    site.reply("/report.pdf", Reply(body=CONTENT, headers={"Content-Type": "application/pdf"}))

    async with client() as web:
        result = await web.download(site.url("/report.pdf"), path)
        host = await host_of(web, site.url("/"))

    assert result
    assert (result.ok, result.size, result.sha256, result.resumed_at) == (True, 300_000, SHA256, 0)
    assert (result.status, result.reason, result.path) == (200, None, path)
    assert path.read_bytes() == CONTENT
    assert files(path) == ["report.pdf"]
    assert site.paths() == ["/robots.txt", "/report.pdf"]
    assert {visit.header("User-Agent") for visit in site.visits()} == {AGENT}
    assert site.visits("/report.pdf")[0].header("Accept-Encoding") == "identity"
    assert [(day.requests, day.pages) for day in host.days] == [(2, 1)]
    assert result.record.bytes == 300_000


async def test_nothing_goes_on_when_a_download_is_over(site: Site, path: Path) -> None:
    """Design, rule 5: its place is renewed only while it comes"""
    site.reply("/file", Reply(body=CONTENT))
    before = asyncio.all_tasks()

    async with client(**UNPACED) as web:
        assert await web.download(site.url("/file"), path)
        await asyncio.sleep(0)

        assert asyncio.all_tasks() - before == {each for each in asyncio.all_tasks() if "Rhythm" in repr(each)}


async def test_an_empty_file_is_a_file(site: Site, path: Path) -> None:
    """U15"""
    site.reply("/empty", Reply())

    async with client() as web:
        result = await web.download(site.url("/empty"), path)

    assert (result.ok, result.size, result.sha256) == (True, 0, hashlib.sha256().hexdigest())
    assert path.read_bytes() == b""


async def test_a_file_in_memory_is_never_whole(site: Site, path: Path) -> None:
    """U15: streamed"""
    site.reply("/large", Reply(body=lambda: (b"x" * 65_536 for _ in range(1600)), length=1600 * 65_536))

    with bounded_memory(32 * MIB):
        async with client(max_body=1000) as web:
            result = await web.download(site.url("/large"), path)

    assert (result.ok, result.size) == (True, 1600 * 65_536)


@pytest.mark.parametrize("status", [204, 206, 201])
async def test_an_answer_without_the_file_is_not_taken_for_it(
    site: Site, path: Path, status: int, snapshot: Snapshot
) -> None:
    """U15: though it is a success, and an old part lies about"""
    site.reply("/file", Reply(status, b"x" * 10, {"Content-Range": "bytes 0-9/100"}))
    path.parent.mkdir()
    path.with_name("report.pdf.part").write_bytes(b"left over")

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.reason) == (False, Reason.BAD_RESPONSE)
    assert ("Range" if status == 206 else f"status {status}") in result.message
    snapshot(result.message)
    assert not path.exists()


@pytest.mark.parametrize("kind", ["announced", "endless"])
async def test_a_file_over_the_limit_is_given_up_and_leaves_nothing(
    site: Site, path: Path, kind: str, snapshot: Snapshot
) -> None:
    """U15, F03"""
    site.reply("/file", Reply(length=1 << 40, end="hang") if kind == "announced" else endless())

    async with client() as web:
        result = await web.download(site.url("/file"), path, max_size=100_000)

    assert (result.ok, result.reason) == (False, Reason.TOO_LARGE)
    assert "max_body" not in result.message
    assert "max_size" in result.message
    snapshot(result.message)
    assert len(repr(result)) < 200
    assert files(path) == []
    assert site.count("/file") == 1


async def test_two_clients_do_not_write_one_file(site: Site, path: Path, snapshot: Snapshot) -> None:
    """U15: the one that came first puts it in place, whole; the other says why not"""
    site.script("/file", [Reply(body=CONTENT, drip=(100_000, 0.1)), Reply(body=CONTENT)])

    async with client(**UNPACED, concurrency=None) as web, client(**UNPACED, concurrency=None) as other:
        first = asyncio.ensure_future(web.download(site.url("/file"), path))
        await until(lambda: any(name.endswith(".part") for name in files(path)))
        second = await other.download(site.url("/file"), path)
        result = await first

    assert (result.ok, result.sha256) == (True, SHA256)
    assert path.read_bytes() == CONTENT
    assert second.reason is Reason.NOT_WRITTEN
    snapshot(second.message)
    assert files(path) == ["report.pdf"]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Reply(body=CONTENT), Reason.TOO_LARGE),
        (Reply(206, b"x", {"ETag": '"1"', "Content-Range": "bytes 7-7/300000"}), Reason.BAD_RESPONSE),
    ],
    ids=["too large", "of no use"],
)
async def test_what_another_client_is_writing_is_not_thrown_away(
    site: Site, path: Path, answer: Reply, reason: Reason
) -> None:
    """U15: neither because it is too large for this one, nor because it does not fit"""
    part = path.with_name("report.pdf.part")
    site.script("/file", [Reply(body=CONTENT, headers={"ETag": '"1"'}, stop_after=100_000, end="hang"), *[answer] * 2])

    async with client(**UNPACED, concurrency=None) as web, client(**UNPACED, concurrency=None) as other:
        first = asyncio.ensure_future(web.download(site.url("/file"), path))
        await until(lambda: part.exists() and part.stat().st_size >= 65_536)
        second = await other.download(site.url("/file"), path, max_size=10)
        first.cancel()

    assert second.reason is reason
    assert files(path) == ["report.pdf.part", "report.pdf.part.json"]
    assert CONTENT.startswith(part.read_bytes())


async def test_an_error_page_without_end_is_neither_read_nor_kept(site: Site, path: Path) -> None:
    """F03: not even in memory"""
    site.reply("/file", Reply(404, endless().body, chunked=True, length=None))

    with bounded_memory(16 * MIB):
        async with client() as web:
            result = await web.download(site.url("/file"), path)

    assert (result.ok, result.status, result.reason) == (False, 404, Reason.HTTP_STATUS)
    assert site.visits("/file")[0].taken < 1 * MIB
    assert files(path) == []


@pytest.mark.parametrize("status", [403, 404, 429])
async def test_the_size_of_an_error_page_is_not_that_of_the_file(site: Site, path: Path, status: int) -> None:
    """U6, U15"""
    site.reply("/a", Reply(status, b"x" * 3000, {"Retry-After": "3600"}))

    async with client(**UNPACED, respect_robots=False) as web:
        result = await web.download(site.url("/a"), path, max_size=1000)
        following = await web.fetch(site.url("/b"))

    assert (result.reason, result.status) == (Reason.HTTP_STATUS, status)
    assert following.reason is (Reason.HTTP_STATUS if status == 404 else Reason.CIRCUIT_OPEN)


async def test_a_large_answer_that_the_rest_is_not_there_lets_the_file_be_had_anew(site: Site, path: Path) -> None:
    """U15"""
    whole = Reply(200, b"0123456789", {"ETag": '"1"'})
    site.script("/a", [replace(whole, stop_after=5, end="close"), Reply(416, b"x" * 3000), whole])

    async with client(**UNPACED, respect_robots=False, max_retries=0) as web:
        first = await web.download(site.url("/a"), path, max_size=1000)
        second = await web.download(site.url("/a"), path, max_size=1000)

    assert first.reason is Reason.INCOMPLETE
    assert second.ok
    assert path.read_bytes() == b"0123456789"


async def test_an_error_keeps_what_had_come(site: Site, path: Path) -> None:
    """U15"""
    site.on("/file", served(CONTENT, cut(CONTENT, 100_000)))
    async with client(max_retries=0) as web:
        await web.download(site.url("/file"), path)
        site.script("/file", [later(7)])
        result = await web.download(site.url("/file"), path)

    assert (result.status, result.reason, result.retry_after) == (429, Reason.HTTP_STATUS, 7)
    assert path.with_name("report.pdf.part").stat().st_size > 0


async def test_a_file_that_is_there_is_replaced_only_when_the_new_one_is_whole(site: Site, path: Path) -> None:
    """U15: atomic"""
    path.parent.mkdir()
    path.write_bytes(b"old")
    site.on("/file", served(CONTENT, cut(CONTENT, 100_000)))

    async with client(max_retries=0) as web:
        await web.download(site.url("/file"), path)
        between = path.read_bytes()
        await web.download(site.url("/file"), path)

    assert between == b"old"
    assert path.read_bytes() == CONTENT


async def test_a_folder_is_no_place_for_a_file(site: Site, tmp_path: Path, snapshot: Snapshot) -> None:
    """U15"""
    async with client() as web:
        with pytest.raises(PolicyError, match=re.escape(str(tmp_path))) as caught:
            await web.download(site.url("/file"), tmp_path)

    snapshot(str(caught.value))
    assert site.journal == []


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
async def test_what_is_no_regular_file_is_not_replaced_by_one(
    site: Site, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot
) -> None:
    """U15: a download to /dev/null must not take it away"""
    monkeypatch.chdir(tmp_path)  # the path of a socket may not be long
    target = Path("/dev/null" if kind == "device" else "target")
    if kind == "pipe":
        os.mkfifo(target)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(target))
    before = target.stat()

    async with client() as web:
        with pytest.raises(PolicyError, match=str(target)) as caught:
            await web.download(site.url("/file"), target)

    snapshot(str(caught.value))
    assert target.stat() == before
    assert site.journal == []


async def test_a_place_that_cannot_be_written_is_a_clear_result(site: Site, tmp_path: Path, snapshot: Snapshot) -> None:
    """U15: and no fault of the site's"""
    (tmp_path / "file").write_text("not a folder")
    site.reply("/file", Reply(body=CONTENT))

    async with client() as web:
        result = await web.download(site.url("/file"), tmp_path / "file" / "inside")
        host = await host_of(web, site.url("/"))

    assert (result.ok, result.reason) == (False, Reason.NOT_WRITTEN)
    snapshot(result.message)
    assert host.failures == 0
    assert site.count("/file") == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)], capture_output=True, check=False
    )  # fmt: skip
    if made.returncode:
        pytest.skip("no small disk can be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


async def test_a_disk_that_is_full_is_a_clear_result_and_the_file_is_gone_on_with_later(
    site: Site, small_disk: Path
) -> None:
    """F40, U15"""
    site.page("/file", CONTENT, etag='"1"', ranges=True)
    path = small_disk / "file"

    async with client() as web:
        result = await web.download(site.url("/file"), path)
        subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)  # noqa: ASYNC221
        again = await web.download(site.url("/file"), path)

    assert (result.ok, result.reason) == (False, Reason.NOT_WRITTEN)
    assert os.strerror(errno.ENOSPC).lower() in result.message.lower()
    assert (again.ok, again.sha256) == (True, SHA256)
    assert again.resumed_at > 0


async def test_a_redirect_leads_to_the_file(site: Site, path: Path) -> None:
    """U3, U15"""
    site.reply("/here", redirect(site.url("/there", host="127.0.0.2")), host="127.0.0.1")
    site.reply("/there", Reply(body=CONTENT), host="127.0.0.2")

    async with client() as web:
        result = await web.download(site.url("/here"), path)

    assert (result.ok, result.sha256, result.url) == (True, SHA256, site.url("/there", host="127.0.0.2"))


async def test_robots_txt_and_budget_hold_for_files_too(site: Site, path: Path) -> None:
    """R1, B1"""
    site.robots("User-agent: *\nDisallow: /private\n")
    site.reply("/*", Reply(body=b"x"))

    async with client(max_pages_per_day=1) as web:
        reasons = [(await web.download(site.url(each), path)).reason for each in ("/private", "/a", "/b")]

    assert reasons == [Reason.ROBOTS_DISALLOWED, None, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert site.paths() == ["/robots.txt", "/a"]


async def test_a_cancelled_download_gives_everything_back_and_can_be_gone_on_with(site: Site, path: Path) -> None:
    """U15, B5"""
    site.on("/file", served(CONTENT, Reply(body=CONTENT, headers={"ETag": '"1"'}, stop_after=100_000, end="hang")))

    async with client() as web:
        task = asyncio.ensure_future(web.download(site.url("/file"), path))
        await until(lambda: path.with_name("report.pdf.part").exists() and session_of(web).gate.queues.out == 1)
        await until(lambda: path.with_name("report.pdf.part").stat().st_size >= 65_536)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        host = await host_of(web, site.url("/"))

        assert host.places == ()
        assert session_of(web).gate.queues.out == 0
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.sha256) == (True, SHA256)
    assert result.resumed_at > 0


@pytest.fixture
def threads() -> Iterator[SlowThreads]:
    """Threads for the event loop, in which a file can be a long time in being put in place."""
    threads = SlowThreads()
    yield threads
    threads.may_go_on.set()
    threads.shutdown()


async def turns() -> None:
    """Let all tasks go as far as they can without anybody else."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_download_cancelled_while_its_file_is_put_in_place_holds_that_until_it_is_there(
    site: Site, path: Path, threads: SlowThreads
) -> None:
    """Q8, U15: else the half of another's would be put in place"""
    site.reply("/file", Reply(body=CONTENT))
    asyncio.get_running_loop().set_default_executor(threads)

    async with client(**UNPACED, respect_robots=False, on_record=threads.dawdle) as web:
        task = asyncio.ensure_future(web.download(site.url("/file"), path))
        await until(threads.has_begun.is_set)
        for _ in range(2):  # who is cancelled twice does not go earlier
            task.cancel()
            await turns()
            assert not task.done()
        with pytest.raises(PolicyError, match=re.escape(str(path))):
            await web.download(site.url("/file"), path)
        threads.may_go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert path.read_bytes() == CONTENT
    assert files(path) == ["report.pdf"]


async def test_a_client_is_closed_when_the_files_that_were_whole_are_in_place(
    site: Site, path: Path, threads: SlowThreads
) -> None:
    """Q8: none appears a moment later, and what is there is not denied; it is told once"""
    site.reply("/file", Reply(body=CONTENT))
    asyncio.get_running_loop().set_default_executor(threads)
    told: list[FetchRecord] = []

    def tell(record: FetchRecord) -> None:
        told.append(record)
        threads.dawdle()

    web = client(**UNPACED, respect_robots=False, on_record=tell)
    task = asyncio.ensure_future(web.download(site.url("/file"), path))
    await until(threads.has_begun.is_set)
    closing = asyncio.ensure_future(web.close())
    await turns()
    is_closed_early = closing.done()
    threads.may_go_on.set()
    await closing
    is_there = path.exists()
    result = await task

    assert (is_closed_early, is_there) == (False, True)
    assert (result.ok, result.sha256, result.reason) == (True, SHA256, None)
    assert told == [result.record]


async def test_a_client_that_is_closed_while_a_file_comes_leaves_its_part(site: Site, path: Path) -> None:
    """Q8, U15: and says what was sent for it"""
    half = Reply(body=CONTENT, headers={"ETag": '"1"'}, stop_after=100_000, end="hang")
    site.on("/file", served(CONTENT, half))
    told: list[FetchRecord] = []
    clock = FakeClock()
    web = client(clock=clock, on_record=told.append)
    task = asyncio.ensure_future(web.download(site.url("/file"), path))
    await until(lambda: path.with_name("report.pdf.part").exists())
    await until(lambda: path.with_name("report.pdf.part").stat().st_size >= 65_536)
    clock.advance(7)

    await web.close()
    result = await task

    assert (result.ok, result.reason) == (False, Reason.CLOSED)
    assert files(path) == ["report.pdf.part", "report.pdf.part.json"]
    assert told == [result.record]
    assert (result.record.attempts, result.record.robots_requests) == (1, 1)
    assert result.record.took >= 7
    async with client() as web:
        again = await web.download(site.url("/file"), path)
    assert (again.ok, again.sha256) == (True, SHA256)
    assert again.resumed_at > 0


async def test_two_downloads_never_write_the_same_file_at_once(site: Site, path: Path, snapshot: Snapshot) -> None:
    """U15"""
    site.reply("/a", hang())

    async with client() as web:
        task = asyncio.ensure_future(web.download(site.url("/a"), path))
        await until(lambda: site.count("/a"))
        with pytest.raises(PolicyError, match=re.escape(str(path))) as caught:
            await web.download(site.url("/b"), path)
        task.cancel()

    snapshot(str(caught.value))


async def test_a_long_download_keeps_its_place(site: Site, path: Path) -> None:
    """Design, rule 5: the lease is renewed while the body comes"""
    clock = FakeClock()
    site.reply("/long", dripping(b"x" * 3000, 0.005))
    site.page("/next", "x")
    settings: dict[str, Any] = {**UNPACED, "timeout": 0.4, "respect_robots": False, "min_speed": 0}

    async with client(clock=clock, **settings) as web:
        task = asyncio.ensure_future(web.download(site.url("/long"), path))
        await until(lambda: site.count("/long"))
        before = await lease_until(web, site.url("/"))
        clock.advance(4)  # of the 5.4 s that the place was given for
        await until(lambda: lease_is_renewed(web, site.url("/"), before))
        clock.advance(4)
        other = asyncio.ensure_future(web.fetch(site.url("/next")))
        await until(lambda: session_of(web).gate.queues.waiting == 1)
        waiting = site.count("/next")
        task.cancel()
        await other

    assert waiting == 0
    assert other.result().ok


async def test_a_download_that_is_slow_but_comes_has_no_deadline(site: Site, path: Path) -> None:
    """Design, section 5"""
    site.reply("/slow", dripping(b"x" * 100, 0.02))

    async with client(timeout=1.5) as web:
        result = await web.download(site.url("/slow"), path)

    assert (result.ok, result.size) == (True, 100)


# The document's own


async def test_the_downloader_says_whether_it_worked(site: Site, path: Path) -> None:
    """Q8"""
    site.robots("User-agent: *\nDisallow: /private\n")
    site.reply("/a.pdf", Reply(body=CONTENT))

    async with PDFDownloader(clock=FakeClock(), allow_private=True, user_agent=AGENT) as downloader:
        worked = await downloader.download(site.url("/a.pdf"), path)
        forbidden = await downloader.download(site.url("/private/b.pdf"), path.with_name("b.pdf"))
        missing = await downloader.download(site.url("/c.pdf"), str(path.with_name("c.pdf")))

    assert (worked, forbidden, missing) == (True, False, False)
    assert files(path) == ["report.pdf"]


async def test_the_downloader_without_a_rate_limit_has_no_pace_but_obeys_robots_txt(site: Site, tmp_path: Path) -> None:
    """Q8, C13"""
    site.robots("User-agent: *\nDisallow: /private\n")
    site.reply("/*", Reply(body=b"x"))
    settings: dict[str, Any] = {"allow_private": True, "user_agent": AGENT, "store": "memory:"}

    async with PDFDownloader(enable_rate_limit=False, **settings) as downloader:
        with ends_within(1.4):
            worked = [await downloader.download(site.url(f"/{number}"), tmp_path / f"{number}") for number in range(5)]
        forbidden = await downloader.download(site.url("/private"), tmp_path / "private")

    assert worked == [True] * 5
    assert not forbidden

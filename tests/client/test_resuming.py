"""Downloads that were cut off: gone on with where that is safe, begun anew where it is not."""

# ruff: noqa: ASYNC240 -- a test may look at its files

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.errors import Reason
from curtsy.core.record import FetchRecord
from tests.client.fetching import DAWN, TICK, UNPACED, client, domain_of
from tests.client.filing import CONTENT, SHA256, cut, files, served
from tests.support.polling import until
from tests.support.site import Reply, Site, Visit, encoded, hang, redirect
from tests.support.snapshot import Snapshot


def date(second: float) -> str:
    return formatdate(second, usegmt=True)


async def test_a_file_that_was_cut_off_is_gone_on_with(site: Site, path: Path) -> None:
    """U15: by a range request, within the same call"""
    site.on("/file", served(CONTENT, cut(CONTENT, 100_000)))

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.sha256) == (True, SHA256)
    assert 0 < result.resumed_at <= 100_000
    second = site.visits("/file")[1]
    assert second.header("Range") == f"bytes={result.resumed_at}-"
    assert second.header("If-Range") == '"1"'
    assert files(path) == ["report.pdf"]


async def test_a_later_call_goes_on_where_an_earlier_one_ended(site: Site, path: Path) -> None:
    """U15: even by another client"""
    site.on("/file", served(CONTENT, cut(CONTENT, 100_000)))

    async with client(max_retries=0) as web:
        first = await web.download(site.url("/file"), path)
    left = files(path)
    async with client(max_retries=0) as web:
        second = await web.download(site.url("/file"), path, max_size=None)

    assert (first.ok, first.reason, first.size, first.sha256) == (False, Reason.INCOMPLETE, 0, None)
    assert left == ["report.pdf.part", "report.pdf.part.json"]
    assert not first
    assert (second.ok, second.sha256) == (True, SHA256)
    assert second.resumed_at > 0
    assert files(path) == ["report.pdf"]


async def test_a_file_that_changed_meanwhile_is_fetched_anew(site: Site, path: Path) -> None:
    """U15: If-Range"""
    other = os.urandom(200_000)
    site.on("/file", served(other, cut(CONTENT, 100_000), etag='"2"'))

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.resumed_at) == (True, 0)
    assert path.read_bytes() == other


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ETag": '"1"'}, {"ETag": '"2"'}),
        ({"Last-Modified": date(1_700_000_000)}, {"Last-Modified": date(1_750_000_000)}),
        ({"ETag": '"1"'}, {}),
    ],
    ids=["ETag", "Last-Modified", "no ETag"],
)
async def test_parts_of_two_versions_are_not_put_together_though_the_server_passes_over_if_range(
    site: Site, path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    """U15: RFC 9110, 15.3.7.3"""
    other = os.urandom(300_000)
    turns = [Reply(body=CONTENT, headers=before, stop_after=100_000, end="close")]

    def answer(visit: Visit) -> Reply:
        if turns:
            return turns.pop()
        start = int((visit.header("Range") or "bytes=0-")[6:-1])
        span = {"Content-Range": f"bytes {start}-299999/300000"} if start else {}
        return Reply(206 if start else 200, other[start:], {**after, **span})

    site.on("/file", answer)

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert [visit.header("Range") is not None for visit in site.visits("/file")] == [False, True, False]
    assert (result.ok, result.resumed_at) == (True, 0)
    assert path.read_bytes() == other


@pytest.mark.parametrize(
    "headers",
    [
        {"ETag": 'W/"1"'},
        {"ETag": ""},
        {"Last-Modified": date(time.time() + 86_400)},
        {"Last-Modified": date(DAWN), "Date": date(DAWN)},
        {"Last-Modified": date(DAWN), "Date": "today"},
    ],
    ids=["weak", "none", "too new", "just changed", "no date"],
)
async def test_without_a_strong_validator_a_part_is_not_gone_on_with(
    site: Site, path: Path, headers: dict[str, str]
) -> None:
    """U15: RFC 9110, 13.1.5 and 8.8.2.2"""
    site.script(
        "/file",
        [Reply(body=CONTENT, headers=headers, stop_after=100_000, end="close"), Reply(body=CONTENT, headers=headers)],
    )

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.resumed_at) == (True, 0)
    assert site.visits("/file")[1].header("Range") is None
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("total", ["300000", "*"])
async def test_what_is_gone_on_with_may_not_become_larger_than_allowed(site: Site, path: Path, total: str) -> None:
    """U15: what comes is small enough, but not together with what is there; whether its size is said or not"""
    turns = [cut(CONTENT, 200_000)]

    def answer(visit: Visit) -> Reply:
        if turns:
            return turns.pop()
        start = int((visit.header("Range") or "bytes=0-")[6:-1])
        return Reply(206, CONTENT[start:], {"ETag": '"1"', "Content-Range": f"bytes {start}-299999/{total}"})

    site.on("/file", answer)

    async with client(max_retries=0) as web:
        first = await web.download(site.url("/file"), path)
        second = await web.download(site.url("/file"), path, max_size=299_999)

    assert (first.reason, second.reason) == (Reason.INCOMPLETE, Reason.TOO_LARGE)
    assert site.visits("/file")[1].header("Range") is not None
    assert files(path) == []


async def test_an_old_date_of_change_is_strong_enough(site: Site, path: Path) -> None:
    """U15"""
    old = "Sun, 06 Nov 1994 08:49:37 GMT"
    first = Reply(body=CONTENT, headers={"Last-Modified": old}, stop_after=100_000, end="close")
    site.on("/file", served(CONTENT, first, etag=None, **{"Last-Modified": old}))

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.sha256) == (True, SHA256)
    assert site.visits("/file")[1].header("If-Range") == old


@pytest.mark.parametrize("kind", ["416", "another place", "no place", "coded"])
async def test_a_part_that_does_not_fit_is_thrown_away_and_all_is_fetched(site: Site, path: Path, kind: str) -> None:
    """U15: no file is put together of two"""
    wrong = {
        "416": Reply(416, headers={"Content-Range": "bytes */5"}),
        "another place": Reply(206, CONTENT[7:], {"ETag": '"1"', "Content-Range": "bytes 7-299999/300000"}),
        "no place": Reply(206, CONTENT[7:], {"ETag": '"1"'}),
        "coded": encoded(CONTENT, "gzip"),
    }[kind]
    if kind == "coded":
        fields = {"ETag": '"1"', "Content-Encoding": "gzip", "Content-Range": "bytes 100000-299999/300000"}
        wrong = Reply(206, wrong.body, fields)

    def answer(visit: Visit) -> Reply:
        return wrong if visit.header("Range") else Reply(body=CONTENT, headers={"ETag": '"1"'})

    site.on("/file", served(CONTENT, cut(CONTENT, 100_000)))
    async with client(max_retries=0) as web:
        await web.download(site.url("/file"), path)
        site.on("/file", answer)
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.sha256, result.resumed_at) == (True, SHA256, 0)
    assert files(path) == ["report.pdf"]


UNFIT = [
    Reply(416, b"x" * 100),
    Reply(206, b"x" * 100, {"ETag": '"2"', "Content-Range": "bytes 100000-100099/300000"}),
]
"""What is said to who asks for the rest of a file that is another by now."""

TEN_SECONDS: dict[str, Any] = {**UNPACED, "pause_min": 10.0, "pause_max": 10.0}


async def leave_part(site: Site, path: Path) -> None:
    """Have a download broken off."""
    site.on("/file", served(CONTENT, cut(CONTENT, 100_000)))
    async with client(max_retries=0) as web:
        await web.download(site.url("/file"), path)
    site.clear()


@pytest.mark.parametrize("unfit", UNFIT, ids=["416", "206"])
async def test_a_download_that_begins_anew_is_told_once_with_all_that_it_took(
    site: Site, path: Path, unfit: Reply
) -> None:
    """Issue 4, 9: and not as a failure beside a file that is there"""
    await leave_part(site, path)
    site.script("/file", [Reply(503, b"later"), unfit, Reply(body=CONTENT)])
    told: list[FetchRecord] = []

    async with client(max_retries=1, retry_delay=0, on_record=told.append, **TEN_SECONDS) as web:
        result = await web.download(site.url("/file"), path)
        stats = web.stats()

    assert (result.ok, result.sha256) == (True, SHA256)
    assert told == [result.record]
    record = result.record
    assert (record.status, record.reason, record.bytes) == (200, None, 5 + 100 + 300_000)
    assert (record.attempts, record.retries, record.robots_requests) == (3, 1, 1)
    assert record.waited == pytest.approx(30, abs=TICK)
    assert record.took == pytest.approx(30, abs=TICK)
    assert (stats.fetches, stats.ok, stats.requests, stats.pages) == (1, 1, 3, 1)


async def test_a_download_that_begins_anew_has_what_is_left_of_its_deadline(site: Site, path: Path) -> None:
    """U5: not all of it a second time"""
    await leave_part(site, path)
    site.script("/file", [UNFIT[0], Reply(body=CONTENT)])
    told: list[FetchRecord] = []

    async with client(on_record=told.append, **TEN_SECONDS) as web:
        result = await web.download(site.url("/file"), path, deadline=15)

    assert (result.ok, result.reason) == (False, Reason.DEADLINE)
    assert result.retry_after == pytest.approx(10, abs=TICK)
    assert [(each.reason, each.attempts, each.requests_left) for each in told] == [("deadline_exceeded", 1, 198)]
    assert told[0].latency is not None
    assert site.paths() == ["/robots.txt", "/file"]


async def test_what_a_download_that_begins_anew_has_sent_is_counted_where_it_went(site: Site, path: Path) -> None:
    """Issue 4, 9: with a redirect to another host, twice"""
    there = site.url("/file", host="127.0.0.2")
    site.reply("/here", redirect(there), host="127.0.0.1")
    site.script("/file", [cut(CONTENT, 100_000), UNFIT[0], Reply(body=CONTENT)], host="127.0.0.2")

    async with client(max_retries=0) as web:
        await web.download(site.url("/here"), path)
    site.clear()
    async with client(max_retries=0) as web:
        result = await web.download(site.url("/here"), path)
        hosts = web.stats().hosts

    assert (result.ok, result.record.attempts, result.record.robots_requests) == (True, 4, 2)
    counts = [hosts[domain_of(url)] for url in (site.url("/"), there)]
    assert [(each.fetches, each.requests, each.robots_requests) for each in counts] == [(0, 2, 1), (1, 2, 1)]
    assert [each.bytes for each in counts] == [0, 300_100]
    assert [site.count(host=host) for host in ("127.0.0.1", "127.0.0.2")] == [3, 3]


async def test_a_download_that_is_closed_when_it_has_begun_anew_is_told_with_what_it_had_sent(
    site: Site, path: Path
) -> None:
    """Issue 4, 9"""
    await leave_part(site, path)
    site.script("/file", [UNFIT[0], hang()])
    told: list[FetchRecord] = []
    web = client(on_record=told.append, **UNPACED)
    waiting = asyncio.ensure_future(web.download(site.url("/file"), path))
    await until(lambda: site.count("/file") == 2)

    await web.close()

    result = await waiting
    assert told == [result.record]
    assert (result.reason, result.record.attempts, result.record.robots_requests) == (Reason.CLOSED, 2, 1)


async def test_a_shorter_part_than_was_asked_for_is_not_the_whole(site: Site, path: Path) -> None:
    """U15"""

    def stingy(visit: Visit) -> Reply:
        start = int((visit.header("Range") or "bytes=0-").removeprefix("bytes=")[:-1])
        fields = {"ETag": '"1"', "Content-Range": f"bytes {start}-{start + 99}/300000"}
        return Reply(206, CONTENT[start : start + 100], fields)

    site.on("/file", served(CONTENT, cut(CONTENT, 100_000)))
    async with client(max_retries=0) as web:
        await web.download(site.url("/file"), path)
        site.on("/file", stingy)
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.reason) == (False, Reason.INCOMPLETE)
    assert not path.exists()
    assert path.with_name("report.pdf.part").exists()


def parts(first: Reply, span: str, *ends: int) -> Callable[[Visit], Reply]:
    """A file that breaks off, and of which parts are sent with some `Content-Range`: to these ends, then to its own."""
    turns, stops = [first], list(ends)

    def answer(visit: Visit) -> Reply:
        if turns:
            return turns.pop()
        if visit.header("Range") is None:
            return Reply(body=CONTENT, headers={"ETag": '"1"'})
        start, end = int((visit.header("Range") or "")[6:-1]), stops.pop(0) if stops else len(CONTENT)
        fields = {"ETag": '"1"', "Content-Range": span.format(start=start, last=end - 1)}
        return Reply(206, CONTENT[start:end], fields)

    return answer


UNMEASURED = Reply(body=CONTENT, headers={"ETag": '"1"'}, chunked=True, length=None, stop_after=100_000, end="close")


async def test_the_end_of_a_part_is_not_the_end_of_the_file_though_the_server_does_not_know_it(
    site: Site, path: Path, snapshot: Snapshot
) -> None:
    """U15: RFC 9110, 14.4; the length that was announced at first holds"""
    site.on("/file", parts(cut(CONTENT, 100_000), "bytes {start}-{last}/*", 200_000))

    async with client(max_retries=0) as web:
        await web.download(site.url("/file"), path)
        short = await web.download(site.url("/file"), path)
        whole = await web.download(site.url("/file"), path)

    assert (short.ok, short.reason) == (False, Reason.INCOMPLETE)
    assert "200,000 of 300,000" in short.message
    snapshot(short.message)
    assert (whole.ok, whole.sha256, whole.resumed_at) == (True, SHA256, 200_000)


@pytest.mark.parametrize(
    ("first", "span"),
    [
        (UNMEASURED, "bytes {start}-{last}/*"),
        (cut(CONTENT, 100_000), "bytes {start}-{last}/300050"),
        (cut(CONTENT, 100_000), "bytes {start}-{last}/299999"),
        (UNMEASURED, "bytes {start}-{last}/299999"),
        (UNMEASURED, "bytes {start}-7/300000"),
    ],
    ids=["no length at all", "another length", "a shorter one", "ends behind the end", "ends before its start"],
)
async def test_a_part_that_cannot_be_of_this_file_is_not_put_together_with_it(
    site: Site, path: Path, first: Reply, span: str
) -> None:
    """U15: RFC 9110, 14.4"""
    site.on("/file", parts(first, span))

    async with client(max_retries=0) as web:
        await web.download(site.url("/file"), path)
        result = await web.download(site.url("/file"), path)

    assert [visit.header("Range") is not None for visit in site.visits("/file")] == [False, True, False]
    assert (result.ok, result.sha256, result.resumed_at) == (True, SHA256, 0)


async def test_a_file_whose_length_is_told_only_with_its_rest_is_gone_on_with(site: Site, path: Path) -> None:
    """U15"""
    site.on("/file", parts(UNMEASURED, "bytes {start}-{last}/300000"))

    async with client(max_retries=0) as web:
        await web.download(site.url("/file"), path)
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.sha256) == (True, SHA256)
    assert result.resumed_at > 0


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "br", "aes128gcm", "gzip, gzip, gzip, gzip, gzip"])
@pytest.mark.parametrize("is_told_again", [True, False])
async def test_a_file_that_is_labelled_as_coded_is_kept_as_it_comes_and_resumed(
    site: Site, path: Path, coding: str, is_told_again: bool
) -> None:
    """U15: `f.tar.gz` with `Content-Encoding: gzip`, and any other label"""
    first = cut(CONTENT, 100_000, **{"Content-Encoding": coding})
    site.on("/file", served(CONTENT, first, **({"Content-Encoding": coding} if is_told_again else {})))

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.sha256) == (True, SHA256)
    assert result.resumed_at > 0
    assert [visit.header("Accept-Encoding") for visit in site.visits("/file")] == ["identity"] * 2
    assert files(path) == [path.name]


async def test_a_rest_that_is_coded_otherwise_is_not_put_together_with_what_came(site: Site, path: Path) -> None:
    """U15: the first was labelled gzip, the rest is labelled br"""
    first = cut(CONTENT, 100_000, **{"Content-Encoding": "gzip"})
    site.on("/file", served(CONTENT, first, **{"Content-Encoding": "br"}))

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.sha256, result.resumed_at) == (True, SHA256, 0)
    assert [visit.header("Range") is None for visit in site.visits("/file")] == [True, False, True]


async def test_a_coded_body_that_is_decoded_and_broke_off_is_fetched_anew(site: Site, path: Path) -> None:
    """U15: what was decoded has no place in what the server has"""
    packed = encoded(CONTENT, "gzip").body
    assert isinstance(packed, bytes)
    fields = {"ETag": '"1"', "Content-Encoding": "gzip"}
    first = Reply(body=packed, headers=fields, stop_after=len(packed) // 2, end="close")
    site.on("/file", served(packed, first, **{"Content-Encoding": "gzip"}))

    async with client() as web:
        result = await web.download(site.url("/file"), path, decode=True)

    assert (result.ok, result.sha256) == (True, SHA256)
    assert site.visits("/file")[1].header("Range") is None


async def test_what_was_kept_as_it_came_is_not_resumed_to_be_decoded(site: Site, path: Path) -> None:
    """U15: nor the other way round"""
    packed = encoded(CONTENT, "gzip").body
    assert isinstance(packed, bytes)
    fields = {"ETag": '"1"', "Content-Encoding": "gzip"}
    half = Reply(body=packed, headers=fields, stop_after=len(packed) // 2, end="close")

    async with client(max_retries=0) as web:
        for decode, expected in ((True, CONTENT), (False, packed)):
            site.on("/file", served(packed, half, **{"Content-Encoding": "gzip"}))
            await web.download(site.url("/file"), path, decode=not decode)
            result = await web.download(site.url("/file"), path, decode=decode)

            assert (result.ok, result.sha256) == (True, hashlib.sha256(expected).hexdigest())


async def test_a_part_of_another_url_is_not_gone_on_with(site: Site, path: Path) -> None:
    """U15"""
    site.on("/a", served(CONTENT, cut(CONTENT, 100_000)))
    site.reply("/b", Reply(body=b"other", headers={"ETag": '"1"'}))

    async with client(max_retries=0) as web:
        await web.download(site.url("/a"), path)
        result = await web.download(site.url("/b"), path)

    assert result.ok
    assert path.read_bytes() == b"other"


@pytest.mark.parametrize(
    "note",
    [
        b"", b"{", b'{"url_sha256": 7}', b"\xff\xfe", b'{"url_sha256": "%s", "etag": "\\"x\\"\\r\\nA: 1"}',
        b'{"url_sha256": "%s", "last_modified": "a\\nb"}',
    ],
)  # fmt: skip
async def test_a_damaged_note_means_that_all_is_fetched(site: Site, path: Path, note: bytes) -> None:
    """U16"""
    site.reply("/file", Reply(body=CONTENT))
    path.parent.mkdir()
    path.with_name("report.pdf.part").write_bytes(b"left over")
    named = hashlib.sha256(site.url("/file").encode()).hexdigest().encode()
    path.with_name("report.pdf.part.json").write_bytes(note.replace(b"%s", named))

    async with client() as web:
        result = await web.download(site.url("/file"), path)

    assert (result.ok, result.sha256) == (True, SHA256)

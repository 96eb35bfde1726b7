"""WARC archives as others read them: warcio is the judge."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from warcio.archiveiterator import ArchiveIterator

from curtsy.core.errors import NotWritten, PolicyError
from curtsy.core.request import Headers
from curtsy.crawling.outputs.jsonlines import JsonLines
from curtsy.crawling.outputs.warc import Warc
from curtsy.crawling.results import CrawledPage
from tests.crawling.leaves import page, records_of
from tests.crawling.web import crawled, graph
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot

IDENTICAL = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"


def archive(folder: Path, *pages: CrawledPage, name: str = "out.warc.gz", **options: Any) -> None:
    output = Warc(folder / name, **options)
    output.open(None)
    for each in pages:
        output.page(each)
    output.flush()
    output.close()


def answers(folder: Path) -> list[tuple[dict[str, str], Any, bytes]]:
    """The records but warcinfo and requests."""
    return [each for each in records_of(folder) if each[0]["WARC-Type"] in ("response", "revisit")]


def check(*files: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", "-m", "warcio.cli", "check", "-v", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("ending", [".warc", ".warc.gz"])
def test_warcio_finds_every_digest_right(ending: str, tmp_path: Path) -> None:
    """Issue 5: readable by warcio"""
    some = [page(number) for number in range(20)]
    archive(
        tmp_path,
        *some,
        page(30, b""),
        page(31, b"x" * 5_000_000),
        page(3, url="https://example.org/again"),
        name=f"out{ending}",
    )

    done = check(*tmp_path.glob("out-*"))

    assert done.returncode == 0, done.stdout
    # A warcinfo has none, a revisit's is not looked at.
    assert done.stdout.count("digest pass") == 22 + 23
    assert done.stdout.count("(revisit)") == 1


def test_a_file_is_one_gzip_member_a_record(tmp_path: Path) -> None:
    """Issue 5: WARC 1.1, annex D: tools begin to read at any record"""
    archive(tmp_path, page(1), page(2))
    file = tmp_path / "out-00001.warc.gz"
    with file.open("rb") as opened:
        records = ArchiveIterator(opened)
        places = [(records.get_record_offset(), record.rec_type) for record in records]

    for place, kind in places:
        with file.open("rb") as opened:
            opened.seek(place)
            assert next(ArchiveIterator(opened)).rec_type == kind
    assert [kind for _, kind in places] == ["warcinfo", "response", "request", "response", "request"]


def test_the_records_of_a_page_say_what_was_asked_and_what_came(tmp_path: Path) -> None:
    """Issue 5: request and response records"""
    given = page(7, request_headers=Headers([("User-Agent", "ABot/1.0"), ("Accept", "*/*")]))
    archive(tmp_path, given)

    info, response, request = records_of(tmp_path)

    assert b"software: curtsy/" in info[2]
    assert info[0]["WARC-Filename"] == "out-00001.warc.gz"
    assert info[0]["Content-Type"] == "application/warc-fields"
    assert response[0]["WARC-Target-URI"] == request[0]["WARC-Target-URI"] == given.url
    assert response[0]["WARC-Date"] == request[0]["WARC-Date"] == given.fetched_at
    assert request[0]["WARC-Concurrent-To"] == response[0]["WARC-Record-ID"]
    assert response[2] == given.body
    assert response[1].get_statuscode() == "200"
    assert request[1].protocol == "GET"
    assert request[1].statusline == "/page/7 HTTP/1.1"
    assert request[1].headers == [("Host", "example.org"), ("User-Agent", "ABot/1.0"), ("Accept", "*/*")]


def test_the_head_fits_the_body_that_is_kept(tmp_path: Path) -> None:
    """Issue 5: bodies are decompressed, and replay must not be told otherwise."""
    wire = [("content-encoding", "br"), ("Transfer-Encoding", "chunked"), ("Content-Length", "17"), ("ETag", '"a"')]
    archive(tmp_path, page(1, b"0123456789", headers=Headers(wire)))

    [(_, head, payload)] = answers(tmp_path)

    assert payload == b"0123456789"
    assert head.headers == [
        ("X-Crawler-content-encoding", "br"),
        ("X-Crawler-Transfer-Encoding", "chunked"),
        ("X-Crawler-Content-Length", "17"),
        ("ETag", '"a"'),
        ("Content-Length", "10"),
    ]


def test_no_cookie_and_no_credential_is_archived(tmp_path: Path) -> None:
    """F62"""
    secret = [("Authorization", "Basic s3cret"), ("Cookie", "id=s3cret"), ("Proxy-Authorization", "s3cret")]
    answer = [("Set-Cookie", "id=s3cret"), ("set-cookie2", "s3cret")]
    archive(tmp_path, page(1, headers=Headers(answer), request_headers=Headers(secret)), name="out.warc")

    assert all(b"s3cret" not in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("value", ["two\r\nX-Injected: lines", "a\nb", "nul\0", "caf\udce9", "half \ud83d", "ü", ""])
def test_odd_header_values_stay_one_field(value: str, tmp_path: Path) -> None:
    """F26, Issue 5: headers with odd bytes"""
    archive(tmp_path, page(1, b"body", headers=Headers([("X-Odd", value), ("X-After", "yes")])))

    [(_, head, payload)] = answers(tmp_path)

    assert [name for name, _ in head.headers] == ["X-Odd", "X-After", "Content-Length"]
    assert payload == b"body"


def test_a_body_that_is_there_already_is_a_revisit_of_it(tmp_path: Path) -> None:
    """Issue 5: identical payload digests within the crawl"""
    archive(tmp_path, page(1, b"the same"), page(2, b"the same"), page(3, b""), page(4, b""))

    first, second, *empty = answers(tmp_path)

    assert second[0]["WARC-Type"] == "revisit"
    assert second[0]["WARC-Profile"] == IDENTICAL
    assert second[0]["WARC-Truncated"] == "length"
    assert second[0]["WARC-Refers-To"] == first[0]["WARC-Record-ID"]
    assert second[0]["WARC-Refers-To-Target-URI"] == "https://example.org/page/1"
    assert second[0]["WARC-Refers-To-Date"] == first[0]["WARC-Date"]
    assert second[0]["WARC-Payload-Digest"] == first[0]["WARC-Payload-Digest"]
    assert second[1].get_header("Content-Length") == "8"
    assert second[2] == b""
    assert [each[0]["WARC-Type"] for each in empty] == ["response", "response"], "there is nothing to be saved"


def test_what_has_not_changed_since_an_earlier_archive_is_a_revisit_of_that(tmp_path: Path) -> None:
    """Issue 5, N11: revisits for pages that a 304 confirmed"""
    archive(tmp_path / "one", page(1), page(2), page(3))
    later = "2026-11-16T08:00:00Z"
    some = (
        page(1, fetched_at=later, cache="revalidated"),
        page(2, fetched_at=later),
        page(3, fetched_at=later, body=b"another"),
    )
    archive(tmp_path / "two", *some, since=tmp_path / "one" / "out.warc.gz")

    earlier = answers(tmp_path / "one")
    confirmed, same, changed = answers(tmp_path / "two")

    assert confirmed[0]["WARC-Profile"] == NOT_MODIFIED
    assert confirmed[0]["Content-Length"] == "0"
    assert confirmed[0]["WARC-Refers-To"] == earlier[0][0]["WARC-Record-ID"]
    assert confirmed[0]["WARC-Refers-To-Date"] == earlier[0][0]["WARC-Date"]
    assert same[0]["WARC-Profile"] == IDENTICAL
    assert changed[0]["WARC-Type"] == "response"
    assert check(*tmp_path.glob("two/*.gz")).returncode == 0


def test_a_kept_page_that_no_archive_has_is_written_whole(tmp_path: Path) -> None:
    """Issue 5: an archive can be replayed by itself; nothing was sent for a fresh page of the cache."""
    archive(tmp_path, page(1, cache="revalidated"), page(2, cache="hit"))

    kinds = [fields["WARC-Type"] for fields, _, _ in records_of(tmp_path)]

    assert kinds == ["warcinfo", "response", "request", "response"]
    assert [head.get_header("X-Crawler-Cache") for _, head, _ in answers(tmp_path)] == ["revalidated", "hit"]


def test_an_earlier_archive_that_is_none_is_an_error(tmp_path: Path, snapshot: Snapshot) -> None:
    """Conventions: errors"""
    with pytest.raises(PolicyError, match=f"^since = .*{re.escape(str(tmp_path / 'nothing'))}") as told:
        archive(tmp_path, since=tmp_path / "nothing")

    snapshot(str(told.value))


def test_only_so_many_payloads_are_remembered(tmp_path: Path) -> None:
    """Issue 5: memory is bounded; what is forgotten is written again"""
    bodies = [b"%d" % number for number in range(50)]
    some = [page(number, body) for number, body in enumerate([*bodies, bodies[-1], bodies[0]])]
    archive(tmp_path, *some, remember=10)

    assert [fields["WARC-Type"] for fields, _, _ in answers(tmp_path)[-2:]] == ["revisit", "response"]


def test_files_end_at_their_size_and_a_page_is_in_one_of_them(tmp_path: Path) -> None:
    """Issue 5: rotates files"""
    archive(tmp_path, *(page(number) for number in range(40)), max_size=5000, name="out.warc")

    files = sorted(tmp_path.glob("out-*.warc"))

    assert [file.name for file in files] == [f"out-{number:05}.warc" for number in range(1, len(files) + 1)]
    assert len(files) > 3
    assert all(5000 <= file.stat().st_size < 8000 for file in files[:-1])
    for file in files:
        with file.open("rb") as opened:
            kinds = [record.rec_type for record in ArchiveIterator(opened)]
        assert kinds.count("response") == kinds.count("request")


def test_a_later_file_of_somebody_else_is_not_removed_on_resume(tmp_path: Path) -> None:
    """Issue 5: only what this archive began after the state was noted goes."""
    output = Warc(tmp_path / "out.warc.gz", max_size=1000)
    output.open(None)
    state = output.flush()
    for number in range(5):
        output.page(page(number))
    output.close()
    assert (tmp_path / "out-00002.warc.gz").exists()
    other = tmp_path / "out-00009.warc.gz"
    other.write_bytes((tmp_path / "out-00001.warc.gz").read_bytes())

    with pytest.raises(NotWritten, match="out-00009"):
        Warc(tmp_path / "out.warc.gz").open(state)
    other.unlink()
    output.open(state)
    output.close()

    assert [path.name for path in sorted(tmp_path.glob("*.warc.gz"))] == ["out-00001.warc.gz"]


@pytest.mark.parametrize(
    ("given", "written"),
    [("2026-11-15T08:00:00+00:00", "2026-11-15T08:00:00Z"), ("2026-11-15T08:00:00.5Z", "2026-11-15T08:00:00.5Z")],
)
def test_dates_are_as_the_standard_has_them(given: str, written: str, tmp_path: Path) -> None:
    """Issue 5"""
    archive(tmp_path, page(1, fetched_at=given))

    assert answers(tmp_path)[0][0]["WARC-Date"] == written


def test_a_level_that_is_none_is_an_error() -> None:
    """Conventions: errors"""
    with pytest.raises(PolicyError, match=r"^level = 10 ") as told:
        Warc("out", level=10)

    assert {"0", "9"} <= set(re.findall(r"\d+", str(told.value)))


def test_redirects_are_in_the_archive_so_that_links_lead_somewhere(tmp_path: Path) -> None:
    """Issue 5: other tools replay it; in the other outputs there are pages only"""
    outputs = [Warc(tmp_path / "out.warc.gz"), JsonLines(tmp_path / "out.jsonl")]
    with Site() as site:
        graph(site, {"/": ["/old", "/away"], "/new": []})
        site.reply("/old", Reply(301, headers=(("Location", "/new"), ("Set-Cookie", "a=b"))))
        site.reply("/away", Reply(302, headers=(("Location", "http://127.0.0.9/"),)))

        found, _ = asyncio.run(crawled(site, outputs=outputs))

    assert found == ["/", "/new"]
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line)["url"] for line in lines] == [site.url("/"), site.url("/new")]
    heads = {
        fields["WARC-Target-URI"].removeprefix(site.url("")): (
            http.get_statuscode(), http.get_header("Location"), http.get_header("Set-Cookie")
        )
        for fields, http, _ in answers(tmp_path)
    }  # fmt: skip
    assert heads == {
        "/": ("200", None, None),
        "/new": ("200", None, None),
        "/old": ("301", "/new", None),
        "/away": ("302", "http://127.0.0.9/", None),
    }
    assert check(*tmp_path.glob("out-*")).returncode == 0

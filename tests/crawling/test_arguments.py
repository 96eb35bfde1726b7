"""Mistakes in what a crawl is given, and what their maker is told. No host ever hears of one."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest

from curtsy import Client, CrawlOptions, PolicyError
from curtsy.crawling.outputs import open_output
from curtsy.crawling.outputs.folder import Folder
from curtsy.crawling.outputs.jsonlines import JsonLines
from curtsy.crawling.outputs.skipped import SkippedCsv
from curtsy.crawling.outputs.warc import Warc
from curtsy.crawling.start import acrawl, crawl
from tests.crawling.web import QUICK
from tests.support.site import Site
from tests.support.snapshot import Snapshot


@pytest.mark.parametrize(
    ("seeds", "given"),
    [
        (None, "seeds = None "),
        (5, "seeds = 5 "),
        (b"http://127.0.0.1/", "seeds = b'http://127.0.0.1/' "),
        ([5], "seeds[0] = 5 "),
        (["http://127.0.0.1/", None], "seeds[1] = None "),
    ],
    ids=["none", "number", "bytes", "number in a list", "none in a list"],
)
async def test_what_is_no_url_is_told_at_once(snapshot: Snapshot, seeds: Any, given: str) -> None:
    """U6"""
    ways_in: tuple[Any, ...] = (acrawl, crawl)

    for way_in in ways_in:
        with pytest.raises(PolicyError) as told:
            way_in(seeds, **QUICK)

        assert str(told.value).startswith(given)
        snapshot(str(told.value))


async def test_a_seed_that_is_no_text_is_shown_without_its_secrets() -> None:
    """F62"""
    seeds: Any = [b"http://me:secret@example.org/"]

    with pytest.raises(PolicyError, match=r"seeds\[0\] = ") as caught:
        acrawl(seeds, **QUICK)

    assert "secret" not in str(caught.value)


ONE = JsonLines("pages.jsonl")


@pytest.mark.parametrize(
    ("outputs", "given"),
    [
        (5, "outputs = 5 "),
        (None, "outputs = None "),
        (b"pages.jsonl", "outputs = b'pages.jsonl' "),
        (ONE, f"outputs = {ONE!r} "),
        (["pages.jsonl", 5], "outputs[1] = 5 "),
        ([JsonLines], f"outputs[0] = {JsonLines!r} "),
        ("a\0.jsonl", r"output = 'a\x00.jsonl' "),
    ],
    ids=["number", "none", "bytes", "one", "number in a list", "class", "nul"],
)
async def test_what_cannot_be_written_to_is_told_at_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: Snapshot, outputs: Any, given: str
) -> None:
    """U6"""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(PolicyError) as told:
        acrawl(site.url("/"), outputs=outputs, **QUICK)

    assert str(told.value).startswith(given)
    snapshot(str(told.value).removeprefix(given))
    assert site.connections == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [JsonLines, Folder, SkippedCsv, Warc, open_output])
@pytest.mark.parametrize("letter", ["\0", "\ud800"], ids=["nul", "surrogate"])
def test_an_output_is_not_made_where_no_file_can_be(kind: Any, letter: str) -> None:
    """U6"""
    name = f"a{letter}b.jsonl"

    with pytest.raises(PolicyError) as told:
        kind(name)

    assert repr(name) in str(told.value)
    assert repr(letter) in str(told.value)


@pytest.mark.parametrize("job", ["./a\0b", Path("a\0b"), Path("a\ud800b")], ids=["text", "path", "surrogate"])
async def test_nor_is_a_job(site: Site, job: str | Path) -> None:
    """U6"""
    with pytest.raises(PolicyError, match=r"^job = ") as told:
        acrawl(site.url("/"), job=job, **QUICK)

    assert repr(str(job)[-2]) in str(told.value)
    assert site.connections == 0


async def awaited(snapshot: object) -> None:
    """What nobody awaits."""


@pytest.mark.parametrize("on_progress", [5, awaited, functools.partial(awaited)], ids=["number", "async", "partial"])
async def test_what_cannot_hear_of_progress_is_told_at_once(site: Site, snapshot: Snapshot, on_progress: Any) -> None:
    """U6"""
    with pytest.raises(PolicyError) as told:
        acrawl(site.url("/"), on_progress=on_progress, **QUICK)

    given = f"on_progress = {on_progress!r} "
    assert str(told.value).startswith(given)
    snapshot(str(told.value).removeprefix(given))
    assert site.connections == 0


async def test_a_client_for_threads_is_no_client_for_a_crawl(site: Site) -> None:
    """U6"""
    given: Any = Client(**QUICK)

    with given, pytest.raises(PolicyError, match=r"^client = .*AsyncClient"):
        acrawl(site.url("/"), client=given)


@pytest.mark.parametrize("name", ["domains", "match", "skip", "files"])
def test_one_number_is_not_several_texts(snapshot: Snapshot, name: str) -> None:
    """U6"""
    given: dict[str, Any] = {name: 5}

    with pytest.raises(PolicyError, match=f"^{name} = 5 ") as told:
        CrawlOptions(**given)

    snapshot(str(told.value))

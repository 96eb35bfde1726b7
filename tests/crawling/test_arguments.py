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


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        (None, "seeds = None must be a URL as text, or several, such as a list"),
        (5, "seeds = 5 must be a URL as text, or several"),
        (b"http://127.0.0.1/", "seeds = b'http://127.0.0.1/' must be a URL as text"),
        ([5], r"seeds\[0\] = 5 must be a URL as text, such as 'https://example.org/'"),
        (["http://127.0.0.1/", None], r"seeds\[1\] = None must be a URL as text"),
    ],
)
@pytest.mark.parametrize("way_in", [acrawl, crawl])
async def test_what_is_no_url_is_told_at_once(way_in: Any, seeds: Any, message: str) -> None:
    """U6"""
    with pytest.raises(PolicyError, match=message):
        way_in(seeds, **QUICK)


async def test_a_seed_that_is_no_text_is_shown_without_its_secrets() -> None:
    """F62"""
    seeds: Any = [b"http://me:secret@example.org/"]

    with pytest.raises(PolicyError, match=r"seeds\[0\] = ") as caught:
        acrawl(seeds, **QUICK)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (5, "outputs = 5 must be a path such as 'pages.jsonl', or a list of paths and outputs"),
        (None, "outputs = None must be a path"),
        (b"pages.jsonl", "outputs = b'pages.jsonl' must be a path"),
        (JsonLines("pages.jsonl"), "outputs = .* must be a path such as 'pages.jsonl', or a list"),
        (["pages.jsonl", 5], r"outputs\[1\] = 5 must be a path such as 'pages.jsonl', or an output such as"),
        ([JsonLines], r"outputs\[0\] = .* must be a path such as 'pages.jsonl', or an output such as"),
        ("a\0.jsonl", r"output = 'a\\x00.jsonl' must be a path without '\\x00'.* Take it out"),
    ],
    ids=["number", "none", "bytes", "one", "number in a list", "class", "nul"],
)
async def test_what_cannot_be_written_to_is_told_at_once(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: Any, message: str
) -> None:
    """U6"""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(PolicyError, match=message):
        acrawl(site.url("/"), outputs=outputs, **QUICK)

    assert site.connections == 0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [JsonLines, Folder, SkippedCsv, Warc, open_output])
@pytest.mark.parametrize("letter", ["\0", "\ud800"], ids=["nul", "surrogate"])
def test_an_output_is_not_made_where_no_file_can_be(kind: Any, letter: str) -> None:
    """U6"""
    with pytest.raises(PolicyError, match=r"must be a path without .*, which no file's name can have. Take it out"):
        kind(f"a{letter}b.jsonl")


@pytest.mark.parametrize("job", ["./a\0b", Path("a\0b"), Path("a\ud800b")], ids=["text", "path", "surrogate"])
async def test_nor_is_a_job(site: Site, job: str | Path) -> None:
    """U6"""
    with pytest.raises(PolicyError, match=r"job = .* must be a path without"):
        acrawl(site.url("/"), job=job, **QUICK)

    assert site.connections == 0


async def awaited(snapshot: object) -> None:
    """What nobody awaits."""


@pytest.mark.parametrize("on_progress", [5, awaited, functools.partial(awaited)], ids=["number", "async", "partial"])
async def test_what_cannot_hear_of_progress_is_told_at_once(site: Site, on_progress: Any) -> None:
    """U6"""
    with pytest.raises(PolicyError, match=r"on_progress = .* must be a function that takes a Snapshot, and neither "):
        acrawl(site.url("/"), on_progress=on_progress, **QUICK)

    assert site.connections == 0


async def test_a_client_for_threads_is_no_client_for_a_crawl(site: Site) -> None:
    """U6"""
    given: Any = Client(**QUICK)

    with given, pytest.raises(PolicyError, match=r"client = .* must be an AsyncClient, or left out"):
        acrawl(site.url("/"), client=given)


@pytest.mark.parametrize("name", ["domains", "match", "skip", "files"])
def test_one_number_is_not_several_texts(name: str) -> None:
    """U6"""
    given: dict[str, Any] = {name: 5}

    with pytest.raises(PolicyError, match=f"{name} = 5 must be several texts, such as a tuple"):
        CrawlOptions(**given)

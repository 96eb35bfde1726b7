"""What a crawl takes, as type checkers see it: the same for threads and for tasks, and all of it."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from curtsy import Crawl, CrawlOptions, acrawl, crawl
from curtsy.crawling.keywords import CrawlKeywords, OptionKeywords
from curtsy.engine.keywords import ClientKeywords
from tests.client.test_keywords import annotations_of, keywords_of

CLIENT = ClientKeywords.__annotations__.keys()
ONE_OR_LIST, LIST = "str | list[str] | ", "list[str] | "


def test_every_option_is_taken() -> None:
    """Conventions: types; where several are meant, one text or a list will do too"""
    taken = {name: hint for name, hint in annotations_of(OptionKeywords).items() if name not in CLIENT}

    options = {field.name: field.type for field in dataclasses.fields(CrawlOptions)}
    assert {name: hint.replace(ONE_OR_LIST, "").replace(LIST, "") for name, hint in taken.items()} == options
    assert not CLIENT & options.keys()


def test_a_crawl_for_threads_takes_what_one_for_tasks_takes() -> None:
    """Conventions: types"""
    assert annotations_of(CrawlKeywords) == keywords_of(acrawl) | annotations_of(OptionKeywords)
    assert "OptionKeywords" in inspect.signature(acrawl).parameters["given"].annotation


@pytest.mark.parametrize("way_in", [crawl, Crawl])
def test_both_ways_into_it_say_so(way_in: object) -> None:
    """Conventions: types"""
    assert callable(way_in)

    assert "CrawlKeywords" in inspect.signature(way_in).parameters["given"].annotation

"""What clients and crawls take, as type checkers see it: the same for threads and for tasks, and all of it."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest

from curtsy import AsyncClient, Client, Crawl, CrawlOptions, PolicyError, acrawl, crawl, fetch_url, get
from curtsy.crawling.keywords import CrawlKeywords, OptionKeywords
from curtsy.engine.keywords import ClientKeywords, SettingKeywords
from curtsy.settings import Preset
from curtsy.settings.general import PRESETS, names

ROOT = Path(__file__).parents[2]
SETTINGS = (*names("general", "policy"), "allowlist", "denylist")
OPTIONS = tuple(field.name for field in dataclasses.fields(CrawlOptions))


def keywords_of(function: Any) -> dict[str, str]:
    """The keywords of a signature, each with its type."""
    given = inspect.signature(function).parameters.values()
    return {each.name: each.annotation for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY}


def test_the_keywords_for_type_checkers_are_current() -> None:
    """Conventions: types; they are made from the declarations"""
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "keywords.py", "--check"], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr


def test_type_checkers_know_every_setting_and_option() -> None:
    """Conventions: types"""
    client, option, every = (set(each.__annotations__) for each in (ClientKeywords, OptionKeywords, CrawlKeywords))

    assert client == {*keywords_of(AsyncClient), *SETTINGS}
    assert option - client == set(OPTIONS) - client
    assert every - option == set(keywords_of(acrawl))
    assert not set(SettingKeywords.__annotations__) & set(keywords_of(AsyncClient))
    assert client & set(OPTIONS) == {"max_in_flight"}, "one word for one thing"


@pytest.mark.parametrize(
    ("way_in", "last"),
    [
        (AsyncClient, "SettingKeywords"), (Client, "ClientKeywords"), (get, "GetKeywords"),
        (fetch_url, "GetKeywords"), (AsyncClient.fetch_many, "FetchKeywords"), (Client.fetch_many, "FetchKeywords"),
        (acrawl, "OptionKeywords"), (crawl, "CrawlKeywords"), (Crawl, "CrawlKeywords"),
    ],
)  # fmt: skip
def test_all_ways_in_say_so(way_in: Any, last: str) -> None:
    """Conventions: types"""
    *_, keywords = inspect.signature(way_in).parameters.values()

    assert keywords.annotation == f"Unpack[{last}]"


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_is_taken(name: str) -> None:
    """C7: each is checked at once, and not mistaken for an unknown one"""
    given: dict[str, Any] = {name: object()}

    with pytest.raises(PolicyError) as caught:
        AsyncClient(**given, cache=False)

    assert name in str(caught.value)
    assert "is not a setting" not in str(caught.value)


@pytest.mark.parametrize("name", OPTIONS)
async def test_every_option_is_taken(name: str) -> None:
    """C7: each is checked at once, and not mistaken for an unknown one"""
    given: dict[str, Any] = {name: object()}

    with pytest.raises(PolicyError, match=name) as caught:
        acrawl("https://example.org/", **given)

    assert "is not" not in str(caught.value)


def test_every_preset_can_be_named() -> None:
    """C8"""
    assert set(get_args(Preset)) == set(PRESETS)


@pytest.mark.parametrize("method", ["fetch", "fetch_many", "download"])
def test_their_methods_take_the_same(method: str) -> None:
    """Conventions: types"""
    one, other = (inspect.signature(getattr(kind, method)).parameters for kind in (AsyncClient, Client))

    assert list(one.values()) == list(other.values())

"""What both clients take, as type checkers see it: the same, and all of it."""

from __future__ import annotations

import inspect
from typing import Any, get_args

import pytest

from curtsy import AsyncClient, Client
from curtsy.engine.keywords import OWN, ClientKeywords, FetchKeywords, SettingKeywords
from curtsy.settings import Preset
from curtsy.settings.keys import PRESETS, names


def keywords_of(function: Any) -> dict[str, str]:
    """The keywords of a signature, each with its type."""
    given = inspect.signature(function).parameters.values()
    return {each.name: each.annotation for each in given if each.kind is inspect.Parameter.KEYWORD_ONLY}


def annotations_of(keywords: Any) -> dict[str, str]:
    return {name: hint.__forward_arg__ for name, hint in keywords.__annotations__.items()}


def test_the_blocking_client_takes_what_the_other_takes() -> None:
    """Conventions: types"""
    taken = keywords_of(AsyncClient)

    assert annotations_of(ClientKeywords) == taken | annotations_of(SettingKeywords)
    assert sorted(OWN) == sorted(taken)
    assert "ClientKeywords" in inspect.signature(Client).parameters["settings"].annotation


def test_every_setting_is_taken() -> None:
    """Conventions: types"""
    assert set(ClientKeywords.__annotations__) == {*OWN, *names("general", "policy"), "allowlist", "denylist"}
    assert set(get_args(Preset)) == set(PRESETS)


@pytest.mark.parametrize("method", ["fetch", "fetch_many", "download"])
def test_their_methods_take_the_same(method: str) -> None:
    """Conventions: types"""
    one, other = (inspect.signature(getattr(kind, method)).parameters for kind in (AsyncClient, Client))

    assert list(one.values()) == list(other.values())


def test_a_batch_takes_what_a_fetch_takes() -> None:
    """Conventions: types"""
    assert annotations_of(FetchKeywords) == keywords_of(AsyncClient.fetch)

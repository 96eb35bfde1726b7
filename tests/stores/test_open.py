"""Stores by URL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from curtsy.core.errors import PolicyError
from curtsy.stores import BlockingStore, open_async_store, open_store
from curtsy.stores.memory import AsyncMemoryStore
from curtsy.stores.redis import AsyncRedisStore
from curtsy.stores.url import check_place
from tests.stores.steps import count
from tests.support.snapshot import Snapshot


def test_memory_is_this_process_alone() -> None:
    """B7"""
    assert isinstance(open_store("memory:").inner, AsyncMemoryStore)
    assert isinstance(open_async_store("memory:"), AsyncMemoryStore)
    assert open_store("memory:").identity != open_store("memory:").identity


def test_three_slashes_are_a_relative_file_and_four_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7"""
    monkeypatch.chdir(tmp_path)
    stores = [open_store("sqlite:///state.sqlite", fallback=False), open_store(f"sqlite:///{tmp_path}/state.sqlite")]

    assert isinstance(stores[0], BlockingStore)
    assert isinstance(stores[1], BlockingStore)
    assert stores[0].update("a", count) == 1
    assert stores[1].update("a", count) == 2
    assert (tmp_path / "state.sqlite").exists()
    for store in stores:
        store.close()


async def test_redis_urls_open_redis_stores_without_connecting() -> None:
    """B7"""
    for url in ("redis://127.0.0.1:1/0", "rediss://127.0.0.1:1", "unix:///nowhere.sock", "redis+cluster://127.0.0.1:1"):
        store, tasks = open_store(url, fallback=False), open_async_store(url, fallback=False)

        assert isinstance(store, BlockingStore)
        assert isinstance(tasks, AsyncRedisStore)
        store.close()
        await tasks.close()


def test_without_a_url_it_is_a_file_in_the_users_state_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B7"""
    monkeypatch.delenv("CURTSY_STORE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    store = open_store()
    store.update("a", count)
    store.close()

    [found] = tmp_path.rglob("state.sqlite")
    assert found.parent.name == "curtsy"


def test_the_environment_names_the_store_of_those_who_give_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C7"""
    monkeypatch.setenv("CURTSY_STORE", "memory:")

    assert isinstance(open_store().inner, AsyncMemoryStore)
    store = open_store(f"sqlite:///{tmp_path}/state.sqlite", fallback=False)
    assert isinstance(store, BlockingStore)
    store.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("mysql://host", "memory:, sqlite:, redis:"),
        ("reddis://host", "redis:?"),
        ("sqllite:///x", "sqlite:?"),
        ("state.sqlite", "sqlite:///state.sqlite"),
        ("/var/state.sqlite", "sqlite:////var/state.sqlite"),
        ("sqlite:///a\0b", "'\\x00'"),
        ("sqlite://state.sqlite", "sqlite:///state.sqlite"),
        ("sqlite:", "sqlite:///state.sqlite"),
        ("sqlite:///", "sqlite:///state.sqlite"),
        ("", "memory:, sqlite:, redis:"),
        ("memory", "memory:?"),
    ],
)
def test_a_url_that_is_none_of_ours_is_an_error_that_shows_the_right_form(
    url: str, said: str, snapshot: Snapshot
) -> None:
    """U9"""
    with pytest.raises(PolicyError) as caught:
        open_store(url)
    with pytest.raises(PolicyError) as waited:
        open_async_store(url)

    assert said in str(caught.value)
    assert str(waited.value) == str(caught.value)
    snapshot(str(caught.value))


@pytest.mark.parametrize("url", ["rediz://user:geheim@host/0", "x://:ge@geheim@host", "y://host?password=geheim"])
def test_a_password_in_a_url_is_never_shown(url: str) -> None:
    """F62"""
    with pytest.raises(PolicyError) as caught:
        open_store(url)

    assert "geheim" not in str(caught.value)


def test_a_missing_redis_library_is_an_error_that_says_how_to_install_it(tmp_path: Path) -> None:
    """U9"""
    (tmp_path / "redis").mkdir()
    (tmp_path / "redis" / "__init__.py").write_text("raise ImportError('No module named redis')")
    script = "import sys; sys.path.insert(0, sys.argv[1]); import curtsy.stores as s; s.open_store('redis://host')"

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60, env={**os.environ}
    )

    assert 'pip install "curtsy[redis]"' in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("word", ["none", "None", "null", "~", ""])
def test_a_variable_that_names_no_store_means_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """C7: as the reference of the environment says"""
    monkeypatch.setenv("CURTSY_STORE", word)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))

    store = open_store()
    store.update("a", count)
    store.close()

    assert list(tmp_path.rglob("state.sqlite"))


@pytest.mark.parametrize(
    "url",
    [
        "//user:geheim@host", "user:geheim@host", "http:geheim@host", "redis:ge://geheim@host", "redis:geheim@host",
        "sqlite://user:geheim@host/x", "y://host?password=a@geheim", "redis://u:p@geheim?x@host", "redis://u:geheim?@h",
    ],
)  # fmt: skip
def test_what_may_be_a_password_is_not_shown_however_the_url_is_wrong(url: str) -> None:
    """F62: nor in the hint"""
    with pytest.raises(PolicyError) as caught:
        open_store(url, fallback=False)
    with pytest.raises(PolicyError) as checked:
        check_place(url)

    assert "geheim" not in f"{caught.value} {checked.value}"


def test_a_question_mark_in_a_password_is_told_in_its_right_form(snapshot: Snapshot) -> None:
    """F62: the rest of the password would be taken for a host"""
    with pytest.raises(PolicyError, match="%3F") as caught:
        open_store("redis://user:pass@word?x@host", fallback=False)

    snapshot(str(caught.value))


def test_the_scheme_of_a_url_may_be_in_capitals() -> None:
    """RFC 3986, section 3.1"""
    store = open_store("REDIS://127.0.0.1:1/2", fallback=False)

    assert store.identity == open_store("redis://127.0.0.1:1/2", fallback=False).identity
    assert isinstance(open_store("SQLite:///state.sqlite", fallback=False), BlockingStore)

"""Variants of one URL in a page cache: each request has its own, and none is taken for another."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curtsy.cache.keys import MIB, Checked, PageCache
from curtsy.core.cache import Entry
from curtsy.core.variant import MOST_VARIANTS
from curtsy.testing import FakeClock
from tests.support.pages import NOW, page
from tests.support.variants import URL, asked, opened, variant
from tests.support.warm import Process

KINDS = ("disk", "packed", "delayed")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def cache(kind: str, tmp_path: Path, clock: FakeClock) -> Iterator[PageCache]:
    cache = opened(kind, tmp_path / "cache", clock)
    yield cache
    cache.close()


def test_each_request_gets_its_own_variant_also_after_a_restart(
    cache: PageCache, kind: str, tmp_path: Path, clock: FakeClock
) -> None:
    """F62"""
    for number in (3, 0, 1):
        assert cache.keep(*variant(number))

    for _ in range(3):
        assert [cache.body(asked(number)) for number in range(4)] == [b"of 0", b"of 1", None, b"of 3"]
    entry = cache.entry(asked(1))
    assert entry is not None
    assert entry.etag == '"1"'
    assert cache.entry(asked(2)) is None
    cache.close()
    again = opened(kind, tmp_path / "cache", clock)
    assert [again.body(asked(number)) for number in range(4)] == [b"of 0", b"of 1", None, b"of 3"]
    assert sorted(each.body for each in again.pages(URL)) == [b"of 0", b"of 1", b"of 3"]
    assert again.verify() == Checked(3, 0)
    again.close()


def test_a_variant_is_renewed_replaced_and_dropped_by_itself(cache: PageCache) -> None:
    """N6: though all have the same body"""
    for number in range(3):
        cache.keep(*variant(number, b"same"))
    for number in range(3):
        kept = cache.get(asked(number))
        assert kept is not None
        assert cache.refresh(msgspec.structs.replace(kept.entry, lifetime=float(number + 1)))

    assert [each and each.lifetime for each in (cache.entry(asked(number)) for number in range(3))] == [1, 2, 3]
    cache.keep(*variant(1, b"new"))
    assert [cache.body(asked(number)) for number in range(3)] == [b"same", b"new", b"same"]
    cache.drop(URL, variant(0)[0].variant)
    assert [cache.body(asked(number)) for number in range(3)] == [None, b"new", b"same"]
    cache.keep(*variant(2, b"newer"))  # in the place that is free now, if the cache likes
    assert [cache.body(asked(number)) for number in range(3)] == [None, b"new", b"newer"]
    assert len(list(cache.entries())) == 2
    cache.drop(URL)
    assert [cache.body(asked(number)) for number in range(3)] == [None] * 3
    assert list(cache.entries()) == []


def test_at_most_eight_are_kept_and_the_least_recently_used_makes_room(cache: PageCache, clock: FakeClock) -> None:
    """N6"""
    for number in range(MOST_VARIANTS):
        cache.keep(*variant(number))
    assert len(list(cache.entries())) == MOST_VARIANTS
    clock.advance(2 * 3600)  # the last use is written down once an hour; a file's own is that of its making
    for number in (*range(5), *range(6, MOST_VARIANTS)):
        clock.advance(1)
        assert cache.body(asked(number)) is not None

    cache.keep(*variant(100))

    assert len(list(cache.entries())) == MOST_VARIANTS
    assert [number for number in (*range(MOST_VARIANTS), 100) if cache.body(asked(number)) is None] == [5]


@pytest.mark.parametrize("kind", ["disk"])
def test_the_first_keeps_its_name_and_the_others_have_that_of_their_variant(cache: PageCache, tmp_path: Path) -> None:
    """N6: `<hash>.html`, `<hash>.<variant>.html`, each with its meta file"""
    digits = hashlib.sha256(URL.encode()).hexdigest()[:16]
    first, second, plain = variant("a"), variant("b"), variant(0)

    for each in (first, second, plain):
        cache.keep(*each)

    stems = [digits, f"{digits}.{second[0].variant}", f"{digits}.{'0' * 16}"]
    names = sorted(stem + ending for stem in stems for ending in (".html", ".meta.json"))
    assert sorted(path.name for path in tmp_path.rglob("*[0-9a-f].*") if path.suffix in (".html", ".json")) == names
    assert len(second[0].variant) == 16
    assert cache.body(URL) == first[1]
    cache.clear(lambda entry: entry.variant == first[0].variant)
    assert [cache.body(asked(each)) for each in ("a", "b", 0)] == [None, b"of 'b'", b"of 0"]
    cache.keep(*second)
    assert sorted(path.name for path in tmp_path.rglob("*.html")) == sorted([f"{digits}.html", f"{stems[2]}.html"])


@pytest.mark.parametrize("kind", ["disk"])
def test_a_variant_under_a_wrong_name_answers_nobody_and_is_found_by_verify(cache: PageCache, tmp_path: Path) -> None:
    """U16, F62"""
    for number in (0, 1):
        cache.keep(*variant(number))
    (folder,) = {path.parent for path in tmp_path.rglob("*.html")}
    stem = f"{hashlib.sha256(URL.encode()).hexdigest()[:16]}."
    for ending in (".html", ".meta.json"):
        (folder / (stem + variant(1)[0].variant + ending)).rename(folder / (stem + variant(2)[0].variant + ending))

    assert [cache.body(asked(number)) for number in range(3)] == [b"of 0", None, None]
    assert cache.verify() == Checked(1, 1)


@pytest.mark.parametrize("kind", ["packed"])
def test_a_packed_page_of_before_there_were_variants_is_found(cache: PageCache, tmp_path: Path) -> None:
    """N6: its number had all 64 bits of the hash"""
    cache.keep(*variant(0))
    with closing(sqlite3.connect(tmp_path / "cache" / "pages.db", isolation_level=None)) as db:
        db.execute("UPDATE pages SET id = id + 5")

    assert cache.body(asked(0)) == b"of 0"
    assert cache.verify() == Checked(1, 0)
    cache.keep(*variant(0, b"new"))
    cache.keep(*variant(1))
    assert [cache.body(asked(number)) for number in range(2)] == [b"new", b"of 1"]
    assert len(list(cache.entries())) == 2


def test_variants_by_vary_alone_are_told_apart(cache: PageCache) -> None:
    """N6: RFC 9111, 4.1: a harmless header that the site names"""

    def by(agent: str) -> tuple[Entry, bytes]:
        fields = asked(0, user_agent=agent).headers.fields
        return page(URL, agent.encode(), headers=[("Vary", "User-Agent"), ("ETag", '"1"')], asked=fields)

    for agent in ("a", "b"):
        cache.keep(*by(agent))

    assert [cache.body(asked(0, user_agent=agent)) for agent in ("a", "b", "c")] == [b"a", b"b", None]


steps = st.lists(
    st.tuples(
        st.sampled_from(["keep", "keep", "drop", "drop all", "refresh", "get"]),
        st.integers(0, 10),
        st.sampled_from([URL, "https://example.org/b"]),
    ),
    max_size=40,
)


@given(steps=steps, kind=st.sampled_from(KINDS))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_done_to_them_no_request_gets_the_page_of_another(
    steps: list[tuple[str, int, str]], kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """F62, N7: beside a dictionary that knows what was kept last"""
    place = tmp_path_factory.mktemp("cache")
    ours, theirs = opened(kind, place), opened(kind, place)
    last: dict[tuple[str, int], bytes] = {}
    crowded: set[str] = set()
    for turn, (step, number, url) in enumerate(steps):
        cache = (ours, theirs)[turn % 2]
        entry, body = variant(number, b"%d of %s, %d" % (number, url.encode(), turn % 3), url)
        if step == "keep":
            assert cache.keep(entry, body)
            last[url, number] = body
            crowded |= {url} if len([each for each in last if each[0] == url]) > MOST_VARIANTS else set()
        elif step == "drop":
            cache.drop(url, entry.variant)
            last.pop((url, number), None)
        elif step == "drop all":
            cache.drop(url)
            last = {each: body for each, body in last.items() if each[0] != url}
        elif step == "refresh":
            kept = cache.get(asked(number, url))
            assert kept is None or kept.body == last[url, number]
            assert kept is None or cache.refresh(kept.entry)
        for each in range(11):
            assert cache.body(asked(each, url)) in (None, last.get((url, each)))
    for url in {each[0] for each in last}:
        numbers = [number for where, number in last if where == url]
        found = [number for number in numbers if ours.body(asked(number, url)) == last[url, number]]
        assert len(found) == len(numbers) or (url in crowded and len(found) <= MOST_VARIANTS)
    ours.close()
    theirs.close()


# --- Killed --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["disk", "packed"])
def test_a_process_that_is_killed_while_it_writes_a_variant_leaves_no_wrong_one(kind: str, tmp_path: Path) -> None:
    """N7: at any moment; two writers at once"""
    dice = random.Random(kind)
    for _ in range(4):
        writers: list[Process[str]] = [
            Process("tests.support.variants", kind, tmp_path, text=True, stdout=subprocess.PIPE) for _ in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "up\n"
        reader = opened(kind, tmp_path)
        for look in range(dice.randrange(5, 60)):
            assert_own(reader, look % 12)
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.wait()
            assert writer.stdout is not None
            writer.stdout.close()
        for number in range(12):
            assert_own(reader, number)
        assert (
            len(list(reader.entries())) <= MOST_VARIANTS + 2
        )  # two that were written at once may be one too many each
        reader.close()
    last = opened(kind, tmp_path)
    for number in range(12):
        assert last.keep(*variant(number))
        assert last.body(asked(number)) == b"of %d" % number
    assert len(list(last.entries())) <= MOST_VARIANTS
    assert last.size < 8 * MIB
    last.close()


def assert_own(cache: PageCache, number: int) -> None:
    kept = cache.get(asked(number))
    if kept is not None:
        assert kept.entry.variant == variant(number)[0].variant
        assert kept.body.startswith((b"%d " % number) * 20_000)

"""What every page cache must do, whatever happens to it: one suite for the files and for the packed file."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from curtsy.cache.keys import MIB, Checked, PageCache
from curtsy.core.cache import Refresh, Stale, absorb, freshness
from curtsy.core.request import Headers, Request, Response
from curtsy.core.url import Url, parse_url
from curtsy.testing import FakeClock
from tests.support.bounds import Lateness
from tests.support.pages import NOW, ROOT, body_of, fill, hold, is_body_of, open_cache, page, unhashed, url_of, writer
from tests.support.snapshot import Snapshot

Open = Callable[..., PageCache]
URL = "https://example.org/a"


@pytest.fixture(params=["disk", "packed"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def opened(kind: str, tmp_path: Path) -> Iterator[Open]:
    """Opens the cache, as often as wanted, as so many processes would; closed in the end."""
    caches: list[PageCache] = []

    def open_one(**settings: object) -> PageCache:
        place = settings.pop("place", tmp_path / "cache")
        assert isinstance(place, Path)
        caches.append(open_cache(kind, place, **settings))  # type: ignore[arg-type]  # the caller's own keywords
        return caches[-1]

    yield open_one
    for cache in caches:
        cache.close()


def files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


# --- In good times -------------------------------------------------------------------------------------------------


def test_what_is_put_comes_back_even_after_a_restart(opened: Open) -> None:
    """N6"""
    entry, body = page(body=b"hello", headers=[("ETag", '"1"'), ("Link", "</a>"), ("link", "</b>"), ("X", "ä: b")])
    first = opened()

    assert first.keep(entry, body)
    first.close()

    again = opened()
    for _ in range(3):  # at last from memory
        assert again.get(URL) == (entry, body)
    assert again.entry(URL) == entry
    assert again.body(URL) == body


def test_what_was_never_put_is_a_miss(opened: Open) -> None:
    """N6"""
    cache = opened()

    for url in (URL, "not a URL", "ftp://example.org/a", ""):
        assert cache.get(url) is None
        assert cache.entry(url) is None
        assert cache.body(url) is None
        cache.drop(url)
    assert list(cache.entries()) == []
    assert cache.verify() == Checked(0, 0)
    assert cache.gc() == 0


def test_a_url_is_found_however_it_is_written(opened: Open) -> None:
    """U1"""
    cache = opened()
    cache.keep(*page("https://example.org/a%7Eb"))

    assert cache.get("HTTPS://user:password@Example.ORG:443/x/../a~b#part") is not None


def test_a_new_answer_replaces_the_old_one(opened: Open) -> None:
    """N6"""
    cache = opened()
    cache.keep(*page(body=b"old and longer"))
    hold(cache, URL)

    cache.keep(*page(body=b"new"))

    assert cache.body(URL) == b"new"
    assert len(list(cache.entries())) == 1


def test_a_304_renews_what_is_known_and_keeps_the_body(opened: Open) -> None:
    """N6, N11"""
    cache = opened()
    cache.keep(*page())
    hold(cache, URL)
    kept = cache.get(URL)
    url = parse_url(URL)
    assert kept is not None
    assert isinstance(url, Url)
    found = freshness(kept.entry, Request(url), NOW + 100)
    assert isinstance(found, Stale)
    outcome = absorb(found, Request(url), Response(304, Headers([("Cache-Control", "max-age=999")]), b""), NOW + 100)
    assert isinstance(outcome, Refresh)

    assert cache.refresh(outcome.entry)

    assert cache.get(URL) == (outcome.entry, b"hello")
    assert opened().get(URL) == (outcome.entry, b"hello")


@pytest.mark.parametrize("size", [0, 4, 6, 10**30])
def test_a_page_is_as_large_as_its_body_whatever_its_entry_says(opened: Open, size: int) -> None:
    """N6: `put` by hand"""
    entry, body = page(body=b"hello")
    cache = opened()

    assert cache.keep(msgspec.structs.replace(entry, body_size=size), body)

    kept = cache.get(URL)
    assert kept is not None
    assert (kept.entry.body_size, kept.body) == (5, b"hello")
    cache.refresh(msgspec.structs.replace(kept.entry, body_size=size if size < 10**18 else 0))
    assert cache.body(URL) == b"hello"


def test_a_304_for_a_body_that_is_gone_or_replaced_changes_nothing(opened: Open) -> None:
    """N6, F15"""
    cache = opened()
    entry, _ = page(body=b"old")

    assert not cache.refresh(entry)
    cache.keep(*page(body=b"new"))
    assert not cache.refresh(entry)

    assert cache.body(URL) == b"new"


def test_a_page_that_is_dropped_is_gone(opened: Open) -> None:
    """N6"""
    cache = opened()
    fill(cache, range(3))
    hold(cache, url_of(1))

    cache.drop(url_of(1))

    assert cache.get(url_of(1)) is None
    assert sorted(entry.url for entry in cache.entries()) == [url_of(0), url_of(2)]


def test_pages_can_be_cleared_by_what_is_known_of_them_secrets_or_not(opened: Open) -> None:
    """N6, F62"""
    cache = opened()
    fill(cache, range(100))
    cache.keep(*page("https://host1.example/page?token=secret"))
    hold(cache, url_of(1))

    cache.clear(lambda entry: entry.url.startswith("https://host1.example/"))

    assert sorted(entry.url for entry in cache.entries()) == sorted(
        url_of(each) for each in range(100) if each % 7 != 1
    )
    assert cache.get(url_of(1)) is None
    assert cache.get("https://host1.example/page?token=secret") is None


def test_what_another_process_does_is_seen_though_the_page_is_in_memory(opened: Open) -> None:
    """N6"""
    ours, theirs = opened(), opened()
    entry, body = page(body=b"first")
    ours.keep(entry, body)
    hold(ours, URL)

    theirs.keep(*page(body=b"other"))
    assert ours.body(URL) == b"other"

    changed = msgspec.structs.replace(page(body=b"other")[0], lifetime=999.0)
    theirs.refresh(changed)
    assert ours.get(URL) == (changed, b"other")

    theirs.drop(URL)
    assert ours.get(URL) is None


def test_a_closed_cache_is_an_empty_one_or_a_working_one_but_never_an_error(opened: Open) -> None:
    """U16"""
    cache = opened()
    cache.keep(*page())
    cache.close()
    cache.close()

    assert cache.body(URL) in (None, b"hello")
    cache.keep(*page())
    cache.drop(URL)
    cache.gc()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    body=st.binary(max_size=3000),
    headers=st.lists(st.tuples(st.text("abcXYZ-", min_size=1), st.text(max_size=20)), max_size=5),
    path=st.text(max_size=30),
)
def test_any_page_comes_back_as_it_was(opened: Open, body: bytes, headers: list[tuple[str, str]], path: str) -> None:
    """N7"""
    url = parse_url("https://example.org/" + path)
    assert isinstance(url, Url)
    entry, body = page(url.text, body, headers=headers)
    cache = opened()

    assert cache.keep(entry, body)

    kept = cache.get(url)
    assert kept is not None
    assert kept.body == body
    assert kept.entry.url == url.text
    cache.close()


# --- Room ----------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_pages_make_room(opened: Open) -> None:
    """N6"""
    clock = FakeClock()
    cache = opened(max_size=MIB, clock=clock)
    noise = random.Random(1)
    often = "https://example.org/often"
    cache.keep(*page(often, noise.randbytes(20_000)))
    for number in range(100):
        clock.advance(3700)
        cache.keep(*page(url_of(number), noise.randbytes(20_000)))

        assert cache.get(often) is not None

    assert cache.size <= MIB
    assert cache.get(url_of(99)) is not None
    assert cache.get(url_of(0)) is None
    assert len(list(cache.entries())) > 30


def test_a_page_that_is_used_outlives_those_that_came_after_it_be_it_within_a_minute(opened: Open) -> None:
    """N6"""
    clock = FakeClock(epoch=time.time() + 60)  # files have the real time, which may pass faster
    cache = opened(max_size=MIB, clock=clock)
    noise = random.Random(1)
    often = "https://example.org/often"
    cache.keep(*page(often, noise.randbytes(20_000)))
    for number in range(200):
        clock.advance(0.01)
        cache.keep(*page(url_of(number), noise.randbytes(20_000)))

        assert cache.get(often) is not None

    assert cache.size <= MIB  # waits for the eviction, which has a thread of its own
    assert cache.entry(url_of(100)) is None
    assert cache.entry(url_of(199)) is not None


def test_pages_make_room_in_the_order_of_their_last_use(opened: Open) -> None:
    """N6"""
    clock = FakeClock(epoch=time.time() + 60)
    cache = opened(clock=clock)
    noise = random.Random(1)
    order = list(range(50))
    for number in order:
        cache.keep(*page(url_of(number), noise.randbytes(20_000)))
    noise.shuffle(order)
    for number in order:
        clock.advance(0.01)
        cache.get(url_of(number))

    cache.gc(500_000)

    left = [number for number in order if cache.entry(url_of(number)) is not None]
    assert 15 < len(left) < 30
    assert left == order[-len(left) :]


def test_gc_makes_the_cache_as_small_as_asked(opened: Open, tmp_path: Path) -> None:
    """N6"""
    clock = FakeClock()
    cache = opened(clock=clock)
    noise = random.Random(1)
    for number in range(30):
        clock.advance(3700)
        cache.keep(*page(url_of(number), noise.randbytes(20_000)))
        cache.get(url_of(number))

    given_back = cache.gc(200_000)

    assert given_back > 300_000
    assert cache.size <= 200_000
    assert sum(path.stat().st_size for path in files(tmp_path)) <= 300_000
    assert cache.get(url_of(29)) is not None
    assert cache.gc(0) > 0
    assert list(cache.entries()) == []


def test_a_page_that_would_take_half_the_cache_is_not_kept_and_the_old_one_is_gone(opened: Open) -> None:
    """N6"""
    cache = opened(max_size=100_000)
    cache.keep(*page(body=b"old"))

    assert not cache.keep(*page(body=b"x" * 60_000))

    assert cache.get(URL) is None


# --- Names and secrets ---------------------------------------------------------------------------------------------

EVIL = [
    "https://example.org/../../../../etc/passwd",
    "https://example.org/%2e%2e%2f%2e%2e%2fetc/passwd",
    "https://example.org/..%5C..%5Cwindows",
    "https://example.org/a%00b",
    "https://example.org/" + "x" * 5000,
    "https://example.org/CON",
    "https://example.org/con",
    "https://example.org/nul.html",
    "https://con/",
    "https://aux.example/",
    "https://example.org./a.",
    "https://[::1]:8080/",
    "https://example.org:8080/",
    "https://example.org:8080/?a=1",
    "https://" + ".".join(["y" * 60] * 4) + "/",
    "https://example.org/a?b",
    "https://example.org/a/b",
    "https://example.org/A/b",
    "https://_/",
    "https://müller.example/ü",
]


def test_no_url_makes_a_file_elsewhere_and_no_two_share_a_page(opened: Open, tmp_path: Path) -> None:
    """F63"""
    cache = opened()
    for number, url in enumerate(EVIL):
        assert cache.keep(*page(url, b"body %d" % number)), url

    assert [cache.body(url) for url in EVIL] == [b"body %d" % number for number in range(len(EVIL))]
    assert {path.parts[0] for path in (path.relative_to(tmp_path) for path in files(tmp_path))} == {"cache"}
    for path in files(tmp_path):
        assert len(path.name) < 100
        assert len(path.parent.name) < 150


def test_no_secret_is_ever_written(opened: Open, tmp_path: Path) -> None:
    """F62"""
    secret = "hunter2"
    url = f"https://alice:{secret}@example.org/a?api_key={secret}&q=1"
    headers = [
        ("Set-Cookie", f"sid={secret}"),
        ("Link", f"<https://example.org/a?api_key={secret}&page=2>; rel=next"),
        ("Vary", "Authorization, Cookie"),
    ]
    asked = [("Authorization", f"Bearer {secret}"), ("Cookie", f"sid={secret}")]
    cache = opened()

    assert cache.keep(*page(url, b"hello", headers=headers, asked=asked))
    moved = page(url + "0", b"", status=301, headers=[("Location", f"https://example.org/?token={secret}")])
    assert not cache.keep(*moved)

    kept = cache.get(f"https://example.org/a?api_key={secret}&q=1")
    assert kept is not None
    assert kept.entry.url == f"https://example.org/a?api_key={secret}&q=1"
    assert [entry.url for entry in cache.entries()] == ["https://example.org/a?api_key=***&q=1"]
    assert cache.get("https://example.org/a?api_key=other&q=1") is None
    cache.close()
    for path in files(tmp_path):
        assert secret.encode() not in path.read_bytes()
        assert secret not in str(path)


def test_only_the_owner_can_read_what_is_kept(opened: Open, tmp_path: Path) -> None:
    """F62"""
    before = os.umask(0o022)
    try:
        opened(place=tmp_path / "new" / "cache").keep(*page())
    finally:
        os.umask(before)

    assert files(tmp_path)
    for path in (tmp_path / "new" / "cache", *(tmp_path / "new" / "cache").rglob("*")):
        assert path.stat().st_mode & 0o077 == 0, path


# --- In bad times --------------------------------------------------------------------------------------------------


def all_right_or_missed(cache: PageCache, count: int) -> int:
    """Look at every page: none may be wrong. Answers how many are there."""
    there = 0
    for number in range(count):
        kept = cache.get(url_of(number))
        if kept is not None:
            assert is_body_of(number, kept.body)
            assert unhashed(kept.entry) == unhashed(page(url_of(number), kept.body)[0])
            there += 1
    return there


def heals(cache: PageCache, clock: FakeClock, count: int) -> None:
    fill(cache, range(count))
    if all_right_or_missed(cache, count) < count:  # the damage was found only now, or looked like a full disk
        clock.advance(61)
        fill(cache, range(count))
        fill(cache, range(count))
    assert all_right_or_missed(cache, count) == count
    assert cache.verify().good == count


def flip(data: bytearray, dice: random.Random) -> None:
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)


def flip_many(data: bytearray, dice: random.Random) -> None:
    for _ in range(20):
        flip(data, dice)


def zero(data: bytearray, dice: random.Random) -> None:
    start = dice.randrange(len(data)) // 4096 * 4096
    data[start : start + 4096] = bytes(len(data[start : start + 4096]))


def shorten(data: bytearray, dice: random.Random) -> None:
    del data[dice.randrange(len(data)) :]


def empty(data: bytearray, dice: random.Random) -> None:
    data.clear()


def replace(data: bytearray, dice: random.Random) -> None:
    data[:] = dice.randbytes(len(data))


def swap(data: bytearray, dice: random.Random) -> None:
    half = len(data) // 8192 * 4096
    data[:half], data[half : 2 * half] = data[half : 2 * half], data[:half]


@pytest.mark.parametrize("damage", [flip, flip_many, zero, shorten, empty, replace, swap])
def test_damage_is_a_miss_and_heals(
    opened: Open, tmp_path: Path, damage: Callable[[bytearray, random.Random], None]
) -> None:
    """N7, U16"""
    dice = random.Random(damage.__name__)
    whole = opened(place=tmp_path / "whole")
    fill(whole, range(20))
    whole.close()
    for trial in range(5):
        place = tmp_path / f"trial{trial}"
        sources = files(tmp_path / "whole")
        hit = set(dice.sample(range(len(sources)), k=(len(sources) + 3) // 4))
        for number, source in enumerate(sources):
            target = place / source.relative_to(tmp_path / "whole")
            target.parent.mkdir(parents=True, exist_ok=True)
            data = bytearray(source.read_bytes())
            if number in hit:
                damage(data, dice)
            target.write_bytes(data)
            os.utime(target, (1, 1))  # nobody is writing it just now

        clock = FakeClock()
        cache = opened(place=place, clock=clock)
        all_right_or_missed(cache, 20)
        cache.verify()
        heals(cache, clock, 20)
        cache.close()


def test_a_damaged_page_is_told_of_and_dropped(opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """N7, U16"""
    cache = opened()
    body = body_of(0)
    cache.keep(*page(URL, body))
    cache.close()
    for path in files(tmp_path):
        data = path.read_bytes()
        if body[50:90] in data:
            path.write_bytes(data.replace(body[50:90], body[50:89] + b"\xff"))
        os.utime(path, (1, 1))

    again = opened()

    assert again.get(URL) is None
    assert again.entry(URL) is None
    assert any("damaged" in warning for warning in warnings(caplog))


def test_a_writer_that_is_killed_leaves_no_wrong_page(opened: Open, kind: str, tmp_path: Path) -> None:
    """N7, F37"""
    dice = random.Random(1)
    place = tmp_path / "cache"
    for _ in range(4):
        writers = [writer(kind, place, 0, 25, 1000) for _ in range(2)]
        for each in writers:
            assert each.stdout is not None
            each.stdout.read(dice.randrange(1, 60))  # it is well under way: kill it wherever it is now
        for each in writers:
            each.send_signal(signal.SIGKILL)
            each.communicate()
        cache = opened()
        all_right_or_missed(cache, 25)
        cache.close()

    cache = opened()
    assert cache.verify().good >= 20
    fill(cache, range(25))
    assert all_right_or_missed(cache, 25) == 25
    assert cache.verify() == Checked(25, 0)


def test_two_processes_that_write_the_same_pages_get_in_nobody_s_way(opened: Open, kind: str, tmp_path: Path) -> None:
    """N7, F42: at worst a page is dropped that two wrote at the very same moment"""
    writers = [writer(kind, tmp_path / "cache", first, 30, 3) for first in (0, 0, 15)]
    cache = opened()
    while any(each.poll() is None for each in writers):
        all_right_or_missed(cache, 45)

    assert [each.communicate() and each.returncode for each in writers] == [0, 0, 0]
    assert all_right_or_missed(cache, 45) >= 44


def test_threads_share_a_cache(opened: Open) -> None:
    """N7"""
    cache = opened(max_size=2 * MIB)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        dice = random.Random(seed)
        try:
            for _ in range(150):
                number = dice.randrange(20)
                match dice.randrange(4):
                    case 0:
                        cache.keep(*page(url_of(number), body_of(number, dice.randrange(5))))
                    case 1 if dice.random() < 0.2:
                        cache.drop(url_of(number))
                    case 2:
                        cache.refresh(page(url_of(number), body_of(number))[0])
                    case _:
                        kept = cache.get(url_of(number))
                        assert kept is None or is_body_of(number, kept.body)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []


def test_those_who_share_pages_are_not_told_of_damage_or_of_a_disk_that_cannot_be_written(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    """N7, F42, U16: each with a cache of its own, as so many processes would"""
    errors: list[BaseException] = []

    def work(seed: int, cache: PageCache) -> None:
        dice = random.Random(seed)
        try:
            for _ in range(250):
                number, version = dice.randrange(3), dice.randrange(5)
                match dice.randrange(10):
                    case 0 | 1 | 2 | 3:
                        tag = [("ETag", f'"{version}"')]
                        assert cache.keep(*page(url_of(number), body_of(number, version), headers=tag))
                    case 4:
                        cache.drop(url_of(number))
                    case 5:
                        cache.gc(0)
                    case 6:
                        assert cache.verify().damaged == 0
                    case _:
                        kept = cache.get(url_of(number))
                        if kept is not None and kept.entry.etag is not None:
                            assert kept.body == body_of(number, int(kept.entry.etag.strip('"')))
                            cache.refresh(msgspec.structs.replace(kept.entry, lifetime=dice.random()))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed, opened())) for seed in range(4)]
    with Lateness() as late:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    if errors and late.most > 0.2:
        pytest.skip("the machine stood still, and a lock is waited for no longer than 2 s")
    assert errors == []
    assert warnings(caplog) == []


FORKING = """
import json, os, sys
from pathlib import Path
from tests.support.pages import fill, is_body_of, open_cache, url_of
cache = open_cache(sys.argv[1], Path(sys.argv[2]))
fill(cache, range(10))
children = []
for child in range(3):
    number = os.fork()
    if number == 0:
        own = range(10 * child + 10, 10 * child + 20)  # each its own: two who write one page at once may lose it
        fill(cache, own, child)
        good = all(is_body_of(each, cache.get(url_of(each)).body) for each in (*range(10), *own))
        cache.close()
        os._exit(0 if good else 1)
    children.append(number)
fill(cache, range(40, 50))
codes = [os.waitpid(number, 0)[1] for number in children]
there = sum(cache.get(url_of(each)) is not None for each in range(50))
cache.close()
print(json.dumps([codes, there]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_cache_survives_a_fork(kind: str, tmp_path: Path) -> None:
    """N7"""
    command = [sys.executable, "-c", FORKING, kind, str(tmp_path / "cache")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)

    assert json.loads(done.stdout) == [[0, 0, 0], 50], done.stderr


# --- No room, no right ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", place], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("no small disk: a tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", place], check=False)


def grow(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_stops_the_writing_for_a_while_and_nothing_else(
    opened: Open, small_disk: Path, caplog: pytest.LogCaptureFixture, snapshot: Snapshot
) -> None:
    """F40, U16"""
    clock = FakeClock()
    cache = opened(place=small_disk / "cache", clock=clock)
    ballast = small_disk / "ballast"
    noise = random.Random(1).randbytes(20_000)
    for number in range(5):
        assert cache.keep(*page(url_of(number), noise))
    with pytest.raises(OSError, match="No space"):
        grow(ballast)

    kept = [cache.keep(*page(url_of(number), noise)) for number in range(5, 40)]

    assert not any(kept[5:])
    [warning] = warnings(caplog)
    assert str(small_disk / "cache") in warning
    snapshot(warning)
    assert [cache.body(url_of(number)) for number in range(5)] == [noise] * 5

    assert not cache.keep(*page(url_of(0), b"new"))
    assert cache.body(url_of(0)) in (None, noise)  # if it can be dropped, it is: it is outdated

    ballast.unlink()
    assert not cache.keep(*page(url_of(50), noise))  # it rests
    clock.advance(61)
    assert cache.keep(*page(url_of(50), noise))
    assert cache.body(url_of(50)) == noise
    assert cache.verify().damaged == 0


def test_a_304_that_a_full_disk_has_no_room_for_leaves_the_page_as_it_was(opened: Open, small_disk: Path) -> None:
    """F40"""
    cache = opened(place=small_disk / "cache")
    cache.keep(*page())
    hold(cache, URL)
    kept = cache.get(URL)
    assert kept is not None
    with pytest.raises(OSError, match="No space"):
        grow(small_disk / "ballast")

    many = tuple((f"X-{number}", "value") for number in range(2000))
    assert not cache.refresh(msgspec.structs.replace(kept.entry, headers=many))

    assert cache.get(URL) == kept


def test_a_read_only_disk_can_be_read(opened: Open, small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    """U16"""
    cache = opened(place=small_disk / "cache")
    cache.keep(*page())
    cache.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)

    again = opened(place=small_disk / "cache")

    assert again.body(URL) == b"hello"
    assert not again.keep(*page(body=b"new"))
    assert not again.keep(*page(url_of(1)))
    again.drop(URL)
    assert again.body(URL) == b"hello"
    [warning] = warnings(caplog)
    assert str(small_disk / "cache") in warning


def test_a_disk_that_was_read_only_is_written_when_it_can_be(opened: Open, small_disk: Path) -> None:
    """U16"""
    clock = FakeClock()
    cache = opened(place=small_disk / "cache")
    cache.keep(*page())
    cache.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    again = opened(place=small_disk / "cache", clock=clock)
    assert not again.keep(*page(url_of(1)))
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    clock.advance(61)

    assert again.keep(*page(url_of(1)))
    assert again.body(URL) == b"hello"


def test_a_place_that_cannot_be_had_is_told_once_and_tried_again(
    opened: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """U16, F40"""
    clock = FakeClock()
    place = tmp_path / "place"
    place.write_text("a file where a folder should be")
    cache = opened(place=place, clock=clock)

    for _ in range(5):
        assert not cache.keep(*page())
        assert cache.get(URL) is None
    assert len(warnings(caplog)) == 1
    assert cache.verify() == Checked(0, 0)

    place.unlink()
    clock.advance(61)
    assert cache.keep(*page())
    assert cache.body(URL) == b"hello"

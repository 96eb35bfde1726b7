"""Pages to be kept, and processes that keep them: for the tests of the page caches.

Run as a program it writes pages into a cache until it is ended, and tells on standard output how many:

    python -m tests.support.pages disk|packed <path> <first> <count> <rounds>
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from curtsy.cache.disk import DiskCache
from curtsy.cache.keys import MIB, PageCache
from curtsy.cache.packed import PackedCache
from curtsy.core.cache import Absent, Entry, Store, absorb
from curtsy.core.request import Headers, Request, Response
from curtsy.core.url import Url, parse_url
from curtsy.system.clock import Clock
from tests.support.warm import Process

NOW = 1_800_000_000.0
ROOT = Path(__file__).parent.parent.parent


def open_cache(kind: str, place: Path, *, max_size: int = 1024 * MIB, clock: Clock | None = None) -> PageCache:
    """A cache of either kind at a place of its own."""
    if kind == "disk":
        return DiskCache(place, max_size=max_size, clock=clock)
    return PackedCache(place / "pages.db", max_size=max_size, clock=clock)


def page(
    url: str = "https://example.org/a",
    body: bytes = b"hello",
    *,
    status: int = 200,
    headers: Iterable[tuple[str, str]] = (("ETag", '"1"'), ("Cache-Control", "max-age=60")),
    asked: Iterable[tuple[str, str]] = (),
    now: float = NOW,
) -> tuple[Entry, bytes]:
    """A page as `absorb()` would have it kept, and with the hash that it has when it is kept as it is."""
    parsed = parse_url(url)
    assert isinstance(parsed, Url)
    outcome = absorb(Absent(), Request(parsed, headers=Headers(asked)), Response(status, Headers(headers), body), now)
    assert isinstance(outcome, Store), outcome
    return msgspec.structs.replace(outcome.entry, body_sha256=hashlib.sha256(body).hexdigest()), outcome.body


def hold(cache: PageCache, url: str) -> None:
    """Have a cache hold a page in memory, if it may: it does so when the page is read again."""
    for _ in range(2):
        cache.get(url)


def unhashed(entry: Entry) -> Entry:
    """An entry without the hash of its body, which depends on how that is kept."""
    return msgspec.structs.replace(entry, body_sha256="")


def url_of(number: int) -> str:
    """The URL of one of many pages."""
    return f"https://host{number % 7}.example/page/{number}"


def body_of(number: int, version: int = 0) -> bytes:
    """A body that cannot be taken for another's: every line tells whose it is; every third does not compress."""
    seed = f"{number}/{version}".encode()
    if number % 3:
        return b"".join(b"%b line %d\n" % (seed, line) for line in range(200 + number % 100))
    block = hashlib.sha256(seed).digest()
    return seed + b"\n" + b"".join(hashlib.sha256(block + bytes([each])).digest() for each in range(100))


def is_body_of(number: int, body: bytes) -> bool:
    """Whether `body` is one that was made for this number, whole."""
    version = body.split(b" " if number % 3 else b"\n", 1)[0].split(b"/")[1]
    return body == body_of(number, int(version))


def fill(cache: PageCache, numbers: Iterable[int], version: int = 0) -> None:
    """Keep many pages."""
    for number in numbers:
        cache.keep(*page(url_of(number), body_of(number, version)))


def writer(kind: str, place: Path, first: int, count: int, rounds: int) -> Process[bytes]:
    """Start a process that writes `count` pages from `first` on, again and again; it tells a dot for each."""
    return Process("tests.support.pages", kind, place, first, count, rounds, text=False, stdout=subprocess.PIPE)


def main() -> None:
    kind, place, first, count, rounds = sys.argv[1:]
    cache = open_cache(kind, Path(place))
    for version in range(int(rounds)):
        for number in range(int(first), int(first) + int(count)):
            cache.keep(*page(url_of(number), body_of(number, version)))
            sys.stdout.write(".")
            sys.stdout.flush()
    cache.close()


if __name__ == "__main__":
    main()

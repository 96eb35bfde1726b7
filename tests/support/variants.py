"""Variants of one page, and `python -m tests.support.variants KIND PATH`, which keeps them until it is killed."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from curtsy.cache.disk import DiskCache
from curtsy.cache.keys import PageCache
from curtsy.cache.packed import PackedCache
from curtsy.core.cache import Entry
from curtsy.core.request import Headers, Request
from curtsy.core.url import Url, parse_url
from curtsy.system.clock import Clock
from tests.support.pages import page

URL = "https://example.org/a"


def opened(kind: str, place: Path, clock: Clock | None = None) -> PageCache:
    if kind == "disk":
        return DiskCache(place, clock=clock)
    return PackedCache(place / "pages.db", delay=3600.0 if kind == "delayed" else 0.0, clock=clock)


def asked(variant: int | str, url: str = URL, **headers: str) -> Request:
    """A request that selects a variant by a header; 0 is the one without."""
    parsed = parse_url(url)
    assert isinstance(parsed, Url)
    fields = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Request(parsed, headers=Headers([*fields, *([("X-Key", str(variant))] if variant else [])]))


def variant(number: int | str, body: bytes | None = None, url: str = URL, **said: str) -> tuple[Entry, bytes]:
    """A page as it is kept for such a request."""
    headers = [("ETag", f'"{number}"'), *((name.replace("_", "-"), value) for name, value in said.items())]
    data = b"of %a" % number if body is None else body
    return page(url, data, headers=headers, asked=asked(number).headers.fields)


def main() -> None:
    kind, place = sys.argv[1:]
    cache = opened(kind, Path(place))
    print("up", flush=True)
    for turn in itertools.count():
        number = turn % 12
        cache.keep(*variant(number, (b"%d " % number) * 20_000 + b"%d" % turn))
        if turn % 5 == 4:
            cache.drop(URL, variant(turn % 3)[0].variant)


if __name__ == "__main__":
    main()

"""Compressed sequence of URLs, at a tenth of their size. A sitemap may list 50 MB of them."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

BLOCK = 1000
"""URLs compressed together."""


class PackedUrls(Sequence[str]):
    """Append-only sequence of canonical URLs, efficient to read from its beginning."""

    __slots__ = ("_blocks", "_last")

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self._blocks: list[bytes] = []
        self._last: list[str] = []
        for url in urls:
            self.append(url)

    def append(self, url: str) -> None:
        """Append a URL."""
        self._last.append(url)
        if len(self._last) == BLOCK:
            self._blocks.append(zlib.compress("\n".join(self._last).encode(), 1))
            self._last = []

    def __len__(self) -> int:
        return BLOCK * len(self._blocks) + len(self._last)

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            yield from zlib.decompress(block).decode().split("\n")
        yield from self._last

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...

    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, int):
            return next(islice(self[place:], 1)) if place >= 0 else list(self)[place]
        start, stop, step = place.indices(len(self))
        rest = PackedUrls()
        rest._blocks, rest._last = self._blocks[start // BLOCK :], self._last
        if start % BLOCK:
            rest = PackedUrls(islice(rest, start % BLOCK, None))
        return rest if place.stop is None and step == 1 else list(islice(rest, 0, stop - start, step))

"""Choice of a page cache by its path: one packed file, or a folder of readable files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curtsy.cache.keys import PageCache

UNBOUNDED = 2**62
"""Bytes beyond any disk."""


def cache_path(cache_dir: Path | None) -> Path:
    """Return the path of the page cache: `cache_dir`, or a packed file in the user's cache directory.

    A folder named by the user holds files (N6); a name that ends in `.sqlite` is a packed file.
    """
    if cache_dir is not None:
        return cache_dir
    from platformdirs import user_cache_path

    return user_cache_path("curtsy", appauthor=False) / "pages.sqlite"


def is_packed(path: Path) -> bool:
    """Return whether the path names a packed file."""
    return path.suffix == ".sqlite"


def open_cache(path: Path, max_size: int | None, *, may_wait: bool = False) -> PageCache:
    """Open the cache at a path. `max_size` None means no limit; if `may_wait`, pages are written in batches."""
    size = UNBOUNDED if max_size is None else max_size
    if is_packed(path):
        from curtsy.cache.packed import DELAY, PackedCache

        return PackedCache(path, max_size=size, delay=DELAY if may_wait else 0.0)
    from curtsy.cache.disk import DiskCache

    return DiskCache(path, max_size=size)

"""Layout of a disk cache: names of its folders and files, and a scan of them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from curtsy.cache.entry_files import BODY, META
from curtsy.cache.keys import Lately
from curtsy.core.cache import Entry
from curtsy.core.message import SECOND

_OURS = re.compile(r"[0-9a-f]{16}(?:\.[0-9a-f]{16})?(?:\.html|\.meta\.json|\..*\.part)")

_PLAIN = "0" * 16
"""File name of the variant without selecting request headers, if it is not the first variant."""

# Device names that Windows reserves, with any extension.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.I)


@lru_cache(maxsize=4096)
def folder_name(name: str) -> str:
    """Return a unique, readable folder name for any text that is safe on every system."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100].rstrip(".")
    if plain == name and plain[:1] not in ("", ".") and not _DEVICES.fullmatch(plain):
        return plain
    return f"_{plain.lstrip('.')}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def stem_of(first: str, variant: str) -> str:
    """Return the path of a variant other than the first, without file extensions."""
    return f"{first}.{variant or _PLAIN}"


def names_of(entry: Entry) -> tuple[str, str]:
    """Return the possible names of a page's files, without file extensions."""
    first = entry.url_sha256[:16]
    return first, stem_of(first, entry.variant)


def others(first: str) -> list[str]:
    """Return the stems of all variants of a URL except the first. Lists the URL's folder."""
    folder, name = os.path.split(first)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    ours = [each for each in names if each.startswith(name + ".") and _OURS.fullmatch(each)]
    stems = {each.removesuffix(META).removesuffix(BODY) for each in ours if each.endswith((META, BODY))}
    return [os.path.join(folder, each) for each in stems if each != name]


class Kept(NamedTuple):
    """Files of a cached page as found by a scan, or a leftover file."""

    used: float
    size: int
    paths: tuple[str, ...]
    """Meta file and body; a single path for a leftover file."""


def scan(root: str, lately: Lately[str]) -> Iterator[Kept]:
    """Yield the cache's files under `root` without reading them. Skips other files."""
    for folder, _, names in os.walk(root):
        ours = {name for name in names if _OURS.fullmatch(name)}
        for name in ours:
            path = f"{folder}{os.sep}{name}"
            try:
                if name.endswith(META) and name.removesuffix(META) + BODY in ours:
                    body = path.removesuffix(META) + BODY
                    stat = os.stat(path)
                    if stat.st_size > 0:
                        used = max(stat.st_atime, lately.at(name.removesuffix(META)) / SECOND)
                        yield Kept(used, stat.st_size + os.stat(body).st_size, (path, body))
                    else:  # its writer has not finished, or crashed
                        yield Kept(stat.st_mtime, 0, (path,))
                elif not name.endswith(BODY) or name.removesuffix(BODY) + META not in ours:
                    stat = os.stat(path)
                    yield Kept(stat.st_mtime, stat.st_size, (path,))
            except OSError:  # removed by another process
                continue

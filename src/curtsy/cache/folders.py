"""The folders of a disk cache: how its files are named, and what lies there."""

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
"""The name of the variant of requests without headers that select any, where it is not the first."""

# What Windows takes for a device, with any ending.
_DEVICES = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?", re.I)


@lru_cache(maxsize=4096)
def folder_name(name: str) -> str:
    """A folder's name for any text: readable, safe on every system, and another one for another text."""
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100].rstrip(".")
    if plain == name and plain[:1] not in ("", ".") and not _DEVICES.fullmatch(plain):
        return plain
    return f"_{plain.lstrip('.')}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def stem_of(first: str, variant: str) -> str:
    """The path of a variant that is not the first, without the endings of its files."""
    return f"{first}.{variant or _PLAIN}"


def names_of(entry: Entry) -> tuple[str, str]:
    """The names that the files of a page may have, without their endings."""
    first = entry.url_sha256[:16]
    return first, stem_of(first, entry.variant)


def others(first: str) -> list[str]:
    """The stems of all variants of a URL but the first. Takes a look at its folder."""
    folder, name = os.path.split(first)
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    ours = [each for each in names if each.startswith(name + ".") and _OURS.fullmatch(each)]
    stems = {each.removesuffix(META).removesuffix(BODY) for each in ours if each.endswith((META, BODY))}
    return [os.path.join(folder, each) for each in stems if each != name]


class Kept(NamedTuple):
    """One page as a scan sees it, without reading it; or what is left of one."""

    used: float
    size: int
    paths: tuple[str, ...]
    """The meta file first; a single one if the page is not whole."""


def scan(root: str, lately: Lately[str]) -> Iterator[Kept]:
    """What lies under the root, without reading it. Files that are not ours are not seen."""
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
                    else:  # somebody is about to write it, or was
                        yield Kept(stat.st_mtime, 0, (path,))
                elif not name.endswith(BODY) or name.removesuffix(BODY) + META not in ours:
                    stat = os.stat(path)
                    yield Kept(stat.st_mtime, stat.st_size, (path,))
            except OSError:  # gone meanwhile
                continue

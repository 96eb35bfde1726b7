"""The two files of a cached page: their names, their content, and a scan of all of them.

`<stem>.html` holds the body. `<stem>.meta.json` holds everything else, including the body's SHA-256. Several processes
may write the same pair at once, so a pair that does not match is a miss.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from curtsy.cache.keys import MIB, LastUses, Page, entry_struct, sha256_of
from curtsy.core.cache import Entry
from curtsy.core.time import SECOND

_numbers = itertools.count()
_TOKEN = secrets.token_hex(4)  # containers can share process ids, so a random token keeps names unique

BODY, META, PART = ".html", ".meta.json", ".part"

TRIES = 5
"""Attempts at an operation that other processes may interfere with."""

NEW = 1.0
"""Seconds during which two processes may still be writing a pair that does not match."""

MOST_META = MIB
"""Largest size of a meta file in bytes. A page with larger headers is not cached."""

STEP = 64 * MIB
"""Largest number of bytes per read."""

_CHECK = b',\n  "check": "'


# An entry with its headers as lines and its time in ISO 8601.
_Meta = entry_struct({"headers": list[str], "fetched_at": str}, rename="camel")
_metas = msgspec.json.Decoder(_Meta)
_HEADERS, _TIME = (Entry.__struct_fields__.index(name) for name in ("headers", "fetched_at"))


def as_dict(entry: Entry) -> dict[str, Any]:
    """Return the entry with the keys and values of its meta file."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(_written(entry)))
    return found


def encode(entry: Entry) -> bytes:
    """Return the entry as indented JSON that ends with a CRC-32 checksum."""
    text = msgspec.json.format(msgspec.json.encode(_written(entry)), indent=2).removesuffix(b"\n}")
    return b'%b%b%08x"\n}\n' % (text, _CHECK, zlib.crc32(text))


def _written(entry: Entry) -> msgspec.Struct:
    """Convert the entry to the struct of the meta file."""
    values: list[Any] = list(msgspec.structs.astuple(entry))
    values[_HEADERS] = [f"{name}: {value}" for name, value in entry.headers]
    fetched_at = datetime.fromtimestamp(round(entry.fetched_at, 3), UTC)
    values[_TIME] = fetched_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return _Meta(*values)


def decode(raw: bytes) -> Entry | None:
    """Decode a meta file; return None if it is damaged."""
    text, _, check = raw.rpartition(_CHECK)
    if check != b'%08x"\n}\n' % zlib.crc32(text):
        return None
    try:
        values: list[Any] = list(msgspec.structs.astuple(_metas.decode(raw)))
        values[_HEADERS] = tuple([line.partition(": ")[::2] for line in values[_HEADERS]])
        values[_TIME] = datetime.fromisoformat(values[_TIME]).timestamp()
    except (msgspec.MsgspecError, ValueError):  # written by another version of curtsy
        return None
    return Entry(*values)


def entry_at(path: str) -> Entry | None:
    """Return the entry in a meta file; None if it is absent or unreadable."""
    try:
        return decode(open_meta(path)[0])
    except OSError:
        return None


# --- Files ---------------------------------------------------------------------------------------------------------


_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def open_meta(path: str) -> tuple[bytes, os.stat_result]:
    """Return the content and the stat of a meta file; invalid content if it exceeds `MOST_META`.

    Raises FileNotFoundError also for an empty file, because its writer has not finished.
    """
    number = os.open(path, _READ)
    try:
        stat = os.fstat(number)
        if stat.st_size == 0:
            raise FileNotFoundError(path)
        return (_read(number, stat.st_size, stat.st_size) if stat.st_size <= MOST_META else b"?"), stat
    finally:
        os.close(number)


def _bytes_of(path: str, size: int) -> bytes:
    """Return the content of a file of `size` bytes. A mismatch yields fewer bytes, or one more."""
    number = os.open(path, _READ)  # `open()` takes twice as long
    try:
        return _read(number, size, size + 1)
    finally:
        os.close(number)


def _read(number: int, size: int, most: int) -> bytes:
    """Read `size` bytes of a file, at most `most`; fewer if the file is shorter."""
    # Read in steps: `size` comes from a meta file, and a forged one could request any amount of memory.
    data = os.read(number, min(most, STEP))
    while 0 < len(data) < size and (more := os.read(number, min(most - len(data), STEP))):
        data += more
    return data


def stamp_of(stat: os.stat_result) -> tuple[int, ...]:
    """Return the values that change when a page is rewritten, because each write creates a new file.

    `st_mtime` alone is not enough. Recording a use sets it, possibly on a new file that reuses the old inode.
    """
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size


def page_at(stem: str, meta: bytes) -> Page | None:
    """Return the page in a pair of files after checking it; None if they do not match.

    Raises OSError if a file is missing, or if a mismatched pair is so new that it may still be being written.
    """
    for _ in range(TRIES):
        entry = decode(meta)
        if entry is not None:
            body = _bytes_of(stem + BODY, entry.body_size)
            if sha256_of(body) == entry.body_sha256:
                return Page(entry, body)
        before = meta
        meta, stat = open_meta(stem + META)
        if meta == before:
            if 0 <= time.time() - stat.st_mtime < NEW:
                raise FileNotFoundError(stem + META)
            break
        # Another process replaced the page between the two reads: read again.
    return None


def _aside(stem: str, ending: str) -> str:
    """Return a unique name for a temporary file beside `stem`."""
    return f"{stem}.{os.getpid()}-{_TOKEN}-{next(_numbers)}{ending}{PART}"


def put(stem: str, body: bytes, meta: bytes, *, is_new: bool) -> bool:
    """Write the two files. The body is written to a temporary file and renamed; the meta file follows.

    The meta file is written in place, which saves a third of the time. A missing or empty meta file is a miss.

    Raises FileNotFoundError if the folder does not exist. If `is_new`, the caller found no meta file.

    The old files are removed first, so a crash in between leaves a miss. Renaming over them takes four times as long on
    ext4, which then flushes the new file to the disk at once.
    """
    part = _aside(stem, BODY)
    try:
        _create(part, body)
        if not is_new:
            remove_pair(stem)
        os.replace(part, stem + BODY)
    except BaseException:
        remove(part)
        raise
    try:
        _create(stem + META, meta)
    except FileExistsError:
        _settle(stem, body, meta)
    except BaseException:
        remove(stem + META)
        raise
    return True


def _settle(stem: str, body: bytes, meta: bytes) -> None:
    """Finish a write that races with another process: the body written last determines the page."""
    part = _aside(stem, META)
    try:
        if _is_there(stem, body):
            _create(part, meta)
            os.replace(part, stem + META)
            if not _is_there(stem, body):  # a third process has replaced the body
                remove(stem + META)
    except BaseException:
        remove(part, stem + META)
        raise


def _is_there(stem: str, body: bytes) -> bool:
    try:
        return _bytes_of(stem + BODY, len(body)) == body
    except FileNotFoundError:
        return False


def renew(stem: str, before: bytes, meta: bytes) -> bool:
    """Replace the meta file if its content is still `before`.

    The old file is renamed away first, so no process can replace the page between the comparison and the write.
    """
    taken = _aside(stem, META)
    try:
        os.rename(stem + META, taken)
    except FileNotFoundError:
        return False
    try:
        if _bytes_of(taken, len(before)) != before:
            with contextlib.suppress(OSError):
                os.link(taken, stem + META)
            return False
        _create(stem + META, meta)
    except (FileExistsError, FileNotFoundError):  # another process wrote or removed the page
        return False
    except BaseException:
        os.replace(taken, stem + META)
        raise
    finally:
        remove(taken)
    return True


def _create(path: str, data: bytes) -> None:
    """Create a file that only its owner can read, because a page may come from behind a login."""
    number = os.open(path, _NEW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(number, view) :]
    finally:
        os.close(number)


def remove(*paths: str) -> None:
    """Remove the files that exist, and an empty folder in place of a file."""
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(path)


def remove_pair(stem: str) -> None:
    """Remove the two files of a page."""
    remove(stem + META, stem + BODY)


# --- Names and folders ----------------------------------------------------------------------------------------------


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


class PageFiles(NamedTuple):
    """Files of a cached page as found by a scan, or a leftover file."""

    used: float
    size: int
    paths: tuple[str, ...]
    """Meta file and body; a single path for a leftover file."""


def scan(root: str, last_uses: LastUses[str]) -> Iterator[PageFiles]:
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
                        used = max(stat.st_atime, last_uses.at(name.removesuffix(META)) / SECOND)
                        yield PageFiles(used, stat.st_size + os.stat(body).st_size, (path, body))
                    else:  # its writer has not finished, or crashed
                        yield PageFiles(stat.st_mtime, 0, (path,))
                elif not name.endswith(BODY) or name.removesuffix(BODY) + META not in ours:
                    stat = os.stat(path)
                    yield PageFiles(stat.st_mtime, stat.st_size, (path,))
            except OSError:  # removed by another process
                continue

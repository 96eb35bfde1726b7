"""Pair: the two files of a kept page, as they are written, read and checked.

`<stem>.html` is the body, `<stem>.meta.json` all else, and what vouches for the body. Several processes may be at the
same pair: whatever does not fit together is no page.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import time
import zlib
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec

from curtsy.cache.keys import MIB, Page, sha256_of
from curtsy.core.cache import Entry

_numbers = itertools.count()
_TOKEN = secrets.token_hex(4)  # with the process's number, which two containers may share, no two writers' files clash

BODY, META, PART = ".html", ".meta.json", ".part"

TRIES = 5
"""How often something is tried that other processes may be changing just now."""

NEW = 1.0
"""Seconds for which files that do not fit together may be in the making by two processes at once."""

MOST_META = MIB
"""Bytes of a meta file; a page whose headers take more is not kept."""

STEP = 64 * MIB
"""Bytes that are read at a time."""

_CHECK = b',\n  "check": "'


def _meta_type() -> type[msgspec.Struct]:
    """What stands in the file: an entry's fields, but a header is a line, and the time is in ISO 8601."""
    types = {"headers": list[str], "fetched_at": str}
    fields = [
        (each.name, types.get(each.name, each.type), *([] if each.required else [each.default]))
        for each in msgspec.structs.fields(Entry)
    ]
    return msgspec.defstruct("_Meta", fields, rename="camel", gc=False)


_Meta = _meta_type()
_metas = msgspec.json.Decoder(_Meta)
_HEADERS, _TIME = (Entry.__struct_fields__.index(name) for name in ("headers", "fetched_at"))


def as_dict(entry: Entry) -> dict[str, Any]:
    """The entry as it stands in the file, by the names that it has there."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(_written(entry)))
    return found


def encode(entry: Entry) -> bytes:
    """The entry as JSON to be read by people, at the end with a checksum."""
    text = msgspec.json.format(msgspec.json.encode(_written(entry)), indent=2).removesuffix(b"\n}")
    return b'%b%b%08x"\n}\n' % (text, _CHECK, zlib.crc32(text))


def _written(entry: Entry) -> msgspec.Struct:
    """The entry as it is written."""
    values: list[Any] = list(msgspec.structs.astuple(entry))
    values[_HEADERS] = [f"{name}: {value}" for name, value in entry.headers]
    second, millisecond = divmod(int(entry.fetched_at * 1000 + 0.5), 1000)
    values[_TIME] = f"{_second(second)}.{millisecond:03}Z"
    return _Meta(*values)


@lru_cache(maxsize=16)  # the pages of a second have the same one
def _second(epoch: int) -> str:
    return datetime.fromtimestamp(epoch, UTC).isoformat().removesuffix("+00:00")


def decode(raw: bytes) -> Entry | None:
    """The entry that was encoded; None if the file is not as it was written."""
    text, _, check = raw.rpartition(_CHECK)
    if check != b'%08x"\n}\n' % zlib.crc32(text):
        return None
    try:
        values: list[Any] = list(msgspec.structs.astuple(_metas.decode(raw)))
        values[_HEADERS] = tuple([line.partition(": ")[::2] for line in values[_HEADERS]])
        values[_TIME] = datetime.fromisoformat(values[_TIME]).timestamp()
    except (msgspec.MsgspecError, ValueError):  # of another version of curtsy
        return None
    return Entry(*values)


def entry_at(path: str) -> Entry | None:
    """The entry in a meta file; None if there is none that can be read."""
    try:
        return decode(open_meta(path)[0])
    except OSError:
        return None


# --- Files ---------------------------------------------------------------------------------------------------------


_READ = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)


def open_meta(path: str) -> tuple[bytes, os.stat_result]:
    """What a meta file has, and how it looks; nothing of use if it is larger than it can be.

    Raises FileNotFoundError for an empty one, too: somebody is about to write it.
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
    """What a file has, if that is so many bytes; else fewer, or one more."""
    number = os.open(path, _READ)  # by hand, for `open()` takes twice as long
    try:
        return _read(number, size, size + 1)
    finally:
        os.close(number)


def _read(number: int, size: int, most: int) -> bytes:
    """So many bytes of a file, or up to `most` if there are more; fewer if there are not so many."""
    # In steps, for a meta file may say of its body what it likes, and so much memory would be asked for.
    data = os.read(number, min(most, STEP))
    while 0 < len(data) < size and (more := os.read(number, min(most - len(data), STEP))):
        data += more
    return data


def stamp_of(stat: os.stat_result) -> tuple[int, ...]:
    """What shows that a page is another one: each write makes a new file, be it by another process.

    Both times, for the first can be set: who notes a use sets it, and may hit a new file that has the old one's number.
    """
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size


def page_at(stem: str, meta: bytes) -> Page | None:
    """The page that the two files make, checked; None if they make none.

    Raises OSError if one is missing, or if they are so new that somebody may still be writing them.
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
        # Somebody has replaced the page between our two reads: look again.
    return None


def _aside(stem: str, ending: str) -> str:
    """The name of a file that is not in its place yet, or not any more."""
    return f"{stem}.{os.getpid()}-{_TOKEN}-{next(_numbers)}{ending}{PART}"


def put(stem: str, body: bytes, meta: bytes) -> bool:
    """Write the two files: the body aside and then put in place, and then what vouches for it.

    That one is written in its place at once, which saves a third of the time: until it is there, and as long as it is
    empty, it is a miss.

    Raises FileNotFoundError if there is no folder for them.

    The old ones are removed first. To rename over them would do as well, were it not for ext4, which then writes the
    new file to the disk at once and takes four times as long. In between, and after a crash there, it is a miss.
    """
    part = _aside(stem, BODY)
    try:
        _create(part, body)
        if os.access(stem + META, os.F_OK):
            remove(stem + META, stem + BODY)
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
    """End the writing of a page that another process writes at the same time: whose body came last says what it is."""
    part = _aside(stem, META)
    try:
        if _is_there(stem, body):
            _create(part, meta)
            os.replace(part, stem + META)
            if not _is_there(stem, body):  # any more: there is a third one
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
    """Write the meta file anew, if it is the one from `before`.

    That one is taken away first: then nobody can replace the page between the look at it and the writing.
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
    except (FileExistsError, FileNotFoundError):  # somebody has written another page, or removed this one
        return False
    except BaseException:
        os.replace(taken, stem + META)
        raise
    finally:
        remove(taken)
    return True


def _create(path: str, data: bytes) -> None:
    """Write a new file that only its owner may read: a page may have been behind a login."""
    number = os.open(path, _NEW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(number, view) :]
    finally:
        os.close(number)


def remove(*paths: str) -> None:
    """Remove files, as far as they are there; also an empty folder in the place of one."""
    for path in paths:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError:
            with contextlib.suppress(OSError):
                os.rmdir(path)

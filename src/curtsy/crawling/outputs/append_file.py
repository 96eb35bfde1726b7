"""File that is only appended to, and can be truncated to its end at the last flush.

A pipe or a terminal cannot be truncated. Its unsent bytes stay pending, and are sent first next time.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import os
import select
import stat
import sys
from collections.abc import Callable
from io import FileIO
from typing import Any, TypeVar

import msgspec

from curtsy.core.errors import NotWritten, StoreError
from curtsy.system.log import library_logger
from curtsy.system.own_file import open_own

if sys.platform != "win32":
    import fcntl

STANDARD_OUTPUT = "-"
"""Path that means standard output."""

HEAD, TAIL = 512, 1024
"""Numbers of bytes at the start and at the end of a file by which it is recognized."""

_LARGE = 1 << 16
"""Size of the write buffer in bytes. Larger pieces are not copied."""

_PIPE_STEP = 4096
"""Bytes that a writable pipe accepts without blocking (PIPE_BUF)."""

_PIPE_WAIT = 0.1
"""Seconds to wait for a pipe to become writable. A longer wait would delay the rest of the crawl."""

_log = library_logger("outputs")
_State = TypeVar("_State")

Whole = Callable[[str], tuple[int, int]]
"""Function that returns the intact part of a cut file: bytes and entries."""


class End(msgspec.Struct, frozen=True, gc=False):
    """End of a file: its size, its number of entries, and the bytes that identify it."""

    size: int
    entries: int
    lost: int
    """Entries that were written but are missing, because the file was cut or removed between two runs."""

    head: str
    """First bytes, base64. Of a cut file, as many are compared as are left."""

    tail: str
    """Digest of the last bytes."""


class AppendFile:
    """File that is written only at its end.

    After an error it ends where it was last flushed, and accepts nothing more until it is opened again. So entries
    since that flush are absent from it. A stream (standard output, a pipe) keeps its unsent bytes.
    """

    def __init__(self, path: str, *, is_ours: bool = False) -> None:
        """Create it, closed. `is_ours`: the name is not the user's choice, so a link at that path is not followed."""
        self.path = path
        self._is_ours = is_ours
        self._file: FileIO | None = None
        self._buffer = bytearray()
        self._head = self._tail = b""
        self._written = self._entries = self._lost = 0
        self._flushed = self._flushed_entries = 0
        self._is_regular = path != STANDARD_OUTPUT
        self._complaint = f"{path} is not open. Call open() first."

    @property
    def size(self) -> int:
        """Return the position of the next byte."""
        return self._written + len(self._buffer)

    @property
    def entries(self) -> int:
        """Return the number of entries in the file."""
        return self._entries

    @property
    def flushed_entries(self) -> int:
        """Return the number of entries at the last flush."""
        return self._flushed_entries

    @property
    def lost(self) -> int:
        """Return the number of entries of earlier runs that are missing in the file."""
        return self._lost

    @property
    def is_stream(self) -> bool:
        """Return whether it cannot be truncated: standard output, a pipe, a device. Known once it is open."""
        return not self._is_regular

    def open(self, flushed: End | None, whole: Whole) -> None:
        """Create a file, or truncate it to the last result of `flush`.

        A shorter file is truncated to its intact part (`whole`), and a warning is logged. A file with other content is
        left unchanged, and NotWritten is raised. With None, that is any file that is not empty.
        """
        self.close()
        try:
            self._open(flushed, whole)
        except OSError as error:
            raise not_written(self.path, error) from error

    def _open(self, flushed: End | None, whole: Whole) -> None:
        if self.path == STANDARD_OUTPUT:
            if sys.__stdout__ is None:  # closed at program start: descriptor 1 may belong to another file by now
                raise NotWritten(
                    "standard output is closed, so no page can be written to it. Name a file instead.", is_lasting=True
                )
            if sys.stdout is not None:
                sys.stdout.flush()  # earlier output of the program goes first
            self._begin(FileIO(1, "w", closefd=False))
            return
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        self._is_regular = not os.path.exists(self.path) or os.path.isfile(self.path)
        flags = os.O_RDWR if self._is_regular else os.O_WRONLY
        own = open_own(self.path, flags | os.O_APPEND | os.O_CREAT) if self._is_ours else None
        file = FileIO(self.path if own is None else own, "a+" if self._is_regular else "a")
        try:
            self._is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            if not self._is_regular:
                self._begin(file)
                return
            self._lock(file)
            found = os.fstat(file.fileno()).st_size
            if flushed is None:
                if found:
                    raise foreign(self.path)
                self._begin(file)
            else:
                self._go_on(file, flushed, found, whole)
        except BaseException:
            self._file = None
            file.close()
            raise

    def _go_on(self, file: FileIO, flushed: End, found: int, whole: Whole) -> None:
        """Resume a file of an earlier run, if it is still the same."""
        head = base64.b64decode(flushed.head)
        if not head.startswith(_read_at(file, 0, len(head))):
            raise replaced(self.path)
        size, entries, lost = flushed.size, flushed.entries, flushed.lost
        if found >= size:
            if _digest(_read_at(file, max(0, size - TAIL), min(size, TAIL))) != flushed.tail:
                raise replaced(self.path)
        else:
            size, entries = whole(self.path)
            lost += max(0, flushed.entries - entries)
            _log.warning(
                f"{self.path} has {found:,} bytes, where this crawl had written {flushed.size:,}: it was cut or "
                f"removed since. The crawl resumes after {size:,} bytes, and {flushed.entries - entries:,} entries are "
                "not in it any more. Start the crawl over (--restart, restart=True) to get all pages."
            )
        file.truncate(size)
        self._begin(file, size, entries, lost)
        self._head = _read_at(file, 0, min(size, HEAD))
        self._tail = _read_at(file, max(0, size - TAIL), min(size, TAIL))

    def _lock(self, file: FileIO) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotWritten(
                    f"{self.path} is being written by another process. Give each its own file, or end that one.",
                    self.path,
                    is_lasting=True,
                ) from None
            except OSError:  # file system without locks
                pass

    def _let_go(self, file: FileIO) -> None:
        if self._is_regular and sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing does not unlock while a forked child has the file open
            except OSError:
                pass
        file.close()

    def _begin(self, file: FileIO, size: int = 0, entries: int = 0, lost: int = 0) -> None:
        self._file = file
        self._written = self._flushed = size
        self._entries = self._flushed_entries = entries
        self._lost = lost
        self._head = self._tail = b""

    def write(self, *pieces: bytes, entries: int = 1) -> None:
        """Append pieces that contain `entries` entries."""
        if self._file is None:
            raise NotWritten(self._complaint, self.path)
        self._entries += entries
        for piece in pieces:
            if len(piece) < _LARGE or self.is_stream:
                self._buffer += piece
            else:
                self._drain()
                self._put(piece)
        if len(self._buffer) >= _LARGE and not self.is_stream:
            self._drain()

    def sync(self) -> None:
        """Pass all data to the system without counting it as flushed."""
        if self._file is None:
            raise NotWritten(self._complaint, self.path)
        self._drain()

    def flush(self) -> End:
        """Pass all data to the system; return the end of the file."""
        self.sync()
        self._flushed, self._flushed_entries = self._written, self._entries
        head = base64.b64encode(self._head).decode()
        return End(self._flushed, self._entries, self._lost, head, _digest(self._tail))

    def check(self) -> None:
        """Raise NotWritten if the reader of a stream has closed it."""
        if self._file is not None and self.is_stream and _is_closed(self._file):
            raise self._closed()

    def missing(self) -> int:
        """Return the number of written entries that are absent from the file, judged by its size."""
        if not self._is_regular:
            return self._lost
        try:
            is_there = os.path.getsize(self.path) >= self._flushed
        except OSError:
            is_there = False
        return self._lost if is_there else self._lost + self._flushed_entries

    def _drain(self) -> None:
        if not self._buffer:
            return
        if self.is_stream:
            self._send()
        else:
            gathered, self._buffer = self._buffer, bytearray()
            self._put(gathered)

    def _send(self) -> None:
        """Send the pending bytes of a stream; keep those that it does not accept."""
        assert self._file is not None
        try:
            while self._buffer:
                _wait_for(self._file)
                # None: the pipe is full, and another process made it non-blocking.
                count = self._file.write(memoryview(self._buffer)[:_PIPE_STEP].tobytes())
                if count is None:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                del self._buffer[:count]
                self._written += count
        except BrokenPipeError as error:
            raise self._closed() from error
        except OSError as error:
            raise not_written(self.path, error) from error

    def _closed(self) -> NotWritten:
        shown = "standard output" if self.path == STANDARD_OUTPUT else self.path
        return NotWritten(
            f"{shown} could not be written: the program that reads it has closed it. Pages that it did not take are "
            "not marked as done.",
            None if self.path == STANDARD_OUTPUT else self.path,
            is_lasting=True,
        )

    def _put(self, data: bytes | bytearray) -> None:
        assert self._file is not None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            failure = not_written(self.path, error)
            self.take_back(failure)
            raise failure from error
        except BaseException:
            self.take_back()
            raise
        self._written += len(data)
        if len(self._head) < HEAD:
            self._head += bytes(data[: HEAD - len(self._head)])
        self._tail = bytes(data[-TAIL:]) if len(data) >= TAIL else (self._tail + data)[-TAIL:]

    def take_back(self, why: NotWritten | None = None) -> None:
        """Truncate the file to the last flush, and accept nothing more until it is opened again."""
        if why is not None:
            self._complaint = str(why)
        self._buffer = bytearray()
        file, self._file = self._file, None
        if file is not None:
            try:
                if self._is_regular:
                    file.truncate(self._flushed)
                self._let_go(file)
            except OSError:  # the next open() truncates it
                file.close()

    def close(self) -> None:
        """Write the buffer and close the file. Idempotent."""
        if self._file is not None:
            try:
                self._drain()
            except NotWritten:
                if not self.is_stream:
                    raise  # a stream reported it at the last flush
            finally:
                file, self._file = self._file, None
                self._buffer = bytearray()
            if file is None:
                return
            try:
                self._let_go(file)
            except OSError as error:  # some file systems report write errors only on close
                raise not_written(self.path, error) from error


def _read_at(file: FileIO, place: int, count: int) -> bytes:
    file.seek(place)
    return file.read(count) or b""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _wait_for(file: FileIO) -> None:
    """Wait until a stream accepts data. Raises BlockingIOError after _PIPE_WAIT seconds."""
    if hasattr(select, "poll") and not _events(file, select.POLLOUT, _PIPE_WAIT):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def _is_closed(file: FileIO) -> bool:
    """Return whether the reader of a pipe has closed it."""
    return hasattr(select, "poll") and bool(_events(file, 0, 0.0) & (select.POLLERR | select.POLLHUP))


def _events(file: FileIO, wanted: int, seconds: float) -> int:
    asked = select.poll()
    asked.register(file, wanted)
    found = asked.poll(1000 * seconds)
    return found[0][1] if found else 0


def not_written(path: str, error: OSError) -> NotWritten:
    """Return a system error as NotWritten: what happened, why, and what to do."""
    why = error.strerror or str(error)
    if error.errno == errno.EAGAIN:
        shown = "standard output" if path == STANDARD_OUTPUT else path
        return NotWritten(f"{shown} could not be written: the program that reads it does not take more. Look at it.")
    if path == STANDARD_OUTPUT:
        return NotWritten(f"standard output could not be written: {why}. Look at where it goes.")
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            advice = "Make room, then start the crawl again: it resumes."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            advice = "Let it be written, or choose another place."
        case errno.EISDIR | errno.ENOTDIR | errno.EEXIST | errno.ENAMETOOLONG:
            advice = "Choose another name."
        case _:
            advice = "Check the disk, then start the crawl again: it resumes."
    return NotWritten(f"{path} could not be written: {why}. {advice}", path)


def foreign(path: str) -> NotWritten:
    """Return the error for an existing file or folder that this crawl did not write."""
    return NotWritten(
        f"{path} is there already and was not written by this crawl, so it is left as it is. Choose another name, or "
        "move it away.",
        path,
        is_lasting=True,
    )


def replaced(path: str) -> NotWritten:
    """Return the error for a file of this crawl that was replaced or changed."""
    return NotWritten(
        f"{path} is not the file that this crawl has written: it was replaced or changed since, and is left as it is. "
        "Put the crawl's own file back; or name another output, in which the earlier pages are missing; or start the "
        "crawl over with another output (--restart, restart=True).",
        path,
        is_lasting=True,
    )


def whole_lines(path: str) -> tuple[int, int]:
    """Return the size of a file without an incomplete last line, and its number of lines."""
    size = lines = place = 0
    with open(path, "rb") as file:
        while piece := file.read(_LARGE):
            found = piece.rfind(b"\n")
            if found >= 0:
                size = place + found + 1
            lines += piece.count(b"\n")
            place += len(piece)
    return size, lines


def read_state(output: str, state: Any | None, kind: type[_State]) -> _State | None:
    """Return a result of `flush`, validated, because files are truncated by it; None if there is no result.

    Raises StoreError if it is invalid.
    """
    if state is None:
        return None
    try:
        return msgspec.convert(state, kind)
    except msgspec.ValidationError as error:
        raise StoreError(
            f"where {output} had ended cannot be read: {error}. It was noted by another version of curtsy, or is "
            "damaged. Start the crawl afresh, to another place."
        ) from error

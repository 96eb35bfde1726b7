"""AppendFile: a file that is only appended to, and can be truncated to its end at the last flush.

A pipe or a terminal cannot be truncated. Its unsent bytes stay pending, and are sent first next time.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import select
import stat
import sys
from collections.abc import Callable, Sequence
from io import FileIO
from typing import Any, TypeVar

import msgspec

from curtsy.core.errors import NotWritten, StoreError
from curtsy.system.log import library_logger
from curtsy.system.own_file import open_own, sync_folder

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

    A stream (standard output, a pipe) keeps the bytes that it could not send.
    """

    def __init__(self, path: str, *, is_ours: bool = False) -> None:
        """Create it, closed. `is_ours`: the name is not the user's choice, so a link at that path is not followed."""
        self.path = path
        self.entries = 0
        """Number of entries in the file."""
        self.flushed = End(0, 0, 0, "", "")
        """End of the file at the last flush."""
        self.is_stream = path == STANDARD_OUTPUT
        """True if it cannot be truncated: standard output, a pipe, a device. Known once it is open."""
        self._is_ours = is_ours
        self._file: FileIO | None = None
        self._buffer = bytearray()
        self._head = self._tail = b""
        self._written = 0
        self._durable = 0
        """Bytes that survive a power cut."""
        self._complaint = f"{path} is not open. Call open() first."

    @property
    def size(self) -> int:
        """Return the position of the next byte."""
        return self._written + len(self._buffer)

    def open(self, flushed: End | None, whole: Whole, *, is_exact: bool = False) -> None:
        """Create a file, or truncate it to the last result of `flush`.

        A shorter file is truncated to its intact part (`whole`), and a warning is logged. A file with other content is
        left unchanged, and NotWritten is raised. With None, that is any file that is not empty. With `is_exact`, it is
        also a longer one, because nothing was written after that `flush`.
        """
        self.close()
        try:
            file = self._standard_output() if self.path == STANDARD_OUTPUT else self._opened()
            try:
                self._begin(file, flushed, whole, is_exact)
            except BaseException:
                file.close()
                raise
        except OSError as error:
            raise not_written(self.path, error) from error
        self._file = file

    def _standard_output(self) -> FileIO:
        if sys.__stdout__ is None:  # closed at program start: descriptor 1 may belong to another file by now
            raise _lasting("standard output is closed, so no page can be written to it. Name a file instead.")
        if sys.stdout is not None:
            sys.stdout.flush()  # earlier output of the program goes first
        return FileIO(1, "w", closefd=False)

    def _opened(self) -> FileIO:
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        is_regular = not os.path.exists(self.path) or os.path.isfile(self.path)
        flags = os.O_RDWR if is_regular else os.O_WRONLY
        own = open_own(self.path, flags | os.O_APPEND | os.O_CREAT) if self._is_ours else self.path
        file = FileIO(own, "a+" if is_regular else "a")
        self.is_stream = not stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return file

    def _begin(self, file: FileIO, flushed: End | None, whole: Whole, is_exact: bool) -> None:
        """Set the position to write at, if the file is empty or still the one of an earlier run."""
        end = End(0, 0, 0, "", "")
        self._head = self._tail = b""
        self._durable = 0
        if not self.is_stream:
            self._lock(file)
            end = self._end_in(file, flushed, whole, is_exact)
            if flushed is not None:
                file.truncate(end.size)
                self._head = _read_at(file, 0, min(end.size, HEAD))
                self._tail = _read_at(file, max(0, end.size - TAIL), min(end.size, TAIL))
        self.flushed, self._written, self.entries = end, end.size, end.entries

    def verify(self, flushed: End | None, whole: Whole, *, is_exact: bool = False) -> None:
        """Raise NotWritten if `open` would with the same arguments. Nothing is written or created."""
        if self.path == STANDARD_OUTPUT:
            return
        try:
            if os.path.isfile(self.path):
                with FileIO(self.path, "r+") as file:
                    self._lock(file)
                    self._end_in(file, flushed, whole, is_exact)
            else:
                check_place(self.path)
        except OSError as error:
            raise not_written(self.path, error) from error

    def _end_in(self, file: FileIO, flushed: End | None, whole: Whole, is_exact: bool) -> End:
        """Return the end at which an open file is to be continued. Raises NotWritten if it is not that of the crawl."""
        found = os.fstat(file.fileno()).st_size
        if flushed is None:
            if found:
                raise ForeignFile(self.path)
            return End(0, 0, 0, "", "")
        end = self._resumed(file, flushed, found, whole)
        if is_exact and found > flushed.size:
            raise appended_to(self.path, found - flushed.size)
        return end

    def _resumed(self, file: FileIO, flushed: End, found: int, whole: Whole) -> End:
        """Return the end at which a file of `found` bytes can be resumed."""
        head = base64.b64decode(flushed.head)
        if not head.startswith(_read_at(file, 0, len(head))):
            raise replaced(self.path)
        if found >= flushed.size:
            tail = _read_at(file, max(0, flushed.size - TAIL), min(flushed.size, TAIL))
            if _digest(tail) != flushed.tail:
                raise replaced(self.path)
            return flushed
        size, entries = whole(self.path)
        _log.warning(
            f"{self.path} has {found:,} bytes, where this crawl had written {flushed.size:,}: it was cut or removed "
            f"since. The crawl resumes after {size:,} bytes, and {flushed.entries - entries:,} entries are not in it "
            "any more. Start the crawl over (--restart, restart=True) to get all pages."
        )
        return End(size, entries, flushed.lost + max(0, flushed.entries - entries), "", "")

    def _lock(self, file: FileIO) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _lasting(
                    f"{self.path} is being written by another process. Give each its own file, or end that one.",
                    self.path,
                ) from None
            except OSError:  # file system without locks
                pass

    def _let_go(self, file: FileIO) -> None:
        if not self.is_stream and sys.platform != "win32":
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # closing does not unlock while a forked child has the file open
        file.close()

    def write(self, *pieces: bytes, entries: int = 1) -> None:
        """Append pieces that contain `entries` entries."""
        self._check_open()
        self.entries += entries
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
        self._check_open()
        self._drain()

    def flush(self, *, durable: bool = False) -> End:
        """Pass all data to the system; return the end of the file. With `durable`, it also survives a power cut."""
        self.sync()
        if durable and not self.is_stream and self._file is not None and self._written != self._durable:
            try:
                os.fsync(self._file.fileno())
                if not self._durable:
                    sync_folder(os.path.dirname(self.path) or ".")
            except OSError as error:
                raise not_written(self.path, error) from error
            self._durable = self._written
        head = base64.b64encode(self._head).decode()
        self.flushed = End(self._written, self.entries, self.flushed.lost, head, _digest(self._tail))
        return self.flushed

    def check(self) -> None:
        """Raise NotWritten if the reader of a stream has closed it."""
        if self._file is not None and self.is_stream and _is_closed(self._file):
            raise self._closed()

    def missing(self) -> int:
        """Return the number of written entries that are absent from the file, judged by its size."""
        try:
            is_there = self.is_stream or os.path.getsize(self.path) >= self.flushed.size
        except OSError:
            is_there = False
        return self.flushed.lost if is_there else self.flushed.lost + self.flushed.entries

    def _check_open(self) -> None:
        if self._file is None:
            raise NotWritten(self._complaint, self.path)

    def _drain(self) -> None:
        if self.is_stream:
            self._send()
        elif self._buffer:
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
        return _lasting(
            f"{_shown(self.path)} could not be written: the program that reads it has closed it. Pages that it did not "
            "take are not marked as done.",
            None if self.path == STANDARD_OUTPUT else self.path,
        )

    def _put(self, data: bytes | bytearray) -> None:
        assert self._file is not None
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) or 0 :]
        except OSError as error:
            raise not_written(self.path, error) from error
        self._written += len(data)
        if len(self._head) < HEAD:
            self._head += bytes(data[: HEAD - len(self._head)])
        self._tail = bytes(data[-TAIL:]) if len(data) >= TAIL else (self._tail + data)[-TAIL:]

    def discard(self, why: str = "") -> None:
        """Close the file without writing the buffer. Later calls raise NotWritten with `why`, until it is opened."""
        self._complaint = why or self._complaint
        self._buffer = bytearray()
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):
                self._let_go(file)

    def close(self) -> None:
        """Write the buffer and close the file. Idempotent."""
        if self._file is None:
            return
        try:
            self._drain()
        except NotWritten:
            if not self.is_stream:
                raise  # a stream reported it at the last flush
        file, self._file, self._buffer = self._file, None, bytearray()
        try:
            self._let_go(file)
        except OSError as error:  # some file systems report write errors only on close
            raise not_written(self.path, error) from error


def check_place(path: str) -> None:
    """Raise OSError if a file cannot be created at a path, with its folders, or is a folder."""
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if os.path.exists(path):  # a device or a pipe
        return
    parent = folder = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(folder):
        folder = os.path.dirname(folder)
    if not os.path.isdir(folder):  # the errors of makedirs()
        number = errno.EEXIST if folder == parent else errno.ENOTDIR
        raise OSError(number, os.strerror(number))
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


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


_ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "Make room, then start the crawl again: it resumes."),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "Let it be written, or choose another place."),
    **dict.fromkeys((errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG), "Choose another name."),
}
"""Advice by error number."""


def not_written(path: str, error: OSError) -> NotWritten:
    """Return a system error as NotWritten: what happened, why, and what to do."""
    why, is_full = error.strerror or str(error), error.errno == errno.EAGAIN
    if is_full:
        why, advice = "the program that reads it does not take more", "Look at it."
    elif path == STANDARD_OUTPUT:
        advice = "Look at where it goes."
    else:
        advice = _ADVICE.get(error.errno or 0, "Check the disk, then start the crawl again: it resumes.")
    place = None if is_full or path == STANDARD_OUTPUT else path
    return NotWritten(f"{_shown(path)} could not be written: {why}. {advice}", place)


def _shown(path: str) -> str:
    return "standard output" if path == STANDARD_OUTPUT else path


def _lasting(message: str, path: str | None = None) -> NotWritten:
    return NotWritten(message, path, is_lasting=True)


class ForeignFile(NotWritten):
    """Existing file or folder that this crawl did not write."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is there already and was not written by this crawl, so it is left as it is. A crawl continues "
            'only the files of its own job (job="NAME", --job NAME). Choose another name, or move it away.',
            path,
            is_lasting=True,
        )
        self.output = ""
        """Name of the output that is written there."""

    def __reduce__(self) -> tuple[type[ForeignFile], tuple[str | None], dict[str, Any]]:
        return type(self), (self.path,), self.__dict__  # the default would pass the message as the path


def file_of_other_job(path: str, job: str, differences: Sequence[str]) -> str:
    """Describe an output that another job has written. The command line of that job belongs below it."""
    differ = " and ".join(differences) or "an option that defines what is crawled"
    return (
        f"{path} was written by another crawl, the job {job}, and is left as it is. This command differs from that one "
        f"in {differ}, so it is a crawl of its own. Name another file for it, or move that one away. The command of "
        "that crawl:"
    )


def other_fields_in(path: str) -> NotWritten:
    """Return the error for an output of this crawl that was written with another extract."""
    return _lasting(
        f"{path} was written with another extract, so its pages would have different fields. It is left as it is. Name "
        "another output, or move it away.",
        path,
    )


def replaced(path: str) -> NotWritten:
    """Return the error for a file of this crawl that was replaced or changed."""
    return _lasting(
        f"{path} is not the file that this crawl has written: it was replaced or changed since, and is left as it is. "
        "Put the crawl's own file back; or name another output, in which the earlier pages are missing; or start the "
        "crawl over with another output (--restart, restart=True).",
        path,
    )


def appended_to(path: str, size: int) -> NotWritten:
    """Return the error for a file of this crawl to which another program has added `size` bytes."""
    return _lasting(
        f"{path} has {size:,} bytes at its end that this crawl has not written, and would be cut off. It is left as it "
        "is. Move these bytes to another file; or name another output, in which the earlier pages are missing.",
        path,
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

"""Trail: a file that only grows, and can always be taken back to where it ended when it was last flushed."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable
from io import FileIO
from typing import Any, TypeVar

import msgspec

from curtsy.core.errors import NotWritten, StoreError
from curtsy.log import library_logger
from curtsy.ownfile import open_own

if sys.platform != "win32":
    import fcntl

STANDARD_OUTPUT = "-"
"""The path that means standard output."""

_LARGE = 1 << 16
"""Bytes that are gathered before they are written; what is larger by itself is not copied."""

_log = library_logger("outputs")
_State = TypeVar("_State")


class Trail:
    """A file at the end of which is written, and nowhere else.

    After an error it ends where it was last flushed, and takes nothing more until it is opened again: what was written
    since is not in it, and must not be thought to be. Standard output and pipes cannot be taken back.
    """

    def __init__(self, path: str, *, is_ours: bool = False) -> None:
        """`is_ours`: the name is not the user's own, so a link under it is not the user's wish, and is not followed."""
        self.path = path
        self._is_ours = is_ours
        self._file: FileIO | None = None
        self._buffer = bytearray()
        self._written = 0
        self._flushed = 0
        self._is_regular = False
        self._complaint = f"{path} is not open. Call open() first."

    @property
    def size(self) -> int:
        """Where the next byte goes."""
        return self._written + len(self._buffer)

    def open(self, flushed: int | None, whole: Callable[[str], int]) -> None:
        """Begin a file, or cut one to what `flush` last answered.

        A file that is shorter than that is cut to what of it is `whole`, which is told by that function, and a warning
        says so. With None, a file that is there and not empty is an error, and not touched.
        """
        self.close()
        try:
            self._open(flushed, whole)
        except OSError as error:
            raise not_written(self.path, error) from error

    def _open(self, flushed: int | None, whole: Callable[[str], int]) -> None:
        if self.path == STANDARD_OUTPUT:
            if sys.stdout is not None:
                sys.stdout.flush()  # what others wrote goes first
            self._begin(FileIO(1, "w", closefd=False), 0)
            return
        os.makedirs(os.path.dirname(self.path) or ".", exist_ok=True)
        own = open_own(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) if self._is_ours else None
        file = FileIO(self.path if own is None else own, "a")
        try:
            self._is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            if self._is_regular:
                self._lock(file)
            found = os.fstat(file.fileno()).st_size if self._is_regular else 0
            if flushed is None or not self._is_regular:
                if found:
                    raise foreign(self.path)
                size = 0
            else:
                size = flushed
                if found < flushed:
                    size = whole(self.path)
                    _log.warning(
                        f"{self.path} has {found:,} bytes, where this crawl had written {flushed:,}. It is "
                        f"gone on with after {size:,} bytes; the pages that followed are not in it any more. Start the "
                        "crawl afresh to have them all."
                    )
                file.truncate(size)
        except BaseException:
            file.close()
            raise
        self._begin(file, size)

    def _lock(self, file: FileIO) -> None:
        if sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise NotWritten(
                    f"{self.path} is being written by another process. Give each its own file, or end that one.",
                    self.path,
                ) from None
            except OSError:  # a file system without locks
                pass

    def _let_go(self, file: FileIO) -> None:
        if self._is_regular and sys.platform != "win32":
            try:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing alone would not do while a forked child has it open, too
            except OSError:
                pass
        file.close()

    def _begin(self, file: FileIO, size: int) -> None:
        self._file = file
        self._written = self._flushed = size

    def write(self, *pieces: bytes) -> None:
        """Add to the end."""
        if self._file is None:
            raise NotWritten(self._complaint, self.path)
        for piece in pieces:
            if len(piece) < _LARGE:
                self._buffer += piece
            else:
                self._drain()
                self._put(piece)
        if len(self._buffer) >= _LARGE:
            self._drain()

    def sync(self) -> None:
        """Hand everything to the system, and count it as not flushed yet all the same."""
        if self._file is None:
            raise NotWritten(self._complaint, self.path)
        self._drain()

    def flush(self) -> int:
        """Hand everything to the system; answers where the file ends."""
        self.sync()
        self._flushed = self._written
        return self._flushed

    def _drain(self) -> None:
        if self._buffer:
            gathered, self._buffer = self._buffer, bytearray()
            self._put(gathered)

    def _put(self, data: bytes | bytearray) -> None:
        assert self._file is not None
        rest = memoryview(data)
        try:
            while rest:
                # None where a pipe is full that somebody else has made not to wait.
                count = self._file.write(rest)
                if count is None:
                    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
                rest = rest[count:]
        except BrokenPipeError:  # whoever read has had enough, which is no fault of ours
            self.take_back()
            raise
        except OSError as error:
            failure = not_written(self.path, error)
            self.take_back(failure)
            raise failure from error
        except BaseException:
            self.take_back()
            raise
        self._written += len(data)

    def take_back(self, why: NotWritten | None = None) -> None:
        """Cut the file to where it was last flushed, and take nothing more until it is opened again."""
        if why is not None:
            self._complaint = str(why)
        self._buffer = bytearray()
        file, self._file = self._file, None
        if file is not None:
            try:
                if self._is_regular:
                    file.truncate(self._flushed)
                self._let_go(file)
            except OSError:  # the next open() cuts it
                file.close()

    def close(self) -> None:
        """Write what is left, and let go of the file. Idempotent."""
        if self._file is not None:
            self._drain()
            file, self._file = self._file, None
            try:
                self._let_go(file)
            except OSError as error:  # some file systems only find out now
                raise not_written(self.path, error) from error


def not_written(path: str, error: OSError) -> NotWritten:
    """What the system says, in our words: what, why, what to do."""
    why = error.strerror or str(error)
    if path == STANDARD_OUTPUT:
        return NotWritten(f"standard output could not be written: {why}. Look at what reads it.")
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT | errno.EFBIG:
            advice = "Make room, then start the crawl again: it goes on where it was."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            advice = "Let it be written, or choose another place."
        case errno.EISDIR | errno.ENOTDIR | errno.EEXIST | errno.ENAMETOOLONG:
            advice = "Choose another name."
        case _:
            advice = "Check the disk, then start the crawl again: it goes on where it was."
    return NotWritten(f"{path} could not be written: {why}. {advice}", path)


def foreign(path: str) -> NotWritten:
    """For what lies at an output's place, and is not that of this crawl."""
    return NotWritten(
        f"{path} is there already and was not written by this crawl, so it is left as it is. Choose another name, or "
        "move it away.",
        path,
    )


def whole_lines(path: str) -> int:
    """The length of a file without its last line, if that one does not end."""
    with open(path, "rb") as file:
        place = file.seek(0, os.SEEK_END)
        while place:
            start = max(0, place - _LARGE)
            file.seek(start)
            found = file.read(place - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            place = start
    return 0


def read_state(output: str, state: Any | None, kind: type[_State]) -> _State | None:
    """What `flush` once answered; None if there was nothing. It is checked, for files are cut by it."""
    if state is None:
        return None
    try:
        return msgspec.convert(state, kind)
    except msgspec.ValidationError as error:
        raise StoreError(
            f"where {output} had ended cannot be read: {error}. It was noted by another version of curtsy, or is "
            "damaged. Start the crawl afresh, to another place."
        ) from error

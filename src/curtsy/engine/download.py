"""Downloads: streamed to disk, resumed where the server can, there only when whole (Q8, U15)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from curtsy.core import messages
from curtsy.core.cache import usable_etag
from curtsy.core.dates import http_date
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.message import Headers, Request
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult
from curtsy.core.secrets import mask_url
from curtsy.system.own_file import create_own, open_own
from curtsy.system.threads import in_thread

if sys.platform != "win32":
    import fcntl

GIB = 1024**3

TOO_LARGE = "Raise max_size to have it."
"""What to do about a file that is too large."""

UNWANTED = 65_536
"""Bytes of an error page, or another body that is not the file's, that are read to keep the connection."""

MOST_NOTE = 65_536
"""Bytes of a note that are read."""

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII | re.IGNORECASE)


class TooLong(Exception):
    """More came than a download may have."""


class Unwanted(Exception):
    """A body that is not the file's, and does not end."""

    def __init__(self, status: int, headers: Headers) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """What came of a download. It is true when the file is there, whole."""

    ok: bool
    url: str
    path: Path
    size: int
    """Bytes of the file; 0 if it is not there."""

    sha256: str | None
    """Of the whole file; None if it is not there."""

    resumed_at: int
    """Bytes that an earlier try had left, and that were not asked for again."""

    status: int | None
    reason: Reason | None
    message: str
    retry_after: float | None
    record: FetchRecord

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        said = (mask_url(self.url), self.status, self.reason, f"{self.size:,} bytes", self.path)
        return f"<{type(self).__name__} {' '.join(str(each) for each in said if each is not None)}>"


class _Note(msgspec.Struct, frozen=True):
    """What is remembered beside a part, so that a later try can ask for the rest of the same file."""

    url_sha256: str
    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None
    """Bytes of the whole file, as they were announced; None if they were not."""

    coding: str | None = None
    """The Content-Encoding of what has come, which is kept as it came; None if there was none."""


class Part:
    """The file as far as it has come: `<name>.part` beside where it will be, with a note in `<name>.part.json`.

    It is a sink for the sender: `prepare` asks for the rest, `begin` looks at what the answer is, `write` appends.
    """

    def __init__(self, url: str, path: Path, max_size: int | None, decode: bool = False) -> None:
        if os.path.isdir(path):
            raise PolicyError(f"path = {str(path)!r} must be a file, not a directory. Add a file name.")
        if os.path.exists(path) and not os.path.isfile(path):  # it would be replaced by a file
            raise PolicyError(
                f"path = {str(path)!r} must be a file, not a device, pipe or socket. Choose another name."
            )
        self.path = path
        self.max_size = max_size
        self.decodes = decode
        self.resumed_at = 0
        self.came = 0
        """Bytes that the present answer has brought."""
        self._part = path.with_name(path.name + ".part")
        self._note = path.with_name(path.name + ".part.json")
        self._url_sha256 = hashlib.sha256(str(url).encode("utf-8", "surrogatepass")).hexdigest()
        self._file: IO[bytes] | None = None
        self._answer = 0, Headers()
        self._asked_by: _Note | None = None
        """What names the version of the file whose rest was asked for; None if the whole was."""
        self._is_begun = False
        self._total: int | None = None

    @property
    def size(self) -> int:
        """Bytes that have come so far."""
        try:
            return self._part.lstat().st_size
        except OSError:
            return 0

    @property
    def is_of_no_use(self) -> bool:
        """Whether the rest was asked for, and what came is not that: the part is of another file."""
        return self._asked_by is not None and not self._is_begun and self._answer[0] in (206, 416)

    def prepare(self, request: Request) -> Request:
        """The request for what is still missing; for everything, unless the server named this version of the file."""
        self.close()
        self._is_begun, self._answer, self._total = False, (0, Headers()), None
        unfit = ("range", "if-range", "accept-encoding")
        fields = [each for each in request.headers.fields if each[0].lower() not in unfit]
        fields.append(("Accept-Encoding", "identity"))  # a range of a coded body could not be put together
        note, size = self._read_note(), self.size
        if note is not None and note.coding is not None and self.decodes:
            note = None  # what has come is coded, and could not be decoded any more
        validator = None if note is None else (note.etag or note.last_modified)
        self._asked_by = note if size and validator else None
        if size and validator:
            fields += [("Range", f"bytes={size}-"), ("If-Range", validator)]
        return Request(request.url, request.method, Headers(fields), request.body)

    def begin(self, status: int, headers: Headers) -> bool:
        """Make ready for a body; what is not the file's (an error page, a redirect) is read and thrown away."""
        self.close()
        self.came, self._answer = 0, (status, headers)
        coding = _coding_of(headers)
        if status == 206:
            note, size = self._asked_by, self.size
            # The head of a part may leave out what the whole had (RFC 9110, 15.3.7), but not contradict it.
            if note is None or coding not in (None, note.coding) or _is_other(note, headers):
                return True
            total = _total_of(headers, size, note.size)
            if total is None:
                return True
            self._check_size(total)
            self._total, self.resumed_at = total, size
            self._file = _opened(self._part)
        elif status in (200, 203):
            self.resumed_at = 0
            self._part.parent.mkdir(parents=True, exist_ok=True)
            self._file = _opened(self._part)
            self._file.truncate(0)
            # No range of what the server has would fit a body that is decoded.
            is_decoded = self.decodes and coding is not None
            note = _Note(self._url_sha256) if is_decoded else _noted(self._url_sha256, coding, headers)
            self._write_note(note)
        self._is_begun = self._file is not None
        return True

    async def write(self, piece: bytes) -> None:
        """Append what came, without holding up the event loop."""
        self.came += len(piece)
        if self._file is None:
            if self.came > UNWANTED:
                raise Unwanted(*self._answer)
            return
        self._check_size(self.resumed_at + self.came)
        await in_thread(_append, self._file, piece)

    def _check_size(self, size: int) -> None:
        if self.max_size is not None and size > self.max_size:
            raise TooLong(f"the file is larger than {self.max_size:,} bytes")

    def finish(self) -> tuple[int, str]:
        """Put the whole file in its place, in one step; answers its size and SHA-256."""
        digest, size = hashlib.sha256(), 0
        number = open_own(self._part, os.O_RDONLY) if self._file is None else self._file.fileno()
        try:
            while piece := _read_at(number, size):
                digest.update(piece)
                size += len(piece)
            os.fsync(number)
            if not os.path.samestat(os.fstat(number), self._part.lstat()):
                raise OSError(errno.EBUSY, f"{self._part.name} was replaced meanwhile")
        finally:
            if self._file is None:
                os.close(number)
        self._part.replace(self.path)
        self._note.unlink(missing_ok=True)
        return size, digest.hexdigest()

    def discard(self) -> None:
        """Forget what has come so far, unless it is another download's, which is writing it."""
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = _opened(self._part)
            if sys.platform == "win32":  # which removes no open file
                self.close()
            self._part.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Let go of the file. Each piece was flushed: what cannot be written now was told before."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _read_note(self) -> _Note | None:
        try:
            with open(open_own(self._note, os.O_RDONLY), "rb") as file:
                note = msgspec.json.decode(file.read(MOST_NOTE), type=_Note)
        except (OSError, msgspec.DecodeError):
            return None
        # What names no version of a file could not be sent either.
        is_sound = usable_etag(note.etag) == note.etag and (not note.last_modified or http_date(note.last_modified))
        return note if is_sound and note.url_sha256 == self._url_sha256 else None

    def _write_note(self, note: _Note) -> None:
        """Write the note in one step, in place of whatever has its name."""
        aside = self._note.with_name(f"{self._note.name}.{os.getpid()}")
        try:
            with open(create_own(aside), "wb") as file:
                file.write(msgspec.json.encode(note))
            aside.replace(self._note)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def result(self, result: FetchResult) -> DownloadResult:
        """What the caller gets; a whole file is put in its place."""
        message = result.message.replace(messages.TOO_LARGE, TOO_LARGE)
        size, sha256, ok, reason = 0, None, result.ok, result.reason
        if not ok or sys.platform == "win32":  # which moves no open file
            self.close()
        if ok:
            try:
                if not self._is_begun:
                    ok, reason = False, Reason.BAD_RESPONSE
                    message = f"{result.final_url} answered with status {result.status} and no file. Check the link."
                elif self._total is not None and self.size != self._total:
                    ok, reason = False, Reason.INCOMPLETE
                    message = f"{result.final_url} sent {self.size:,} of {self._total:,} bytes. Ask again for the rest."
                else:
                    size, sha256 = self.finish()
            except OSError as error:
                ok, reason = False, Reason.NOT_WRITTEN
                message = f"{self.path} could not be written: {error.strerror}. Make room, or choose another place."
        return DownloadResult(
            ok, result.final_url, self.path, size, sha256, self.resumed_at if ok else 0, result.status, reason, message,
            result.retry_after, result.record,
        )  # fmt: skip


def _opened(part: Path) -> IO[bytes]:
    """Open a part to go on with it, for one download at a time: another's would be put in place half written."""
    file = open(open_own(part, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab")  # noqa: SIM115
    is_ours = True
    if sys.platform != "win32":
        try:
            _check_owner(part, file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), part.lstat())  # else it was put in place meanwhile
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        except PermissionError:
            file.close()
            raise
        except OSError:
            pass  # a file system without such locks
    if not is_ours:
        file.close()
        raise OSError(errno.EBUSY, "another download is writing it")
    return file


def _check_owner(part: Path, number: int) -> None:
    """Raise PermissionError for a part that is also another file, or another user's where all users can write.

    What is written to it would change the other file, or could be changed by the other user.
    """
    found = os.fstat(number)
    if found.st_nlink > 1:
        raise PermissionError(errno.EPERM, f"{part.name} is a hard link to another file. Remove it")
    if sys.platform != "win32" and part.parent.stat().st_mode & stat.S_IWOTH and found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"{part.name} belongs to another user. Choose another directory")


def _read_at(number: int, place: int) -> bytes:
    """Some bytes of a file from a place on, wherever it is written."""
    os.lseek(number, place, os.SEEK_SET)
    return os.read(number, 1 << 20)


def _coding_of(headers: Headers) -> str | None:
    """The Content-Encoding of a body; None if there is none."""
    coding = (headers.get("content-encoding") or "").strip().lower()
    return None if coding in ("", "identity") else coding


def _append(file: IO[bytes], piece: bytes) -> None:
    file.write(piece)
    file.flush()


def _total_of(headers: Headers, start: int, announced: int | None) -> int | None:
    """Bytes of the whole file that a part from `start` on belongs to; None if it is of no such file.

    Where the server does not know them (`/*`), they are those that it announced before. Without these nobody can tell
    the end of the part from the end of the file (RFC 9110, 14.4).
    """
    found = _RANGE.fullmatch((headers.get("content-range") or "").strip())
    if found is None or int(found[1]) != start:
        return None
    total = announced if found[3] == "*" else int(found[3])
    if total is None or announced not in (None, total) or not start <= int(found[2]) < total:
        return None
    return total


def _is_other(note: _Note, headers: Headers) -> bool:
    """Whether a part is of another version than the note: many servers pass over If-Range (RFC 9110, 15.3.7.3)."""
    if note.etag is not None:
        # A part has the ETag that the whole has (RFC 9110, 15.3.7): one without it may be of any version.
        return usable_etag(headers.get("etag")) != note.etag
    return headers.get("last-modified") not in (None, note.last_modified)


def _noted(url_sha256: str, coding: str | None, headers: Headers) -> _Note:
    """What names this version of the file. A weak validator must not put parts together (RFC 9110, 13.1.5)."""
    length = headers.get("content-length") or ""
    size = int(length) if re.fullmatch(r"\d{1,18}", length, re.ASCII) else None
    etag = headers.get("etag")
    if etag is not None:
        strong = usable_etag(etag)
        return _Note(url_sha256, None if strong is None or strong.startswith("W/") else strong, None, size, coding)
    # Within a second of its change a file may have changed again (RFC 9110, 8.8.2.2).
    last_modified, sent = http_date(headers.get("last-modified")), http_date(headers.get("date"))
    is_strong = last_modified is not None and sent is not None and last_modified < sent
    return _Note(url_sha256, None, headers.get("last-modified") if is_strong else None, size, coding)

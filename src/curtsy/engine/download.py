"""Downloads: streamed to disk, resumed if the server can, visible only when complete (Q8, U15)."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TypeVar

import msgspec

from curtsy.core import messages
from curtsy.core.cache import usable_etag
from curtsy.core.effects import FetchRequest
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.fetch_state import FetchState
from curtsy.core.flow import closed, fetch, set_out
from curtsy.core.masking import mask_url
from curtsy.core.record import FetchRecord
from curtsy.core.request import Failure, Headers, Reply, Request, Response
from curtsy.core.result import FetchResult
from curtsy.core.time import http_date
from curtsy.core.url import Url
from curtsy.engine.context import HeldResources
from curtsy.engine.driver import Driver
from curtsy.http.sender import Limits, Sender
from curtsy.system.own_file import create_own, open_own
from curtsy.system.threads import begun_in_thread, in_thread

if sys.platform != "win32":
    import fcntl

T = TypeVar("T")

GIB = 1024**3

TOO_LARGE = "Raise max_size (--max-size) to save it."
"""Advice in the message for a file that is too large."""

UNWANTED = 65_536
"""Bytes of a body other than the file (such as an error page) that are read to keep the connection."""

MOST_NOTE = 65_536
"""Maximum bytes read from a note."""

_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII | re.IGNORECASE)


class TooLong(Exception):
    """Body that exceeds the maximum size of a download."""


class Unwanted(Exception):
    """Body other than the file that exceeds `UNWANTED` bytes."""

    def __init__(self, status: int, headers: Headers) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """Result of a download; true if the complete file is in place."""

    ok: bool
    url: str
    path: Path
    size: int
    """Bytes of the file; 0 without a file."""

    sha256: str | None
    """Hash of the complete file; None without a file."""

    resumed_at: int
    """Bytes reused from an earlier attempt."""

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
    """Metadata stored beside a partial file, so that a later attempt can request the rest."""

    url_sha256: str
    etag: str | None = None
    last_modified: str | None = None
    size: int | None = None
    """Announced bytes of the complete file; None if unknown."""

    coding: str | None = None
    """Content-Encoding of the stored bytes, which are not decoded; None without an encoding."""


class Part:
    """Partial file: `<name>.part` beside the target, with a note in `<name>.part.json`.

    It is a sink for the sender: `prepare` requests the rest, `begin` checks the response, `write` appends.
    """

    def __init__(self, url: str, path: Path, max_size: int | None, decode: bool = False) -> None:
        if os.path.isdir(path):
            raise PolicyError(f"path = {str(path)!r} must be a file, not a directory. Add a file name.")
        if os.path.exists(path) and not os.path.isfile(path):  # a download would replace it by a file
            raise PolicyError(
                f"path = {str(path)!r} must be a file, not a device, pipe or socket. Choose another name."
            )
        self.path = path
        self.max_size = max_size
        self.decodes = decode
        self.resumed_at = 0
        self.came = 0
        """Bytes received in the current response."""
        self._part = path.with_name(path.name + ".part")
        self._note = path.with_name(path.name + ".part.json")
        self._url_sha256 = hashlib.sha256(str(url).encode("utf-8", "surrogatepass")).hexdigest()
        self._file: IO[bytes] | None = None
        self._answer = 0, Headers()
        self._asked_by: _Note | None = None
        """Note whose validator the current range request sends; None if the whole file is requested."""
        self._is_begun = False
        self._total: int | None = None

    @property
    def size(self) -> int:
        """Return the bytes received so far."""
        try:
            return self._part.lstat().st_size
        except OSError:
            return 0

    @property
    def is_of_no_use(self) -> bool:
        """Return whether a range was requested and the response does not continue the partial file."""
        return self._asked_by is not None and not self._is_begun and self._answer[0] in (206, 416)

    def prepare(self, request: Request) -> Request:
        """Return the request for the missing bytes, or for the whole file if its version is unknown."""
        self.close()
        self._is_begun, self._answer, self._total = False, (0, Headers()), None
        unfit = ("range", "if-range", "accept-encoding")
        fields = [each for each in request.headers.fields if each[0].lower() not in unfit]
        fields.append(("Accept-Encoding", "identity"))  # ranges of encoded bodies cannot be joined
        note, size = self._usable_note(), self.size
        self._asked_by = note if size else None
        if size and note is not None:
            fields += [("Range", f"bytes={size}-"), ("If-Range", note.etag or note.last_modified or "")]
        return Request(request.url, request.method, Headers(fields), request.body)

    @property
    def is_resumable(self) -> bool:
        """Return whether the next download requests only the missing bytes."""
        return self.size > 0 and self._usable_note() is not None

    def _usable_note(self) -> _Note | None:
        """Return the note if its version can be requested; None otherwise."""
        note = self._read_note()
        if note is None or (note.coding is not None and self.decodes):  # encoded bytes can no longer be decoded
            return None
        return note if note.etag or note.last_modified else None

    def begin(self, status: int, headers: Headers) -> bool:
        """Prepare for a body. Bodies other than the file (error pages, redirects) are read and discarded."""
        self.close()
        self.came, self._answer = 0, (status, headers)
        coding = _coding_of(headers)
        if status == 206:
            note, size = self._asked_by, self.size
            # A 206 may omit headers of the whole file (RFC 9110, 15.3.7), but must not contradict them.
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
            # A decoded body matches no byte range on the server, so its note has no validator.
            is_decoded = self.decodes and coding is not None
            note = _Note(self._url_sha256) if is_decoded else _noted(self._url_sha256, coding, headers)
            self._write_note(note)
        self._is_begun = self._file is not None
        return True

    async def write(self, piece: bytes) -> None:
        """Append a piece without blocking the event loop."""
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
        """Move the complete file into place atomically; return its size and SHA-256."""
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
        """Delete the partial file, unless another download is writing it."""
        with contextlib.suppress(OSError):
            if self._file is None:
                self._file = _opened(self._part)
            if sys.platform == "win32":  # Windows cannot delete an open file
                self.close()
            self._part.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Close the file. `write()` flushed each piece, so write errors were raised there."""
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
        # An unusable validator cannot be sent in a request.
        is_sound = usable_etag(note.etag) == note.etag and (not note.last_modified or http_date(note.last_modified))
        return note if is_sound and note.url_sha256 == self._url_sha256 else None

    def _write_note(self, note: _Note) -> None:
        """Replace the note atomically."""
        aside = self._note.with_name(f"{self._note.name}.{os.getpid()}")
        try:
            with open(create_own(aside), "wb") as file:
                file.write(msgspec.json.encode(note))
            aside.replace(self._note)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise

    def result(self, result: FetchResult) -> DownloadResult:
        """Return the caller's result; a complete file is moved into place."""
        message = result.message.replace(messages.TOO_LARGE, TOO_LARGE)
        size, sha256, ok, reason = 0, None, result.ok, result.reason
        if not ok or sys.platform == "win32":  # Windows cannot move an open file
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
    """Open and lock a partial file to resume it.

    Raises OSError (EBUSY) if another download has it: the file would be moved into place half written.
    """
    file = open(open_own(part, os.O_RDWR | os.O_APPEND | os.O_CREAT), "ab")  # noqa: SIM115
    is_ours = True
    if sys.platform != "win32":
        try:
            _check_owner(part, file.fileno())
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = os.path.samestat(os.fstat(file.fileno()), part.lstat())  # else it was moved into place
        except (BlockingIOError, FileNotFoundError):
            is_ours = False
        except PermissionError:
            file.close()
            raise
        except OSError:
            pass  # the file system has no such locks
    if not is_ours:
        file.close()
        raise OSError(errno.EBUSY, "another download is writing it")
    return file


def _check_owner(part: Path, number: int) -> None:
    """Raise PermissionError for a hard link, or for another user's file in a world-writable directory.

    Writing would change the linked file; the other user could change the content.
    """
    found = os.fstat(number)
    if found.st_nlink > 1:
        raise PermissionError(errno.EPERM, f"{part.name} is a hard link to another file. Remove it")
    if sys.platform != "win32" and part.parent.stat().st_mode & stat.S_IWOTH and found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, f"{part.name} belongs to another user. Choose another directory")


def _read_at(number: int, place: int) -> bytes:
    """Return up to 1 MiB from an offset. Writes still append (O_APPEND)."""
    os.lseek(number, place, os.SEEK_SET)
    return os.read(number, 1 << 20)


def _coding_of(headers: Headers) -> str | None:
    """Return the Content-Encoding of a body; None if it is absent or identity."""
    coding = (headers.get("content-encoding") or "").strip().lower()
    return None if coding in ("", "identity") else coding


def _append(file: IO[bytes], piece: bytes) -> None:
    file.write(piece)
    file.flush()


def _total_of(headers: Headers, start: int, announced: int | None) -> int | None:
    """Return the total bytes of the file that a 206 continues at `start`; None if it does not fit.

    If the server sends no total (`/*`), the total announced earlier applies. Without either, the end of the part and
    the end of the file cannot be distinguished (RFC 9110, 14.4).
    """
    found = _RANGE.fullmatch((headers.get("content-range") or "").strip())
    if found is None or int(found[1]) != start:
        return None
    total = announced if found[3] == "*" else int(found[3])
    if total is None or announced not in (None, total) or not start <= int(found[2]) < total:
        return None
    return total


def _is_other(note: _Note, headers: Headers) -> bool:
    """Return whether a 206 is of another version: many servers ignore If-Range (RFC 9110, 15.3.7.3)."""
    if note.etag is not None:
        # A 206 has the ETag of the whole file (RFC 9110, 15.3.7). Without it, the version is unknown.
        return usable_etag(headers.get("etag")) != note.etag
    return headers.get("last-modified") not in (None, note.last_modified)


def _noted(url_sha256: str, coding: str | None, headers: Headers) -> _Note:
    """Return the note for this version of the file.

    A weak validator must not be used to join ranges (RFC 9110, 13.1.5).
    """
    length = headers.get("content-length") or ""
    size = int(length) if re.fullmatch(r"\d{1,18}", length, re.ASCII) else None
    etag = headers.get("etag")
    if etag is not None:
        strong = usable_etag(etag)
        return _Note(url_sha256, None if strong is None or strong.startswith("W/") else strong, None, size, coding)
    # A file may change twice within one second (RFC 9110, 8.8.2.2).
    last_modified, sent = http_date(headers.get("last-modified")), http_date(headers.get("date"))
    is_strong = last_modified is not None and sent is not None and last_modified < sent
    return _Note(url_sha256, None, headers.get("last-modified") if is_strong else None, size, coding)


class DownloadTask:
    """Download of one file and its move into place.

    `driver` reports no records; `told` receives the only record of the download.
    """

    def __init__(
        self, ask: FetchRequest, part: Part, driver: Driver, sender: Sender, told: Callable[[FetchRecord], None]
    ) -> None:
        self._part = part
        self._driver = driver
        self._sender = sender
        self._told = told
        self._state = set_out(ask, driver.context)
        self._resources = HeldResources(self._send)
        self._placed: asyncio.Future[DownloadResult] | None = None
        """Result of moving the file into place, once that has started."""

    async def work(self) -> DownloadResult:
        """Fetch the file and move it into place when complete."""
        result = await self._fetch()
        if self._part.is_of_no_use and result.reason is not Reason.TOO_LARGE:
            self._part.discard()
            self._state = _anew(self._state)
            result = await self._fetch()
        self._told(result.record)
        if result.reason is Reason.TOO_LARGE:
            self._part.discard()
        self._placed = begun_in_thread(self._part.result, result)
        return await _seen_through(self._placed)

    def closed(self) -> DownloadResult:
        """Return the result after the client was closed: the finished one if the move has started."""
        if self._placed is not None:
            return self._placed.result()
        result = closed(self._state, self._resources.is_sent, self._resources.is_robots)
        self._told(result.record)
        return self._part.result(result)

    async def _fetch(self) -> FetchResult:
        flow = fetch(self._state.ask, self._driver.context, self._state)
        return await self._driver.run_flow(flow, self._resources)

    async def _send(self, request: Request, limits: Limits) -> Reply:
        """Send a request and write the body to the file.

        Exceptions that the sender lets through come from the file: disk errors and its size limit.
        """
        part, began = self._part, time.monotonic()
        try:
            return await self._sender.stream(part.prepare(request), replace(limits, max_body=part.max_size), part)
        except OSError as error:
            return Failure(Reason.NOT_WRITTEN, f"it could not be written: {error.strerror}", time.monotonic() - began)
        except TooLong as error:
            return Failure(Reason.TOO_LARGE, str(error), time.monotonic() - began, wire_bytes=part.came)
        except Unwanted as error:
            took = time.monotonic() - began
            return Response(error.status, error.headers, b"", took, took, part.came)


def _anew(state: FetchState) -> FetchState:
    """Return a new state that starts over, with the costs and the start time of the old one."""
    assert isinstance(state.asked, Url)
    assert state.url is not None
    if state.url.domain != state.asked.domain:
        state.leave_host()
    return FetchState(
        state.ask,
        state.world,
        state.began,
        state.world.policies,
        state.asked,
        attempts=state.attempts,
        retries=state.retries,
        waited=state.waited,
        bytes=state.bytes,
        go=state.go,
        latency=state.latency,
        robots_requests=state.robots_requests,
        elsewhere=state.elsewhere,
    )


async def _seen_through(work: asyncio.Future[T]) -> T:
    """Return the result of work in a thread; raise a cancellation only after the work ends.

    A thread cannot be stopped: it could otherwise move another download's partial file into place.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return work.result()

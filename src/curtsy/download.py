"""Downloads: streamed to disk, resumed where the server can, there only when whole (Q8, U15)."""

from __future__ import annotations

import asyncio
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import msgspec

from curtsy.core.cache import usable_etag
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.message import Headers, Request
from curtsy.core.record import FetchRecord
from curtsy.core.result import FetchResult

GIB = 1024**3


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


class _Note(msgspec.Struct, frozen=True):
    """What is remembered beside a part, so that a later try can ask for the rest of the same file."""

    url_sha256: str
    etag: str | None = None
    last_modified: str | None = None


class Part:
    """The file as far as it has come: `<name>.part` beside where it will be, with a note in `<name>.part.json`.

    It is a sink for the sender: `prepare` asks for the rest, `begin` looks at what the answer is, `write` appends.
    """

    def __init__(self, url: str, path: Path, max_size: int | None) -> None:
        if path.is_dir():
            raise PolicyError(f"path = {str(path)!r} must be a file, not a directory. Add a file name.")
        self.path = path
        self.max_size = max_size
        self.resumed_at = 0
        self._part = path.with_name(path.name + ".part")
        self._note = path.with_name(path.name + ".part.json")
        self._url_sha256 = hashlib.sha256(url.encode()).hexdigest()
        self._file: IO[bytes] | None = None

    @property
    def size(self) -> int:
        """Bytes that have come so far."""
        try:
            return self._part.stat().st_size
        except OSError:
            return 0

    def prepare(self, request: Request) -> Request:
        """The request for what is still missing; for everything, unless the server named this version of the file."""
        self._close()
        fields = [each for each in request.headers.fields if each[0].lower() not in ("range", "if-range")]
        fields.append(("Accept-Encoding", "identity"))  # a range of a coded body could not be put together
        note, size = self._read_note(), self.size
        validator = None if note is None else (note.etag or note.last_modified)
        if size and validator:
            fields += [("Range", f"bytes={size}-"), ("If-Range", validator)]
        return Request(request.url, request.method, Headers(fields), request.body)

    def begin(self, status: int, headers: Headers) -> bool:
        """Make ready for a body; False if it is not the file's (an error page, a redirect)."""
        self._close()
        if status == 206:
            first = (headers.get("content-range") or "").removeprefix("bytes ").partition("-")[0]
            if first != str(self.size):
                return False
            self.resumed_at = self.size
            self._file = self._part.open("ab")
            return True
        if status != 200:
            return False
        self.resumed_at = 0
        etag = usable_etag(headers.get("etag"))
        # A weak validator must not be used to put parts together (RFC 9110, 13.1.5).
        note = _Note(
            self._url_sha256, None if etag is None or etag.startswith("W/") else etag, headers.get("last-modified")
        )
        self._part.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._part.open("wb")
        self._note.write_bytes(msgspec.json.encode(note))
        return True

    async def write(self, piece: bytes) -> None:
        """Append what came, without holding up the event loop."""
        assert self._file is not None
        await asyncio.to_thread(self._file.write, piece)

    def finish(self) -> tuple[int, str]:
        """Put the whole file in its place, in one step; answers its size and SHA-256."""
        self._close()
        if not self._part.exists():  # an empty file has no body to begin
            self._part.parent.mkdir(parents=True, exist_ok=True)
            self._part.touch()
        digest = hashlib.sha256()
        with self._part.open("rb") as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
            os.fsync(file.fileno())
            size = file.tell()
        self._part.replace(self.path)
        self._note.unlink(missing_ok=True)
        return size, digest.hexdigest()

    def discard(self) -> None:
        """Forget what has come so far."""
        self._close()
        self._part.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read_note(self) -> _Note | None:
        try:
            note = msgspec.json.decode(self._note.read_bytes(), type=_Note)
        except (OSError, msgspec.DecodeError):
            return None
        return note if note.url_sha256 == self._url_sha256 else None

    def result(self, result: FetchResult) -> DownloadResult:
        """What the caller gets; a whole file is put in its place."""
        size, sha256, ok, message, reason = 0, None, result.ok, result.message, result.reason
        self._close()
        if ok:
            try:
                size, sha256 = self.finish()
            except OSError as error:
                ok, reason = False, Reason.NOT_WRITTEN
                message = f"{self.path} could not be written: {error.strerror}. Make room, or choose another place."
        return DownloadResult(
            ok, result.final_url, self.path, size, sha256, self.resumed_at if ok else 0, result.status, reason, message,
            result.retry_after, result.record,
        )  # fmt: skip

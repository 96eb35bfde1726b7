"""Warc: a crawl as an archive for the tools of web archives.

    crawl-00001.warc.gz       records: a warcinfo, then a response or revisit and a request for each page and redirect
    crawl-00002.warc.gz …     the next file, started when one has reached `max_size`
    crawl.payloads.txt        locations of the payloads: a resumed crawl or a later one (`since`) reads it

A page whose body is already in the archive, byte for byte, becomes a revisit of that record.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import uuid
from itertools import islice
from typing import Any

import msgspec

from curtsy import __version__
from curtsy.core.errors import NotWritten, PolicyError
from curtsy.crawling.outputs import warc_records
from curtsy.crawling.outputs.append_file import AppendFile, End, foreign, not_written, read_state, whole_lines
from curtsy.crawling.outputs.protocol import Written
from curtsy.crawling.results import CrawledPage, SkippedUrl
from curtsy.stores.url import check_path
from curtsy.system.log import library_logger

_log = library_logger("outputs")

GIB = 1 << 30

_ENDING = re.compile(r"\.warc(?P<gz>\.gz)?$", re.I)


class WarcState(msgspec.Struct, frozen=True):
    """End of an archive."""

    archive: str
    """UUID of the archive, from which the ids of its warcinfo records derive."""

    file: int
    """Number of the last file."""

    end: End
    """End of the last file."""

    payloads: End
    earlier: tuple[int, ...] = ()
    """Number of responses in each earlier file."""

    lost: int = 0
    """Number of responses in earlier files that are missing now."""


class Warc:
    """Archive in files `<path>-00001.warc.gz` and so on. An ending `.warc` or `.warc.gz` of `path` is not doubled.

    `gzip` compresses each record separately, at `level` (0 to 9); None means: unless `path` ends in `.warc`. A new file
    is started after `max_size` bytes. `since` is the path of an earlier archive: unchanged pages become revisits of it,
    and the two belong together. `remember` limits the number of known payloads; the latest ones are kept.

    URLs are stored unmasked, because an archive could not be replayed otherwise. Cookies and credentials are left out.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        gzip: bool | None = None,
        level: int = 6,
        max_size: int = GIB,
        since: str | os.PathLike[str] | None = None,
        remember: int = 100_000,
    ) -> None:
        check_path("path", path)
        self._stem, ending = _split(path)
        self.gzip = ending != ".warc" if gzip is None else gzip
        if not 0 <= level <= 9:
            raise PolicyError(f"level = {level} must be between 0 and 9. Leave it out to use 6.")
        self._level = level
        self._max_size = max_size
        self._since = None if since is None else _split(since)[0]
        self._remember = remember
        self._archive = uuid.UUID(int=0)
        self._number = 1
        self._trail = AppendFile(self._path(1), is_ours=True)
        self._payloads = AppendFile(f"{self._stem}.payloads.txt", is_ours=True)
        self._known: dict[bytes, bytes] = {}
        """Locations of payloads by digest: record id, date and URL."""

        self._earlier: list[int] = []
        """Number of responses in each file before the present one."""

        self._lost = 0
        """Number of responses in earlier files that are missing now."""

        self._flushed: WarcState | None = None
        """State to restore after a failure; None while it is not open."""

    @property
    def name(self) -> str:
        """Return its kind and path."""
        return f"warc:{self._stem}{self._ending}"

    @property
    def _ending(self) -> str:
        return ".warc.gz" if self.gzip else ".warc"

    def _path(self, number: int) -> str:
        return f"{self._stem}-{number:05}{self._ending}"

    def open(self, state: Any | None) -> None:
        """Start it, or resume at `state`, at the end of a record."""
        found = read_state(self.name, state, WarcState)
        self.close()
        if self._since is not None and not os.path.exists(f"{self._since}.payloads.txt"):
            raise PolicyError(
                f"since = {self._since!r} must be an archive that curtsy wrote, but there is no "
                f"{self._since}.payloads.txt. Leave it out to archive everything again."
            )
        try:
            if found is None:
                self._begin()
            else:
                self._archive = uuid.UUID(found.archive)
                self._cut(found)
            self._known = {}
            if self._since is not None:
                self._recall(f"{self._since}.payloads.txt")
            self._recall(self._payloads.path)
        except BaseException as error:
            self._trail.take_back()
            self._payloads.take_back()
            self._flushed = None
            if isinstance(error, OSError):
                raise not_written(self._path(self._number), error) from error
            raise

    def _begin(self) -> None:
        for path in self._files().values():
            if os.path.getsize(path):
                raise foreign(path)
        self._archive = uuid.uuid4()
        self._number, self._trail = 1, AppendFile(self._path(1), is_ours=True)
        self._trail.open(None, self._whole)
        self._payloads.open(None, whole_lines)
        self._earlier, self._lost = [], 0
        self._flushed = self._state()

    def _cut(self, state: WarcState) -> None:
        """Restore the state of a flush: remove later files, and later records in the last file."""
        found = self._files()
        later = [path for number, path in found.items() if number > state.file]
        for number, path in found.items():
            if number > state.file and not warc_records.begins_with(path, self._beginning(number), self.gzip):
                raise foreign(path)
        self._number, self._trail = state.file, AppendFile(self._path(state.file), is_ours=True)
        self._trail.open(state.end, self._whole)
        self._payloads.open(state.payloads, whole_lines)
        for path in later:  # only after the archive is recognized as ours
            os.unlink(path)
        self._earlier, self._lost = list(state.earlier), state.lost
        for place, answers in enumerate(self._earlier):
            if answers and place + 1 not in found:
                _log.warning(
                    f"{self._path(place + 1)} is gone, and {answers:,} pages with it. Start the crawl over (--restart, "
                    "restart=True) to have them all."
                )
                self._lost, self._earlier[place] = self._lost + answers, 0
        self._flushed = state

    def _state(self) -> WarcState:
        ends = self._trail.flush(), self._payloads.flush()
        return WarcState(str(self._archive), self._number, *ends, tuple(self._earlier), self._lost)

    def _files(self) -> dict[int, str]:
        found = {}
        for path in sorted(glob.glob(f"{glob.escape(self._stem)}-*{self._ending}")):
            number = path[len(self._stem) + 1 : -len(self._ending)]
            if number.isascii() and number.isdecimal():
                found[int(number)] = path
        return found

    def _whole(self, path: str) -> tuple[int, int]:
        return warc_records.whole_members(path) if self.gzip else warc_records.whole_records(path)

    def _recall(self, path: str) -> None:
        with open(path, "rb") as lines:
            for line in lines:
                digest, _, place = line.rstrip(b"\n").partition(b" ")
                self._learn(digest, place)

    def _learn(self, digest: bytes, place: bytes) -> None:
        self._known.setdefault(digest, place)
        if len(self._known) > self._remember:  # half at once: a dict is slow at removing its oldest entries one by one
            self._known = dict(islice(self._known.items(), len(self._known) // 2 + 1, None))

    def page(self, page: CrawledPage) -> None:
        """Write a page's records: a response or revisit, then the request, if one was sent."""
        url, date, own = (
            warc_records.target_uri(page.final_url),
            warc_records.date_of(page.fetched_at),
            warc_records.new_id(),
        )
        payload = hashlib.sha256(page.body)
        digest = f"sha256:{payload.hexdigest()}"
        key = digest.encode()
        place = self._known.get(key) if page.body else None
        fields = [("WARC-Record-ID", own), ("WARC-Date", date), ("WARC-Target-URI", url)]
        answer = _response(page, fields, digest) if place is None else _revisit(page, fields, digest, place)
        made = self._made(answer)
        if page.cache not in ("hit", "stale"):  # these cache entries were used without an answered request
            about = [("WARC-Type", "request"), ("WARC-Record-ID", warc_records.new_id()), *fields[1:]]
            about += [("WARC-Concurrent-To", own), ("Content-Type", warc_records.REQUEST)]
            made += self._made(_digested(about, [warc_records.request_head(page)]))
        try:
            self._write(made)
            if place is None and page.body:
                where = f"{own} {date} {url}".encode()
                self._payloads.write(key, b" ", where, b"\n")
                self._learn(key, where)
        except BaseException as error:
            self._take_back(error)
            raise

    def redirect(self, page: CrawledPage) -> None:
        """Write the records of a redirect, so that a replay can follow it."""
        self.page(page)

    def _made(self, pieces: list[bytes]) -> list[bytes]:
        return warc_records.pressed(pieces, self._level) if self.gzip else pieces

    def _write(self, made: list[bytes]) -> None:
        if self._trail.size >= self._max_size:
            self._trail.close()
            self._earlier.append(self._trail.entries)
            self._lost += self._trail.lost
            self._number += 1
            self._trail = AppendFile(self._path(self._number), is_ours=True)
            self._trail.open(None, self._whole)
        if not self._trail.size:
            self._trail.write(*self._made(self._info()), entries=0)
        self._trail.write(*made)

    def _info(self) -> list[bytes]:
        lines = (
            f"software: curtsy/{__version__}\r\n"
            "format: WARC File Format 1.1\r\n"
            "conformsTo: http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/\r\n"
            f"isPartOf: {os.path.basename(self._stem)}\r\n"
            "description: bodies are decompressed, fields of the wire renamed X-Crawler-*, cookies left out\r\n"
        )
        about = [("WARC-Date", warc_records.date_of("")), ("WARC-Filename", os.path.basename(self._trail.path))]
        about.append(("Content-Type", warc_records.FIELDS))
        plain, *rest = warc_records.record(about, [lines.encode("utf-8", "replace")])
        return [self._beginning(self._number) + plain.removeprefix(b"WARC/1.1\r\n"), *rest]

    def _beginning(self, number: int) -> bytes:
        """Return the first bytes of a file, by which it is recognized as part of this archive."""
        name = uuid.uuid5(self._archive, str(number))
        return f"WARC/1.1\r\nWARC-Type: warcinfo\r\nWARC-Record-ID: <urn:uuid:{name}>\r\n".encode()

    def skipped(self, skipped: SkippedUrl) -> None:
        """Ignore it: there is no response."""

    def flush(self) -> dict[str, Any]:
        """Pass all data to the system; return the last file's number and end."""
        try:
            self._flushed = self._state()
        except BaseException as error:
            self._take_back(error)
            raise
        state: dict[str, Any] = msgspec.to_builtins(self._flushed)
        return state

    def _take_back(self, error: BaseException) -> None:
        """Restore the state of the last flush, and accept nothing more until it is opened again."""
        why = error if isinstance(error, NotWritten) else None
        flushed, self._flushed = self._flushed, None
        self._trail.take_back()
        self._payloads.take_back()
        if flushed is not None:
            try:
                self._cut(flushed)
            except (OSError, NotWritten):  # the next open() truncates it
                pass
        self._trail.take_back(why)
        self._payloads.take_back(why)
        self._flushed = None

    def written(self) -> Written:
        """Return the contents of its files."""
        gone = sum(
            answers for place, answers in enumerate(self._earlier) if not os.path.exists(self._path(place + 1))
        )  # fmt: skip
        missing = self._lost + gone + self._trail.missing()
        return Written(self.name, self._entries() - missing, missing)

    def _entries(self) -> int:
        return sum(self._earlier) + self._lost + self._trail.flushed_entries + self._trail.lost

    def close(self) -> None:
        """Close it. Idempotent."""
        self._flushed = None
        self._trail.close()
        self._payloads.close()


def _split(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return a path without its ending, and the ending in lower case."""
    text = os.path.abspath(path)
    found = _ENDING.search(text)
    return (text, "") if found is None else (text[: found.start()], found[0].lower())


def _digested(fields: list[tuple[str, str]], block: list[bytes]) -> list[bytes]:
    digest = hashlib.sha256()
    for piece in block:
        digest.update(piece)
    return warc_records.record([*fields, ("WARC-Block-Digest", f"sha256:{digest.hexdigest()}")], block)


def _response(page: CrawledPage, fields: list[tuple[str, str]], digest: str) -> list[bytes]:
    about = [("WARC-Type", "response"), *fields]
    about += [("WARC-Payload-Digest", digest), ("Content-Type", warc_records.RESPONSE)]
    return _digested(about, [warc_records.response_head(page), page.body])


def _revisit(page: CrawledPage, fields: list[tuple[str, str]], digest: str, place: bytes) -> list[bytes]:
    """Return a revisit record, which refers to the record with the payload."""
    own, date, url = place.decode().split(" ")
    about = [("WARC-Type", "revisit"), *fields]
    about += [("WARC-Refers-To", own), ("WARC-Refers-To-Target-URI", url), ("WARC-Refers-To-Date", date)]
    about.append(("WARC-Payload-Digest", digest))
    if page.cache == "revalidated" and dict(fields)["WARC-Target-URI"] == url:
        # No block: the headers of the 304 are not stored.
        return warc_records.record([*about, ("WARC-Profile", warc_records.NOT_MODIFIED)])
    about += [
        ("WARC-Profile", warc_records.IDENTICAL),
        ("WARC-Truncated", "length"),
        ("Content-Type", warc_records.RESPONSE),
    ]
    return _digested(about, [warc_records.response_head(page)])

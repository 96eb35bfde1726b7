"""Warc: a crawl as an archive for the tools of web archives, in WARC files of version 1.1 (ISO 28500:2017).

    crawl-00001.warc.gz       records: a warcinfo, then a response or revisit and a request for each page and redirect
    crawl-00002.warc.gz …     the next file, started when one has reached `max_size`
    crawl.payloads.txt        locations of the payloads: a resumed crawl or a later one (`since`) reads it

A page whose body is already in the archive, byte for byte, becomes a revisit of that record.

Bodies are stored decompressed, not as sent over the wire. Header fields about the wire form (`Content-Encoding`,
`Transfer-Encoding`, a `Content-Length` that is not the body's) would mislead replay tools. So they get the prefix
`X-Crawler-`, as in Common Crawl, and `Content-Length` has the actual length. A rendered page is stored as its DOM, with
`X-Crawler-Rendered`. Cookies and credentials are left out (F62).
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import time
import uuid
import zlib
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from itertools import islice
from typing import Any
from urllib.parse import quote

import msgspec

from curtsy import __version__
from curtsy.core.errors import PolicyError
from curtsy.core.request import Headers
from curtsy.crawling.outputs.append_file import AppendFile, End, ForeignFile, read_state, whole_lines
from curtsy.crawling.outputs.jsonlines import HIDDEN
from curtsy.crawling.outputs.protocol import FileOutput, Written
from curtsy.crawling.results import CrawledPage
from curtsy.stores.url import check_path
from curtsy.system.log import library_logger

_log = library_logger("outputs")

GIB = 1 << 30

_ENDING = re.compile(r"\.warc(?P<gz>\.gz)?$", re.I)

REQUEST, RESPONSE = "application/http;msgtype=request", "application/http;msgtype=response"
FIELDS = "application/warc-fields"
IDENTICAL = "http://netpreserve.org/warc/1.1/revisit/identical-payload-digest"
NOT_MODIFIED = "http://netpreserve.org/warc/1.1/revisit/server-not-modified"

_WIRE = frozenset({"content-encoding", "transfer-encoding"})
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
_LINE_ENDS = re.compile(r"[\r\n\0]+")
_DATE = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?)(?:Z|\+00:00)")
_STEP = 1 << 18
_END = b"\r\n\r\n"
_ANSWERS = (b"WARC/1.1\r\nWARC-Type: response", b"WARC/1.1\r\nWARC-Type: revisit")
"""First bytes of the records that represent a page. A request is a separate record."""


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


class Warc(FileOutput):
    """Archive in files `<path>-00001.warc.gz` and so on. An ending `.warc` or `.warc.gz` of `path` is not doubled.

    `gzip` compresses each record separately, at `level` (0 to 9); None means: unless `path` ends in `.warc`. A new file
    is started after `max_size` bytes. `since` is the path of an earlier archive: unchanged pages become revisits of it,
    and the two belong together. `remember` limits the number of known payloads; the latest ones are kept. `first` is
    the number of the first file.

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
        first: int = 1,
    ) -> None:
        check_path("path", path)
        self._stem, ending = _split(path)
        self.gzip = ending != ".warc" if gzip is None else gzip
        if not 0 <= level <= 9:
            raise PolicyError(f"level = {level} must be between 0 and 9. Leave it out to use 6.")
        self._ending = ".warc.gz" if self.gzip else ".warc"
        super().__init__("warc", self._stem + self._ending)
        self._level = level
        self._max_size = max_size
        self._since = None if since is None else _split(since)[0]
        self._remember = remember
        self._archive = uuid.UUID(int=0)
        self._first = first
        self._select(first)
        self._payloads = AppendFile(f"{self._stem}.payloads.txt", is_ours=True)
        self._known: dict[bytes, bytes] = {}
        """Locations of payloads by digest: record id, date and URL."""

        self._earlier: list[int] = []
        """Number of responses in each file before the present one."""

        self._lost = 0
        """Number of responses in earlier files that are missing now."""

    def _path(self, number: int) -> str:
        return f"{self._stem}-{number:05}{self._ending}"

    def _select(self, number: int) -> None:
        """Make the file with this number the present one, closed."""
        self._number, self._file = number, AppendFile(self._path(number), is_ours=True)

    def _open(self, state: Any | None) -> None:
        found = read_state(self.name, state, WarcState)
        if self._since is not None and not os.path.exists(f"{self._since}.payloads.txt"):
            raise PolicyError(
                f"since = {self._since!r} must be an archive that curtsy wrote, but there is no "
                f"{self._since}.payloads.txt. Leave it out to archive everything again."
            )
        if found is None:
            self._begin()
        else:
            self._cut(found)
        self._known = {}
        if self._since is not None:
            self._recall(f"{self._since}.payloads.txt")
        self._recall(self._payloads.path)

    def _verify(self, state: Any | None) -> None:
        found = read_state(self.name, state, WarcState)
        if found is None:
            self._check_new()
        number, end = (self._first, None) if found is None else (found.file, found.end)
        AppendFile(self._path(number)).verify(end, self._whole, is_exact=self.is_complete)

    def _check_new(self) -> None:
        for path in self._files().values():
            if os.path.getsize(path):
                raise ForeignFile(path)

    def _begin(self) -> None:
        self._check_new()
        self._archive = uuid.uuid4()
        self._select(self._first)
        self._file.open(None, self._whole)
        self._payloads.open(None, whole_lines)
        self._earlier, self._lost = [], 0

    def _cut(self, state: WarcState) -> None:
        """Restore the state of a flush: remove later files, and later records in the last file."""
        self._archive = uuid.UUID(state.archive)
        found = self._files()
        later = {number: path for number, path in found.items() if number > state.file}
        for number, path in later.items():
            if not begins_with(path, self._beginning(number), self.gzip):
                raise ForeignFile(path)
        self._select(state.file)
        self._file.open(state.end, self._whole, is_exact=self.is_complete)
        self._payloads.open(state.payloads, whole_lines)
        for path in later.values():  # only after the archive is recognized as ours
            os.unlink(path)
        self._earlier, self._lost = list(state.earlier), state.lost
        for place, answers in enumerate(self._earlier):
            if answers and place + self._first not in found:
                _log.warning(
                    f"{self._path(place + self._first)} is gone, and {answers:,} pages with it. Start the crawl over "
                    "(--restart, restart=True) to have them all."
                )
                self._lost, self._earlier[place] = self._lost + answers, 0

    def _files(self) -> dict[int, str]:
        found = {}
        for path in sorted(glob.glob(f"{glob.escape(self._stem)}-*{self._ending}")):
            number = path[len(self._stem) + 1 : -len(self._ending)]
            if number.isascii() and number.isdecimal():
                found[int(number)] = path
        return found

    def _whole(self, path: str) -> tuple[int, int]:
        return whole_members(path) if self.gzip else whole_records(path)

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
        url, date, own = target_uri(page.final_url), date_of(page.fetched_at), new_id()
        digest = f"sha256:{hashlib.sha256(page.body).hexdigest()}"
        key = digest.encode()
        place = self._known.get(key) if page.body else None
        fields = [("WARC-Record-ID", own), ("WARC-Date", date), ("WARC-Target-URI", url)]
        answer = _response(page, fields, digest) if place is None else _revisit(page, fields, digest, place)
        made = self._made(answer)
        if page.cache not in ("hit", "stale"):  # these cache entries were used without an answered request
            about = [("WARC-Type", "request"), ("WARC-Record-ID", new_id()), *fields[1:]]
            about += [("WARC-Concurrent-To", own), ("Content-Type", REQUEST)]
            made += self._made(_digested(about, [request_head(page)]))
        with self._restored():
            self._write(made)
            if place is None and page.body:
                where = f"{own} {date} {url}".encode()
                self._payloads.write(key, b" ", where, b"\n")
                self._learn(key, where)

    def redirect(self, page: CrawledPage) -> None:
        """Write the records of a redirect, so that a replay can follow it."""
        self.page(page)

    def requisite(self, page: CrawledPage) -> None:
        """Write the records of what a page needs, so that a replay shows the page as it was."""
        self.page(page)

    def _made(self, pieces: list[bytes]) -> list[bytes]:
        return pressed(pieces, self._level) if self.gzip else pieces

    def _write(self, made: list[bytes]) -> None:
        if self._file.size >= self._max_size:
            self._file.flush(durable=self.is_durable)
            self._file.close()
            self._earlier.append(self._file.entries)
            self._lost += self._file.flushed.lost
            self._select(self._number + 1)
            self._file.open(None, self._whole)
        if not self._file.size:
            self._file.write(*self._made(self._info()), entries=0)
        self._file.write(*made)

    def _info(self) -> list[bytes]:
        lines = (
            f"software: curtsy/{__version__}\r\n"
            "format: WARC File Format 1.1\r\n"
            "conformsTo: http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/\r\n"
            f"isPartOf: {os.path.basename(self._stem)}\r\n"
            "description: bodies are decompressed, fields of the wire renamed X-Crawler-*, cookies left out\r\n"
        )
        about = [("WARC-Date", date_of("")), ("WARC-Filename", os.path.basename(self._file.path))]
        about.append(("Content-Type", FIELDS))
        plain, *rest = record(about, [lines.encode("utf-8", "replace")])
        return [self._beginning(self._number) + plain.removeprefix(b"WARC/1.1\r\n"), *rest]

    def _beginning(self, number: int) -> bytes:
        """Return the first bytes of a file, by which it is recognized as part of this archive."""
        name = uuid.uuid5(self._archive, str(number))
        return f"WARC/1.1\r\nWARC-Type: warcinfo\r\nWARC-Record-ID: <urn:uuid:{name}>\r\n".encode()

    def _flush(self) -> dict[str, Any]:
        ends = self._file.flush(durable=self.is_durable), self._payloads.flush()
        state = WarcState(str(self._archive), self._number, *ends, tuple(self._earlier), self._lost)
        plain: dict[str, Any] = msgspec.to_builtins(state)
        return plain

    def written(self) -> Written:
        """Return the contents of its files."""
        numbers = enumerate(self._earlier, self._first)
        gone = sum(answers for number, answers in numbers if not os.path.exists(self._path(number)))
        missing, flushed = self._lost + gone + self._file.missing(), self._file.flushed
        all_written = sum(self._earlier) + self._lost + flushed.entries + flushed.lost
        return Written(self.name, all_written - missing, missing)

    def _close(self) -> None:
        self._file.close()
        self._payloads.close()

    def discard(self, why: str = "") -> None:
        """Close it without writing what is pending."""
        self._file.discard(why)
        self._payloads.discard(why)


def _split(path: str | os.PathLike[str]) -> tuple[str, str]:
    """Return a path without its ending, and the ending in lower case."""
    text = os.path.abspath(path)
    found = _ENDING.search(text)
    return (text, "") if found is None else (text[: found.start()], found[0].lower())


def _digested(fields: list[tuple[str, str]], block: list[bytes]) -> list[bytes]:
    digest = hashlib.sha256()
    for piece in block:
        digest.update(piece)
    return record([*fields, ("WARC-Block-Digest", f"sha256:{digest.hexdigest()}")], block)


def _response(page: CrawledPage, fields: list[tuple[str, str]], digest: str) -> list[bytes]:
    about = [("WARC-Type", "response"), *fields]
    about += [("WARC-Payload-Digest", digest), ("Content-Type", RESPONSE)]
    return _digested(about, [response_head(page), page.body])


def _revisit(page: CrawledPage, fields: list[tuple[str, str]], digest: str, place: bytes) -> list[bytes]:
    """Return a revisit record, which refers to the record with the payload."""
    own, date, url = place.decode().split(" ")
    about = [("WARC-Type", "revisit"), *fields]
    about += [("WARC-Refers-To", own), ("WARC-Refers-To-Target-URI", url), ("WARC-Refers-To-Date", date)]
    about.append(("WARC-Payload-Digest", digest))
    if page.cache == "revalidated" and dict(fields)["WARC-Target-URI"] == url:
        # No block: the headers of the 304 are not stored.
        return record([*about, ("WARC-Profile", NOT_MODIFIED)])
    about += [
        ("WARC-Profile", IDENTICAL),
        ("WARC-Truncated", "length"),
        ("Content-Type", RESPONSE),
    ]
    return _digested(about, [response_head(page)])


def new_id() -> str:
    """Return a new, globally unique record id."""
    return f"<{uuid.uuid4().urn}>"


def target_uri(url: str) -> str:
    """Return a URL in a form valid for a field; a canonical one is unchanged."""
    if url.isascii() and url.isprintable() and " " not in url:
        return url
    return quote(url.encode("utf-8", "surrogatepass"), safe="!#$%&'()*+,/:;=?@[]~")


def date_of(moment: str) -> str:
    """Return a time as `WARC-Date`: ISO 8601, UTC, with the letter Z. An invalid one becomes the present time."""
    found = _DATE.fullmatch(moment)
    return f"{found[1]}Z" if found else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def record(fields: Iterable[tuple[str, str]], block: Sequence[bytes] = ()) -> list[bytes]:
    """Return a record in pieces. Its last field is the length of its block."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    head = f"WARC/1.1\r\n{lines}Content-Length: {sum(map(len, block))}\r\n\r\n"
    return [head.encode("utf-8", "replace"), *block, _END]


def pressed(pieces: Sequence[bytes], level: int) -> list[bytes]:
    """Return a record as a separate gzip member, so that readers can start at any record (annex D)."""
    # Allocating the full window takes longer than compressing a small record.
    bits, memory = (12, 5) if sum(map(len, pieces)) <= 4096 else (15, 8)
    press = zlib.compressobj(level, zlib.DEFLATED, 16 + bits, memory)
    made = []
    for piece in pieces:
        rest = memoryview(piece)
        while rest:
            made.append(press.compress(rest[:_STEP]))
            rest = rest[_STEP:]
    made.append(press.flush())
    return made


def request_head(page: CrawledPage) -> bytes:
    """Return the head of the request, as far as it is known."""
    host, _, rest = target_uri(page.final_url).partition("://")[2].partition("/")
    method = page.record.method if page.record is not None else "GET"
    lines = [f"{method} /{rest} HTTP/1.1"]
    if "host" not in page.request_headers:
        lines.append(f"Host: {host}")
    lines += (f"{name}: {value}" for name, value in _shown(page.request_headers))
    return _http(lines)


def response_head(page: CrawledPage) -> bytes:
    """Return the head of the response, adapted to the stored body."""
    lines = [f"HTTP/1.1 {page.status} {_PHRASES.get(page.status, '')}"]
    length = str(len(page.body))
    for name, value in _shown(page.headers):
        lower = name.lower()
        if lower in _WIRE or (lower == "content-length" and value.strip() != length):
            name = f"X-Crawler-{name}"
        elif lower == "content-length":
            continue
        lines.append(f"{name}: {value}")
    if page.cache is not None:
        lines.append(f"X-Crawler-Cache: {page.cache}")
    if page.rendered:
        lines.append("X-Crawler-Rendered: true")
    lines.append(f"Content-Length: {length}")
    return _http(lines)


def _shown(headers: Headers) -> list[tuple[str, str]]:
    return [each for each in headers.fields if each[0].lower() not in HIDDEN]


def _http(lines: list[str]) -> bytes:
    head = "\r\n".join(_LINE_ENDS.sub(" ", line) for line in lines) + "\r\n\r\n"
    try:
        return head.encode("utf-8", "surrogateescape")  # bytes that are not UTF-8 are written as received
    except UnicodeEncodeError:
        return head.encode("utf-8", "replace")


def whole_members(path: str) -> tuple[int, int]:
    """Return the length of the intact gzip members of a file, and the number of page records in them."""
    whole = place = answers = 0
    head = b""
    member = zlib.decompressobj(31)
    with open(path, "rb") as file:
        while data := file.read(_STEP):
            try:
                while data:
                    made = member.decompress(data)
                    head = head or made[: len(_ANSWERS[0])]
                    place += len(data) - len(member.unused_data)
                    data = member.unused_data
                    if member.eof:
                        whole, member = place, zlib.decompressobj(31)
                        answers, head = answers + head.startswith(_ANSWERS), b""
            except zlib.error:
                break
    return whole, answers


def whole_records(path: str) -> tuple[int, int]:
    """Return the length of the intact plain records of a file, and the number of page records in them."""
    whole = answers = 0
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while (head := file.readline()) == b"WARC/1.1\r\n":
            length = None
            while (line := file.readline()).strip():
                name, _, value = line.partition(b":")
                if head == b"WARC/1.1\r\n":
                    head += line
                if name.lower() == b"content-length" and value.strip().isdigit():
                    length = int(value)
            if length is None or line != b"\r\n" or file.tell() + length + len(_END) > size:
                break
            file.seek(length, os.SEEK_CUR)
            if file.read(len(_END)) != _END:
                break
            whole = file.tell()
            answers += head.startswith(_ANSWERS)
    return whole, answers


def begins_with(path: str, beginning: bytes, gzip: bool) -> bool:
    """Return whether a file begins with `beginning`. An empty or torn file does, if its bytes agree."""
    with open(path, "rb") as file:
        found = file.read(_STEP)
    if gzip:
        try:
            found = zlib.decompressobj(31).decompress(found, len(beginning))
        except zlib.error:
            return False
    return found.startswith(beginning) or beginning.startswith(found)

"""Records of a WARC file, version 1.1 (ISO 28500:2017): creation, compression and scanning.

Bodies are stored decompressed, not as sent over the wire. Header fields about the wire form (`Content-Encoding`,
`Transfer-Encoding`, a `Content-Length` that is not the body's) would mislead replay tools. So they get the prefix
`X-Crawler-`, as in Common Crawl, and `Content-Length` has the actual length. Cookies and credentials are left out
(F62).
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from urllib.parse import quote

from curtsy.core.message import Headers
from curtsy.crawling.outputs.entry import HIDDEN
from curtsy.crawling.results import CrawledPage

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


def new_id() -> str:
    """Return a new, globally unique record id."""
    digits = os.urandom(16).hex()
    # Version and variant bits of UUID version 4 (RFC 9562, 5.4); uuid.uuid4() takes three times as long.
    variant = "89ab"[int(digits[16], 16) & 3]
    return f"<urn:uuid:{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}>"


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

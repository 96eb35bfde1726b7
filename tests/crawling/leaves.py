"""Pages to be written, any of them, and what can be read back from the outputs they were written to."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator

from curtsy.core.request import Headers
from curtsy.core.url import Url, parse_url
from curtsy.crawling.outputs.folder import Folder
from curtsy.crawling.outputs.jsonlines import JsonLines
from curtsy.crawling.outputs.parts import Parts
from curtsy.crawling.outputs.protocol import FileOutput, Output
from curtsy.crawling.outputs.skipped import SkippedCsv
from curtsy.crawling.outputs.tables import PagesCsv
from curtsy.crawling.outputs.warc import Warc
from curtsy.crawling.results import CrawledPage, SkippedUrl

Leaf = CrawledPage | SkippedUrl
MOMENT = "2026-11-15T08:00:00.123Z"


def page(number: int = 0, body: bytes | None = None, **fields: Any) -> CrawledPage:
    """A page like many; the same for the same number."""
    url = f"https://example.org/page/{number}"
    if body is None:
        body = f"<title>Page {number}</title><p>{random.Random(number).randbytes(300).hex()}".encode()
    given: dict[str, Any] = {
        "url": url,
        "final_url": fields.get("url", url),
        "status": 200,
        "title": f"Page {number}",
        "links": (f"https://example.org/page/{number + 1}",),
        "fetched_at": MOMENT,
        "content_type": "text/html; charset=utf-8",
        "encoding": "utf-8",
        "body": body,
        "headers": Headers([("Content-Type", "text/html; charset=utf-8"), ("Server", "a-server")]),
        "request_headers": Headers([("User-Agent", "ABot/1.0")]),
        "depth": 1,
        "parent": "https://example.org/",
    }
    return CrawledPage(**{**given, **fields})


def skip(number: int = 0) -> SkippedUrl:
    """A URL that was skipped; the same for the same number."""
    message = "It is said there. Leave it out."
    return SkippedUrl(f"https://example.org/no/{number}", "robots_disallowed", message, depth=1, at=MOMENT)


# Any pages at all

TEXT = st.text(max_size=30)
NAMES = st.sampled_from(
    ["Content-Type", "content-encoding", "Transfer-Encoding", "CONTENT-LENGTH", "Set-Cookie", "X-Odd", "Location"]
)
VALUES = st.one_of(TEXT, st.text("\r\n\0\udce9\ud800=:ü ", max_size=9), st.sampled_from(["5", "gzip", "chunked"]))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=5).map(Headers)


@st.composite
def leaves(draw: st.DrawFn) -> list[Leaf]:
    """Pages and skipped URLs; each URL once, as in a crawl, and some bodies again."""
    made: list[Leaf] = []
    for number in range(draw(st.integers(0, 8))):
        url = parse_url(f"https://example.org/{number}/{draw(TEXT)}")
        assert isinstance(url, Url)
        if draw(st.integers(0, 3)) == 0:
            made.append(SkippedUrl(url.text, draw(TEXT), draw(TEXT), draw(st.none() | st.just(404)), number))
            continue
        made.append(
            page(
                number,
                draw(
                    st.sampled_from([b"", b"the same", b"\r\n\r\nWARC/1.1\r\n", b"x" * 70_000]) | st.binary(max_size=99)
                ),
                url=url.text,
                title=draw(st.none() | TEXT),
                main_text=draw(st.none() | TEXT),
                status=draw(st.sampled_from([200, 299, 404])),
                content_type=draw(st.sampled_from([None, "text/html", "application/json", "a/../b", "image/png"])),
                headers=draw(HEADERS),
                request_headers=draw(HEADERS),
                cache=draw(st.sampled_from([None, None, "hit", "revalidated", "stale"])),
            )
        )
    return made


# What was written


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the outputs."""

    name: str
    make: Callable[[Path], Output]
    """In a folder of its own."""

    content: Callable[[Path], Any]
    """What two runs that wrote the same have alike."""

    file: str
    """The first file that it writes."""


def lines_of(folder: Path) -> list[Any]:
    content = (folder / "out.jsonl").read_bytes()
    assert content.endswith(b"\n") or not content
    return [json.loads(line) for line in content.splitlines()]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def records_of(folder: Path) -> Iterator[tuple[dict[str, str], Any, bytes]]:
    """The records of an archive, in order: fields, HTTP head, payload. Every digest is checked."""
    for path in sorted(folder.glob("out-*.warc*")):
        with path.open("rb") as file:
            for number, record in enumerate(ArchiveIterator(file, check_digests="raise")):
                assert (record.rec_type == "warcinfo") == (number == 0), "it comes first, and once"
                yield dict(record.rec_headers.headers), record.http_headers, record.raw_stream.read()


def archived(folder: Path) -> list[Any]:
    """What the records say, but for their names, which differ each time; that those fit together is checked."""
    names: dict[str, str] = {}
    said = []
    for fields, head, payload in records_of(folder):
        fields.pop("WARC-Filename", None)
        names[fields["WARC-Record-ID"]] = fields.get("WARC-Target-URI", "")
        del fields["WARC-Record-ID"]
        if "WARC-Refers-To" in fields:
            assert names[fields.pop("WARC-Refers-To")] == fields["WARC-Refers-To-Target-URI"]
        if "WARC-Concurrent-To" in fields:
            assert names[fields.pop("WARC-Concurrent-To")] == fields["WARC-Target-URI"]
        if fields["WARC-Type"] != "warcinfo":  # where a file ends goes by its size, which the names have a part in
            said.append((fields, None if head is None else (head.statusline, head.headers), payload))
    return said


def parts(folder: Path) -> Parts:
    """An output in small parts, stored beside its spool."""
    output = Parts(f"file://{folder}/out.jsonl", "jsonl", body="base64", part_size=2000)
    output.place(folder / "spool")
    return output


def listed(folder: Path) -> list[Any]:
    """The pages of parts: those that the manifest lists, then those in the spool."""
    manifest = folder / "out.jsonl.manifest.jsonl"
    names = [json.loads(line) for line in manifest.read_text().splitlines()] if manifest.exists() else []
    files = [folder / each["name"] for each in names]
    stored = {each["name"].removeprefix("out-").partition(".")[0] for each in names}
    files += [path for path in sorted(folder.glob("spool/*/part.jsonl")) if path.parent.name not in stored]
    return [json.loads(line) for path in files for line in path.read_bytes().splitlines()]


KINDS = [
    Kind("jsonl", lambda folder: JsonLines(folder / "out.jsonl", body="base64"), lines_of, "out.jsonl"),
    Kind("folder", lambda folder: Folder(folder / "out"), files_of, "out/index.jsonl"),
    Kind("warc.gz", lambda folder: Warc(folder / "out.warc.gz", max_size=1500), archived, "out-00001.warc.gz"),
    Kind("warc", lambda folder: Warc(folder / "out.warc", max_size=4000), archived, "out-00001.warc"),
    Kind("csv", lambda folder: PagesCsv(folder / "out.csv"), files_of, "out.csv"),
    Kind("skipped", lambda folder: SkippedCsv(folder / "out.csv"), files_of, "out.csv"),
    Kind("parts", parts, listed, "spool/00001/part.jsonl"),
]


def write(output: Output, leaf: Leaf) -> None:
    if isinstance(leaf, SkippedUrl):
        output.skipped(leaf)
    else:
        output.page(leaf)


def record(output: Output) -> Any:
    """Flush an output, and note where it ended as a frontier does."""
    state = json.loads(json.dumps(output.flush()))
    if isinstance(output, FileOutput):
        output.recorded()
        output.deliver()
    return state


def sizes(folder: Path) -> dict[Path, int]:
    return {path: os.path.getsize(path) for path in folder.rglob("*") if path.is_file()}

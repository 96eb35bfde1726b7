"""Folder: a body file and a `.meta.json` per page, and an index of all.

    <path>/index.jsonl                     one line per page: its URL and its file
    <path>/3f/3f….html                     the body, decompressed; its ending depends on its content type
    <path>/3f/3f….meta.json                the metadata, as in a line of `JsonLines`

A file name is the SHA-256 of the URL, so the site does not control any part of it (F63). A page's line is in the index
before its files are created. So the lines that are cut off after a kill name the files to remove.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

import msgspec

from curtsy.crawling.outputs.append_file import End, ForeignFile, read_state
from curtsy.crawling.outputs.jsonlines import encode, entry_of
from curtsy.crawling.outputs.protocol import FileOutput
from curtsy.crawling.results import CrawledPage
from curtsy.system.own_file import create_own, sync_folder

INDEX, META, PART = "index.jsonl", ".meta.json", ".part"

UNKNOWN = ".bin"
"""Ending of files with an absent or unknown content type."""

# Not the `mimetypes` module: it reads tables of the machine, and knows endings that systems execute.
ENDINGS = {
    kind: f".{ending}"
    for ending, kinds in {
        "html": "text/html",
        "xhtml": "application/xhtml+xml",
        "txt": "text/plain",
        "css": "text/css",
        "csv": "text/csv",
        "md": "text/markdown",
        "xml": "text/xml application/xml",
        "rss": "application/rss+xml",
        "atom": "application/atom+xml",
        "json": "application/json text/json application/ld+json application/feed+json",
        "js": "text/javascript application/javascript application/x-javascript",
        "pdf": "application/pdf",
        "epub": "application/epub+zip",
        "doc": "application/msword",
        "xls": "application/vnd.ms-excel",
        "ppt": "application/vnd.ms-powerpoint",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "pptx": "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "odt": "application/vnd.oasis.opendocument.text",
        "ods": "application/vnd.oasis.opendocument.spreadsheet",
        "zip": "application/zip application/x-zip-compressed",
        "gz": "application/gzip application/x-gzip",
        "png": "image/png",
        "jpg": "image/jpeg image/jpg",
        "gif": "image/gif",
        "webp": "image/webp",
        "avif": "image/avif",
        "svg": "image/svg+xml",
        "ico": "image/x-icon image/vnd.microsoft.icon",
        "mp3": "audio/mpeg",
        "ogg": "audio/ogg application/ogg",
        "wav": "audio/wav audio/x-wav",
        "mp4": "video/mp4",
        "webm": "video/webm",
        "woff2": "font/woff2",
    }.items()
    for kind in kinds.split()
}

_FILE = re.compile(r"([0-9a-f]{2})/\1[0-9a-f]{62}(?:\.[a-z0-9]+)")


class IndexEntry(msgspec.Struct, frozen=True, gc=False):
    """Line of the index."""

    url: str
    file: str
    """Path of the body within the folder. The other file has `.meta.json` instead of its ending."""

    status: int
    content_type: str | None
    size: int
    fetched_at: str


class Folder(FileOutput):
    """Pages as files in a folder, which must be new or empty.

    With `mask_secrets`, values in URLs that look secret are written as `***`. File names are made from the unmasked
    URLs. A crawl has each URL once. A second page of a URL replaces the first.
    """

    def __init__(self, path: str | os.PathLike[str], *, mask_secrets: bool = True) -> None:
        super().__init__("folder", path, INDEX)
        self._mask_secrets = mask_secrets

    def _open(self, state: Any | None) -> None:
        flushed = read_state(self.name, state, End)
        later: list[str] = []
        if flushed is None:
            self._check_empty()
        elif os.path.exists(self._file.path):
            later = _files_after(self._file.path, flushed.size)
        super()._open(state)
        for file in later:  # only after the index is recognized as ours
            for path in self._paths(file):
                for each in (path, path + PART):
                    with contextlib.suppress(OSError):
                        os.unlink(each)

    def _verify(self, state: Any | None) -> None:
        if state is None:
            self._check_empty()
        super()._verify(state)

    def _check_empty(self) -> None:
        if os.path.isdir(self.path) and set(os.listdir(self.path)) - {INDEX}:
            raise ForeignFile(self.path)

    def page(self, page: CrawledPage) -> None:
        """Write a line of the index, then the two files, each completely or not at all."""
        entry = entry_of(page, mask_secrets=self._mask_secrets)
        key = entry.url_sha256
        file = f"{key[:2]}/{key}{ending_of(page.content_type)}"
        line = IndexEntry(entry.url, file, entry.status, entry.content_type, entry.size, entry.fetched_at)
        meta = msgspec.json.format(encode(entry), indent=2)
        with self._restored():
            self._file.write(encode(line), b"\n")
            self._file.sync()
            body_path, meta_path = self._paths(file)
            create_whole(body_path, page.body, durable=self.is_durable)
            create_whole(meta_path, meta, durable=self.is_durable)
            if self.is_durable:
                sync_folder(os.path.dirname(body_path))
                sync_folder(self.path)

    def _paths(self, file: str) -> tuple[str, str]:
        path = os.path.join(self.path, *file.split("/"))
        return path, os.path.splitext(path)[0] + META


def ending_of(content_type: str | None) -> str:
    """Return the file name ending for a content type: a known one, or `.bin`."""
    return ENDINGS.get((content_type or "").partition(";")[0].strip().lower(), UNKNOWN)


def _files_after(index: str, place: int) -> list[str]:
    """Return the bodies named in the index from `place` on. Files of a torn last line were never created."""
    with open(index, "rb") as lines:
        lines.seek(place)
        found = []
        for line in lines:
            try:
                file = msgspec.json.decode(line, type=IndexEntry).file
            except msgspec.MsgspecError:
                continue
            if _FILE.fullmatch(file):  # other files are never removed
                found.append(file)
    return found


def create_whole(path: str, data: bytes, *, durable: bool = False) -> None:
    """Create or replace a file, completely or not at all, with the folders above it."""
    part = path + PART
    try:
        number = create_own(part)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        number = create_own(part)
    with open(number, "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        if durable:
            os.fsync(file.fileno())
    os.replace(part, path)

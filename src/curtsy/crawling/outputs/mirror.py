"""Mirror: a site as files that a browser shows offline.

    <path>/example.org/a/b.html           a page, with links to the other files
    <path>/example.org/style.css          what pages need
    <path>/.curtsy-mirror.sqlite          the index: URLs, files, and pages as they were received

Files are written as pages arrive, with the links that are known then. At the end of a run, `finish` converts the links
again where more files are known. The index says which files are left, so a killed run is completed by the next one. A
later run writes a file only if its content has changed. No file is ever removed: a page that is gone stays.

The index may have pages that the frontier does not know to be done, after a kill. They are fetched again, and get the
same files. So nothing has to be truncated.
"""

from __future__ import annotations

import hashlib
import math
import os
import stat
import time
from typing import Any

import msgspec

from curtsy.core.errors import NotWritten
from curtsy.core.fetch_state import redirect_target
from curtsy.core.request import Response
from curtsy.core.url import Url, parse_url
from curtsy.crawling.outputs.append_file import ForeignFile, check_place, read_state
from curtsy.crawling.outputs.folder import create_whole
from curtsy.crawling.outputs.mirror_index import INDEX, MirrorFile, MirrorIndex
from curtsy.crawling.outputs.mirror_links import converted, has_links
from curtsy.crawling.outputs.mirror_names import hashed_name, name_of
from curtsy.crawling.outputs.protocol import FileOutput, Written
from curtsy.crawling.results import CrawledPage, SkippedUrl
from curtsy.system.log import LibraryLogger, library_logger
from curtsy.system.own_file import sync_folder

_log: LibraryLogger = library_logger("crawl")

STEP = 100
"""Files converted between two commits."""

MOST_FOLDERS = 10_000
"""Maximum number of folders that are known to be no links."""


class MirrorState(msgspec.Struct, frozen=True):
    """Recorded state of a mirror."""

    run: int
    """Number of the run, from 1."""

    files: int
    """Number of files, including those that are missing since."""


class Mirror(FileOutput):
    """Site as files that a browser shows offline, in a folder that is new, empty or a mirror.

    A crawl with a mirror also fetches what its pages need (`requisites`).
    """

    needs_requisites = True

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__("mirror", path, INDEX)
        self._index = MirrorIndex(self.path)
        self._run = 0
        self._count = 0
        """Number of files."""
        self._missing = 0
        """Number of files that an earlier run has written to an index that is gone."""
        self._folders: set[str] = set()
        """Folders that were checked."""

    def _open(self, state: Any | None) -> None:
        before = read_state(self.name, state, MirrorState)
        os.makedirs(self.path, exist_ok=True)
        self._check_own()
        self._folders.clear()
        self._index.open()
        with self._index.use():
            self._run = self._index.number("run") + 1 if before is None else before.run
            self._index.set_number("run", self._run)
            self._count = self._index.count()
        self._missing = 0 if before is None else max(0, before.files - self._count)

    def _verify(self, state: Any | None) -> None:
        if os.path.isdir(self.path):
            self._check_own()
        else:
            check_place(os.path.join(self.path, INDEX))

    def _check_own(self) -> None:
        if set(os.listdir(self.path)) - {INDEX, f"{INDEX}.lock"} and not os.path.lexists(self._index.path):
            raise ForeignFile(self.path)

    def page(self, page: CrawledPage) -> None:
        """Write the file of a page, unless it is there already."""
        with self._restored():
            with self._index.use():
                content = self._take(page)
            if content is not None:
                self._write(*content)

    def requisite(self, page: CrawledPage) -> None:
        """Write the file of what a page needs."""
        self.page(page)

    def redirect(self, page: CrawledPage) -> None:
        """Record where a URL leads to."""
        url = _parsed(page.url)
        target = redirect_target(url, Response(page.status, page.headers, b""))
        if isinstance(target, Url):
            with self._restored(), self._index.use():
                self._index.link(url.text, None, target.text)

    def skipped(self, skipped: SkippedUrl) -> None:
        """Record which page is kept instead of another."""
        if skipped.instead is not None:
            with self._restored(), self._index.use():
                self._index.link(skipped.url, None, skipped.instead)

    def finish(self, seconds: float | None) -> None:
        """Convert the links of all files that may lead to other files than before; at least one file."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        after = -1
        with self._restored():
            while batch := self._unconverted(after):
                for file in batch:
                    if after >= 0 and time.monotonic() >= until:
                        _log.warning(f"Not all links in {self.path} are converted yet. The next run continues.")
                        self._index.commit()
                        return
                    self._convert(file)
                    after = file.id
                self._index.commit()

    def _unconverted(self, after: int) -> list[MirrorFile]:
        with self._index.use():
            return self._index.unconverted(after, STEP)

    def _convert(self, file: MirrorFile) -> None:
        with self._index.use():
            data = converted(
                self._index.original(file), file.content_type, _parsed(file.url), file.name, self._index.names
            )
        self._write(file.name, data)
        with self._index.use():
            self._index.set_converted(file.id)

    def written(self) -> Written:
        """Return the number of its files."""
        return Written(self.name, self._count, self._missing)

    def _flush(self) -> dict[str, Any]:
        self._index.commit()
        return {"run": self._run, "files": self._count + self._missing}

    def _close(self) -> None:
        self._index.close()

    def discard(self, why: str = "") -> None:
        """Close it without the changes since the last flush; files that were written stay."""
        super().discard(why)
        self._index.close()

    def _take(self, page: CrawledPage) -> tuple[str, bytes] | None:
        """Add a page to the index; return the name and the content of its file, or None if that is there already."""
        url, index, sha = _parsed(page.url), self._index, hashlib.sha256(page.body).digest()
        name = self._name(url, page.content_type, sha)
        file = index.file_named(name)
        if file is not None and (file.sha, file.content_type) == (sha, page.content_type) and self._is_there(name):
            index.confirm(file, self._run)
            index.link(url.text, file.id)
            return None
        self._count += file is None
        body, is_converted = page.body, has_links(page.content_type, page.body)
        number = index.put(name, url.text, page.content_type, sha, self._run, body if is_converted else None)
        index.link(url.text, number)
        if is_converted:
            body = converted(body, page.content_type, url, name, index.names)
            index.set_converted(number)
        return name, body

    def _name(self, url: Url, content_type: str | None, sha: bytes) -> str:
        """Return the name of the file of a URL: that of an earlier run, or a new one.

        URLs with the same name share a file while they have the same content, as `/a/` and `/a/index.html`.
        """
        last, index = hashed_name(url, content_type), self._index
        names = [each for each in (name_of(url, content_type), last) if each is not None]
        own = index.file_of(url.text)
        if own is not None and own.name in names and (own.run < self._run or self._is_same(own, url, sha)):
            return own.name
        for name in names:
            file = index.file_named(name)
            if file is not None and self._is_same(file, url, sha):
                return file.name
            if file is None and index.is_free(name):
                return name
        return last

    @staticmethod
    def _is_same(file: MirrorFile, url: Url, sha: bytes) -> bool:
        return file.url == url.text or file.sha == sha

    def _path(self, name: str) -> str:
        return os.path.join(self.path, *name.split("/"))

    def _is_there(self, name: str) -> bool:
        try:
            return stat.S_ISREG(os.lstat(self._path(name)).st_mode)
        except OSError:
            return False

    def _write(self, name: str, data: bytes) -> None:
        """Write a file, unless it has this content."""
        path = self._path(name)
        self._make_folder(name.rpartition("/")[0])
        if self._is_there(name) and os.path.getsize(path) == len(data):
            with open(path, "rb") as file:
                if file.read() == data:
                    return
        create_whole(path, data, durable=self.is_durable)
        if self.is_durable:
            sync_folder(os.path.dirname(path))

    def _make_folder(self, name: str) -> None:
        """Create a folder and those above it. Raises NotWritten for a link, which could lead out of the mirror."""
        if name in self._folders:
            return
        path = self.path
        for part in name.split("/"):
            path = os.path.join(path, part)
            try:
                os.mkdir(path)
            except FileExistsError:
                if not stat.S_ISDIR(os.lstat(path).st_mode):
                    raise NotWritten(
                        f"{path} is a link or a file, and a mirror needs a folder there. Remove it, or mirror to "
                        "another folder.",
                        path,
                        is_lasting=True,
                    ) from None
        if len(self._folders) >= MOST_FOLDERS:
            self._folders.clear()
        self._folders.add(name)


def file_at(folder: str, url: str) -> str | None:
    """Return the path of the file that a page usually has in a mirror; None if it is not there."""
    name = name_of(_parsed(url), "text/html")
    path = None if name is None else os.path.join(folder, *name.split("/"))
    return path if path is not None and os.path.isfile(path) else None


def _parsed(url: str) -> Url:
    parsed = parse_url(url)
    assert isinstance(parsed, Url)
    return parsed

"""Index of a mirror: which file has which URL, in one SQLite file in the mirror's folder.

It also keeps the bodies of pages and style sheets as they were received, compressed, because their files have other
links. So the links can be converted again whenever more files are there.
"""

from __future__ import annotations

import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice

from curtsy.core.masking import masked_repr
from curtsy.stores.sqlite_file import Format, SQLiteFile

INDEX = ".curtsy-mirror.sqlite"
"""Name of the index in the mirror's folder. No host begins with a dot."""

FORMAT = Format(
    0x43724D69,
    (
        "CREATE TABLE files (id INTEGER PRIMARY KEY, name TEXT NOT NULL, folded TEXT NOT NULL UNIQUE,"
        " url TEXT NOT NULL, type TEXT, sha BLOB NOT NULL, run INTEGER NOT NULL, original BLOB,"
        " converted INTEGER NOT NULL DEFAULT 0)",
        "CREATE TABLE folders (folded TEXT PRIMARY KEY) WITHOUT ROWID",
        "CREATE TABLE urls (url TEXT PRIMARY KEY, file INTEGER, target TEXT) WITHOUT ROWID",
        "CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    ),
    pragmas=("locking_mode = EXCLUSIVE",),
    text=str,
)

PATIENCE = 10.0
"""Seconds to wait for another program that reads the index."""

MOST_HOPS = 10
"""Maximum number of redirects between a link and its file."""

_AT_ONCE = 500
"""URLs looked up in one query."""


@dataclass(frozen=True, slots=True, repr=False)
class MirrorFile:
    """File of a mirror."""

    id: int
    name: str
    url: str
    content_type: str | None
    sha: bytes
    """SHA-256 of the body as received."""

    run: int
    """Run in which the body was last received."""

    converted: int
    """Number of changes of the index when its links were converted."""

    __repr__ = masked_repr


_COLUMNS = "id, name, url, type, sha, run, converted"


class MirrorIndex:
    """Index of a mirror. Changes become permanent at `commit`."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, INDEX)
        self._file = self._closed_file()
        self._connection: sqlite3.Connection | None = None

    def _closed_file(self) -> SQLiteFile:
        return SQLiteFile(self.path, FORMAT, patience=PATIENCE, exclusive=True)

    def open(self) -> None:
        """Open the index, which is created if missing. Raises StoreError; FileInUse if another process has it."""
        self._file = self._closed_file()
        with self._file.use() as connection:
            self._connection = connection
            connection.execute("BEGIN IMMEDIATE")

    def use(self) -> AbstractContextManager[object]:
        """Return a context manager for access to the index. It raises StoreError for errors of SQLite in its block."""
        return self._file.use()

    @property
    def _database(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def commit(self) -> None:
        """Make all changes permanent."""
        with self._file.use() as connection:
            connection.execute("COMMIT")
            connection.execute("BEGIN IMMEDIATE")

    def close(self) -> None:
        """Close the index without the changes since the last commit. Idempotent."""
        self._connection = None
        with self._file.lock:
            self._file.roll_back()
        self._file.close()

    # Numbers

    def number(self, name: str) -> int:
        """Return a number that is kept by name; 0 at first."""
        found = self._database.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        return 0 if found is None else int(found[0])

    def set_number(self, name: str, value: int) -> None:
        """Keep a number by name."""
        self._database.execute("INSERT OR REPLACE INTO numbers VALUES (?, ?)", (name, value))

    @property
    def changes(self) -> int:
        """Return how often the file of a URL has changed."""
        return self.number("changes")

    def count(self) -> int:
        """Return the number of files."""
        return int(self._database.execute("SELECT count(*) FROM files").fetchone()[0])

    # Files

    def file_of(self, url: str) -> MirrorFile | None:
        """Return the file of a URL itself, without redirects; None if it has none."""
        return self._one("id = (SELECT file FROM urls WHERE url = ?)", url)

    def file_named(self, name: str) -> MirrorFile | None:
        """Return the file of a name, in any case; None if there is none."""
        return self._one("folded = ?", name.lower())

    def _one(self, where: str, value: str) -> MirrorFile | None:
        found = self._database.execute(f"SELECT {_COLUMNS} FROM files WHERE {where}", (value,)).fetchone()
        return None if found is None else MirrorFile(*found)

    def is_free(self, name: str) -> bool:
        """Return whether neither a file nor a folder is in the way of a new file, on systems that ignore case too."""
        folded = name.lower()
        parents = list(_parents(folded))
        names = (folded, *parents)
        marks = ", ".join("?" * len(names))
        taken = self._database.execute(f"SELECT 1 FROM files WHERE folded IN ({marks}) LIMIT 1", names).fetchone()
        as_folder = self._database.execute("SELECT 1 FROM folders WHERE folded = ?", (folded,)).fetchone()
        return taken is None and as_folder is None

    def put(self, name: str, url: str, content_type: str | None, sha: bytes, run: int, original: bytes | None) -> int:
        """Add a file or change its content; return its id. `original` is the body if its links are converted."""
        kept = None if original is None else zlib.compress(original, 1)
        [number] = self._database.execute(
            "INSERT INTO files (name, folded, url, type, sha, run, original) VALUES (?, ?, ?, ?, ?, ?, ?)"
            " ON CONFLICT (folded) DO UPDATE SET url = excluded.url, type = excluded.type, sha = excluded.sha,"
            " run = excluded.run, original = excluded.original, converted = 0 RETURNING id",
            (name, name.lower(), url, content_type, sha, run, kept),
        ).fetchone()
        folders = [(each,) for each in _parents(name.lower())]
        self._database.executemany("INSERT OR IGNORE INTO folders VALUES (?)", folders)
        return int(number)

    def confirm(self, file: MirrorFile, run: int) -> None:
        """Record that the content of a file was received again in a run."""
        self._database.execute("UPDATE files SET run = ? WHERE id = ?", (run, file.id))

    def original(self, file: MirrorFile) -> bytes:
        """Return the body, as received, of a file whose links are converted."""
        [kept] = self._database.execute("SELECT original FROM files WHERE id = ?", (file.id,)).fetchone()
        return zlib.decompress(kept)

    def unconverted(self, after: int, most: int) -> list[MirrorFile]:
        """Return files whose links may lead elsewhere since they were converted: at most `most` after an id."""
        query = f"SELECT {_COLUMNS} FROM files WHERE id > ? AND converted < ? AND original IS NOT NULL"
        found = self._database.execute(f"{query} ORDER BY id LIMIT ?", (after, self.changes, most))
        return [MirrorFile(*row) for row in found]

    def set_converted(self, file_id: int) -> None:
        """Record that the links of a file are converted by the present index."""
        self._database.execute("UPDATE files SET converted = ? WHERE id = ?", (self.changes, file_id))

    # URLs

    def link(self, url: str, file: int | None, target: str | None = None) -> None:
        """Set the file of a URL, or the URL that it leads to. A file that no URL has any more is kept."""
        before = self._database.execute("SELECT file, target FROM urls WHERE url = ?", (url,)).fetchone()
        if before != (file, target):
            self._database.execute("INSERT OR REPLACE INTO urls VALUES (?, ?, ?)", (url, file, target))
            self.set_number("changes", self.changes + 1)

    def names(self, urls: Iterable[str]) -> dict[str, str]:
        """Return the name of the file of each URL that has one, itself or by redirects."""
        found: dict[str, str] = {}
        sought = {url: [url] for url in urls}
        """URLs to look up, each with those that lead to it."""
        for _ in range(MOST_HOPS):
            further: dict[str, list[str]] = {}
            rest = iter(sought)
            while some := tuple(islice(rest, _AT_ONCE)):
                marks = ", ".join("?" * len(some))
                query = (
                    f"SELECT urls.url, name, target FROM urls LEFT JOIN files ON id = file WHERE urls.url IN ({marks})"
                )
                for url, name, target in self._database.execute(query, some):
                    if name is not None:
                        found.update(dict.fromkeys(sought[url], name))
                    elif target is not None:
                        further.setdefault(target, []).extend(sought[url])
            if not further:
                break
            sought = further
        return found


def _parents(name: str) -> Iterator[str]:
    """Yield the folders above a name."""
    place = name.rfind("/")
    while place > 0:
        yield name[:place]
        place = name.rfind("/", 0, place)

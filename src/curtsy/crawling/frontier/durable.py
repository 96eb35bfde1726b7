"""Frontier on disk: one SQLite file, which loses nothing if the process is killed at any moment.

A change is stored when its call returns, or at the end of its block (`together`). Leases are not stored: the file
belongs to one process, so after a restart every URL is queued at its old position. Only the number of unanswered tries
of a URL is stored.

A URL takes about 90 bytes of disk. These are its path and query, the number of its host, an entry in the index by rank,
and a 64-bit hash in the set of URLs seen. That set is ordered by host, because URLs are added by host. Memory holds 70
bytes per host and two megabytes of turns in the host schedule, and some megabytes of SQLite's cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from curtsy.crawling.frontier.local import LocalFrontier
from curtsy.crawling.frontier.protocol import LEASE, Concurrency
from curtsy.crawling.frontier.sqlite_file import SQLiteFile, Unsound
from curtsy.crawling.frontier.url_table import LentUrl, Totals, demoted, fingerprint

SCHEMA = (
    "CREATE TABLE hosts (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)",
    "CREATE TABLE pages (id INTEGER PRIMARY KEY, url TEXT NOT NULL)",
    "CREATE TABLE urls (id INTEGER PRIMARY KEY, host INTEGER NOT NULL, rank INTEGER NOT NULL,"
    " page INTEGER, secure INTEGER NOT NULL, target TEXT NOT NULL)",
    "CREATE INDEX urls_by_turn ON urls (host, rank)",
    "CREATE TABLE seen (host INTEGER, hash INTEGER, PRIMARY KEY (host, hash)) WITHOUT ROWID",
    "CREATE TABLE tries (url INTEGER PRIMARY KEY, count INTEGER NOT NULL)",
    "CREATE TABLE failures (id INTEGER PRIMARY KEY, url TEXT NOT NULL, reason TEXT NOT NULL)",
    "CREATE TABLE notes (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE totals (added INTEGER NOT NULL, done INTEGER NOT NULL, failed INTEGER NOT NULL)",
    "INSERT INTO totals VALUES (0, 0, 0)",
    "ALTER TABLE hosts ADD COLUMN pages INTEGER NOT NULL DEFAULT 0",
)
"""Statements that upgrade a file from each `user_version` to the next. New ones are only appended."""

CACHE = 4 << 20
"""Bytes of the file that SQLite caches in memory."""

_NAMES = 10_000
"""Hosts whose numbers are cached; others are looked up in the file."""

_FIRST = (
    "SELECT urls.id, rank, secure, target, name, pages.url, hosts.pages FROM urls JOIN hosts ON hosts.id = host"
    " LEFT JOIN pages ON pages.id = page WHERE host = ? ORDER BY rank, urls.id LIMIT ?"
)


_Value = TypeVar("_Value")


class _Row(msgspec.Struct, array_like=True, gc=False):
    id: int
    rank: int
    secure: Literal[0, 1]
    target: str
    name: str
    parent: str | None
    host_pages: int

    @property
    def url(self) -> str:
        return f"http{'s' if self.secure else ''}://{self.name}{self.target}"


class SQLiteUrlTable:
    """URL table in a SQLite file."""

    def __init__(self, path: str | os.PathLike[str], *, fresh: bool, cache: int) -> None:
        self._ledger = SQLiteFile(path, SCHEMA, fresh=fresh, cache=cache)
        self._execute, self._rows = self._ledger.execute, self._ledger.rows
        self._numbers: dict[str, int] = {}
        self._page: tuple[str, int] | None = None
        """Page on which URLs were last found, and its number."""
        self._tries: dict[int, int] = {}
        try:
            totals = next(self._rows("SELECT added, done, failed FROM totals"), None)
            self.totals = self._sound(msgspec.convert, totals, Totals)
            self._hosts: int = next(self._rows("SELECT coalesce(max(id), 0) FROM hosts"))[0]
        except BaseException:
            self.close()
            raise
        self._before = self.totals, self._hosts

    def begin(self) -> None:
        """Begin a transaction."""
        self._before = msgspec.structs.replace(self.totals), self._hosts
        self._ledger.begin()

    def commit(self) -> None:
        """Commit the transaction."""
        if self.totals != self._before[0]:
            values = msgspec.structs.astuple(self.totals)
            self._execute("UPDATE totals SET added = ?, done = ?, failed = ?", values)
        self._ledger.commit()

    def roll_back(self) -> bool:
        """Undo all changes since `begin`; the caller must read `waiting` again."""
        self._ledger.roll_back()
        self.totals, self._hosts = self._before
        self._numbers.clear()
        self._page = None
        return True

    def number(self, host: str) -> int:
        """Return the number of a host; assign one to a new host."""
        number = self.find(host)
        if number is None:
            self._hosts += 1
            number = self._hosts
            self._execute("INSERT INTO hosts (id, name) VALUES (?, ?)", (number, host))
            self._remember(host, number)
        return number

    def find(self, host: str) -> int | None:
        """Return the number of a host; None if unknown."""
        number = self._numbers.get(host)
        if number is None:
            for (number,) in self._rows("SELECT id FROM hosts WHERE name = ?", (host,)):
                self._remember(host, number)
        return number

    def _remember(self, host: str, number: int) -> None:
        if len(self._numbers) >= _NAMES:
            self._numbers.clear()
        self._numbers[host] = number

    def name(self, number: int) -> str:
        """Return the host with a number."""
        for (name,) in self._rows("SELECT name FROM hosts WHERE id = ?", (number,)):
            return str(name)
        raise self._ledger.filters(Unsound(f"there is no host {number}"))

    def hosts(self) -> int:
        """Return the number of hosts."""
        return self._hosts

    def put(self, host: int, urls: Sequence[str], rank: int, parent: str | None) -> int:
        """Store unseen URLs of one host; return how many were new."""
        new = self._unseen(host, urls)
        if new:
            page = None if parent is None else self._page_number(parent)
            rows = [(host, rank, page, *_parts(url)) for url in new]
            self._ledger.execute_many(
                "INSERT INTO urls (host, rank, page, secure, target) VALUES (?, ?, ?, ?, ?)", rows
            )
            self.totals.added += len(new)
        return len(new)

    def mark(self, host: int, urls: Sequence[str]) -> int:
        """Count URLs of one host as seen; return how many were new."""
        return len(self._unseen(host, urls))

    def has_seen(self, host: int, url: str) -> bool:
        """Return whether a URL of a host was ever stored or marked."""
        rows = self._rows("SELECT 1 FROM seen WHERE host = ? AND hash = ?", (host, fingerprint(url)))
        return next(rows, None) is not None

    def _unseen(self, host: int, urls: Sequence[str]) -> list[str]:
        statement = "INSERT OR IGNORE INTO seen VALUES (?, ?)"
        return [url for url in urls if self._execute(statement, (host, fingerprint(url))).rowcount]

    def _page_number(self, url: str) -> int:
        if self._page is None or self._page[0] != url:
            number = self._execute("INSERT INTO pages (url) VALUES (?)", (url,)).lastrowid
            assert number is not None
            self._page = url, number
        return self._page[1]

    def lend(self, host: int, out: Container[int], count: int) -> LentUrl:
        """Lend the first URL of a host that is not in `out`, of which `count` are the host's."""
        for values in self._rows(_FIRST, (host, count + 1)):
            if values[0] not in out:
                row = self._sound(msgspec.convert, values, _Row)
                tries = self._tries.get(row.id, 0)
                self._try(row.id, tries + 1)
                return LentUrl(row.id, row.url, row.name, row.rank, row.parent, tries, row.host_pages)
        raise self._ledger.filters(Unsound(f"a URL is missing of host {host}"))

    def _try(self, number: int, tries: int) -> None:
        """Store the number of unanswered tries of a URL."""
        if tries:
            self._tries[number] = tries
            self._execute("REPLACE INTO tries VALUES (?, ?)", (number, tries))
        else:
            self._tries.pop(number, None)
            self._execute("DELETE FROM tries WHERE url = ?", (number,))

    def take_back(self, lent: LentUrl, *, heard: bool, last: bool = False) -> None:
        """Make a lent URL available again; its row never left the table.

        With `last`, its priority drops by one.
        """
        if last:
            self._execute("UPDATE urls SET rank = ? WHERE id = ?", (demoted(lent.rank), lent.id))
        if heard:
            self._try(lent.id, lent.tries)

    def finish(self, lent: LentUrl, *, is_page: bool) -> None:
        """Remove a lent URL that is done; with `is_page`, count a page for its host."""
        self._remove(lent)
        self.totals.done += 1
        if is_page:
            self._execute("UPDATE hosts SET pages = pages + 1 WHERE name = ?", (lent.host,))

    def fail(self, lent: LentUrl, reason: str) -> None:
        """Remove a lent URL that failed, and store the reason."""
        self._remove(lent)
        self._execute("INSERT INTO failures (url, reason) VALUES (?, ?)", (lent.url, reason))
        self.totals.failed += 1

    def _remove(self, lent: LentUrl) -> None:
        self._execute("DELETE FROM urls WHERE id = ?", (lent.id,))
        self._try(lent.id, 0)

    def failures(self) -> Iterator[tuple[str, str]]:
        """Yield the failed URLs with their reasons, in order."""
        last = 0
        query = "SELECT id, url, reason FROM failures WHERE id > ? ORDER BY id LIMIT 1000"
        while rows := list(self._rows(query, (last,))):
            for last, url, reason in rows:  # noqa: B007
                yield url, reason

    def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name."""
        rows = [(name, msgspec.json.encode(value)) for name, value in notes.items()]
        self._ledger.execute_many("REPLACE INTO notes VALUES (?, ?)", rows)

    def notes(self) -> dict[str, Any]:
        """Return all stored notes."""
        rows = self._rows("SELECT name, value FROM notes")
        return {name: self._sound(msgspec.json.decode, value) for name, value in rows}

    def waiting(self) -> Iterator[tuple[int, int, str]]:
        """Yield each host that has queued or lent URLs: its number, their count, its name."""
        tries = dict(self._rows("SELECT url, count FROM tries"))
        self._tries = self._sound(msgspec.convert, tries, dict[int, int])
        counted = "SELECT host, count(*) AS count FROM urls GROUP BY host"
        for host, count, name in self._rows(f"SELECT host, count, name FROM ({counted}) LEFT JOIN hosts ON id = host"):
            if not isinstance(host, int) or not 0 < host <= self._hosts or not isinstance(name, str):
                raise self._ledger.filters(Unsound(f"there is no host {host!r:.20}"))
            yield host, count, name

    def close(self) -> None:
        """Close the file and release its lock."""
        self._ledger.close()

    def _sound(self, read: Callable[..., _Value], *given: Any) -> _Value:
        """Return the result of `read`; raise StoreError if the stored value is malformed."""
        try:
            return read(*given)
        except msgspec.MsgspecError as error:
            raise self._ledger.filters(Unsound(str(error))) from error


class SQLiteFrontier(LocalFrontier):
    """Frontier in a SQLite file that one process at a time may open; a second process gets a StoreError.

    `fresh` starts over and discards the file's contents. A damaged file raises StoreError and is kept as it is: only
    `fresh` replaces it. `cache` is the number of bytes of the file that are cached in memory.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fresh: bool = False,
        cache: int = CACHE,
        concurrency: Concurrency = 1,
        lease: float = LEASE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        url_table = SQLiteUrlTable(path, fresh=fresh, cache=cache)
        super().__init__(url_table, concurrency=concurrency, lease=lease, clock=clock)
        try:
            self._present()  # reports a damaged file at once
        except BaseException:
            url_table.close()
            raise


def _parts(url: str) -> tuple[bool, str]:
    """Return whether a canonical URL is https, and its path and query."""
    return url.startswith("https:"), url[url.index("/", 8) :]

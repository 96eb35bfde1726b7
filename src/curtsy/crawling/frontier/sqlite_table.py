"""URL table in a SQLite file, which loses nothing if the process is killed at any moment.

A change is stored at the end of its transaction. Leases are not stored: the file belongs to one process, so after a
restart every URL is queued at its old position. Only the number of unanswered tries of a URL is stored. A damaged file
is never replaced, because its queued URLs would be lost silently.

A URL takes about 90 bytes of disk. These are its path and query, the number of its host, an entry in the index by rank,
and a 64-bit hash in the set of URLs seen. That set is ordered by host, because URLs are added by host. Memory holds 70
bytes per host and two megabytes of turns in the host schedule, and some megabytes of SQLite's cache.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from curtsy.core.errors import StoreError
from curtsy.crawling.frontier.protocol import Requeue, host_of
from curtsy.crawling.frontier.url_table import (
    Totals,
    UrlRow,
    demoted,
    fingerprint,
    rank_of,
    report_group,
    report_mark,
)
from curtsy.stores.sqlite_file import DamagedFile, FileInUse, Format, SQLiteFile, Unsound

_PAGE = 1024
_LOG = 16 << 20
_CACHE = 4 << 20

FORMAT = Format(
    application=0x43757266,
    schema=(
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
        "CREATE TABLE logged (id INTEGER PRIMARY KEY, at INTEGER NOT NULL, host INTEGER NOT NULL,"
        " rank INTEGER NOT NULL, page INTEGER, secure INTEGER NOT NULL, target TEXT NOT NULL)",
        "ALTER TABLE failures ADD COLUMN rank INTEGER",
        "ALTER TABLE failures ADD COLUMN page INTEGER",
    ),
    pragmas=(
        # Rows are small and changes are scattered: larger pages would mean four times as many bytes written.
        f"page_size = {_PAGE}",
        # Excludes programs that ignore the lock file, and saves locking in every transaction.
        "locking_mode = EXCLUSIVE",
        # At this size, the log is copied into the file: the only time that a commit waits for the disk.
        f"wal_autocheckpoint = {_LOG // _PAGE}",
        f"journal_size_limit = {_LOG}",
        f"cache_size = -{_CACHE // 1024}",
    ),
    text=str,
)

_LOCK_WAIT = 0.5
"""Seconds to wait for a lock of another program."""

_NAMES = 10_000
"""Hosts whose numbers are cached; others are looked up in the file."""

_SELECT = (
    "SELECT urls.id, rank, secure, target, name, pages.url, hosts.pages FROM urls JOIN hosts ON hosts.id = host"
    " LEFT JOIN pages ON pages.id = page WHERE host = ? AND "
)
_OF_RANK = f"{_SELECT} rank = ? AND urls.id > ? ORDER BY urls.id LIMIT ?"
_AFTER_RANK = f"{_SELECT} rank > ? ORDER BY rank, urls.id LIMIT ?"
_LOG_PAGE = (
    "INSERT INTO logged (at, host, rank, page, secure, target)"
    " SELECT ?, host, rank, page, secure, target FROM urls WHERE id = ?"
)
_TABLES = ("hosts", "pages", "urls", "seen", "tries", "failures", "notes", "logged")
"""Tables that a restart empties."""

_KEYS = 400
"""URLs that one query looks up: SQLite before 3.32 takes 999 values."""

_LEAST = -(1 << 63)
"""Rank below all others."""

_Value = TypeVar("_Value")


class _FrontierFile(SQLiteFile):
    """File of a frontier, with advice in its errors."""

    def translate(self, error: Exception) -> StoreError:
        """Return the StoreError for an error, with advice for a damaged file."""
        translated = super().translate(error)
        if not isinstance(translated, DamagedFile):
            return translated
        return DamagedFile(
            f"{translated} It is left as it is, because its queued URLs would be lost. Replace it by a copy if there "
            "is one, or restart the crawl to discard it."
        )

    def in_use(self) -> FileInUse:
        """Return the error for a file that another process has opened."""
        plain = super().in_use()
        error = FileInUse(f"{plain} For many processes and machines, use a Redis store.")
        error.owner = plain.owner
        return error


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
    """URL table in a SQLite file. `restart` discards the file's contents, except for the notes `kept`."""

    def __init__(self, path: str | os.PathLike[str], *, restart: bool, kept: Mapping[str, Any] | None = None) -> None:
        path = os.path.abspath(os.path.expanduser(path))
        self._file = _FrontierFile(path, FORMAT, patience=_LOCK_WAIT, exclusive=True)
        self._file.is_suspect = True  # damage is reported before anything is claimed
        self._numbers: dict[str, int] = {}
        self._page: tuple[str, int] | None = None
        """Page on which URLs were last found, and its number."""
        self._tries: dict[int, int] = {}
        self._tried: dict[int, int] = {}
        """Unanswered tries that the current transaction changed, by URL; 0 to forget them."""
        self._removed: list[int] = []
        self._pages: Counter[int] = Counter()
        """URLs that the current transaction removed, and pages that it counted by host."""
        self._logged: list[int] = []
        """Those of the removed URLs that are logged."""
        self._reached: dict[int, tuple[int, int]] = {}
        """Rank and id of a URL up to which all URLs are leased, by host; only of hosts with several leases.

        Without it, each claim would read all leased URLs of its host again.
        """
        self._db: sqlite3.Connection
        """Connection of the current transaction."""
        try:
            if restart and kept:
                self._empty(kept)
            elif restart:
                self._file.delete()
            [totals] = self._rows("SELECT added, done, failed FROM totals") or [None]
            self.totals = self._sound(msgspec.convert, totals, Totals)
            self._hosts = int(self._rows("SELECT coalesce(max(id), 0) FROM hosts")[0][0])
        except BaseException:
            self.close()
            raise

    def _empty(self, kept: Mapping[str, Any]) -> None:
        """Discard the contents in one transaction, so that a kill cannot lose the notes that are kept."""
        with self._file.transaction() as self._db:
            for table in _TABLES:
                self._db.execute(f"DELETE FROM {table}")
            self._db.execute("UPDATE totals SET added = 0, done = 0, failed = 0")
            self.note(kept)

    @contextlib.contextmanager
    def transaction(self, undone: Callable[[], None]) -> Iterator[None]:
        """Make the changes within the block one transaction; undo them if it raises, and call `undone`."""
        before = msgspec.structs.replace(self.totals), self._hosts
        try:
            with self._file.transaction() as self._db:
                yield
                self._write_changes()
                if self.totals != before[0]:
                    values = msgspec.structs.astuple(self.totals)
                    self._db.execute("UPDATE totals SET added = ?, done = ?, failed = ?", values)
        except BaseException:
            self.totals, self._hosts = before
            self._numbers.clear()
            self._reached.clear()
            self._page = None
            undone()
            raise
        finally:
            self._tried.clear()
            self._removed.clear()
            self._logged.clear()
            self._pages.clear()

    def _write_changes(self) -> None:
        """Write the changes that a transaction has gathered, in one call of each kind."""
        if kept := [(url, tries) for url, tries in self._tried.items() if tries]:
            self._db.executemany("REPLACE INTO tries VALUES (?, ?)", kept)
        if len(kept) < len(self._tried):
            forgotten = [(url,) for url, tries in self._tried.items() if not tries]
            self._db.executemany("DELETE FROM tries WHERE url = ?", forgotten)
        if self._logged:
            now = int(time.time())
            self._db.executemany(_LOG_PAGE, [(now, url) for url in self._logged])
        if self._removed:
            self._db.executemany("DELETE FROM urls WHERE id = ?", [(url,) for url in self._removed])
        if self._pages:
            counts = [(count, host) for host, count in self._pages.items()]
            self._db.executemany("UPDATE hosts SET pages = pages + ? WHERE id = ?", counts)

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query, within a transaction or outside."""
        with self._file.use() as db:
            return db.execute(query, values).fetchall()

    def number(self, host: str) -> int:
        """Return the number of a host; assign one to a new host."""
        number = self.find(host)
        if number is None:
            self._hosts += 1
            number = self._hosts
            self._db.execute("INSERT INTO hosts (id, name) VALUES (?, ?)", (number, host))
            self._remember(host, number)
        return number

    def find(self, host: str) -> int | None:
        """Return the number of a host; None if it has no number."""
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
        raise self._file.translate(Unsound(f"there is no host {number}"))

    def hosts(self) -> int:
        """Return the number of hosts."""
        return self._hosts

    def put(self, host: int, urls: Sequence[str], rank: int, parent: str | None) -> int:
        """Store the URLs of one host that were never seen; return how many were new."""
        new = [url for url in urls if self.mark(host, url)]
        if new:
            if host in self._reached and rank < self._reached[host][0]:
                del self._reached[host]
            page = None if parent is None else self._page_number(parent)
            rows = [(host, rank, page, *_parts(url)) for url in new]
            self._db.executemany("INSERT INTO urls (host, rank, page, secure, target) VALUES (?, ?, ?, ?, ?)", rows)
            self.totals.added += len(new)
        return len(new)

    def mark(self, host: int, url: str) -> bool:
        """Count a URL of a host as seen; return whether it is new."""
        statement = "INSERT OR IGNORE INTO seen VALUES (?, ?)"
        return self._db.execute(statement, (host, fingerprint(url))).rowcount > 0

    def has_seen(self, host: int, url: str) -> bool:
        """Return whether a URL of a host was ever stored or marked."""
        return bool(self._rows("SELECT 1 FROM seen WHERE host = ? AND hash = ?", (host, fingerprint(url))))

    def unreported(self, urls: Iterable[str]) -> list[str]:
        """Return the URLs that are not marked as reported, each once."""
        keys = {_report_key(url): url for url in dict.fromkeys(urls)}
        given, seen = list(keys), set[tuple[int, int]]()
        for start in range(0, len(given), _KEYS):
            part = given[start : start + _KEYS]
            places = ", ".join(["(?, ?)"] * len(part))
            # The outer table is named first: SQLite would scan all URLs seen for `(host, hash) IN (VALUES …)`.
            wanted = f"WITH given (a, b) AS (VALUES {places})"
            query = f"{wanted} SELECT a, b FROM given CROSS JOIN seen ON host = a AND hash = b"
            seen.update(self._rows(query, sum(part, ())))
        return [url for key, url in keys.items() if key not in seen]

    def mark_reported(self, urls: Iterable[str]) -> None:
        """Mark URLs without a page as reported to the outputs."""
        self._db.executemany("INSERT OR IGNORE INTO seen VALUES (?, ?)", sorted(map(_report_key, urls)))

    def _page_number(self, url: str) -> int:
        if self._page is None or self._page[0] != url:
            number = self._db.execute("INSERT INTO pages (url) VALUES (?)", (url,)).lastrowid
            assert number is not None
            self._page = url, number
        return self._page[1]

    def take(self, host: int, leased: Container[int], count: int) -> UrlRow:
        """Return the first URL of a host that is not leased, and count a try."""
        most = count + 1
        queries: list[tuple[str, tuple[int, ...]]] = [(_AFTER_RANK, (host, _LEAST, most))]
        if reached := self._reached.pop(host, None):
            queries = [(_OF_RANK, (host, *reached, most)), (_AFTER_RANK, (host, reached[0], most))]
        for query, values in queries:
            for found in self._db.execute(query, values):
                if found[0] not in leased:
                    return self._taken(host, self._sound(msgspec.convert, found, _Row), count)
        raise Unsound(f"a URL is missing of host {host}")

    def _taken(self, host: int, row: _Row, count: int) -> UrlRow:
        """Return a row that is leased now, and count a try."""
        if count:
            self._reached[host] = row.rank, row.id
        tries = self._tries.get(row.id, 0)
        self._set_tries(row.id, tries + 1)
        return UrlRow(row.id, row.url, host, row.name, row.rank, row.parent, tries, row.host_pages)

    def _set_tries(self, number: int, tries: int) -> None:
        """Set the number of unanswered tries of a URL."""
        self._tried[number] = tries
        if tries:
            self._tries[number] = tries
        else:
            self._tries.pop(number, None)

    def put_back(self, row: UrlRow, *, is_answered: bool, last: bool = False) -> None:
        """Queue a leased URL again, whose row never left the table; with `last`, at a priority one lower."""
        self._reached.clear()
        if last:
            self._db.execute("UPDATE urls SET rank = ? WHERE id = ?", (demoted(row.rank), row.id))
        if is_answered:
            self._set_tries(row.id, row.tries)

    def finish(self, row: UrlRow, *, is_page: bool, is_logged: bool = False) -> None:
        """Remove a leased URL that is done; with `is_page`, count a page for its host; with `is_logged`, record it."""
        self._remove(row)
        if is_logged:
            self._logged.append(row.id)
        self.totals.done += 1
        if is_page:
            self._pages[row.number] += 1

    def fail(self, row: UrlRow, reason: str) -> None:
        """Remove a leased URL that failed, and store the reason."""
        self._remove(row)
        self._db.execute(
            "INSERT INTO failures (url, reason, rank, page) SELECT ?, ?, rank, page FROM urls WHERE id = ?",
            (row.url, reason, row.id),
        )
        self.totals.failed += 1

    def _remove(self, row: UrlRow) -> None:
        self._removed.append(row.id)
        self._set_tries(row.id, 0)

    def failures(self) -> list[tuple[str, str]]:
        """Return the failed URLs with their reasons, in order."""
        return self._rows("SELECT url, reason FROM failures ORDER BY id")

    def requeue(self, choice: Requeue) -> Counter[str]:
        """Queue logged pages or failed URLs again; return their numbers, by reason of failure or `page`."""
        return self._requeue_pages(choice) if choice.reasons is None else self._requeue_failed(choice)

    def _requeue_pages(self, choice: Requeue) -> Counter[str]:
        rows = self._db.execute(
            "SELECT logged.id, host, name, secure, target FROM logged JOIN hosts ON hosts.id = host WHERE at >= ?",
            (choice.since,),
        )
        chosen = []
        for number, host, name, secure, target in rows:
            if choice.chooses(f"http{'s' if secure else ''}://{name}{target}"):
                chosen.append((number,))
                self._pages[host] -= 1
        self._db.executemany(
            "INSERT INTO urls (host, rank, page, secure, target) SELECT host, rank, page, secure, target FROM logged"
            " WHERE id = ?",
            chosen,
        )
        self._db.executemany("DELETE FROM logged WHERE id = ?", chosen)
        self.totals.done -= len(chosen)
        return Counter(page=len(chosen))

    def _requeue_failed(self, choice: Requeue) -> Counter[str]:
        found: Counter[str] = Counter()
        for number, url, reason, rank, page in self._rows("SELECT id, url, reason, rank, page FROM failures"):
            if reason in (choice.reasons or ()) and choice.chooses(url):
                host = self.number(host_of(url))
                row = host, rank_of(0, 0) if rank is None else rank, page, *_parts(url)
                self._db.execute("INSERT INTO urls (host, rank, page, secure, target) VALUES (?, ?, ?, ?, ?)", row)
                self._db.execute("DELETE FROM failures WHERE id = ?", (number,))
                found[reason] += 1
        self.totals.failed -= found.total()
        return found

    def note(self, notes: Mapping[str, Any]) -> None:
        """Store plain values by name."""
        rows = [(name, msgspec.json.encode(value)) for name, value in notes.items()]
        self._db.executemany("REPLACE INTO notes VALUES (?, ?)", rows)

    def notes(self) -> dict[str, Any]:
        """Return all stored notes."""
        rows = self._rows("SELECT name, value FROM notes")
        return {name: self._sound(msgspec.json.decode, value) for name, value in rows}

    def queues(self) -> Iterator[tuple[int, int, str]]:
        """Yield each host that has queued or leased URLs: its number, their count, its name."""
        tries = dict(self._rows("SELECT url, count FROM tries"))
        self._tries = self._sound(msgspec.convert, tries, dict[int, int])
        counted = "SELECT host, count(*) AS count FROM urls GROUP BY host"
        for host, count, name in self._rows(f"SELECT host, count, name FROM ({counted}) LEFT JOIN hosts ON id = host"):
            if not isinstance(host, int) or not 0 < host <= self._hosts or not isinstance(name, str):
                raise self._file.translate(Unsound(f"there is no host {host!r:.20}"))
            yield host, count, name

    def close(self) -> None:
        """Close the file and release its lock."""
        self._file.close()

    def _sound(self, read: Callable[..., _Value], *given: Any) -> _Value:
        """Return the result of `read`; raise StoreError if the stored value is malformed."""
        try:
            return read(*given)
        except msgspec.MsgspecError as error:
            raise self._file.translate(Unsound(str(error))) from error


def _report_key(url: str) -> tuple[int, int]:
    """Return the key by which a URL without a page is marked as reported in the set of URLs seen."""
    return report_group(url), fingerprint(report_mark(url))


def _parts(url: str) -> tuple[bool, str]:
    """Return whether a canonical URL is https, and its path and query."""
    return url.startswith("https:"), url[url.index("/", 8) :]

"""Parts: an output in numbered files that each appear whole, on this machine or in an object store.

    s3://bucket/crawl/pages-docs-00001.parquet             a part of pages.parquet, by the job docs
    s3://bucket/crawl/pages-docs.parquet.manifest.jsonl    the manifest: a line for each part that is complete

In a shared job, the name of the worker follows that of the job.

Objects cannot be appended to or truncated. So pages go to the *spool* first, a file on this machine that can. When it
is large or old enough, the part is sealed: it gets no more pages. Once the frontier has recorded that, a thread
stores it under its final name. Once that is recorded too, the manifest lists it and its spool is removed. After a kill,
each step is repeated under the same name, and the spool is truncated to the recorded end. So the manifest lists only
pages that are done, each once.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from curtsy.core.errors import NotWritten, PolicyError
from curtsy.core.time import span
from curtsy.crawling.outputs.append_file import AppendFile, End, ForeignFile, not_written, read_state, whole_lines
from curtsy.crawling.outputs.jsonlines import BodyForm, JsonLines
from curtsy.crawling.outputs.parquet import check_parquet, write_parquet
from curtsy.crawling.outputs.part_storage import destination_of, is_url
from curtsy.crawling.outputs.protocol import FileOutput, Written
from curtsy.crawling.outputs.skipped import SkippedCsv
from curtsy.crawling.outputs.tables import PagesCsv
from curtsy.crawling.outputs.warc import Warc
from curtsy.crawling.results import CrawledPage, SkippedUrl
from curtsy.stores.url import check_path
from curtsy.system.log import library_logger

PART_SIZE, PART_TIME = 128 << 20, 900.0
"""Bytes in the spool, and seconds since its first page, after which a part is sealed."""

MANIFEST = "manifest.jsonl"

_FIRST_RETRY, _LONGEST_RETRY = 1.0, 60.0
"""Seconds between two tries to store a part while the crawl goes on."""

_ENDLESS = 1 << 62
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_log = library_logger("outputs")


class PartEntry(msgspec.Struct, frozen=True, gc=False):
    """Line of the manifest."""

    name: str
    """Name of the part, in the manifest's folder."""

    entries: int
    """Pages, or rows of a table."""

    size: int
    """Size in bytes."""


class Sealed(msgspec.Struct, frozen=True, gc=False):
    """Part that gets no more pages, and is not in the manifest yet."""

    number: int
    entries: int
    file: str
    """File name of its spool."""

    since: float = 0.0
    """Time of its first entry, in epoch seconds; 0 if unknown."""


class PartsState(msgspec.Struct, frozen=True):
    """End of an output in parts."""

    part: int
    """Number of the present part."""

    spool: Any
    """End of its spool."""

    since: float | None
    """Time of its first entry, in epoch seconds; None if it is empty."""

    sealed: tuple[Sealed, ...]
    manifest: End
    entries: int
    """Entries of the parts in the manifest."""

    lost: int = 0
    """Entries that were in a spool that is gone."""


_NEW = PartsState(1, None, None, (), End(0, 0, 0, "", ""), 0)


class PartKind(NamedTuple):
    """Form of parts."""

    pattern: str
    """Endings of a path of this kind."""

    ending: str
    """Ending of a part's name."""


KINDS = {
    "jsonl": PartKind(r"\.(jsonl|ndjson)$", ".jsonl"),
    "warc": PartKind(r"\.warc(\.gz)?$", ".warc.gz"),
    "parquet": PartKind(r"\.parquet$", ".parquet"),
    "csv": PartKind(r"\.csv$", ".csv"),
    "skipped": PartKind(r"\.csv$", ".csv"),
}


def stored_before(output: str, state: Any) -> float:
    """Return the time before which all pages of an output are stored away from this machine, in epoch seconds.

    `output` is its name, and `state` its last recorded flush. The result is 0 for outputs on this machine.
    """
    kind, _, path = output.partition(":")
    if kind not in KINDS or not is_url(path) or path.lower().startswith("file:"):
        return 0.0
    found = read_state(output, state, PartsState)
    if found is None:
        return 0.0
    begun = [each.since for each in found.sealed] + ([] if found.since is None else [found.since])
    return min(begun, default=math.inf)


class Parts(FileOutput):
    """Pages in numbered files at `path`, a local path or a URL such as `s3://bucket/crawl/pages.parquet`.

    `kind` is `jsonl`, `warc`, `parquet`, `csv` or `skipped`. A path that ends in `/` is a folder for the parts. A part
    is stored when its spool has `part_size` bytes or its first page is `part_time` seconds old, and when a run ends.
    `body` and `mask_secrets` are those of `JsonLines`; `storage_options` are arguments for the file system of fsspec.
    Raises PolicyError if a library is missing.
    """

    takes_urls = True
    is_rolled = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        kind: str,
        *,
        body: BodyForm = "none",
        mask_secrets: bool = True,
        part_size: int = PART_SIZE,
        part_time: float = PART_TIME,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        check_path("path", path)
        if kind not in KINDS:
            raise PolicyError(f"kind = {kind!r} must be one of {', '.join(KINDS)}.")
        if kind == "parquet":
            check_parquet()
        if part_size < 1 or part_time <= 0:
            raise PolicyError("part_size and part_time must be above 0.")
        super().__init__(kind, path, MANIFEST)
        whole = self.path.rstrip("/") + "/" * os.fspath(path).endswith("/")
        folder, _, stem = whole.rpartition("/")
        self._destination = destination_of(folder or "/", storage_options)
        self._kind, self._stem = kind, re.sub(KINDS[kind].pattern, "", stem, flags=re.IGNORECASE)
        self._body, self._mask_secrets = body, mask_secrets
        self._part_size, self._part_time = part_size, part_time
        self._delivery: _Delivery | None = None
        self._stored: dict[int, int] = {}
        """Sizes of the parts that are stored, by number; the manifest may not list them yet."""
        self._next_try, self._failures = 0.0, 0
        self._is_ending = False
        self._listed_size = -1
        """Size of the manifest when it was last stored; -1 if unknown."""
        self._state = _NEW
        """State at the last flush."""
        self._recorded: PartsState | None = None
        """State that the frontier has recorded; None if it is unknown since it was opened."""
        self._temporary = ""
        """Folder of the spool if it has none in a job; empty otherwise."""
        self.place(None)

    def place(self, folder: str | os.PathLike[str] | None, job: str = "", worker: str = "") -> None:
        """Set its own folder for the spool, and the names in its parts' names, before `open`.

        Without a folder, the spool is in a temporary one.
        """
        self._prefix = "-".join(_UNSAFE.sub("_", each) for each in (self._stem, job, worker) if each)
        self._set_spool("" if folder is None else os.path.abspath(folder))

    def of_worker(self, folder: str | os.PathLike[str], job: str, worker: str) -> Parts | None:
        """Return the output of another worker that has a spool in `folder`, not yet open; None if there is no spool."""
        if not os.path.isdir(folder):
            return None
        other = copy.copy(self)  # neither is open, so they share nothing that changes
        other._stored = {}
        other.place(folder, job, worker)
        return other

    def _set_spool(self, folder: str) -> None:
        self._spool = folder
        self._file = AppendFile(os.path.join(folder, MANIFEST), is_ours=True)
        self._inner = self._spool_of(1)

    def _spool_of(self, number: int) -> FileOutput:
        """Return the output that writes the spool of a part."""
        folder = self._folder_of(number)
        match self._kind:
            case "warc":
                stem = os.path.join(folder, self._prefix or "part")
                return Warc(f"{stem}.warc.gz", max_size=_ENDLESS, first=number)
            case "csv":
                return PagesCsv(os.path.join(folder, "part.csv"), mask_secrets=self._mask_secrets)
            case "skipped":
                return SkippedCsv(os.path.join(folder, "part.csv"), mask_secrets=self._mask_secrets)
            case _:
                path = os.path.join(folder, "part.jsonl")
                return JsonLines(path, body=self._body, mask_secrets=self._mask_secrets)

    def _folder_of(self, number: int) -> str:
        return os.path.join(self._spool, f"{number:05}")

    def _path_of(self, part: Sealed) -> str:
        """Return the path of a sealed part's spool."""
        return os.path.join(self._folder_of(part.number), part.file)

    def _name_of(self, number: int) -> str:
        return f"{self._prefix}{'-' * bool(self._prefix)}{number:05}{KINDS[self._kind].ending}"

    @property
    def _manifest_name(self) -> str:
        return f"{self._prefix}{KINDS[self._kind].ending}.{MANIFEST}".removeprefix(".")

    def check_new(self) -> None:
        """Raise NotWritten if there are parts of the same name, or if the destination cannot be written."""
        self._verify(None)
        with tempfile.TemporaryDirectory() as folder:  # a wrong address is reported now, not with the first part
            path = os.path.join(folder, MANIFEST)
            open(path, "wb").close()
            self._destination.put(path, self._manifest_name)

    def _verify(self, state: Any | None) -> None:
        place, first = self._destination, self._name_of(1)
        if state is None and (place.size(self._manifest_name) or place.size(first) is not None):
            raise ForeignFile(f"{place.shown}/{first}")

    def discard_spool(self) -> None:
        """Remove the spool of a job that is started over."""
        shutil.rmtree(self._spool, ignore_errors=True)

    def _open(self, state: Any | None) -> None:
        if not self._spool:
            self._temporary = tempfile.mkdtemp(prefix="curtsy-")
            self._set_spool(self._temporary)
        found = read_state(self.name, state, PartsState)
        self._state, self._recorded, self._listed_size = found or _NEW, None, -1
        self._inner = self._spool_of(self._state.part)
        if found is None:
            self._delivery, self._stored = None, {}
            self._inner.open(None)
            self._file.open(None, whole_lines)
            self.check_new()
            return
        # A part that was stored and never recorded gets other pages now, so it is stored again.
        sealed = {each.number for each in found.sealed}
        self._stored = {number: size for number, size in self._stored.items() if number in sealed}
        if found.manifest.size and not os.path.exists(self._file.path):
            os.makedirs(self._spool, exist_ok=True)
            self._destination.get(self._manifest_name, self._file.path)
        self._inner.open(found.spool)
        self._file.open(found.manifest, whole_lines)
        self._remove_spools({found.part, *sealed})
        for part in found.sealed:
            if not os.path.exists(self._path_of(part)) and part.number not in self._stored:
                self._miss(part)

    def _miss(self, part: Sealed) -> None:
        """Go on without the spool of a part, which is gone. The part may be stored nevertheless."""
        size = self._destination.size(self._name_of(part.number))
        if size is not None:
            self._stored[part.number] = size
            return
        _log.warning(
            f"{self._path_of(part)} is gone, and {part.entries:,} pages with it, before they were stored. Start the "
            "crawl over (--restart, restart=True) to have them all."
        )
        sealed = tuple(each for each in self._state.sealed if each is not part)
        self._state = msgspec.structs.replace(self._state, sealed=sealed, lost=self._state.lost + part.entries)

    def _remove_spools(self, kept: set[int]) -> None:
        """Remove the spools of parts that are stored, and those that no state knows."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._spool):
                if name.isdecimal() and int(name) not in kept:
                    shutil.rmtree(os.path.join(self._spool, name), ignore_errors=True)

    def page(self, page: CrawledPage) -> None:
        """Write a page to the spool."""
        with self._restored():
            self._inner.page(page)

    def redirect(self, page: CrawledPage) -> None:
        """Write the response of a redirect to the spool, in a WARC archive."""
        with self._restored():
            self._inner.redirect(page)

    def skipped(self, skipped: SkippedUrl) -> None:
        """Write a URL without a page to the spool, in a table of these."""
        with self._restored():
            self._inner.skipped(skipped)

    @property
    def is_stored_at_once(self) -> bool:
        """Return whether each flush stores a part: to be durable, a file is written to the disk, but not an object."""
        return self.is_durable and is_url(self.path)

    def seal(self) -> None:
        """End the present part at the next flush, whatever its size."""
        self._is_ending = True

    @property
    def is_behind(self) -> bool:
        """Return whether a flush has something to record although nothing was written."""
        return any(each.number in self._stored for each in self._state.sealed) or self._is_old()

    def _is_old(self) -> bool:
        since = self._state.since
        return since is not None and not 0 <= time.time() - since < self._part_time

    def _flush(self) -> dict[str, Any]:
        self._inner.is_durable = self.is_durable and not self.is_stored_at_once
        self._inner.flush()
        since = self._state.since
        if since is None and self._inner.size:
            since = time.time()
        self._state = msgspec.structs.replace(self._state, since=since)
        is_due = self._is_ending or self.is_stored_at_once or self._is_old() or self._inner.size >= self._part_size
        if is_due and self._inner.size:
            self._seal()
        self._is_ending = False
        for part in self._state.sealed:
            if self.is_stored_at_once and part.number not in self._stored:
                self._stored[part.number] = self._store(part)
            if part.number in self._stored:
                self._enlist(part)
        spool, manifest = self._inner.flush(), self._file.flush(durable=self.is_durable)
        self._state = msgspec.structs.replace(self._state, spool=spool, manifest=manifest)
        plain: dict[str, Any] = msgspec.to_builtins(self._state)
        return plain

    def _seal(self) -> None:
        """End the present part and begin the next one."""
        state, written = self._state, self._inner.written()
        part = Sealed(state.part, written.entries, os.path.basename(self._inner.file), state.since or 0.0)
        self._inner.close()
        self._state = msgspec.structs.replace(
            state, part=state.part + 1, since=None, sealed=(*state.sealed, part), lost=state.lost + written.missing
        )
        self._inner = self._spool_of(self._state.part)
        self._inner.open(None)

    def _enlist(self, part: Sealed) -> None:
        """Move a part that is stored to the manifest."""
        state, line = self._state, PartEntry(self._name_of(part.number), part.entries, self._stored[part.number])
        self._file.write(msgspec.json.encode(line), b"\n")
        sealed = tuple(each for each in state.sealed if each is not part)
        self._state = msgspec.structs.replace(state, sealed=sealed, entries=state.entries + part.entries)

    def recorded(self) -> None:
        """Store what the frontier has recorded, in a thread."""
        self._recorded = self._state
        self._remove_spools({self._state.part, *(each.number for each in self._state.sealed)})
        self._deliver()

    def check(self) -> None:
        """Try again to store a part if that failed, after a wait."""
        self._deliver()

    def _deliver(self, *, at_once: bool = False) -> None:
        """Start a thread for recorded parts that are not stored yet, and for the manifest."""
        state = self._recorded
        if state is None or (self._delivery is not None and self._delivery.is_alive()):
            return
        if self._delivery is not None and (error := self._delivery.error) is not None:
            self._delivery = None
            if not isinstance(error, NotWritten):
                raise error
            self._postpone(error)
        left = [each for each in state.sealed if each.number not in self._stored]
        if (left or state.manifest.size != self._listed_size) and (at_once or time.monotonic() >= self._next_try):
            self._delivery = _Delivery(lambda: self._store_all(left, state.manifest.size))
            self._delivery.start()

    def _postpone(self, error: NotWritten) -> None:
        """Set the time of the next try after a failure."""
        self._failures += 1
        wait = min(_FIRST_RETRY * 2 ** min(self._failures - 1, 10), _LONGEST_RETRY)
        self._next_try = time.monotonic() + wait
        if self._failures == 2:  # the first may be a hiccup
            _log.warning(f"{error} The pages wait on this machine; the next try is in {span(wait)}.")

    def deliver(self) -> None:
        """Store all recorded parts now. Raises NotWritten."""
        for _ in range(2):  # a thread that is at work may not know the latest parts
            self._deliver(at_once=True)
            if self._delivery is not None:
                self._delivery.join()
        delivery, self._delivery = self._delivery, None
        error = None if delivery is None else delivery.error
        if isinstance(error, NotWritten):
            place = f" Until then its pages are in {self._temporary}." if self._temporary else ""
            raise NotWritten(f"{error}{place}", error.path) from error
        if error is not None:
            raise error

    def _store_all(self, parts: list[Sealed], manifest_size: int) -> None:
        for part in parts:
            self._stored[part.number] = self._store(part)
        if manifest_size != self._listed_size:
            self._list(manifest_size)

    def _store(self, part: Sealed) -> int:
        """Store a part under its final name; return its size."""
        path = self._path_of(part)
        if self._kind == "parquet":
            made = f"{path}.parquet"
            try:
                write_parquet(path, made, self._body)
            except OSError as error:
                raise not_written(made, error) from error
            path = made
        return self._put(path, self._name_of(part.number))

    def _list(self, size: int) -> None:
        """Store the first `size` bytes of the manifest, which are recorded."""
        path = os.path.join(self._spool, f"{MANIFEST}.copy")
        try:
            with open(self._file.path, "rb") as source, open(path, "wb") as target:
                target.write(source.read(size))
        except OSError as error:
            raise not_written(path, error) from error
        self._put(path, self._manifest_name)
        self._listed_size = size

    def _put(self, path: str, name: str) -> int:
        size = self._destination.put(path, name)
        self._failures, self._next_try = 0, 0.0
        return size

    def written(self) -> Written:
        """Return its contents over all runs: parts and spool."""
        state, present = self._state, self._inner.written()
        is_gone = (each.number not in self._stored and not os.path.exists(self._path_of(each)) for each in state.sealed)
        missing = (
            state.lost
            + present.missing
            + sum(each.entries for each, gone in zip(state.sealed, is_gone, strict=True) if gone)
        )
        sealed = sum(each.entries for each in state.sealed)
        entries = state.entries + sealed + present.entries + present.missing + state.lost
        return Written(self.name, entries - missing, missing)

    def _close(self) -> None:
        if self._delivery is not None:
            self._delivery.join()
        self._inner.close()
        self._file.close()
        if self._temporary and not self._state.sealed and not self._inner.written().entries:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def discard(self, why: str = "") -> None:
        """Close it without writing what is pending."""
        self._inner.discard(why)
        self._file.discard(why)


class _Delivery(threading.Thread):
    """Thread that stores parts."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="curtsy-parts", daemon=True)
        self._work = work
        self.error: Exception | None = None

    def run(self) -> None:
        """Do the work; keep its error."""
        try:
            self._work()
        except Exception as error:  # raised again by the thread of the crawl
            self.error = error

"""Output: the interface of an output. FileOutput: the base of the outputs in files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Protocol

import msgspec

from curtsy.core.errors import NotWritten, PolicyError
from curtsy.core.masking import mask_url
from curtsy.crawling.outputs.append_file import (
    STANDARD_OUTPUT,
    AppendFile,
    End,
    ForeignFile,
    not_written,
    read_state,
    whole_lines,
)
from curtsy.crawling.outputs.part_storage import is_url
from curtsy.crawling.results import CrawledPage, SkippedUrl
from curtsy.stores.url import check_path


class Output(Protocol):
    """Interface of an output.

    The order of calls is: open; then page, skipped and flush, any number of times; then close. One thread calls at a
    time, but not always the same one, because large pages are written in a thread.
    """

    @property
    def name(self) -> str:
        """Return its kind and path, unique among the crawl's outputs and equal at every start."""
        ...

    def open(self, state: Any | None) -> None:
        """Start an output, or resume it at `state`, the last recorded result of `flush`. None starts a new one.

        It writes nothing yet. If the caller records a first `flush` before the first page, it can always resume. A
        failed output may be opened again with the state recorded last.

        If a file is shorter than its state, writing resumes at its end, and a warning is logged. A file of other
        content is never overwritten: NotWritten is raised. With `state` None, that is any file that is not empty.
        """
        ...

    def page(self, page: CrawledPage) -> None:
        """Write a page. Raises NotWritten if that fails, as on a full disk.

        Then the output is as after the last `flush`, and accepts nothing more until it is opened again.
        """
        ...

    def skipped(self, skipped: SkippedUrl) -> None:
        """Write a URL without a page."""
        ...

    def flush(self) -> Any:
        """Pass all data to the system, so that it survives a kill; return a plain value for `open`.

        A power cut may lose the end of a file. Then `open` finds it shorter.
        """
        ...

    def close(self) -> None:
        """Close it. Idempotent."""
        ...


class Written(msgspec.Struct, frozen=True):
    """Actual contents of an output."""

    name: str
    """Kind and path of the output."""

    entries: int
    """Pages, or rows of a table."""

    missing: int
    """Entries that were written but are absent, because the output was cut or removed meanwhile."""

    before: int = 0
    """Entries that it had when this run began."""

    earlier: int = 0
    """Entries of the job that it never had, because they are from runs in which it was not named."""


class FileOutput:
    """Base of the outputs in files. Subclasses write the entries that they are made for; others are ignored.

    If writing fails, the output is resumed at its last flush and closed, so later entries are absent from it. It
    accepts nothing more until it is opened again.
    """

    needs_requisites = False
    """True if the crawl has to fetch what its pages need."""

    takes_urls = False
    """True if its path may be a URL."""

    is_rolled = False
    """True if it is written in parts, which `seal`, `recorded`, `is_behind` and `deliver` are for."""

    def __init__(self, kind: str, path: str | os.PathLike[str], file: str = "") -> None:
        """Create an output. `file` is the name of its AppendFile if `path` is a folder."""
        check_path("path", path)
        if is_url(path) and not self.takes_urls:
            shown = mask_url(os.fspath(path))
            raise PolicyError(f"path = {shown!r} must be on this machine. For a URL, use open_output() or Parts.")
        is_as_given = is_url(path) or (path == STANDARD_OUTPUT and not file)
        self.path = os.fspath(path) if is_as_given else os.path.abspath(path)
        self.is_durable = False
        """True if a flush waits until the data would survive a power cut."""
        self.shown = mask_url(self.path) if is_url(path) else self.path
        """Path for names and messages: that of a URL has no secrets, because the frontier stores the name (F62)."""
        self.name = f"{kind}:{self.shown}"
        self.is_complete = False
        """True if nothing was written after the state given to the next `open`, so that a longer file is refused."""
        self._file = AppendFile(os.path.join(self.path, file) if file else self.path, is_ours=bool(file))
        self._flushed: Any | None = None
        """Result of the last flush; None while it is not open."""

    @property
    def is_stream(self) -> bool:
        """Return whether it is a pipe or a terminal. It cannot be truncated, so it gets each entry once."""
        return self._file.is_stream

    def open(self, state: Any | None) -> None:
        """Start it, or resume at `state`. A stream continues at its present position."""
        self.close()
        try:
            self._open(state)
            self._flushed = self._flush()
            self.is_complete = False
        except BaseException as error:
            self.discard()
            if isinstance(error, OSError):
                raise not_written(self.shown, error) from error
            self._own(error)
            raise

    def verify(self, state: Any | None) -> None:
        """Raise NotWritten if `open` would refuse what is there already. Nothing is written or created."""
        try:
            self._verify(state)
        except OSError as error:
            raise not_written(self.shown, error) from error
        except NotWritten as error:
            self._own(error)
            raise

    def _own(self, error: BaseException) -> None:
        """Name this output in the error for a foreign file."""
        if isinstance(error, ForeignFile):
            error.output = self.name

    def _verify(self, state: Any | None) -> None:
        self._file.verify(read_state(self.name, state, End), self._whole, is_exact=self.is_complete)

    def page(self, page: CrawledPage) -> None:
        """Write a page."""

    def redirect(self, page: CrawledPage) -> None:
        """Write the response of a redirect."""

    def requisite(self, page: CrawledPage) -> None:
        """Write what a page needs, such as an image."""

    def skipped(self, skipped: SkippedUrl) -> None:
        """Write a URL without a page."""

    def flush(self) -> Any:
        """Pass all data to the system; return a plain value for `open`."""
        with self._restored():
            self._flushed = self._flush()
        return self._flushed

    @property
    def file(self) -> str:
        """Return the path of the file that it writes at present."""
        return self._file.path

    @property
    def size(self) -> int:
        """Return the size of that file in bytes."""
        return self._file.size

    def check(self) -> None:
        """Raise NotWritten if it is a stream and its reader has closed it."""
        self._file.check()

    def check_new(self) -> None:
        """Raise NotWritten if a new crawl cannot write it."""
        self.open(None)
        self.close()

    @property
    def is_stored_at_once(self) -> bool:
        """Return whether each flush stores a part at a distance."""
        return False

    def seal(self) -> None:
        """End the present part at the next flush."""

    @property
    def is_behind(self) -> bool:
        """Return whether a flush has something to record although nothing was written."""
        return False

    def recorded(self) -> None:
        """Take notice that the frontier has recorded the last flush."""

    def deliver(self) -> None:
        """Store all recorded parts at their destination. Raises NotWritten."""

    def finish(self, seconds: float | None) -> None:
        """Complete it at the end of a run, in a thread. Raises NotWritten.

        If it takes longer than `seconds`, the next run continues. None means no limit.
        """

    def written(self) -> Written:
        """Return its contents over all runs."""
        missing, flushed = self._file.missing(), self._file.flushed
        return Written(self.name, flushed.entries + flushed.lost - missing, missing)

    def close(self) -> None:
        """Close it. Idempotent."""
        with self._restored():
            self._close()
        self._flushed = None

    @contextlib.contextmanager
    def _restored(self) -> Iterator[None]:
        """Resume the output at its last flush, and close it, if the block raises. A stream keeps its unsent bytes."""
        try:
            yield
        except BaseException as error:
            failure = not_written(self.shown, error) if isinstance(error, OSError) else error
            flushed, self._flushed = self._flushed, None
            if flushed is not None and not self.is_stream:
                self.discard(str(failure))
                with contextlib.suppress(OSError, NotWritten):  # else the next open() truncates it
                    self._open(flushed)
                self.discard()
            if failure is error:
                raise
            raise failure from error

    def _open(self, state: Any | None) -> None:
        self._file.open(read_state(self.name, state, End), self._whole, is_exact=self.is_complete)

    def _whole(self, path: str) -> tuple[int, int]:
        """Return the intact part of a cut file: bytes and entries. Here an entry is a line."""
        return whole_lines(path)

    def _flush(self) -> dict[str, Any]:
        return msgspec.structs.asdict(self._file.flush(durable=self.is_durable))

    def _close(self) -> None:
        self._file.close()

    def discard(self, why: str = "") -> None:
        """Close it without writing what is pending; later calls raise NotWritten with `why`."""
        self._file.discard(why)

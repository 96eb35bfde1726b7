"""Entry points of a crawl: `acrawl()` for asyncio, `crawl()` for blocking code."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import warnings
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Unpack

from curtsy.blocking import LoopThread, close_at_exit
from curtsy.client import AsyncClient, session_of
from curtsy.core.errors import PolicyError
from curtsy.core.setting import rule
from curtsy.crawling.crawl import AsyncCrawl
from curtsy.crawling.estimate import CrawlPlan
from curtsy.crawling.extract.text import main_text
from curtsy.crawling.filters import scope_of
from curtsy.crawling.frontier.local import LocalFrontier
from curtsy.crawling.frontier.protocol import AsyncFrontier
from curtsy.crawling.jobs import FRONTIER, WorkerId, extract_note, folder_of, output_ends, spool_of
from curtsy.crawling.keywords import CrawlKeywords, OptionKeywords
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.output_notes import COMPLETE, check_fields
from curtsy.crawling.outputs import open_outputs
from curtsy.crawling.outputs.parts import Parts
from curtsy.crawling.outputs.protocol import FileOutput, Output
from curtsy.crawling.progress import CrawlSnapshot, CrawlSummary
from curtsy.crawling.results import CrawledPage
from curtsy.crawling.seeds import Seeds
from curtsy.crawling.worker_pool import check_workers, workers_of
from curtsy.engine.arguments import check_names, check_parts
from curtsy.engine.keywords import ClientKeywords
from curtsy.engine.session import Session

T = TypeVar("T")

SHARED = ("redis://", "rediss://", "redis+cluster://", "redis+sentinel://")
"""URL schemes of stores that many machines can share. There, a job's frontier is shared too."""

SHARED_LEASE = 120.0
"""Lease of a URL in a shared crawl, in seconds; renewed while it is fetched."""


def acrawl(
    seeds: str | Iterable[str] | AsyncIterable[str] | Seeds,
    *,
    job: str | os.PathLike[str] | None = None,
    restart: bool = False,
    outputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str] | Output] = (),
    durable: bool = False,
    client: AsyncClient | None = None,
    shared: bool = True,
    lease: float = SHARED_LEASE,
    workers: int | Literal["auto"] = 1,
    on_progress: Callable[[CrawlSnapshot], None] | None = None,
    **given: Unpack[OptionKeywords],
) -> AsyncCrawl:
    """Crawl from seeds politely: `async for page in acrawl("https://example.org/", max_pages=100)`.

    Seeds are read while the crawl runs, a generator in a thread of its own. The first thousand of a list are checked
    now. A later invalid one is skipped and reported in the summary.

    `job` is a name or a folder. A crawl with a job can be killed at any moment and resumes at its next start. Seeds
    that do not belong to the job are refused (PolicyError). `restart` starts the job over, and continues its output
    files. A job whose `store` is a Redis server is shared: every machine that starts it takes part, unless `shared` is
    False. The URLs of a dead machine wait for `lease` seconds.

    `workers` is the number of processes on this machine that fetch and read pages, `auto` for one per core. Sites are
    divided among them. Outputs, limits and progress stay in this process. The client must be one that can be pickled.

    `outputs` are paths of files (`.jsonl`, `.warc.gz`, `.parquet`, `.csv`) or folders, URLs such as
    `s3://bucket/pages.parquet`, or output objects. With `durable`, a page is done only when it is on the disk or at
    its URL. `on_progress` is called with a snapshot every second and at the end. All fields of `CrawlOptions` and all
    arguments of `AsyncClient` are accepted. It needs a running event loop.
    """
    check_parts(on_progress=on_progress)
    options, settings = _options_of(given)
    _check_client(client, settings)
    begin = seeds if isinstance(seeds, Seeds) else Seeds(seeds)
    # Seeds and options are checked before an earlier job is deleted or a site is contacted.
    if begin.head:
        scope_of(begin.head, options)
    if options.main_text is not None:
        main_text(b"<p>", "text/html", reader=options.main_text)
    writers, count = open_outputs(outputs), workers_of(workers)
    options = _with_requisites(options, writers)
    folder = None if job is None else folder_of(Path(job) if isinstance(job, os.PathLike) else job)
    settings["max_in_flight"] = max(options.max_in_flight, _most_connections())
    used = client or AsyncClient(**settings)
    try:
        if count > 1:
            check_workers(count, used, options.extract)
        identity = _identity(session_of(used), folder if shared else None)
        frontier = _open_job(session_of(used), folder, identity, writers, options, lease, durable, restart)
    except BaseException:
        if client is None:
            _close_later(used.close())
        raise
    return AsyncCrawl(
        begin, options, used, frontier, outputs=writers, job="" if folder is None else folder.name,
        folder=folder if identity is None else None, lease=None if identity is None else lease, who=identity,
        owns_client=client is None, workers=count, on_progress=on_progress,
    )  # fmt: skip


def _with_requisites(options: CrawlOptions, outputs: Sequence[Output]) -> CrawlOptions:
    """Return the options; requisites of pages are fetched if an output needs them."""
    is_needed = any(isinstance(each, FileOutput) and each.needs_requisites for each in outputs)
    return dataclasses.replace(options, requisites="site") if is_needed and options.requisites == "none" else options


def _open_job(
    session: Session, folder: Path | None, who: WorkerId | None, outputs: Sequence[Output], options: CrawlOptions,
    lease: float, durable: bool, restart: bool,
) -> AsyncFrontier:  # fmt: skip
    """Open the frontier of a crawl, and prepare its outputs. `who` is this process in a shared job."""
    try:
        kept = output_ends(folder) if restart and who is None else {}
        is_complete = bool(kept.pop(COMPLETE, False))
        for output in outputs:  # only the ends of files are kept
            if isinstance(output, FileOutput):
                output.is_complete = is_complete
            else:
                kept.pop(f"output:{output.name}", None)
        check_fields(outputs, extract_note(options.extract), kept)
        _prepare(outputs, folder, who, kept, durable=durable, restart=restart)
        frontier = _open_frontier(session, folder, who, lease, kept, restart=restart)
        for output in outputs:
            if restart and isinstance(output, Parts) and f"output:{output.name}" not in kept:
                output.discard_spool()
    except BaseException:
        if who is not None:
            who.close()
        raise
    return frontier


def verify_outputs(
    outputs: Sequence[Output], extract: Mapping[str, str] | Callable[..., Any] | None, folder: Path | None,
    notes: Mapping[str, Any], *, restart: bool,
) -> None:  # fmt: skip
    """Raise NotWritten for an output that a crawl would refuse at its start. Nothing is written.

    `folder` is that of its job on this machine, and `notes` are those of the job.
    """
    check_fields(outputs, extract_note(extract), notes)
    for output in outputs:
        if not isinstance(output, FileOutput):
            continue
        state = notes.get(f"output:{output.name}")
        if isinstance(output, Parts) and folder is not None:
            output.place(spool_of(folder, output.name, ""), folder.name)
        elif restart and not os.path.exists(output.file):
            state = None  # it begins again
        output.is_complete = bool(notes.get(COMPLETE))
        output.verify(state)


def _check_client(client: AsyncClient | None, settings: Mapping[str, Any]) -> None:
    """Raise PolicyError for a client that is none, and for settings beside one."""
    if client is not None and not isinstance(client, AsyncClient):
        raise rule("client", client, "an AsyncClient, or left out for one of the crawl's own")
    if client is not None and settings:
        raise PolicyError(f"{next(iter(settings))!r} is the client's to say. Give it to the client, or give no client.")


def _options_of(given: Mapping[str, Any]) -> tuple[CrawlOptions, dict[str, Any]]:
    """Split keyword arguments into the options of a crawl and the settings of its client. Raises PolicyError."""
    names = {field.name for field in dataclasses.fields(CrawlOptions)}
    options = CrawlOptions(**{name: value for name, value in given.items() if name in names})
    settings = {name: value for name, value in given.items() if name not in names}
    check_names(settings, names | CrawlKeywords.__annotations__.keys() - ClientKeywords.__annotations__, "a crawl")
    return options, settings


def _most_connections() -> int:
    """Return the maximum number of connections, so that a polite host's one is still open at its next page.

    It is a quarter of the process's file limit, because twice as many stay open between pages; from 100 to 500.
    """
    try:
        import resource
    except ImportError:  # absent on Windows
        return 100
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 500 if files == resource.RLIM_INFINITY else max(100, min(500, files // 4))


_closing: set[asyncio.Task[None]] = set()


def _close_later(closing: Coroutine[Any, Any, None]) -> None:
    """Release the resources of a crawl that could not start."""
    task = asyncio.ensure_future(closing)
    _closing.add(task)
    task.add_done_callback(_closing.discard)


def _identity(session: Session, folder: Path | None) -> WorkerId | None:
    """Return the name of this process in a shared job; None for other crawls."""
    url = session.store_url
    return None if folder is None or url is None or not url.startswith(SHARED) else WorkerId(folder)


def _prepare(
    outputs: Iterable[Output], folder: Path | None, who: WorkerId | None, kept: dict[str, Any], *, durable: bool,
    restart: bool,
) -> None:  # fmt: skip
    """Set how outputs are written and named. Before a restart empties a job, raise NotWritten for unusable ones.

    `kept` has the ends of the files that are continued. A file that is gone is not one of them.
    """
    for output in outputs:
        if isinstance(output, FileOutput):
            output.is_durable = output.is_durable or durable
        if isinstance(output, Parts) and folder is not None:
            worker = "" if who is None else who.name
            output.place(spool_of(folder, output.name, worker), folder.name, worker)
        if restart and (name := f"output:{output.name}") in kept:
            assert isinstance(output, FileOutput)
            if isinstance(output, Parts) or os.path.exists(output.file):
                output.open(kept[name])
                kept[name] = {**output.flush(), "lost": 0}  # what was lost does not belong to the new run
                output.close()
                continue
            del kept[name]
            output.check_new()
        elif restart and isinstance(output, FileOutput):
            output.check_new()
        elif restart:
            output.open(None)
            output.close()


def _open_frontier(
    session: Session, folder: Path | None, who: WorkerId | None, lease: float, kept: Mapping[str, Any], *,
    restart: bool,
) -> AsyncFrontier:  # fmt: skip
    """Open a frontier in memory, in a job's folder, or on the session's server for a shared job."""

    def concurrency(host: str) -> int | None:
        return session.policies.of(host).concurrency

    url = session.store_url
    if folder is None or who is None or url is None:
        path = None if folder is None else folder / FRONTIER
        return LocalFrontier(path, restart=restart, kept=kept, concurrency=concurrency, clock=session.timers.now)
    from curtsy.crawling.frontier.redis import RedisFrontier

    return RedisFrontier(url, folder.name, worker=who.name, concurrency=concurrency, lease=lease, restart=restart)


class Crawl:
    """Blocking crawl: an `AsyncCrawl` on an event loop in a thread of its own. Created by `crawl()`."""

    _is_closed = True  # until the crawl is created

    def __init__(self, seeds: str | Iterable[str] | AsyncIterable[str], **given: Unpack[CrawlKeywords]) -> None:
        self._thread = LoopThread("curtsy-crawl")
        self._last: CrawlSnapshot | None = None
        """Progress at the time of closing."""
        try:
            self._crawl: AsyncCrawl = self._thread.call(_made(seeds, given))
        except BaseException:
            self._thread.stop()
            raise
        self._is_closed = False
        close_at_exit(self)

    @property
    def summary(self) -> CrawlSummary | None:
        """Return the result of the crawl; None before its end."""
        return self._crawl.summary

    def __iter__(self) -> Iterator[CrawledPage]:
        """Iterate over the pages as they arrive. Several iterators share the pages."""
        if self._is_closed and self._crawl.summary is not None:
            return
        self._check_open()
        pages = aiter(self._crawl)
        try:
            while (page := self._thread.call(_next(pages))) is not None:
                yield page
        finally:
            self.close()

    def run(self) -> CrawlSummary:
        """Crawl to the end. Pages go to the outputs only."""
        if self._is_closed and self._crawl.summary is not None:
            return self._crawl.summary
        self._check_open()
        try:
            return self._thread.call(self._crawl.run())
        finally:
            self.close()

    def plan(self) -> CrawlPlan:
        """Estimate pages and time before the start."""
        self._check_open()
        return self._thread.call(self._crawl.plan())

    def snapshot(self) -> CrawlSnapshot:
        """Return the progress. It may be called from any thread."""
        if self._last is not None:
            return self._last
        self._check_open()
        if self._thread.is_this:  # a callback on the loop's thread cannot await the frontier
            return self._crawl.last_snapshot()
        return self._thread.call(self._crawl.snapshot())

    def stop(self) -> None:
        """Send no more requests, finish those in flight, and keep all other URLs for a later run."""
        if not self._is_closed:
            self._thread.loop.call_soon_threadsafe(self._crawl.stop)

    def close(self) -> None:
        """End the crawl in any state. Idempotent.

        An unclosed crawl causes a ResourceWarning, and is closed at the end of the program.
        """
        if self._is_closed:
            return
        self._thread.check_is_other()
        self._is_closed = True
        self._last = self._thread.close(self._ended)

    async def _ended(self) -> CrawlSnapshot:
        await self._crawl.close()
        return await self._crawl.snapshot()

    def _let_go(self) -> bool:
        is_open, self._is_closed = not self._is_closed, True
        return is_open and self._thread.let_go(self._crawl.close)

    def __del__(self) -> None:
        if self._let_go():
            warnings.warn("unclosed curtsy.Crawl; close it, or use `with`", ResourceWarning, stacklevel=2, source=self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise PolicyError("This crawl is closed. Create another one; with the same job it resumes.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


async def _made(seeds: str | Iterable[str] | AsyncIterable[str], given: CrawlKeywords) -> AsyncCrawl:
    return acrawl(seeds, **given)


async def _next(pages: AsyncIterator[CrawledPage]) -> CrawledPage | None:
    return await anext(pages, None)


def crawl(seeds: str | Iterable[str] | AsyncIterable[str], **given: Unpack[CrawlKeywords]) -> Crawl:
    """Crawl from seeds politely: `for page in crawl("https://example.org/", max_pages=100)`.

    It takes the arguments of `acrawl()` and yields each page as it arrives. `run()` instead crawls to the end and fills
    only the outputs.
    """
    return Crawl(seeds, **given)

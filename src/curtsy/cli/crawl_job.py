"""Job of `curtsy crawl`: resume it, or start it anew if it is finished, and what is said at its start and end."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

from curtsy.cli import console
from curtsy.core.crawl_messages import has_enough, output_lacks
from curtsy.core.errors import NotWritten, StoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from curtsy.cli.context import CommandContext
    from curtsy.crawling.crawl import AsyncCrawl
    from curtsy.crawling.outputs.protocol import Written
    from curtsy.crawling.progress import CrawlSummary


HOSTS = 100
"""Hosts with the longest queues whose slots are checked after a kill."""


@dataclass(frozen=True)
class JobStart:
    """Start of a crawl in its job."""

    name: str
    """Name or folder of the job; empty if nothing is kept."""

    is_named: bool = False
    """True if the user named it. Another is kept on this machine, even if the store is a server."""

    restart: bool = False
    is_anew: bool = False
    """True if the job was finished, so that it starts anew."""

    is_new: bool = False
    """True if nothing of the job is kept yet."""

    client: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the client that the job needs."""

    @property
    def label(self) -> str:
        """Return the job in words."""
        return f"the job {self.name}" if self.is_named else f"this crawl (job {self.name})"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `acrawl`."""
        return {"job": self.name or None, "restart": self.restart, "shared": self.is_named, **self.client}


def start_of(
    given: CommandContext, name: str, seeds: Sequence[str], *, is_named: bool, restart: bool, client: Mapping[str, Any]
) -> JobStart:
    """Return how a crawl starts: resumed, or anew if its job on this machine is finished.

    A job that starts anew revalidates all cached pages, unless the user chose how copies are used.
    """
    from curtsy.crawling.jobs import FRONTIER, RENEWING, folder_of, is_finished, look
    from curtsy.crawling.start import SHARED

    settings = given.settings()
    folder = folder_of(name) if name else None
    is_shared = is_named and (settings.store or "").startswith(SHARED)
    if folder is None or is_shared or restart or not (folder / FRONTIER).is_file():
        is_new = folder is not None and not (folder / FRONTIER).exists()
        return JobStart(name, is_named, restart, is_new=is_new)
    try:
        job = look(folder)
    except StoreError:  # reported when the job is opened
        return JobStart(name, is_named)
    is_anew = is_finished(job, seeds)
    is_free = settings.cache_mode == "normal" and client.get("cache_mode") is None and client.get("cache") is None
    renews = is_free and (is_anew or bool(job.notes.get(RENEWING)))
    return JobStart(name, is_named, is_anew, is_anew, client={"cache_mode": "revalidate"} if renews else {})


async def open_crawl(crawl: AsyncCrawl, start: JobStart, outputs: Collection[str], notes: Mapping[str, Any]) -> bool:
    """Open a crawl, and print the messages on its job and its plan; return False if the job's server did not answer.

    `outputs` are the names of the outputs. `notes` are stored with the job.
    """
    try:
        lines = await announcement(crawl, start, outputs)
        await crawl.open(notes if start.name else None)
    except StoreError as error:
        if not crawl.is_shared:
            raise
        from curtsy.stores.redis_server import is_unreachable

        if not is_unreachable(error):
            raise
        console.say(f"{error} Then run this command again: the crawl has not started here.")
        return False
    for line in lines:
        console.say(line)
    return True


async def announcement(crawl: AsyncCrawl, start: JobStart, outputs: Collection[str]) -> list[str]:
    """Return the messages on the job and the plan. `outputs` are the names of the outputs."""
    from curtsy.client import session_of
    from curtsy.core.crawl_messages import slots_of_killed_run
    from curtsy.crawling.estimate import slots_held
    from curtsy.crawling.jobs import ENDED, pages_in, seeds_of

    lines: list[str] = []
    plan, notes, counts = await crawl.plan(), await crawl.frontier.notes(), await crawl.frontier.counts()
    if start.is_anew:
        same = " Unchanged pages are not downloaded again." if start.client else ""
        lines.append(f"{start.label} was finished, and starts anew.{same}")
    if counts.done or counts.queued or counts.failed:
        done = f"{console.counted(counts.done, 'URL')} done"
        waiting, new = counts.queued + counts.leased, len(set(crawl.seeds) - set(seeds_of(notes)))
        if crawl.is_shared and not waiting and not new:
            return [
                f"{start.label} is finished: {done}, {counts.failed:,} without a page. Known URLs are not fetched "
                "again. To start over, use --restart and other outputs, or another --job."
            ]
        more = f", {console.counted(new, 'new start URL')}" if new else ""
        lines.append(f"resuming {start.label}: {done}, {waiting:,} queued{more}. --restart begins again.")
        if not crawl.is_shared and not notes.get(ENDED, "done"):
            queues = await crawl.frontier.busiest(HOSTS)
            if held := await slots_held(session_of(crawl.client), [each.host for each in queues]):
                lines.append(slots_of_killed_run(held))
        most, pages = crawl.options.max_pages, pages_in(notes)
        if most is not None and pages >= most:
            return [*lines, has_enough(pages)]
    if plan.message:
        lines.append(plan.message)
    if not outputs:
        lines.append("no output is named, so pages are only cached. Use --out DIR, --jsonl FILE or --warc FILE.")
    return lines


def unsaved(start: JobStart, error: StoreError) -> JobStart | None:
    """Report a job that cannot be created, and return a start without one; None if the user wants the job."""
    from curtsy.crawling.jobs import folder_of, remove

    if start.is_named or not start.is_new:
        return None
    with suppress(StoreError, OSError):
        remove(folder_of(start.name))
    console.say(f"{error} The crawl is not saved, so it cannot be resumed.")
    return JobStart("")


def refusal(
    error: NotWritten, name: str, seeds: Sequence[str], options: Mapping[str, Any], *, is_named: bool, is_offline: bool
) -> tuple[str, str | None]:
    """Return the message for an output that cannot be opened, and the command of the job that owns the file, if known.

    `name` is the job of the crawl, empty without one; `options` are arguments of `CrawlOptions`.
    """
    from curtsy.crawling.job_scope import differences
    from curtsy.crawling.jobs import COMMAND, UNNAMED, folder_of, writer_of
    from curtsy.crawling.options import CrawlOptions
    from curtsy.crawling.outputs.append_file import ForeignFile, file_of_other_job

    job = writer_of(error.output) if isinstance(error, ForeignFile) else None
    if job is None or job.name == name or not (command := job.notes.get(COMMAND)):
        return str(error), None
    differ = differences(job, seeds, CrawlOptions(**options), is_offline=is_offline)
    if not differ and (is_named or not (folder_of(job.name) / UNNAMED).exists()):
        differ = ["--job"]
    return file_of_other_job(str(error.path), job.name, differ), str(command)


def written_messages(files: Mapping[str, str], summary: CrawlSummary, seeds: Sequence[str]) -> list[str]:
    """Return what the outputs contain at the end of a crawl. `files` are their paths by kind."""
    from curtsy.crawling.output_notes import counted_in, path_in

    held, lines = {each.name.partition(":")[0]: each for each in summary.outputs}, list[str]()
    for kind, path in files.items():
        place, found = _numbered(kind, path), held[kind]
        if found.missing:
            lines.append(
                f"{place} has {found.entries:,} of {found.entries + found.missing:,} entries: the output was cut or "
                "removed after they were written, and URLs that are done are not fetched again. To get all pages, "
                "start over with --restart."
            )
        elif path != "-" and (found.entries or summary.ended in ("done", "max_pages")):
            lines.append(f"written to {place}.{_where_to_begin(path, seeds) if kind == 'mirror' else _added(found)}")
        if found.earlier:
            shown = path_in(found.name) if path == "-" else place
            lines.append(output_lacks(shown, found.earlier, counted_in(found.name, summary.totals)))
    return lines


def _added(written: Written) -> str:
    """Return a sentence on the entries of earlier runs in an output; empty if there are none."""
    if not written.before:
        return ""
    new = max(0, written.entries - written.before)
    return f" {new:,} {'entry was' if new == 1 else 'entries were'} added to the {written.before:,} of earlier runs."


def _where_to_begin(path: str, seeds: Sequence[str]) -> str:
    """Return a sentence that names the file of the first seed in a mirror."""
    from curtsy.crawling.outputs.mirror import file_at

    files = (file for seed in seeds if (file := file_at(path, seed)) is not None)
    return "".join(f" Open {file} in a browser." for file in islice(files, 1))


def _numbered(kind: str, path: str) -> str:
    """Return a shell pattern for the files of an output that numbers them; the path of any other."""
    from curtsy.crawling.outputs.part_storage import is_url

    if kind == "warc" and not is_url(path):
        stem = re.sub(r"\.warc(\.gz)?$", "", path, flags=re.IGNORECASE)
        return f"{stem}-*.warc{'' if path.lower().endswith('.warc') else '.gz'}"
    if kind != "parquet" and not is_url(path):
        return path
    stem, dot, ending = path.rpartition("/")[2].partition(".")
    return f"{path.removesuffix(stem + dot + ending)}{stem}{'-' * bool(stem)}*{dot}{ending}"

"""Jobs: named crawls that can be resumed, each with a folder.

    <state>/jobs/<name>/frontier.sqlite    queue, known URLs and results
    <state>/jobs/<name>/spool/             pages of outputs in parts that are not stored yet (parts.py)
    <state>/jobs/<name>/worker, worker-1 … names of this machine's processes in a shared crawl (WorkerId)
    <state>/jobs/<name>/unnamed            empty: the user did not choose the name

The frontier of a shared job is in Redis, under the job's name. Its folder holds only the data of this machine. The
frontier also stores the notes of a job: the named values below, and the end of each output (committer.py).
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from curtsy.core.crawl_messages import no_job, other_cache_mode, other_fields, other_job, running_job, unreadable_totals
from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.masking import masked_repr
from curtsy.crawling.extract.scope import Scope
from curtsy.crawling.frontier.local import read_job, requeue_in
from curtsy.crawling.frontier.protocol import Counts, Requeue, host_of
from curtsy.crawling.options import DEFINING, CrawlOptions
from curtsy.crawling.output_notes import EXTRACT, Fields, kept
from curtsy.crawling.outputs.skipped import Examples, SkippedCsv
from curtsy.crawling.progress import CrawlTotals, together
from curtsy.stores.sqlite_file import FileInUse
from curtsy.stores.url import check_path
from curtsy.system.file_lock import FileLock

if TYPE_CHECKING:
    from curtsy.crawling.frontier.redis_jobs import JobSummary

SEEDS = "seeds"
"""First seeds of the job, over all its runs."""

SCOPE = "scope"
"""Scope of the job."""

OFFLINE = "offline"
"""True if the job replays the cache, so that URLs without a copy have failed."""

WIDENED = "widened:"
"""Prefix of the note for each URL that widened the scope. The value is the time in epoch seconds."""

SITEMAPS = "sitemaps"
"""Number of sitemaps of each site that has many."""

COMMAND = "command"
"""Note with the command line that resumes the job, secrets masked."""

ENDED = "ended"
"""Reason for the end of the last run, as in its summary; empty if the job is running or was killed."""

WAITED_FOR = "waited_for"
"""State of the host that was due first at the end of the last run, such as `budget spent`; empty without one."""

RENEWING = "renewing"
"""True if the job started anew after it was finished, so that cached pages are revalidated."""

TOTALS = "totals"
"""Totals of the job. In a shared job, each worker has its own note with this prefix."""


def spool_of(folder: Path, output: str, worker: str) -> Path:
    """Return the folder for the spool of an output in parts, in a job's folder."""
    key = hashlib.blake2b(f"{worker} {output}".encode("utf-8", "replace"), digest_size=6).hexdigest()
    return folder / SPOOL / key


def seeds_of(notes: Mapping[str, Any]) -> list[str]:
    """Return the first seeds of a job; empty if it is new."""
    return list(notes.get(SEEDS, ()))


def widened_by(notes: Mapping[str, Any]) -> list[str]:
    """Return the URLs of earlier runs that widened the scope, in the same order."""
    found = {name.removeprefix(WIDENED): at for name, at in notes.items() if name.startswith(WIDENED)}
    return sorted(found, key=found.__getitem__)


def widen(scope: Scope, notes: Mapping[str, Any]) -> None:
    """Widen a scope by the URLs of earlier runs."""
    for url in widened_by(notes):
        scope.widen(url)


def check_seeds(job: str, seeds: Sequence[str], notes: Mapping[str, Any]) -> None:
    """Refuse canonical seeds of which none belongs to the job. Raises PolicyError.

    If one seed belongs to the job, the others extend it.
    """
    began = seeds_of(notes)
    if not began or not seeds or not set(began).isdisjoint(seeds):
        return
    try:
        scope = Scope.from_plain(notes.get(SCOPE, {}))
    except PolicyError:  # an unreadable scope is reported later, as a change
        return
    widen(scope, notes)
    if not any(scope.covers(seed) for seed in seeds):
        raise PolicyError(other_job(job, began, seeds[0]))


def extract_note(extract: Mapping[str, str] | Callable[..., Any] | None) -> Fields:
    """Return the fields to extract as the notes have them."""
    return dict(extract) if isinstance(extract, Mapping) else None if extract is None else "function"


def check_extract(job: str, extract: Fields, notes: Mapping[str, Any]) -> None:
    """Refuse fields that differ from those of the job, because its outputs would have both. Raises PolicyError."""
    if seeds_of(notes) and notes.get(EXTRACT) != extract:
        raise PolicyError(other_fields(job))


def check_cache_mode(job: str, is_offline: bool, notes: Mapping[str, Any]) -> None:
    """Refuse to replay a job of the site from the cache, and the reverse: the URLs given up differ. Raises PolicyError.

    A replay gives up each URL that is not cached, for good.
    """
    if seeds_of(notes) and bool(notes.get(OFFLINE)) != is_offline:
        raise PolicyError(other_cache_mode(job, is_offline=is_offline))


def totals_of(notes: Mapping[str, Any], name: str = TOTALS) -> CrawlTotals:
    """Return the totals in the note `name`; empty if it is absent. Raises StoreError if it is damaged."""
    try:
        return msgspec.convert(notes.get(name, {}), CrawlTotals)
    except msgspec.ValidationError as error:
        raise StoreError(unreadable_totals(name, error)) from error


def pages_in(notes: Mapping[str, Any]) -> int:
    """Return the pages of all workers. Raises StoreError."""
    return sum(totals_of(notes, name).pages for name in notes if name.startswith(TOTALS))


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)

FRONTIER, SPOOL, UNNAMED = "frontier.sqlite", "spool", "unnamed"

UNNAMED_KEPT = 30 * 86_400.0
"""Seconds after its last change for which a job that the user did not name is kept."""

MOST_UNNAMED = 100
"""Maximum number of such jobs; those that changed last are kept."""

LONGEST_HOST = 80
"""Maximum length of the host in the name of such a job."""

CLOCK_MARGIN = 60.0
"""Seconds by which the clock of a worker may differ from that of its server."""

WORKER_FILE, _WORKER_FILES = "worker", re.compile(r"worker(-[0-9]+)?", re.ASCII)

MOST_WORKERS = 1000
"""Processes of one machine that may work on a job from one folder."""


class Job(msgspec.Struct, frozen=True):
    """Current state of a crawl of this machine, or of a shared one."""

    name: str
    folder: str
    """Path of the job; empty if it is shared."""

    changed_at: float
    """Time of the last change, in epoch seconds."""

    seeds: tuple[str, ...] = ()
    counts: Counts | None = None
    """None while the job is running on this machine alone."""

    totals: CrawlTotals = msgspec.field(default_factory=CrawlTotals)
    is_running: bool = False
    """True if a process works on the job. Then the numbers are available only if it is shared."""

    notes: dict[str, Any] = {}
    """All notes of the job: its scope, how it was started, the ends of its outputs."""

    trouble: str = ""
    """Error that prevents reading the job; empty if it is readable."""

    __repr__ = masked_repr


def jobs_folder() -> Path:
    """Return the default folder for jobs."""
    from platformdirs import user_state_path

    return user_state_path("curtsy", appauthor=False) / "jobs"


def folder_of(job: str | Path) -> Path:
    """Return the folder of a job, which is given as a path or a name. Raises PolicyError."""
    text = str(job)
    if isinstance(job, Path) or "/" in text:
        check_path("job", text)
        return Path(job)
    if not _NAME.fullmatch(text):
        raise PolicyError(
            f"job = {text!r} is not a name for a job. Use letters, digits, '.', '-' and '_', or give a folder: ./it."
        )
    return jobs_folder() / text


def default_name(
    seeds: Sequence[str], options: CrawlOptions, sources: Sequence[str] = (), *, is_offline: bool = False
) -> str:
    """Return the job name of a crawl without one: the first seed's host, and a digest of what is crawled.

    Limits and outputs are not part of it. `sources` are files of seeds, of which then only the first counts. A replay
    of the cache (`is_offline`) is a job of its own beside the crawl of the site.
    """
    what: dict[str, Any] = {name: getattr(options, name) for name in DEFINING}
    what = {name: sorted(value) if isinstance(value, tuple) else value for name, value in what.items()}
    what["seeds"] = [seeds[0], *sources] if sources else list(seeds)
    digest = hashlib.blake2b(msgspec.json.encode(what, order="sorted"), digest_size=3).hexdigest()
    host = re.sub(r"[^A-Za-z0-9.]+", "-", host_of(seeds[0])).strip("-.")[:LONGEST_HOST]
    return f"{host or 'crawl'}{'-offline' * is_offline}-{digest}"


def is_finished(job: Job, seeds: Sequence[str]) -> bool:
    """Return whether a job of this machine has fetched all its URLs, and these seeds are among them."""
    if job.counts is None or job.counts.queued or job.notes.get(ENDED) != "done":
        return False
    return set(seeds) <= set(seeds_of(job.notes))


def output_ends(folder: Path | None) -> dict[str, Any]:
    """Return the notes on a job's files, which a restart keeps; none of a new or damaged job.

    Raises FileInUse if a process works on the job.
    """
    if folder is None or not (folder / FRONTIER).is_file():
        return {}
    try:
        _, notes = read_job(folder / FRONTIER)
        ends = {name: value for name, value in notes.items() if name.startswith("output:") and name.count(":") > 1}
        return {**ends, **kept(notes)}
    except FileInUse:
        raise
    except StoreError:
        return {}


def mark_unnamed(folder: Path) -> None:
    """Mark a job as one that the user did not name, and remove such jobs that are old or too many.

    The mark ends when the user names the job (`mark_named`).
    """
    with contextlib.suppress(OSError):
        (folder / UNNAMED).touch()
    others = [each.parent for each in jobs_folder().glob(f"*/{UNNAMED}") if (each.parent / FRONTIER).is_file()]
    latest = sorted((each for each in others if each != folder), key=_changed_at, reverse=True)
    for number, each in enumerate(latest, 2):
        if number > MOST_UNNAMED or time.time() - _changed_at(each) > UNNAMED_KEPT:
            with contextlib.suppress(StoreError, OSError):  # one that is running stays
                remove(each)


def mark_named(folder: Path) -> None:
    """Keep a job until the user removes it."""
    with contextlib.suppress(OSError):
        (folder / UNNAMED).unlink(missing_ok=True)


def jobs(place: Path | None = None) -> Iterator[Job]:
    """Iterate over the jobs of this machine, by name."""
    folder = place or jobs_folder()
    if not folder.is_dir():
        return
    for each in sorted(folder.iterdir()):
        if (each / FRONTIER).is_file():
            try:
                yield look(each)
            except StoreError as error:  # a damaged job does not hide the others
                yield Job(each.name, str(each), _changed_at(each), trouble=str(error))


def writer_of(output: str) -> Job | None:
    """Return the job of this machine that has written an output, by the output's name; None if there is none."""
    return next((each for each in jobs() if f"output:{output}" in each.notes), None)


def look(folder: Path, server: str = "") -> Job:
    """Return the state of a job. Raises StoreError if it is absent or damaged.

    `server` is the URL of a store that does not have the job, for the message.
    """
    path = folder / FRONTIER
    if not path.is_file():
        raise StoreError(no_job(folder, server))
    changed_at = _changed_at(folder)
    try:
        counts, notes = read_job(path)
    except FileInUse:
        return Job(folder.name, str(folder), changed_at, is_running=True)
    totals = totals_of(notes)
    return Job(folder.name, str(folder), changed_at, tuple(seeds_of(notes)), counts, totals, notes=notes)


def shared(found: JobSummary) -> Job:
    """Return the state of a shared job, with the notes of its workers merged. Raises StoreError."""
    notes: dict[str, Any] = {}
    for name, value in sorted(found.notes.items()):
        if name.startswith("output:"):  # per worker: merged as if there were one
            output = name.split(":", 2)[-1]
            name = f"output:{output}"
            if output == Examples.name and isinstance(value, dict):
                value = {**value, **notes.get(name, {})}
        notes[name] = value
    totals = together(totals_of(notes, name) for name in notes if name.startswith(TOTALS))
    seeds, changed_at, is_running = tuple(seeds_of(notes)), found.changed_at or 0.0, bool(found.workers)
    return Job(found.name, "", changed_at, seeds, found.counts, totals, is_running, notes)


def _changed_at(folder: Path) -> float:
    """Return the time of the last write to the frontier. The lock file is ignored, because every reader writes it."""
    return max(path.stat().st_mtime for name in (FRONTIER, f"{FRONTIER}-wal") if (path := folder / name).exists())


def requeue_in_folder(folder: Path, choice: Requeue) -> int:
    """Queue finished URLs of a job of this machine again; return their number. Raises StoreError if it is running."""
    job = look(folder)
    if job.is_running:
        raise StoreError(running_job(job.name))
    return requeue_in(folder / FRONTIER, choice, uncounted).total()


async def requeue_on_server(server: str, job: Job, choice: Requeue) -> int:
    """Queue finished URLs of a shared job again; return their number. Raises PolicyError for a worker at work."""
    from curtsy.crawling.frontier.redis_requeue import requeue_shared

    workers = sorted(each.removeprefix(f"{TOTALS}:") for each in job.notes if each.startswith(f"{TOTALS}:"))
    return (await requeue_shared(server, job.name, choice, workers, uncounted, unstored_since)).total()


def unstored_since(notes: Mapping[str, Any], worker: str) -> float:
    """Return the time from which on the loss of a worker's disk may have taken pages, in epoch seconds.

    Earlier pages are stored in all its outputs. There is a margin for the clocks of machines.
    """
    from curtsy.crawling.outputs.parts import stored_before

    prefix = f"output:{worker}:"
    outputs = {name.removeprefix(prefix): state for name, state in notes.items() if name.startswith(prefix)}
    times = [
        stored_before(name, state)
        for name, state in outputs.items()
        if name != Examples.name and not name.startswith(f"{SkippedCsv.kind}:")
    ]
    return max(0.0, min(times, default=0.0) - CLOCK_MARGIN)


def uncounted(notes: Mapping[str, Any], found: Mapping[str, int]) -> dict[str, Any]:
    """Return the notes of totals without the URLs that are queued again: pages, and failures by reason."""
    left, changed = Counter(found), {}
    for name in sorted(name for name in notes if name.startswith(TOTALS)):
        totals = totals_of(notes, name)
        for field in ("fetched", "cached"):
            count = min(left["page"], getattr(totals, field))
            setattr(totals, field, getattr(totals, field) - count)
            left["page"] -= count
        for reason in set(left) & set(totals.failed):
            count = min(left[reason], totals.failed[reason])
            totals.failed[reason] -= count
            left[reason] -= count
        totals.failed = {reason: count for reason, count in totals.failed.items() if count}
        changed[name] = msgspec.to_builtins(totals)
    return changed


def remove(folder: Path, server: str = "") -> None:
    """Delete a job, damaged or not, and its queue; keep its outputs. Raises StoreError if it is running.

    `server` is the URL of a store that does not have the job, for the message.
    """
    try:
        job = look(folder, server)
    except StoreError:
        if not (folder / FRONTIER).is_file():
            raise
    else:
        if job.is_running:
            raise StoreError(running_job(job.name))
    for name in (*(f"{FRONTIER}{suffix}" for suffix in ("-wal", "-shm", "", ".lock")), UNNAMED):
        (folder / name).unlink(missing_ok=True)
    forget_identities(folder)
    shutil.rmtree(folder / SPOOL, ignore_errors=True)
    with contextlib.suppress(OSError):  # a folder chosen by the user may hold other files
        folder.rmdir()


def remove_unstarted(folder: Path) -> None:
    """Delete a job of this machine without URLs and output files, because its crawl did not start."""
    with contextlib.suppress(StoreError, OSError):
        job = look(folder)
        if not job.is_running and not job.seeds and not any(name.startswith("output:") for name in job.notes):
            remove(folder)


class WorkerId:
    """Name of this process in a shared job, generated once, stored in the job's folder and locked.

    Processes of one machine that share a folder have one name each. A restarted process takes the first free one.
    """

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for number in range(MOST_WORKERS):
            if self._take(folder / (WORKER_FILE if number == 0 else f"{WORKER_FILE}-{number}")):
                return
        raise StoreError(f"{folder} has {MOST_WORKERS} workers. Start more of them in another folder, or elsewhere.")

    def _take(self, path: Path) -> bool:
        """Lock a name, unless another process has it; generate it if the file is new."""
        self._lock = FileLock(str(path))
        try:
            if not self._lock.take(wait=False):
                self._lock.drop()
                return False
            self.name = self._lock.content.decode("ascii", "replace").strip()
            if not self.name:
                self.name = uuid.uuid4().hex[:12]
                self._lock.content = self.name.encode()
        except OSError as error:
            raise StoreError(f"{path} cannot be written: {error.strerror}. Give another folder for the job.") from error
        return True

    def idle(self) -> Iterator[WorkerId]:
        """Yield the names in the folder whose processes do not run, each locked for the caller."""
        for path in sorted(self.folder.iterdir()):
            found = WorkerId.__new__(WorkerId)
            found.folder = self.folder
            if _WORKER_FILES.fullmatch(path.name) and found._take(path):
                yield found

    def close(self) -> None:
        """Release the name for other processes; idempotent."""
        self._lock.drop()


def forget_identities(folder: Path) -> None:
    """Delete the names of all workers from a job's folder."""
    for path in folder.iterdir():
        if _WORKER_FILES.fullmatch(path.name):
            path.unlink(missing_ok=True)

"""Jobs: crawls with a name, kept in a folder each, so that they can be gone on with.

    <state>/jobs/<name>/frontier.sqlite    what waits, what was seen, what is done
    <state>/jobs/<name>/worker, worker-1 … who the processes here are, in a crawl that many work on (identity.py)

A job that many machines share has its frontier in Redis, under its name; here is only what this machine must know.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.secrets import masked_repr
from curtsy.crawling.frontier.durable import SQLiteFrontier
from curtsy.crawling.frontier.protocol import Counts
from curtsy.crawling.frontier.sqlite_file import Taken
from curtsy.crawling.frontier.worker_id import forget_identities
from curtsy.crawling.job_values import SEEDS, TOTALS, totals_of
from curtsy.crawling.outputs.examples import Examples
from curtsy.crawling.progress import Totals, together
from curtsy.stores.url import check_path

if TYPE_CHECKING:
    from curtsy.crawling.frontier.redis_jobs import JobSummary

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)

FRONTIER = "frontier.sqlite"


class Job(msgspec.Struct, frozen=True):
    """A crawl that was begun on this machine, or is shared by many, as it stands."""

    name: str
    folder: str
    """Empty if it is shared."""

    seeds: tuple[str, ...]
    counts: Counts | None
    """None while it is running on this machine alone."""

    totals: Totals
    is_running: bool
    """Whether a process is at it just now: then only that one knows the numbers, unless it is shared."""

    changed_at: float
    """Epoch second of the last change."""

    notes: dict[str, Any] = {}
    """All that it has noted: its scope, how it was started, where its outputs end."""

    trouble: str = ""
    """Why it cannot be read, if it cannot."""

    __repr__ = masked_repr


def jobs_folder() -> Path:
    """Where jobs are kept unless a folder is given."""
    from platformdirs import user_state_path

    return user_state_path("curtsy", appauthor=False) / "jobs"


def folder_of(job: str | Path) -> Path:
    """The folder of a job: itself if it is a path, else one of its name. Raises PolicyError."""
    text = str(job)
    if isinstance(job, Path) or "/" in text:
        check_path("job", text)
        return Path(job)
    if not _NAME.fullmatch(text):
        raise PolicyError(
            f"job = {text!r} is no name for a job. Use letters, digits, '.', '-' and '_', or give a folder: ./it."
        )
    return jobs_folder() / text


def jobs(place: Path | None = None) -> Iterator[Job]:
    """The jobs of this machine, by name."""
    folder = place or jobs_folder()
    if not folder.is_dir():
        return
    for each in sorted(folder.iterdir()):
        if (each / FRONTIER).is_file():
            try:
                yield look(each)
            except StoreError as error:  # one that is damaged does not hide the others
                yield Job(each.name, str(each), (), None, Totals(), False, _changed_at(each), trouble=str(error))


def look(folder: Path) -> Job:
    """One job as it stands. Raises StoreError if there is none, or if it is damaged."""
    path = folder / FRONTIER
    if not path.is_file():
        raise StoreError(f"there is no job in {folder}. `curtsy jobs ls` lists those there are.")
    changed_at = _changed_at(folder)
    try:
        frontier = SQLiteFrontier(path)
    except Taken:
        return Job(folder.name, str(folder), (), None, Totals(), True, changed_at)
    with contextlib.closing(frontier):
        counts, notes = frontier.counts(), frontier.notes()
    return Job(
        name=folder.name,
        folder=str(folder),
        seeds=tuple(notes.get(SEEDS, ())),
        counts=counts,
        totals=totals_of(notes),
        is_running=False,
        changed_at=changed_at,
        notes=notes,
    )


def shared(found: JobSummary) -> Job:
    """A job that many machines share, as it stands: what its workers have noted, together. Raises StoreError."""
    notes: dict[str, Any] = {}
    for name, value in sorted(found.notes.items()):
        if name.startswith("output:"):  # of one worker; all are to stand as one would
            output = name.split(":", 2)[-1]
            name = f"output:{output}"
            if output == Examples.name and isinstance(value, dict):
                value = {**value, **notes.get(name, {})}
        notes[name] = value
    return Job(
        name=found.name,
        folder="",
        seeds=tuple(notes.get(SEEDS, ())),
        counts=found.counts,
        totals=together(totals_of(notes, name) for name in notes if name.startswith(TOTALS)),
        is_running=bool(found.workers),
        changed_at=found.changed_at or 0.0,
        notes=notes,
    )


def _changed_at(folder: Path) -> float:
    """When the frontier was last written. Its lock is written by everybody who looks, and so says nothing."""
    return max(path.stat().st_mtime for name in (FRONTIER, f"{FRONTIER}-wal") if (path := folder / name).exists())


def remove(folder: Path) -> None:
    """Forget a job, damaged or not, and all that waits in it; its outputs stay. Raises StoreError if it is running."""
    try:
        job = look(folder)
    except StoreError:
        if not (folder / FRONTIER).is_file():
            raise
    else:
        if job.is_running:
            raise StoreError(f"the job {job.name} is running. Stop it first, then remove it.")
    for suffix in ("-wal", "-shm", "", ".lock"):
        (folder / f"{FRONTIER}{suffix}").unlink(missing_ok=True)
    forget_identities(folder)
    with contextlib.suppress(OSError):  # a folder that was chosen by hand may hold more than the job
        folder.rmdir()

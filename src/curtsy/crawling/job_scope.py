"""Comparison of a crawl with the notes of a job: the scope, and all that defines a crawl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from curtsy.core.crawl_messages import other_shared_scope
from curtsy.core.errors import PolicyError
from curtsy.crawling.extract.scope import Scope
from curtsy.crawling.filters import scope_of
from curtsy.crawling.frontier.protocol import AsyncFrontier
from curtsy.crawling.jobs import OFFLINE, SCOPE, Job, extract_note, seeds_of
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.output_notes import EXTRACT

_SCOPE_OPTIONS = {
    "kind": "--scope", "domains": "--domain", "match": "--match", "skip": "--skip", "max_depth": "--max-depth",
    "files": "--files",
}  # fmt: skip
"""Options of the command line by the fields of a scope. The order of their values does not matter."""


def differences(job: Job, seeds: Sequence[str], options: CrawlOptions, *, is_offline: bool) -> list[str]:
    """Return what defines a crawl and differs from a job, in words, as far as the job's notes tell."""
    found = [] if set(seeds) & set(job.seeds) else ["the URLs"]
    if job.notes.get(EXTRACT) != extract_note(options.extract):
        found.append("--extract")
    found += scope_differences(job.notes, seeds, options)
    if bool(job.notes.get(OFFLINE)) != is_offline:
        found.append("the cache mode (offline)")
    return found


def scope_differences(notes: Mapping[str, Any], seeds: Sequence[str], options: CrawlOptions) -> list[str]:
    """Return the options whose scope differs from a job's; none if the job has no readable scope."""
    try:
        was, now = Scope.from_plain(notes.get(SCOPE, {})), scope_of(seeds, options)
    except PolicyError:
        return []
    values = ((option, getattr(was, name), getattr(now, name)) for name, option in _SCOPE_OPTIONS.items())
    return [
        option for option, *both in values
        if len({tuple(sorted(each)) if isinstance(each, tuple) else each for each in both}) > 1
    ]  # fmt: skip


async def check_shared_scope(
    job: str, seeds: Sequence[str], options: CrawlOptions, notes: Mapping[str, Any], frontier: AsyncFrontier
) -> None:
    """Refuse seeds or options with another scope while other workers are present. Raises PolicyError.

    A URL that one worker skips is skipped for all. `seeds` are the first ones, as far as they are known; `notes` are
    those of the job.
    """
    differ = scope_differences(notes, seeds_of(notes), options)
    if not differ and seeds and SCOPE in notes and scope_of(seeds, options).changes(notes[SCOPE]):
        differ = ["the start URLs"]
    if not differ:
        return
    await frontier.claim(0)  # sends the heartbeat, whose reply has the present workers
    if frontier.workers > 1:
        raise PolicyError(other_shared_scope(job, differ, Scope.from_plain(notes[SCOPE]).describe()))

"""Notes of a job: the names of the values in its frontier, and functions that read them.

Each output stores its end there too, under its own name (committer.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from curtsy.core.errors import PolicyError, StoreError
from curtsy.core.secrets import mask_url
from curtsy.crawling.extract.scope import Scope
from curtsy.crawling.progress import Totals

SEEDS = "seeds"
"""First seeds of the job, over all its runs."""

SCOPE = "scope"
"""Scope of the job."""

WIDENED = "widened:"
"""Prefix of the note for each URL that widened the scope. The value is the time in epoch seconds."""

SITEMAPS = "sitemaps"
"""Number of sitemaps of each site that has many."""

ENDED = "ended"
"""Reason for the end of the last run, as in its summary; empty if the job is running or was killed."""

TOTALS = "totals"
"""Totals of the job. In a shared job, each worker has its own note with this prefix."""


def seeds_of(notes: Mapping[str, Any]) -> list[str]:
    """Return the first seeds of a job; empty if it is new."""
    return list(notes.get(SEEDS, ()))


def widen(scope: Scope, notes: Mapping[str, Any]) -> None:
    """Widen a scope by the URLs of earlier runs, in the same order."""
    found = {name.removeprefix(WIDENED): at for name, at in notes.items() if name.startswith(WIDENED)}
    for url in sorted(found, key=found.__getitem__):
        scope.widen(url)


def check_seeds(job: str, seeds: Sequence[str], notes: Mapping[str, Any]) -> None:
    """Refuse canonical seeds of which none belongs to the job. Raises PolicyError.

    If one seed belongs to the job, the others extend it.
    """
    began = seeds_of(notes)
    if not began or not set(began).isdisjoint(seeds):
        return
    try:
        scope = Scope.from_plain(notes.get(SCOPE, {}))
    except PolicyError:  # an unreadable scope is reported later, as a change
        return
    widen(scope, notes)
    if not any(scope.covers(seed) for seed in seeds):
        first, more = mask_url(began[0]), f" and {len(began) - 1:,} more" if len(began) > 1 else ""
        raise PolicyError(
            f"{f'the job {job}' if job else 'this job'} began at {first}{more}, and {mask_url(seeds[0])} is no part of "
            f"that: the pages of two crawls would be mixed. Choose another name for this one; or name {first} too, if "
            "both are meant to be one; or begin the job anew (--fresh, fresh=True)."
        )


def totals_of(notes: Mapping[str, Any], name: str = TOTALS) -> Totals:
    """Return the totals in the note `name`; empty if it is absent. Raises StoreError if it is damaged."""
    try:
        return msgspec.convert(notes.get(name, {}), Totals)
    except msgspec.ValidationError as error:
        raise StoreError(
            f"what this job says of its totals cannot be read ({name}: {error}). It was written by another version of "
            "curtsy, or damaged: go on with the version that wrote it, or begin the job anew."
        ) from error


def pages_in(notes: Mapping[str, Any], *, but: str | None = None) -> int:
    """Return the pages of all workers except the one with the totals `but`. Raises StoreError."""
    return sum(totals_of(notes, name).pages for name in notes if name.startswith(TOTALS) and name != but)

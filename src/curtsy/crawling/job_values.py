"""Notes: the names under which a job keeps plain values in its frontier, and how its totals are read back.

Outputs keep there where they end, each under a name of its own (harvest.py).
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
"""Where a job began, over all its runs."""

SCOPE = "scope"
"""Which URLs belong to it."""

WIDENED = "widened:"
"""Begins the name of a note for each URL that the scope was widened by; its value is the epoch second of that."""

SITEMAPS = "sitemaps"
"""How many sitemaps each site has had, of those that have many."""

ENDED = "ended"
"""Why its last run was over, as its summary says; empty if it runs, or was killed."""

TOTALS = "totals"
"""What it has done; in a shared job, each worker has its own under a name that begins so."""


def seeds_of(notes: Mapping[str, Any]) -> list[str]:
    """Where a job began; nothing if it is new."""
    return list(notes.get(SEEDS, ()))


def widen(scope: Scope, notes: Mapping[str, Any]) -> None:
    """Widen a scope by what an earlier run has widened it by, in the same order."""
    found = {name.removeprefix(WIDENED): at for name, at in notes.items() if name.startswith(WIDENED)}
    for url in sorted(found, key=found.__getitem__):
        scope.widen(url)


def check_seeds(job: str, seeds: Sequence[str], notes: Mapping[str, Any]) -> None:
    """Refuse to go on with a job from canonical seeds of which none has to do with it. Raises PolicyError.

    Who names one that has, names the others beside it: that is how a job is made wider.
    """
    began = seeds_of(notes)
    if not began or not set(began).isdisjoint(seeds):
        return
    try:
        scope = Scope.from_plain(notes.get(SCOPE, {}))
    except PolicyError:  # that it cannot be read is told later, as a change
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
    """What the note of this name says was done; nothing if there is none. Raises StoreError if it is damaged."""
    try:
        return msgspec.convert(notes.get(name, {}), Totals)
    except msgspec.ValidationError as error:
        raise StoreError(
            f"what this job says of its totals cannot be read ({name}: {error}). It was written by another version of "
            "curtsy, or damaged: go on with the version that wrote it, or begin the job anew."
        ) from error


def pages_in(notes: Mapping[str, Any], *, but: str | None = None) -> int:
    """The pages of all workers, but for the one whose totals have this name. Raises StoreError."""
    return sum(totals_of(notes, name).pages for name in notes if name.startswith(TOTALS) and name != but)

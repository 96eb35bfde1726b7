"""Notes: the names under which a job keeps plain values in its frontier, and how its totals are read back.

Outputs keep there where they end, each under a name of its own (harvest.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from curtsy.core.errors import StoreError
from curtsy.crawling.progress import Totals

SEEDS = "seeds"
"""Where a job began."""

SCOPE = "scope"
"""Which URLs belong to it."""

ENDED = "ended"
"""Why its last run was over, as its summary says; empty if it runs, or was killed."""

TOTALS = "totals"
"""What it has done; in a shared job, each worker has its own under a name that begins so."""


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

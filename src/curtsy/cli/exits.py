"""Exit codes, and their order by severity."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from curtsy.core.errors import Reason


class Exit(IntEnum):
    """Exit code of a command. The numbers are part of the public interface."""

    FINE = 0
    ERROR = 1
    USAGE = 2
    REFUSED = 3
    """curtsy refused to send the request, and waiting does not help."""

    BAD_STATUS = 22
    """The site answered with an error status, as with curl's `--fail`."""

    OUTPUT = 74
    """An output cannot be opened, was closed, was replaced or lacks pages (EX_IOERR)."""

    LATER = 75
    """Try again later; the message says when (EX_TEMPFAIL)."""

    CONFIGURATION = 78
    """The settings are wrong, or need a missing library (EX_CONFIG)."""

    INTERRUPTED = 130


MEANINGS = {
    Exit.FINE: "all went well",
    Exit.ERROR: "an error: no answer came, or something of our own failed",
    Exit.USAGE: "the command was not understood, or a URL is none",
    Exit.REFUSED: "refused by manners: robots.txt, the denylist, an address; waiting does not help",
    Exit.BAD_STATUS: "the site answered with an error",
    Exit.OUTPUT: (
        "an output of a crawl cannot be opened, was closed, was replaced, or lacks pages; "
        "nothing is done that is not written"
    ),
    Exit.LATER: "try again later; the message says when",
    Exit.CONFIGURATION: "the settings are wrong (the message names file and line), or need a library that is missing",
    Exit.INTERRUPTED: "interrupted (Ctrl-C, SIGTERM, a closed terminal); everything was given back",
}
"""Text of each code in the help and on the reference page."""

_BEST_FIRST = (
    Exit.FINE, Exit.LATER, Exit.REFUSED, Exit.BAD_STATUS, Exit.ERROR, Exit.OUTPUT, Exit.USAGE,
    Exit.CONFIGURATION, Exit.INTERRUPTED,
)  # fmt: skip


def worst(codes: Iterable[Exit]) -> Exit:
    """Return the most severe exit code; temporary errors rank lowest."""
    return max(codes, key=_BEST_FIRST.index, default=Exit.FINE)


def exit_for(reason: Reason | None, retry_after: float | None) -> Exit:
    """Return the exit code for the result of one URL."""
    from curtsy.core.errors import REFUSALS, Reason

    if reason is None:
        return Exit.FINE
    if reason is Reason.INVALID_URL:
        return Exit.USAGE
    if retry_after is not None:
        return Exit.LATER
    if reason is Reason.HTTP_STATUS:
        return Exit.BAD_STATUS
    if reason in REFUSALS and reason not in (Reason.NOT_IN_CACHE, Reason.CLOSED):
        return Exit.REFUSED
    return Exit.ERROR

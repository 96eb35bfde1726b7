"""Exit handlers in order: open objects are closed first, then the writers that they use.

The package imports this module early, because `atexit` runs the last handler first. So a program's own handlers run
before these, and may still fetch.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

_FIRST: list[Callable[[], None]] = []
_LAST: list[Callable[[], None]] = []


def at_exit(work: Callable[[], None], *, first: bool = False) -> None:
    """Register `work` for the end of the program; `first` if it needs resources that other handlers end."""
    (_FIRST if first else _LAST).append(work)


@atexit.register
def _end() -> None:
    for work in (*_FIRST, *_LAST):
        work()

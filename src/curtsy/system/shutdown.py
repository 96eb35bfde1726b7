"""What is done when a program ends, and in which order: what is open is closed first, and then what it wrote by.

It is imported with the package, so that handlers which a program registers later come before, and may still fetch.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable

_FIRST: list[Callable[[], None]] = []
_LAST: list[Callable[[], None]] = []


def at_exit(work: Callable[[], None], *, first: bool = False) -> None:
    """Have something done when the program ends; `first` if it needs what others end then."""
    (_FIRST if first else _LAST).append(work)


@atexit.register
def _end() -> None:
    for work in (*_FIRST, *_LAST):
        work()

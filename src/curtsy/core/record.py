"""What is remembered and what is told: the base of stored records."""

from __future__ import annotations

from typing import ClassVar, Self

import msgspec

from curtsy.core.message import SECOND, Now


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A value that a store keeps under a key. Subclasses set a `tag`, and count their formats.

    New fields go to the end, with a default: an older record then reads as it is. Any other change raises
    `current` and adds a migration to `stores/codec.py`.
    """

    format: int = 1
    """The format that this record was written in."""

    current: ClassVar[int] = 1
    """The format that this version of curtsy writes."""

    def lasts(self, now: Now) -> int | None:
        """Microseconds after which the record says nothing any more and may be dropped; None for never."""
        return None

    def joined(self, ours: Self, base: Self | None) -> Self:
        """This record, as the store has it, joined with `ours`, which went its own way from `base` in an outage."""
        return self


WEEK = 7 * 86_400 * SECOND
"""How long what was learned of a host is worth keeping when nothing new comes."""

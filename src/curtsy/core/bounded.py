"""A memory that is bounded in entries and bytes, and drops what was used longest ago."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, ItemsView
from functools import lru_cache, wraps
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")
Text = TypeVar("Text", bound=str | None)

Fields = tuple[tuple[str, str], ...]

LONGEST_FIELD = 1000
"""Characters of a header field up to which it is remembered what it says; a site may send 64 KiB, others each time."""

_COUNTED_ANEW = 1024
"""Entries put after which the bytes are counted again, whatever the running total says."""


class Bounded(Generic[Key, Value]):
    """At most so many entries, and so many bytes by `size`; the entry put last stays, however large it is.

    Safe to share among threads without a lock, which a fork could leave taken: two threads that put at once can only
    make the running total wrong, and it is counted again before anything is dropped.
    """

    __slots__ = ("_bytes", "_entries", "_most_bytes", "_most_entries", "_puts", "_size")

    def __init__(self, entries: int, most_bytes: int, size: Callable[[Value], int]) -> None:
        self._most_entries, self._most_bytes, self._size = entries, most_bytes, size
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._bytes = self._puts = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """The value under a key, which counts as used now; None if there is none."""
        value = self._entries.get(key)
        if value is not None:
            try:
                self._entries.move_to_end(key)
            except KeyError:  # another thread has just dropped it
                pass
        return value

    def put(self, key: Key, value: Value) -> None:
        """Keep a value, instead of the one that was there."""
        entries, before = self._entries, self._entries.pop(key, None)
        entries[key] = value
        self._bytes += self._size(value) - (0 if before is None else self._size(before))
        self._puts += 1
        is_full = self._bytes > self._most_bytes or len(entries) > self._most_entries
        if is_full or self._puts % _COUNTED_ANEW == 0:
            self._shrink()

    def pop(self, key: Key) -> Value | None:
        """Remove a key; answers its value, or None."""
        value = self._entries.pop(key, None)
        if value is not None:
            self._bytes -= self._size(value)
        return value

    def items(self) -> ItemsView[Key, Value]:
        """The entries of this moment, the one used last at the end."""
        return self._entries.copy().items()

    def clear(self) -> None:
        """Remove everything."""
        self._entries.clear()
        self._bytes = 0

    def _shrink(self) -> None:
        """Count the bytes, and drop entries until an eighth is free, so that not every put has to.

        What takes no bytes is not dropped for what does: a few large entries must not push out many small ones.
        """
        entries, size = self._entries, self._size
        if len(entries) > self._most_entries:
            while len(entries) > max(1, self._most_entries * 7 // 8):
                entries.popitem(last=False)
        present = entries.copy()
        sizes = {key: size(value) for key, value in present.items()}
        total = sum(sizes.values())
        if total > self._most_bytes:
            last = next(reversed(present))
            for key in present:
                if total <= self._most_bytes * 7 // 8:
                    break
                if sizes[key] and key != last:
                    entries.pop(key, None)
                    total -= sizes[key]
        self._bytes = total


def remember_short(
    entries: int, longest: int = LONGEST_FIELD
) -> Callable[[Callable[[Text], Value]], Callable[[Text], Value]]:
    """Return a decorator that remembers what a function makes of the last texts, but of none that is long."""

    def decorate(read: Callable[[Text], Value]) -> Callable[[Text], Value]:
        remembered = lru_cache(maxsize=entries)(read)

        @wraps(read)
        def read_or_recall(text: Text) -> Value:
            return remembered(text) if text is None or len(text) <= longest else read(text)

        return read_or_recall

    return decorate


def remember_few(entries: int) -> Callable[[Callable[[Fields], Value]], Callable[[Fields], Value]]:
    """Return a decorator that remembers what a function makes of the last header fields, unless their values are long.

    A site chooses some of them: an ETag or a cookie comes back with the next request.
    """

    def decorate(read: Callable[[Fields], Value]) -> Callable[[Fields], Value]:
        remembered = lru_cache(maxsize=entries)(read)

        @wraps(read)
        def read_or_recall(fields: Fields) -> Value:
            return remembered(fields) if sum([len(value) for _, value in fields]) <= LONGEST_FIELD else read(fields)

        return read_or_recall

    return decorate

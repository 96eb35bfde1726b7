"""Least-recently-used cache with a limit of entries and bytes."""

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
"""Maximum number of characters of a header field whose parsed value is cached. A site may send 64 KiB, and a different
value each time."""

_COUNTED_ANEW = 1024
"""Number of puts after which the bytes are counted again, to correct the running total."""


class Bounded(Generic[Key, Value]):
    """Least-recently-used cache, limited by entries and by bytes (`size`). The last entry put always stays.

    Safe for threads without a lock, which a fork could leave locked. Concurrent puts can only make the running total
    wrong, and the bytes are counted again before an entry is dropped.
    """

    __slots__ = ("_bytes", "_entries", "_most_bytes", "_most_entries", "_puts", "_size")

    def __init__(self, entries: int, most_bytes: int, size: Callable[[Value], int]) -> None:
        self._most_entries, self._most_bytes, self._size = entries, most_bytes, size
        self._entries: OrderedDict[Key, Value] = OrderedDict()
        self._bytes = self._puts = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return the value of a key and mark it as used; None if absent."""
        value = self._entries.get(key)
        if value is not None:
            try:
                self._entries.move_to_end(key)
            except KeyError:  # another thread has just dropped it
                pass
        return value

    def put(self, key: Key, value: Value) -> None:
        """Store a value, replacing an earlier one."""
        entries, before = self._entries, self._entries.pop(key, None)
        entries[key] = value
        self._bytes += self._size(value) - (0 if before is None else self._size(before))
        self._puts += 1
        is_full = self._bytes > self._most_bytes or len(entries) > self._most_entries
        if is_full or self._puts % _COUNTED_ANEW == 0:
            self._shrink()

    def pop(self, key: Key) -> Value | None:
        """Remove a key and return its value; None if absent."""
        value = self._entries.pop(key, None)
        if value is not None:
            self._bytes -= self._size(value)
        return value

    def items(self) -> ItemsView[Key, Value]:
        """Return a snapshot of the entries, the last used at the end."""
        return self._entries.copy().items()

    def clear(self) -> None:
        """Remove all entries."""
        self._entries.clear()
        self._bytes = 0

    def _shrink(self) -> None:
        """Count the bytes, and drop entries until an eighth is free, so that not every put has to.

        Entries without bytes are not dropped to save bytes: a few large entries must not displace many small ones.
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
    """Return a decorator that caches the results of a function for short texts."""

    def decorate(read: Callable[[Text], Value]) -> Callable[[Text], Value]:
        remembered = lru_cache(maxsize=entries)(read)

        @wraps(read)
        def read_or_recall(text: Text) -> Value:
            return remembered(text) if text is None or len(text) <= longest else read(text)

        return read_or_recall

    return decorate


def remember_few(entries: int) -> Callable[[Callable[[Fields], Value]], Callable[[Fields], Value]]:
    """Return a decorator that caches the results of a function for header fields with short values.

    A site chooses some of them: an ETag or a cookie returns with the next request.
    """

    def decorate(read: Callable[[Fields], Value]) -> Callable[[Fields], Value]:
        remembered = lru_cache(maxsize=entries)(read)

        @wraps(read)
        def read_or_recall(fields: Fields) -> Value:
            return remembered(fields) if sum([len(value) for _, value in fields]) <= LONGEST_FIELD else read(fields)

        return read_or_recall

    return decorate

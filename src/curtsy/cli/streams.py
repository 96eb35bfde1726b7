"""Streams: standard error that never stops the work."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TextIO


class _Forgiving(io.FileIO):
    """A file whose failed writes are dropped: a full disk, a reader that is gone, a closed descriptor."""

    behind: TextIO | None = None
    """The stream that this one stands for: it closes the descriptor when it is gone."""

    def write(self, data: object, /) -> int:
        """Write, or drop what cannot be written."""
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        try:
            return super().write(data) or size  # type: ignore[arg-type]
        except OSError:
            return size


def forgiving(stream: TextIO) -> TextIO:
    """Return a stream to the same file that drops what cannot be written (N1).

    Messages and progress are no part of the work: if nobody can read them, the work goes on, and the exit code is its.
    """
    try:
        raw = _Forgiving(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # no file behind it, as in tests that capture it
        return stream
    raw.behind = stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors="replace", line_buffering=True, write_through=True
    )

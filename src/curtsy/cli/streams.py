"""Standard error stream that ignores write errors."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TextIO


class _Forgiving(io.FileIO):
    """File that drops failed writes: full disk, closed reader, closed descriptor."""

    behind: TextIO | None = None
    """Replaced stream, referenced because it closes the descriptor when collected."""

    def write(self, data: object, /) -> int:
        """Write the data, or drop them on an error."""
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        try:
            return super().write(data) or size  # type: ignore[arg-type]
        except OSError:
            return size


def forgiving(stream: TextIO) -> TextIO:
    """Return a stream to the same file that drops failed writes (N1).

    Lost messages do not stop the work or change its exit code.
    """
    try:
        raw = _Forgiving(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # no file descriptor, as in tests that capture output
        return stream
    raw.behind = stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors="replace", line_buffering=True, write_through=True
    )

"""LineFile: base of outputs that write one line per entry to a file or pipe."""

from __future__ import annotations

from typing import Any

import msgspec

from curtsy.crawling.outputs import Written
from curtsy.crawling.outputs.append_file import AppendFile, End, read_state, whole_lines


class LineFile:
    """Output of lines. Subclasses define `name` and the content of a line."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._trail = AppendFile(path)

    @property
    def name(self) -> str:
        """Return its kind and path."""
        raise NotImplementedError

    @property
    def is_stream(self) -> bool:
        """Return whether it is a pipe or a terminal, which cannot be truncated."""
        return self._trail.is_stream

    def open(self, state: Any | None) -> None:
        """Start it, or resume at `state`. A stream continues at its present position."""
        self._trail.open(read_state(self.name, state, End), self._whole)

    def _whole(self, path: str) -> tuple[int, int]:
        return whole_lines(path)

    def flush(self) -> dict[str, Any]:
        """Pass all data to the system; return the end of the file."""
        return msgspec.structs.asdict(self._trail.flush())

    def check(self) -> None:
        """Raise NotWritten if it is a stream and its reader has closed it."""
        self._trail.check()

    def written(self) -> Written:
        """Return its contents."""
        missing = self._trail.missing()
        return Written(self.name, self._trail.flushed_entries + self._trail.lost - missing, missing)

    def close(self) -> None:
        """Close it. Idempotent."""
        self._trail.close()

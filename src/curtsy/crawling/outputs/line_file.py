"""LineFile: what outputs share that write one line an entry to one file, or to a pipe."""

from __future__ import annotations

from typing import Any

import msgspec

from curtsy.crawling.outputs import Written
from curtsy.crawling.outputs.append_file import AppendFile, End, read_state, whole_lines


class LineFile:
    """An output of lines. Its class says the `name`, and what a line is."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._trail = AppendFile(path)

    @property
    def name(self) -> str:
        """What tells it from the crawl's other outputs."""
        raise NotImplementedError

    @property
    def is_stream(self) -> bool:
        """Whether it is a pipe or a terminal, from which nothing can be taken back."""
        return self._trail.is_stream

    def open(self, state: Any | None) -> None:
        """Begin, or go on where `state` says. A stream goes on wherever it is."""
        self._trail.open(read_state(self.name, state, End), self._whole)

    def _whole(self, path: str) -> tuple[int, int]:
        return whole_lines(path)

    def flush(self) -> dict[str, Any]:
        """Hand everything to the system; answers where the file ends."""
        return msgspec.structs.asdict(self._trail.flush())

    def check(self) -> None:
        """Raise NotWritten if it is a stream and its reader has closed it."""
        self._trail.check()

    def written(self) -> Written:
        """Say what it holds."""
        missing = self._trail.missing()
        return Written(self.name, self._trail.flushed_entries + self._trail.lost - missing, missing)

    def close(self) -> None:
        """End it. Idempotent."""
        self._trail.close()

"""Processes that a test starts end with it, also if it fails: else they would disturb the tests after it."""

from __future__ import annotations

import contextlib
from typing import IO, Any, Protocol, TypeVar


class Started(Protocol):
    """A process, as far as it is ended here: a `subprocess.Popen`, or one that was forked."""

    @property
    def stdin(self) -> IO[Any] | None: ...

    @property
    def stdout(self) -> IO[Any] | None: ...

    @property
    def stderr(self) -> IO[Any] | None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


P = TypeVar("P", bound=Started)

_started: list[Started] = []


def ends_with_test(process: P) -> P:
    """Have a process ended after the test, if it still runs then, and the pipes to it closed. Returns the process."""
    _started.append(process)
    return process


def how_many() -> int:
    """Return how many processes have been started and not been ended here."""
    return len(_started)


def end_all_since(first: int) -> None:
    """End those that were started since there were so many."""
    while len(_started) > first:
        process = _started.pop()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

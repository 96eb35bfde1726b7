"""LiveSettings: settings that follow their files while the program runs (U9)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from curtsy.core.errors import PolicyError
from curtsy.log import library_logger
from curtsy.settings import Settings, load, settings_files, working_directory

_log = library_logger("settings")

Stamp = tuple[int, int, int] | None
"""What tells one version of a file from another: time, size and number; None if there is no file."""


class LiveSettings:
    """Settings that are read again when their files change. Takes what `load` takes; a fault then raises PolicyError.

    Later, a file that is broken or gone leaves the settings as they were, and is told once. Nothing runs by itself:
    whoever is about to use the settings calls `check()`, which looks at most every `every` seconds. Thread-safe.
    """

    def __init__(
        self,
        *,
        config: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        user_directory: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        every: float = 1.0,
        **arguments: Any,
    ) -> None:
        # Where the program was started is where its files are, even if it moves later.
        directory = working_directory() if directory is None else Path(directory).absolute()
        env = os.environ if env is None else env
        self._load = partial(
            load, config=config, env=env, directory=directory, user_directory=user_directory, **arguments
        )
        self._paths = [each.path for each in settings_files(config, env, directory, user_directory)]
        self._clock = clock
        self._every = every
        self._lock = threading.Lock()
        self._used = self._seen = self._stamps()
        self._current = self._load()
        self._looked_at = clock()
        self._is_broken = False
        _all_live.add(self)

    def _renew_lock(self) -> None:
        """Start with a free lock, as a forked child does: who held it is not there."""
        if self._lock.locked():
            self._used = []  # what it was about to read is still to be read here
        self._lock = threading.Lock()

    @property
    def current(self) -> Settings:
        """The settings as last read."""
        return self._current

    def check(self) -> Settings:
        """Look whether a file has changed, read it if so, and return the settings that hold now.

        A change is read when two looks in a row have seen the same: a file that is just being written is left alone.
        """
        if self._clock() - self._looked_at < self._every or not self._lock.acquire(blocking=False):
            return self._current  # another thread is at it: nobody waits for a file
        try:
            self._looked_at = self._clock()
            stamps = self._stamps()
            if stamps != self._seen:
                self._seen = stamps
            elif stamps != self._used:
                self._used = stamps
                self._read()
            return self._current
        finally:
            self._lock.release()

    def reload(self) -> Settings:
        """Read the files now, changed or not, as on a signal to do so."""
        with self._lock:
            self._used = self._seen = self._stamps()
            self._read()
            return self._current

    def _read(self) -> None:
        gone = [path for path in self._current.files if not os.path.exists(path)]
        try:
            if gone:
                raise PolicyError(f"{gone[0]} is gone. Put it back, or start again without it.")
            settings = self._load()
        except PolicyError as error:
            self._is_broken = True
            _log.warning("The changed settings cannot be used; the ones before are kept", error=str(error))
            return
        self._current = settings
        what = "Settings are fine again" if self._is_broken else "Settings read again"
        _log.info(what, files=[str(path) for path in settings.files])
        self._is_broken = False
        for warning in settings.warnings:
            _log.warning(warning)

    def _stamps(self) -> list[Stamp]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


_all_live: WeakSet[LiveSettings] = WeakSet()


def _after_fork() -> None:
    for live in list(_all_live):
        live._renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

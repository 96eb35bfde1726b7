"""LiveSettings: settings that follow their files while the program runs (U9)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any
from weakref import WeakSet

from curtsy.core.errors import PolicyError
from curtsy.settings import AT_START, Settings, load, new_notices, settings_files, working_directory
from curtsy.system.log import library_logger

_log = library_logger("settings")

Stamp = tuple[int, int, int] | None
"""What tells one version of a file from another: time, size and number; None if there is no file."""

STILL = 1.0
"""Seconds after which a file is taken for whole; one that changed later may be half written."""


class LiveSettings:
    """Settings that are read again when their files change. Takes what `load` takes; a fault then raises PolicyError.

    Later, a file that is broken or gone leaves the settings as they were, and is told once. Nothing runs by itself:
    whoever is about to use the settings calls `check()`, which looks at most every `every` seconds. Thread-safe.
    What is only used at the start (`AT_START`) stays as it was then, and a change of it is told. `wall` is the clock
    that files have their times from.
    """

    def __init__(
        self,
        *,
        config: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        directory: str | os.PathLike[str] | None = None,
        user_directory: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        every: float = 1.0,
        **arguments: Any,
    ) -> None:
        # Where the program was started is where its files are, even if it moves later.
        directory = working_directory() if directory is None else Path(directory).absolute()
        from curtsy.settings.dotenv import merged, read_dotenv
        from curtsy.settings.problems import Problems

        env = os.environ if env is None else env
        self._load = partial(
            load, config=config, env=env, directory=directory, user_directory=user_directory, **arguments
        )
        env = merged(env, read_dotenv(directory, Problems()))  # which may name the file
        self._paths = [each.path for each in settings_files(config, env, directory, user_directory)]
        self._clock = clock
        self._wall = wall
        self._every = every
        self._lock = threading.Lock()
        self._used = self._seen = self._stamps()
        self._current = self._load()
        self._looked_at = clock()
        self._is_broken = False
        self._reader: int | None = None
        _all_live.add(self)

    def _renew_lock(self) -> None:
        """Start with a free lock, as a forked child does: who held it is not there."""
        if self._lock.locked():
            self._used = []  # what it was about to read is still to be read here
        self._lock = threading.Lock()
        self._reader = None

    @property
    def current(self) -> Settings:
        """The settings as last read."""
        return self._current

    def check(self) -> Settings:
        """Look whether a file has changed, read it if so, and return the settings that hold now.

        A change is read when no file was written within the last second, or two looks in a row have seen the same: a
        file that is just being written is left alone. So whoever asks two seconds after a change has it.
        """
        since = self._clock() - self._looked_at
        if since < self._every:
            return self._current
        # Another thread may be at it. Nobody waits for a file, unless nobody has looked for so long that what holds may
        # be older than promised. The thread that reads is not its own other: who listens to its log may ask it.
        is_overdue = since >= 2 * self._every and self._reader != threading.get_ident()
        if not self._lock.acquire(timeout=self._every if is_overdue else 0):
            if is_overdue:
                self._looked_at = self._clock()  # who comes next need not wait as well
            return self._current
        try:
            if self._clock() - self._looked_at >= self._every:
                self._look()
            return self._current
        finally:
            self._lock.release()

    def _look(self) -> None:
        stamps = self._stamps()
        if stamps != self._used and (stamps == self._seen or self._are_whole(stamps)):
            self._used = stamps
            self._read()
        self._seen = stamps
        self._looked_at = self._clock()

    def _are_whole(self, stamps: list[Stamp]) -> bool:
        """Whether all that has changed did so long enough ago; a file that is gone does not say when it went."""
        latest = (self._wall() - STILL) * 1e9
        changed = [new for new, old in zip_longest(stamps, self._used) if new != old]
        return all(stamp is not None and stamp[0] <= latest for stamp in changed)

    def reload(self) -> Settings:
        """Read the files now, changed or not, as on a signal to do so."""
        with self._lock:
            self._used = self._seen = self._stamps()
            self._read()
            return self._current

    def _read(self) -> None:
        self._reader = threading.get_ident()
        try:
            self._take(self._load_again())
        except PolicyError as error:
            self._is_broken = True
            _log.warning("The changed settings cannot be used; the ones before are kept", error=str(error))
        finally:
            self._reader = None

    def _load_again(self) -> Settings:
        settings = self._load()
        gone = [path for path in self._current.files if path not in settings.files]
        if gone:
            raise PolicyError(f"{gone[0]} is gone. Put it back, or start again without it.")
        return settings

    def _take(self, settings: Settings) -> None:
        before = self._current
        changed = [name for name in AT_START if getattr(settings, name) != getattr(before, name)]
        self._current = _with_start_of(before, settings)
        what = "Settings are fine again" if self._is_broken else "Settings read again"
        _log.info(what, files=[str(path) for path in settings.files])
        self._is_broken = False
        if changed:
            _log.warning("Changed settings are not used before a restart", keys=changed)
        notices = (
            new_notices(settings) if settings.notices != before.notices else []
        )  # else they were told at the start
        for warning in (*settings.warnings, *notices):
            _log.warning(warning)

    def _stamps(self) -> list[Stamp]:
        return [_stamp(path) for path in self._paths]


def _with_start_of(before: Settings, settings: Settings) -> Settings:
    """New settings, but with what is only used at the start as it was then, and where that came from."""
    values = {name: given for name, given in settings._values.items() if name not in AT_START}
    values |= {name: given for name, given in before._values.items() if name in AT_START}
    return replace(settings, _values=values, **{name: getattr(before, name) for name in AT_START})


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

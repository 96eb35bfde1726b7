"""Settings that follow their files while the program runs (U9)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any
from weakref import WeakSet

from curtsy.core.errors import PolicyError
from curtsy.settings.general import AT_START, Settings
from curtsy.settings.problems import Problems
from curtsy.settings.reading import load, new_notices, settings_files, working_directory
from curtsy.settings.sources import merged, read_dotenv
from curtsy.system.log import library_logger

_log = library_logger("settings")

Stamp = tuple[int, int, int] | None
"""Version of a file: modification time in ns, size and inode; None if the file is missing."""

SETTLED_AFTER = 1.0
"""Seconds without a write after which a file counts as completely written."""


class LiveSettings:
    """Settings that are reloaded when their files change. Thread-safe.

    Takes the arguments of `load`; the constructor raises PolicyError. Later, a broken or missing file keeps the
    previous settings and is logged once. No thread runs in the background: callers call `check()` before they use the
    settings. `check()` examines the files at most every `every` seconds. Keys of `AT_START` keep their first values; a
    change is logged. `wall` is the clock of file times.
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
        # Absolute: the program may change its working directory later.
        directory = working_directory() if directory is None else Path(directory).absolute()
        env = os.environ if env is None else env
        self._load = partial(
            load, config=config, env=env, directory=directory, user_directory=user_directory, **arguments
        )
        env = merged(env, read_dotenv(directory, Problems()))  # `.env` may set CURTSY_CONFIG
        self._paths = [each.path for each in settings_files(config, env, directory, user_directory)]
        self._clock = clock
        self._wall = wall
        self._every = every
        self._lock = threading.RLock()  # a handler of the reading thread's log lines may call `check()`
        self._used = self._seen = self._stamps()
        self._current = self._load()
        self._checked_at = clock()
        self._is_broken = False
        _all_live.add(self)

    def _renew_lock(self) -> None:
        """Replace the lock in a forked child, where the thread that held it does not exist."""
        self._used = []  # an interrupted reload is repeated here
        self._lock = threading.RLock()

    @property
    def current(self) -> Settings:
        """Settings as last read."""
        return self._current

    def check(self) -> Settings:
        """Reload the files if one has changed; return the current settings.

        Applies a change once no file was written within the last second, or once two checks in a row see the same
        files. This skips a file that is being written. A change is in effect two seconds later.
        """
        since = self._clock() - self._checked_at
        if since < self._every:
            return self._current
        # Threads do not wait for another thread's check, unless the last one is twice `every` old.
        is_overdue = since >= 2 * self._every
        if not self._lock.acquire(timeout=self._every if is_overdue else 0):
            if is_overdue:
                self._checked_at = self._clock()  # spares the next caller the wait
            return self._current
        try:
            if self._clock() - self._checked_at >= self._every:
                self._check_files()
            return self._current
        finally:
            self._lock.release()

    def _check_files(self) -> None:
        stamps = self._stamps()
        if stamps != self._used and (stamps == self._seen or self._are_complete(stamps)):
            self._used = stamps
            self._read()
        self._seen = stamps
        self._checked_at = self._clock()

    def _are_complete(self, stamps: list[Stamp]) -> bool:
        """Return whether all changed files were written at least SETTLED_AFTER seconds ago; False if one is missing."""
        latest = (self._wall() - SETTLED_AFTER) * 1e9
        changed = [new for new, old in zip_longest(stamps, self._used) if new != old]
        return all(stamp is not None and stamp[0] <= latest for stamp in changed)

    def reload(self) -> Settings:
        """Read the files now, even if unchanged, as on a reload signal."""
        with self._lock:
            self._used = self._seen = self._stamps()
            self._read()
            return self._current

    def _read(self) -> None:
        try:
            self._apply(self._load_again())
        except PolicyError as error:
            self._is_broken = True
            _log.warning("Changed settings are invalid; the previous ones stay in effect", error=str(error))

    def _load_again(self) -> Settings:
        settings = self._load()
        gone = [path for path in self._current.files if path not in settings.files]
        if gone:
            raise PolicyError(f"{gone[0]} was removed. Restore it, or restart without it.")
        return settings

    def _apply(self, settings: Settings) -> None:
        before = self._current
        changed = [name for name in AT_START if getattr(settings, name) != getattr(before, name)]
        self._current = settings.with_start_of(before)
        what = "Settings are valid again" if self._is_broken else "Settings reloaded"
        _log.info(what, files=[str(path) for path in settings.files])
        self._is_broken = False
        if changed:
            _log.warning("Changed settings take effect after a restart", keys=changed)
        # Unchanged notices were reported before.
        notices = new_notices(settings) if settings.notices != before.notices else []
        for warning in (*settings.warnings, *notices):
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

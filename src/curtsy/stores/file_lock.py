"""Lock among the processes that write one SQLite file.

SQLite's own busy handler is unfair: it sleeps and retries, and under load one process waits for seconds. With this
lock, the kernel wakes a waiting process as soon as the lock is released.
"""

from __future__ import annotations

import errno
import os
import sys
import time

from curtsy.system.own_file import open_own

if sys.platform != "win32":
    import fcntl

_CHECK_EVERY = 1.0
"""Seconds for which two processes may lock different side files after one was deleted. SQLite's locks still hold."""

Inode = tuple[int, int]
"""Device and inode number, which distinguish files of the same name."""


class FileLock:
    """Lock on a side file, which is created if missing. The lock ends with the process.

    A process that takes the lock again right after `give()` gets it before the waiting processes are awake. So the
    writer answers its callers in between.
    """

    def __init__(self, path: str) -> None:
        self._path = path + ".lock"
        self._file: int | None = None
        self._check_at = 0.0

    def take(self) -> None:
        """Wait for the lock, without a time limit. Raises OSError if the side file cannot be used."""
        while sys.platform != "win32":  # which has no flock: `Database` only retries
            if self._file is None:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                self._file = open_own(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                    raise
                return  # the file system has no such locks; SQLite's own still hold
            if time.monotonic() < self._check_at:
                return
            if inode(self._path) == inode(self._file):
                self._check_at = time.monotonic() + _CHECK_EVERY
                return
            self.drop()  # the side file was deleted or replaced

    def give(self) -> None:
        """Release the lock."""
        if sys.platform != "win32" and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def drop(self) -> None:
        """Close the side file. In a forked child, the parent keeps its lock."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._check_at = None, 0.0


def inode(file: str | int) -> Inode | None:
    """Return the identity of the file behind a path or a descriptor; None if it is inaccessible."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino

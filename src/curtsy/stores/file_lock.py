"""Turn: whose turn it is to write, among all processes that share a file.

SQLite's own busy handler is unfair: it sleeps and hopes, and under load one process waits for seconds. Here the kernel
wakes who waits as soon as the turn is given back.
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
"""Seconds for which two processes may take turns by different side files after one was deleted. SQLite's locks hold."""

Inode = tuple[int, int]
"""What tells a file from another one of the same name."""


class FileLock:
    """A lock on a side file, which is made when it is missing. It ends with the process.

    One who has just given the turn back must not ask again in the same breath, or it would get it again before those
    who wait are awake: the writer answers its callers in between.
    """

    def __init__(self, path: str) -> None:
        self._path = path + ".lock"
        self._file: int | None = None
        self._check_at = 0.0

    def take(self) -> None:
        """Wait for our turn, however long that takes."""
        while sys.platform != "win32":  # without flock, the short random retries of the database do alone
            if self._file is None:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                self._file = open_own(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            except OSError as error:
                if error.errno not in (errno.ENOLCK, errno.ENOTSUP):
                    raise
                return  # a file system without such locks: SQLite's own still hold
            if time.monotonic() < self._check_at:
                return
            if inode(self._path) == inode(self._file):
                self._check_at = time.monotonic() + _CHECK_EVERY
                return
            self.drop()  # it was deleted, and others have made a new one

    def give(self) -> None:
        """Let the next one go."""
        if sys.platform != "win32" and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def drop(self) -> None:
        """Close the side file. In a forked child, this leaves the parent's turn alone."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._check_at = None, 0.0


def inode(file: str | int) -> Inode | None:
    """Which file is behind a path or a descriptor; None if there is none to be seen."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino

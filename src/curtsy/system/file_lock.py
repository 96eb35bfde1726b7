"""Lock among processes, on a file of its own."""

from __future__ import annotations

import errno
import os
import sys
import time

from curtsy.system.own_file import open_own

if sys.platform != "win32":
    import fcntl

_CHECK_EVERY = 1.0
"""Seconds for which two processes may lock different lock files after one was deleted. SQLite's locks still hold."""

Inode = tuple[int, int]
"""Device and inode number, which distinguish files of the same name."""


class FileLock:
    """Lock on a file of its own, which is created if missing. The lock ends with the process.

    SQLite's own busy handler is unfair: it sleeps and retries, and under load one process waits for seconds. With
    this lock, the kernel wakes a waiting process as soon as the lock is released. A process that takes the lock again
    right after `give()` gets it before the waiting processes are awake.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None
        self._check_at = 0.0
        self.is_held = False

    def take(self, *, wait: bool = True) -> bool:
        """Take the lock, waiting without a time limit. Without `wait`, return False if another process has it.

        Raises OSError if the file cannot be used.
        """
        while True:
            if self._file is None:
                os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
                self._file = open_own(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            if not self._flock(wait):
                return False
            self.is_held = True
            if time.monotonic() < self._check_at:
                return True
            if inode(self._path) == inode(self._file):
                self._check_at = time.monotonic() + _CHECK_EVERY
                return True
            self.drop()  # the lock file was deleted or replaced

    def _flock(self, wait: bool) -> bool:
        if sys.platform == "win32" or self._file is None:  # Windows has SQLite's locks only
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if not wait and error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return False
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # the file system has no such locks
                raise
        return True

    @property
    def content(self) -> bytes:
        """Content of the lock file, up to 100 bytes. Requires a call of `take()` before."""
        if self._file is None:
            return b""
        os.lseek(self._file, 0, os.SEEK_SET)
        return os.read(self._file, 100)

    @content.setter
    def content(self, content: bytes) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, content)

    def give(self) -> None:
        """Release the lock."""
        self.is_held = False
        if sys.platform != "win32" and self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def drop(self) -> None:
        """Close the lock file. In a forked child, the parent keeps its lock."""
        if self._file is not None:
            os.close(self._file)
        self._file, self._check_at, self.is_held = None, 0.0, False


def inode(file: str | int) -> Inode | None:
    """Return the identity of the file behind a path or a descriptor; None if it is inaccessible."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino

"""Files that curtsy names itself beside a user's path, opened without following other users' links."""

from __future__ import annotations

import errno
import os
import stat

_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
# Otherwise, opening a pipe that no process reads blocks.
_NO_WAITING = getattr(os, "O_NONBLOCK", 0)


def open_own(path: str | os.PathLike[str], flags: int, mode: int = 0o666) -> int:
    """Open a regular file and return its descriptor.

    Raises OSError for a symbolic link, a pipe, a device or a socket. Others can put a link under a guessable name in
    /tmp, which would redirect writes to any file of the user.
    """
    name = os.path.basename(path)
    if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):
        raise OSError(errno.ELOOP, _planted(name, "a symbolic link"), os.fspath(path))
    try:
        number = os.open(path, flags | _FLAGS | _NO_WAITING, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) and os.path.islink(path):  # EMLINK on FreeBSD
            raise OSError(errno.ELOOP, _planted(name, "a symbolic link"), os.fspath(path)) from None
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, _planted(name, "a pipe or a socket"), os.fspath(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError(errno.EINVAL, _planted(name, "not a regular file"), os.fspath(path))
    return number


def create_own(path: str | os.PathLike[str], mode: int = 0o666) -> int:
    """Open a new file for writing, and replace a file that an earlier process left there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        return open_own(path, flags, mode)
    except FileExistsError:
        os.unlink(path)  # removes a link itself, not its target
        return open_own(path, flags, mode)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    if os.name == "nt":  # folders cannot be opened there
        return
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _planted(name: str, what: str) -> str:
    return f"{name} is {what}. See whose it is, and remove it"

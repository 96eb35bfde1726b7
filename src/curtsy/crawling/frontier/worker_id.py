"""Names of the worker processes of a shared job."""

from __future__ import annotations

import errno
import os
import re
import sys
import uuid
from pathlib import Path

from curtsy.core.errors import StoreError
from curtsy.system.own_file import open_own

if sys.platform != "win32":
    import fcntl

_FILE, _FILES = "worker", re.compile(r"worker(-[0-9]+)?", re.ASCII)

MOST_WORKERS = 1000
"""Processes of one machine that may work on a job from one folder."""


class WorkerId:
    """Name of this process in a shared job, generated once, stored in the job's folder and locked.

    Processes of one machine that share a folder have one name each. A restarted process takes the first free one.
    """

    def __init__(self, folder: Path) -> None:
        self._file: int | None = None
        for number in range(MOST_WORKERS):
            path = folder / (_FILE if number == 0 else f"{_FILE}-{number}")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                file = open_own(path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be kept: {error.strerror}. Give another folder for the job."
                ) from error
            if _is_taken(file):
                os.close(file)
                continue
            self._file = file
            self.name = os.read(file, 100).decode("ascii", "replace").strip()
            if not self.name:
                self.name = uuid.uuid4().hex[:12]
                os.write(file, self.name.encode())
            return
        raise StoreError(f"{folder} has {MOST_WORKERS} workers. Start more of them in another folder, or elsewhere.")

    def close(self) -> None:
        """Release the name for other processes; idempotent."""
        if self._file is not None:
            os.close(self._file)
        self._file = None


def _is_taken(file: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    return False


def forget_identities(folder: Path) -> None:
    """Delete the names of all workers from a job's folder."""
    for path in folder.iterdir():
        if _FILES.fullmatch(path.name):
            path.unlink(missing_ok=True)

"""Names of the worker processes of a shared job."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

from curtsy.core.errors import StoreError
from curtsy.system.file_lock import FileLock

_FILE, _FILES = "worker", re.compile(r"worker(-[0-9]+)?", re.ASCII)

MOST_WORKERS = 1000
"""Processes of one machine that may work on a job from one folder."""


class WorkerId:
    """Name of this process in a shared job, generated once, stored in the job's folder and locked.

    Processes of one machine that share a folder have one name each. A restarted process takes the first free one.
    """

    def __init__(self, folder: Path) -> None:
        for number in range(MOST_WORKERS):
            path = folder / (_FILE if number == 0 else f"{_FILE}-{number}")
            self._lock = FileLock(str(path))
            try:
                if not self._lock.take(wait=False):
                    self._lock.drop()
                    continue
                self.name = self._lock.content.decode("ascii", "replace").strip()
                if not self.name:
                    self.name = uuid.uuid4().hex[:12]
                    self._lock.content = self.name.encode()
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be written: {error.strerror}. Give another folder for the job."
                ) from error
            return
        raise StoreError(f"{folder} has {MOST_WORKERS} workers. Start more of them in another folder, or elsewhere.")

    def close(self) -> None:
        """Release the name for other processes; idempotent."""
        self._lock.drop()


def forget_identities(folder: Path) -> None:
    """Delete the names of all workers from a job's folder."""
    for path in folder.iterdir():
        if _FILES.fullmatch(path.name):
            path.unlink(missing_ok=True)

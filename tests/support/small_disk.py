"""A disk that is full soon."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(directory: Path, mebibytes: int) -> Iterator[Path]:
    """Mount a disk of this size in a directory. Skip the test if that is not permitted."""
    place = directory / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a small disk cannot be mounted here: run the tests as root to see them all")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)

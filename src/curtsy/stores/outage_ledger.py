"""Ledger of an outage: small shared files in which processes count while their state file cannot be written.

An outage must not give each new process a whole budget (B8). So processes store changed records in a private directory
of their user, in memory if possible: it works with a full or read-only disk. One file per record holds the record and
the state file's version when counting began, so that exactly the difference is merged. Processes lock the file to use
it. A process that cannot use the directory counts alone. A directory in memory is empty after a reboot.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from curtsy.core.errors import StoreError
from curtsy.core.record import Record
from curtsy.stores.codec import pack, unpack
from curtsy.system.own_file import open_own

if sys.platform != "win32":
    import fcntl

_PATIENCE = 0.05
"""Seconds to wait for a file that another process has locked. It holds the lock for microseconds, unless stopped."""

_MOST = 1 << 16
"""Maximum bytes of a file; a record takes some hundred."""


class Entry:
    """Locked record: the state file's version (`base`), and the version counted since (`ours`)."""

    def __init__(self, file: int, key: str) -> None:
        self._file = file
        self._key = key
        self.exists = False
        self.base: Record | None = None
        self.ours: Record | None = None
        with contextlib.suppress(StoreError, msgspec.MsgspecError, ValueError):
            _, self.base, self.ours = _parsed(os.pread(file, _MOST, 0))
            self.exists = True

    def write(self, base: Record | None, ours: Record | None) -> None:
        """Store a record by one write, so that a killed process leaves the old or the new one.

        Raises OSError if the record does not fit.
        """
        parts = [self._key.encode("utf-8", "surrogatepass"), base and pack(base), ours and pack(ours)]
        body = msgspec.msgpack.encode(parts)
        data = zlib.crc32(body).to_bytes(4, "big") + len(body).to_bytes(4, "big") + body
        if len(data) > _MOST or os.pwrite(self._file, data, 0) != len(data):
            raise OSError("no room for the whole record")
        self.exists, self.base, self.ours = True, base, ours


class OutageLedger:
    """Records that the processes of this user count for one state file while it cannot be written."""

    def __init__(self, path: str) -> None:
        self._name = hashlib.sha256(os.path.realpath(path).encode("utf-8", "surrogateescape")).hexdigest()[:24]

    @contextlib.contextmanager
    def entry(self, key: str) -> Iterator[Entry]:
        """Lock the record under `key`. Raises OSError if that fails."""
        with _locked(self._place(is_made=True) / _file_name(key)) as file:
            yield Entry(file, key)

    def keys(self) -> list[str]:
        """Return all keys, including those of ended processes."""
        found = []
        with contextlib.suppress(OSError):
            for path in sorted(self._place(is_made=False).iterdir()):
                with contextlib.suppress(OSError, StoreError, msgspec.MsgspecError, ValueError):
                    found.append(_parsed(_content(path))[0])
        return found

    def moved(self, key: str, ours: Record | None) -> bool:
        """Note that the state file has the record `ours`; return False if it has changed since."""
        with contextlib.suppress(OSError), self.entry(key) as entry:
            if entry.exists and entry.ours != ours:
                entry.write(ours, entry.ours)
                return False
            os.unlink(self._place(is_made=True) / _file_name(key))
        return True

    def _place(self, *, is_made: bool) -> Path:
        user = os.geteuid()
        # Places in memory come first, because the disk may be full or read-only.
        for place in (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{user}", "/dev/shm", tempfile.gettempdir()):
            if place:
                with contextlib.suppress(OSError):
                    return _own(_own(Path(place, f"curtsy-{user}"), is_made) / self._name, is_made)
        raise FileNotFoundError("there is no directory to count in")


def ledger_of(path: str) -> OutageLedger | None:
    """Return the ledger of a state file; None on Windows, which has no `flock`."""
    return None if sys.platform == "win32" else OutageLedger(path)


def _own(path: Path, is_made: bool) -> Path:
    """Return a directory that only this user can access; `is_made` creates it if missing.

    Raises PermissionError for any other file or directory.
    """
    if is_made:
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{path} is not ours alone")
    return path


def _content(path: Path) -> bytes:
    """Read a file of the ledger. Raises OSError for a pipe or a link."""
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read(_MOST)


def _file_name(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int]:
    give_up_at = time.monotonic() + _PATIENCE
    while sys.platform != "win32":
        file = open_own(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = os.fstat(file)
            if found.st_nlink:  # otherwise `moved()` deleted it before it was locked
                yield file
                return
        except BlockingIOError:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.0005)
        finally:
            os.close(file)


def _parsed(data: bytes) -> tuple[str, Record | None, Record | None]:
    """Return key, base and record from the bytes of a file. Raises ValueError if they are incomplete."""
    body = data[8 : 8 + int.from_bytes(data[4:8], "big")]
    if not body or zlib.crc32(body) != int.from_bytes(data[:4], "big"):
        raise ValueError("not a whole record")
    key, base, ours = msgspec.msgpack.decode(body, type=tuple[bytes, bytes | None, bytes | None])
    return key.decode("utf-8", "surrogatepass"), _unpacked(base), _unpacked(ours)


def _unpacked(data: bytes | None) -> Record | None:
    return None if data is None else unpack(data)

"""Destinations of finished parts: a local folder, or a folder of an object store that fsspec knows (extra `remote`)."""

from __future__ import annotations

import importlib
import os
import re
import shutil
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import url2pathname

from curtsy.core.errors import NotWritten, PolicyError, not_imported
from curtsy.core.masking import mask_url
from curtsy.crawling.outputs.append_file import not_written
from curtsy.system.own_file import create_own, sync_folder

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PART = ".part"


def is_url(path: object) -> bool:
    """Return whether a path is a URL such as `s3://bucket/pages.jsonl`."""
    return isinstance(path, str) and _URL.match(path) is not None


class Destination(Protocol):
    """Folder of finished parts. Errors are raised as NotWritten."""

    shown: str
    """Its address for messages, without secrets."""

    def put(self, path: str, name: str) -> int:
        """Store a file whole under a name, in place of an earlier one; return its size in bytes.

        The object becomes visible when it is complete, and is durable when the call returns.
        """
        ...

    def get(self, name: str, path: str) -> None:
        """Copy an object into a file."""
        ...

    def size(self, name: str) -> int | None:
        """Return the size of an object in bytes; None if there is none."""
        ...


def destination_of(folder: str, storage_options: Mapping[str, Any] | None = None) -> Destination:
    """Return the destination at a path or a URL. Raises PolicyError if a library is missing."""
    if not is_url(folder):
        return LocalFolder(folder)
    if folder.lower().startswith("file://"):  # fsspec would show a file before it is complete
        return LocalFolder(url2pathname(urlsplit(folder).path))
    return RemoteFolder(folder, storage_options or {})


class LocalFolder:
    """Folder on this machine."""

    def __init__(self, folder: str) -> None:
        self._folder = self.shown = os.path.abspath(folder)

    def put(self, path: str, name: str) -> int:
        """Copy a file beside its place, then rename it."""
        place = os.path.join(self._folder, name)
        try:
            os.makedirs(self._folder, exist_ok=True)
            with open(path, "rb") as source, open(create_own(place + _PART), "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
                target.flush()
                os.fsync(target.fileno())
                size = target.tell()
            os.replace(place + _PART, place)
            sync_folder(self._folder)
        except OSError as error:
            raise not_written(place, error) from error
        return size

    def get(self, name: str, path: str) -> None:
        """Copy a file."""
        try:
            shutil.copyfile(os.path.join(self._folder, name), path)
        except OSError as error:
            raise not_written(path, error) from error

    def size(self, name: str) -> int | None:
        """Return the size of a file; None if there is none."""
        try:
            return os.path.getsize(os.path.join(self._folder, name))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise not_written(os.path.join(self._folder, name), error) from error


class RemoteFolder:
    """Folder of a file system of fsspec. S3, GCS and Azure show an object only when it is complete."""

    def __init__(self, url: str, storage_options: Mapping[str, Any]) -> None:
        self.shown = mask_url(url)
        try:
            fsspec = importlib.import_module("fsspec")
        except ImportError as error:
            raise not_imported(f"{self.shown} needs the library fsspec", "fsspec", "remote", error) from error
        try:
            self._files, self._root = fsspec.core.url_to_fs(url, **storage_options)
        except ImportError as error:
            raise PolicyError(f"{self.shown} needs another library: {str(error).rstrip('.')}.") from error
        except ValueError as error:
            why = mask_url(str(error)).rstrip(".")
            raise PolicyError(f"{self.shown} is no address that fsspec knows: {why}.") from error
        except Exception as error:  # some of the libraries connect here
            raise self._failed("", error) from error

    def put(self, path: str, name: str) -> int:
        """Upload a file."""
        try:
            self._files.put_file(path, self._place(name))
        except Exception as error:  # each of the libraries has errors of its own
            raise self._failed(name, error) from error
        return os.path.getsize(path)

    def get(self, name: str, path: str) -> None:
        """Download an object."""
        try:
            self._files.get_file(self._place(name), path)
        except Exception as error:
            raise self._failed(name, error) from error

    def size(self, name: str) -> int | None:
        """Return the size of an object; None if there is none."""
        try:
            self._files.invalidate_cache()
            return int(self._files.info(self._place(name))["size"])
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._failed(name, error) from error

    def _place(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _failed(self, name: str, error: Exception) -> NotWritten:
        place = f"{self.shown}/{name}".rstrip("/")
        why = mask_url(" ".join(str(error).split())).rstrip(".") or type(error).__name__
        return NotWritten(
            f"{place} could not be accessed: {why}. Check the address, the credentials and the connection, then start "
            "the crawl again: it resumes.",
            place,
        )

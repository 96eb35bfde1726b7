"""Snapshots: the sentences that users read, kept beside the tests of a directory in `snapshots.json`.

    def test_…(snapshot: Snapshot) -> None:
        …
        snapshot(result.message)

A snapshot is found by the name of the test, and by `name` if a test has several. Numbers and the directory of the test
differ from run to run, so `#` and `<tmp>` stand for them. `SNAPSHOTS=write` writes what the tests see; read the
difference before you commit it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path

import pytest

FILE = "snapshots.json"
_NUMBER = re.compile(r"\d[\d,.:_]*\d|\d")


class Snapshot:
    """The sentences of one test."""

    def __init__(self, node: pytest.Item, directory: Path) -> None:
        self._path = Path(str(node.path)).parent / FILE
        self._test = f"{Path(str(node.path)).name}::{node.name}"
        self._directory = str(directory)

    def __call__(self, text: str, name: str = "") -> None:
        """Fail unless the text is that of the snapshot."""
        key = f"{self._test} {name}".strip()
        seen = self._plain(text)
        if os.environ.get("SNAPSHOTS") == "write":
            self._write(key, seen)
            return
        kept = json.loads(self._path.read_text()) if self._path.exists() else {}
        assert kept.get(key) == seen, f"{FILE} has another text for {key!r}. SNAPSHOTS=write renews it."

    def _plain(self, text: str) -> str:
        return _NUMBER.sub("#", text.replace(self._directory, "<tmp>")).strip()

    def _write(self, key: str, text: str) -> None:
        with self._path.with_suffix(".lock").open("w") as lock:  # xdist: several processes write one file
            fcntl.flock(lock, fcntl.LOCK_EX)
            kept = json.loads(self._path.read_text()) if self._path.exists() else {}
            kept[key] = text
            self._path.write_text(json.dumps(dict(sorted(kept.items())), indent=1, ensure_ascii=False) + "\n")


@pytest.fixture
def snapshot(request: pytest.FixtureRequest, tmp_path: Path) -> Snapshot:
    """Compare sentences with those in the directory's `snapshots.json`."""
    return Snapshot(request.node, tmp_path)

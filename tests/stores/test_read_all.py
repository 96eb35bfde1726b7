"""Reading many records at once, whichever store it is."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from curtsy.core.host import Host
from curtsy.stores import read_all
from curtsy.testing import FakeClock
from tests.stores.places import Place
from tests.stores.steps import count
from tests.support.stores import sqlite_store


def test_all_records_under_a_prefix_come_with_their_keys(place: Place, clock: FakeClock) -> None:
    """Issue 7: as one by one, in order, and no others."""
    store = place.open(clock)
    names = [f"host:{number}.example" for number in range(700)]
    store.update_many([(name, count) for name in (*names, "hosts", "rules:a", "host")])

    found = read_all(store, "host:")

    assert found == [(name, store.read(name)) for name in sorted(names)]
    assert isinstance(found[0][1], Host)
    assert read_all(store, "nothing:") == []
    store.close()


def test_a_damaged_record_is_left_out_of_many(tmp_path: Path) -> None:
    """U16: whoever watches sees the others."""
    path = tmp_path / "state.sqlite"
    store = sqlite_store(path)
    store.update_many([(f"host:{name}", count) for name in "abc"])
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET data = x'00' WHERE key = ?", (b"host:b",))
    connection.close()

    assert [key for key, _ in read_all(store, "host:")] == ["host:a", "host:c"]
    store.close()

"""Surveys and pages: the hosts that a screen shows, found without reading all hosts (issue 16)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from curtsy.core.host import Host, fresh
from curtsy.core.time import SECOND, Now
from curtsy.stores import AsyncStore, Step
from curtsy.stores.survey import EVERY, HostNotes, survey_of
from curtsy.testing import FakeClock
from tests.stores.places import Place
from tests.stores.steps import keep, remove
from tests.support.stores import sqlite_store

NOON = 1_800_000_000.0


def used(**changes: Any) -> Step[None]:
    """A request, now."""

    def step(host: Host | None, now: Now) -> tuple[Host, None]:
        found = {name: value(now) if callable(value) else value for name, value in changes.items()}
        return (host or fresh(now)).replace(sent_at=now.at, written_at=now.at, **found), None

    return step


TROUBLE = {
    "open": used(tripped_at=lambda now: now.at, cooldown=300 * SECOND),
    "paused": used(paused_until=-1),
    "resting": used(told_at=lambda now: now.at, retry_after_until=lambda now: now.at + 60 * SECOND),
}


async def filled(place: Place, clock: FakeClock, number: int) -> None:
    """Requests to many hosts, one a minute, the first three with trouble; all that was noted is written."""
    store = place.open_async(clock)
    for count in range(number):
        clock.advance(60)
        step = [*TROUBLE.values()][count] if count < len(TROUBLE) else used()
        await store.update(f"host:{count:03}.org", step)
    if not store.is_immediate:
        await store.close()


async def test_a_survey_has_the_hosts_used_last_and_those_in_trouble(place: Place) -> None:
    """Issue 16, L5: of many hosts, a bounded number is read, and all are counted."""
    clock = FakeClock(NOON)
    await filled(place, clock, 40)
    store = place.open_async(clock)
    await store.update("rules:https://000.org", used())

    found, cut, whole = await store.survey(4, 9), await store.survey(4, 2), await store.survey(40, 0)

    assert (found.total, found.in_trouble, found.is_exact) == (40, 3, True)
    latest, trouble = {f"host:0{count}.org" for count in range(36, 40)}, {f"host:00{count}.org" for count in range(3)}
    assert found.hosts.keys() == latest | trouble
    assert cut.hosts.keys() == latest | {"host:001.org", "host:002.org"}
    assert len(whole.hosts) == 40
    assert all([host == await store.read(key) for key, host in found.hosts.items()])
    await store.close()


async def test_a_host_moves_up_when_it_is_used_and_leaves_when_its_trouble_ends(place: Place) -> None:
    """Issue 16"""
    clock = FakeClock(NOON)
    await filled(place, clock, 20)
    clock.advance(60)
    store = place.open_async(clock)

    await store.update("host:005.org", used())
    await store.update("host:000.org", used(tripped_at=0))
    await store.update("host:001.org", remove)
    if not store.is_immediate:
        await store.close()
        store = place.open_async(clock)
    found = await store.survey(2, 9)

    assert found.hosts.keys() == {"host:005.org", "host:000.org", "host:002.org"}
    assert (found.total, found.in_trouble) == (19, 1)
    await store.close()


async def test_trouble_is_in_the_survey_at_once(place: Place) -> None:
    """Issue 16: notes of the usual kind wait for a second, those of trouble do not."""
    clock = FakeClock(NOON)
    await filled(place, clock, 20)
    writer = place.open_async(clock)
    await writer.update("host:019.org", used())

    for name, step in TROUBLE.items():
        await writer.update(f"host:{name}.org", step)
        reader = place.open_async(clock)
        found = await reader.survey(1, 9)

        assert f"host:{name}.org" in found.hosts
        if not reader.is_immediate:
            await reader.close()
    await writer.close()


async def test_a_page_has_the_first_records_that_match_in_order(store: AsyncStore) -> None:
    """Issue 16: every host is found by a part of its name, and all are listed page by page."""
    names = ["a.org", "b.example", "c.org", "d*?[x].org", "é.org", "org"]
    for name in [*names, "other"]:
        await store.update(f"host:{name}", used())
    await store.update("rules:https://a.org", used())

    async def page(most: int, part: str = "", after: str = "") -> list[str]:
        found = await store.page("host:", part=part, after=after, most=most)
        return [key.removeprefix("host:") for key, host in found if isinstance(host, Host)]

    first = await page(3)
    assert first == sorted([*names, "other"])[:3]
    assert await page(9, after=f"host:{first[-1]}") == sorted([*names, "other"])[3:]
    assert await page(9, after="host:é.org") == []
    assert await page(9, part="org") == ["a.org", "c.org", "d*?[x].org", "org", "é.org"]
    assert await page(1, part=".org", after="host:a.org") == ["c.org"]
    assert await page(9, part="*?[") == ["d*?[x].org"]
    assert await page(9, part="host") == []
    assert await page(9, part="'") == []


# --- The index --------------------------------------------------------------------------------------------------------


def test_a_note_is_taken_only_for_another_minute_or_trouble() -> None:
    """Issue 16: an update costs the same with and without the index."""
    notes, now = HostNotes(), FakeClock(NOON // 60 * 60).now()
    host = fresh(now)
    later = msgspec.structs.replace(host, written_at=host.written_at + 59 * SECOND)
    next_minute = msgspec.structs.replace(host, written_at=host.written_at + 60 * SECOND)

    def noted(old: Host | None, new: Host | None) -> bool:
        notes.add("host:a", old, new)
        return bool(notes.take(is_last=True))

    assert noted(None, host)
    assert not noted(host, later)
    assert noted(host, next_minute)
    assert noted(host, host.replace(paused_until=-1))
    assert noted(host, None)
    assert not noted(None, None)
    assert EVERY >= 1


def test_the_index_of_a_file_costs_one_write_a_second(tmp_path: Path) -> None:
    """Issue 16: notes of many hosts go together."""
    path, clock = tmp_path / "state.sqlite", FakeClock(NOON)
    store = sqlite_store(path, clock=clock)
    for count in range(200):
        store.update(f"host:{count}", used())

    with closing(sqlite3.connect(path)) as other:
        early = other.execute("SELECT count(*) FROM hosts").fetchone()
    store.close()
    with closing(sqlite3.connect(path)) as other:
        late = other.execute("SELECT count(*) FROM hosts").fetchone()

    assert early < (200,)
    assert late == (200,)


def test_a_survey_reads_as_many_rows_of_a_large_file_as_of_a_small_one(tmp_path: Path) -> None:
    """Issue 16: the steps of SQLite's virtual machine do not grow with the number of hosts, the count aside."""
    steps = {number: _steps(tmp_path / f"{number}.sqlite", number) for number in (2_000, 20_000)}

    assert steps[20_000] < 1.5 * steps[2_000]


def _steps(path: Path, number: int) -> int:
    """The hundreds of steps for the rows of a survey, by its own queries."""
    from curtsy.stores import sqlite_records

    store = sqlite_store(path, clock=FakeClock(NOON))
    store.update_many([(f"host:{count}", TROUBLE["open"] if count % 50 == 0 else used()) for count in range(number)])
    store.close()
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1

    with closing(sqlite3.connect(path)) as other:
        other.set_progress_handler(count, 100)
        for query in sqlite_records.SELECT_SURVEYED:
            assert len(other.execute(query, (30,)).fetchall()) == 30
    return counted


def test_an_index_keeps_the_hosts_used_last_and_all_in_trouble(tmp_path: Path) -> None:
    """Issue 16: the index does not grow with the number of hosts."""
    from curtsy.stores.survey import KEPT

    clock = FakeClock(NOON)
    store = sqlite_store(tmp_path / "state.sqlite", clock=clock)
    store.update_many([("host:old", TROUBLE["open"]), ("host:older", used())])
    clock.advance(100)
    store.update_many([(f"host:{count}", used()) for count in range(KEPT + 500)])
    clock.advance(100)
    store.update("host:new", TROUBLE["paused"])
    store.close()

    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as other:
        keys = {key for [key] in other.execute("SELECT key FROM hosts")}

    assert {b"host:old", b"host:new"} <= keys
    assert b"host:older" not in keys


def test_a_file_without_an_index_gets_one(tmp_path: Path) -> None:
    """U16, issue 16: hosts of a file of the format before are listed like others."""
    path, clock = tmp_path / "state.sqlite", FakeClock(NOON)
    store = sqlite_store(path, clock=clock)
    for count in range(30):
        clock.advance(60)
        store.update(f"host:{count:03}", TROUBLE["open"] if count == 4 else used())
    store.update("host:damaged", used())
    store.close()
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("DROP TABLE hosts")
        other.execute("UPDATE records SET data = x'00' WHERE key = ?", (b"host:damaged",))
        other.execute("PRAGMA user_version = 3")

    upgraded = sqlite_store(path, clock=clock)
    found = upgraded.survey(5, 5)
    upgraded.close()

    assert found.hosts.keys() == {f"host:{count:03}" for count in (4, 25, 26, 27, 28, 29)}
    assert (found.total, found.in_trouble) == (31, 1)


async def test_an_expired_host_leaves_the_survey(shared_place: Place) -> None:
    """Issue 16: with its record"""
    clock = FakeClock(NOON)
    await filled(shared_place, clock, 10)
    store = shared_place.open_async(clock)
    await store.forget("host:000.org")

    found = await store.survey(2, 9)

    assert found.hosts.keys() == {"host:001.org", "host:002.org", "host:008.org", "host:009.org"}
    assert found.total == 9
    await store.close()


def test_a_survey_of_records_counts_hosts_alone() -> None:
    """Issue 16"""
    now = FakeClock(NOON).now()

    found = survey_of([("host:a", fresh(now)), ("host:b", None)], 0, 0)

    assert (found.total, found.hosts) == (1, {})


@pytest.mark.parametrize("step", [keep, used()])
async def test_a_survey_of_an_empty_store_is_empty(store: AsyncStore, step: Step[Any]) -> None:
    """Issue 16"""
    await store.update("rules:https://a.org", step)

    found = await store.survey(5, 5)

    assert (found.hosts, found.total, found.in_trouble) == ({}, 0, 0)

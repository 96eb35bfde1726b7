"""Records to bytes and back, over versions."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.core.budget import Day
from curtsy.core.errors import StoreError
from curtsy.core.history import TotalHistory
from curtsy.core.host import FACTS, Extra, Host
from curtsy.core.record import Record
from curtsy.core.rules import Rules
from curtsy.core.statistics import ProcessStatistics
from curtsy.stores.codec import KINDS, Codec, DamagedRecord, pack, pack_for, unpack
from curtsy.stores.codec import MIGRATIONS as REAL_MIGRATIONS
from tests.support.snapshot import Snapshot


class Thing1(Record, frozen=True, tag="thing"):
    """How a record was written long ago."""

    size: int = 0


class Thing2(Record, frozen=True, tag="thing"):
    """A later format: the size has a unit now."""

    format: int = 2
    current: ClassVar[int] = 2
    size: str = ""


class Thing3(Record, frozen=True, tag="thing"):
    """Today's: the name comes first."""

    format: int = 3
    current: ClassVar[int] = 3
    name: str = ""
    size: str = ""
    added: int = 7


class Other(Record, frozen=True, tag="other"):
    """A kind that only a later version knows."""


MIGRATIONS: dict[tuple[str, int], Any] = {
    ("thing", 1): lambda fields: [f"{fields[0]} px", *fields[1:]],
    ("thing", 2): lambda fields: ["unnamed", *fields],
}
today = Codec([Thing3], MIGRATIONS)

hosts = st.builds(
    Host,
    boot=st.integers(0, 2**32 - 1),
    offset=st.integers(-(2**63), 2**64 - 1),
    recent=st.lists(st.integers(-(2**63), 2**63), max_size=4).map(tuple),
    extra=st.none()
    | st.builds(
        Extra,
        overrides=st.lists(st.tuples(st.text(), st.none() | st.floats(allow_nan=False)), max_size=3).map(tuple),
    ),
)


@given(hosts | st.builds(Rules, body=st.none() | st.binary(), why=st.text(), valid_until=st.floats(allow_nan=False)))
def test_a_record_is_unpacked_as_it_was_packed(record: Record) -> None:
    """B7"""
    assert unpack(pack(record)) == record


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_that_stores_keep_has_a_tag_and_is_told_apart(kind: type[Record]) -> None:
    """B7"""
    assert type(unpack(pack(kind()))) is kind


def test_a_fresh_record_is_small() -> None:
    """L10: of some hundred bytes a host, few are the record's own."""
    assert len(pack(Host())) < 60


def test_an_older_format_is_migrated_step_by_step() -> None:
    """U16: an upgrade forgets nothing."""
    oldest = Codec([Thing1]).pack(Thing1(size=5))
    older = Codec([Thing2], MIGRATIONS).pack(Thing2(size="6 px"))

    assert today.unpack(oldest) == Thing3(name="unnamed", size="5 px")
    assert today.unpack(older) == Thing3(name="unnamed", size="6 px")


def test_fields_that_were_added_at_the_end_take_their_defaults() -> None:
    """U16"""
    assert today.unpack(msgspec.msgpack.encode(["thing", 3, "a", "b"])) == Thing3(name="a", size="b", added=7)


def test_a_newer_format_is_refused_with_a_clear_word(snapshot: Snapshot) -> None:
    """U16: never guessed at, even where its shape would fit."""
    newer = today.pack(Thing3())

    for codec, known in ((Codec([Thing1]), "1"), (Codec([Thing2], MIGRATIONS), "2")):
        with pytest.raises(StoreError, match="thing") as e:
            codec.unpack(newer)
        assert not isinstance(e.value, DamagedRecord)
        assert sorted(re.findall(r"\d+", str(e.value))) == [known, "3"]
    snapshot(str(e.value))


def test_an_unknown_kind_is_refused_with_a_clear_word(snapshot: Snapshot) -> None:
    """U16"""
    with pytest.raises(StoreError, match="'other'") as e:
        today.unpack(Codec([Other]).pack(Other()))
    assert not isinstance(e.value, DamagedRecord)
    snapshot(str(e.value))


@given(st.binary(max_size=200))
@example(b"")
@example(b"\x93\xa4host\x00\x00")
@example(msgspec.msgpack.encode(["host", True, 1]))
@example(msgspec.msgpack.encode(["host", 1, "not a number"]))
@example(msgspec.msgpack.encode(["host", 1.0]))
@example(msgspec.msgpack.encode({"host": 1}))
@example(b"\xa2\xff\xfe")
@example(b"\x91" * 100_000)
@example(b"\xdd\xff\xff\xff\xff")
def test_garbage_is_a_damaged_record_and_nothing_worse(data: bytes) -> None:
    """U16"""
    try:
        unpack(data)
    except StoreError:
        pass


@given(hosts, st.data())
def test_a_record_cut_short_is_damaged(record: Host, data: st.DataObject) -> None:
    """U16"""
    packed = pack(record)
    length = data.draw(st.integers(0, len(packed) - 1))

    with pytest.raises(DamagedRecord):
        unpack(packed[:length])


def test_what_a_migration_cannot_read_is_damaged() -> None:
    """U16"""
    with pytest.raises(DamagedRecord, match=r"thing.* 1 "):
        today.unpack(msgspec.msgpack.encode(["thing", 1]))


def test_what_is_no_known_kind_is_not_packed() -> None:
    """A mistake of ours shows when it is made, not when the record is read."""
    with pytest.raises(TypeError, match=r"Thing1.*KINDS"):
        pack(Thing1())


def test_every_kind_can_be_read_again() -> None:
    """Each has a tag of its own, and a migration from each of its earlier formats."""
    tags = [str(kind.__struct_config__.tag) for kind in KINDS]

    assert len(set(tags)) == len(KINDS)
    for tag, kind in zip(tags, KINDS, strict=True):
        [default] = [field.default for field in msgspec.structs.fields(kind) if field.name == "format"]
        assert default == kind.current
        assert {(tag, number) for number in range(1, kind.current)} <= REAL_MIGRATIONS.keys()


def test_statistics_of_format_1_keep_their_counts() -> None:
    """Their last hour, which had other intervals, is not in the history"""
    names = ["machine-1", "curtsy", 5.0, 9.0]
    old = ["stats", 1, *names, [{"domain": "a.example", "requests": 3}], {"pages": 2}, [[6_000_000, 3, 0, 0]], 1, 0.5]

    found = unpack(msgspec.msgpack.encode(old))

    assert isinstance(found, ProcessStatistics)
    assert (found.process, found.hosts[0].requests, found.other.pages, found.outages) == ("machine-1", 3, 2, 1)
    assert found.history == TotalHistory()


FIELDS_2 = (
    "boot", "offset", "sent_at", "roll", "spent", "recent", "serial", "places", "earlier", "retry_after_until", "delay",
    "calm", "backed_off_at", "latency", "crawl_delay", "failures", "tripped_at", "closed_at", "cooldown",
    "failed_trials", "window_at", "replies", "errors", "paused_until", "overrides", "requests", "pages", "trips",
    "status", "written_at", "delays", "day", "guests", "guests_until",
)  # fmt: skip
"""Fields of a host in format 2. Format 3 added two."""


def _host_of(number: int, **fields: object) -> bytes:
    """A host as an earlier format has it: all fields but those that are given are as in a fresh one."""
    values = {"recent": [], "places": [], "earlier": [], "overrides": [], "delays": [], "day": None, **fields}
    return msgspec.msgpack.encode(["host", number, *(values.get(name, 0) for name in FIELDS_2)])


def test_a_host_of_format_2_keeps_what_was_spent() -> None:
    """B7, C19: its days did not say when they were last charged"""
    midnight = 1_800_057_600
    written = {"offset": (midnight - 5_000) * 10**6, "written_at": 7_000_500_000, "boot": 3, "requests": 9}
    yesterday, today = [midnight - 86_400, midnight, 4, 3], [midnight, midnight + 86_400, 5, 2]

    host = unpack(_host_of(2, **written, earlier=[yesterday], day=today))

    assert isinstance(host, Host)
    assert host.earlier == Day(midnight, midnight - 5_000, 5_000, 4, 3)
    assert host.day == Day(midnight + 86_400, midnight - 5_000, 7_001, 5, 2)
    assert (host.format, host.boot, host.requests, host.jumped_at) == (4, 3, 9, 0)
    assert unpack(pack(host)) == host


def test_a_host_of_format_3_keeps_all_its_facts() -> None:
    """B7: it had all of them in one list"""
    facts = {"told_at": 5, "retry_after_until": 9, "overrides": [["delay", 3.0]], "earlier": None, "status": 429}
    values = {"recent": [], "places": [], "delays": [], "day": None, "jumped_at": 0, **facts}
    old = ["host", 3, *(values.get(name, 0) for name in (*FIELDS_2, "jumped_at", "told_at"))]

    host = unpack(msgspec.msgpack.encode(old))

    assert host == Host(status=429).replace(told_at=5, retry_after_until=9, overrides=(("delay", 3.0),))
    assert unpack(pack(host)) == host


@given(hosts)
@example(Host(day=Day(1, 2, 3, 4, 5)).replace(tripped_by="failures:500", tripped_at=9, trips=2))
def test_a_host_is_written_for_readers_of_the_format_before_without_loss(host: Host) -> None:
    """Issue 17: writers write the format before until all live processes read the present one"""
    host = host.replace(**{name: getattr(host, name) for name in FACTS})  # no facts of their own if all are as usual
    for_readers_before = pack_for(Host.current - 1, host)

    assert msgspec.msgpack.decode(for_readers_before)[:2] == ["host", Host.current - 1]
    assert unpack(for_readers_before) == host
    assert pack_for(Host.current, host) == pack_for(Host.current + 1, host) == pack(host)


def test_a_format_that_cannot_be_written_any_more_is_the_oldest_that_can() -> None:
    """Issue 17: such readers refuse the host"""
    assert pack_for(1, Host()) == pack_for(Host.current - 1, Host())
    assert pack_for(0, Rules()) == pack(Rules())


def test_a_host_of_format_1_keeps_what_was_spent() -> None:
    """B7: it had all its days in one list"""
    midnight = 1_800_057_600
    days = [[midnight - 86_400, midnight, 4, 3], [midnight, midnight + 86_400, 5, 2]]
    short = msgspec.msgpack.decode(_host_of(1, offset=midnight * 10**6, written_at=9_000_000, earlier=days))[:-2]

    host = unpack(msgspec.msgpack.encode(short))

    assert isinstance(host, Host)
    assert [(day.requests, day.pages) for day in host.days] == [(4, 3), (5, 2)]
    assert unpack(_host_of(2)) == Host()

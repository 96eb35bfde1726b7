"""Conversion of records to bytes and back, with a tag per kind, a number per format, and migrations.

A packed record is the MessagePack array `[tag, format, field, field …]`. A new kind of record needs one line in
`KINDS`. A new field at the end needs only a default. Any other change of a kind's shape raises its `current` and the
default of `format`, and adds a line to `MIGRATIONS`. For hosts, it also adds a line to `REVERSALS`: while an earlier
version uses the same server, they are written in the format that it can read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import msgspec

from curtsy.core.crawl_record import CrawlRecord
from curtsy.core.errors import RecordTooNew, StoreError
from curtsy.core.host import USUAL, Extra, Host
from curtsy.core.record import Record
from curtsy.core.rules import Rules
from curtsy.core.statistics import ProcessStatistics
from curtsy.core.time import SECOND

Migration = Callable[[list[Any]], list[Any]]
"""Function that converts the fields of one format (without tag and format) to those of the next."""


_UNREADABLE = (msgspec.MsgspecError, ValueError, RecursionError)


class DamagedRecord(StoreError):
    """Error for bytes that no version of curtsy wrote; they count as no record, with a warning (U16)."""


class Codec:
    """Packer and unpacker of the given kinds of record."""

    def __init__(
        self,
        kinds: Sequence[type[Record]],
        migrations: Mapping[tuple[str, int], Migration] | None = None,
        reversals: Mapping[tuple[str, int], Migration] | None = None,
    ) -> None:
        self._kinds = {_tag(kind): kind for kind in kinds}
        self._types = frozenset(kinds)
        self._migrations = dict(migrations or {})
        self._reversals = dict(reversals or {})
        shape: Any = Union[tuple(kinds)]  # noqa: UP007 -- a union that is only known at run time
        self._decoder = msgspec.msgpack.Decoder(shape)
        self._encoder = msgspec.msgpack.Encoder()

    def pack(self, record: Record) -> bytes:
        """Return the record as bytes. Raises TypeError for an unknown kind."""
        if type(record) not in self._types:
            raise TypeError(f"{type(record).__name__} is no known kind of record. Add it to KINDS in stores/codec.py.")
        return self._encoder.encode(record)

    def pack_for(self, readers: int, record: Record) -> bytes:
        """Return the record as bytes, in a format that `readers` of that format can read if it can be written."""
        packed, tag, number = self.pack(record), _tag(type(record)), record.format
        if number <= readers or (tag, number) not in self._reversals:
            return packed
        fields = msgspec.msgpack.decode(packed)[2:]
        while number > readers and (tag, number) in self._reversals:
            fields = self._reversals[tag, number](fields)
            number -= 1
        return self._encoder.encode([tag, number, *fields])

    def unpack(self, data: bytes) -> Record:
        """Return the record in the current format.

        Raises DamagedRecord if `data` is no record, and RecordTooNew if a later curtsy wrote it.
        """
        try:
            record: Record = self._decoder.decode(data)
        except _UNREADABLE:
            return self._migrate(data)
        # Another format can match the current shape by chance; its number distinguishes it.
        return record if record.format == record.current else self._migrate(data)

    def _migrate(self, data: bytes) -> Record:
        """Unpack a record that is not of the current format, and migrate it. Raises as `unpack` does."""
        kind, number, fields = self._parts(data)
        tag = _tag(kind)
        if number > kind.current:
            raise RecordTooNew(
                f"a {tag} record has format {number}, but this curtsy knows formats up to {kind.current}: "
                "a later version wrote it. Upgrade curtsy, or use another store."
            )
        try:
            for each in range(number, kind.current):
                fields = self._migrations[tag, each](fields)
            return msgspec.convert([tag, kind.current, *fields], kind)
        except Exception as error:  # a migration can fail in any way on damaged fields
            raise DamagedRecord(f"a {tag} record of format {number} cannot be read: {error}.") from error

    def _parts(self, data: bytes) -> tuple[type[Record], int, list[Any]]:
        """Return kind, format and fields. Raises as `unpack` does."""
        try:
            raw = msgspec.msgpack.decode(data)
        except _UNREADABLE as error:
            raise DamagedRecord(f"{len(data)} bytes are no record: {error}.") from error
        match raw:
            case [str(tag), int(number), *fields] if number >= 1 and number is not True:
                kind = self._kinds.get(tag)
            case _:
                raise DamagedRecord(f"{len(data)} bytes are no record: they do not begin with a tag and a format.")
        if kind is None:
            raise RecordTooNew(
                f"a record is of the kind {tag[:40]!r}, which this curtsy does not know: a later version wrote it. "
                "Upgrade curtsy, or use another store."
            )
        return kind, number, fields


def _tag(kind: type[Record]) -> str:
    return str(kind.__struct_config__.tag)


KINDS: tuple[type[Record], ...] = (Host, Rules, CrawlRecord, ProcessStatistics)
"""All kinds of record that stores keep."""


def _host_1(fields: list[Any]) -> list[Any]:
    """Return the fields of format 1, which had no current day: all its days are earlier ones."""
    return fields


def _host_2(fields: list[Any]) -> list[Any]:
    """Convert the days of format 2 from [start, end, requests, pages], and add the time of their last charge.

    That time is the last write, or the end of the day if that is earlier.
    """
    fields += [*_HOST_2[len(fields) :]]
    offset, written = fields[1] // SECOND, -(-fields[29] // SECOND)
    old = [*fields[8], *([] if fields[31] is None else [fields[31]])]
    days = [[ends, offset, min(written, ends - offset), *spent] for _, ends, *spent in old]
    fields[8], fields[31] = days[-2] if len(days) > 1 else None, days[-1] if days else None
    return fields


_HOST_2: list[Any] = [0, 0, 0, 0, 0, [], 0, [], [], *[0] * 15, [], *[0] * 5, [], None]
"""Default fields of a host in format 2."""


def _host_3(fields: list[Any]) -> list[Any]:
    """Move the facts that most hosts do not have into a list of their own; None if all are as usual."""
    found = dict(zip(_HOST_3, [*fields, *list(_HOST_3.values())[len(fields) :]], strict=False))
    extra = msgspec.convert([found.pop(name) for name in Extra.__struct_fields__], Extra)
    return [*found.values(), None if extra == USUAL else msgspec.to_builtins(extra)]


_HOST_3: dict[str, Any] = {
    "boot": 0, "offset": 0, "sent_at": 0, "roll": 0, "spent": 0, "recent": [], "serial": 0, "places": [],
    "earlier": None, "retry_after_until": 0, "delay": 0, "calm": 0, "backed_off_at": 0, "latency": 0, "crawl_delay": 0,
    "failures": 0, "tripped_at": 0, "closed_at": 0, "cooldown": 0, "failed_trials": 0, "window_at": 0, "replies": 0,
    "errors": 0, "paused_until": 0, "overrides": [], "requests": 0, "pages": 0, "trips": 0, "status": 0,
    "written_at": 0, "delays": [], "day": None, "guests": 0, "guests_until": 0, "jumped_at": 0, "told_at": 0,
    "tripped_by": "",
}  # fmt: skip
"""Fields of a host in format 3, in order, with their defaults."""


def _stats_1(fields: list[Any]) -> list[Any]:
    """Return the fields of format 1 with an empty history in place of its counts of the last hour."""
    return [*fields[:6], [], *fields[7:]]


MIGRATIONS: dict[tuple[str, int], Migration] = {
    ("host", 1): _host_1,
    ("host", 2): _host_2,
    ("host", 3): _host_3,
    ("stats", 1): _stats_1,
}
"""Migrations to the next format, by tag and format."""


def _to_host_3(fields: list[Any]) -> list[Any]:
    """Return the fields of a host in the format before the extra facts."""
    *usual, extra = fields
    facts = msgspec.to_builtins(USUAL) if extra is None else extra
    names = [name for name in _HOST_3 if name not in Extra.__struct_fields__]
    found = dict(zip([*names, *Extra.__struct_fields__], [*usual, *facts], strict=True))
    return [found[name] for name in _HOST_3]


REVERSALS: dict[tuple[str, int], Migration] = {("host", 4): _to_host_3}
"""Reverse migrations to the format before, by tag and format. Those of one format suffice."""

DEFAULT = Codec(KINDS, MIGRATIONS, REVERSALS)
"""Codec of all stores."""

pack = DEFAULT.pack
pack_for = DEFAULT.pack_for
unpack = DEFAULT.unpack

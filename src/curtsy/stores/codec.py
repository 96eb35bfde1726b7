"""Records to bytes and back: one tag per kind, one number per format, every older format migrated on the way in.

Packed, a record is the MessagePack array `[tag, format, field, field …]`. A new kind of record is one line in `KINDS`;
a change of a kind's shape that is more than a field added at the end raises its `current` (and the default of
`format`) and adds a line to `MIGRATIONS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import msgspec

from curtsy.core.crawl_record import CrawlRecord
from curtsy.core.errors import StoreError
from curtsy.core.host import Host
from curtsy.core.message import SECOND
from curtsy.core.record import Record
from curtsy.core.rules import Rules
from curtsy.core.statistics import ProcessStatistics

Migration = Callable[[list[Any]], list[Any]]
"""Takes the fields as one format wrote them (without tag and format), returns them as the next format has them."""


class DamagedRecord(StoreError):
    """Bytes that no version of curtsy wrote: to be treated as no record at all, with a warning (U16)."""


class Codec:
    """Packs and unpacks the kinds of record that it is given."""

    def __init__(
        self, kinds: Sequence[type[Record]], migrations: Mapping[tuple[str, int], Migration] | None = None
    ) -> None:
        self._kinds = {_tag(kind): kind for kind in kinds}
        self._types = frozenset(kinds)
        self._migrations = dict(migrations or {})
        if len(self._kinds) != len(kinds):
            raise TypeError(f"two kinds of record share a tag among {[_tag(kind) for kind in kinds]}. Rename one.")
        for tag, kind in self._kinds.items():
            self._check(tag, kind)
        shape: Any = Union[tuple(kinds)]  # noqa: UP007 -- a union that is only known at run time
        self._decoder = msgspec.msgpack.Decoder(shape)
        self._encoder = msgspec.msgpack.Encoder()

    def _check(self, tag: str, kind: type[Record]) -> None:
        """Refuse a kind that could be written but not read again."""
        default = next(field.default for field in msgspec.structs.fields(kind) if field.name == "format")
        if default != kind.current:
            raise TypeError(f"{kind.__name__}.format is {default} by default but current is {kind.current}. Set both.")
        for number in range(1, kind.current):
            if (tag, number) not in self._migrations:
                raise TypeError(f"{kind.__name__} has no migration from format {number}. Add one for {(tag, number)}.")

    def pack(self, record: Record) -> bytes:
        """The record as bytes."""
        if type(record) not in self._types:
            raise TypeError(f"{type(record).__name__} is no known kind of record. Add it to KINDS in stores/codec.py.")
        return self._encoder.encode(record)

    def unpack(self, data: bytes) -> Record:
        """The record that was packed, in today's format.

        Raises DamagedRecord for what is no record, and StoreError for what a later curtsy wrote.
        """
        try:
            record: Record = self._decoder.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return self._migrate(data)
        # An older or newer format may well fit today's shape by chance; its number tells.
        return record if record.format == record.current else self._migrate(data)

    def _migrate(self, data: bytes) -> Record:
        """Unpack what is not simply today's: bring it up to date, or say why not."""
        kind, number, fields = self._parts(data)
        tag = _tag(kind)
        if number > kind.current:
            raise StoreError(
                f"a {tag} record has format {number}, but this curtsy knows formats up to {kind.current}: "
                "a later version wrote it. Upgrade curtsy, or use another store."
            )
        try:
            for each in range(number, kind.current):
                fields = self._migrations[tag, each](fields)
            return msgspec.convert([tag, kind.current, *fields], kind)
        except Exception as error:  # a migration meets whatever was there
            raise DamagedRecord(f"a {tag} record of format {number} cannot be read: {error}.") from error

    def _parts(self, data: bytes) -> tuple[type[Record], int, list[Any]]:
        """Kind, format and fields, as far as these can be told."""
        try:
            raw = msgspec.msgpack.decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise DamagedRecord(f"{len(data)} bytes are no record: {error}.") from error
        match raw:
            case [str(tag), int(number), *fields] if number >= 1 and number is not True:
                kind = self._kinds.get(tag)
            case _:
                raise DamagedRecord(f"{len(data)} bytes are no record: they do not begin with a tag and a format.")
        if kind is None:
            raise StoreError(
                f"a record is of the kind {tag[:40]!r}, which this curtsy does not know: a later version wrote it. "
                "Upgrade curtsy, or use another store."
            )
        return kind, number, fields


def _tag(kind: type[Record]) -> str:
    return str(kind.__struct_config__.tag)


KINDS: tuple[type[Record], ...] = (Host, Rules, CrawlRecord, ProcessStatistics)
"""Every kind of record that stores keep."""


def _host_1(fields: list[Any]) -> list[Any]:
    """Format 1 had no day of its own: all its days are earlier ones."""
    return fields


def _host_2(fields: list[Any]) -> list[Any]:
    """Format 2 had days as [start, end, requests, pages], and did not note when they were last charged.

    Taken for that are the last write, or the end of the day if that came first.
    """
    fields += [*_HOST_2[len(fields) :]]
    offset, written = fields[1] // SECOND, -(-fields[29] // SECOND)
    old = [*fields[8], *([] if fields[31] is None else [fields[31]])]
    days = [[ends, offset, min(written, ends - offset), *spent] for _, ends, *spent in old]
    fields[8], fields[31] = days[-2] if len(days) > 1 else None, days[-1] if days else None
    return fields


_HOST_2: list[Any] = [0, 0, 0, 0, 0, [], 0, [], [], *[0] * 15, [], *[0] * 5, [], None]
"""The fields of a host of format 2 that nothing is known of."""

MIGRATIONS: dict[tuple[str, int], Migration] = {("host", 1): _host_1, ("host", 2): _host_2}
"""By tag and format: how to get from that format to the next."""

DEFAULT = Codec(KINDS, MIGRATIONS)
"""The codec of all stores."""

pack = DEFAULT.pack
unpack = DEFAULT.unpack

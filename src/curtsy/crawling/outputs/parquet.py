"""Parquet: pages as rows of a table in columns, made from their JSON lines (extra `parquet`)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from curtsy.core.errors import not_imported
from curtsy.crawling.outputs.jsonlines import BodyForm, PageEntry

ROWS, BYTES = 10_000, 16 << 20
"""Rows and bytes of JSON after which a row group ends, so that memory is bounded."""


class _Line(PageEntry, frozen=True):
    """Line of a part. Version 0.1 wrote the main text as `text`, always, and the decoded body as `body`."""

    body: str | msgspec.UnsetType | None = msgspec.UNSET


_decode = msgspec.json.Decoder(_Line).decode


def check_parquet() -> None:
    """Raise PolicyError if pyarrow is missing."""
    _pyarrow("pyarrow")


def _pyarrow(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise not_imported("Parquet needs the library pyarrow", "pyarrow", "parquet", error) from error


def schema_of(body: BodyForm) -> Any:
    """Return the pyarrow schema of pages: the fields of `PageEntry`, with the body as text or bytes if there is one."""
    arrow = _pyarrow("pyarrow")
    text, texts = arrow.string(), arrow.list_(arrow.string())
    fields = dict.fromkeys(
        (each for each in PageEntry.__struct_fields__ if each not in ("text", "body_base64")), text
    ) | {
        **dict.fromkeys(("links", "directives", "signals"), texts),
        **dict.fromkeys(("status", "depth", "links_cut"), arrow.int32()),
        **dict.fromkeys(("headers", "request_headers"), arrow.map_(text, text)),
        "size": arrow.int64(),
        **dict.fromkeys(("redirected", "rendered"), arrow.bool_()),
        "fetched_at": arrow.timestamp("us", tz="UTC"),
        "fetch": arrow.struct(
            [
                ("attempts", arrow.int32()),
                ("retries", arrow.int32()),
                ("waited", arrow.float64()),
                ("took", arrow.float64()),
                ("bytes", arrow.int64()),
            ]
        ),
    }
    if body != "none":
        fields |= {"text": text} if body == "text" else {"body_bytes": arrow.binary()}
    return arrow.schema(list(fields.items()))


def write_parquet(source: str, target: str, body: BodyForm) -> None:
    """Write the JSON lines in the file `source` as the Parquet file `target`, compressed with Zstandard."""
    arrow, parquet, schema = _pyarrow("pyarrow"), _pyarrow("pyarrow.parquet"), schema_of(body)
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        for rows in _groups(source, body):
            writer.write_table(arrow.Table.from_pylist(rows, schema))


def _groups(source: str, body: BodyForm) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    size = 0
    with open(source, "rb") as lines:
        for line in lines:
            rows.append(_row(_decode(line), body))
            size += len(line)
            if len(rows) >= ROWS or size >= BYTES:
                yield rows
                rows, size = [], 0
    if rows:
        yield rows


def _row(entry: _Line, body: BodyForm) -> dict[str, Any]:
    row = msgspec.structs.asdict(entry)
    written = row.pop("body")
    if written is not msgspec.UNSET or (body != "text" and entry.text is not msgspec.UNSET):
        row |= {"main_text": entry.text, "text": written}
    for name in ("headers", "request_headers"):
        row[name] = list(row[name].items())
    row["fetched_at"] = _instant(entry.fetched_at)
    row["fetch"] = None if entry.fetch is None else msgspec.structs.asdict(entry.fetch)
    if entry.extracted is not msgspec.UNSET:
        row["extracted"] = msgspec.json.encode(entry.extracted).decode()
    row["body_bytes"] = row.pop("body_base64")
    return {name: None if value is msgspec.UNSET else value for name, value in row.items()}


def _instant(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

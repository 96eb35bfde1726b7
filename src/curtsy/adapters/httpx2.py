"""Transports for httpx2: `httpx2.Client(transport=Transport())`, and `AsyncTransport` for its `AsyncClient`.

The arguments are an inner transport, which sends the requests, and settings as of `curtsy.Client`. Arguments of the
httpx2 client about connections (`verify`, `proxy`, `limits`, `http2`) belong to the inner transport.
"""

from __future__ import annotations

from curtsy.adapters.httpx_transport import AsyncSlotStream, BlockingTransport, Library, SlotStream, TaskTransport
from curtsy.core import errors

try:
    import httpx2
except ImportError as error:
    raise errors.not_imported("curtsy.adapters.httpx2 needs the library httpx2", "httpx2", "httpx2", error) from error

__all__ = ["AsyncTransport", "Refused", "Transport"]


class Refused(errors.Refused, httpx2.TransportError):
    """Refusal by curtsy: nothing was sent. It has `reason`, `url`, `retry_after` and `request`."""


class _Stream(SlotStream, httpx2.SyncByteStream):
    pass


class _AsyncStream(AsyncSlotStream, httpx2.AsyncByteStream):
    pass


_LIBRARY = Library(httpx2, Refused, _Stream, _AsyncStream)


class Transport(BlockingTransport, httpx2.BaseTransport):
    """Transport for `httpx2.Client`."""

    library = _LIBRARY


class AsyncTransport(TaskTransport, httpx2.AsyncBaseTransport):
    """Transport for `httpx2.AsyncClient`."""

    library = _LIBRARY

"""Transports for httpx: `httpx.Client(transport=Transport())`, and `AsyncTransport` for its `AsyncClient`.

The arguments are an inner transport, which sends the requests, and settings as of `curtsy.Client`. Arguments of the
httpx client about connections (`verify`, `proxy`, `limits`, `http2`) belong to the inner transport.
"""

from __future__ import annotations

from curtsy.adapters.httpx_transport import AsyncSlotStream, BlockingTransport, Library, SlotStream, TaskTransport
from curtsy.core import errors

try:
    import httpx
except ImportError as error:
    raise errors.not_imported("curtsy.adapters.httpx needs the library httpx", "httpx", "httpx", error) from error

__all__ = ["AsyncTransport", "Refused", "Transport"]


class Refused(errors.Refused, httpx.TransportError):
    """Refusal by curtsy: nothing was sent. It has `reason`, `url`, `retry_after` and `request`."""


class _Stream(SlotStream, httpx.SyncByteStream):
    pass


class _AsyncStream(AsyncSlotStream, httpx.AsyncByteStream):
    pass


_LIBRARY = Library(httpx, Refused, _Stream, _AsyncStream)


class Transport(BlockingTransport, httpx.BaseTransport):
    """Transport for `httpx.Client`."""

    library = _LIBRARY


class AsyncTransport(TaskTransport, httpx.AsyncBaseTransport):
    """Transport for `httpx.AsyncClient`."""

    library = _LIBRARY

"""Metrics through OpenTelemetry's API, by its conventions for HTTP clients. Requires the extra `metrics`.

    client = AsyncClient(on_record=OpenTelemetryRecorder())

The program's OpenTelemetry SDK exports them; without an SDK the calls have no effect.
"""

from __future__ import annotations

from typing import Any

from curtsy import __version__
from curtsy.core.errors import REFUSALS, not_imported
from curtsy.core.message import Url, parse_url
from curtsy.core.record import FetchRecord
from curtsy.core.statistics import Latencies, Waits

try:
    from opentelemetry.metrics import Meter, get_meter
except ImportError as error:
    need = "OpenTelemetry metrics need the library opentelemetry-api"
    raise not_imported(need, "opentelemetry", "metrics", error) from error

MOST_SERVERS = 500
"""Maximum number of servers with an address attribute of their own; later ones are `_OTHER`."""

OTHER = "_OTHER"

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
"""Methods allowed as an attribute; any other is `_OTHER` (semantic conventions, HTTP metrics)."""

_REFUSALS = frozenset(reason.value for reason in REFUSALS)


class OpenTelemetryRecorder:
    """Recorder of fetches in OpenTelemetry instruments; pass it to a client as `on_record`.

    `http.client.request.duration` has one value per fetch, that of its last request. Earlier retries and redirects
    count only in `curtsy.requests`.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or get_meter("curtsy", __version__)
        self._duration = meter.create_histogram(
            "http.client.request.duration",
            unit="s",
            description="Duration of HTTP client requests.",
            explicit_bucket_boundaries_advisory=Latencies.bounds,
        )
        self._wait = meter.create_histogram(
            "curtsy.wait.duration",
            unit="s",
            description="Time that fetches waited in the queue.",
            explicit_bucket_boundaries_advisory=Waits.bounds,
        )
        self._requests = meter.create_counter(
            "curtsy.requests", unit="{request}", description="Requests sent, including redirects and retries."
        )
        self._bytes = meter.create_counter(
            "curtsy.received", unit="By", description="Bytes of bodies received over the network."
        )
        self._refused = meter.create_counter(
            "curtsy.refused", unit="{fetch}", description="Fetches that curtsy refused to make."
        )
        self._cached = meter.create_counter(
            "curtsy.cached", unit="{fetch}", description="Fetches served from the cache."
        )
        self._servers: dict[str, dict[str, Any]] = {}

    def __call__(self, record: FetchRecord) -> None:
        """Record one fetch."""
        server = self._server(record.domain, record)
        self._wait.record(record.waited, server)
        for share in record.shares():
            if share.attempts:
                there = self._server(share.domain, record)
                self._requests.add(share.attempts, there)
                self._bytes.add(share.bytes, there)
        if record.latency is not None:
            self._duration.record(record.latency, self._request(record, server))
        if record.reason in _REFUSALS:
            self._refused.add(1, {**server, "curtsy.reason": record.reason})
        if record.cache is not None:
            self._cached.add(1, {**server, "curtsy.cache": record.cache})

    def _server(self, domain: str, record: FetchRecord) -> dict[str, Any]:
        """Return the attributes of a host that a fetch ended at or was redirected by."""
        known = self._servers.get(domain)
        if known is not None and ("server.port" in known or domain != record.domain):
            return known
        found = _address(domain, record)
        if not found or (known is None and len(self._servers) >= MOST_SERVERS):
            return {"server.address": OTHER}
        self._servers[domain] = found
        return found

    def _request(self, record: FetchRecord, server: dict[str, Any]) -> dict[str, Any]:
        attributes = {**server, "http.request.method": record.method if record.method in METHODS else OTHER}
        if record.status is not None:
            attributes["http.response.status_code"] = record.status
        if record.status is not None and record.status >= 400:
            attributes["error.type"] = str(record.status)
        elif record.reason is not None:
            attributes["error.type"] = record.reason
        return attributes


def _address(domain: str, record: FetchRecord) -> dict[str, Any]:
    """Return address and port of a host on a fetch's redirect path; empty if the domain is invalid.

    The record has no scheme for hosts between the first and the last. Their default port is therefore omitted.
    """
    url = parse_url(record.final_url if domain == record.domain else record.url)
    is_told = isinstance(url, Url) and url.domain == domain
    if not is_told:
        url = parse_url(f"http://{domain}")
    if not isinstance(url, Url):
        return {}
    if is_told or domain.endswith(f":{url.port}"):
        return {"server.address": url.host, "server.port": url.port}
    return {"server.address": url.host}

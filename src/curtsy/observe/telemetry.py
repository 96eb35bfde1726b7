"""Metrics through OpenTelemetry's API, by its conventions for HTTP clients. Requires the extra `metrics`.

    client = AsyncClient(on_record=OpenTelemetryRecorder())

The program's OpenTelemetry SDK exports them; without an SDK the calls have no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from curtsy import __version__
from curtsy.core.errors import REFUSALS, not_imported
from curtsy.core.record import FetchRecord
from curtsy.core.statistics import Latencies, StatisticsSnapshot, Waits
from curtsy.core.url import Url, parse_url
from curtsy.engine.crawl_view import WORKER_STATES, CrawlView

try:
    from opentelemetry.metrics import Meter, Observation, get_meter
except ImportError as error:
    need = "OpenTelemetry metrics need the library opentelemetry-api"
    raise not_imported(need, "opentelemetry", "metrics", error) from error

MOST_SERVERS = 500
"""Maximum number of servers with an address attribute of their own; later ones are `_OTHER`."""

OTHER = "_OTHER"

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
"""Methods allowed as an attribute; any other is `_OTHER` (semantic conventions, HTTP metrics)."""

HISTOGRAMS = {
    "http.client.request.duration": ("Duration of HTTP client requests.", Latencies),
    "curtsy.wait.duration": ("Time that fetches waited in the queue.", Waits),
}
COUNTERS = {
    "curtsy.requests": ("Requests sent, including redirects and retries.", "{request}"),
    "curtsy.received": ("Bytes of bodies received over the network.", "By"),
    "curtsy.refused": ("Fetches that curtsy refused to make.", "{fetch}"),
    "curtsy.cached": ("Fetches served from the cache.", "{fetch}"),
}
"""Instruments: meaning, and bounds or unit."""

GAUGES = {
    "curtsy.frontier.queued": ("URLs that wait in the queue of a crawl.", "{url}"),
    "curtsy.frontier.leased": ("URLs that workers of a crawl hold.", "{url}"),
    "curtsy.frontier.oldest_lease": ("Time for which a worker at work has held the oldest of its URLs.", "s"),
    "curtsy.frontier.stalled": ("Time since a crawl at work finished a URL.", "s"),
    "curtsy.workers": ("Workers of a crawl by state.", "{worker}"),
    "curtsy.worker.pages": ("Pages of a worker, over all its runs.", "{page}"),
    "curtsy.store.outages": ("Outages of the store, counted by each client that saw them.", "{outage}"),
    "curtsy.store.outage_time": ("Duration of these outages.", "s"),
}
"""Observed instruments: meaning and unit. The last two are counters."""

MOST_CRAWLS = 50
"""Maximum number of observed crawls, and of workers of each."""

_REFUSALS = frozenset(reason.value for reason in REFUSALS)


class OpenTelemetryRecorder:
    """Recorder of fetches in OpenTelemetry instruments; pass it to a client as `on_record`.

    `http.client.request.duration` has one value per fetch, that of its last request. Earlier retries and redirects
    count only in `curtsy.requests`.
    """

    def __init__(self, meter: Meter | None = None) -> None:
        meter = meter or get_meter("curtsy", __version__)
        self._histograms = {
            name: meter.create_histogram(
                name, unit="s", description=meaning, explicit_bucket_boundaries_advisory=kind.bounds
            )
            for name, (meaning, kind) in HISTOGRAMS.items()
        }
        self._counters = {
            name: meter.create_counter(name, unit=unit, description=meaning)
            for name, (meaning, unit) in COUNTERS.items()
        }
        self._servers: dict[str, dict[str, Any]] = {}

    def __call__(self, record: FetchRecord) -> None:
        """Record one fetch."""
        server = self._server(record.domain, record)
        self._histograms["curtsy.wait.duration"].record(record.waited, server)
        for share in record.shares():
            if share.attempts:
                there = self._server(share.domain, record)
                self._counters["curtsy.requests"].add(share.attempts, there)
                self._counters["curtsy.received"].add(share.bytes, there)
        if record.latency is not None:
            self._histograms["http.client.request.duration"].record(record.latency, _request(record, server))
        if record.reason in _REFUSALS:
            self._counters["curtsy.refused"].add(1, {**server, "curtsy.reason": record.reason})
        if record.cache is not None:
            self._counters["curtsy.cached"].add(1, {**server, "curtsy.cache": record.cache})

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


def observe(
    stats: Callable[[], StatisticsSnapshot],
    crawls: Callable[[], Iterable[CrawlView]] | None = None,
    meter: Meter | None = None,
) -> None:
    """Create instruments for the outages of the store (`client.stats`) and for crawls (`read_crawls(store)`).

    The SDK calls the sources at each export.
    """
    meter = meter or get_meter("curtsy", __version__)

    def create(name: str, values: Callable[[], Iterable[Observation]], *, is_counter: bool = False) -> None:
        make = meter.create_observable_counter if is_counter else meter.create_observable_gauge
        make(name, [lambda options: values()], unit=GAUGES[name][1], description=GAUGES[name][0])

    create("curtsy.store.outages", lambda: [Observation(stats().outages)], is_counter=True)
    create("curtsy.store.outage_time", lambda: [Observation(stats().outage_seconds)], is_counter=True)
    if crawls is None:
        return

    def first() -> Iterator[tuple[CrawlView, dict[str, Any]]]:
        for crawl in list(crawls())[:MOST_CRAWLS]:
            yield crawl, {"curtsy.crawl": crawl.job}

    create("curtsy.frontier.queued", lambda: [Observation(each.whole.queued, name) for each, name in first()])
    create("curtsy.frontier.leased", lambda: [Observation(each.whole.leased, name) for each, name in first()])
    create("curtsy.frontier.oldest_lease", lambda: [Observation(each.oldest_lease, name) for each, name in first()])
    create("curtsy.frontier.stalled", lambda: [Observation(each.stalled, name) for each, name in first()])
    create(
        "curtsy.workers",
        lambda: [
            Observation(each.count(state), {**name, "curtsy.worker.state": state})
            for each, name in first()
            for state in WORKER_STATES
        ],
    )
    create(
        "curtsy.worker.pages",
        lambda: [
            Observation(worker.pages, {**name, "curtsy.worker": worker.worker or worker.process})
            for each, name in first()
            for worker in each.workers[:MOST_CRAWLS]
        ],
    )


def _request(record: FetchRecord, server: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a fetch's last request."""
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

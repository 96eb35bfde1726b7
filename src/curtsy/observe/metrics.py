"""Metrics for Prometheus: one collector over a source of statistics. Requires the extra `metrics`.

    server = serve_metrics(9464, client.stats)          # http://127.0.0.1:9464/metrics, until closed
    ...
    server.close()

Every host metric has the label `host`: the busiest hosts by name, all others together as `other`. Counters never
decrease. While a host is not among the busiest, its events count for `other`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from curtsy.core.errors import PolicyError, not_imported
from curtsy.core.statistics import Distribution, HostStatistics, ProcessStatistics, StatisticsSnapshot, summed
from curtsy.core.time import SECOND
from curtsy.engine.alerts import ALERTS, NEARLY, alerts_of, budget_used
from curtsy.engine.counters import read_statistics
from curtsy.engine.crawl_view import WORKER_STATES, CrawlView
from curtsy.engine.host_view import HostView
from curtsy.stores import Store

try:
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector as PrometheusCollector
except ImportError as error:
    need = "metrics for Prometheus need the library prometheus-client"
    raise not_imported(need, "prometheus_client", "metrics", error) from error

LABELLED = 50
"""Number of hosts with a label of their own."""

OTHER = "other"
"""Label of all other hosts together."""

Source = Callable[[], StatisticsSnapshot]
"""Source of statistics: `client.stats`, or a `StoreSource`. Its counts must never decrease."""

Hosts = Callable[[], Iterable[HostView]]
"""Source of the current state of hosts: `views(store, policies)`."""

Crawls = Callable[[], Iterable[CrawlView]]
"""Source of the current state of crawls: `read_crawls(store)`."""

Family = TypeVar("Family", bound=Metric)


class Described(NamedTuple):
    """Metric: name (without `_total`), field of the statistics, help text and labels."""

    name: str
    field: str
    meaning: str
    labels: tuple[str, ...] = ("host",)

    def family(self, kind: Callable[..., Family]) -> Family:
        """Return the metric without values, as a counter, a histogram or a gauge."""
        return kind(self.name, self.meaning, labels=self.labels)


COUNTERS = (
    Described("curtsy_fetches", "fetches", "Fetches that ended, with or without a request."),
    Described("curtsy_requests", "requests", "Requests sent, including redirects and retries, without robots.txt."),
    Described("curtsy_robots_requests", "robots_requests", "Requests sent for robots.txt."),
    Described("curtsy_pages", "pages", "Successful responses with a body."),
    Described("curtsy_received_bytes", "bytes", "Bytes of bodies received over the network."),
    Described("curtsy_cache_hits", "cache_hits", "Fetches served from the cache without a request."),
    Described("curtsy_cache_revalidations", "revalidated", "Fetches served from the cache after revalidation."),
    Described("curtsy_retries", "retries", "Requests that were retries."),
    Described("curtsy_delayed", "delayed", "Fetches that waited more than 10 ms."),
    Described("curtsy_breaker_trips", "trips", "Times that a breaker opened."),
    Described("curtsy_refused", "refused", "Fetches that curtsy refused to make.", ("host", "reason")),
    Described("curtsy_failed", "failed", "Failed fetches.", ("host", "reason")),
)
HISTOGRAMS = (
    Described("curtsy_wait_seconds", "waits", "Time that fetches waited in the queue."),
    Described("curtsy_request_duration_seconds", "latency", "Time from sending a request to the end of its response."),
)
STORE_COUNTERS = (
    Described("curtsy_store_outages", "outages", "Outages of the store, counted by each client that saw them.", ()),
    Described("curtsy_store_outage_seconds", "outage_seconds", "Duration of these outages.", ()),
)
HOST_GAUGES = (
    Described("curtsy_breaker_open", "breaker_open", "1 while the host's breaker is open."),
    Described("curtsy_budget_used_ratio", "budget_used", "Used share of the host's daily budget."),
    Described("curtsy_breakers_open", "breakers_open", "Open breakers of all hosts.", ()),
    Described(
        "curtsy_budgets_nearly_used", "nearly_used", "Hosts that have used nine tenths of their daily budget.", ()
    ),
)
CRAWL_GAUGES = (
    Described("curtsy_frontier_queued", "queued", "URLs that wait in the queue of a crawl.", ("crawl",)),
    Described("curtsy_frontier_leased", "leased", "URLs that workers of a crawl hold.", ("crawl",)),
    Described(
        "curtsy_frontier_oldest_lease_seconds", "oldest_lease",
        "Time for which a worker at work has held the oldest of its URLs.", ("crawl",),
    ),
    Described("curtsy_frontier_stalled_seconds", "stalled", "Time since a crawl at work finished a URL.", ("crawl",)),
    Described("curtsy_workers", "workers", "Workers of a crawl by state.", ("crawl", "state")),
    Described("curtsy_worker_pages", "pages", "Pages of a worker, over all its runs.", ("crawl", "worker")),
)  # fmt: skip
ALERT = Described("curtsy_alert", "alert", "1 while the alert of that name is active.", ("alert",))
GAUGES = (*HOST_GAUGES, *CRAWL_GAUGES, ALERT)


class Collector(PrometheusCollector):
    """Prometheus collector over a source's counts and the state of hosts and crawls.

    Keep one instance for all scrapes, because it holds the counters. Without `hosts` and `crawls` their gauges are
    absent.
    """

    def __init__(
        self, source: Source, hosts: Hosts | None = None, *, crawls: Crawls | None = None, labelled: int = LABELLED
    ) -> None:
        self._source = source
        self._hosts = hosts
        self._crawls = crawls
        self._most = labelled
        self._seen = StatisticsSnapshot(started_at=-1.0)  # before any count
        self._counted: dict[str, HostStatistics] = {}
        self._other = HostStatistics()
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their current values."""
        with self._lock:  # concurrent scrapes must not count the same news twice
            statistics = self._source()
            shown = self._count(statistics)
        for described in COUNTERS:
            counter = described.family(CounterMetricFamily)
            for name, host in shown:
                value = getattr(host, described.field)
                if isinstance(value, dict):
                    for reason, count in sorted(value.items()):
                        counter.add_metric([name, reason], count)
                else:
                    counter.add_metric([name], value)
            yield counter
        for described in HISTOGRAMS:
            histogram = described.family(HistogramMetricFamily)
            for name, host in shown:
                found: Distribution = getattr(host, described.field)
                histogram.add_metric([name], _buckets(found), found.total)
            yield histogram
        for described in STORE_COUNTERS:
            counter = described.family(CounterMetricFamily)
            counter.add_metric([], getattr(statistics, described.field))
            yield counter
        hosts = None if self._hosts is None else list(self._hosts())
        crawls = None if self._crawls is None else list(self._crawls())
        if hosts is not None:
            yield from self._standing(hosts, [name for name, _ in shown])
        if crawls is not None:
            yield from _frontiers(crawls[: self._most], self._most)
        if hosts is not None or crawls is not None:
            alerts = {each.name for each in alerts_of(statistics, hosts or (), crawls or ())}
            alert = ALERT.family(GaugeMetricFamily)
            for name in ALERTS:
                alert.add_metric([name], name in alerts)
            yield alert

    def describe(self) -> Iterable[Metric]:
        """Yield the metrics without values, so that registration does not query the source."""
        kinds = (
            (CounterMetricFamily, (*COUNTERS, *STORE_COUNTERS)), (HistogramMetricFamily, HISTOGRAMS),
            (GaugeMetricFamily, GAUGES),
        )  # fmt: skip
        return [described.family(kind) for kind, figures in kinds for described in figures]

    def _count(self, statistics: StatisticsSnapshot) -> list[tuple[str, HostStatistics]]:
        """Add new counts to their labels; return the labelled hosts and `other` with their totals."""
        news, self._seen = statistics.since(self._seen), statistics
        busiest = [*statistics.hosts][: self._most]
        for name, host in news.hosts.items():
            if name in busiest:
                known = self._counted.get(name)
                self._counted[name] = host if known is None else known.plus(host)
            else:
                self._other = self._other.plus(host.summary())
        self._other = self._other.plus(news.other)
        shown = [(name, self._counted[name]) for name in busiest if name in self._counted]
        if len(self._counted) > 10 * self._most:  # a counter reset to 0, which Prometheus allows
            self._counted = dict(shown)
        return [*shown, (OTHER, self._other)]

    def _standing(self, hosts: list[HostView], names: list[str]) -> Iterator[Metric]:
        open_, used, opens, nearly = (described.family(GaugeMetricFamily) for described in HOST_GAUGES)
        for host in hosts:
            if host.domain in names:
                open_.add_metric([host.domain], host.breaker == "open")
                used.add_metric([host.domain], budget_used(host))
        opens.add_metric([], sum(host.breaker == "open" for host in hosts))
        nearly.add_metric([], sum(budget_used(host) >= NEARLY for host in hosts))
        yield from (open_, used, opens, nearly)


def _frontiers(crawls: list[CrawlView], most: int) -> Iterator[Metric]:
    """Yield the gauges of crawls; `most` is the maximum number of a job's workers with a label of their own."""
    queued, leased, oldest, stalled, workers, pages = (
        described.family(GaugeMetricFamily) for described in CRAWL_GAUGES
    )
    for crawl in {each.job: each for each in reversed(crawls)}.values():  # two processes may use one name
        job, whole = crawl.job, crawl.whole
        queued.add_metric([job], whole.queued)
        leased.add_metric([job], whole.leased)
        oldest.add_metric([job], crawl.oldest_lease)
        stalled.add_metric([job], crawl.stalled)
        for state in WORKER_STATES:
            workers.add_metric([job, state], crawl.count(state))
        for each in crawl.workers[:most]:
            pages.add_metric([job, each.worker or each.process], each.pages)
        if others := crawl.workers[most:]:
            pages.add_metric([job, OTHER], sum(each.pages for each in others))
    yield from (queued, leased, oldest, stalled, workers, pages)


def _buckets(found: Distribution) -> list[tuple[str, float]]:
    """Return cumulative counts by upper bound, as Prometheus expects them."""
    bounds = [*map(str, found.bounds), "+Inf"]
    return list(zip(bounds, accumulate(found.counts or (0,) * len(bounds)), strict=True))


class StoreSource:
    """Counts of all processes that share a store, since the creation of this object.

    Counts never decrease, although records of ended processes disappear.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known = {each.process: each for each in read_statistics(store)}
        self._sum = ProcessStatistics(started_at=store.now().epoch / SECOND)

    def __call__(self) -> StatisticsSnapshot:
        """Return all current counts."""
        now = self._store.now().epoch / SECOND
        for each in read_statistics(self._store):
            counted, known = summed([each]), self._known.get(each.process)
            if known is None or known.at != each.at:
                self._sum = self._sum.plus(counted if known is None else counted.since(summed([known])), each.at)
                self._known[each.process] = each
        return summed([self._sum], now)


def metrics_text(collector: Collector) -> bytes:
    """Return the response body of `/metrics`, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return generate_latest(registry)


CONTENT_TYPE = CONTENT_TYPE_LATEST
"""Content type of `metrics_text`."""


class MetricsServer:
    """HTTP server of `/metrics` on a port of its own, until closed."""

    def __init__(self, server: Any, thread: Any) -> None:
        self._server = server
        self._thread = thread

    @property
    def port(self) -> int:
        """Port that the server listens on."""
        number: int = self._server.server_address[1]
        return number

    def close(self) -> None:
        """Stop the server. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> MetricsServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve_metrics(
    port: int, source: Source, address: str = "127.0.0.1", *, hosts: Hosts | None = None, crawls: Crawls | None = None
) -> MetricsServer:
    """Serve metrics in a thread, on a port of their own; port 0 selects a free port.

    The default address is loopback, because metrics reveal the visited sites. Raises PolicyError if the port is
    unavailable.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(source, hosts, crawls=crawls))
    try:
        server, thread = start_http_server(port, address, registry)
    except OSError as error:
        raise PolicyError(
            f"metrics cannot be served at {address}, port {port}: {error.strerror}. Choose another port."
        ) from error
    return MetricsServer(server, thread)

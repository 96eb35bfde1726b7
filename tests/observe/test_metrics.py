"""Metrics: what Prometheus and OpenTelemetry are told is what was counted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from curtsy.core.crawl_record import CrawlRecord
from curtsy.core.errors import PolicyError
from curtsy.core.record import FetchRecord, Share
from curtsy.core.statistics import Latencies, ProcessStatistics, StatisticsSnapshot, stats_key
from curtsy.engine.crawl_view import WORKER_STATES, crawls_of
from curtsy.engine.host_view import views
from curtsy.observe.metrics import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    STORE_COUNTERS,
    Collector,
    StoreSource,
    metrics_text,
    serve_metrics,
)
from curtsy.observe.telemetry import MOST_SERVERS, OpenTelemetryRecorder, observe
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import UNPACED, client, domain_of
from tests.observe.recording import NOON, fetched, refused, tallied
from tests.observe.test_alerts import standing
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def parsed(text: bytes) -> dict[str, Metric]:
    """The metrics, by the parser of Prometheus' makers."""
    return {family.name: family for family in text_string_to_metric_families(text.decode())}


def values(families: dict[str, Metric], name: str) -> dict[tuple[str, ...], float]:
    """The samples of a name, by the values of their labels."""
    samples = [sample for family in families.values() for sample in family.samples if sample.name == name]
    return {tuple(sample.labels.values()): sample.value for sample in samples}


async def test_what_is_scraped_is_what_the_site_has_seen(site: Site) -> None:
    """Issue 7: over HTTP, on a port of its own, read by the official parser"""
    site.robots("User-agent: *\nDisallow: /private")
    site.page("/*", "hello")
    site.reply("/missing", Reply(404))
    site.page("/*", "hello", host="127.0.0.2")
    host = domain_of(site.url("/"))

    async with client(clock=None, **UNPACED) as web:
        for path in ("/a", "/b", "/missing", "/private"):
            await web.fetch(site.url(path))
        await web.fetch(site.url("/c", host="127.0.0.2"))
        with serve_metrics(0, web.stats) as server:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:  # noqa: ASYNC210
                kind, text = answer.headers["Content-Type"], answer.read()
            again = urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics").read()  # noqa: ASYNC210

    await site.left()  # its journal is whole
    found = parsed(text)
    pages = [visit for visit in site.journal if visit.path != "/robots.txt"]
    assert kind.startswith("text/plain")
    assert text == again, "asked twice, counted once"
    assert values(found, "curtsy_requests_total")[(host,)] == len(pages) - 1 == 3
    assert sum(values(found, "curtsy_requests_total").values()) == len(pages)
    assert sum(values(found, "curtsy_robots_requests_total").values()) == site.count("/robots.txt")
    assert sum(values(found, "curtsy_pages_total").values()) == sum(visit.status == 200 for visit in pages)
    assert values(found, "curtsy_refused_total") == {(host, "robots_disallowed"): 1}
    assert values(found, "curtsy_failed_total") == {(host, "http_status"): 1}
    assert values(found, "curtsy_request_duration_seconds_count")[(host,)] == 3
    assert values(found, "curtsy_wait_seconds_bucket")[(host, "+Inf")] == 4


def test_a_port_that_is_taken_is_said(site: Site, snapshot: Snapshot) -> None:
    """Issue 7"""
    port = int(site.url("/").rpartition(":")[2].strip("/"))

    with pytest.raises(PolicyError, match=rf"127\.0\.0\.1\b.*\b{port}\b") as refused:
        serve_metrics(port, tallied().snapshot)
    snapshot(str(refused.value))


def test_metrics_are_served_to_this_machine_only() -> None:
    """Issue 7: what was asked of whom is nobody else's business"""
    with serve_metrics(0, tallied().snapshot) as server, pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.2:{server.port}/metrics", timeout=5)


def test_only_the_busiest_hosts_have_a_label_and_the_others_are_one() -> None:
    """Issue 7: a bounded number of series, and no count is lost"""
    history = [fetched(f"{number}.example") for number in range(200) for _ in range(1 + number // 10)]

    found = values(parsed(metrics_text(Collector(tallied(*history).snapshot, labelled=50))), "curtsy_requests_total")

    assert len(found) == 51
    assert sum(found.values()) == len(history)
    assert found[("199.example",)] == 20
    assert ("0.example",) not in found


def test_no_counter_ever_falls_while_hosts_come_and_go() -> None:
    """Issue 7: Prometheus takes a fall for a restart, and would count everything again"""
    counters = tallied()
    collector = Collector(counters.snapshot, labelled=2)
    before: dict[tuple[str, ...], float] = {}
    total = 0
    for host, times in (("a", 5), ("b", 4), ("c", 6), ("d", 9), ("a", 9), ("b", 1), ("c", 20), ("b", 40)):
        for _ in range(times):
            counters.count(fetched(f"{host}.example"))
        total += times

        found = values(parsed(metrics_text(collector)), "curtsy_requests_total")

        assert len(found) <= 3
        assert all(found[name] >= before[name] for name in found if name in before), (before, found)
        before |= found
    assert sum(before.values()) == total


def told(store: MemoryStore, process: str, *records: FetchRecord) -> None:
    """Let a process tell what it has counted besides what it has told."""
    store.update(
        stats_key(process),
        lambda record, now: (
            (record or ProcessStatistics(process=process)).plus(tallied(*records).snapshot(), now.epoch / 1e6),
            None,
        ),
    )


def test_what_processes_have_counted_never_falls_when_one_is_forgotten() -> None:
    """Issue 7: the dashboard's /metrics; what was counted before it began is not counted again after each restart"""
    clock = FakeClock(NOON)
    store = MemoryStore(clock)
    told(store, "one", *[fetched()] * 100)
    collector = Collector(StoreSource(store))

    def requests() -> float:
        clock.advance(1)
        return sum(values(parsed(metrics_text(collector)), "curtsy_requests_total").values())

    assert requests() == 0
    told(store, "one", *[fetched()] * 5)
    assert requests() == 5
    told(store, "two", *[fetched("other.example")] * 7)
    assert requests() == requests() == 12
    store.forget(stats_key("one"))
    assert requests() == 12
    told(store, "two", fetched())
    assert requests() == 13


def test_how_hosts_stand_is_told_too() -> None:
    """Issue 7: open breakers, budgets, alerts"""
    hosts = [standing("a.example", "open"), standing("b.example", requests_today=190), standing("c.example", "open")]
    history = [fetched("a.example"), fetched("b.example"), *[refused("a.example")] * 3]

    found = parsed(metrics_text(Collector(tallied(*history).snapshot, lambda: hosts)))

    assert values(found, "curtsy_breaker_open") == {("a.example",): 1, ("b.example",): 0}
    assert values(found, "curtsy_breakers_open") == {(): 2}
    assert values(found, "curtsy_budget_used_ratio") == {("a.example",): 0, ("b.example",): 0.95}
    assert values(found, "curtsy_budgets_nearly_used") == {(): 1}
    assert values(found, "curtsy_alert") == {
        ("breaker_open",): 1, ("many_blocked",): 1, ("many_trips",): 0, ("budget_nearly_used",): 1,
        ("no_progress",): 0, ("dead_workers",): 0,
    }  # fmt: skip


async def test_the_hosts_of_a_store_can_be_watched(site: Site) -> None:
    """Issue 7: a real store, a real breaker"""
    site.reply("/", Reply(403))
    store = MemoryStore()

    async with client(store=store, clock=None, **UNPACED) as web:
        await web.fetch(site.url("/"))
        text = metrics_text(Collector(web.stats, lambda: views(store, web.policies)))

    assert values(parsed(text), "curtsy_breaker_open") == {(domain_of(site.url("/")),): 1}
    assert values(parsed(text), "curtsy_breaker_trips_total")[(domain_of(site.url("/")),)] == 1


def test_no_secret_and_no_url_is_in_the_metrics() -> None:
    """F62"""
    text = metrics_text(Collector(tallied(fetched(final_url="https://example.org/?token=hunter2")).snapshot))

    assert b"hunter2" not in text
    assert b"https://" not in text


@pytest.mark.parametrize(
    ("library", "module", "named"),
    [("prometheus_client", "metrics", "prometheus-client"), ("opentelemetry", "telemetry", "opentelemetry-api")],
)
def test_an_extra_that_is_missing_is_said_with_what_to_install(
    library: str, module: str, named: str, snapshot: Snapshot
) -> None:
    """Issue 7"""
    program = f"import sys; sys.modules[{library!r}] = None\nimport curtsy.observe.{module}"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    said = done.stderr.splitlines()[-1].partition(": ")[2]
    assert named in said
    assert 'pip install "curtsy[metrics]"' in said
    snapshot(said)


@pytest.mark.parametrize(
    ("library", "module", "named"),
    [("prometheus_client", "metrics", "prometheus-client"), ("opentelemetry", "telemetry", "opentelemetry-api")],
)
def test_an_extra_that_is_there_and_broken_is_said_with_its_own_words(
    library: str, module: str, named: str, tmp_path: Path, snapshot: Snapshot
) -> None:
    """Issue 7"""
    (tmp_path / f"{library}.py").write_text("raise ImportError('its half\\n is gone.')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport curtsy.observe.{module}"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)

    said = done.stderr.splitlines()[-1].partition(": ")[2]
    assert done.returncode == 1
    assert named in said
    assert 'pip install "curtsy[metrics]"' in said
    snapshot(said)  # with the fault on one line


# The files under deploy/

ALL = {
    *(f"{each.name}_total" for each in (*COUNTERS, *STORE_COUNTERS)),
    *(f"{each.name}{end}" for each in HISTOGRAMS for end in ("_bucket", "_sum", "_count")),
    *(each.name for each in GAUGES),
}
"""Every name that can be asked for."""


def named(text: str) -> set[str]:
    return set(re.findall(r"\bcurtsy_\w+", text))


def expressions(node: Any) -> Iterable[str]:
    """Everything in a dashboard that asks Prometheus for something."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name in ("expr", "query", "definition") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for each in node:
            yield from expressions(each)


def test_the_alert_rules_ask_for_metrics_that_there_are() -> None:
    """Issue 7: Q10's three, and a budget nearly used"""
    groups = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]

    assert [rule["alert"] for rule in rules] == [
        "CurtsyBreakerOpen", "CurtsyManyBlocked", "CurtsyManyTrips", "CurtsyBudgetNearlyUsed", "CurtsyStoreOut",
        "CurtsyNoProgress", "CurtsyDeadWorkers",
    ]  # fmt: skip
    for rule in rules:
        assert named(rule["expr"])
        assert named(rule["expr"]) <= ALL
        assert {"summary", "description"} <= set(rule["annotations"])


def test_the_dashboard_for_grafana_asks_for_metrics_that_there_are() -> None:
    """Issue 7: every panel shows something, and none lies on another"""
    dashboard = json.loads((DEPLOY / "grafana.json").read_text())
    panels = dashboard["panels"]
    places = [(x, y) for panel in panels for x, y in cells(panel["gridPos"])]

    assert named(" ".join(expressions(dashboard))) <= ALL
    assert all(panel["targets"] and named(" ".join(expressions(panel["targets"]))) for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(places)) == len(places)
    assert max(x for x, _ in places) < 24


def cells(place: dict[str, int]) -> Iterable[tuple[int, int]]:
    across, down = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return [(x, y) for x in across for y in down]


@pytest.fixture
def promtool() -> str:
    """Prometheus' own checker."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed. Install your system's package prometheus to have the rules checked.")
    return found


def begins(alert: str, at: str, *, severity: str | None = None) -> dict[str, Any]:
    """Whether an alert is on at some time, as promtool is told."""
    labels = [{"exp_labels": {"severity": severity, "instance": "a"}}] if severity else []
    return {"eval_time": at, "alertname": alert, "exp_alerts": labels}


BEHAVIOUR = {
    "rule_files": ["rules.yaml"],
    "evaluation_interval": "1m",
    "tests": [
        {
            "interval": "1m",
            "input_series": [
                {"series": 'curtsy_breakers_open{instance="a"}', "values": "0x59 1x10"},
                {"series": 'curtsy_budgets_nearly_used{instance="a"}', "values": "0x99 2x100"},
                {"series": 'curtsy_requests_total{instance="a",host="x"}', "values": "0+1x200"},
                {
                    "series": 'curtsy_refused_total{instance="a",host="x",reason="circuit_open"}',
                    "values": "0x70 0+1x90",
                },
                {"series": 'curtsy_store_outage_seconds_total{instance="a"}', "values": "0x70 5x90"},
                {"series": 'curtsy_frontier_stalled_seconds{instance="a"}', "values": "600x70 601x90"},
                {"series": 'curtsy_workers{instance="a",state="silent"}', "values": "0x70 1x90"},
                {"series": 'curtsy_workers{instance="a",state="running"}', "values": "3x160"},
                {"series": 'curtsy_breaker_trips_total{instance="a",host="x"}', "values": "0x70 0+1x90"},
            ],
            "alert_rule_test": [
                begins("CurtsyBreakerOpen", "30m"),
                begins("CurtsyBreakerOpen", "65m", severity="warning"),
                begins("CurtsyManyBlocked", "65m"),
                begins("CurtsyManyBlocked", "130m", severity="warning"),
                begins("CurtsyManyTrips", "70m"),
                begins("CurtsyManyTrips", "130m", severity="warning"),
                begins("CurtsyStoreOut", "70m"),
                begins("CurtsyStoreOut", "72m", severity="warning"),
                begins("CurtsyStoreOut", "90m"),
                begins("CurtsyNoProgress", "70m"),
                begins("CurtsyNoProgress", "72m", severity="warning"),
                begins("CurtsyDeadWorkers", "70m"),
                {
                    "eval_time": "72m",
                    "alertname": "CurtsyDeadWorkers",
                    "exp_alerts": [{"exp_labels": {"severity": "warning", "instance": "a", "state": "silent"}}],
                },
                begins("CurtsyBudgetNearlyUsed", "90m"),
                begins("CurtsyBudgetNearlyUsed", "130m", severity="info"),
            ],
        }
    ],
}


def test_the_alert_rules_pass_the_checks_of_their_makers(promtool: str, tmp_path: Path) -> None:
    """Issue 7: they can be read, and begin when they should"""
    checked = subprocess.run(
        [promtool, "check", "rules", DEPLOY / "alerts.yaml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr

    # promtool compares the texts too, so they are left out of what it is given.
    rules = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())
    for rule in rules["groups"][0]["rules"]:
        del rule["annotations"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules))
    (tmp_path / "behaviour.yaml").write_text(yaml.safe_dump(BEHAVIOUR))

    tested = subprocess.run(
        [promtool, "test", "rules", "behaviour.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_the_metrics_pass_the_checks_of_their_makers(promtool: str) -> None:
    """Issue 7: names, units, types, help"""
    history = [fetched(), refused(), fetched(reason="timeout", status=None)]
    text = metrics_text(Collector(tallied(*history).snapshot, lambda: [standing()]))

    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)

    assert (checked.returncode, checked.stderr.decode()) == (0, "")


def test_the_reference_page_has_every_metric_as_it_is() -> None:
    """Conventions: reference"""
    page = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    rows = {cells[1].strip(" `"): [each.strip() for each in cells[2:5]] for cells in map(split, page.splitlines())}
    kinds = {"counter": (*COUNTERS, *STORE_COUNTERS), "histogram": HISTOGRAMS, "gauge": GAUGES}

    for kind, described in kinds.items():
        for each in described:
            name = f"{each.name}_total" if kind == "counter" else each.name
            assert rows[name] == [kind, ", ".join(f"`{label}`" for label in each.labels), each.meaning], name
    assert {name for name in rows if name.startswith("curtsy_")} == {
        *(f"{each.name}_total" for each in (*COUNTERS, *STORE_COUNTERS)),
        *(each.name for each in (*HISTOGRAMS, *GAUGES)),
    }  # fmt: skip


def split(line: str) -> list[str]:
    return [*line.split("|"), *[""] * 5] if line.startswith("|") else [""] * 6


# OpenTelemetry


def recorded(*records: FetchRecord) -> dict[str, list[Any]]:
    """The points that a real SDK has of these, by metric."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    recorder = OpenTelemetryRecorder(provider.get_meter("curtsy"))
    for record in records:
        recorder(record)
    found = read(reader)
    provider.shutdown()
    return found


def read(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    """The points that have come, by metric."""
    data = reader.get_metrics_data()
    assert data is not None
    metrics = [metric for each in data.resource_metrics for scope in each.scope_metrics for metric in scope.metrics]
    return {metric.name: list(metric.data.data_points) for metric in metrics}


def test_opentelemetry_is_told_by_the_conventions_for_http() -> None:
    """Issue 7: http.client.request.duration with its attributes, in seconds"""
    found = recorded(
        fetched("example.org:8443", latency=0.3, final_url="https://example.org:8443/a"),
        fetched(status=503, reason="http_status", latency=0.1, attempts=3, bytes=10),
        fetched(status=None, reason="timeout", latency=30.0, method="BREW"),
        refused(reason="robots_disallowed"),
        fetched(attempts=0, latency=None, cache="hit", bytes=0),
    )

    points = [(dict(point.attributes), point.sum) for point in found["http.client.request.duration"]]
    server = {"server.address": "example.org", "server.port": 443}
    assert points == [
        (
            {**server, "server.port": 8443, "http.request.method": "GET", "http.response.status_code": 200},
            pytest.approx(0.3),
        ),
        (
            {**server, "http.request.method": "GET", "http.response.status_code": 503, "error.type": "503"},
            pytest.approx(0.1),
        ),
        ({**server, "http.request.method": "_OTHER", "error.type": "timeout"}, 30.0),
    ]
    assert found["http.client.request.duration"][0].explicit_bounds == Latencies.bounds
    assert sum(point.value for point in found["curtsy.requests"]) == 5
    assert [dict(point.attributes) for point in found["curtsy.refused"]] == [
        {**server, "curtsy.reason": "robots_disallowed"}
    ]
    assert [point.attributes["curtsy.cache"] for point in found["curtsy.cached"]] == ["hit"]
    assert sum(point.count for point in found["curtsy.wait.duration"]) == 5


def test_opentelemetry_has_a_bounded_number_of_servers() -> None:
    """Issue 7"""
    found = recorded(*(fetched(f"{number}.example") for number in range(MOST_SERVERS + 20)))

    points = found["curtsy.requests"]
    assert len(points) == MOST_SERVERS + 1
    assert [point.value for point in points if point.attributes == {"server.address": "_OTHER"}] == [20]


def test_opentelemetry_counts_each_request_for_the_server_that_it_was_sent_to() -> None:
    """Issue 7: redirected over three hosts; what is known of the one in the middle is its name and an unusual port"""
    way = (
        Share("first.example", 2, 1, 0, 30),
        Share("middle.example", 1, 0, 0, 4),
        Share("other.example:8080", 1, 0, 0, 5),
    )
    redirected = fetched(
        "last.example", url="http://first.example/", attempts=5, retries=1, bytes=139, elsewhere=way
    )  # fmt: skip

    found = recorded(redirected, redirected, fetched("middle.example", bytes=1))

    servers = {
        ("last.example", 443): (2, 200), ("first.example", 80): (4, 60), ("middle.example", None): (2, 8),
        ("other.example", 8080): (2, 10), ("middle.example", 443): (1, 1),
    }  # fmt: skip
    for name, at in (("curtsy.requests", 0), ("curtsy.received", 1)):
        told = {
            (point.attributes["server.address"], point.attributes.get("server.port")): point.value
            for point in found[name]
        }
        assert told == {server: counts[at] for server, counts in servers.items()}


async def test_opentelemetry_has_the_requests_of_a_client_as_the_hosts_have_seen_them(site: Site) -> None:
    """Issue 7"""
    there = {"Location": site.url("/there", host="127.0.0.2")}
    site.reply("/", Reply(302, "moved", there), host="127.0.0.1")
    site.page("/there", "x", host="127.0.0.2")
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    async with client(on_record=OpenTelemetryRecorder(provider.get_meter("curtsy"))) as web:
        assert (await web.fetch(site.url("/"))).ok

    points = read(reader)
    provider.shutdown()
    for name, counts in (("curtsy.requests", [1, 1]), ("curtsy.received", [5, 1])):
        assert {point.attributes["server.address"]: point.value for point in points[name]} == dict(
            zip(("127.0.0.1", "127.0.0.2"), counts, strict=True)
        )


def test_the_bound_on_servers_holds_for_those_on_the_way_too() -> None:
    """Issue 7"""
    ways = ((Share(f"{number}.example", 1, 0, 0, 0),) for number in range(MOST_SERVERS + 20))

    found = recorded(*(fetched(attempts=2, elsewhere=way) for way in ways))

    points = found["curtsy.requests"]
    assert len(points) == MOST_SERVERS + 1
    assert [point.value for point in points if point.attributes == {"server.address": "_OTHER"}] == [21]


async def test_a_client_feeds_opentelemetry(site: Site) -> None:
    """Issue 7: as its on_record"""
    site.page("/", "hello")
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    async with client(on_record=OpenTelemetryRecorder(provider.get_meter("curtsy"))) as web:
        await web.fetch(site.url("/"))

    assert '"http.client.request.duration"' in str(reader.get_metrics_data().to_json())  # type: ignore[union-attr]
    provider.shutdown()


def test_opentelemetry_observes_crawls_and_outages() -> None:
    """Issue 17, 5: the same figures as Prometheus"""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    crawl = CrawlRecord(job="news", worker="a", queued=7, leased=2, pages=5, updated_at=NOON, progress_at=NOON - 3)

    observe(
        lambda: StatisticsSnapshot(outages=2, outage_seconds=1.5),
        lambda: crawls_of([crawl], NOON),
        provider.get_meter("curtsy"),
    )
    found = read(reader)
    provider.shutdown()

    attributes = {"curtsy.crawl": "news"}
    points = {name: [(dict(point.attributes), point.value) for point in each] for name, each in found.items()}
    assert points.pop("curtsy.workers") == [
        (attributes | {"curtsy.worker.state": state}, state == "running") for state in WORKER_STATES
    ]
    assert points == {
        "curtsy.frontier.queued": [(attributes, 7)],
        "curtsy.frontier.leased": [(attributes, 2)],
        "curtsy.frontier.oldest_lease": [(attributes, 0.0)],
        "curtsy.frontier.stalled": [(attributes, 3.0)],
        "curtsy.worker.pages": [(attributes | {"curtsy.worker": "a"}, 5)],
        "curtsy.store.outages": [({}, 2)],
        "curtsy.store.outage_time": [({}, 1.5)],
    }

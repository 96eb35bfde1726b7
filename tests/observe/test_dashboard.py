"""What the dashboard says: its JSON, its stream, its actions (Issue 7, point 4)."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterator
from datetime import UTC
from pathlib import Path
from typing import Any

import msgspec
import pytest

from curtsy.core.amendment import Pause, Trip
from curtsy.core.crawl_record import CrawledHost, CrawlRecord, crawl_key
from curtsy.core.policy import Policies
from curtsy.core.time import SECOND, Now
from curtsy.engine.crawl_view import read_crawls
from curtsy.engine.gate_steps import amended, charge
from curtsy.observe.dashboard.board import HOSTS_REST, LISTED, Board
from curtsy.observe.dashboard.views import MOST_ROWS, SORTS, Query, page_of
from curtsy.settings import load
from curtsy.stores import Store, open_store
from curtsy.stores.memory import MemoryStore
from curtsy.stores.survey import Survey
from curtsy.testing import FakeClock
from tests.observe.fetching import fetching
from tests.observe.serving import Served, serving
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot

DAWN = 1_800_000_000.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A dashboard over a store of its own, with an entry in its settings."""
    settings = "allowlist:\n  - domain: wiki.example\n    qps: 0.25\n    max_requests_per_day: 40\n"
    with serving(tmp_path_factory.mktemp("served"), settings=settings) as served:
        yield served


def asked(store: Store, domain: str, times: int = 1) -> None:
    """Have a host been asked."""
    free: dict[str, Any] = {"qps": None, "pause_min": 0, "pause_max": 0, "concurrency": None, "max_pages_per_day": 0}
    policy = Policies().of(domain).replace(**free, timezone=UTC)
    for _ in range(times):
        store.update(policy.key_for(domain), charge(policy, 0.5, page=False))


def amend(store: Store, domain: str, change: Trip | Pause) -> None:
    policy = Policies().of(domain)
    store.update(policy.key_for(domain), amended(policy, change))


def put(store: Store, record: CrawlRecord) -> None:
    def step(before: object, now: Now) -> tuple[CrawlRecord, None]:
        return record, None

    store.update(crawl_key(record.job), step)


def until(served: Served, path: str, **wanted: Any) -> dict[str, Any]:
    """What an address answers as soon as some of it is so."""
    found: dict[str, Any] = {}

    def is_so() -> bool:
        nonlocal found
        found = served.ask(path).json
        return all(found.get(name) == value for name, value in wanted.items())

    block_until(is_so, every=0.05)
    return found


# --- Crawls ----------------------------------------------------------------------------------------------------------


def test_a_crawl_that_tells_of_itself_is_shown_for_an_hour() -> None:
    """Issue 7"""
    clock = FakeClock(DAWN)
    store = MemoryStore(clock)
    crawl = CrawlRecord(job="nightly", updated_at=DAWN, started_at=DAWN - 60, hosts=(CrawledHost("a.org", "waiting"),))

    put(store, crawl)

    assert [each.whole for each in read_crawls(store)] == [crawl]
    assert crawl.lasts(clock.now()) == 3600 * SECOND
    clock.advance(3601)
    assert crawl.lasts(clock.now()) == 0


def test_crawls_under_way_stand_before_those_that_ended() -> None:
    """Issue 7"""
    store = MemoryStore()
    for job, state, started_at in (("a", "finished", 9.0), ("b", "running", 1.0), ("c", "waiting", 2.0)):
        put(store, CrawlRecord(job=job, state=state, started_at=started_at, updated_at=time.time()))

    assert [crawl.job for crawl in read_crawls(store)] == ["c", "b", "a"]


def test_the_overview_shows_crawls_without_secrets(served: Served) -> None:
    """Issue 7, F62"""
    with served.store() as store:
        put(store, CrawlRecord(job="j", updated_at=time.time(), seeds=("https://u:pw@a.org/?token=abc",), queued=7))

    block_until(lambda: served.ask("/api/overview").json["crawls"], every=0.05)
    [crawl] = served.ask("/api/overview").json["crawls"]

    assert (crawl["job"], crawl["queued"]) == ("j", 7)
    assert "pw" not in json.dumps(crawl)
    assert "abc" not in json.dumps(crawl)


# --- The board -------------------------------------------------------------------------------------------------------


class Counting(MemoryStore):
    """A store that counts how often it is read."""

    def __init__(self, clock: FakeClock | None) -> None:
        super().__init__(clock)
        self.reads: list[str] = []
        self.surveys = 0

    def read(self, key: str) -> Any:
        self.reads.append(key)
        return super().read(key)

    def survey(self, recent: int, troubled: int) -> Survey:
        self.surveys += 1
        return super().survey(recent, troubled)


def board(clock: FakeClock | None = None, **settings: Any) -> tuple[Board, Counting]:
    store = Counting(clock)
    held = load(env={}, directory="/nonexistent", user_directory="/nonexistent", timezone="UTC", **settings)
    return Board(store, lambda: held), store


def test_every_state_of_a_host_is_told() -> None:
    """Issue 7: free, waiting, open breaker with time left, paused, budget used, denied."""
    clock = FakeClock(DAWN)
    found, store = board(clock, max_requests_per_day=3, pause_min=5, pause_max=5, denylist=["denied.org"])
    for domain, times in (("free.org", 1), ("spent.org", 3), ("denied.org", 1), ("open.org", 1), ("paused.org", 1)):
        asked(store, domain, times)
    clock.advance(60)
    for domain in ("waiting.org", "held.org"):
        asked(store, domain)
    amend(store, "open.org", Trip())
    amend(store, "paused.org", Pause(90))
    amend(store, "held.org", Pause())

    found.look()

    now = clock.now().epoch / SECOND
    assert {name: (row.state, row.until and row.until - now) for name, row in found.rows.items()} == {
        "free.org": ("free", None),
        "waiting.org": ("waiting", 5.0),
        "open.org": ("open", 300.0),
        "paused.org": ("paused", 90.0),
        "held.org": ("paused", None),
        "spent.org": ("spent", 86_400 - (DAWN + 60) % 86_400),
        "denied.org": ("denied", None),
    }
    assert found.totals["states"]["paused"] == 2


def test_a_state_that_ends_by_itself_is_seen_though_nothing_was_written() -> None:
    """Issue 7: rows are kept while they hold, and no longer."""
    clock = FakeClock(DAWN)
    found, store = board(clock)
    asked(store, "a.org")
    clock.advance(60)
    amend(store, "a.org", Trip())

    found.look()
    before = found.rows["a.org"]
    clock.advance(299)
    found.hurry()
    found.look()
    still = found.rows["a.org"]
    clock.advance(2)
    found.hurry()
    found.look()

    assert before is still
    assert found.rows["a.org"].state == "trial"


def test_a_host_that_is_forgotten_leaves_the_board() -> None:
    """Issue 7"""
    found, store = board()
    asked(store, "a.org")
    found.look()

    store.forget("host:a.org")
    found.hurry()
    found.look()

    assert found.rows == {}


def test_a_record_that_is_shared_now_replaces_those_of_its_hosts() -> None:
    """C6, Q10: without the alert about a budget that is not in use"""
    found, store = board(allowlist=[{"domain": "b.org", "shared": True}])
    for name, times in (("a.org", 1), ("b.org", 1), ("www.b.org", 200)):
        asked(store, name, times)

    found.look()

    assert sorted(found.rows) == ["a.org", "b.org"]
    assert (found.totals["hosts"], found.alerts) == (2, ())


def test_a_large_store_is_read_less_often_but_what_is_shown_each_time() -> None:
    """Issue 7: at most 3 % of a core."""
    found, store = board()
    for number in range(2000):
        asked(store, f"{number}.org")
    found.look()
    assert HOSTS_REST >= 50

    asked(store, "7.org")
    found.look(["7.org"])

    assert store.surveys == 1
    assert store.reads.count("host:7.org") == 1
    assert found.rows["7.org"].view.requests_today == 2


def test_the_table_is_sorted_searched_and_cut_by_the_server() -> None:
    """Issue 7"""
    found, store = board()
    for number, name in enumerate(("anna.org", "berta.org", "carla.org", "dora.example")):
        asked(store, name, number + 1)
    amend(store, "carla.org", Trip())
    found.look()

    def names(**query: Any) -> list[str]:
        return [row.view.domain.partition(".")[0] for row in page_of(found, Query(**query)).rows]

    assert names(sort="host") == ["anna", "berta", "carla", "dora"]
    assert names(sort="host", descending=True) == ["dora", "carla", "berta", "anna"]
    assert names(sort="state")[0] == "carla"
    assert names(sort="budget", descending=True) == ["dora", "carla", "berta", "anna"]
    assert names(search="org") == ["carla", "anna", "berta"]
    assert names(state="open") == ["carla"]
    assert names(sort="host", offset=2, limit=2) == ["carla", "dora"]
    assert page_of(found, Query(search="none")).matching == 0
    assert page_of(found, Query(sort="host", offset=900, limit=3)).offset == 3


def test_of_many_hosts_the_board_has_a_part_and_a_search_finds_the_others() -> None:
    """Issue 16: bounded in time and memory; all are counted"""
    clock = FakeClock(DAWN)
    found, store = board(clock)
    for domain in ("early.org", "open.org", "another.org"):
        asked(store, domain)
    amend(store, "open.org", Trip())
    clock.advance(60)
    host = store.read("host:early.org")
    later = msgspec.structs.replace(host, sent_at=clock.now().at, written_at=clock.now().at)
    store.update_many([(f"host:{number}.net", lambda record, now: (later, None)) for number in range(LISTED)])

    found.look()
    listed = {*found.rows}
    unknown = page_of(found, Query(search="nothing")).matching
    page = page_of(found, Query(search="early"))
    surveys, reads = store.surveys, len(store.reads)
    page_of(found, Query(search="early"))
    again = (store.surveys, len(store.reads))
    found.hurry()
    found.look()

    assert (found.totals["hosts"], found.is_complete) == (LISTED + 3, False)
    assert "open.org" in listed
    assert "early.org" not in listed
    assert (unknown, [row.view.domain for row in page.rows]) == (0, ["early.org"])
    assert again == (surveys, reads)
    assert "early.org" in found.rows
    assert [*found.rows] == sorted(found.rows)
    assert [sample.requests for sample in found.samples] == [0, 0]


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("descending", [False, True])
def test_every_sorting_has_all_hosts_once(sort: str, descending: bool) -> None:
    """Issue 7"""
    found, store = board()
    for number in range(30):
        asked(store, f"{number}.org", 1 + number % 3)
    found.look()

    pages = [
        page_of(found, Query(sort=sort, descending=descending, offset=offset, limit=7)) for offset in range(0, 30, 7)
    ]

    assert sorted(row.view.domain for page in pages for row in page.rows) == sorted(found.rows)


def test_what_is_empty_in_a_query_counts_as_not_given() -> None:
    """Issue 7: as the page sends it"""
    given = {"sort": "", "order": "", "offset": "", "limit": "900", "state": "", "search": " A "}

    assert Query.of(given) == Query(search="a", limit=MOST_ROWS)


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("sort=foo", ("sort = 'foo'", "host, state,")),
        ("order=up", ("order = 'up'", "asc, desc")),
        ("state=<b>", ("state = '<b>'", "open, trial,")),
        ("limit=x", ("limit = 'x'",)),
        ("offset=-1", ("offset = '-1'",)),
        ("limit=" + "9" * 30, ("limit = '999",)),
    ],
)
def test_a_query_that_makes_no_sense_is_told(
    served: Served, query: str, says: tuple[str, ...], snapshot: Snapshot
) -> None:
    """Issue 7"""
    answers = [served.ask(f"{path}?{query}") for path in ("/api/hosts", "/api/stream")]

    assert [(answer.status, answer.json["error"]) for answer in answers] == [(400, "invalid")] * 2
    message = answers[0].json["message"]
    assert answers[1].json["message"] == message
    assert all(part in message for part in says)
    snapshot(message)


# --- A real process, watched -----------------------------------------------------------------------------------------


def events(served: Served, path: str) -> Generator[dict[str, Any], None, None]:
    """The events of a stream, as they come."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=20)
    connection.request("GET", path)
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    try:
        while line := response.readline():
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
    finally:
        response.close()
        connection.close()


def test_the_stream_begins_with_everything_and_goes_on_with_what_changes(served: Served) -> None:
    """Issue 7"""
    with served.store() as store:
        for name in ("still.example", "moving.example"):
            asked(store, name)
        stream = events(served, "/api/stream?search=ing.example")
        first = next(stream)
        # The last look may be a second old.
        shown = first if first["order"] else next(each for each in stream if "order" in each)
        asked(store, "moving.example")
        later = next(each for each in stream if [row["requests_today"] for row in each.get("rows", ())] == [2])
        stream.close()

    assert {"at", "trouble", "figures", "alerts", "crawls", "samples", "order", "matching", "offset"} <= first.keys()
    assert shown["order"] == [row["domain"] for row in shown["rows"]] == ["moving.example"]
    assert later["rows"][0]["domain"] == "moving.example"
    assert "order" not in later
    assert "crawls" not in later


def metrics(served: Served) -> dict[str, float]:
    """The sums of all metrics over their labels, read by the official parser."""
    from prometheus_client.parser import text_string_to_metric_families

    answer = served.ask("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    found: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(answer.body.decode()):
        for sample in family.samples:
            found[sample.name] += sample.value
    return found


def test_every_machine_on_a_shared_store_is_seen(tmp_path: Path) -> None:
    """Issue 7: Redis"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server, serving(tmp_path, "--store", server.url) as served:
        store = open_store(server.url, fallback=False)
        for name in ("a.example", "b.example"):
            asked(store, name)
        amend(store, "b.example", Trip())
        put(store, CrawlRecord(job="far", updated_at=time.time()))
        found = until(served, "/api/hosts", total=2)
        served.act("reset", "b.example")
        store.close()

        assert (found["hosts"][0]["domain"], found["hosts"][0]["state"]) == ("b.example", "open")
        assert [crawl["job"] for crawl in served.ask("/api/overview").json["crawls"]] == ["far"]
        assert served.ask("/api/hosts").json["hosts"][1]["breaker"] == "closed"


def test_a_process_that_fetches_is_seen_with_what_it_was_refused(tmp_path: Path) -> None:
    """Issue 7: every process of the machine, what was refused and why; counts are those of the site's journal."""
    with Site() as site, serving(tmp_path, "--allow-private") as served:
        site.page("/a", "hello")
        site.robots("User-agent: *\nDisallow: /private/\n")
        domain = site.url("/").removeprefix("http://").rstrip("/")
        with fetching(tmp_path, [[site.url("/a"), site.url("/private/x")]]):
            block_until(
                lambda: "robots_disallowed" in served.ask("/api/overview").json["figures"]["refused"], every=0.05
            )
            found = served.ask(f"/api/host?domain={domain}").json
            counted = metrics(served)
        # One request may have been on its way when its process was killed.
        block_until(
            lambda: 0 <= len(site.journal) - served.ask("/api/hosts").json["hosts"][0]["requests"] <= 1, every=0.05
        )
        pages = len([visit for visit in site.journal if visit.path == "/a"])

    assert 0 < counted["curtsy_pages_total"] == counted["curtsy_requests_total"] <= pages
    assert counted["curtsy_refused_total"] > 0
    assert {fetch["reason"] for fetch in found["fetches"]} == {None, "robots_disallowed"}
    [robots] = found["robots"]
    assert [(line["line"], line["text"], line["decided"]) for line in robots["lines"] if line["decided"]] == [
        (2, "Disallow: /private/", ["/private/x"])
    ]
    assert [line["ours"] for line in robots["lines"]] == [True, True, False]


# --- Questions and actions -------------------------------------------------------------------------------------------


def test_why_says_the_same_as_the_command_line(served: Served) -> None:
    """Issue 7"""
    answer = served.ask("/api/why?url=https://wiki.example/a").json

    assert answer["verdict"] == "unknown"
    assert {"policy", "robots.txt", "breaker", "budget", "pace", "global"} <= {
        check["name"] for check in answer["checks"]
    }
    [policy] = [check for check in answer["checks"] if check["name"] == "policy"]
    assert policy["origin"] == "curtsy.yaml:3"


@pytest.mark.parametrize("url", ["", "ftp://a.org/", "https://", "javascript:alert(1)", "http://[::1", "https://a b/"])
def test_why_for_what_is_no_page_is_told(served: Served, url: str) -> None:
    """Issue 7, U1"""
    answer = served.ask(f"/api/why?url={url.replace(' ', '%20')}")

    assert answer.status == 422
    assert answer.json["error"] == "invalid_url"


def test_a_host_has_its_policy_with_where_each_value_comes_from(served: Served) -> None:
    """Issue 7"""
    policy = {each["name"]: each for each in served.ask("/api/host?domain=www.wiki.example").json["policy"]}

    assert policy["qps"] == {"name": "qps", "value": 0.25, "origin": "curtsy.yaml:3"}
    assert policy["burst"]["origin"] == "built-in"


@pytest.mark.parametrize("domain", ["", "https://a.org", "a b", "<script>"])
def test_what_is_no_host_is_told(served: Served, domain: str) -> None:
    """L8"""
    from urllib.parse import quote

    assert served.ask(f"/api/host?domain={quote(domain)}").status == 422


def test_a_host_is_paused_and_resumed(served: Served, snapshot: Snapshot) -> None:
    """Issue 7: and it is in the log."""
    paused = served.act("pause", "hand.example", seconds=600).json["view"]
    resumed = served.act("resume", "HAND.example").json["view"]

    assert paused["paused"]
    assert 590 < paused["paused_left"] <= 600
    assert not resumed["paused"]
    lines = served.told(2, domain="hand.example")
    about = {"level": "info", "component": "dashboard", "domain": "hand.example", "client": "127.0.0.1"}
    assert [line | {"ts": 0, "msg": ""} for line in lines] == [
        about | {"ts": 0, "msg": "", "seconds": 600.0},
        about | {"ts": 0, "msg": ""},
    ]
    for name, line in zip(("paused", "resumed"), lines, strict=True):
        snapshot(line["msg"], name)


def test_a_breaker_is_reset(served: Served, snapshot: Snapshot) -> None:
    """Issue 7"""
    with served.store() as store:
        amend(store, "broken.example", Trip())

    assert served.ask("/api/host?domain=broken.example").json["view"]["breaker"] == "open"
    assert served.act("reset", "broken.example").json["view"]["breaker"] == "closed"
    [line] = served.told(domain="broken.example")
    assert (line["level"], line["component"]) == ("info", "dashboard")
    snapshot(line["msg"])


def test_a_limit_is_changed_for_now_and_taken_back(served: Served, snapshot: Snapshot) -> None:
    """Issue 7: one at a time, each beside the others."""
    served.act("limit", "limit.example", limits={"qps": 0.1})
    both = served.act("limit", "limit.example", limits={"max_requests_per_day": 5, "concurrency": "none"}).json
    one = served.act("limit", "limit.example", limits={"qps": None, "concurrency": None}).json

    assert both["view"]["changed_limits"] == {"qps": 0.1, "max_requests_per_day": 5.0, "concurrency": None}
    assert both["row"]["changed"]
    assert one["view"]["changed_limits"] == {"max_requests_per_day": 5.0}
    assert one["view"]["max_requests_per_day"] == 5
    lines = served.told(3, domain="limit.example")
    assert [line["limits"] for line in lines] == [
        {"qps": 0.1},
        both["view"]["changed_limits"],
        one["view"]["changed_limits"],
    ]
    snapshot(lines[0]["msg"])


@pytest.mark.parametrize(
    ("action", "status"),
    [
        ({"action": "limit", "limits": {"qps": -1}}, 422),
        ({"action": "limit", "limits": {"max_body": 1}}, 422),
        ({"action": "limit", "limits": {"concurrency": 1.5}}, 422),
        ({"action": "limit", "limits": {"qps": "fast"}}, 400),
        ({"action": "pause", "seconds": -5}, 422),
        ({"action": "pause", "seconds": 1e12}, 422),
        ({"action": "resume"}, 422),
        ({"action": "reset"}, 422),
        ({"action": "explode"}, 400),
        ({"action": "reset", "more": 1}, 400),
        ({"action": "reset", "domain": "https://a.org/"}, 422),
    ],
)
def test_an_action_that_makes_no_sense_changes_nothing(served: Served, action: dict[str, Any], status: int) -> None:
    """Issue 7"""
    answer = served.act(**{"domain": "sense.example", **action})

    assert answer.status == status
    assert answer.json["message"]
    assert not served.ask("/api/host?domain=sense.example").json["known"]


def test_a_store_that_cannot_be_read_is_told_and_comes_back(tmp_path: Path) -> None:
    """U16: the page says so, and goes on by itself."""
    with serving(tmp_path) as served:
        (tmp_path / "state.sqlite").rename(tmp_path / "aside")
        (tmp_path / "state.sqlite").mkdir()
        block_until(lambda: "state.sqlite" in (served.ask("/api/overview").json["trouble"] or ""), every=0.05)
        (tmp_path / "state.sqlite").rmdir()

        assert until(served, "/api/overview", trouble=None)["figures"]["hosts"] == 0


def test_a_reply_that_trips_a_host_is_an_alert(tmp_path: Path) -> None:
    """Q10"""
    with Site() as site, serving(tmp_path) as served:
        site.script("/no", [Reply(403)])
        with fetching(tmp_path, [[site.url("/no")]]):
            block_until(lambda: served.ask("/api/overview").json["alerts"], every=0.05)
        alerts = served.ask("/api/overview").json["alerts"]

    assert alerts[0]["name"] == "breaker_open"
    assert str(site.port) in alerts[0]["message"]


def cpu_of(process: int) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.alone
@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc to read processor time from")
def test_watching_ten_thousand_hosts_costs_less_than_three_percent_of_a_core(tmp_path: Path) -> None:
    """Issue 7: and nothing at all when nobody watches."""
    policy = Policies().default
    with serving(tmp_path) as served, served.store() as store:
        for first in range(0, 10_000, 1000):
            keys = [f"host:site-{number:05}.example" for number in range(first, first + 1000)]
            store.update_many([(key, charge(policy, 0.5, page=True)) for key in keys])
        stream = events(served, "/api/stream?sort=host")
        for _ in range(3):  # the first look makes every row
            asked(store, "site-00000.example")
            next(stream)

        used, began = cpu_of(served.process.pid), time.monotonic()
        while time.monotonic() - began < 6:
            asked(store, "site-00000.example")
            next(stream)
        share = (cpu_of(served.process.pid) - used) / (time.monotonic() - began)
        stream.close()

    assert share < 0.03

"""The contract of frontiers: one suite over all of them, which never asks which one it has."""

from __future__ import annotations

import contextlib
import itertools
import math
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from curtsy.core.time import SECOND
from curtsy.crawling.frontier.partition import GRACE
from curtsy.crawling.frontier.protocol import Claimed, Concurrency, Counts, Done, Ending, Found, Room, host_of
from curtsy.crawling.frontier.redis import RedisFrontier
from curtsy.crawling.frontier.redis_jobs import PRESENCE
from tests.crawling.driven import Driven, OnLoop, local
from tests.strategies import ANY
from tests.support.redis_server import RedisServer

LEASE = 100.0
LOCAL = ("memory", "sqlite")
"""The frontiers of one process, which can do some things besides."""

_jobs = itertools.count(1)


class Time:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


class Make(Protocol):
    """Opens a frontier on a clock, and closes it at the end."""

    def __call__(self, *, concurrency: Concurrency = 1) -> Driven: ...


@pytest.fixture
def time() -> Time:
    return Time()


def on_server(
    server: RedisServer, job: str, concurrency: Concurrency, clock: Callable[[], float], partitions: int
) -> OnLoop:
    return OnLoop(
        lambda: RedisFrontier(
            server.url, job, concurrency=concurrency, lease=LEASE, partitions=partitions, clock=clock, timeout=30.0
        )
    )


@pytest.fixture(params=[*LOCAL, "redis"])
def make(request: pytest.FixtureRequest, time: Time, tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as opened:

        def make(*, concurrency: Concurrency = 1) -> Driven:
            frontier: Driven
            if request.param == "memory":
                frontier = local(concurrency=concurrency, lease=LEASE, clock=time)
            elif request.param == "sqlite":
                path = tmp_path / "frontier.sqlite"
                frontier = local(path, concurrency=concurrency, lease=LEASE, clock=time)
            else:
                # One partition, for only within one do hosts take turns strictly.
                job = f"contract {next(_jobs)}"
                frontier = on_server(request.getfixturevalue("server"), job, concurrency, time, partitions=1)
            opened.callback(frontier.close)
            return frontier

        yield make


@pytest.fixture
def frontier(make: Make) -> Driven:
    return make()


of_one_process = pytest.mark.parametrize("make", LOCAL, indirect=True)


def urls(host: str, *names: object) -> list[str]:
    return [f"https://{host}/{name}" for name in names]


def texts(claims: list[Claimed]) -> list[str]:
    return [claimed.url for claimed in claims]


# Adding


def test_urls_that_differ_in_scheme_port_or_query_are_different(frontier: Driven) -> None:
    given = ["http://a.org/", "https://a.org/", "https://a.org:8443/", "https://a.org/?x", "https://a.org/?y"]

    assert frontier.add(given) == 5
    got = []
    while claims := frontier.claim(5):
        got += texts(claims)
        for claimed in claims:
            assert claimed.host == host_of(claimed.url)
            frontier.done(claimed)
    assert sorted(got) == sorted(given)
    assert frontier.counts().hosts == 2


def test_many_long_urls_come_in_order_and_once(frontier: Driven) -> None:
    given = urls("a.org", *(f"{'x' * 900}{number}" for number in range(250)))
    frontier.add(given, depth=2, parent="https://a.org/")
    frontier.add(urls("a.org", "soon"), depth=1)

    got: list[str] = []
    while claims := frontier.claim():
        if len(got) == 120:
            frontier.defer(claims[0], 0)
            claims = frontier.claim()
        frontier.done(claims[0])
        got += texts(claims)

    assert got == [*urls("a.org", "soon"), *given]


def test_long_urls_wait_in_a_fraction_of_their_memory() -> None:
    """F01"""
    frontier = local()

    tracemalloc.start()
    for part in range(10):
        frontier.add(f"https://a.org/{'x' * 900}{part}-{number}" for number in range(1000))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert frontier.counts().queued == 10_000
    assert held < 5_000_000


def test_everything_said_about_a_url_comes_back_with_it(frontier: Driven, time: Time) -> None:
    long = "https://a.org/" + "x" * 8000
    frontier.add([long], depth=3, priority=7, parent="https://b.org/page")

    [claimed] = frontier.claim()

    assert (claimed.url, claimed.host, claimed.depth, claimed.priority) == (long, "a.org", 3, 7)
    assert claimed.parent == "https://b.org/page"
    assert claimed.tries == 0
    assert time() + 0.9 * LEASE <= claimed.leased_until <= time() + LEASE


def test_a_redirect_s_target_says_how_many_redirects_led_there(frontier: Driven) -> None:
    frontier.add(urls("a.org", 1), depth=2, priority=-3, hops=4)

    [claimed] = frontier.claim()

    assert (claimed.depth, claimed.priority, claimed.hops) == (2, -3, 4)


def test_the_parent_is_the_page_it_was_found_on_first(frontier: Driven) -> None:
    frontier.add(urls("a.org", 1), parent="https://a.org/first")
    frontier.add(urls("a.org", 1, 2), parent="https://a.org/second")

    parents = []
    while claims := frontier.claim():
        parents.append(claims[0].parent)
        frontier.done(claims[0])
    assert parents == ["https://a.org/first", "https://a.org/second"]


@pytest.mark.parametrize("count", [2, 3])
def test_of_pages_that_are_left_out_for_one_another_in_a_circle_the_last_is_kept(frontier: Driven, count: int) -> None:
    """Issue 5, point 4: whoever left them out, and when"""
    circle = [f"https://{number}.org/" for number in range(count)]
    pairs = [(url, circle[(place + 1) % count]) for place, url in enumerate(circle)]

    assert not frontier.pass_over(*pairs[0])
    assert [frontier.pass_over(*pair) for pair in pairs] == [False] * (count - 1) + [True]
    assert not frontier.pass_over("https://else.org/", circle[-1]), "what was kept may be named by others"
    assert frontier.add(circle) == count, "and that is all that it changes"


def test_of_two_pages_of_a_host_that_are_left_out_for_one_another_the_last_is_kept(frontier: Driven) -> None:
    """Issue 5, point 4"""
    one, two, three = urls("a.org", 1, 2, 3)

    assert not frontier.pass_over(one, two)
    assert not frontier.pass_over(three, two), "that a page is named by others says nothing of it"
    assert frontier.pass_over(two, one)


def test_a_url_without_a_page_is_reported_once_and_can_be_queued_nevertheless(frontier: Driven) -> None:
    one, two, three = urls("a.org", 1, 2, 3)
    frontier.add([one])
    frontier.pass_over(two, one)

    assert frontier.unreported([one, two, one]) == [one, two], "each once, though it was queued or left out"
    assert frontier.unreported([one]) == [one], "to look marks nothing"
    frontier.report([one, two, "no url", "https://a.org/\udcff"])
    left = frontier.unreported([one, two, three, "no url", "https://a.org/\udcff"])

    assert left == [three]
    assert frontier.add([two]) == 1
    assert frontier.counts().hosts == 1, "a host outside the crawl is none of its hosts"


@pytest.mark.parametrize("wrong", ["a.org", "https://a.org", "/x", "", "ftp://a.org/"])
def test_what_is_not_canonical_is_refused_and_nothing_is_added(frontier: Driven, wrong: str) -> None:
    with pytest.raises(ValueError) as told:
        frontier.add([*urls("a.org", 1), wrong])
    assert repr(wrong) in str(told.value)
    assert frontier.counts().queued == 0


def test_more_urls_than_go_into_one_piece_are_all_added(frontier: Driven) -> None:
    assert frontier.add(f"https://{number % 7}.org/{number}" for number in range(12_000)) == 12_000
    assert frontier.counts().queued == 12_000


# Order


def test_hosts_take_turns(make: Make) -> None:
    frontier = make(concurrency=2)
    frontier.add(urls("a.org", 1, 2, 3) + urls("b.org", 1, 2) + urls("c.org", 1))

    assert [claimed.host for claimed in frontier.claim(9)] == ["a.org", "b.org", "c.org", "a.org", "b.org"]


def test_a_host_with_very_many_urls_delays_no_other(frontier: Driven) -> None:
    """F61"""
    frontier.add(f"https://big.org/{number}" for number in range(20_000))
    frontier.add(f"https://{number}.org/" for number in range(500))

    got = frontier.claim(501)

    assert len({claimed.host for claimed in got}) == 501


def test_hosts_of_one_registered_domain_take_one_turn_between_them(frontier: Driven, time: Time) -> None:
    """Q1, F61: wildcard DNS. However many are due, another domain's host that is due has every second turn"""
    frontier.add(f"https://h{number}.evil.org/{page}" for number in range(1000) for page in range(2))
    frontier.add(urls("honest.org", *range(20)))

    got = []
    for _ in range(21):
        time.seconds += 0.001  # a server knows turns by their moments
        [claimed] = frontier.claim()
        got.append(claimed.host)
        frontier.done(claimed, after=0)

    assert [host == "honest.org" for host in got] == [False, True] * 10 + [False]
    assert len(set(got)) == 12, "and the hosts of a domain take turns, too"


def test_a_registered_domain_gets_its_share_of_places_and_no_more(frontier: Driven, time: Time) -> None:
    """Q1: however many of its hosts are due, and what is due of others is handed out"""
    frontier.add(f"https://h{number}.evil.org/" for number in range(50))
    frontier.add(urls("honest.org", 1, 2) + urls("other.org", 1))

    got = frontier.claim(20, Room(4, {"evil.org": 2, "other.org": 1}))

    assert Counter(claimed.host.partition(".")[2] for claimed in got)["evil.org"] == 2
    assert {claimed.host for claimed in got} >= {"honest.org", "other.org"}
    [honest] = [claimed for claimed in got if claimed.host == "honest.org"]
    frontier.done(honest, after=5)
    full = Room(4, {"evil.org": 4})
    assert frontier.claim(20, full) == []
    assert frontier.due_in() == pytest.approx(5), "what is full is not waited for"
    time.seconds += 5
    assert [claimed.host for claimed in frontier.claim(20, full)] == ["honest.org"]
    assert len(frontier.claim(20, Room(4, {"evil.org": 3}))) == 1, "a place that is given back is used"
    assert len(frontier.claim(100)) == 47, "and without a share it has what is left"


@of_one_process
def test_registered_domains_at_one_address_take_one_turn_between_them(frontier: Driven) -> None:
    """Q1: wildcard hosting; an address counts from the next turn of its registered domain"""
    frontier.add(f"https://evil{number}.org/{page}" for number in range(100) for page in range(2))
    frontier.add(urls("honest.org", *range(20)))
    for number in range(100):
        frontier.locate(f"evil{number}.org", "192.0.2.66")
    for claimed in frontier.claim(101):
        frontier.done(claimed, after=0)

    got = []
    for _ in range(20):
        [claimed] = frontier.claim()
        got.append(claimed.host)
        frontier.done(claimed, after=0)

    assert got.count("honest.org") == 10
    assert len(set(got)) == 11
    crowded = Room(4, {}, {"192.0.2.66": 4})
    assert [claimed.host for claimed in frontier.claim(9, crowded)] == ["honest.org"]


def test_a_slow_host_delays_no_other(frontier: Driven, time: Time) -> None:
    frontier.add(urls("slow.org", 1, 2, 3) + urls("a.org", *range(50)))
    first = frontier.claim(2)
    for claimed in first:
        frontier.done(claimed, after=1000 if claimed.host == "slow.org" else 1)

    got = []
    for _ in range(49):
        time.seconds += 1
        [claimed] = frontier.claim(5)
        got.append(claimed.host)
        frontier.done(claimed, after=1)
    assert got == ["a.org"] * 49
    assert frontier.due_in() == pytest.approx(1000 - 49)


# Claims


@pytest.mark.parametrize(("concurrency", "expected"), [(1, 1), (3, 3), (None, 5)])
def test_as_many_of_a_host_are_out_as_its_concurrency_allows(
    make: Make, concurrency: int | None, expected: int
) -> None:
    frontier = make(concurrency=concurrency)
    frontier.add(urls("a.org", *range(5)))

    assert len(frontier.claim(9)) == expected
    assert frontier.claim(9) == []


def test_each_host_can_have_its_own_concurrency(make: Make) -> None:
    frontier = make(concurrency={"a.org": 2, "b.org": 1}.get)
    frontier.add(urls("a.org", 1, 2, 3) + urls("b.org", 1, 2))

    assert sorted(claimed.host for claimed in frontier.claim(9)) == ["a.org", "a.org", "b.org"]


def test_a_url_that_is_put_back_last_lets_its_host_s_others_go_first(frontier: Driven) -> None:
    frontier.add(urls("a.org", 1, 2, 3), depth=1)
    frontier.add(urls("a.org", "some day"), priority=-2)
    [claimed] = frontier.claim()

    frontier.defer(claimed, 0, last=True)

    got = []
    while claims := frontier.claim():
        got += claims
        frontier.done(claims[0])
    assert [each.url.rpartition("/")[2] for each in got] == ["2", "3", "1", "some day"]
    assert (got[2].depth, got[2].priority, got[2].tries) == (1, -1, 0)


def test_every_url_says_how_many_pages_its_host_has_had(frontier: Driven) -> None:
    """Issue 5: what is no page, fails, goes back or ends twice is not counted"""
    frontier.add(urls("a.org", *range(6)))
    told = []
    for how in ("done", "failed", "back", "page", "page", "out"):
        [claimed] = frontier.claim()
        told.append(claimed.host_pages)
        if how == "failed":
            frontier.fail(claimed, "timeout")
        elif how == "back":
            frontier.defer(claimed, 0.0)
        elif how != "out":
            frontier.done(claimed, is_page=how == "page")
            frontier.done(claimed, is_page=True)
    frontier.add(urls("b.org", 1))
    [other] = frontier.claim()

    assert told == [0, 0, 0, 0, 1, 2]
    assert other.host_pages == 0


def test_a_failed_url_is_not_handed_out_again_and_its_reason_is_kept(frontier: Driven) -> None:
    """U14"""
    frontier.add(urls("a.org", 1, 2))
    for reason in ("http_status", "timeout"):
        [claimed] = frontier.claim()
        frontier.fail(claimed, reason)

    assert frontier.due_in() is None
    assert list(frontier.failures()) == [("https://a.org/1", "http_status"), ("https://a.org/2", "timeout")]
    assert frontier.counts() == Counts(queued=0, leased=0, done=0, failed=2, hosts=1)


# Leases


@pytest.mark.parametrize(
    "late",
    [
        lambda frontier, claimed: frontier.done(claimed),
        lambda frontier, claimed: frontier.fail(claimed, "timeout"),
        lambda frontier, claimed: frontier.defer(claimed, 1),
        lambda frontier, claimed: frontier.renew(claimed),
    ],
    ids=["done", "fail", "defer", "renew"],
)
@pytest.mark.parametrize("is_claimed_again", [True, False])
def test_one_who_is_too_late_changes_nothing(
    frontier: Driven, time: Time, late: Callable[[Driven, Claimed], object], is_claimed_again: bool
) -> None:
    frontier.add(urls("a.org", 1))
    [lost] = frontier.claim()
    time.seconds += LEASE
    [again] = frontier.claim()
    if not is_claimed_again:
        frontier.defer(again, 0)
    counts = frontier.counts()

    assert not late(frontier, lost)

    assert frontier.counts() == counts
    assert list(frontier.failures()) == []
    if is_claimed_again:
        assert frontier.done(again)
    else:
        assert len(frontier.claim()) == 1


def test_what_ended_cannot_be_ended_again(frontier: Driven) -> None:
    frontier.add(urls("a.org", 1))
    [claimed] = frontier.claim()

    assert frontier.done(claimed)
    assert not frontier.done(claimed)
    assert not frontier.defer(claimed, 0)
    assert frontier.counts() == Counts(queued=0, leased=0, done=1, failed=0, hosts=1)


# When


def test_nothing_left_is_told_from_nothing_due(frontier: Driven, time: Time) -> None:
    assert frontier.due_in() is None
    frontier.add(urls("a.org", 1, 2))
    assert frontier.due_in() == 0
    [claimed] = frontier.claim()
    assert frontier.due_in() == LEASE, "unless something happens"
    frontier.done(claimed, after=3)
    assert frontier.due_in() == 3
    time.seconds += 3
    frontier.done(*frontier.claim(), after=3)
    assert frontier.due_in() is None


def test_an_end_can_say_that_a_host_is_due_later_or_sooner(make: Make, time: Time) -> None:
    frontier = make(concurrency=3)
    frontier.add(urls("a.org", 1, 2, 3, 4))
    claims = frontier.claim(9)
    for claimed, after in zip(claims, (60, 90, 2), strict=True):
        frontier.done(claimed, after=after)
        assert frontier.claim() == []
        assert frontier.due_in() == after

    time.seconds += 2
    assert len(frontier.claim()) == 1


def test_a_host_that_is_hastened_is_due_now_and_no_other(frontier: Driven, time: Time) -> None:
    """Also one without queued URLs, and not one with a leased URL"""
    frontier.add(urls("a.org", 1, 2) + urls("b.org", 1) + urls("c.org", 1, 2) + urls("sub.a.org", 1))
    for claimed in frontier.claim(9):
        if claimed.host == "c.org":
            frontier.done(claimed, after=300)
        else:
            frontier.defer(claimed, 200 if claimed.host == "sub.a.org" else 400)
    assert (frontier.claim(9), frontier.due_in()) == ([], 200)

    frontier.hasten("a.org", "c.org", "nowhere.org")

    assert frontier.due_in() == 0
    claims = frontier.claim(9)
    assert sorted(texts(claims)) == [*urls("a.org", 1), *urls("c.org", 2)]
    for claimed in claims:
        frontier.done(claimed, after=50)
    frontier.hasten("c.org")
    frontier.add(urls("c.org", 3))
    assert texts(frontier.claim(9)) == urls("c.org", 3)
    time.seconds += 50
    assert texts(frontier.claim(9)) == urls("a.org", 2)
    frontier.hasten("a.org", "b.org", "c.org", "sub.a.org")
    assert sorted(texts(frontier.claim(9))) == [*urls("b.org", 1), *urls("sub.a.org", 1)]


@pytest.mark.parametrize(("seconds", "most"), [(-5, 0), (math.nan, 0), (math.inf, 11 * 365 * 86_400), (1e300, 1e9)])
def test_any_number_is_a_hint(frontier: Driven, seconds: float, most: float) -> None:
    frontier.add(urls("a.org", 1))

    [claimed] = frontier.claim()
    frontier.defer(claimed, seconds)

    due_in = frontier.due_in()
    assert due_in is not None
    assert due_in <= most


@of_one_process
def test_a_host_that_was_hinted_at_thousands_of_times_is_handed_out_once(make: Make, time: Time) -> None:
    frontier = make(concurrency=None)
    frontier.add(urls("a.org", *range(5000)))
    for number, claimed in enumerate(frontier.claim(4999)):
        frontier.done(claimed, after=1 + number % 100)
    time.seconds += 100

    assert texts(frontier.claim(9)) == urls("a.org", 4999)


# Notes and pieces


def test_notes_are_kept_with_what_they_belong_to(frontier: Driven) -> None:
    frontier.add(urls("a.org", 1, 2))
    frontier.note({"scope": {"hosts": ["a.org"]}, "pages.jsonl": 0})
    [claimed] = frontier.claim()
    frontier.done(claimed, notes={"pages.jsonl": 512})
    assert frontier.notes() == {"scope": {"hosts": ["a.org"]}, "pages.jsonl": 512}

    frontier.done(claimed, notes={"pages.jsonl": 1024})

    assert frontier.notes()["pages.jsonl"] == 1024, (
        "where an output ends is a fact, even if the claim was none any more"
    )


def test_what_a_page_links_to_is_added_with_its_end(frontier: Driven) -> None:
    frontier.add(urls("a.org", 1))
    [claimed] = frontier.claim()

    links = Found(urls("b.org", 1, 2), depth=1, parent=claimed.url)
    assert frontier.conclude([Ending(claimed, Done(0), [links])]) == [True]

    [second] = frontier.claim()
    assert second.parent == claimed.url
    assert frontier.counts() == Counts(queued=1, leased=1, done=1, failed=0, hosts=2)


def test_a_frontier_can_be_closed_twice(frontier: Driven) -> None:
    frontier.close()
    frontier.close()


# Any history


HOSTS = st.sampled_from(["a.org", "b.org", "c.org:81"])
NAMES = st.integers(0, 6)
SECONDS = st.integers(0, 80).map(lambda quarters: quarters / 4)


class Model(RuleBasedStateMachine):
    """Any history of a frontier, beside a model of it that looks at everything there is each time."""

    def __init__(self) -> None:
        super().__init__()
        self.time = Time()
        self.places: dict[str, tuple[int, int, int]] = {}
        """Priority, depth and age of what waits or is out, the least first."""
        self.known: set[str] = set()
        self.due_at: dict[str, float] = {}
        self.out: dict[str, Claimed] = {}
        self.until: dict[str, float] = {}
        """When the leases end. (Who has one may be told to stop a little earlier.)"""
        self.stale: list[Claimed] = []
        self.tries: dict[str, int] = {}
        self.pages: Counter[str] = Counter()
        self.done = self.failed = 0
        self.frontier: Driven
        self.concurrency = 1

    def open(self) -> Driven:
        raise NotImplementedError

    @initialize(concurrency=st.integers(1, 3))
    def begin(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.frontier = self.open()

    def expire(self) -> None:
        for url in list(self.out):
            if self.until[url] <= self.time():
                self.stale.append(self.out.pop(url))

    def take(self, claimed: Claimed) -> None:
        assert self.candidates()[claimed.host] == claimed.url
        assert claimed.tries == self.tries.get(claimed.url, 0)
        assert claimed.host_pages == self.pages[claimed.host]
        assert self.time() < claimed.leased_until <= self.time() + LEASE
        self.tries[claimed.url] = claimed.tries + 1
        self.out[claimed.url] = claimed
        self.until[claimed.url] = self.time() + LEASE

    def candidates(self) -> dict[str, str]:
        """The URL that each host which is due would give next."""
        found = {}
        for host in {host_of(url) for url in self.places}:
            waiting = [url for url in self.places if host_of(url) == host and url not in self.out]
            out = sum(host_of(url) == host for url in self.out)
            if waiting and out < self.concurrency and self.due_at.get(host, 0) <= self.time():
                found[host] = min(waiting, key=self.places.__getitem__)
        return found

    @rule(host=HOSTS, names=st.lists(NAMES, max_size=4), depth=st.integers(0, 2), priority=st.integers(-1, 1))
    def add(self, host: str, names: list[int], depth: int, priority: int) -> None:
        given = urls(host, *names)
        new = [url for url in dict.fromkeys(given) if url not in self.known]
        assert self.frontier.add(given, depth=depth, priority=priority) == len(new)
        for url in new:
            self.known.add(url)
            self.places[url] = (-priority, depth, len(self.known))

    @rule(limit=st.integers(0, 4))
    def claim(self, limit: int) -> None:
        self.expire()
        got = self.frontier.claim(limit)
        for claimed in got:
            self.take(claimed)
        assert len(got) == limit or not self.candidates(), "somebody who is due was left standing"

    @precondition(lambda self: self.out)
    @rule(data=st.data(), how=st.sampled_from(["page", "done", "fail", "defer", "put last", "renew"]), seconds=SECONDS)
    def end(self, data: st.DataObject, how: str, seconds: float) -> None:
        url = data.draw(st.sampled_from(sorted(self.out)))
        claimed = self.out[url]
        if how == "renew":
            renewed = self.frontier.renew(claimed)
            assert renewed is not None
            self.out[url] = renewed
            self.until[url] = self.time() + LEASE
            return
        del self.out[url]
        self.due_at[claimed.host] = self.time() + seconds
        if how in ("defer", "put last"):
            assert self.frontier.defer(claimed, seconds, last=how == "put last")
            self.tries[url] = claimed.tries
            if how == "put last":
                priority, depth, age = self.places[url]
                self.places[url] = (priority + 1, depth, age)
            return
        del self.places[url]
        if how in ("page", "done"):
            assert self.frontier.done(claimed, after=seconds, is_page=how == "page")
            self.pages[claimed.host] += how == "page"
            self.done += 1
        else:
            assert self.frontier.fail(claimed, "because", after=seconds)
            self.failed += 1

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def end_too_late(self, data: st.DataObject) -> None:
        claimed = data.draw(st.sampled_from(self.stale))
        # Its lease may have run out without anybody having looked: then it is not too late yet.
        self.frontier.claim(0)
        self.expire()
        assert not self.frontier.done(claimed)
        assert not self.frontier.defer(claimed, 5)

    @rule(hosts=st.sets(HOSTS))
    def hasten(self, hosts: set[str]) -> None:
        self.frontier.claim(0)  # ends the leases that are over
        self.expire()
        self.frontier.hasten(*hosts)
        for host in hosts - {host_of(url) for url in self.out}:
            self.due_at.pop(host, None)

    @rule(seconds=st.one_of(SECONDS, st.just(LEASE / 2), st.just(LEASE)))
    def wait(self, seconds: float) -> None:
        self.time.seconds += seconds

    @rule()
    def sleep_until_something_is_due(self) -> None:
        due_in = self.frontier.due_in()
        if due_in is None:
            assert not self.places
            return
        if due_in > 0:
            self.expire()
            assert not self.candidates()
            self.time.seconds += due_in
        self.expire()
        got = self.frontier.claim()
        if not got:  # a lease has run out, and its host is due later
            assert self.frontier.due_in() != 0, "who sleeps as he is told would never sleep"
        for claimed in got:
            self.take(claimed)

    @invariant()
    def counts_are_right(self) -> None:
        if not hasattr(self, "frontier"):
            return
        counts = self.frontier.counts()
        assert (counts.done, counts.failed) == (self.done, self.failed)
        assert counts.queued + counts.leased == len(self.places)
        assert counts.hosts == len({host_of(url) for url in self.known})

    def teardown(self) -> None:
        if hasattr(self, "frontier"):
            self.frontier.close()


class InMemory(Model):
    def open(self) -> Driven:
        return local(concurrency=self.concurrency, lease=LEASE, clock=self.time)


class InFile(Model):
    """The same, and between two calls the file may be closed and opened again."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()

    def open(self) -> Driven:
        path = Path(self.folder.name) / "frontier.sqlite"
        return local(path, concurrency=self.concurrency, lease=LEASE, clock=self.time)

    @rule()
    def reopen(self) -> None:
        self.frontier.close()
        self.frontier = self.open()
        self.out.clear()
        self.stale.clear()
        self.due_at.clear()

    @rule(host=HOSTS, names=st.lists(NAMES, max_size=4))
    def change_our_mind(self, host: str, names: list[int]) -> None:
        """All that is done together is taken back if a part of it fails."""
        claims = list(self.out.values())[:3]
        endings = [Ending(claimed, Done(), [Found(urls(host, *names))]) for claimed in claims]
        if endings:
            with contextlib.suppress(ValueError):
                self.frontier.conclude([*endings, Ending(claims[0], Done(), [Found(["no URL"])])], {"a": 1})
            self.due_at.clear()

    def teardown(self) -> None:
        super().teardown()
        self.folder.cleanup()


class OnServer(Model):
    """The same over all partitions, and between two calls the worker may be killed, and another comes."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.job = f"any history {next(_jobs)}"
        self.killed: list[Driven] = []
        self.holders: dict[str, Driven] = {}

    def open(self) -> Driven:
        return on_server(self.server, self.job, self.concurrency, self.time, partitions=5)

    def take(self, claimed: Claimed) -> None:
        super().take(claimed)
        self.holders[claimed.url] = self.frontier

    def candidates(self) -> dict[str, str]:
        """None of a host that another worker has something of, dead or alive."""
        others = {host_of(url) for url in self.out if self.holders[url] is not self.frontier}
        return {host: url for host, url in super().candidates().items() if host not in others}

    @invariant()
    def counts_are_right(self) -> None:
        super().counts_are_right()
        self.expire()  # who counts has looked

    @precondition(lambda self: len(self.killed) < 3)
    @rule()
    def kill(self) -> None:
        """What it had is out until the leases end; nobody who is there leaves hosts to the dead for longer."""
        assert isinstance(self.frontier, Driven)
        self.killed.append(self.frontier)
        self.frontier = self.open()
        self.time.seconds += PRESENCE + GRACE / SECOND

    @rule()
    def close(self) -> None:
        """What it had waits again, and was heard of."""
        self.frontier.close()
        for url in [url for url in self.out if self.holders[url] is self.frontier]:
            self.tries[url] = self.out.pop(url).tries
        self.frontier = self.open()

    def teardown(self) -> None:
        super().teardown()
        for each in self.killed:
            each.close()


@pytest.mark.parametrize("model", [InMemory, InFile])
def test_any_history_is_as_the_model_has_it(model: Any) -> None:
    """Contract: added once, claimed in order, never twice at once, never lost."""
    run_state_machine_as_test(model, settings=settings(ANY, max_examples=ANY.max_examples // 4))


def test_any_history_on_a_server_is_as_the_model_has_it(server: RedisServer) -> None:
    """Contract: added once, claimed in order, never twice at once, never lost. F53: workers are killed."""
    OnServer.server = server
    run_state_machine_as_test(OnServer, settings=settings(ANY, max_examples=ANY.max_examples // 8))

"""Many URLs at once: read as there is room for them, and no host holds up another."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy import Client, PolicyError
from curtsy.engine.batch import AHEAD, CROWD, Batch, NoUrl
from tests.client.fetching import AGENT, UNPACED, client
from tests.support.site import Site
from tests.support.snapshot import Snapshot

WRONG: list[Any] = [0, -1, 1.5, "3", None, True]


def of_host(host: str, count: int) -> list[str]:
    return [f"http://{host}.example/{number}" for number in range(count)]


def handed_out(batch: Batch) -> list[str]:
    """All that there is room for."""
    urls = []
    while (url := batch.next()) is not NoUrl.NOW:
        if url is not NoUrl.YET:
            urls.append(url)
    return urls


class Reading:
    """URLs that know how many of them were read."""

    def __init__(self, urls: Any) -> None:
        self._urls = iter(urls)
        self.count = 0

    def __iter__(self) -> Iterator[str]:
        for url in self._urls:
            self.count += 1
            yield url


def test_who_has_a_crowd_under_way_lets_others_go_first() -> None:
    """Q1: requests to different domains do not wait for each other"""
    first, others = of_host("a", 1200), of_host("b", 5)

    urls = handed_out(Batch([*first, *others], 1000))

    assert urls == [*first[:CROWD], *others, *first[CROWD:995]]


def test_one_host_alone_has_all_the_room() -> None:
    """Q1"""
    urls = of_host("a", 1200)

    assert handed_out(Batch(urls, 1000)) == urls[:1000]


def test_a_crowd_that_thins_goes_on_where_it_was() -> None:
    """Q1"""
    first = of_host("a", 5)
    batch = Batch([*first, *of_host("b", 100)], 4, crowd=2)
    assert sorted(handed_out(batch)) == [*first[:2], *of_host("b", 2)]

    batch.end(first[0])

    assert handed_out(batch) == [first[2]]


def test_nothing_is_read_while_there_is_no_room() -> None:
    """N10: the next one may depend on what came of the last"""
    urls = Reading(of_host("a", 10))
    batch = Batch(urls, 1)

    for number in range(10):
        assert handed_out(batch) == [f"http://a.example/{number}"]
        assert urls.count == number + 1
        batch.end(f"http://a.example/{number}")


def test_what_has_no_end_is_not_read_to_its_end() -> None:
    """N10"""
    urls = Reading(f"http://a.example/{number}" for number in itertools.count())

    assert len(handed_out(Batch(urls, 1000))) == 1000
    assert urls.count <= AHEAD + 1000


@given(
    st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 8), st.integers(1, 4), st.integers(1, 6), st.data()
)
def test_each_is_handed_out_once_in_its_hosts_order_and_never_too_many(
    hosts: str, max_in_flight: int, crowd: int, ahead: int, data: st.DataObject
) -> None:
    """N10: whatever the hosts, and in whichever order they are done"""
    given = [f"http://{host}.example/{number}" for number, host in enumerate(hosts)]
    batch = Batch(given, max_in_flight, crowd=crowd, ahead=ahead)
    out: list[str] = []
    under_way: list[str] = []

    while True:
        new = handed_out(batch)
        out += new
        under_way += new
        assert len(under_way) == min(max_in_flight, len(given) - len(out) + len(under_way))
        if not under_way:
            break
        batch.end(under_way.pop(data.draw(st.integers(0, len(under_way) - 1))))

    assert sorted(out) == sorted(given)
    for host in "abc":
        assert [url for url in out if f"//{host}." in url] == [url for url in given if f"//{host}." in url]


def test_a_registered_domain_has_a_quarter_of_the_room_while_there_are_others() -> None:
    """Q1: wildcard DNS. However many hosts it has, and however many of its URLs come first"""
    evil = [f"http://h{number}.evil.example/" for number in range(3000)]
    batch = Batch([*evil, *of_host("honest", 50)], 100)

    first = handed_out(batch)
    assert len(first) == 100
    assert sum("honest" in url for url in first) == 50
    for url in first[:25]:
        batch.end(url)
    assert len(handed_out(batch)) == 25, "and the room that nobody else wants"


@pytest.mark.parametrize("max_in_flight", WRONG)
def test_room_for_none_is_an_error_before_anything_is_read(max_in_flight: Any) -> None:
    """U6"""
    urls = Reading(of_host("a", 3))

    with pytest.raises(PolicyError, match=rf"^max_in_flight = {re.escape(repr(max_in_flight))} .*1\.$"):
        Batch(urls, max_in_flight)

    assert urls.count == 0


def test_what_is_no_list_is_told_apart(snapshot: Snapshot) -> None:
    """U6"""
    with pytest.raises(PolicyError, match="urls = 3") as caught:
        Batch(3, 1)  # type: ignore[arg-type]
    snapshot(str(caught.value))


async def test_both_clients_look_at_it_first() -> None:
    """U6"""
    async with client() as web:
        with pytest.raises(PolicyError, match="max_in_flight = 0"):
            await anext(web.fetch_many([], max_in_flight=0))
    with Client(store="memory:", cache=False) as blocking, pytest.raises(PolicyError, match="max_in_flight = 0"):
        next(blocking.fetch_many([], max_in_flight=0))


async def test_a_host_with_a_long_line_holds_up_no_other(site: Site) -> None:
    """Q1"""
    site.page("/*", "x")
    other = site.url("/b", host="127.0.0.2")
    urls = [*(site.url(f"/{number}") for number in range(1100)), other]

    async with client(preset="broad", respect_robots=False, max_requests_per_day=0, max_pages_per_day=0) as web:
        results = web.fetch_many(urls)
        while (await anext(results)).url != other:
            pass
        await results.aclose()

    assert site.count() < 20


def test_nor_does_it_with_the_blocking_client(site: Site) -> None:
    """Q1"""
    site.page("/*", "x")
    other = site.url("/b", host="127.0.0.2")
    urls = [*(site.url(f"/{number}") for number in range(1100)), other]
    given: Any = {**UNPACED, "pause_min": 1000.0, "pause_max": 1000.0}

    with Client(
        store="memory:", cache=False, user_agent=AGENT, allow_private=True, respect_robots=False, **given
    ) as web:
        results = web.fetch_many(urls)
        came = {next(results).url, next(results).url}
        results.close()

    assert came == {urls[0], other}

"""Places: connections and lookups of names, shared by registered domain and by address."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.fair_share import share_of
from curtsy.http.address import AddressInfo, NamesBusy, SystemResolver
from curtsy.http.sender import HttpSender
from curtsy.http.slots import Slots
from tests.client.fetching import UNPACED, client
from tests.crawling.test_fair_crawl import HONEST, Names, crowd
from tests.support.polling import until
from tests.support.site import Site, hang

HOSTS = st.sampled_from(["a.one.org", "b.one.org", "c.one.org", "a.two.org", "three.org"])


def site_of(host: str) -> str:
    return ".".join(host.split(".")[-2:])


async def turns_of_the_loop() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def play(most: int, history: list[tuple[str, str]]) -> None:
    """Ask, end and give up, and look at all that is held after each."""
    places = Slots(most)
    waiting: dict[asyncio.Task[None], str] = {}
    held: list[str] = []
    met: set[str] = set()

    def settle() -> list[str]:
        new = [task for task in waiting if task.done()]
        return [waiting.pop(task) for task in new]

    for event, host in history:
        met |= {site_of(host)} if event == "ask" else set()
        before = list(held)
        if event == "ask":
            if places.take_at_once(host):
                held.append(host)
            else:
                waiting[asyncio.ensure_future(places.take(host))] = host
        elif event == "end" and held:
            places.give_back(held.pop(0))
        elif event == "give up" and waiting:
            task = next(iter(waiting))
            task.cancel()
            await turns_of_the_loop()
            waiting.pop(task)
        await turns_of_the_loop()
        granted = settle()
        held += granted
        assert len(held) <= most
        for site in {site_of(each) for each in held[len(before) - (event == "end" and bool(before)) :]}:
            count = sum(site_of(each) == site for each in held)
            assert count <= share_of(most) or met == {site}, "no more than a quarter while others are there"
        if len(held) < most:
            assert all(
                sum(site_of(each) == site_of(one) for each in held) >= share_of(most) for one in waiting.values()
            )
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@given(st.integers(1, 9), st.lists(st.tuples(st.sampled_from(["ask", "ask", "end", "give up"]), HOSTS), max_size=40))
def test_a_place_is_given_to_all_but_those_who_have_a_quarter(most: int, history: list[tuple[str, str]]) -> None:
    """Q1: whatever comes, goes and gives up; and no place is free that somebody may have"""
    asyncio.run(play(most, history))


async def hustle(most: int, history: list[tuple[str, str, str]]) -> None:
    """Ask, end, give up and find no room, several in one turn of the loop; in the end, all places are there again."""
    places = Slots(most)
    asking: list[tuple[asyncio.Task[None], str, str]] = []
    held: list[tuple[str, str]] = []
    for event, host, address in history:
        if event == "ask" and places.take_at_once(host, address):
            held.append((host, address))
        elif event == "ask":
            asking.append((asyncio.ensure_future(places.take(host, address)), host, address))
        elif event == "end" and held:
            places.give_back(*held.pop(0))
        elif event == "no room" and held and places.shrink():
            places.give_back(*held.pop())
        elif event == "give up":
            for task, _, _ in asking[::2]:
                task.cancel()
        elif event == "turn":
            await turns_of_the_loop()
        held += [(host, address) for task, host, address in asking if task.done() and not task.cancelled()]
        asking = [each for each in asking if not each[0].done()]
    for task, _, _ in asking:
        task.cancel()
    ended = await asyncio.gather(*(task for task, _, _ in asking), return_exceptions=True)
    held += [(host, address) for (_, host, address), error in zip(asking, ended, strict=True) if error is None]
    for each in held:
        places.give_back(*each)
    for _ in range(most):  # what was taken from it for want of room comes back in its time
        places._regrow() if places._lost else None

    async with asyncio.timeout(1):
        await asyncio.gather(*(places.take(f"{number}.free{number}.org") for number in range(most)))


@given(
    st.integers(1, 9),
    st.lists(
        st.tuples(
            st.sampled_from(["ask", "ask", "ask", "end", "give up", "no room", "turn"]),
            HOSTS,
            st.sampled_from(["", "192.0.2.1", "192.0.2.2", "?"]),
        ),
        max_size=60,
    ),
)
def test_no_place_is_lost_whoever_gives_up_and_when(most: int, history: list[tuple[str, str, str]]) -> None:
    """Q1: not even if a place comes in the same moment as the end of who waited for it"""
    asyncio.run(hustle(most, history))


@pytest.mark.parametrize("most", [4, 16, 100])
async def test_one_registered_domain_does_not_hold_all_places_of_an_address(most: int) -> None:
    """Q1: or whoever is at the same address, as behind one of a CDN, waits for a domain that never answers"""
    places = Slots(most)
    await places.take("third.org", "192.0.2.3")
    hogs = [asyncio.ensure_future(places.take(f"h{each}.evil.org", "192.0.2.1")) for each in range(most)]
    await turns_of_the_loop()

    async with asyncio.timeout(1):
        await places.take("honest.org", "192.0.2.1")

    others = [asyncio.ensure_future(places.take(f"evil{each}.org", "192.0.2.1")) for each in range(most)]
    await turns_of_the_loop()
    assert sum(each.done() for each in hogs) == share_of(most)
    assert not any(each.done() for each in others), "an address has one place more, and not any number"
    for task in (*hogs, *others):
        task.cancel()
    await asyncio.gather(*hogs, *others, return_exceptions=True)


async def test_places_go_round_registered_domains_and_each_is_first_come_first_served() -> None:
    """Q1: wildcard DNS, and wildcard hosting"""
    places, order = Slots(1), list[str]()

    async def use(host: str, address: str) -> None:
        await places.take(host, address)
        order.append(host)
        await asyncio.sleep(0)
        places.give_back(host, address)

    crowd = [(f"h{number}.evil.org", "192.0.2.1") for number in range(20)]
    crowd += [(f"evil{number}.org", "192.0.2.2") for number in range(20)]
    await asyncio.gather(*(use(*each) for each in (*crowd, ("honest.org", "192.0.2.3"), ("honest.org", "192.0.2.3"))))

    assert [place for place, host in enumerate(order) if host == "honest.org"][-1] <= 8
    assert [host for host in order if ".evil." in host] == [host for host, _ in crowd[:20]]


@pytest.mark.parametrize("kind", ["subdomains", "domains"])
async def test_hosts_that_never_answer_leave_connections_to_others(site: Site, kind: str) -> None:
    """Q1: without a share, they would have all connections until they time out"""
    site.url("/", host="127.0.0.66")
    site.on("/*", lambda visit: hang())
    site.page("/page", "here", host=HONEST)
    honest = site.url("/page", host=HONEST)
    names = [f"h{number}.evil{'' if kind == 'subdomains' else number}.test" for number in range(100)]
    sender = HttpSender(resolver=Names(), connections=8)

    async with client(sender=sender, respect_robots=False, cache=False, **UNPACED) as web:
        await web.fetch(honest)
        first = [asyncio.ensure_future(web.fetch(site.url("/", host=name))) for name in names[:2]]
        await until(lambda: site.count() == 3)
        rest = [asyncio.ensure_future(web.fetch(site.url("/", host=name))) for name in names[2:]]
        async with asyncio.timeout(10):
            for _ in range(20):
                assert (await web.fetch(honest)).ok
        for task in (*first, *rest):
            task.cancel()

    assert site.count(host=HONEST) == 21


async def test_names_of_one_registered_domain_that_nobody_answers_for_hold_up_no_other_name() -> None:
    """Q1: though a lookup cannot be ended, and nobody else looked anything up before"""
    speaks = threading.Event()
    asked: list[str] = []

    def server(host: str, port: int, family: int, kind: int, *, flags: int) -> Sequence[AddressInfo]:
        asked.append(host)
        if host != HONEST:
            speaks.wait()
        return socket.getaddrinfo("127.0.0.1", port, family, kind)

    resolver = SystemResolver(concurrency=8, max_wait=0.05, getaddrinfo=server)
    try:
        dead = [asyncio.ensure_future(resolver.resolve(f"h{number}.evil.test")) for number in range(50)]
        await until(lambda: len(asked) == 2)
        found = await resolver.resolve(HONEST)
        refused = [each for each in await asyncio.gather(*dead[2:], return_exceptions=True) if each]
    finally:
        speaks.set()
    await asyncio.gather(*dead[:2])

    assert found == ["127.0.0.1"]
    assert asked == ["h0.evil.test", "h1.evil.test", HONEST]
    assert all(isinstance(each, NamesBusy) for each in refused)


@pytest.mark.parametrize("kind", ["subdomains", "domains"])
async def test_hosts_that_never_answer_leave_connections_to_who_comes_with_them(site: Site, kind: str) -> None:
    """Q1: the first of a crowd are alone for a moment, and had all connections before the others were there"""
    site.on("/*", lambda visit: hang())
    site.page("/page", "here", host=HONEST)
    site.robots(host=HONEST)
    urls = [*crowd(site, kind)[:200], site.url("/page", host=HONEST)]

    async with client(sender=HttpSender(resolver=Names()), clock=None, **UNPACED) as web:
        results = web.fetch_many(urls)
        async with asyncio.timeout(10):
            first = await anext(results)
        await results.aclose()

    assert first.ok

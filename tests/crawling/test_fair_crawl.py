"""Crawls in which one registered domain, or one address, has thousands of hosts: the others are served as before."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from curtsy.core.url import Url
from curtsy.crawling.running_fetches import GLANCE
from curtsy.crawling.start import acrawl
from curtsy.http.address import TableResolver
from curtsy.http.sender import HttpSender, Limits
from tests.crawling.web import QUICK, html
from tests.support.bounds import ends_within
from tests.support.polling import steady, until
from tests.support.site import Reply, Site, Visit, hang, later

HONEST, THIRD = "honest.test", "third.test"
PATIENT: dict[str, Any] = {**QUICK, "timeout": 300.0, "robots_timeout": 300.0}
"""No host that never answers is given up within a test, however slow the machine."""
MANY = 400


class Names(Mapping[str, str]):
    """The honest host is at an address of its own, as is a third one; all others are at another."""

    def __init__(self, others: str = "127.0.0.66") -> None:
        self._others = others

    def __getitem__(self, name: str) -> str:
        return {HONEST: "127.0.0.1", THIRD: "127.0.0.3"}.get(name, self._others)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def link(visit: Visit) -> Reply:
    """A page of an endless chain: it links to the next one."""
    number = int(visit.path.rpartition("/")[2] or 0)
    return Reply(body=html(f"/p/{number + 1}"), headers={"Content-Type": "text/html"})


def chain(site: Site) -> str:
    """An endless chain of pages on the honest host; where it begins."""
    site.on("/p/*", link, host=HONEST)
    site.robots(host=HONEST)
    return site.url("/p/0", host=HONEST)


def crowd(site: Site, kind: str) -> list[str]:
    """Front pages of many hosts: all of one registered domain, or each of a registered domain of its own."""
    site.url("/", host="127.0.0.66")
    names = (f"h{number}.evil{'' if kind == 'subdomains' else number}.test" for number in range(MANY))
    return [site.url("/", host=name) for name in names]


async def pages_of_honest(
    site: Site, seeds: list[str], enough: int, *, names: Names | TableResolver | None = None, **given: Any
) -> int:
    """Crawl until the honest host was asked so often; the requests of all others till then."""
    sender = HttpSender(resolver=Names() if names is None else names)
    given = {"max_in_flight": 16} | given
    async with acrawl(seeds, **PATIENT, scope="host", sender=sender, **given) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: site.count(host=HONEST) >= enough)
        others = site.count() - site.count(host=HONEST)
        crawl.stop()
        crawl.stop()
        await running
    return others


@pytest.mark.parametrize("kind", ["subdomains", "domains"])
@pytest.mark.parametrize("job", [False, True], ids=["memory", "sqlite"])
async def test_hosts_that_never_answer_hold_no_more_than_a_quarter_of_the_places(
    site: Site, tmp_path: Path, kind: str, job: bool
) -> None:
    """Q1, F61: wildcard DNS, and wildcard hosting. Without a share, 16 of them would hold all places for 30 s."""
    site.on("/*", lambda visit: hang())
    seeds = [*crowd(site, kind), chain(site)]

    given: dict[str, Any] = {"job": tmp_path / "job"} if job else {}
    others = await pages_of_honest(site, seeds, 100, **given)

    assert others <= 4


@pytest.mark.parametrize("kind", ["subdomains", "domains"])
async def test_hosts_that_answer_at_once_take_turns_with_another(site: Site, kind: str) -> None:
    """Q1, F61: in the order of hosts, each page would wait for all of them"""
    site.on("/*", link)
    site.robots()
    seeds = [*crowd(site, kind), chain(site)]

    others = await pages_of_honest(site, seeds, 50)

    # Each registered domain is met once before it is known to be at the same address as the others.
    met = 2 * MANY if kind == "domains" else 0
    assert others <= met + 50 * 4 * 4


async def test_a_domain_that_shares_its_address_with_many_hosts_of_another_has_half_of_the_turns(site: Site) -> None:
    """Q1: addresses share first, then the registered domains of each"""
    site.on("/*", lambda visit: hang())
    seeds = [*crowd(site, "subdomains"), chain(site)]

    others = await pages_of_honest(site, seeds, 100, names=Names("127.0.0.1"))

    assert others <= 4


@pytest.mark.parametrize("places", [2, 4, 16])
async def test_a_domain_that_never_answers_leaves_a_place_at_its_address_to_a_neighbour(
    site: Site, places: int
) -> None:
    """Q1: while a third one is crawled elsewhere. Else whoever is behind the same CDN's address waits for timeouts"""
    site.on("/*", lambda visit: hang())
    site.on("/p/*", link, host=THIRD)
    site.robots(host=THIRD)
    site.url("/", host="127.0.0.3")
    seeds = [chain(site), site.url("/p/0", host=THIRD), *crowd(site, "subdomains")[:100]]

    await pages_of_honest(site, seeds, 50, names=Names("127.0.0.1"), max_in_flight=places)

    crowded = site.count() - site.count(host=HONEST) - site.count(host=THIRD)
    assert crowded <= max(1, places // 4)


@pytest.mark.parametrize("kind", ["subdomains", "domains"])
async def test_a_domain_or_an_address_that_is_alone_has_all_places(site: Site, kind: str) -> None:
    """Q1: a share is for others' sake"""
    site.on("/*", lambda visit: hang())
    seeds = crowd(site, kind)[:100]
    sender = HttpSender(resolver=Names())

    async with acrawl(seeds, **PATIENT, scope="host", sender=sender, max_in_flight=16) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: site.count() == 16)
        crawl.stop()
        crawl.stop()
        await running

    assert site.count() == 16


@pytest.mark.parametrize("kind", ["subdomains", "domains"])
async def test_hosts_that_are_asked_again_at_once_hold_no_more_than_a_quarter_of_the_places(
    site: Site, kind: str
) -> None:
    """Q1, F61: what waits for a retry has no place, and all would come back to the wire in the same second"""
    met: set[str] = set()
    held: list[str] = []

    def first_later_then_never(visit: Visit) -> Reply:
        if visit.host in met and len(met) == 40:
            held.append(visit.host)
            return hang()
        met.add(visit.host)
        return later(1)

    site.on("/*", first_later_then_never)
    site.robots()
    seeds = [*crowd(site, kind)[:40], chain(site)]
    sender = HttpSender(resolver=Names())

    async with acrawl(seeds, **PATIENT, scope="host", sender=sender, max_in_flight=16) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: len(held) >= 4)
        await until(steady(lambda: len(held)), every=1.0)
        before = site.count(host=HONEST)
        await until(lambda: site.count(host=HONEST) >= before + 50)
        crawl.stop()
        crawl.stop()
        await running

    assert len(held) <= 8


class SlowNames(TableResolver):
    """Names that take so many seconds to be looked up; all but the honest one."""

    def __init__(self, seconds: float) -> None:
        super().__init__(Names())
        self._seconds = seconds

    async def resolve(self, host: str) -> Sequence[str]:
        """The addresses of a name."""
        if host != HONEST:
            await asyncio.sleep(self._seconds)
        if host.endswith("nowhere.test"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await super().resolve(host)


async def test_hosts_whose_names_are_looked_up_slowly_hold_no_more_than_a_quarter_of_the_places(site: Site) -> None:
    """Q1, F61: else domains at one address had more places if only their name server takes its time"""
    site.on("/*", lambda visit: hang())
    seeds = [*crowd(site, "domains")[:40], chain(site)]
    sender = HttpSender(resolver=SlowNames(3 * GLANCE))

    async with acrawl(seeds, **PATIENT, scope="host", sender=sender, max_in_flight=16) as crawl:
        running = asyncio.ensure_future(crawl.run())
        await until(lambda: site.count() - site.count(host=HONEST) >= 4)
        before = site.count(host=HONEST)
        await until(lambda: site.count(host=HONEST) >= before + 100)
        crawl.stop()
        crawl.stop()
        await running

    assert site.count() - site.count(host=HONEST) == 4


@pytest.mark.parametrize("kind", ["subdomains", "domains"])
async def test_hosts_whose_names_are_not_looked_up_at_all_hold_nobody_up(site: Site, kind: str) -> None:
    """Q1, F61: a lookup needs no place on the wire. Each had one for a second, so that 400 domains took 32 s"""
    seeds = [chain(site), *crowd(site, kind)]

    with ends_within(5, work=2):
        others = await pages_of_honest(site, seeds, 50, names=SlowNames(60.0))

    assert others == 0


async def test_names_that_are_looked_up_slowly_and_in_vain_fail_once(site: Site) -> None:
    """F61: they are not put off for ever"""
    seeds = [site.url("/", host=f"h{number}.{number}-nowhere.test") for number in range(8)]
    sender = HttpSender(resolver=SlowNames(2 * GLANCE))

    async with acrawl(seeds, **PATIENT, scope="host", sender=sender, max_in_flight=16, max_retries=0) as crawl:
        summary = await crawl.run()

    assert (summary.ended, summary.totals.failed) == ("done", {"dns_error": 8})


@pytest.mark.parametrize("status", [404, 403])
@pytest.mark.parametrize("way", ["links", "sitemap"])
async def test_a_site_that_names_many_urls_of_another_delays_none_of_its_pages(
    site: Site, way: str, status: int
) -> None:
    """Q1, C22: the pages that a host links to itself go first, and a URL that others name does not open its breaker"""
    junk = [site.url(f"/junk/{number}", host=HONEST) for number in range(500)]
    listed = "".join(f"<url><loc>{each}</loc></url>" for each in junk)
    site.on("/junk/*", lambda visit: Reply(status), host=HONEST)
    site.url("/", host="127.0.0.66")
    pages = {"links": html(*junk), "sitemap": html("/x")}
    site.page("/", pages[way], host="evil.test")
    site.robots(f"Sitemap: {site.url('/s.xml', host='evil.test')}" if way == "sitemap" else "", host="evil.test")
    site.page("/s.xml", f"<urlset>{listed}</urlset>", content_type="text/xml", host="evil.test")
    seeds = [site.url("/", host="evil.test"), chain(site)]
    sender = HttpSender(resolver=Names())

    given = {**PATIENT, "concurrency": 1, "max_time": 100.0}

    async with acrawl(seeds, **given, scope="host", sitemaps=True, max_pages=30, sender=sender) as crawl:
        summary = await crawl.run()

    assert summary.totals.pages == 30
    assert len([path for path in site.paths(HONEST) if path.startswith("/junk")]) <= 3


class CountingSender(HttpSender):
    """Sender that counts the lookups of addresses."""

    lookups = 0

    async def locate(self, url: Url, limits: Limits) -> str:
        self.lookups += 1
        return await super().locate(url, limits)


async def test_the_address_of_a_host_is_looked_up_once_not_for_each_page(site: Site) -> None:
    site.reply("/", Reply(body=html(*(f"/{number}" for number in range(60))), headers={"Content-Type": "text/html"}))
    for number in range(60):
        site.reply(f"/{number}", Reply(body=html(), headers={"Content-Type": "text/html"}))
    sender = CountingSender(resolver=Names())

    async with acrawl(site.url("/", host=HONEST), **PATIENT, scope="host", sender=sender, max_in_flight=8) as crawl:
        summary = await crawl.run()

    assert summary.fetched == 61
    assert 1 <= sender.lookups <= 8, "only the first fetches at once do not know it yet"

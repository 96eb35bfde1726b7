"""RobotsTxtChecker by itself: may this URL be fetched, and how slowly."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import session_of
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.fetch_state import Refusal
from curtsy.core.rules import claim
from curtsy.core.url import Url, parse_url
from curtsy.engine.context import rules_key
from curtsy.http.sender import HttpSender
from curtsy.limits import RobotsTxtChecker
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.client.fetching import AGENT, client
from tests.support.bounds import ends_within
from tests.support.site import Reply, Site, hang, later
from tests.support.snapshot import Snapshot

PRIVATE = "User-agent: *\nDisallow: /private\n"


def allowing(site: Site) -> None:
    site.page("/page", "x")
    site.page("/private", "x")


def checker(**settings: Any) -> RobotsTxtChecker:
    return RobotsTxtChecker(**{"clock": FakeClock(), "allow_private": True, **settings})


async def test_the_checker_answers_by_the_rules_for_its_agent(site: Site) -> None:
    """R9, R10"""
    site.robots("User-agent: AIAssistantBot\nDisallow: /private\nCrawl-delay: 2.5\n\nUser-agent: *\nDisallow: /\n")

    async with checker() as robots:
        before = robots.get_crawl_delay(site.url("/"))
        allowed = [await robots.is_allowed(site.url(path)) for path in ("/", "/private/a", "/private")]
        verdict = await robots.verdict(site.url("/private"))

        assert before is None
        assert allowed == [True, False, False]
        assert robots.get_crawl_delay(site.url("/anything")) == 2.5
        assert (verdict.line, verdict.rule) == (2, "Disallow: /private")

    assert [visit.header("User-Agent") for visit in site.journal] == ["AIAssistantBot/1.0"]


@pytest.mark.parametrize("where", ["environment", ".env"])
async def test_the_checker_takes_its_user_agent_from_the_environment(
    site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    """R10, C7: `RAG_USER_AGENT`, unless one is given."""
    site.robots("User-agent: RagBot\nDisallow: /private\n")
    monkeypatch.chdir(tmp_path)
    if where == "environment":
        monkeypatch.setenv("RAG_USER_AGENT", "RagBot/2.0")
    else:
        (tmp_path / ".env").write_text("RAG_USER_AGENT=RagBot/2.0\n")

    async with RobotsTxtChecker(allow_private=True) as checker:
        assert not await checker.is_allowed(site.url("/private"))
    async with RobotsTxtChecker("Other/1.0", allow_private=True) as checker:
        assert await checker.is_allowed(site.url("/private"))

    assert [visit.header("User-Agent") for visit in site.journal] == ["RagBot/2.0", "Other/1.0"]


async def test_the_checker_asks_again_after_its_ttl_or_when_it_is_told_to_forget(site: Site) -> None:
    """R9, R5"""
    site.robots(PRIVATE)
    clock = FakeClock()

    async with checker(clock=clock, cache_ttl=60) as robots:
        await robots.is_allowed(site.url("/"))
        await robots.is_allowed(site.url("/"))
        once = site.count("/robots.txt")
        clock.advance(61)
        await robots.is_allowed(site.url("/"))
        twice = site.count("/robots.txt")
        robots.clear_cache()
        assert robots.get_crawl_delay(site.url("/")) is None
        await robots.is_allowed(site.url("/"))

    assert (once, twice, site.count("/robots.txt")) == (1, 2, 3)


async def test_the_checker_allows_what_it_cannot_ask_and_gives_up_in_time(site: Site) -> None:
    """R6, R9"""
    site.reply("/robots.txt", hang())

    with ends_within(8):
        async with checker(timeout=1.0) as robots:
            assert await robots.is_allowed(site.url("/a"))
        async with checker(timeout=1.0, robots_unreachable="disallow") as robots:
            assert not await robots.is_allowed(site.url("/a"))


async def test_while_a_host_rests_its_last_copy_goes_on_being_used(site: Site) -> None:
    """R6: and where there is none, everything is allowed, or nothing"""
    site.script("/robots.txt", [Reply(body=PRIVATE), later(7200)], host="127.0.0.1")
    site.reply("/robots.txt", later(7200), host="127.0.0.2")
    clock, paths = FakeClock(), ("/open", "/private")

    async with checker(clock=clock) as robots:
        await robots.is_allowed(site.url("/"))
        clock.advance(3601)
        refused = [await robots.is_allowed(site.url(path)) for path in paths]
        clock.advance(301)  # it may be asked again, were it not for its Retry-After
        resting = [await robots.is_allowed(site.url(path)) for path in paths]
        other = site.url("/", host="127.0.0.2")
        unknown = await robots.is_allowed(other)
        clock.advance(301)
        unknown_resting = await robots.is_allowed(other)
    async with checker(clock=clock, robots_unreachable="disallow") as robots:
        await robots.is_allowed(other)
        clock.advance(301)
        strict = await robots.is_allowed(other)

    assert refused == resting == [True, False]
    assert (unknown, unknown_resting, strict) == (True, True, False)
    assert site.count("/robots.txt", host="127.0.0.1") == 2


async def test_the_checker_says_no_where_it_may_never_ask(site: Site) -> None:
    """U2"""
    async with checker(allow_private=False, sender=HttpSender(resolver=site.names)) as robots:
        assert not await robots.is_allowed(site.url("/"))
        assert not await robots.is_allowed(site.url("/", host="inside.test"))
    assert site.connections == 0


@pytest.mark.parametrize(
    ("given", "shown"),
    [({"cache_ttl": -1}, "cache_ttl = -1 .* 0 .* 86400"), ({"timeout": 0}, "timeout = 0 .* 0")],
    ids=["ttl", "timeout"],
)
def test_what_is_wrong_is_called_by_the_checkers_own_names(
    given: dict[str, Any], shown: str, snapshot: Snapshot
) -> None:
    """R9"""
    with pytest.raises(PolicyError, match=shown) as caught:
        checker(**given)

    snapshot(str(caught.value))


async def test_the_checker_says_no_to_what_is_no_url() -> None:
    """U1"""
    async with checker() as robots:
        assert not await robots.is_allowed("nonsense")
        assert robots.get_crawl_delay("nonsense") is None


async def test_fifty_tasks_share_the_checkers_one_fetch(site: Site) -> None:
    """R5"""
    site.reply("/robots.txt", Reply(body=PRIVATE, wait=0.05))

    async with checker() as robots:
        allowed = await asyncio.gather(
            *(robots.is_allowed(site.url(f"/{'private' if number % 2 else 'open'}/{number}")) for number in range(50))
        )

    assert allowed == [True, False] * 25
    assert site.count("/robots.txt") == 1


async def test_the_checker_of_a_client_asks_with_its_store(site: Site) -> None:
    """R9"""
    site.robots(PRIVATE)
    allowing(site)

    async with client() as web:
        await web.fetch(site.url("/page"))
        async with RobotsTxtChecker(AGENT, client=web) as robots:
            assert not await robots.is_allowed(site.url("/private"))
        assert (await web.fetch(site.url("/page"))).ok

    assert site.count("/robots.txt") == 1


async def test_on_an_offline_client_the_checker_asks_nobody(site: Site) -> None:
    """R9, issue 4: by what is remembered, and without that as for a file that cannot be had (R6)"""
    site.robots(PRIVATE)
    clock = FakeClock()
    store = MemoryStore(clock)

    async with client(clock=clock, store=store, cache_mode="offline") as web:
        robots = RobotsTxtChecker(client=web)
        unknown = await robots.is_allowed(site.url("/private"))
        asked = site.paths()
        async with client(clock=clock, store=store) as online:
            await RobotsTxtChecker(client=online).is_allowed(site.url("/"))
        clock.advance(3 * 86_400)
        known = await robots.is_allowed(site.url("/private"))

    assert (unknown, asked) == (True, [])
    assert (known, site.paths()) == (False, ["/robots.txt"])


async def test_a_claim_that_nobody_came_back_from_is_no_knowledge_of_the_rules(site: Site) -> None:
    """R6, F35: a process was killed while it asked for them"""
    store = MemoryStore(FakeClock())
    key = rules_key(site.url("/").removesuffix("/"))
    store.update(key, lambda rules, now: (claim(rules, now, 7)[0], None))
    url = parse_url(site.url("/"))
    assert isinstance(url, Url)

    async with client(store=store, cache_mode="offline") as web:
        found = await session_of(web).rules_of(url, AGENT)

    assert isinstance(found, Refusal)
    assert (found.reason, site.paths()) == (Reason.NOT_IN_CACHE, [])


async def test_an_offline_checker_that_is_told_to_wait_for_the_file_forbids(site: Site) -> None:
    """R6, C5"""
    async with client(cache_mode="offline", robots_unreachable="disallow") as web:
        assert not await RobotsTxtChecker(client=web).is_allowed(site.url("/"))

    assert site.paths() == []


async def test_the_reason_at_a_private_address_names_the_setting_that_permits_it(site: Site) -> None:
    """R1: as a fetch says it"""
    async with checker(allow_private=False) as robots:
        verdict = await robots.verdict(site.url("/page"))

    assert not verdict.allowed
    assert "allow_private" in verdict.reason
    assert site.paths() == []


async def test_a_host_that_the_settings_deny_is_not_said_to_have_no_robots_txt(site: Site) -> None:
    """R1, U9: not asked, and nothing is remembered of it that others would go by"""
    site.robots(PRIVATE)
    allowing(site)
    clock = FakeClock()
    store = MemoryStore(clock)

    async with client(clock=clock, store=store, denylist=["127.0.0.1"]) as web:
        robots = RobotsTxtChecker(client=web)
        verdicts = [await robots.verdict(site.url(path)) for path in ("/page", "/private")]
        asked = site.paths()
    async with client(clock=clock, store=store) as other:
        forbidden = await other.fetch(site.url("/private"))

    assert [verdict.allowed for verdict in verdicts] == [False, False]
    assert all("denylist" in verdict.reason for verdict in verdicts)
    assert asked == []
    assert forbidden.reason is Reason.ROBOTS_DISALLOWED
    assert site.paths() == ["/robots.txt"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"cache": False}, "cache = False "),
        ({"robots_ttl": 5}, "robots_ttl = 5 .*cache_ttl"),
        ({"robots_timeout": 5}, "robots_timeout = 5 .* timeout"),
        ({"client": 5}, "client = 5 .*AsyncClient"),
    ],
    ids=["cache", "ttl", "timeout", "client"],
)
async def test_what_a_checker_does_not_take_is_told_with_what_it_takes(
    given: dict[str, Any], shown: str, snapshot: Snapshot
) -> None:
    """U6"""
    with pytest.raises(PolicyError, match=shown) as caught:
        checker(**given)

    snapshot(str(caught.value))

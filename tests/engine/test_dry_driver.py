"""The dry run: `why` and a real fetch agree for any state, and the store stays as it is."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from curtsy.cache.disk import DiskCache
from curtsy.cache.keys import PageCache
from curtsy.client import AsyncClient
from curtsy.core.amendment import Pause, Trip
from curtsy.core.cache import Entry, url_sha256
from curtsy.core.effects import Send
from curtsy.core.record import Record
from curtsy.core.request import Headers, Reply, Request, Response
from curtsy.core.result import FetchResult
from curtsy.core.rules import Rules, claim, learned
from curtsy.core.time import SECOND, Now
from curtsy.core.url import Url, parse_url
from curtsy.engine.dry_driver import HostRecords, dry_run, read_records
from curtsy.http.body import Sink
from curtsy.http.sender import Limits
from curtsy.observe.why import assess, explain
from curtsy.settings import Settings, load
from curtsy.stores import AsyncStore, Step, open_async_store
from curtsy.stores.memory import MemoryStore
from curtsy.testing import FakeClock
from tests.strategies import ANY, Change, Event, Pass, Play, changes, histories, overrides, reports

AGENT = "testbot/1.0 (+https://example.org/bot)"
URLS = (
    "https://example.org/a",
    "https://www.example.org/private/a",
    "http://93.184.216.34/a",
    "http://10.0.0.1/a",
    "http://10.0.0.1/private/a",
    "http://localhost:8080/a",
)
FILES = (
    b"",
    b"User-agent: *\nDisallow: /private/\n",
    b"User-agent: *\nDisallow: /\n",
    b"User-agent: *\nCrawl-delay: 20\n",
    b"User-agent: *\nCrawl-delay: 900\n",
)


@dataclass(frozen=True)
class Copy:
    """A page in the cache."""

    age: float
    lifetime: float
    stale_if_error: float = 0.0
    etag: str | None = '"1"'


@dataclass(frozen=True)
class Robots:
    """A stored robots.txt: its body (None: unreachable), its age in seconds, and whether another process claims it."""

    body: bytes | None
    age: float
    is_claimed: bool = False


@dataclass(frozen=True)
class State:
    """Everything that decides about a fetch."""

    url: str = URLS[0]
    settings: dict[str, Any] = field(default_factory=dict)
    history: Sequence[Event] = ()
    """What happened to the host, in order."""

    token_age: float | None = None
    """Seconds since the last request to any host; None without one."""

    robots: Robots | None = None
    copy: Copy | None = None


ages = st.sampled_from((0.0, 1.0, 60.0, 299.0, 301.0, 3599.0, 3601.0, 90_000.0))
settings = st.fixed_dictionaries(
    {},
    optional={
        "allow_private": st.booleans(),
        "respect_robots": st.booleans(),
        "robots_unreachable": st.sampled_from(("allow", "disallow")),
        "robots_ttl": st.sampled_from((60.0, 3600.0, 86_400.0)),
        "cache_mode": st.sampled_from(("normal", "offline", "refresh", "revalidate", "off")),
        "denylist": st.sampled_from(([], [], ["example.org"], ["10.0.0.1"])),
        "deny_paths": st.sampled_from(([], ["/private/"])),
        "max_crawl_delay": st.sampled_from((5.0, 300.0, 1000.0)),
        "max_requests_per_day": st.sampled_from((0, 1, 3, 200)),
        "max_pages_per_day": st.sampled_from((0, 1, 2)),
        "qps": st.sampled_from((None, 0.2, 0.8)),
        "concurrency": st.sampled_from((None, 1, 2)),
        "global_qps": st.sampled_from((None, 0.8, 50.0)),
        "breaker": st.booleans(),
        "on_429": st.sampled_from(("obey", "trip", "retry")),
    },
)
states = st.builds(
    State,
    url=st.sampled_from(URLS[:3]) | st.sampled_from(URLS),
    settings=settings,
    history=histories(changes, changes, overrides, reports, size=12),
    token_age=st.none() | st.sampled_from((0.0, 0.5, 5.0)),
    robots=st.none() | st.builds(Robots, st.none() | st.sampled_from(FILES), ages, st.booleans()),
    copy=st.none()
    | st.builds(
        Copy, ages, st.sampled_from((0.0, 600.0, 1e6)), st.sampled_from((0.0, 1e6)), st.sampled_from((None, '"1"'))
    ),
)

PRIVATE_AND_DISALLOWED = State("http://10.0.0.1/private/a", robots=Robots(FILES[1], 1.0))
EXPIRED_BY_A_SHORTER_TTL = State(settings={"robots_ttl": 60.0}, robots=Robots(FILES[0], 301.0))


def replaced_by(record: Record) -> Step[None]:
    return lambda _, now: (record, None)


class Stage:
    """A state as records, a cache and settings, at one moment."""

    def __init__(self, state: State, folder: Path) -> None:
        url = parse_url(state.url)
        assert isinstance(url, Url)
        self.url = url
        self.arguments = {"user_agent": AGENT, "timezone": "UTC", **state.settings}
        self.settings: Settings = load(directory=folder, user_directory=folder, env={}, **self.arguments)
        policies = self.settings.policies
        policy = policies.of(url.domain)
        play = Play([policy])
        play.run(state.history)
        self.now = play.now
        self.records: dict[str, Record] = {}
        if play.host is not None:
            self.records[policy.key_for(url.domain)] = play.host
        if state.token_age is not None:
            tokens = Play([policies.overall])
            tokens.at, tokens.epoch = play.at - round(state.token_age * SECOND), play.epoch
            tokens.ask()
            if tokens.host is not None:
                self.records["global"] = tokens.host
        if state.robots is not None:
            self.records[f"rules:{url.origin}"] = self._rules(state.robots)
        self.cache: PageCache | None = None
        if self.settings.cache_mode != "off":
            self.cache = DiskCache(folder / "pages")
            if state.copy is not None:
                self._cache(self.cache, state.copy)

    def _rules(self, robots: Robots) -> Rules:
        ago = round(robots.age * SECOND)
        then = Now(self.now.at, self.now.epoch - ago, self.now.boot)
        rules = learned(None, then, self.settings.policies.of(self.url.domain), robots.body, "it timed out")
        claimed = claim(rules, self.now, 7, since=self.now.epoch / SECOND + 1, lasts=40.0)[0]
        return claimed if robots.is_claimed and claimed is not None else rules

    def _cache(self, cache: PageCache, copy: Copy) -> None:
        second, text = self.now.epoch / SECOND, self.url.text
        entry = Entry(
            text, url_sha256(text), 200, (), "", 4, fetched_at=second - copy.age, lifetime=copy.lifetime,
            etag=copy.etag, stale_if_error=copy.stale_if_error,
        )  # fmt: skip
        assert cache.keep(entry, b"copy")

    def store(self, clock: FakeClock) -> MemoryStore:
        store = MemoryStore(clock)
        for key, record in self.records.items():
            store.update(key, replaced_by(record))
        return store

    def clock(self) -> FakeClock:
        return FakeClock(self.now.epoch / SECOND, self.now.at / SECOND, self.now.boot)


class Recorder:
    """A sender that notes the first request and its moment, and answers every request with an empty page."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.first: tuple[Request, int] | None = None

    async def send(self, request: Request, limits: Limits) -> Reply:
        if self.first is None:
            self.first = request, self._clock.now().at
        return Response(200, Headers(), b"", 0.0, 0.0, 0)

    async def stream(self, request: Request, limits: Limits, sink: Sink) -> Reply:
        raise NotImplementedError

    async def locate(self, url: Url, limits: Limits) -> str:
        return ""

    async def refused_address(self, url: Url, limits: Limits) -> str | None:
        return None

    async def close(self) -> None:
        """Close nothing."""


async def fetched(stage: Stage, folder: Path) -> tuple[FetchResult, tuple[Request, int] | None]:
    """The result of a real fetch, and the first request with the microsecond in which it left."""
    clock = stage.clock()
    sender = Recorder(clock)
    (folder / "none.yaml").write_text("")
    client = AsyncClient(
        config=folder / "none.yaml", store=stage.store(clock), cache=stage.cache or False, sender=sender, clock=clock,
        stale_while_revalidate=False, max_retries=0, **stage.arguments,
    )  # fmt: skip
    async with client:
        result = await client.fetch(stage.url.text)
    return result, sender.first


@given(states)
@example(PRIVATE_AND_DISALLOWED)
@example(EXPIRED_BY_A_SHORTER_TTL)
@example(State(robots=Robots(FILES[0], 1.0), history=(Change(Trip()),)))
@example(State(robots=Robots(FILES[0], 1.0), history=(Change(Pause(30.0)), Pass(SECOND))))
@example(State(robots=Robots(FILES[4], 1.0)))
@example(State(robots=Robots(None, 1.0), settings={"robots_unreachable": "disallow"}, copy=Copy(700.0, 600.0, 1e6)))
@ANY
def test_why_and_a_fetch_give_the_same_answer(state: State) -> None:
    """U9: reason, request and wait; the first two examples once contradicted each other"""
    with tempfile.TemporaryDirectory() as name:
        stage = Stage(state, Path(name))

        async def both() -> None:
            records = await read_records(stage.url, stage.settings.policies, stage.store(stage.clock()).inner)
            found = await assess(stage.url, stage.settings, records, stage.cache)
            mode = stage.settings.cache_mode
            dry = await dry_run(
                stage.url, stage.settings.policies, records, stage.cache, "normal" if mode == "off" else mode
            )
            result, sent = await fetched(stage, Path(name))

            if isinstance(dry.end, FetchResult):
                assert sent is None
                assert (found.reason, result.reason) == (dry.end.reason, dry.end.reason)
                assert (found.message if found.reason else "") == result.message
                assert found.allowed_in == (pytest.approx(result.retry_after, abs=0.001) if found.reason else 0.0)
                assert (found.verdict == "cached") == result.from_cache
            else:
                assert sent is not None
                assert found.reason is None
                request, at = sent
                assert request == dry.end.request
                assert dry.seconds == pytest.approx((at - stage.now.at) / SECOND, abs=0.001)
                if found.verdict == "allowed" and not dry.end.cut:
                    assert found.allowed_in == dry.seconds

        asyncio.run(both())


STATE = State(
    history=(Change(Trip()), Pass(400 * SECOND)),
    token_age=0.0,
    robots=Robots(FILES[1], 4000.0, is_claimed=True),
    copy=Copy(700.0, 600.0),
)


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_the_store_and_the_cache_stay_as_they_are(kind: str, tmp_path: Path) -> None:
    """U9: no write, no lease, no claim"""
    stage = Stage(STATE, tmp_path)
    clock = stage.clock()
    store: AsyncStore
    if kind == "memory":
        store = stage.store(clock).inner
    else:
        store = open_async_store(f"sqlite:///{tmp_path}/state.sqlite", clock=clock, fallback=False)
        for key, record in stage.records.items():
            await store.update(key, replaced_by(record))
    assert stage.cache is not None

    async def contents() -> tuple[dict[str, Any], list[Entry]]:
        assert stage.cache is not None
        return {key: await store.read(key) for key in await store.keys()}, list(stage.cache.entries())

    before = await contents()
    for text in (stage.url.text, "https://example.org/other", "https://unknown.example/"):
        url = parse_url(text)
        assert isinstance(url, Url)
        await explain(url, stage.settings, store, stage.cache)

    assert len(before[0]) == 3
    assert await contents() == before
    await store.close()


async def test_the_trace_shows_each_effect_up_to_the_request(tmp_path: Path) -> None:
    """U9: the same flow as a fetch, stopped where it would send"""
    stage = Stage(State(robots=Robots(FILES[0], 1.0)), tmp_path)
    store = stage.store(stage.clock()).inner
    records = await read_records(stage.url, stage.settings.policies, store)

    dry = await dry_run(stage.url, stage.settings.policies, records, stage.cache)
    unknown = await dry_run(stage.url, stage.settings.policies, HostRecords(stage.now), stage.cache)

    assert [type(effect).__name__ for effect, _ in dry.effects] == ["Recall", "Claim", "Enter"]
    assert [isinstance(each.end, Send) and each.end.request.url.text for each in (dry, unknown)] == [
        "https://example.org/a", "https://example.org/robots.txt"
    ]  # fmt: skip

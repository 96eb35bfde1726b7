"""A hand that answers a flow, and a world that stands still."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from curtsy.core.cache import Entry, Mode, entry_of
from curtsy.core.decision import Go, Lease, Settled
from curtsy.core.effects import Claim, Effect, Enter, FetchRequest, Hold, Later, Learn, MayRetry, Send, Settle
from curtsy.core.flow import fetch
from curtsy.core.policy import Policies, Policy
from curtsy.core.request import Headers, Request, Response
from curtsy.core.result import FetchResult
from curtsy.core.rules import Claimed, Known, Rules
from curtsy.core.url import Url, parse_url

URL = "https://example.org/a"


class Ticket:
    """A request that may leave now."""

    def __init__(self, waited: float = 0.0) -> None:
        self.go = Go(Lease(1, 0, 35.0, True), 199, 99)
        self.waited = waited


class World:
    """A world that stands still, but for what `Hand` does to its clock."""

    def __init__(self, policies: Policies | None = None, cache_mode: Mode | None = None) -> None:
        self.policies = policies or Policies(Policy(), user_agent="testbot/1.0")
        self.has_cache = cache_mode is not None
        self.cache_mode: Mode = cache_mode or "normal"
        self.stale_if_error = 0.0
        self.max_retries: int | None = None
        self.seconds = 1000.0
        self.keeps_cookies = False
        self.cookies: list[str] = []
        self.agents: dict[str, float] = {}
        self.rules: Rules | None = None
        """What the last one learned."""

        self.retries_put_back = 0

    def now(self) -> float:
        return self.seconds

    def epoch(self) -> float:
        return 1_800_000_000.0 + self.seconds

    def refused_address(self, url: Url) -> str | None:
        return "127.0.0.1 is loopback" if url.host == "127.0.0.1" else None

    def known_rules(self, origin: str, ttl: float = math.inf) -> Known | None:
        return None if self.rules is None else Known(self.rules, 3600.0)

    def is_foreign(self, one: Url, other: Url) -> bool:
        return one.host != other.host

    def put_back_retry(self) -> None:
        self.retries_put_back += 1

    def heeded(self, origin: str) -> dict[str, float]:
        return self.agents

    def cookies_for(self, url: Url) -> str | None:
        return None

    def take_cookies(self, url: Url, headers: Headers) -> None:
        self.cookies.append(url.text)

    def roll(self) -> float:
        return 0.5


class Hand:
    """Answers a flow: by the answers given for a kind of effect, in turn, the last of which stays; else as usual."""

    def __init__(self, world: World | None = None, **answers: Iterable[Any]) -> None:
        self.world = world or World()
        self.effects: list[Effect] = []
        self.answers: list[Any] = []
        self._answers = {name: list(given) for name, given in answers.items()}

    def carry(self, ask: FetchRequest) -> FetchResult:
        """Carry a fetch to its end."""
        flow = fetch(ask, self.world)
        answer: Any = None
        while True:
            try:
                effect = flow.send(answer)
            except StopIteration as end:
                result = end.value
                assert isinstance(result, FetchResult)
                return result
            self.effects.append(effect)
            answer = self._answer(effect)
            if isinstance(answer, Known | Rules):
                self.world.rules = answer.rules if isinstance(answer, Known) else answer
            self.answers.append(answer)

    def _answer(self, effect: Effect) -> Any:
        given = self._answers.get(type(effect).__name__.lower())
        if given:
            answer = given[0] if len(given) == 1 else given.pop(0)
            if isinstance(answer, Ticket):
                self.world.seconds += answer.waited
            return answer
        match effect:
            case Enter():
                return Ticket()
            case Send():
                return Response(200, Headers(), b"x", wire_bytes=1)
            case Claim():
                return Known(Rules(body=b""), 3600.0)
            case Hold():
                return Claimed(None)
            case Learn():
                return Rules(body=effect.body, failures=0 if effect.body is not None else 1)
            case MayRetry() | Later():
                return True
            case Settle():
                return Settled(0.0)
            case _:
                return None

    def kinds(self) -> list[str]:
        """The kinds of effects, in order."""
        return [type(effect).__name__ for effect in self.effects]

    def of(self, kind: type[Any]) -> list[Any]:
        """All effects of a kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]


def robots(body: bytes) -> Response:
    return Response(200, Headers(), body)


def kept(headers: dict[str, str], age: float = 0.0) -> tuple[Entry, bytes]:
    parsed = parse_url(URL)
    assert isinstance(parsed, Url)
    entry = entry_of(Request(parsed), Response(200, Headers(headers.items()), b"kept"), 1_800_001_000.0 - age)
    assert entry is not None
    return entry, b"kept"

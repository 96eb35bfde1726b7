"""RobotsTxtChecker: permission and Crawl-delay of a URL by robots.txt (R9)."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from curtsy.client import AsyncClient, session_of
from curtsy.core import messages
from curtsy.core.errors import Reason
from curtsy.core.fetch_state import Refusal
from curtsy.core.request import Failure
from curtsy.core.robots import Verdict
from curtsy.core.rules import Rules, crawl_delay, filters
from curtsy.core.setting import DAY, number, rule
from curtsy.core.url import Url, parse_url
from curtsy.engine.arguments import check_names
from curtsy.engine.context import rules_key
from curtsy.stores.memory import MemoryStore

USER_AGENT = "AIAssistantBot/1.0"
"""User agent if neither an argument nor the settings name one (R10, C7)."""

_OURS = {
    "cache": "left out, because a checker caches no pages. Its robots.txt rules are in its store",
    "robots_ttl": "given as cache_ttl",
    "robots_timeout": "given as timeout",
}
"""Client arguments that a checker does not accept, with the alternative."""


class RobotsTxtChecker:
    """Checker of URLs against robots.txt, which it fetches once per origin and keeps for `cache_ttl` seconds.

    By default it has its own client with a store in memory. With `client`, it uses that client's pace, store and
    settings. An unavailable robots.txt allows everything, unless the setting `robots_unreachable` is `disallow`.
    """

    def __init__(
        self,
        user_agent: str | None = None,
        cache_ttl: float = 3600,
        timeout: float = 10.0,
        *,
        client: AsyncClient | None = None,
        **settings: Any,
    ) -> None:
        number("cache_ttl", cache_ttl, most=DAY, default=3600)
        number("timeout", timeout, above=True, default=10.0)
        if client is not None and not isinstance(client, AsyncClient):
            raise rule("client", client, "an AsyncClient, or left out for one of the checker's own")
        for name, must in _OURS.items():
            if name in settings:
                raise rule(name, settings[name], must)
        check_names(settings, ("cache_ttl", "client"), "RobotsTxtChecker", unused=_OURS)
        if user_agent is None:
            user_agent = _configured_agent(settings.get("config"))
        self.user_agent = user_agent
        self._owns_client = client is None
        settings.setdefault("store", MemoryStore(settings.get("clock")))
        self._client = client or AsyncClient(
            user_agent=user_agent, cache=False, robots_ttl=cache_ttl, robots_timeout=timeout, **settings
        )
        self._session = session_of(self._client)

    async def is_allowed(self, url: str) -> bool:
        """Return whether the URL may be fetched; False if it is not an http or https URL."""
        return (await self.verdict(url)).allowed

    async def verdict(self, url: str) -> Verdict:
        """Return the same with the deciding line and the reason as text."""
        parsed = parse_url(url)
        if not isinstance(parsed, Url):
            return Verdict(False, None, None, None, f"{parsed.why}, so it cannot be fetched")
        rules = await self._session.rules_of(parsed, self.user_agent)
        is_out_of_reach = isinstance(rules, Failure) and rules.ended_at_proxy
        if is_out_of_reach or (isinstance(rules, Refusal) and rules.reason is not Reason.DOMAIN_DENIED):
            # The host is blocked by its breaker or budget, or is unreachable: its last copy applies (R6).
            rules = await self._session.store.read(rules_key(parsed.origin)) or Rules()
        if isinstance(rules, Refusal):
            return Verdict(False, None, None, None, messages.denied(parsed))
        if isinstance(rules, Failure):
            return Verdict(False, None, None, None, messages.failed(parsed, rules, 1))
        if rules is None:
            return Verdict(False, None, None, None, "the client was closed during the request for robots.txt")
        return filters(rules, self._session.policies.of(parsed.domain), self.user_agent, parsed.text)

    def get_crawl_delay(self, url: str) -> float | None:
        """Return the site's Crawl-delay in seconds; None if robots.txt has none or is not yet known."""
        parsed = parse_url(url)
        rules = self._session.known_rules(parsed.origin) if isinstance(parsed, Url) else None
        return None if rules is None else crawl_delay(rules, self.user_agent)

    def clear_cache(self) -> None:
        """Make every robots.txt expire, so that the next check fetches it again."""
        self._session.forget_rules()

    async def close(self) -> None:
        """Close the checker's own client. Idempotent."""
        if self._owns_client:
            await self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _configured_agent(config: str | None) -> str:
    """Return the user agent of files or environment (`RAG_USER_AGENT`); else `USER_AGENT`."""
    from curtsy.settings import load  # late import: settings are slow to import

    settings = load(config=config)
    return USER_AGENT if settings.origin(None, "user_agent") == "built-in" else settings.user_agent

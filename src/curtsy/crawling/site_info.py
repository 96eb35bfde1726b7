"""Origins: what robots.txt says beside its rules: where the sitemaps are, and what may be done with the pages."""

from __future__ import annotations

from curtsy.client import AsyncClient
from curtsy.core.message import Url, parse_url
from curtsy.core.rules import agent_rules

MOST_SIGNALS = 1000
"""Texts of robots.txt of which it is remembered what they say about AI."""


class SiteInfo:
    """What is known of origins from the rules that the client has; nothing is asked for."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._met: set[str] = set()
        self._signals: dict[int, tuple[str, ...]] = {}
        """By the hash of a text, which may be long, and is the same on many hosts."""

    def sitemaps(self, origin: str, most: int) -> list[str]:
        """The first sitemaps that an origin names, or else their usual place; none if it was met before."""
        if origin in self._met:
            return []
        self._met.add(origin)
        base = parse_url(origin + "/")
        assert isinstance(base, Url)
        text = self._text(origin)
        named = agent_rules(text, self._client.policies.user_agent).sitemaps[:most] if text else ()
        urls = [each.text for name in named if isinstance(each := parse_url(name, base), Url)]
        return urls or [f"{origin}/sitemap.xml"]

    def signals(self, origin: str) -> tuple[str, ...]:
        """What an origin says about AI, a field and its value each."""
        text = self._text(origin)
        if not text:
            return ()
        key = hash(text)
        known = self._signals.get(key)
        if known is None:
            said = agent_rules(text, self._client.policies.user_agent).content_signals
            known = tuple(f"{each.field}: {each.value[:200]}" for each in said)
            if len(self._signals) >= MOST_SIGNALS:
                self._signals.clear()
            self._signals[key] = known
        return known

    def _text(self, origin: str) -> bytes | None:
        rules = self._client.known_rules(origin)
        return None if rules is None else rules.text

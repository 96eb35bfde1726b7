"""Information in robots.txt besides its rules: sitemaps and the permitted use of pages."""

from __future__ import annotations

from curtsy.client import AsyncClient
from curtsy.core.message import Url, parse_url
from curtsy.core.rules import agent_rules

MOST_SIGNALS = 1000
"""Maximum number of robots.txt texts with remembered AI signals."""


class SiteInfo:
    """Information on origins from the rules that the client has cached; it sends no requests."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._met: set[str] = set()
        self._signals: dict[int, tuple[str, ...]] = {}
        """AI signals by the hash of a text. Texts may be long and are often equal on many hosts."""

    def sitemaps(self, origin: str, most: int) -> list[str]:
        """Return the first `most` sitemaps of an origin, or their usual path; empty if it was met before."""
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
        """Return the AI signals of an origin, each as a field with its value."""
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

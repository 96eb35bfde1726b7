"""A web for crawlers: hosts on loopback with a link graph, and how they are crawled without waiting."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from curtsy.crawling.crawl import AsyncCrawl
from curtsy.crawling.start import acrawl
from curtsy.testing import FakeClock
from tests.support.noon import zone_at_noon
from tests.support.site import AnyName, Site

QUICK: dict[str, Any] = {"preset": "own", "allow_private": True, "cache": False, "store": "memory:"}
"""No pauses: what is fetched, and in which order, is what counts."""


def html(*links: str, title: str = "A page", head: str = "", text: str = "") -> str:
    """A page with links."""
    anchors = "".join(f'<li><a href="{link}">{link}</a></li>' for link in links)
    return f"<!doctype html><html><head><title>{title}</title>{head}</head><body>{text}<ul>{anchors}</ul></body></html>"


def graph(site: Site, pages: Mapping[str, Iterable[str]], host: str | None = None) -> None:
    """Pages by path, each with its links."""
    for path, links in pages.items():
        site.page(path, html(*links, title=path), host=host)


def polite(**given: Any) -> dict[str, Any]:
    """The default manners on a fake clock that is set right, far from midnight: a pause takes no time."""
    there = {"allow_private": True, "cache": False, "global_qps": None, "timezone": zone_at_noon()}
    return {**there, "clock": FakeClock(time.time()), **given}


async def crawled(site: Site, path: str = "/", **given: Any) -> tuple[list[str], AsyncCrawl]:
    """The paths of the pages that a crawl brought, in order, and the crawl."""
    async with acrawl(site.url(path), **{**QUICK, **given}) as crawl:
        found = [page.url async for page in crawl]
    return [url.removeprefix(site.url("")) for url in found], crawl


__all__ = ["QUICK", "AnyName", "crawled", "graph", "html", "polite"]

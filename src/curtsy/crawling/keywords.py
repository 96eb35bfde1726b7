"""Keyword arguments of a crawl, for type checkers. One list keeps `crawl()` and `acrawl()` consistent.

`CrawlOptions` documents the meaning and bounds of each option.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Literal

from curtsy.client import AsyncClient
from curtsy.crawling.options import ScopeKind
from curtsy.crawling.outputs import Output
from curtsy.crawling.progress import Snapshot
from curtsy.engine.keywords import ClientKeywords


class OptionKeywords(ClientKeywords, total=False):
    """Options of a crawl and of its client."""

    scope: ScopeKind
    domains: str | list[str] | tuple[str, ...]
    match: str | list[str] | tuple[str, ...]
    skip: str | list[str] | tuple[str, ...]
    depth: int | None
    files: Literal["pages", "all"] | list[str] | tuple[str, ...]
    max_pages: int | None
    max_pages_per_host: int | None
    max_links_per_page: int
    max_time: float | None
    max_bytes: int | None
    patience: float
    max_concurrent: int
    sitemaps: bool
    max_sitemaps: int
    obey_nofollow: bool
    obey_noindex: bool
    obey_canonical: bool
    drop_duplicates: bool
    avoid_traps: bool
    text: Literal["none", "plain", "trafilatura"]


class CrawlKeywords(OptionKeywords, total=False):
    """All keyword arguments of a crawl."""

    job: str | os.PathLike[str] | None
    fresh: bool
    outputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str] | Output]
    client: AsyncClient | None
    lease: float
    on_progress: Callable[[Snapshot], None] | None

"""Keyword arguments of a crawl, for type checkers.

Generated from the declarations by tools/keywords.py. Do not edit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from curtsy.client import AsyncClient
from curtsy.crawling.outputs.protocol import Output
from curtsy.crawling.progress import CrawlSnapshot
from curtsy.crawling.results import CrawledPage
from curtsy.engine.keywords import ClientKeywords


class OptionKeywords(ClientKeywords, total=False):
    """Options of a crawl, and arguments of its client."""

    scope: Literal["host", "site", "domains", "prefix", "any"]
    domains: str | list[str] | tuple[str, ...]
    match: str | list[str] | tuple[str, ...]
    skip: str | list[str] | tuple[str, ...]
    max_depth: int | None
    files: Literal["pages", "all"] | list[str] | tuple[str, ...]
    max_pages: int | None
    max_pages_per_host: int | None
    max_links_per_page: int
    max_time: float | None
    max_bytes: int | None
    patience: float
    sitemaps: bool
    max_sitemaps: int
    requisites: Literal["none", "site", "any"]
    obey_nofollow: bool
    obey_noindex: bool
    obey_canonical: bool
    drop_duplicates: bool
    avoid_traps: bool
    main_text: Literal["plain", "trafilatura"] | None
    extract: Mapping[str, str] | Callable[[CrawledPage], Mapping[str, Any] | None] | None


class CrawlKeywords(OptionKeywords, total=False):
    """Arguments of a crawl."""

    job: str | os.PathLike[str] | None
    restart: bool
    outputs: str | os.PathLike[str] | Iterable[str | os.PathLike[str] | Output]
    durable: bool
    client: AsyncClient | None
    shared: bool
    lease: float
    workers: int | Literal["auto"]
    on_progress: Callable[[CrawlSnapshot], None] | None

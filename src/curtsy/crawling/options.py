"""CrawlOptions: the limits, the scope and the obeyed directives of a crawl."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from curtsy.core.errors import PolicyError
from curtsy.core.policy import number, rule

ScopeKind = Literal["host", "site", "domains", "prefix", "any"]

PATIENCE = 600.0
"""Seconds that a crawl waits for the next due host. If none is due by then, it stops and reports when to resume."""

SITEMAPS = 1000
"""Maximum sitemaps of a site: they list up to 50 million URLs."""

MAX_LINKS = 20_000
"""Maximum links of one page."""

CONCURRENCY = 64
"""Maximum requests on the wire, over all hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlOptions:
    """Options of a crawl. Pace, budget and robots.txt of a host are in its policy."""

    scope: ScopeKind = "site"
    """Scope of links: the seeds' hosts, their sites (`example.org` with all hosts under it), `domains`, URLs with a
    seed as prefix, or any."""

    domains: tuple[str, ...] = ()
    """Domains for the scope `domains`, with the hosts under them."""

    match: tuple[str, ...] = ()
    """Regular expressions, searched in the URL. If there are any, one must match. Seeds are fetched anyway."""

    skip: tuple[str, ...] = ()
    """Regular expressions, searched in the URL: a URL that one matches is skipped."""

    depth: int | None = None
    """Maximum links from a seed; None for no limit, 0 for the seeds alone."""

    files: Literal["pages", "all"] | tuple[str, ...] = "pages"
    """File types by the URL's ending: possible pages, all, or pages and these endings (`.pdf`)."""

    max_pages: int | None = None
    """Maximum pages, including earlier runs of the job; None for no limit."""

    max_pages_per_host: int | None = None
    """Maximum pages of each host, over all runs and workers of the job; None for no limit. Requests in flight
    at a kill are repeated, and count when they are written."""

    max_links_per_page: int = MAX_LINKS
    """Maximum links of one page. The first ones are used, and `links_cut` counts the rest."""

    max_time: float | None = None
    """Maximum duration of this run in seconds; None for no limit."""

    max_bytes: int | None = None
    """Maximum body bytes over the network in this run; None for no limit. Requests in flight still finish."""

    patience: float = PATIENCE
    """Maximum seconds to wait for the next due host."""

    max_concurrent: int = CONCURRENCY
    """Maximum requests on the wire, over all hosts. The limit of one host is in its policy."""

    sitemaps: bool = False
    """True to read the sitemaps named in robots.txt, or else /sitemap.xml. With `max_pages`, they are read one at a
    time, and only while too few URLs are queued."""

    max_sitemaps: int = SITEMAPS
    """Maximum sitemaps of each site, over all runs of the job. At most 3 of them are named in robots.txt on
    hosts outside the crawl."""

    obey_nofollow: bool = True
    """True to skip links with `rel=nofollow`, and all links of pages that say `nofollow`."""

    obey_noindex: bool = True
    """True to leave pages that say `noindex` out of the results. Their links are followed."""

    obey_canonical: bool = True
    """True to fetch the canonical URL instead of a page that names one in the scope."""

    drop_duplicates: bool = False
    """True to drop a page with the same body as an earlier one of this run."""

    avoid_traps: bool = True
    """True to remove session ids from URLs and to skip links that look endless."""

    text: Literal["none", "plain", "trafilatura"] = "none"
    """Method that extracts the main text. It costs more CPU time than the fetch."""

    def __post_init__(self) -> None:
        for name in ("domains", "match", "skip", "files"):
            if not isinstance(getattr(self, name), Iterable):
                raise rule(name, getattr(self, name), "several texts, such as a tuple")
        for name in ("depth", "max_pages", "max_pages_per_host", "max_bytes"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise PolicyError(f"{name} = {value!r} must be a whole number from 0. Leave it out for no limit.")
        maps = self.max_sitemaps
        if isinstance(maps, bool) or not isinstance(maps, int) or maps < 0:
            raise PolicyError(f"max_sitemaps = {maps!r} must be a whole number from 0. Leave it out for {SITEMAPS:,}.")
        for name, default in (("max_concurrent", CONCURRENCY), ("max_links_per_page", MAX_LINKS)):
            most = getattr(self, name)
            if isinstance(most, bool) or not isinstance(most, int) or most < 1:
                raise PolicyError(f"{name} = {most!r} must be a whole number from 1. Leave it out for {default:,}.")
        number("patience", self.patience)
        if self.max_time is not None:
            number("max_time", self.max_time)
        for name, choices in (
            ("scope", ("host", "site", "domains", "prefix", "any")),
            ("text", ("none", "plain", "trafilatura")),
        ):
            if getattr(self, name) not in choices:
                raise PolicyError(f"{name} = {getattr(self, name)!r} must be one of {', '.join(choices)}.")
        if self.scope == "domains" and not self.domains:
            raise PolicyError('scope = "domains" needs some. Give domains=("example.org", …), or another scope.')

"""CrawlOptions: what a crawl may take, where it may go and what it obeys."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from curtsy.core.errors import PolicyError
from curtsy.core.policy import number, rule

ScopeKind = Literal["host", "site", "domains", "prefix", "any"]

PATIENCE = 600.0
"""Seconds that a crawl waits when nothing may be asked sooner; then it stops, and says when to go on."""

SITEMAPS = 1000
"""Sitemaps of a site that are read: they list up to 50 million URLs."""

MAX_LINKS = 20_000
"""Links of one page that are taken."""

CONCURRENCY = 64
"""Requests on the wire at once, over all hosts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlOptions:
    """How to crawl. What concerns a host's pace, budget and robots.txt is not here: that is its policy's."""

    scope: ScopeKind = "site"
    """Where links may lead: the seeds' hosts, their sites (`example.org` with all hosts under it), `domains`, what
    begins like a seed, or anywhere."""

    domains: tuple[str, ...] = ()
    """For the scope `domains`: these, and the hosts under them."""

    match: tuple[str, ...] = ()
    """Regular expressions, searched in the URL: if there are any, one must be found. Seeds are fetched anyway."""

    skip: tuple[str, ...] = ()
    """Regular expressions, searched in the URL: none may be found."""

    depth: int | None = None
    """Links from a seed at most; None for any number, 0 for the seeds alone."""

    files: Literal["pages", "all"] | tuple[str, ...] = "pages"
    """Which file types, by the URL's ending: what may be a page, all, or pages and these (`.pdf`)."""

    max_pages: int | None = None
    """Pages in all, an earlier part of the same job included."""

    max_pages_per_host: int | None = None
    """Pages of each host, over all parts and all workers of the same job. What was in flight at a kill is asked for
    again, and counts when it is written."""

    max_links_per_page: int = MAX_LINKS
    """Links of one page that are taken. Of a page with more of them the first are, and `links_cut` counts the rest."""

    max_time: float | None = None
    """Seconds for this run."""

    max_bytes: int | None = None
    """Bytes of bodies over the network in this run; what is under way then still comes."""

    patience: float = PATIENCE
    """Seconds to wait when nothing may be asked sooner."""

    max_concurrent: int = CONCURRENCY
    """Requests on the wire at once, over all hosts; how many of one host, its policy says."""

    sitemaps: bool = False
    """Whether the sitemaps that robots.txt names, or else /sitemap.xml, are read for URLs. With `max_pages`, they are
    read one at a time, and only while too few pages wait."""

    max_sitemaps: int = SITEMAPS
    """Sitemaps of each site that are fetched, over all parts of the same job; of them, at most 3 that robots.txt
    names on hosts that are no part of the crawl."""

    obey_nofollow: bool = True
    """Whether links with `rel=nofollow`, and those of pages that say `nofollow`, are left alone."""

    obey_noindex: bool = True
    """Whether pages that say `noindex` are left out of the results. Their links are followed."""

    obey_canonical: bool = True
    """Whether a page that names another URL of the scope as its canonical one is left out, and that one fetched."""

    drop_duplicates: bool = False
    """Whether a page with the very same body as an earlier one of this run is left out."""

    avoid_traps: bool = True
    """Whether session ids are taken out of URLs, and links that look endless are left alone."""

    text: Literal["none", "plain", "trafilatura"] = "none"
    """Whether, and how, the main text is made out. It costs more than the fetch."""

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

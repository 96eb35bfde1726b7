"""CrawlOptions: the limits, the scope and the obeyed directives of a crawl."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from curtsy.core.errors import PolicyError
from curtsy.core.setting import Range, check_fields, rule
from curtsy.crawling.extract.fields import fields_of
from curtsy.crawling.extract.page import MAX_LINKS
from curtsy.engine.arguments import check_parts

ScopeKind = Literal["host", "site", "domains", "prefix", "any"]


DEFINING = (
    "scope", "domains", "match", "skip", "max_depth", "files", "requisites", "extract", "sitemaps", "obey_nofollow",
    "obey_noindex", "obey_canonical", "drop_duplicates", "avoid_traps",
)  # fmt: skip
"""Options that define what is crawled. Others limit a run, or say what is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrawlOptions:
    """Options of a crawl. Pace, budget and robots.txt of a host are in its policy."""

    scope: ScopeKind = "site"
    """Scope of links: the seeds' hosts, their sites (`example.org` with all hosts under it), `domains`, the
    folders of the seeds with everything under them, or any. A redirect of a seed adds its target."""

    domains: tuple[str, ...] = ()
    """Domains for the scope `domains`, with the hosts under them."""

    match: tuple[str, ...] = ()
    """Regular expressions, searched in the URL. If there are any, one must match. Seeds are fetched anyway."""

    skip: tuple[str, ...] = ()
    """Regular expressions, searched in the URL: a URL that one matches is skipped."""

    max_depth: Annotated[int | None, Range()] = None
    """Maximum links from a seed; None for no limit, 0 for the seeds alone."""

    files: Literal["pages", "all"] | tuple[str, ...] = "pages"
    """File types by the URL's ending: possible pages, all, or pages and these endings (`.pdf`)."""

    max_pages: Annotated[int | None, Range(unit="pages")] = None
    """Maximum pages, including earlier runs of the job; None for no limit."""

    max_pages_per_host: Annotated[int | None, Range(unit="pages")] = None
    """Maximum pages of each host, over all runs and workers of the job; None for no limit. Requests in flight
    at a kill are repeated, and count when they are written."""

    max_links_per_page: Annotated[int, Range(1, unit="links")] = MAX_LINKS
    """Maximum links of one page. The first ones are used, and `links_cut` counts the rest."""

    max_time: Annotated[float | None, Range(unit="seconds")] = None
    """Maximum duration of this run in seconds; None for no limit."""

    max_bytes: Annotated[int | None, Range(unit="bytes")] = None
    """Maximum body bytes over the network in this run; None for no limit. Requests in flight still finish."""

    patience: Annotated[float, Range(unit="seconds")] = 600.0
    """Maximum seconds to wait for the next due host. If none is due by then, the crawl stops and says when to resume.
    """

    max_in_flight: Annotated[int, Range(1, unit="requests")] = 64
    """Maximum requests on the wire, over all hosts. The limit of one host is in its policy."""

    sitemaps: bool = False
    """True to read the sitemaps named in robots.txt, or else /sitemap.xml. With `max_pages`, they are read one at a
    time, and only while too few URLs are queued."""

    max_sitemaps: Annotated[int, Range()] = 1000
    """Maximum sitemaps of each site, over all runs of the job. At most 3 of them are named in robots.txt on
    hosts outside the crawl."""

    requisites: Literal["none", "site", "any"] = "none"
    """Images, styles, scripts, fonts and frames that pages need: none, those of the page's site and of the crawl's
    domains, or any. They count as requests, not as pages, and are fetched beyond `max_depth` and `max_pages`."""

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

    main_text: Literal["plain", "trafilatura"] | None = None
    """Method that extracts the main text of pages; None to leave it out. It costs more CPU time than the fetch."""

    extract: Mapping[str, str] | Callable[..., Any] | None = None
    """Fields to extract from each page: CSS selectors by name, such as `{"title": "h1", "links[]": "a::url(href)"}`, or
    a function that takes the `CrawledPage` and returns a dict."""

    def __post_init__(self) -> None:
        for name in ("domains", "match", "skip", "files"):
            given = getattr(self, name)
            if isinstance(given, str) and name != "files":
                object.__setattr__(self, name, (given,))
            elif isinstance(given, Iterable) and not isinstance(given, str | bytes):
                object.__setattr__(self, name, tuple(given))
        check_fields(self)
        if isinstance(self.extract, Mapping):
            object.__setattr__(self, "extract", dict(self.extract))
            fields_of(self.extract)
        else:
            check_parts(extract=self.extract)
        if not isinstance(self.files, str | tuple):
            raise rule("files", self.files, "pages, all, or file endings such as ('.pdf',)", "pages")
        if self.scope == "domains" and not self.domains:
            raise PolicyError('scope = "domains" needs some. Give domains=("example.org", …), or another scope.')

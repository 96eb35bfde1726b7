"""Texts for the reasons why a URL gave no page, with advice."""

from __future__ import annotations

from typing import NamedTuple

from curtsy.core.errors import Reason
from curtsy.crawling.committer import TOO_MANY_LINKS
from curtsy.crawling.extract.scope import OutOfScope
from curtsy.crawling.filters import NO_SITEMAP
from curtsy.crawling.reader import DUPLICATE, NOINDEX, NOT_CANONICAL


class Words(NamedTuple):
    """Text of a reason."""

    what: str
    advice: str
    """Empty if the user can do nothing."""


_LATER = "Try again later."

_WORDS: dict[str, Words] = {
    Reason.INVALID_URL: Words("no URL that can be asked for", "Correct the link."),
    Reason.DOMAIN_DENIED: Words("on your denylist", "Take the host off the list to have it."),
    Reason.PATH_DENIED: Words("a path that your settings refuse", "Change deny_paths to have it."),
    Reason.ADDRESS_REFUSED: Words(
        "an address that is private, or out of this machine's reach", "--allow-private opens it, for sites of your own."
    ),
    Reason.ROBOTS_DISALLOWED: Words("forbidden by robots.txt", "Ask the site's owner, or leave it out with --skip."),
    Reason.ROBOTS_UNREACHABLE: Words("robots.txt could not be had", _LATER),
    Reason.CRAWL_DELAY_TOO_LONG: Words(
        "a Crawl-delay too long to wait for", "Raise max_crawl_delay to wait that long."
    ),
    Reason.NOT_IN_CACHE: Words("not in the cache, which is offline", "Fetch it once online."),
    Reason.TIMEOUT: Words("no answer in time", _LATER),
    Reason.DNS_ERROR: Words("a host that has no address", "Check the name."),
    Reason.CONNECTION_ERROR: Words("no connection", _LATER),
    Reason.TLS_ERROR: Words("no secure connection", "If its certificate is not in order, tell the site's owner."),
    Reason.BAD_RESPONSE: Words("an answer that is not HTTP", "Tell the site's owner."),
    Reason.INCOMPLETE: Words("an answer that broke off", _LATER),
    Reason.TOO_LARGE: Words("too large", "Raise max_body, or use curtsy download."),
    Reason.TOO_SLOW: Words("too slow", _LATER),
    Reason.TOO_MANY_REDIRECTS: Words(
        "redirected too often", "If it wants a cookie, --cookies keeps it; else raise max_redirects."
    ),
    Reason.BAD_REDIRECT: Words("redirected to nowhere", "Tell the site's owner."),
    OutOfScope.OTHER_HOST: Words("on another host", "--scope site, or --domain HOST, takes it in."),
    OutOfScope.OTHER_SITE: Words("on another site", "--domain DOMAIN takes it in."),
    OutOfScope.OTHER_DOMAIN: Words("on another domain", "--domain DOMAIN takes it in."),
    OutOfScope.OUTSIDE_PREFIX: Words("outside the folder of the seeds", "--scope host takes it in."),
    OutOfScope.TOO_DEEP: Words("too many links away", "Raise --depth to have it."),
    OutOfScope.NOT_MATCHED: Words("not matched by --match", "A further --match takes it in."),
    OutOfScope.SKIPPED: Words("matched by --skip", ""),
    OutOfScope.FILE_TYPE: Words("no page, by its ending", "--files ENDING, or --files all, takes it in."),
    OutOfScope.TRAP: Words("looks like a trap without end", "--traps takes it in."),
    OutOfScope.TOO_LONG: Words("too long, as traps are", "--traps takes it in."),
    TOO_MANY_LINKS: Words("on a page with too many links", "Raise --max-links-per-page to take more of them."),
    NOINDEX: Words("says noindex, so it was not kept", "--keep-noindex keeps it."),
    NOT_CANONICAL: Words("names another URL as its own", "--keep-copies keeps it."),
    DUPLICATE: Words("the same as an earlier page", ""),
    NO_SITEMAP: Words("no sitemap there", ""),
    "host_limit": Words("beyond the pages per host", "Raise --limit-per-host to have it."),
    "reader_crashed": Words("ended the process each time", "Please report it."),
    "error": Words("a fault of curtsy's own", "Please report it."),
}


def words_for(reason: str) -> Words:
    """Return the text of a reason; an unknown reason is its own text."""
    name, _, status = reason.partition(" ")
    if name == Reason.HTTP_STATUS and status.isdecimal():
        return _status(int(status))
    return _WORDS.get(reason) or Words(reason.replace("_", " "), "")


def _status(status: int) -> Words:
    match status:
        case 404 | 410:
            return Words(f"not there ({status})", "Tell the site's owner of the broken link, or let it be.")
        case 401 | 403:
            return Words(f"not for us ({status})", "Ask the site's owner for access.")
        case 429:
            return Words("the site wants us to slow down (429)", "Go on later, and slower.")
        case _ if status >= 500:
            return Words(f"the site failed ({status})", _LATER)
        case _:
            return Words(f"answered with status {status}", "")

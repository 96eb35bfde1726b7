"""Messages for URLs without a page: what happened, why, and what to do."""

from __future__ import annotations

from curtsy.core.secrets import mask_url


def noindex(url: str) -> str:
    """Return the message for a page that says noindex."""
    return f"{mask_url(url)} says noindex, so it is not kept. Use obey_noindex=False to have it."


def not_canonical(url: str, canonical: str) -> str:
    """Return the message for a page that is replaced by its canonical URL."""
    named = f"it names {mask_url(canonical)} as its own URL"
    return f"not keeping {mask_url(url)}: {named}. Use obey_canonical=False to have both."


def duplicate(url: str, first: str) -> str:
    """Return the message for a page with the body of an earlier one."""
    return f"not keeping {mask_url(url)}: it is the same as {mask_url(first)}. Use drop_duplicates=False to have both."


def no_sitemap(url: str) -> str:
    """Return the message for a page to which a sitemap URL redirects."""
    return f"not keeping {mask_url(url)}: a sitemap redirects here, and it is none. Let it be."


def bad_redirect(url: str, why: str | None) -> str:
    """Return the message for a redirect without a valid target. `why` is None if the target is missing."""
    where = "it redirects to where nobody can follow" + (f": {why}" if why else "")
    return f"{mask_url(url)} could not be fetched: {where}. Tell the site's owner, or leave it out."


def redirected_in_circle(url: str) -> str:
    """Return the message for a URL that redirects in a circle."""
    advice = "If it wants a cookie back, keep them (cookies=True); else leave it out."
    return f"{mask_url(url)} could not be fetched: it redirects in a circle. {advice}"


def redirected_too_often(url: str, most: int) -> str:
    """Return the message for a URL with more than `most` redirects."""
    return (
        f"{mask_url(url)} could not be fetched: it was redirected more than {most} times. Raise max_redirects to "
        "follow further, or leave it out."
    )


def redirected_outside(url: str, target: str) -> str:
    """Return the message for a redirect out of the scope."""
    led = f"it redirects to {mask_url(target)}, which is no part of the crawl"
    return f"not keeping {mask_url(url)}: {led}. Widen the scope to have it."


def too_many_links(url: str, count: int, most: int) -> str:
    """Return the warning for a page with `count` or more dropped links."""
    return (
        f"{mask_url(url)}: {count:,} or more links were not taken, because the page has more than {most:,} or takes "
        "too long to read. Raise max_links_per_page to take more."
    )


def host_limit(url: str, most: int | None) -> str:
    """Return the message for a URL whose host has reached its page limit."""
    return f"not fetching {mask_url(url)}: its host has had its {most} pages. Raise max_pages_per_host to have it."


def reader_crashed(url: str) -> str:
    """Return the message for a URL on which the process ended repeatedly."""
    return f"{mask_url(url)} could not be read: the process ended each time. Report it, or leave it out."

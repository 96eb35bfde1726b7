"""Excuses: why no page came of a URL though the site answered, or though it was queued: what, why and what to do."""

from __future__ import annotations

from curtsy.core.secrets import mask_url


def noindex(url: str) -> str:
    """For a page that asks not to be kept."""
    return f"{mask_url(url)} says noindex, so it is not kept. Use obey_noindex=False to have it."


def not_canonical(url: str, canonical: str) -> str:
    """For a page in whose stead another one is fetched."""
    named = f"it names {mask_url(canonical)} as its own URL"
    return f"not keeping {mask_url(url)}: {named}. Use obey_canonical=False to have both."


def duplicate(url: str, first: str) -> str:
    """For a page with the body of an earlier one."""
    return f"not keeping {mask_url(url)}: it is the same as {mask_url(first)}. Use drop_duplicates=False to have both."


def no_sitemap(url: str) -> str:
    """For a page to which the usual place of a sitemap redirects."""
    return f"not keeping {mask_url(url)}: a sitemap redirects here, and it is none. Let it be."


def bad_redirect(url: str, why: str | None) -> str:
    """For a URL that leads nowhere."""
    where = "it redirects to where nobody can follow" + (f": {why}" if why else "")
    return f"{mask_url(url)} could not be fetched: {where}. Tell the site's owner, or leave it out."


def redirected_in_circle(url: str) -> str:
    """For a URL that leads back."""
    advice = "If it wants a cookie back, keep them (cookies=True); else leave it out."
    return f"{mask_url(url)} could not be fetched: it redirects in a circle. {advice}"


def redirected_too_often(url: str, most: int) -> str:
    """For a URL that leads on and on."""
    return (
        f"{mask_url(url)} could not be fetched: it was redirected more than {most} times. Raise max_redirects to "
        "follow further, or leave it out."
    )


def redirected_outside(url: str, target: str) -> str:
    """For a URL that leads out of the scope."""
    led = f"it redirects to {mask_url(target)}, which is no part of the crawl"
    return f"not keeping {mask_url(url)}: {led}. Widen the scope to have it."


def too_many_links(url: str, count: int, most: int) -> str:
    """For a page of which some links were not taken."""
    return (
        f"{mask_url(url)}: {count:,} or more links were not taken, because the page has more than {most:,} or takes "
        "too long to read. Raise max_links_per_page to take more."
    )


def host_limit(url: str, most: int | None) -> str:
    """For a URL of a host that has had its pages."""
    return f"not fetching {mask_url(url)}: its host has had its {most} pages. Raise max_pages_per_host to have it."


def reader_crashed(url: str) -> str:
    """For a URL that went out again and again, and the process ended."""
    return f"{mask_url(url)} could not be read: the process ended each time. Report it, or leave it out."

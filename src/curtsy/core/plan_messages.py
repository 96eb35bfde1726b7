"""Messages for users about the plan of a crawl: number of pages, pace, time, and the budget that ends it."""

from __future__ import annotations

from collections.abc import Sequence

from curtsy.core.crawl_messages import count_pages
from curtsy.core.time import roughly, span

MOST_REMEDIES = 3
"""Maximum number of settings that a plan names to raise its budgets."""


def plan_message(
    pages: int | None, stops: int | None, gap: float, seconds: float, in_all: float, *,
    limited: Sequence[tuple[str, str | None]], hosts: int, resets_in: float, is_paused: bool,
) -> str:  # fmt: skip
    """Describe how long a crawl will take.

    `pages` is its limit, `stops` the pages after which the budget of the day ends it; both None if there is no limit.
    `seconds` is the time until then, `in_all` that for all pages. `limited` has the settings of the budgets, each with
    the file and line of the entry that has it; None if no entry has it. `is_paused`: the crawl waits for the next day.
    """
    each = f"a page every {span(gap)}" if gap >= 1 else f"{round(1 / gap, 1):,g} pages a second" if gap else ""
    pace = f"at this pace ({each})" if gap else "without pauses"
    if stops is None and pages is None:
        return f"as many pages as there are, {pace}."
    time = f"about {roughly(seconds)}"
    if stops is None:
        return f"up to {count_pages(pages or 0)} {pace}{f': {time}' if gap else ''}."
    limit = f"the daily limit for {'this host' if hosts == 1 else 'these hosts'} ({limited[0][0]})"
    whole = "" if pages is None else f" {count_pages(pages)} take about {roughly(in_all)}."
    option = f" If the site agreed to more: {', '.join(_remedy(*each) for each in limited[:MOST_REMEDIES])}."
    if not stops:
        then = "the crawl waits for that" if is_paused else "run the same command then"
        return f"No page today: {limit} is used up, and reset in {span(resets_in)}; {then}.{whole}{option}"
    verb, until = ("pauses", ", until the next day") if is_paused else ("stops", "")
    if pages is None:
        pace = f"as many pages as there are, {pace}. It {verb} after {count_pages(stops)}"
        return f"{pace}{f', {time}' if gap else ''}{until}: {limit}.{option}"
    return f"This {verb} after {count_pages(stops)}{f', {time}' if gap else ''}{until}: {limit}.{whole}{option}"


def _remedy(setting: str, entry: str | None) -> str:
    """Return how to raise a limit: an option does not change that of an entry."""
    return f"--{setting.replace('_', '-')} N" if entry is None else f"change {setting} in {entry}"


def slower_host(host: str, delay: float) -> str:
    """Describe a host whose robots.txt wants a longer delay than the settings."""
    return f"{host} wants {span(delay)} between two requests (Crawl-delay in its robots.txt)."


def offline_plan(pages: int | None) -> str:
    """Describe a crawl of cached pages. `pages` is its limit."""
    count = "as many pages as the cache has" if pages is None else f"up to {count_pages(pages)}"
    return f"{count}, from the cache (offline): no site is contacted, and no pause applies."


REQUISITES_TAKE_MORE = "The files that pages need (images, styles, scripts) take more requests and time."
"""What a plan leaves out if the crawl fetches requisites."""

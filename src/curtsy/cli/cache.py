"""`curtsy cache`: the page cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from curtsy.cli import console
from curtsy.cli.command import DOMAIN, JSON, byte_count, command, group
from curtsy.cli.context import CommandContext, Exit
from curtsy.core.time import span

if TYPE_CHECKING:
    from curtsy.core.cache import Entry

SCREEN = 100
"""Pages printed at a time."""

LEAST_URL = 40
"""Width in columns that a longer URL gets before a column is omitted for it."""

LEAST = ("status", "fresh for", "variant", "age")
"""Columns that a narrow terminal omits, the first one first."""

RIGHT = ("age", "fresh for", "size")
"""Right-aligned columns."""


@group(
    ("curtsy cache ls", "All cached pages."),
    ("curtsy cache gc --max-size 100M", "Delete the least recently used pages, until 100 MB are left."),
)
def cache() -> None:
    """List, show, export, verify, shrink or clear the cached pages.

    A cached page is used without a request while it is fresh. Then it is revalidated.
    """


@command(
    ("curtsy cache ls example.org", "The pages of a host and its subdomains."),
    ("curtsy cache ls --json | jq -r '.[].url'", "Only the URLs."),
    of=cache,
)
@DOMAIN
@click.option("--limit", "-n", type=click.IntRange(1), metavar="N", help="List only the N newest pages.")
@JSON
@click.pass_obj
def ls(given: CommandContext, domain: str | None, limit: int | None, is_json: bool) -> None:
    """List the cached pages, the newest first.

    Values in URLs that look secret are masked, as on the disk.
    """
    with closing(given.open_cache()) as kept:
        found = islice((each for each in kept.entries(domain) if _is_of(each, domain)), limit)
        if is_json:
            console.write_json_list(_fields(each) for each in found)
            return
        count, size = _show_pages(found)
        if count:
            listed = f"{console.counted(count, 'page')}, {console.size(size)} uncompressed"
            console.say(f"{listed}. The whole cache takes {console.size(kept.size)} on the disk.")
        else:
            console.say("the cache is empty." if domain is None else f"the cache has no page of {domain}.")


def _show_pages(found: Iterator[Entry]) -> tuple[int, int]:
    """Print entries as they are read, a screen at a time; return their number and the bytes of their bodies.

    Lines are formatted here: a table of rich would take forty times as long.
    """
    terminal = console.out()
    count = size = 0
    widths: dict[str, int] = {}
    titles: list[str] = []
    while screen := list(islice(found, SCREEN)):
        rows = [_cells(each) for each in screen]
        for title in rows[0]:
            widths[title] = max(len(title), widths.get(title, 0), *(len(row[title]) for row in rows))
        fitting = _fitting(widths, terminal.width, any(each.variant for each in screen))
        if fitting != titles:
            titles = fitting
            terminal.print(_line({title: title for title in titles}, titles, widths), style="bold", soft_wrap=True)
        for row in rows:
            terminal.file.write(f"{_line(row, titles, widths)}\n")
        count += len(screen)
        size += sum(each.body_size for each in screen)
    return count, size


def _cells(entry: Entry) -> dict[str, str]:
    """Return the cells of an entry by their titles."""
    left = _fresh_for(entry)
    return {
        "age": _age(entry),
        "fresh for": span(left) if left > 0 else "–",
        "size": console.size(entry.body_size),
        "status": str(entry.status),
        "variant": entry.variant or "–",
        "url": console.plain(entry.url),
    }


def _fitting(widths: dict[str, int], most: int, has_variants: bool) -> list[str]:
    """Return the titles of the columns that fit beside a URL into `most` columns of the terminal."""
    titles = [title for title in widths if has_variants or title != "variant"]
    url = min(widths["url"], LEAST_URL)
    for title in LEAST:
        if url + sum(widths[each] + 2 for each in titles if each != "url") <= most:
            break
        titles = [each for each in titles if each != title]
    return titles


def _line(cells: dict[str, str], titles: list[str], widths: dict[str, int]) -> str:
    """Return the cells as columns. The URL is last and never cut: a terminal wraps it so that it can be copied."""
    words = [
        cells[title].rjust(widths[title]) if title in RIGHT else cells[title].ljust(widths[title])
        for title in titles[:-1]
    ]
    return "  ".join((*words, cells[titles[-1]]))


def _is_of(entry: Entry, domain: str | None) -> bool:
    if domain is None:
        return True
    from curtsy.core.url import Url, parse_url
    from curtsy.engine.host_view import is_under

    url = parse_url(entry.url)
    return isinstance(url, Url) and is_under(url.domain, domain)


def _age(entry: Entry) -> str:
    return span(max(0.0, time.time() - entry.fetched_at))


def _fresh_for(entry: Entry) -> float:
    """Return the seconds for which a page is fresh; negative if it is stale."""
    return entry.fetched_at + entry.lifetime - entry.age - time.time()


def _fields(entry: Entry) -> dict[str, Any]:
    names = ("url", "variant", "status", "body_size", "fetched_at", "lifetime", "etag", "last_modified", "body_sha256")
    return {name: getattr(entry, name) for name in names}


@command(
    ("curtsy cache show https://example.org/", "Metadata of a page."),
    ("curtsy cache show --body https://example.org/ > page.html", "The body of a page."),
    of=cache,
)
@click.argument("url", metavar="URL")
@click.option("--variant", metavar="HASH", help="The variant to show, from `cache ls`; the newest by default.")
@click.option("--body", "is_body", is_flag=True, help="Write the stored body to standard output.")
@JSON
@click.pass_obj
def show(given: CommandContext, url: str, variant: str | None, is_body: bool, is_json: bool) -> Exit:
    """Show one cached page: its age, freshness and headers.

    A page has a variant for each set of request headers that may select another page, such as a language or a key.
    """
    with closing(given.open_cache()) as kept:
        pages = kept.pages(url)
    wanted = None if variant is None else variant.strip().removeprefix("–")
    page = next((each for each in pages if wanted in (None, each.entry.variant)), None)
    if page is None:
        what = "is not cached, or was damaged" if not pages else f"has no variant {variant}"
        console.say(f"{url} {what}. curtsy cache ls lists the cached pages.")
        return Exit.ERROR
    if variant is None and len(pages) > 1:
        others = ", ".join(each.entry.variant or "–" for each in pages[1:])
        console.say(f"This is the newest of {len(pages)} variants. Others: {others}. Choose one with --variant.")
    entry = page.entry
    if is_body:
        sys.stdout.buffer.write(page.body)
    elif is_json:
        console.write_json(_fields(entry) | {"headers": [list(each) for each in entry.headers]})
    else:
        terminal, left = console.out(), _fresh_for(entry)
        terminal.print(console.text(console.plain(entry.url), style="bold"), soft_wrap=True)
        fresh = f"for {span(left)} more" if left > 0 else "no: it is revalidated before use"
        rows = [
            ("status", str(entry.status)), ("size", console.size(entry.body_size)), ("variant", entry.variant or "–"),
            ("fetched", f"{_age(entry)} ago"), ("fresh", fresh), ("sha256", entry.body_sha256), *entry.headers,
        ]  # fmt: skip
        console.show_rows(terminal, rows)
    return Exit.FINE


@command(
    ("curtsy cache export ./pages", "Every page as a body file and a .meta.json."),
    ("curtsy cache export ./org.sqlite example.org", "The pages of a host as one packed file."),
    of=cache,
)
@click.argument("path", type=click.Path(path_type=Path), metavar="PATH")
@DOMAIN
@click.option("--json", "is_json", is_flag=True, help="Write the counts as JSON.")
@click.pass_obj
def export(given: CommandContext, path: Path, domain: str | None, is_json: bool) -> Exit:
    """Copy cached pages to PATH: a folder of files, or a packed file if its name ends in .sqlite.

    Pages that are there already are replaced by those of the cache. Pages whose URL has a masked secret cannot be
    copied. The exit code is 1 if a page could not be copied.
    """
    from curtsy.cache.opening import cache_path, open_cache

    if path.absolute() == cache_path(given.settings().cache_dir).absolute():
        raise click.UsageError(f"{path} is the cache itself. Name another folder or file.")
    copied = failed = 0
    with closing(given.open_cache()) as kept, closing(open_cache(path, None)) as target:
        for entry in (each for each in kept.entries(domain) if _is_of(each, domain)):
            page = next((each for each in kept.pages(entry.url) if each.entry.variant == entry.variant), None)
            if page is not None and target.keep(page.entry, page.body):
                copied += 1
            else:
                failed += 1
    if is_json:
        console.write_json({"copied": copied, "failed": failed})
    else:
        console.say(f"{console.counted(copied, 'page')} copied to {path}.")
    if failed:
        console.say(f"{console.counted(failed, 'page')} could not be copied: damaged, a masked URL, or no room.")
    return Exit.ERROR if failed else Exit.FINE


@command(("curtsy cache verify", "Check every page."), of=cache)
@click.option("--json", "is_json", is_flag=True, help="Write the counts as JSON.")
@click.pass_obj
def verify(given: CommandContext, is_json: bool) -> Exit:
    """Verify the checksum of every cached page, and delete damaged pages.

    The exit code is 1 if there were any. They will be fetched again.
    """
    with closing(given.open_cache()) as kept:
        found = kept.verify()
    if is_json:
        console.write_json(found)
    else:
        console.say(f"{console.counted(found.good, 'page')} valid, {found.damaged} damaged and deleted.")
    return Exit.ERROR if found.damaged else Exit.FINE


@command(("curtsy cache gc --max-size 100M", "Shrink the cache to 100 MB."), of=cache)
@click.option("--max-size", type=byte_count, metavar="SIZE", help="Maximum size on the disk; by default cache_size.")
@click.option("--json", "is_json", is_flag=True, help="Write the freed bytes as JSON.")
@click.pass_obj
def gc(given: CommandContext, max_size: int | None, is_json: bool) -> None:
    """Delete the least recently used pages, until the rest fits."""
    with closing(given.open_cache()) as kept:
        freed, left = kept.gc(max_size), kept.size
    if is_json:
        console.write_json({"freed": freed, "size": left})
    else:
        console.say(f"{console.size(freed)} of the disk freed, {console.size(left)} left.")


@command(
    ("curtsy cache clear example.org", "Delete the pages of a host and its subdomains."),
    ("curtsy cache clear --all", "Delete all pages."),
    of=cache,
)
@DOMAIN
@click.option("--all", "is_all", is_flag=True, help="All pages of all hosts.")
@click.option("--json", "is_json", is_flag=True, help="Write the number of deleted pages as JSON.")
@click.pass_obj
def clear(given: CommandContext, domain: str | None, is_all: bool, is_json: bool) -> Exit:
    """Delete cached pages."""
    if (domain is None) is not is_all:
        raise click.UsageError("name a domain, or use --all.")
    with closing(given.open_cache()) as kept:
        before = sum(_is_of(each, domain) for each in kept.entries(domain))
        if is_all:
            kept.gc(0)
        else:
            kept.clear(lambda each: _is_of(each, domain))
        left = sum(_is_of(each, domain) for each in kept.entries(domain))
    if is_json:
        console.write_json({"dropped": before - left, "left": left})
    else:
        console.say(f"{console.counted(before - left, 'page')} deleted.")
    if left:
        console.say(f"{console.counted(left, 'page')} could not be deleted. Check the owner of the files.")
    return Exit.ERROR if left else Exit.FINE

"""`curtsy cache`: the page cache."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from curtsy.cli import console
from curtsy.cli.command import Command, Domain, Group, Size
from curtsy.cli.context import CommandContext, Exit

if TYPE_CHECKING:
    from curtsy.core.cache import Entry


@click.group(
    cls=Group,
    examples=(
        ("curtsy cache ls", "All cached pages."),
        ("curtsy cache gc --max-size 100M", "Delete the least recently used pages, until 100 MB are left."),
    ),
)
def cache() -> None:
    """List, show, verify, shrink or clear the cached pages.

    A cached page is used without a request while it is fresh. Then it is revalidated.
    """


@cache.command(
    "ls",
    cls=Command,
    examples=(
        ("curtsy cache ls example.org", "The pages of a host and its subdomains."),
        ("curtsy cache ls --json | jq -r '.[].url'", "Only the URLs."),
    ),
)
@click.argument("domain", type=Domain(), required=False)
@click.option("--json", "is_json", is_flag=True, help="Write JSON.")
@click.pass_obj
def ls(given: CommandContext, domain: str | None, is_json: bool) -> Exit:
    """List the cached pages, the newest first.

    Values in URLs that look secret are masked, as on the disk.
    """
    from curtsy.core.messages import span

    kept = given.open_cache()
    found = sorted((each for each in kept.entries() if _is_of(each, domain)), key=lambda each: -each.fetched_at)
    kept.close()
    if is_json:
        console.write_json([_fields(each) for each in found])
        return Exit.FINE
    if not found:
        console.say("the cache is empty." if domain is None else f"the cache has no page of {domain}.")
        return Exit.FINE
    has_variants = any(each.variant for each in found)
    names = ("age", "fresh for", "size", "status", *(["variant"] if has_variants else []), "url")
    table = console.table(*names, right=("age", "fresh for", "size"))
    for each in found:
        left = each.fetched_at + each.lifetime - each.age - time.time()
        table.add_row(
            span(max(0.0, time.time() - each.fetched_at)), span(left) if left > 0 else "–",
            console.size(each.body_size), str(each.status),
            *([each.variant or "–"] if has_variants else []), console.plain(each.url),
        )  # fmt: skip
    console.show(console.out(), table)
    console.say(f"{console.counted(len(found), 'page')}, {console.size(sum(each.body_size for each in found))}.")
    return Exit.FINE


def _is_of(entry: Entry, domain: str | None) -> bool:
    from curtsy.core.message import Url, parse_url
    from curtsy.engine.host_view import is_under

    url = parse_url(entry.url)
    return domain is None or (isinstance(url, Url) and is_under(url.domain, domain))


def _fields(entry: Entry) -> dict[str, Any]:
    names = ("url", "variant", "status", "body_size", "fetched_at", "lifetime", "etag", "last_modified", "body_sha256")
    return {name: getattr(entry, name) for name in names}


@cache.command(
    "show",
    cls=Command,
    examples=(
        ("curtsy cache show https://example.org/", "Metadata of a page."),
        ("curtsy cache show --body https://example.org/ > page.html", "The body of a page."),
    ),
)
@click.argument("url", metavar="URL")
@click.option("--variant", metavar="HASH", help="The variant to show, from `cache ls`; the newest by default.")
@click.option("--body", "is_body", is_flag=True, help="Write the stored body to standard output.")
@click.option("--json", "is_json", is_flag=True, help="Write JSON.")
@click.pass_obj
def show(given: CommandContext, url: str, variant: str | None, is_body: bool, is_json: bool) -> Exit:
    """Show one cached page: its age, freshness and headers.

    A page has a variant for each set of request headers that may select another page, such as a language or a key.
    """
    from rich.text import Text

    from curtsy.core.messages import span

    kept = given.open_cache()
    pages = kept.pages(url)
    kept.close()
    wanted = None if variant is None else variant.strip().removeprefix("–")
    page = next((each for each in pages if wanted in (None, each.entry.variant)), None)
    if page is None:
        what = "is not cached, or was damaged" if not pages else f"has no variant {variant}"
        console.say(f"{url} {what}. curtsy cache ls lists the cached pages.")
        return Exit.ERROR
    if variant is None and len(pages) > 1:
        others = ", ".join(each.entry.variant or "–" for each in pages[1:])
        console.say(f"This is the newest of {len(pages)} variants. Others: {others}. Choose one with --variant.")
    if is_body:
        sys.stdout.buffer.write(page.body)
        return Exit.FINE
    entry = page.entry
    if is_json:
        console.write_json(_fields(entry) | {"headers": [list(each) for each in entry.headers]})
        return Exit.FINE
    now = time.time()
    left = entry.fetched_at + entry.lifetime - entry.age - now
    terminal = console.out()
    terminal.print(Text(console.plain(entry.url), style="bold"), soft_wrap=True)
    fresh = f"for {span(left)} more" if left > 0 else "no: it is revalidated before use"
    rows = [
        ("status", str(entry.status)), ("size", console.size(entry.body_size)), ("variant", entry.variant or "–"),
        ("fetched", f"{span(max(0.0, now - entry.fetched_at))} ago"), ("fresh", fresh), ("sha256", entry.body_sha256),
        *entry.headers,
    ]  # fmt: skip
    console.show_rows(terminal, rows)
    return Exit.FINE


@cache.command("verify", cls=Command, examples=(("curtsy cache verify", "Check every page."),))
@click.option("--json", "is_json", is_flag=True, help="Write the counts as JSON.")
@click.pass_obj
def verify(given: CommandContext, is_json: bool) -> Exit:
    """Verify the checksum of every cached page, and delete damaged pages.

    The exit code is 1 if there were any. They will be fetched again.
    """
    kept = given.open_cache()
    found = kept.verify()
    kept.close()
    if is_json:
        console.write_json(found)
    else:
        console.say(f"{console.counted(found.good, 'page')} valid, {found.damaged} damaged and deleted.")
    return Exit.ERROR if found.damaged else Exit.FINE


@cache.command("gc", cls=Command, examples=(("curtsy cache gc --max-size 100M", "Shrink the cache to 100 MB."),))
@click.option("--max-size", type=Size(), metavar="SIZE", help="Maximum size; by default cache_size.")
@click.option("--json", "is_json", is_flag=True, help="Write the freed bytes as JSON.")
@click.pass_obj
def gc(given: CommandContext, max_size: int | None, is_json: bool) -> Exit:
    """Delete the least recently used pages, until the rest fits."""
    kept = given.open_cache()
    freed = kept.gc(max_size)
    left = kept.size
    kept.close()
    if is_json:
        console.write_json({"freed": freed, "size": left})
    else:
        console.say(f"{console.size(freed)} freed, {console.size(left)} left.")
    return Exit.FINE


@cache.command(
    "clear",
    cls=Command,
    examples=(
        ("curtsy cache clear example.org", "Delete the pages of a host and its subdomains."),
        ("curtsy cache clear --all", "Delete all pages."),
    ),
)
@click.argument("domain", type=Domain(), required=False)
@click.option("--all", "is_all", is_flag=True, help="All pages of all hosts.")
@click.option("--json", "is_json", is_flag=True, help="Write the number of deleted pages as JSON.")
@click.pass_obj
def clear(given: CommandContext, domain: str | None, is_all: bool, is_json: bool) -> Exit:
    """Delete cached pages."""
    if (domain is None) is not is_all:
        raise click.UsageError("name a domain, or use --all.")
    kept = given.open_cache()
    before = [each for each in kept.entries() if _is_of(each, domain)]
    if is_all:
        kept.gc(0)
    else:
        kept.clear(lambda each: _is_of(each, domain))
    after = [each for each in kept.entries() if _is_of(each, domain)]
    kept.close()
    if is_json:
        console.write_json({"dropped": len(before) - len(after), "left": len(after)})
    else:
        console.say(f"{console.counted(len(before) - len(after), 'page')} deleted.")
    if after:
        console.say(f"{console.counted(len(after), 'page')} could not be deleted. Check the owner of the files.")
        return Exit.ERROR
    return Exit.FINE

"""URLs of the command line: a bare host means https; with --allow-http, http if https cannot be connected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.core.url import InvalidUrl, Url, is_bare, parse_url, with_scheme

if TYPE_CHECKING:
    from curtsy.cli.context import CommandContext

ALLOW_HTTP = click.option(
    "--allow-http", is_flag=True, help="Use http for a host given without a scheme if https cannot be connected."
)

AT_ONCE = 16
"""Hosts whose connections are tried at the same time."""


def complete_urls(given: CommandContext, urls: Iterable[str], allow_http: bool) -> list[str]:
    """Return URLs with a scheme for those that begin with a host. Others are unchanged."""
    if not allow_http:
        return [with_scheme(each) for each in urls]
    urls = list(urls)
    schemes = _schemes(given, [each for each in urls if is_bare(each)])
    return [_with(schemes, each) for each in urls]


def complete_lines(given: CommandContext, lines: Iterable[str], allow_http: bool) -> Iterator[str]:
    """Yield the same for URLs that are still being read, each as soon as it is read."""
    known: dict[str, str] = {}
    for line in lines:
        if allow_http and is_bare(line) and _origin(line) not in known:
            known |= _schemes(given, [line])
        yield _with(known, line) if allow_http else with_scheme(line)


def parsed_urls(given: CommandContext, texts: Iterable[str], allow_http: bool) -> list[Url]:
    """Return the URLs of a command line. Raises UsageError for one that cannot be requested."""
    from curtsy.core import messages

    found = []
    for url in map(parse_url, complete_urls(given, texts, allow_http)):
        if isinstance(url, InvalidUrl):
            raise click.UsageError(f"{messages.given(url)!r} cannot be requested: {url.why}.")
        found.append(url)
    return found


def _origin(text: str) -> str:
    url = parse_url(with_scheme(text))
    return "" if isinstance(url, InvalidUrl) else url.domain


def _with(schemes: dict[str, str], text: str) -> str:
    if is_bare(text) and (scheme := schemes.get(_origin(text))) is not None:
        return f"{scheme}://{text.strip()}"
    return with_scheme(text)


def _schemes(given: CommandContext, texts: Iterable[str]) -> dict[str, str]:
    """Return the scheme of each host, by a connection that sends no request, and report those without https."""
    import asyncio

    parsed = (parse_url(with_scheme(each)) for each in texts)
    hosts = {url.domain: url for url in parsed if isinstance(url, Url)}
    policies = given.settings().policies
    hosts = {domain: url for domain, url in hosts.items() if not policies.of(domain).denied}
    connects = asyncio.run(_connect(given, list(hosts.values()))) if hosts else []
    schemes = {}
    for (domain, url), is_secure in zip(hosts.items(), connects, strict=True):
        schemes[domain] = "https" if is_secure else "http"
        if not is_secure:
            console.say(f"{url.origin} cannot be connected: using http.")
    return schemes


async def _connect(given: CommandContext, urls: list[Url]) -> list[bool]:
    import asyncio

    from curtsy.http.proxy import check_environment
    from curtsy.http.sender import HttpSender, Limits

    check_environment()
    sender, slots, policies = HttpSender(use_environment=True), asyncio.Semaphore(AT_ONCE), given.settings().policies

    async def connects(url: Url) -> bool:
        async with slots:
            return await sender.connects(url, Limits.of(policies.of(url.domain)))

    try:
        return await asyncio.gather(*map(connects, urls))
    finally:
        await sender.close()

"""A polite crawl, live, against a small site on loopback: `make demo`.

Five hosts with manners of their own are started on 127.0.0.x, their pages are fetched by following links, and at the
end stands what was fetched, what was left alone and why, and what the *site* saw: proof that every rule was kept.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from urllib.parse import urljoin

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text
from selectolax.lexbor import LexborHTMLParser

from curtsy.client import AsyncClient
from curtsy.core.explain import span
from curtsy.core.message import Url, parse_url
from curtsy.core.record import FetchRecord
from curtsy.stores.memory import MemoryStore

PAUSE = (0.3, 0.6)
"""Seconds between two requests to a host: a tenth of what curtsy keeps by default, or the demo would take minutes."""


@dataclass
class DemoHost:
    """One host of the demo's site, and its journal: the only witness that counts."""

    name: str
    manners: str
    robots: str = ""
    links: tuple[str, ...] = ()
    answer: Callable[[DemoHost, str], tuple[int, dict[str, str]] | None] = lambda host, path: None
    """What it answers instead of a page: a status and headers, or None for the page."""

    journal: list[tuple[float, str, int]] = field(default_factory=list)
    """When, which path, and how many requests were under way."""

    under_way: int = 0
    address: str = ""

    def page(self, path: str, neighbours: list[str]) -> str:
        """A page with links: its own, and to the other hosts from the front page."""
        anchors = [*self.links, *(neighbours if path == "/" else [])]
        items = "".join(f'<li><a href="{link}">{link}</a></li>' for link in anchors)
        return f"<!doctype html><title>{self.name}: {path}</title><main><h1>{path}</h1><ul>{items}</ul></main>"


def _busy(host: DemoHost, path: str) -> tuple[int, dict[str, str]] | None:
    asked = sum(1 for _, each, _ in host.journal if each != "/robots.txt")
    return (429, {"Retry-After": "2"}) if asked == 3 else None


def _shaky(host: DemoHost, path: str) -> tuple[int, dict[str, str]] | None:
    if path == "/robots.txt":
        return None
    return (503, {}) if sum(1 for _, each, _ in host.journal if each == path) == 1 and path == "/wobbly" else None


def hosts() -> list[DemoHost]:
    """The hosts of the demo."""
    pages = tuple(f"/page/{number}" for number in range(1, 7))
    return [
        DemoHost("library", "a part is disallowed", "User-agent: *\nDisallow: /private/\n",
                 ("/catalogue", "/private/diary", "/private/letters", "/missing")),
        DemoHost("slow-lane", "Crawl-delay: 1", "User-agent: *\nCrawl-delay: 1\n", pages[:4]),
        DemoHost("busy", "429, Retry-After: 2", "", pages[:4], _busy),
        DemoHost("shaky", "fails once", "", ("/wobbly", "/steady"), _shaky),
        DemoHost("large", "budget of 8 requests", "", tuple(f"/item/{n}" for n in range(1, 16))),
    ]  # fmt: skip


class DemoSite:
    """The demo's hosts, each on an address of its own, served by threads."""

    def __init__(self) -> None:
        self.hosts = hosts()
        self._servers: list[ThreadingHTTPServer] = []

    def __enter__(self) -> DemoSite:
        for number, host in enumerate(self.hosts, start=1):
            server = ThreadingHTTPServer((f"127.0.0.{number}", 0), self._handler(host))
            server.daemon_threads = True
            host.address = f"127.0.0.{number}:{server.server_port}"
            self._servers.append(server)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _handler(self, host: DemoHost) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                host.under_way += 1
                host.journal.append((time.monotonic(), self.path, host.under_way))
                try:
                    self._answer()
                finally:
                    host.under_way -= 1

            def _answer(self) -> None:
                status, headers = host.answer(host, self.path) or (200, {})
                body = b""
                if self.path == "/robots.txt":
                    status, body = (200, host.robots.encode()) if host.robots else (404, b"")
                elif self.path == "/missing":
                    status = 404
                elif status == 200:
                    others = [f"http://{each.address}/" for each in site.hosts if each is not host]
                    body = host.page(self.path, others).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Type": "text/html", "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet: the journal has it."""

        return Handler


@dataclass
class Progress:
    """What the live view shows."""

    site: DemoSite
    began: float = field(default_factory=time.monotonic)
    records: list[FetchRecord] = field(default_factory=list)
    waiting: dict[str, int] = field(default_factory=dict)

    def table(self) -> Table:
        """One row a host."""
        table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
        for column in ("host", "its manners"):
            table.add_column(column, no_wrap=True)
        for column in ("pages", "left alone", "waiting"):
            table.add_column(column, justify="right")
        table.add_column("last", no_wrap=True)
        for host in self.site.hosts:
            own = [record for record in self.records if record.domain == host.address]
            good = sum(record.reason is None for record in own)
            last = own[-1] if own else None
            words = "" if last is None else (str(last.status) if last.reason is None else last.reason)
            style = "green" if last is not None and last.reason is None else "yellow"
            table.add_row(
                host.name, Text(host.manners, style="dim"), str(good), str(len(own) - good),
                str(self.waiting.get(host.address, 0)), Text(words, style=style),
            )  # fmt: skip
        return table

    def view(self) -> Group:
        """The whole live view."""
        passed = time.monotonic() - self.began
        done = sum(record.reason is None for record in self.records)
        return Group(self.table(), Text(f"\n{done} pages in {span(passed)}", style="bold"))


async def crawl(site: DemoSite, progress: Progress, refresh: Callable[[], None]) -> None:
    """Follow links from one front page, each URL once, as `curtsy crawl` will do it."""
    addresses = {host.address for host in site.hosts}
    large = next(host for host in site.hosts if host.name == "large")
    queue: deque[str] = deque([f"http://{site.hosts[0].address}/"])
    seen = set(queue)
    under_way: set[asyncio.Task[None]] = set()
    async with AsyncClient(
        store=MemoryStore(),
        cache=False,
        user_agent="CurtsyDemo/1.0 (+https://curtsy.example/demo)",
        allow_private=True,
        preset="broad",
        pause=list(PAUSE),
        qps=3,
        allowlist=[{"domain": large.address, "max_requests_per_day": 8}],
        on_record=progress.records.append,
    ) as client:

        async def visit(url: str) -> None:
            domain = url.split("/")[2]
            progress.waiting[domain] = progress.waiting.get(domain, 0) + 1
            result = await client.fetch(url)
            progress.waiting[domain] -= 1
            if result.ok:
                for node in LexborHTMLParser(result.body).css("a[href]"):
                    link = parse_url(urljoin(result.final_url, node.attributes["href"] or ""))
                    if isinstance(link, Url) and link.domain in addresses and link.text not in seen:
                        seen.add(link.text)
                        queue.append(link.text)

        while queue or under_way:
            while queue:
                under_way.add(asyncio.ensure_future(visit(queue.popleft())))
            done, under_way = await asyncio.wait(under_way, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            refresh()


def verdicts(site: DemoSite, records: list[FetchRecord]) -> list[tuple[bool, str]]:
    """What the site's own journals say of each rule."""
    found = []
    gaps = [b[0] - a[0] for host in site.hosts for a, b in pairwise(host.journal)]
    found.append(
        (min(gaps) >= PAUSE[0] * 0.98, f"the shortest gap between two requests to a host was {min(gaps):.2f} s")
    )
    most = max(count for host in site.hosts for _, _, count in host.journal)
    found.append((most == 1, f"never more than {most} request at a time to a host"))
    by_name = {host.name: host for host in site.hosts}
    private = sum(path.startswith("/private/") for _, path, _ in by_name["library"].journal)
    found.append((private == 0, f"{private} requests for what robots.txt forbids"))
    delays = [b[0] - a[0] for a, b in pairwise(by_name["slow-lane"].journal)]
    found.append((min(delays) >= 0.98, f"Crawl-delay: the shortest gap at slow-lane was {min(delays):.2f} s"))
    busy = [at for at, path, _ in by_name["busy"].journal if path != "/robots.txt"]
    found.append((busy[3] - busy[2] >= 2, f"Retry-After: 2 was answered by a rest of {busy[3] - busy[2]:.2f} s"))
    large = len(by_name["large"].journal)
    found.append((large == 8, f"the host with a budget of 8 requests saw {large}"))
    asked = [sum(path == "/robots.txt" for _, path, _ in host.journal) for host in site.hosts]
    found.append((max(asked) == 1, f"robots.txt was asked for {max(asked)} time a host, before anything else"))
    return found


def report(console: Console, site: DemoSite, progress: Progress) -> bool:
    """Print what was fetched, what was left alone and why, and what the site saw."""
    records = progress.records
    good = [record for record in records if record.reason is None]
    console.print(f"\n[bold]Fetched[/bold] {len(good)} pages from {len(site.hosts)} hosts.")
    left: dict[str, list[FetchRecord]] = {}
    for record in records:
        if record.reason is not None:
            left.setdefault(record.reason, []).append(record)
    console.print("[bold]Left alone, or not there:[/bold]")
    for reason, some in left.items():
        names = {host.address: host.name for host in site.hosts}
        first = some[0].final_url.split("/", 3)[3]
        more = f" and {len(some) - 1} more" if len(some) > 1 else ""
        console.print(f"  [yellow]{reason:<24}[/yellow] {names[some[0].domain]}/{first}{more}", highlight=False)
    console.print("[bold]What the site saw:[/bold]")
    checks = verdicts(site, records)
    for is_kept, words in checks:
        console.print(f"  {'[green]✓[/green]' if is_kept else '[red]✗[/red]'} {words}", highlight=False)
    return all(is_kept for is_kept, _ in checks)


def main() -> int:
    """Run the demo; 0 if every rule was kept."""
    console = Console()
    console.print("[bold]curtsy[/bold]: a polite crawl of five small hosts on loopback\n")
    with DemoSite() as site:
        progress = Progress(site)
        if console.is_terminal:
            with Live(console=console, get_renderable=progress.view, refresh_per_second=10) as live:
                asyncio.run(crawl(site, progress, live.refresh))
        else:
            asyncio.run(crawl(site, progress, lambda: None))
            console.print(progress.view())
        return 0 if report(console, site, progress) else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Demo: a live crawl of a small site on loopback, also `make demo`.

Five hosts with different rules are served on 127.0.0.1 and crawled from one front page. The report shows fetched and
skipped pages with reasons, and checks every rule against the *site's* own log.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from curtsy.cli import console
from curtsy.cli.command import command
from curtsy.cli.context import Exit, run
from curtsy.core.time import span

if TYPE_CHECKING:
    from http.server import BaseHTTPRequestHandler

    from rich.console import Console

    from curtsy.client import AsyncClient
    from curtsy.crawling.outputs.skipped import Examples
    from curtsy.crawling.progress import CrawlSummary

PAUSE = (0.3, 0.6)
"""Range of the pause between two requests to a host in seconds: about a tenth of the default."""

CRAWL_DELAY, RETRY_AFTER, COOLDOWN, BUDGET = 1.5, 3, 6.0, 8
"""Crawl-delay of slow-lane, Retry-After of busy and cooldown for shaky, in seconds; requests per day to large."""

LATE = 0.2
"""Tolerance in seconds: a busy machine may log a request late, which shortens the next gap."""

DOMAIN = "demo.test"
"""Domain of the hosts, reserved for tests and absent from the real DNS (RFC 6761)."""


@dataclass(frozen=True)
class Visit:
    """One request, as logged by the site."""

    at: float
    path: str
    in_flight: int
    """Requests to the same host in flight at that moment, this one included."""

    status: int
    day: int
    """Day of the year: a demo at midnight uses two budgets."""


@dataclass
class DemoHost:
    """One host of the demo's site, with its log of requests."""

    name: str
    rules: str
    robots: str = ""
    links: tuple[str, ...] = ()
    answer: Callable[[DemoHost, str], tuple[int, dict[str, str]] | None] = lambda host, path: None
    """Callback for a response other than the page: status and headers, or None for the page."""

    journal: list[Visit] = field(default_factory=list)
    in_flight: int = 0

    def pages(self) -> list[Visit]:
        """Return the requests for anything but robots.txt."""
        return [visit for visit in self.journal if visit.path != "/robots.txt"]

    def gaps(self) -> list[float]:
        """Return the seconds between consecutive requests."""
        return [b.at - a.at for a, b in pairwise(self.journal)]

    def html(self, path: str, neighbours: list[str]) -> str:
        """Return a page with its links; the front page also links to the other hosts."""
        anchors = [*self.links, *(neighbours if path == "/" else [])]
        items = "".join(f'<li><a href="{link}">{link}</a></li>' for link in anchors)
        return f"<!doctype html><title>{self.name}: {path}</title><main><h1>{path}</h1><ul>{items}</ul></main>"


def _library(host: DemoHost, path: str) -> tuple[int, dict[str, str]] | None:
    return {"/missing": (404, {}), "/old": (301, {"Location": "/catalogue"})}.get(path)


def _busy(host: DemoHost, path: str) -> tuple[int, dict[str, str]] | None:
    return (429, {"Retry-After": str(RETRY_AFTER)}) if len(host.pages()) == 4 else None


def _shaky(host: DemoHost, path: str) -> tuple[int, dict[str, str]] | None:
    return (503, {}) if 1 <= len(host.pages()) <= 3 else None


def hosts() -> list[DemoHost]:
    """Create the hosts of the demo."""
    pages = tuple(f"/page/{number}" for number in range(1, 9))
    return [
        DemoHost("library", "disallows a part", "User-agent: *\nDisallow: /private/\n",
                 ("/catalogue", "/old", "/private/diary", "/private/letters", "/missing", "/map.pdf",
                  "https://elsewhere.example/"), _library),
        DemoHost("slow-lane", f"Crawl-delay: {CRAWL_DELAY:g}", f"User-agent: *\nCrawl-delay: {CRAWL_DELAY:g}\n", pages),
        DemoHost("busy", f"429, Retry-After: {RETRY_AFTER}", "", pages, _busy),
        DemoHost("shaky", "fails for a while", "", pages[:4], _shaky),
        DemoHost("large", f"{BUDGET} requests a day", "", tuple(f"/item/{n}" for n in range(1, 31))),
    ]  # fmt: skip


class DemoSite:
    """HTTP server of the demo's hosts on one port of 127.0.0.1, selected by the Host header."""

    def __init__(self) -> None:
        from http.server import ThreadingHTTPServer

        self.hosts = hosts()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port: int = self._server.server_port
        self._lock = threading.Lock()

    def __enter__(self) -> DemoSite:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def url(self, host: DemoHost) -> str:
        """Return the URL of a host's front page."""
        return f"http://{host.name}.{DOMAIN}:{self.port}/"

    def named(self, name: str) -> DemoHost:
        """Return the host of that name, with or without its domain and port."""
        return next(host for host in self.hosts if host.name == name.partition(".")[0])

    def answer(self, name: str, path: str) -> tuple[DemoHost, int, dict[str, str], bytes]:
        """Log a request and return its response."""
        host = self.named(name)
        with self._lock:
            host.in_flight += 1
            status, headers = (None if path == "/robots.txt" else host.answer(host, path)) or (200, {})
            if path == "/robots.txt" and not host.robots:
                status = 404
            host.journal.append(Visit(time.monotonic(), path, host.in_flight, status, time.localtime().tm_yday))
        body = b""
        if status == 200:
            others = [self.url(each) for each in self.hosts if each is not host]
            body = host.robots.encode() if path == "/robots.txt" else host.html(path, others).encode()
        return host, status, headers, body

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        from http.server import BaseHTTPRequestHandler

        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                host, status, headers, body = site.answer(self.headers["Host"], self.path)
                time.sleep(0.05)  # latency of a real site
                with site._lock:
                    host.in_flight -= 1
                self.send_response(status)
                for name, value in {**headers, "Content-Type": "text/html", "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Suppress the server's log; the journal has all requests."""

        return Handler


def client_for(site: DemoSite) -> AsyncClient:
    """Create an ordinary client with shorter waits, which resolves the demo's names to loopback."""
    from curtsy.client import AsyncClient
    from curtsy.http.sender import HttpSender
    from curtsy.stores.memory import MemoryStore

    return AsyncClient(
        store=MemoryStore(),
        cache=False,
        sender=HttpSender(resolver={f"{host.name}.{DOMAIN}": "127.0.0.1" for host in site.hosts}),
        user_agent="CurtsyDemo/1.0 (+https://curtsy.example/demo)",
        allow_private=True,
        preset="broad",
        pause=list(PAUSE),
        qps=3,
        breaker_cooldown=COOLDOWN,
        allowlist=[{"domain": f"large.{DOMAIN}:{site.port}", "max_requests_per_day": BUDGET}],
    )


async def crawl(site: DemoSite, terminal: Console, examples: Examples) -> CrawlSummary:
    """Crawl the site with the live view of `curtsy crawl`. Ctrl-C ends it at once, because no state is kept."""
    from rich.live import Live

    from curtsy.cli.report import CrawlView, line_of, watch
    from curtsy.crawling.start import acrawl

    view = CrawlView(label=lambda host: f"{site.named(host).name:<10} {site.named(host).rules}")
    live = Live(view, console=terminal, refresh_per_second=8) if terminal.is_terminal else nullcontext()
    async with (
        client_for(site) as client,
        acrawl(
            site.url(site.hosts[0]), client=client, outputs=[examples], scope="domains", domains=(DOMAIN,), patience=30
        ) as made,
    ):
        with live:
            summary = await watch(made, view, 0.2)
        if not terminal.is_terminal:
            terminal.print(line_of(await made.snapshot()))
    return summary


def verdicts(site: DemoSite) -> list[tuple[bool, str, str]]:
    """Check each rule against the site's log; return whether it was kept, the rule, and the observation."""
    library, slow, busy, shaky, large = (
        site.named(each) for each in ("library", "slow-lane", "busy", "shaky", "large")
    )
    shortest = min((gap for host in site.hosts for gap in host.gaps()), default=0.0)
    late = " in the log of the site: this machine is busy" if PAUSE[0] - LATE <= shortest < PAUSE[0] - 0.005 else ""
    paused = all(_is_kept(host.gaps(), PAUSE[0]) for host in site.hosts)
    most = max((visit.in_flight for host in site.hosts for visit in host.journal), default=0)
    private = sum(visit.path.startswith("/private/") for visit in library.journal)
    first = all(host.journal and host.journal[0].path == "/robots.txt" for host in site.hosts)
    asked = max(sum(visit.path == "/robots.txt" for visit in host.journal) for host in site.hosts)
    rest = _rest(busy, 429)
    alone = _rest(shaky, 503)
    recovered = bool(shaky.journal) and shaky.journal[-1].status == 200
    spent = max(Counter(visit.day for visit in large.journal).values(), default=0)
    given = Counter((host.name, visit.path) for host in site.hosts for visit in host.pages() if visit.status == 200)
    return [
        (first and asked == 1, "robots.txt first", f"requested {_times(asked)} per host, before any page"),
        (private == 0, "Disallow: /private/", f"{private} requests for disallowed pages"),
        (most == 1, "one at a time", f"at most {most} request in flight per host"),
        (paused, f"pauses of {PAUSE[0]:g}–{PAUSE[1]:g} s", f"the shortest was {shortest:.2f} s{late}"),
        (_is_kept(slow.gaps(), CRAWL_DELAY), f"Crawl-delay: {CRAWL_DELAY:g}",
         f"the shortest gap at slow-lane was {min(slow.gaps(), default=0.0):.2f} s"),
        (rest >= RETRY_AFTER - LATE, f"429, Retry-After: {RETRY_AFTER}", f"no request to busy for {rest:.2f} s"),
        (alone >= COOLDOWN - LATE and recovered, "three failures",
         f"no request to shaky for {alone:.2f} s, then it recovered"),
        (spent <= BUDGET, f"{BUDGET} requests a day", f"large received {spent}"),
        (max(given.values(), default=0) == 1, "no page twice", f"{len(given)} pages, each sent once"),
    ]  # fmt: skip


def _is_kept(gaps: list[float], least: float) -> bool:
    """Return whether each gap, and all gaps together, are long enough."""
    return min(gaps, default=0.0) >= least - LATE and sum(gaps) >= least * len(gaps) - LATE


def _rest(host: DemoHost, status: int) -> float:
    """Return the seconds between the last response with that status and the next request; 0 without one."""
    rests = [b.at - a.at for a, b in pairwise(host.journal) if a.status == status]
    return rests[-1] if rests else 0.0


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def report(terminal: Console, site: DemoSite, summary: CrawlSummary, examples: Examples) -> bool:
    """Print fetched and skipped pages, and the site's observations; return whether all rules were kept."""
    from curtsy.cli.report import headline, show_reasons

    terminal.print(console.text(("\nFetched ", "bold"), f"{headline(summary.totals)}, from {len(site.hosts)} hosts."))
    show_reasons(terminal, summary.totals, examples.by_reason)
    terminal.print(console.text("\nQueued for the next day", style="bold"))
    wait = "" if summary.resume_in is None else f", {span(summary.resume_in)} until the next day"
    terminal.print(console.text((f"{summary.queued:>6,}", "yellow"), "  beyond the daily budget of large"))
    terminal.print(console.text(f"{'':8}They stay in the queue{wait}.", style="dim"))
    terminal.print(console.text("\nLog of the site", style="bold"))
    table = console.table("", "", "", folded=(2,))
    checks = verdicts(site)
    for is_kept, rule, seen in checks:
        table.add_row(console.text("  ", console.mark("yes" if is_kept else "no")), rule, console.text((seen, "dim")))
    terminal.print(table)
    requests = sum(len(host.journal) for host in site.hosts)
    broken = sum(not is_kept for is_kept, _, _ in checks)
    words = f"{requests} requests, and every rule was obeyed."
    if broken:
        words = f"{broken} of {len(checks)} rules were broken. Please report this."
    terminal.print(console.text(f"\n{words}", style="bold red" if broken else "bold green"))
    return not broken


@command(("curtsy demo", "About twenty seconds, without network access."))
def demo() -> Exit:
    """Show a polite crawl of a small site on this machine.

    Five small hosts with different rules are started on loopback and crawled. The report lists fetched and skipped
    pages with reasons, and checks every rule against the log of the site.
    """
    from rich.console import Console

    from curtsy.crawling.outputs.skipped import Examples

    terminal = Console(highlight=False, markup=False, emoji=False)
    terminal.print(console.text(("curtsy", "bold"), ": a polite crawl of five small hosts on loopback"))
    words = "About twenty seconds; pauses are a tenth of the usual ones. Ctrl-C stops it.\n"
    terminal.print(console.text((words, "dim")))
    examples = Examples()
    with DemoSite() as site:
        summary = run(lambda: crawl(site, terminal, examples))
        return Exit.FINE if report(terminal, site, summary, examples) else Exit.ERROR

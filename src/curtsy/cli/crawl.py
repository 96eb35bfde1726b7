"""`curtsy crawl`: fetch many pages by following links."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from curtsy.cli import console
from curtsy.cli.command import (
    COOKIES,
    EXTRACT,
    INPUT,
    NO_CACHE,
    OUTPUT,
    RENDER,
    TIMEOUT,
    OneName,
    byte_count,
    check_places,
    check_uses,
    command,
    duration,
    host_name,
    job_name,
    known_hosts,
    known_jobs,
    once,
    selectors,
    worker_count,
)
from curtsy.cli.context import PATIENCE, CommandContext, Exit, handle_signals, leave, run
from curtsy.cli.crawl_job import open_crawl, refusal, start_of, unsaved, written_messages
from curtsy.cli.get import cache_options, make_folder, url_lines
from curtsy.cli.urls import ALLOW_HTTP, complete_lines, complete_urls
from curtsy.core.crawl_messages import deaths_in_run, job_in_use, not_extracted_in_run
from curtsy.core.errors import NotWritten, PolicyError, StoreError

if TYPE_CHECKING:
    from curtsy.cli.report import LineDisplay
    from curtsy.client import AsyncClient
    from curtsy.crawling.crawl import AsyncCrawl
    from curtsy.crawling.outputs.protocol import Output
    from curtsy.crawling.outputs.skipped import Examples
    from curtsy.crawling.progress import CrawlSummary, HostProgress
    from curtsy.crawling.seeds import Seeds

OFFLINE = "CURTSY_CACHE_MODE"
"""Environment variable by which a crawl replays the cache."""

AT_ONCE = 3.0
"""Seconds to save finished work after a second signal."""


@dataclass(frozen=True)
class CrawlArguments:
    """Parsed command line."""

    seeds: Seeds
    options: dict[str, Any]
    """Arguments of `CrawlOptions`."""

    client: dict[str, Any]
    """Arguments of `AsyncClient`."""

    is_offline: bool = False
    """True if the crawl replays the cache."""

    variables: tuple[str, ...] = ()
    """Environment variables that a command needs to resume the crawl offline, as `NAME=value`."""

    job: str = ""
    """Name or folder of the job; empty if nothing is kept."""

    is_named: bool = False
    """True if the user named the job."""

    restart: bool = False
    files: dict[str, str] = field(default_factory=dict)
    """Paths and URLs of the outputs by kind (`outputs.KINDS`)."""

    writing: dict[str, Any] = field(default_factory=dict)
    """Arguments of `open_output`."""

    is_durable: bool = False
    is_json: bool = False
    metrics_port: int | None = None
    workers: int | Literal["auto"] = 1
    arguments: list[str] = field(default_factory=list)
    """Command line without the program's name."""


HEADINGS = {
    "Which pages": "source scope domains match skip max_depth sitemaps max_sitemaps files obey_nofollow avoid_traps "
    "max_links_per_page requisites allow_http",
    "When to stop": "max_pages max_pages_per_host max_pages_per_day max_requests_per_day max_time max_bytes patience",
    "Where to write": "mirror out jsonl csv parquet warc skipped extract body main_text part_size part_time is_durable",
    "Which copies to keep": "obey_noindex obey_canonical drop_duplicates",
    "Resume": "job no_job restart",
    "How to fetch": "max_in_flight timeout workers render cookies no_cache refresh",
    "Report": "is_dry is_json metrics_port",
}
"""Headings of the help, each with its parameters."""

ONE, ANY = click.IntRange(1), click.IntRange(0)


def _switch_off(option: str, name: str, words: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option that sets a field of `CrawlOptions` to False."""
    return click.option(option, name, is_flag=True, flag_value=False, default=None, help=words)


@command(
    ("curtsy crawl https://example.org/ --max-pages 100 --out pages", "A hundred pages of a site, into a folder."),
    (
        "curtsy crawl https://example.org/docs/ --scope prefix --jsonl docs.jsonl --main-text plain --job docs",
        "A part of a site, as JSON lines with the main text. The same command resumes it.",
    ),
    (
        "curtsy crawl https://example.org/ --extract 'title=h1' --extract 'price=.price::text' --csv prices.csv",
        "Fields of each page by CSS selectors, as a table.",
    ),
    ("curtsy crawl https://example.org/ --dry-run", "Report what would be fetched; no page is requested."),
    ("curtsy crawl https://example.org/ --sitemaps --warc site.warc.gz", "All URLs of its sitemaps, archived."),
    (
        "curtsy crawl https://example.org/ --match /item/ --match /list --skip '[?]sort=' --jsonl - | jq .title",
        "Selected pages; JSON lines on standard output.",
    ),
    ("curtsy crawl https://example.org/ --mirror site", "A copy to browse offline. The same command updates it."),
    ("curtsy crawl -i seeds.txt --job news --store redis://10.0.0.5", "Shared by all machines that run this."),
    (
        "curtsy crawl https://example.org/ --job docs --parquet s3://bucket/docs.parquet",
        "Into an object store, as Parquet.",
    ),
    headings=HEADINGS,
)
@click.argument("urls", metavar="URL...", nargs=-1)
@INPUT
@click.option("--max-pages", "--limit", cls=OneName, type=ONE, metavar="N", help="Pages at most, over all runs.")
@click.option("--max-pages-per-host", type=ONE, metavar="N", help="Pages of each host at most.")
@click.option("--max-pages-per-day", type=ANY, metavar="N", help="Pages of a host and day, if the site agreed (100).")
@click.option(
    "--max-requests-per-day", type=ANY, metavar="N", help="Requests to a host and day, if the site agreed (200)."
)
@click.option("--max-links-per-page", type=ONE, metavar="N", help="Links of a page at most (20000).")
@click.option("--max-depth", type=ANY, metavar="N", help="Links between a given URL and a page, at most.")
@click.option("--match", multiple=True, metavar="REGEX", help="Fetch only URLs that match; repeatable.")
@click.option("--skip", multiple=True, metavar="REGEX", help="Skip URLs that match; repeatable.")
@click.option(
    "--scope", type=click.Choice(["host", "site", "domains", "prefix", "any"]), metavar="KIND",
    help="Follow links within: host, site (default), prefix (the given folder), domains (--domain), any. If a start "
    "URL redirects to another site, that site belongs to the crawl too.",
)  # fmt: skip
@click.option(
    "--domain", "domains", type=host_name, shell_complete=known_hosts, multiple=True, metavar="DOMAIN",
    help="Include this domain; repeatable.",
)  # fmt: skip
@click.option("--sitemaps", is_flag=True, default=None, help="Read sitemaps for URLs.")
@click.option("--max-sitemaps", type=ANY, metavar="N", help="Sitemaps of each site at most (1000).")
@click.option("--files", multiple=True, metavar="TYPE", help="Also fetch files: .pdf, .csv … or all; repeatable.")
@OUTPUT("--mirror", metavar="DIR", help="Write a copy of the site to browse offline, with what its pages need.")
@click.option(
    "--requisites", type=click.Choice(["none", "site", "any"]), metavar="WHICH",
    help="Fetch what pages need: none (default), site (with --mirror), any (of other sites too).",
)  # fmt: skip
@OUTPUT("--out", metavar="DIR", help="Write each body as a file, with a .meta.json beside it.")
@once("--jsonl", metavar="FILE", help="Write a JSON line for each page; - for standard output.")
@OUTPUT("--csv", help="Write a table (CSV) with a row for each page.")
@OUTPUT("--parquet", help="Write Parquet files, named after FILE and numbered.")
@EXTRACT
@click.option(
    "--body", type=click.Choice(["text", "base64"]), metavar="FORM",
    help="Add the body to JSON lines and Parquet: text or base64 (Parquet: bytes).",
)  # fmt: skip
@click.option(
    "--main-text", type=click.Choice(["plain", "trafilatura"]), metavar="HOW",
    help="Extract the main text: plain or trafilatura.",
)  # fmt: skip
@OUTPUT("--warc", help="Write a WARC archive, such as site.warc.gz.")
@OUTPUT("--skipped", help="Write a table (CSV) of URLs without a page, with reasons.")
@click.option("--part-size", type=byte_count, metavar="SIZE", help="Size of a part of Parquet or of a URL (128M).")
@click.option("--part-time", type=duration, metavar="TIME", help="Time after which such a part is stored (15m).")
@click.option(
    "--durable", "is_durable", is_flag=True,
    help="Mark pages as done only when they are on the disk, or stored at their URL.",
)  # fmt: skip
@once(
    "--job", type=job_name, shell_complete=known_jobs, metavar="NAME",
    help="Save the state under this name or in ./FOLDER; without it, the job is named after the first URL.",
)  # fmt: skip
@click.option("--no-job", is_flag=True, help="Save no state: the crawl cannot be resumed.")
@click.option("--restart", is_flag=True, help="Begin again, even if the crawl is unfinished.")
@click.option("--max-time", type=duration, metavar="TIME", help="Stop after 90s, 10m, 2h.")
@click.option("--max-bytes", type=byte_count, metavar="SIZE", help="Stop after this many bytes: 20M, 1.5G.")
@click.option("--patience", type=duration, metavar="TIME", help="Stop if the next host is due later than this (10m).")
@click.option("--max-in-flight", type=ONE, metavar="N", help="Concurrent requests, over all hosts (64).")
@TIMEOUT
@click.option(
    "--workers", type=worker_count, default=1, metavar="N", help="Processes that fetch; auto: one per core (1)."
)
@_switch_off("--follow-nofollow", "obey_nofollow", "Follow nofollow links too.")
@_switch_off("--keep-noindex", "obey_noindex", "Keep noindex pages too.")
@_switch_off("--keep-copies", "obey_canonical", "Keep pages with another canonical URL too.")
@click.option("--drop-duplicates", is_flag=True, default=None, help="Drop pages with the same body as an earlier one.")
@_switch_off("--traps", "avoid_traps", "Follow links that look endless too.")
@COOKIES
@NO_CACHE
@ALLOW_HTTP
@click.option("--refresh", is_flag=True, help="Fetch pages again, even if there is a fresh copy.")
@RENDER
@click.option("--dry-run", "is_dry", is_flag=True, help="Report what would be fetched, and exit.")
@click.option("--json", "is_json", is_flag=True, help="Write the summary as JSON on standard output.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve Prometheus metrics there.")
@click.pass_context
def crawl(context: click.Context, /, **words: Any) -> Exit:
    """Crawl sites politely: follow links, obey every rule, and resume after a stop.

    Every request waits until robots.txt, the host's pace and daily budget, its breaker and the global rate allow it. A
    live view shows each host. A report at the end lists fetched and skipped pages, with reasons. Ctrl-C stops it
    gracefully. The same command resumes it, and no page is fetched twice; limits and outputs may differ. A finished
    crawl starts anew, and does not download unchanged pages again.

    The exit code is 0 if pages were fetched, 3 if all were refused by rules, 22 if the only URL answered with an error,
    75 if the rest is due later (the message says when) or the disk stayed full, 74 if an output cannot be opened, was
    closed, was replaced or lacks pages, 130 after Ctrl-C.
    """
    given = context.ensure_object(CommandContext)
    wanted = _wanted(given, words, list(context.meta.get("curtsy.arguments", ())))
    try:
        if words["is_dry"]:
            return _report_dry_run(given, wanted)
        return run(lambda: _crawl(given, wanted))
    except NotWritten as error:  # before the first page
        message, command = refusal(
            error, wanted.job, wanted.seeds.head, wanted.options, is_named=wanted.is_named, is_offline=wanted.is_offline
        )
        console.say(message, command=command)
        return Exit.OUTPUT


def _report_dry_run(given: CommandContext, wanted: CrawlArguments) -> Exit:
    """Report what the crawl would do with the same limits and cache mode.

    Raises NotWritten for an output that it would refuse. The ends of a shared job's outputs are on its server, so they
    are not checked.
    """
    from curtsy.cli.why import report_dry_run
    from curtsy.crawling.outputs import open_outputs
    from curtsy.crawling.start import SHARED

    names = ("max_pages_per_day", "max_requests_per_day", "cache_mode")
    settings = {name: wanted.client[name] for name in names if name in wanted.client}
    if wanted.client.get("cache") is False:
        settings["cache_mode"] = "off"
    options = wanted.options
    if "mirror" in wanted.files and options.get("requisites", "none") == "none":
        options = options | {"requisites": "site"}  # as the output sets it, which a dry run does not open
    outputs = open_outputs(outputs_of(wanted, is_dry=True))
    if wanted.is_named and (given.settings().store or "").startswith(SHARED):
        outputs = []
    return report_dry_run(
        given.with_settings(settings), wanted.seeds.head, options, wanted.job or None, outputs,
        restart=wanted.restart, is_json=wanted.is_json,
    )  # fmt: skip


def _wanted(given: CommandContext, words: dict[str, Any], arguments: list[str]) -> CrawlArguments:
    """Combine the options. Raises UsageError for contradictions."""
    from curtsy.crawling.extract.scope import Scope
    from curtsy.crawling.jobs import default_name
    from curtsy.crawling.options import CrawlOptions

    kinds = ("mirror", "folder", "jsonl", "csv", "parquet", "warc", "skipped")
    paths = {kind: words["out" if kind == "folder" else kind] for kind in kinds}
    files = {kind: path for kind, path in paths.items() if path is not None}
    _check(words, files)
    seeds = _seeds(given, words["urls"], words["source"], words["max_time"], words["allow_http"])
    writing = {name: words[name] for name in ("body", "part_size", "part_time") if words[name] is not None}
    words["extract"] = selectors(words["extract"])
    if "all" in words["files"]:
        words["files"] = "all"
    known = [each.name for each in fields(CrawlOptions)]
    options = {name: words[name] for name in known if words[name] is not None and words[name] != ()}
    try:
        made = CrawlOptions(**options)
        Scope.around(
            seeds.head, kind=made.scope, domains=made.domains, match=made.match, skip=made.skip,
            max_depth=made.max_depth, files=made.files,
        )  # fmt: skip
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    client = {
        **given.arguments,
        "store": given.settings().store,
        "cookies": words["cookies"],
        "render": words["render"],
    }
    client |= cache_options(words["no_cache"], words["refresh"])
    if words["mirror"] is not None and given.settings().cache_mode == "normal":
        client = {"cache_mode": "revalidate"} | client  # the site says what has changed since the last run
    settings = ("max_pages_per_day", "max_requests_per_day", "timeout")
    client |= {name: words[name] for name in settings if words[name] is not None}
    is_offline = (client.get("cache_mode") or given.settings().cache_mode) == "offline"
    is_by_variable = is_offline and given.settings().origin(None, "cache_mode").endswith(f" {OFFLINE}")
    variables = (f"{OFFLINE}=offline",) if is_by_variable else ()
    own = "" if words["no_job"] else default_name(seeds.head, made, _sources(words), is_offline=is_offline)
    name = words["job"] or own
    return CrawlArguments(
        seeds, options, client, is_offline, variables, name, words["job"] is not None, words["restart"], files, writing,
        words["is_durable"], words["is_json"], words["metrics_port"], words["workers"], arguments,
    )  # fmt: skip


def _check(words: dict[str, Any], files: Mapping[str, str]) -> None:
    """Raise UsageError for options that contradict each other."""
    check_places(files, has_seeds=bool(words["urls"]) or words["source"] is not None)
    if words["is_json"] and words["jsonl"] == "-":
        raise click.UsageError("--json and --jsonl - both write to standard output. Give --jsonl a file.")
    check_uses(words, files)
    if words["no_job"] and (words["restart"] or words["job"] is not None):
        raise click.UsageError("--no-job saves no state, so --job and --restart have no use. Leave one of them out.")
    if words["no_cache"] and words["refresh"]:
        raise click.UsageError("--no-cache and --refresh exclude each other. Give one of them.")
    if words["workers"] != 1 and words["metrics_port"] is not None:
        raise click.UsageError("--metrics-port counts the fetches of one process. Leave it out, or use one worker.")


def _sources(words: dict[str, Any]) -> list[str]:
    """Return the files of seeds; `-` is standard input."""
    named = [] if words["source"] in (None, "-") else [str(Path(words["source"]).absolute())]
    return ["-"] * ("-" in (words["source"], *words["urls"])) + named


def _seeds(
    given: CommandContext, urls: tuple[str, ...], source: str | None, seconds: float | None, allow_http: bool
) -> Seeds:
    """Return the seed URLs. Files are read during the crawl."""
    from curtsy.crawling.seeds import Seeds

    try:
        if source is None and "-" not in urls:
            return Seeds(complete_urls(given, urls, allow_http))
        parts = [url_lines(each) if each == "-" else [each] for each in urls]
        lines = chain(*parts, url_lines(source) if source is not None else ())
        seeds = Seeds(complete_lines(given, lines, allow_http))
        seeds.peek(seconds)
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    if not seeds.head:
        raise click.ClickException("--max-time was over before a URL was read. Check the program that writes them.")
    return seeds


async def _crawl(given: CommandContext, wanted: CrawlArguments) -> Exit:
    from curtsy.cli.report import exit_of, open_display, resuming, watch
    from curtsy.crawling.jobs import COMMAND, RENEWING, folder_of, mark_named, mark_unnamed
    from curtsy.crawling.outputs.skipped import Examples
    from curtsy.crawling.start import acrawl
    from curtsy.stores.sqlite_file import FileInUse

    examples, outputs = Examples(), outputs_of(wanted)
    start = start_of(
        given, wanted.job, wanted.seeds.head, is_named=wanted.is_named, restart=wanted.restart, client=wanted.client
    )

    def opened() -> AsyncCrawl:
        return acrawl(
            wanted.seeds, outputs=[*outputs, examples], durable=wanted.is_durable, workers=wanted.workers,
            **wanted.options, **{**wanted.client, **start.arguments()},
        )  # fmt: skip

    try:
        crawl = opened()
    except FileInUse as error:
        console.say(job_in_use(start.label, start.name, error.owner, is_named=wanted.is_named))
        return Exit.LATER
    except StoreError as error:
        if (alone := unsaved(start, error)) is None:
            raise
        start, wanted = alone, replace(wanted, job="")
        crawl = opened()
    if wanted.job:
        (mark_named if wanted.is_named else mark_unnamed)(folder_of(wanted.job))
    # JSON lines on the same terminal would garble a live view.
    is_live = sys.stderr.isatty() and not (wanted.files.get("jsonl") == "-" and sys.stdout.isatty())
    async with crawl:
        noted = {COMMAND: resuming(wanted.arguments, variables=wanted.variables), RENEWING: bool(start.client)}
        if not await open_crawl(crawl, start, {output.name for output in outputs}, noted):
            return Exit.LATER
        with _metrics(crawl.client, wanted.metrics_port), open_display(is_live) as display:
            stopping = Stopping(crawl, display)
            summary = await watch(crawl, display, 0.25 if is_live else 1.0)
        hosts = (await crawl.snapshot()).hosts
    _conclude(wanted, summary, examples, hosts)
    return exit_of(summary, crawl.seeds, stopping.count > 0, is_shared=crawl.is_shared)


def outputs_of(wanted: CrawlArguments, *, is_dry: bool = False) -> list[Output]:
    """Return the requested outputs, and create their missing folders unless it is a dry run."""
    from curtsy.crawling.outputs import open_output
    from curtsy.crawling.outputs.part_storage import is_url

    for path in wanted.files.values():
        if path != "-" and not is_url(path) and not is_dry:
            make_folder(Path(path))
    return [open_output(f"{kind}:{path}", **wanted.writing) for kind, path in wanted.files.items()]


@contextmanager
def _metrics(client: AsyncClient, port: int | None) -> Iterator[None]:
    """Serve metrics if a port is given."""
    if port is None:
        yield
        return
    from curtsy.client import session_of
    from curtsy.observe.metrics import serve_metrics

    with serve_metrics(port, client.stats, crawls=session_of(client).crawls) as server:
        console.say(f"metrics are served at http://127.0.0.1:{server.port}/metrics.")
        yield


def _conclude(wanted: CrawlArguments, summary: CrawlSummary, examples: Examples, hosts: Sequence[HostProgress]) -> None:
    """Report the result as JSON or as text."""
    from curtsy.cli.report import end_message, headline, resume_hint, resuming, show_reasons, show_resting

    is_resumable = wanted.job and summary.queued
    higher, variables = summary.ended == "max_pages", wanted.variables
    pages = summary.totals.pages
    resume = resuming(wanted.arguments, higher=higher, pages=pages, variables=variables) if is_resumable else None
    if wanted.is_json:
        console.write_json(
            {
                **summary.as_dict(), "message": summary.message, "job": wanted.job or None, "outputs": wanted.files,
                "written": {each.name: each.entries for each in summary.outputs},
                "missing": {each.name: each.missing for each in summary.outputs if each.missing},
                "added": {each.name: each.entries - each.before for each in summary.outputs},
                "earlier": {each.name: each.earlier for each in summary.outputs if each.earlier},
                "examples": {
                    reason: {"url": each.url, "message": each.message} for reason, each in examples.by_reason.items()
                },
                "resume": resume,
            }
        )  # fmt: skip
    else:
        show_reasons(console.err(), summary.totals, examples.by_reason)
        if summary.queued:
            show_resting(console.err(), hosts)
        print(file=sys.stderr)
    console.say(f"{headline(summary.totals)}. {end_message(summary, wanted.options)}")
    if summary.totals.extract_errors:
        console.say(not_extracted_in_run(summary.totals.extract_errors))
    if summary.worker_deaths:
        console.say(deaths_in_run(summary.worker_deaths))
    for line in written_messages(wanted.files, summary, wanted.seeds.head):
        console.say(line)
    if (hint := resume_hint(summary, wanted.job)) is not None:
        console.say(hint, command=resume)


class Stopping:
    """Signal handler of a crawl: the first signal stops it gracefully, the second at once (U17, F46)."""

    def __init__(self, crawl: AsyncCrawl, display: LineDisplay) -> None:
        self._crawl = crawl
        self._display = display
        self.count = 0
        """Number of signals so far."""
        handle_signals(self)  # on Windows, asyncio cancels on Ctrl-C; closing the crawl stops it

    def __call__(self) -> None:
        """Handle a signal."""
        self.count += 1
        import asyncio

        loop = asyncio.get_running_loop()
        if self.count == 1:
            self._display.say("stopping after the current requests. Press Ctrl-C again to stop now.")
            loop.call_later(PATIENCE, leave)
        elif self.count == 2:
            loop.call_later(AT_ONCE, leave)
        else:
            leave()
        self._crawl.stop()

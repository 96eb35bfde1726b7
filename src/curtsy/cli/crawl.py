"""`curtsy crawl`: fetch many pages by following links."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from curtsy.cli import console
from curtsy.cli.command import Command
from curtsy.cli.context import CommandContext
from curtsy.cli.exits import Exit
from curtsy.cli.jobs import JobName
from curtsy.cli.running import run
from curtsy.cli.values import Domain, Duration, Size

if TYPE_CHECKING:
    from curtsy.client import AsyncClient
    from curtsy.crawling.crawl import AsyncCrawl
    from curtsy.crawling.outputs import Output
    from curtsy.crawling.outputs.examples import Examples
    from curtsy.crawling.progress import HostProgress, Summary
    from curtsy.crawling.seeds import Seeds

LONGEST = 65_536
"""Maximum length of a line of a URL file in bytes; the rest of the line is skipped."""


@dataclass(frozen=True)
class CrawlArguments:
    """Parsed command line."""

    seeds: Seeds
    options: dict[str, Any]
    """Arguments of `CrawlOptions`."""

    client: dict[str, Any]
    """Arguments of `AsyncClient`."""

    job: str | None = None
    is_fresh: bool = False
    files: dict[str, str] = field(default_factory=dict)
    """Paths of the outputs by kind: `jsonl`, `warc`, `folder` and `csv`."""

    body: Any = "none"
    is_json: bool = False
    metrics_port: int | None = None
    arguments: list[str] = field(default_factory=list)
    """Command line without the program's name."""


@click.command(
    cls=Command,
    examples=(
        ("curtsy crawl https://example.org/ --limit 100 --out pages", "A hundred pages of a site, into a folder."),
        (
            "curtsy crawl https://example.org/docs/ --scope prefix --jsonl docs.jsonl --text plain --job docs",
            "A part of a site, as JSON lines with the main text. Stopped or killed, the same line goes on with it.",
        ),
        ("curtsy crawl https://example.org/ --dry-run", "What would be fetched and what not; no page is asked for."),
        ("curtsy crawl https://example.org/ --sitemap --warc site.warc.gz", "All that its sitemaps list, archived."),
        (
            "curtsy crawl https://example.org/ --match /item/ --match /list --skip '[?]sort=' --jsonl - | jq .title",
            "Only some pages; JSON lines on standard output.",
        ),
        ("curtsy crawl -i seeds.txt --job news --store redis://10.0.0.5", "Shared: every machine that says so joins."),
    ),
)
@click.argument("urls", metavar="URL...", nargs=-1)
@click.option("-i", "--input", "source", metavar="FILE", help="Read URLs from a file, one a line; - for stdin.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Pages at most, in all runs of a job together.")
@click.option("--limit-per-host", type=click.IntRange(1), metavar="N", help="Pages of each host at most.")
@click.option(
    "--max-links-per-page", type=click.IntRange(1), metavar="N", help="Links of one page that are taken (20000)."
)
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Links from a URL that was given, at most.")
@click.option("--match", multiple=True, metavar="REGEX", help="Fetch only what one of these is found in; repeatable.")
@click.option("--skip", multiple=True, metavar="REGEX", help="Fetch nothing that this is found in; repeatable.")
@click.option(
    "--scope",
    type=click.Choice(["host", "site", "domains", "prefix", "any"]),
    metavar="KIND",
    help="Where links may lead: host, site (the default), prefix (the folder given), domains (--domain), any.",
)
@click.option(
    "--domain", "domains", type=Domain(), multiple=True, metavar="DOMAIN", help="These hosts too; repeatable."
)
@click.option("--sitemap", "sitemaps", is_flag=True, help="Read sitemaps for URLs.")
@click.option("--max-sitemaps", type=click.IntRange(0), metavar="N", help="Sitemaps of each site at most (1000).")
@click.option("--files", multiple=True, metavar="TYPE", help="Besides pages: .pdf, .csv … or all; repeatable.")
@click.option("--out", metavar="DIR", help="Each body as a file, with one beside it for what is known of it.")
@click.option("--jsonl", metavar="FILE", help="A line of JSON for each page; - for standard output.")
@click.option(
    "--body", type=click.Choice(["text", "base64"]), metavar="FORM", help="In JSON lines also the body: text or base64."
)
@click.option(
    "--text",
    type=click.Choice(["plain", "trafilatura"]),
    metavar="HOW",
    help="Make out the main text: plain or trafilatura.",
)
@click.option("--warc", metavar="FILE", help="A WARC archive, such as site.warc.gz.")
@click.option("--skipped", metavar="FILE", help="What was not fetched and why, as a table (CSV).")
@click.option(
    "--job", type=JobName(), metavar="NAME", help="Keep the state, so that the crawl can be gone on with; or ./FOLDER."
)
@click.option("--fresh", "is_fresh", is_flag=True, help="Begin a job anew.")
@click.option("--max-time", type=Duration(), metavar="TIME", help="Stop after 90s, 10m, 2h.")
@click.option("--max-bytes", type=Size(), metavar="SIZE", help="Stop after so much was downloaded: 20M, 1.5G.")
@click.option(
    "--patience",
    type=Duration(),
    metavar="TIME",
    help="Wait this long if nothing may be asked sooner (10m); then stop.",
)
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="Requests at once, over all hosts (64).")
@click.option("--follow-nofollow", is_flag=True, help="Also follow links that ask not to be followed.")
@click.option("--keep-noindex", is_flag=True, help="Also keep pages that say noindex.")
@click.option("--keep-copies", is_flag=True, help="Also keep pages that name another URL as their own (canonical).")
@click.option("--drop-duplicates", is_flag=True, help="Leave out pages with the very same body as an earlier one.")
@click.option("--traps", is_flag=True, help="Also follow links that look endless.")
@click.option("--cookies", is_flag=True, help="Keep cookies while it runs, each for the host that set it.")
@click.option("--no-cache", is_flag=True, help="Neither use nor keep copies.")
@click.option("--refresh", is_flag=True, help="Fetch anew what there may be a fresh copy of.")
@click.option("--dry-run", "is_dry", is_flag=True, help="Say what would be fetched and what not, and end.")
@click.option("--json", "is_json", is_flag=True, help="The summary as JSON on standard output, at the end.")
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve Prometheus metrics there.")
@click.pass_context
def crawl(context: click.Context, /, **words: Any) -> Exit:
    """Crawl sites politely: follow links, keep every rule, and go on where it ended.

    Every request waits its turn: robots.txt, the host's pace and daily budget, its breaker, the global rate. While it
    runs a live view shows each host; at the end stands what was fetched, and what was not and why. Ctrl-C stops it in
    good order; with --job the same command goes on with it, and nothing is fetched twice.

    The exit code is 0 if pages came, 3 if all was refused by manners, 22 if the only URL answered with an error, 75 if
    what is left may be asked for only later (it says when), or the disk stayed full, 74 if an output cannot be opened,
    was closed, was replaced or lacks pages, 130 after Ctrl-C.
    """
    given = context.ensure_object(CommandContext)
    wanted = _wanted(given, words, list(context.meta.get("curtsy.arguments", ())))
    if words["is_dry"]:
        from curtsy.cli.dry_run import rehearse

        return rehearse(given, wanted)
    from curtsy.core.errors import NotWritten

    try:
        return run(lambda: _crawl(given, wanted))
    except NotWritten as error:  # before the first page
        console.say(str(error))
        return Exit.OUTPUT


def _wanted(given: CommandContext, words: dict[str, Any], arguments: list[str]) -> CrawlArguments:
    """Combine the options. Raises UsageError for contradictions."""
    from curtsy.core.errors import PolicyError
    from curtsy.crawling.extract.scope import Scope
    from curtsy.crawling.options import CrawlOptions

    seeds = _seeds(words["urls"], words["source"], words["max_time"])
    files = {
        kind: words[name]
        for kind, name in (("folder", "out"), ("jsonl", "jsonl"), ("warc", "warc"), ("csv", "skipped"))
        if words[name] is not None
    }
    if words["is_json"] and words["jsonl"] == "-":
        raise click.UsageError("--json and --jsonl - both write to standard output. Give --jsonl a file.")
    if words["body"] is not None and words["jsonl"] is None:
        raise click.UsageError("--body is for JSON lines. Give --jsonl too.")
    if words["is_fresh"] and words["job"] is None:
        raise click.UsageError("--fresh is for a job. Give --job too; without one every crawl begins anew.")
    if words["no_cache"] and words["refresh"]:
        raise click.UsageError("--no-cache and --refresh exclude each other. Give one of them.")
    chosen = {
        "scope": words["scope"], "domains": words["domains"] or None, "match": words["match"] or None,
        "skip": words["skip"] or None, "depth": words["depth"], "max_pages": words["limit"],
        "max_pages_per_host": words["limit_per_host"], "max_links_per_page": words["max_links_per_page"],
        "max_time": words["max_time"], "max_bytes": words["max_bytes"],
        "patience": words["patience"], "max_concurrent": words["concurrency"], "sitemaps": words["sitemaps"] or None,
        "max_sitemaps": words["max_sitemaps"],
        "text": words["text"], "drop_duplicates": words["drop_duplicates"] or None,
        "files": "all" if "all" in words["files"] else words["files"] or None,
        "obey_nofollow": False if words["follow_nofollow"] else None,
        "obey_noindex": False if words["keep_noindex"] else None,
        "obey_canonical": False if words["keep_copies"] else None, "avoid_traps": False if words["traps"] else None,
    }  # fmt: skip
    options = {name: value for name, value in chosen.items() if value is not None}
    try:
        made = CrawlOptions(**options)
        Scope.around(
            seeds.head, kind=made.scope, domains=made.domains, match=made.match, skip=made.skip, depth=made.depth,
            files=made.files,
        )  # fmt: skip
    except PolicyError as error:
        raise click.UsageError(str(error)) from None
    client = {**given.arguments, "store": given.settings().store, "cookies": words["cookies"]}
    client |= {"cache": False} if words["no_cache"] else {"cache_mode": "refresh"} if words["refresh"] else {}
    return CrawlArguments(
        seeds, options, client, words["job"], words["is_fresh"], files, words["body"] or "none", words["is_json"],
        words["metrics_port"], arguments,
    )  # fmt: skip


def _seeds(urls: tuple[str, ...], source: str | None, seconds: float | None) -> Seeds:
    """Return the seed URLs. A bare host means its front page, over TLS. Files are read during the crawl."""
    from curtsy.core.errors import PolicyError
    from curtsy.crawling.seeds import Seeds

    files = [url == "-" for url in urls]
    parts = [_lines_of(each) if is_file else [each] for each, is_file in zip(urls, files, strict=True)]
    if source is not None:
        parts.append(_lines_of(source))
    try:
        if source is None and not any(files):
            if not urls:
                raise click.UsageError("no URL was given. Name one, or a file of them with -i.")
            return Seeds(urls)
        seeds = Seeds(chain.from_iterable(parts))
        seeds.peek(seconds)
    except PolicyError as error:
        nothing = "no URL was given. Name one, or a file of them with -i."
        raise click.UsageError(nothing if "nothing to crawl" in str(error) else str(error)) from None
    if not seeds.head:
        raise click.ClickException("the time is up before a URL was read. Look at what writes them.")
    return seeds


def _lines_of(source: str) -> Iterator[str]:
    """Return the URLs of a file, one per line; skip empty lines and those that begin with #."""
    try:
        # A file object of its own: a thread that blocks on sys.stdin would delay the program's exit.
        file = open(0 if source == "-" else source, "rb", closefd=source != "-")  # noqa: SIM115
    except OSError as error:
        raise click.UsageError(
            f"{source} cannot be read: {error.strerror}. Name a file with a URL on each line."
        ) from None
    return _lines(file)


def _lines(file: BinaryIO) -> Iterator[str]:
    is_whole, mark = True, "\ufeff"  # byte order mark of the first line
    with file:
        while raw := file.readline(LONGEST):
            line, mark = raw.decode("utf-8", "surrogateescape").removeprefix(mark).strip(), ""
            if is_whole and line and not line.startswith("#"):
                yield line
            is_whole = raw.endswith(b"\n")


async def _crawl(given: CommandContext, wanted: CrawlArguments) -> Exit:
    from curtsy.cli.report import command
    from curtsy.cli.run import conduct, exit_of, is_watched, telling
    from curtsy.crawling.frontier.sqlite_file import Taken
    from curtsy.crawling.outputs.examples import Examples
    from curtsy.crawling.start import acrawl

    examples = Examples()
    try:
        crawl = acrawl(
            wanted.seeds, job=wanted.job, fresh=wanted.is_fresh, outputs=[*outputs_of(wanted), examples],
            **wanted.options, **wanted.client,
        )  # fmt: skip
    except Taken as error:
        console.say(f"the job {wanted.job} is running already: {error}")
        return Exit.LATER
    # JSON lines on the same terminal would garble a live view.
    is_live = is_watched() and not (wanted.files.get("jsonl") == "-" and sys.stdout.isatty())
    async with crawl:
        await _announce(crawl, wanted)
        if wanted.job is not None:
            await crawl.frontier.note({"command": command(wanted.arguments)})
        with _metrics(crawl.client, wanted.metrics_port), telling(is_live) as teller:
            summary, is_interrupted = await conduct(crawl, teller, 0.25 if is_live else 1.0)
        hosts = (await crawl.snapshot()).hosts
    _conclude(wanted, summary, examples, hosts)
    return exit_of(summary, crawl.seeds, is_interrupted, is_shared=crawl.is_shared)


def outputs_of(wanted: CrawlArguments) -> list[Output]:
    """Open the requested outputs."""
    from curtsy.crawling.outputs import open_output

    return [open_output(f"{kind}:{path}", body=wanted.body) for kind, path in wanted.files.items()]


async def _announce(crawl: AsyncCrawl, wanted: CrawlArguments) -> None:
    """Print the plan before the crawl starts."""
    from curtsy.crawling.job_values import seeds_of

    plan = await crawl.plan()
    notes = await crawl.frontier.notes()
    counts = await crawl.frontier.counts()
    if counts.done or counts.queued or counts.failed:
        done = f"{console.counted(counts.done, 'URL')} {'is' if counts.done == 1 else 'are'} done"
        waiting, new = counts.queued + counts.leased, len(set(crawl.seeds) - set(seeds_of(notes)))
        if not waiting and not new:  # a user who changed a setting would expect new pages
            console.say(
                f"the job {wanted.job} has nothing left to do: {done}, {counts.failed:,} came to nothing. What "
                "it knows is not fetched again. To start over, use --fresh and name other outputs, or another --job."
            )
            return
        more = f", {console.counted(new, 'URL')} to begin at {'is' if new == 1 else 'are'} new" if new else ""
        console.say(
            f"going on with the job {wanted.job}: {done}, {waiting:,} {'waits' if waiting == 1 else 'wait'}{more}."
        )
        named = {output.name for output in outputs_of(wanted)}
        for name in () if crawl.is_shared else notes:  # each worker of a shared job has its own outputs
            kind, _, path = name.removeprefix("output:").partition(":")
            if name.startswith("output:") and path and f"{kind}:{path}" not in named:
                console.say(
                    f"the job has written to {path} so far, which is not named now: pages will be missing there."
                )
    console.say(f"{plan.message}.")
    if not wanted.files:
        console.say(
            "no output is named, so the pages go nowhere but the cache: --out DIR, --jsonl FILE or --warc FILE."
        )


@contextmanager
def _serving(client: AsyncClient, port: int) -> Iterator[None]:
    from curtsy.observe.metrics import serve_metrics

    with serve_metrics(port, client.stats) as server:
        console.say(f"metrics are at http://127.0.0.1:{server.port}/metrics.")
        yield


def _metrics(client: AsyncClient, port: int | None) -> AbstractContextManager[None]:
    return nullcontext() if port is None else _serving(client, port)


def _conclude(wanted: CrawlArguments, summary: Summary, examples: Examples, hosts: Sequence[HostProgress]) -> None:
    """Report the result as JSON or as text."""
    from curtsy.cli.report import command, going_on, headline, show_reasons, show_resting

    if wanted.is_json:
        told = {reason: {"url": each.url, "message": each.message} for reason, each in examples.by_reason.items()}
        is_full = summary.ended == "max_pages"
        resume = command(wanted.arguments, higher=is_full) if wanted.job is not None and summary.queued else None
        console.write_json(
            {
                **summary.as_dict(), "message": summary.message, "job": wanted.job, "outputs": wanted.files,
                "written": {each.name: each.entries for each in summary.outputs},
                "missing": {each.name: each.missing for each in summary.outputs if each.missing},
                "examples": told, "resume": resume,
            }
        )  # fmt: skip
    else:
        show_reasons(console.err(), summary.totals, examples.by_reason)
        if summary.queued:
            show_resting(console.err(), hosts)
        print(file=sys.stderr)
    console.say(f"{headline(summary.totals)}. It ended because {summary.message.partition(';')[0]}.")
    held = {each.name.partition(":")[0]: each for each in summary.outputs}
    for kind, path in wanted.files.items():
        place, found = _numbered(path) if kind == "warc" else path, held[kind]
        if found.missing:
            console.say(
                f"{place} holds {found.entries:,} of {found.entries + found.missing:,} entries. The others were "
                "written too, but the output was cut or removed since. What is done is not fetched again: to have "
                "all, start over with --fresh and another output."
            )
        elif path != "-" and (found.entries or summary.ended in ("done", "max_pages")):
            console.say(f"written to {place}.")
    if (words := going_on(summary, wanted.job)) is not None:
        again = None if wanted.job is None else command(wanted.arguments, higher=summary.ended == "max_pages")
        console.say(words, command=again)


def _numbered(path: str) -> str:
    """Return a shell pattern for the numbered files of an archive."""
    stem = re.sub(r"\.warc(\.gz)?$", "", path, flags=re.IGNORECASE)
    return f"{stem}-*.warc{'' if path.lower().endswith('.warc') else '.gz'}"

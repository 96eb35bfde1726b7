"""`curtsy get` and `curtsy download`: fetch pages and files politely, similar to curl."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter, deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing, suppress
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import click

from curtsy.cli import console
from curtsy.cli.command import (
    COOKIES,
    EXTRACT,
    INPUT,
    NO_CACHE,
    RENDER,
    TIMEOUT,
    VERBOSE,
    byte_count,
    command,
    duration,
    header,
    once,
    selectors,
)
from curtsy.cli.context import CommandContext, Exit, exit_for, run, worst
from curtsy.cli.urls import ALLOW_HTTP, complete_urls
from curtsy.core.escape import visible
from curtsy.system.own_file import create_own

if TYPE_CHECKING:
    import asyncio

    from curtsy.client import AsyncClient
    from curtsy.core.result import FetchResult
    from curtsy.engine.download import DownloadResult

REPLACED = "An existing file is replaced when the new one is complete."
"""Rule for the file of -o: that of `curl -o` and `wget -O`. An output of a crawl is continued instead, so a foreign
file is refused there."""

CONCURRENCY = 32
"""Maximum number of URLs in flight. A result waits for its place in the output."""


@command(
    ("curtsy get https://example.org/", "The page, on standard output."),
    (
        "curtsy get -v https://example.org/",
        "Also each step: robots.txt, the pause after it (1.5 to 5.5 s, so a first page takes a few seconds), each "
        "attempt, redirects, the cache.",
    ),
    ("curtsy get -o page.html https://example.org/", "The page, in a file that appears only when complete."),
    ("curtsy get --json -i urls.txt > fetched.jsonl", "The result of each URL of a list, as JSON lines."),
    ("curtsy get --extract 'title=h1' --extract 'links[]=a::url(href)' https://example.org/", "Fields of the page."),
    ("curtsy get --deadline 20s https://example.org/", "Within 20 s; fail at once if that is impossible."),
)
@click.argument("urls", metavar="URL...", nargs=-1)
@once(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help=f"Write the page to this file. {REPLACED}"
)
@click.option("-I", "--head", "is_head", is_flag=True, help="Send HEAD, and show the headers.")
@click.option("--raw", "is_raw", is_flag=True, help="Write control characters to a terminal unescaped.")
@click.option("--json", "is_json", is_flag=True, help="Write the result of each fetch as a JSON line, not its body.")
@EXTRACT
@VERBOSE
@click.option(
    "-H", "--header", "headers", type=header, multiple=True, metavar='"NAME: VALUE"', help="Send this header too."
)
@click.option(
    "--deadline", type=duration, metavar="TIME", help="Time for each URL, including waits and retries: 20s, 5m."
)
@TIMEOUT
@COOKIES
@NO_CACHE
@click.option("--refresh", is_flag=True, help="Fetch the page again, even if there is a fresh copy.")
@click.option("--offline", is_flag=True, help="Use the cache only; send nothing.")
@RENDER
@INPUT
@ALLOW_HTTP
@click.pass_obj
def get(
    given: CommandContext, urls: tuple[str, ...], output: Path | None, is_head: bool, is_raw: bool, is_json: bool,
    is_verbose: bool, headers: tuple[tuple[str, str], ...], deadline: float | None, timeout: float | None,
    cookies: bool, no_cache: bool, refresh: bool, offline: bool, render: bool, source: str | None, allow_http: bool,
    extract: tuple[str, ...],
) -> Exit:  # fmt: skip
    """Fetch pages politely, similar to curl.

    curtsy obeys robots.txt and the host's pace and daily budget, retries temporary failures, and does not download
    unchanged pages again. A host without a scheme, such as example.org, means https; http is used only with
    --allow-http. The body goes to standard output, everything else to standard error. A terminal gets control
    characters as escapes, unless --raw is given; a pipe or file gets every byte. The exit code is that of the worst
    result.
    """
    if no_cache + refresh + offline > 1:
        raise click.UsageError("--no-cache, --refresh and --offline exclude each other. Give one of them.")
    wanted = complete_urls(given, named(urls, source), allow_http)
    joined: dict[str, str] = {}
    for name, value in headers:
        joined[name] = f"{joined[name]}, {value}" if name in joined else value
    client = {"cookies": cookies, "render": render} | cache_options(no_cache, refresh, offline)
    client |= {} if timeout is None else {"timeout": timeout}
    if output is not None and len(wanted) > 1 and (output.is_file() or not output.exists()):
        raise click.UsageError(
            f"-o takes one page, and {len(wanted):,} URLs were given. Give one URL, or save all in a folder: "
            "curtsy crawl URL... --max-depth 0 --out DIR."
        )
    request = {"method": "HEAD" if is_head else "GET", "headers": joined, "deadline": deadline}
    with _Target(output, is_raw=is_raw, is_head=is_head, is_json=is_json, fields=selectors(extract)) as target:
        return run(lambda: _get(given, wanted, is_verbose, client, request, target))


def cache_options(no_cache: bool, refresh: bool, offline: bool = False) -> dict[str, Any]:
    """Return the arguments of `AsyncClient` for the options of the cache."""
    if no_cache:
        return {"cache": False}
    mode = "refresh" if refresh else "offline" if offline else None
    return {} if mode is None else {"cache_mode": mode}


LONGEST = 65_536
"""Maximum length of a line of a URL file in bytes; the rest of the line is skipped."""


def named(urls: Iterable[str], source: str | None) -> list[str]:
    """Return the URLs given, `-` being standard input, and those of a file. Raises UsageError without any."""
    found = [each for url in urls for each in (url_lines("-") if url == "-" else [url])]
    found += url_lines(source) if source is not None else []
    if not found:
        raise click.UsageError("no URL was given. Give one, or a file of URLs with -i.")
    return found


def url_lines(source: str) -> Iterator[str]:
    """Return the URLs of a file, one per line; skip empty lines and those that begin with #."""
    try:
        # A file object of its own: a thread that blocks on sys.stdin would delay the program's exit.
        file = open(0 if source == "-" else source, "rb", closefd=source != "-")  # noqa: SIM115
    except OSError as error:
        raise click.UsageError(
            f"{source} cannot be read: {error.strerror}. Give a file with a URL on each line."
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


async def _get(
    given: CommandContext, urls: list[str], is_verbose: bool, client_options: dict[str, Any], request: dict[str, Any],
    target: _Target,
) -> Exit:  # fmt: skip
    from curtsy.cli.trace import Progress, StepLines

    codes: list[Exit] = []
    counts: Counter[str] = Counter()
    with (StepLines if is_verbose else Progress)(given.settings().policies) as trace:
        async with (
            given.open_client(trace, **client_options) as client,
            aclosing(_in_order(client, urls, request)) as done,
        ):
            async for result in done:
                if isinstance(trace, StepLines):
                    trace.line(_summary(result))
                trace.pause()
                codes.append(target.show(result))
                counts[_kind(result)] += 1
    if len(urls) > 1:
        console.say(", ".join([console.counted(len(urls), "URL"), *(f"{counts[kind]} {kind}" for kind in KINDS)]))
    if Exit.FINE in codes:
        target.keep()
    return worst(codes)


async def _in_order(client: AsyncClient, urls: list[str], request: dict[str, Any]) -> AsyncGenerator[FetchResult, None]:
    """Fetch the URLs concurrently; yield the results in their order."""
    import asyncio

    running: deque[asyncio.Task[FetchResult]] = deque()
    waiting = iter(urls)
    try:
        while True:
            new = islice(waiting, CONCURRENCY - len(running))
            running += [asyncio.ensure_future(client.fetch(url, **request)) for url in new]
            if not running:
                return
            yield await running[0]
            running.popleft()
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)


KINDS = ("fetched", "cached", "skipped", "failed")
"""Categories of a batch's summary (U14)."""


def _kind(result: FetchResult) -> str:
    from curtsy.core.errors import REFUSALS

    if result.ok:
        return "cached" if result.from_cache else "fetched"
    return "skipped" if result.reason in REFUSALS else "failed"


def _summary(result: FetchResult) -> str:
    """Return the last line of `-v` for one URL."""
    record = result.record
    words = [f"{record.final_url}: " + ("fetched" if result.ok else f"{result.reason}")]
    if record.cache is not None:
        words.append({"hit": "from the cache, without a request"}.get(record.cache, f"from the cache, {record.cache}"))
    if result.rendered:
        words.append("rendered")
    if record.robots_line is not None:
        words.append(f"decided by robots.txt line {record.robots_line}")
    left = [f"{count} {noun}" for count, noun in
            ((record.requests_left, "requests"), (record.pages_left, "pages")) if count is not None]  # fmt: skip
    if left:
        words.append(f"{' and '.join(left)} left today")
    return "; ".join(words)


def _told(result: FetchResult) -> str:
    """Return the message of a failure, with the time of a retry if that is known and at least a second."""
    from curtsy.core.time import span

    if result.retry_after is None or result.retry_after < 1.0 or span(result.retry_after) in result.message:
        return result.message
    return f"{result.message.removesuffix(' Try again later.')} Try again in {span(result.retry_after)}."


def _head(result: FetchResult) -> bytes:
    status = result.status or 0
    phrase = next((known.phrase for known in HTTPStatus if known == status), "")
    lines = [f"HTTP/1.1 {status} {phrase}".rstrip(), *(f"{name}: {value}" for name, value in result.headers.fields)]
    if sys.stdout.isatty():
        lines = [visible(line) for line in lines]
    return ("\n".join(lines) + "\n\n").encode("utf-8", "surrogateescape")


def _for_terminal(result: FetchResult) -> bytes:
    """Return the body as text with control characters escaped; newlines and tabs stay."""
    if b"\0" in result.body:
        raise click.ClickException("the body is binary, and not shown on a terminal. Save it with -o FILE.")
    text = _LAYOUT.sub(lambda found: visible(found[0]), result.text.replace("\r\n", "\n"))
    return text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")


_LAYOUT = re.compile(r"[^\n\t]+")


def make_folder(path: Path) -> None:
    """Create the missing folder of an output, and report it. An error is left to the output itself."""
    if path.parent.exists():
        return
    with suppress(OSError):
        path.parent.mkdir(parents=True)
        console.say(f"created the folder {path.parent}.")


def check_output(path: Path) -> None:
    """Raise UsageError if -o names a directory."""
    if path.is_dir():
        raise click.UsageError(f"{path} is a directory. Give -o a file.")


class _Target:
    """Destination of results: standard output, or a file that appears only when complete."""

    def __init__(
        self, path: Path | None, *, is_raw: bool, is_head: bool, is_json: bool, fields: dict[str, str] | None
    ) -> None:
        self._fields = fields or {}
        self._path = path
        if path is not None:
            make_folder(path)
        self._is_head = is_head
        self._is_json = is_json
        self._is_escaped = path is None and not is_raw and sys.stdout.isatty()
        """True if bodies go to a terminal, so that control characters must be escaped."""
        self._aside: Path | None = None
        self._file: IO[bytes] = sys.stdout.buffer
        self._is_kept = False
        if path is None:
            return
        check_output(path)
        if path.exists() and not path.is_file():
            self._file = path.open("wb")  # a pipe or device cannot be replaced by a file
        else:
            self._aside = path.with_name(f"{path.name}.{os.getpid()}.part")
            try:
                self._file = open(create_own(self._aside), "wb")  # noqa: SIM115
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(path)) from None  # the user's path

    def show(self, result: FetchResult) -> Exit:
        """Write the result of one URL, report a failure, and return the exit code."""
        fields = self._extracted(result) if result.ok and self._fields else {}
        if self._is_json:
            record = result.record.as_dict()
            shown = {"ok": result.ok, "elsewhere": [], **record, "message": result.message}
            console.write_json(shown | fields, line=True)
        elif fields:
            console.write_json({"url": result.record.url, **fields}, line=True)
        elif self._is_head and result.status is not None and result.headers.fields:
            self._write(_head(result))
        if result.ok and not self._is_head and (self._path is not None or not (self._is_json or self._fields)):
            self._write(_for_terminal(result) if self._is_escaped else result.body)
        code = exit_for(result.reason, result.retry_after)
        if code is not Exit.FINE:
            console.say(_told(result))
        return code

    def _extracted(self, result: FetchResult) -> dict[str, Any]:
        """Return the fields of a page, as a line of a crawl has them."""
        from curtsy.crawling.extract.fields import fields_of, values_of

        found, problem = values_of(fields_of(self._fields), result.body, result.content_type, result.final_url)
        return {"extracted": found} if problem is None else {"extracted": found, "extract_error": problem}

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()

    def keep(self) -> None:
        """Move the file to its final path on exit."""
        self._is_kept = True

    def __enter__(self) -> _Target:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._path is not None:
            self._file.close()
        if self._aside is not None and self._path is not None:
            if self._is_kept and kind is None:
                is_there = self._path.exists()
                self._aside.replace(self._path)
                if is_there:
                    console.say(f"replaced the earlier {self._path}.")
            else:
                self._aside.unlink(missing_ok=True)


@command(
    ("curtsy download https://example.org/data.zip -o data.zip", "Save a file; the same command resumes it."),
    ("curtsy download --json https://example.org/data.zip -o data.zip | jq -r .sha256", "Its checksum."),
)
@click.argument("url", metavar="URL")
@once(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", required=True,
    help=f"Path of the file. {REPLACED}",
)  # fmt: skip
@click.option("--max-size", type=byte_count, metavar="SIZE", default="1G", help="Maximum size (1G).")
@click.option(
    "--deadline", type=duration, metavar="TIME", help="Time for the whole download, including waits: 20s, 5m."
)
@click.option("--decode", is_flag=True, help="Decode a Content-Encoding; by default the bytes are saved as received.")
@COOKIES
@VERBOSE
@ALLOW_HTTP
@click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
@click.pass_obj
def download(
    given: CommandContext, url: str, output: Path, max_size: int, deadline: float | None, decode: bool, cookies: bool,
    is_verbose: bool, is_json: bool, allow_http: bool,
) -> Exit:  # fmt: skip
    """Save a large file, and resume an earlier attempt.

    It obeys the same rules as any page. It may take any time while data arrives. Until it is complete, it is FILE.part.
    """
    check_output(output)
    if output.exists() and not output.is_file():
        raise click.UsageError(f"{output} is a device, pipe or socket. Give -o a file.")
    make_folder(output)
    [url] = complete_urls(given, [url], allow_http)
    is_there = output.exists()
    saving = {"max_size": max_size, "deadline": deadline, "decode": decode}
    try:
        result = run(lambda: _download(given, url, output, is_verbose, cookies, saving))
    except KeyboardInterrupt:
        console.say(_kept(url, output, decode) or f"stopped; nothing of {output} has arrived yet.")
        raise
    if is_json:
        names = ("ok", "url", "size", "sha256", "resumed_at", "status", "reason", "message", "retry_after")
        console.write_json({"path": str(result.path)} | {name: getattr(result, name) for name in names})
    if not result.ok:
        console.say(result.message)
        if (kept := _kept(url, output, decode)) is not None:
            console.say(kept)
    elif not is_json:
        resumed = f", {console.size(result.resumed_at)} of it from an earlier attempt" if result.resumed_at else ""
        replaced = ", in place of the earlier file" if is_there else ""
        console.say(f"{output}: {console.size(result.size)}{resumed}{replaced}, SHA-256 {result.sha256}.")
    return exit_for(result.reason, result.retry_after)


def _kept(url: str, output: Path, decode: bool) -> str | None:
    """Return what an unfinished download has left, and whether the same command resumes it; None if it left nothing."""
    from curtsy.engine.download import Part

    part = Part(url, output, None, decode)
    if not part.size:
        return None
    kept = f"{console.size(part.size)} are kept in {output}.part"
    if part.is_resumable:
        return f"{kept}. The same command resumes the download, if the server supports that."
    return f"{kept}, but the server named no version of the file. The same command starts over."


async def _download(
    given: CommandContext, url: str, output: Path, is_verbose: bool, cookies: bool, saving: dict[str, Any]
) -> DownloadResult:
    from curtsy.cli.trace import Progress, StepLines

    with (StepLines if is_verbose else Progress)(given.settings().policies) as trace:
        async with given.open_client(trace, cache=False, cookies=cookies) as client:
            return await client.download(url, output, **saving)

"""`curtsy download`: save a large file, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.cli.command import Command, Duration, Size
from curtsy.cli.context import CommandContext, Exit, exit_for, run

if TYPE_CHECKING:
    from curtsy.engine.download import DownloadResult


@click.command(
    cls=Command,
    examples=(
        (
            "curtsy download https://example.org/data.zip -o data.zip",
            "Save a file; the same command resumes it.",
        ),
        ("curtsy download --json https://example.org/data.zip -o data.zip | jq -r .sha256", "Its checksum."),
    ),
)
@click.argument("url", metavar="URL")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="FILE", required=True, help="Path of the file."
)
@click.option("--max-size", type=Size(), metavar="SIZE", default="1G", help="Maximum size (1G).")
@click.option(
    "--deadline", type=Duration(), metavar="TIME", help="Time for the whole download, including waits: 20s, 5m."
)
@click.option("--decode", is_flag=True, help="Decode a Content-Encoding; by default the bytes are saved as received.")
@click.option("--cookies", is_flag=True, help="Keep cookies during this run, each for the host that set it.")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Log each step to stderr.")
@click.option("--json", "is_json", is_flag=True, help="Write the result as JSON.")
@click.pass_obj
def download(
    given: CommandContext,
    url: str,
    output: Path,
    max_size: int,
    deadline: float | None,
    decode: bool,
    cookies: bool,
    is_verbose: bool,
    is_json: bool,
) -> Exit:
    """Save a large file, and resume an earlier attempt.

    It obeys the same rules as any page. It may take any time while data arrives. Until it is complete, it is FILE.part.
    """
    if output.is_dir():
        raise click.UsageError(f"{output} is a directory. Give -o a file.")
    if output.exists() and not output.is_file():
        raise click.UsageError(f"{output} is a device, pipe or socket. Give -o a file.")
    result = run(lambda: _download(given, url, output, max_size, deadline, decode, cookies, is_verbose))
    if is_json:
        console.write_json(
            {
                "ok": result.ok, "url": result.url, "path": str(result.path), "size": result.size,
                "sha256": result.sha256, "resumed_at": result.resumed_at, "status": result.status,
                "reason": result.reason, "message": result.message, "retry_after": result.retry_after,
            }
        )  # fmt: skip
    if not result.ok:
        console.say(result.message)
    elif not is_json:
        resumed = f", {console.size(result.resumed_at)} of it from an earlier attempt" if result.resumed_at else ""
        console.say(f"{output}: {console.size(result.size)}{resumed}, SHA-256 {result.sha256}.")
    return exit_for(result.reason, result.retry_after)


async def _download(
    given: CommandContext,
    url: str,
    output: Path,
    max_size: int,
    deadline: float | None,
    decode: bool,
    cookies: bool,
    is_verbose: bool,
) -> DownloadResult:
    from curtsy.cli.trace import ProgressBar, StepLines

    policies = given.settings().policies
    with StepLines(policies) if is_verbose else ProgressBar(policies) as teller:
        async with given.open_client(teller, cache=False, cookies=cookies) as client:
            return await client.download(url, output, max_size=max_size, deadline=deadline, decode=decode)

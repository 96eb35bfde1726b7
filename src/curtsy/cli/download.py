"""`curtsy download`: save a large file, resumable."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from curtsy.cli import console
from curtsy.cli.command import Command
from curtsy.cli.context import CommandContext
from curtsy.cli.exits import Exit, exit_for
from curtsy.cli.running import run
from curtsy.cli.values import Duration, Size

if TYPE_CHECKING:
    from curtsy.engine.download import DownloadResult


@click.command(
    cls=Command,
    examples=(
        (
            "curtsy download https://example.org/data.zip -o data.zip",
            "Save a file; run again, it goes on where it ended.",
        ),
        ("curtsy download --json https://example.org/data.zip -o data.zip | jq -r .sha256", "Its checksum."),
    ),
)
@click.argument("url", metavar="URL")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", required=True, help="Save it as this.")
@click.option("--max-size", type=Size(), metavar="SIZE", default="1G", help="Give up beyond this; 1G by default.")
@click.option("--deadline", type=Duration(), metavar="TIME", help="Until its turn comes and it is there: 20s, 5m.")
@click.option("--decode", is_flag=True, help="Undo a Content-Encoding; by default the bytes are saved as they come.")
@click.option("--cookies", is_flag=True, help="Keep cookies while it runs, each for the host that set it.")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Tell each step on standard error.")
@click.option("--json", "is_json", is_flag=True, help="What came of it, as JSON.")
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
    """Save a large file, resumed where an earlier try ended.

    It goes through the same gate as any page, may take as long as it likes while it comes at all, and is there only
    when whole: until then it is FILE.part.
    """
    if output.is_dir():
        raise click.UsageError(f"{output} is a directory. Give -o a file.")
    if output.exists() and not output.is_file():
        raise click.UsageError(f"{output} is a device, pipe or socket. Give -o a file.")
    from curtsy.engine.download import TOO_LARGE

    result = run(lambda: _download(given, url, output, max_size, deadline, decode, cookies, is_verbose))
    message = result.message.replace(TOO_LARGE, "Raise --max-size to have it.")
    if is_json:
        console.write_json(
            {
                "ok": result.ok, "url": result.url, "path": str(result.path), "size": result.size,
                "sha256": result.sha256, "resumed_at": result.resumed_at, "status": result.status,
                "reason": result.reason, "message": message, "retry_after": result.retry_after,
            }
        )  # fmt: skip
    if not result.ok:
        console.say(message)
    elif not is_json:
        resumed = f", {console.size(result.resumed_at)} of it from before" if result.resumed_at else ""
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
    from curtsy.cli.progress_bar import ProgressBar
    from curtsy.cli.trace_output import StepLines

    policies = given.settings().policies
    with StepLines(policies) if is_verbose else ProgressBar(policies) as teller:
        async with given.open_client(teller, cache=False, cookies=cookies) as client:
            return await client.download(url, output, max_size=max_size, deadline=deadline, decode=decode)

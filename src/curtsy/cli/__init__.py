"""Command line: `curtsy`, also `python -m curtsy`.

This module holds the top-level group and maps every outcome to an exit code. A failure also prints a sentence on
standard error. Commands are imported on first use.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import click

from curtsy import __version__
from curtsy.cli.command import command, group
from curtsy.cli.context import CommandContext, Exit
from curtsy.system.startup import exit_on_interrupt, is_command

__all__ = ["cli", "main"]

SECTIONS = {
    "Fetch": {
        "get": ("curtsy.cli.get", "Fetch pages politely, similar to curl."),
        "crawl": ("curtsy.cli.crawl", "Crawl sites politely: follow links, obey every rule, and resume after a stop."),
        "download": ("curtsy.cli.get", "Save a large file, and resume an earlier attempt."),
    },
    "Understand": {
        "why": ("curtsy.cli.why", "Explain whether pages may be fetched now."),
        "robots": ("curtsy.cli.robots", "Show a robots.txt as curtsy parses it."),
        "status": ("curtsy.cli.status", "Show the known hosts: pace, budget, breaker."),
        "top": ("curtsy.cli.top", "Show hosts and crawls live."),
        "budget": ("curtsy.cli.status", "Show the used part of each host's daily budget."),
        "serve": ("curtsy.cli.serve", "Serve a live dashboard of hosts, crawls, budgets and breakers."),
    },
    "Intervene": {
        "breaker": ("curtsy.cli.control", "List, reset or trip the circuit breakers of hosts."),
        "pause": ("curtsy.cli.control", "Send no requests to a host until it is resumed."),
        "resume": ("curtsy.cli.control", "End a pause."),
        "forget": ("curtsy.cli.control", "Delete the records of a host: pace, budget, breaker and robots.txt."),
    },
    "Maintain": {
        "jobs": ("curtsy.cli.jobs", "List, show or remove crawls that can be resumed."),
        "cache": ("curtsy.cli.cache", "List, show, export, verify, shrink or clear the cached pages."),
        "config": ("curtsy.cli.config", "Show or check the settings, or create a settings file."),
        "doctor": ("curtsy.cli.doctor", "Check the installation and its environment."),
        "completion": ("curtsy.cli", "Print the script for completion in your shell."),
        "demo": ("curtsy.cli.demo", "Show a polite crawl of a small site on this machine."),
    },
}
"""Commands by the section of the help, each with its module and its short help, so that listing imports nothing."""

COMPLETING = "_CURTSY_COMPLETE"
"""Environment variable by which a shell requests completions."""


@group(
    ("curtsy demo", "Show a crawl on this machine, in under a minute."),
    ("curtsy get -v https://example.org/", "Fetch a page, and show each step."),
    ("curtsy crawl https://example.org/ --max-pages 50 --out pages", "Follow links, and save pages in a folder."),
    ("curtsy why https://example.org/private/", "Explain whether a page may be fetched, without a request."),
    ("curtsy COMMAND --help", "Show the help of a command."),
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="curtsy %(version)s")
def cli() -> None:
    """Fetch the web politely.

    Each request must be allowed by robots.txt, the host's daily budget, its circuit breaker, its pace and the global
    rate. All processes of this machine share the records of hosts.
    """


SHELLS = ("bash", "zsh", "fish")


@command(
    ('eval "$(curtsy completion bash)"', "For this shell; add the line to ~/.bashrc for all shells."),
    ('eval "$(curtsy completion zsh)"', "The same for ~/.zshrc."),
    ("curtsy completion fish > ~/.config/fish/completions/curtsy.fish", "For fish, once."),
)
@click.argument("shell", type=click.Choice(SHELLS), required=False, metavar=f"[{'|'.join(SHELLS)}]")
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print the script for completion in your shell.

    It also completes the hosts of the store. The default is the current shell.
    """
    from click.shell_completion import get_completion_class

    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise click.UsageError(f"the shell is unknown. Name one of {', '.join(SHELLS)}.", context)
    kind = get_completion_class(name)
    assert kind is not None
    click.echo(kind(context.find_root().command, {}, "curtsy", COMPLETING).source())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code, one of `Exit`; never print a traceback."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the parent process
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # unencodable characters must not fail
    sys.stderr = forgiving(sys.stderr)
    try:
        for name in ("SIGTERM", "SIGHUP"):
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), _interrupt)
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader closed the pipe
        _mute()
        return Exit.FINE
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # starts below the ^C
        return Exit.INTERRUPTED
    except Exception as error:
        code = _failed(error)
        try:
            sys.stdout.flush()
        except OSError:
            _mute()
        return code
    finally:
        if is_command():  # interpreter shutdown prints a traceback on Ctrl-C
            exit_on_interrupt()


def _mute() -> None:
    """Redirect standard output to the null device: the interpreter flushes it again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    if COMPLETING in os.environ:
        cli.main(prog_name="curtsy", complete_var=COMPLETING)  # shell completion; exits here
    width = max(30, min(shutil.get_terminal_size().columns, 100) - 2)
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        # cli.main() would handle Ctrl-C and a broken pipe itself.
        whole = list(given)  # click consumes the list
        with cli.make_context("curtsy", given, obj=CommandContext(), terminal_width=width) as context:
            context.meta["curtsy.arguments"] = whole
            result = cli.invoke(context)
        return result if isinstance(result, int) else Exit.FINE
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        message = error.format_message().replace("a valid integer range", "a whole number")  # for "three"
        if isinstance(error, click.NoSuchOption):
            message = f"there is no option {error.option_name}.{_hint(error)}"
        _say(message)
        if error.ctx is not None:
            print(f"Try: {error.ctx.command_path} --help", file=sys.stderr)
        return Exit.USAGE
    except click.ClickException as error:
        _say(error.format_message())
        return Exit.ERROR
    except click.Abort:
        return Exit.INTERRUPTED


def _hint(error: click.NoSuchOption) -> str:
    """Return a suggestion for an unknown option: an option, by another word for it or its spelling, or a setting."""
    import difflib

    from curtsy.core.setting import OTHER_NAMES
    from curtsy.settings.general import keys

    name = error.option_name.lstrip("-").replace("-", "_")
    command = error.ctx.command if error.ctx is not None else cli
    other = OTHER_NAMES.get(name, name)
    option = f"--{other.replace('_', '-')}"
    if any(option in each.opts for each in command.params):
        return f" Did you mean {option}?"
    if (key := keys().get(other)) is not None and key.variable:
        own = " Switch it off for a site of your own only." if other == "respect_robots" else ""
        return f" {other} is a setting: put it in a settings file, or set {key.variable}.{own}"
    # Without the dashes, which make options of any name look alike.
    near = {each.lstrip("-").replace("-", "_"): each for each in error.possibilities or ()}
    found = difflib.get_close_matches(name, near, 1)
    return f" Did you mean {near[found[0]]}?" if found else ""


def _say(message: str) -> None:
    from curtsy.cli.console import say  # imports msgspec, which the help does not need

    say(message)


def _failed(error: Exception) -> Exit:
    """Report an error in a sentence and return its exit code; report an unexpected error as a bug."""
    from curtsy.core.errors import CurtsyError, PolicyError
    from curtsy.system.log import library_logger

    if isinstance(error, CurtsyError):
        _say(str(error))
        return Exit.CONFIGURATION if isinstance(error, PolicyError) else Exit.ERROR
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        _say(f"{place}{error.strerror or error}. Check that it exists and that you may access it.")
        return Exit.ERROR
    library_logger("cli").error("Error in curtsy", error=repr(error))
    _say(f"internal error: {error!r} in {_where(error)}. Please report it.")
    return Exit.ERROR


def _where(error: BaseException) -> str:
    """Return the file and line of the innermost own frame, in words."""
    import traceback

    frames = [each for each in traceback.extract_tb(error.__traceback__) if f"{os.sep}curtsy{os.sep}" in each.filename]
    return f"{os.path.basename(frames[-1].filename)}, line {frames[-1].lineno}" if frames else "unknown code"


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


class _Forgiving(io.FileIO):
    """File that drops failed writes: full disk, closed reader, closed descriptor."""

    behind: TextIO | None = None
    """Replaced stream, referenced because it closes the descriptor when collected."""

    def write(self, data: object, /) -> int:
        """Write the data, or drop them on an error."""
        size = memoryview(data).nbytes  # type: ignore[arg-type]
        try:
            return super().write(data) or size  # type: ignore[arg-type]
        except OSError:
            return size


def forgiving(stream: TextIO) -> TextIO:
    """Return a stream to the same file that drops failed writes (N1).

    Lost messages do not stop the work or change its exit code.
    """
    try:
        raw = _Forgiving(stream.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # no file descriptor, as in tests that capture output
        return stream
    raw.behind = stream
    with suppress(OSError):
        stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding=stream.encoding, errors="replace", line_buffering=True, write_through=True
    )

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

import click

from curtsy import __version__
from curtsy.cli.command import Group
from curtsy.cli.context import CommandContext
from curtsy.cli.exits import Exit
from curtsy.cli.streams import forgiving
from curtsy.system.startup import exit_on_interrupt, is_command

__all__ = ["cli", "main"]

COMMANDS = {
    "get": ("curtsy.cli.get:get", "Fetch pages politely: like curl, with manners."),
    "crawl": (
        "curtsy.cli.crawl:crawl",
        "Crawl sites politely: follow links, keep every rule, and go on where it ended.",
    ),
    "download": ("curtsy.cli.download:download", "Save a large file, resumed where an earlier try ended."),
    "why": ("curtsy.cli.why:why", "Say whether a page may be fetched now, and what decides."),
    "robots": ("curtsy.cli.robots:robots", "Show a robots.txt as curtsy reads it."),
    "status": ("curtsy.cli.status:status", "Show the hosts that are known: pace, budget, breaker."),
    "top": ("curtsy.cli.top:top", "Watch hosts and crawls, live."),
    "budget": ("curtsy.cli.status:budget", "Show what was spent of each host's day."),
    "serve": ("curtsy.cli.serve:serve", "Show a live dashboard of hosts, crawls, budgets and breakers."),
    "breaker": ("curtsy.cli.control:breaker", "List, reset or trip the circuit breakers of hosts."),
    "pause": ("curtsy.cli.control:pause", "Send nothing to a host, until it is resumed."),
    "resume": ("curtsy.cli.control:resume", "End a pause."),
    "forget": (
        "curtsy.cli.control:forget",
        "Forget what is known of a host: its pace, budget, breaker and robots.txt.",
    ),
    "jobs": ("curtsy.cli.jobs:jobs", "List, show or remove the crawls that can be gone on with."),
    "cache": ("curtsy.cli.cache:cache", "List, show, verify, shrink or clear the kept pages."),
    "config": ("curtsy.cli.config:config", "Show, check or begin the settings."),
    "doctor": ("curtsy.cli.doctor:doctor", "Check that everything is in place."),
    "completion": ("curtsy.cli.completion:completion", "Print what makes Tab complete commands in your shell."),
    "demo": ("curtsy.cli.demo:demo", "See a polite crawl of a small site on this machine."),
}
"""Location and short help of each command, so that listing them imports nothing."""

COMPLETING = "_CURTSY_COMPLETE"
"""Environment variable by which a shell requests completions."""

SECTIONS = {
    "Fetch": ("get", "crawl", "download"),
    "Understand": ("why", "robots", "status", "top", "budget", "serve"),
    "Intervene": ("breaker", "pause", "resume", "forget"),
    "Look after": ("jobs", "cache", "config", "doctor", "completion", "demo"),
}


@click.group(
    cls=Group,
    lazy=COMMANDS,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"]},
    examples=(
        ("curtsy demo", "See it at work, in under a minute, without leaving this machine."),
        ("curtsy get -v https://example.org/", "Fetch a page, and see each step."),
        ("curtsy crawl https://example.org/ --limit 50 --out pages", "Follow links, into a folder."),
        ("curtsy why https://example.org/private/", "Ask whether a page may be fetched; it is not asked for."),
        ("curtsy COMMAND --help", "Learn more about a command."),
    ),
)
@click.version_option(__version__, message="curtsy %(version)s")
def cli() -> None:
    """Fetch the web politely.

    Before each request one decision: robots.txt, the host's daily budget, its circuit breaker, its pace, the global
    rate. What is known of a host is remembered, and shared by all processes of this machine.
    """


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
    except OSError as error:
        _mute()
        return _failed(error)
    except KeyboardInterrupt:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # starts below the ^C
        return Exit.INTERRUPTED
    finally:
        if is_command():  # interpreter shutdown prints a traceback on Ctrl-C
            exit_on_interrupt()


def _mute() -> None:
    """Redirect standard output to the null device: the interpreter flushes it again on exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: Sequence[str] | None) -> int:
    from curtsy.cli.console import say

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
        say(error.format_message().replace("a valid integer range", "a whole number"))  # click's wording for "three"
        if error.ctx is not None:
            print(f"Try: {error.ctx.command_path} --help", file=sys.stderr)
        return Exit.USAGE
    except click.ClickException as error:
        say(error.format_message())
        return Exit.ERROR
    except click.Abort:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as error:
        code = _failed(error)
        try:
            sys.stdout.flush()
        except OSError:
            _mute()
        return code


def _failed(error: Exception) -> Exit:
    """Report an error in a sentence and return its exit code; report an unexpected error as a bug."""
    from curtsy.cli.console import say
    from curtsy.core.errors import CurtsyError, PolicyError

    if isinstance(error, PolicyError):
        say(str(error))
        return Exit.CONFIGURATION
    if isinstance(error, CurtsyError):
        say(str(error))
        return Exit.ERROR
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename is not None else ""
        say(f"{place}{error.strerror or error}. Check that it is there and that we may use it.")
        return Exit.ERROR
    from curtsy.system.log import library_logger

    library_logger("cli").error("A fault of curtsy's own", error=repr(error))
    say(f"something went wrong that should not: {error!r}. Please report it; {_where(error)}.")
    return Exit.ERROR


def _where(error: BaseException) -> str:
    """Return the file and line of the innermost own frame, in words."""
    import traceback

    frames = [each for each in traceback.extract_tb(error.__traceback__) if f"{os.sep}curtsy{os.sep}" in each.filename]
    frame = frames[-1] if frames else None
    return (
        "it has no place" if frame is None else f"it was in {frame.filename.rpartition(os.sep)[2]}, line {frame.lineno}"
    )


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt

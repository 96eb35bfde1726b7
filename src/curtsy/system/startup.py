"""Start-up of the `curtsy` command: Ctrl-C ends it with exit code 130 while Python still imports.

The package imports this module first. It has no effect in a program that merely imports curtsy.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def is_command() -> bool:
    """Return whether this process is the `curtsy` command, or `python -m curtsy`."""
    words = sys.orig_argv
    is_module = "-m" in words[1:-1] and words[words.index("-m", 1) + 1] == "curtsy"
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return is_module or name in ("curtsy", "curtsy.exe", "curtsy-script.py")


def _without_traceback(kind: type[BaseException], error: BaseException, _: object) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(INTERRUPTED)
    sys.__excepthook__(kind, error, error.__traceback__)


if is_command():
    sys.excepthook = _without_traceback  # the import of `signal` takes a millisecond in which Ctrl-C can arrive

import signal  # noqa: E402


def exit_on_interrupt() -> None:
    """End the process at once on Ctrl-C, while nothing is open that needs closing."""
    signal.signal(signal.SIGINT, _leave)


def raise_on_interrupt() -> None:
    """Raise KeyboardInterrupt on Ctrl-C, as Python does by default."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # nohup ignores SIGINT
    exit_on_interrupt()

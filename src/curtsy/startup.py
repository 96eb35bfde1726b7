"""Start-up of the `curtsy` command: Ctrl-C ends it with exit code 130 while Python still imports.

The package imports this module first. In a program that merely imports curtsy it changes nothing.
"""

from __future__ import annotations

import os
import signal
import sys

INTERRUPTED = 130


def is_command() -> bool:
    """Return whether this process is the `curtsy` command, or `python -m curtsy`."""
    words = sys.orig_argv
    is_module = "-m" in words[1:-1] and words[words.index("-m", 1) + 1] == "curtsy"
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return is_module or name in ("curtsy", "curtsy.exe", "curtsy-script.py")


def exit_on_interrupt() -> None:
    """End the process at once on Ctrl-C: nothing is open that would have to be closed."""
    signal.signal(signal.SIGINT, _leave)


def raise_on_interrupt() -> None:
    """Raise KeyboardInterrupt on Ctrl-C, as Python does by default."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, as by nohup
    exit_on_interrupt()

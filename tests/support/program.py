"""`Process("tests.support.program", text, …)` is `python -c text …`, forked from a process that is warm."""

from __future__ import annotations

import sys


def main() -> None:
    text = sys.argv.pop(1)
    sys.argv[0] = "-c"
    exec(compile(text, "<string>", "exec"), {"__name__": "__main__"})

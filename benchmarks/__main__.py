"""Run all benchmarks, each in a process of its own, and print one table of the figures.

    python -m benchmarks [--quick]

A benchmark that fails or takes too long is named at the end, and the rows that it has written count.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

from benchmarks.report import ROOT, folder_for, print_table

BENCHMARKS = ("crawl", "fetch", "adapters", "limiter", "extraction", "robots", "frontier", "schedule", "commands")
LIMIT = 900.0
"""Maximum seconds of one benchmark."""


def run(name: str, arguments: list[str]) -> str | None:
    """Run a benchmark; return why it failed, or None. All processes that it started end with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=ROOT, start_new_session=True
    )
    try:
        code = process.wait(LIMIT)
        return f"{name} ended with {code}" if code else None
    except subprocess.TimeoutExpired:
        return f"{name} took more than {LIMIT:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main() -> None:
    arguments = sys.argv[1:]
    folder = folder_for("--quick" in arguments)
    for file in folder.glob("*.jsonl"):  # rows of an earlier run
        file.unlink()
    failed = [why for name in BENCHMARKS if (why := run(name, arguments)) is not None]
    print_table(folder)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()

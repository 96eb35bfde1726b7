"""Run all benchmarks, each in a process of its own, and print one table of the figures.

python -m benchmarks [--quick]
"""

from __future__ import annotations

import subprocess
import sys

from benchmarks.report import ROOT, folder_for, print_table

BENCHMARKS = ("crawl", "fetch", "limiter", "extraction", "robots", "frontier", "commands")
LIMIT = 600.0
"""Maximum seconds of one benchmark."""


def main() -> None:
    arguments = sys.argv[1:]
    folder = folder_for("--quick" in arguments)
    for file in folder.glob("*.jsonl"):  # rows of an earlier run
        file.unlink()
    failed = []
    for name in BENCHMARKS:
        try:
            subprocess.run(
                [sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=ROOT, timeout=LIMIT, check=True
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            failed.append(f"{name}: {error}")
    print_table(folder)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()

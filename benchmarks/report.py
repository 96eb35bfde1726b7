"""Report: the rows of the benchmarks as JSON lines, and one table of them.

    python -m benchmarks.report [FOLDER]     print the table of the last run
    python -m benchmarks.report --write      also write it to the documentation, and its rows to the README

A figure is the median of its rounds; the range is that of the rounds. A row with a goal is reached or missed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[1]
README, FIGURES = ROOT / "README.md", ROOT / "docs" / "explanation" / "performance.md"

HEADER = "| benchmark | row | figure | goal | |\n|---|---|---|---|---|"


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of a benchmark."""

    benchmark: str
    title: str
    """Case of the benchmark, such as the sizes that several rows share."""

    name: str
    figure: float
    unit: str
    low: float
    high: float
    at_most: float | None = None
    at_least: float | None = None

    @property
    def shown(self) -> str:
        """Return the figure with its unit, and its range if the rounds differ."""
        spread = "" if self.low == self.high else f" ({number(self.low)}–{number(self.high)})"
        return f"{number(self.figure)} {self.unit}{spread}"

    @property
    def place(self) -> str:
        """Return the cells of the table that identify the row."""
        return f"| {self.benchmark} | {self.title}: {self.name} |"

    @property
    def line(self) -> str:
        """Return the line of the table."""
        return f"{self.place} {self.shown} | {self.goal} | {self.verdict} |"

    @property
    def goal(self) -> str:
        """Return the goal in words; empty without one."""
        if self.at_most is not None:
            return f"at most {number(self.at_most)}"
        return "" if self.at_least is None else f"at least {number(self.at_least)}"

    @property
    def verdict(self) -> str:
        """Return whether the goal is reached; empty without one."""
        if self.at_most is not None:
            return "reached" if self.figure <= self.at_most else "MISSED"
        if self.at_least is not None:
            return "reached" if self.figure >= self.at_least else "MISSED"
        return ""


def number(value: float) -> str:
    """Return a figure with three significant digits."""
    digits = 0 if abs(value) >= 100 or value == int(value) else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


class Report:
    """Rows of one benchmark. Each is printed, and appended to the file of the benchmark."""

    def __init__(self, benchmark: str, folder: Path, is_quick: bool) -> None:
        self.is_quick = is_quick
        """True for small sizes, which show only that the benchmark runs."""
        self._benchmark = benchmark
        folder.mkdir(parents=True, exist_ok=True)
        self._title = ""
        self._file = folder / f"{benchmark}.jsonl"
        self._file.write_text("")

    def title(self, title: str) -> None:
        """Begin a case: print its title, and give it to the rows that follow."""
        self._title = title
        print(f"\n{self._benchmark}: {title} (load {os.getloadavg()[0]:.1f})", flush=True)

    def add(
        self,
        name: str,
        figures: float | Sequence[float],
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> float:
        """Add the figures of all rounds as one row; return their median."""
        found = list(figures) if isinstance(figures, Sequence) else [figures]
        row = Row(self._benchmark, self._title, name, median(found), unit, min(found), max(found), at_most, at_least)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        verdict = "" if self.is_quick or not row.goal else f"  {row.goal}: {row.verdict}"
        print(f"  {name:<60} {row.shown:>32}{verdict}", flush=True)
        return row.figure


def folder_for(is_quick: bool) -> Path:
    """Return the folder of the rows. Those of a quick run are kept apart, because they do not count."""
    return ROOT / "build" / ("benchmarks-quick" if is_quick else "benchmarks")


def run(benchmark: str, doc: str | None, parts: Mapping[str, Callable[[Report], None]]) -> None:
    """Run the parts of a benchmark that the command line names, or all of them."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"parts to run: {', '.join(parts)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, to check that the benchmark runs")
    parser.add_argument("--folder", type=Path, help="folder of the rows (default: build/benchmarks)")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(parts):
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    report = Report(benchmark, options.folder or folder_for(options.quick), options.quick)
    for name in options.parts or parts:
        parts[name](report)


def judged_rows(folder: Path) -> list[Row]:
    """Return the rows of all benchmarks that have a goal."""
    rows = [
        Row(**json.loads(line)) for file in sorted(folder.glob("*.jsonl")) for line in file.read_text().splitlines()
    ]
    return [row for row in rows if row.goal]


def print_table(folder: Path) -> None:
    """Print the rows with a goal of all benchmarks as one Markdown table."""
    judged, is_quick = judged_rows(folder), folder == folder_for(True)
    print(f"\nPython {platform.python_version()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}")
    if is_quick:
        print("Quick run: the sizes are too small for the goals.")
    print(f"\n{HEADER}")
    for row in judged:
        print(row.line.removesuffix(f"{row.verdict} |") + "|" if is_quick else row.line)
    if not is_quick:
        print(f"\n{sum(row.verdict == 'reached' for row in judged)} of {len(judged)} goals reached.")


def write_table(rows: Sequence[Row], figures: Path = FIGURES, readme: Path = README) -> None:
    """Replace the table of the documentation, and the figures that the README quotes from it."""
    before, _, after = figures.read_text().partition(HEADER)
    reached = sum(row.verdict == "reached" for row in rows)
    before = re.sub(r"\d+ of \d+ goals are reached", f"{reached} of {len(rows)} goals are reached", before)
    rest = itertools.dropwhile(lambda line: line.startswith("|"), after.lstrip("\n").splitlines())
    figures.write_text("\n".join([before + HEADER, *(row.line for row in rows), *rest, ""]))
    lines = {row.place: row.line for row in rows}
    quoted = (lines.get("|".join([*line.split("|")[:3], ""]), line) for line in readme.read_text().splitlines())
    readme.write_text("\n".join([*quoted, ""]))


if __name__ == "__main__":
    given = [word for word in sys.argv[1:] if word != "--write"]
    print_table(Path(given[0]) if given else folder_for(False))
    if "--write" in sys.argv:
        write_table(judged_rows(Path(given[0]) if given else folder_for(False)))

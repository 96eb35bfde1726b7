"""Benchmarks: the pages that they serve, the rows that they write, and that each one runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.__main__ import BENCHMARKS
from benchmarks.pages import KINDS, LINKS, page
from benchmarks.report import FIGURES, HEADER, README, ROOT, Report, Row, print_table, write_table

from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.page import extract


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_of_each_kind_has_exactly_the_links_that_were_given(kind: str) -> None:
    """Issue 16, point 9: the same number of links for every crawler"""
    base = parse_url("https://example.org/")
    assert isinstance(base, Url)

    body = page(kind, [f"/item-{number}.html" for number in range(LINKS)])

    assert extract(body, "text/html", base).links == tuple(
        f"https://example.org/item-{number}.html" for number in range(LINKS)
    )


def test_a_row_is_the_median_of_its_rounds_and_is_judged_by_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 16, point 9: a median of rounds, and one table"""
    report = Report("demo", tmp_path, is_quick=False)
    report.title("case")

    report.add("fast enough", [1.0, 9.0, 2.0], "ms", at_most=2)
    report.add("too slow", [1.0, 2.0, 9.0], "pages/s", at_least=3)
    report.add("without a goal", 5.0, "MB")

    rows = [json.loads(line) for line in (tmp_path / "demo.jsonl").read_text().splitlines()]
    assert [(row["figure"], row["low"], row["high"]) for row in rows] == [
        (2.0, 1.0, 9.0),
        (2.0, 1.0, 9.0),
        (5.0, 5.0, 5.0),
    ]
    capsys.readouterr()
    print_table(tmp_path)
    cells = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| demo")]
    assert [(row[1], row[-1].strip(" |")) for row in cells] == [
        ("case: fast enough", "reached"),
        ("case: too slow", "MISSED"),
    ]


@pytest.mark.parametrize(
    "name", ["extraction", *(pytest.param(each, marks=pytest.mark.soak) for each in BENCHMARKS if each != "extraction")]
)
def test_a_benchmark_runs_and_writes_its_rows(name: str, tmp_path: Path) -> None:
    """Issue 16, point 9: each benchmark works by itself, without peers too"""
    subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--folder", str(tmp_path)], cwd=ROOT, check=True
    )

    rows = [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
    assert rows
    assert {row["benchmark"] for row in rows} == {name}


def test_the_readme_quotes_rows_of_the_table_in_the_documentation(tmp_path: Path) -> None:
    """Issue 16, point 9: one table that the README quotes; both are written by one command"""
    rows = FIGURES.read_text().splitlines()
    quoted = [line for line in README.read_text().splitlines() if line.startswith(("| crawl |", "| fetch |"))]
    assert len(quoted) == 4
    assert set(quoted) <= set(rows)

    figures, readme = tmp_path / "figures.md", tmp_path / "readme.md"
    new = Row("crawl", "one", "speed", 2.0, "x", 2.0, 2.0, at_least=1.0)
    figures.write_text(f"9 of 9 goals are reached.\n\n{HEADER}\n| crawl | one: speed | 1 x | old | |\n\nend\n")
    readme.write_text(f"# demo\n{HEADER}\n| crawl | one: speed | 1 x | old | |\nend\n")
    write_table([new], figures, readme)

    assert figures.read_text() == f"1 of 1 goals are reached.\n\n{HEADER}\n{new.line}\n\nend\n"
    assert readme.read_text() == f"# demo\n{HEADER}\n{new.line}\nend\n"

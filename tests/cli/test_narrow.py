"""Tables and views on narrow terminals: what names a row and what the command is about is never lost."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import pytest
from rich.console import Console

from curtsy.cli.report import CrawlView, whole
from curtsy.core.host import fresh
from curtsy.crawling.progress import CrawlSnapshot, CrawlTotals, HostProgress
from tests.cli.crawling import linked
from tests.cli.shell import Shell
from tests.support.site import Site

COLUMNS = (50, 80, 100, 140)
HOSTS = [f"{name}.documentation.of-a-long-department.example-university.edu" for name in ("www", "staging", "www2")]


@pytest.fixture
def hosts(shell: Shell) -> list[str]:
    """Hosts with long names, all in trouble."""
    with shell.store() as store:
        for name in HOSTS:
            store.update(f"host:{name}", lambda host, now: (fresh(now), None))
    shell("breaker", "trip", *HOSTS)
    return HOSTS


def rows(table: str) -> Iterator[tuple[str, list[str]]]:
    """The rows of a table: the name, put together if it wraps, and the other cells."""
    name, cells = "", [""]
    for line in table.splitlines()[1:]:
        first, *others = re.split(r"\s{2,}", line.rstrip())
        if others and name:
            yield name, cells
            name = ""
        name, cells = name + first, others or cells
    yield name, cells


@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize(
    ("command", "figures"),
    [
        (("budget",), [r"0/200", r"0/100"]),
        (("status",), [r"in \d.+", r"0/200", r"0/100"]),
        (("status", "--trouble"), [r"in \d.+", "circuit_open"]),
        (("breaker", "ls"), [r"open \d.+"]),
    ],
    ids=["budget", "status", "trouble", "breaker"],
)
def test_a_narrow_table_has_every_name_and_the_figures_that_it_is_about(
    shell: Shell, hosts: list[str], command: tuple[str, ...], figures: list[str], columns: int
) -> None:
    table = shell(*command, COLUMNS=str(columns)).out

    found = dict(rows(table))
    assert max(map(len, table.splitlines())) <= columns
    assert set(found) == set(hosts)
    for cells in found.values():
        assert all(any(re.fullmatch(figure, cell) for cell in cells) for figure in figures), cells
    assert "…" not in table


@pytest.mark.parametrize("columns", COLUMNS)
def test_jobs_and_pages_are_named_in_full_at_any_width(shell: Shell, site: Site, columns: int) -> None:
    linked(site, 3)
    names = ["documentation-of-the-library-in-english", "documentation-of-the-library-in-french"]
    for name in names:
        shell("crawl", site.url("/"), "--job", name, "--max-pages", "2")

    jobs, pages = (shell(*command, COLUMNS=str(columns)).out for command in (("jobs", "ls"), ("cache", "ls")))
    cached = {page["url"] for page in shell("cache", "ls", "--json").json}

    found = dict(rows(jobs))
    assert set(found) == set(names)
    assert all(cells[0].startswith("unfinished") and cells[1] == "2" for cells in found.values()), found
    assert max(map(len, jobs.splitlines())) <= columns
    assert {line.split()[-1] for line in pages.splitlines()[1:]} == cached
    assert re.search(r"^ *(.* )?\d+ B ", pages, re.MULTILINE), "the size"


def progress() -> CrawlSnapshot:
    """A resumed crawl with something in every place."""
    totals = CrawlTotals(fetched=1352, skipped={"robots_disallowed": 31}, failed={"timeout": 4})
    found = tuple(HostProgress(name, "resting", next_in=70.0, pages=40, why="connection refused") for name in HOSTS)
    return CrawlSnapshot(
        "waiting", totals, 12_345, 1, 3, 0.52, 200.0, 187.0, "next host in 1 min 10 s", found,
        CrawlTotals(fetched=1312), time_left_in_all=4 * 86_400.0,
    )  # fmt: skip


@pytest.mark.parametrize("columns", [*COLUMNS, 30, 10])
def test_the_summary_of_a_crawl_wraps_and_loses_nothing(columns: int) -> None:
    """U14: also the days that are left"""
    lines = [line.plain for line in whole(progress(), width=columns)]

    in_full = " ".join(line.plain for line in whole(progress()))
    assert re.sub(r"\W+", "", "".join(lines)) == re.sub(r"\W+", "", in_full)
    assert "days in all" in in_full
    assert columns < 50 or max(map(len, lines)) <= columns


@pytest.mark.parametrize("columns", COLUMNS)
def test_the_view_of_a_crawl_fits_the_terminal_and_tells_its_hosts_apart(columns: int) -> None:
    terminal, view = Console(file=io.StringIO(), width=columns, height=12), CrawlView()
    view.show(progress())

    with terminal.capture() as capture:
        terminal.print(view)

    lines = capture.get().splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= columns
    shown = [re.split(r"\s+", line)[1] for line in lines if line.startswith("◔")]
    assert len(set(shown)) == len(shown) > 0
    assert all(name.endswith(".edu") for name in shown)

"""`curtsy crawl --dry-run`: what it says of URLs that would bring nothing."""

from __future__ import annotations

import re

import pytest

from curtsy.core.plan_messages import REQUISITES_TAKE_MORE
from tests.cli.crawling import line_with, linked, numbers
from tests.cli.shell import Shell
from tests.crawling.web import html
from tests.support.site import Reply, Site, closed_port
from tests.support.snapshot import Snapshot


def test_a_plan_for_nothing_but_what_is_refused_promises_nothing(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 6: U2, R1; one URL that may be fetched is worth a plan"""
    robots = shell("crawl", site.url("/private/a"), "--dry-run")
    address = shell("crawl", site.url("/"), "--dry-run", "--json", CURTSY_ALLOW_PRIVATE=None)
    both = shell("crawl", site.url("/"), site.url("/private/a"), "--dry-run")

    assert (robots.code, address.code, both.code) == (3, 3, 0)
    nothing, some = (line_with(done.out, "plan ") for done in (robots, both))
    assert (numbers(nothing), numbers(some)) == ([], [100])  # of today
    snapshot(nothing)
    assert (address.json["plan"]["pages"], address.json["plan"]["allowed_today"]) == (0, 0)


def test_a_host_that_gives_no_answer_is_an_error(shell: Shell, snapshot: Snapshot) -> None:
    """Issue 6: R6"""
    with closed_port() as port:
        done = shell("crawl", f"http://127.0.0.1:{port}/", "--dry-run")

    assert done.code == 1
    assert done.out.startswith(f"? http://127.0.0.1:{port}/\n")
    _, said, *_ = done.out.splitlines()
    assert f" 127.0.0.1:{port} " in said
    assert "connection refused" in said
    snapshot(said)


def test_a_plan_applies_the_budget_of_its_command(shell: Shell, site: Site) -> None:
    """Issue 5: the crawl itself would fetch them all today"""
    agreed = ("--max-pages-per-day", "600", "--max-requests-per-day", "700")

    usual, raised = (shell("crawl", site.url("/"), "--max-pages", "500", *more, "--dry-run") for more in ((), agreed))

    assert "--max-pages-per-day" in line_with(usual.out, "plan ")
    assert numbers(line_with(raised.out, "plan "))[0] == 500
    assert "--max-pages-per-day" not in raised.out
    assert "of 700 requests" in raised.out
    assert "of 600 pages" in raised.out


def test_a_plan_of_a_mirror_revalidates_copies_and_counts_requisites_apart(shell: Shell, site: Site) -> None:
    """Issue 5: as the crawl itself does"""
    site.page("/", "<title>x</title>", headers={"Cache-Control": "max-age=3600"})
    shell("get", site.url("/"))

    plain, mirror = (
        shell("crawl", site.url("/"), "--max-pages", "5", *more, "--dry-run", CURTSY_PAUSE_MAX="2")
        for more in ((), ("--mirror", "copy"))
    )

    assert ("cached copy" in plain.out, "cached copy" in mirror.out) == (True, False)
    assert (REQUISITES_TAKE_MORE in plain.out, REQUISITES_TAKE_MORE in mirror.out) == (False, True)


def test_a_plan_of_a_job_is_that_of_its_rest(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 5: as the crawl itself and the list of jobs say it"""
    linked(site, 8)
    site.page("/", html("/private/a", "/gone", *(f"/p/{number}" for number in range(8))))
    site.reply("/gone", Reply(404))
    words = ("crawl", site.url("/"), "--job", "mine", "--max-pages")
    few = {"CURTSY_MAX_PAGES_PER_DAY": "3", "CURTSY_PAUSE_MAX": "0.1"}
    shell(*words, "3", CURTSY_MAX_PAGES_PER_DAY="9")

    planned, enough = (shell(*words, most, "--dry-run", "--json", **few) for most in ("7", "3"))
    told, listed = shell(*words, "7", "--dry-run", **few), shell("jobs", "show", "mine", "--json").json
    run = shell(*words, "7", **few)

    assert (listed["skipped"], listed["failed"]) == (1, 1)
    assert (planned.json["plan"]["pages"], enough.json["plan"]["pages"]) == (4, 0)
    until_midnight = r"\b\d+ (h|min|s)\b( \d+ (min|s)\b)?"  # the next command says a second less
    assert re.sub(until_midnight, "", planned.json["plan"]["message"]) in re.sub(until_midnight, "", run.err)
    assert {name: planned.json["job"][name] for name in ("pages", "skipped", "failed")} == {
        name: listed[name] for name in ("pages", "skipped", "failed")
    }
    assert numbers(line_with(told.out, "mine").partition(": ")[2].partition("s, ")[2])[1:3] == [
        listed["skipped"], listed["failed"],
    ]  # fmt: skip
    snapshot(enough.json["plan"]["message"])


@pytest.mark.parametrize(
    ("option", "name", "file"),
    [
        ("--jsonl", "x.jsonl", "x.jsonl"),
        ("--csv", "x.csv", "x.csv"),
        ("--skipped", "x.csv", "x.csv"),
        ("--warc", "x.warc", "x-00001.warc"),
        ("--out", "x", "x/theirs"),
        ("--mirror", "x", "x/theirs"),
        ("--jsonl", "x", "x/theirs"),
        ("--jsonl", "theirs/x.jsonl", "theirs"),
        ("--jsonl", "file://{}/x.jsonl", "x-00001.jsonl"),
    ],
)
def test_a_plan_refuses_what_the_crawl_refuses_and_writes_nothing(
    shell: Shell, site: Site, option: str, name: str, file: str
) -> None:
    """U14: foreign files, and names that cannot be files; an output that is free is not created"""
    theirs = shell.project / file
    words = ("crawl", site.url("/"), option, name.format(shell.project))

    free = shell(*words, "--no-job", "--dry-run")
    before = list(shell.project.iterdir())
    theirs.parent.mkdir(exist_ok=True)
    theirs.write_text("not ours\n")
    asked = len(site.journal)
    planned, real = (shell(*words, "--no-job", *more) for more in (("--dry-run",), ()))

    assert (free.code, before) == (0, [])
    assert (planned.code, real.code) == (74, 74)
    assert planned.err.splitlines() == real.err.splitlines()[-1:]
    assert (planned.out, len(site.journal)) == ("", asked)
    assert theirs.read_text() == "not ours\n"


@pytest.mark.parametrize(
    "outputs",
    [
        ("--jsonl", "x.jsonl", "--csv", "x.csv", "--skipped", "skipped.csv"),
        ("--warc", "x.warc", "--out", "pages", "--mirror", "copy"),
        ("--jsonl", "file://{}/parts/x.jsonl"),
    ],
)
def test_a_plan_accepts_the_outputs_that_the_crawl_continues(
    shell: Shell, site: Site, outputs: tuple[str, ...]
) -> None:
    """F37: of a job that resumes, that starts anew and that restarts; without a byte written"""
    linked(site, 4)
    words = ("crawl", site.url("/"), *(each.format(shell.project) for each in outputs))
    first = shell(*words, "--max-pages", "2")

    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in shell.project.rglob("*") if path.is_file()}

    before = files()
    resumed = shell(*words, "--dry-run")
    after = files()
    done = shell(*words)
    anew, again = shell(*words, "--dry-run"), shell(*words, "--restart", "--dry-run")

    assert (first.code, done.code, resumed.code, anew.code, again.code) == (0, 0, 0, 0, 0), resumed.err + anew.err
    assert before == after


def test_a_plan_finds_an_output_that_was_changed_since(shell: Shell, site: Site) -> None:
    """F40"""
    linked(site, 4)
    words = ("crawl", site.url("/"), "--jsonl", "x.jsonl")
    shell(*words, "--max-pages", "2")
    output = shell.project / "x.jsonl"
    output.write_bytes(output.read_bytes() + b"mine\n")

    planned, real = (shell(*words, *more) for more in (("--dry-run",), ()))

    assert (planned.code, real.code) == (74, 74)
    assert planned.err == real.err

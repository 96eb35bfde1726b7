"""Outputs of `curtsy crawl` that fail: closed pipes, full devices, files that were replaced or cut between two runs."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.crawling import line_with, linked, numbers
from tests.cli.shell import Done, Shell, stop
from tests.crawling.web import html
from tests.support.bounds import ends_within
from tests.support.polling import block_until
from tests.support.site import Site
from tests.support.snapshot import Snapshot
from tests.support.warm import Process

full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has it")

PLAIN = {"CURTSY_STORE": "memory:"}


def urls(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text().splitlines()]


def everything(site: Site, pages: int) -> list[str]:
    return sorted(site.url(path) for path in ["/", *(f"/p/{number}" for number in range(pages))])


LIMITED = """
import resource, sys
from curtsy.cli import main

sys.dont_write_bytecode = True  # no module is to be cut
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
sys.exit(main(sys.argv[1:]))
"""


def on_small_disk(shell: Shell, limit: int, *words: object) -> Done:
    """Run `curtsy` where no file can have more than so many bytes."""
    pipe = subprocess.PIPE
    process: Process[bytes] = Process(
        "tests.support.program", LIMITED, limit, *words, text=False, cwd=shell.project, env={**shell.env, **PLAIN},
        stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe,
    )  # fmt: skip
    out, err = process.communicate(timeout=120)
    return Done(process.returncode, out.decode(), err.decode())


def ending(done: Done, *data: str) -> str:
    """What the summary says of the end: all that follows its figures."""
    return line_with(done.err, *data).partition(" s. ")[2]


# Fields.


def test_fields_go_into_a_table_and_those_of_one_page_to_the_terminal(shell: Shell, site: Site) -> None:
    """Issue 18, 5: a mistake is shown with its place before anything is asked"""
    site.page("/", html("/tea", text="<h1>Shop</h1>"))
    site.page("/tea", html("/", text="<h1>Green\n tea</h1>"))
    names = ("--extract", "name=h1", "--extract", "links[]=a::url(href)")

    wrong = shell("crawl", site.url("/"), "--extract", "name=h1 >", "--csv", "x.csv")
    twice = shell("crawl", site.url("/"), "--extract", "name=h1", "--extract", "name=h2", "--csv", "x.csv")
    asked = len(site.journal)
    done = shell("crawl", site.url("/"), *names, "--csv", "x.csv", "--json")
    one = shell("get", site.url("/tea"), site.url("/gone"), *names)
    full = shell("get", site.url("/tea"), "--json", *names)

    assert (wrong.code, twice.code, asked) == (2, 2, 0)
    assert wrong.err.splitlines()[1:3] == ["    name=h1 >", "             ^"]
    assert (done.code, done.json["extract_errors"]) == (0, 0)
    lines = (shell.project / "x.csv").read_text().splitlines()
    assert lines[0] == "url,name,links,fetched_at"
    assert [line.rpartition(",")[0] for line in lines[1:]] == [
        f'{site.url("/")},Shop,"[""{site.url("/tea")}""]"',
        f'{site.url("/tea")},Green tea,"[""{site.url("/")}""]"',
    ]
    fields = {"name": "Green tea", "links": [site.url("/")]}
    assert one.json == {"url": site.url("/tea"), "extracted": fields}
    assert (full.json["ok"], full.json["extracted"]) == (True, fields)


def test_a_table_with_other_fields_is_refused_by_a_job_that_starts_anew(shell: Shell, site: Site) -> None:
    """Issue 18, 5: before the job is emptied, and by its plan"""
    linked(site, 3)
    words = ("crawl", site.url("/"), "--job", "mine", "--csv", "x.csv")
    shell(*words, "--extract", "name=title")
    before = (shell.project / "x.csv").read_bytes()
    site.clear()

    refused = [shell(*words, "--extract", "name=h1", *more) for more in ((), ("--restart",))]
    planned = shell(*words, "--extract", "name=h1", "--dry-run")
    pages = shell("jobs", "show", "mine", "--json").json["pages"]

    assert ([done.code for done in refused], planned.code) == ([74, 74], 74)
    assert planned.err == refused[0].err
    assert [done.err.count(str(shell.project / "x.csv")) for done in refused] == [1, 1]
    assert site.count("/p/1") == 0
    assert ((shell.project / "x.csv").read_bytes(), pages) == (before, 4)


@pytest.mark.parametrize(
    ("kind", "more", "differs"),
    [
        ("--jsonl", ("--extract", "name=h1"), "--extract"),
        ("--out", ("--extract", "name=h1"), "--extract"),
        ("--jsonl", ("--match", "/p/", "--scope", "host"), "--scope and --match"),
        ("--warc", ("--match", "/p/"), "--match"),
        ("--jsonl", ("--sitemaps",), ""),
    ],
    ids=["extract", "folder", "scope", "archive", "others"],
)
def test_a_file_of_another_crawl_is_named_with_it_and_with_what_makes_this_one_another(
    shell: Shell, site: Site, kind: str, more: tuple[str, ...], differs: str, snapshot: Snapshot
) -> None:
    """U14: with the command that resumes the other; not with --restart either, because the job is another one"""
    linked(site, 2)
    words = ("crawl", site.url("/"), kind, "pages")
    shell(*words)

    refused = [shell(*words, *more, *last) for last in ((), ("--restart",))]

    [owner] = shell("jobs", "ls", "--json").json
    assert [done.code for done in refused] == [74, 74]
    assert refused[0].err == refused[1].err
    said, command = refused[0].err.splitlines()
    assert owner["name"] in said
    assert differs in said
    assert command == f"  curtsy {' '.join(words)}"
    if kind == "--jsonl":
        snapshot(said.replace(owner["name"], "NAME"))


def test_a_file_of_a_job_with_another_name_is_named_with_it(shell: Shell, site: Site) -> None:
    """The two crawls differ in nothing else"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "one", "--jsonl", "pages.jsonl")

    refused = shell("crawl", site.url("/"), "--job", "two", "--jsonl", "pages.jsonl")

    assert refused.code == 74
    assert "the job one" in line_with(refused.err, "pages.jsonl", "differs from that one in --job,")
    assert refused.err.count("--job one") == 1


def test_what_is_added_to_an_output_and_what_it_lacks_is_told(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """U14: at the start and at the end, in words and in JSON"""
    linked(site, 9)
    a, b = shell.project / "a.jsonl", shell.project / "b.csv"
    words = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "a.jsonl")
    shell(*words, "--max-pages", "4")

    more = shell(*words, "--csv", "b.csv", "--max-pages", "6")
    last = shell(*words, "--csv", "b.csv", "--json")

    told = [line for line in more.err.splitlines() if "b.csv lacks" in line]
    assert [numbers(line.partition("lacks")[2]) for line in told] == [[4, 4], [4, 6]]
    snapshot(told[1], "lacks")
    snapshot(line_with(more.err, "written to a.jsonl"), "added")
    assert last.json["added"] == {f"jsonl:{a}": 4, f"csv:{b}": 4}
    assert last.json["written"] == {f"jsonl:{a}": 10, f"csv:{b}": 6}
    assert last.json["earlier"] == {f"csv:{b}": 4}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--main-text", "plain"), "--jsonl"),
        (("--main-text", "plain", "--warc", "x.warc"), "--jsonl"),
        (("--main-text", "plain", "--csv", "x.csv", "--extract", "a=h1"), "--jsonl"),
        (("--extract", "a=h1", "--mirror", "copy"), "--csv"),
        (("--extract", "a=h1"), "--csv"),
        (("--body", "text", "--csv", "x.csv"), "--parquet"),
        (("--part-size", "1M", "--csv", "x.csv"), "--parquet"),
        (("--part-time", "1m", "--jsonl", "-"), "URL"),
        (("--durable",), "outputs"),
        (("--max-sitemaps", "3"), "--sitemaps"),
    ],
)
def test_an_option_that_no_output_uses_is_refused(
    shell: Shell, site: Site, options: tuple[str, ...], named: str, snapshot: Snapshot
) -> None:
    """U2: instead of being ignored; the message names what it is for"""
    done = shell("crawl", site.url("/"), *options)

    assert (done.code, done.out, site.journal) == (2, "", [])
    assert options[0] in done.err
    assert named in done.err
    snapshot(done.err)


def test_an_option_that_one_of_the_outputs_uses_is_accepted(shell: Shell, site: Site) -> None:
    """U2"""
    words = ("crawl", site.url("/"), "--dry-run", "--warc", "x.warc")

    fields = shell(*words, "--out", "pages", "--main-text", "plain", "--extract", "a=h1")
    parts = shell(*words, "--jsonl", f"file://{shell.home}/x.jsonl", "--part-size", "1M", "--body", "text")

    assert (fields.code, parts.code) == (0, 0), fields.err + parts.err


# Closed pipes.


def test_a_crawl_ends_when_its_reader_has_had_enough_and_says_so(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """F40: with a code of its own, and what was not taken is not done"""
    linked(site, 60)

    done = shell.bash(f"curtsy crawl {site.url('/')} --jsonl - --job mine --main-text plain | head -n 1")
    again = shell("crawl", site.url("/"), "--job", "mine", "--json", "--jsonl", "rest.jsonl")

    assert done.code == 74
    assert json.loads(done.out)["url"] == site.url("/")
    snapshot(ending(done, "standard output"))
    assert "Traceback" not in done.err
    assert again.json["ended"] == "done"
    # What the pipe had taken when it was closed was its reader's.
    taken = set(everything(site, 60)) - set(urls(shell.project / "rest.jsonl"))
    assert len(taken) == again.json["fetched"] - len(urls(shell.project / "rest.jsonl"))
    assert again.json["fetched"] == 61


def test_a_standard_output_that_was_closed_from_the_beginning_takes_no_page(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """F40: a shell's `>&-`, some schedulers; the pages would be done, and nowhere"""
    linked(site, 5)

    done = shell.bash(f"curtsy crawl {site.url('/')} --jsonl - --job mine >&-")
    again = shell("crawl", site.url("/"), "--jsonl", "-", "--job", "mine")

    assert done.code == 74
    snapshot(line_with(done.err, "standard output"))
    assert [json.loads(line)["url"] for line in again.out.splitlines()] == everything(site, 5)


def test_a_crawl_that_waits_for_a_host_notices_a_closed_pipe(shell: Shell, site: Site) -> None:
    """F40: no page need come for that"""
    linked(site, 5)
    process = shell.start("crawl", site.url("/"), "--jsonl", "-", CURTSY_DELAY="500", **PLAIN)
    assert process.stdout is not None
    assert process.stderr is not None
    block_until(lambda: site.count("/robots.txt") > 0, process)

    with ends_within(10, work=2):
        process.stdout.close()
        said = process.stderr.read()

    assert process.wait(60) == 74
    assert b"standard output" in said
    process.stderr.close()


def test_a_reader_that_does_not_read_keeps_neither_a_limit_nor_a_signal_from_its_end(shell: Shell, site: Site) -> None:
    """U17, F46: a pipe that is full is waited for, but not at all costs"""
    site.page("/", html(*(f"/p/{number}" for number in range(50))))
    site.page("/p/*", html(text="x" * 20_000))
    limited = shell.start("crawl", site.url("/"), "--jsonl", "-", "--body", "text", "--max-time", "1s", **PLAIN)
    endless = shell.start("crawl", site.url("/"), "--jsonl", "-", "--body", "text", "--no-job", **PLAIN)

    block_until(lambda: len(site.visits("/p/1")) == 2)
    code = limited.wait(60)
    done = stop(endless)

    assert code == 75
    assert done.code == 130
    for each in (limited.stdout, limited.stderr):
        assert each is not None
        each.close()


# Full devices.


@full
def test_a_device_that_stays_full_ends_the_crawl_when_its_patience_is_over(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """F40: 75, a word that is true, and nothing is done that is not written"""
    linked(site, 5)
    began = time.monotonic()

    with ends_within(15, work=2):
        done = shell("crawl", site.url("/"), "--jsonl", "/dev/full", "--job", "mine", "--patience", "1s")
    took = time.monotonic() - began
    again = shell("crawl", site.url("/"), "--jsonl", "pages.jsonl", "--job", "mine")

    *_, ended, going_on, command = done.err.splitlines()
    assert done.code == 75
    assert os.strerror(errno.ENOSPC) in ended
    assert [line for line in done.err.splitlines() if "/dev/full" in line] == [ended, command]  # nothing was written
    assert numbers(going_on) == [1]  # URLs, and no time: as soon as there is room
    snapshot(ending(done, os.strerror(errno.ENOSPC)), "ended")
    snapshot(going_on, "going on")
    assert took >= 1
    assert again.code == 0
    assert sorted(urls(shell.project / "pages.jsonl")) == everything(site, 5)


@pytest.mark.parametrize(
    ("option", "name"),
    [("--jsonl", "pages.jsonl"), ("--warc", "pages.warc"), ("--out", "pages"), ("--skipped", "skipped.csv")],
)
def test_every_output_pauses_on_a_full_disk_and_ends(shell: Shell, site: Site, option: str, name: str) -> None:
    """F40"""
    site.page("/", html(*(f"/p/{number}" for number in range(60)), *(f"http://{n}.example/" for n in range(200))))
    site.page("/p/*", html(text="x" * 12_000))
    words = ("crawl", site.url("/"), option, name, "--patience", "1s", "--no-cache", "--json")

    done = on_small_disk(shell, 8000, *words)

    assert done.code == 75
    assert f"/{Path(name).stem}" in done.json["message"]
    assert os.strerror(errno.EFBIG) in done.json["message"]
    assert done.json["message"].partition(";")[0] in done.err
    assert done.json["ended"] == "later"
    [(_, held)] = done.json["written"].items()
    assert done.json["missing"] == {}
    match option:
        case "--jsonl":
            assert held == done.json["fetched"] == len(urls(shell.project / name))
        case "--out":
            assert held == done.json["fetched"] == len(urls(shell.project / name / "index.jsonl"))
        case "--warc":
            assert held == done.json["fetched"]
        case "--skipped":
            assert held == 0


# Between two runs.


def test_an_output_that_was_replaced_is_refused_and_left_alone(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """F40: not one byte of it is changed, and nothing is asked for"""
    linked(site, 10)
    command = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl", "--limit")
    shell(*command, 5)
    other = "".join(json.dumps({"mine": number}) + "\n" for number in range(5000))
    (shell.project / "pages.jsonl").write_text(other)
    site.clear()

    done = shell(*command, 8)

    assert done.code == 74
    said = line_with(done.err, str(shell.project / "pages.jsonl"))
    assert "--restart" in said
    snapshot(said)
    assert (shell.project / "pages.jsonl").read_text() == other
    assert site.journal == []


def test_the_plan_is_told_only_if_the_crawl_begins_and_a_missing_folder_is_made(shell: Shell, site: Site) -> None:
    """U14"""
    (shell.project / "other.jsonl").write_text("not ours\n")

    refused = shell("crawl", site.url("/"), "--jsonl", "other.jsonl")
    done = shell("crawl", site.url("/"), "--jsonl", "new/deep/pages.jsonl")

    assert (refused.code, len(refused.err.splitlines())) == (74, 1)
    assert "other.jsonl" in refused.err
    assert (done.code, line_with(done.err, "folder")) == (0, "curtsy: created the folder new/deep.")


@pytest.mark.parametrize("left", [0, 3], ids=["removed", "cut"])
def test_an_output_that_lacks_pages_is_told_at_the_end_of_every_run(
    shell: Shell, site: Site, left: int, snapshot: Snapshot
) -> None:
    """F40: what stands in the summary is what is there"""
    linked(site, 10)
    command = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl", "--json", "--limit")
    first = shell(*command, 5)
    output = shell.project / "pages.jsonl"
    lines = output.read_text().splitlines(keepends=True)
    output.unlink()
    if left:
        output.write_text("".join(lines[:left]))

    second, third = shell(*command, 8), shell(*command, 11)

    name = f"jsonl:{output}"
    assert (first.code, first.json["written"], first.json["missing"]) == (0, {name: 5}, {})
    assert (second.code, second.json["written"], second.json["missing"]) == (74, {name: left + 3}, {name: 5 - left})
    assert (third.code, third.json["written"], third.json["missing"]) == (74, {name: left + 6}, {name: 5 - left})
    said = line_with(third.err, "pages.jsonl")
    assert numbers(said) == [left + 6, 11]
    assert "--restart" in said
    snapshot(said)
    assert len(urls(output)) == left + 6


def test_a_mirror_names_the_page_to_begin_with_and_the_same_command_updates_it(shell: Shell, site: Site) -> None:
    """The second run asks by conditional requests, and writes nothing that has not changed"""
    site.page("/", html("/a", text='<img src="/p.png">'), etag='"1"')
    site.page("/a", html("/"), etag='"2"')
    site.page("/p.png", b"p", content_type="image/png", etag='"3"')
    page = shell.project / "site" / f"127.0.0.1+{site.port}" / "index.html"

    first = shell("crawl", site.url("/"), "--mirror", "site")
    written = page.stat().st_mtime_ns
    site.clear()
    second = shell("crawl", site.url("/"), "--mirror", "site", "--json")

    assert (first.code, second.code) == (0, 0)
    assert "2 pages, 1 requisite" in first.err
    assert f"Open {page.relative_to(shell.project)} in a browser." in first.err
    assert b'<img src="p.png">' in page.read_bytes()
    assert (second.json["cached"], second.json["requisites"]) == (2, 1)
    assert {visit.status for visit in site.visits() if visit.path != "/robots.txt"} == {304}
    assert page.stat().st_mtime_ns == written


@pytest.mark.parametrize("option", ["--jsonl", "--parquet", "--warc", "--csv", "--skipped"])
def test_an_output_that_ends_with_the_process_is_refused(shell: Shell, option: str, snapshot: Snapshot) -> None:
    """The pages would be lost; in a program, the memory can be read."""
    done = shell("crawl", "https://example.org/", option, "Memory://bucket/p.jsonl")

    assert (done.code, done.out) == (2, "")
    if option == "--jsonl":
        snapshot(done.err)

"""What `curtsy crawl` says of a job at its next start, and of what it waits for."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import time
from pathlib import Path

from curtsy.crawling.frontier.sqlite_table import SQLiteUrlTable
from curtsy.crawling.jobs import FRONTIER, UNNAMED, default_name, folder_of, jobs_folder, mark_named, mark_unnamed
from curtsy.crawling.options import DEFINING, CrawlOptions
from tests.cli.crawling import line_with, linked, numbers
from tests.cli.shell import Shell
from tests.crawling.test_resume import build
from tests.crawling.web import html
from tests.support.polling import block_until
from tests.support.site import Reply, Site, hang
from tests.support.snapshot import Snapshot


def test_a_job_is_not_gone_on_with_at_another_site(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 5, point 4: neither in earnest nor as a rehearsal; the job stays as it was"""
    linked(site, 2)
    here, there = site.url("/"), site.url("/", host="127.0.0.2")
    words = ("--job", "mine", "--jsonl", "pages.jsonl")
    shell("crawl", here, *words)
    site.clear()

    refused = [shell("crawl", there, *words, *more) for more in ((), ("--dry-run",))]

    assert [done.code for done in refused] == [78, 78]
    for done in refused:
        assert (done.out, done.err.count("\n")) == ("", 1)
        assert [each for each in ("mine", here, there, "--restart") if each not in done.err] == []
    snapshot(refused[0].err)
    assert refused[1].err == refused[0].err
    assert site.count() == 0
    assert shell("jobs", "show", "mine", "--json").json["resume"].startswith(f"curtsy crawl {here}")


def test_a_job_that_was_done_says_that_it_has_a_new_url_to_begin_at(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """U14: not that there is nothing left to do"""
    linked(site, 2)
    here, there = site.url("/"), site.url("/", host="127.0.0.2")
    words = ("--job", "mine", "--jsonl", "pages.jsonl")
    shell("crawl", here, *words)

    both = shell("crawl", here, there, *words)
    anew = shell("crawl", there, "--job", "mine", "--jsonl", "others.jsonl", "--restart")

    going_on = line_with(both.err, " mine")
    assert numbers(going_on) == [3, 0, 1]
    snapshot(going_on)
    assert len((shell.project / "pages.jsonl").read_text().splitlines()) == 6
    assert (anew.code, len((shell.project / "others.jsonl").read_text().splitlines())) == (0, 3)


def test_a_job_is_not_given_up_for_one_that_cannot_begin(shell: Shell, site: Site) -> None:
    """U16: where its pages are to go, others lie; its own file is continued"""
    linked(site, 2)
    words = ("crawl", site.url("/"), "--job", "mine", "--restart", "--jsonl")
    shell(*words, "pages.jsonl", "--limit", "1")
    (shell.project / "other.jsonl").write_text("not ours\n")

    refused = shell(*words, "other.jsonl")
    left = shell("jobs", "show", "mine", "--json").json["queued"]
    anew = shell(*words, "pages.jsonl", "--limit", "1")

    assert (refused.code, left) == (74, 2)
    assert str(shell.project / "other.jsonl") in refused.err
    assert (anew.code, len((shell.project / "pages.jsonl").read_text().splitlines())) == (0, 2)


def test_a_host_that_rests_is_shown_with_what_it_answered(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """U14"""
    site.reply("/down", Reply(500, "out of order"))

    done = shell("crawl", site.url("/down"), "--patience", "1s", "--jsonl", "pages.jsonl")

    assert done.code == 75
    lines = done.err.splitlines()
    why = lines[lines.index(f"        127.0.0.1:{site.port}") + 1]
    assert numbers(why) == [500, 3, 5]
    snapshot(why)


def test_the_command_says_how_many_are_queued_again(shell: Shell, site: Site) -> None:
    """It asks before pages may be in an output twice."""
    build(site, "fan", 3)
    site.reply("/page/2", Reply(404))
    shell("crawl", site.url("/page/0"), "--job", "docs", "--jsonl", "pages.jsonl")

    for words in ((), ("--failed", "--since", "1h"), ("--worker", "x"), ("--failed", "--url", "(")):
        assert shell("jobs", "requeue", "docs", *words).code == 2
    refused = shell("jobs", "requeue", "docs", "--since", "1h")
    failed = shell("jobs", "requeue", "docs", "--failed", "--json")
    pages = shell("jobs", "requeue", "docs", "--since", "1h", "--yes")

    assert refused.code != 0
    assert failed.json == {"job": "docs", "requeued": 1}
    assert (pages.code, pages.err.count("2 URLs")) == (0, 1)
    assert shell("jobs", "show", "docs", "--json").json["queued"] == 3


def test_pages_of_a_job_without_outputs_are_queued_again(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """They are in the cache only; if none is found, the reason is told"""
    build(site, "fan", 3)
    shell("crawl", site.url("/page/0"), "--job", "docs")

    found = shell("jobs", "requeue", "docs", "--since", "1h", "--yes", "--json")
    none = shell("jobs", "requeue", "docs", "--since", "1h", "--yes")

    assert found.json == {"job": "docs", "requeued": 3}
    snapshot(none.err)


SLOWLY = {"CURTSY_PAUSE_MIN": "0.05", "CURTSY_PAUSE_MAX": "0.1"}
"""Slow enough that a kill comes in the middle."""


def urls_in(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text().splitlines()]


def test_the_same_command_resumes_a_crawl_that_was_killed_and_a_finished_one_asks_for_changes(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """F37, N6: without --job; limits and outputs do not matter. Nothing is fetched twice but what was in flight"""
    paths = [f"/p/{number}" for number in range(12)]
    site.page("/", html(*paths), etag='"home"')
    for path in paths:
        site.page(path, html("/"), etag=f'"{path}"', headers={"Cache-Control": "max-age=600"})
    words, output = ("crawl", site.url("/"), "--jsonl", "pages.jsonl"), shell.project / "pages.jsonl"
    process = shell.start(*words, **SLOWLY, CURTSY_TIMEOUT="3")  # its lease ends 5 s after that
    block_until(lambda: site.count() > 5, process)
    process.kill()
    process.communicate()
    before = set(site.paths())

    again = shell(*words, "--max-pages", "50", "--skipped", "skipped.csv")
    first, visited = urls_in(output), [path for path in site.paths() if path != "/robots.txt"]
    site.clear()
    site.page("/p/3", html("/", "/new"), etag='"changed"')
    site.page("/new", html())
    third = shell(*words, "--json")

    assert again.code == third.code == 0
    assert sorted(first) == sorted(site.url(path) for path in ["/", *paths])
    assert len(visited) <= len(set(visited)) + 1
    snapshot(_without_name(line_with(again.err, "resuming")), "resuming")
    snapshot(_without_name(line_with(third.err, "anew")), "anew")
    visits = [visit for visit in site.visits() if visit.target != "/robots.txt"]
    asked = {visit.path: {name.lower(): value for name, value in visit.headers} for visit in visits}
    plain = {path for path, headers in asked.items() if "if-none-match" not in headers}
    assert len(visits) == len(asked) == 14
    assert "/new" in plain
    assert plain <= {"/new", *before}  # the cache of a killed process loses its last pages
    fetched = len(plain | {"/p/3"})
    assert (third.json["cached"], third.json["fetched"], len(urls_in(output))) == (14 - fetched, fetched, 27)
    [listed] = shell("jobs", "ls", "--json").json
    assert (listed["name"], listed["pages"], third.json["job"]) == (third.json["job"], 14, listed["name"])


def _without_name(line: str) -> str:
    return re.sub(r"127\.0\.0\.1-\d+-[0-9a-f]{6}", "NAME", line)


def test_a_crawl_without_a_name_runs_once_at_a_time_and_leaves_nothing_if_it_does_not_start(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """F42: the other is told how both can run; --no-job keeps nothing"""
    linked(site, 2, "/slow")
    site.reply("/slow", hang())
    (shell.project / "other.jsonl").write_text("not ours\n")
    refused = shell("crawl", site.url("/"), "--jsonl", "other.jsonl")
    before = shell("jobs", "ls", "--json").json
    process = shell.start("crawl", site.url("/"))
    block_until(lambda: bool(site.count("/slow")), process)

    second = shell("crawl", site.url("/"), "--max-time", "1s", "--out", "pages")
    beside = shell("crawl", site.url("/"), "--max-time", "1s", "--no-job", "--json")
    another = shell("crawl", site.url("/"), "--max-time", "1s", "--match", "/p/", "--json")
    process.kill()
    process.communicate()

    assert (refused.code, before) == (74, [])
    assert (second.code, beside.json["job"], beside.json["resume"]) == (75, None, None)
    snapshot(_without_name(re.sub(r"/\S+frontier.sqlite", "FILE", second.err)))
    assert len({listed["name"] for listed in shell("jobs", "ls", "--json").json} | {another.json["job"]}) == 2
    assert shell("crawl", site.url("/"), "--no-job", "--restart").code == 2


OFFLINE = {"CURTSY_CACHE_MODE": "offline"}


def test_a_replay_leaves_an_unfinished_crawl_as_it_is(shell: Shell, site: Site) -> None:
    """N6: any number of times, to the same output and to others; then the crawl resumes"""
    linked(site, 9)
    shell("crawl", site.url("/"), "--max-pages", "4", "--jsonl", "pages.jsonl")
    site.clear()

    replays = [
        shell("crawl", site.url("/"), "--jsonl", name, "--main-text", "plain", "--json", **OFFLINE)
        for name in ("one.jsonl", "other.jsonl", "one.jsonl")
    ]
    asked = len(site.journal)
    resumed = shell("crawl", site.url("/"), "--max-pages", "10", "--jsonl", "pages.jsonl", "--json")

    assert [(done.code, done.json["cached"], done.json["fetched"]) for done in replays] == [(0, 4, 0)] * 3
    assert asked == 0
    assert {name: len(urls_in(shell.project / name)) for name in ("one.jsonl", "other.jsonl")} == {
        "one.jsonl": 8, "other.jsonl": 4,
    }  # fmt: skip
    assert (resumed.json["fetched"], resumed.json["failed"], resumed.json["queued"]) == (10, 0, 0)
    assert len(set(urls_in(shell.project / "pages.jsonl"))) == len(urls_in(shell.project / "pages.jsonl")) == 10
    names = [listed["name"] for listed in shell("jobs", "ls", "--json").json]
    assert names == sorted({resumed.json["job"], *(done.json["job"] for done in replays)})
    assert len(names) == 2


def test_the_command_that_resumes_a_replay_sets_its_cache_mode(shell: Shell, site: Site) -> None:
    """N6: pasted without it, it would start a crawl of the site"""
    linked(site, 9)
    shell("crawl", site.url("/"))
    site.clear()
    words = f"crawl {site.url('/')} --max-pages"

    text = shell(*words.split(), "4", **OFFLINE)
    report = shell(*words.split(), "4", "--json", **OFFLINE)
    shown = shell("jobs", "show", report.json["job"], "--json")
    resumed = shell.bash(shown.json["resume"])
    shell.settle("cache_mode: offline\n")
    from_file = shell(*words.split(), "9", "--job", "mine", "--json")

    command = f"CURTSY_CACHE_MODE=offline curtsy {words} 8"
    assert text.err.splitlines()[-1] == f"  {command}"
    assert (report.json["resume"], shown.json["resume"]) == (f"{command} --json",) * 2
    assert (resumed.json["cached"], resumed.json["fetched"], site.journal) == (8, 0, [])
    assert from_file.json["resume"] == f"curtsy {words} 18 --job mine --json"


def test_a_job_with_more_pages_than_the_limit_says_how_many_it_has(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """U14: and the command that resumes it has a limit that is above them"""
    linked(site, 20)
    words = ("crawl", site.url("/"), "--job", "mine")
    shell(*words, "--max-pages", "12")

    done = shell(*words, "--max-pages", "3")
    resume = shell(*words, "--max-pages", "3", "--json").json["resume"]

    snapshot(line_with(done.err, "Stopped: ").partition("Stopped: ")[2])
    assert site.count() == 13  # with robots.txt
    assert resume == f"curtsy crawl {site.url('/')} --job mine --max-pages 24 --json"
    assert "--max-pages 24" in shell("jobs", "show", "mine").out


def test_a_job_with_a_name_is_resumed_only_online_or_only_offline(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """N6: a replay gives up what is not cached, for good"""
    linked(site, 9)
    words = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl")
    shell(*words, "--max-pages", "4")

    refused = [shell(*words, *more, **OFFLINE) for more in ((), ("--dry-run",))]
    left = shell("jobs", "show", "mine", "--json").json["queued"]
    shell(*words[:3], "copy", "--max-pages", "3", **OFFLINE)
    back = shell(*words[:3], "copy")
    resumed = shell(*words, "--json")

    assert ([done.code for done in refused], left, back.code) == ([78, 78], 6, 78)
    assert refused[0].err == refused[1].err
    snapshot(refused[0].err, "offline")
    snapshot(back.err, "online")
    assert (resumed.json["fetched"], resumed.json["failed"]) == (10, 0)


def test_where_a_crawl_ends_today_is_said_at_its_start_and_its_end(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """B1, B2: the daily limit, its setting and its option; and the command of tomorrow"""
    linked(site, 8)
    words = ("crawl", site.url("/"), "--max-pages", "500")
    few = {"CURTSY_MAX_PAGES_PER_DAY": "4"}

    first, again = shell(*words, **few), shell(*words, **few)
    more = shell(*words, "--max-pages-per-day", "50", "--json", **few)

    assert (first.code, again.code, more.code) == (75, 75, 0)
    snapshot(line_with(first.err, "max_pages_per_day"), "stops")
    assert re.search(r"about 12[34] days", first.err)
    assert re.search(r"about 12[34] days", again.err)
    assert re.sub(r"reset in .*?;", "reset in TIME;", line_with(again.err, "No page today")).count("TIME")
    assert first.err.splitlines()[-1] == f"  curtsy {shlex.join(words)}"
    assert (more.json["fetched"], more.json["ended"]) == (9, "done")


def test_the_plan_names_the_entry_that_has_the_limit_of_the_day(shell: Shell, site: Site) -> None:
    """B1, U9: an option does not change the limit of an entry"""
    linked(site, 8)
    (shell.project / "config").mkdir()
    (shell.project / "config" / "domains.yaml").write_text(
        "allowlist:\n  - domain: 127.0.0.1\n    max_pages_per_day: 4\n"
    )
    words = ("crawl", site.url("/"), "--max-pages", "50")

    runs = [shell(*words, "--dry-run"), shell(*words, "--max-pages-per-day", "9")]

    for done in runs:
        said = " ".join((done.out + done.err).split())
        assert "after 4 pages" in said
        assert "max_pages_per_day in config/domains.yaml:3" in said
        assert "--max-pages-per-day N" not in said


def test_a_crawl_is_named_after_its_first_url_and_what_it_crawls() -> None:
    """Limits, outputs and the order of patterns do not matter"""
    plain = default_name(["https://docs.example.org/"], CrawlOptions())

    assert re.fullmatch(r"docs\.example\.org-[0-9a-f]{6}", plain)
    assert plain == default_name(["https://docs.example.org/"], CrawlOptions(max_pages=3, max_time=9.0, scope="site"))
    others = [
        default_name(["https://docs.example.org/a"], CrawlOptions()),
        default_name(["https://docs.example.org/"], CrawlOptions(match=("a", "b"))),
        default_name(["https://docs.example.org/"], CrawlOptions(scope="host")),
        default_name(["https://docs.example.org/"], CrawlOptions(), ["/seeds.txt"]),
    ]
    assert len({plain, *others}) == 5
    assert others[1] == default_name(["https://docs.example.org/"], CrawlOptions(match=("b", "a")))
    assert re.fullmatch(r"1-8080-\w{6}", default_name(["http://[::1]:8080/"], CrawlOptions()))
    assert {field.name for field in dataclasses.fields(CrawlOptions)} >= set(DEFINING)


def test_old_crawls_without_a_name_are_removed(nothing_from_outside: None) -> None:
    """A month after their last run, and all but the latest hundred; jobs with a name stay"""
    now = time.time()
    ages = {"named": 90, "old": 31, "recent": 1, **{f"n{number}": 2 + number / 100 for number in range(120)}}
    for name, days in ages.items():
        folder = folder_of(name)
        SQLiteUrlTable(folder / FRONTIER, restart=False).close()
        if name != "named":
            (folder / UNNAMED).touch()
        os.utime(folder / FRONTIER, (now - days * 86_400,) * 2)
    SQLiteUrlTable(folder_of("now") / FRONTIER, restart=False).close()

    mark_named(folder_of("n119"))  # by --job
    mark_unnamed(folder_of("now"))

    left = {path.name for path in jobs_folder().iterdir()}
    assert left == {"named", "n119", "now", "recent", *(f"n{number}" for number in range(98))}


def test_a_crawl_that_resumes_after_a_kill_says_until_when_the_slot_of_the_dead_request_is_held(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """Issue 18: nothing was requested for up to 35 s, without a word; F9"""
    linked(site, 3)
    site.reply("/p/1", hang())
    command = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl")
    process = shell.start(*command)
    block_until(lambda: site.count("/p/1"))
    process.kill()
    process.communicate()
    before = site.count()

    done = shell(*command, "--max-time", "1s")

    told = line_with(done.err, f"127.0.0.1:{site.port}", "killed while")
    assert 20 <= numbers(told.rpartition("leaves in")[2])[0] <= 35
    assert site.count() == before
    snapshot(told)


def test_a_crawl_that_resumes_without_a_request_in_flight_says_nothing_of_slots(shell: Shell, site: Site) -> None:
    """Issue 18"""
    linked(site, 3)
    shell("crawl", site.url("/"), "--job", "mine", "--max-pages", "2")

    done = shell("crawl", site.url("/"), "--job", "mine")

    assert (done.code, "in flight" in done.err) == (0, False)

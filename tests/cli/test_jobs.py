"""`curtsy jobs`: the crawls that can be gone on with."""

from __future__ import annotations

import re
from pathlib import Path

from curtsy.cli.fields import SHAPES
from tests.cli.crawling import linked, until
from tests.cli.shell import Shell
from tests.support.site import Site, hang


def folder(shell: Shell, name: str) -> Path:
    return Path(shell.env["XDG_STATE_HOME"]) / "curtsy" / "jobs" / name


def test_jobs_are_listed_and_shown_with_how_to_go_on(shell: Shell, site: Site) -> None:
    """Issue 6: `jobs ls`, `jobs show`: as tables and as JSON"""
    linked(site, 5, "/private/a")
    nothing = shell("jobs", "ls")
    shell("crawl", site.url("/?key=s3cret"), "--job", "whole")
    shell("crawl", site.url("/"), "--job", "half", "--limit", "2", "--jsonl", "half.jsonl")

    table, listed = shell.cold("jobs", "ls"), shell("jobs", "ls", "--json")
    one, shown = shell("jobs", "show", "half"), shell("jobs", "show", "half", "--json")
    whole = shell("jobs", "show", "whole")

    assert (nothing.code, nothing.out) == (0, "")
    assert "curtsy crawl URL --job NAME begins one" in nothing.err
    rows = [re.split(r"\s{2,}", line) for line in table.out.splitlines()]
    assert [row[:3] for row in rows[1:]] == [["half", "unfinished (--limit)", "2"], ["whole", "done", "7"]]
    assert all(set(job) == set(SHAPES["jobs ls"].fields) for job in listed.json)
    assert [(job["name"], job["queued"]) for job in listed.json] == [("half", 5), ("whole", 0)]
    assert [(job["state"], job["ended"]) for job in listed.json] == [("unfinished", "max_pages"), ("done", "done")]
    assert set(shown.json) == set(SHAPES["jobs show"].fields)
    assert shown.json["seeds"] == [site.url("/")]
    assert shown.json["resume"] == f"curtsy crawl {site.url('/')} --job half --limit 4 --jsonl half.jsonl"
    assert f"  {shown.json['resume']}" in one.out.splitlines()
    assert "half.jsonl" in one.out
    assert "forbidden by robots.txt" in whole.out
    assert "s3cret" not in whole.out


def test_a_look_is_no_change(shell: Shell, site: Site) -> None:
    """Issue 6: the last change is the crawl's, not that of whoever looks"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "mine")

    [first] = shell("jobs", "ls", "--json").json
    [second] = shell("jobs", "ls", "--json").json

    assert first["changed_at"] == second["changed_at"]


def test_a_running_job_is_shown_by_its_own_word_and_cannot_be_removed(shell: Shell, site: Site) -> None:
    """Issue 6, F42"""
    linked(site, 3, "/slow")
    site.reply("/slow", hang())
    process = shell.start("crawl", site.url("/"), "--job", "mine")
    until(lambda: bool(site.count("/slow")), process)
    until(lambda: shell("jobs", "ls", "--json").json[0]["pages"] is not None, process)

    [listed] = shell("jobs", "ls", "--json").json
    shown = shell("jobs", "show", "mine")
    removed = shell("jobs", "rm", "mine", "--yes")
    process.kill()
    process.communicate()

    assert (listed["state"], listed["workers"]) == ("running", 1)
    assert shown.code == 0
    assert (removed.code, removed.out) == (1, "")
    assert "is running. Stop it first" in removed.err
    assert folder(shell, "mine").exists()


def test_jobs_are_removed_only_if_somebody_is_sure(shell: Shell, site: Site) -> None:
    """Issue 6: `--yes`; what a job has written stays"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl")
    shell("crawl", site.url("/"), "--job", "./here", "--jsonl", "here/pages.jsonl")

    unsure = shell("jobs", "rm", "mine")
    sure = shell("jobs", "rm", "mine", "./here", "nobody", "--yes", "--json")

    assert unsure.code == 2
    assert "Say --yes" in unsure.err
    assert (sure.code, sure.json) == (1, {"removed": ["mine", "./here"]})
    assert "there is no job in" in sure.err
    assert not folder(shell, "mine").exists()
    assert (shell.project / "pages.jsonl").exists()
    assert [path.name for path in (shell.project / "here").iterdir()] == ["pages.jsonl"]


def test_a_damaged_job_hides_no_other_and_can_be_removed(shell: Shell, site: Site) -> None:
    """U16"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "good")
    folder(shell, "bad").mkdir()
    (folder(shell, "bad") / "frontier.sqlite").write_bytes(b"no database at all" * 500)

    listed, shown = shell("jobs", "ls", "--json"), shell("jobs", "show", "bad")
    removed = shell("jobs", "rm", "bad", "--yes")

    assert [(job["name"], job["state"]) for job in listed.json] == [("bad", "damaged"), ("good", "done")]
    assert shown.code == 1
    assert "is damaged" in shown.err
    assert (removed.code, folder(shell, "bad").exists()) == (0, False)

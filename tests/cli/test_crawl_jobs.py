"""What `curtsy crawl` says of a job at its next start, and of what it waits for."""

from __future__ import annotations

from tests.cli.crawling import line_with, linked, numbers
from tests.cli.shell import Shell
from tests.crawling.test_resume import build
from tests.support.site import Reply, Site
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


def test_a_job_that_has_nothing_left_says_no_more_than_that(shell: Shell, site: Site) -> None:
    """U14: neither what it would take, nor where pages would be missing"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl")

    again = shell("crawl", site.url("/"), "--job", "mine")

    said, empty, _ = again.err.splitlines()  # and the summary
    assert " mine " in said
    assert numbers(said) == [3, 0]
    assert empty == ""


def test_a_job_is_not_given_up_for_one_that_cannot_begin(shell: Shell, site: Site) -> None:
    """U16: where its pages are to go, others lie"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl", "--limit", "1")

    anew = shell("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl", "--restart")

    assert anew.code == 74
    assert str(shell.project / "pages.jsonl") in anew.err
    assert shell("jobs", "show", "mine", "--json").json["queued"] == 2


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

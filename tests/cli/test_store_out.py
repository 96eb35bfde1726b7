"""Commands while the store does not answer or does not know us, and crawls that do not start."""

from __future__ import annotations

import json

import pytest

from tests.cli.crawling import line_with, linked
from tests.cli.shell import Shell
from tests.support.bounds import ends_within
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Site
from tests.support.snapshot import Snapshot

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--job", "mine")], ids=["local", "workers", "shared"])
def test_a_crawl_whose_server_cannot_be_reached_ends_after_its_patience_and_resumes(
    shell: Shell, site: Site, snapshot: Snapshot, options: tuple[str, ...]
) -> None:
    """Issue 17: exit code 75, whichever place the job has"""
    linked(site, 2)
    words = ("crawl", site.url("/"), *options)

    out = shell(*words, "--store", NOWHERE, "--patience", "1s")
    asked = list(site.journal)
    resumed = shell(*words)

    assert (out.code, asked) == (75, [])
    assert "127.0.0.1:1" in out.err
    assert (resumed.code, site.count("/")) == (0, 1)
    if "--job" in options:
        snapshot(out.err.splitlines()[-1].partition("store's URL.")[2])
    else:
        assert "127.0.0.1:1" in line_with(out.err, "Stopped: ")


def test_a_password_that_is_refused_is_no_outage(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 17: another attempt would be refused too"""
    if reason := redis_available():
        pytest.skip(reason)
    linked(site, 1)
    with RedisServer() as server:
        server.command("CONFIG", "SET", "requirepass", "right")
        store = server.url.replace("//", "//:wrong@", 1)
        commands = [("get",), ("crawl",), ("crawl", "--workers", "2"), ("crawl", "--job", "mine")]
        done = [shell(*words, site.url("/"), "--store", store) for words in commands]
        without = shell("get", site.url("/"), "--store", server.url)
        listed = shell("jobs", "ls", "--json").json

    assert [each.code for each in (*done, without)] == [78] * 5
    assert (site.journal, listed) == ([], [])
    assert "wrong@" not in "".join(each.err for each in done)
    snapshot(done[0].err)


def test_a_database_that_the_server_does_not_have_is_no_outage(shell: Shell, site: Site) -> None:
    """Issue 17: a crawl does not wait for it"""
    if reason := redis_available():
        pytest.skip(reason)
    linked(site, 1)
    with RedisServer() as server:
        store = f"{server.url.rpartition('/')[0]}/99"
        done = [shell(*words, site.url("/"), "--store", store) for words in (("get",), ("crawl", "--job", "mine"))]

    assert [each.code for each in done] == [78, 78]
    assert site.journal == []
    assert all("in the store's URL" in each.err for each in done)
    assert "when the server answers" not in "".join(each.err for each in done)


def test_an_unknown_job_is_neither_here_nor_on_the_server(shell: Shell, snapshot: Snapshot) -> None:
    """Issue 17"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        words = ("nosuch", "--store", server.url)
        done = [shell("jobs", *each, *words) for each in (("show",), ("requeue", "--failed"), ("rm", "--yes"))]

    assert [each.code for each in done] == [1, 1, 1]
    assert len({each.err for each in done}) == 1
    snapshot(done[0].err)


def test_jobs_of_this_machine_are_shown_while_the_server_does_not_answer(shell: Shell, site: Site) -> None:
    """Issue 17: the list names the error below, and one job does not wait for the server's timeout"""
    if reason := redis_available():
        pytest.skip(reason)
    linked(site, 1)
    with RedisServer() as server:
        store = ("--store", f"{server.url}?timeout=30")
        shell("crawl", site.url("/"), "--job", "here")
        shell("crawl", site.url("/"), "--job", "there", *store)
        both = shell("jobs", "ls", "--json", *store)
        server.pause()
        with ends_within(20):
            shown = shell("jobs", "show", "here", "--json", *store)
        listed = [shell("jobs", "ls", *form, "--store", f"{server.url}?timeout=0.5") for form in ((), ("--json",))]
        server.resume()

    assert [each["name"] for each in both.json] == ["here", "there"]
    assert (shown.code, shown.json["pages"], shown.json["is_shared"]) == (0, 2, False)
    assert [each.code for each in listed] == [1, 1]
    assert "here" in line_with(listed[0].out, "done")
    assert [each["name"] for each in listed[1].json] == ["here"]
    assert all(str(server.port) in each.err for each in (shown, *listed))


def test_what_concerns_all_processes_of_a_crawl_is_logged_once(shell: Shell, site: Site) -> None:
    """Issue 17: an outage of the store, and settings that relax the rules"""
    linked(site, 1)
    shell.settle("user_agent: mine/1.0\ndefault_policy:\n  allow_private: true\n")
    words = ("crawl", site.url("/"), "--store", NOWHERE, "--patience", "3s", "--workers", "2")

    done = shell(*words, CURTSY_ALLOW_PRIVATE=None)

    logged = [json.loads(line)["msg"] for line in done.err.splitlines() if line.startswith("{")]
    assert done.code == 75
    assert sum("127.0.0.1:1" in each for each in logged) == 2, "that it is out, and how long the crawl waits"
    assert [sum(name in each for each in logged) for name in ("allow_private", "contact")] == [1, 1]
    assert len(set(logged)) == len(logged)


@pytest.mark.parametrize("is_shared", [False, True], ids=["local", "shared"])
def test_a_crawl_whose_output_exists_leaves_no_job(shell: Shell, site: Site, is_shared: bool) -> None:
    """Issue 17: neither a named nor an unnamed one"""
    if is_shared and (reason := redis_available()):
        pytest.skip(reason)
    linked(site, 1)
    shell.project.joinpath("pages.jsonl").write_text("mine\n")
    with RedisServer() as server:
        store = ("--store", server.url) if is_shared else ()
        words = ("crawl", site.url("/"), *store, "--jsonl")
        failed = [shell(*words, "pages.jsonl", *more) for more in ((), ("--job", "ph"))]
        listed, shown = shell("jobs", "ls", "--json", *store), shell("jobs", "show", "ph", *store)
        fine = shell(*words, "other.jsonl", "--job", "ph")

    assert [each.code for each in failed] == [74, 74]
    assert (listed.json, shown.code) == ([], 1)
    assert (fine.code, site.count("/")) == (0, 1)

"""`curtsy jobs`: the crawls that can be gone on with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.crawling import line_with, linked, numbers, reasons_in
from tests.cli.documented import FIELDS
from tests.cli.shell import Shell, stop
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Site, hang
from tests.support.snapshot import Snapshot


def folder(shell: Shell, name: str) -> Path:
    return Path(shell.env["XDG_STATE_HOME"]) / "curtsy" / "jobs" / name


def test_jobs_are_listed_and_shown_with_how_to_go_on(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 6: `jobs ls`, `jobs show`: as tables and as JSON"""
    linked(site, 5, "/private/a")
    nothing = shell("jobs", "ls")
    shell("crawl", site.url("/?key=s3cret"), "--job", "whole")
    half = ("crawl", site.url("/"), "--job", "half", "--jsonl", "half.jsonl", "--limit")
    shell(*half, "2")

    table, listed = shell.cold("jobs", "ls"), shell("jobs", "ls", "--json")
    one, shown = shell("jobs", "show", "half"), shell("jobs", "show", "half", "--json")
    whole = shell("jobs", "show", "whole")

    assert (nothing.code, nothing.out) == (0, "")
    snapshot(nothing.err, "no jobs")
    assert " jobs show " in table.err
    snapshot(table.err, "unfinished")
    rows = [re.split(r"\s{2,}", line) for line in table.out.splitlines()]
    assert [row[:3] for row in rows[1:]] == [["half", "unfinished (--max-pages)", "2"], ["whole", "done", "7"]]
    assert all(set(job) == FIELDS["jobs ls"] for job in listed.json)
    assert [(job["name"], job["queued"]) for job in listed.json] == [("half", 5), ("whole", 0)]
    assert [(job["state"], job["ended"]) for job in listed.json] == [("unfinished", "max_pages"), ("done", "done")]
    assert set(shown.json) == FIELDS["jobs show"]
    assert shown.json["seeds"] == [site.url("/")]
    assert shlex.split(shown.json["resume"]) == ["curtsy", *half, "4"]
    assert f"  {shown.json['resume']}" in one.out.splitlines()
    assert "half.jsonl" in one.out
    assert [(count, url) for count, _, url in reasons_in(whole.out)] == [(1, site.url("/private/a"))]
    assert "s3cret" not in whole.out


def test_a_job_that_the_daily_limit_has_stopped_says_so(shell: Shell, site: Site) -> None:
    """B2: raising --patience is not the remedy"""
    linked(site, 9)
    shell("crawl", site.url("/"), "--job", "mine", "--patience", "1ms", CURTSY_MAX_REQUESTS_PER_DAY="4")

    table, listed, shown = (shell("jobs", *words) for words in (["ls"], ["ls", "--json"], ["show", "mine"]))

    assert "(the daily limit)" in table.out
    assert (listed.json[0]["ended"], listed.json[0]["waited_for"]) == ("later", "budget spent")
    assert "the daily limit" in shown.out


def test_a_look_is_no_change(shell: Shell, site: Site) -> None:
    """Issue 6: the last change is the crawl's, not that of whoever looks"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "mine")

    [first] = shell("jobs", "ls", "--json").json
    [second] = shell("jobs", "ls", "--json").json

    assert first["changed_at"] == second["changed_at"]


def test_a_running_job_is_shown_by_its_own_word_and_cannot_be_removed(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """Issue 6, F42"""
    linked(site, 3, "/private/a", "/missing", "/slow")
    site.reply("/slow", hang())
    process = shell.start("crawl", site.url("/"), "--job", "mine")
    block_until(lambda: bool(site.count("/slow")), process)
    block_until(lambda: shell("jobs", "ls", "--json").json[0]["failed"], process)

    [listed] = shell("jobs", "ls", "--json").json
    shown, [worker] = shell("jobs", "show", "mine"), shell("jobs", "show", "mine", "--json").json["crew"]
    removed = shell("jobs", "rm", "mine", "--yes")
    process.kill()
    process.communicate()

    assert (listed["state"], listed["workers"]) == ("running", 1)
    assert (listed["failed"], listed["skipped"]) == (1, 1)
    assert shown.code == 0
    line = line_with(shown.out, "worker ", f" {worker['process']}: 4 ")
    snapshot(line.replace(worker["process"], "PROCESS"), "worker")
    assert re.fullmatch(r"\S+-\d+-\S+", worker["process"])
    assert re.search(rf"^127\.0\.0\.1:{site.port} +\d +\d$", shown.out, re.MULTILINE)
    assert (removed.code, removed.out) == (1, "")
    assert " mine " in removed.err
    snapshot(removed.err, "removed")
    assert folder(shell, "mine").exists()


def test_jobs_are_removed_only_if_somebody_is_sure(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 6: `--yes`; what a job has written stays"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl")
    shell("crawl", site.url("/"), "--job", "./here", "--jsonl", "here/pages.jsonl")

    unsure = shell("jobs", "rm", "mine")
    unknown = shell("jobs", "rm", "nobody")
    sure = shell("jobs", "rm", "mine", "./here", "nobody", "--yes", "--json")

    assert unsure.code == 2
    assert (unknown.code, "--yes" in unknown.err) == (1, False)
    snapshot(line_with(unsure.err, "--yes"), "unsure")
    assert (sure.code, sure.json) == (1, {"removed": ["mine", "./here"]})
    assert str(folder(shell, "nobody")) in sure.err
    snapshot(sure.err, "sure")
    assert not folder(shell, "mine").exists()
    assert (shell.project / "pages.jsonl").exists()
    assert [path.name for path in (shell.project / "here").iterdir()] == ["pages.jsonl"]


def test_a_damaged_job_hides_no_other_and_can_be_removed(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """U16"""
    linked(site, 2)
    shell("crawl", site.url("/"), "--job", "good")
    folder(shell, "bad").mkdir()
    (folder(shell, "bad") / "frontier.sqlite").write_bytes(b"no database at all" * 500)

    listed, shown = shell("jobs", "ls", "--json"), shell("jobs", "show", "bad")
    removed = shell("jobs", "rm", "bad", "--yes")

    assert [(job["name"], job["state"]) for job in listed.json] == [("bad", "damaged"), ("good", "done")]
    assert shown.code == 1
    assert str(folder(shell, "bad") / "frontier.sqlite") in shown.err
    snapshot(shown.err)
    assert (removed.code, folder(shell, "bad").exists()) == (0, False)


def test_a_shared_job_is_shown_as_a_local_one_is(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 5, Issue 6: all that its workers have kept on the server, together"""
    if reason := redis_available():
        pytest.skip(reason)
    linked(site, 5, "/private/a")
    with RedisServer() as server:
        words = ("crawl", site.url("/"), "--job", "mine", "--store", server.url)
        local = ("crawl", site.url("/"), "--job", "mine", "--limit", "2", "--jsonl", "local.jsonl")
        shell(*words, "--limit", "2", "--jsonl", "one.jsonl")
        shell(*local)

        half, alone = shell("jobs", "show", "mine", "--store", server.url), shell("jobs", "show", "mine")
        shell(*words, "--jsonl", "two.jsonl", XDG_STATE_HOME=str(shell.home / "other"))
        [listed] = shell("jobs", "ls", "--json", "--store", server.url).json[1:]
        whole = shell("jobs", "show", "mine", "--store", server.url)
        found = shell("jobs", "show", "mine", "--store", server.url, "--json").json

    assert [title for title in _titles(half.out) if title != "worker"] == [
        title.replace("folder", "store") for title in _titles(alone.out)
    ]
    state = line_with(half.out, "state ")
    assert "--max-pages" in state
    snapshot(state, "state")
    assert re.search(r"^fetched +2 pages, ", half.out, re.MULTILINE)
    assert half.out.endswith(f"\n  {shlex.join(('curtsy', *words, '--limit', '4', '--jsonl', 'one.jsonl'))}\n")
    brought = line_with(whole.out, "fetched ")
    assert (numbers(brought)[0], numbers(brought)[-1]) == (6, 2)
    snapshot(brought, "brought")
    assert re.findall(r"^output +\S+/(\w+)\.jsonl$", whole.out, re.MULTILINE) == ["one", "two"]
    assert [(count, url) for count, _, url in reasons_in(whole.out)] == [(1, site.url("/private/a"))]
    assert set(found) == FIELDS["jobs show"]
    assert (found["seeds"], found["pages"], found["queued"], found["ended"]) == ([site.url("/")], 6, 0, "done")
    assert found["skipped_by_reason"] == {"robots_disallowed": 1}
    assert [(each["state"], each["pages"]) for each in found["crew"]] == [("stopped", 4), ("stopped", 2)]
    assert (listed["is_shared"], listed["pages"], listed["changed_at"]) == (True, 6, found["changed_at"])
    assert (listed["failed"], listed["skipped"]) == (0, 1)


def _titles(shown: str) -> list[str]:
    """What the rows of a job are called."""
    return [line.partition("  ")[0] for line in shown.split("\n\n")[0].splitlines()]


def pass_time(server: RedisServer, job: str, seconds: int, worker: str) -> None:
    """Let so many seconds pass since the last heartbeat of a worker."""
    for key in ("workers", "seen"):
        server.command("ZINCRBY", f"curtsy:crawl:{{{job}}}:{key}", -seconds * 1_000_000, worker)


def test_those_at_work_on_a_shared_job_are_named_with_when_they_were_last_heard(shell: Shell, site: Site) -> None:
    """Issue 5: also one that was killed, and what it has brought"""
    if reason := redis_available():
        pytest.skip(reason)
    linked(site, 3, "/slow")
    site.reply("/slow", hang())
    with RedisServer() as server:
        process = shell.start("crawl", site.url("/"), "--job", "mine", "--store", server.url)
        look = ("jobs", "show", "mine", "--store", server.url)
        block_until(lambda: bool(site.count("/slow")), process)
        block_until(lambda: bool((found := shell(*look, "--json").json)["busiest"]) and found["pages"] == 4, process)

        removed = shell("jobs", "rm", "mine", "--yes", "--store", server.url)
        running, found = shell(*look), shell(*look, "--json").json
        process.kill()
        process.communicate()
        [worker] = found["crew"]
        pass_time(server, "mine", 60, worker["worker"])
        killed, left = shell(*look), shell(*look, "--json").json

    assert (removed.code, "running" in removed.err) == (1, True), "as a job of this machine"
    assert (found["workers"], worker["pages"], left["workers"]) == (1, 4, 0)
    state = line_with(running.out, "state ")
    assert (state.split()[1], numbers(state)) == ("running", [1])
    data = ("worker ", worker["process"], f" {worker['worker']}: 4 ")
    assert re.search(r" \S+ s\b", line_with(running.out, *data).partition(": 4 ")[2])
    assert re.search(rf"^127\.0\.0\.1:{site.port} +4 +0$", running.out, re.MULTILINE)
    assert " 1 min " in line_with(killed.out, *data)
    assert (left["state"], left["crew"][0]["worker"]) == ("unfinished", worker["worker"])
    assert left["busiest"] == []


def test_a_worker_that_was_lost_is_named_until_its_pages_are_queued_again(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """Issue 17: also when others have worked since, and when none does"""
    if reason := redis_available():
        pytest.skip(reason)
    linked(site, 3, "/slow")
    site.reply("/slow", hang())
    with RedisServer() as server:
        words, look = ("crawl", site.url("/"), "--job", "mine"), ("jobs", "show", "mine")
        shell.env["CURTSY_STORE"] = server.url
        process = shell.start(*words, "--jsonl", "lost.jsonl")
        block_until(lambda: bool(site.count("/slow")), process)
        block_until(lambda: shell(*look, "--json").json["pages"] == 4, process)
        process.kill()
        process.communicate()
        [worker] = shell(*look, "--json").json["crew"]
        pass_time(server, "mine", 65, worker["worker"])
        other = shell.start(*words, XDG_STATE_HOME=str(shell.home / "other"))
        block_until(lambda: len(shell(*look, "--json").json["crew"]) == 2, other)
        stopped = stop(other)

        shown, crew = shell(*look), shell(*look, "--json").json["crew"]
        again = shell("jobs", "requeue", "mine", "--worker", worker["worker"], "--yes", "--json")
        after = shell(*look, "--json").json

    assert (worker["state"], stopped.code) == ("running", 130)
    assert [(each["state"], each["pages"]) for each in crew] == [("stopped", 0), ("lost", 4)]
    assert (crew[1]["worker"], crew[1]["heard_ago"] >= 60) == (worker["worker"], True)
    for each in crew:
        line = line_with(shown.out, "worker ", each["worker"]).replace(each["worker"], "WORKER")
        snapshot(re.sub(r"\S+ as ", "", line), each["state"])
    assert (again.code, again.json["requeued"], after["queued"]) == (0, 4, 5)


def test_of_very_many_workers_the_latest_are_shown(shell: Shell, site: Site) -> None:
    """Issue 17: containers get a new name at each restart"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server:
        shell("crawl", site.url("/"), "--job", "mine", "--store", server.url)
        notes = [word for number in range(1100) for word in (f"totals:{number}", '{"fetched":1}')]
        server.command("HSET", "curtsy:crawl:{mine}:notes", *notes)
        beats = [word for number in range(1000, 1100) for word in (number, str(number))]
        server.command("ZADD", "curtsy:crawl:{mine}:seen", *beats)

        shown = shell("jobs", "show", "mine", "--store", server.url)
        found = shell("jobs", "show", "mine", "--store", server.url, "--json").json

    names = [each["worker"] for each in found["crew"]]
    assert (len(names), found["earlier_workers"]) == (1000, 101)
    assert names[1:101] == [str(number) for number in reversed(range(1000, 1100))]
    assert (found["crew"][-1]["state"], found["crew"][-1]["heard_ago"]) == (None, None)
    assert len([line for line in shown.out.splitlines() if line.startswith("worker ")]) == 20
    assert "1,081" in shown.out


def test_what_failed_and_what_was_left_alone_are_told_apart_everywhere(shell: Shell, site: Site) -> None:
    """Issue 6: `jobs` means by it what the summary and `top` mean"""
    linked(site, 2, "/private/a", "/private/b", "/missing")
    summary = shell("crawl", site.url("/"), "--job", "mine", "--json").json

    table, [listed] = shell("jobs", "ls"), shell("jobs", "ls", "--json").json
    shown, [crawl] = shell("jobs", "show", "mine", "--json").json, shell("top", "--json").json["crawls"]

    told = [(each["failed"], each["skipped"]) for each in (summary, listed, shown, crawl)]
    assert told == [(1, 2)] * 4
    assert re.split(r"\s{2,}", table.out.splitlines()[1])[:5] == ["mine", "done", "3", "0", "1"]

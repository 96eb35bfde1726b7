"""`curtsy top`: hosts and crawls, live."""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import subprocess
import time

import pytest

from curtsy.core.crawl_record import CrawlRecord, crawl_key
from tests.cli.crawling import line_with, linked, told
from tests.cli.documented import FIELDS
from tests.cli.shell import Shell, stop
from tests.cli.terminal import uncoloured
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Reply, Site, hang
from tests.support.snapshot import Snapshot
from tests.support.warm import Process


def test_a_running_crawl_is_seen_and_how_it_ended(shell: Shell, site: Site) -> None:
    """Issue 6, Q12: what a crawl tells in the store every second, and its last word"""
    linked(site, 3, "/slow")
    site.reply("/slow", hang())
    process = shell.start("crawl", site.url("/"), "--job", "mine")
    block_until(lambda: bool(site.count("/slow")), process)
    block_until(lambda: any(crawl["pages"] >= 1 for crawl in shell("top", "--json").json["crawls"]), process)

    found, table = shell("top", "--json").json, shell("top")
    process.send_signal(signal.SIGINT)
    told(process, "stopping")
    stop(process)
    after = shell("top", "--json").json

    assert set(found) == FIELDS["top"]
    [crawl] = found["crawls"]
    assert (crawl["job"], crawl["state"], crawl["seeds"]) == ("mine", "running", [site.url("/")])
    assert [host["domain"] for host in found["hosts"]] == [f"127.0.0.1:{site.port}"]
    assert [host["host"] for host in crawl["hosts"]] == [f"127.0.0.1:{site.port}"]
    assert table.code == 0
    assert re.search(r"^mine +running", table.out, re.MULTILINE)
    assert "1 crawl running" in table.out
    assert "\x1b" not in table.out
    assert [(each["state"], each["pages"]) for each in after["crawls"]] == [("stopped", 4)]


def test_a_crawl_without_a_job_is_seen_too_and_has_ended(shell: Shell, site: Site) -> None:
    """Issue 6"""
    linked(site, 3)
    shell("crawl", site.url("/"), "--no-job")

    [crawl] = shell("top", "--json").json["crawls"]

    assert re.fullmatch(r"crawl-\d+", crawl["job"])
    assert (crawl["state"], crawl["pages"], crawl["queued"]) == ("finished", 4, 0)


@pytest.mark.parametrize(
    ("option", "value", "limit", "env"),
    [
        ("--max-pages", "2", "--max-pages", {}),
        ("--max-time", "1ms", "--max-time", {}),
        ("--max-bytes", "1", "--max-bytes", {}),
        ("--patience", "1ms", "the daily limit", {"CURTSY_MAX_REQUESTS_PER_DAY": "3"}),
        ("--patience", "1ms", "--patience", {"CURTSY_BREAKER_FAILURES": "1"}),
    ],
)
def test_a_crawl_that_ended_at_a_limit_says_so_and_can_be_gone_on_with(
    shell: Shell, site: Site, option: str, value: str, limit: str, env: dict[str, str]
) -> None:
    """Issue 6: it is not finished as long as something is left; one that is not kept is not offered"""
    linked(site, 5)
    if "CURTSY_BREAKER_FAILURES" in env:
        site.reply("/p/0", Reply(500))
    shell("crawl", site.url("/"), option, value, "--job", "mine", **env)
    shell("crawl", site.url("/"), option, value, "--no-job", **env)

    crawls, table = shell("top", "--json").json["crawls"], shell("top").out
    listed, shown = shell("jobs", "ls"), shell("jobs", "show", "mine").out

    assert [each["state"] for each in crawls] == ["stopped", "stopped"]
    assert re.search(rf"^mine +stopped .*{limit} ", table, re.MULTILINE)
    assert line_with(table, " jobs show ").endswith(": mine")
    assert re.search(rf"^mine +unfinished \({limit}\) ", listed.out, re.MULTILINE)
    assert " jobs show " in listed.err
    state = line_with(shown, "state ")
    assert "unfinished" in state
    assert limit in state
    assert f"  curtsy crawl {site.url('/')} {option} " in shown


def test_the_least_time_is_shown_while_the_queue_grows(shell: Shell) -> None:
    """Issue 18: as the crawl's own progress shows it"""
    now = time.time()
    crawl = CrawlRecord(
        job="mine", state="running", started_at=now, updated_at=now, queued=900, seconds_left_at_least=3150.0
    )
    with shell.store() as store:
        store.update(crawl_key("mine"), lambda before, now: (crawl, None))

    assert "at least 52 min" in shell("top").out
    assert shell("top", "--json").json["crawls"][0]["seconds_left_at_least"] == 3150.0


def test_a_limit_that_left_nothing_is_a_finish(shell: Shell, site: Site) -> None:
    """Issue 6: the last page was also the last that was allowed"""
    linked(site, 3)
    shell("crawl", site.url("/"), "--limit", "4", "--job", "mine")

    [crawl], table, jobs = shell("top", "--json").json["crawls"], shell("top").out, shell("jobs", "ls")

    assert (crawl["state"], crawl["ended"], crawl["queued"]) == ("finished", "max_pages", 0)
    assert "jobs show" not in table
    assert jobs.err == ""
    assert re.search(r"^mine +done ", jobs.out, re.MULTILINE)


def test_a_job_that_was_killed_in_its_second_run_does_not_say_what_ended_the_first(shell: Shell, site: Site) -> None:
    """Issue 6"""
    linked(site, 3, "/slow")
    site.reply("/slow", hang())
    shell("crawl", site.url("/"), "--limit", "1", "--job", "mine")
    process = shell.start("crawl", site.url("/"), "--job", "mine")
    block_until(lambda: bool(site.count("/slow")), process)

    process.kill()
    process.communicate()

    [job] = shell("jobs", "ls", "--json").json
    assert (job["state"], job["ended"]) == ("unfinished", None)


def test_q_ends_it_and_gives_the_terminal_back(shell: Shell, site: Site) -> None:
    """Issue 6: on a terminal, narrow or not, until q is pressed"""
    shell("get", site.url("/"))
    leader, follower = pty.openpty()
    process: Process[bytes] = Process(
        "curtsy.cli", "top", "--every", "50ms", text=False, cwd=shell.project,
        env={**shell.env, "TERM": "xterm-256color", "COLUMNS": "50", "LINES": "20"},
        stdin=follower, stdout=follower, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(follower)
    shown = b""
    while shown.count(f"127.0.0.1:{site.port}".encode()) < 2:  # drawn again, so it is at its keys
        shown += os.read(leader, 65536)

    os.write(leader, b"q")
    try:
        while piece := os.read(leader, 65536):
            shown += piece
    except OSError:  # on Linux the end of a terminal is an error
        pass
    os.close(leader)
    _, err = process.communicate(timeout=120)

    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode().replace("\x1b[H", "\n"))
    assert (process.returncode, err) == (0, b"")
    assert " charged today · 0 open breakers" in text, "the title takes a second line"
    assert b"\x1b[?1049h" in shown
    assert b"\x1b[?1049l" in shown
    assert max(len(line.rstrip()) for part in text.split("\n") for line in part.split("\r")) <= 50


def test_pages_of_this_run_are_told_from_those_of_all_runs(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 6: what a crawl's hosts have is of this run, and adds up to that"""
    linked(site, 5, "/slow")
    site.reply("/slow", hang())
    shell("crawl", site.url("/"), "--limit", "2", "--job", "mine")
    first, once = shell("top", "--json").json["crawls"][0], shell("top").out
    process = shell.start("crawl", site.url("/"), "--job", "mine")
    block_until(lambda: shell("top", "--json").json["crawls"][0]["pages"] == 6, process)

    [crawl], table = shell("top", "--json").json["crawls"], shell("top").out
    process.kill()
    process.communicate()

    assert (first["pages"], first["pages_before"]) == (2, None)
    assert shlex.split(first["command"])[-6:] == ["crawl", site.url("/"), "--limit", "2", "--job", "mine"]
    assert "this run" not in once
    snapshot(line_with(once, " jobs show "))
    assert (crawl["pages"], crawl["pages_before"]) == (6, 2)
    assert sum(host["pages"] for host in crawl["hosts"]) == crawl["pages"] - crawl["pages_before"]
    titles, cells = (re.split(r"\s{2,}", line_with(table, start)) for start in ("crawl  ", "mine  "))
    row = dict(zip(titles, cells, strict=False))
    assert row["state"] in ("running", "waiting")
    assert (row["pages"], row["this run"]) == ("6", "4")


def test_a_warning_does_not_disturb_the_picture_and_is_not_lost(shell: Shell, snapshot: Snapshot) -> None:
    """N1, Issue 6: it stands below the title, and is said when the screen is free again"""
    if reason := redis_available():
        pytest.skip(reason)
    leader, follower = pty.openpty()
    lines = 20
    with RedisServer() as server:
        process: Process[bytes] = Process(
            "curtsy.cli", "top", "--every", "50ms", "--store", server.url, text=False, cwd=shell.project,
            env={**shell.env, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": str(lines)},
            stdin=follower, stdout=follower, stderr=follower,
        )  # fmt: skip
        os.close(follower)
        shown = b""
        while shown.count(b"\x1b[H") < 3:  # before the second the screen is made ready
            shown += os.read(leader, 65536)
        server.command("SET", "curtsy:{host:broken.example}", "no record")
        while shown.count(b"broken.example") < 3:
            shown += os.read(leader, 65536)

        os.write(leader, b"q")
        try:
            while piece := os.read(leader, 65536):
                shown += piece
        except OSError:  # on Linux the end of a terminal is an error
            pass
    os.close(leader)
    process.wait(120)

    view, _, after = shown.decode().partition("\x1b[?1049l")
    frames = view.split("\x1b[H")[2:]  # before the second the screen is made ready
    warning, times, _ = re.split(r"\s+\((\d+) times\)\s*", re.sub(r"\s+", " ", uncoloured(after)).lstrip())
    assert warning.startswith("curtsy: warning: ")
    assert warning.count("'host:broken.example'") == 1
    snapshot(warning)
    assert int(times) > 1
    assert {frame.count("\n") for frame in frames} == {lines - 1}
    assert uncoloured(frames[-1]).splitlines()[1].startswith(warning[:60])


def test_nothing_known_and_a_store_that_cannot_be_read_are_told(shell: Shell, snapshot: Snapshot) -> None:
    """U16"""
    nothing = shell("top")
    broken = shell("top", "--store", "sqlite:////proc/nowhere/state.sqlite")

    assert nothing.code == 0
    snapshot(nothing.out)
    assert (broken.code, broken.out) == (1, "")
    assert "/proc/nowhere" in broken.err

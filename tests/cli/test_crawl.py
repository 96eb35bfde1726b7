"""`curtsy crawl`, as a process, against a real site."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import threading
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from curtsy.core.time import span
from curtsy.crawling.crawler import GRACE
from tests.cli.crawling import line_with, linked, numbers, reasons_in, told
from tests.cli.documented import FIELDS
from tests.cli.shell import Shell, stop
from tests.crawling.test_workers import workers
from tests.support.bounds import ends_within
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, lives, redis_available
from tests.support.site import Reply, Site, Visit, closed_port, hang
from tests.support.snapshot import Snapshot

SLOWLY = {"CURTSY_PAUSE_MIN": "0.2", "CURTSY_PAUSE_MAX": "0.3"}
"""Slow enough that a signal comes in the middle."""


def pages_of(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text().splitlines()]


def test_links_are_followed_and_what_was_left_alone_is_told_with_its_reason(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """Q9, U14, R1: every reason in words, with a URL and what to do; nothing on standard output"""
    linked(site, 3, "/private/a", "/private/b", "/missing", "/file.pdf", "https://elsewhere.example/")

    done = shell.cold("crawl", site.url("/"), "--out", "pages", "--skipped", "skipped.csv")

    assert (done.code, done.out) == (0, "")
    assert sorted(site.paths()) == ["/", "/missing", "/p/0", "/p/1", "/p/2", "/robots.txt"]
    parts = dict(zip(("plan", "left alone", "failed", "left out", "end"), done.err.split("\n\n"), strict=True))
    assert [(count, url) for count, _, url in reasons_in(done.err)] == [
        (2, site.url("/private/a")), (1, site.url("/missing")), (1, site.url("/file.pdf")),
        (1, "https://elsewhere.example/"),
    ]  # fmt: skip
    assert '"Disallow: /private/"' in line_with(done.err, "line 2")
    assert "4 pages" in parts["end"]
    for name, part in parts.items():
        snapshot(part, name)
    assert len([path for path in (shell.project / "pages").rglob("*") if path.suffix == ".html"]) == 4
    assert "robots_disallowed" in (shell.project / "skipped.csv").read_text()
    assert "\x1b" not in done.err


def test_the_summary_is_one_json_document_if_wanted(shell: Shell, site: Site) -> None:
    """U14: `--json` has what its reference says, and standard output has nothing else"""
    linked(site, 3, "/private/a")

    words = ("crawl", site.url("/"), "--json", "--jsonl", "pages.jsonl", "--job", "j", "--limit")
    done = shell(*words, "2")

    found = done.json
    assert done.code == 0
    assert set(found) == FIELDS["crawl"]
    assert (found["ended"], found["fetched"], found["queued"]) == ("max_pages", 2, 3)
    assert found["outputs"] == {"jsonl": "pages.jsonl"}
    assert shlex.split(found["resume"]) == ["curtsy", *words, "4"]


def test_pages_go_to_standard_output_as_lines_and_nothing_else_does(shell: Shell, site: Site) -> None:
    """Q9: `--jsonl -`; URLs from a file and from standard input; options that say where links may lead"""
    linked(site, 4)
    site.page("/docs/", "<title>Docs</title><a href='a'>a</a><a href='/'>home</a>")
    site.page("/docs/a", "<title>A</title><main>Text</main>")
    (shell.project / "seeds.txt").write_text(f"# docs\n{site.url('/docs/')}\n")

    done = shell("crawl", "-i", "seeds.txt", "--scope", "prefix", "--jsonl", "-", "--main-text", "plain")
    some = shell("crawl", "-", "--jsonl", "-", "--skip", "/p/[12]", "--max-depth", "1", stdin=site.url("/"))

    assert [(line["url"], line["title"]) for line in done.lines] == [
        (site.url("/docs/"), "Docs"), (site.url("/docs/a"), "A")
    ]  # fmt: skip
    assert done.lines[1]["main_text"] == "Text"
    assert {line["url"] for line in some.lines} == {site.url(path) for path in ("/", "/p/0", "/p/3")}
    [count] = [count for count, what, _ in reasons_in(some.err) if "--skip" in what]
    assert count == 2


@pytest.mark.parametrize(
    ("number", "workers"), [(signal.SIGINT, ()), (signal.SIGTERM, ()), (signal.SIGINT, ("--workers", "2"))]
)
def test_a_signal_stops_it_in_good_order_and_the_same_command_goes_on(
    shell: Shell, site: Site, number: signal.Signals, workers: tuple[str, ...]
) -> None:
    """U17, F46: exit 130, state kept, and by the site's journal nothing is fetched twice"""
    linked(site, 30)
    words = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl", *workers)
    process = shell.start(*words, **SLOWLY)
    block_until(lambda: site.count() > 6, process)

    stopped = stop(process, number)
    before, kept = site.count(), len(pages_of(shell.project / "pages.jsonl"))
    resumed = shell(*words)

    *_, going_on, command = stopped.err.splitlines()
    assert (stopped.code, stopped.out) == (130, "")
    assert "stopping" in stopped.err
    assert numbers(going_on) == [31 - kept]
    assert command == f"  {shlex.join(('curtsy', *words))}"
    assert before < 32
    assert resumed.code == 0
    assert numbers(line_with(resumed.err, " mine")) == [kept, 31 - kept]
    assert max(Counter(site.paths()).values()) == 1
    found = pages_of(shell.project / "pages.jsonl")
    assert len(found) == len(set(found)) == 31


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["", "two workers"])
def test_a_second_signal_ends_it_at_once_and_loses_nothing(
    shell: Shell, site: Site, snapshot: Snapshot, workers: tuple[str, ...]
) -> None:
    """F46: what was under way is fetched by the next run; without a job it is said that nothing is kept"""
    linked(site, 2, "/slow")
    site.reply("/slow", hang())
    words = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl", *workers)
    process = shell.start(*words)
    block_until(lambda: bool(site.count("/slow")), process)

    process.send_signal(signal.SIGINT)
    snapshot(told(process, "stopping"), "stopping")
    with ends_within(GRACE - 1):
        done = stop(process)
    site.page("/slow", "<title>At last</title>")
    resumed = shell(*words)

    assert done.code == 130
    assert resumed.code == 0
    going_on = line_with(resumed.err, " mine")
    assert numbers(going_on) == [3, 1]
    snapshot(going_on, "going on")
    assert site.url("/slow") in pages_of(shell.project / "pages.jsonl")
    assert len(pages_of(shell.project / "pages.jsonl")) == 4


def test_a_signal_ends_a_crawl_with_a_worker_that_stands_still(shell: Shell, site: Site) -> None:
    """Issue 17: in good order and in time; the worker is not left behind, and nothing is lost"""
    linked(site, 2, "/slow")
    site.reply("/slow", hang())
    words = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl", "--workers", "2")
    process = shell.start(*words, CURTSY_TIMEOUT="2")  # the slot of a worker that was killed is held for so long
    block_until(lambda: bool(site.count("/slow")), process)
    crew = workers(process.pid)
    for each in crew:
        os.kill(each, signal.SIGSTOP)

    process.send_signal(signal.SIGTERM)
    told(process, "stopping")
    done = stop(process)
    site.page("/slow", "<title>At last</title>")
    resumed = shell(*words)

    assert (done.code, len(crew)) == (130, 2)
    assert done.err.endswith(f"\n  {shlex.join(('curtsy', *words))}\n"), "it says how to resume"
    block_until(lambda: not any(map(lives, crew)))
    assert resumed.code == 0
    found = pages_of(shell.project / "pages.jsonl")
    assert len(found) == len(set(found)) == 4


def test_a_crawl_whose_server_was_emptied_ends_and_says_what_to_do(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """Issue 17: its pages stay in its outputs, and no worker is left behind"""
    if reason := redis_available():
        pytest.skip(reason)
    linked(site, 30)
    with RedisServer() as server:
        words = ("crawl", site.url("/"), "--job", "mine", "--store", server.url, "--workers", "2")
        process = shell.start(*words, "--jsonl", "pages.jsonl", **SLOWLY)
        block_until(lambda: site.count() > 6, process)
        crew = workers(process.pid)
        server.restart()
        _, err = process.communicate(timeout=60)
        again = shell(*words, "--jsonl", "others.jsonl")

    assert process.returncode == 78
    snapshot(re.sub(r"127\.0\.0\.1:\d+", "SERVER", line_with(err.decode(), "does not have the job")), "gone")
    assert pages_of(shell.project / "pages.jsonl")
    assert len(crew) == 2
    block_until(lambda: not any(map(lives, crew)))
    assert (again.code, len(pages_of(shell.project / "others.jsonl"))) == (0, 31)


@pytest.mark.soak
def test_a_crawl_whose_workers_die_all_the_time_ends_and_the_same_command_resumes_it(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """Issue 17: it does not start workers for ever"""
    hosts = [f"127.0.0.{number}" for number in range(1, 13)]
    is_well = threading.Event()
    site.reply("/robots.txt", Reply(404))

    def answer(_: Visit) -> Reply:
        for pid in [] if is_well.is_set() else workers(process.pid):
            os.kill(pid, signal.SIGKILL)
        return Reply(body="<title>At last</title>", headers={"Content-Type": "text/html"})

    site.on("/poison", answer)
    words = ("crawl", *(site.url("/poison", host=host) for host in hosts), "--job", "mine", "--jsonl", "pages.jsonl",
             "--workers", "2")  # fmt: skip
    process = shell.start(*words, CURTSY_TIMEOUT="2")
    out, err = process.communicate(timeout=240)
    is_well.set()
    resumed = shell(*words)

    assert (process.returncode, out) == (75, b"")
    snapshot(line_with(err.decode(), "Stopped: "))
    assert resumed.code == 0
    given_up = [line for line in resumed.err.splitlines() if "reader_crashed" in line]
    found = pages_of(shell.project / "pages.jsonl")
    assert len(found) == len(set(found)) >= len(hosts) - 8, given_up


def test_without_a_job_it_is_said_that_nothing_is_kept(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """U17"""
    linked(site, 30)
    process = shell.start("crawl", site.url("/"), "--no-job", **SLOWLY)
    block_until(lambda: site.count() > 4, process)

    done = stop(process)

    assert (done.code, shell("jobs", "ls", "--json").json) == (130, [])
    said = line_with(done.err, "--no-job")
    assert said == done.err.splitlines()[-1]
    snapshot(said)


@pytest.mark.parametrize(
    ("path", "code", "why"),
    [("/private/a", 3, "robots.txt"), ("/missing", 22, "404"), ("/broken", 22, "500")],
)
def test_the_exit_code_says_why_nothing_came(
    shell: Shell, site: Site, path: str, code: int, why: str, snapshot: Snapshot
) -> None:
    """conventions: 3 refused by manners, 22 the only URL answered with an error"""
    site.reply("/broken", Reply(500))

    done = shell("crawl", site.url(path), CURTSY_MAX_RETRIES="0", CURTSY_BREAKER="false")

    assert (done.code, done.out) == (code, "")
    [(count, what, url)] = reasons_in(done.err)
    assert (count, url) == (1, site.url(path))
    assert why in what
    snapshot(what)


def test_a_site_that_is_not_there_is_an_error(shell: Shell, snapshot: Snapshot) -> None:
    """conventions: 1, and 75 if its breaker says when to come back"""
    with closed_port() as port:
        gone = shell("crawl", f"http://127.0.0.1:{port}/", CURTSY_MAX_RETRIES="0", CURTSY_RESPECT_ROBOTS="false")

    assert (gone.code, gone.out) == (1, "")
    [(count, what, url)] = reasons_in(gone.err)
    assert (count, url) == (1, f"http://127.0.0.1:{port}/")
    snapshot(what)


def test_a_spent_budget_ends_it_and_it_says_when_to_go_on(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """B2, conventions: 75; the URLs stay in the job, and are no failures"""
    linked(site, 9)

    done = shell(
        "crawl", site.url("/"), "--job", "mine", "--patience", "1ms", "--json", CURTSY_MAX_REQUESTS_PER_DAY="4"
    )

    assert done.code == 75
    assert site.count() == 4
    assert (done.json["ended"], done.json["fetched"], done.json["queued"]) == ("later", 3, 7)
    assert done.json["resume_in"] > 0
    *_, going_on, command = done.err.splitlines()
    when = span(done.json["resume_in"])
    assert when in going_on
    assert numbers(going_on.replace(when, "TIME")) == [7]
    assert command == f"  {done.json['resume']}"
    snapshot(going_on.replace(when, "TIME"))


def test_a_dry_run_asks_for_nothing_but_the_rules(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 6: plan, scope, the verdict on each URL with its line; sitemaps only if wanted; no job is begun"""
    linked(site, 3)
    listed = "".join(f"<url><loc>{site.url(path)}</loc></url>" for path in ("/", "/p/1", "/x.pdf"))
    site.page("/sitemap.xml", f"<urlset>{listed}</urlset>", content_type="application/xml")

    plain = shell.cold("crawl", site.url("/"), "--limit", "9", "--dry-run", "--job", "mine")
    asked = site.paths()
    full = shell("crawl", site.url("/"), site.url("/private/a"), "--sitemaps", "--dry-run", "--json")
    refused = shell("crawl", site.url("/private/a"), "--dry-run")

    assert plain.code == 0
    assert asked == ["/robots.txt"]
    assert plain.out.startswith(f"✓ {site.url('/')}\n")
    assert f"127.0.0.1:{site.port}" in line_with(plain.out, "scope ")
    assert numbers(line_with(plain.out, "plan ")) == [9]
    snapshot(plain.out)
    assert not (shell.home / "state" / "curtsy" / "jobs").exists()
    assert set(full.json) == FIELDS["crawl --dry-run"]
    assert [seed["verdict"] for seed in full.json["seeds"]] == ["allowed", "refused"]
    [sitemap] = full.json["sitemaps"]
    assert (sitemap["urls"], sitemap["in_scope"], sitemap["left_out"]) == (3, 2, {"file_type": 1})
    assert full.code == 0
    assert (refused.code, site.paths()) == (3, ["/robots.txt", "/sitemap.xml"])
    [robots] = [check for check in full.json["seeds"][1]["checks"] if check["name"] == "robots.txt"]
    assert (robots["state"], robots["line"], robots["rule"]) == ("no", 2, "Disallow: /private/")
    shown = line_with(refused.out, "✗  robots.txt")
    assert "line 2" in shown
    assert '"Disallow: /private/"' in shown


def test_a_dry_run_shows_how_far_a_job_is(shell: Shell, site: Site) -> None:
    """Issue 6: the queue of an existing job, by counts"""
    linked(site, 5)
    shell("crawl", site.url("/"), "--job", "mine", "--limit", "2")

    done = shell("crawl", site.url("/"), "--job", "mine", "--dry-run", "--json")

    assert done.json["job"]["pages"] == 2
    assert done.json["job"]["counts"]["queued"] == 4


def test_what_cannot_be_meant_is_said_with_what_was_perhaps_meant(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """conventions: 2 for the command line, 78 for the settings; nothing is asked"""
    url = site.url("/")
    wrong = {
        ("--limt", "5"): ("--limt", "--limit"),
        ("--depth", "1"): ("--depth", "--max-depth"),
        ("--concurrency", "5"): ("--concurrency", "--max-in-flight"),
        ("--rate", "1"): ("--rate", "qps", "CURTSY_QPS"),
        ("--match", "("): ("match", "'('"),
        ("--scope", "domains"): ("scope", "domains"),
        ("--scope", "sites"): ("--scope", "'sites'", "'site'"),
        ("--job", "a b"): ("--job", "'a b'"),
        ("--restart", "--no-job"): ("--restart", "--job", "--no-job"),
        ("--json", "--jsonl", "-"): ("--json ", "--jsonl", "standard output"),
        ("--max-time", "soon"): ("--max-time", "'soon'", "1h30m"),
        ("--body", "text"): ("--body", "--jsonl"),
        ("--max-pages", "0"): ("'--max-pages': 0",),
        ("--limit", "0"): ("'--max-pages': 0",),
    }

    found = {words: shell("crawl", url, *words) for words in wrong}
    nothing, no_url = shell("crawl"), shell("crawl", "ftp://example.org/")
    settings = shell("crawl", url, CURTSY_QPS="-1")

    assert {words: (done.code, done.out) for words, done in found.items()} == dict.fromkeys(wrong, (2, ""))
    for words, data in wrong.items():
        said, _ = found[words].err.splitlines()
        assert [each for each in data if each not in said] == []
        snapshot(said, " ".join(words))
    assert (nothing.code, no_url.code, settings.code) == (2, 2, 78)
    assert "CURTSY_QPS" in settings.err
    assert site.journal == []


def test_a_job_belongs_to_one_process_and_the_second_is_told_whose_it_is(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """F42: exit 75, and the first goes on undisturbed"""
    linked(site, 2, "/slow")
    site.reply("/slow", hang())
    process = shell.start("crawl", site.url("/"), "--job", "mine")
    block_until(lambda: bool(site.count("/slow")), process)

    second = shell("crawl", site.url("/"), "--job", "mine")
    process.kill()
    process.communicate()

    assert (second.code, second.out) == (75, "")
    assert " mine " in second.err
    assert f"process {process.pid}." in second.err
    assert "frontier.sqlite" not in second.err
    assert "curtsy jobs show mine " in second.err
    snapshot(second.err)
    assert site.count("/") == 1


def test_a_job_on_redis_is_joined_by_the_second(shell: Shell, site: Site) -> None:
    """Issue 5: many machines, one job; no page twice"""
    if reason := redis_available():
        pytest.skip(reason)
    linked(site, 16)
    with RedisServer() as server:
        words = ("crawl", site.url("/"), "--job", "mine", "--store", server.url)
        process = shell.start(*words, **SLOWLY)
        block_until(lambda: site.count() > 4, process)
        second = shell(*words, "--json", XDG_STATE_HOME=str(shell.home / "other"), **SLOWLY)
        listed = shell("jobs", "ls", "--json", "--store", server.url)
        shown = shell("jobs", "show", "mine", "--store", server.url)
        first = process.communicate(timeout=120)
        removed = shell("jobs", "rm", "mine", "--yes", "--store", server.url)
        left = shell("jobs", "ls", "--json", "--store", server.url)

    assert (process.returncode, second.code) == (0, 0), first
    assert sum(numbers(line_with(second.err, " mine"))) == 17
    assert second.json["queued"] == 0
    assert site.count() == 17 + site.count("/robots.txt")
    assert max(Counter(path for path in site.paths() if path != "/robots.txt").values()) == 1
    assert [(job["name"], job["is_shared"]) for job in listed.json] == [("mine", True)]
    assert shown.code == 0
    assert (removed.code, left.json) == (0, [])


def test_a_state_directory_that_cannot_be_used_stops_a_job_and_nothing_else(shell: Shell, site: Site) -> None:
    """U16: limits hold in memory; a job that was named has to be kept, so that is an error in a sentence"""
    linked(site, 2)
    Path(shell.env["XDG_STATE_HOME"]).write_text("a file where a directory should be")

    without, with_job = shell("crawl", site.url("/"), "--jsonl", "-"), shell("crawl", site.url("/"), "--job", "mine")

    assert (without.code, len(without.lines)) == (0, 3)
    assert (with_job.code, with_job.out) == (1, "")
    assert str(shell.env["XDG_STATE_HOME"]) in with_job.err
    assert "Traceback" not in with_job.err


def test_an_output_that_is_there_already_is_left_as_it_is(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """F40: nothing of somebody else's is overwritten"""
    (shell.project / "pages.jsonl").write_text("mine\n")

    done = shell("crawl", site.url("/"), "--jsonl", "pages.jsonl")

    assert done.code == 74
    snapshot(line_with(done.err, str(shell.project / "pages.jsonl")))
    assert (shell.project / "pages.jsonl").read_text() == "mine\n"
    assert site.journal == []


def test_an_output_that_is_not_named_again_is_told(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 6: pages would be missing there unsaid"""
    linked(site, 4)
    shell("crawl", site.url("/"), "--job", "mine", "--limit", "2", "--jsonl", "a.jsonl")

    other = shell("crawl", site.url("/"), "--job", "mine", "--limit", "3", "--jsonl", "b.jsonl")
    fresh = shell("crawl", site.url("/"), "--job", "mine", "--restart", "--limit", "2", "--json")

    snapshot(json.loads(line_with(other.err, str(shell.project / "a.jsonl")))["msg"])
    assert (fresh.code, fresh.json["total"]) == (0, 2)
    assert "a.jsonl" not in fresh.err
    assert line_with(fresh.err, " mine") == f"  {fresh.json['resume']}"  # and no word of an earlier run


def test_a_narrow_terminal_is_kept_to_and_nothing_of_the_view_stays(shell: Shell, site: Site) -> None:
    """Issue 6: a live view on a terminal, however narrow"""
    linked(site, 5, "/private/a")

    done = shell.on_terminal("crawl", site.url("/"), columns=50, **SLOWLY)

    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.out)
    lines = [line for part in text.split("\n") for line in part.split("\r") if "http://" not in line]
    assert done.code == 0
    assert "next in" in text
    assert max(map(len, lines)) <= 50
    assert [(count, url) for count, _, url in reasons_in(text)] == [(1, site.url("/private/a"))]
    assert text.rstrip().splitlines()[-1].startswith(("curtsy:", "  "))


def test_metrics_are_served_while_it_runs(shell: Shell, site: Site) -> None:
    """Q10: `--metrics-port`"""
    linked(site, 2, "/slow")
    site.reply("/slow", hang())
    process = shell.start("crawl", site.url("/"), "--metrics-port", "0")
    line = told(process, "/metrics")
    block_until(lambda: bool(site.count("/slow")), process)

    with urllib.request.urlopen(line.split()[-1].rstrip("."), timeout=10) as answer:
        text = answer.read().decode()
    process.kill()
    process.communicate()

    assert "curtsy_" in text


def test_the_command_that_goes_on_is_never_broken_however_narrow_the_terminal(shell: Shell, site: Site) -> None:
    """U14: it is to be copied, and a shell would run the first half of it"""
    linked(site, 3)
    words = ("crawl", site.url("/"), "--job", "a-name-that-is-rather-long", "--jsonl", "pages.jsonl", "--limit")

    done = shell.on_terminal(*words, "2", columns=50)

    assert done.code == 0
    assert f"  {shlex.join(('curtsy', *words, '4'))}" in done.out.splitlines()


def test_a_job_that_has_nothing_left_starts_anew_and_says_so(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """U14: who has changed a setting since would wonder why nothing comes of it"""
    linked(site, 2)
    words = ("crawl", site.url("/"), "--job", "mine", "--jsonl", "pages.jsonl")
    refused = shell(*words, CURTSY_ALLOW_PRIVATE=None)
    allowed = shell(*words)

    pages = len(pages_of(shell.project / "pages.jsonl"))
    again = shell(*words)

    assert refused.code == 3
    assert "--allow-private" in refused.err
    assert (allowed.code, pages) == (0, 3)
    assert "starts anew" in line_with(allowed.err, " mine ")
    said = line_with(again.err, " mine ")
    assert len(pages_of(shell.project / "pages.jsonl")) == 6
    snapshot(said)


def test_an_archive_is_named_as_its_files_are(shell: Shell, site: Site) -> None:
    """U14: `site.warc.gz` itself is never there, for its files have numbers"""
    linked(site, 1)

    pressed = shell("crawl", site.url("/"), "--warc", "site.warc.gz", "--refresh")
    plain = shell("crawl", site.url("/"), "--warc", "plain.warc", "--refresh")

    assert " site-*.warc.gz" in pressed.err
    assert " plain-*.warc" in plain.err
    assert [path.name for path in shell.project.glob("site-*.warc.gz")] == ["site-00001.warc.gz"]
    assert [path.name for path in shell.project.glob("plain-*.warc")] == ["plain-00001.warc"]


def test_a_site_that_is_down_is_named_at_the_end_with_what_is_wrong_with_it(shell: Shell, snapshot: Snapshot) -> None:
    """U14: what is left waits for it, and nobody should have to guess why"""
    with closed_port() as port:
        done = shell("crawl", f"http://127.0.0.1:{port}/", "--patience", "1s", CURTSY_BREAKER_FAILURES="2")

    assert done.code == 75
    lines = done.err.splitlines()
    why = lines[lines.index(f"        127.0.0.1:{port}") + 1]
    assert "connection refused" in why
    assert re.search(r"\d (s|min)\b", why)

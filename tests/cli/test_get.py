"""`curtsy get`, as a process, against a real site."""

from __future__ import annotations

import itertools
import json
import re
import signal
from datetime import datetime, timedelta

import pytest

from curtsy.cli.context import MAX_OUTAGE
from tests.cli.documented import FIELDS
from tests.cli.shell import Shell, stop
from tests.support.bounds import Lateness, ends_within
from tests.support.certificates import Authority
from tests.support.polling import block_until
from tests.support.redis_server import RedisServer, redis_available
from tests.support.site import Reply, Site, closed_port, hang, later, redirect
from tests.support.snapshot import Snapshot


def test_the_body_goes_to_standard_output_and_nothing_else(shell: Shell, site: Site) -> None:
    """Q9: every request through the limiter; data on standard output"""
    done = shell.cold("get", site.url("/"))

    assert (done.code, done.out, done.err) == (0, "<title>Home</title>\n", "")
    assert site.paths() == ["/robots.txt", "/"]
    assert (site.visits("/")[0].header("User-Agent") or "").startswith("curtsy/")


def test_a_store_that_does_not_answer_is_told_soon_and_the_command_ends_in_time(shell: Shell, site: Site) -> None:
    """Issue 17, 1: a warning after a second, and the exit code for later; after 60 s if the settings say nothing"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server, ends_within(20):
        server.pause()
        done = shell("get", site.url("/"), CURTSY_STORE=f"{server.url}?timeout=1.5", CURTSY_MAX_OUTAGE="0.5")

    warnings = [json.loads(line) for line in done.err.splitlines()[:2]]
    first, second = (datetime.fromisoformat(each["ts"]) for each in warnings)
    assert (done.code, done.out, site.journal) == (75, "", [])
    assert all("does not answer" in each["msg"] for each in warnings)
    assert timedelta(seconds=0.1) < second - first, "the first comes before the timeout of the store"
    assert MAX_OUTAGE == 60


def test_the_last_line_of_a_deadline_in_an_outage_names_the_store(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Issue 18: it named the pace of the host; the exit code is that of a temporary error"""
    if reason := redis_available():
        pytest.skip(reason)
    with RedisServer() as server, ends_within(20):
        server.pause()
        done = shell("get", site.url("/"), "--deadline", "1s", CURTSY_STORE=f"{server.url}?timeout=0.3")

    assert (done.code, done.out, site.journal) == (75, "", [])
    snapshot(done.err.splitlines()[-1])


def test_each_step_is_told_when_asked_for_and_why_the_first_page_takes_a_moment(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """N1, P1: `-v` on standard error: robots.txt, the wait and what for, attempts, redirects, the cache"""
    site.reply("/old", redirect("/new"))
    site.script("/new", [Reply(503), Reply(200, "new\n")])

    done = shell("get", "-v", "--no-cache", site.url("/old"), CURTSY_PAUSE_MIN="0.8", CURTSY_PAUSE_MAX="0.9")

    assert (done.code, done.out) == (0, "new\n")
    assert not (shell.home / "cache").exists()
    steps = [line.partition("] ")[2] for line in done.err.splitlines()]
    asked = [step.split()[1].rpartition("/")[2] for step in steps if step.startswith("GET ")]
    assert asked == ["robots.txt", "old", "new", "new"]
    pauses = [step for step in steps if "0.8 to 0.9" in step]
    [again] = [step for step in steps if step.startswith("GET ") and re.search(r"/new\b.*\b2\b", step)]
    assert "robots.txt" in pauses[0]
    assert not any("robots.txt" in pause for pause in pauses[1:])
    assert any(step.startswith("302,") and step.endswith("to /new") for step in steps)
    assert "99 pages" in steps[-1]
    for name, step in (("first pause", pauses[0]), ("again", again), ("end", steps[-1])):
        snapshot(step, name)


def test_several_urls_come_in_order_as_records_and_the_worst_is_the_exit_code(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """U14, N10: one that fails does not stop the others; a summary at the end"""
    (shell.project / "urls.txt").write_text(f"# a list\n\n{site.url('/private/a')}\n{site.url('/missing')}\n")

    done = shell("get", "--json", "-i", "urls.txt", site.url("/"), "-", stdin=site.url("/private/open"))

    records = done.lines
    assert [record["url"] for record in records] == [
        site.url("/"), site.url("/private/open"), site.url("/private/a"), site.url("/missing")
    ]  # fmt: skip
    assert [record["status"] for record in records] == [200, 404, None, 404]
    assert [record["reason"] for record in records] == [None, "http_status", "robots_disallowed", "http_status"]
    assert all(set(record) == FIELDS["get"] for record in records)
    assert done.code == 22
    assert "robots.txt line 2" in done.err
    summary = done.err.splitlines()[-1]
    assert re.findall(r"\b\d\b", summary)[:5] == ["4", "1", "0", "1", "2"]
    snapshot(summary)


@pytest.mark.parametrize(
    ("path", "code", "says"),
    [
        ("/private/a", 3, '"Disallow: /private/"'),
        ("/missing", 22, "404"),
        ("/busy", 75, "1 h"),
        ("/forbidden", 22, "403"),
    ],
)
def test_the_exit_code_says_what_came_of_it(
    shell: Shell, site: Site, path: str, code: int, says: str, snapshot: Snapshot
) -> None:
    """conventions: 3 refused by manners, 22 the site answered with an error, 75 try again later (says when)"""
    site.reply("/busy", later(3600))
    site.reply("/forbidden", Reply(403))

    done = shell("get", site.url(path))

    assert (done.code, done.out) == (code, "")
    assert says in done.err
    assert site.url(path) in done.err
    snapshot(done.err)


def test_what_cannot_be_asked_is_told_in_a_sentence(shell: Shell, snapshot: Snapshot) -> None:
    """U1, N5: 2 for what is no URL, 1 for a site that is not there"""
    with closed_port() as port:
        gone = shell("get", f"http://127.0.0.1:{port}/", CURTSY_MAX_RETRIES="0")
    invalid = shell("get", "/example.org")
    private = shell("get", "http://127.0.0.1/", CURTSY_ALLOW_PRIVATE=None)

    assert (gone.code, gone.out) == (1, "")
    assert f"http://127.0.0.1:{port}/ " in gone.err
    assert (invalid.code, invalid.out) == (2, "")
    assert "'/example.org'" in invalid.err
    assert "https://" in invalid.err
    assert (private.code, private.out) == (3, "")
    assert "127.0.0.1" in private.err
    assert "--allow-private" in private.err
    for name, done in (("gone", gone), ("invalid", invalid), ("private", private)):
        snapshot(done.err, name)


def test_the_time_of_the_next_try_is_told_once(shell: Shell) -> None:
    """N5: a failure opens the breaker, so the time is known"""
    with closed_port() as port:
        done = shell("get", f"http://127.0.0.1:{port}/")

    assert done.code == 75
    assert done.err.count("Try again") == done.err.count("Try again in ") == 1


@pytest.mark.parametrize("words", [("get",), ("crawl",), ("why",)], ids=lambda words: words[0])
def test_a_scheme_without_its_colon_is_no_host(shell: Shell, words: tuple[str, ...]) -> None:
    """U1: it would be a host with the name http"""
    done = shell(*words, "http//example.org/")

    assert done.code == 2
    assert "no scheme" in done.err


@pytest.mark.parametrize("command", ["get", "download"])
def test_a_file_that_is_replaced_is_told(shell: Shell, site: Site, snapshot: Snapshot, command: str) -> None:
    """Issue 18: as curl -o and wget -O do, but with a word"""
    site.page("/a", "new")
    site.reply("/missing", Reply(404))
    words = (command, "--no-cache") if command == "get" else (command,)

    first = shell(*words, site.url("/a"), "-o", "file")
    (shell.project / "file").write_text("old")
    failed = shell(*words, site.url("/missing"), "-o", "file")
    between = (shell.project / "file").read_text()
    again = shell(*words, site.url("/a"), "-o", "file")

    assert (first.code, failed.code, again.code) == (0, 22, 0)
    assert (between, (shell.project / "file").read_text()) == ("old", "new")
    assert (len(again.err) > len(first.err), "file" in again.err) == (True, True)
    snapshot(again.err)


COMMANDS = (("get",), ("crawl",), ("why", "--ask"), ("robots",), ("download", "-o", "x"))
"""Commands that take a URL."""


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_bare_host_means_https_unless_http_is_allowed_and_https_cannot_be_connected(
    shell: Shell, site: Site, words: tuple[str, ...]
) -> None:
    """U1: the same rule for each command and each host; a connection that fails is not charged"""
    bare = f"localhost:{site.port}/"

    refused = shell(*words, bare)
    before = site.count()
    done = shell(*words, bare, "--allow-http")

    assert (refused.code != 0, before) == (True, 0)
    assert f"https://{bare}" in refused.out + refused.err
    assert done.code == 0
    assert done.err.count(f"https://localhost:{site.port} cannot be connected: using http.") == 1
    assert site.paths()[0] == "/robots.txt"
    [host] = shell("status", "--json").json
    assert host["failures"] == 0


def test_a_bare_host_with_tls_is_fetched_by_it(shell: Shell) -> None:
    """U1: http is for hosts without https"""
    authority = Authority()
    authority.write(shell.home / "ca.pem")
    with Site(tls=authority.server("good")) as site:
        site.page("/a", "hello")
        given = f"localhost:{site.port}/a\n\n# a list\nlocalhost:{site.port}/a\n"
        env = {"SSL_CERT_FILE": str(shell.home / "ca.pem")}
        got = shell("get", "--allow-http", f"localhost:{site.port}/a", **env)
        crawled = shell("crawl", "--allow-http", "-i", "-", "--jsonl", "-", stdin=given, **env)

        assert (got.code, got.out) == (0, "hello")
        assert [line["url"] for line in crawled.lines] == [site.url("/a", host="localhost")]
        assert "using http" not in got.err + crawled.err


def test_tls_with_a_plain_port_is_our_mistake_and_not_held_against_the_host(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """U6: it answers, so it is well; what is asked counts, so that nobody asks for ever"""
    url = site.url("/", scheme="https")
    tries = [shell("get", url) for _ in range(4)]
    crawl = shell("crawl", url)

    [host] = shell("status", "--json").json
    right = shell("get", site.url("/"))

    assert {done.code for done in tries} == {1}
    assert all("TLS" in done.err for done in (*tries, crawl))
    assert "http://" in tries[-1].err
    snapshot(tries[-1].err)
    assert (host["breaker"], host["failures"], host["trips"]) == ("closed", 0, 0)
    assert host["requests_today"] == 6  # one was for robots.txt
    assert (right.code, right.out) == (0, "<title>Home</title>\n")


def test_a_file_is_written_whole_or_left_as_it_was(shell: Shell, site: Site) -> None:
    """Q8: `-o`"""
    target = shell.project / "page.html"
    target.write_text("old")

    failed = shell("get", "-o", "page.html", site.url("/missing"))
    kept = target.read_text()
    done = shell("get", "-o", "page.html", "--json", site.url("/"))

    assert (failed.code, kept) == (22, "old")
    assert (done.code, target.read_text()) == (0, "<title>Home</title>\n")
    assert done.lines[0]["ok"] is True
    assert [path.name for path in shell.project.iterdir()] == ["page.html"]


def test_a_file_is_for_one_page(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """Q8: two bodies are no page; what is no file may have them all; a missing folder is made with a word"""
    several = shell("get", "-o", "both.html", site.url("/"), site.url("/"))
    device = shell("get", "-o", "/dev/null", site.url("/"), site.url("/"))
    nowhere = shell("get", "-o", "no/such/page.html", site.url("/"))

    assert (several.code, device.code, nowhere.code) == (2, 0, 0)
    assert "-o " in several.err
    assert "2 URLs" in several.err
    snapshot(several.err, "several")
    snapshot(nowhere.err, "nowhere")
    assert [path.name for path in shell.project.rglob("*")] == ["no", "such", "page.html"]


def test_what_is_too_large_is_told_in_the_words_of_the_command_line(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """U15: the library's own are for programs"""
    site.page("/large", "x" * 5000)

    get = shell("get", site.url("/large"), "--json", CURTSY_MAX_BODY="1000")
    download = shell("download", site.url("/large"), "-o", "large", "--max-size", "1k", "--json")

    assert (get.code, download.code) == (1, 1)
    assert all(word in get.err for word in ("max_body", "curtsy download", "--max-size"))
    assert "--max-size" in download.err
    assert "max_body" not in download.err
    snapshot(get.err, "get")
    snapshot(download.err, "download")
    assert get.lines[0]["message"] in get.err
    assert download.json["message"] in download.err


def test_heads_and_headers_of_ones_own(shell: Shell, site: Site) -> None:
    """U10, F26: `-I` shows the head, `-H` sends more, and what could break the request is refused"""
    done = shell("get", "-I", "-H", "X-Mine: a", "-H", "X-Mine: b", site.url("/"))
    broken = shell("get", "-H", "X-Mine", site.url("/"))

    assert done.code == 0
    assert done.out.startswith("HTTP/1.1 200 OK\n")
    assert 'etag: "1"' in done.out.lower()
    assert (site.visits("/")[0].method, site.visits("/")[0].header("X-Mine")) == ("HEAD", "a, b")
    assert broken.code == 2
    assert '"Name: value"' in broken.err


def test_copies_are_kept_confirmed_and_used_as_asked(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """N6, N11: a second run downloads next to nothing; `--offline`, `--refresh`"""
    site.page("/b", "b\n", headers={"Cache-Control": "max-age=600"})
    first = shell("get", site.url("/"), site.url("/b"))
    second = shell("get", "-v", site.url("/"), site.url("/b"))
    site.clear()
    offline = shell("get", "--json", "--offline", site.url("/"), site.url("/never"))
    asked = site.paths()
    fresh = shell("get", "--refresh", site.url("/"))

    assert first.out == second.out == "<title>Home</title>\nb\n"
    assert "304, 0 B" in second.err
    assert second.err.count("GET ") == 1
    steps = [line.partition("] ")[2] for line in second.err.splitlines()]
    ends = [next(step for step in steps if step.startswith(f"{site.url(path)}: ")) for path in ("/", "/b")]
    snapshot(ends[0], "revalidated")
    snapshot(ends[1], "not asked")
    assert site.url("/robots.txt") in steps[0]
    assert "is known" in steps[0]
    assert [(record["cache"], record["reason"]) for record in offline.lines] == [("hit", None), (None, "not_in_cache")]
    assert (offline.code, asked) == (1, [])
    assert fresh.out == "<title>Home</title>\n"
    assert [(visit.target, visit.header("If-None-Match")) for visit in site.visits()] == [("/", None)]


def test_a_deadline_that_cannot_be_met_is_told_at_once(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """U5: and says when the turn would have come"""
    with ends_within(15, work=2):
        done = shell("get", "--deadline", "5s", site.url("/"), CURTSY_PAUSE_MIN="20", CURTSY_PAUSE_MAX="20")

    assert done.code == 75
    assert "20 s" in done.err
    snapshot(done.err)
    assert site.paths() == ["/robots.txt"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_everything_back(shell: Shell, site: Site, number: signal.Signals) -> None:
    """U17, F46: exit 130, the place at the host is free again, the request stays counted"""
    site.reply("/hang", hang())
    process = shell.start("get", site.url("/hang"))
    block_until(lambda: site.count("/hang"), process)

    done = stop(process, number)

    with shell.store() as store:
        host = store.read(f"host:127.0.0.1:{site.port}")
    assert (done.code, done.out, done.err) == (130, "", "")
    assert host.places == ()
    assert host.days[-1].requests == 2


def test_a_reader_that_has_had_enough_is_no_error(shell: Shell, site: Site) -> None:
    """conventions: a broken pipe is quiet"""
    site.page("/big", "x" * 3_000_000)

    done = shell.bash(f"curtsy get {site.url('/big')} {site.url('/')} | head -c 5")

    assert (done.code, done.out, done.err) == (0, "xxxxx", "")


def test_log_lines_are_for_who_asks(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """N1: JSON lines on standard error, from warn on unless a level is given"""
    quiet = shell("get", site.url("/"), CURTSY_USER_AGENT="nobot/1.0")
    loud = shell("--log-level", "info", "get", "-v", site.url("/?token=s3cret"))

    [line] = quiet.err.splitlines()
    assert json.loads(line)["level"] == "warn"
    assert "user_agent" in line
    snapshot(json.loads(line)["msg"])
    assert '"msg":"Fetched"' in loud.err
    assert "s3cret" not in loud.err


def test_a_terminal_is_shown_what_is_waited_for_and_spared_what_would_upset_it(shell: Shell, site: Site) -> None:
    """N1: progress on a terminal only, and nothing of it stays; binary bodies are not written to it"""
    site.page("/image", b"\x89PNG\0\0")

    page = shell.on_terminal("get", site.url("/"), CURTSY_PAUSE_MIN="0.4", CURTSY_PAUSE_MAX="0.4")
    image = shell.on_terminal("get", site.url("/image"))

    assert page.code == 0
    assert "0.4 s" in page.out
    assert page.out.endswith("<title>Home</title>\n")
    assert image.code == 1
    assert "-o FILE" in " ".join(image.out.split())
    assert "\0" not in image.out


STEERING = "a\x1b[2J\x1b]0;title\x07\x9bb\rc\u202ed\te\nf\n"


def test_a_body_steers_no_terminal_unless_it_is_to_be_raw(shell: Shell, site: Site) -> None:
    """N1: controls are shown as escapes; a pipe or a file gets every byte"""
    site.page("/", STEERING.encode(), content_type="text/plain; charset=utf-8")

    shown = shell.on_terminal("get", site.url("/"))
    raw = shell.on_terminal("get", "--raw", site.url("/"))
    piped = shell("get", site.url("/"))

    assert shown.code == raw.code == piped.code == 0
    assert "a\\x1b[2J\\x1b]0;title\\x07\\x9bb\\x0dc\\u202ed\te\nf\n" in shown.out
    assert "\x1b[2J" not in shown.out
    assert "a\x1b[2J" in raw.out
    assert piped.out == STEERING


@pytest.mark.parametrize(
    "arguments", [("get", "--json"), ("get", "-v"), ("download", "--json", "-o", "file"), ("why",), ("why", "--json"),
                  ("robots",), ("robots", "--json")]
)  # fmt: skip
def test_no_command_shows_the_secret_of_a_url(shell: Shell, site: Site, arguments: tuple[str, ...]) -> None:
    """F62: on standard output or standard error"""
    secret = "?access_token=geheim4711"
    site.robots(f"User-agent: *\nAllow: /\nSitemap: {site.url('/map.xml')}{secret}\n")
    site.page("/page", "x")
    url = site.url(f"/page{secret}").replace("://", "://user:geheim4711@")
    tests = ("--test", f"/page{secret}") if arguments[0] == "robots" else ()

    done = shell(*arguments, url, *tests, "--log-level", "debug")

    assert done.code == 0
    assert "geheim4711" not in done.out + done.err


def test_in_an_outage_a_command_takes_its_share_of_the_global_rate(shell: Shell, site: Site) -> None:
    """B8, F55: 10 a second for five processes are 2 for each"""
    (shell.home / "file").write_text("not a folder")
    store = f"sqlite:///{shell.home}/file/state.sqlite"
    urls = [site.url(f"/{number}") for number in range(3)]

    with Lateness() as late:
        done = shell(
            "get", "--no-cache", "--store", store, *urls,
            CURTSY_GLOBAL_QPS="10", CURTSY_OUTAGE_SHARE="0.2", XDG_RUNTIME_DIR=str(shell.home),
        )  # fmt: skip

    sent = [visit.at for visit in site.journal]
    assert done.code == 22  # the site has no such pages
    assert len(sent) == 4
    assert all(after - before > 0.48 - late.most for before, after in itertools.pairwise(sent[1:]))


def test_the_timeout_of_a_request_is_an_option_of_get_and_crawl(shell: Shell, site: Site) -> None:
    """N9"""
    site.on("/silent", lambda visit: hang())

    for command in (("get",), ("crawl", "--json", "--no-job")):
        done = shell(*command, "--timeout", "0.2s", site.url("/silent"), CURTSY_MAX_RETRIES="0")

        assert "0.2 s" in done.err
        assert done.code == 1
    assert site.count("/silent") == 2

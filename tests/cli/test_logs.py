"""The library's log on the command line: JSON lines, and readable ones on a terminal."""

from __future__ import annotations

import io
import json
import logging
import re
from contextlib import redirect_stderr

import pytest

from curtsy.cli.console import MOST_FIELDS, MOST_HELD, Held, TextHandler, holding_back
from curtsy.system.log import create_logger
from tests.cli.crawling import line_with, linked, numbers
from tests.cli.shell import Shell
from tests.cli.terminal import shown
from tests.support.site import Reply, Site
from tests.support.snapshot import Snapshot

NAMELESS = ("--user-agent", "bot/1.0")
"""No contact: the one warning that every command has."""

WARNING = "curtsy: warning: "
"""How every warning begins on a terminal."""


def told(msg: str, raised: Exception | None = None, /, **fields: object) -> str:
    """What a terminal is told of a warning."""
    stream = io.StringIO()
    record = logging.LogRecord("curtsy.test", logging.WARNING, "", 0, msg, None, None)
    record.fields = fields
    if raised is not None:
        record.exc_info = (type(raised), raised, None)
    TextHandler(stream=stream).emit(record)
    return stream.getvalue()


def test_a_warning_is_a_sentence_on_a_terminal_and_a_json_line_elsewhere(
    shell: Shell, site: Site, snapshot: Snapshot
) -> None:
    """N1"""
    terminal = shell.on_terminal("get", site.url("/"), *NAMELESS, columns=200)
    pipe = shell("get", site.url("/"), *NAMELESS)

    entry = json.loads(pipe.err)
    assert (entry["level"], entry["user_agent"]) == ("warn", "bot/1.0")
    snapshot(entry["msg"])
    assert f"{WARNING}{entry['msg']}  user_agent=bot/1.0\n" in shown(terminal.out, 200)
    assert '"level"' not in terminal.out


def test_whoever_asks_for_a_format_has_it(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """N1: a container with a terminal, say, or a pipe that somebody reads"""
    terminal = shell.on_terminal("get", site.url("/"), *NAMELESS, columns=300, CURTSY_LOG_FORMAT="json")
    pipe = shell("get", site.url("/"), *NAMELESS, CURTSY_LOG_FORMAT="text")
    neither = shell("get", site.url("/"), CURTSY_LOG_FORMAT="xml")

    [line] = [line for line in shown(terminal.out, 300).splitlines() if line.startswith("{")]
    assert pipe.err == f"{WARNING}{json.loads(line)['msg']}  user_agent=bot/1.0\n"
    assert neither.code == 78
    assert [each for each in ("log_format", "'xml'", "auto", "text", "json") if each not in neither.err] == []
    snapshot(neither.err)


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_a_warning_in_the_middle_of_a_crawl_stands_whole_above_the_view(shell: Shell, site: Site, columns: int) -> None:
    """N1, Q10: an alert that comes while the view is drawn again and again; nothing of the view stays"""
    linked(site, 8)
    other = site.url("/", host="127.0.0.2")
    site.reply("/", Reply(403), host="127.0.0.2")

    done = shell.on_terminal(
        "crawl", other, site.url("/"), "--patience", "10s", columns=columns,
        CURTSY_PAUSE_MIN="0.1", CURTSY_PAUSE_MAX="0.1", CURTSY_STATS_EVERY="0.2",
    )  # fmt: skip

    [alert] = shell("status", "--total", "--json").json["alerts"]
    screen = shown(done.out, columns)
    assert "queued" in done.out  # there was a view
    assert "queued" not in screen
    assert max(map(len, screen.splitlines())) <= columns
    words = re.sub(r"\s+", " ", screen)
    assert alert["domains"] == [f"127.0.0.2:{site.port}"]
    assert re.search(rf"{WARNING}(\w+: )?{re.escape(alert['message'])} alert=breaker_open ", words)


def test_a_warning_while_a_fetch_waits_has_a_line_of_its_own(shell: Shell, site: Site, snapshot: Snapshot) -> None:
    """N1, Q10: what is waited for is shown meanwhile, and drawn again and again"""
    site.reply("/", Reply(403), host="127.0.0.2")
    urls = [site.url("/", host="127.0.0.2"), site.url("/"), site.url("/missing")]

    done = shell.on_terminal(
        "get", *urls, "-o", "/dev/null", columns=120,
        CURTSY_PAUSE_MIN="0.7", CURTSY_PAUSE_MAX="0.7", CURTSY_STATS_EVERY="0.3",
    )  # fmt: skip

    screen = shown(done.out, 120)
    assert re.search(rf"127\.0\.0\.1:{site.port}: waiting .*pause", done.out)
    assert f"127.0.0.1:{site.port}: " not in screen
    alert = line_with(screen, "alert=breaker_open", f"127.0.0.2:{site.port}")
    assert alert.startswith(WARNING)
    snapshot(alert)


def test_a_line_has_the_fields_that_say_more_than_the_sentence() -> None:
    """N1"""
    url, sentence = "https://example.org/a", "It fails: a b"

    line = told(sentence, url=url, domain="example.org", why="a b", error="too long", tries=0, status=None, n=1.5)

    assert line == f'{WARNING}{sentence}  url={url} error="too long" n=1.5\n'
    assert told("x", **{f"f{n}": n for n in range(1, 20)}).count("=") == MOST_FIELDS
    assert told("x", hosts=["a", "b"], counts={"a": 1}, ok=True) == f"{WARNING}x  hosts=a,b ok=true\n"


def test_a_line_is_one_line_without_secrets_and_steers_no_terminal() -> None:
    """F62: whatever a site sends"""
    line = told("Broken\x1b[2J\n", url="https://u:pw@example.org/?token=s3cret", title="a\x9b\u202eb\n")
    failed = told("Failed", error := ValueError("no number"))

    assert line.count("\n") == failed.count("\n") == 1
    assert not re.search(r"[\x1b\x9b\u202e]", line)
    assert "s3cret" not in line
    assert "pw" not in line
    assert failed == f'{WARNING}Failed  error="ValueError: {error}"\n'


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    """F32: a host or a URL cannot read as another one"""
    line = told("exa\u200bmple.org", url="https://a\u2066b\xad.org/\ufeff\U000e0041")

    assert line == f"{WARNING}exa\\u200bmple.org  url=https://a\\u2066b\\xad.org/\\ufeff\\U000e0041\n"


def test_what_is_kept_back_is_said_in_order_each_once(snapshot: Snapshot) -> None:
    """N1: with how often it came; beyond a thousand lines the oldest are left out, which is said"""
    held, stream = Held(), io.StringIO()

    for text in ("one\n", "two\n  and more\n", "thr", "ee\n", "one\n"):
        held.write(text)
    latest = held.latest
    with redirect_stderr(stream):
        held.say()
    for number in range(MOST_HELD):
        held.write(f"{number}\n")
    with redirect_stderr(said := io.StringIO()):
        held.say()

    assert latest == "one"
    assert stream.getvalue().splitlines() == ["two", "  and more", "three", "one  (2 times)"]
    lost, *kept = said.getvalue().splitlines()
    assert numbers(lost) == [4]
    assert kept == [str(number) for number in range(MOST_HELD)]
    snapshot(lost)


def test_nothing_is_kept_back_where_there_is_no_terminal() -> None:
    """N1: `curtsy top 2>file`"""
    with redirect_stderr(io.StringIO()) as stream, holding_back() as held:
        told_to = create_logger("test")
        told_to.warn("hello")
        written = stream.getvalue()

    assert "hello" in written
    assert held.latest == ""
    assert stream.getvalue() == written


def test_a_json_line_is_one_line_and_steers_no_terminal_either() -> None:
    """N1: U+009B is the beginning of an escape in one character, and JSON may hold it as it is"""
    said = "\x1b[2J\x9b2J\x85\u2028\u202e\u200b\U000e0041ö …"
    stream = io.StringIO()

    create_logger("test", stream=stream).warn(said, title=said)

    line = stream.getvalue()
    assert len(line.splitlines()) == 1
    assert set(line) - set("ö…\n") <= set(map(chr, range(32, 127)))
    entry = json.loads(line)
    assert (entry["msg"], entry["title"]) == (said, said)

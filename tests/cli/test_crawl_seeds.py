"""Seeds of `curtsy crawl` from a file or a pipe: read while it runs."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cli.shell import Done, Shell
from tests.crawling.web import html
from tests.support.bounds import ends_within
from tests.support.polling import block_until
from tests.support.site import Site
from tests.support.snapshot import Snapshot
from tests.support.warm import Process

PLAIN = {"CURTSY_STORE": "memory:", "CURTSY_MAX_PAGES_PER_DAY": "0", "CURTSY_MAX_REQUESTS_PER_DAY": "0"}


def piped(shell: Shell, *words: object) -> Process[bytes]:
    """Start `curtsy crawl -i -` with a pipe that stays open."""
    pipe = subprocess.PIPE
    return Process(
        "curtsy.cli", "crawl", "-i", "-", *words, text=False, cwd=shell.project, env={**shell.env, **PLAIN},
        stdin=pipe, stdout=pipe, stderr=pipe,
    )  # fmt: skip


def say(process: Process[bytes], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{line}\n".encode())
    process.stdin.flush()


def end_of(process: Process[bytes]) -> Done:
    """Wait for its end, while its pipe is open."""
    code = process.wait(60)
    out, err = process.communicate()
    return Done(code, out.decode(), err.decode())


@pytest.mark.parametrize("way", ["file", "pipe"])
def test_urls_are_read_from_a_file_or_a_pipe(shell: Shell, site: Site, way: str) -> None:
    """U15: a URL on each line; empty lines and comments are none"""
    site.page("/*", html())
    text = "".join(f"{site.url(f'/{number}')}\n\n# {number}\n" for number in range(50)) + "x" * 200_000 + "\n"
    (shell.project / "seeds.txt").write_text(text)

    given = ("-i", "seeds.txt") if way == "file" else ("-",)
    done = shell("crawl", *given, "--json", "--scope", "host", stdin=text, **PLAIN)

    assert done.code == 2  # the last line is none, and so few are looked at first
    assert done.out == ""
    assert "x" * 200 in done.err
    assert site.journal == []
    text = text[:-200_001]
    (shell.project / "seeds.txt").write_text(text)
    done = shell("crawl", *given, "--json", "--scope", "host", stdin=text, **PLAIN)
    assert (done.code, done.json["fetched"]) == (0, 50)
    assert site.count() == 51


@pytest.mark.parametrize("command", ["crawl", "get"])
@pytest.mark.parametrize("source", ["seeds.txt", "-"])
def test_the_mark_that_editors_put_before_the_first_url_is_no_part_of_it(
    shell: Shell, site: Site, command: str, source: str
) -> None:
    """U15: U+FEFF, the byte order mark of a file that is saved as UTF-8 on Windows"""
    site.page("/*", html())
    text = f"{site.url('/a')}\r\n{site.url('/b')}\r\n".encode("utf-8-sig")
    (shell.project / "seeds.txt").write_bytes(text)

    done = shell(command, "-i", source, "--json", stdin=text, **PLAIN)

    assert done.code == 0, done.err
    assert site.paths() == ["/robots.txt", "/a", "/b"]


@pytest.mark.parametrize("source", ["seeds.txt", "-"])
@pytest.mark.parametrize("command", ["get", "crawl"])
def test_a_byte_of_a_url_file_that_is_not_utf8_is_sent_as_it_is(
    shell: Shell, site: Site, command: str, source: str
) -> None:
    """U1: the list of an old site in Latin-1"""
    site.page("/*", html())
    text = site.url("/caf").encode() + b"\xe9?q=\xfc\n"
    (shell.project / "seeds.txt").write_bytes(text)

    done = shell(command, "-i", source, "--json", stdin=text, **PLAIN)

    assert done.code == 0, done.err
    assert [visit.target for visit in site.journal] == ["/robots.txt", "/caf%E9?q=%FC"]


def test_a_page_is_fetched_before_the_pipe_has_ended_and_more_may_follow(shell: Shell, site: Site) -> None:
    """Issue 5"""
    site.page("/*", html())
    process = piped(shell, "--json")
    say(process, site.url("/first"))
    block_until(lambda: site.count("/first") == 1, process)
    say(process, site.url("/second"))
    block_until(lambda: site.count("/second") == 1, process)

    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert b'"fetched": 2' in out


@pytest.mark.parametrize("end", ["--limit", "--max-time", "signal"])
def test_a_pipe_that_stays_open_keeps_no_crawl_from_its_end(shell: Shell, site: Site, end: str) -> None:
    """U17, Issue 5"""
    site.page("/*", html())
    process = piped(shell, *{"--limit": (end, 1), "--max-time": (end, "1s")}.get(end, ()))
    say(process, site.url("/first"))
    block_until(lambda: site.count("/first") == 1)
    if end == "signal":
        process.send_signal(signal.SIGINT)

    done = end_of(process)

    assert done.code == (130 if end == "signal" else 0), done.err


def test_a_pipe_that_says_nothing_keeps_no_crawl_from_its_end(shell: Shell, snapshot: Snapshot) -> None:
    """U17, Issue 5: neither its time nor a signal"""
    with ends_within(15, work=2):
        limited, endless = piped(shell, "--max-time", "0.5s"), piped(shell)
        code = limited.wait(60)
        with pytest.raises(subprocess.TimeoutExpired):  # it waits for its first line
            endless.wait(0.3)
        endless.send_signal(signal.SIGINT)
        assert endless.wait(60) == 130

    assert code == 1
    snapshot(limited.communicate()[1].decode())
    endless.communicate()


def test_a_job_whose_seeds_are_still_being_read_is_killed_and_goes_on(shell: Shell, site: Site) -> None:
    """F37: none is queued twice, and none is forgotten"""
    site.page("/*", html())
    count = 3000
    (shell.project / "seeds.txt").write_text("".join(f"{site.url(f'/{number}')}\n" for number in range(count)))
    command = ("crawl", "-i", "seeds.txt", "--job", "mine", "--jsonl", "pages.jsonl", "--scope", "host")

    for _ in range(3):
        seen = site.count()
        process = shell.start(*command, **PLAIN)
        block_until(lambda: site.count() > seen + 3 or process.poll() is not None)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
    done = shell(*command, "--json", "--limit", "40", **PLAIN)

    assert done.code == 0, done.err
    lines = (shell.project / "pages.jsonl").read_text().splitlines()
    assert (len(lines), len(set(lines)), done.json["fetched"]) == (40, 40, 40)
    assert done.json["queued"] + 40 <= count


def test_an_output_without_a_path_that_takes_the_url_is_named(shell: Shell, site: Site) -> None:
    """U10"""
    done = shell("crawl", "--jsonl", site.url("/"))

    assert done.code == 2
    assert "--jsonl" in done.err
    assert site.url("/") in done.err

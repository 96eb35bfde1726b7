"""What stands on a command line, and what a result comes to: kinds of value, exit codes, words."""

from __future__ import annotations

from collections.abc import Callable

import click
import pytest

from curtsy.cli.command import Once, byte_count, duration, header
from curtsy.cli.console import plain, size
from curtsy.cli.context import Exit, exit_for, worst
from curtsy.cli.crawl import crawl
from curtsy.cli.trace import StepLines
from curtsy.core.decision import Wait
from curtsy.core.errors import Reason
from curtsy.core.policy import Policies, Policy
from tests.cli.shell import Shell
from tests.support.site import Site
from tests.support.snapshot import Snapshot


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("10m", 600), ("10 min", 600), ("1h30m", 5400), ("2d", 172_800)]
)
def test_a_duration_is_written_as_people_do(text: str, seconds: float) -> None:
    """U5"""
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "count"), [("500000", 500_000), ("20M", 20 << 20), ("1.5g", 3 << 29), ("1 KiB", 1024)]
)
def test_a_size_is_written_as_people_do(text: str, count: int) -> None:
    """Q8"""
    assert byte_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "5 parsecs", "1h x", "nan", "999999d", "٣"])
def test_what_is_no_duration_is_refused_with_the_right_form(text: str) -> None:
    """U5"""
    with pytest.raises(click.BadParameter) as refused:
        duration(text)
    assert repr(text) in refused.value.message
    assert "90, 1.5s, 10m" in refused.value.message


@pytest.mark.parametrize("text", ["", "x", "-1", "1e3", "5 apples", "9" * 20])
def test_what_is_no_size_is_refused_with_the_right_form(text: str) -> None:
    """Q8"""
    with pytest.raises(click.BadParameter) as refused:
        byte_count(text)
    assert repr(text) in refused.value.message
    assert "500000, 20M" in refused.value.message


@pytest.mark.parametrize("kind", [duration, byte_count, header], ids=("duration", "size", "header"))
def test_what_is_refused_is_told_with_the_right_form(kind: Callable[[str], object], snapshot: Snapshot) -> None:
    """U5, Q8, F26: what is wrong, and how it is written"""
    with pytest.raises(click.BadParameter) as refused:
        kind("apples")
    snapshot(refused.value.message)


@pytest.mark.parametrize("text", ["X", ": v", "A B: v", "X: a\r\nY: b", "X: \0"])
def test_a_header_that_could_break_the_request_is_refused(text: str) -> None:
    """F26"""
    with pytest.raises(click.BadParameter, match="Name: value"):
        header(text)


def test_every_reason_has_an_exit_code_and_knowing_when_makes_it_a_later() -> None:
    """conventions: exit codes"""
    found = {reason: exit_for(reason, None) for reason in Reason}

    assert exit_for(None, None) is Exit.FINE
    assert {reason for reason, code in found.items() if code is Exit.USAGE} == {Reason.INVALID_URL}
    assert {reason for reason, code in found.items() if code is Exit.BAD_STATUS} == {Reason.HTTP_STATUS}
    assert {reason for reason, code in found.items() if code is Exit.REFUSED} == {
        Reason.DOMAIN_DENIED, Reason.PATH_DENIED, Reason.ADDRESS_REFUSED, Reason.ROBOTS_DISALLOWED,
        Reason.ROBOTS_UNREACHABLE, Reason.CRAWL_DELAY_TOO_LONG, Reason.DOMAIN_BUDGET_EXCEEDED, Reason.CIRCUIT_OPEN,
        Reason.PAUSED, Reason.DEADLINE, Reason.RECORD_TOO_NEW,
    }  # fmt: skip
    assert all(exit_for(reason, 9.0) is Exit.LATER for reason in Reason if reason is not Reason.INVALID_URL)


def test_the_worst_of_several_is_what_somebody_must_mend() -> None:
    """N10"""
    assert worst([]) is Exit.FINE
    assert worst([Exit.FINE, Exit.LATER]) is Exit.LATER
    assert worst([Exit.REFUSED, Exit.LATER, Exit.BAD_STATUS]) is Exit.BAD_STATUS
    assert worst([Exit.ERROR, Exit.BAD_STATUS]) is Exit.ERROR


def test_nothing_that_a_site_sends_can_steer_a_terminal() -> None:
    """F32"""
    assert plain("a\x1b[2Jb\x07\x9bc\u202ed\n") == "a\\x1b[2Jb\\x07\\x9bc\\u202ed\\x0a"
    assert plain("Grüße ✓") == "Grüße ✓"


def test_sizes_are_said_as_people_do() -> None:
    """Q8"""
    assert [size(count) for count in (0, 1023, 1536, 200 * 1024, 5 << 30)] == [
        "0 B", "1023 B", "1.5 KB", "200 KB", "5.0 GB"
    ]  # fmt: skip


ONE_VALUE = [
    ("crawl", "--jsonl"), ("crawl", "--csv"), ("crawl", "--warc"), ("crawl", "--parquet"), ("crawl", "--out"),
    ("crawl", "--mirror"), ("crawl", "--skipped"), ("crawl", "--job"), ("crawl", "-i"), ("get", "-o"), ("get", "-i"),
    ("download", "-o"), ("robots", "-i"), ("why", "-i"), ("status", "-i"),
]  # fmt: skip
"""Options that name a file or a job."""


@pytest.mark.parametrize(("command", "option"), ONE_VALUE, ids=lambda word: word.strip("-"))
def test_two_files_for_one_option_are_refused_because_one_would_be_ignored(
    shell: Shell, command: str, option: str
) -> None:
    """Issue 18: a second `--jsonl` replaced the first one silently"""
    done = shell(command, option, "first", option, "second", "http://127.0.0.1:1/")

    assert done.code == 2
    assert [word in done.err for word in ("first", "second")] == [True, True]
    assert list(shell.project.iterdir()) == []


def test_each_option_that_names_an_output_is_one_of_these() -> None:
    """Issue 18: a new one has the same rule"""
    options = [each for each in crawl.params if isinstance(each, click.Option) and each.metavar in ("FILE", "DIR")]

    assert {each.name for each in options if not isinstance(each, Once)} == {"config"}


def test_an_option_given_twice_with_one_value_is_given_once(shell: Shell, site: Site) -> None:
    """Issue 18"""
    site.page("/", "x")

    done = shell("get", site.url("/"), "-o", "page", "-o", "page")

    assert (done.code, (shell.project / "page").read_text()) == (0, "x")


@pytest.mark.parametrize("option", ["--csv", "--warc", "--parquet", "--out", "--mirror", "--skipped"])
def test_only_json_lines_go_to_standard_output(shell: Shell, option: str) -> None:
    """Issue 18: it would be a file named -"""
    done = shell("crawl", "http://127.0.0.1:1/", option, "-")

    assert (done.code, list(shell.project.iterdir())) == (2, [])
    assert "--jsonl" in done.err


@pytest.mark.parametrize(("because", "is_bound"), [("in_flight", True), ("trial", True), ("pause", False)])
def test_a_wait_that_ends_with_another_request_is_told_as_an_upper_bound(
    because: str, is_bound: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The seconds are those until a lease expires."""
    lines = StepLines(Policies(Policy()))

    lines.waits("example.org", Wait(35.0, because))

    assert ("at most 35 s" in capsys.readouterr().err) == is_bound

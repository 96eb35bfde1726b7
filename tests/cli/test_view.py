"""A crawl as it is shown while it runs."""

from __future__ import annotations

from curtsy.cli.view import line_of, whole
from curtsy.crawling.progress import HostProgress, Snapshot, Totals

REFUSED = "http://down.example/ could not be fetched after 2 tries: connection refused. Try again later."


def waiting(*hosts: HostProgress) -> Snapshot:
    """A crawl that waits for these hosts."""
    words = "the next host may be asked in 5 min"
    return Snapshot("waiting", Totals(), len(hosts), 0, len(hosts), 0.0, 20.0, 300.0, words, hosts)


def test_who_waits_for_a_site_that_is_down_is_told_so() -> None:
    """U14: five minutes without a page need a reason"""
    snapshot = waiting(
        HostProgress("slow.example", "breaker open", next_in=400.0, why="not asking it: its breaker is open."),
        HostProgress("down.example", "resting", next_in=300.0, why=REFUSED),
    )  # fmt: skip

    line, view = line_of(snapshot), whole(snapshot)[1].plain

    assert line.endswith("about 5 min left, the next host may be asked in 5 min (down.example: connection refused)")
    assert view == "waiting: the next host may be asked in 5 min (down.example: connection refused)"


def test_what_a_message_does_not_say_the_state_says() -> None:
    """U14"""
    snapshot = waiting(HostProgress("a.example", "breaker open", next_in=9.0, why="not asking a.example: it is open."))

    assert line_of(snapshot).endswith("(a.example: breaker open)")


def test_a_mere_pause_needs_no_reason() -> None:
    """U14"""
    assert line_of(waiting(HostProgress("a.example", "waiting", next_in=3.0))).endswith("may be asked in 5 min")

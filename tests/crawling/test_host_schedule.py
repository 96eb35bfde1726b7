"""Whose turn it is: hosts that have far more to do than the others."""

from __future__ import annotations

from curtsy.crawling.frontier.host_schedule import LONG, HostSchedule

LARGE, OTHERS = 1, range(2, 12)


def filled(each: int, large: int) -> HostSchedule:
    """Hosts with so many URLs each, one of them with more; all are due at moment 10, the large one last."""
    schedule = HostSchedule()
    for host in (*OTHERS, LARGE):
        schedule.assign(host, host)
        schedule.postpone(host, 11 if host == LARGE else 10, 0)
        schedule.arrive(host, large if host == LARGE else each, 1, 0)
    return schedule


def turns(schedule: HostSchedule, count: int, now: int) -> list[int]:
    """The next hosts."""
    found = []
    for _ in range(count):
        host = schedule.next(now)
        assert host is not None
        schedule.leave(host, 1, now)
        found.append(host)
    return found


def test_a_host_with_far_more_to_do_goes_first_when_its_moment_has_come() -> None:
    """Issue 5: the crawl ends when it does, so that it waits for nobody."""
    schedule = filled(5, large=100)

    assert turns(schedule, 1, now=10) == [OTHERS[0]]
    assert turns(schedule, 2, now=11) == [LARGE, OTHERS[1]]


def test_a_host_with_somewhat_more_to_do_stands_in_line() -> None:
    """Issue 5"""
    schedule = filled(5, large=5 * LONG)

    assert turns(schedule, len(OTHERS) + 1, now=11) == [*OTHERS, LARGE]


def test_a_host_without_pauses_takes_turns_however_much_it_has_to_do() -> None:
    """F61"""
    schedule = filled(5, large=1000)
    served = turns(schedule, 1, now=11)
    assert served == [LARGE]

    schedule.come_back(LARGE, 1, 11, is_waiting=False)

    assert turns(schedule, len(OTHERS) + 1, now=11) == [*OTHERS, LARGE]

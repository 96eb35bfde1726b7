"""How hosts share turns and places: by registered domain, by address, then in order of arrival."""

from __future__ import annotations

from collections import Counter, deque
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.fair_share import GROUPS, SPELL, FairQueue, FairShares, share_of

SITES = st.integers(1, 6)
ADDRESSES = st.integers(1, 3)


@st.composite
def homes(draw: st.DrawFn) -> dict[int, int]:
    """The address of some sites."""
    return draw(st.dictionaries(SITES, ADDRESSES))


def located(homes: dict[int, int]) -> FairQueue:
    turns = FairQueue()
    for site, address in homes.items():
        turns.locate(site, address)
    return turns


def address_of(site: int, homes: dict[int, int]) -> int:
    return GROUPS + homes[site] if site in homes else site


class Watch:
    """Counts the turns that others have had, for each group that waits, since it waits or had its own."""

    def __init__(self) -> None:
        self.since: dict[int, Counter[int]] = {}

    def waiting(self, groups: set[int]) -> None:
        self.since = {group: self.since.get(group, Counter()) for group in groups}

    def turn(self, group: int) -> None:
        for other, turns in self.since.items():
            turns[group] += other != group
            assert turns[group] <= 1, "two turns while another waited"
        self.since.pop(group, None)


@given(homes(), st.lists(st.one_of(SITES, st.just(0), st.integers(-20, -1)), max_size=80))
def test_no_group_has_two_turns_while_another_waits(homes: dict[int, int], history: list[int]) -> None:
    """Q1, F61: whatever comes, goes and gives up. Above 0 a site queues one, 0 is a turn, below 0 one gives up."""
    turns, numbers = located(homes), count(1)
    queued: dict[int, int] = {}
    addresses, sites = Watch(), {address_of(site, homes): Watch() for site in range(1, 7)}

    for event in history:
        if event > 0:
            queued[number := next(numbers)] = event
            turns.assign(number, event)
            turns.add(number)
        elif event < 0 and queued:
            turns.remove(number := sorted(queued)[event % len(queued)])
            del queued[number]
        elif event == 0:
            number = turns.next()
            assert bool(number) == bool(queued), "somebody who waits has the turn"
            if number:
                site = queued.pop(number)
                addresses.turn(address_of(site, homes))
                sites[address_of(site, homes)].turn(site)
        addresses.waiting({address_of(site, homes) for site in queued.values()})
        for address, watch in sites.items():
            watch.waiting({site for site in queued.values() if address_of(site, homes) == address})
        assert len(turns) == len(queued)


@given(homes(), st.lists(SITES, max_size=40))
def test_all_that_is_queued_has_its_turn_once(homes: dict[int, int], sites: list[int]) -> None:
    """Q1"""
    turns = located(homes)
    for number, site in enumerate(sites, 1):
        turns.assign(number, site)
        turns.add(number)

    served = [turns.next() for _ in sites]

    assert sorted(served) == list(range(1, len(sites) + 1))
    assert turns.next() == 0
    for site in set(sites):
        of_site = [number for number in served if sites[number - 1] == site]
        assert of_site == sorted(of_site), "first in, first out"


@given(homes(), st.lists(SITES, min_size=1, max_size=40), st.sets(SITES), st.sets(ADDRESSES))
def test_full_groups_are_passed_over_and_no_others(
    homes: dict[int, int], sites: list[int], full: set[int], full_addresses: set[int]
) -> None:
    """Q1"""
    turns = located(homes)
    for number, site in enumerate(sites, 1):
        turns.assign(number, site)
        turns.add(number)
    shut = full | {GROUPS + each for each in full_addresses}

    served = []
    while number := turns.next(shut.__contains__):
        served.append(sites[number - 1])

    expected = [each for each in sites if each not in full and address_of(each, homes) not in shut]
    assert Counter(served) == Counter(expected)
    assert len(turns) == len(sites) - len(served)


def test_what_goes_to_the_front_goes_there_for_a_site_that_waits_for_nothing_else() -> None:
    """F61: of a site with others in line, it is only the first of that site"""
    turns = FairQueue()
    for number, site in ((1, 1), (2, 2), (3, 3)):
        turns.assign(number, site)
        turns.add(number)
    turns.assign(4, 3)
    turns.add(4, front=True)
    turns.assign(5, 4)
    turns.add(5, front=True)

    assert [turns.next() for _ in range(5)] == [5, 1, 2, 4, 3]


# Places


@given(st.integers(1, 12), st.lists(st.tuples(SITES, st.sampled_from(["ask", "end", "wait"])), max_size=60))
def test_no_group_has_more_than_a_quarter_while_others_want_places(places: int, history: list[tuple[int, str]]) -> None:
    """Q1: of those granted since; alone, a group may have all"""
    shares: FairShares[int] = FairShares(places)
    now = 0.0
    held: deque[int] = deque()
    wanted_at: dict[int, float] = {}

    for group, event in history:
        if event == "wait":
            now += SPELL / 3
        elif event == "end" and held:
            shares.give_back(ended := held.popleft(), now)
            wanted_at[ended] = now
        elif event == "ask":
            others = [each for each in held if each != group]
            others += [each for each, at in wanted_at.items() if each != group and at > now - SPELL]
            is_full = shares.is_full(group, now)
            assert is_full == (bool(others) and held.count(group) >= max(1, places // 4))
            assert shares.is_alone(group, now) == (not others)
            wanted_at[group] = now
            if len(held) < places and not is_full:
                shares.take(group, now)
                held.append(group)
            else:
                shares.want(group, now)


def test_a_share_is_a_quarter_and_at_least_one() -> None:
    assert [share_of(places) for places in (1, 3, 4, 7, 8, 64, 100)] == [1, 1, 1, 1, 2, 16, 25]

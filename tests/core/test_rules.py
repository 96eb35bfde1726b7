"""What is remembered of an origin's robots.txt: for how long, by whom it is fetched, and what it means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.policy import Policy
from curtsy.core.rules import (
    CLAIM,
    FIRST_FAILURE,
    LONGEST,
    MOST,
    Busy,
    Claimed,
    Known,
    Rules,
    claim,
    crawl_delay,
    filters,
    learned,
    released,
)
from curtsy.core.time import SECOND, Instant, Now
from curtsy.stores.codec import pack, unpack
from tests.strategies import ANY

POLICY = Policy()
PRIVATE = b"User-agent: *\nDisallow: /private\nCrawl-delay: 3\n"
US, THEM = 1, 2


def at(second: float) -> Now:
    return Now(Instant(round(second * SECOND)), 1_800_000_000 * SECOND + round(second * SECOND))


def after(second: float) -> float:
    return 1_800_000_000 + second


def test_whoever_claimed_may_claim_again() -> None:
    """F35: a long wait in line renews it"""
    rules, _ = claim(None, at(0), US)
    rules, again = claim(rules, at(50), US)
    _, theirs = claim(rules, at(70), THEM)

    assert isinstance(again, Claimed)
    assert theirs == Busy(40.0)


def test_a_claim_is_given_back_only_by_its_holder() -> None:
    """R5"""
    rules, _ = claim(None, at(0), US)
    kept = released(rules, THEM)
    free = released(rules, US)

    assert kept is rules
    assert isinstance(claim(free, at(1), THEM)[1], Claimed)
    assert released(None, US) is None


@pytest.mark.parametrize(("ttl", "lasts"), [(60.0, 60.0), (86_400.0, LONGEST), (0.0, 0.0)])
def test_the_ttl_is_a_setting_and_never_above_a_day(ttl: float, lasts: float) -> None:
    """R5, RFC 9309, 2.4"""
    rules = learned(None, at(0), Policy(robots_ttl=ttl), b"")

    assert rules.valid_until - after(0) == lasts


def test_a_short_ttl_does_not_shorten_the_rest_after_a_failure() -> None:
    """F27: at most three times in the cooldown"""
    rules = learned(None, at(0), Policy(robots_ttl=1.0), None, "no")

    assert rules.valid_until - after(0) == FIRST_FAILURE


def test_a_success_ends_a_row_of_failures() -> None:
    """R5"""
    failed = learned(learned(None, at(0), POLICY, None, "no"), at(400), POLICY, None, "no")
    well = learned(failed, at(1100), POLICY, PRIVATE)
    again = learned(well, at(5000), POLICY, None, "no")

    assert (well.failures, well.why, well.claimed_by) == (0, "", 0)
    assert again.valid_until - after(5000) == FIRST_FAILURE


def test_no_more_is_kept_than_is_read() -> None:
    """R4, F28: and the delay is that of what is kept"""
    body = b"User-agent: *\nAllow: /\n" + b"# and so on\n" * (MOST // 10) + b"Crawl-delay: 9\n"

    rules = learned(None, at(0), POLICY, body)

    assert rules.body is not None
    assert MOST - len(b"# and so on\n") < len(rules.body) <= MOST
    assert crawl_delay(rules, "bot") is None


@pytest.mark.parametrize("cut", range(len("Allow: /zzz") + 2))
def test_a_line_that_is_cut_at_the_limit_is_none(cut: int) -> None:
    """R4: it may say the opposite of the whole line"""
    head = b"User-agent: *\nDisallow: /\n"
    body = head + b"#" * (MOST - len(head) - cut - 1) + b"\nAllow: /zzz\nAllow: /yyy\n"

    rules = learned(None, at(0), POLICY, body[: MOST + 1])

    allowed = [filters(rules, POLICY, "bot", f"https://example.org/{path}").allowed for path in ("a", "zzz", "yyy")]
    assert allowed == [False, cut >= len("Allow: /zzz"), False]


def test_what_was_learned_before_it_was_to_be_forgotten_does_not_count() -> None:
    """R9: clear_cache()"""
    rules = learned(None, at(0), POLICY, PRIVATE)

    assert isinstance(claim(rules, at(5), US, since=after(3))[1], Claimed)
    assert isinstance(claim(rules, at(5), US, since=after(-3))[1], Known)


def test_a_clock_that_was_set_back_makes_nothing_last_for_ever() -> None:
    """B6's like: what lies further ahead than any rule puts it is asked for again"""
    rules = learned(None, at(400_000), POLICY, PRIVATE)
    held, _ = claim(None, at(400_000), THEM)

    assert isinstance(claim(rules, at(0), US)[1], Claimed)
    assert isinstance(claim(held, at(0), US)[1], Claimed)


def test_a_clock_that_was_set_back_by_hours_makes_no_copy_last_for_longer_than_it_may() -> None:
    """R5: nor is it asked for again because the clock was corrected by seconds"""
    rules = learned(None, at(36_000), POLICY, PRIVATE)

    assert isinstance(claim(rules, at(0), US, ttl=3600)[1], Claimed)
    assert isinstance(claim(rules, at(35_970), US, ttl=3600)[1], Known)


def test_a_copy_holds_for_as_long_as_the_settings_say_by_now() -> None:
    """R5, U9: the record has facts; what follows from them is for the moment"""
    rules = learned(None, at(0), POLICY, PRIVATE)

    assert claim(rules, at(600), US, ttl=1800)[1] == Known(rules, 1200.0)
    assert isinstance(claim(rules, at(1801), US, ttl=1800)[1], Claimed)
    assert claim(rules, at(3601), US, ttl=7200)[1] == Known(rules, 3599.0)


def test_a_failure_is_waited_for_though_copies_hold_for_less() -> None:
    """F27: five minutes"""
    rules = learned(None, at(0), Policy(robots_ttl=1.0), None, "out of reach")

    assert claim(rules, at(100), US, ttl=1)[1] == Known(rules, FIRST_FAILURE - 100)
    assert isinstance(claim(rules, at(FIRST_FAILURE), US, ttl=1)[1], Claimed)


def test_a_record_outlives_its_validity_by_a_week() -> None:
    """R6: an old copy is of use while the site cannot be reached"""
    rules = learned(None, at(0), POLICY, PRIVATE)

    assert rules.lasts(at(0)) == (3600 + 7 * 86_400) * SECOND
    assert unpack(pack(rules)) == rules


STEPS = st.lists(
    st.tuples(st.sampled_from(["claim", "learn", "fail", "release"]), st.sampled_from([US, THEM]), st.floats(0, 5000)),
    max_size=40,
)


@given(STEPS)
@ANY
def test_whatever_happens_only_one_of_them_fetches_at_a_time(steps: list[tuple[str, int, float]]) -> None:
    """R5, F35: two claims never hold at once"""
    rules: Rules | None = None
    holder: tuple[int, float] | None = None
    now = 0.0
    for what, who, passed in steps:
        now += passed
        if what == "claim":
            rules, answer = claim(rules, at(now), who)
            if isinstance(answer, Claimed):
                assert holder is None or holder[0] == who or now >= holder[1] - 1e-6
                holder = who, now + CLAIM
            elif isinstance(answer, Known):
                assert 0 < answer.seconds <= LONGEST
            else:
                assert 0 < answer.seconds <= CLAIM
        elif holder is not None and holder[0] == who:
            if what == "release":
                rules = released(rules, who)
            else:
                rules = learned(rules, at(now), POLICY, PRIVATE if what == "learn" else None, "no")
            holder = None

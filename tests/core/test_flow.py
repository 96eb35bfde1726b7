"""The way of a request, answered by hand: what it asks for, in which order, and what it makes of the answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from curtsy.core.amendment import CrawlDelay
from curtsy.core.cache import Entry, Mode
from curtsy.core.decision import Late, No, Settled
from curtsy.core.effects import (
    Admitted,
    Amend,
    Claim,
    Effect,
    Enter,
    FetchRequest,
    Hold,
    Keep,
    Later,
    Learn,
    MayRetry,
    PutBack,
    Recall,
    Release,
    Remember,
    Render,
    Send,
    Settle,
    Tell,
)
from curtsy.core.errors import Reason
from curtsy.core.fetch_state import UNSENT
from curtsy.core.flow import closed, fetch, set_out
from curtsy.core.policy import Policies, Policy
from curtsy.core.record import Share
from curtsy.core.request import Failure, Headers, Reply, Response
from curtsy.core.rules import Busy, Claimed, Known, Rules
from tests.core.hand import URL, Hand, Ticket, World, kept, robots
from tests.strategies import ANY


def test_the_way_of_a_page_whose_rules_are_known() -> None:
    """Design, section 2"""
    hand = Hand()

    result = hand.carry(FetchRequest(URL))

    assert hand.kinds() == ["Claim", "Enter", "Send", "Settle", "Tell"]
    assert result.ok
    assert hand.of(Tell)[0].record is result.record


def test_the_way_of_a_page_on_a_fresh_origin() -> None:
    """Design, section 2: robots.txt is admitted, sent and settled like any request, but is no page"""
    hand = Hand(
        claim=[Claimed(None)], send=[robots(b"User-agent: *\nCrawl-delay: 7\n"), Response(200, Headers(), b"x")]
    )

    assert hand.carry(FetchRequest(URL)).ok

    assert hand.kinds() == [
        "Claim", "Enter", "Send", "Settle", "Learn", "Amend", "Enter", "Send", "Settle", "Tell",
    ]  # fmt: skip
    first, second = hand.of(Enter)
    assert (first.robots, first.page, second.robots, second.page) == (True, False, False, True)
    assert hand.of(Send)[0].request.url.text == "https://example.org/robots.txt"
    assert (hand.of(Send)[0].cut, hand.of(Send)[0].timeout, hand.of(Send)[1].timeout) == (True, 10.0, 30.0)


def test_a_page_is_rendered_after_it_is_settled_and_a_script_may_redirect() -> None:
    """Render: each page on the way is admitted by itself; errors are not rendered"""
    page = Response(200, Headers(), b"dom", rendered=True)
    away = Response(302, Headers([("Location", "/b")]), b"")
    hand, failing = Hand(render=[away, page]), Hand(send=[Response(404, Headers(), b"")])

    result = hand.carry(FetchRequest(URL, renders=True))
    failing.carry(FetchRequest(URL, renders=True))

    way = ["Claim", "Enter", "Send", "Settle", "Render"]
    assert hand.kinds() == [*way, *way[1:], "Tell"]
    assert (result.rendered, result.body, result.record.attempts) == (True, b"dom", 2)
    assert not failing.of(Render)


def test_a_page_is_entered_for_with_the_delay_that_the_rules_ask_of_its_agent() -> None:
    """R8: from the very first page on, whatever the host's record says; and the record is told, once"""
    hand = Hand(
        claim=[Claimed(None)], send=[robots(b"User-agent: *\nCrawl-delay: 7\n"), Response(200, Headers(), b"x")]
    )

    hand.carry(FetchRequest(URL))
    hand.carry(FetchRequest(URL))

    assert [effect.change for effect in hand.of(Amend)] == [CrawlDelay(7.0, "https://example.org", joined=True)]
    assert [effect.crawl_delay for effect in hand.of(Enter) if not effect.robots] == [7_000_000] * 2


@pytest.mark.parametrize(
    ("before", "after", "amended"),
    [(None, b"", []), (b"", b"", []), (b"User-agent: *\nCrawl-delay: 7", b"", [CrawlDelay(None, "https://example.org")]),
     (b"", b"User-agent: *\nCrawl-delay: 7", [CrawlDelay(7.0, "https://example.org", joined=True)])],
)  # fmt: skip
def test_only_an_origin_that_had_a_delay_takes_one_back(before: bytes | None, after: bytes, amended: list[Any]) -> None:
    """R8, C6"""
    old = None if before is None else Rules(body=before)
    hand = Hand(claim=[Claimed(old)], send=[robots(after), Response(200, Headers(), b"x")])

    hand.carry(FetchRequest(URL))

    assert [effect.change for effect in hand.of(Amend)] == amended


def test_tries_are_counted_for_each_page_and_retries_only_if_something_was_sent_before() -> None:
    """Issue 4, 9"""
    nameless = Failure(Reason.DNS_ERROR, "name not known")
    moved = Response(302, Headers([("Location", "/b")]), b"")
    hops = Hand(send=[Response(503, Headers(), b""), moved, Failure(Reason.BAD_RESPONSE, "garbage", 0.1)])
    late = Hand(send=[nameless, Response(200, Headers(), b"x")])

    result, found = hops.carry(FetchRequest(URL)), late.carry(FetchRequest(URL))

    assert "tries" not in result.message
    assert (result.record.attempts, result.record.retries) == (3, 1)
    assert (found.ok, found.record.attempts, found.record.retries) == (True, 1, 0)


def test_a_place_that_ran_out_before_it_was_used_is_entered_for_again() -> None:
    """Design, section 4: the process was stopped, or asleep; nothing was sent, so nothing is settled or counted"""
    hand = Hand(send=[None, Response(200, Headers(), b"x")])

    result = hand.carry(FetchRequest(URL))

    assert hand.kinds() == ["Claim", "Enter", "Send", "Enter", "Send", "Settle", "Tell"]
    assert result.record.attempts == 1


def test_places_that_ran_out_are_no_redirects_of_robots_txt() -> None:
    """R7"""
    hand = Hand(
        claim=[Claimed(None)],
        send=[*[None] * 9, robots(b"User-agent: *\nDisallow: /"), Response(200, Headers(), b"x")],
    )

    assert hand.carry(FetchRequest(URL)).reason is Reason.ROBOTS_DISALLOWED


def test_a_long_wait_for_robots_txt_holds_the_claim_anew() -> None:
    """F35: a claim lasts a minute, and a line may be longer"""
    hand = Hand(
        claim=[Claimed(None)], enter=[Ticket(90.0), Ticket()], send=[robots(b""), Response(200, Headers(), b"x")]
    )

    assert hand.carry(FetchRequest(URL)).ok

    assert hand.kinds()[:5] == ["Claim", "Enter", "Hold", "Send", "Settle"]


def test_rules_that_somebody_else_fetched_meanwhile_are_not_fetched_again() -> None:
    """F35"""
    rules = Known(Rules(body=b"User-agent: *\nDisallow: /"), 3600.0)
    hand = Hand(claim=[Claimed(None)], enter=[Ticket(90.0)], hold=[rules])

    result = hand.carry(FetchRequest(URL))

    assert result.reason is Reason.ROBOTS_DISALLOWED
    assert hand.kinds() == ["Claim", "Enter", "Hold", "PutBack", "Release", "Tell"]


def test_rules_that_somebody_else_is_fetching_are_waited_for() -> None:
    """F35"""
    hand = Hand(
        claim=[Claimed(None), Known(Rules(body=b""), 3600.0)], enter=[Ticket(90.0), Ticket()], hold=[Busy(30.0)]
    )

    assert hand.carry(FetchRequest(URL)).ok
    assert hand.kinds() == ["Claim", "Enter", "Hold", "PutBack", "Release", "Claim", "Enter", "Send", "Settle", "Tell"]


@pytest.mark.parametrize("answer", [No(Reason.CIRCUIT_OPEN, 300.0), Late(9.0)])
def test_when_not_even_robots_txt_may_be_asked_for_the_task_is_given_back(answer: No | Late) -> None:
    """R5"""
    hand = Hand(claim=[Claimed(None)], enter=[answer])

    result = hand.carry(FetchRequest(URL))

    assert hand.kinds() == ["Claim", "Enter", "Release", "Tell"]
    assert result.reason is (Reason.CIRCUIT_OPEN if isinstance(answer, No) else Reason.DEADLINE)


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Late(9.0), "https://example.org/robots.txt "),
        (No(Reason.CLOSED, None), ""),
        (No(Reason.DOMAIN_DENIED, None), ""),
    ],
)
def test_a_robots_txt_that_is_not_admitted_is_the_cause_and_the_page_is_what_is_not_fetched(
    answer: No | Late, cause: str
) -> None:
    """U4"""
    message = Hand(claim=[Claimed(None)], enter=[answer]).carry(FetchRequest(URL)).message

    assert message.startswith(f"not fetching {URL}")
    assert message.count("robots.txt") == bool(cause)
    assert cause in message


@pytest.mark.parametrize("reason", [Reason.CLOSED, Reason.DEADLINE, Reason.ADDRESS_REFUSED])
def test_a_client_that_is_closed_learns_nothing_of_robots_txt(reason: Reason) -> None:
    """R6: nor one without a free connection; after a redirect, too. A forbidden address does not mean no file."""
    moved = Response(301, Headers([("Location", "https://elsewhere.example/robots.txt")]), b"")
    hand = Hand(claim=[Claimed(None)], send=[moved, Failure(reason, "no"), Response(200, Headers(), b"x")])

    result = hand.carry(FetchRequest(URL))

    if reason is not Reason.ADDRESS_REFUSED:
        assert (result.reason, hand.of(Learn)) == (reason, [])
        assert hand.of(Release) == [Release("https://example.org")]
    else:
        assert [effect.body for effect in hand.of(Learn)] == [None]


def test_a_deadline_that_ends_on_the_way_to_another_host_is_no_failure_of_robots_txt() -> None:
    """U5, R6"""
    moved = Response(301, Headers([("Location", "https://elsewhere.example/robots.txt")]), b"")
    hand = Hand(claim=[Claimed(None)], send=[moved], enter=[Ticket(), Late(5.0)])

    result = hand.carry(FetchRequest(URL, deadline=30.0))

    assert (result.reason, hand.of(Learn)) == (Reason.DEADLINE, [])
    assert hand.kinds()[-2:] == ["Release", "Tell"]


def test_a_retry_waits_in_the_gate_and_nowhere_else() -> None:
    """Design, rule 6: retry says whether, admission says when; the rest is in what is settled"""
    hand = Hand(send=[Response(500, Headers(), b""), Response(200, Headers(), b"x")])

    result = hand.carry(FetchRequest(URL))

    assert hand.kinds() == ["Claim", "Enter", "Send", "MayRetry", "Settle", "Enter", "Send", "Settle", "Tell"]
    assert hand.of(Settle)[0].outcome.rest == 1.0
    assert (result.record.attempts, result.record.retries) == (2, 1)


@pytest.mark.parametrize(("moment", "put_back"), [(Send, 0), (MayRetry, 0), (Settle, 1), (Enter, 1), (None, 0)])
def test_a_retry_that_is_cancelled_is_given_back_unless_it_was_sent(moment: type[Effect] | None, put_back: int) -> None:
    """Issue 4, 4: the share of retries is for those that are sent"""
    world = World(Policies(Policy(respect_robots=False), user_agent="testbot/1.0"))
    flow = fetch(FetchRequest(URL), world)
    effect = flow.send(None)
    for answer in (Ticket(), Response(503, Headers(), b""), True, Settled(0.0), Ticket()):
        effect = flow.send(answer)
        if moment is not None and isinstance(effect, moment):
            break

    flow.close()

    assert isinstance(effect, moment or Send)
    assert world.retries_put_back == put_back


def test_a_retry_that_begins_anew_and_is_refused_then_is_given_back() -> None:
    """Issue 4, 4; U9: the settings have changed while it stood in line"""
    world = World(Policies(Policy(respect_robots=False), user_agent="testbot/1.0"))
    flow = fetch(FetchRequest(URL), world)
    effect = flow.send(None)
    for answer in (Ticket(), Response(503, Headers(), b""), True, Settled(0.0)):
        effect = flow.send(answer)
    assert isinstance(effect, Enter)
    world.policies = Policies(Policy(respect_robots=False, deny_paths=("/a",)), user_agent="testbot/1.0")
    assert isinstance(flow.send(Ticket(20.0)), PutBack)

    told = flow.send(None)

    assert isinstance(told, Tell)
    assert (told.record.reason, world.retries_put_back) == (Reason.PATH_DENIED, 1)


@pytest.mark.parametrize(("open_for", "retry_after"), [(300.0, 300.0), (0.0, None)])
def test_the_last_answer_says_when_the_breaker_closes_that_it_opened(
    open_for: float, retry_after: float | None
) -> None:
    """U4: whether or not there would have been another try"""
    world = World()
    world.max_retries = 0
    hand = Hand(world, send=[Response(429, Headers(), b"")], settle=[Settled(0.2, open_for)])

    assert hand.carry(FetchRequest(URL)).retry_after == retry_after


def test_rules_that_others_have_learned_while_a_page_stood_in_line_hold_for_it() -> None:
    """R5"""
    new = Known(Rules(body=b"User-agent: *\nDisallow: /"), 3600.0)
    hand = Hand(enter=[Ticket(20.0)])
    before = [None]
    hand.world.known_rules = lambda origin, ttl=0.0: before.pop() if before else new  # type: ignore[method-assign]

    result = hand.carry(FetchRequest(URL))

    assert result.reason is Reason.ROBOTS_DISALLOWED
    assert hand.kinds() == ["Claim", "Enter", "PutBack", "Tell"]


def test_what_was_cut_off_before_it_was_sent_is_not_charged() -> None:
    """B5"""
    hand = Hand(
        World(Policies(Policy(respect_robots=False), user_agent="testbot/1.0")),
        enter=[Ticket(9.99)],
        send=[Failure(Reason.TIMEOUT, "no connection")],
    )

    hand.carry(FetchRequest(URL, deadline=10.0))

    assert hand.of(Settle)[0].outcome is UNSENT


def test_a_fetch_that_is_refused_after_a_wait_says_how_long_that_was() -> None:
    """Issue 4, 9"""

    class Slow(Hand):
        def _answer(self, effect: Effect) -> Any:
            self.world.seconds += 5 * isinstance(effect, Enter)
            return super()._answer(effect)

    assert Slow(enter=[No(Reason.CIRCUIT_OPEN, 300.0)]).carry(FetchRequest(URL)).record.waited == 5.0


def test_what_went_to_a_host_that_redirects_is_told_apart() -> None:
    """Issue 4, 9"""
    moved = Response(301, Headers([("Location", "https://elsewhere.example/")]), b"moved", 0.1, 0.1, wire_bytes=5)
    page = Response(200, Headers(), b"xxx", 0.1, 0.1, wire_bytes=3)
    hand = Hand(send=[Response(500, Headers(), b"", 0.1, 0.1), moved, page])

    record = hand.carry(FetchRequest(URL)).record

    assert (record.domain, record.attempts, record.bytes) == ("elsewhere.example", 3, 8)
    assert record.elsewhere == (Share("example.org", 2, 1, 0, 5),)
    assert record.as_dict()["elsewhere"][0]["domain"] == "example.org"


def test_cookies_are_taken_of_pages_and_not_of_robots_txt() -> None:
    """F64"""
    hand = Hand(claim=[Claimed(None)])

    hand.carry(FetchRequest(URL))

    assert hand.world.cookies == [URL]


def test_a_claim_without_a_verdict_does_not_forbid_a_kept_page() -> None:
    """R6"""
    world = World(Policies(Policy(robots_unreachable="disallow")), cache_mode="normal")
    claimed = Rules(claimed_by=7, claimed_until=9e9)
    hand = Hand(world, recall=[kept({"Cache-Control": "max-age=900"})], remember=[claimed])

    assert hand.carry(FetchRequest(URL)).from_cache


def test_somebody_whose_client_was_closed_is_told_so() -> None:
    """F62"""
    result = closed(set_out(FetchRequest("https://user:pw@example.org/?token=abc"), World()))

    assert (result.ok, result.reason) == (False, Reason.CLOSED)
    assert "pw" not in result.message
    assert "abc" not in result.message


@pytest.mark.parametrize(
    ("is_sent", "is_robots", "page_sent", "counts"),
    [
        (False, False, True, (1, 0, 1)),
        (False, True, True, (1, 0, 1)),
        (True, False, False, (2, 0, 1)),
        (True, False, True, (2, 1, 1)),
        (True, True, True, (1, 0, 2)),
    ],
    ids=["nothing", "no robots.txt", "a page", "a page again", "robots.txt"],
)
def test_what_was_on_its_way_when_the_client_was_closed_is_counted_for_what_it_is(
    is_sent: bool, is_robots: bool, page_sent: bool, counts: tuple[int, int, int]
) -> None:
    """F62: attempts are without robots.txt"""
    state = set_out(FetchRequest(URL), World())
    state.attempts, state.robots_requests, state.page_sent = 1, 1, page_sent

    record = closed(state, is_sent, is_robots).record

    assert (record.attempts, record.retries, record.robots_requests) == counts


# Whatever comes

REPLIES: st.SearchStrategy[Reply | None] = st.one_of(
    st.none(),
    st.builds(
        Response,
        st.sampled_from([200, 204, 206, 304, 400, 403, 404, 429, 500, 503]),
        st.sampled_from([Headers(), Headers([("Retry-After", "5")]), Headers([("Retry-After", "90000")])]),
        st.sampled_from([b"", b"x"]),
    ),
    st.builds(
        lambda status, to: Response(status, Headers([("Location", to)]), b""),
        st.sampled_from([301, 302, 303, 307, 308]),
        st.sampled_from(["/b", "/private/c", "https://elsewhere.example/d", "ftp://x/", "http://user:s3cret@x.example/"]),
    ),
    st.builds(
        Failure,
        st.sampled_from(
            [Reason.TIMEOUT, Reason.DNS_ERROR, Reason.CONNECTION_ERROR, Reason.TLS_ERROR, Reason.BAD_RESPONSE,
             Reason.INCOMPLETE, Reason.TOO_LARGE, Reason.TOO_SLOW, Reason.ADDRESS_REFUSED, Reason.CLOSED]
        ),
        st.just("it broke"),
        st.sampled_from([None, 0.5]),
    ),
)  # fmt: skip
ENTRANCES: st.SearchStrategy[Admitted | No | Late] = st.one_of(
    st.builds(Ticket, st.sampled_from([0.0, 3.0, 90.0])),
    st.builds(Ticket, st.sampled_from([0.0, 3.0, 90.0])),
    st.builds(No, st.sampled_from([Reason.CIRCUIT_OPEN, Reason.PAUSED, Reason.CRAWL_DELAY_TOO_LONG]), st.just(60.0)),
    st.just(No(Reason.DOMAIN_BUDGET_EXCEEDED, 60.0, "pages", 1_800_000_000)),
    st.builds(Late, st.just(7.0)),
)
RULES = Known(Rules(body=b"User-agent: *\nDisallow: /private\n"), 3600.0)


@given(
    sends=st.lists(REPLIES, min_size=30, max_size=30),
    enters=st.lists(ENTRANCES, min_size=40, max_size=40),
    claims=st.lists(st.sampled_from([RULES, RULES, Claimed(None), Late(3.0)]), min_size=20, max_size=20),
    holds=st.lists(st.sampled_from([Claimed(None), RULES, Busy(5.0)]), min_size=20, max_size=20),
    method=st.sampled_from(["GET", "HEAD", "POST"]),
    deadline=st.sampled_from([None, 20.0, 0.0]),
    mode=st.sampled_from([None, "normal", "revalidate"]),
    copy=st.sampled_from([None, kept({"Cache-Control": "max-age=900"}), kept({"ETag": '"1"'}, age=900)]),
)
@ANY
def test_whatever_comes_every_place_is_given_back_and_one_record_is_told(
    sends: list[Reply | None],
    enters: list[Any],
    claims: list[Any],
    holds: list[Any],
    method: str,
    deadline: float | None,
    mode: Mode | None,
    copy: tuple[Entry, bytes] | None,
) -> None:
    """Issue 4, B4, B5, F17, F23, N10: for any answers of site, gate and store"""
    hand = Hand(
        World(cache_mode=mode),
        send=[*sends, Response(200, Headers(), b"x")],
        enter=[*enters, Ticket()],
        claim=[*claims, RULES],
        hold=[*holds, RULES],
        recall=[copy],
    )

    result = hand.carry(FetchRequest(URL, method, deadline=deadline))

    kinds = hand.kinds()
    assert (kinds.count("Tell"), kinds[-1]) == (1, "Tell")
    is_held = is_claimed = has_retry = False
    pages = 0
    for effect, answer in zip(hand.effects, hand.answers, strict=True):
        match effect:
            case Enter() | Claim():
                assert not is_held  # nothing is held while something is waited for
                is_held = isinstance(effect, Enter) and isinstance(answer, Ticket)
                is_claimed |= isinstance(answer, Claimed)
            case Send():
                is_held = answer is not None
                is_sent = answer is not None and (answer.sent_ago is not None or getattr(answer, "is_answer", False))
                pages += is_sent and not effect.cut
                has_retry = has_retry and (answer is None or effect.cut)
                assert "/private" not in effect.request.url.text
                assert effect.request.url.scheme in ("http", "https")
            case MayRetry():
                has_retry = answer
            case Settle() | PutBack():
                is_held = False
            case Learn() | Release():
                assert is_claimed
                is_claimed = False
            case _:
                pass
    assert not is_held
    assert not is_claimed
    assert hand.world.retries_put_back == has_retry
    assert result.record.attempts == pages <= 6 * 4
    assert (result.reason is None) == result.ok
    assert result.ok or (result.message.endswith(".") and "s3cret" not in result.message)
    if result.ok and not result.from_cache:
        assert 200 <= (result.status or 0) < 300
    sent = [effect.request.method for effect in hand.of(Send) if not effect.cut]
    if method == "POST" and set(sent) == {"POST"}:
        assert result.record.retries == 0


def test_every_effect_is_one_that_a_hand_can_answer() -> None:
    """Design, section 2"""
    known = {Enter, Send, PutBack, Settle, Recall, Keep, Remember, Claim, Hold, Learn, Release, Amend, MayRetry, Later}

    assert set(Effect.__args__) == {*known, Render, Tell}


def test_rules_that_are_good_for_less_than_a_turn_takes_still_let_a_page_go() -> None:
    """R5: they were looked at for this very turn"""
    ended = Known(Rules(body=b"", valid_until=1_800_001_010.0), 10.0)
    hand = Hand(claim=[ended], enter=[Ticket(20.0)])
    hand.world.known_rules = lambda origin, ttl=0.0: None  # type: ignore[method-assign]

    assert hand.carry(FetchRequest(URL)).ok
    assert hand.kinds() == ["Claim", "Enter", "PutBack", "Claim", "Enter", "Send", "Settle", "Tell"]
    assert [effect.rank for effect in hand.of(Enter)] == [None, 1000.0]


def test_a_crawl_delay_that_came_while_a_page_stood_in_line_holds_for_it() -> None:
    """R8"""
    slow = Known(Rules(body=b"User-agent: *\nCrawl-delay: 7"), 3600.0)
    hand = Hand(claim=[Known(Rules(body=b""), 3600.0), slow], enter=[Ticket(20.0)])
    before = [None]
    hand.world.known_rules = lambda origin, ttl=0.0: before.pop() if before else slow  # type: ignore[method-assign]
    hand.world.heeded = lambda origin: {}  # type: ignore[method-assign]

    assert hand.carry(FetchRequest(URL)).ok
    assert [effect.crawl_delay for effect in hand.of(Enter)] == [0, 7_000_000]
    assert len(hand.of(Send)) == 1

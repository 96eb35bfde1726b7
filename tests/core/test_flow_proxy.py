"""A fetch whose proxy fails, answered by hand."""

from __future__ import annotations

import pytest

from curtsy.core.effects import FetchRequest, Learn, Release, Send, Settle
from curtsy.core.errors import Reason
from curtsy.core.outcome import Kind
from curtsy.core.request import Failure, Headers, Response
from curtsy.core.rules import Claimed, Rules
from tests.core.hand import URL, Hand

MOVED = Response(301, Headers([("Location", "https://elsewhere.example/robots.txt")]), b"")


@pytest.mark.parametrize("before", [[], [MOVED]], ids=["its own", "another host's"])
@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.CONNECTION_ERROR, Reason.TLS_ERROR, Reason.ADDRESS_REFUSED])
def test_a_proxy_that_fails_teaches_nothing_of_robots_txt(before: list[Response], reason: Reason) -> None:
    """R6: neither that there is none nor that it cannot be had"""
    failure = Failure(reason, "the proxy http://proxy.test cannot be reached", ended_at_proxy=True)
    hand = Hand(claim=[Claimed(None)], send=[*before, failure])

    result = hand.carry(FetchRequest(URL))

    assert result.reason is reason
    assert failure.detail in result.message
    assert len(hand.of(Send)) == len(before) + 1
    assert hand.of(Settle)[-1].outcome.kind is Kind.ABANDONED
    assert len(hand.of(Release)) == 1
    assert hand.of(Learn) == []


def test_an_earlier_copy_goes_on_being_used_while_a_proxy_fails() -> None:
    """R6"""
    failure = Failure(Reason.CONNECTION_ERROR, "the proxy http://proxy.test cannot be reached", ended_at_proxy=True)
    page = Response(200, Headers(), b"x")
    copy = Rules(body=b"User-agent: *\nDisallow: /private\n")
    hands = [Hand(claim=[Claimed(copy)], send=[failure, page]) for _ in range(2)]

    results = [hand.carry(FetchRequest(url)) for hand, url in zip(hands, (f"{URL}/../private", URL), strict=True)]

    assert [result.reason for result in results] == [Reason.ROBOTS_DISALLOWED, None]
    assert [hand.of(Learn) for hand in hands] == [[], []]

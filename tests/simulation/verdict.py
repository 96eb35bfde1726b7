"""Verdict: what an answer means for its URL.

It mirrors `Judge.judge` of `crawling/filters.py`, which cannot be had without a client: the same constants, the same
cases in the same order; without scope, traps and the reading of pages, for the links of a page are known here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.fetch_state import redirect_target
from curtsy.core.request import Response
from curtsy.core.result import FetchResult
from curtsy.core.url import Url, parse_url
from curtsy.crawling.filters import CHANCES, LATER, SECOND_LOOK, may_pass
from curtsy.crawling.frontier.protocol import Claimed, Deferred, Done, Failed
from curtsy.crawling.running_fetches import GUILTY
from tests.simulation.world import World


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a claim ends, and what is to be added before."""

    end: Done | Failed | Deferred
    found: tuple[str, ...] = ()
    depth: int = 0
    hops: int = 0


def refused(claimed: Claimed) -> Verdict | None:
    """What is not fetched though it was queued: a URL with which one process after the other has died."""
    return Verdict(Failed("reader_crashed")) if claimed.tries >= GUILTY else None


def verdict(claimed: Claimed, result: FetchResult, world: World, chances: Counter[str]) -> Verdict:
    """What an answer means; `chances` are how often a worker has put each URL back."""
    reason, after = result.reason, result.next_in
    if reason is None:
        chances.pop(claimed.url, None)
        links = world.links(*world.place(claimed.url))
        return Verdict(Done(after), tuple(links), claimed.depth + 1)
    if reason is Reason.REDIRECTED:
        url = parse_url(result.final_url)
        assert isinstance(url, Url)
        target = redirect_target(url, Response(result.status or 0, result.headers, b""))
        assert isinstance(target, Url)
        if claimed.hops >= world.policies.of(claimed.host).max_redirects:
            return Verdict(Failed(str(Reason.TOO_MANY_REDIRECTS), after))
        return Verdict(Done(after), (target.text,), claimed.depth, claimed.hops + 1)
    if reason in LATER:
        return Verdict(Deferred(SECOND_LOOK if result.retry_after is None else result.retry_after))
    words = f"{reason} {result.status}" if reason is Reason.HTTP_STATUS else str(reason)
    if reason in REFUSALS:
        return Verdict(Failed(words, after))
    if result.retry_after is not None and may_pass(result) and chances[claimed.url] < CHANCES:
        chances[claimed.url] += 1
        return Verdict(Deferred(result.retry_after, last=True))
    chances.pop(claimed.url, None)
    return Verdict(Failed(words, after))

"""Amendments: changes of a host's record by a user command or a robots.txt, not by a request.

Pure: a store runs `amend()` as one atomic step, and may run it again.
"""

from __future__ import annotations

import msgspec

from curtsy.core.decision import Lease
from curtsy.core.host import Host, Place, fresh, in_time, with_delays
from curtsy.core.policy import TOKEN, Policy, changed
from curtsy.core.setting import DAY, number
from curtsy.core.settlement import as_of, tripped, untripped
from curtsy.core.time import SECOND, Now

_replace = msgspec.structs.replace


class Reset(msgspec.Struct, frozen=True):
    """User command: close the breaker and end every rest."""


class Trip(msgspec.Struct, frozen=True):
    """User command: open the breaker."""


class Pause(msgspec.Struct, frozen=True):
    """User command: send nothing for `seconds`; None until resumed."""

    seconds: float | None = None


class Resume(msgspec.Struct, frozen=True):
    """User command: end a pause."""


class Override(msgspec.Struct, frozen=True):
    """User command: override limits of the host's policy. Empty `limits` removes all overrides."""

    limits: tuple[tuple[str, float | None], ...] = ()


class CrawlDelay(msgspec.Struct, frozen=True):
    """Crawl-delay of an origin's robots.txt in seconds; None if absent. The longest of several origins applies."""

    seconds: float | None
    origin: str = ""
    joined: bool = False
    """True to keep a longer known delay of this origin, which applies to another client of the host."""


class Spend(msgspec.Struct, frozen=True):
    """Charge for a request that was sent without admission, and for its page if `page` (B10)."""

    page: bool = False


class Return(msgspec.Struct, frozen=True):
    """Return of rate tokens that were not used."""

    lease: Lease
    count: int = 1


class Renew(msgspec.Struct, frozen=True):
    """Lease extension of a slot whose request is still in flight."""

    lease: Lease


class Release(msgspec.Struct, frozen=True):
    """Return of a slot whose request is settled and whose response body has ended."""

    lease: Lease


Amendment = Renew | Release | Return | Reset | Trip | Pause | Resume | Override | CrawlDelay | Spend


def amend(host: Host | None, now: Now, policy: Policy, change: Amendment) -> Host:
    """Change a record for a user command or a robots.txt.

    Raises PolicyError for an invalid limit or pause.
    """
    given = fresh(now) if host is None else in_time(host, now)
    host, at = as_of(now, given), now.at
    match change:
        case Renew(lease):
            until = at + round(lease.lasts * SECOND)
            places = (
                Place(each.number, each.left_at, until) if each.number == lease.number else each for each in host.places
            )
            return _replace(host, places=tuple(places))
        case Release(lease):
            others = tuple(each for each in host.places if each.number != lease.number)
            return given if len(others) == len(host.places) else _replace(host, places=others)
        case Return(lease, count):
            return _returned(given, host, policy, lease, count)
        case Reset():
            return untripped(host, at).replace(retry_after_until=0, delay=0, calm=0)
        case Trip():
            return tripped(host, at, policy, "user", failed_trials=host.failed_trials)
        case Pause(None):
            return host.replace(paused_until=-1)
        case Pause(seconds):
            return host.replace(paused_until=at + round(number("seconds", seconds, most=365 * DAY) * SECOND))
        case Resume():
            return host.replace(paused_until=0)
        case Override(limits):
            changed(policy, limits)  # raises PolicyError before anything is stored
            return host.replace(overrides=limits)
        case CrawlDelay(seconds, origin, joined):
            return _with_crawl_delay(given, host, seconds or 0.0, origin, joined)
        case Spend(page):
            spending = host.spending(now, policy.calendar)
            day, earlier, jumped_at = spending.charged(1, int(page), at), spending.earlier, spending.jumped_at
            requests, pages = host.requests + 1, host.pages + page
            return host.replace(day=day, earlier=earlier, jumped_at=jumped_at, requests=requests, pages=pages)


def _returned(given: Host, host: Host, policy: Policy, lease: Lease, count: int) -> Host:
    """Return the record with the tokens of an unused lease; `given` if they can no longer be returned."""
    # Valid once, and only before the next departure: a later return would let two requests leave together.
    if host.serial != lease.number:
        return given
    # With other requests in flight, the last departure may be later than the one that the lease remembers.
    is_alone = not host.places and (policy.concurrency == 1 or not host.requests)
    if host.sent_at == lease.left_at and lease.sent_before >= 0 and is_alone and not host.recent:
        return _replace(host, spent=lease.spent_before, sent_at=lease.sent_before, serial=host.serial + 1)
    spent, sent_at, recent = max(0, host.spent - count * TOKEN), host.sent_at, host.recent[:-count]
    if recent and policy.interval_ns:  # the last departure is now an earlier one
        back = (sent_at - recent[-1]) * 1000 * TOKEN // policy.interval_ns  # tokens refilled since then
        spent = spent + back if spent else min(back, len(recent) * TOKEN)
        sent_at = recent[-1]
    return _replace(host, spent=spent, sent_at=sent_at, recent=recent, serial=host.serial + 1)


def _with_crawl_delay(given: Host, host: Host, seconds: float, origin: str, joined: bool) -> Host:
    """Return the record with the Crawl-delay of an origin; `given` if it changes nothing."""
    delay = round(min(seconds, 30 * DAY) * SECOND)  # larger than any max_crawl_delay
    if joined:
        delay = max(delay, dict(host.delays).get(origin, 0))
    others = tuple(each for each in host.delays if each[0] != origin)
    delays = with_delays(others, ((origin, delay),)) if delay else others
    longest = delays[-1][1] if delays else 0
    is_known = longest == host.crawl_delay and delays == host.delays
    return given if is_known else host.replace(crawl_delay=longest, delays=delays)

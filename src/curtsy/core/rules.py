"""Rules: what is remembered of an origin's robots.txt, who fetches it, and for how long it holds (R5, R6).

One process fetches, whoever else asks waits for it: the claim is part of the record, and runs out if its holder dies.
Times are epoch seconds, for a copy outlives reboots.
"""

from __future__ import annotations

import msgspec

from curtsy.core.bounded import Bounded
from curtsy.core.message import SECOND, Now
from curtsy.core.policy import Policy
from curtsy.core.record import Record
from curtsy.core.robots import AgentRules, Verdict, parse_for, token_of
from curtsy.core.robots_lines import MAX_BYTES, whole_lines

FIRST_FAILURE = 300.0
"""Seconds for which a robots.txt that could not be had is not asked for again; doubled by each further failure."""

LONGEST = 86_400.0
"""Seconds beyond which no copy is used without asking (RFC 9309, 2.4)."""

SKEW = 60.0
"""Seconds by which a clock may be corrected without a copy being asked for again."""

CLAIM = 60.0
"""Seconds that no claim lies ahead, unless this process claims for longer: then a clock was set back."""

MOST = MAX_BYTES
"""Octets of a robots.txt that are kept: the 500 KiB that are read of it (RFC 9309, 2.5)."""

READ, TEXTS = 8 << 20, 4 << 20
"""Bytes of compiled rules, and of the records with their texts, that a process keeps in memory (F28)."""


class Rules(Record, frozen=True, tag="rules"):
    """What is known of one origin's robots.txt."""

    body: bytes | None = None
    """The last good copy, empty if there is no such file; None before the first."""

    body_at: float = 0.0
    """When that copy came."""

    valid_until: float = 0.0
    """Until when nobody need ask, whatever came last."""

    failures: int = 0
    """Failures in a row."""

    why: str = ""
    """How the last attempt failed, in words; empty if it did not."""

    claimed_until: float = 0.0
    claimed_by: int = 0
    checked_at: float = 0.0
    """When it was last asked for, whatever came of it."""

    part: bytes = b""
    """The whole lines of a later copy that broke off: they bind, and the rest counts as unreachable (C21)."""

    def lasts(self, now: Now) -> int | None:
        """A week beyond its validity: an old copy is of use while the site cannot be reached (R6)."""
        return max(0, round((self.valid_until + 7 * 86_400) * SECOND) - now.epoch)

    @property
    def weight(self) -> int:
        """Bytes of the texts."""
        return len(self.body or b"") + len(self.part)

    @property
    def text(self) -> bytes:
        """The last good copy or, if there is none, what came of one that broke off."""
        return self.body or self.part

    @property
    def is_known(self) -> bool:
        """Whether there is anything to go by: a copy, or the knowledge that none can be had."""
        return self.body is not None or self.failures > 0


class Known(msgspec.Struct, frozen=True, gc=False):
    """The rules hold now."""

    rules: Rules
    seconds: float
    """For how long still."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """It is ours to fetch them."""

    rules: Rules | None


class Busy(msgspec.Struct, frozen=True, gc=False):
    """Somebody else is fetching them; ask again in so many seconds."""

    seconds: float


def claim(
    rules: Rules | None, now: Now, who: int, since: float = 0.0, ttl: float = LONGEST, lasts: float = CLAIM
) -> tuple[Rules | None, Known | Claimed | Busy]:
    """Have the rules, or the task of fetching them, or word that somebody else is at it.

    What was learned before `since`, or more than `ttl` seconds ago, does not count as known. The claim holds for
    `lasts` seconds.
    """
    second = now.epoch / SECOND
    if rules is not None and rules.is_known and rules.checked_at > since:
        left = _left(rules, second, min(ttl, LONGEST))
        if left > 0:
            return rules, Known(rules, left)
    # A claim that lies further ahead than any is given comes from a clock that was set back.
    if rules is not None and rules.claimed_by != who and second < rules.claimed_until <= second + max(CLAIM, lasts):
        return rules, Busy(rules.claimed_until - second)
    changed = msgspec.structs.replace(rules or Rules(), claimed_until=second + lasts, claimed_by=who)
    return changed, Claimed(rules)


def _left(rules: Rules, second: float, ttl: float) -> float:
    """Seconds for which nobody need ask, by the settings of this moment: they may have been others when it was learned.

    0 or less if somebody should.
    """
    most = max(ttl, FIRST_FAILURE) if rules.failures else ttl
    left = rules.checked_at + most - second
    if rules.failures:
        left = min(left, rules.valid_until - second)
    # One that lasts for longer than any that is given comes from a clock that was set back.
    return left if left <= most + SKEW else 0.0


def learned(
    rules: Rules | None, now: Now, policy: Policy, body: bytes | None, why: str = "", part: bytes = b""
) -> Rules:
    """The record after a fetch: `body` is the file (empty for a 4xx), or None if it could not be had, and `why`.

    `part` is what came of a body that broke off.
    """
    second = now.epoch / SECOND
    rules = rules or Rules()
    ttl = min(policy.robots_ttl, LONGEST)
    if body is not None:
        return Rules(body=whole_lines(body), body_at=second, valid_until=second + ttl, checked_at=second)
    wait = min(FIRST_FAILURE * float(1 << min(rules.failures, 20)), max(ttl, FIRST_FAILURE))
    return msgspec.structs.replace(
        rules,
        valid_until=second + wait,
        failures=rules.failures + 1,
        why=why,
        claimed_until=0.0,
        claimed_by=0,
        checked_at=second,
        part=whole_lines(part, is_cut=True) or rules.part,
    )


def released(rules: Rules | None, who: int) -> Rules | None:
    """The record after the one who claimed it gave up without an answer."""
    if rules is None or rules.claimed_by != who:
        return rules
    return msgspec.structs.replace(rules, claimed_until=0.0, claimed_by=0)


_read: Bounded[tuple[str, bytes], tuple[AgentRules, int]] = Bounded(4096, READ, lambda each: each[1])
"""By token and text."""


def agent_rules(text: bytes, user_agent: str) -> AgentRules:
    """What a robots.txt says to an agent; read once, as long as there is room to keep it."""
    key = token_of(user_agent), text
    known = _read.get(key)
    if known is None:
        found = parse_for(text, key[0])
        known = found, found.size + len(text)
        _read.put(key, known)
    return known[0]


ALL_ALLOWED = Verdict(True, None, None, None, "the site has no robots.txt that can be read, so everything is allowed")
UNREACHABLE = Verdict(
    False, None, None, None, "the site's robots.txt cannot be had, and the settings say to wait for it"
)


def filters(rules: Rules, policy: Policy, user_agent: str, url: str) -> Verdict:
    """What the rules say of a URL; without a copy, what the settings say (R6, C5).

    Of a copy that broke off, what it forbids is forbidden; all else is as if it could not be had (C21).
    """
    partly = agent_rules(rules.part, user_agent).verdict(url) if rules.part else None
    if partly is not None and not partly.allowed:
        return partly
    if rules.body:
        return agent_rules(rules.body, user_agent).verdict(url)
    if rules.body is None and policy.robots_unreachable == "disallow":
        return UNREACHABLE
    return partly or ALL_ALLOWED


def crawl_delay(rules: Rules, user_agent: str) -> float | None:
    """Seconds that the site wants between two requests; None if it does not say."""
    said = (agent_rules(text, user_agent).crawl_delay for text in (rules.body, rules.part) if text)
    return max((delay for delay in said if delay is not None), default=None)

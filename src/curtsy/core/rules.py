"""Record of an origin's robots.txt: its copy, its validity and the claim to fetch it (R5, R6).

One process fetches the file while all others wait. The claim is part of the record, and expires if its holder dies.
Times are epoch seconds, because a copy outlives reboots.
"""

from __future__ import annotations

import msgspec

from curtsy.core.bounded import Bounded
from curtsy.core.policy import Policy
from curtsy.core.record import Record
from curtsy.core.robots import AgentRules, Verdict, parse_for, token_of
from curtsy.core.robots_lines import MAX_BYTES, whole_lines
from curtsy.core.time import SECOND, Now

FIRST_FAILURE = 300.0
"""Seconds until an unreachable robots.txt is requested again; doubled by each further failure."""

LONGEST = 86_400.0
"""Most seconds for which a copy is valid (RFC 9309, 2.4)."""

SKEW = 60.0
"""Seconds by which a clock may be corrected without invalidating a copy."""

CLAIM = 60.0
"""Most seconds of a claim, unless this process claims for longer. Beyond that, a clock was set back."""

MOST = MAX_BYTES
"""Most octets of a robots.txt that are kept: the 500 KiB that are parsed (RFC 9309, 2.5)."""

READ, TEXTS = 8 << 20, 4 << 20
"""Bytes of compiled rules, and of records with their texts, in the memory of a process (F28)."""


class Rules(Record, frozen=True, tag="rules"):
    """Record of one origin's robots.txt."""

    body: bytes | None = None
    """Last good copy, empty if the file does not exist; None before the first."""

    body_at: float = 0.0
    """Time of that copy."""

    valid_until: float = 0.0
    """Time until which no request is needed, after success or failure."""

    failures: int = 0
    """Consecutive failures."""

    why: str = ""
    """Error of the last attempt, in words; empty after a success."""

    claimed_until: float = 0.0
    claimed_by: int = 0
    checked_at: float = 0.0
    """Time of the last attempt, successful or not."""

    part: bytes = b""
    """Whole lines of a later, incomplete copy: they apply, and the rest counts as unreachable (C21)."""

    no_answer: str = ""
    """Why the last attempt got no response at all; empty after any response, an error status included."""

    def lasts(self, now: Now) -> int | None:
        """Return the microseconds to store the record: validity plus a week, for unreachable sites (R6)."""
        return max(0, round((self.valid_until + 7 * 86_400) * SECOND) - now.epoch)

    @property
    def weight(self) -> int:
        """Bytes of the texts."""
        return len(self.body or b"") + len(self.part)

    @property
    def text(self) -> bytes:
        """Last good copy or, if it is absent or empty, the received part of an incomplete one."""
        return self.body or self.part

    @property
    def is_known(self) -> bool:
        """True if there is a copy, or the knowledge that the file is unreachable."""
        return self.body is not None or self.failures > 0


class Known(msgspec.Struct, frozen=True, gc=False):
    """Rules that are valid now."""

    rules: Rules
    seconds: float
    """Seconds of remaining validity."""

    heeded: dict[str, float] = {}
    """Their Crawl-delay in seconds, by each user agent for which it is recorded."""


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """Task of fetching the rules, assigned to this process; with the previous record."""

    rules: Rules | None


class Busy(msgspec.Struct, frozen=True, gc=False):
    """Claim of another process that fetches the rules; it expires after `seconds`."""

    seconds: float


def claim(
    rules: Rules | None, now: Now, who: int, since: float = 0.0, ttl: float = LONGEST, lasts: float = CLAIM
) -> tuple[Rules | None, Known | Claimed | Busy]:
    """Return the record, and the valid rules, the task of fetching them or the claim of another process.

    Rules fetched before epoch second `since`, or more than `ttl` seconds ago, are not valid. The claim expires after
    `lasts` seconds.
    """
    second = now.epoch / SECOND
    if rules is not None and rules.is_known and rules.checked_at > since:
        left = _left(rules, second, min(ttl, LONGEST))
        if left > 0:
            return rules, Known(rules, left)
    # A claim further ahead than the longest possible one comes from a clock that was set back.
    if rules is not None and rules.claimed_by != who and second < rules.claimed_until <= second + max(CLAIM, lasts):
        return rules, Busy(rules.claimed_until - second)
    changed = msgspec.structs.replace(rules or Rules(), claimed_until=second + lasts, claimed_by=who)
    return changed, Claimed(rules)


def _left(rules: Rules, second: float, ttl: float) -> float:
    """Return the seconds of remaining validity by the present settings; 0 or less: request again.

    The settings may have changed since the last attempt.
    """
    most = max(ttl, FIRST_FAILURE) if rules.failures else ttl
    left = rules.checked_at + most - second
    if rules.failures:
        left = min(left, rules.valid_until - second)
    # A validity longer than the longest possible one comes from a clock that was set back.
    return left if left <= most + SKEW else 0.0


def learned(
    rules: Rules | None,
    now: Now,
    policy: Policy,
    body: bytes | None,
    why: str = "",
    part: bytes = b"",
    no_answer: str = "",
) -> Rules:
    """Return the record after a fetch.

    `body` is the file, empty after a 4xx; None if it is unreachable, with the reason in `why`. `part` is the received
    part of an incomplete body. `no_answer` is the reason if no response came at all.
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
        no_answer=no_answer,
    )


def released(rules: Rules | None, who: int) -> Rules | None:
    """Return the record after its holder released the claim without a result."""
    if rules is None or rules.claimed_by != who:
        return rules
    return msgspec.structs.replace(rules, claimed_until=0.0, claimed_by=0)


_read: Bounded[tuple[str, bytes], tuple[AgentRules, int]] = Bounded(4096, READ, lambda each: each[1])
"""Compiled rules and their bytes, by token and text."""


def agent_rules(text: bytes, user_agent: str) -> AgentRules:
    """Return the compiled rules of a robots.txt for an agent, from a bounded cache."""
    key = token_of(user_agent), text
    known = _read.get(key)
    if known is None:
        found = parse_for(text, key[0])
        known = found, found.size + len(text)
        _read.put(key, known)
    return known[0]


ALL_ALLOWED = Verdict(True, None, None, None, "the site has no robots.txt that can be read, so everything is allowed")
UNREACHABLE = Verdict(False, None, None, None, "the site's robots.txt cannot be fetched, and the settings require it")


def filters(rules: Rules, policy: Policy, user_agent: str, url: str) -> Verdict:
    """Return the verdict of the rules on a URL; without a copy, that of the settings (R6, C5).

    The prohibitions of an incomplete copy apply. Its other URLs are judged as if it were unreachable (C21).
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
    """Return the seconds that the site wants between two requests; None without a value."""
    said = (agent_rules(text, user_agent).crawl_delay for text in (rules.body, rules.part) if text)
    return max((delay for delay in said if delay is not None), default=None)

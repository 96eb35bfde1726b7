"""Referee: what the sites see, held against the policies.

He is told who was asked for what and when, what was answered and when, and whose asker died; he knows the policies and
what the sites' robots.txt say. He looks into no record of curtsy's, and judges by rules of his own.

Where he is lenient, and why:
- A request whose asker has died counts as on its way until the site has answered it, or until a living asker would have
  hung up: the site works on it as long. Its place, by the record, is held longer.
- Between admission and the wire lies the time to connect (`lag`). The record learns of it with the answer, so the next
  after a request whose asker died, or after a connection that was refused, is paced from the admission of that: its gap
  may be short by the lag. The former are counted as `graces`, not as violations. A request within `lag` of midnight may
  be charged to either day.
- What the breaker's error rate does besides the failures in a row is more than he asks for.
"""

from __future__ import annotations

from collections import Counter, deque
from datetime import UTC, datetime
from hashlib import sha256

from curtsy.core.policy import Policies, Policy
from curtsy.core.time import SECOND
from tests.simulation.character import NEVER, REFUSED
from tests.simulation.world import World

TICK = 2
"""Microseconds that a float of seconds may be off by."""

FORGIVEN = 20_000
"""Microseconds by which a departure of the global rate may be late without being counted from then on."""

PATIENCE = 600 * SECOND
"""How long a request may wait between the verdict of the rules and its departure: the lease of its URL."""

ROBOTS_FAILURE = 300 * SECOND
"""How long a robots.txt that could not be had is not asked for again, at the least."""


class Flight:
    """A request on the wire."""

    __slots__ = ("is_refused", "is_robots", "is_trial", "is_unheard", "key", "name", "sent_at", "url")

    def __init__(self, key: str, name: str, url: str, sent_at: int, *, is_trial: bool, is_refused: bool) -> None:
        self.key, self.name, self.url, self.sent_at = key, name, url, sent_at
        self.is_robots = url.endswith("/robots.txt")
        self.is_trial = is_trial
        """Whether it left while the breaker was not closed."""
        self.is_refused = is_refused
        """Whether there was no connection, so that nothing was asked."""
        self.is_unheard = False
        """Whether the record never heard when it really left, for its asker died."""


class Conduct:
    """How one host, or those that share a record, have been treated so far."""

    __slots__ = (
        "closed_at", "crawl_delays", "days", "failed_trials", "failures", "last", "lasts", "level", "level_at",
        "on_wire", "open_until", "policy", "recent", "retry_after_until",
    )  # fmt: skip

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.last: Flight | None = None
        self.lasts: dict[str, Flight] = {}
        """The last one of each origin that has asked for a Crawl-delay."""
        self.on_wire: list[Flight] = []
        self.level, self.level_at = 0.0, 0
        """A bucket that every request fills by one, and that leaks at the rate."""
        self.recent: deque[int] = deque(maxlen=max(1, int(policy.burst)))
        self.days: dict[int, list[int]] = {}
        """Of each local day: requests, pages, and how many were so early that they may belong to the one before."""
        self.crawl_delays: dict[str, int] = {}
        self.retry_after_until = 0
        self.open_until = 0
        """When the breaker's cooldown ends; 0 while it is closed."""
        self.failures = self.failed_trials = self.closed_at = 0


class Rules:
    """What we have been told by one origin's robots.txt."""

    __slots__ = ("answered_at", "holds_from", "is_file", "learned_at")

    def __init__(self) -> None:
        self.is_file = False
        """Whether the last good copy is a file, and not the word that there is none."""
        self.holds_from = 0
        """Until then something may leave that was judged when there was no file."""
        self.learned_at: int | None = None
        """When a good copy came last."""
        self.answered_at: int | None = None
        """When anything came last, be it an error."""


class Referee:
    """Watches the wire, and counts what breaks a rule."""

    def __init__(self, world: World, policies: Policies, began: int, epoch: int, lag: int) -> None:
        self._world, self._policies, self._lag = world, policies, lag
        self._offset = epoch - began
        self._conducts: dict[str, Conduct] = {}
        self._rules: dict[str, Rules] = {}
        self._final: dict[int, Flight] = {}
        """URLs that were answered for good, by the request that was."""
        self._interrupted: set[int] = set()
        self._level, self._level_at = 0.0, 0
        self._trace = sha256()
        self.sends: Counter[str] = Counter()
        self.statuses: Counter[int] = Counter()
        self.violations: Counter[str] = Counter()
        self.examples: list[str] = []
        """The first of them, in words."""
        self.graces = 0
        self.repeats = 0
        """Pages that were asked for again because their asker died with the answer, or on the way to it."""

    @property
    def digest(self) -> str:
        """All that was seen on the wire, in one number."""
        return self._trace.hexdigest()

    # What he is told

    def sent(self, url: str, at: int, *, is_refused: bool) -> Flight:
        """A request is on the wire, or knocks in vain."""
        self._trace.update(f"{at} > {url}\n".encode())
        name = url.split("/", 3)[2]
        policy = self._policies.of(name)
        key = policy.key or name
        conduct = self._conducts.get(key)
        if conduct is None:
            conduct = self._conducts[key] = Conduct(policy)
        is_trial = policy.breaker and conduct.open_until > 0
        flight = Flight(key, name, url, at, is_trial=is_trial, is_refused=is_refused)
        self.sends["refused" if is_refused else "robots" if flight.is_robots else "page"] += 1
        self._check_allowed(flight, policy)
        self._check_pace(flight, conduct)
        self._check_rest(flight, conduct)
        self._check_all(at)
        if flight.is_robots:
            self._check_robots_once(flight, policy)
        else:
            self._check_repeat(flight)
        if not is_refused:
            self._check_budget(flight, conduct, 0)
        conduct.last = flight
        conduct.on_wire.append(flight)
        return flight

    def answered(
        self, flight: Flight, at: int, status: int, retry_after: float | None, *, is_heard: bool, is_learned: bool
    ) -> None:
        """A request was answered. `is_heard` if its asker lived to write that down, `is_learned` if he read it too."""
        self._trace.update(f"{at} < {status} {flight.url}\n".encode())
        self.statuses[status] += 1
        conduct = self._conducts[flight.key]
        conduct.on_wire.remove(flight)
        if not flight.is_robots and 200 <= status < 300:
            self._check_budget(flight, conduct, 1)
        if not is_heard:
            flight.is_unheard = True
            return
        if flight.is_robots and is_learned:
            self._learn(flight, at, status)
        elif not flight.is_robots and status not in (NEVER, REFUSED, 429) and status < 500:
            self._final[self._world.number(flight.url)] = flight
        is_trouble = status <= 0 or status == 429 or status >= 500 or (status == 403 and not flight.is_robots)
        if is_trouble and retry_after is not None:
            rest = round(min(retry_after, conduct.policy.max_retry_after) * SECOND)
            conduct.retry_after_until = max(conduct.retry_after_until, at + rest)
        if conduct.policy.breaker:
            self._filters(flight, conduct, at, status, retry_after, is_trouble)

    def died(self, single_flight: list[Flight]) -> None:
        """Whoever made these requests has died before he was done with their URL."""
        for flight in single_flight:
            if not flight.is_robots:
                number = self._world.number(flight.url)
                self._interrupted.add(number)
                if self._final.get(number) is flight:
                    del self._final[number]

    # What he makes of it

    def _violation(self, rule: str, flight: Flight, words: str) -> None:
        self.violations[rule] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{rule} at {flight.sent_at}: {flight.url}: {words}")

    def _check_allowed(self, flight: Flight, policy: Policy) -> None:
        """Denylist, denied paths, robots.txt."""
        path = "/" + flight.url.split("/", 3)[3]
        if policy.denied:
            self._violation("denied", flight, "it is on the denylist")
        if not flight.is_robots and any(path.startswith(each) for each in policy.deny_paths):
            self._violation("denied", flight, "its path is denied")
        if flight.is_robots or not policy.respect_robots:
            return
        rules = self._rules.get(flight.name)
        if rules is None or rules.answered_at is None:
            self._violation("robots", flight, "a page before any robots.txt")
            return
        site = self._world.by_name[flight.name].character
        if rules.is_file and flight.sent_at >= rules.holds_from:
            if site.disallows and path.startswith("/private/"):
                self._violation("robots", flight, "it is disallowed")
            if site.crawl_delay is not None and site.crawl_delay > policy.max_crawl_delay:
                self._violation("robots", flight, "it wants to be left alone for longer than we wait")
        if rules.learned_at is None and policy.robots_unreachable == "disallow":
            self._violation("robots", flight, "its robots.txt cannot be had")
        if flight.sent_at - rules.answered_at > policy.robots_ttl * SECOND + PATIENCE:
            self._violation("robots", flight, "its robots.txt is out of date")

    def _check_robots_once(self, flight: Flight, policy: Policy) -> None:
        rules = self._rules.setdefault(flight.name, Rules())
        at = flight.sent_at
        if rules.learned_at is not None and at - rules.learned_at < policy.robots_ttl * SECOND - 1000:
            self._violation("robots", flight, "robots.txt again, though the copy is good")
        elif rules.answered_at not in (None, rules.learned_at) and at - rules.answered_at < ROBOTS_FAILURE - 1000:
            self._violation("robots", flight, "robots.txt again, so soon after it could not be had")

    def _learn(self, flight: Flight, at: int, status: int) -> None:
        rules, conduct = self._rules[flight.name], self._conducts[flight.key]
        if 200 <= status < 500 and status != 429:
            is_file = status == 200
            if is_file and not rules.is_file and rules.answered_at is not None:
                rules.holds_from = at + PATIENCE
            rules.learned_at, rules.is_file = at, is_file
            conduct.crawl_delays.pop(flight.name, None)
            delay = self._world.by_name[flight.name].character.crawl_delay if is_file else None
            if delay is not None:
                conduct.crawl_delays[flight.name] = round(delay * SECOND)
                conduct.lasts[flight.name] = flight
        rules.answered_at = at

    def _check_pace(self, flight: Flight, conduct: Conduct) -> None:
        """Interval or bucket or window, least pause, delay, Crawl-delay, and how many at once."""
        policy, at, last = conduct.policy, flight.sent_at, conduct.last
        if policy.concurrency is not None and len(conduct.on_wire) >= policy.concurrency:
            self._violation("concurrency", flight, f"{len(conduct.on_wire)} others are on their way")
        floor = max(policy.pause_min, policy.delay)
        if policy.qps is not None:
            if policy.strategy == "leaky_bucket" or policy.burst == 1:
                floor = max(floor, 1 / policy.qps)
            elif policy.strategy == "sliding_window":
                window = policy.burst / policy.qps * SECOND
                if len(conduct.recent) == policy.burst and at - conduct.recent[0] < window - TICK:
                    self._violation("rate", flight, f"{policy.burst + 1} within {at - conduct.recent[0]}")
                conduct.recent.append(at)
            else:
                leaked = (at - conduct.level_at) * policy.qps / SECOND
                conduct.level, conduct.level_at = max(0.0, conduct.level - leaked) + 1, at
                if conduct.level > policy.burst + 1e-5:
                    self._violation("rate", flight, f"the bucket holds {conduct.level:.3f}")
        self._check_gap(flight, last, round(floor * SECOND))
        wished = conduct.crawl_delays.get(flight.name)
        if wished is not None:
            wished = min(wished, round(policy.max_crawl_delay * SECOND))
            self._check_gap(flight, conduct.lasts.get(flight.name), wished)
            conduct.lasts[flight.name] = flight

    def _check_gap(self, flight: Flight, last: Flight | None, gap: int) -> None:
        if last is None or (short := gap - (flight.sent_at - last.sent_at)) <= TICK:
            return
        if (last.is_unheard or last.is_refused) and short <= self._lag + TICK:
            self.graces += last.is_unheard
        else:
            self._violation("gap", flight, f"{gap - short} instead of {gap} after {last.url}")

    def _check_rest(self, flight: Flight, conduct: Conduct) -> None:
        """Retry-After, and the breaker with its one trial."""
        at = flight.sent_at
        if at < conduct.retry_after_until - TICK:
            self._violation("retry_after", flight, f"{conduct.retry_after_until - at} too early")
        if flight.is_trial:
            if at < conduct.open_until - TICK:
                self._violation("breaker", flight, f"{conduct.open_until - at} before the cooldown ends")
            elif any(each.is_trial and each.sent_at >= conduct.open_until - TICK for each in conduct.on_wire):
                self._violation("breaker", flight, "a second trial beside the first")

    def _check_all(self, at: int) -> None:
        """The rate of all hosts together."""
        qps = self._policies.global_qps
        if qps is None:
            return
        self._level = max(0.0, self._level - (at - self._level_at) * qps / SECOND) + 1
        self._level_at = at
        if self._level > self._policies.overall.burst + qps * (FORGIVEN + self._lag) / SECOND + 1e-5:
            self.violations["global"] += 1
            if len(self.examples) < 20:
                self.examples.append(f"global at {at}: the bucket holds {self._level:.3f}")

    def _check_budget(self, flight: Flight, conduct: Conduct, which: int) -> None:
        """Requests (0) and pages (1) of a local day."""
        policy = conduct.policy
        most = policy.max_pages_per_day if which else policy.max_requests_per_day
        if not most:
            return
        second, rest = divmod(flight.sent_at + self._offset, SECOND)
        local = datetime.fromtimestamp(second, policy.timezone or UTC)
        day = conduct.days.setdefault(local.toordinal(), [0, 0, 0])
        day[which] += 1
        since = (local.hour * 3600 + local.minute * 60 + local.second) * SECOND + rest
        day[2] += which == 0 and since < self._lag
        if day[which] > most + day[2]:
            self._violation("budget", flight, f"{day[which]} {'pages' if which else 'requests'} instead of {most}")

    def _check_repeat(self, flight: Flight) -> None:
        number = self._world.number(flight.url)
        if number in self._interrupted:
            self._interrupted.remove(number)
            self.repeats += 1
        if number in self._final:
            self._violation("repeat", flight, "it had been answered, and its asker lived")

    def _filters(
        self, flight: Flight, conduct: Conduct, at: int, status: int, retry_after: float | None, is_trouble: bool
    ) -> None:
        """Whether an answer opens the breaker, or closes it (Q4, Q5, C2)."""
        policy = conduct.policy
        if conduct.open_until:
            if flight.sent_at < conduct.open_until - TICK:
                return
            if is_trouble:
                self._open(conduct, at, retry_after, conduct.failed_trials + 1)
            else:
                conduct.open_until = conduct.failures = conduct.failed_trials = 0
                conduct.closed_at = at
            return
        if flight.sent_at < conduct.closed_at:
            return
        is_short = retry_after is not None and retry_after <= policy.obey_retry_after
        is_obeyed = policy.on_429 == "obey" and is_short
        if status == 403 and is_trouble:
            self._open(conduct, at, retry_after, 0)
        elif status == 429:
            if policy.on_429 == "trip" or (policy.on_429 == "obey" and not is_short):
                self._open(conduct, at, retry_after, 0)
        elif status == 503 and retry_after is not None and policy.on_429 == "obey":
            if not is_obeyed:
                self._open(conduct, at, retry_after, 0)
        elif is_trouble:
            conduct.failures += 1
            if conduct.failures >= policy.breaker_failures:
                self._open(conduct, at, retry_after, 0)
        else:
            conduct.failures = 0

    def _open(self, conduct: Conduct, at: int, retry_after: float | None, failed_trials: int) -> None:
        policy = conduct.policy
        cooldown = min(policy.breaker_cooldown * 2**failed_trials, policy.breaker_max_cooldown)
        cooldown = max(cooldown, policy.breaker_cooldown, min(retry_after or 0.0, policy.max_retry_after))
        conduct.open_until = at + round(cooldown * SECOND)
        conduct.failed_trials, conduct.failures = failed_trials, 0

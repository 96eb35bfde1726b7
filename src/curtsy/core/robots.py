"""robots.txt, parsed and asked (RFC 9309): may this be fetched, which line says so, how slowly, where are the sitemaps.

The rules are the RFC's, and where it is silent those of Google's parser; numbers in comments are sections of the RFC.
Nothing here raises for what a file, an agent or a URL contains. How octets are compared is in `pattern.py`.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from datetime import time
from functools import lru_cache
from operator import itemgetter

from curtsy.core.pattern import WHITE, Patterns, Rule, octets_of
from curtsy.core.robots_lines import MAX_BYTES as MAX_BYTES
from curtsy.core.robots_lines import MAX_LINE as MAX_LINE
from curtsy.core.robots_lines import Texts, lines_of, shortened, text_of

MAX_WARNINGS = 100
"""Oddities that are told; a file of rubbish has one on each line."""

MAX_AGENTS = 64
"""Agents whose rules are kept compiled."""

MAX_SIGNALS = 100
"""`Content-Signal` and `Content-Usage` records that are kept for one agent."""

MAX_VERDICTS = 1024
"""Rules of one agent whose verdict is kept in words."""

_AGENT, _ALLOW, _DISALLOW, _SITEMAP = "user-agent", "allow", "disallow", "sitemap"
_DELAY, _RATE, _VISIT, _SIGNAL, _USAGE = "crawl-delay", "request-rate", "visit-time", "content-signal", "content-usage"

# 2.2: field names ignore case. They match whole, for "disallowed" is another word; Google's parser takes any name that
# begins so. The misspellings are Google's; those of fields that it does not read follow the same pattern.
_FIELDS = {
    **{name: name for name in (_AGENT, _ALLOW, _DISALLOW, _SITEMAP, _DELAY, _RATE, _VISIT, _SIGNAL, _USAGE)},
    **dict.fromkeys(("useragent", "user agent"), _AGENT),
    **dict.fromkeys(("dissallow", "dissalow", "disalow", "diasllow", "disallaw"), _DISALLOW),
    **dict.fromkeys(("site-map", "sitemaps"), _SITEMAP),
    **dict.fromkeys(("crawldelay", "crawl delay"), _DELAY),
    **dict.fromkeys(("requestrate", "request rate"), _RATE),
    **dict.fromkeys(("visittime", "visit time"), _VISIT),
}
_SHORTEST = len("allow:")
_USUAL = {
    write(name): known for name, known in _FIELDS.items() for write in (str.lower, str.capitalize, str.title, str.upper)
}

# A product token is read whole, up to a delimiter of RFC 9110 (5.6.2), white space or a star. RFC 9309 (2.2.1) knows
# letters, hyphens and underscores only. Google's parser stops at any other character, so that it takes "Wren9bot" for
# "Wren"; here a token with digits, dots or other characters is another token than its beginning.
_token = re.compile(r'[^\x00-\x20\x7f"(),/:;<=>?@\[\\\]{}*\ud800-\udfff]*').match
_white = re.compile("[ \t]+")
# Possessive (`++`): a line of digits that ends in something else takes time by its length, not by its square.
_number = re.compile(r"\+?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?").fullmatch
_clock = "([01]?[0-9]|2[0-3]):?([0-5][0-9])"
_period = re.compile(rf"{_clock}(?:[ \t]*-[ \t]*|[ \t]+){_clock}").fullmatch
_rate = re.compile("([0-9]{1,9})[ \t]*/[ \t]*([0-9]{1,9})[ \t]*([smhd]?)(?:[ \t]+(.+))?", re.IGNORECASE).fullmatch

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

_Record = tuple[str, int, str]
"""A further record of a group: field, line, value."""

_Group = tuple[int, list[Rule]]
"""A group as one of its agents sees it: the line that names the agent, and the rules."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer for one agent and one URL, and what it rests on."""

    allowed: bool
    """Whether the URL may be fetched."""

    line: int | None
    """The number of the line that decided, from 1; None when no rule matched."""

    rule: str | None
    """That line as it stands in the file, without comment."""

    group: str | None
    """The `User-agent` line that applied; None when no group did."""

    reason: str
    """The same in words."""


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Rules that stand together, and whom they are for."""

    line: int
    """The number of the first line that names an agent, from 1."""

    agents: tuple[str, ...]
    """The agents' tokens, in lower case; `*` for everyone."""

    rules: tuple[tuple[int, str], ...]
    """The number and the text of each rule's line."""

    applies: bool
    """Whether it is for the agent that was asked about."""


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A `Request-rate` record: so many requests in so many seconds."""

    requests: int
    """How many."""

    seconds: int
    """In how long."""

    start_time: time | None = None
    """From when in the day (UTC) this holds; None: always."""

    end_time: time | None = None
    """Until when."""

    @property
    def interval(self) -> float:
        """Seconds from one request to the next."""
        return self.seconds / self.requests


@dataclass(frozen=True, slots=True)
class VisitTime:
    """A `Visit-time` record: when in the day (UTC) the site wishes to be visited."""

    start_time: time
    """From when."""

    end_time: time
    """Until when; before `start_time` if midnight lies between."""


@dataclass(frozen=True, slots=True)
class ContentSignal:
    """A `Content-Signal` or `Content-Usage` record, as it stands in the file."""

    line: int
    """The number of its line, from 1."""

    field: str
    """Its field, in lower case."""

    value: str
    """What follows the colon."""


@dataclass(frozen=True, slots=True)
class ParseWarning:
    """Something in the file that its author may want to know."""

    line: int
    """The number of the line, from 1."""

    message: str
    """What is odd about it, and what was made of it."""


_ITSELF = Verdict(True, None, None, None, "/robots.txt itself is always allowed (RFC 9309, 2.2.2)")


def product_token(user_agent: str) -> str:
    """Take the product token from a user agent: `AIAssistantBot` from `AIAssistantBot/1.0 (+https://…)`.

    It ends at the first slash, blank, star or other delimiter (RFC 9110, 5.6.2). If there is none it is empty, and the
    agent has the rules for `*`.
    """
    match = _token(user_agent.lstrip())
    return match[0] if match else ""


@lru_cache(maxsize=256)  # most programs have one user agent
def token_of(user_agent: str) -> str:
    """The product token of a user agent as it is compared: in lower case, an octet a character."""
    return product_token(user_agent).encode("utf-8", "surrogatepass").lower().decode("latin-1")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Robots:
    """A robots.txt file that has been read. `parse` makes it.

    An agent may be given as a product token or as the whole `User-Agent` header; see `product_token`.
    """

    sitemaps: tuple[str, ...]
    """What the `Sitemap` lines name, each once, in the file's order."""

    _lines: list[str]
    _groups: dict[str, list[_Group]]
    _records: dict[str, list[list[_Record]]]
    _remarks: list[ParseWarning]
    _books: dict[str, "AgentRules"] = field(default_factory=dict)
    _books_by_agent: dict[str, "AgentRules"] = field(default_factory=dict)

    def verdict(self, user_agent: str, url: str) -> Verdict:
        """Say whether the agent may fetch the URL, and which line decides.

        The URL may be a whole one or only its path; what the file says is not about any other part of it.
        """
        return (self._books_by_agent.get(user_agent) or self._book(user_agent)).verdict(url)

    def crawl_delay(self, user_agent: str) -> float | None:
        """Give the seconds that the agent shall let pass between requests; the longest, if several lines say so.

        A value that is negative or no finite number is ignored. None when nothing is said.
        """
        return _longest(self._records_of(user_agent, _DELAY))

    def request_rate(self, user_agent: str) -> RequestRate | None:
        """Give the agent's `Request-rate`; the slowest, if several lines say so. None when nothing is said."""
        rates = (_request_rate(value) for _, _, value in self._records_of(user_agent, _RATE))
        return max((rate for rate in rates if rate is not None), key=lambda rate: rate.interval, default=None)

    def visit_time(self, user_agent: str) -> VisitTime | None:
        """Give the agent's `Visit-time`; the first, if several lines say so. None when nothing is said."""
        times = (_visit_time(value) for _, _, value in self._records_of(user_agent, _VISIT))
        return next((visit for visit in times if visit is not None), None)

    def content_signals(self, user_agent: str) -> tuple[ContentSignal, ...]:
        """List the `Content-Signal` and `Content-Usage` records of the agent's groups, in the file's order."""
        records = self._records_of(user_agent, _SIGNAL, _USAGE)
        return tuple(ContentSignal(line, name, text_of(value)) for name, line, value in records)

    def groups(self, user_agent: str) -> tuple[RuleGroup, ...]:
        """List the groups of the file, in its order, each with whether it is for the agent."""
        ours = self._key(user_agent)
        named: dict[int, list[tuple[int, str, list[Rule]]]] = {}
        for agent, groups in self._groups.items():
            for line, rules in groups:
                named.setdefault(id(rules), []).append((line, agent, rules))
        found = [
            RuleGroup(
                line=min(line for line, _, _ in each),
                agents=tuple(text_of(agent) for _, agent, _ in each),
                rules=tuple((number, text_of(self._lines[number - 1])) for number, _, _ in each[0][2]),
                applies=any(agent == ours for _, agent, _ in each),
            )
            for each in named.values()
        ]
        return tuple(sorted(found, key=lambda group: group.line))

    @property
    def warnings(self) -> tuple[ParseWarning, ...]:
        """What was odd in the file, by line; at most 100. Looked for anew at each call."""
        return tuple(self._remarks + _parse_warnings(self._lines))[:MAX_WARNINGS]

    def _key(self, user_agent: str) -> str:
        # 2.2.1: the groups that name the agent; only if there is none, those for "*". A group without rules counts.
        token = token_of(user_agent)
        return token if token in self._groups else "*"

    def _records_of(self, user_agent: str, *names: str) -> list[_Record]:
        records = self._records.get(self._key(user_agent), [])
        return [record for some in records for record in some if record[0] in names]

    def _book(self, user_agent: str) -> "AgentRules":
        key = self._key(user_agent)
        book = self._books.get(key)
        if book is None:
            if len(self._books) >= MAX_AGENTS:
                self._books.clear()
            groups, records = self._groups.get(key, []), self._records.get(key, [])
            book = self._books[key] = AgentRules(groups, records, self.sitemaps, self._lines)
        if len(self._books_by_agent) >= MAX_AGENTS:
            self._books_by_agent.clear()
        self._books_by_agent[user_agent] = book
        return book


class AgentRules:
    """What a file says to one agent, compiled: `parse_for` makes it. It keeps nothing that is for other agents.

    A file of 500 KiB may have 50,000 rules, so they are packed: a tuple with its values for each would take 200 bytes.
    """

    __slots__ = ("_agents", "_patterns", "_rules", "_verdicts", "content_signals", "crawl_delay", "sitemaps", "size")

    def __init__(
        self, groups: list[_Group], records: list[list[_Record]], sitemaps: tuple[str, ...], lines: list[str]
    ) -> None:
        rules = groups[0][1] if len(groups) == 1 else [rule for _, each in groups for rule in each]  # 2.2.1: combined
        self.sitemaps = sitemaps
        """What the `Sitemap` lines name, each once, in the file's order."""

        told = [record for some in records for record in some]
        self.crawl_delay = _longest([record for record in told if record[0] is _DELAY])
        """Seconds between two requests that the site asks for; None when nothing is said."""

        signals = [record for record in told if record[0] in (_SIGNAL, _USAGE)][:MAX_SIGNALS]
        self.content_signals = tuple(ContentSignal(line, name, text_of(value)) for name, line, value in signals)
        """The first `Content-Signal` and `Content-Usage` records, in the file's order."""

        self._agents = Texts([line for line, _ in groups], lines)
        self._rules = Texts(list(map(itemgetter(0), rules)), lines)
        self._patterns = Patterns(rules)
        self._verdicts: dict[int, Verdict] = {}
        """By the place of the rule that decides: a verdict has nothing of the URL in it."""

        further = (
            4 * sum(map(len, sitemaps)) + 64 * len(sitemaps) + sum(len(each.value) for each in self.content_signals)
        )
        kept = self._agents.size + self._rules.size + self._patterns.size
        self.size = 1024 + kept + further + 512 * min(len(rules), MAX_VERDICTS)
        """About how many bytes this takes, with all that it may yet compute."""

    def verdict(self, url: str) -> Verdict:
        """Say whether the agent may fetch the URL, and which line decides. See `Robots.verdict`."""
        path = octets_of(url)
        if path == "/robots.txt":  # 2.2.2: implicitly allowed
            return _ITSELF
        place = self._patterns.best(path)
        return self._verdicts.get(place) or self._explain(place)

    def _explain(self, place: int) -> Verdict:
        if len(self._verdicts) >= MAX_VERDICTS:
            self._verdicts.clear()
        verdict = self._verdicts[place] = self._explanation(place)
        return verdict

    def _explanation(self, place: int) -> Verdict:
        agents, rules = self._agents, self._rules
        if not len(agents):
            return Verdict(True, None, None, None, "the file has no group for this agent, and none for *")
        if place < 0:
            group = agents.text(0)
            reason = f'no rule of "{shortened(group)}" matches' if len(rules) else f'"{shortened(group)}" has no rules'
            return Verdict(True, None, None, group, reason)
        line, allowed = rules.numbers[place], self._patterns.allows(place)
        group, rule = agents.text(bisect_left(agents.numbers, line) - 1), rules.text(place)
        says = "allows" if allowed else "forbids"
        return Verdict(
            allowed, line, rule, group, f'line {line}, "{shortened(rule)}", {says} it to "{shortened(group)}"'
        )


def parse(body: bytes) -> Robots:
    """Read a robots.txt file; any bytes will do."""
    lines, remarks = lines_of(body)
    groups, further, sitemaps = _grouped(lines)
    return Robots(sitemaps, lines, groups, further, [ParseWarning(*remark) for remark in remarks])


def parse_for(body: bytes, token: str) -> AgentRules:
    """Read what a robots.txt file says to one agent, given by its token (see `token_of`); any bytes will do."""
    lines, _ = lines_of(body)
    groups, further, sitemaps = _grouped(lines, (token, "*"))
    key = token if token in groups else "*"  # as in `Robots._key`
    return AgentRules(groups.get(key, []), further.get(key, []), sitemaps, lines)


def _grouped(
    lines: list[str], wanted: Container[str] | None = None
) -> tuple[dict[str, list[_Group]], dict[str, list[list[_Record]]], tuple[str, ...]]:
    """Sort lines into the groups and further records of each agent, or of those wanted, and the sitemaps."""
    groups: dict[str, list[_Group]] = {}
    further: dict[str, list[list[_Record]]] = {}
    sitemaps: dict[str, None] = {}
    rules: list[Rule] = []
    records: list[_Record] = []
    naming = False  # whether a further User-agent line joins the group
    for number, line in enumerate(lines, 1):
        if len(line) < _SHORTEST:
            continue
        name, colon, value = line.partition(":")
        known = _USUAL.get(name)
        if known is None or not colon:
            known, value = _read(line)
        if known is _DISALLOW or known is _ALLOW:
            rules.append((number, known is _ALLOW, value))
            naming = False
        elif known is _AGENT:
            # 2.1: User-agent lines that follow each other open one group. Only a rule ends their list: other records
            # must not interfere (2.2.4).
            if not naming:
                naming, rules, records = True, [], []
            elif records and not lines[number - 2].strip(WHITE):
                # What the RFC does not know, and an empty line parts from here, is taken to be about the agents above.
                records = []
            token = _agent_token(value.strip(WHITE))
            if wanted is not None and token not in wanted:
                continue
            named, told = groups.setdefault(token, []), further.setdefault(token, [])
            if not named or named[-1][1] is not rules:
                named.append((number, rules))
            if not told or told[-1] is not records:
                told.append(records)
        elif known is _SITEMAP:
            sitemaps[text_of(value)] = None  # 2.2.4: it belongs to no group
        elif known:
            records.append((known, number, value))
    groups.pop("", None)
    sitemaps.pop("", None)
    return groups, further, tuple(sitemaps)


parse_robots = parse
"""The same by the name that it has among the others of the package."""


def _read(line: str) -> tuple[str | None, str]:
    """Split a line that is written in no usual way into its field, if it is one that is known, and its value."""
    line = line.strip(WHITE)
    name, colon, value = line.partition(":")
    known = _FIELDS.get(name.rstrip(WHITE).lower()) if colon else None
    if known is None:
        # Google's parser takes white space for a forgotten colon if there are just two words. Here, the second may have
        # a colon of its own ("Sitemap https://…"), because a field's name must match whole.
        words = _white.split(line)
        if len(words) == 2 and ":" not in words[0]:
            return _FIELDS.get(words[0].lower()), words[1]
    return known, value


def _agent_token(value: str) -> str:
    # As in Google's parser: "* (all)" is still everyone, "Foo/1.0" is Foo, and what begins with no letter is nobody.
    if value[:1] == "*" and (len(value) == 1 or value[1] in WHITE):
        return "*"
    match = _token(value)
    return match[0].encode("latin-1").lower().decode("latin-1") if match else ""


def _longest(delays: Sequence[_Record]) -> float | None:
    """The longest of some `Crawl-delay` records that can be read; None if there is none."""
    seconds = map(_seconds, {value for _, _, value in delays})
    return max((each for each in seconds if each is not None), default=None)


def _seconds(value: str) -> float | None:
    value = value.strip(WHITE)
    delay = float(value) if _number(value) else math.nan
    return delay if math.isfinite(delay) else None


def _request_rate(value: str) -> RequestRate | None:
    if not (match := _rate(value.strip(WHITE))):
        return None
    requests, seconds = int(match[1]), int(match[2]) * _UNITS[match[3].lower()]
    visit = _visit_time(match[4]) if match[4] else None
    if not requests or not seconds or (match[4] and not visit):
        return None
    return RequestRate(requests, seconds, *((visit.start_time, visit.end_time) if visit else ()))


def _visit_time(value: str) -> VisitTime | None:
    match = _period(value.strip(WHITE))
    return VisitTime(time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))) if match else None


def _parse_warnings(lines: list[str]) -> list[ParseWarning]:
    """Go through the lines once more, for what their author may not have meant."""
    found: list[ParseWarning] = []
    in_group = False
    for number, line in enumerate(lines, 1):
        if len(found) >= MAX_WARNINGS:
            break
        if not line:
            continue
        known, value = _read(line)
        value = value.strip(WHITE)
        if known is None:
            message = "no field that is known; ignored" if line.strip(WHITE) else ""
        elif known is _AGENT:
            in_group = True
            message = "" if _agent_token(value) else "no product token, so these rules are nobody's"
        else:
            message = _parse_warning(known, value, in_group)
        written = line.strip(WHITE).partition(":")[0].rstrip(WHITE).lower()
        if known is not None and written != known:
            spelt = f"read as {known}"
            message = f"{spelt}; {message}" if message else spelt
        if message:
            found.append(ParseWarning(number, f'"{shortened(text_of(line))}": {message}'))
    return found


def _parse_warning(known: str, value: str, in_group: bool) -> str:
    if known is _SITEMAP:
        return "" if value else "empty; ignored"
    if not in_group:
        return "above the first User-agent line, so it is ignored"
    if known in (_ALLOW, _DISALLOW):
        return "begins with neither / nor *, so it matches nothing" if value and value[0] not in "/*" else ""
    parsers = {_DELAY: _seconds, _RATE: _request_rate, _VISIT: _visit_time}
    if known in parsers and parsers[known](value) is None:
        return "not understood; ignored"
    return ""

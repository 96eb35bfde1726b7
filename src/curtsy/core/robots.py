"""Parser of robots.txt, and its verdicts, delays and sitemaps (RFC 9309).

The rules are the RFC's and, where it is silent, those of Google's parser. Numbers in comments are sections of the RFC.
Nothing here raises, whatever a file, an agent or a URL contains. `longest_match.py` compares octets.
"""

import math
import re
from bisect import bisect_left
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from datetime import time
from functools import lru_cache
from operator import itemgetter

from curtsy.core.longest_match import WHITE, Patterns, Rule, octets_of
from curtsy.core.robots_lines import MAX_BYTES as MAX_BYTES
from curtsy.core.robots_lines import MAX_LINE as MAX_LINE
from curtsy.core.robots_lines import Texts, lines_of, shortened, text_of

MAX_WARNINGS = 100
"""Most warnings about a file: garbage has one on each line."""

MAX_AGENTS = 64
"""Most agents whose compiled rules are cached."""

MAX_SIGNALS = 100
"""Most `Content-Signal` and `Content-Usage` records that are kept for one agent."""

MAX_VERDICTS = 1024
"""Most rules of one agent whose verdicts are cached."""

_AGENT, _ALLOW, _DISALLOW, _SITEMAP = "user-agent", "allow", "disallow", "sitemap"
_DELAY, _RATE, _VISIT, _SIGNAL, _USAGE = "crawl-delay", "request-rate", "visit-time", "content-signal", "content-usage"

# 2.2: field names ignore case. They match whole, because "disallowed" is another word; Google's parser accepts any name
# with such a prefix. The misspellings are Google's; those of fields that it does not read follow the same pattern.
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

# A product token ends at a delimiter of RFC 9110 (5.6.2), white space or a star. RFC 9309 (2.2.1) allows letters,
# hyphens and underscores only. Google's parser stops at any other character, so it reads "Wren9bot" as "Wren". Here a
# token with digits, dots or other characters differs from its prefix.
_token = re.compile(r'[^\x00-\x20\x7f"(),/:;<=>?@\[\\\]{}*\ud800-\udfff]*').match
_white = re.compile("[ \t]+")
# Possessive (`++`): a line of digits with another end takes linear, not quadratic, time.
_number = re.compile(r"\+?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?").fullmatch
_clock = "([01]?[0-9]|2[0-3]):?([0-5][0-9])"
_period = re.compile(rf"{_clock}(?:[ \t]*-[ \t]*|[ \t]+){_clock}").fullmatch
_rate = re.compile("([0-9]{1,9})[ \t]*/[ \t]*([0-9]{1,9})[ \t]*([smhd]?)(?:[ \t]+(.+))?", re.IGNORECASE).fullmatch

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

_Record = tuple[str, int, str]
"""Other record of a group: field, line, value."""

_Group = tuple[int, list[Rule]]
"""Group for one of its agents: the line that names the agent, and the rules."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision for one agent and one URL, with its grounds."""

    allowed: bool
    """True if the URL may be fetched."""

    line: int | None
    """Number of the deciding line, from 1; None if no rule matches."""

    rule: str | None
    """Deciding line as in the file, without comment; None if no rule matches."""

    group: str | None
    """`User-agent` line that applies; None if no group applies."""

    reason: str
    """Decision in words."""


@dataclass(frozen=True, slots=True)
class RuleGroup:
    """Group of rules, with its agents."""

    line: int
    """Number of the first line that names an agent, from 1."""

    agents: tuple[str, ...]
    """Product tokens of the agents, in lower case; `*` for all agents."""

    rules: tuple[tuple[int, str], ...]
    """Line number and text of each rule."""

    applies: bool
    """True if the group applies to the given agent."""


@dataclass(frozen=True, slots=True)
class RequestRate:
    """`Request-rate` record: a number of requests in a number of seconds."""

    requests: int
    """Number of requests."""

    seconds: int
    """Number of seconds."""

    start_time: time | None = None
    """Start of the period of the day (UTC); None: always."""

    end_time: time | None = None
    """End of the period; None: always."""

    @property
    def interval(self) -> float:
        """Seconds from one request to the next."""
        return self.seconds / self.requests


@dataclass(frozen=True, slots=True)
class VisitTime:
    """`Visit-time` record: the period of the day (UTC) for visits."""

    start_time: time
    """Start of the period."""

    end_time: time
    """End of the period; before `start_time` if it includes midnight."""


@dataclass(frozen=True, slots=True)
class ContentSignal:
    """`Content-Signal` or `Content-Usage` record, as in the file."""

    line: int
    """Line number, from 1."""

    field: str
    """Field name, in lower case."""

    value: str
    """Text behind the colon."""


@dataclass(frozen=True, slots=True)
class ParseWarning:
    """Problem in the file that its author may want to know."""

    line: int
    """Line number, from 1."""

    message: str
    """Description of the problem, and how the line was read."""


_ITSELF = Verdict(True, None, None, None, "/robots.txt itself is always allowed (RFC 9309, 2.2.2)")


def product_token(user_agent: str) -> str:
    """Return the product token of a user agent: `AIAssistantBot` of `AIAssistantBot/1.0 (+https://…)`.

    It ends at the first slash, blank, star or other delimiter (RFC 9110, 5.6.2). If it is empty, the agent has
    the rules for `*`.
    """
    match = _token(user_agent.lstrip())
    return match[0] if match else ""


@lru_cache(maxsize=256)  # most programs have one user agent
def token_of(user_agent: str) -> str:
    """Return the product token of a user agent for comparison: in lower case, one character per octet."""
    return product_token(user_agent).encode("utf-8", "surrogatepass").lower().decode("latin-1")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Robots:
    """Parsed robots.txt file, created by `parse`.

    An agent is given as a product token or as the whole `User-Agent` header; see `product_token`.
    """

    sitemaps: tuple[str, ...]
    """Distinct values of the `Sitemap` lines, in the file's order."""

    _lines: list[str]
    _groups: dict[str, list[_Group]]
    _records: dict[str, list[list[_Record]]]
    _remarks: list[ParseWarning]
    _books: dict[str, "AgentRules"] = field(default_factory=dict)

    def verdict(self, user_agent: str, url: str) -> Verdict:
        """Return whether the agent may fetch the URL, and the deciding line.

        The URL may be complete or only a path. Rules apply to path and query.
        """
        book = self._books.get(user_agent)
        if book is None:
            if len(self._books) >= MAX_AGENTS:
                self._books.clear()
            key = self._key(user_agent)
            groups, records = self._groups.get(key, []), self._records.get(key, [])
            book = self._books[user_agent] = AgentRules(groups, records, self.sitemaps, self._lines)
        return book.verdict(url)

    def crawl_delay(self, user_agent: str) -> float | None:
        """Return the seconds between two requests of the agent; the longest, if several lines apply.

        None without a value. Negative and non-finite values are ignored.
        """
        return _longest(self._records_of(user_agent, _DELAY))

    def request_rate(self, user_agent: str) -> RequestRate | None:
        """Return the agent's `Request-rate`; the slowest, if several lines apply. None without a value."""
        rates = (_request_rate(value) for _, _, value in self._records_of(user_agent, _RATE))
        return max((rate for rate in rates if rate is not None), key=lambda rate: rate.interval, default=None)

    def visit_time(self, user_agent: str) -> VisitTime | None:
        """Return the agent's `Visit-time`; the first, if several lines apply. None without a value."""
        times = (_visit_time(value) for _, _, value in self._records_of(user_agent, _VISIT))
        return next((visit for visit in times if visit is not None), None)

    def content_signals(self, user_agent: str) -> tuple[ContentSignal, ...]:
        """Return the `Content-Signal` and `Content-Usage` records of the agent's groups, in the file's order."""
        records = self._records_of(user_agent, _SIGNAL, _USAGE)
        return tuple(ContentSignal(line, name, text_of(value)) for name, line, value in records)

    def groups(self, user_agent: str) -> tuple[RuleGroup, ...]:
        """Return the groups of the file, in its order. `applies` marks those for the agent."""
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
        """Warnings about the file, at most 100; computed at each access."""
        return tuple(self._remarks + _parse_warnings(self._lines))[:MAX_WARNINGS]

    def _key(self, user_agent: str) -> str:
        # 2.2.1: the groups that name the agent, or else those for "*". A group without rules counts.
        token = token_of(user_agent)
        return token if token in self._groups else "*"

    def _records_of(self, user_agent: str, *names: str) -> list[_Record]:
        records = self._records.get(self._key(user_agent), [])
        return [record for some in records for record in some if record[0] in names]


class AgentRules:
    """Compiled rules of a file for one agent, created by `parse_for`; rules for other agents are not kept.

    A file of 500 KiB may have 50,000 rules, so they are packed: each would take 200 bytes as a tuple with its values.
    """

    __slots__ = ("_agents", "_patterns", "_rules", "_verdicts", "content_signals", "crawl_delay", "sitemaps", "size")

    def __init__(
        self, groups: list[_Group], records: list[list[_Record]], sitemaps: tuple[str, ...], lines: list[str]
    ) -> None:
        rules = groups[0][1] if len(groups) == 1 else [rule for _, each in groups for rule in each]  # 2.2.1: combined
        self.sitemaps = sitemaps
        """Distinct values of the `Sitemap` lines, in the file's order."""

        told = [record for some in records for record in some]
        self.crawl_delay = _longest([record for record in told if record[0] is _DELAY])
        """Seconds between two requests that the site wants; None without a value."""

        signals = [record for record in told if record[0] in (_SIGNAL, _USAGE)][:MAX_SIGNALS]
        self.content_signals = tuple(ContentSignal(line, name, text_of(value)) for name, line, value in signals)
        """First `Content-Signal` and `Content-Usage` records, in the file's order."""

        self._agents = Texts([line for line, _ in groups], lines)
        self._rules = Texts(list(map(itemgetter(0), rules)), lines)
        self._patterns = Patterns(rules)
        self._verdicts: dict[int, Verdict] = {}
        """Verdicts by the index of the deciding rule: a verdict does not contain the URL."""

        further = (
            4 * sum(map(len, sitemaps)) + 64 * len(sitemaps) + sum(len(each.value) for each in self.content_signals)
        )
        kept = self._agents.size + self._rules.size + self._patterns.size
        self.size = 1024 + kept + further + 512 * min(len(rules), MAX_VERDICTS)
        """Approximate bytes of memory, with all that may be computed later."""

    def verdict(self, url: str) -> Verdict:
        """Return whether the agent may fetch the URL, and the deciding line. See `Robots.verdict`."""
        path = octets_of(url)
        if path == "/robots.txt":  # 2.2.2: implicitly allowed
            return _ITSELF
        place = self._patterns.best(path)
        verdict = self._verdicts.get(place)
        if verdict is None:
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
    """Parse a robots.txt file. Any bytes are accepted."""
    lines, remarks = lines_of(body)
    groups, further, sitemaps = _grouped(lines)
    return Robots(sitemaps, lines, groups, further, [ParseWarning(*remark) for remark in remarks])


def parse_for(body: bytes, token: str) -> AgentRules:
    """Parse the rules of a robots.txt file for one agent, given by its `token_of`. Any bytes are accepted."""
    lines, _ = lines_of(body)
    groups, further, sitemaps = _grouped(lines, (token, "*"))
    key = token if token in groups else "*"  # as in `Robots._key`
    return AgentRules(groups.get(key, []), further.get(key, []), sitemaps, lines)


def _grouped(
    lines: list[str], wanted: Container[str] | None = None
) -> tuple[dict[str, list[_Group]], dict[str, list[list[_Record]]], tuple[str, ...]]:
    """Return groups and other records by agent (None: all agents), and the sitemaps."""
    groups: dict[str, list[_Group]] = {}
    further: dict[str, list[list[_Record]]] = {}
    sitemaps: dict[str, None] = {}
    rules: list[Rule] = []
    records: list[_Record] = []
    naming = False  # True if a further User-agent line joins the group
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
            # 2.1: consecutive User-agent lines open one group. Only a rule ends their list: other records must not
            # interfere (2.2.4).
            rules = rules if naming else []
            # Records outside the RFC, separated from here by an empty line, apply to the agents above only.
            if not naming or (records and not lines[number - 2].strip(WHITE)):
                records = []
            naming = True
            token = _agent_token(value.strip(WHITE))
            if wanted is None or token in wanted:
                _name((number, rules), groups.setdefault(token, []), records, further.setdefault(token, []))
        elif known is _SITEMAP:
            sitemaps[text_of(value)] = None  # 2.2.4: it belongs to no group
        elif known:
            records.append((known, number, value))
    groups.pop("", None)
    sitemaps.pop("", None)
    return groups, further, tuple(sitemaps)


def _name(group: _Group, groups: list[_Group], records: list[_Record], others: list[list[_Record]]) -> None:
    """Add a group and its records to those of an agent, unless a line before has named the agent in this group."""
    if not groups or groups[-1][1] is not group[1]:
        groups.append(group)
    if not others or others[-1] is not records:
        others.append(records)


parse_robots = parse
"""Public name of `parse` in the package."""


def _read(line: str) -> tuple[str | None, str]:
    """Return field (None if unknown) and value of a line with an unusual spelling."""
    line = line.strip(WHITE)
    name, colon, value = line.partition(":")
    known = _FIELDS.get(name.rstrip(WHITE).lower()) if colon else None
    if known is None:
        # Google's parser reads white space as a missing colon if there are just two words. Here, the second may contain
        # a colon ("Sitemap https://…"), because field names match whole.
        words = _white.split(line)
        if len(words) == 2 and ":" not in words[0]:
            return _FIELDS.get(words[0].lower()), words[1]
    return known, value


def _agent_token(value: str) -> str:
    # As in Google's parser: "* (all)" means all agents, "Foo/1.0" is Foo. A leading delimiter leaves no token.
    if value[:1] == "*" and (len(value) == 1 or value[1] in WHITE):
        return "*"
    match = _token(value)
    return match[0].encode("latin-1").lower().decode("latin-1") if match else ""


def _longest(delays: Sequence[_Record]) -> float | None:
    """Return the longest valid value of some `Crawl-delay` records; None without one."""
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
    """Return warnings about lines whose effect may not be intended."""
    found: list[ParseWarning] = []
    in_group = False
    for number, line in enumerate(lines, 1):
        if len(found) >= MAX_WARNINGS:
            break
        if not line.strip(WHITE):
            continue
        known, value = _read(line)
        in_group = in_group or known is _AGENT
        message = "no field that is known; ignored"
        if known is not None:
            written = line.strip(WHITE).partition(":")[0].rstrip(WHITE).lower()
            spelt = "" if written == known else f"read as {known}"
            message = "; ".join(filter(None, (spelt, _parse_warning(known, value.strip(WHITE), in_group))))
        if message:
            found.append(ParseWarning(number, f'"{shortened(text_of(line))}": {message}'))
    return found


def _parse_warning(known: str, value: str, in_group: bool) -> str:
    if known is _AGENT:
        return "" if _agent_token(value) else "no product token, so these rules apply to no crawler"
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

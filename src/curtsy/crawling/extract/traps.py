"""Detection of crawler traps, sites with endless pages, by their URLs (Issue 5).

A false positive loses a page, so every rule applies only when there is little doubt. The crawl option `avoid_traps`
switches all of them off.

| rule | skips a URL that | because |
|---|---|---|
| `MAX_LENGTH` | has more than 2,000 characters | links that grow on every page do that, hardly any other |
| `MAX_SEGMENTS` | has more than 30 segments in its path | relative links to folders grow on every page |
| `MAX_REPEATS` | has the same run of segments 3 times in a row, as `/a/b/a/b/a/b/` | a relative link is broken |
| `MAX_QUERIES` | is the 1,001st query of one path, or a later one | calendars, filters and sort orders have no end |
| `MAX_ORDERS` | is the 11th with the segments of another path in another order, in one folder | filters as folders |
| `views.py` | leads to another view of a page: sorted, filtered, printed, edited, old | the views have no end |

Runs of numbers, of single characters and of empty segments do not count as repeated: `/01/01/01/` is a date, `/f/f/f/`
the folder of a hash. `MAX_QUERIES` skips wanted pages in one case: a path with over a thousand pages that differ by
their query alone, such as a forum's `/topic?id=…`. Other endless paths look like a large site; `depth` and
`max_pages` bound them.

Other traps are normalized instead of skipped: `stripped` removes the parts of a URL that only identify the visitor.

| kind | removes |
|---|---|
| sessions | session ids by name: `;jsessionid=…` in a path, ASP.NET's `/(S(…))/`, the parameters
  `PHPSESSID`, `JSESSIONID`, `ASPSESSIONID…`, `CFTOKEN` and the `CFID` beside it; also possible ones (`sid`, `session`,
  `sessionid` …) with an opaque value: 16 hexadecimal digits, 20 mixed letters and digits, or a UUID |
| tracking | parameters that count visits: `utm_*`, `gclid`, `fbclid` … |

The module uses no disk, network or clock. The memory of `MAX_QUERIES` is bounded and local to the process: a resumed
crawl, or another worker, counts from zero.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from curtsy.core.url import Url, parse_url
from curtsy.crawling.extract.scope import OutOfScope
from curtsy.crawling.extract.views import view

MAX_LENGTH = 2000
MAX_SEGMENTS = 30
MAX_REPEATS = 3
MAX_QUERIES = 1000
MAX_ORDERS = 10

PATHS = 10_000
"""Paths whose queries are remembered; the least recently used is dropped first."""

QUERIES = 100_000
"""Queries, and paths by their segments, remembered in all: about 10 MB each."""

TRACKING = (
    *("utm_*", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "_ga", "_gl"),  # Google
    *("fbclid", "fb_action_ids", "fb_action_types", "fb_ref", "fb_source", "igshid"),  # Meta
    *("msclkid", "twclid", "ttclid", "li_fat_id", "yclid", "_openstat", "epik", "s_kwcid"),  # other networks
    *("mc_cid", "mc_eid", "mkt_tok", "vero_id", "vero_conv", "oly_anon_id", "oly_enc_id", "wickedid"),  # newsletters
    *("_hsenc", "_hsmi", "__hssc", "__hstc", "__hsfp", "hsctatracking"),  # HubSpot
    *("pk_*", "piwik_*", "mtm_*", "matomo_*"),  # Matomo
)
"""Parameters that count visits and change no page; a trailing `*` matches any suffix."""

_TRACKING = frozenset(each for each in TRACKING if not each.endswith("*"))
_TRACKING_BEGINS = tuple(each[:-1] for each in TRACKING if each.endswith("*"))

NAMES = 4096
"""Parameter names whose classification is cached."""

_CERTAIN = r"jsessionid|phpsessid|aspsessionid[a-z]*|cftoken"
_PERHAPS = r"sid|s_id|sess|session|(?:php|user|web)?_?sess(?:ion)?_?(?:id|key|token)|oscsid|zenid"
_OPAQUE = (
    r"(?=[0-9]*[A-Za-z])(?=[A-Za-z]*[0-9])(?:[0-9A-Fa-f]{16,}+(?![0-9A-Za-z])|[0-9A-Za-z]{20,}+)"
    r"|[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"
)
_SESSION_NAME = re.compile(_CERTAIN, re.IGNORECASE)
_MAYBE_NAME = re.compile(_PERHAPS, re.IGNORECASE)
_SESSION_VALUE = re.compile(_OPAQUE)
_IN_PATH = re.compile(
    rf";(?:(?:{_CERTAIN})=[^;/?]*|(?:{_PERHAPS})=(?:{_OPAQUE})(?=[;/?]|$))"
    r"|/\((?:[A-Z]\([A-Za-z0-9_-]{20,}\))+\)(?=/)",
    re.IGNORECASE,
)


class _Name(Enum):
    """Classification of a parameter name."""

    PLAIN = auto()
    MAYBE = auto()
    """Name of a session id if the value looks like one."""

    DROPPED = auto()


class Traps:
    """Trap rules and their memory, one per crawl and process. A check may be repeated for the same URL."""

    def __init__(self, *, max_queries: int = MAX_QUERIES) -> None:
        self._max_queries = max_queries
        self._names: dict[str, _Name] = {}
        self._queries: dict[int, set[int]] = {}
        """Hashes of accepted queries, by the hash of the URL before `?`; the most recently used is last."""
        self._remembered = 0
        self._orders: dict[int, int] = {}
        """Hash of the first path with some segments, by the hash of these segments in any order."""
        self._reordered: dict[int, set[int]] = {}
        """Hashes of accepted paths that are others in another order, by the hash of their folder."""

    def is_too_long(self, url: str) -> bool:
        """Return whether a URL has more than `MAX_LENGTH` characters."""
        return len(url) > MAX_LENGTH

    def filters(self, url: str, page: str = "", depth: int = 0, year: int = 9999) -> OutOfScope | None:
        """Return why a canonical URL is taken for a trap; None if it is not.

        `page` is the URL of the page that links to it, `depth` the number of links from a seed, `year` the present
        year. An accepted URL is accepted again while it is remembered.
        """
        if self.is_too_long(url):
            return OutOfScope.TOO_LONG
        path, mark, query = url.partition("?")
        if path.count("/") > 4 and (_is_endless(path) or not self._is_in_order(path)):  # 2 slashes precede the host
            return OutOfScope.TRAP
        reason = view(url, page, depth, year)
        if reason is None and mark and not self._counts(path, query):
            return OutOfScope.TRAP
        return reason

    def _is_in_order(self, path: str) -> bool:
        """Return whether a path is not one of many that differ by the order of their segments, as filters do."""
        place = path.find("/", 8)
        words = [each for each in path[place + 1 :].split("/") if not _is_slight(each)]
        if len(words) < 3:
            return True
        hashed, key = hash(tuple(words)), hash((path[:place], *sorted(words)))
        if len(self._orders) >= QUERIES:
            self._orders.clear()
            self._reordered.clear()
        if self._orders.setdefault(key, hashed) == hashed:
            return True
        accepted = self._reordered.setdefault(hash((path[:place], words[0])), set())
        if len(accepted) < MAX_ORDERS:
            accepted.add(hashed)
        return hashed in accepted

    def _counts(self, path: str, query: str) -> bool:
        """Return whether a query of a path is within the limit, and remember it if so."""
        place = hash(path)
        known = self._queries[place] = self._queries.pop(place, set())
        hashed = hash(query)
        if hashed in known:
            return True
        if len(known) >= self._max_queries:
            return False
        known.add(hashed)
        self._remembered += 1
        while len(self._queries) > PATHS or (self._remembered > QUERIES and len(self._queries) > 1):
            self._remembered -= len(self._queries.pop(next(iter(self._queries))))
        return True

    def stripped(self, url: str) -> str:
        """Return a canonical URL without session ids and tracking parameters, in canonical form."""
        query = url.find("?")
        if ";" in url or "(" in url:
            path = url if query < 0 else url[:query]
            plain = path
            while (shorter := _IN_PATH.sub("", plain)) != plain:
                plain = shorter
            if plain != path:
                found = parse_url(plain + url[len(path) :])  # /.;sid=1/ leaves a dot segment
                return self.stripped(found.text) if isinstance(found, Url) else url
        return url if query < 0 else self._with_less(url, query)

    def _with_less(self, url: str, query: int) -> str:
        pairs = url[query + 1 :].split("&")
        kept, lost_token = [], False
        for pair in pairs:
            name, _, value = pair.partition("=")
            kind = self._names.get(name) or self._named(name)
            if kind is _Name.PLAIN or (kind is _Name.MAYBE and not _SESSION_VALUE.fullmatch(value)):
                kept.append(pair)
            else:
                lost_token = lost_token or name.lower() == "cftoken"
        if len(kept) == len(pairs):
            return url
        if lost_token:  # ColdFusion's session id is the pair CFID and CFTOKEN
            kept = [pair for pair in kept if pair.partition("=")[0].lower() != "cfid"]
        return f"{url[:query]}?{'&'.join(kept)}" if any(kept) else url[:query]

    def _named(self, name: str) -> _Name:
        folded, kind = name.lower(), _Name.PLAIN
        if _SESSION_NAME.fullmatch(name) or folded in _TRACKING or folded.startswith(_TRACKING_BEGINS):
            kind = _Name.DROPPED
        elif _MAYBE_NAME.fullmatch(name):
            kind = _Name.MAYBE
        if len(self._names) >= NAMES:
            self._names.clear()
        self._names[name] = kind
        return kind


def _is_endless(path: str) -> bool:
    segments = path.split("/")[3:]
    if len(segments) > MAX_SEGMENTS:
        return True
    return len(segments) - len(set(segments)) >= MAX_REPEATS - 1 and repeated_run(segments, MAX_REPEATS) is not None


def repeated_run(segments: list[str], times: int) -> list[str] | None:
    """Return the first run of segments that occurs `times` in a row; None if there is no such run.

    Runs of only numbers and single characters do not count.
    """
    count = len(segments)
    for length in range(1, count // times + 1):
        for start in range(count - length * times + 1):
            run = segments[start : start + length]
            if run * times == segments[start : start + length * times] and not all(map(_is_slight, run)):
                return run
    return None


def _is_slight(segment: str) -> bool:
    return len(segment) < 2 or segment.isdecimal()

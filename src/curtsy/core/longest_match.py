"""Longest-match rule of robots.txt: path patterns, compared octet by octet (RFC 9309, 2.2.2 and 2.2.3).

Octets are held in `str`, one character each, because Python searches `str` three times as fast as `bytes`. Both sides
are canonical, hence ASCII: `octets_of` converts a URL, `canonical` a pattern.

A site's pattern never becomes a regular expression. A pattern is split at its `*` into pieces. Each piece is searched
once, to the right of the one before. The leftmost match leaves the most room, so no backtracking is needed.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, product, repeat
from operator import itemgetter

Rule = tuple[int, bool, str]
"""Line number, True for an Allow, and the value as in the file."""

WHITE = " \t\x0b\x0c"
"""Characters stripped around names and values: C's isspace() without the line ends."""

_Rank = tuple[int, int]
"""Twice the pattern's length, plus 1 for an Allow; and the rule's index in the list."""

_Wildcard = tuple[int, int, str, list[str], str | None]
"""Rank, index, needle, the pieces behind the first star, and the required end of the path (None: any).

The needle is the most selective piece: a path without it, or with another end, is skipped."""

_Gram = tuple[str, ...]
"""Successive characters, `_GRAM` of them."""

_Grams = tuple[dict[_Gram, list[_Wildcard]], list[_Wildcard]]
"""Patterns by a gram of their needle, which every path that they match contains; and those with a shorter needle."""

_Wildcards = tuple[int, int, list[_Wildcard], _Grams | None]
"""Length of a literal prefix, octets in all pieces of its wildcard patterns, and these patterns by rank.

Many of them are also listed by the grams of their needles."""

_Holding = tuple[_Rank, int, list[_Wildcards]]
"""Longest prefix rule, octets in all pieces of all wildcard patterns, and the patterns of each prefix."""

_UNRESERVED = r"A-Za-z0-9._~\-"
_RESERVED = r":/?\[\]@!&'()+,;="  # without "#", "*" and "$", which are special in a file or in a pattern
_PLAIN = rf"{_UNRESERVED}{_RESERVED}"

_plain_url = re.compile(rf"(?:[Hh][Tt][Tt][Pp][Ss]?://[^/?;#]*|(?!//))(/[{_PLAIN}]*)").fullmatch
_path_start = re.compile("[/?;]").search
_not_target = re.compile(rf"[^{_PLAIN}%]").search
_not_plain = re.compile(rf"[^{_PLAIN}]").search
_not_canonical = re.compile(rf"[^{_PLAIN}*]").search
_in_url = re.compile(rf"%[0-9A-Fa-f]{{2}}|[^{_PLAIN}%]")
_in_pattern = re.compile(rf"%[0-9A-Fa-f]{{2}}|[^{_PLAIN}%*]")
_raw_ascii = re.compile(rf"[^{_PLAIN}%*\x80-\xff]")
_escaped = re.compile("%[0-9A-Fa-f]{2}")
_query_data = re.compile("%(?:2F|3A|3F|40|5B|5D)")

_NO_RULE: _Rank = (0, -1)
_RANK = itemgetter(0)
_NEEDLES = 8
"""Pieces of a pattern, besides the last, among which its needle is chosen."""

_GRAM, _MANY, _LONG_NEEDLE = 4, 32, 12
"""Characters of a gram; number of patterns from which grams are faster than a search for each needle; and characters at
the end of a needle among whose grams the rarest is chosen."""

_MEMO = 1024
"""Prefixes whose candidates an index caches: a file may have tens of thousands of prefixes."""

_PER_RULE, _PER_WILDCARD = 80, 640
"""Bytes of one pattern in an index besides its octets, slightly more than measured."""

_LONG_PATH = 64
_MUCH_WORK = 4_000_000
"""Octets of path times octets of pieces; above it, `_Places` computes positions for the whole path at once."""


def _spellings() -> Iterator[tuple[str, str]]:
    # 2.2.2: an escaped octet is decoded if it is unreserved, else it stays escaped ("%2F" is not "/"); an octet outside
    # ASCII is escaped. A raw octet that is invalid in a URI (a space, "|") is escaped too: both spellings are equal.
    # "*" and "$" are looked up here only where they are literal; by 2.2.3 "%2A" and "%24" match them.
    for octet in range(256):
        raw, escaped = chr(octet), f"%{octet:02X}"
        yield raw, escaped
        decoded = raw if re.fullmatch(f"[{_UNRESERVED}]", raw) else escaped
        for high, low in product({escaped[1], escaped[1].lower()}, {escaped[2], escaped[2].lower()}):
            yield f"%{high}{low}", decoded


_CANONICAL = dict(_spellings())


def _spell(match: re.Match[str]) -> str:
    return _CANONICAL[match[0]]


def _decode(match: re.Match[str]) -> str:
    return chr(int(match[0][1:], 16))


def octets_of(url: str) -> str:
    """Return path and query of a URL in canonical octets, beginning with a slash.

    Any text is accepted; without a path the result is `/`. The path begins where Google's parser finds it.
    """
    if match := _plain_url(url):
        return match[1]
    url = _as_octets(url)
    start = 2 if url.startswith("//") else 0
    first = _path_start(url, start)
    scheme = url.find("://", start)
    if scheme >= 0 and (first is None or scheme < first.start()):
        first = _path_start(url, scheme + 3)
    fragment = url.find("#", start)
    if first is None or 0 <= fragment < first.start():
        return "/"
    path = url[first.start() : fragment if fragment >= 0 else len(url)]
    return ("" if path[0] == "/" else "/") + _in_url.sub(_spell, path)


def _as_octets(text: str) -> str:
    return text if text.isascii() else text.encode("utf-8", "surrogatepass").decode("latin-1")


def canonical(pattern: str) -> tuple[str, int]:
    """Return a pattern in canonical octets, and its length for the comparison of matches.

    The length is that of the whole pattern, `*` and `$` included, with unreserved octets decoded and octets outside
    ASCII escaped (2.2.2). A raw octet that is escaped only for this comparison counts as one.
    """
    anchor = "$" if pattern[-1:] == "$" else ""
    body = pattern[:-1] if anchor else pattern
    if _not_canonical(body) is None:
        return pattern, len(pattern)
    octets = _in_pattern.sub(_spell, body) + anchor
    return octets, len(octets) - 2 * len(_raw_ascii.findall(body))


class Patterns:
    """Compiled rules of one agent, which find the rule that decides about a path.

    A rule is identified by its index in the list. The list is not kept: a file of 500 KiB may have 50,000 rules.
    """

    __slots__ = ("_allows", "_index", "_queries", "_spells_data", "_twin", "size")

    def __init__(self, rules: Sequence[Rule]) -> None:
        plain: dict[str, int] = {}
        odd: dict[str, _Rank] = {}
        self._spells_data = False
        self._allows = bytes(map(itemgetter(1), rules))
        for place, (_, allow, value) in enumerate(rules):
            pattern = value.strip(WHITE)
            if _not_plain(pattern) is None:
                # 2.2.2: a duplicate may be dropped, and of equivalent rules the Allow is used.
                first = plain.setdefault(pattern, place)
                if allow and not rules[first][1]:
                    plain[pattern] = place
                continue
            octets, length = canonical(pattern)
            if 2 * length + allow > odd.get(octets, _NO_RULE)[0]:
                odd[octets] = 2 * length + allow, place
            if "?" in octets and _query_data.search(octets, octets.index("?")):
                self._spells_data = True
        plain.pop("", None)  # 2.2: an empty pattern matches nothing
        asking = {each: (2 * len(each) + self._allows[place], place) for each, place in plain.items() if "?" in each}
        self._queries = asking | {each: rank for each, rank in odd.items() if "?" in each}
        """Ranks of the patterns with a query, by their canonical octets."""
        self._index = _Index(self._allows, plain, odd)
        self._twin: _Index | None = None
        queries = 2 * sum(map(len, self._queries)) + 4 * _PER_RULE * len(self._queries)
        self.size = len(self._allows) + self._index.size + queries
        """Approximate bytes of memory, with all that may be computed later."""

    def allows(self, place: int) -> bool:
        """Return whether the rule at an index is an Allow."""
        return bool(self._allows[place])

    def best(self, path: str) -> int:
        """Return the index of the longest matching rule, of equal ones an Allow (2.2.2); -1 without a match."""
        if "%" in path or self._spells_data:
            return self._best_of_both(path)
        return self._index.best(path)[1]

    def _best_of_both(self, path: str) -> int:
        # The RFC's table of encoded paths (2.2.2) compares "https://" in a query as "https%3A%2F%2F". There, general
        # delimiters are data, and both spellings are equal. In a path they differ ("%2F" is not "/").
        found = self._index.best(path)
        before, mark, query = path.partition("?")
        if mark and (self._spells_data or _query_data.search(query)):
            if self._twin is None:
                self._twin = _Index(self._allows, {}, self._with_plain_queries())
            twin = self._twin.best(f"{before}?{_query_data.sub(_decode, query)}")
            found = twin if twin[0] > found[0] else found
        return found[1]

    def _with_plain_queries(self) -> dict[str, _Rank]:
        twins: dict[str, _Rank] = {}
        for octets, rank in self._queries.items():
            before, _, query = octets.partition("?")
            octets = f"{before}?{_query_data.sub(_decode, query)}"
            twins[octets] = max(rank, twins.get(octets, _NO_RULE), key=itemgetter(0))
        return twins


class _Index:
    """Patterns by their literal prefixes.

    The prefixes are sorted. The last one that is not after a path begins with every prefix of that path. Therefore one
    bisection and a walk over parents, each the longest prefix of the one before, find all candidates.
    """

    __slots__ = (
        "_allows", "_beginnings", "_exact", "_heads", "_holding", "_parents", "_places", "size"
    )  # fmt: skip

    def __init__(self, allows: bytes, prefixes: dict[str, int], others: dict[str, _Rank]) -> None:
        self._allows = allows
        self._exact: dict[str, _Rank] = {}
        heads: dict[str, list[tuple[int, int, str]]] = {"": []}
        for octets, (rank, place) in others.items():
            head, star, rest = octets.partition("*")
            if not star and head[-1] == "$":
                self._exact[head[:-1]] = rank, place
            elif not star and rank >> 1 == len(head):
                if head not in prefixes or not allows[prefixes[head]]:
                    prefixes[head] = place
            else:
                heads.setdefault(head, []).append((rank, place, rest))
        self._beginnings = sorted(prefixes | heads)
        # For each prefix, the index of the rule that equals it, or -1.
        self._places = array("i", map(prefixes.get, self._beginnings, repeat(-1)))
        self._heads: dict[str, list[tuple[int, int, str]] | _Wildcards] = {**heads}
        """Wildcard patterns of a prefix: rank, index and the text behind the first star; compiled on first use."""
        self._parents: array[int] | None = None
        self._holding: dict[int, _Holding] = {}
        memo = 256 * min(_MEMO, len(self._beginnings))
        self.size = _PER_RULE * len(prefixes) + sum(map(len, self._beginnings)) + memo
        self.size += 2 * _PER_RULE * len(self._exact) + _PER_WILDCARD * sum(map(len, heads.values()))
        self.size += 2 * sum(map(len, others))

    def best(self, path: str) -> _Rank:
        beginnings, parents = self._beginnings, self._parents or self._with_parents()
        at = bisect_right(beginnings, path) - 1
        while not path.startswith(beginnings[at]):
            at = parents[at]
        found, octets, wildcards = self._holding.get(at) or self._hold(at)
        exact = self._exact.get(path)
        if exact is not None and exact[0] > found[0]:
            found = exact
        if not wildcards:
            return found
        is_hard = len(path) > _LONG_PATH and len(path) * octets > _MUCH_WORK
        searched: str | _Places = _Places(path) if is_hard else path
        for start, _, patterns, grams in wildcards:
            if grams is not None and not is_hard and patterns[0][0] > found[0]:
                patterns = _candidates(path, *grams)
            for rank, place, needle, pieces, tail in patterns:
                if rank <= found[0]:
                    break
                if tail is not None and not path.endswith(tail):  # the cheapest check comes first
                    continue
                if needle in searched and _fits(path, start, pieces, tail, searched.find):
                    found = rank, place
                    break
        return found

    def _with_parents(self) -> array[int]:
        """Return for each prefix the index of the longest other prefix that it begins with; computed on first use."""
        beginnings, parents, above = self._beginnings, array("I", [0]), [0]  # the first prefix is empty
        for at in range(1, len(beginnings)):
            while not beginnings[at].startswith(beginnings[above[-1]]):
                above.pop()
            parents.append(above[-1])
            above.append(at)
        self._parents = parents
        return parents

    def _hold(self, at: int) -> _Holding:
        """Return the candidates for all paths with the prefix at `at`, and cache them."""
        found, octets, key, parents = _NO_RULE, 0, at, self._parents or self._with_parents()
        wildcards: list[_Wildcards] = []
        while True:
            prefix, place = self._beginnings[at], self._places[at]
            if place >= 0 and found is _NO_RULE:
                found = 2 * len(prefix) + self._allows[place], place
            if patterns := self._heads.get(prefix):
                if isinstance(patterns, list):
                    patterns = self._heads[prefix] = _wildcards(len(prefix), patterns)
                wildcards.append(patterns)
                octets += patterns[1]
            if not prefix:
                break
            at = parents[at]
        if len(self._holding) >= _MEMO:
            self._holding.clear()
        holding = self._holding[key] = found, octets, wildcards
        return holding


def _wildcards(start: int, patterns: list[tuple[int, int, str]]) -> _Wildcards:
    """Compile patterns, given by rank, index and the text behind the first star; choose their needles."""
    found: list[tuple[int, int, list[str], str | None]] = []
    for rank, place, rest in sorted(patterns, key=itemgetter(0), reverse=True):
        found.append((rank, place, *_cut(rest)))
    counts = Counter(chain.from_iterable(pieces[:_NEEDLES] for _, _, pieces, _ in found))
    counts.update(pieces[-1] for _, _, pieces, _ in found if pieces)

    def needle(pieces: list[str]) -> str:
        choice = [*pieces[:_NEEDLES], *pieces[-1:]]
        return min(choice, key=lambda piece: (counts[piece], -len(piece)), default="")

    octets = sum(map(len, chain.from_iterable(pieces for _, _, pieces, _ in found)))
    split = [
        (rank, place, pieces[0] if len(pieces) == 1 else needle(pieces), pieces, tail)
        for rank, place, pieces, tail in found
    ]
    return start, octets, split, _grams(split) if len(split) >= _MANY else None


def _grams(patterns: list[_Wildcard]) -> _Grams:
    """Return the patterns by the rarest gram of their needle, and those with a needle shorter than a gram."""
    found: dict[_Gram, list[_Wildcard]] = {}
    short: list[_Wildcard] = []
    each_grams = [list(_grams_of(pattern[2][-_LONG_NEEDLE:])) for pattern in patterns]
    counts = Counter(chain.from_iterable(each_grams))
    for pattern, grams in zip(patterns, each_grams, strict=True):
        if grams:
            found.setdefault(min(grams, key=counts.__getitem__), []).append(pattern)
        else:
            short.append(pattern)
    return found, short


def _grams_of(text: str) -> Iterator[_Gram]:
    """Return all successive characters of a text, `_GRAM` at a time."""
    return zip(text, text[1:], text[2:], text[3:], strict=False)


def _candidates(path: str, grams: dict[_Gram, list[_Wildcard]], short: list[_Wildcard]) -> list[_Wildcard]:
    """Return the patterns by rank that a path can match."""
    present = grams.keys() & _grams_of(path)
    if not present:
        return short
    return sorted([*short, *chain.from_iterable(map(grams.__getitem__, present))], key=_RANK, reverse=True)


def _cut(rest: str) -> tuple[list[str], str | None]:
    """Return the pieces behind a pattern's first star, and the required end of the path (None: any)."""
    pieces = rest.removesuffix("$").split("*")
    tail = pieces.pop() if rest[-1:] == "$" else None
    return [piece for piece in pieces if piece] if "" in pieces else pieces, tail


def _fits(path: str, start: int, pieces: list[str], tail: str | None, find: Callable[[str, int], int]) -> bool:
    for piece in pieces:
        at = find(piece, start)
        if at < 0:
            return False
        start = at + len(piece)
    return tail is None or path.endswith(tail, start)


def matches(pattern: str, target: str) -> bool:
    """Return whether a pattern matches path and query of a canonical URL (`Url.target`). An empty one does.

    Here an escaped octet is one character: `/*2` does not match `/a$`, which is compared as `/a%24`. In a robots.txt it
    does, because 2.2.2 compares the escaped spelling.
    """
    head, pieces, tail = _single(pattern)
    path = target if _not_target(target) is None else _in_url.sub(_spell, _as_octets(target))
    if "%" in path:
        path = _escaped.sub(_as_one, path)
    if pieces is None:
        return path.startswith(head) if tail is None else path == head
    return path.startswith(head) and _fits(path, len(head), pieces, tail, path.find)


@lru_cache(maxsize=1024)  # a user's settings have few patterns
def _single(pattern: str) -> tuple[str, list[str] | None, str | None]:
    """Return a pattern's literal prefix, the pieces behind its first star (None: no star), and its required end."""
    head, star, rest = _escaped.sub(_as_one, canonical(_as_octets(pattern))[0]).partition("*")
    if star:
        return head, *_cut(rest)
    return (head[:-1], None, "") if head[-1:] == "$" else (head, None, None)


def _as_one(escaped: re.Match[str]) -> str:
    """Return an escaped octet as a character that nothing else uses."""
    return chr(0x100 + int(escaped[0][1:], 16))


class _Places:
    """Positions of pieces in a long path, for files with too many pieces to search each one.

    A set of positions is an integer with one bit per octet of the path. One step narrows all positions at once, so a
    piece costs one step per octet, for any path.
    """

    __slots__ = ("_backwards", "_found", "_octets", "_path", "_places")

    def __init__(self, path: str) -> None:
        self._path = path
        self._backwards = path.encode("ascii")[::-1]
        self._octets = set(path)
        self._places: dict[str, int] = {}
        self._found: dict[str, bool] = {}

    def __contains__(self, piece: str) -> bool:
        found = self._found.get(piece)
        if found is None:
            found = self._found[piece] = not piece or self.find(piece, 0) >= 0
        return found

    def find(self, piece: str, start: int) -> int:
        if len(piece) == 1:
            return self._path.find(piece, start)
        if not self._octets.issuperset(piece):
            return -1
        places = -1 << start
        for offset, octet in enumerate(piece):
            known = self._places.get(octet)
            if known is None:
                known = self._places[octet] = self._of(ord(octet))
            places &= known >> offset
            if not places:
                return -1
        return (places & -places).bit_length() - 1

    def _of(self, octet: int) -> int:
        return int(self._backwards.translate(b"0" * octet + b"1" + b"0" * (255 - octet)), 2)

"""Extraction of the user's fields from pages by CSS selectors: `{"price": ".price::text", "links[]": "a::attr(href)"}`.

A field is the first match of its selector, or a list of all matches if its name ends in `[]`. A form may follow the
selector: `::text` (the default) is the text with each run of blanks as one, `::html` the element as HTML,
`::attr(NAME)` an attribute as written, and `::url(NAME)` an attribute as an absolute URL.

Pages are hostile: the parser needs time with the square of nested tags, and a selector with several steps tries all
combinations of nested elements. So the bytes, tags and matches are bounded, and a selector is not applied to a page
that nests too deeply for its steps. A page that exceeds a bound is reported as a problem, never silently.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urljoin

import msgspec

from curtsy.core.charset import decode
from curtsy.core.errors import PolicyError
from curtsy.crawling.extract.page import is_html
from curtsy.crawling.extract.text import LONGEST, MARKUP
from curtsy.crawling.extract.tokens import ATTRIBUTE_OR_GAP, attributes

MOST_TAGS = 40_000
"""Tags of a page that are read, of at most LONGEST bytes: a hostile page then takes about two seconds."""

MANY_TAGS, MOST_UNCLOSED = 10_000, 5_000
"""Tags from which unclosed elements are counted before a page is parsed, and their maximum."""

LONG_TAG, MOST_ATTRIBUTES = 4000, 1000
"""Characters of a tag from which its attributes are counted, and their maximum. Their time is quadratic too."""

MOST_MATCHES, MOST_TEXT = 10_000, 4 << 20
"""Maximum matches of one field, and characters of all fields of a page."""

MOST_STEPS = 3
"""Maximum steps of a selector that search all levels above an element: blanks, `~` and `:has()`."""

_WORK, _DEEPEST = 3e8, 256
"""Combinations that a selector may have to try, about a second; and maximum depth of any page."""

Form = Literal["text", "html", "attr", "url"]

_FORMS: dict[str, Form] = {"text": "text", "html": "html", "attr": "attr", "url": "url"}
_TAG = re.compile(r"/?[A-Za-z][^/> \t\n\f\r]*")
_NO_END = frozenset(
    {
        "area", "base", "br", "col", "dd", "dt", "embed", "hr", "img", "input", "li", "link", "meta", "option", "p",
        "param", "source", "tbody", "td", "tfoot", "th", "thead", "tr", "track", "wbr",
    }
)  # fmt: skip
_NAME = re.compile(r"[^\W\d][\w-]*")
_FORM = re.compile(r"::\s*(?:(text|html)|(attr|url)\(\s*([^\s()]+)\s*\))\s*$")
_QUOTED = re.compile(r"""\[[^\]]*\]?|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?""", re.DOTALL)
_STEP = re.compile(r"(?<=[^\s>+~,(])\s+(?=[^\s>+~,)])|~|:has\(")
_OPENING = re.compile(rf"</?+[A-Za-z][^/> \t\n\f\r]*+({ATTRIBUTE_OR_GAP}*+)", re.VERBOSE)
_PART = re.compile(r"""(?:\\.|\[[^\]]*\]?|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[^\s>+~,(\["'\\]|\()+""", re.DOTALL)


class Field(msgspec.Struct, frozen=True):
    """One field, as parsed by `fields_of`."""

    name: str
    selector: str
    """CSS selector, without the form."""

    form: Form = "text"
    attribute: str = ""
    is_list: bool = False
    steps: int = 0
    """Number of steps that search all levels above an element."""


def fields_of(given: Mapping[Any, Any]) -> tuple[Field, ...]:
    """Parse fields: selectors by name. Raises PolicyError that shows the place of a mistake."""
    fields = tuple(_field(name, text) for name, text in given.items())
    for number, field in enumerate(fields):
        if any(field.name == other.name for other in fields[:number]):
            raise PolicyError(f"extract has two fields with the name {field.name!r}. Give each a name of its own.")
    if not fields:
        raise PolicyError('extract names no field. Give selectors by name, such as {"title": "h1"}.')
    return fields


def _field(name: object, text: object) -> Field:
    if not isinstance(name, str) or not isinstance(text, str):
        raise PolicyError(f'extract: {name!r}: {text!r} must be a name and a selector, such as "title": "h1".')
    bare = name.removesuffix("[]")
    if not _NAME.fullmatch(bare):
        raise PolicyError(
            f"extract: {name!r} is not a name for a field. Use letters, digits, '-' and '_', and [] for a list."
        )
    form = _FORM.search(text)
    selector = (text[: form.start()] if form else text).strip()
    steps = len(_STEP.findall(_QUOTED.sub("[]", selector)))
    _check(name, text, selector)
    if steps > MOST_STEPS:
        raise PolicyError(
            f"extract: {name}={text} has {steps} steps that search all levels (blanks, ~ and :has), and a page could "
            f"make it take very long. Use at most {MOST_STEPS}: the last parts alone, or > between them."
        )
    kind, attribute = (form[1] or form[2], form[3] or "") if form else ("text", "")
    return Field(bare, selector, _FORMS[kind], attribute.lower(), name != bare, steps)


def _check(name: str, text: str, selector: str) -> None:
    """Raise PolicyError with the place of the first part that is not CSS."""
    if _is_valid(selector):
        return
    start = text.find(selector) if selector else 0
    place = next((part.start() for part in _PART.finditer(selector) if not _is_valid(part[0])), None)
    if place is None:  # the parts are right, and their combination is not
        place = len(selector)
    elif (colons := selector.find("::", place)) >= 0:
        place = colons
    line = f"{name}={text}"
    raise PolicyError(
        f"extract: this is not a CSS selector:\n  {line}\n  {'^':>{len(name) + 2 + start + place}}\n"
        "Correct it at the mark. After the selector may stand ::text, ::html, ::attr(NAME) or ::url(NAME)."
    )


def _is_valid(selector: str) -> bool:
    from selectolax.lexbor import LexborHTMLParser, SelectolaxError

    try:
        LexborHTMLParser("").css_first(selector)
    except SelectolaxError:
        return False
    return True


def values_of(
    fields: tuple[Field, ...], body: bytes, content_type: str | None, url: str
) -> tuple[dict[str, Any], str | None]:
    """Return the value of each field in a page, and a problem in words; None without one.

    A field without a match is None, or an empty list. `url` is the base of absolute URLs, unless the page names one.
    """
    from selectolax.lexbor import LexborHTMLParser, SelectolaxError  # 2 MB that most crawls do not need

    values: dict[str, Any] = {field.name: [] if field.is_list else None for field in fields}
    if not is_html(content_type, body):
        return values, None
    text, _ = decode(body[:LONGEST], content_type)
    pieces = text.split("<", MOST_TAGS)
    tags = len(pieces) - 1
    is_cut = len(body) > LONGEST or tags == MOST_TAGS
    if tags == MOST_TAGS:
        text = text[: -len(pieces[-1]) - 1]
    if tags > MANY_TAGS and _unclosed(pieces) > MOST_UNCLOSED:
        return values, "its elements are nested too deeply"
    if any(len(piece) > LONG_TAG and ">" not in piece[:LONG_TAG] for piece in pieces[1:]):
        text = MARKUP.sub(_with_few_attributes, text)
    try:
        tree = LexborHTMLParser(text)
    except SelectolaxError as error:
        return values, f"the page cannot be parsed: {error}"
    page, problems = _Page(tree, url), []
    if is_cut:
        problems.append(f"only its first {LONGEST >> 20} MiB and {MOST_TAGS:,} tags were read")
    for field in fields:
        if page.is_deeper_than(_depth_for(field.steps, tags)):
            problems.append(f"its elements are nested too deeply for the selector of {field.name}")
            continue
        found = page.matches(field)
        values[field.name] = found if field.is_list else next(iter(found), None)
    if page.is_cut:
        problems.append(f"it has more than {MOST_MATCHES:,} matches of a field, or {MOST_TEXT >> 20} MiB of text")
    return values, "; ".join(problems) or None


def _unclosed(pieces: list[str]) -> int:
    """Return the number of start tags without an end tag, of elements that need one."""
    names = Counter(found[0].lower() for piece in pieces if (found := _TAG.match(piece)))
    opened = ((name, count) for name, count in names.items() if name[0] != "/" and name not in _NO_END)
    return sum(max(0, count - names[f"/{name}"]) for name, count in opened)


def _with_few_attributes(tag: re.Match[str]) -> str:
    opening = _OPENING.match(tag[0])
    if opening is None or len(opening[1]) < LONG_TAG or len(attributes(opening[1])) <= MOST_ATTRIBUTES:
        return tag[0]
    return tag[0][: opening.start(1)] + tag[0][opening.end() :]


def _depth_for(steps: int, tags: int) -> int:
    """Return the maximum depth of a page with so many tags for a selector: tags x depth^steps / steps! is bounded."""
    if not steps:
        return _DEEPEST
    return min(_DEEPEST, int((_WORK * math.factorial(steps) / max(tags, 1)) ** (1 / steps)))


class _Page:
    """Parsed page."""

    def __init__(self, tree: Any, url: str) -> None:
        self._tree = tree
        self._url = url
        self._left = MOST_TEXT
        self._is_deeper: dict[int, bool] = {}
        self.is_cut = False
        """True if a bound was exceeded."""

    def is_deeper_than(self, depth: int) -> bool:
        """Return whether an element is nested deeper. It takes linear time, as each step goes up one level."""
        if depth not in self._is_deeper:
            self._is_deeper[depth] = self._tree.css_first(" > ".join("*" * (depth + 1))) is not None
        return self._is_deeper[depth]

    def matches(self, field: Field) -> list[str]:
        """Return the values of all matches; of the first alone if the field is not a list."""
        found: list[str] = []
        nodes = self._tree.css(field.selector) if field.is_list else [self._tree.css_first(field.selector)]
        for node in nodes[: MOST_MATCHES + 1]:
            value = None if node is None else self._value(node, field)
            if value is None:
                continue
            self._left -= len(value)
            if self._left < 0 or len(found) == MOST_MATCHES:
                self.is_cut = True
                break
            found.append(value)
        return found

    def _value(self, node: Any, field: Field) -> str | None:
        match field.form:
            case "text":
                return " ".join(node.text().split())
            case "html":
                return str(node.html or "")
            case _:
                value = node.attributes.get(field.attribute)
                if value is None:
                    return None
                return str(value) if field.form == "attr" else self._absolute(str(value))

    def _absolute(self, value: str) -> str:
        base = self._tree.css_first("base[href]")
        try:
            place = self._url if base is None else urljoin(self._url, base.attributes["href"] or "")
            return urljoin(place, value.strip())
        except ValueError:  # a broken address in brackets
            return value

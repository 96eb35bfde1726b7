r"""Masking of passwords and tokens in text (F62).

`mask_url` masks a text that may contain URLs, `mask_line` one line of JSON. Both take time linear in the length of the
text, because pages and their URLs can be hostile (F32). The rules that keep them linear:

- Quantifiers are possessive, so no pattern backtracks.
- A pattern that fails has read no further than the place where its next attempt can start.
- If very many secrets are close together, the text is hostile: its rest is hidden as a whole.

In doubt, more is hidden rather than less.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

MASK = "***"

MANY = 32
"""Number of secrets in a text from which on their density counts."""

APART = 80
"""Average characters per secret, below which the rest of the text is hidden."""

MOST = 2000
"""Most secrets in a text, at some microseconds each; after them the rest of the text is hidden."""

LONGEST_NAME = 100
"""Most characters of a parameter's name that are checked."""

# --- Logins --------------------------------------------------------------------------------------------------------

# `https://example.org; me@example.org`: a host followed by other words.
_HOST = r"""(?!(?=[\w-]++\.)[\w.-]++(?::\d++)?+[;,.:)>'"\]]*+(?:\s|\\[nrt]))"""
_NO_PORT = r"""(?!\d*+(?:[/?#\s"<>\\]|\Z))"""


def _logins(end: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return two patterns for text with URLs that end at `end`: for a login, and for one with a raw `/`, `?` or `#`.

    The first ends at the last @ before the path. The second is `user:pa/ss@host`: a colon without a port behind it,
    then all up to the last @ of the word. It also matches without an @, so that it reads a word once.
    """
    before_path = rf"[^/?#{end}\\@]*+(?:\\[^@]?+[^/?#{end}\\@]*+)*+"
    in_word = rf"[^\s{end}\\@]*+(?:\\[^@]?+[^\s{end}\\@]*+)*+"
    return (
        re.compile(rf":///*+{_HOST}(?:{before_path}(@))++"),
        re.compile(rf'://(?=/*+[^:/?#\s"@\[\\]*+:{_NO_PORT}){in_word}(?:(@){in_word})*+'),
    )


_IN_TEXT = _logins("")
_IN_LINE = _logins('"')  # an unescaped quote ends a JSON string

# A text that begins with a URL is one URL: its login may contain blanks, and look like a host at first.
_WHOLE = re.compile(
    rf"\s*+[A-Za-z][A-Za-z0-9+.-]*+://(/*+(?:[^/?#@]*+@)++|(?=/*+[^:/?#@\[]*+:{_NO_PORT})(?:[^@]*+@)++)"
)

# A login inside another URL's query, percent-encoded once or more often: `https%3A%2F%2Fuser%3Apass%40host`.
_CODED = r"""[^/?#&\s"\\%]*+(?:(?:%++(?!2[fF36]|3[fF]|(?:25)*+40)|\\.)[^/?#&\s"\\%]*+)*+"""
_NESTED = re.compile(rf"%(?:25)*+3[aA](?:%(?:25)*+2[fF]){{2,}}+()(?:(?:{_CODED}(%(?:25)*+40))++|{_CODED})")

# --- Parameters ----------------------------------------------------------------------------------------------------

# Names are searched in a lower-case copy of the text, of the same length. There, a percent-encoded delimiter is one of
# these characters and fillers.
_EQUALS, _AND, _BEGIN, _AGAIN, _FILL = "\x01", "\x02", "\x03", "\x04", "\x05"
_CODES = {"%3d": _EQUALS, "%26": _AND, "%23": _AND, "%3f": _BEGIN, "%3b": _BEGIN}
_NESTINGS = 3
"""Levels of `%25` that are decoded."""

_NAME = rf"""[^=&;?#\s"<>\\{_EQUALS}{_AND}{_BEGIN}]"""
_BEGUN = re.compile(rf"[?&;#{_AND}{_BEGIN}]{_NAME}*+\Z", re.ASCII)
_VALUE = re.compile(r"""[^&#\s"<>\\]*+(?:\\.[^&#\s"<>\\]*+)*+""", re.ASCII)
_VALUE_INSIDE = re.compile(rf"""[^&#\s"<>\\{_AND}]*+(?:(?:\\.|(?<={_AGAIN}){_AND})[^&#\s"<>\\{_AND}]*+)*+""", re.ASCII)

_WILDCARDS = ("", "*", "*$")
"""Values that are not secret: those of a robots.txt rule such as `Disallow: /*?sid=*`."""


def _secret_names() -> re.Pattern[str]:
    """Return the pattern of the part of a name that makes it secret, and of the rest of the name.

    The group is set if the name is a parameter's, with an equals sign. The pattern begins with few letters, and each of
    its branches with a literal, because the engine skips quickly by the first letter only.
    """
    before = rf"?&;#{_AND}{_BEGIN}{_FILL}"
    between = r"[-_.]"
    after = rf"-_.\[\]%{_AGAIN}"
    is_last = rf"(?=[{after}={_EQUALS}])"
    equals = rf"(?:=|{_EQUALS}{_FILL}*+)"
    end = rf"[{after}]*+{equals}"
    rest = rf"{_NAME}*+{equals}?+"

    def alone(word: str) -> str:
        return rf"(?<=[{before}\-_.\[]{word}){end}"

    kinds = ("auth", "access", "login", "reset", "verification", "mfa", "sms")
    # One check of the character before rules out most kinds: each kind costs a check of its own.
    joined, apart = ("|".join(f"(?<={kind}{each}code)" for kind in kinds) for each in ("", between))
    ends = "".join(sorted({kind[-1] for kind in kinds}))
    codes = f"(?<=[{ends}]code)(?:{joined})|(?<={between}code)(?:{apart})"
    of_pass = (
        rf"w{rest}|phrase{rest}|code{end}|{between}(?:w{rest}|phrase{rest}|code{end})|"
        rf"{is_last}(?<!compass)(?<!bypass){end}"
    )
    of_pw = rf"d{alone('pwd')}|{is_last}(?:{alone('pw')}|(?:(?<=userpw)|(?<=user{between}pw)){end})"
    words = (
        rf"token{rest}",
        rf"s(?:e(?:cret|ss(?:i(?:on|d)|{between}id)){rest}|ig(?:nature{rest}|{alone('sig')})|id{alone('sid')}|as{alone('sas')})",
        rf"p(?:ass(?=[{after}={_EQUALS}wpc])(?:{of_pass})|w(?:{of_pw}))",
        rf"c(?:redential{rest}|ode{is_last}(?:(?<=[{before}]code)|{codes}){end})",
        rf"a(?:uth(?:oriz{rest}|{alone('auth')})|ccess{between}?+key{rest})",
        *(rf"bearer{rest}", rf"jwt{rest}", rf"hmac(?<=[{before}]hmac){rest}", rf"key{end}", rf"otp{alone('otp')}"),
    )
    return re.compile(rf"(?:{'|'.join(words)})(?:(?<=[={_FILL}])()|)", re.ASCII)


_SECRET = _secret_names()


def _secret_values(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of secret parameters' values; an empty span for a name that is not a parameter's."""
    text = _simplified(text)
    if "=" not in text and _EQUALS not in text:
        return
    done = 0
    while (found := _SECRET.search(text, done)) is not None:
        start, done = found.span()
        begin = done
        if found.lastindex and _BEGUN.search(text, max(0, start - LONGEST_NAME), start):
            value = (_VALUE if text[done - 1] == "=" else _VALUE_INSIDE).match(text, done)
            if value is not None and value[0] not in _WILDCARDS:
                done = value.end()
        yield begin, done


def _simplified(text: str) -> str:
    low = text.lower()
    if len(low) != len(text):
        low = text.replace("\u0130", "i").lower()  # the only letter that is longer in lower case
    for mark in (_EQUALS, _AND, _BEGIN, _AGAIN, _FILL):
        low = low.replace(mark, "_")
    if "%" not in low:
        return low
    for _ in range(_NESTINGS):
        low = low.replace("%25", f"{_AGAIN}{_AGAIN}%")
    for code, mark in _CODES.items():
        low = low.replace(code, f"{mark}{_FILL}{_FILL}")
    for code in ("%5b", "%5d", "%5f") if "%5" in low else ():
        low = low.replace(code, "___")
    return low


# --- Masking -------------------------------------------------------------------------------------------------------

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_REST_OF_STRING = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)


def mask_url(text: str) -> str:
    """Hide the secrets of all URLs in `text`: `user:password@`, and query values with secret names (F62).

    Other text is unchanged.
    """
    if "://" in text and "@" in text and (whole := _WHOLE.match(text)) is not None:
        text = f"{text[: whole.start(1)]}{MASK}@{text[whole.end() :]}"
    return _mask(text, is_line=False)


def mask_urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    """Hide the secrets of many URLs, as `mask_url` does. URLs without a query or a login take little time."""
    text = "\n".join(urls)
    return tuple(map(mask_url, urls)) if "=" in text or "%" in text or "@" in text else urls


def _mask(text: str, *, is_line: bool) -> str:
    if "://" in text and "@" in text:
        for pattern in _IN_LINE if is_line else _IN_TEXT:
            found = ((each.start() + 3, each.start(1)) for each in pattern.finditer(text) if each.lastindex)
            text = _hide(text, found, is_line)
    if "%" in text and "40" in text:
        text = _hide(text, ((each.end(1), each.start(2)) for each in _NESTED.finditer(text) if each[2]), is_line)
    if "=" in text or "%3" in text or "%25" in text:
        text = _hide(text, _secret_values(text), is_line)
    return text


def _hide(text: str, places: Iterator[tuple[int, int]], is_line: bool) -> str:
    """Mask these spans of a text. An empty span counts for the limits, too."""
    parts: list[str] = []
    done = 0
    for count, (start, end) in enumerate(places, 1):
        if count > MANY and (count * APART > end or count > MOST):
            return MASK.join((*parts, text[done:start], _rest_of(text, start) if is_line else ""))
        if start < end:
            parts.append(text[done:start])
            done = end
    return MASK.join((*parts, text[done:])) if parts else text


def _rest_of(line: str, place: int) -> str:
    """Return the rest of a JSON line behind a position in a string, with all its strings hidden."""
    string = _REST_OF_STRING.match(line, place)
    end = place if string is None else string.end()
    return line[end : end + 1] + _STRING.sub(f'"{MASK}"', line[end + 1 :])


def masked_repr(value: object) -> str:
    """Return the usual repr of a dataclass or `msgspec.Struct`, with the secrets of URLs masked.

    Classes with URLs among their fields use it as `__repr__`.
    """
    if isinstance(value, msgspec.Struct):
        names = list(value.__struct_fields__)
    else:
        assert is_dataclass(value)
        names = [field.name for field in fields(value)]
    return f"{type(value).__name__}({', '.join(f'{name}={_shown(getattr(value, name))}' for name in names)})"


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(mask_url(value))
    if isinstance(value, list | tuple):
        inside = ", ".join(map(_shown, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    return repr(value)


_HEADER = r"(?:proxy[-_]?)?authorization|(?:set[-_]?)?cookie"
_HEADER_NAME = re.compile(_HEADER, re.IGNORECASE)
# A header in a text, such as the repr of headers: `Cookie: a=b`, `'Cookie': 'a=b'`, `('Cookie', b'a=b')`.
_MENTION = re.compile(
    rf"""({_HEADER})(['"]?\s*+[:=]\s*+|['"]\s*+,\s*+)"""
    r"""(?:b?'[^'\\\r\n]*+(?:\\.[^'\\\r\n]*+)*+'|b?"[^"\\\r\n]*+(?:\\.[^"\\\r\n]*+)*+"|[^\r\n]++)""",
    re.IGNORECASE,
)


def mask_header(name: str, value: str) -> str:
    """Return a header's value without secrets: credentials and cookies are hidden as a whole."""
    return MASK if _HEADER_NAME.fullmatch(name) else mask_url(value)


def mask_line(line: str) -> str:
    """Hide the secrets in one line of JSON. The result is JSON."""
    if "://" in line or "?" in line or "%" in line:
        line = _mask(line, is_line=True)
    low = line.lower()
    if "authorization" not in low and "cookie" not in low:
        return line
    try:
        return json.dumps(_without_headers(json.loads(line)), ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):  # a number with too many digits, too deep a nesting
        return _STRING.sub(f'"{MASK}"', line)


def _without_headers(value: Any) -> Any:
    match value:
        case str():
            low = value.lower()
            return _MENTION.sub(rf"\1\2{MASK}", value) if "authorization" in low or "cookie" in low else value
        case dict():
            return {
                _without_headers(name): MASK
                if _HEADER_NAME.fullmatch(name) and each is not None
                else _without_headers(each)
                for name, each in value.items()
            }
        case [str() as name, str()] if _HEADER_NAME.fullmatch(name):
            return [name, MASK]
        case list():
            return [_without_headers(each) for each in value]
        case _:
            return value

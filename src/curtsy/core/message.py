"""What travels: instants, URLs, requests and replies."""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from dataclasses import field
from functools import lru_cache
from typing import NewType, TypeVar, overload

import msgspec

from curtsy.core.errors import InvalidDomain, Reason
from curtsy.core.hostname import canonical_host
from curtsy.core.secrets import mask_header, mask_url, masked_repr

T = TypeVar("T")

Instant = NewType("Instant", int)
"""A moment by a store's clock, in whole microseconds. Never compared with another store's."""

SECOND = 1_000_000
"""Microseconds in a second: durations are float seconds outside and integer microseconds in records."""


class Now(msgspec.Struct, frozen=True, gc=False):
    """The present, as the store that holds the record sees it."""

    at: Instant
    """By a clock that never jumps: monotonic, boot-time, or the server's."""

    epoch: int
    """Microseconds since 1970 by the calendar's clock: for days, and for what must outlive a reboot."""

    boot: int = 0
    """Which run of the clock behind `at` this is; instants of another run are moved over by way of `epoch`."""


class Url(msgspec.Struct, frozen=True):
    """A canonical http or https URL and the parts that decisions need."""

    text: str
    """The whole URL, canonical, without fragment and without credentials."""

    scheme: str
    host: str
    """Lower case, punycode; an IPv6 address without brackets."""

    port: int
    target: str
    """Path and query, as they go on the wire."""

    domain: str
    """What pace, budget and breaker are kept for: the host, with its port if that is not the scheme's own."""

    credentials: str | None = field(default=None, repr=False)
    """`user:password` as it stood in the URL; never shown and never part of `text`."""

    def __repr__(self) -> str:
        return f"Url({mask_url(self.text)!r})"  # without the credentials

    @property
    def origin(self) -> str:
        """Scheme, host and port: what a robots.txt is valid for (RFC 9309, 2.3)."""
        return f"{self.scheme}://{self.domain}"

    @property
    def with_credentials(self) -> str:
        """The whole URL as it was given, to ask for it once more; never to be shown."""
        if self.credentials is None:
            return self.text
        return f"{self.scheme}://{self.credentials}@{self.domain}{self.target}"


class InvalidUrl(msgspec.Struct, frozen=True):
    """A URL that cannot be asked for, and why."""

    given: str
    why: str

    __repr__ = masked_repr


DEFAULT_PORTS = {"http": 80, "https": 443}

# RFC 3986, appendix B, with the authority taken apart.
_URL = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?P<slashes>//)?(?P<authority>[^/?#\\]*)(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:#.*)?",
    re.DOTALL,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_PATH = re.compile(r"[^?#]*")
_AUTHORITY = re.compile(r"(?:(?P<user>.*)@)?(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>[0-9]*))?", re.DOTALL)
_UNSAFE = re.compile(r"[^A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_RAW = _UNRESERVED | frozenset(":/?#[]@!$&'()*+,;=%")
_WRITTEN = [chr(octet) if chr(octet) in _RAW else f"%{octet:02X}" for octet in range(256)]
"""How each octet of UTF-8 is written in a URL."""

_HEX = "0123456789ABCDEFabcdef"
_ESCAPES = {
    high + low: letter if (letter := chr(int(high + low, 16))) in _UNRESERVED else f"%{high}{low}".upper()
    for high in _HEX
    for low in _HEX
}
"""The one way to write each escape, by its two digits (RFC 3986, 6.2.2)."""

_STRIPPED = "".join(map(chr, range(0x21)))
_DROPPED = str.maketrans("", "", "\t\r\n")
MAX_URL = 8192
"""Longer URLs are refused: servers commonly take 8 KiB."""

REMEMBERED = 512
"""Characters of a URL that is remembered once it was read. Pages can have thousands of long ones, of four bytes a
character."""


def parse_url(text: str, base: Url | None = None) -> Url | InvalidUrl:
    """Read `text` as an absolute URL (or one relative to `base`) and make it canonical (U1).

    Surrounding blanks and inner tabs and line ends are dropped, as browsers do; scheme and host are lower-cased, names
    that are not ASCII become punycode, the default port, the fragment and dot segments go, and whatever may not
    stand in a URL is percent-encoded. Never raises.
    """
    if not isinstance(text, str):
        return InvalidUrl(repr(text)[:100], "it is not text")
    text = without_blanks(text)
    if len(text) > MAX_URL:
        return _too_long(text, len(text))
    given = text if base is None else _joined(base, text)
    return _parse(given) if len(given) <= REMEMBERED else _parse.__wrapped__(given)


def without_blanks(text: str) -> str:
    """Return a URL without what browsers drop: blanks and control characters around it, tabs and line ends in it."""
    if not text.isprintable() or text[:1] == " " or text[-1:] == " ":
        return text.strip(_STRIPPED).translate(_DROPPED)
    return text


def _joined(base: Url, reference: str) -> str:
    """Make a reference absolute as browsers do (WHATWG URL, 4.4); its dot segments are still there.

    `\\` counts as `/`, and any number of slashes may stand before a host: `https:/host` and `///host` lead to it.
    """
    if "\\" in reference and (path := _PATH.match(reference)):
        reference = path[0].replace("\\", "/") + reference[path.end() :]
    scheme = base.scheme
    if found := _SCHEME.match(reference):
        rest, given = reference[found.end() :], found[0][:-1].lower()
        if given not in DEFAULT_PORTS:
            return reference
        if given != scheme or rest.startswith("//"):
            return f"{given}://{rest.lstrip('/')}"
        reference = rest  # http:g is g, where the base is http, too (RFC 3986, 5.4.2)
    match reference[:1]:
        case "" | "#":
            return base.text
        case "?":
            return base.origin + base.target.partition("?")[0] + reference
        case "/":
            is_host = reference.startswith("//")
            return f"{scheme}://{reference.lstrip('/')}" if is_host else base.origin + reference
        case _:
            return f"{base.origin}{base.target.partition('?')[0].rpartition('/')[0]}/{reference}"


def _too_long(given: str, length: int) -> InvalidUrl:
    # What is cut before an @ may be the half of a password (F62).
    shown = given[:100] if "@" not in given else given[:100].partition(":")[0]
    return InvalidUrl(shown + "…", f"it has {length:,} characters, more than {MAX_URL:,}")


@lru_cache(maxsize=4096)
def _parse(given: str) -> Url | InvalidUrl:
    if not given:
        return InvalidUrl(given, "it is empty")
    found = _URL.fullmatch(given)
    if found is None or (not found["slashes"] and found["scheme"].lower() not in DEFAULT_PORTS):
        if found is not None and not found["authority"].isdigit() and "." not in found["scheme"]:
            return InvalidUrl(given, f"its scheme is {found['scheme'].lower()}, not http or https")
        return InvalidUrl(given, "it has no scheme: write https:// or http:// before the host")
    scheme = found["scheme"].lower()
    if scheme not in DEFAULT_PORTS:
        return InvalidUrl(given, f"its scheme is {scheme}, not http or https")
    if not found["slashes"]:
        return InvalidUrl(given, f"after {scheme}: there must be //")
    if found["authority"].lower() in ("http:", "https:") and found["path"].startswith("//"):
        return InvalidUrl(given, "its scheme stands there twice")
    authority = found["authority"]
    place = (_place if len(authority) <= REMEMBERED else _place.__wrapped__)(scheme, authority)
    if isinstance(place, str):
        return InvalidUrl(given, place)
    host, port, domain, credentials = place
    if not given.isascii():  # before megabytes are made of it: each octet is at least a character
        octets = len(octets_of(found["path"] + (found["query"] or "")))
        if octets > MAX_URL:
            return _too_long(given, octets)
    # A browser reads \ as / in http URLs; a server that does too must not see a path that we judged otherwise.
    target = _resolve_dots(_escape(found["path"].replace("\\", "/"))) or "/"
    if found["query"] is not None:
        target += "?" + _escape(found["query"])
    text = f"{scheme}://{domain}{target}"
    if len(text) > MAX_URL:
        return _too_long(given, len(text))
    return Url(text, scheme, host, port, target, domain, credentials)


@lru_cache(maxsize=4096)  # many URLs of few sites
def _place(scheme: str, authority: str) -> tuple[str, int, str, str | None] | str:
    """Host, port, domain and credentials of an authority; or, in words, why it cannot be one."""
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None:
        return "its host and port cannot be read"
    host = canonical_host(parts["host"])
    if host is None:
        return f"{parts['host'][:100]!r} is not a host"
    port = DEFAULT_PORTS[scheme]
    if parts["port"]:
        port = int(parts["port"][:7])
        if not 0 < port < 65536:
            return f"its port {parts['port'][:7]} is not between 1 and 65535"
    shown = f"[{host}]" if ":" in host else host
    domain = shown if port == DEFAULT_PORTS[scheme] else f"{shown}:{port}"
    return host, port, domain, parts["user"] or None


def octets_of(part: str) -> bytes:
    """Return a part of a URL as bytes: UTF-8, and a byte that is not UTF-8 as it is.

    Python reads such a byte of a file name, an argument or a file as half a surrogate pair (PEP 383).
    """
    try:
        return part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return part.encode("utf-8", "surrogatepass")


def _escape(part: str) -> str:
    """Percent-encode what may not stand raw, and write every escape in one way (RFC 3986, 6.2.2)."""
    if _UNSAFE.search(part):
        part = "".join([_WRITTEN[octet] for octet in octets_of(part)])
    if "%" not in part:
        return part
    first, *rest = part.split("%")
    return first + "".join([(_ESCAPES.get(each[:2]) or "%25" + each[:2]) + each[2:] for each in rest])


def _resolve_dots(path: str) -> str:
    """Remove dot segments (RFC 3986, 5.2.4)."""
    if "/." not in path and not path.startswith("."):
        return path if path.startswith("/") or not path else "/" + path
    kept: list[str] = []
    segments = path.split("/")[1:] if path.startswith("/") else path.split("/")
    for segment in segments:
        if segment == "..":
            if kept:
                kept.pop()
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def parse_domain(domain: str) -> str:
    """Check and fold a domain as the parts take it: a host, perhaps with a port, and nothing else (L8).

    Raises InvalidDomain with the right form in its message.
    """
    if not isinstance(domain, str):
        raise InvalidDomain(f"domain = {_shown(domain)} must be text. Give a host such as example.com.")
    return _domain(domain)


@lru_cache(maxsize=4096)
def _domain(domain: str) -> str:
    name = domain.strip()
    if not name:
        raise InvalidDomain(f"domain = {_shown(domain)} must not be empty. Give a host such as example.com.")
    if "://" in name:
        raise _no_domain(domain, "a host without a scheme", name)
    bare, colon, port = name.rpartition(":")
    if not colon or name.endswith("]") or (":" in bare and not bare.endswith("]")):
        bare, port = name, ""
    elif not port.isdecimal() or not 0 < int(port[:7]) < 65536:
        is_url = "@" in name or "/" in port
        must = "a host and nothing else" if is_url else "a host with a port between 1 and 65535, or with none"
        raise _no_domain(domain, must, f"http://{name if is_url else bare}")
    host = canonical_host(f"[{bare}]" if ":" in bare and not bare.startswith("[") else bare)
    if host is None:
        raise _no_domain(domain, "a host and nothing else", f"http://{name}")
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{int(port)}" if port else shown


def _no_domain(given: str, must: str, url: str) -> InvalidDomain:
    """The error for what is no domain, with the right form as far as `url` lets us guess it."""
    found = parse_url(url)
    hint = f"Write {found.domain!r}." if isinstance(found, Url) else "Give a host such as example.com."
    return InvalidDomain(f"domain = {_shown(given)} must be {must}. {hint}")


def _shown(given: object) -> str:
    """What was given, as an error shows it: without credentials, and not by the page (F62)."""
    if isinstance(given, str) and "@" in given:
        given = "…" + given[given.rindex("@") :]
    return f"{given!r:.100}"


MOST_NUMBER = 10**18
"""The largest number that is read from a field; larger ones count as this one."""


def whole_number(text: str | None) -> int | None:
    """Read a field's value that is a number without sign (RFC 9110: 1*DIGIT). None if it is not.

    Leading zeros do not count. Never raises: `int()` does, for more than 4,300 digits.
    """
    if text is None:
        return None
    text = text.strip(" \t")
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return MOST_NUMBER if len(digits) > 18 else int(digits or "0")


class Headers(Mapping[str, str]):
    """Header fields in order, looked up by name in any case: `headers["content-type"]`, `dict(headers)`. Immutable."""

    __slots__ = ("_known", "fields")

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self.fields = tuple(fields)
        self._known: dict[str, str] | None = None

    @property
    def by_name(self) -> Mapping[str, str]:
        """Values by lower-case name, for those who ask for many. As of `get()`, repetitions are joined by commas."""
        # Made when the first is asked for: of a kept page often none is.
        index = self._known
        if index is None:
            index = {}
            for name, value in self.fields:
                name = name.lower()
                # Repeated fields are one list (RFC 9110, 5.3); Set-Cookie is the exception and is read from `fields`.
                index[name] = f"{index[name]}, {value}" if name in index else value
            self._known = index
        return index

    @overload
    def get(self, name: str, /) -> str | None: ...
    @overload
    def get(self, name: str, /, default: str | T) -> str | T: ...
    def get(self, name: str, /, default: str | T | None = None) -> str | T | None:
        """The value of a field, its repetitions joined by commas; None, or `default`, if it is absent."""
        return (self._known or self.by_name).get(name.lower(), default)

    def keys(self) -> KeysView[str]:
        """The names, in lower case, each once."""
        return self.by_name.keys()

    def values(self) -> ValuesView[str]:
        """The values, as of `get()`."""
        return self.by_name.values()

    def items(self) -> ItemsView[str, str]:
        """Names and values, as of `keys()` and `values()`; `fields` has them as they came."""
        return self.by_name.items()

    def all(self, name: str) -> list[str]:
        """Every value of a field, one each."""
        name = name.lower()
        return [value for each, value in self.fields if each.lower() == name]

    def without(self, names: Set[str]) -> Headers:
        """All but the fields of these names, which are in lower case."""
        index = self.by_name
        if names.isdisjoint(index):
            return self
        rest = Headers(each for each in self.fields if each[0].lower() not in names)
        rest._known = {name: value for name, value in index.items() if name not in names}
        return rest

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self.by_name

    def __getitem__(self, name: str) -> str:
        return self.by_name[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.by_name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Headers) and self.fields == other.fields

    def __hash__(self) -> int:
        return hash(self.fields)

    def __repr__(self) -> str:
        return f"Headers({[(name, mask_header(name, value)) for name, value in self.fields]!r})"


NO_HEADERS = Headers()


class Request(msgspec.Struct, frozen=True):
    """One request as it goes on the wire: one hop, one attempt."""

    url: Url
    method: str = "GET"
    headers: Headers = NO_HEADERS
    body: bytes | None = None


class Response(msgspec.Struct, frozen=True):
    """An answer, whatever its status."""

    status: int
    headers: Headers
    body: bytes
    """Decoded (gzip, br, zstd, deflate undone)."""

    sent_ago: float = 0.0
    """Seconds since the request was really written, by the sender's monotonic clock, when this was made."""

    latency: float = 0.0
    """Seconds from the write to the head of the answer."""

    wire_bytes: int = 0
    """Bytes of body that came over the network."""

    is_whole: bool = True
    """Whether the body is all there; that of an error or a redirect need not be."""


class Failure(msgspec.Struct, frozen=True):
    """No usable answer came."""

    reason: Reason
    detail: str
    """What happened, in words, without secrets."""

    sent_ago: float | None = None
    """Seconds since the request was written; None if it never was, so that it costs the site nothing."""

    status: int | None = None
    """The status of an answer that had come so far, as when its body was cut short."""

    wire_bytes: int = 0
    is_answer: bool = False
    """Whether the host did answer, and is well: only not in the protocol that the URL names."""

    is_lasting: bool = False
    """Whether coming back in some minutes is of no use: there is no such name, or a proxy wants a login."""

    ended_at_proxy: bool = False
    """Whether it was the proxy that failed: the host was not asked, so this says nothing of it."""

    advice: str | None = None
    """What to do about it, as a sentence; None for what its reason suggests, empty if the detail says it."""

    part: bytes = b""
    """What had come of the body, decoded; only of one that may be cut, as a robots.txt."""


Reply = Response | Failure

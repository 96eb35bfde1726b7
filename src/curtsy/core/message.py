"""Basic values: instants, URLs, requests and replies."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from dataclasses import field
from functools import lru_cache
from typing import NewType, TypeVar, overload
from urllib.parse import unquote_to_bytes

import msgspec

from curtsy.core.errors import InvalidDomain, Reason
from curtsy.core.hostname import canonical_host
from curtsy.core.secrets import mask_header, mask_url, masked_repr

T = TypeVar("T")

Instant = NewType("Instant", int)
"""Time by a store's clock, in whole microseconds. Instants of different stores are not comparable."""

SECOND = 1_000_000
"""Microseconds in a second. Durations are float seconds in interfaces and integer microseconds in records."""


class Now(msgspec.Struct, frozen=True, gc=False):
    """Present time, as the store of the record sees it."""

    at: Instant
    """Time by a clock that never jumps: monotonic, boot-time, or the server's."""

    epoch: int
    """Microseconds since 1970, for days and for times that outlive a reboot."""

    boot: int = 0
    """Identity of the run of the clock behind `at`. Instants of another run are converted by `epoch`."""


class Url(msgspec.Struct, frozen=True):
    """Canonical http or https URL, with the parts that decisions need."""

    text: str
    """Whole canonical URL, without fragment and credentials."""

    scheme: str
    host: str
    """Host in lower case and punycode; an IPv6 address without brackets."""

    port: int
    target: str
    """Path and query, as sent."""

    domain: str
    """Key of pace, budget and breaker: the host, with its port unless that is the scheme's default."""

    credentials: str | None = field(default=None, repr=False)
    """`user:password` as given in the URL; never shown, and not part of `text`."""

    def __repr__(self) -> str:
        return f"Url({mask_url(self.text)!r})"  # without the credentials

    @property
    def origin(self) -> str:
        """Scheme, host and port: the scope of a robots.txt (RFC 9309, 2.3)."""
        return f"{self.scheme}://{self.domain}"

    @property
    def with_credentials(self) -> str:
        """URL with its credentials, to request it again; never to be shown."""
        if self.credentials is None:
            return self.text
        return f"{self.scheme}://{self.credentials}@{self.domain}{self.target}"

    @property
    def authorization(self) -> str:
        """Value of the Authorization header for the credentials (RFC 7617)."""
        name, _, password = octets_of(self.credentials or "").partition(b":")
        return "Basic " + b64encode(unquote_to_bytes(name) + b":" + unquote_to_bytes(password)).decode()


class InvalidUrl(msgspec.Struct, frozen=True):
    """URL that cannot be requested, and the reason."""

    given: str
    why: str

    __repr__ = masked_repr


DEFAULT_PORTS = {"http": 80, "https": 443}

# RFC 3986, appendix B, with the authority split.
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
"""Spelling of each UTF-8 octet in a URL."""

_HEX = "0123456789ABCDEFabcdef"
_ESCAPES = {
    high + low: letter if (letter := chr(int(high + low, 16))) in _UNRESERVED else f"%{high}{low}".upper()
    for high in _HEX
    for low in _HEX
}
"""Canonical spelling of each escape, by its two digits (RFC 3986, 6.2.2)."""

_STRIPPED = "".join(map(chr, range(0x21)))
_DROPPED = str.maketrans("", "", "\t\r\n")
MAX_URL = 8192
"""Most characters of a URL: servers commonly accept 8 KiB."""

REMEMBERED = 512
"""Most characters of a URL whose parsed form is cached. Pages can have thousands of longer URLs, at up to four bytes a
character."""


def parse_url(text: str, base: Url | None = None) -> Url | InvalidUrl:
    """Parse an absolute URL, or one relative to `base`, into its canonical form (U1).

    As browsers do, it drops surrounding blanks, inner tabs and line ends. Scheme and host become lower case, names
    outside ASCII punycode. It removes default port, fragment and dot segments, and escapes invalid characters.
    Never raises.
    """
    if not isinstance(text, str):
        return InvalidUrl(repr(text)[:100], "it is not text")
    text = without_blanks(text)
    if len(text) > MAX_URL:
        return _too_long(text, len(text))
    given = text if base is None else _joined(base, text)
    return _parse(given) if len(given) <= REMEMBERED else _parse.__wrapped__(given)


def without_blanks(text: str) -> str:
    """Return a URL without surrounding blanks and controls, inner tabs and line ends, as in browsers."""
    if not text.isprintable() or text[:1] == " " or text[-1:] == " ":
        return text.strip(_STRIPPED).translate(_DROPPED)
    return text


def _joined(base: Url, reference: str) -> str:
    """Return a reference as absolute URL, as browsers do (WHATWG URL, 4.4). Dot segments remain.

    `\\` counts as `/`. Any number of slashes may precede a host: `///host`, or `https:/host` for an http base.
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
        reference = rest  # RFC 3986, 5.4.2: for an http base, http:g is g
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
    # A cut before an @ may show half of a password (F62).
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
    if not given.isascii():  # checked before escaping, which makes at least one character of each octet
        octets = len(octets_of(found["path"] + (found["query"] or "")))
        if octets > MAX_URL:
            return _too_long(given, octets)
    # Browsers read \ as / in http URLs. If a server does so, too, the rules must have judged the same path.
    target = _resolve_dots(_escape(found["path"].replace("\\", "/"))) or "/"
    if found["query"] is not None:
        target += "?" + _escape(found["query"])
    text = f"{scheme}://{domain}{target}"
    if len(text) > MAX_URL:
        return _too_long(given, len(text))
    return Url(text, scheme, host, port, target, domain, credentials)


@lru_cache(maxsize=4096)  # many URLs share few authorities
def _place(scheme: str, authority: str) -> tuple[str, int, str, str | None] | str:
    """Return host, port, domain and credentials of an authority; a str, the reason, if it is invalid."""
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
    """Return a part of a URL as UTF-8; bytes that were not UTF-8 stay unchanged.

    Python reads such bytes of file names, arguments and files as lone surrogates (PEP 383).
    """
    try:
        return part.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return part.encode("utf-8", "surrogatepass")


def _escape(part: str) -> str:
    """Percent-encode invalid characters, and make all escapes canonical (RFC 3986, 6.2.2)."""
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
    """Return the canonical form of a domain: a host with an optional port (L8).

    Raises InvalidDomain, whose message shows the right form.
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
    """Return the error for an invalid domain, with the right form if `url` yields a domain."""
    found = parse_url(url)
    hint = f"Write {found.domain!r}." if isinstance(found, Url) else "Give a host such as example.com."
    return InvalidDomain(f"domain = {_shown(given)} must be {must}. {hint}")


def _shown(given: object) -> str:
    """Return a given value for an error message: without credentials, at most 100 characters (F62)."""
    if isinstance(given, str) and "@" in given:
        given = "…" + given[given.rindex("@") :]
    return f"{given!r:.100}"


MOST_NUMBER = 10**18
"""Largest number that is read from a field; larger numbers are reduced to it."""


def whole_number(text: str | None) -> int | None:
    """Parse a field's value as a number without sign (RFC 9110: 1*DIGIT); None if it is not one.

    Leading zeros are ignored. Never raises, unlike `int()` for more than 4,300 digits.
    """
    if text is None:
        return None
    text = text.strip(" \t")
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return MOST_NUMBER if len(digits) > 18 else int(digits or "0")


class Headers(Mapping[str, str]):
    """Immutable header fields in order; names ignore case: `headers["content-type"]`, `dict(headers)`."""

    __slots__ = ("_known", "fields")

    def __init__(self, fields: Iterable[tuple[str, str]] = ()) -> None:
        self.fields = tuple(fields)
        self._known: dict[str, str] | None = None

    @property
    def by_name(self) -> Mapping[str, str]:
        """Values by lower-case name; repeated fields are joined by commas."""
        # Computed on first use: for a cached page often never.
        index = self._known
        if index is None:
            index = {}
            for name, value in self.fields:
                name = name.lower()
                # RFC 9110, 5.3: repeated fields are one list. Set-Cookie is the exception, and is read from `fields`.
                index[name] = f"{index[name]}, {value}" if name in index else value
            self._known = index
        return index

    @overload
    def get(self, name: str, /) -> str | None: ...
    @overload
    def get(self, name: str, /, default: str | T) -> str | T: ...
    def get(self, name: str, /, default: str | T | None = None) -> str | T | None:
        """Return the value of a field, repetitions joined by commas; `default` if it is absent."""
        return (self._known or self.by_name).get(name.lower(), default)

    def keys(self) -> KeysView[str]:
        """Return the distinct names, in lower case."""
        return self.by_name.keys()

    def values(self) -> ValuesView[str]:
        """Return the values, repetitions joined as by `get()`."""
        return self.by_name.values()

    def items(self) -> ItemsView[str, str]:
        """Return names and values as `keys()` and `values()` do. `fields` has the original fields."""
        return self.by_name.items()

    def all(self, name: str) -> list[str]:
        """Return every value of a field, not joined."""
        name = name.lower()
        return [value for each, value in self.fields if each.lower() == name]

    def without(self, names: Set[str]) -> Headers:
        """Return the headers without these lower-case names."""
        if names.isdisjoint(self.by_name):
            return self
        return Headers(each for each in self.fields if each[0].lower() not in names)

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
    """Request as sent: one hop, one attempt."""

    url: Url
    method: str = "GET"
    headers: Headers = NO_HEADERS
    body: bytes | None = None


class Response(msgspec.Struct, frozen=True):
    """Reply of a server, of any status."""

    status: int
    headers: Headers
    body: bytes
    """Decoded body (gzip, br, zstd, deflate removed)."""

    sent_ago: float = 0.0
    """Seconds between writing the request and creating this object, by the sender's monotonic clock."""

    latency: float = 0.0
    """Seconds between writing the request and the response head."""

    wire_bytes: int = 0
    """Bytes of the body on the network."""

    is_whole: bool = True
    """True if the body is complete; bodies of errors and redirects may be incomplete."""


class Failure(msgspec.Struct, frozen=True):
    """Absence of a usable response, and its reason."""

    reason: Reason
    detail: str
    """Description of the event, without secrets."""

    sent_ago: float | None = None
    """Seconds since the request was written; None if nothing was sent, which costs the site nothing."""

    status: int | None = None
    """Status of the response, if its head came, for example before an incomplete body."""

    wire_bytes: int = 0
    is_answer: bool = False
    """True if the host answered and is healthy, but speaks another protocol than the URL names."""

    is_lasting: bool = False
    """True if a retry within minutes is useless: the name does not exist, or a proxy requires a login."""

    ended_at_proxy: bool = False
    """True if the proxy failed: the host was not contacted, so this is no evidence about it."""

    advice: str | None = None
    """Advice as a sentence; None: the advice for `reason`; empty if `detail` contains it."""

    part: bytes = b""
    """Received part of the body, decoded; only for bodies that may be cut, such as robots.txt."""


Reply = Response | Failure

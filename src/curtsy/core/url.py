"""URLs and domains in canonical form, with their host names and addresses (WHATWG URL)."""

from __future__ import annotations

import ipaddress
import re
from base64 import b64encode
from functools import lru_cache
from urllib.parse import unquote_to_bytes

import msgspec

from curtsy.core.bounded import remember_short
from curtsy.core.errors import InvalidDomain
from curtsy.core.masking import mask_url, masked_repr


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

    credentials: str | None = None
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
_CANONICAL = re.compile(
    r"(https?)://([a-z0-9.-]+(?::[0-9]+)?)(/[A-Za-z0-9\-._~:/\[\]@!$&'()*+,;=]*(?:\?[A-Za-z0-9\-._~:/?\[\]@!$&'()*+,;=]*)?)"
)
"""Pattern of URLs that are canonical already, unless they have dot segments or another spelling of the host."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_BARE = re.compile(r"(?!https?[:/]|[A-Za-z][A-Za-z0-9+.-]*:(?![0-9]+(?:[/?#]|\Z)))[^/?#.:@\\\s][^@\s]*")
"""Pattern of URLs without a scheme that begin with a host: `example.org`, `localhost:8000/a`, `[::1]`."""

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
    if not text.isprintable() or " " in text:
        text = without_blanks(text)
    if len(text) > MAX_URL:
        return _too_long(text, len(text))
    given = text if base is None else _joined(base, text)
    return _parse(given) if len(given) <= REMEMBERED else _parse_any(given)


def is_bare(text: str) -> bool:
    """Return whether a URL begins with a host instead of a scheme. A colon before digits begins a port."""
    return _BARE.fullmatch(text.strip()) is not None


def with_scheme(text: str) -> str:
    """Return a URL that a user typed, with `https://` before a bare host.

    It is for seeds and for the command line. A program fetches URLs that it has read, and a relative link such as
    `install.sh` would be requested from a host of that name.
    """
    return f"https://{text.strip()}" if is_bare(text) else text


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
    canonical = _CANONICAL.fullmatch(given)
    if canonical is not None and "/." not in given:
        scheme, authority, target = canonical.groups()
        place = _place(scheme, authority)
        if not isinstance(place, str) and place[2] == authority:
            return Url(given, scheme, place[0], place[1], target, authority)
    return _parse_any(given)


def _no_scheme(given: str) -> str:
    """Describe a URL without a scheme, with the text to write instead if that is known."""
    rest = given.removeprefix("//")
    if rest == given and given[0] in "./?#":
        return "it is relative: write https:// and a host before it, or join it with the URL of its page"
    if len(given) <= REMEMBERED and is_bare(rest):
        return f"it has no scheme: write https://{rest}"
    return "it has no scheme: write https:// or http:// before the host"


def _parse_any(given: str) -> Url | InvalidUrl:
    """Parse a URL in any spelling."""
    if not given:
        return InvalidUrl(given, "it is empty")
    found = _URL.fullmatch(given)
    if found is None or (not found["slashes"] and found["scheme"].lower() not in DEFAULT_PORTS):
        if found is not None and not found["authority"].isdigit() and "." not in found["scheme"]:
            return InvalidUrl(given, f"its scheme is {found['scheme'].lower()}, not http or https")
        return InvalidUrl(given, _no_scheme(given))
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


MAX_HOST, MAX_LABEL = 1024, 63
"""Most characters of a host and of a label. ASCII hosts have at most 253, but the mapping drops some characters."""

_JOINERS = "\u200c\u200d"
_HOST = re.compile(r"[a-z0-9_-]{1,63}(?:\.[a-z0-9_-]{1,63})*")
_IPV4 = re.compile(r"(?:(?:0x[0-9a-f]*|0[0-7]*|[1-9][0-9]*)(?:\.|\Z)){1,4}(?<!\.)")


def canonical_host(host: str) -> str | None:
    """Return the canonical form of a host: lower case, punycode, full address. None if it is invalid."""
    return _canonical_host(host) if len(host) <= MAX_HOST else None


@remember_short(4096, 253)  # the longest host in ASCII
def _canonical_host(host: str) -> str | None:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1].partition("%")[0])) if host.endswith("]") else None
        except ValueError:
            return None
    if "%" in host:  # as in browsers, though few hosts need it (WHATWG URL, 3.5)
        host = unquote_to_bytes(host.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
    found = host.lower() if host.isascii() else _punycode(host)
    if found is None:
        return None
    host = found.removesuffix(".")  # the root's dot denotes the same site, hence the same record
    if len(host) > 253 or not _HOST.fullmatch(host):
        return None
    last = host.rpartition(".")[2]
    if last.isdigit() or (last.startswith("0x") and re.fullmatch("0x[0-9a-f]*", last)):
        return _ipv4(host)
    return host


def _punycode(host: str) -> str | None:
    """Map a name to ASCII by UTS 46, as browsers do (WHATWG URL, 3.3); None if the name is invalid.

    Neither the transitional mapping nor IDNA 2008's list of code points applies, so emojis are allowed.
    """
    import idna  # only a few names need it

    labels = []
    try:
        for label in idna.uts46_remap(host, std3_rules=False).split("."):
            if label.isascii():
                labels.append(label)
                continue
            # The encoded label is at least as long, and the codec takes quadratic time.
            if len(label) > MAX_LABEL:
                return None
            idna.check_initial_combiner(label)
            idna.check_bidi(label)
            if not all(idna.valid_contextj(label, place) for place, each in enumerate(label) if each in _JOINERS):
                return None
            labels.append("xn--" + label.encode("punycode").decode("ascii"))
    except (ValueError, IndexError):  # IDNAError and UnicodeError are ValueErrors
        return None
    return ".".join(labels)


def _ipv4(host: str) -> str | None:
    """Parse an IPv4 address in any form that resolvers accept (`127.1`, `0x7f.0.0.1`), by WHATWG URL; else None."""
    if not _IPV4.fullmatch(host):  # int() alone would accept 1_0 and 0o7
        return None
    numbers = [
        int(part[2:] or "0", 16) if part.startswith("0x") else int(part, 8 if part.startswith("0") else 10)
        for part in host.split(".")
    ]
    if any(number > 255 for number in numbers[:-1]) or numbers[-1] >= 256 ** (5 - len(numbers)):
        return None
    value = numbers[-1] + sum(number << 8 * (3 - place) for place, number in enumerate(numbers[:-1]))
    return str(ipaddress.IPv4Address(value))

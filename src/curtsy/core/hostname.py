"""Canonical form of host names and addresses (WHATWG URL, 3.3 to 3.5)."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote_to_bytes

from curtsy.core.bounded import remember_short

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

"""URLs of stores, and paths: parsing and checks that open nothing and need no library.

    memory:                          this process alone
    sqlite:///state.sqlite           a file, relative to the working directory
    sqlite:////var/lib/state.sqlite  a file, absolute

    redis://user:password@host:6379/0               one server
    rediss://host:6380/0?ssl_ca_certs=ca.pem        one server, with TLS
    unix:///run/redis.sock?db=0                     one server, by its socket
    redis+sentinel://host:26379,host:26379/service  the primary that the sentinels report
    redis+cluster://host:6379,host:6379             a cluster, by any of its nodes

`rediss+sentinel` and `rediss+cluster` are the last two with TLS. Options of redis-py can follow a `?`. So can
`timeout=5`, the seconds to wait for a connection and for a reply, and `replicas=1`: then a shared crawl ends a page
only when so many replicas have the URLs found on it.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import quote, unquote

from curtsy.core.errors import PolicyError
from curtsy.core.setting import number, rule

_REDIS = ("redis", "rediss", "unix", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel")
_SCHEMES = ("memory", "sqlite", *_REDIS)

# Everything up to the last @ is the login: messages show the host, and no part of a password may be taken for it.
_URL = re.compile(
    r"(?P<scheme>rediss?(?:\+sentinel|\+cluster)?)://(?:(?P<login>[^?]*)@)?(?P<hosts>[^/?]*)(?P<path>/[^?]*)?"
    r"(?:\?(?P<query>.*))?"
    r"|(?P<unix>unix)://(?:[^@/]*@)?(?P<socket>/[^?]*)(?:\?.*)?",
    re.DOTALL,
)
_BEGINS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOST = re.compile(r"(?:\[(?P<address>[^\]]+)\]|(?P<name>[^:\[\]]*))(?::(?P<port>[0-9]{1,5}))?")
_PORTS = {"sentinel": 26379}

MOST_REPLICAS = 100
"""Maximum of the option `replicas`."""

TIMEOUT = 5.0
"""Seconds to wait for a connection to a server, and for a reply, unless the URL has a timeout."""


def parse_store_url(url: str) -> tuple[Literal["memory", "sqlite", "redis"], str]:
    """Return the kind of store, and its path or server URL. Raises PolicyError for a bad URL."""
    scheme, colon, rest = url.partition(":")
    scheme = scheme.lower()
    if not colon or scheme not in _SCHEMES:
        raise PolicyError(_unknown(url, scheme if colon else ""))
    if scheme == "memory":
        return "memory", ""
    if scheme == "sqlite":
        place = rest.removeprefix("///")
        if place == rest or not place:
            raise PolicyError(
                f"store = {_shown(url)!r} must name a file after three slashes. Write sqlite:///state.sqlite for one "
                "in this directory, sqlite:////var/lib/state.sqlite for an absolute one."
            )
        if letter := never_in_a_path(place):
            raise rule("store", _shown(url), _without(letter))
        return "sqlite", place
    return "redis", url


def check_place(url: str) -> None:
    """Raise PolicyError if `url` is not a valid store URL."""
    kind, place = parse_store_url(url)
    if kind == "redis":
        parse_server(place)


def check_path(name: str, path: object) -> None:
    """Raise PolicyError if `path` cannot be a path. `name` is the caller's name for it.

    The system would report it only on opening, with a less helpful message.
    """
    if not isinstance(path, str | os.PathLike):
        raise rule(name, path, "a path")
    if letter := never_in_a_path(path):
        raise rule(name, os.fspath(path), _without(letter))


def never_in_a_path(path: str | os.PathLike[str]) -> str:
    """Return the first character of a path that no file name can contain here; empty if all are valid."""
    try:
        return "\0" if b"\0" in os.fsencode(path) else ""
    except UnicodeEncodeError as error:  # a lone surrogate
        return error.object[error.start]


def _without(letter: str) -> str:
    return f"a path without {letter!r}, which no file's name can have. Take it out"


def _unknown(url: str, scheme: str) -> str:
    import difflib  # only for the message

    known = ", ".join(f"{each}:" for each in _SCHEMES)
    nearest = difflib.get_close_matches(scheme, _SCHEMES, 1) if scheme else [each for each in _SCHEMES if each == url]
    if nearest:
        hint = f" Did you mean {nearest[0]}:?"
    elif not url:
        hint = " Leave it out for a file of curtsy's own."
    elif "://" not in url and "@" not in url:
        hint = f" For a file, write sqlite:///{_shown(url)}."
    else:
        hint = ""
    return f"store = {_shown(url)!r} must begin with one of {known}.{hint}"


def _shown(url: str) -> str:
    """Return a URL for error messages, without options and without any part of a login (F62)."""
    login, at, place = url.rpartition("@")  # the last @, because a password may contain one
    if not at:
        return url.partition("?")[0]
    scheme = _BEGINS.match(login)
    # After a ?, `place` may be part of an option's value or of a password.
    return f"{scheme[0] if scheme else ''}***" + ("" if "?" in login else f"@{place.partition('?')[0]}")


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """Address of a server, a cluster or a Sentinel service."""

    shown: str
    """Text for messages, without user, password and options."""

    kind: str
    """`cluster`, `sentinel`, or empty for one server."""

    url: str = field(repr=False)
    """URL of the first server, with login and options, as redis-py takes it."""

    hosts: tuple[tuple[str, int], ...] = ()
    """Hosts and ports; empty for a socket."""

    service: str = ""
    is_tls: bool = False
    replicas: int = 0
    """Replicas that must have the URLs found on a page before a shared crawl ends the page."""

    timeout: float = TIMEOUT


def parse_server(url: str) -> ServerUrl:
    """Parse the URL of a Redis or Valkey server. Raises PolicyError, with a message without secrets."""
    begins = _BEGINS.match(url)
    scheme = begins[0].lower() if begins else ""
    url, given = _own_option(scheme + url[len(scheme) :], "replicas")
    replicas = _replicas(given)
    url, given = _own_option(url, "timeout")
    timeout = _timeout(given)
    found = _URL.fullmatch(url)
    if found is None:
        what = f"begins with {scheme[:-3][:40]!r}, which is no Redis" if scheme else "does not begin as one of a Redis"
        raise PolicyError(
            f"the store's URL {what}. Write redis://host:6379/0, or begin it with rediss, unix, redis+sentinel or "
            "redis+cluster."
        )
    if found["unix"]:
        return ServerUrl(f"unix://{found['socket']}", "", url, replicas=replicas, timeout=timeout)
    scheme, _, kind = found["scheme"].partition("+")
    if "@" in (found["query"] or ""):
        raise PolicyError(
            "the store's URL has a ? before its last @. In a password, write ? as %3F; in an option, write @ as %40."
        )
    path = unquote(found["path"] or "")
    shown = f"{found['scheme']}://{found['hosts']}{path}"
    hosts = tuple(_host(each, _PORTS.get(kind, 6379), shown) for each in found["hosts"].split(","))
    if len(hosts) > 1 and not kind:
        raise PolicyError(f"{shown} names several hosts. Write redis+cluster:// or redis+sentinel:// if that is it.")
    service, _, database = path.removeprefix("/").partition("/") if kind == "sentinel" else ("", "", path[1:])
    if kind == "sentinel" and not service:
        raise PolicyError(f"{shown} names no service. Write it after the hosts: redis+sentinel://host:26379/mymaster.")
    if database and not (database.isascii() and database.isdigit()):
        raise PolicyError(f"{shown}: the database {database!r} must be a number. Leave it out to use 0.")
    if kind == "cluster" and database not in ("", "0"):
        raise PolicyError(f"{shown}: a cluster has no database but 0. Leave it out.")
    login = f"{quote(found['login'], safe=':%')}@" if found["login"] else ""
    plain = f"{scheme}://{login}{found['hosts'].partition(',')[0]}/{database}?{found['query'] or ''}"
    return ServerUrl(shown, kind, plain, hosts, service, scheme == "rediss", replicas, timeout)


def _own_option(url: str, name: str) -> tuple[str, str | None]:
    """Return a URL without an option that redis-py does not know, and the option's value; None if absent."""
    place, mark, query = url.rpartition("?")
    options = query.split("&") if mark else []
    own = [each for each in options if each.startswith(f"{name}=")]
    if not own:
        return url, None
    rest = "&".join(each for each in options if each not in own)
    return place + (f"?{rest}" if rest else ""), own[-1].removeprefix(f"{name}=")


def _replicas(value: str | None) -> int:
    if value is None:
        return 0
    if not (value.isascii() and value.isdigit() and int(value) <= MOST_REPLICAS):
        raise rule("replicas", value, f"a number from 0 to {MOST_REPLICAS}")
    return int(value)


def _timeout(value: str | None) -> float:
    if value is None:
        return TIMEOUT
    with contextlib.suppress(ValueError):
        return number("timeout", float(value), above=True)
    raise rule("timeout", value, "a number of seconds above 0", TIMEOUT)


def _host(text: str, default: int, shown: str) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    port = int(found["port"] or default) if found else 0
    if found is None or not 0 < port < 65536:
        raise PolicyError(f"{shown}: {text!r} is no host and port. Write it as in redis://example.org:6379/0.")
    return found["address"] or found["name"] or "localhost", port

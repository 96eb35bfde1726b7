"""Sites: which hosts belong together, by the Public Suffix List."""

from __future__ import annotations

from functools import lru_cache

from curtsy.core.fair_share import GROUPS
from curtsy.http.cookies import public_suffixes


@lru_cache(maxsize=16_384)
def site_of(host: str) -> str:
    """The site that a host, perhaps with a port, belongs to: its registered domain, whatever the port.

    An IP address or a single label, such as `localhost`, has none: it is a site of its own, together with its port.
    """
    name, _ = name_and_port(host)
    if name.endswith("]") or "." not in name or name.rpartition(".")[2].isdecimal():
        return host
    return public_suffixes().privatesuffix(name) or name  # a public suffix itself, such as github.io


def are_apart(host: str, other: str) -> bool:
    """Whether two hosts, perhaps with ports, belong to different sites, whatever the ports."""
    name, other_name = name_and_port(host)[0], name_and_port(other)[0]
    return name != other_name and site_of(name) != site_of(other_name)


def name_and_port(host: str) -> tuple[str, str]:
    """A host without its port, and the port with its colon, or nothing."""
    name, colon, port = host.rpartition(":")
    return (name, colon + port) if colon and not host.endswith("]") else (host, "")


def group_of(name: str) -> int:
    """The number by which `Turns` knows a site or an address.

    Python salts the hash for each process, so a site cannot choose which other site has the same number.
    """
    return 1 + hash(name) % (GROUPS - 1)

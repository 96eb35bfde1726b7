"""Registered domains: the hosts that belong to one site, by the Public Suffix List."""

from __future__ import annotations

from functools import lru_cache

from curtsy.core.fair_share import GROUPS
from curtsy.http.cookies import public_suffixes


@lru_cache(maxsize=16_384)
def site_of(host: str) -> str:
    """Return the registered domain of a host. The host may have a port, which is ignored.

    An IP address or a single label, such as `localhost`, is a site of its own, together with its port.
    """
    name, _ = name_and_port(host)
    if name.endswith("]") or "." not in name or name.rpartition(".")[2].isdecimal():
        return host
    return public_suffixes().privatesuffix(name) or name  # a public suffix itself, such as github.io


def are_apart(host: str, other: str) -> bool:
    """Return whether two hosts have different registered domains, ignoring their ports."""
    name, other_name = name_and_port(host)[0], name_and_port(other)[0]
    return name != other_name and site_of(name) != site_of(other_name)


def name_and_port(host: str) -> tuple[str, str]:
    """Split a host into its name and its port with the colon; the port may be empty."""
    name, colon, port = host.rpartition(":")
    return (name, colon + port) if colon and not host.endswith("]") else (host, "")


def group_of(name: str) -> int:
    """Return the group number of a site or an address for `FairQueue`.

    Python salts the hash for each process, so a site cannot choose to share its number with another site.
    """
    return 1 + hash(name) % (GROUPS - 1)

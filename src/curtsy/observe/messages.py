"""Texts for waits (`get -v`, `why`), paces, origins of settings and ends of crawls (`top`, `jobs`)."""

from __future__ import annotations

from collections.abc import Container

from curtsy.core.host import Host
from curtsy.core.message import SECOND
from curtsy.core.policy import Policy
from curtsy.settings import Settings


def origin(settings: Settings, domain: str | None, key: str) -> str:
    """Return the origin of a setting; a program argument came from the command line."""
    found = settings.origin(domain, key)
    return "command line" if found == "argument" else found


def budget_origins(settings: Settings, domain: str, changed: Container[str] = ()) -> dict[str, str]:
    """Return the origins of a host's daily limits of `requests` and `pages`; those in `changed` were set by a user."""
    return {
        noun: "by hand" if (key := f"max_{noun}_per_day") in changed else origin(settings, domain, key)
        for noun in ("requests", "pages")
    }


def pace_origins(settings: Settings, domain: str, policy: Policy) -> dict[str, str]:
    """Return the origins of the settings that `pace()` shows."""
    keys = {"qps": policy.qps is not None, "pause": bool(policy.pause_max), "delay": bool(policy.delay)}
    found = [noun for noun, is_said in keys.items() if is_said] or ["qps"]
    return {noun: origin(settings, domain, "pause_min" if noun == "pause" else noun) for noun in found}


def as_one(origins: dict[str, str]) -> str:
    """Return several origins as one text; equal origins appear once."""
    if len(set(origins.values())) == 1:
        return next(iter(origins.values()))
    return ", ".join(f"{noun}: {found}" for noun, found in origins.items())


def because(name: str, policy: Policy, host: Host | None = None) -> str:
    """Return the text for the reason of a wait; the names are those of `Wait.because`."""
    match name:
        case "rate":
            return f"the rate of {policy.qps or 0:g} requests a second"
        case "pause":
            return f"the random pause of {policy.pause_min:g} to {policy.pause_max:g} s between two requests"
        case "delay":
            return f"the delay of {policy.delay:g} s between two requests"
        case "crawl_delay":
            asked = "" if host is None else f" of {host.crawl_delay / SECOND:g} s"
            return f"the Crawl-delay{asked} that its robots.txt asks for"
        case "adapted":
            return "its pace, slowed down after a 429"
        case "slow_site":
            return "its pace, slowed down because it answers slowly"
        case "rest":
            return "the rest that it asked for, or that follows a failure"
        case "in_flight":
            return "another request to it, which is under way"
        case "trial":
            return "the one request that tries whether it is well again"
        case _:
            return name


LIMITS = {"max_pages": "--limit", "max_time": "--max-time", "max_bytes": "--max-bytes", "later": "--patience"}
"""Option that ended a crawl, by `Summary.ended`; absent for a crawl that finished, was stopped or was killed."""


def pace(policy: Policy) -> str:
    """Return the maximum request rate to a host as a short text."""
    parts = []
    if policy.qps is not None:
        parts.append(f"{policy.qps:g}/s")
    if policy.pause_max:
        parts.append(f"pause {policy.pause_min:g}–{policy.pause_max:g} s")
    if policy.delay:
        parts.append(f"delay {policy.delay:g} s")
    return ", ".join(parts) or "no limit"

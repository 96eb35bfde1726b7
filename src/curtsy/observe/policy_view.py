"""Settings for display: values by name with masked secrets, and their origins."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from curtsy.core.masking import mask_url
from curtsy.core.policy import Policy
from curtsy.settings import Settings
from curtsy.settings.general import names


def values_of(settings: Settings, domain: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the program's settings and those of a host's policy; None: of the default policy."""

    def value(name: str) -> Any:
        found = settings.value(domain, name)
        if name == "timezone":
            return "local" if found is None else str(found)
        if isinstance(found, tuple):
            return list(found)
        return mask_url(str(found)) if isinstance(found, str | Path) else found

    of_host = [name for name in names("policy") if name != "pause"]
    extra = [] if domain is None else ["shared", "denied"]
    return {name: value(name) for name in names("general")}, {name: value(name) for name in [*of_host, *extra]}


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
    """Return the origins of the settings that `messages.pace` shows."""
    keys = {"qps": policy.qps is not None, "pause": bool(policy.pause_max), "delay": bool(policy.delay)}
    found = [noun for noun, is_said in keys.items() if is_said] or ["qps"]
    return {noun: origin(settings, domain, "pause_min" if noun == "pause" else noun) for noun in found}


def as_one(origins: dict[str, str]) -> str:
    """Return several origins as one text; equal origins appear once."""
    if len(set(origins.values())) == 1:
        return next(iter(origins.values()))
    return ", ".join(f"{noun}: {found}" for noun, found in origins.items())

"""Settings by name, as plain values with masked secrets, for display."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from curtsy.core.secrets import mask_url
from curtsy.settings import Settings
from curtsy.settings.keys import names


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

"""Overrides: limits of a host's policy that a user changes while the program runs."""

from __future__ import annotations

from functools import lru_cache

from curtsy.core.errors import PolicyError
from curtsy.core.policy import Policy

OVERRIDABLE = {
    "qps": float, "burst": float, "concurrency": int, "delay": float, "pause_min": float, "pause_max": float,
    "max_requests_per_day": int, "max_pages_per_day": int,
}  # fmt: skip
"""Limits that can be overridden while running, and the type of each."""


@lru_cache(maxsize=1024)
def overridden(policy: Policy, limits: tuple[tuple[str, float | None], ...]) -> Policy:
    """Return the policy with the overrides applied.

    Overrides that have become invalid because the settings changed are skipped.
    """
    try:
        return changed(policy, limits)
    except PolicyError:
        for limit in (*limits, *limits):  # two passes, because a limit may become valid only after another
            try:
                policy = changed(policy, (limit,))
            except PolicyError:
                continue
        return policy


def changed(policy: Policy, limits: tuple[tuple[str, float | None], ...]) -> Policy:
    """Return the policy with other limits. Raises PolicyError for one that is unknown or out of range."""
    changes: dict[str, float | None] = {}
    for name, value in limits:
        if name not in OVERRIDABLE:
            raise PolicyError(f"{name} cannot be changed while running. These can: {', '.join(OVERRIDABLE)}.")
        is_whole = OVERRIDABLE[name] is int and isinstance(value, float) and value.is_integer()
        changes[name] = int(value) if is_whole and value is not None else value
    return policy.replace(**changes)

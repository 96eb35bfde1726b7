"""Actions of the user on a host. Each updates the host's record once and logs a line."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from curtsy.core.amendment import Override, Pause, Reset, Resume, amend
from curtsy.core.errors import PolicyError
from curtsy.core.host import Host
from curtsy.core.message import Now, parse_domain
from curtsy.core.policy import Policy
from curtsy.engine.gate_steps import amended, amended_if_known
from curtsy.settings import Settings
from curtsy.stores import Step, Store
from curtsy.system.log import library_logger

_log = library_logger("dashboard")


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requested action."""

    action: Literal["reset", "pause", "resume", "limit"]
    domain: str
    seconds: float | None = None
    """Duration of a pause; None until the host is resumed."""

    limits: dict[str, float | Literal["none"] | None] = {}
    """New limits by name: a number, `none` for no limit, or null to restore the policy's value."""


_WORDS = {
    "reset": "Breaker reset by hand",
    "pause": "Host paused by hand",
    "resume": "Host resumed by hand",
    "limit": "Limits changed by hand",
}


def act(action: Action, settings: Settings, store: Store, client: str) -> str:
    """Apply an action; return the normalized domain.

    Raises PolicyError or InvalidDomain for an invalid action. Raises PolicyError if a host to reset or resume is
    unknown.
    """
    domain = parse_domain(action.domain)
    policy = settings.policies.of(domain)
    step: Step[Host | None]
    match action.action:
        case "reset":
            step = amended_if_known(policy, Reset())
        case "pause":
            if action.seconds is not None and not action.seconds > 0:
                raise PolicyError(f"seconds = {action.seconds!r} must be above 0. Leave it out to pause until resumed.")
            step = amended(policy, Pause(action.seconds))
        case "resume":
            step = amended_if_known(policy, Resume())
        case "limit":
            step = _limited(policy, action.limits)
    host = store.update(policy.key_for(domain), step)
    if host is None:
        raise PolicyError(f"nothing is known of {domain}: it was not asked so far. There is nothing to undo.")
    details: dict[str, Any] = {"seconds": action.seconds} if action.action == "pause" else {}
    if action.action == "limit":
        details = {"limits": dict(host.overrides)}
    _log.info(_WORDS[action.action], domain=domain, client=client, **details)
    return domain


def _limited(policy: Policy, limits: dict[str, float | Literal["none"] | None]) -> Step[Host]:
    """Return a step that changes some limits and keeps earlier changes of the others."""

    def step(host: Host | None, now: Now) -> tuple[Host, Host]:
        found = dict(() if host is None else host.overrides)
        for name, value in limits.items():
            if value is None:
                found.pop(name, None)
            else:
                found[name] = None if value == "none" else float(value)
        host = amend(host, now, policy, Override(tuple(found.items())))
        return host, host

    return step

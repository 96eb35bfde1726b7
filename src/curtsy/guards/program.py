"""The program's own limiter: one for everything in it that asks the web (Q6, Q7)."""

from __future__ import annotations

import threading

from curtsy.guards.limiter import RateLimiter
from curtsy.log import library_logger

_log = library_logger("guards")

_program: RateLimiter | None = None
_lock = threading.Lock()


def get_rate_limiter(global_qps: float | None = None) -> RateLimiter:
    """The program's own limiter: settings and environment, 0.8 a second over all and per domain if nothing is said.

    Given later, `global_qps` changes the rate of the one that is there. After `close()` there is a new one.
    """
    global _program
    with _lock:
        if _program is None or _program.is_closed:
            from curtsy.settings import load  # not before it is needed: settings are slow to import

            settings = load()
            for warning in settings.warnings:
                _log.warning(warning)
            policies, default = settings.policies, settings.policies.default
            _program = RateLimiter(
                global_qps=policies.global_qps if global_qps is None else global_qps,
                per_domain_qps=default.qps,
                circuit_breaker=default.breaker,
                cooldown_seconds=default.breaker_cooldown,
                strategy=default.strategy,
                policies=policies,
            )
        elif global_qps is not None:
            _program.use_global(global_qps)
        return _program

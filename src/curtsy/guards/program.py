"""The program's own limiter: one for everything in it that asks the web (Q6, Q7)."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from curtsy.core.policy import Policies
from curtsy.guards.domain import DomainLimiter
from curtsy.guards.limiter import RateLimiter
from curtsy.log import library_logger

if TYPE_CHECKING:
    from curtsy.settings.live import LiveSettings

_log = library_logger("guards")

_program: RateLimiter | None = None
_lock = threading.Lock()


def get_rate_limiter(global_qps: float | None = None) -> RateLimiter:
    """The program's own limiter: settings and environment, 0.8 a second over all and per domain if nothing is said.

    Given later, `global_qps` changes the rate of the one that is there. Settings files that have changed are read again
    while it is used. After `close()` there is a new one.
    """
    global _program
    with _lock:
        if _program is None or _program.is_closed:
            from curtsy.settings.live import LiveSettings  # not before it is needed: settings are slow to import

            live = LiveSettings()
            for warning in live.current.warnings:
                _log.warning(warning)
            _program = _ProgramLimiter(live, global_qps)
        elif global_qps is not None:
            _program.use_global(global_qps)
        return _program


class _ProgramLimiter(RateLimiter):
    """A limiter that follows the settings (U9). A global rate that the program has said itself stays."""

    def __init__(self, live: LiveSettings, global_qps: float | None) -> None:
        policies = live.current.policies
        default = policies.default
        super().__init__(
            global_qps=policies.global_qps if global_qps is None else global_qps,
            per_domain_qps=default.qps,
            circuit_breaker=default.breaker,
            cooldown_seconds=default.breaker_cooldown,
            strategy=default.strategy,
            policies=policies,
        )
        self._live = live
        self._followed = policies
        self._is_global_ours = global_qps is not None
        self._following = threading.Lock()

    def domain(self, domain: str) -> DomainLimiter:
        """The limiter of one domain, made on first use, by the settings as they are now."""
        policies = self._live.check().policies
        if policies is not self._followed:
            self._follow(policies)
        return super().domain(domain)

    def use_global(self, global_qps: float | None) -> None:
        """Change the global rate, while running; None for no limit. It holds for those who wait already."""
        self._is_global_ours = True
        super().use_global(global_qps)

    def _follow(self, policies: Policies) -> None:
        with self._following:
            if policies is self._followed:
                return
            self._followed = policies
            self.use_policies(policies)
            if not self._is_global_ours:
                super().use_global(policies.global_qps)

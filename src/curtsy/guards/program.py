"""The program's own limiter: one for everything in it that asks the web (Q6, Q7)."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from curtsy.core.policy import Policies
from curtsy.guards.domain import DomainLimiter
from curtsy.guards.limiter import RateLimiter, overall_of
from curtsy.guards.terms import Terms
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
        super().__init__(
            global_qps=policies.global_qps if global_qps is None else global_qps,
            per_domain_qps=policies.default.qps,
            policies=policies,
        )
        # Whoever reads the settings has checked and warned: not as arguments, which would be once more.
        self._put(policies, overall_of(self.overall.qps, policies.overall.burst))
        self._live = live
        self._stats_every = live.current.stats_every
        self._followed = policies
        self._is_global_ours = global_qps is not None

    def _renew_locks(self) -> None:
        """Start with free locks and nobody waiting, as a forked child does: who held them is not there."""
        super()._renew_locks()
        self._following = threading.Lock()

    def domain(self, domain: str) -> DomainLimiter:
        """The limiter of one domain, made on first use, by the settings as they are now."""
        self.terms()
        return super().domain(domain)

    def terms(self) -> Terms:
        """What the settings say now."""
        policies = self._live.check().policies
        if policies is not self._followed:
            self._follow(policies)
        return super().terms()

    def use_global(self, global_qps: float | None) -> None:
        """Change the global rate, while running; None for no limit. It holds for those who wait already."""
        with self._following:
            super().use_global(global_qps)
            self._is_global_ours = True

    def _follow(self, policies: Policies) -> None:
        with self._following:
            if policies is self._followed:
                return
            qps, wrong = self.overall.qps if self._is_global_ours else policies.global_qps, None
            try:
                self._put(policies, overall_of(qps, policies.overall.burst))
            except Exception as error:  # whatever is wrong with them, nobody's request fails for it (U9)
                wrong = error
            # Even if they cannot be used, for that is told once; and not before, for a fork may come between.
            self._followed = policies
        if wrong is not None:
            _log.warning("The limiter cannot use the changed settings; it keeps the ones before", error=str(wrong))


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

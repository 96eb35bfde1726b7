"""Limits of each domain from a limiter's settings, computed on first use."""

from __future__ import annotations

import copy
from typing import Self

import msgspec

from curtsy.core.policy import MOST_BURST, UNLIMITED, LimitConfig, Policies, Policy, Strategy, rule
from curtsy.limits.breaker import checked_cooldown

WINDOW = 256
"""Maximum burst of `sliding_window`, which stores each request."""


class Rates(msgspec.Struct, frozen=True):
    """Limits of one domain."""

    terms: DomainLimits
    config: LimitConfig
    policy: Policy
    """Policy with the rate only, for `wait` and `allow`."""

    guarded: Policy
    """Policy with rate and breaker, for `acquire`."""

    key: str
    """Key of the record: the domain's own, or that of its entry if its hosts are `shared` (C6)."""

    denied: bool = False
    """True if the domain is on the denylist (U9)."""

    warning: str | None = None
    """Warning about the domain's own configuration; the settings reader reports those of policies (L6)."""

    @property
    def most(self) -> int:
        """Return the maximum number of tokens available at once."""
        return MOST_BURST if self.policy.qps is None else self.config.burst_capacity


class DomainLimits:
    """Settings of a limiter. Their results hold until they are replaced.

    Rate and burst of a domain come from its own configuration, else its policy, else `default`. Everything else comes
    from its policy, or without policies from the templates.
    """

    def __init__(
        self,
        default: LimitConfig,
        configs: dict[str, LimitConfig],
        templates: tuple[Policy, Policy],
        unlimited: Policies,
        policies: Policies | None,
    ) -> None:
        self._default = default
        self._configs = configs
        self._base, self._guarded = templates
        self._unlimited = unlimited
        self._policies = policies
        self._made: dict[tuple[Policy | None, bool], tuple[LimitConfig, Policy, Policy]] = {}
        if policies is None:
            _check(default, self._base.strategy)
        for domain, config in configs.items():
            self._check(domain, config)

    def under(self, policies: Policies) -> DomainLimits:
        """Return the same settings with other policies."""
        return DomainLimits(self._default, self._configs, (self._base, self._guarded), self._unlimited, policies)

    def having(self, domain: str, config: LimitConfig) -> Self:
        """Return the same settings with another configuration of one domain."""
        self._check(domain, config)
        self._configs[domain] = config  # in place: copying thousands is slow, and all callers read the current limits
        return copy.copy(self)

    def of(self, domain: str) -> Rates:
        """Return the limits of a canonical domain."""
        policy = self._policy(domain)
        key, denied = (policy or UNLIMITED).key_for(domain), policy is not None and policy.denied
        is_free = self._unlimited.of(domain).category == "unlimited"
        usual, base, guarded = self._shared(policy, is_free)
        config = self._configs.get(domain)
        if config is not None:
            return Rates(self, config, *_at(config, is_free, base, guarded), key, denied, config.warning)
        return Rates(self, usual, base, guarded, key, denied)

    @property
    def warning(self) -> str | None:
        """Return the warning about the configuration of domains without their own (L6)."""
        return self._default.warning if self._policies is None else None

    @property
    def usual(self) -> Policy:
        """Return the policy with rate and breaker of a domain without an entry."""
        return self._shared(None if self._policies is None else self._policies.default, False)[2]

    def _policy(self, domain: str) -> Policy | None:
        return None if self._policies is None else self._policies.of(domain)

    def _check(self, domain: str, config: LimitConfig) -> None:
        _check(config, (self._policy(domain) or self._base).strategy)

    def _shared(self, policy: Policy | None, is_free: bool) -> tuple[LimitConfig, Policy, Policy]:
        """Return the configuration and policies that all domains of a policy share; computed once."""
        made = self._made.get((policy, is_free))
        if made is None:
            if policy is None:
                made = self._default, *_at(self._default, is_free, self._base, self._guarded)
            else:
                config = LimitConfig(policy.qps or self._default.requests_per_second, int(policy.burst))
                qps = None if is_free else policy.qps
                base = UNLIMITED.replace(
                    strategy=policy.strategy, qps=qps, burst=policy.burst, max_crawl_delay=policy.max_crawl_delay,
                    global_rate=policy.global_rate and not is_free,
                )  # fmt: skip
                made = config, base, _with_breaker(base, policy)
            self._made[policy, is_free] = made
        return made


def _at(config: LimitConfig, is_free: bool, base: Policy, guarded: Policy) -> tuple[Policy, Policy]:
    """Return both policies at the rate of a configuration, or without a rate limit."""
    qps, burst = None if is_free else config.requests_per_second, config.burst_capacity
    rate = {"qps": qps, "burst": burst, "global_rate": base.global_rate and not is_free}
    return base.replace(**rate), guarded.replace(**rate)


def _check(config: LimitConfig, strategy: Strategy) -> None:
    """Raise PolicyError if the strategy does not allow this configuration."""
    if strategy == "sliding_window" and config.burst_capacity > WINDOW:
        must = f"at most {WINDOW} with sliding_window, which remembers each request"
        raise rule("burst_capacity", config.burst_capacity, must)


def templates(strategy: Strategy, circuit_breaker: bool, cooldown_seconds: float) -> tuple[Policy, Policy]:
    """Return the policies that all domains share apart from the rate: without and with the breaker."""
    base = UNLIMITED.replace(strategy=strategy)
    guarded = base.replace(
        breaker=circuit_breaker,
        breaker_cooldown=checked_cooldown(cooldown_seconds) if circuit_breaker else 300.0,
        breaker_error_rate=None,
        on_429="trip",
    )
    return base, guarded


def _with_breaker(base: Policy, policy: Policy) -> Policy:
    """Return `base` with the breaker of a policy."""
    return base.replace(
        breaker=policy.breaker,
        breaker_failures=policy.breaker_failures,
        breaker_cooldown=policy.breaker_cooldown,
        breaker_max_cooldown=policy.breaker_max_cooldown,
        breaker_error_rate=policy.breaker_error_rate,
        breaker_window=policy.breaker_window,
        breaker_min_replies=policy.breaker_min_replies,
        on_429=policy.on_429,
        obey_retry_after=policy.obey_retry_after,
        max_retry_after=policy.max_retry_after,
    )

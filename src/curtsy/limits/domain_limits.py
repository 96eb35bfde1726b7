"""Terms: what the settings of a limiter make of a domain. Worked out when it is asked for, not for all at once."""

from __future__ import annotations

import copy
from typing import Self

import msgspec

from curtsy.core.policy import MOST_BURST, UNLIMITED, LimitConfig, Policies, Policy, Strategy, rule
from curtsy.limits.breaker import checked_cooldown

WINDOW = 256
"""The largest burst of `sliding_window`, which remembers each request."""


class Rates(msgspec.Struct, frozen=True):
    """What holds for one domain under some terms."""

    terms: DomainLimits
    config: LimitConfig
    policy: Policy
    """The rate alone, for `wait` and `allow`."""

    guarded: Policy
    """The rate and the breaker, for `acquire`."""

    key: str
    """Of the record: the domain's own, or that of its entry, if its hosts are `shared` (C6)."""

    denied: bool = False
    """Whether it is on the denylist (U9)."""

    warning: str | None = None
    """What is odd about a configuration of the domain's own; of policies, who reads them has told (L6)."""

    @property
    def most(self) -> int:
        """How many tokens can be had at once."""
        return MOST_BURST if self.policy.qps is None else self.config.burst_capacity


class DomainLimits:
    """The settings of a limiter. What was asked of them holds until there are others.

    A domain has the rate and burst of its own configuration, else of its policy, else of `default`; and everything else
    of its policy, or without policies of the templates.
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
        """The same under other policies."""
        return DomainLimits(self._default, self._configs, (self._base, self._guarded), self._unlimited, policies)

    def having(self, domain: str, config: LimitConfig) -> Self:
        """The same with another configuration of one domain."""
        self._check(domain, config)
        self._configs[domain] = config  # not in a copy of thousands: whoever has terms asks for those of the moment
        return copy.copy(self)

    def of(self, domain: str) -> Rates:
        """What holds for a canonical domain."""
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
        """What is odd about the configuration of all domains that have none of their own (L6)."""
        return self._default.warning if self._policies is None else None

    @property
    def usual(self) -> Policy:
        """The rate and the breaker of a domain of which nothing is said."""
        return self._shared(None if self._policies is None else self._policies.default, False)[2]

    def _policy(self, domain: str) -> Policy | None:
        return None if self._policies is None else self._policies.of(domain)

    def _check(self, domain: str, config: LimitConfig) -> None:
        _check(config, (self._policy(domain) or self._base).strategy)

    def _shared(self, policy: Policy | None, is_free: bool) -> tuple[LimitConfig, Policy, Policy]:
        """What all domains of a policy have in common, made once."""
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
    """Two policies at the rate of a configuration, or at none."""
    qps, burst = None if is_free else config.requests_per_second, config.burst_capacity
    rate = {"qps": qps, "burst": burst, "global_rate": base.global_rate and not is_free}
    return base.replace(**rate), guarded.replace(**rate)


def _check(config: LimitConfig, strategy: Strategy) -> None:
    """Raise PolicyError if a domain of this strategy could not have this configuration."""
    if strategy == "sliding_window" and config.burst_capacity > WINDOW:
        must = f"at most {WINDOW} with sliding_window, which remembers each request"
        raise rule("burst_capacity", config.burst_capacity, must)


def templates(strategy: Strategy, circuit_breaker: bool, cooldown_seconds: float) -> tuple[Policy, Policy]:
    """What the policies of all domains have in common, but for their rate: without and with the breaker."""
    base = UNLIMITED.replace(strategy=strategy)
    guarded = base.replace(
        breaker=circuit_breaker,
        breaker_cooldown=checked_cooldown(cooldown_seconds) if circuit_breaker else 300.0,
        breaker_error_rate=None,
        on_429="trip",
    )
    return base, guarded


def _with_breaker(base: Policy, policy: Policy) -> Policy:
    """`base` with the breaker of a policy."""
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

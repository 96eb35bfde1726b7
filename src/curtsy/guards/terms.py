"""Terms: what the settings of a limiter make of a domain. Worked out when it is asked for, not for all at once."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from curtsy.core.policy import UNLIMITED, LimitConfig, Policies, Policy, Strategy, rule
from curtsy.guards.breaker import checked_cooldown

WINDOW = 256
"""The largest burst of `sliding_window`, which remembers each request."""


class Rates(msgspec.Struct, frozen=True):
    """What holds for one domain under some terms."""

    terms: Terms
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
    """What is odd about a configuration that the limiter was given; of policies, who reads them has told (L6)."""


class Terms:
    """The settings of a limiter. They never change, but for the configurations of single domains: there are new ones.

    A domain with a configuration of its own has that, under `base` and `guarded`; any other has its policy, and without
    policies `default`.
    """

    def __init__(
        self,
        default: LimitConfig,
        configs: Mapping[str, LimitConfig],
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
        if self._base.strategy == "sliding_window":
            for each in {default, *configs.values()} if policies is None else set(configs.values()):
                self.check(each)

    def under(self, policies: Policies) -> Terms:
        """The same under other policies; a domain with a configuration of its own has their default breaker."""
        default = policies.default
        base = UNLIMITED.but(strategy=default.strategy)
        return Terms(self._default, self._configs, (base, _with_breaker(base, default)), self._unlimited, policies)

    def check(self, config: LimitConfig) -> None:
        """Raise PolicyError if a domain could not have this configuration."""
        if self._base.strategy == "sliding_window" and config.burst_capacity > WINDOW:
            must = f"at most {WINDOW} with sliding_window, which remembers each request"
            raise rule("burst_capacity", config.burst_capacity, must)

    def of(self, domain: str) -> Rates:
        """What holds for a canonical domain."""
        policy = None if self._policies is None else self._policies.of(domain)
        denied = policy is not None and policy.denied
        is_free = self._unlimited.of(domain).category == "unlimited"
        config = self._configs.get(domain)
        if config is not None:
            rates = self._by_config(config, is_free)
            return Rates(self, config, *rates, UNLIMITED.key_for(domain), denied, config.warning)
        warning = self._default.warning if policy is None else None
        return Rates(self, *self._shared(policy, is_free), (policy or UNLIMITED).key_for(domain), denied, warning)

    @property
    def usual(self) -> Policy:
        """The rate and the breaker of a domain of which nothing is said."""
        return self._shared(None if self._policies is None else self._policies.default, False)[2]

    def _shared(self, policy: Policy | None, is_free: bool) -> tuple[LimitConfig, Policy, Policy]:
        """What all domains of a policy have in common, made once."""
        made = self._made.get((policy, is_free))
        if made is None:
            if policy is None:
                made = (self._default, *self._by_config(self._default, is_free))
            else:
                config = LimitConfig(policy.qps or self._default.requests_per_second, int(policy.burst))
                qps = None if is_free else policy.qps
                base = UNLIMITED.but(strategy=policy.strategy, qps=qps, burst=policy.burst)
                made = config, base, _with_breaker(base, policy)
            self._made[policy, is_free] = made
        return made

    def _by_config(self, config: LimitConfig, is_free: bool) -> tuple[Policy, Policy]:
        rate: dict[str, float | None] = {"qps": config.requests_per_second, "burst": config.burst_capacity}
        if is_free:
            rate = {"qps": None}
        return self._base.but(**rate), self._guarded.but(**rate)


def templates(strategy: Strategy, circuit_breaker: bool, cooldown_seconds: float) -> tuple[Policy, Policy]:
    """What the policies of all domains have in common, but for their rate: without and with the breaker."""
    base = UNLIMITED.but(strategy=strategy)
    guarded = base.but(
        breaker=circuit_breaker,
        breaker_cooldown=checked_cooldown(cooldown_seconds) if circuit_breaker else 300.0,
        breaker_error_rate=None,
        on_429="trip",
    )
    return base, guarded


def _with_breaker(base: Policy, policy: Policy) -> Policy:
    """`base` with the breaker of a policy."""
    return base.but(
        breaker=policy.breaker,
        breaker_failures=policy.breaker_failures,
        breaker_cooldown=policy.breaker_cooldown,
        breaker_max_cooldown=policy.breaker_max_cooldown,
        breaker_error_rate=policy.breaker_error_rate,
        breaker_window=policy.breaker_window,
        breaker_min_replies=policy.breaker_min_replies,
        on_429=policy.on_429,
    )

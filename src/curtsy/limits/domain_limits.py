"""Limits of each domain from a limiter's settings, the requests for its tokens, and the errors of their waits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

import msgspec

from curtsy.core.decision import Late, No
from curtsy.core.errors import (
    CurtsyError,
    PolicyError,
    Reason,
    Refused,
    RefusedByBreaker,
    RefusedByBudget,
    RefusedByPolicy,
    RefusedByRobots,
    WaitTimeout,
)
from curtsy.core.messages import refused
from curtsy.core.policy import MOST_BURST, UNLIMITED, WINDOW, LimitConfig, Policies, Policy, Strategy, entry_name
from curtsy.core.setting import flag, number, rate, rule
from curtsy.core.time import span
from curtsy.core.url import Url, parse_url
from curtsy.engine.gate_steps import Request
from curtsy.limits.arguments import named_domain
from curtsy.limits.breaker import checked_cooldown
from curtsy.limits.statistics import LOCK
from curtsy.system.log import library_logger

_log = library_logger("guards")


class Rates(msgspec.Struct, frozen=True):
    """Limits of one domain."""

    config: LimitConfig
    policy: Policy
    """Policy with the rate only, for `wait` and `allow`."""

    guarded: Policy
    """Policy with rate and breaker, for `acquire`."""

    key: str
    """Key of the record: the domain's own, or that of its entry if its hosts are `shared` (C6)."""

    denied: bool = False
    """True if the domain is on the denylist (U9)."""

    @property
    def most(self) -> int:
        """Return the maximum number of tokens available at once."""
        return MOST_BURST if self.policy.qps is None else self.config.burst_capacity


class DomainLimits:
    """Settings of a limiter, and the limits of each domain that they give.

    Rate and burst of a domain come from its own configuration, else its policy. Everything else comes from its policy.
    """

    def __init__(
        self, default: LimitConfig, configs: dict[str, LimitConfig], unlimited: Policies, policies: Policies
    ) -> None:
        self._default = default
        self._configs = configs
        self._unlimited = unlimited
        self._policies = policies
        self._rates: dict[str, Rates] = {}
        self._of_policies: dict[tuple[Policy, bool], tuple[LimitConfig, Policy, Policy]] = {}
        self._warned: dict[str, LimitConfig] = {}
        """Unusual configurations that a warning was logged about, by domain (L6)."""
        for domain, config in configs.items():
            _check(config, policies.of(domain).strategy)

    @classmethod
    def of_arguments(
        cls,
        config: LimitConfig | str | os.PathLike[str] | None,
        domains: Mapping[str, LimitConfig] | None,
        per_domain_qps: float | None,
        circuit_breaker: bool,
        cooldown_seconds: float,
        strategy: Strategy,
        unlimited: Iterable[str],
        policies: Policies | None,
    ) -> Self:
        """Return the limits by the arguments of a limiter. Without policies, one policy applies to all domains."""
        default, configs = _default_and_domains(config, domains, per_domain_qps)
        flag("circuit_breaker", circuit_breaker)
        if policies is None:
            _check(default, strategy)
            policy = UNLIMITED.replace(
                strategy=strategy,
                qps=default.requests_per_second,
                burst=default.burst_capacity,
                breaker=circuit_breaker,
                breaker_cooldown=checked_cooldown(cooldown_seconds) if circuit_breaker else 300.0,
                breaker_error_rate=None,
                on_429="trip",
            )
            if default.warning is not None:
                _log.warning(default.warning)
        free = _unlimited_policies(unlimited)
        return cls(default, configs, free, Policies(policy) if policies is None else checked_policies(policies))

    def under(self, policies: Policies) -> DomainLimits:
        """Return the same settings with other policies."""
        limits = DomainLimits(self._default, self._configs, self._unlimited, policies)
        limits._warned = self._warned
        return limits

    def configure(self, domain: str, config: LimitConfig) -> None:
        """Replace the configuration of one domain. Requires `LOCK`."""
        _check(config, self._policies.of(domain).strategy)
        self._configs[domain] = config
        self._rates.pop(domain, None)

    def of(self, domain: str) -> Rates:
        """Return the limits of a canonical domain; at first use, log a warning about its own configuration."""
        rates = self._rates.get(domain)
        if rates is None:
            with LOCK:  # orders this with `configure()`
                rates = self._rates.setdefault(domain, self._compute(domain))
        return rates

    def _compute(self, domain: str) -> Rates:
        policy = self._policies.of(domain)
        is_free = self._unlimited.of(domain).domain_category == "unlimited"
        usual, base, guarded = self._of_policy(policy, is_free)
        config = self._configs.get(domain)
        if config is not None:
            changes = {"qps": None if is_free else config.requests_per_second, "burst": config.burst_capacity}
            base, guarded = base.replace(**changes), guarded.replace(**changes)
            if config.warning is not None and self._warned.get(domain) != config:
                self._warned[domain] = config
                _log.warning(f"{domain}: {config.warning}")
        return Rates(config or usual, base, guarded, policy.key_for(domain), policy.denied)

    @property
    def usual(self) -> Policy:
        """Return the policy with rate and breaker of a domain without an entry."""
        return self._of_policy(self._policies.default, False)[2]

    def _of_policy(self, policy: Policy, is_free: bool) -> tuple[LimitConfig, Policy, Policy]:
        """Return the configuration and policies that all domains of a policy share; computed once."""
        found = self._of_policies.get((policy, is_free))
        if found is None:
            config = LimitConfig(policy.qps or self._default.requests_per_second, int(policy.burst))
            base = UNLIMITED.replace(
                strategy=policy.strategy,
                qps=None if is_free else policy.qps,
                burst=policy.burst,
                max_crawl_delay=policy.max_crawl_delay,
                global_rate=policy.global_rate and not is_free,
            )
            guarded = base.replace(**{name: getattr(policy, name) for name in _BREAKER_FIELDS})
            found = self._of_policies[policy, is_free] = config, base, guarded
        return found


_BREAKER_FIELDS = (
    "breaker", "breaker_failures", "breaker_cooldown", "breaker_max_cooldown", "breaker_error_rate", "breaker_window",
    "breaker_min_replies", "on_429", "obey_retry_after", "max_retry_after",
)  # fmt: skip
"""Fields of a policy that concern the breaker."""


def checked_config(config: LimitConfig, name: str = "config") -> LimitConfig:
    """Return a configuration if it is one; raise PolicyError otherwise."""
    if not isinstance(config, LimitConfig):
        raise rule(name, config, "a LimitConfig(requests_per_second, burst_capacity)")
    return config


def checked_policies(policies: Policies) -> Policies:
    """Return the policies if they are some; raise PolicyError otherwise."""
    if not isinstance(policies, Policies):
        raise rule("policies", policies, "a Policies(default, entries)")
    return policies


def _default_and_domains(
    config: LimitConfig | str | os.PathLike[str] | None,
    domains: Mapping[str, LimitConfig] | None,
    per_domain_qps: float | None,
) -> tuple[LimitConfig, dict[str, LimitConfig]]:
    """Return the default configuration and those of domains, from a limiter's arguments and its JSON file."""
    listed: Mapping[str, LimitConfig] = {}
    if isinstance(config, str | os.PathLike):
        from curtsy.settings import load_limits  # late import: settings are slow to import

        default, listed = load_limits(Path(config))
    elif config is None or isinstance(config, LimitConfig):
        default = config or LimitConfig()
    else:
        must = "a LimitConfig(requests_per_second, burst_capacity), or the path of a JSON file"
        raise rule("config", config, must)
    if per_domain_qps is not None:
        default = LimitConfig(rate("per_domain_qps", per_domain_qps), default.burst_capacity)
    return default, {**listed, **_by_domain(domains or {})}


def _by_domain(domains: Mapping[str, LimitConfig]) -> dict[str, LimitConfig]:
    """Return the configurations by canonical domain."""
    if not isinstance(domains, Mapping):
        raise rule("domains", domains, "a dict of a LimitConfig for each domain")
    names: dict[str, str] = {}
    for name, config in domains.items():
        checked_config(config, f"domains[{name!r}]")
        first = names.setdefault(named_domain("domains", name), name)
        if first is not name:
            raise PolicyError(f"domains: {first!r} and {name!r} are one domain. Remove one of them.")
    return {name: domains[first] for name, first in names.items()}


def _unlimited_policies(domains: Iterable[str]) -> Policies:
    """Return policies whose entries are the domains without a rate limit (Q12)."""
    if not isinstance(domains, tuple | list | set | frozenset):
        raise rule("unlimited", domains, "a list of domains, such as ['example.com']")
    names = [entry_name(named_domain("unlimited", domain)) for domain in domains]
    return Policies(UNLIMITED, dict.fromkeys(names, UNLIMITED.replace(domain_category="unlimited")))


def _check(config: LimitConfig, strategy: Strategy) -> None:
    """Raise PolicyError if the strategy does not allow this configuration."""
    if strategy == "sliding_window" and config.burst_capacity > WINDOW:
        must = f"at most {WINDOW} with sliding_window, which remembers each request"
        raise rule("burst_capacity", config.burst_capacity, must)


def overall_of(global_qps: float | None, burst: float = 1) -> Policy:
    """Return the policy of a global rate; None for no limit."""
    return UNLIMITED.replace(qps=None if global_qps is None else rate("global_qps", global_qps), burst=burst)


_REFUSALS: dict[Reason, type[Refused]] = {
    Reason.DOMAIN_BUDGET_EXCEEDED: RefusedByBudget,
    Reason.CIRCUIT_OPEN: RefusedByBreaker,
    Reason.CRAWL_DELAY_TOO_LONG: RefusedByRobots,
}


def token_request(domain: str, limits: Callable[[], DomainLimits], timeout: float | None, n: int) -> Request:
    """Return the request for `n` tokens. It raises PolicyError if `n` exceeds the burst, now or during its wait."""
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise rule("n", n, "a whole number of at least 1")
    if timeout is not None:
        number("timeout", timeout)

    def current() -> tuple[str, Policy, None]:
        rates = limits().of(domain)
        if n > rates.most:
            raise PolicyError(
                f"{domain}: n = {n} must be at most burst_capacity ({rates.most}), because the bucket holds "
                "no more. Ask for fewer at once, or raise burst_capacity."
            )
        return rates.key, rates.policy, None

    return Request(*current(), page=False, count=n, deadline=timeout, renew=current)


def wait_error(domain: str, answer: No | Late, request: Request) -> CurtsyError:
    """Return the error for a wait without a ticket: too late, or refused by an entry in a shared record."""
    if isinstance(answer, Late):
        timeout, needed = request.deadline or 0.0, answer.needed
        more = "" if needed > timeout else " more"
        return WaitTimeout(
            f"{domain} cannot be asked within {timeout:g} s: it would take {needed:.3f} s{more}. "
            "Allow more time, or ask less often.",
            needed,
        )
    if answer.reason is Reason.DOMAIN_BUDGET_EXCEEDED:  # the limit comes from the record: a limiter has no budget
        wait = "" if answer.retry_after is None else f" The next can go in {span(answer.retry_after)}."
        what = f"{domain} has had its {answer.limit} of today.{wait} Raise its max_{answer.limit}_per_day"
        message = f"{what} only if the site agreed."
    else:
        url = parse_url(f"https://{domain}/")
        assert isinstance(url, Url)
        message = refused(url, request.policy, answer)
    kind = _REFUSALS.get(answer.reason, RefusedByPolicy)
    return kind(message, reason=answer.reason, retry_after=answer.retry_after)

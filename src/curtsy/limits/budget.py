"""DomainDailyBudgetManager: daily budgets of domains (B10).

`can_request_to_domain` only checks and `record_domain_request` counts, so other requests may come between them. A
program that must never exceed the limit uses the client, which does both in one atomic step (B4).
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pydantic import BaseModel, Field, computed_field, field_validator

from curtsy.core.amendment import Spend, amend
from curtsy.core.budget import Spending
from curtsy.core.errors import PolicyError, Reason
from curtsy.core.host import Host, fresh, in_time
from curtsy.core.policy import Policies, Policy
from curtsy.core.setting import rule
from curtsy.core.time import SECOND, Now
from curtsy.core.url import parse_domain
from curtsy.limits.arguments import opened, program_settings
from curtsy.limits.statistics import LOCK
from curtsy.stores import Answer, AsyncMemoryStore, BlockingStore, MemoryStore, Step, Store, open_store
from curtsy.stores.fallback import AsyncFallbackStore
from curtsy.system.log import library_logger

if TYPE_CHECKING:
    from curtsy.settings.live import LiveSettings

_log = library_logger("guards")

UNLIMITED = 2**31 - 1
"""Remainder of a budget without a limit."""


class DomainBudgetCheckResult(BaseModel):
    """Result of a budget check: permission for one more request today, and the remaining budget."""

    allowed: bool = Field(description="Whether one more request may be sent today.")
    reason: str | None = Field(default=None, description="`domain_budget_exceeded` if not allowed.")
    requests_remaining: int = Field(ge=0, description="Requests left today; 2**31-1 if unlimited.")
    pages_remaining: int = Field(ge=0, description="Pages left today; 2**31-1 if unlimited.")
    limit: str | None = Field(
        default=None, description="The limit that is spent: `max_requests_per_day` or `max_pages_per_day`."
    )
    retry_after: float | None = Field(default=None, description="Seconds until the budget opens again, if not allowed.")


class DomainDailyBudget(BaseModel):
    """Requests and pages of a domain today, with their limits."""

    domain: str = Field(description="The domain, in lower case.")
    requests_today: int = Field(default=0, ge=0, description="Requests sent today.")
    pages_today: int = Field(default=0, ge=0, description="Pages received today.")
    max_requests_per_day: int = Field(ge=0, description="Requests a day at most; 0 for unlimited.")
    max_pages_per_day: int = Field(ge=0, description="Pages a day at most; 0 for unlimited.")
    date: str = Field(
        pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$", description="The day, as YYYY-MM-DD in the domain's time zone."
    )

    @field_validator("date")
    @classmethod
    def _is_a_day(cls, date: str) -> str:
        datetime.date.fromisoformat(date)  # raises ValueError
        return date

    @computed_field(description="Requests left today; 2**31-1 if unlimited.")  # type: ignore[prop-decorator]
    @property
    def requests_remaining(self) -> int:
        """Return the requests left today; 2**31-1 if unlimited."""
        return _left(self.max_requests_per_day, self.requests_today)

    @computed_field(description="Pages left today; 2**31-1 if unlimited.")  # type: ignore[prop-decorator]
    @property
    def pages_remaining(self) -> int:
        """Return the pages left today; 2**31-1 if unlimited."""
        return _left(self.max_pages_per_day, self.pages_today)


class DomainDailyBudgetManager:
    """Daily budgets of all domains, on the store that clients use too.

    `policies` may be a function that returns the current policies, so that changed settings apply. If the policies or
    the store fail, requests are allowed and counted in memory, with one logged warning per outage (B8).
    """

    def __init__(
        self, policies: Policies | Callable[[], Policies] | None = None, *, store: Store | str | None = None
    ) -> None:
        if policies is not None and not callable(policies) and not isinstance(policies, Policies):
            raise rule("policies", policies, "Policies, or a function that gives them")
        given = Policies() if policies is None else policies
        self._policies = given if callable(given) else lambda: given
        self._store = _with_fallback(store)
        self._memory = MemoryStore()
        self._outages: dict[str, object] = {}

    def can_request_to_domain(self, domain: str) -> DomainBudgetCheckResult:
        """Return whether the domain's budget allows one more request today. Counts nothing."""
        policy, budget, now = self._look(domain)
        spent, retry_after = None, None
        if policy.max_requests_per_day and budget.requests >= policy.max_requests_per_day:
            spent, retry_after = "max_requests_per_day", budget.opens_in(policy.max_requests_per_day, "requests", now)
        elif policy.max_pages_per_day and budget.pages >= policy.max_pages_per_day:
            spent, retry_after = "max_pages_per_day", budget.opens_in(policy.max_pages_per_day, "pages", now)
        if spent:
            _log.info("Domain daily budget exceeded", domain=domain, limit=spent)
        return DomainBudgetCheckResult(
            allowed=spent is None,
            reason=None if spent is None else Reason.DOMAIN_BUDGET_EXCEEDED.value,
            requests_remaining=_left(policy.max_requests_per_day, budget.requests),
            pages_remaining=_left(policy.max_pages_per_day, budget.pages),
            limit=spent,
            retry_after=retry_after,
        )

    def record_domain_request(self, domain: str, is_page: bool = False) -> None:
        """Count a request that was sent to the domain; with `is_page`, also a page."""
        if not isinstance(is_page, bool):
            raise rule("is_page", is_page, "True or False")
        policy = self._policy(domain)

        def step(host: Host | None, now: Now) -> tuple[Host, None]:
            return amend(host, now, policy, Spend(is_page)), None

        self._update(policy.key_for(parse_domain(domain)), step)

    def get_domain_budget(self, domain: str) -> DomainDailyBudget:
        """Return the domain's requests and pages today, with their limits."""
        policy, budget, now = self._look(domain)
        return DomainDailyBudget(
            domain=parse_domain(domain),
            requests_today=budget.requests,
            pages_today=budget.pages,
            max_requests_per_day=policy.max_requests_per_day,
            max_pages_per_day=policy.max_pages_per_day,
            date=policy.calendar.date_of(now.epoch // SECOND),
        )

    def _look(self, domain: str) -> tuple[Policy, Spending, Now]:
        """Return the domain's policy, its spending against the limits, and the store's time."""
        policy = self._policy(domain)

        def step(host: Host | None, now: Now) -> tuple[Host | None, tuple[Policy, Spending, Now]]:
            # After a reboot, keep the record with its shifted times: the spending must expire (C19).
            host = host and in_time(host, now)
            spending = (host or fresh(now)).spending(now, policy.calendar)
            return host, (_by_hand(policy, host), spending, now)

        return self._update(policy.key_for(parse_domain(domain)), step)

    def _policy(self, domain: str) -> Policy:
        name = parse_domain(domain)
        try:
            policy = self._policies().of(name)
        except Exception as error:  # the default limits apply whatever is wrong with the settings (B8)
            self._warn("policy", f"the policy of {name} cannot be read ({error}); the default limits hold")
            return _DEFAULT
        self._outages.pop("policy", None)
        return policy

    def _update(self, key: str, step: Step[Answer]) -> Answer:
        try:
            answer = self._store.update(key, step)
        except Exception as error:  # errors that the fallback store does not handle refuse no request either (B8)
            self._warn("store", f"the budget cannot be determined ({error}); counting in memory")
            return self._memory.update(key, step)
        self._outages.pop("store", None)
        return answer

    def _warn(self, part: str, what: str) -> None:
        """Log a warning once per outage of a part."""
        outage = object()
        if self._outages.setdefault(part, outage) is outage:
            _log.warning(f"Daily budget: {what}.")


_TRY_EVERY = 1.0
"""Seconds between two attempts to read settings that were invalid from the start."""

_DEFAULT = Policy()
_LIMITS = ("max_requests_per_day", "max_pages_per_day")


def _by_hand(policy: Policy, host: Host | None) -> Policy:
    """Return the policy with the daily limits that a user set in the record, as `admit()` applies them."""
    limits = {} if host is None else {name: value for name, value in host.overrides if name in _LIMITS}
    changes = {name: int(value) for name, value in limits.items() if value is not None}
    return policy.replace(**changes) if changes else policy


def _with_fallback(store: Store | str | None) -> Store:
    """Return a store that bridges outages in memory and merges those counts afterwards (B8)."""
    found = open_store() if store is None else opened(store)
    has_fallback = isinstance(found.inner, AsyncFallbackStore | AsyncMemoryStore)
    return found if has_fallback else BlockingStore(AsyncFallbackStore(found.inner))


def _left(limit: int, spent: int) -> int:
    return max(0, limit - spent) if limit else UNLIMITED


_manager: DomainDailyBudgetManager | None = None


def get_domain_budget_manager() -> DomainDailyBudgetManager:
    """Return the program's manager, on the settings and the store of the whole program.

    Settings that cannot be read, also at the start, cause the default limits and one warning (C17). Changed files are
    read again (U9); the store remains the one of the start.
    """
    global _manager
    with LOCK:
        if _manager is None:
            settings = _Settings()
            with contextlib.suppress(PolicyError):
                settings.policies()
            store = None if settings.live is None else settings.live.current.store
            _manager = DomainDailyBudgetManager(settings.policies, store=store)
        return _manager


class _Settings:
    """The program's settings, which may be invalid for a while."""

    def __init__(self) -> None:
        self.live: LiveSettings | None = None
        self._error: PolicyError | None = None
        self._tried_at = -_TRY_EVERY

    def policies(self) -> Policies:
        """Return the current policies. Raises PolicyError while the settings cannot be read."""
        if self.live is None:
            if self._error is not None and time.monotonic() < self._tried_at + _TRY_EVERY:
                raise self._error
            self._tried_at = time.monotonic()
            try:
                self.live = program_settings()
            except PolicyError as error:
                self._error = error
                raise
        return self.live.check().policies


def can_request_to_domain(domain: str) -> DomainBudgetCheckResult:
    """Return whether the domain's budget allows one more request today. Counts nothing."""
    return get_domain_budget_manager().can_request_to_domain(domain)


def record_domain_request(domain: str, is_page: bool = False) -> None:
    """Count a request that was sent to the domain; with `is_page`, also a page."""
    get_domain_budget_manager().record_domain_request(domain, is_page)

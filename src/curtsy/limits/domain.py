"""Statistics, current rates and requests of one domain of a limiter."""

from __future__ import annotations

from collections.abc import Callable

from curtsy.core.admission import admit
from curtsy.core.decision import Go, Late, No
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
from curtsy.core.host import Host
from curtsy.core.message import Now, Url, parse_url
from curtsy.core.messages import refused, span
from curtsy.core.policy import Policy
from curtsy.core.setting import number, rule
from curtsy.engine.gate import Request
from curtsy.limits.domain_limits import DomainLimits, Rates
from curtsy.limits.statistics import LimitStats
from curtsy.stores import Step
from curtsy.system.log import library_logger

_log = library_logger("guards")

_REFUSALS: dict[Reason, type[Refused]] = {
    Reason.DOMAIN_BUDGET_EXCEEDED: RefusedByBudget,
    Reason.CIRCUIT_OPEN: RefusedByBreaker,
    Reason.CRAWL_DELAY_TOO_LONG: RefusedByRobots,
}


class Domain:
    """Domain of a limiter."""

    __slots__ = ("_rates", "_warning", "name", "stats")

    def __init__(self, name: str) -> None:
        self.name = name
        self.stats = LimitStats(name)
        self._rates: Rates | None = None
        self._warning: str | None = None

    def rates(self, limits: DomainLimits) -> Rates:
        """Return the domain's rates under the limits, recomputed only after a change; log a new warning."""
        rates = self._rates
        if rates is None or rates.limits is not limits:
            rates = self._rates = limits.of(self.name)
            if rates.warning != self._warning:
                self._warning = rates.warning
                if rates.warning is not None:
                    _log.warning(f"{self.name}: {rates.warning}")
        return rates

    def request(self, limits: Callable[[], DomainLimits], timeout: float | None, n: int) -> Request:
        """Return the request for `n` tokens. It raises PolicyError if `n` exceeds the burst, now or during its wait."""
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise rule("n", n, "a whole number of at least 1")
        if timeout is not None:
            number("timeout", timeout)

        def current() -> tuple[str, Policy, None]:
            rates = self.rates(limits())
            if n > rates.most:
                raise PolicyError(
                    f"{self.name}: n = {n} must be at most burst_capacity ({rates.most}), because the bucket holds "
                    "no more. Ask for fewer at once, or raise burst_capacity."
                )
            return rates.key, rates.policy, None

        return Request(*current(), page=False, count=n, deadline=timeout, renew=current)

    def error(self, answer: No | Late, request: Request) -> CurtsyError:
        """Return the error for a wait without a ticket: too late, or refused by an entry in a shared record."""
        if isinstance(answer, Late):
            timeout, needed = request.deadline or 0.0, answer.needed
            more = "" if needed > timeout else " more"
            return WaitTimeout(
                f"{self.name} cannot be asked within {timeout:g} s: it would take {needed:.3f} s{more}. "
                "Allow more time, or ask less often.",
                needed,
            )
        if answer.reason is Reason.DOMAIN_BUDGET_EXCEEDED:  # the limit comes from the record: a limiter has no budget
            wait = "" if answer.retry_after is None else f" The next can go in {span(answer.retry_after)}."
            what = f"{self.name} has had its {answer.limit} of today.{wait} Raise its max_{answer.limit}_per_day"
            message = f"{what} only if the site agreed."
        else:
            url = parse_url(f"https://{self.name}/")
            assert isinstance(url, Url)
            message = refused(url, request.policy, answer)
        kind = _REFUSALS.get(answer.reason, RefusedByPolicy)
        return kind(message, reason=answer.reason, retry_after=answer.retry_after)


def take_tokens(policy: Policy, count: int = 1) -> Step[int | None]:
    """Return the step that takes tokens if they are available; it returns the time in microseconds, else None."""

    def step(host: Host | None, now: Now) -> tuple[Host | None, int | None]:
        changed, decision = admit(host, now, policy, page=False, count=count)
        return changed, now.epoch if isinstance(decision, Go) else None

    return step

"""DomainLimiter: the rate of one domain (L1, L10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curtsy.core.admission import admit
from curtsy.core.decision import Decision, Go, Late, No
from curtsy.core.errors import (
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
from curtsy.core.message import Now, Url, parse_domain, parse_url
from curtsy.core.messages import refused, span
from curtsy.core.policy import LimitConfig, Policy, number, rule
from curtsy.core.record import LimitStats
from curtsy.engine.gate import Answer, Request, Ticket
from curtsy.limits.domain_limits import DomainLimits, Rates
from curtsy.system.log import library_logger

if TYPE_CHECKING:
    from curtsy.limits.limiter import RateLimiter

_log = library_logger("guards")


class DomainLimiter:
    """Limiter of one domain. `RateLimiter` creates one for each domain.

    With `limiter`, it shares that limiter's rate, tokens and statistics of the domain.
    """

    def __init__(self, domain: str, config: LimitConfig | None = None, *, limiter: RateLimiter | None = None) -> None:
        from curtsy.limits.limiter import RateLimiter  # late import: circular

        if limiter is None:
            limiter = RateLimiter(config)
        elif not isinstance(limiter, RateLimiter):
            raise rule("limiter", limiter, "a RateLimiter, or left out")
        elif config is not None:
            raise rule("config", config, "left out if there is a limiter, which has the configurations of its domains")
        self.domain = parse_domain(domain)
        self._limiter = limiter
        self.stats = LimitStats(self.domain)
        self.stats = limiter.adopt(self).stats
        self._rates: Rates | None = None
        self._warned: str | None = None

    def use(self, terms: DomainLimits) -> Rates:
        """Apply new limits to the domain and return its rates. Tokens and statistics are kept."""
        self._rates = terms.of(self.domain)
        return self._rates

    @property
    def rates(self) -> Rates:
        """Return the current rates of the domain, recomputed only after a change."""
        terms, rates = self._limiter.terms(), self._rates
        if rates is None or rates.terms is not terms:
            rates = self._limiter.renewed(self)
        warning = rates.warning
        if warning is not self._warned and warning != self._warned:
            self._warned = warning
            if warning is not None:
                _log.warning(f"{self.domain}: {warning}")
        return rates

    @property
    def config(self) -> LimitConfig:
        """Return the configuration, or the equivalent of the domain's policy."""
        return self.rates.config

    @property
    def policy(self) -> Policy:
        """Return the policy with the rate only, for `wait` and `allow`."""
        return self.rates.policy

    @property
    def guarded(self) -> Policy:
        """Return the policy with rate and breaker, for `acquire`."""
        return self.rates.guarded

    @property
    def key(self) -> str:
        """Return the key of the domain's record."""
        return self.rates.key

    async def wait(self, timeout: float | None = None, n: int = 1) -> None:
        """Wait in FIFO order for `n` tokens and take them; `timeout` is in seconds."""
        limiter = self._limiter
        request = self._request(n, timeout)
        with limiter.waiting(limiter.async_gate.timers.async_waiter(), self) as waiter:
            answer = await limiter.async_gate.enter(request, waiter)
        self.count(answer, timeout, n)

    def wait_blocking(self, timeout: float | None = None, n: int = 1) -> None:
        """Wait in FIFO order for `n` tokens in a blocking thread; `timeout` is in seconds."""
        limiter = self._limiter
        request = self._request(n, timeout)
        with limiter.waiting(limiter.gate.timers.waiter(), self) as waiter:
            answer = limiter.gate.enter(request, waiter)
        self.count(answer, timeout, n)

    def allow(self, n: int = 1) -> bool:
        """Take `n` tokens if they are available and no waiter is queued; return whether they were taken."""
        limiter = self._limiter
        limiter.check_open()
        request = self._request(n, None)
        key, policy = request.key, request.policy
        if limiter.gate.lines.is_queued(key):
            return False

        def step(host: Host | None, now: Now) -> tuple[Host | None, tuple[Decision, int]]:
            changed, decision = admit(host, now, policy, page=False, count=n)
            return changed, (decision, now.epoch)

        decision, epoch = limiter.store.update(key, step)
        if not isinstance(decision, Go):
            return False
        limiter.count_granted(self, epoch, 0.0, n)
        return True

    def _request(self, n: int, timeout: float | None) -> Request:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise rule("n", n, "a whole number of at least 1")
        rates = self.rates
        if n > rates.most:
            raise self._too_many(n, rates)
        if timeout is not None:
            number("timeout", timeout)
        return Request(
            rates.key, rates.policy, page=False, count=n, deadline=timeout, renew=lambda: self._present(n)
        )  # fmt: skip

    def _present(self, n: int) -> tuple[str, Policy, None]:
        """Return the current key and policy for a waiter. Raises PolicyError if `n` now exceeds the burst."""
        rates = self.rates
        if n > rates.most:
            self.stats.count_canceled()
            raise self._too_many(n, rates)
        return rates.key, rates.policy, None

    def _too_many(self, n: int, rates: Rates) -> PolicyError:
        return PolicyError(
            f"{self.domain}: n = {n} must be at most burst_capacity ({rates.most}), for the bucket never holds more. "
            "Ask for fewer at once, or raise burst_capacity."
        )

    def count(self, answer: Answer, timeout: float | None = None, n: int = 1) -> None:
        """Count the result of a wait; raise its error if it was not granted."""
        match answer:
            case Ticket():
                self._limiter.count_granted(self, answer.epoch, answer.waited, n)
            case Late(needed):
                self.stats.count_canceled()
                more = "" if timeout is None or needed > timeout else " more"
                raise WaitTimeout(
                    f"{self.domain} cannot be asked within {timeout:g} s: it would take {needed:.3f} s{more}. "
                    "Allow more time, or ask less often.",
                    needed,
                )
            case No(Reason.CLOSED):
                raise self._limiter.closed_error()
            case No():
                raise self._refused(answer)

    def _refused(self, no: No) -> Refused:
        """Return the error for a refusal by a shared record: a pause, a Crawl-delay, a budget."""
        if no.reason is Reason.DOMAIN_BUDGET_EXCEEDED:  # the limit comes from the record: a limiter has no budget
            wait = "" if no.retry_after is None else f" The next can go in {span(no.retry_after)}."
            what = f"{self.domain} has had its {no.limit} of today.{wait} Raise its max_{no.limit}_per_day"
            message = f"{what} only if the site agreed."
        else:
            url = parse_url(f"https://{self.domain}/")
            assert isinstance(url, Url)
            message = refused(url, self.policy, no)
        return _REFUSALS.get(no.reason, RefusedByPolicy)(message, reason=no.reason, retry_after=no.retry_after)


_REFUSALS: dict[Reason, type[Refused]] = {
    Reason.DOMAIN_BUDGET_EXCEEDED: RefusedByBudget,
    Reason.CIRCUIT_OPEN: RefusedByBreaker,
    Reason.CRAWL_DELAY_TOO_LONG: RefusedByRobots,
}

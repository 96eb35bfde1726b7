"""The parts, usable by themselves with the names and signatures of the documents that they come from.

They are thin: every rule is the core's, on any store. `AsyncClient` asks all of them in one atomic step; these are for
programs that want one.
"""

from curtsy.limits.breaker import CircuitBreaker
from curtsy.limits.bucket import TokenBucket
from curtsy.limits.budget import (
    DomainBudgetCheckResult,
    DomainDailyBudget,
    DomainDailyBudgetManager,
    can_request_to_domain,
    get_domain_budget_manager,
    record_domain_request,
)
from curtsy.limits.delay import adapt_delay
from curtsy.limits.domain_limiter import DomainLimiter
from curtsy.limits.downloader import PDFDownloader
from curtsy.limits.limiter import RateLimiter
from curtsy.limits.program_limiter import get_rate_limiter
from curtsy.limits.retry import with_retry
from curtsy.limits.robots import RobotsTxtChecker

__all__ = [
    "CircuitBreaker",
    "DomainBudgetCheckResult",
    "DomainDailyBudget",
    "DomainDailyBudgetManager",
    "DomainLimiter",
    "PDFDownloader",
    "RateLimiter",
    "RobotsTxtChecker",
    "TokenBucket",
    "adapt_delay",
    "can_request_to_domain",
    "get_domain_budget_manager",
    "get_rate_limiter",
    "record_domain_request",
    "with_retry",
]

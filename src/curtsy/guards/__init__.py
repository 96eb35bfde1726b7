"""The parts, usable by themselves with the names and signatures of the documents that they come from.

They are thin: every rule is the core's, on any store. `AsyncClient` asks all of them in one atomic step; these are for
programs that want one.
"""

from curtsy.guards.breaker import CircuitBreaker
from curtsy.guards.bucket import TokenBucket
from curtsy.guards.budget import (
    DomainBudgetCheckResult,
    DomainDailyBudget,
    DomainDailyBudgetManager,
    can_request_to_domain,
    get_domain_budget_manager,
    record_domain_request,
)
from curtsy.guards.delay import adapt_delay
from curtsy.guards.domain import DomainLimiter
from curtsy.guards.downloader import PDFDownloader
from curtsy.guards.limiter import RateLimiter
from curtsy.guards.program import get_rate_limiter
from curtsy.guards.retry import with_retry
from curtsy.guards.robots import RobotsTxtChecker

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

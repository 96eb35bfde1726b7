"""Standalone parts: limiter, breaker, budget, bucket, retry and robots.txt checker.

Their names and signatures are those of the requirement documents. Each part applies the core's rules on any store. They
are for programs that need a single part; `AsyncClient` applies all rules in one atomic step.
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

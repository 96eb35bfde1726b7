"""Standalone parts: limiter, breaker, budget, bucket, retry and robots.txt checker.

Their names and signatures are those of the requirement documents. Each part applies the core's rules on any store. They
are for programs that need a single part; `AsyncClient` applies all rules in one atomic step.
"""

from curtsy.core.errors import InvalidDomain, LimiterClosed, UnknownDomain, WaitTimeout
from curtsy.core.policy import LimitConfig
from curtsy.core.robots import parse_robots
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
from curtsy.limits.limiter import DomainLimiter, RateLimiter
from curtsy.limits.program_limiter import PDFDownloader, get_rate_limiter
from curtsy.limits.retry import adapt_delay, with_retry
from curtsy.limits.robots import RobotsTxtChecker
from curtsy.limits.statistics import LimitStats, StatsSnapshot, TotalStats

__all__ = [
    "CircuitBreaker", "DomainBudgetCheckResult", "DomainDailyBudget", "DomainDailyBudgetManager", "DomainLimiter",
    "InvalidDomain", "LimitConfig", "LimitStats", "LimiterClosed", "PDFDownloader", "RateLimiter", "RobotsTxtChecker",
    "StatsSnapshot", "TokenBucket", "TotalStats", "UnknownDomain", "WaitTimeout", "adapt_delay",
    "can_request_to_domain", "get_domain_budget_manager", "get_rate_limiter", "parse_robots", "record_domain_request",
    "with_retry",
]  # fmt: skip

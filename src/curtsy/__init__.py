"""Fetch the web politely: robots.txt, pace, budgets, breakers, retries and cache as one decision.

import curtsy

with curtsy.Client(user_agent="MyBot/1.0 (+https://example.org/bot)") as client:
    result = client.fetch("https://example.org/")
    print(result.text if result.ok else result.message)
"""

import curtsy.system.startup

# isort: split
import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

import curtsy.system.shutdown  # noqa: F401

if TYPE_CHECKING:  # type checkers do not run __getattr__
    from curtsy.blocking import Client as Client
    from curtsy.blocking import get as get
    from curtsy.cache.disk import DiskCache as DiskCache
    from curtsy.cache.packed import PackedCache as PackedCache
    from curtsy.client import AsyncClient as AsyncClient
    from curtsy.client import fetch_url as fetch_url
    from curtsy.core.errors import BadStatus as BadStatus
    from curtsy.core.errors import CurtsyError as CurtsyError
    from curtsy.core.errors import FetchError as FetchError
    from curtsy.core.errors import InvalidDomain as InvalidDomain
    from curtsy.core.errors import LimiterClosed as LimiterClosed
    from curtsy.core.errors import PolicyError as PolicyError
    from curtsy.core.errors import Reason as Reason
    from curtsy.core.errors import Refused as Refused
    from curtsy.core.errors import RefusedByBreaker as RefusedByBreaker
    from curtsy.core.errors import RefusedByBudget as RefusedByBudget
    from curtsy.core.errors import RefusedByPolicy as RefusedByPolicy
    from curtsy.core.errors import RefusedByRobots as RefusedByRobots
    from curtsy.core.errors import StoreError as StoreError
    from curtsy.core.errors import UnknownDomain as UnknownDomain
    from curtsy.core.errors import Unreachable as Unreachable
    from curtsy.core.errors import WaitTimeout as WaitTimeout
    from curtsy.core.policy import LimitConfig as LimitConfig
    from curtsy.core.policy import Policies as Policies
    from curtsy.core.policy import Policy as Policy
    from curtsy.core.record import FetchRecord as FetchRecord
    from curtsy.core.record import LimitStats as LimitStats
    from curtsy.core.record import Share as Share
    from curtsy.core.record import StatsSnapshot as StatsSnapshot
    from curtsy.core.record import TotalStats as TotalStats
    from curtsy.core.result import FetchResult as FetchResult
    from curtsy.core.robots import parse_robots as parse_robots
    from curtsy.crawling.crawl import AsyncCrawl as AsyncCrawl
    from curtsy.crawling.options import CrawlOptions as CrawlOptions
    from curtsy.crawling.page import CrawledPage as CrawledPage
    from curtsy.crawling.page import Skipped as Skipped
    from curtsy.crawling.progress import Plan as Plan
    from curtsy.crawling.progress import Snapshot as Snapshot
    from curtsy.crawling.progress import Summary as Summary
    from curtsy.crawling.progress import Totals as Totals
    from curtsy.crawling.start import Crawl as Crawl
    from curtsy.crawling.start import acrawl as acrawl
    from curtsy.crawling.start import crawl as crawl
    from curtsy.crawling.web_crawler import WebCrawler as WebCrawler
    from curtsy.engine.download import DownloadResult as DownloadResult
    from curtsy.limits import CircuitBreaker as CircuitBreaker
    from curtsy.limits import DomainBudgetCheckResult as DomainBudgetCheckResult
    from curtsy.limits import DomainDailyBudget as DomainDailyBudget
    from curtsy.limits import DomainDailyBudgetManager as DomainDailyBudgetManager
    from curtsy.limits import DomainLimiter as DomainLimiter
    from curtsy.limits import PDFDownloader as PDFDownloader
    from curtsy.limits import RateLimiter as RateLimiter
    from curtsy.limits import RobotsTxtChecker as RobotsTxtChecker
    from curtsy.limits import TokenBucket as TokenBucket
    from curtsy.limits import adapt_delay as adapt_delay
    from curtsy.limits import can_request_to_domain as can_request_to_domain
    from curtsy.limits import get_domain_budget_manager as get_domain_budget_manager
    from curtsy.limits import get_rate_limiter as get_rate_limiter
    from curtsy.limits import record_domain_request as record_domain_request
    from curtsy.limits import with_retry as with_retry
    from curtsy.system.clock import FakeClock as FakeClock
    from curtsy.system.log import create_logger as create_logger

__version__ = "0.1.0"

logging.getLogger("curtsy").addHandler(logging.NullHandler())  # a library logs nothing by default

# Module of each public name. Names are imported on first use, so that `import curtsy` is fast.
_HOMES = {
    "AsyncClient": "curtsy.client",
    "AsyncCrawl": "curtsy.crawling.crawl",
    "BadStatus": "curtsy.core.errors",
    "CircuitBreaker": "curtsy.limits",
    "Client": "curtsy.blocking",
    "Crawl": "curtsy.crawling.start",
    "CrawlOptions": "curtsy.crawling.options",
    "CrawledPage": "curtsy.crawling.page",
    "CurtsyError": "curtsy.core.errors",
    "DiskCache": "curtsy.cache.disk",
    "DomainBudgetCheckResult": "curtsy.limits",
    "DomainDailyBudget": "curtsy.limits",
    "DomainDailyBudgetManager": "curtsy.limits",
    "DomainLimiter": "curtsy.limits",
    "DownloadResult": "curtsy.engine.download",
    "FakeClock": "curtsy.system.clock",
    "FetchError": "curtsy.core.errors",
    "FetchRecord": "curtsy.core.record",
    "FetchResult": "curtsy.core.result",
    "InvalidDomain": "curtsy.core.errors",
    "LimitConfig": "curtsy.core.policy",
    "LimitStats": "curtsy.core.record",
    "LimiterClosed": "curtsy.core.errors",
    "PDFDownloader": "curtsy.limits",
    "PackedCache": "curtsy.cache.packed",
    "Plan": "curtsy.crawling.progress",
    "Policies": "curtsy.core.policy",
    "Policy": "curtsy.core.policy",
    "PolicyError": "curtsy.core.errors",
    "RateLimiter": "curtsy.limits",
    "Reason": "curtsy.core.errors",
    "Refused": "curtsy.core.errors",
    "RefusedByBreaker": "curtsy.core.errors",
    "RefusedByBudget": "curtsy.core.errors",
    "RefusedByPolicy": "curtsy.core.errors",
    "RefusedByRobots": "curtsy.core.errors",
    "RobotsTxtChecker": "curtsy.limits",
    "Share": "curtsy.core.record",
    "Skipped": "curtsy.crawling.page",
    "Snapshot": "curtsy.crawling.progress",
    "StatsSnapshot": "curtsy.core.record",
    "StoreError": "curtsy.core.errors",
    "Summary": "curtsy.crawling.progress",
    "TokenBucket": "curtsy.limits",
    "TotalStats": "curtsy.core.record",
    "Totals": "curtsy.crawling.progress",
    "UnknownDomain": "curtsy.core.errors",
    "Unreachable": "curtsy.core.errors",
    "WaitTimeout": "curtsy.core.errors",
    "WebCrawler": "curtsy.crawling.web_crawler",
    "acrawl": "curtsy.crawling.start",
    "adapt_delay": "curtsy.limits",
    "can_request_to_domain": "curtsy.limits",
    "crawl": "curtsy.crawling.start",
    "create_logger": "curtsy.system.log",
    "fetch_url": "curtsy.client",
    "get": "curtsy.blocking",
    "get_domain_budget_manager": "curtsy.limits",
    "get_rate_limiter": "curtsy.limits",
    "parse_robots": "curtsy.core.robots",
    "record_domain_request": "curtsy.limits",
    "with_retry": "curtsy.limits",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'curtsy' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

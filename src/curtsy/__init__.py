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
    from curtsy.client import AsyncClient as AsyncClient
    from curtsy.client import fetch_url as fetch_url
    from curtsy.core.errors import BadStatus as BadStatus
    from curtsy.core.errors import CurtsyError as CurtsyError
    from curtsy.core.errors import FetchError as FetchError
    from curtsy.core.errors import PolicyError as PolicyError
    from curtsy.core.errors import Reason as Reason
    from curtsy.core.errors import Refused as Refused
    from curtsy.core.errors import RefusedByBreaker as RefusedByBreaker
    from curtsy.core.errors import RefusedByBudget as RefusedByBudget
    from curtsy.core.errors import RefusedByPolicy as RefusedByPolicy
    from curtsy.core.errors import RefusedByRobots as RefusedByRobots
    from curtsy.core.errors import StoreError as StoreError
    from curtsy.core.errors import Unreachable as Unreachable
    from curtsy.core.policy import LimitConfig as LimitConfig
    from curtsy.core.policy import Policies as Policies
    from curtsy.core.policy import Policy as Policy
    from curtsy.core.record import FetchRecord as FetchRecord
    from curtsy.core.result import FetchResult as FetchResult
    from curtsy.crawling.crawl import AsyncCrawl as AsyncCrawl
    from curtsy.crawling.options import CrawlOptions as CrawlOptions
    from curtsy.crawling.progress import CrawlSummary as CrawlSummary
    from curtsy.crawling.results import CrawledPage as CrawledPage
    from curtsy.crawling.results import SkippedUrl as SkippedUrl
    from curtsy.crawling.start import Crawl as Crawl
    from curtsy.crawling.start import acrawl as acrawl
    from curtsy.crawling.start import crawl as crawl
    from curtsy.crawling.web_crawler import WebCrawler as WebCrawler
    from curtsy.engine.download import DownloadResult as DownloadResult
    from curtsy.limits import CircuitBreaker as CircuitBreaker
    from curtsy.limits import DomainDailyBudgetManager as DomainDailyBudgetManager
    from curtsy.limits import RateLimiter as RateLimiter
    from curtsy.limits import RobotsTxtChecker as RobotsTxtChecker
    from curtsy.limits import TokenBucket as TokenBucket
    from curtsy.limits import get_rate_limiter as get_rate_limiter
    from curtsy.limits import with_retry as with_retry
    from curtsy.system.log import create_logger as create_logger

__version__ = "0.2.0"

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
    "CrawledPage": "curtsy.crawling.results",
    "CurtsyError": "curtsy.core.errors",
    "DiskCache": "curtsy.cache.disk",
    "DomainDailyBudgetManager": "curtsy.limits",
    "DownloadResult": "curtsy.engine.download",
    "FetchError": "curtsy.core.errors",
    "FetchRecord": "curtsy.core.record",
    "FetchResult": "curtsy.core.result",
    "LimitConfig": "curtsy.core.policy",
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
    "SkippedUrl": "curtsy.crawling.results",
    "StoreError": "curtsy.core.errors",
    "CrawlSummary": "curtsy.crawling.progress",
    "TokenBucket": "curtsy.limits",
    "Unreachable": "curtsy.core.errors",
    "WebCrawler": "curtsy.crawling.web_crawler",
    "acrawl": "curtsy.crawling.start",
    "crawl": "curtsy.crawling.start",
    "create_logger": "curtsy.system.log",
    "fetch_url": "curtsy.client",
    "get": "curtsy.blocking",
    "get_rate_limiter": "curtsy.limits",
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

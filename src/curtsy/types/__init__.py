"""Types in the signatures of public names, for annotations and for parts of one's own (a store, a cache, a sender)."""

from curtsy.cache.keys import Checked, Page, PageCache
from curtsy.cache.packed import PackedCache
from curtsy.core.breaker import State
from curtsy.core.cache import Entry
from curtsy.core.decision import No
from curtsy.core.policy import On429, Seconds, Strategy, UpToADay, UpToAMonth
from curtsy.core.record import Share
from curtsy.core.request import Headers, Request
from curtsy.core.robots import Verdict
from curtsy.core.setting import Rate
from curtsy.core.statistics import StatisticsSnapshot
from curtsy.core.time import Calendar, Now
from curtsy.core.url import Url
from curtsy.crawling.estimate import CrawlPlan
from curtsy.crawling.extract.scope import Scope
from curtsy.crawling.frontier.protocol import AsyncFrontier
from curtsy.crawling.jobs import WorkerId
from curtsy.crawling.keywords import CrawlKeywords, OptionKeywords
from curtsy.crawling.options import ScopeKind
from curtsy.crawling.outputs.protocol import Output, Written
from curtsy.crawling.progress import CrawlSnapshot, CrawlTotals, Ended, HostProgress
from curtsy.crawling.results import SkippedUrl
from curtsy.crawling.seeds import Given, Seeds
from curtsy.crawling.web_crawler import RobotsChecker
from curtsy.engine.keywords import ClientKeywords, FetchKeywords, SettingKeywords
from curtsy.engine.renderer import Renderer
from curtsy.engine.timers import Timers, VirtualClock
from curtsy.http.sender import Sender
from curtsy.limits.breaker import BreakerView
from curtsy.limits.bucket import BucketView
from curtsy.settings import CacheMode, Preset
from curtsy.stores import AsyncStore, Store
from curtsy.system.clock import Clock
from curtsy.system.log import Logger, Stream

__all__ = [
    "AsyncFrontier", "AsyncStore", "BreakerView", "BucketView", "CacheMode", "Calendar", "Checked",
    "ClientKeywords", "Clock", "CrawlKeywords", "CrawlPlan", "CrawlSnapshot", "CrawlTotals", "Ended", "Entry",
    "FetchKeywords", "Given", "Headers", "HostProgress", "Logger", "No", "Now", "On429", "OptionKeywords",
    "Output", "PackedCache", "Page", "PageCache", "Preset", "Rate", "Renderer", "Request", "RobotsChecker", "Scope",
    "ScopeKind", "Seconds", "Seeds", "Sender", "SettingKeywords", "Share", "SkippedUrl", "State", "StatisticsSnapshot",
    "Store", "Strategy", "Stream", "Timers", "UpToADay", "UpToAMonth", "Url", "Verdict", "VirtualClock", "WorkerId",
    "Written",
]  # fmt: skip

"""Reader of crawl records; the dashboard and the command line use it.

The record is defined in `core/crawl_record.py`, because the crawler and the stores' codec also need it.
"""

from __future__ import annotations

from curtsy.core.crawl_record import HOUR, MOST_HOSTS, MOST_SEEDS, CrawledHost, CrawlRecord, crawl_key
from curtsy.stores import Store, read_all

__all__ = ["HOUR", "MOST_HOSTS", "MOST_SEEDS", "CrawlRecord", "CrawledHost", "crawl_key", "read_crawls"]


def read_crawls(store: Store) -> list[CrawlRecord]:
    """Return the crawl records of a store: running crawls first, then the latest."""
    crawls = [each for _, each in read_all(store, crawl_key("")) if isinstance(each, CrawlRecord)]
    return sorted(crawls, key=lambda each: (each.state in ("stopped", "finished"), -each.started_at, each.job))

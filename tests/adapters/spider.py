"""A crawl by Scrapy with curtsy, in a process of its own: `tests.adapters.spider '{"urls": …, "settings": …}'`.

It prints what came of each URL, in order, and the statistics of the crawl.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import scrapy
from scrapy.crawler import CrawlerProcess

import curtsy


class TestSpider(scrapy.Spider):
    """Requests each URL once, as often as it is listed."""

    name = "test"

    def __init__(self, urls: list[str], done: list[dict[str, Any]]) -> None:
        super().__init__()
        self.urls, self.done = urls, done

    async def start(self) -> AsyncIterator[Any]:
        for url in self.urls:
            yield scrapy.Request(url, self.parse, errback=self.failed, dont_filter=True, cb_kwargs={"asked": url})

    def parse(self, response: scrapy.http.Response, asked: str = "") -> None:
        text = response.text if isinstance(response, scrapy.http.TextResponse) else ""
        self.done.append({"url": asked, "status": response.status, "text": text, "flags": response.flags})

    def failed(self, failure: Any) -> None:
        error = failure.value
        found = {"url": failure.request.url, "error": type(error).__name__}
        if isinstance(error, curtsy.Refused):
            found |= {"reason": error.reason, "retry_after": error.retry_after}
        self.done.append(found)


def main() -> None:
    """Crawl and tell."""
    task = json.loads(sys.argv[1])
    settings = {"LOG_LEVEL": "WARNING", "TELNETCONSOLE_ENABLED": False, "ADDONS": {"curtsy.adapters.scrapy.Addon": 300}}
    process = CrawlerProcess(settings | task["settings"])
    done: list[dict[str, Any]] = []
    crawler = process.create_crawler(TestSpider)
    process.crawl(crawler, urls=task["urls"], done=done)
    process.start()
    print(json.dumps({"done": done, "stats": own_stats(crawler)}))


def own_stats(crawler: Any) -> dict[str, Any]:
    """The statistics that are numbers."""
    return {name: value for name, value in crawler.stats.get_stats().items() if isinstance(value, int)}


if __name__ == "__main__":
    main()

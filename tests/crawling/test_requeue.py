"""Finished URLs that are put back into the queue of a job. Real crawls; the site's journal is the judge."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from curtsy.core.errors import PolicyError, StoreError
from curtsy.crawling.frontier import redis_jobs
from curtsy.crawling.frontier.protocol import Requeue
from curtsy.crawling.jobs import CLOCK_MARGIN, Job, look, requeue_in_folder, requeue_on_server, shared, unstored_since
from curtsy.crawling.outputs.append_file import End
from curtsy.crawling.outputs.parts import PartsState, Sealed
from curtsy.crawling.start import acrawl
from tests.crawling.test_parts import Bucket
from tests.crawling.test_resume import build
from tests.crawling.web import QUICK, html
from tests.support.redis_server import RedisServer
from tests.support.site import Reply, Site

PAGES = 12


def paths(site: Site) -> Counter[str]:
    return Counter(visit.path for visit in site.visits() if visit.path.startswith("/page/"))


def urls(path: Path) -> list[str]:
    return [json.loads(line)["url"] for line in path.read_text().splitlines()]


def parents_in(*files: Path) -> dict[str, str | None]:
    """The page that each page was found on."""
    return {line["url"]: line["parent"] for path in files for line in map(json.loads, path.read_text().splitlines())}


async def run(site: Site, folder: Path, output: Path | str, **more: Any) -> Any:
    async with acrawl(site.url("/page/0"), job=folder, outputs=[output], **QUICK | more) as crawl:
        return await crawl.run()


async def test_pages_of_a_lost_output_are_fetched_again(site: Site, tmp_path: Path) -> None:
    """Those since a time, or of a pattern; depth and totals are as before."""
    build(site, "tree", PAGES)
    await run(site, tmp_path / "job", tmp_path / "lost.jsonl")
    depths = {
        line["url"]: line["depth"] for line in map(json.loads, (tmp_path / "lost.jsonl").read_text().splitlines())
    }
    site.clear()

    assert requeue_in_folder(tmp_path / "job", Requeue(since=time.time() + 60)) == 0
    assert requeue_in_folder(tmp_path / "job", Requeue(pattern=re.compile("/page/7$"))) == 1
    assert requeue_in_folder(tmp_path / "job", Requeue(since=time.time() - 600)) == PAGES - 1
    assert look(tmp_path / "job").totals.pages == 0
    summary = await run(site, tmp_path / "job", tmp_path / "new.jsonl")

    assert paths(site) == Counter(f"/page/{number}" for number in range(PAGES))
    lines = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert {line["url"]: line["depth"] for line in lines} == depths
    assert (summary.ended, summary.fetched, summary.queued) == ("done", PAGES, 0)


async def test_failed_urls_are_fetched_again_at_their_depth(site: Site, tmp_path: Path) -> None:
    build(site, "fan", 4)
    site.script("/page/2", [Reply(404), Reply(body=html("/page/99"), headers={"Content-Type": "text/html"})])
    site.reply("/page/3", Reply(404))
    first = await run(site, tmp_path / "job", tmp_path / "pages.jsonl", max_depth=1)
    assert first.failed == 2

    count = requeue_in_folder(
        tmp_path / "job", Requeue(reasons=frozenset({"http_status 404"}), pattern=re.compile("/page/2$"))
    )
    summary = await run(site, tmp_path / "job", tmp_path / "pages.jsonl", max_depth=1)

    assert count == 1
    assert (summary.fetched, summary.failed) == (3, 1)
    assert paths(site) == {"/page/0": 1, "/page/1": 1, "/page/2": 2, "/page/3": 1}
    assert len(urls(tmp_path / "pages.jsonl")) == 3


async def test_pages_that_cannot_be_lost_are_not_logged(site: Site, tmp_path: Path) -> None:
    """Those stored in an object store. Those of a crawl without outputs are the program's, which may lose them."""
    build(site, "fan", 3)
    bucket = Bucket(f"file://{tmp_path}/stored", {})
    await run(site, tmp_path / "stored-job", f"{bucket.url}/pages.jsonl", durable=True)
    async with acrawl(site.url("/page/0"), job=tmp_path / "job", **QUICK) as crawl:
        await crawl.run()

    assert len(bucket.urls("jsonl")) == 3
    assert [requeue_in_folder(tmp_path / name, Requeue()) for name in ("stored-job", "job")] == [0, 3]


async def test_a_running_job_is_left_alone(site: Site, tmp_path: Path) -> None:
    build(site, "fan", 3)
    async with acrawl(site.url("/page/0"), job=tmp_path / "job", **QUICK) as crawl:
        await crawl.plan()
        with pytest.raises(StoreError, match="running"):
            requeue_in_folder(tmp_path / "job", Requeue())


async def found(server: RedisServer) -> Job:
    summary = await redis_jobs.find(server.url, "docs")
    assert summary is not None
    return shared(summary)


async def test_pages_of_a_worker_whose_disk_is_lost_are_fetched_again(site: Site, tmp_path: Path) -> None:
    """Today's silent loss: what the others have is not fetched again."""
    build(site, "tree", PAGES)
    site.script("/page/11", [Reply(404), Reply(body=html(), headers={"Content-Type": "text/html"})])
    with RedisServer() as server:
        given = {"store": server.url, "lease": 3.0}
        await run(site, tmp_path / "one" / "docs", tmp_path / "one.jsonl", max_pages=5, **given)
        await run(site, tmp_path / "two" / "docs", tmp_path / "two.jsonl", **given)
        lost, kept = urls(tmp_path / "one.jsonl"), urls(tmp_path / "two.jsonl")
        assert len(lost) + len(kept) == PAGES - 1
        worker = (tmp_path / "one" / "docs" / "worker").read_text()
        site.clear()

        with pytest.raises(PolicyError, match=worker):
            await requeue_on_server(server.url, await found(server), Requeue(worker="nobody"))
        count = await requeue_on_server(server.url, await found(server), Requeue(worker=worker))
        failed = await requeue_on_server(
            server.url, await found(server), Requeue(reasons=frozenset({"http_status 404"}))
        )
        parents = parents_in(tmp_path / "one.jsonl", tmp_path / "two.jsonl")
        job = await found(server)
        summary = await run(site, tmp_path / "two" / "docs", tmp_path / "two.jsonl", max_pages=PAGES, **given)

        assert (count, failed) == (len(lost), 1)
        assert job.totals.pages == len(kept)
        assert job.counts is not None
        assert (job.counts.queued, job.counts.done, job.counts.failed) == (len(lost) + 1, len(kept), 0)
        assert paths(site) == Counter(["/page/11", *(url.removeprefix(site.url("")) for url in lost)])
        assert sorted(urls(tmp_path / "two.jsonl")) == sorted(site.url(f"/page/{number}") for number in range(PAGES))
        assert summary.queued == 0
        assert parents_in(tmp_path / "two.jsonl") == parents | {site.url("/page/11"): site.url("/page/5")}


async def test_pages_that_a_lost_worker_had_stored_are_left_out(site: Site, tmp_path: Path) -> None:
    """Those of the present part are not stored; a local output has none that are."""
    stored = PartsState(3, None, 5000.0, (Sealed(2, 7, "part.jsonl", 4000.0),), End(0, 0, 0, "", ""), 9)
    state = msgspec.to_builtins(stored)
    skipped: dict[str, Any] = {"output:w:examples": {}, "output:w:skipped:/skipped.csv": {}, "output:v:jsonl:/a": {}}

    assert unstored_since({"output:w:jsonl:s3://b/a.jsonl": state} | skipped, "w") == 4000 - CLOCK_MARGIN
    assert unstored_since({"output:w:jsonl:s3://b/a": state, "output:w:jsonl:/a": {}}, "w") == 0
    assert unstored_since({"output:w:table:pages": 5}, "w") == 0
    build(site, "tree", PAGES)
    with RedisServer() as server:
        given = {"store": server.url, "lease": 3.0}
        await run(site, tmp_path / "one" / "docs", f"memory://{tmp_path.name}/pages.jsonl", **given)
        worker = (tmp_path / "one" / "docs" / "worker").read_text()

        assert await requeue_on_server(server.url, await found(server), Requeue(worker=worker)) == 0
        assert await requeue_on_server(server.url, await found(server), Requeue(worker=worker, since=1.0)) == PAGES


async def test_pages_of_a_worker_at_work_are_left_alone(site: Site, tmp_path: Path) -> None:
    build(site, "tree", PAGES)
    with RedisServer() as server:
        given = {"store": server.url, "lease": 3.0}
        await run(site, tmp_path / "one" / "docs", tmp_path / "one.jsonl", max_pages=5, **given)
        pages: list[str] = []
        async with acrawl(
            site.url("/page/0"), job=tmp_path / "one" / "docs", outputs=[tmp_path / "one.jsonl"], **QUICK | given
        ) as crawl:
            async for page in crawl:
                pages.append(page.url)
                with pytest.raises(PolicyError, match="at work"):
                    await requeue_on_server(server.url, await found(server), Requeue())
                break
        assert pages

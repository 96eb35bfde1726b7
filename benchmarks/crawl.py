"""Crawls: curtsy as it comes and in faster configurations, beside Scrapy, over the same site on loopback.

    python -m benchmarks.crawl [PART ...] [--quick]

"As it comes" is `acrawl(seeds, job="bench")`: host records in SQLite, the default cache, a job that can be resumed. Its
peer is Scrapy with JOBDIR and HTTPCACHE. The site counts the requests by its own clock: pages per second are from the
first request to the last. CPU and the peak of the memory are those of the crawler's processes, with their start. A peer
that is not done in time is ended, and its speed is that of the pages until then. Broken rules are short gaps, repeated
and forbidden requests, too many requests to a host at the same time, and missing pages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import IO, Any

from benchmarks.crawlers import Job
from benchmarks.measure import homes, is_installed, memory, ratios, redis_server, server_cpu
from benchmarks.report import ROOT, Report, run
from benchmarks.site import Plan, Score, Site

WITH_ADDON = "Scrapy with curtsy's add-on"
JOBDIR = "Scrapy with JOBDIR and HTTPCACHE"
APART = "2 crawls that share nothing"
LOOK = 0.05
"""Seconds between two looks at the memory of a crawler."""

LIMIT = 60.0
"""Maximum seconds of a crawl of ours beyond its pauses."""


@dataclass(frozen=True, slots=True)
class Crawler:
    """A crawler and its configuration."""

    program: str
    options: Mapping[str, Any]
    """Arguments of `acrawl()`, or settings of Scrapy."""

    workers: int = 1
    """Processes that work on the same job."""

    is_shared: bool = False
    """True if the job is on a Redis server."""

    is_split: bool = False
    """True if the processes share nothing: each crawls its part of the hosts, with records and a cache of its own."""

    @property
    def is_ours(self) -> bool:
        """Return whether it is curtsy."""
        return self.program == "curtsy"


MEMORY = Crawler("curtsy", {"store": "memory:", "cache": False})
DEFAULT = Crawler("curtsy", {"job": "bench"})
ON_REDIS = Crawler("curtsy", {"job": "bench"}, is_shared=True)
SCRAPY = Crawler("scrapy", {})
SCRAPY_ADDON = Crawler("scrapy-with-curtsy", {})
SCRAPY_JOB = Crawler("scrapy", {"JOBDIR": "job", "HTTPCACHE_ENABLED": True})


@dataclass(frozen=True, slots=True)
class Result:
    """Score and cost of one crawl."""

    score: Score
    cpu: float
    """CPU milliseconds of all its processes for a page."""

    peak: float
    """Largest memory of one of its processes, in MB."""

    stall: float
    """Longest stall of an event loop in milliseconds; 0 if unknown."""

    broken: int
    """Number of broken rules."""

    server: float
    """CPU microseconds of the Redis server for a page; 0 without one."""


def crawl(crawler: Crawler, plan: Plan, in_flight: int, limit: float) -> Result:
    """Let a crawler visit a new site, for `limit` seconds at most."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as errors:
        with Site(plan) as site, redis_server() if crawler.is_shared else nullcontext() as store:
            options = dict(crawler.options) | ({} if store is None else {"store": store})
            parts = crawler.workers if crawler.is_split else 1
            jobs = [
                Job(site.seeds[part::parts], plan.pause, plan.per_host, in_flight // parts, options)
                for part in range(parts)
            ]
            processes = [
                _start(crawler.program, jobs[number % parts], os.path.join(folder, str(number % parts)), errors)
                for number in range(crawler.workers)
            ]
            server = 0.0 if store is None else -server_cpu(store)
            cpu, peak, was_cut = _watch(processes, limit)
            server += 0.0 if store is None else server_cpu(store)
        said = [process.communicate()[0] for process in processes]
        score = site.score
        if was_cut:
            print(f"  {crawler.program}: ended after {limit:.0f} s and {score.pages:,} of {plan.pages:,} pages")
        elif any(process.returncode for process in processes):
            errors.seek(0)
            raise RuntimeError(f"{crawler.program} failed: {errors.read().strip()[-2000:]}")
    stalls = [0.0] if was_cut or not crawler.is_ours else [json.loads(each)["stall"] for each in said]
    broken = _broken(crawler, score, plan, was_cut)
    pages = max(score.pages, 1)
    return Result(score, cpu / pages * 1e3, peak / 2**20, max(stalls) * 1e3, broken, server / pages * 1e6)


def _start(program: str, job: Job, folder: str, errors: IO[str]) -> subprocess.Popen[str]:
    """Start a crawler in a folder, which is also its home."""
    os.makedirs(folder, exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.crawlers", program],
        cwd=folder,
        env=os.environ | homes(folder) | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(job.packed())
    process.stdin.flush()
    process.stdin.close()
    process.stdin = None
    return process


def _watch(processes: list[subprocess.Popen[str]], limit: float) -> tuple[float, float, bool]:
    """Wait for the processes; return their CPU seconds, the largest memory of one, and whether they were ended."""
    running, ends = list(processes), time.monotonic() + limit
    cpu, peak, was_cut = 0.0, 0.0, False
    while running:
        # Not ru_maxrss: that of a child begins with the memory of its parent.
        peak = max(peak, *(memory("VmHWM", process.pid) for process in running))
        if time.monotonic() > ends and not was_cut:
            was_cut = True
            for process in running:
                process.kill()
        for process in list(running):
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                cpu += usage.ru_utime + usage.ru_stime
                running.remove(process)
        time.sleep(LOOK)
    return cpu, peak, was_cut


def _broken(crawler: Crawler, score: Score, plan: Plan, was_cut: bool) -> int:
    """Count the broken rules, and print them."""
    counts = {
        "short gaps": score.short,
        "forbidden requests": score.forbidden,
        "repeated requests": score.repeated,
        "requests to a host at the same time": score.at_once if score.at_once > plan.per_host * crawler.workers else 0,
        "missing pages": 0 if was_cut else plan.pages - score.pages,
    }
    found = {what: count for what, count in counts.items() if count}
    if found:
        print(f"  {crawler.program} {dict(crawler.options)}: {found}")
    return sum(found.values())


class Comparison:
    """Crawlers that visit the same site in turns."""

    def __init__(self, report: Report, title: str, plan: Plan, in_flight: int, limit: float) -> None:
        """Create a comparison. A peer has `limit` seconds."""
        report.title(title)
        self._report = report
        self._plan = plan
        self._in_flight = in_flight
        self._limit = limit
        self._results: dict[str, list[Result]] = {}

    def run(self, crawlers: Mapping[str, Crawler], rounds: int) -> None:
        """Run all crawlers in each round, and report their figures."""
        has_scrapy = is_installed("scrapy")
        chosen = {name: crawler for name, crawler in crawlers.items() if crawler.is_ours or has_scrapy}
        self._results = {name: [] for name in chosen}
        for _ in range(1 if self._report.is_quick else rounds):
            for name, crawler in chosen.items():
                limit = LIMIT + 2 * self._plan.bound if crawler.is_ours else self._limit
                self._results[name].append(crawl(crawler, self._plan, self._in_flight, limit))
        for name, found in self._results.items():
            self._report.add(f"{name}, speed", [each.score.speed for each in found], "pages/s")
            self._report.add(f"{name}, CPU a page", [each.cpu for each in found], "ms")
            self._report.add(f"{name}, peak of the memory", [each.peak for each in found], "MB")
            if chosen[name].is_ours:
                self._report.add(f"{name}, longest stall", [each.stall for each in found], "ms")
            if chosen[name].is_shared:
                self._report.add(f"{name}, CPU of the server a page", [each.server for each in found], "µs")
        mine = [each for name, found in self._results.items() if chosen[name].is_ours for each in found]
        self._report.add("longest stall of all", max(each.stall for each in mine), "ms", at_most=50)
        self._report.add("broken rules of all", sum(each.broken for each in mine), "rules", at_most=0)

    def over(self, name: str, base: str, at_least: float | None = None) -> None:
        """Report how many times as fast one crawler is as another, if both took part."""
        if name in self._results and base in self._results:
            found = ratios(self._speeds(name), self._speeds(base))
            self._report.add(f"{name} over {base}", found, "x", at_least=at_least)

    def site(self) -> None:
        """Report the CPU time that the site takes of the same cores."""
        found = [each.score.busy / max(each.score.pages, 1) for results in self._results.values() for each in results]
        self._report.add("CPU of the site a page", [each * 1e3 for each in found], "ms")

    def share(self, name: str, at_least: float) -> None:
        """Report the share of the speed that the pauses allow."""
        bound = self._plan.pages / self._plan.bound
        self._report.add(
            f"{name}, share of the bound", [each / bound for each in self._speeds(name)], "", at_least=at_least
        )

    def peak(self, names: tuple[str, ...], at_most: float) -> None:
        """Report the largest memory of these crawlers."""
        found = [each.peak for name in names for each in self._results[name]]
        self._report.add(f"largest memory of {', '.join(names)}", max(found), "MB", at_most=at_most)

    def _speeds(self, name: str) -> list[float]:
        return [each.score.speed for each in self._results[name]]


def single(report: Report) -> None:
    """Report the figures of one host without pauses."""
    size = 300 if report.is_quick else 5000
    comparison = Comparison(report, f"one host, {size:,} pages, no pauses", Plan((size,), per_host=16), 16, 15)
    crawlers = {
        "Scrapy": SCRAPY,
        JOBDIR: SCRAPY_JOB,
        "memory": MEMORY,
        "SQLite": Crawler("curtsy", {"cache": False}),
        "memory and cache of files": Crawler("curtsy", {"store": "memory:", "cache": "pages"}),
        "memory and packed cache": Crawler("curtsy", {"store": "memory:", "cache": True}),
        "as it comes": DEFAULT,
    }
    comparison.run(crawlers, 3)
    comparison.over("memory", "Scrapy", 20)
    comparison.over("SQLite", "Scrapy", 12)
    comparison.over("memory and cache of files", "Scrapy")
    comparison.over("memory and packed cache", "Scrapy")
    comparison.over("as it comes", "Scrapy", 8)
    comparison.over("as it comes", JOBDIR, 12)
    comparison.peak(("memory", "SQLite", "as it comes"), 60)


def workers(report: Report) -> None:
    """Report the figures of one process and of two: of `workers=2`, and of two commands on one Redis server.

    Two crawls that share nothing are the most that this machine allows, because the site needs CPU time, too.
    """
    pages = 2 if report.is_quick else 30
    comparison = Comparison(
        report, f"processes of one crawl, 100 hosts, {100 * pages:,} pages, no pauses",
        Plan((pages,) * 100, per_host=16), 32, 15,
    )  # fmt: skip
    crawlers = {
        "1 process": DEFAULT,
        "workers=2": Crawler("curtsy", {**DEFAULT.options, "workers": 2}),
        APART: replace(DEFAULT, workers=2, is_split=True),
    }
    comparison.run(crawlers, 3)
    comparison.over("workers=2", "1 process", 1.7)
    comparison.over(APART, "1 process")
    comparison.over("workers=2", APART)
    comparison.site()
    if not (is_installed("redis-server") and is_installed("redis")):
        return
    crawlers = {"1 worker": ON_REDIS, "2 workers": replace(ON_REDIS, workers=2)}
    for title, sizes in {"one host": (100 * pages,), "100 hosts": (pages,) * 100}.items():
        comparison = Comparison(
            report, f"job on Redis, {title}, {100 * pages:,} pages, no pauses", Plan(sizes, per_host=16), 16, 15
        )
        comparison.run(crawlers, 3)
        comparison.over("2 workers", "1 worker", 1.7 if len(sizes) > 1 else None)


def broad(report: Report) -> None:
    """Report the figures of many hosts with pauses."""
    hosts, pages = (50, 3) if report.is_quick else (500, 20)
    title = f"{hosts} hosts of {pages} pages, pauses of 1 s"
    comparison = Comparison(report, title, Plan((pages,) * hosts, pause=1.0, latency=0.01), hosts, 30)
    comparison.run({"Scrapy": SCRAPY, WITH_ADDON: SCRAPY_ADDON, "memory": MEMORY, "as it comes": DEFAULT}, 1)
    comparison.over(WITH_ADDON, "Scrapy", 1)
    comparison.share("memory", 0.97)
    comparison.share("as it comes", 0.97)


def skewed(report: Report) -> None:
    """Report the figures of one large host among small ones, with pauses."""
    large, hosts, small = (10, 20, 2) if report.is_quick else (100, 499, 10)
    title = f"a host of {large} pages and {hosts} of {small}, pauses of 0.5 s"
    comparison = Comparison(report, title, Plan((large, *(small,) * hosts), pause=0.5, latency=0.01), 64, 60)
    comparison.run({"as it comes": DEFAULT}, 1)
    comparison.share("as it comes", 0.97)


def new_hosts(report: Report) -> None:
    """Report the figures of many hosts with few pages each."""
    hosts = 200 if report.is_quick else 5000
    comparison = Comparison(
        report, f"{hosts:,} new hosts of 2 pages, no pauses", Plan((2,) * hosts, latency=0.01), 64, 30
    )
    comparison.run({"Scrapy": SCRAPY, JOBDIR: SCRAPY_JOB, "memory": MEMORY, "as it comes": DEFAULT}, 1)
    comparison.over("memory", "Scrapy", 5)
    comparison.over("as it comes", "Scrapy", 5)
    comparison.over("as it comes", JOBDIR)


PARTS = {"single": single, "workers": workers, "broad": broad, "skewed": skewed, "new-hosts": new_hosts}

if __name__ == "__main__":
    run("crawl", __doc__, PARTS)

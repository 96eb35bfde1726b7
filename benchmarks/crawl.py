"""Crawls beside Scrapy, Crawlee, wget and a bare loop: the same site on loopback, the same manners, in the same run.

    python benchmarks/crawl.py [--only a,b] [--peers scrapy,crawlee] [--quick]

The site keeps the score, by its own clock at receipt. Pages a second, and their share of what the pauses allow, are
from the site's first request to its last; CPU and the most memory are those of the crawler's process, start included.
Figures do not count when a gap was short, when something was asked for that is forbidden, had been handed out or lies
inside a Retry-After, or when more was in flight to a host than was agreed. Slow peers are ended when their time is
over, and show what they reached till then. `waited` is the share of its time that a crawler waited for a core. All
cases take about ten minutes; figures to reach are for a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # not this folder, whose robots.py and cache.py would hide others' modules

from benchmarks.crawling.race import Result, race  # noqa: E402
from benchmarks.crawling.score import Plan  # noqa: E402

PEERS = {"scrapy": "scrapy", "crawlee": "crawlee", "wget": "", "bare": "selectolax"}
"""Whom we measure besides curtsy, and the module that each needs."""

QUIET = 0.1
"""The share of its time that a crawler may have waited for a core; above it, the machine was busy."""


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure to reach: at least, or at most."""

    what: str
    least: float | None = None
    most: float | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One crawl that all are sent on."""

    title: str
    plan: Plan
    in_flight: int
    limit: float
    """Seconds after which a peer is ended."""

    peers: tuple[str, ...] = ("scrapy", "crawlee")
    """Scrapy first, for the others' ratio to it."""

    goals: tuple[Goal, ...] = field(default=())


CASES = {
    "a": Case(
        "one host, 5,000 pages, no pauses",
        Plan((5000,), per_host=16),
        in_flight=16,
        limit=90,
        peers=("scrapy", "crawlee", "wget", "bare"),
        goals=(Goal("x Scrapy", least=12), Goal("MB", most=60)),
    ),
    "b": Case(
        "500 hosts of 20 pages, 1 s between requests to a host",
        Plan((20,) * 500, pause=1.0, latency=0.01),
        in_flight=500,
        limit=60,
        goals=(Goal("of bound", least=0.96), Goal("ms CPU/page", most=0.5)),
    ),
    "c": Case(
        "one host of 200 pages before 499 of 20, 0.5 s between requests to a host, 64 in flight",
        Plan((200, *(20,) * 499), pause=0.5, latency=0.01),
        in_flight=64,
        limit=150,
        peers=("scrapy",),
        goals=(Goal("of bound", least=0.97),),
    ),
    "d": Case(
        "50 hosts of 10 pages that answer 429, Retry-After: 2, above 2 requests a second; no pauses",
        Plan((10,) * 50, latency=0.01, most_per_second=2),
        in_flight=64,
        limit=120,
        goals=(Goal("pages", least=500), Goal("inside", most=0)),
    ),
    "e": Case(
        "5,000 new hosts of 2 pages, no pauses",
        Plan((2,) * 5000, latency=0.01),
        in_flight=64,
        limit=45,
        peers=("scrapy",),
        goals=(Goal("x Scrapy", least=5),),
    ),
}
"""(f), the frontier by itself, is `benchmarks/frontier.py`. The CPU a polite page of (e) is that of (b)."""


def quick(case: Case) -> Case:
    """The same with a tenth of the hosts, or of the pages of the only one, and a quarter of the pauses."""
    sizes = case.plan.sizes
    fewer = (sizes[0] // 10,) if len(sizes) == 1 else sizes[: len(sizes) // 10]
    goals = tuple(replace(goal, least=sum(fewer)) if goal.what == "pages" else goal for goal in case.goals)
    plan = replace(case.plan, sizes=fewer, pause=case.plan.pause / 4)
    return replace(case, title=f"a tenth of: {case.title}", plan=plan, limit=case.limit / 4, goals=goals)


def faults(result: Result, plan: Plan) -> list[str]:
    """Why the figures do not count; empty if they do."""
    score = result.score
    counted = {
        "short gaps": score.short,
        "forbidden": score.forbidden,
        "repeated": score.repeated,
        "inside a Retry-After": score.inside,
        "at once to a host": score.at_once if score.at_once > plan.per_host else 0,
    }
    found = [f"{count:,} {what}" for what, count in counted.items() if count]
    if score.pages < plan.pages and not result.was_cut:
        found.append(f"only {score.pages:,} of {plan.pages:,} pages")
    return found


def is_disturbed(result: Result | None) -> bool:
    """Whether the machine had something else to do meanwhile."""
    return result is not None and result.waited > QUIET * result.wall


def figures(result: Result, plan: Plan, scrapy: Result | None) -> dict[str, float]:
    """The figures of a crawl that can be told; the columns of its row."""
    score = result.score
    speed = score.pages / score.span if score.span else 0.0
    found: dict[str, float] = {"pages": score.pages, "pages/s": speed}
    if scrapy is not None and scrapy.score.pages:
        found["x Scrapy"] = speed * scrapy.score.span / scrapy.score.pages
    if plan.pause:
        found["of bound"] = speed * plan.bound / plan.pages  # of one that was ended: so far
        found["least gap"] = score.gap
    found["ms CPU/page"] = result.cpu / max(score.pages, 1) * 1e3
    found["MB"] = result.peak
    found["wall s"] = result.wall
    found["in flight"] = score.in_flight
    if plan.most_per_second is not None:
        found["inside"] = score.inside
    found["site busy"] = score.busy
    found["waited"] = result.waited / result.wall
    return found


WIDTHS = {
    "pages": "10,.0f",
    "pages/s": "10,.0f",
    "MB": "8.0f",
    "wall s": "8.1f",
    "in flight": "11,.0f",
    "inside": "8,.0f",
}


def cell(name: str, figure: float) -> str:
    """One figure in its column."""
    return f"{figure:{WIDTHS.get(name, f'{len(name) + 3}.2f')}}"


def row(name: str, case: Case, result: Result, scrapy: Result | None) -> str:
    """One crawler's line of the table."""
    line = f"  {name:<10}" + "".join(cell(*each) for each in figures(result, case.plan, scrapy).items())
    remarks = []
    if result.failure:
        remarks.append(f"FAILED: {result.failure}")
    if result.was_cut:
        remarks.append(f"ended after {case.limit:.0f} s, before its {case.plan.pages:,} pages")
    if is_disturbed(result):
        remarks.append("the machine was busy")
    if wrong := faults(result, case.plan):
        remarks.append(f"does not count: {', '.join(wrong)}")
    return line + "   " + "; ".join(remarks)


def verdicts(case: Case, result: Result, scrapy: Result | None) -> list[tuple[str, bool]]:
    """What curtsy was to reach, and whether it did."""
    known = figures(result, case.plan, scrapy)
    aside = " (on a busy machine)" if is_disturbed(result) or is_disturbed(scrapy) else ""
    is_fair = not faults(result, case.plan) and not result.failure and not result.was_cut
    found = []
    for goal in case.goals:
        if goal.what not in known:
            found.append((f"{goal.what}: not known without Scrapy", True))
            continue
        figure = known[goal.what]
        if goal.least is not None:
            is_reached, wanted = figure >= goal.least, f"at least {goal.least:g}"
        else:
            is_reached, wanted = goal.most is None or figure <= goal.most, f"at most {goal.most:g}"
        word = "reached" if is_reached and is_fair else "MISSED" if is_fair else "MISSED, does not count"
        found.append(
            (f"{goal.what}: {cell(goal.what, figure).strip()}, {wanted}: {word}{aside}", is_reached and is_fair)
        )
    return found


def available(names: list[str]) -> list[str]:
    """Those of the peers that are there."""
    found = []
    for name in names:
        if shutil.which(name) if name == "wget" else find_spec(PEERS[name]):
            found.append(name)
        else:
            print(f"{name} is left out: it is not installed (make bench installs all but wget)")
    return found


def show(letter: str, case: Case, peers: list[str]) -> bool:
    """Run one case, print its table, and say whether curtsy reached what it should."""
    bound = f"; the pauses alone take {case.plan.bound:.0f} s" if case.plan.pause else ""
    print(f"\n({letter}) {case.title}{bound}. Load before: {os.getloadavg()[0]:.2f}", flush=True)
    scrapy: Result | None = None
    for number, name in enumerate([*(name for name in case.peers if name in peers), "curtsy"]):
        result = race(name, case.plan, case.in_flight, case.limit)
        if name == "scrapy":
            scrapy = result
        if number == 0:
            heads = figures(result, case.plan, scrapy)
            print(f"  {'':<10}" + "".join(f"{head:>{len(cell(head, 0.0))}}" for head in heads))
        print(row(name, case, result, scrapy), flush=True)
    told = verdicts(case, result, scrapy)
    for line, _ in told:
        print(f"  curtsy, {line}", flush=True)
    return all(is_reached for _, is_reached in told)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES), help="the cases to run, such as a,b")
    parser.add_argument("--peers", default=",".join(PEERS), help="the peers to run beside curtsy, such as scrapy")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, to see that it runs")
    given = parser.parse_args()
    chosen, peers = given.only.split(","), [name for name in given.peers.split(",") if name]
    if unknown := [*(set(chosen) - set(CASES)), *(set(peers) - set(PEERS))]:
        parser.error(f"unknown: {', '.join(unknown)}. Cases are {', '.join(CASES)}; peers are {', '.join(PEERS)}.")
    print(f"Crawls; Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    peers = available(peers)
    reached = [show(each, quick(CASES[each]) if given.quick else CASES[each], peers) for each in chosen]
    if not all(reached):
        sys.exit(1)


if __name__ == "__main__":
    main()

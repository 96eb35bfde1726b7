"""robots.txt: how long a file is parsed and a URL is matched, beside other parsers in the same run.

    python -m benchmarks.robots [PART ...] [--quick]

Peers are protego, robotspy, robotexclusionrulesparser (rerp) and urllib. Older versions of urllib's parser take `*` and
`$` for ordinary characters and do less work. A parser that takes more than 5 s for a hostile pattern is stopped.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from urllib.robotparser import RobotFileParser

from benchmarks.measure import is_installed
from benchmarks.report import Report, run
from curtsy.core.robots import parse

AGENT = "curtsy/1.0 (+https://example.org/bot)"
TOKEN = "curtsy"
SITE = "https://www.example.org"
PATIENCE = 5.0
"""Maximum seconds of a parser for one hostile pattern."""


@dataclass(frozen=True)
class Parser:
    """How a parser reads a file and answers whether a URL is allowed."""

    name: str
    read: Callable[[str], Any]
    ask: Callable[[Any, str], object]


def parsers() -> list[Parser]:
    """Return curtsy, and the peers that are installed."""
    found = [Parser("curtsy", lambda text: parse(text.encode()), lambda file, url: file.verdict(AGENT, url).allowed)]
    if is_installed("protego"):
        protego = import_module("protego").Protego
        found.append(Parser("protego", protego.parse, lambda file, url: file.can_fetch(url, TOKEN)))
    if is_installed("robots"):
        robotspy = import_module("robots").RobotsParser
        found.append(Parser("robotspy", robotspy.from_string, lambda file, url: file.can_fetch(TOKEN, url)))
    if is_installed("robotexclusionrulesparser"):
        found.append(Parser("rerp", _read_rerp, lambda file, url: file.is_allowed(TOKEN, url)))
    return [*found, Parser("urllib", _read_urllib, lambda file, url: file.can_fetch(TOKEN, url))]


def _read_rerp(text: str) -> Any:
    file = import_module("robotexclusionrulesparser").RobotExclusionRulesParser()
    file.parse(text)
    return file


def _read_urllib(text: str) -> RobotFileParser:
    file = RobotFileParser()
    file.parse(text.splitlines())
    file.modified()
    return file


def repeated(step: Callable[[], object], *, budget: float = 0.5, most: int = 20) -> list[float]:
    """Return the CPU seconds of the step, for `most` repeats or until they have taken `budget` seconds."""
    found: list[float] = []
    while len(found) < most and sum(found) < budget:
        began = time.process_time()
        step()
        found.append(time.process_time() - began)
    return found


def file_of(size: int) -> str:
    """Return a file of some groups, with comments, wildcards and a sitemap."""
    lines = [f"Sitemap: {SITE}/sitemap.xml", "User-agent: *"]
    length, number = sum(map(len, lines)) + 2, 0
    while length < size:
        number += 1
        line = f"Disallow: /section-{number % 97}/item-{number}/page"
        if number % 20 == 0:
            line = f"Disallow: /*?sort-{number}="
        if number % 33 == 0:
            line = f"Allow: /section-{number % 97}/item-{number}/page/public$"
        if number % 50 == 0:
            line = f"# part {number}"
        if number % 400 == 0:
            line = f"\nUser-agent: bot{'abcdefghij'[number // 400 % 10]}\nCrawl-delay: 5\nDisallow: /"
        lines.append(line)
        length += len(line) + 1
    return "\n".join(lines)[:size]


def rules(count: int, *, wild: int = 0) -> str:
    """Return a file of one group with `count` rules. One in `wild` has wildcards."""
    lines = ["User-agent: *"]
    for number in range(count):
        if wild and number % wild == 0:
            lines.append((f"Disallow: /*/sort-{number}/*.pdf$", f"Disallow: /*?order-{number}=")[number // wild % 2])
        else:
            lines.append(f"Disallow: /section-{number % 97}/item-{number}/")
    return "\n".join(lines)


def urls_of(paths: Iterable[str]) -> list[str]:
    return [SITE + path for path in paths]


HIT = urls_of(f"/section-{number % 97}/item-{number}/a.html" for number in range(1, 5000, 10))
MISS = urls_of(f"/section-{number % 97}/other-{number}/a.html" for number in range(1, 5000, 10))
WILD_HIT = urls_of(f"/x/sort-{number}/a.pdf" for number in range(0, 5000, 40))
SMALL = "User-agent: *\nDisallow: /admin/\nAllow: /admin/help\nDisallow: /search\nDisallow: /*.pdf$\n"
PAGES = urls_of(f"/articles/2024/{number}.html?x={number}" for number in range(200))

QUESTIONS = {
    "small file, allowed": (SMALL, PAGES, 2.0),
    "5,000 rules, denied": (rules(5000), HIT, 2.0),
    "5,000 rules, allowed": (rules(5000), MISS, 2.0),
    "5,000 rules, 5 % wildcards, denied": (rules(5000, wild=20), HIT, 5.0),
    "5,000 rules, 5 % wildcards, denied by a wildcard": (rules(5000, wild=20), WILD_HIT, 5.0),
    "5,000 rules, 5 % wildcards, allowed": (rules(5000, wild=20), MISS, 5.0),
}
"""Files, URLs to match, and the goal in microseconds."""

HOSTILE = {
    "4,000 stars, 8 KiB": ("User-agent: *\nDisallow: /" + "*a" * 4000 + "*b$\n", "/" + "a" * 8192),
    "500 KiB of stars, 8 KiB": (
        "User-agent: *\n" + "".join(f"Disallow: /{'*a' * number}*ab\n" for number in range(1, 700)),
        "/" + "a" * 8192,
    ),
    "500 KiB of near misses, 8 KiB": (
        "User-agent: *\n" + "".join(f"Disallow: *{'a' * number}b{'a' * number}\n" for number in range(1, 690)),
        "/" + "a" * 8192,
    ),
}


def parsing(report: Report) -> None:
    """Report the time to parse a file."""
    for size in (20_000,) if report.is_quick else (20_000, 500_000):
        report.title(f"parse {size // 1000} KB")
        text = file_of(size)
        for parser in parsers():
            goal = 14 if parser.name == "curtsy" and size == 500_000 else None
            report.add(parser.name, [each * 1e3 for each in repeated(partial(parser.read, text))], "ms", at_most=goal)


def matching(report: Report) -> None:
    """Report the time to match one URL."""
    for name, (text, urls, goal) in QUESTIONS.items():
        report.title(f"match, {name}")
        for parser in parsers():
            file, some = parser.read(text), urls[:20] if report.is_quick else urls
            parser.ask(file, some[0])
            few = some if repeated(partial(parser.ask, file, some[0]), most=1)[0] < 1e-3 else some[:20]

            def ask(parser: Parser = parser, file: Any = file, few: list[str] = few) -> None:
                for url in few:
                    parser.ask(file, url)

            found = [each / len(few) * 1e6 for each in repeated(ask)]
            report.add(parser.name, found, "µs", at_most=goal if parser.name == "curtsy" else None)


def _hostile(parser: Parser, text: str, url: str, sender: Any) -> None:
    sender.send(repeated(lambda: parser.ask(parser.read(text), url), budget=PATIENCE / 4, most=5))


def hostile(report: Report) -> None:
    """Report the time to parse and match hostile patterns, each in a process that can be stopped."""
    context = multiprocessing.get_context("fork")
    for name, (text, path) in HOSTILE.items():
        report.title(f"hostile, {name}")
        for parser in parsers()[: 1 if report.is_quick else None]:
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_hostile, args=(parser, text, SITE + path, sender))
            process.start()
            found = receiver.recv() if receiver.poll(PATIENCE) else [PATIENCE]
            process.kill()
            process.join()
            goal = 250 if parser.name == "curtsy" else None
            report.add(parser.name, [each * 1e3 for each in found], "ms", at_most=goal)


if __name__ == "__main__":
    run("robots", __doc__, {"parsing": parsing, "matching": matching, "hostile": hostile})

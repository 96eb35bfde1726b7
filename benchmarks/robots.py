"""robots.txt: how fast files are read and URLs are judged, beside other parsers in the same run.

    python benchmarks/robots.py

Each figure is the least of several repeats. Peers that are not installed are left out; a peer that needs more than
some seconds for a hostile pattern is stopped.
"""

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.robotparser import RobotFileParser

from curtsy.core.robots import parse

AGENT = "curtsy/1.0 (+https://example.org/bot)"
TOKEN = "curtsy"
SITE = "https://www.example.org"
PATIENCE = 5.0
"""Seconds that a peer has for one hostile pattern."""


@dataclass(frozen=True)
class Parser:
    """One way to read a file and to ask about a URL."""

    name: str
    read: Callable[[str], Any]
    ask: Callable[[Any, str], object]


def parsers() -> list[Parser]:
    """List curtsy, and the peers that are installed."""
    found = [Parser("curtsy", lambda text: parse(text.encode()), lambda file, url: file.verdict(AGENT, url).allowed)]
    try:
        from protego import Protego

        found.append(Parser("protego", Protego.parse, lambda file, url: file.can_fetch(url, TOKEN)))
    except ImportError:
        pass
    try:
        here = str(Path(__file__).parent)
        sys.path[:] = [place for place in sys.path if place != here]  # this script has the name of the peer's package
        from robots import RobotsParser

        found.append(Parser("robotspy", RobotsParser.from_string, lambda file, url: file.can_fetch(TOKEN, url)))
    except ImportError:
        pass
    try:
        from robotexclusionrulesparser import RobotExclusionRulesParser

        def read(text: str) -> Any:
            file = RobotExclusionRulesParser()
            file.parse(text)
            return file

        found.append(Parser("rerp", read, lambda file, url: file.is_allowed(TOKEN, url)))
    except ImportError:
        pass

    def read_lines(text: str) -> Any:
        file = RobotFileParser()
        file.parse(text.splitlines())
        file.modified()
        return file

    found.append(Parser("urllib", read_lines, lambda file, url: file.can_fetch(TOKEN, url)))
    return found


def least(step: Callable[[], object], *, budget: float = 0.6, repeats: int = 20) -> float:
    """Give the least seconds that the step took, in so many repeats or until the budget is spent."""
    best, spent, done = float("inf"), 0.0, 0
    while done < repeats and spent < budget:
        started = time.perf_counter()
        step()
        took = time.perf_counter() - started
        best, spent, done = min(best, took), spent + took, done + 1
    return best


def per_question(parser: Parser, file: Any, urls: list[str]) -> float:
    """Give the seconds per URL, over all of them: the mean of portions, each the least of its repeats.

    A portion takes about a millisecond, so that it fits between two turns of other processes.
    """

    def ask(some: list[str]) -> None:
        ask_one = parser.ask
        for url in some:
            ask_one(file, url)

    ask(urls[:20])
    size = max(1, min(len(urls), int(1e-3 / least(partial(ask, urls[:1]), repeats=3))))
    portions = [urls[at : at + size] for at in range(0, len(urls), size)][:20]
    return sum(least(partial(ask, some), budget=0.05) for some in portions) / sum(map(len, portions))


# --- files -----------------------------------------------------------------------------------------------------------


def of_size(size: int) -> str:
    """Write a file as sites have it: several groups, comments, a few wildcards, a sitemap."""
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
    """Write a file of one group with so many rules, every so-manieth with wildcards."""
    lines = ["User-agent: *"]
    for number in range(count):
        if wild and number % wild == 0:
            lines.append((f"Disallow: /*/sort-{number}/*.pdf$", f"Disallow: /*?order-{number}=")[number // wild % 2])
        else:
            lines.append(f"Disallow: /section-{number % 97}/item-{number}/")
    return "\n".join(lines)


SMALL = """\
User-agent: *
Disallow: /admin/
Allow: /admin/help
Disallow: /search
Disallow: /tmp/
Disallow: /*.pdf$

User-agent: other
Disallow: /
"""


def urls_of(paths: Iterable[str]) -> list[str]:
    return [SITE + path for path in paths]


QUESTIONS: list[tuple[str, str, list[str]]] = [
    ("small file, hit", SMALL, urls_of(f"/admin/page-{n}.html" for n in range(200))),
    ("small file, miss", SMALL, urls_of(f"/articles/2024/{n}.html?x={n}" for n in range(200))),
    ("5,000 prefixes, hit", rules(5000), urls_of(f"/section-{n % 97}/item-{n}/a.html" for n in range(0, 5000, 10))),
    ("5,000 prefixes, miss", rules(5000), urls_of(f"/section-{n % 97}/other-{n}/a.html" for n in range(0, 5000, 10))),
    (
        "5,000, 5 % wild, hit",
        rules(5000, wild=20),
        urls_of(f"/section-{n % 97}/item-{n}/a.html" for n in range(1, 5000, 10)),
    ),
    (
        "5,000, 5 % wild, wild hit",
        rules(5000, wild=20),
        urls_of(f"/x/sort-{n}/a.pdf" for n in range(0, 5000, 40)),
    ),
    (
        "5,000, 5 % wild, miss",
        rules(5000, wild=20),
        urls_of(f"/section-{n % 97}/other-{n}/a.html" for n in range(1, 5000, 10)),
    ),
]

HOSTILE: list[tuple[str, str, str]] = [
    ("25 stars, 60 octets", "User-agent: *\nDisallow: /" + "*a" * 25 + "*b$\n", "/" + "a" * 60),
    ("4,000 stars, 8 KiB", "User-agent: *\nDisallow: /" + "*a" * 4000 + "*b$\n", "/" + "a" * 8192),
    (
        "500 KiB of stars, 8 KiB",
        "User-agent: *\n" + "".join(f"Disallow: /{'*a' * n}*ab\n" for n in range(1, 700)),
        "/" + "a" * 8192,
    ),
    (
        "500 KiB of near misses, 8 KiB",
        "User-agent: *\n" + "".join(f"Disallow: *{'a' * n}b{'a' * n}\n" for n in range(1, 690)),
        "/" + "a" * 8192,
    ),
]


# --- hostile patterns ------------------------------------------------------------------------------------------------


def _hostile(parser: Parser, text: str, path: str, told: Any) -> None:
    told.send(least(lambda: parser.ask(parser.read(text), SITE + path), budget=PATIENCE / 4, repeats=5))


def hostile(parser: Parser, text: str, path: str) -> float | None:
    """Give the seconds from the file to the answer, in a process of its own; None when patience ended."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_hostile, args=(parser, text, path, sender))
    process.start()
    took: float | None = receiver.recv() if receiver.poll(PATIENCE) else None
    process.kill()
    process.join()
    return took


# --- the table -------------------------------------------------------------------------------------------------------


def shown(seconds: float | None) -> str:
    if seconds is None:
        return f"> {PATIENCE:.0f} s"
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e6:.2g} µs"


def row(name: str, figures: list[float | None]) -> None:
    ours = figures[0]
    cells = [shown(ours)]
    for figure in figures[1:]:
        ratio = "" if figure is None or not ours else f" ({figure / ours:.3g}×)"
        cells.append(shown(figure) + ratio)
    print(f"{name:34}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


def main() -> None:
    """Measure, print the table, and say which figures were reached."""
    peers = parsers()
    print(f"{'':34}" + "".join(f"{parser.name:>20}" for parser in peers))
    figures: dict[str, list[float | None]] = {}
    for name, size in (("parse 1 KB", 1000), ("parse 20 KB", 20_000), ("parse 500 KB", 500_000)):
        text = of_size(size)
        figures[name] = [least(partial(parser.read, text)) for parser in peers]
        row(name, figures[name])
        first = [least(partial(_first, parser, text)) for parser in peers]
        row(f"{name}, ask once", [*first])
    for name, text, urls in QUESTIONS:
        figures[name] = [per_question(parser, parser.read(text), urls) for parser in peers]
        row(f"match {name}", figures[name])
    for name, text, path in HOSTILE:
        figures[name] = [hostile(parser, text, path) for parser in peers]
        row(f"hostile {name}", figures[name])

    print("\nOlder versions of urllib's parser take * and $ for ordinary characters, and do less work for it.")
    print("\nTo reach:")
    names = [parser.name for parser in peers]
    parsed = figures["parse 500 KB"]
    reach("parse 500 KB", parsed[0], 25e-3)
    if "protego" in names:
        ratio = (parsed[names.index("protego")] or 0.0) / (parsed[0] or 1.0)
        print(
            f"  {'reached' if ratio >= 4 else 'MISSED '}  parse 500 KB: {ratio:.1f} times as fast as protego; wanted 4"
        )
    for name, _, _ in QUESTIONS:
        reach(f"match {name}", figures[name][0], 30e-6 if "wild" in name else 2.5e-6 if "5,000" in name else 1.8e-6)
    for name, _, _ in HOSTILE:
        reach(f"hostile {name}", figures[name][0], 250e-3)


def _first(parser: Parser, text: str) -> None:
    parser.ask(parser.read(text), f"{SITE}/section-1/none")


def reach(name: str, figure: float | None, wanted: float) -> None:
    reached = figure is not None and figure <= wanted
    print(f"  {'reached' if reached else 'MISSED '}  {name}: {shown(figure)}; wanted {shown(wanted)}")


if __name__ == "__main__":
    main()

"""The frontier: what a million waiting URLs cost, and how fast they come and go. And the links that come to it.

    python benchmarks/frontier.py

A million URLs of about 60 characters over 1,000 and over 50,000 hosts, added by the page: 20 links, of which 15 stay on
their host. Each case runs in a process of its own, so that memory is its own: `bytes of memory` is what the process has
grown by when all are added, the file's pages that SQLite keeps included, and `peak` is its most ever, Python and all.
Of the shared frontier, memory is the server's: all of it, and the part that remembers what was ever seen. Figures to
reach are for a machine that does nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from curtsy.core.message import Url, parse_url
from curtsy.crawling.extract.links import KnownHrefs
from curtsy.crawling.extract.page import extract
from curtsy.crawling.frontier.local import LocalFrontier
from curtsy.crawling.frontier.protocol import Claimed, Done, Ending, Found

URLS = 1_000_000
PAGE = 20
missed = 0


def show(what: str, figure: float, unit: str, most: float | None = None, least: float | None = None) -> None:
    global missed
    verdict = ""
    if most is not None:
        verdict = f"at most {most:,g}: " + ("reached" if figure <= most else "MISSED")
    if least is not None:
        verdict = f"at least {least:,g}: " + ("reached" if figure >= least else "MISSED")
    missed += verdict.endswith("MISSED")
    print(f"  {what:<52} {figure:>11,.1f} {unit:<10} {verdict}", flush=True)


# --- One case, in a process of its own ------------------------------------------------------------------------------


def memory(field: str) -> int:
    """Bytes of this process's memory: VmRSS for now, VmHWM for the most ever."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    return 0


def pages(hosts: int) -> Iterator[tuple[str, list[str]]]:
    """Pages, each with the links on it: every host has as many, in no order."""
    dice = random.Random(7)
    order = [number % hosts for number in range(URLS // PAGE)]
    dice.shuffle(order)
    for number, host in enumerate(order):
        places = [host] * 15 + [dice.randrange(hosts) for _ in range(5)]
        links = [
            f"https://www.host{at}.example.org/2026/11/item-{number}-{each:03}.html" for each, at in enumerate(places)
        ]
        yield f"https://www.host{host}.example.org/2026/list-{number}", links


def size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def opened(kind: str, folder: Path) -> LocalFrontier:
    return LocalFrontier(None if kind == "memory" else folder / "frontier.sqlite")


def many(kind: str, hosts: int, folder: Path) -> dict[str, float]:
    """A million URLs: added, then handed out."""
    return asyncio.run(fill_and_drain(kind, hosts, folder))


async def end(frontier: LocalFrontier, claims: list[Claimed]) -> None:
    await frontier.conclude([Ending(claimed, Done()) for claimed in claims])


async def fill_and_drain(kind: str, hosts: int, folder: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    frontier = opened(kind, folder)
    gc.collect()
    before, length, spent = memory("VmRSS"), 0, 0.0
    for parent, links in pages(hosts):
        length += sum(map(len, links))
        start = time.perf_counter()
        await frontier.add(Found(links, depth=1, parent=parent))
        spent += time.perf_counter() - start
    gc.collect()
    found["length"] = length / URLS
    found["added"] = URLS / spent
    found["memory"] = (memory("VmRSS") - before) / URLS
    found["disk"] = size(folder) / URLS
    count = 0
    start = time.perf_counter()
    claims = []
    while got := await frontier.claim(100):
        claims += got
        count += len(got)
    found["claimed"] = count / (time.perf_counter() - start)
    start = time.perf_counter()
    for first in range(0, len(claims), 100):
        await end(frontier, claims[first : first + 100])
    found["done"] = count / (time.perf_counter() - start)
    claims.clear()
    start, count = time.perf_counter(), 0
    while count < 50_000:
        got = await frontier.claim(16)
        await end(frontier, got)
        count += len(got)
    found["both"] = count / (time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(5000):
        await end(frontier, await frontier.claim())
    found["single"] = 5000 / (time.perf_counter() - start)
    await frontier.close()
    found["peak"] = memory("VmHWM") / 2**20
    if kind == "durable":
        start = time.perf_counter()
        await opened(kind, folder).close()
        found["opened"] = time.perf_counter() - start
    return found


def skewed(kind: str, hosts: int, folder: Path) -> dict[str, float]:
    """F61: how long small hosts wait for their turn, in claims, beside one that has a million URLs."""
    return asyncio.run(turns_beside(kind, hosts, folder))


async def turns_beside(kind: str, hosts: int, folder: Path) -> dict[str, float]:
    frontier = opened(kind, folder)
    for first in range(0, hosts, 10_000):
        numbers = range(first, min(first + 10_000, hosts))
        await frontier.add(Found([f"https://big.example.org/2026/articles/item-{each:07}.html" for each in numbers]))
    small = [f"https://www.host{number}.example.org/{each}" for number in range(10_000) for each in range(3)]
    await frontier.add(Found(small))
    turns = []
    for number in range(10_001):
        got = await frontier.claim()
        if got and got[0].host != "big.example.org":
            turns.append(number)
    await frontier.close()
    return {"turn": sum(turns) / len(turns), "peak": memory("VmHWM") / 2**20}


@contextlib.contextmanager
def server(folder: Path) -> Iterator[tuple[str, Any]]:
    """A Redis server of its own, and a client to look into it."""
    import redis

    path = folder / "redis.sock"
    words = ["redis-server", "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        ends = time.monotonic() + 10
        while not path.exists() and time.monotonic() < ends:
            time.sleep(0.02)
        with redis.Redis(unix_socket_path=str(path), socket_timeout=60) as client:
            yield f"unix://{path}", client
    finally:
        process.terminate()
        process.wait()


def shared(kind: str, hosts: int, folder: Path) -> dict[str, float]:
    """A million URLs on a Redis server: added, then handed out; one worker."""
    with server(folder) as (url, client):
        return asyncio.run(share(url, client, hosts))


async def share(url: str, client: Any, hosts: int) -> dict[str, float]:
    from curtsy.crawling.frontier.redis import RedisFrontier

    found: dict[str, float] = {}
    frontier = RedisFrontier(url, "bench", lease=3600.0, timeout=30.0)
    await frontier.check()
    before, length, spent = client.info("memory")["used_memory"], 0, 0.0
    for parent, links in pages(hosts):
        length += sum(map(len, links))
        start = time.perf_counter()
        await frontier.add(Found(links, depth=1, parent=parent))
        spent += time.perf_counter() - start
    found["length"] = length / URLS
    found["added"] = URLS / spent
    found["memory"] = (client.info("memory")["used_memory"] - before) / URLS
    found["seen"] = sum(client.memory_usage(key) for key in client.scan_iter("*:seen:*", count=10_000)) / URLS
    claims: list[Claimed] = []
    start = time.perf_counter()
    while len(claims) < 50_000 and (got := await frontier.claim(100)):
        claims += got
    found["claimed"] = len(claims) / (time.perf_counter() - start)
    start = time.perf_counter()
    for first in range(0, len(claims), 100):
        await frontier.conclude([Ending(each, Done()) for each in claims[first : first + 100]])
    found["done"] = len(claims) / (time.perf_counter() - start)
    start, count = time.perf_counter(), 0
    while count < 20_000:
        got = await frontier.claim(16)
        await frontier.conclude([Ending(each, Done()) for each in got])
        count += len(got)
    found["both"] = count / (time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(2000):
        got = await frontier.claim()
        await frontier.conclude([Ending(each, Done()) for each in got])
    found["single"] = 2000 / (time.perf_counter() - start)
    await frontier.close()
    return found


CASES: dict[str, Callable[[str, int, Path], dict[str, float]]] = {"many": many, "shared": shared, "skewed": skewed}


def case(name: str, kind: str, hosts: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, name, kind, str(hosts), folder]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


# --- Links ----------------------------------------------------------------------------------------------------------


def page_of_links(attributes: str) -> bytes:
    dice = random.Random(1)
    words = ["".join(dice.choices("etaoinshrdlu", k=dice.randint(2, 9))) for _ in range(500)]
    lines = [
        f'<p class="c{number % 9}">{" ".join(dice.choices(words, k=20))} '
        f'<a {attributes}href="/2026/{number}/item-{dice.randrange(10**6)}.html">{dice.choice(words)}</a></p>\n'
        for number in range(100)
    ]
    return ("<!doctype html><title>A page</title><meta charset=utf-8><body>" + "".join(lines)).encode()


def least(work: Callable[[], object], count: int = 100, repeats: int = 15) -> float:
    """Milliseconds of CPU a call, in the best of some runs."""
    runs = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(count):
            work()
        runs.append(time.process_time() - start)
    return min(runs) / count * 1e3


def links() -> None:
    url = parse_url("https://www.example.org/2026/index.html")
    assert isinstance(url, Url)
    plain, adorned = page_of_links(""), page_of_links('class="link" title="some words" target=_blank ')
    print(f"Links of a page ({len(plain) / 1000:.0f} KB, 100 links)")
    show("read, joined, canonical", least(lambda: extract(plain, "text/html", url)), "ms", most=0.4)
    show("the same, five attributes each", least(lambda: extract(adorned, "text/html", url)), "ms")
    known = KnownHrefs()
    found = extract(plain, "text/html", url)
    known.learn(found.base.origin, found.fresh)
    show("all links known already", least(lambda: extract(plain, "text/html", url, known=known)), "ms")


def main() -> None:
    for hosts in (1_000, 50_000):
        for kind in ("durable", "memory"):
            found = case("many", kind, hosts)
            print(f"A million URLs of {found['length']:.0f} characters over {hosts:,} hosts, {kind}")
            is_durable = kind == "durable"
            show("memory", found["memory"], "bytes/URL", most=24 if is_durable else None)
            show("peak of the process", found["peak"], "MB", most=150 if is_durable else None)
            if is_durable:
                show("disk", found["disk"], "bytes/URL", most=120)
                show("opened again, and looked through", found["opened"], "s")
            show("added, 20 at a time", found["added"], "URLs/s", least=10_000 if is_durable else None)
            wanted = 20_000 if is_durable and hosts == 50_000 else None
            show("handed out, 100 at a time", found["claimed"], "URLs/s", least=wanted)
            show("done, 100 at a time", found["done"], "URLs/s")
            show("handed out and done, 16 at a time", found["both"], "URLs/s")
            show("handed out and done, one by one", found["single"], "URLs/s")
    if shutil.which("redis-server") is None:
        print("Shared: redis-server is not installed, left out")
    else:
        for hosts in (1_000, 50_000):
            found = case("shared", "redis", hosts)
            print(f"A million URLs of {found['length']:.0f} characters over {hosts:,} hosts, shared, one worker")
            show("the server's memory", found["memory"], "bytes/URL")
            show("what was ever seen", found["seen"], "bytes/URL", most=10)
            show("added, 20 at a time", found["added"], "URLs/s")
            show("handed out, 100 at a time", found["claimed"], "URLs/s")
            show("done, 100 at a time", found["done"], "URLs/s")
            show("handed out and done, 16 at a time", found["both"], "URLs/s")
            show("handed out and done, one by one", found["single"], "URLs/s")
    alone, beside = case("skewed", "durable", 0), case("skewed", "durable", URLS)
    print("10,000 small hosts, durable (F61)")
    show("mean turn, alone", alone["turn"], "claims")
    show("mean turn, beside a host of a million URLs", beside["turn"], "claims", most=alone["turn"] * 1.05)
    show("peak of the process", beside["peak"], "MB", most=150)
    links()
    if missed:
        sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(CASES[sys.argv[1]](sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))))
    else:
        main()

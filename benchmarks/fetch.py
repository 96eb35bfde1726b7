"""What politeness costs: the CPU of a fetch over bare aiohttp, and of a cache hit over other caches, in one run.

    python benchmarks/fetch.py [--quick]

A site in a process of its own answers with 20 KB pages, real ones: what `pydoc` writes of the standard library. curtsy
has all manners on (robots.txt, gate, budget, breaker, statistics) and its pauses off; the store is memory, the cache is
on where it is measured. Figures are CPU time of the client's process, with all its threads, until what was fetched is
written. Whoever is compared takes turns in short rounds: what else the machine does is then the same for all of them.
Shown is the best round of each, and as the ratio the median of those of the single rounds. (The best of one over the
best of another would not do: to wake the site takes longer in one round than in the next, by a tenth of it all.)

The cost of the cache (every page stored; every page still good, 304) is over our own client without one, fetching the
same pages. Answered by 304 are once more pages than are held in memory, so that they are read from the disk and
checked, and once fewer. They are kept where TMPDIR says: a disk's file system has a share in the figures for files. How
large it is shows beside them: what it takes at least to fetch a page, to hash it and to write its two files by hand; or
to compress it, to hash that and to write it to a SQLite file, 64 pages at a time.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import hashlib
import multiprocessing
import os
import pydoc
import sqlite3
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp
import zstandard

from curtsy.cache import packed_file
from curtsy.cache.disk import DiskCache
from curtsy.cache.keys import PageCache
from curtsy.cache.packed import DELAY, PackedCache
from curtsy.client import AsyncClient
from curtsy.core.result import FetchResult
from curtsy.stores.memory import MemoryStore

SIZE = 20_000
MODULES = ("asyncio.events", "email.message", "http.client", "json", "logging", "socket", "ssl", "typing")
AGENT = "CurtsyBench/1.0 (+https://curtsy.example/)"
missed: list[str] = []


META = b"m" * 900
"""As long as what stands beside a body."""


@functools.cache
def pages() -> list[bytes]:
    """Pages as the web has them: how long it takes to compress one depends on what stands in it."""
    html = pydoc.HTMLDoc()
    return [html.page(name, html.docmodule(import_module(name))).encode()[:SIZE] for name in MODULES]


class Site(asyncio.Protocol):
    """A connection to the site: /robots.txt, /page/N (not kept), /kept/N (fresh for an hour), /tagged/N (an ETag)."""

    def connection_made(self, transport: Any) -> None:
        """Somebody comes."""
        self._transport, self._asked = transport, b""

    def data_received(self, data: bytes) -> None:
        """Somebody asks."""
        self._asked += data
        while b"\r\n\r\n" in self._asked:
            head, _, self._asked = self._asked.partition(b"\r\n\r\n")
            self._transport.write(answer_to(head))


def answer_to(head: bytes) -> bytes:
    """What the site says."""
    path = head.split(b" ", 2)[1]
    body = pages()[zlib.crc32(path) % len(MODULES)]
    fields, status = b"Content-Type: text/html\r\n", b"200 OK"
    if path == b"/robots.txt":
        body = b"User-agent: *\nDisallow: /private/\n"
    elif path.startswith(b"/kept/"):
        fields += b"Cache-Control: max-age=3600\r\n"
    elif path.startswith(b"/tagged/"):
        fields += b'ETag: "1"\r\nCache-Control: no-cache\r\n'
        if b"if-none-match" in head.lower():
            status, body = b"304 Not Modified", b""
    else:
        fields += b"Cache-Control: no-store\r\n"
    length = b"" if status.startswith(b"304") else b"Content-Length: %d\r\n" % len(body)
    return b"HTTP/1.1 %b\r\n%b%b\r\n%b" % (status, fields, length, body)


def serve(ready: Any) -> None:
    """The site, in a process of its own."""

    pages()

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Site, "127.0.0.1", 0)
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def nothing() -> None:
    """What is left to do for those who leave nothing."""


async def cost(
    fetch: Callable[[str], Awaitable[object]], urls: list[str], finish: Callable[[], None] = nothing
) -> float:
    """Microseconds of CPU a fetch, 16 at a time; what is left to do in the end has its share in them."""
    waiting = iter(urls)

    async def worker() -> None:
        for url in waiting:
            await fetch(url)

    began = time.process_time()
    await asyncio.gather(*(worker() for _ in range(16)))
    finish()
    return (time.process_time() - began) / len(urls) * 1e6


Fetch = Callable[[str], Awaitable[FetchResult]]


class FilesByHand:
    """Fetches a page and writes its files, and nothing else: the body aside and renamed, what vouches for it, and the
    hash in that."""

    def __init__(self, folder: Path, fetch: Fetch) -> None:
        folder.mkdir()
        self._folder = str(folder)
        self._fetch = fetch

    async def fetch(self, url: str) -> None:
        """Fetch a page without a cache, and write the two files."""
        body = (await self._fetch(url)).body
        stem = f"{self._folder}/{hashlib.sha256(url.encode()).hexdigest()[:16]}"
        hashlib.sha256(body).hexdigest()
        self._write(stem + ".part", body)
        os.rename(stem + ".part", stem + ".html")
        self._write(stem + ".meta.json", META)

    def _write(self, path: str, data: bytes) -> None:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(number, data)
        os.close(number)


class RowsByHand:
    """Fetches a page and writes it to a SQLite file, and nothing else: the body compressed, what vouches for it, and
    where it is, by the hash of its URL."""

    def __init__(self, path: Path, fetch: Fetch) -> None:
        self._fetch = fetch
        self._compress = zstandard.ZstdCompressor(level=packed_file.LEVEL).compress
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
        self._db.execute("CREATE TABLE pages (id INTEGER PRIMARY KEY, place INTEGER)")
        self._db.execute("CREATE TABLE contents (place INTEGER PRIMARY KEY, meta BLOB, body BLOB)")
        self._count = 0
        self._contents: list[tuple[int, bytes, bytes]] = []
        self._places: list[tuple[int, int]] = []

    async def fetch(self, url: str) -> None:
        """Fetch a page without a cache, and write it with 63 others."""
        body = self._compress((await self._fetch(url)).body)
        self._count += 1
        self._contents.append((self._count, META[:400] + hashlib.sha256(body).digest(), body))
        self._places.append((int(hashlib.sha256(url.encode()).hexdigest()[:15], 16), self._count))
        if len(self._places) >= 64:
            self.flush()

    def flush(self) -> None:
        """Write those that wait."""
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO contents VALUES (?, ?, ?)", self._contents)
        self._db.executemany("INSERT INTO pages VALUES (?, ?)", sorted(self._places))
        self._db.execute("COMMIT")
        self._contents, self._places = [], []


Contest = dict[str, tuple[Callable[[str], Awaitable[object]], Callable[[int], list[str]]]]
"""Those who are compared: how each fetches, and what in which round."""


Costs = dict[str, list[float]]
"""What each round cost each of them."""


async def contest(those: Contest, rounds: int, finish: Callable[[], None] = nothing) -> Costs:
    """Let them take turns; none leaves anything to do in another's."""
    found: Costs = {name: [] for name in those}
    for number in range(rounds):
        for name, (fetch, urls) in those.items():
            found[name].append(await cost(fetch, urls(number), finish))
    return found


def ratio_of(costs: list[float], base: list[float]) -> float:
    """How many times as much the one costs as the other, round by round: the middle one of them."""
    return sorted(one / other for one, other in zip(costs, base, strict=True))[len(costs) // 2]


def client(cache: PageCache | bool, mode: Any = None) -> AsyncClient:
    """curtsy with all manners and no pauses."""
    return AsyncClient(
        preset="own", store=MemoryStore(), cache=cache, cache_mode=mode, user_agent=AGENT, allow_private=True
    )


def say(what: str, costs: list[float], base: list[float], most: float, over: str) -> None:
    ratio = ratio_of(costs, base)
    verdict = "reached" if ratio <= most else "MISSED"
    if ratio > most:
        missed.append(what)
    print(f"  {what:<48} {min(costs):>7,.1f} µs   {ratio:>5.2f} x {over}   at most {most:g}: {verdict}", flush=True)


async def fetches(site: str, count: int, rounds: int) -> None:
    """A fetch over bare aiohttp, and over ours without a cache: every page kept, every page still good."""
    print("\nCPU a fetch")

    def urls(kind: str, number: int) -> list[str]:
        return [f"{site}/{kind}/{number}-{each}" for each in range(count)]

    def plain(number: int) -> list[str]:
        return urls("page", 0)

    def new(whose: str) -> Callable[[int], list[str]]:
        # Each has its own, for a URL that was seen before is parsed already.
        return lambda number: urls(f"kept/{whose}", number)

    def known(number: int) -> list[str]:
        return urls("tagged", number % 4)

    def few(number: int) -> list[str]:
        return urls("tagged", 0)

    with tempfile.TemporaryDirectory() as folder:
        pack = PackedCache(Path(folder, "pages.sqlite"), delay=DELAY)
        old_pack = PackedCache(Path(folder, "tagged.sqlite"), delay=DELAY)
        few_pack = PackedCache(Path(folder, "few.sqlite"), delay=DELAY)

        def finish() -> None:
            by_hand.flush()
            pack.flush()
            old_pack.flush()
            few_pack.flush()

        async with (
            aiohttp.ClientSession(headers={"User-Agent": AGENT}) as session,
            client(False) as polite,
            client(DiskCache(Path(folder, "files"))) as files,
            client(pack) as packed,
            client(DiskCache(Path(folder, "tagged")), "revalidate") as old_files,
            client(old_pack, "revalidate") as old_packed,
            client(DiskCache(Path(folder, "few")), "revalidate") as few_files,
            client(few_pack, "revalidate") as few_packed,
        ):

            async def bare(url: str) -> object:
                async with session.get(url) as answer:
                    return await answer.read()

            by_hand = RowsByHand(Path(folder, "hand.sqlite"), polite.fetch)
            for number in range(4):
                for each in (old_files, old_packed):
                    await cost(each.fetch, known(number), finish)
                for each in (few_files, few_packed):
                    await cost(each.fetch, few(number), finish)
            found = await contest(
                {
                    "bare aiohttp": (bare, plain),
                    "no cache": (polite.fetch, plain),
                    "new, no cache": (polite.fetch, new("none")),
                    "new, files": (files.fetch, new("files")),
                    "new, packed": (packed.fetch, new("packed")),
                    "files by hand": (FilesByHand(Path(folder, "hand"), polite.fetch).fetch, new("hand/files")),
                    "packed by hand": (by_hand.fetch, new("hand/packed")),
                    "304, no cache": (polite.fetch, known),
                    "304, files": (old_files.fetch, known),
                    "304, packed": (old_packed.fetch, known),
                    "304 from memory, files": (few_files.fetch, few),
                    "304 from memory, packed": (few_packed.fetch, few),
                },
                rounds,
                finish,
            )
    base = found["bare aiohttp"]
    print(f"  {'bare aiohttp':<48} {min(base):>7,.1f} µs")
    say("curtsy, all manners, no cache", found["no cache"], base, 1.5, "bare aiohttp")
    print(f"  {'no cache, pages never seen before':<48} {min(found['new, no cache']):>7,.1f} µs")
    print(f"  {'no cache, pages seen before':<48} {min(found['304, no cache']):>7,.1f} µs")
    for name in ("files", "packed"):
        say(f"every page stored ({name})", found[f"new, {name}"], found["new, no cache"], 1.6, "no cache")
        hand = found[f"{name} by hand"]
        ratio = ratio_of(hand, found["new, no cache"])
        print(f"  {f'every page written by hand ({name})':<48} {min(hand):>7,.1f} µs   {ratio:>5.2f} x no cache")
        for kind in ("304", "304 from memory"):
            say(
                f"every page answered by {kind} ({name})",
                found[f"{kind}, {name}"],
                found["304, no cache"],
                1.4,
                "no cache",
            )


async def hits(site: str, rounds: int) -> None:
    """A fresh hit, beside other caches; the best of each one's stores, be it on a disk or in memory."""
    print("\nCPU of a fresh hit")
    urls = [f"{site}/kept/{number}" for number in range(20)]
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            those: Contest = {}
            caches: dict[str, PageCache] = {
                "curtsy, files": DiskCache(Path(folder, "files")),
                "curtsy, packed": PackedCache(Path(folder, "pages.sqlite"), delay=DELAY),
            }
            for name, cache in caches.items():
                polite = await stack.enter_async_context(client(cache))
                those[name] = polite.fetch, lambda number: urls * 25
            for name, open_peer in PEERS.items():
                try:
                    for store, get in (await open_peer(stack, Path(folder))).items():
                        those[f"{name}, {store}"] = get, lambda number: urls * 5
                except ImportError as error:
                    print(f"  {name}: left out, {error.name} is not installed")
            for fetch, _ in those.values():
                await cost(fetch, urls)
            found = await contest(those, rounds)
    for name, costs in found.items():
        print(f"  {name:<48} {min(costs):>7,.1f} µs")
    theirs = [costs for name, costs in found.items() if not name.startswith("curtsy")]
    if theirs:
        for name in caches:
            ratio = min(ratio_of(costs, found[name]) for costs in theirs)
            verdict = "reached" if ratio >= 4 else "MISSED"
            if ratio < 4:
                missed.append(f"fresh hit, {name}")
            print(f"  {name} is {ratio:.1f} times as fast as the fastest peer; at least 4: {verdict}")


Getters = dict[str, Callable[[str], Awaitable[object]]]


async def _hishel(stack: AsyncExitStack, folder: Path) -> Getters:
    hishel = import_module("hishel")
    httpx = import_module("hishel.httpx")
    storage = hishel.AsyncSqliteStorage(database_path=str(folder / "hishel.db"))
    session = await stack.enter_async_context(httpx.AsyncCacheClient(storage=storage))
    return {"SQLite": session.get}


async def _aiohttp_client_cache(stack: AsyncExitStack, folder: Path) -> Getters:
    library = import_module("aiohttp_client_cache")
    found: Getters = {}
    backends = {"SQLite": library.SQLiteBackend(str(folder / "acc.sqlite")), "memory": library.CacheBackend()}
    for name, backend in backends.items():
        session = await stack.enter_async_context(library.CachedSession(cache=backend))

        async def get(url: str, session: Any = session) -> object:
            async with session.get(url) as answer:
                return await answer.read()

        found[name] = get
    return found


async def _requests_cache(stack: AsyncExitStack, folder: Path) -> Getters:
    library = import_module("requests_cache")
    found: Getters = {}
    for backend in ("sqlite", "filesystem", "memory"):
        session = stack.enter_context(library.CachedSession(str(folder / f"rc-{backend}"), backend=backend))

        async def get(url: str, session: Any = session) -> object:
            return session.get(url).content

        found[backend] = get
    return found


PEERS: dict[str, Callable[[AsyncExitStack, Path], Awaitable[Getters]]] = {
    "hishel": _hishel,
    "requests-cache": _requests_cache,
    "aiohttp-client-cache": _aiohttp_client_cache,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = parser.parse_args().quick
    print(f"curtsy beside its peers; Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    context = multiprocessing.get_context("spawn")
    ready = context.Queue()
    server = context.Process(target=serve, args=(ready,), daemon=True)
    server.start()
    try:
        site = f"http://127.0.0.1:{ready.get(timeout=30)}"
        count, rounds = (50, 2) if quick else (250, 20)
        asyncio.run(fetches(site, count, rounds))
        asyncio.run(hits(site, rounds))
    finally:
        server.terminate()
        server.join()
    print(f"\n{'Missed: ' + ', '.join(missed) if missed else 'Every figure was reached.'}")


if __name__ == "__main__":
    main()

"""What politeness costs: the CPU of a fetch over bare aiohttp, and of a cache hit over other caches, in one run.

    python benchmarks/fetch.py [--quick]

A site in a process of its own answers with 20 KB pages. curtsy has all manners on (robots.txt, gate, budget, breaker,
statistics) and its pauses off; the store is memory, the cache is on where it is measured. Figures are CPU time of the
client's process, the least over some runs.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import aiohttp

from curtsy.client import AsyncClient
from curtsy.stores.disk import DiskCache
from curtsy.stores.memory import MemoryStore
from curtsy.stores.packed import PackedCache
from curtsy.stores.pages import PageCache

PAGE = b"<!doctype html><title>page</title>" + b"<p>some words of a page, as pages have them</p>\n" * 420
AGENT = "CurtsyBench/1.0 (+https://curtsy.example/)"
missed: list[str] = []


def serve(ready: Any) -> None:
    """A site: /robots.txt, /page/N (not kept), /kept/N (fresh for an hour), /tagged/N (with an ETag)."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1]
                fields, body, status = b"Content-Type: text/html\r\n", PAGE, b"200 OK"
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
                writer.write(b"HTTP/1.1 %b\r\n%b%b\r\n%b" % (status, fields, length, body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0, limit=1 << 16)
        ready.put(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


async def cost(fetch: Callable[[str], Awaitable[object]], urls: list[str], repeats: int) -> float:
    """Microseconds of CPU a fetch, 16 at a time, the least over some runs."""
    found = []
    for _ in range(repeats):
        waiting = iter(urls)

        async def worker(waiting: Any = waiting) -> None:
            for url in waiting:
                await fetch(url)

        began = time.process_time()
        await asyncio.gather(*(worker() for _ in range(16)))
        found.append((time.process_time() - began) / len(urls) * 1e6)
    return min(found)


def client(cache: PageCache | bool, mode: Any = None) -> AsyncClient:
    """curtsy with all manners and no pauses."""
    return AsyncClient(
        preset="own", store=MemoryStore(), cache=cache, cache_mode=mode, user_agent=AGENT, allow_private=True
    )


def say(what: str, figure: float, base: float, most: float) -> None:
    ratio = figure / base
    verdict = "reached" if ratio <= most else "MISSED"
    if ratio > most:
        missed.append(what)
    print(f"  {what:<54} {figure:>9,.1f} µs   {ratio:>6.2f} x bare   at most {most:g}: {verdict}", flush=True)


async def fetches(site: str, count: int, repeats: int) -> float:
    """A fetch over bare aiohttp: nothing kept, everything kept, everything still good."""
    print("\nCPU a fetch")
    pages = [f"{site}/page/{number}" for number in range(count)]
    async with aiohttp.ClientSession(headers={"User-Agent": AGENT}) as session:

        async def bare(url: str) -> object:
            async with session.get(url) as answer:
                return await answer.read()

        await cost(bare, pages[:100], 1)
        base = await cost(bare, pages, repeats)
        print(f"  {'bare aiohttp':<54} {base:>9,.1f} µs")

        async def tagged(url: str) -> object:
            async with session.get(url, headers={"If-None-Match": '"1"'}) as answer:
                return await answer.read()

        base_304 = await cost(tagged, [f"{site}/tagged/{number}" for number in range(count)], repeats)
    async with client(False) as polite:
        await cost(polite.fetch, pages[:100], 1)
        say("curtsy, all manners, no cache", await cost(polite.fetch, pages, repeats), base, 1.5)
    for name, make in (("files", DiskCache), ("packed", lambda path: PackedCache(path / "pages.sqlite"))):
        with tempfile.TemporaryDirectory() as folder:
            async with client(make(Path(folder))) as polite:
                runs = []
                for run in range(repeats):
                    fresh = [f"{site}/kept/{run}-{number}" for number in range(count)]
                    runs.append(await cost(polite.fetch, fresh, 1))
                say(f"curtsy, every page stored ({name})", min(runs), base, 1.6)
            async with client(make(Path(folder)), "revalidate") as polite:
                urls = [f"{site}/tagged/{number}" for number in range(count)]
                await cost(polite.fetch, urls, 1)
                ours = await cost(polite.fetch, urls, repeats)
                say(f"curtsy, every page answered by 304 ({name})", ours, base_304, 1.4)
    return base


async def hits(site: str, count: int, repeats: int) -> None:
    """A fresh hit, beside other caches."""
    print("\nCPU of a fresh hit")
    urls = [f"{site}/kept/{number}" for number in range(20)] * (count // 20)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, cache in (
            ("curtsy, files", DiskCache(Path(folder, "files"))),
            ("curtsy, packed", PackedCache(Path(folder, "pages.sqlite"))),
        ):
            async with client(cache) as polite:
                await cost(polite.fetch, urls[:20], 1)
                found[name] = await cost(polite.fetch, urls, repeats)
        for name, measure in PEERS.items():
            try:
                found[name] = await measure(urls, Path(folder), repeats)
            except ImportError as error:
                print(f"  {name}: left out, {error.name} is not installed")
    for name, figure in found.items():
        print(f"  {name:<54} {figure:>9,.1f} µs")
    theirs = [figure for name, figure in found.items() if not name.startswith("curtsy")]
    if theirs:
        for name in ("curtsy, files", "curtsy, packed"):
            ratio = min(theirs) / found[name]
            verdict = "reached" if ratio >= 4 else "MISSED"
            if ratio < 4:
                missed.append(f"fresh hit, {name}")
            print(f"  {name} is {ratio:.1f} times as fast as the fastest peer; at least 4: {verdict}")


async def _hishel(urls: list[str], folder: Path, repeats: int) -> float:
    hishel = import_module("hishel")
    httpx = import_module("hishel.httpx")
    storage = hishel.AsyncSqliteStorage(database_path=str(folder / "hishel.db"))
    async with httpx.AsyncCacheClient(storage=storage) as session:
        await cost(session.get, urls[:20], 1)
        return await cost(session.get, urls[: len(urls) // 10], repeats)


async def _aiohttp_client_cache(urls: list[str], folder: Path, repeats: int) -> float:
    library = import_module("aiohttp_client_cache")
    best = float("inf")
    for backend in (library.SQLiteBackend(str(folder / "acc.sqlite")), library.CacheBackend()):
        async with library.CachedSession(cache=backend) as session:

            async def get(url: str, session: Any = session) -> object:
                async with session.get(url) as answer:
                    return await answer.read()

            await cost(get, urls[:20], 1)
            best = min(best, await cost(get, urls[: len(urls) // 10], repeats))
    return best


async def _requests_cache(urls: list[str], folder: Path, repeats: int) -> float:
    library = import_module("requests_cache")
    best = float("inf")
    for backend in ("sqlite", "filesystem", "memory"):
        session = library.CachedSession(str(folder / f"rc-{backend}"), backend=backend)

        async def get(url: str, session: Any = session) -> object:
            return session.get(url).content

        await cost(get, urls[:20], 1)
        best = min(best, await cost(get, urls[: len(urls) // 10], repeats))
        session.close()
    return best


PEERS: dict[str, Callable[[list[str], Path, int], Awaitable[float]]] = {
    "hishel (SQLite)": _hishel,
    "requests-cache (the best of its stores)": _requests_cache,
    "aiohttp-client-cache (the best of its stores)": _aiohttp_client_cache,
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
        count, repeats = (200, 2) if quick else (2000, 5)
        asyncio.run(fetches(site, count, repeats))
        asyncio.run(hits(site, count, repeats))
    finally:
        server.terminate()
        server.join()
    print(f"\n{'Missed: ' + ', '.join(missed) if missed else 'Every figure was reached.'}")


if __name__ == "__main__":
    main()

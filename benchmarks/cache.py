"""The cache: what a decision, a hit, a store and a 304 cost, beside other caches in the same run.

    python benchmarks/cache.py

Pages of 20 KB of text. Ours is the cache's part alone (URL read, page looked up, freshness judged); a peer's hit is
that of its client, for it has no other way in: `benchmarks/fetch.py` compares clients. Each figure is the least of
several repeats, in microseconds. Peers that are not installed are left out and named: hishel[httpx], requests-cache,
aiohttp-client-cache[filesystem,sqlite].
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

from curtsy.cache.disk import DiskCache
from curtsy.cache.keys import PageCache
from curtsy.cache.packed import PackedCache
from curtsy.core.cache import Absent, Entry, Fresh, Refresh, Stale, Store, absorb, freshness
from curtsy.core.message import Headers, Request, Response, Url, parse_url

NOW = time.time()
URLS = [f"http://127.0.0.1/page/{number}" for number in range(20)]
SENT = Headers([("User-Agent", "curtsy/0.1"), ("Accept", "*/*"), ("Accept-Encoding", "gzip, deflate, br")])
SAID = [("Content-Type", "text/html"), ("Cache-Control", "max-age=3600"), ("ETag", '"1"'), ("Vary", "Accept-Encoding")]
PEERS = ("hishel", "requests-cache", "aiohttp-client-cache")


def text(seed: int, size: int = 20_000) -> bytes:
    """A page that compresses about as pages do."""
    dice = random.Random(seed)
    words = ["".join(dice.choices("etaoinshrdlucmfwypvbgkjqxz", k=dice.randint(2, 9))) for _ in range(1500)]
    lines = [f'<p class="c{dice.randrange(9)}">{" ".join(dice.choices(words, k=12))}</p>\n' for _ in range(size // 60)]
    return ("<!doctype html><html><body>" + "".join(lines)).encode()[:size]


def least(work: Callable[[int], object], count: int, repeats: int = 7) -> float:
    """Microseconds a call, in the best of some runs; each call gets its number."""
    runs = []
    for _ in range(repeats):
        start = time.perf_counter()
        for number in range(count):
            work(number)
        runs.append(time.perf_counter() - start)
    return min(runs) / count * 1e6


def show(what: str, figure: float, unit: str = "µs", note: str = "") -> None:
    print(f"  {what:<52} {figure:>10,.1f} {unit:<6} {note}", flush=True)


def ask(url: str) -> Request:
    parsed = parse_url(url)
    assert isinstance(parsed, Url)
    return Request(parsed, headers=SENT)


def pages() -> list[tuple[Entry, bytes]]:
    made = []
    for number, url in enumerate(URLS):
        outcome = absorb(Absent(), ask(url), Response(200, Headers(SAID), text(number)), NOW)
        assert isinstance(outcome, Store)
        made.append((outcome.entry, outcome.body))
    return made


def decisions(made: list[tuple[Entry, bytes]]) -> None:
    print("Decisions")
    request = ask(URLS[0])
    entry, body = made[0]
    plain = absorb(Absent(), request, Response(200, Headers(SAID[:3]), body), NOW)
    assert isinstance(plain, Store)
    stale = freshness(entry, request, NOW + 4000)
    assert isinstance(stale, Stale)
    show("fresh", least(lambda _: freshness(plain.entry, request, NOW + 5), 20_000))
    show("fresh, with Vary", least(lambda _: freshness(entry, request, NOW + 5), 20_000))
    show("stale", least(lambda _: freshness(entry, request, NOW + 4000), 20_000))
    reply = Response(200, Headers(SAID), body)
    show("absorb a page (its SHA-256 included)", least(lambda _: absorb(Absent(), request, reply, NOW), 2000))
    renewal = Response(304, Headers(SAID), b"")
    show("absorb a 304", least(lambda _: absorb(stale, request, renewal, NOW), 5000))


def hit(cache: PageCache, url: str) -> bytes:
    """What a client does for a fresh page, as far as it is the cache's."""
    request = ask(url)
    page = cache.get(request.url)
    assert page is not None
    assert isinstance(freshness(page.entry, request, NOW + 5), Fresh)
    return page.body


def one(name: str, cache: PageCache, unbuffered: PageCache, made: list[tuple[Entry, bytes]]) -> float:
    """Measure one of our caches; answers what a hit costs when it is not in memory."""
    print(name)
    new = iter(range(10**9))

    def put_new(number: int) -> None:
        _, body = made[number % len(made)]
        outcome = absorb(Absent(), ask(f"http://127.0.0.1/new/{next(new)}"), Response(200, Headers(SAID), body), NOW)
        assert isinstance(outcome, Store)
        assert cache.keep(outcome.entry, outcome.body)

    show("a new page put (absorbed, too)", least(put_new, 200))
    show("a page replaced", least(lambda number: cache.keep(*made[number % 20]), 200))
    renewed = []
    for entry, _ in made:
        request = ask(entry.url)
        outcome = absorb(freshness(entry, request, NOW + 4000), request, Response(304, Headers(SAID), b""), NOW + 1)
        assert isinstance(outcome, Refresh)
        renewed.append(outcome.entry)
    show("renewed by a 304", least(lambda number: cache.refresh(renewed[number % 20]), 200))
    show("a miss", least(lambda _: cache.get("http://127.0.0.1/none"), 5000))
    show("a fresh hit, its page in memory", least(lambda number: hit(cache, URLS[number % 20]), 5000))
    cold = least(lambda number: hit(unbuffered, URLS[number % 20]), 1000)
    show("a fresh hit, read and checked", cold)
    return cold


def overhead(folder: Path) -> None:
    """Bytes on the disk for each page, over its compressed body."""
    path = folder / "many.db"
    cache = PackedCache(path)
    import zstandard  # only to know what the bodies alone would take

    compressor = zstandard.ZstdCompressor(level=3)
    packed = plain = 0
    count = 2000
    for number in range(count):
        body = text(number % 50, 5000 + number * 17 % 30_000)
        outcome = absorb(Absent(), ask(f"http://127.0.0.1/many/{number}"), Response(200, Headers(SAID), body), NOW)
        assert isinstance(outcome, Store)
        cache.keep(outcome.entry, body)
        packed += len(compressor.compress(body))
        plain += len(body)
    cache.close()
    size = path.stat().st_size
    print(f"Packed file, {count:,} pages")
    show("bytes a page, as they came", plain / count, "bytes")
    show("bytes a page on the disk", size / count, "bytes", f"{size / plain:.2f} of the plain bodies")
    show("of these, beyond the compressed body", (size - packed) / count, "bytes", "headers, hashes, tree")


# --- Peers ---------------------------------------------------------------------------------------------------------


class Site(BaseHTTPRequestHandler):
    """Answers every path with a page that is fresh for an hour."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        body = text(hash(self.path) % 100)
        self.send_response(200)
        for name, value in SAID:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def hishel_hit(base: str) -> float:
    hishel: Any = import_module("hishel")
    clients: Any = import_module("hishel.httpx")
    if not hasattr(clients, "SyncCacheClient"):  # it is there only beside httpx itself
        raise ImportError(name="httpx")
    client = clients.SyncCacheClient(storage=hishel.SyncSqliteStorage(database_path=str(Path("hishel.db").absolute())))
    with client:
        return _peer_hit(lambda url: client.get(url).content, base)


def requests_cache_hit(base: str) -> float:
    module: Any = import_module("requests_cache")
    found = []
    for backend in ("filesystem", "sqlite"):
        with module.CachedSession(str(Path("requests-" + backend).absolute()), backend, cache_control=True) as session:

            def get(url: str, session: Any = session) -> bytes:
                return bytes(session.get(url).content)

            found.append(_peer_hit(get, base))
    return min(found)


def aiohttp_client_cache_hit(base: str) -> float:
    module: Any = import_module("aiohttp_client_cache")

    async def run(backend: Any) -> float:
        async with module.CachedSession(cache=backend) as session:
            runs = []
            for _ in range(4):  # the first one fills it
                start = time.perf_counter()
                for _ in range(10):
                    for number in range(20):
                        async with session.get(f"{base}/page/{number}") as answer:
                            await answer.read()
                runs.append((time.perf_counter() - start) / 200 * 1e6)
            return min(runs[1:])

    found = []
    for make in (module.FileBackend, module.SQLiteBackend):
        place = str(Path("aiohttp-" + make.__name__).absolute())
        found.append(asyncio.run(run(make(place, cache_control=True))))
    return min(found)


def _peer_hit(get: Callable[[str], bytes], base: str) -> float:
    for number in range(20):
        assert get(f"{base}/page/{number}")
    before = Site.asked
    figure = least(lambda number: get(f"{base}/page/{number % 20}"), 200, 4)
    if Site.asked != before:
        print(f"    (it asked the site {Site.asked - before} times again)")
    return figure


def peers(ours: float) -> None:
    print("Peers: a fresh hit through their clients, the better of their files and SQLite")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    ratios = []
    for name, measure in zip(PEERS, (hishel_hit, requests_cache_hit, aiohttp_client_cache_hit), strict=True):
        try:
            theirs = measure(base)
        except ImportError as error:
            print(f"  {name:<52} not installed ({error.name})")
            continue
        ratios.append(theirs / ours)
        show(name, theirs, note=f"{theirs / ours:,.1f} times ours, read and checked")
    server.shutdown()
    server.server_close()
    if ratios:
        verdict = "reached" if min(ratios) >= 4 else "MISSED"
        show("the fastest peer over ours", min(ratios), "times", f"at least 4: {verdict}")
        if min(ratios) < 4:
            sys.exit(1)


def main() -> None:
    made = pages()
    decisions(made)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        disk, packed = place / "files", place / "pages.db"
        caches: list[PageCache] = [
            DiskCache(disk), DiskCache(disk, memory=0), PackedCache(packed), PackedCache(packed, memory=0)
        ]  # fmt: skip
        files = one("Files", caches[0], caches[1], made)
        one("Packed", caches[2], caches[3], made)
        overhead(place)
        for cache in caches:
            cache.close()
        before = os.getcwd()
        os.chdir(place)  # some of the peers leave files where they are
        try:
            peers(files)
        finally:
            os.chdir(before)


if __name__ == "__main__":
    main()

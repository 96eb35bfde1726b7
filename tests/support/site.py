"""A real web site on loopback that plays scripted replies, breaks every rule if asked to, and keeps a journal.

    with Site() as site:
        site.page("/a", "hello", etag='"1"')                            # answers If-None-Match with 304 by itself
        site.robots("User-agent: *\\nDisallow: /private")
        site.script("/flaky", [Reply(503), Reply(200, "fine")])          # in turn; the last one stays
        site.on("/p/*", lambda visit: Reply(body=f"this is {visit.path}"))
        site.page("/", "another host", host="127.0.0.2")

        fetch(site.url("/a")), fetch(site.url("/", host="127.0.0.2")), fetch(site.url("/", host="shop.test"))

        assert site.paths() == ["/a", "/", "/"]
        assert min(site.gaps("127.0.0.1")) >= 1.5 and site.max_concurrency("127.0.0.1") == 1

It is a small HTTP/1.1 server of our own, in a thread of its own: blocking clients and other processes can use it, and
what goes over the wire is entirely in the hands of the script.

*Hosts.* Any `127.x.y.z` and `::1` are listened on when `url()` first names them; any other name is the site's too, if
the client resolves it to 127.0.0.1 (`HttpSender(resolver=site.names)` does). Pages hold for every host unless
`host=` says which; a host's own page wins. What is not scripted is a 404, robots.txt included.

*Paths.* `/a?x=1` matches that target only, `/a` any query, and a `*` at the end any rest. The most specific wins.

*Faults.* All fields of `Reply` can be combined; functions name the common ones: `redirect`, `later`, `hang`, `reset`,
`garbage`, `cut_short`, `dripping`, `endless`, `encoded`, `bomb`. `deaf_port()` is a port that never takes a
connection, `closed_port()` one that refuses it. `Site(tls=…)` speaks TLS (see `certificates.py`), `Site(silent=True)`
takes connections and never says a word, `Site(requests_per_connection=1)` closes after each answer, and `url(…,
scheme="https")` on a site without TLS is plain HTTP on a TLS port.

*Journal.* `site.journal` lists a `Visit` for every request, in order of arrival, from the moment its head was read.
Other threads may look at any time; `clear()` forgets. Times are of `time.monotonic()`, which all processes share.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from tests.support.listening import stopped
from tests.support.play import NotHttp, Visit, play, read_request
from tests.support.polling import PATIENCE, until
from tests.support.reply import (
    PIECE,
    Reply,
    bomb,
    cut_short,
    dripping,
    encoded,
    endless,
    garbage,
    hang,
    later,
    redirect,
    reset,
)

__all__ = [
    "AnyName",
    "Reply",
    "Site",
    "Visit",
    "bomb",
    "closed_port",
    "cut_short",
    "deaf_port",
    "dripping",
    "encoded",
    "endless",
    "garbage",
    "hang",
    "has_ipv6",
    "later",
    "redirect",
    "reset",
]

T = TypeVar("T")


Answer = Callable[[Visit], Reply]


class AnyName(Mapping[str, str]):
    """Resolves every name to one address."""

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._address = address

    def __getitem__(self, name: str) -> str:
        return self._address

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class Site:
    """A site that runs while its `with` block does."""

    names = AnyName()
    """For `HttpSender(resolver=…)`: every name is this machine."""

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        silent: bool = False,
        requests_per_connection: int | None = None,
    ) -> None:
        self.journal: list[Visit] = []
        self.connections = 0
        """Connections that were opened, whether or not a request came over them."""

        self.port = 0
        self._tls = tls
        self._silent = silent
        self._per_connection = requests_per_connection
        self._answers: dict[tuple[str | None, str], Answer] = {}
        self._under_way: Counter[str] = Counter()
        self._at_rest = asyncio.Event()
        self._at_rest.set()
        self._servers: dict[str, asyncio.Server] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="site", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._listen("127.0.0.1"))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # What it plays

    def on(self, path: str, answer: Answer, *, host: str | None = None) -> None:
        """Let a function answer. It runs in the site's thread."""
        self._answers[host, path] = answer

    def reply(self, path: str, reply: Reply, *, host: str | None = None) -> None:
        """Always answer so."""
        self.on(path, lambda visit: reply, host=host)

    def script(self, path: str, replies: Sequence[Reply], *, host: str | None = None) -> None:
        """Answer in turn; the last one stays."""
        turns = iter(replies)
        last = replies[-1]
        self.on(path, lambda visit: next(turns, last), host=host)

    def page(
        self,
        path: str,
        body: bytes | str = "",
        *,
        content_type: str | None = "text/html; charset=utf-8",
        etag: str | None = None,
        last_modified: str | None = None,
        headers: Mapping[str, str] | None = None,
        ranges: bool = False,
        host: str | None = None,
    ) -> None:
        """A page that answers conditional requests, and with `ranges` also those for a part of it."""
        content = body.encode() if isinstance(body, str) else body
        fields = {"Content-Type": content_type, "ETag": etag, "Last-Modified": last_modified, **(headers or {})}
        if ranges:
            fields["Accept-Ranges"] = "bytes"
        given = {name: value for name, value in fields.items() if value is not None}

        def answer(visit: Visit) -> Reply:
            if etag is not None and (asked := visit.header("If-None-Match")) is not None:
                fresh = etag in [each.strip() for each in asked.split(",")]
            else:
                fresh = last_modified is not None and visit.header("If-Modified-Since") == last_modified
            if fresh:
                return Reply(304, headers=given)
            wanted = visit.header("Range") if ranges else None
            if wanted is None or visit.header("If-Range") not in (None, etag, last_modified):
                return Reply(200, content, given)
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last or len(content) - 1), len(content) - 1)
            if start >= len(content):
                return Reply(416, headers={**given, "Content-Range": f"bytes */{len(content)}"})
            part = {**given, "Content-Range": f"bytes {start}-{stop}/{len(content)}"}
            return Reply(206, content[start : stop + 1], part)

        self.on(path, answer, host=host)

    def robots(self, text: str = "", *, status: int = 200, host: str | None = None) -> None:
        """Say what robots.txt is."""
        self.reply("/robots.txt", Reply(status, text, {"Content-Type": "text/plain"}), host=host)

    def url(self, path: str = "/", *, host: str = "127.0.0.1", scheme: str | None = None) -> str:
        """The URL of a path on one of the site's hosts."""
        if host not in self._servers and (host.startswith("127.") or ":" in host):
            self._run(self._listen(host))
        shown = f"[{host}]" if ":" in host else host
        return f"{scheme or ('https' if self._tls else 'http')}://{shown}:{self.port}{path}"

    # What it saw

    def visits(self, path: str | None = None, *, host: str | None = None) -> list[Visit]:
        """The requests for a path, to a host, or all of them."""
        return [v for v in list(self.journal) if path in (None, v.path, v.target) and host in (None, v.host)]

    def paths(self, host: str | None = None) -> list[str]:
        """The targets asked for, in order."""
        return [visit.target for visit in self.visits(host=host)]

    def count(self, path: str | None = None, *, host: str | None = None) -> int:
        """How often a path was asked for."""
        return len(self.visits(path, host=host))

    def gaps(self, host: str | None = None) -> list[float]:
        """Seconds between arrivals, one less than there were requests."""
        return [b.at - a.at for a, b in itertools.pairwise(self.visits(host=host))]

    def max_concurrency(self, host: str | None = None) -> int:
        """The most requests to one host that were under way at once."""
        return max((visit.concurrent for visit in self.visits(host=host)), default=0)

    @property
    def open_connections(self) -> int:
        """Connections that are open now."""
        return len(self._tasks)

    def clear(self) -> None:
        """Forget what was seen."""
        self.journal.clear()

    async def left(self, most: int = 0, within: float = PATIENCE) -> None:
        """Wait, in a test's own event loop, until no more than `most` connections are open, and both sides know."""
        await until(lambda: self.open_connections <= most, within)
        for _ in range(3):
            await asyncio.sleep(0)

    def idle(self, within: float = PATIENCE) -> bool:
        """Block until no request is under way; whether that came true in time. In async tests, use `left()`."""
        try:
            self._run(asyncio.wait_for(self._at_rest.wait(), within))
        except TimeoutError:
            return False
        return True

    # How it works

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=2 * PATIENCE)

    async def _listen(self, address: str) -> None:
        listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, PIECE)
        try:
            listener.bind((address, self.port))
        except OSError:
            listener.close()
            raise
        self.port = listener.getsockname()[1]
        self._servers[address] = await asyncio.start_server(
            self._serve, sock=listener, ssl=None if self._silent else self._tls, backlog=1024, limit=1 << 20
        )

    async def _stop(self) -> None:
        await stopped(*self._servers.values())
        # The task of a connection that was accepted last may not have begun: cancelled now, it would close nothing.
        this = asyncio.current_task()
        give_up = self._loop.time() + 1
        while others := asyncio.all_tasks() - {this}:
            for task in others if self._loop.time() > give_up else others & self._tasks - self._ending:
                self._ending.add(task)
                task.cancel()
            await asyncio.wait(others, timeout=0.02)
        # Transports say good-bye in callbacks, a few rounds later.
        for _ in range(5):
            await asyncio.sleep(0)
        await self._loop.shutdown_asyncgens()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        writer.transport.set_write_buffer_limits(high=1)  # with 0, asyncio's TLS never writes again
        try:
            if self._silent:
                while await reader.read(PIECE):
                    pass
            for served in itertools.count(1):
                visit = await read_request(reader, number)
                if visit is None:
                    break
                keep = await self._answer(visit, reader, writer)
                if not keep or served == self._per_connection:
                    break
        except NotHttp:
            writer.write(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError, ssl.SSLError, TimeoutError):
            pass  # the client is gone, or the site closes
        finally:
            writer.close()
            # Only a real close frees the port and the client; a TLS good-bye may never be answered.
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await asyncio.wait_for(writer.wait_closed(), 0.2)
            writer.transport.abort()
            self._tasks.discard(task)

    async def _answer(self, visit: Visit, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        # A client that left closed its connection before it opened the next: let that be noticed first.
        for _ in range(3):
            await asyncio.sleep(0)
        self._under_way[visit.host] += 1
        self._at_rest.clear()
        visit.concurrent = self._under_way[visit.host]
        self.journal.append(visit)
        try:
            reply = self._find(visit)(visit)
            visit.status = reply.status if reply.raw is None else None
            return await play(reply, visit, reader, writer)
        finally:
            visit.answered_at = time.monotonic()
            self._under_way[visit.host] -= 1
            if not self._under_way.total():
                self._at_rest.set()

    def _find(self, visit: Visit) -> Answer:
        for host in (visit.host, None):
            for path in (visit.target, visit.path):
                if found := self._answers.get((host, path)):
                    return found
            rest = visit.path
            while rest:
                if found := self._answers.get((host, rest + "*")):
                    return found
                rest = rest[:-1]
        return lambda visit: Reply(404, "nothing here", {"Content-Type": "text/plain"})


@contextlib.contextmanager
def deaf_port() -> Iterator[int]:
    """A port of 127.0.0.1 where connecting neither succeeds nor fails: its queue is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextlib.contextmanager
def closed_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections, and that nobody else can take meanwhile."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


def has_ipv6() -> bool:
    """Whether this machine can listen on ::1."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True

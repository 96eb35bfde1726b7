"""Site: many hosts on loopback, served from memory by a process of its own, which counts the requests of its visitors.

Each host is an address of its own in 127.0.0.0/8, all on one port, so that every crawler finds them without a resolver.
Pages are of five real kinds (`pages.py`), about 20 KB each, and every page has the same number of different links: its
children in a tree that reaches all pages of the host, others of them in more than one spelling, and one that robots.txt
disallows. Below `/new/`, every path is a page. All pages may be cached for an hour.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
import zlib
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from benchmarks.measure import event_loop
from benchmarks.pages import KINDS, LINKS, page

CHILDREN = 10
ROBOTS = b"User-agent: *\nDisallow: /private/\n"
BACKLOG = 1024
READY = 30.0
"""Maximum seconds for the site to open, and to close."""

TOLERANCE = 0.02
"""Seconds by which a gap may be shorter than the pause: the site reads its sockets late."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Hosts of a site, and the limits that its visitors are given."""

    sizes: tuple[int, ...]
    """Pages of each host."""

    pause: float = 0.0
    """Seconds between two requests to a host."""

    per_host: int = 1
    """Maximum requests to a host at the same time."""

    latency: float = 0.0
    """Seconds that each answer takes."""

    @property
    def pages(self) -> int:
        """Return the number of pages that may be requested."""
        return sum(self.sizes)

    @property
    def bound(self) -> float:
        """Return the seconds that the pauses alone take: one before each page of the largest host, after robots.txt."""
        return max(self.sizes) * self.pause


@dataclass(slots=True)
class Score:
    """Requests of one visitor, by the clock of the site."""

    pages: int = 0
    """Pages that were served, each counted once."""

    repeated: int = 0
    """Requests for a page that had been served before."""

    forbidden: int = 0
    """Requests for paths that robots.txt disallows."""

    short: int = 0
    """Gaps between two requests to a host that were shorter than the pause."""

    at_once: int = 0
    """Maximum requests in flight to one host."""

    began: float = 0.0
    ended: float = 0.0
    """Time of the first request and of the last."""

    busy: float = 0.0
    """CPU seconds of the site. Near the whole span, the site itself is the limit."""

    @property
    def speed(self) -> float:
        """Return the pages per second, from the first request to the last."""
        return self.pages / (self.ended - self.began) if self.ended > self.began else 0.0


@dataclass(slots=True)
class Host:
    """One host of a site."""

    size: int
    served: set[int] = field(default_factory=set)
    asked_at: float = float("-inf")
    open: int = 0


def address(number: int) -> str:
    """Return the address of a host by its number."""
    return f"127.{1 + number // 62_500}.{1 + number // 250 % 250}.{1 + number % 250}"


def path(number: int) -> str:
    """Return the path of a page by its number."""
    return f"/2026/item-{number}.html" if number else "/"


def links(number: int, size: int) -> list[str]:
    """Return the links of a page."""
    first = number * CHILDREN + 1
    found = [path(child) for child in range(first, min(first + CHILDREN, size))]
    found.append(f"{path((number + 1) % size)}#more")
    found.append(f"../2026/../{path(number * 7 % size)[1:]}")
    found.append(f"/private/{number // 10}.html")
    return found + [path((number * 31 + each * 37) % size) for each in range(1, LINKS + 1 - len(found))]


def answer(status: str, body: bytes, kind: str = "text/html; charset=utf-8") -> bytes:
    """Return the bytes of an answer."""
    fields = f"Content-Type: {kind}\r\nCache-Control: max-age=3600\r\nContent-Length: {len(body)}"
    return f"HTTP/1.1 {status}\r\n{fields}\r\n\r\n".encode() + body


class Visit(asyncio.Protocol):
    """One connection of a visitor."""

    def __init__(self, site: Hosts) -> None:
        self._site = site
        self._received = b""
        self._open = 0

    def connection_made(self, transport: Any) -> None:  # that of uvloop is not an asyncio.Transport
        self._transport = transport
        self._host = self._site.hosts[transport.get_extra_info("sockname")[0]]

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            asked = self._received[: self._received.index(b"\r\n")].split(b" ")[1]
            self._received = self._received[end + 4 :]
            reply = self._site.reply(self._host, asked, now)
            self._open += 1
            if self._site.plan.latency:
                asyncio.get_running_loop().call_later(self._site.plan.latency, self._send, reply)
            else:
                self._send(reply)

    def _send(self, reply: bytes) -> None:
        if self._open:
            self._open -= 1
            self._host.open -= 1
            self._transport.write(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.open -= self._open
        self._open = 0


class Hosts:
    """Hosts of a site, inside its process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.hosts = {address(number): Host(size) for number, size in enumerate(plan.sizes)}
        self._score = Score()
        kinds = list(KINDS)
        self._pages = {
            size: [answer("200 OK", page(kinds[number % len(kinds)], links(number, size))) for number in range(size)]
            for size in set(plan.sizes)
        }
        self._numbers = {path(number).encode(): number for number in range(max(plan.sizes))}
        self._new = [answer("200 OK", page(kind, links(0, LINKS))) for kind in KINDS]
        self._rules = answer("200 OK", ROBOTS, "text/plain")
        self._absent = answer("404 Not Found", b"not found")

    def reply(self, host: Host, asked: bytes, now: float) -> bytes:
        """Return the answer to a request, and count the request."""
        score = self._score
        if not score.began:
            score.began, score.busy = now, time.process_time()
        score.ended = now
        score.short += now - host.asked_at < self.plan.pause - TOLERANCE
        host.asked_at = now
        host.open += 1
        score.at_once = max(score.at_once, host.open)
        number = self._numbers.get(asked, host.size)
        if number < host.size:
            score.repeated += number in host.served
            score.pages += number not in host.served
            host.served.add(number)
            return self._pages[host.size][number]
        if asked.startswith(b"/new/"):
            return self._new[zlib.crc32(asked) % len(self._new)]
        score.forbidden += asked.startswith(b"/private/")
        return self._rules if asked == b"/robots.txt" else self._absent

    async def serve(self, control: Connection) -> None:
        """Listen at every address on one port, report the port, and report the score when asked."""
        loop = asyncio.get_running_loop()
        closing = asyncio.Event()
        port = 0
        for each in self.hosts:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((each, port))
            port = listener.getsockname()[1]
            await loop.create_server(lambda: Visit(self), sock=listener, backlog=BACKLOG)
        loop.add_reader(control.fileno(), closing.set)
        control.send(port)
        await closing.wait()
        self._score.busy = time.process_time() - self._score.busy
        control.send(self._score)


def serve(plan: Plan, control: Connection) -> None:
    """Serve a site until the other end of the control connection sends a message."""
    with asyncio.Runner(loop_factory=event_loop()) as runner:
        runner.run(Hosts(plan).serve(control))


class Site:
    """Site in a process of its own. A context manager: `score` is set when it is left."""

    def __init__(self, plan: Plan) -> None:
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(plan, theirs), daemon=True)
        self._process.start()
        theirs.close()
        if not self._control.poll(READY):
            raise TimeoutError(f"the site of {len(plan.sizes)} hosts did not open within {READY:.0f} s")
        port = self._control.recv()
        self.seeds = [f"http://{address(number)}:{port}/" for number in range(len(plan.sizes))]
        self.score = Score()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.send("close")
        if self._control.poll(READY):
            self.score = self._control.recv()
        self._control.close()
        self._process.join(READY)

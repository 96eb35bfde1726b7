"""Site: many hosts on loopback, served from memory by a process of its own, which keeps the score.

Each host is an address of its own in 127.0.0.0/8, all on one port, so that every crawler finds them without a resolver.
A page has 20 KB and about 60 links: its children in a tree that reaches all pages of the host, others of them, in more
than one spelling, and a part that robots.txt disallows, a tenth as large.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time
from importlib import import_module
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, Self

from benchmarks.crawling.score import RETRY_AFTER, Host, Ledger, Plan, Score

CHILDREN = 10
OTHERS = 48
FILLER = b"<p>some words of a page, as pages have them, and a few more of them</p>\n" * 220
ROBOTS = b"User-agent: *\nDisallow: /private/\n"
BACKLOG = 1024
READY = 30.0
"""Seconds in which the site must have opened, or closed."""


def address(number: int) -> str:
    """The address of a host by its number."""
    return f"127.{1 + number // 62_500}.{1 + number // 250 % 250}.{1 + number % 250}"


def path(number: int) -> str:
    """The path of a page by its number."""
    return f"/2026/item-{number}.html" if number else "/"


def links(number: int, size: int) -> list[str]:
    """What a page links to."""
    first = number * CHILDREN + 1
    found = [path(child) for child in range(first, min(first + CHILDREN, size))]
    found += [path((number * 31 + each * 37) % size) for each in range(1, OTHERS)]
    found.append(f"{path((number + 1) % size)}#more")
    found.append(f"../2026/../{path(number * 7 % size)[1:]}")
    found.append(f"/private/{number // 10}.html")
    return found


def answer(status: str, body: bytes, kind: str = "text/html; charset=utf-8", fields: str = "", more: int = 0) -> bytes:
    """The bytes of an answer, of whose body `more` bytes come after them."""
    length = len(body) + more
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{fields}\r\n"
    return head.encode() + body


def front(number: int, size: int) -> bytes:
    """The answer with a page, without the filler at its end, which all pages share."""
    items = "".join(f'<li class="item"><a href="{href}">More of it</a></li>\n' for href in links(number, size))
    html = f"<!doctype html><title>Page {number}</title><body><ul>\n{items}</ul>\n"
    return answer("200 OK", html.encode(), more=len(FILLER))


class Visit(asyncio.Protocol):
    """One connection of a visitor."""

    def __init__(self, site: Hosts) -> None:
        self._site = site
        self._received = b""
        self._open = 0

    def connection_made(self, transport: Any) -> None:  # uvloop's own is no asyncio.Transport
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
            self._site.ledger.close(self._host)
            self._transport.write(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        for _ in range(self._open):
            self._site.ledger.close(self._host)
        self._open = 0


class Hosts:
    """The hosts of a site, inside its process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ledger = Ledger(plan)
        self.hosts = {address(number): Host(size) for number, size in enumerate(plan.sizes)}
        self._numbers = {path(number).encode(): number for number in range(max(plan.sizes))}
        self._pages = {size: [front(number, size) for number in range(size)] for size in set(plan.sizes)}
        self._rules = answer("200 OK", ROBOTS, "text/plain")
        self._later = answer("429 Too Many Requests", b"later", fields=f"Retry-After: {RETRY_AFTER:.0f}\r\n")
        self._absent = answer("404 Not Found", b"no such page")

    def reply(self, host: Host, asked: bytes, now: float) -> bytes:
        """The answer to a request, which is noted."""
        is_welcome = self.ledger.open(host, now)
        number = self._numbers.get(asked, host.size)
        if number < host.size:
            self.ledger.page(host, number, is_welcome)
            found = self._pages[host.size][number] + FILLER
        elif asked == b"/robots.txt":
            self.ledger.robots()
            found = self._rules
        else:
            self.ledger.stray(asked.startswith(b"/private/"))
            found = self._absent
        return found if is_welcome else self._later

    async def serve(self, control: Connection) -> None:
        """Listen at every address on one port, say which, and answer for the score until the other side hangs up."""
        loop = asyncio.get_running_loop()
        closing = asyncio.Event()
        port = 0
        for each in self.hosts:
            listener = socket.socket()
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((each, port))
            port = listener.getsockname()[1]
            await loop.create_server(lambda: Visit(self), sock=listener, backlog=BACKLOG)

        def ask() -> None:
            try:
                control.recv()
                control.send(self.ledger.score())
            except (EOFError, ConnectionError):
                closing.set()

        loop.add_reader(control.fileno(), ask)
        control.send(port)
        await closing.wait()


def run(plan: Plan, control: Connection) -> None:
    """Serve a site until its control connection ends."""
    try:
        make = import_module("uvloop").new_event_loop
    except ImportError:
        make = None
    with asyncio.Runner(loop_factory=make) as runner:
        runner.run(Hosts(plan).serve(control))


class Site:
    """A site in a process of its own, as its owner sees it."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        context = multiprocessing.get_context("spawn")
        self._control, theirs = context.Pipe()
        self._process = context.Process(target=run, args=(plan, theirs), daemon=True)
        self._process.start()
        theirs.close()
        if not self._control.poll(READY):
            raise TimeoutError(f"the site of {len(plan.sizes)} hosts has not opened in {READY:.0f} s")
        port = self._control.recv()
        self.seeds = [f"http://{address(number)}:{port}/" for number in range(len(plan.sizes))]

    def score(self) -> Score:
        """What it has seen since it was opened."""
        self._control.send("score")
        score: Score = self._control.recv()
        return score

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._control.close()
        self._process.join(READY)

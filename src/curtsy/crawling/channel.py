"""Start of worker processes, and the messages between them and the crawl (worker_pool.py, worker.py).

Messages go over a pair of sockets. Both ends are processes of one program and of one version, so a message is a pickle
with its length before it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec

from curtsy.core.bounded import Bounded
from curtsy.core.masking import masked_repr
from curtsy.crawling.frontier.protocol import Claimed
from curtsy.crawling.options import CrawlOptions
from curtsy.crawling.results import Finished

_LENGTH = struct.Struct(">Q")


class Begin(msgspec.Struct):
    """First message to a worker."""

    client: Any
    """Client whose copy fetches the pages: an AsyncClient, which pickles as its arguments."""

    options: CrawlOptions
    places: int
    """Maximum requests on the wire of this worker."""

    is_shared: bool
    """True if other machines may take over an expired lease."""


class Enter(msgspec.Struct):
    """Scope of the crawl to a worker, with what the job's notes say about it."""

    scope: Mapping[str, Any]
    widened: Sequence[str]
    sitemaps: Any


class Admit(msgspec.Struct):
    """Further seeds to a worker that extend the scope, packed, because a crawl keeps them for later workers."""

    packed: bytes

    @classmethod
    def of(cls, urls: Sequence[str]) -> Self:
        """Return the message for some URLs."""
        return cls(zlib.compress("\n".join(urls).encode(), 1))

    @property
    def urls(self) -> list[str]:
        """Return the URLs."""
        return zlib.decompress(self.packed).decode().split("\n")

    __repr__ = masked_repr


class Widen(msgspec.Struct):
    """URL that widened the scope in another worker."""

    url: str

    __repr__ = masked_repr


class Fetch(msgspec.Struct):
    """Claim to fetch."""

    claimed: Claimed
    may_crowd: bool
    """True if the share of its address is ignored."""


class FetchAll(msgspec.Struct):
    """Claims to fetch."""

    fetches: Sequence[Fetch]
    wanted: int | None
    """How many more pages are needed than URLs are queued; None if there is no limit."""

    written: Sequence[int]
    """Tickets of the worker's claims that were written since the last such message."""


class Forget(msgspec.Struct):
    """Request to forget which hrefs the frontier knows."""


class Divide(msgspec.Struct):
    """Number of processes that divide the common limits in an outage."""

    among: int


class Withdraw(msgspec.Struct):
    """Request to put back the URLs that are not on the wire."""


class Cancel(msgspec.Struct):
    """Request to put back all URLs at once."""


class Question(msgspec.Struct):
    """Question of a worker to the frontier: `pass_over`."""

    number: int
    url: str
    other: str

    __repr__ = masked_repr


class Answer(msgspec.Struct):
    """Answer to a question: the result, or the error to raise."""

    number: int
    result: bool | Exception


class Load(msgspec.Struct):
    """Slots that a worker uses."""

    received: int = 0
    """Number of claims that the worker has received; the other numbers include them."""

    places: int = 0
    on_wire: int = 0
    looked_up: int = 0
    queued_for_rate: int = 0
    retrying: Mapping[str, int] = {}
    """Fetches that wait for a retry, by the reason of their last reply."""

    sites: Mapping[str, int] = {}
    addresses: Mapping[str, int] = {}


class Report(msgspec.Struct):
    """News of a worker."""

    load: Load
    returned: Sequence[Finished]
    located: Sequence[tuple[str, str]]
    """Hosts with their addresses."""


class Broken(msgspec.Struct):
    """Internal error of a worker, which ends the crawl."""

    error: BaseException


REPEATED = 60.0
"""Seconds in which a warning is logged once, however many workers have it."""

_warned: Bounded[tuple[str, str], float] = Bounded(100, 100, lambda _: 1)
"""Latest warnings of workers by logger and text, with the monotonic second at which they were logged."""


class Logged(msgspec.Struct):
    """Log record of a worker."""

    name: str
    level: int
    message: Any

    def log(self) -> None:
        """Log it in this process, unless another worker had the same warning just before."""
        key, now = (self.name, str(self.message)), time.monotonic()
        if self.level == logging.WARNING:
            logged_at = _warned.get(key)
            if logged_at is not None and now < logged_at + REPEATED:
                return
            _warned.put(key, now)
        logging.getLogger(self.name).log(self.level, self.message)


class Channel(asyncio.Protocol):
    """One end of the pair of sockets."""

    def __init__(self, receive: Callable[[Any], None], lose: Callable[[], None]) -> None:
        """Create the end. `receive` is called for each message, `lose` when the other process has ended."""
        self._receive = receive
        self._lose = lose
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.is_lost = False
        """True if the other process has ended."""

    async def open(self, end: socket.socket) -> None:
        """Begin to receive."""
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    def send(self, message: Any) -> None:
        """Send a message, unless the other process has ended."""
        if self._transport is not None and not self._transport.is_closing():
            packed = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
            self._transport.write(_LENGTH.pack(len(packed)) + packed)

    def close(self) -> None:
        """Close the connection after what was sent."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        """Keep the transport. That of uvloop is not a subclass of asyncio's."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Pass on the messages that are complete."""
        buffer = self._buffer
        buffer += data
        begin = 0
        while len(buffer) - begin >= _LENGTH.size:
            [length] = _LENGTH.unpack_from(buffer, begin)
            end = begin + _LENGTH.size + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                message = pickle.loads(view[begin + _LENGTH.size : end])  # of a process of this program
            begin = end
            self._receive(message)
        del buffer[:begin]

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the other process."""
        self.is_lost = True
        self._lose()


COMMON_LOGGERS = ("curtsy.client", "curtsy.settings")
"""Loggers about the settings, which all processes of a crawl read."""


class LogSender(logging.Handler):
    """Log handler of a worker: the crawl's process logs its records."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._loop = asyncio.get_running_loop()

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record, from any thread, unless the crawl's process logs it itself."""
        if record.name in COMMON_LOGGERS or record.__dict__.get("is_common"):
            return
        message = record.getMessage() if record.args else record.msg
        self._loop.call_soon_threadsafe(self._channel.send, Logged(record.name, record.levelno, message))


def start_worker() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start a worker process; return the crawl's end of its socket."""
    here, there = socket.socketpair()
    loop = "uvloop" if type(asyncio.get_running_loop()).__module__.startswith("uvloop") else "asyncio"
    words = [sys.executable, "-m", "curtsy.crawling.worker", str(there.fileno()), loop]
    path = os.pathsep.join(filter(None, sys.path))  # classes of the program's modules may be among the arguments
    with there:
        environment = {**os.environ, "PYTHONPATH": path}
        return here, subprocess.Popen(words, pass_fds=[there.fileno()], env=environment, stdin=subprocess.DEVNULL)

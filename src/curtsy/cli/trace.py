"""Trace of a fetch: its steps as lines (`-v`), or the current step on a terminal.

The client's store and sender are wrapped, because every step passes through one of them. The store's answers explain
waits; the sender's requests are those sent.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from curtsy.cli import console
from curtsy.core.decision import Wait
from curtsy.core.messages import because
from curtsy.core.policy import Policies
from curtsy.core.request import Failure, Headers, Reply, Request, whole_number
from curtsy.core.rules import Busy, Claimed, Known
from curtsy.core.time import span
from curtsy.http.sender import HttpSender, Limits, Sink
from curtsy.stores import Answer, AsyncStore, Step, WrappedStore
from curtsy.system.log import library_logger

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress import Progress as Columns

_log = library_logger("cli")

_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18}|\*)", re.ASCII)

SLOW_STORE = 1.0
"""Seconds after which a store that has not answered is reported."""

SHORTEST = 0.05
"""Seconds below which a wait is not shown."""

LINES = 10.0
"""Seconds between two lines on the progress of a download."""

UPPER_BOUNDS = ("in_flight", "trial")
"""Causes of waits whose seconds are the time until a lease expires: the wait ends with the other request."""


class Trace:
    """Listener to the steps of fetches. This base class ignores them."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.pause()

    def pause(self) -> None:
        """Clear the display before other output; the next step shows it again."""

    def waits(self, domain: str, wait: Wait) -> None:
        """Show that a request must wait; the domain is `global` for the rate of all hosts together."""

    def finds_rules(self, origin: str, answer: Claimed | Busy | Known, is_new: bool) -> None:
        """Show what is known of a robots.txt; `is_new` is True if it was requested just now."""

    def sends(self, request: Request) -> None:
        """Show that a request is sent."""

    def receives(self, size: int, total: int | None) -> None:
        """Show how many bytes of a download have arrived, of how many if the server said so."""

    def gets(self, reply: Reply, took: float) -> None:
        """Show a reply, or a failed request, with the seconds that it took."""

    def cause(self, domain: str, wait: Wait) -> str:
        """Return the cause of a wait in words."""
        if domain == "global":
            return f"the global rate of {self._policies.global_qps or 0:g} requests per second"
        return because(wait.because, self._policies.of(domain))


class TracedStore(WrappedStore):
    """Store that reports why requests wait."""

    def __init__(self, inner: AsyncStore, trace: Trace) -> None:
        super().__init__(inner)
        self._trace = trace
        self._wanted: set[str] = set()
        self._has_warned = False

    async def update(self, key: str, step: Step[Answer]) -> Answer:
        """Apply `step` to one record atomically, and return its answer."""
        timer = asyncio.get_running_loop().call_later(SLOW_STORE, self._warn)
        try:
            return self._report(key, await super().update(key, step))
        finally:
            timer.cancel()

    def _warn(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning("The store does not answer. No request is sent before it does", store=self.identity)

    def _report(self, key: str, answer: Answer) -> Answer:
        kind, _, name = key.partition(":")
        match answer[0] if isinstance(answer, tuple) else answer:  # a charge also returns the time
            case Wait() as wait:
                self._trace.waits(name or kind, wait)
            case Claimed() as claimed:
                self._wanted.add(name)
                self._trace.finds_rules(name, claimed, False)
            case (Busy() | Known()) as found:
                self._trace.finds_rules(name, found, name in self._wanted)
                if isinstance(found, Known):
                    self._wanted.discard(name)
        return answer


class TracedSender(HttpSender):
    """Sender that reports requests and replies."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(use_environment=True)
        self._trace = trace

    async def send(self, request: Request, limits: Limits) -> Reply:
        """Send one request, once."""
        return await self._traced(request, super().send(request, limits))

    async def stream(self, request: Request, limits: Limits, sink: Sink) -> Reply:
        """Send one request, once, and stream the body to the sink."""
        return await self._traced(request, super().stream(request, limits, _TracedSink(sink, self._trace)))

    async def _traced(self, request: Request, sending: Coroutine[Any, Any, Reply]) -> Reply:
        began = time.monotonic()
        self._trace.sends(request)
        reply = await sending
        self._trace.gets(reply, time.monotonic() - began)
        return reply


class _TracedSink:
    """Sink that reports the received size."""

    def __init__(self, inner: Sink, trace: Trace) -> None:
        self._inner = inner
        self._trace = trace
        self._came = 0
        """Bytes so far, with those of earlier attempts."""
        self._total: int | None = None

    @property
    def decodes(self) -> bool:
        """True if the body is decoded."""
        return self._inner.decodes

    def begin(self, status: int, headers: Headers) -> bool:
        """Record the expected size of a body."""
        self._came, self._total = 0, None
        if status == 206:  # rest of an earlier attempt
            if (found := _RANGE.match(headers.get("content-range") or "")) is not None:
                self._came, self._total = whole_number(found[1]) or 0, whole_number(found[2])
        elif status == 200 and not (self.decodes and "content-encoding" in headers):
            self._total = whole_number(headers.get("content-length"))
        return self._inner.begin(status, headers)

    async def write(self, piece: bytes) -> None:
        """Take the next piece."""
        self._came += len(piece)
        await self._inner.write(piece)
        self._trace.receives(self._came, self._total)


class DownloadLines:
    """Progress of a download as lines of text, one every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at = clock()
        self._told_size = 0

    def begin(self) -> None:
        """Start to count the time before the next line."""
        self._told_at, self._told_size = self._clock(), 0

    def line(self, size: int, total: int | None) -> str | None:
        """Return the line for `size` bytes so far, of `total` if that is known; None if the last one is recent."""
        passed = self._clock() - self._told_at
        if not self._told_size:
            self._told_size = size  # a resumed download has bytes of the earlier attempt
        if passed < LINES:
            return None
        rate = (size - self._told_size) / passed
        self._told_at, self._told_size = self._clock(), size
        words = [_received(size, total, rate)]
        if total is not None and rate:
            words.append(f"about {span(max(1.0, round((total - size) / rate)))} left")
        return ", ".join(words)


def _received(size: int, total: int | None, rate: float | None) -> str:
    """Return how much of a download has arrived, and its rate in bytes per second if that is known."""
    whole = "" if total is None else f" of {console.size(total)}"
    return f"{console.size(size)}{whole}" + ("" if rate is None else f", {console.size(rate)}/s")


class StepLines(Trace):
    """Trace that writes each step as a line on standard error, with the seconds since the start."""

    def __init__(self, policies: Policies, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(policies)
        self._download = DownloadLines(clock)
        self._began = time.monotonic()
        self._asked: Counter[str] = Counter()
        """Number of requests by method and URL."""
        self._hosts: dict[str, int] = {}
        """Requests by host, without a first one for robots.txt: 0 if only that was sent."""
        self._waits: dict[str, tuple[str, float]] = {}
        """Reason and end of the wait by host, so that a repeated wait is written once."""

    def line(self, text: str) -> None:
        """Write a line of text."""
        passed = time.monotonic() - self._began
        print(f"[{passed:6.2f} s] {console.plain(text)}", file=sys.stderr, flush=True)

    def waits(self, domain: str, wait: Wait) -> None:
        """Write a wait that is long enough."""
        if wait.seconds < SHORTEST:
            return
        most = "at most " if wait.because in UPPER_BOUNDS else ""
        text = f"waiting {most}{span(wait.seconds)} for {self.cause(domain, wait)}"
        if domain != "global":
            text += f" to {domain}" if wait.because in ("rate", "pause", "delay") else f" ({domain})"
            if self._hosts.get(domain) == 0:
                text += " after robots.txt"
        self._once(domain, wait.because, text, wait.seconds)

    def finds_rules(self, origin: str, answer: Claimed | Busy | Known, is_new: bool) -> None:
        """Write what is known of a robots.txt."""
        match answer:
            case Claimed(rules):
                is_expired = rules is not None and rules.is_known
                words = "has expired, and is requested again" if is_expired else "is unknown, and is requested first"
            case Known(rules, seconds):
                words = f"is valid for {span(seconds)}" if is_new else f"is known, valid for {span(seconds)}"
                words = f"cannot be fetched: {rules.why}" if rules.why else words
            case Busy():
                self._once(origin, "robots", f"{origin}/robots.txt is being requested by another process; waiting")
                return
        self.line(f"{origin}/robots.txt {words}")

    def _once(self, name: str, reason: str, text: str, seconds: float = 0.0) -> None:
        ends = time.monotonic() + seconds
        before = self._waits.get(name)
        if before is None or before[0] != reason or (seconds and ends > before[1] + 1.0):
            self._waits[name] = reason, ends
            self.line(text)

    def sends(self, request: Request) -> None:
        """Write a request, with its condition and the number of the attempt."""
        domain, is_rules = request.url.domain, request.url.target == "/robots.txt"
        self._waits.pop(domain, None)
        self._hosts[domain] = self._hosts[domain] + 1 if domain in self._hosts else int(not is_rules)
        key = f"{request.method} {request.url.text}"
        self._asked[key] += 1
        words = ""
        if "if-none-match" in request.headers or "if-modified-since" in request.headers:
            words = ", if modified"
        if "range" in request.headers:
            words = f", {request.headers['range']}"
        if self._asked[key] > 1:
            words += f" (attempt {self._asked[key]})"
        self.line(key + words)
        self._download.begin()

    def receives(self, size: int, total: int | None) -> None:
        """Write the progress of a download now and then."""
        if (words := self._download.line(size, total)) is not None:
            self.line(words)

    def gets(self, reply: Reply, took: float) -> None:
        """Write a reply."""
        if isinstance(reply, Failure):
            self.line(f"no response: {reply.detail}")
            return
        words = f"{reply.status}, {console.size(reply.wire_bytes)} in {console.brief(took)}"
        if reply.status == 304:
            words += ": the cached copy is still valid"
        elif 300 <= reply.status < 400 and (location := reply.headers.get("location")):
            words += f", to {location[:300]}"
        if retry_after := reply.headers.get("retry-after"):
            words += f", Retry-After: {retry_after[:100]}"
        self.line(words)


class Progress(Trace):
    """Trace that shows the current step on a terminal; elsewhere, only a long download writes lines."""

    def __init__(self, policies: Policies, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(policies)
        self._lines = DownloadLines(clock)
        self._is_shown = sys.stderr.isatty()
        self._live: Live | None = None
        self._bar: Columns | None = None
        """Progress of a download; None while no body arrives."""
        self._above = ExitStack()
        """Redirection of the log while the step is shown."""
        self._text = ""
        self._until = 0.0

    def waits(self, domain: str, wait: Wait) -> None:
        """Show a wait that is long enough, with the time left."""
        if wait.seconds >= SHORTEST:
            most = " at most" if wait.because in UPPER_BOUNDS else ""
            self._show(f"{domain}: waiting{most} for {self.cause(domain, wait)}", wait.seconds)

    def finds_rules(self, origin: str, answer: Claimed | Busy | Known, is_new: bool) -> None:
        """Show that another process requests a robots.txt."""
        if isinstance(answer, Busy):
            self._show(f"{origin}: another process requests its robots.txt")

    def sends(self, request: Request) -> None:
        """Show a request."""
        self._show(f"{request.method} {request.url.text}")
        self._lines.begin()

    def receives(self, size: int, total: int | None) -> None:
        """Show the progress of a download as a bar, or as lines without a terminal."""
        if not self._is_shown and (words := self._lines.line(size, total)) is not None:
            console.say(words)
        if self._bar is None and self._is_shown:
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Columns

            parts = (BarColumn(), TextColumn("{task.fields[received]}"), TimeRemainingColumn())
            bar = Columns(*parts, console=console.err())
            bar.add_task("", received="")
            self._show("", bar=bar)
        if self._bar is not None:
            words = _received(size, total, self._bar.tasks[0].speed)
            self._bar.update(self._bar.task_ids[0], total=total, completed=size, received=words)

    def _show(self, text: str, seconds: float = 0.0, bar: Columns | None = None) -> None:
        self._text, self._until, self._bar = text, time.monotonic() + seconds, bar
        if self._live is None and self._is_shown:
            self._live = self._above.enter_context(console.live(get_renderable=self._view))
            self._above.enter_context(console.logging_above(self._live.console))

    def _view(self) -> RenderableType:
        from rich.text import Text

        if self._bar is not None:
            return self._bar.get_renderable()
        left = self._until - time.monotonic()
        words = f"{span(left)}  " if left > 0 else ""
        return Text(f"{words}{console.plain(self._text)}", style="dim", no_wrap=True, overflow="ellipsis")

    def pause(self) -> None:
        """Clear the display before other output; the next step shows it again."""
        self._above.close()
        self._live = None

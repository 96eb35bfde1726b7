"""Listeners: `StepLines` writes each step as a line (`-v`), `Progress` shows the current step on a terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from curtsy.cli import console
from curtsy.cli.logs import logging_above
from curtsy.cli.trace import (
    Answered,
    Asking,
    Event,
    Receiving,
    RulesAwaited,
    RulesKnown,
    RulesWanted,
    Waiting,
)
from curtsy.core.message import Failure
from curtsy.core.messages import span
from curtsy.core.policy import Policies
from curtsy.observe.messages import because

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

TELLING = 0.05
"""Seconds below which a wait is not shown."""


def waiting_for(event: Waiting, policies: Policies) -> str:
    """Return the text of a wait."""
    if event.domain == "global":
        return f"the global rate of {policies.global_qps or 0:g} requests a second"
    return because(event.because, policies.of(event.domain))


class StepLines:
    """Listener that writes each step as a line on standard error, with the seconds since the start."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._began = time.monotonic()
        self._asked: Counter[str] = Counter()
        """Number of requests by method and URL."""
        self._hosts: dict[str, int] = {}
        """Requests by host, without a first one for robots.txt: 0 if only that was sent."""
        self._waits: dict[str, tuple[str, float]] = {}
        """Reason and end of the wait by host, so that a repeated wait is written once."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing: no resources are open."""

    def pause(self) -> None:
        """Do nothing: lines need no clearing before output."""

    def line(self, text: str) -> None:
        """Write a line of text."""
        passed = time.monotonic() - self._began
        print(f"[{passed:6.2f} s] {console.plain(text)}", file=sys.stderr, flush=True)

    def __call__(self, event: Event) -> None:
        """Write one step."""
        match event:
            case Waiting(domain, seconds, reason):
                self._wait(event, domain, seconds, reason)
            case RulesWanted(origin, is_renewal):
                known = "is to be asked for again" if is_renewal else "is not known, so it comes first"
                self.line(f"{origin}/robots.txt {known}")
            case RulesAwaited(origin):
                self._once(origin, "robots", f"{origin}/robots.txt is being asked for by somebody else; waiting")
            case RulesKnown(origin, seconds, is_remembered, why_not):
                known = f"is remembered, for {span(seconds)} still" if is_remembered else f"holds for {span(seconds)}"
                self.line(f"{origin}/robots.txt " + (f"could not be had: {why_not}" if why_not else known))
            case Asking():
                self._ask(event)
            case Answered():
                self.line(_reply(event))
            case Receiving():
                pass

    def _wait(self, event: Waiting, domain: str, seconds: float, reason: str) -> None:
        if seconds < TELLING:
            return
        text = f"waiting {span(seconds)} for {waiting_for(event, self._policies)}"
        if domain != "global":
            text += f" to {domain}" if reason in ("rate", "pause", "delay") else f" ({domain})"
            if self._hosts.get(domain) == 0:
                text += "; robots.txt was the first"
        self._once(domain, reason, text, seconds)

    def _once(self, name: str, reason: str, text: str, seconds: float = 0.0) -> None:
        ends = time.monotonic() + seconds
        before = self._waits.get(name)
        if before is None or before[0] != reason or (seconds and ends > before[1] + 1.0):
            self._waits[name] = reason, ends
            self.line(text)

    def _ask(self, event: Asking) -> None:
        request = event.request
        domain, is_rules = request.url.domain, request.url.target == "/robots.txt"
        self._waits.pop(domain, None)
        self._hosts[domain] = self._hosts[domain] + 1 if domain in self._hosts else int(not is_rules)
        key = f"{request.method} {request.url.text}"
        self._asked[key] += 1
        words = ""
        if "if-none-match" in request.headers or "if-modified-since" in request.headers:
            words = ", if it has changed since it was kept"
        if "range" in request.headers:
            words = f", {request.headers['range']}"
        if self._asked[key] > 1:
            words += f" (request {self._asked[key]} for it)"
        self.line(key + words)


def _reply(event: Answered) -> str:
    reply = event.reply
    if isinstance(reply, Failure):
        return f"no answer: {reply.detail}"
    words = f"{reply.status}, {console.size(reply.wire_bytes)} in {console.brief(event.took)}"
    if reply.status == 304:
        words += ": the kept copy still holds"
    elif 300 <= reply.status < 400 and (location := reply.headers.get("location")):
        words += f", to {location[:300]}"
    if retry_after := reply.headers.get("retry-after"):
        words += f", Retry-After: {retry_after[:100]}"
    return words


class Progress:
    """Listener that shows the current step on a terminal, without lasting output; silent elsewhere."""

    def __init__(self, policies: Policies) -> None:
        self._policies = policies
        self._live: Live | None = None
        self._above = ExitStack()
        """Redirection of the log while the step is shown."""
        self._is_shown = sys.stderr.isatty()
        self._text = ""
        self._until = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pause()

    def __call__(self, event: Event) -> None:
        """Show one step."""
        if not self._is_shown:
            return
        self._until = 0.0
        match event:
            case Waiting(domain, seconds):
                if seconds < TELLING:
                    return
                self._until = time.monotonic() + seconds
                self._text = f"{domain}: waiting for {waiting_for(event, self._policies)}"
            case Asking(request):
                self._text = f"{request.method} {request.url.text}"
            case RulesAwaited(origin):
                self._text = f"{origin}: somebody else asks for its robots.txt"
            case _:
                return
        if self._live is None:
            from rich.live import Live

            self._live = Live(
                console=console.err(), get_renderable=self._view, refresh_per_second=8, transient=True,
                redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._live.start()
            self._above.enter_context(logging_above(self._live.console))

    def _view(self) -> Text:
        from rich.text import Text

        left = self._until - time.monotonic()
        words = f"{span(left)}  " if left > 0 else ""
        return Text(f"{words}{console.plain(self._text)}", style="dim", no_wrap=True, overflow="ellipsis")

    def pause(self) -> None:
        """Clear the display before other output; the next step shows it again."""
        self._above.close()
        if self._live is not None:
            self._live.stop()
            self._live = None

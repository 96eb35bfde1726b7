"""Statistics of the hosts of a crawl, for display only."""

from __future__ import annotations

from collections.abc import Iterable

from curtsy.core.errors import REFUSALS, Reason
from curtsy.core.result import FetchResult
from curtsy.crawling.frontier.protocol import HostQueue
from curtsy.crawling.progress import HostProgress

MOST = 100_000
"""Maximum number of remembered hosts. Beyond it, the oldest is dropped."""

_STATES = {
    Reason.CIRCUIT_OPEN: "breaker open",
    Reason.DOMAIN_BUDGET_EXCEEDED: "budget spent",
    Reason.PAUSED: "paused",
}


class _Host:
    __slots__ = ("errors", "out", "pages", "pages_left", "ready_at", "requests_left", "state", "why")

    def __init__(self) -> None:
        self.pages = self.errors = self.out = 0
        self.state = "waiting"
        self.why = ""
        self.ready_at = 0.0
        self.requests_left: int | None = None
        self.pages_left: int | None = None


class Hosts:
    """Statistics of all hosts of a crawl."""

    def __init__(self) -> None:
        self._hosts: dict[str, _Host] = {}

    def _of(self, host: str) -> _Host:
        known = self._hosts.get(host)
        if known is None:
            if len(self._hosts) >= MOST:
                del self._hosts[next(iter(self._hosts))]
            known = self._hosts[host] = _Host()
        return known

    def began(self, host: str) -> None:
        """Count a started fetch."""
        self._of(host).out += 1

    def ended(self, host: str, result: FetchResult | None, wait: float | None, now: float, *, is_page: bool) -> None:
        """Record the result of a fetch. `wait`: seconds until the host may be requested again; None if unknown."""
        known = self._of(host)
        known.out = max(0, known.out - 1)
        known.ready_at = now + (wait or 0.0)
        known.state, known.why = "waiting", ""
        if result is None:
            return
        record = result.record
        if record.requests_left is not None:
            known.requests_left, known.pages_left = record.requests_left, record.pages_left
        known.pages += is_page
        if result.reason is None:
            return
        if result.reason in _STATES:
            known.state, known.why = _STATES[result.reason], result.message
        elif result.reason not in REFUSALS and result.reason is not Reason.REDIRECTED:
            known.errors += 1
            if result.retry_after is not None:
                known.state, known.why = "resting", result.message

    def count(self) -> int:
        """Return the number of remembered hosts."""
        return len(self._hosts)

    def progress(self, queues: Iterable[HostQueue], now: float, most: int) -> tuple[HostProgress, ...]:
        """Return at most `most` hosts: those in `queues` first, then the latest ones."""
        rows: dict[str, HostProgress] = {}
        for queue in queues:
            rows[queue.host] = self._row(queue.host, now, queue)
        for host in reversed(self._hosts):
            if len(rows) >= most:
                break
            if host not in rows:
                rows[host] = self._row(host, now, None)
        return tuple(rows.values())[:most]

    def _row(self, host: str, now: float, queue: HostQueue | None) -> HostProgress:
        known = self._hosts.get(host) or _Host()
        state, next_in = known.state, max(0.0, known.ready_at - now)
        if known.out:
            state = "fetching"
        elif queue is not None and queue.due_in is not None:
            next_in = queue.due_in
        elif queue is None and state == "waiting":
            state = "done"
        return HostProgress(
            host=host,
            state=state,
            pages=known.pages,
            errors=known.errors,
            queued=None if queue is None else queue.queued,
            next_in=None if state in ("done", "fetching") else next_in,
            requests_left=known.requests_left,
            pages_left=known.pages_left,
            why=known.why,
        )

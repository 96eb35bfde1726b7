"""Server-sent events: one connection per page, with the changes of its view as JSON.

The store is read only while a page is open. Without changes, only a keep-alive comment is sent.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from curtsy.core.errors import StoreError
from curtsy.observe.dashboard.board import Board
from curtsy.observe.dashboard.views import Query, fetches_of, host_of, overview_of, page_of
from curtsy.system.log import library_logger

EVERY = 1.0
"""Seconds between two refreshes."""

SILENCE = 15.0
"""Seconds after which a keep-alive comment is sent, so that proxies keep the connection open."""

MOST_VIEWERS = 50
"""Maximum number of open pages."""

_log = library_logger("dashboard")

_encode = msgspec.json.Encoder(enc_hook=str).encode


class Watch:
    """Periodic refreshes of the board, and the viewers that wait for them."""

    def __init__(self, board: Board, *, every: float = EVERY) -> None:
        self.board = board
        self._every = every
        self._viewers: set[_Viewer] = set()
        self._looking: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._looked_at = -1e9
        self.is_over = False

    @property
    def is_full(self) -> bool:
        """True if the maximum number of viewers is reached."""
        return len(self._viewers) >= MOST_VIEWERS

    async def refresh(self) -> None:
        """Refresh the board if it is older than the interval."""
        async with self._lock:
            if time.monotonic() - self._looked_at >= self._every:
                shown = {domain for viewer in self._viewers for domain in viewer.shown}
                self._looked_at = time.monotonic()
                try:
                    await asyncio.to_thread(self.board.look, shown)
                except Exception as error:  # a bug must not end the refreshes; the next may succeed
                    self.board.trouble = repr(error)
                    _log.error("Error in the dashboard", error=repr(error))

    async def hurry(self) -> None:
        """Refresh now and notify all viewers, after a change by a user."""
        self.board.hurry()
        self._looked_at = -1e9
        await self.refresh()
        self._wake()

    def stop(self) -> None:
        """End all streams, because the server stops. Callable from a signal handler."""
        self.is_over = True
        self._wake()

    def overview(self, query: Query) -> AsyncIterator[bytes]:
        """Return the overview, then its changes, as events."""
        viewer, board = _Viewer(), self.board
        last: dict[str, Any] = {}
        sent: dict[str, dict[str, Any]] = {}
        sampled_at = 0.0

        def changes() -> dict[str, Any]:
            nonlocal sent, sampled_at
            page = page_of(board, query)
            viewer.shown = tuple(row.view.domain for row in page.rows)
            table = {"matching": page.matching, "offset": page.offset, "order": list(viewer.shown)}
            found = _renew(last, overview_of(board) | table)
            rows = {row.view.domain: row.fields() for row in page.rows}
            if new := [row for domain, row in rows.items() if sent.get(domain) != row]:
                found["rows"] = new
            sent = rows
            if samples := [sample for sample in board.samples if sample.at > sampled_at]:
                found["samples"], sampled_at = samples, samples[-1].at
            return found and found | {"at": board.at}

        return self._events(viewer, changes)

    def host(self, domain: str) -> AsyncIterator[bytes]:
        """Return one host, then its changes, as events."""
        last: dict[str, Any] = {}

        def changes() -> dict[str, Any]:
            now: dict[str, Any] = {"trouble": self.board.trouble}
            try:
                found = host_of(self.board.store, self.board.settings(), domain)
                now |= found | {"at": None} | fetches_of(self.board, domain)
            except StoreError as error:
                now["trouble"] = str(error)
            changed = _renew(last, now)
            return changed and changed | {"at": self.board.at}

        return self._events(_Viewer((domain,)), changes)

    async def _events(self, viewer: _Viewer, changes: Callable[[], dict[str, Any]]) -> AsyncIterator[bytes]:
        self._viewers.add(viewer)
        try:
            if self._looking is None or self._looking.done():
                self._looking = asyncio.create_task(self._look())
            else:
                await self.refresh()
                viewer.woken.set()
            yield b"retry: 2000\n\n"
            while not self.is_over:
                try:
                    async with asyncio.timeout(SILENCE):
                        await viewer.woken.wait()
                except TimeoutError:
                    yield b": still here\n\n"
                    continue
                viewer.woken.clear()
                if self.is_over:
                    return
                if found := await asyncio.to_thread(changes):
                    yield b"data: " + _encode(found) + b"\n\n"
        finally:
            self._viewers.discard(viewer)

    async def _look(self) -> None:
        while self._viewers and not self.is_over:
            began = time.monotonic()
            await self.refresh()
            self._wake()
            await asyncio.sleep(max(0.05, self._every - (time.monotonic() - began)))

    def _wake(self) -> None:
        for viewer in tuple(self._viewers):
            viewer.woken.set()


class _Viewer:
    """An open page."""

    def __init__(self, shown: tuple[str, ...] = ()) -> None:
        self.shown = shown
        """Hosts shown on it."""
        self.woken = asyncio.Event()


def _renew(known: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Update the values that a viewer has; return those that have changed."""
    changed = {name: value for name, value in now.items() if name not in known or known[name] != value}
    known.update(changed)
    return changed

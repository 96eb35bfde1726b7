"""Watch on the store of the limits: a crawl pauses while no request may be sent because the store does not answer."""

from __future__ import annotations

from curtsy.core.errors import CurtsyError, PolicyError, StoreError
from curtsy.stores import AsyncStore
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("crawl")

LONGEST_OUTAGE = 60.0
"""Maximum seconds for which the start and the end of a crawl wait for its server, at most `patience`."""

STORE_RETRY = 0.25
"""Seconds between two checks of a store that is out; they only read what its own probes have found."""


class StoreOut(StoreError):
    """Error: the store does not answer, so no request may be sent."""

    def __init__(self, message: str, patience: float) -> None:
        super().__init__(message)
        self.patience = patience
        """Seconds for which the crawl waits for the store."""


class StoreWatch:
    """Watch of one crawl. It also keeps a process that sends no requests itself connected to the store."""

    def __init__(self, store: AsyncStore, patience: float) -> None:
        """Create a watch. `patience` is that of the crawl, in seconds."""
        self._store = store
        self._patience = patience
        self._is_asked = self._has_answered = False

    async def check(self) -> None:
        """Raise StoreOut while the store is out and requests wait for it. Raises PolicyError for an unusable store."""
        store = self._store
        if store.is_waiting or not self._is_asked:
            self._is_asked = True
            await store.now()  # contacts it once, and later lets the store probe whether it is back
        if not store.is_waiting:
            self._has_answered = True
            return
        if isinstance(store.outage, PolicyError):
            raise store.outage
        raise StoreOut(str(store.outage), self._patience if self._has_answered else min(LONGEST_OUTAGE, self._patience))


def warn_of_outage(error: CurtsyError) -> None:
    """Log that a crawl cannot end before its server answers."""
    _log.warning(f"{error} The crawl ends when the server answers.")

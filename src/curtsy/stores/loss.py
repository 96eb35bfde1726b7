"""Steps whose results are remembered, and the restoring of remembered records that a store has lost."""

from __future__ import annotations

from typing import Any, Protocol

from curtsy.core.host import Host, in_time
from curtsy.core.message import Now
from curtsy.core.record import Record
from curtsy.stores import Loss, Step

Sight = tuple[Record | None, Now, float]
"""Record as last seen, the store's time then, and the local monotonic time in seconds."""


class Memory(Protocol):
    """Memory of a store's records."""

    lost: dict[str, Sight]
    """Records to restore, by key."""

    def lose(self, loss: Loss) -> None:
        """Add the remembered records of a loss to `lost`."""
        ...


class Watch:
    """Observer of one store's losses."""

    def __init__(self, store: Any, memory: Memory) -> None:
        self._store = store
        self._memory = memory
        self._heard = len(getattr(store, "losses", ()))

    def lost(self) -> dict[str, Sight]:
        """Return the records to restore, by key. A store without `losses` cannot lose records."""
        losses = getattr(self._store, "losses", ())
        if len(losses) > self._heard:
            new = losses[self._heard :]
            whole = [loss for loss in new if loss.key is None][-1:]  # the last one includes the earlier ones
            for loss in (*whole, *[loss for loss in new if loss.key is not None]):
                self._memory.lose(loss)
            self._heard += len(new)
        return self._memory.lost


class Watched:
    """Step that keeps the time and the result of its last run. It restores a lost record before it runs."""

    __slots__ = ("_step", "_watch", "key", "now", "raised", "recalled", "record")

    record: Record | None
    now: Now

    def __init__(self, watch: Watch, key: str, step: Step[Any]) -> None:
        self._watch = watch
        self._step = step
        self.key = key
        self.raised: Exception | None = None
        self.recalled: Sight | None = None

    def __call__(self, record: Any, now: Now) -> tuple[Record | None, Any]:
        """Run the step."""
        self.now, self.raised = now, None
        lost = self._watch.lost()
        self.recalled = lost.get(self.key) if lost else None
        try:
            if self.recalled is not None:
                record = _recalled(record, *self.recalled[:2], now)
            self.record, answer = self._step(record, now)
            if self.recalled is not None and self.record is None:
                lost.pop(self.key, None)  # before the next step, which must find it removed
        except Exception as error:
            self.raised = error
            raise
        return self.record, answer


def _recalled(record: Record | None, lost: Record | None, then: Now, now: Now) -> Record | None:
    """Return the store's record, merged with the lost one, which was last seen at `then`."""
    if isinstance(record, Host) and isinstance(lost, Host):
        return in_time(record, now).caught_up(in_time(lost, now))
    if record is not None or lost is None:
        return record
    lasts = lost.lasts(then)
    return lost if lasts is None or now.at - then.at < lasts else None

"""Watched: steps whose outcome is remembered, and what a store has lost of what was remembered so."""

from __future__ import annotations

from typing import Any, Protocol

from curtsy.core.host import Host, in_time
from curtsy.core.message import Now
from curtsy.core.record import Record
from curtsy.stores import Loss, Step

Sight = tuple[Record | None, Now, float]
"""A record as it was last seen, the store's time then, and our own."""


class Memory(Protocol):
    """Who remembers what a store has."""

    lost: dict[str, Sight]
    """What is to be put there again."""

    def lose(self, loss: Loss) -> None:
        """Take note of a loss."""
        ...


class Watch:
    """Looks after what one store has lost."""

    def __init__(self, store: Any, memory: Memory) -> None:
        self._store = store
        self._memory = memory
        self._heard = len(getattr(store, "losses", ()))

    def lost(self) -> dict[str, Sight]:
        """What is to go back, by key. A store that cannot lose anything has no `losses`."""
        losses = getattr(self._store, "losses", ())
        if len(losses) > self._heard:
            new = losses[self._heard :]
            whole = [loss for loss in new if loss.key is None][-1:]  # the last one has all of those before it
            for loss in (*whole, *[loss for loss in new if loss.key is not None]):
                self._memory.lose(loss)
            self._heard += len(new)
        return self._memory.lost


class Watched:
    """A step, and what it saw and made when it last ran. What its store has lost is given back to it first."""

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
                lost.pop(self.key, None)  # at once: the next step must find it removed
        except Exception as error:
            self.raised = error
            raise
        return self.record, answer


def _recalled(record: Record | None, lost: Record | None, then: Now, now: Now) -> Record | None:
    """What the store has, with what it has lost; that was seen at `then`."""
    if isinstance(record, Host) and isinstance(lost, Host):
        return in_time(record, now).caught_up(in_time(lost, now))
    if record is not None or lost is None:
        return record
    lasts = lost.lasts(then)
    return lost if lasts is None or now.at - then.at < lasts else None

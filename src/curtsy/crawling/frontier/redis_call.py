"""Calls: what is sent to a Redis server at once, scripts by their names.

A script's KEYS are two: what all its keys begin with, and a name under which there is never anything. While a cluster
moves a slot, it answers TRYAGAIN to a call that names a key which is missing. So no script ever runs where a part of
what it needs has not arrived, though it names none of its keys.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from curtsy.stores.redis_url import Moving, NoScript

_PAUSE = 0.05
"""Seconds between two tries while a slot is on the move."""


class Script(NamedTuple):
    """A script, and the name by which a server knows it once it has seen it."""

    source: str
    sha: str

    def on(self, base: str, *arguments: Any) -> Call:
        """A call of it on the keys that begin with `base`."""
        return Call(("EVALSHA", self.sha, 2, base, f"{base}:moving", *arguments), self)


class Call(NamedTuple):
    """A command to be sent."""

    words: tuple[Any, ...]
    script: Script | None = None

    def spelled_out(self) -> Call:
        """The same for a server that does not know the script."""
        assert self.script is not None
        return Call(("EVAL", self.script.source, *self.words[2:]), self.script)


async def send(calls: Sequence[Call], client: Any) -> list[Any]:
    """Send all at once; the replies, errors among them. Goes on for ever if a slot never arrives: give it a timeout."""
    replies: list[Any] = [None] * len(calls)
    left = dict(enumerate(calls))
    task = asyncio.current_task()
    assert task is not None
    cancelled = task.cancelling()
    while left:
        got = dict(zip(left, await _exchange(list(left.values()), client), strict=True))
        unknown = {place: left[place].spelled_out() for place, reply in got.items() if isinstance(reply, NoScript)}
        if unknown:
            got.update(zip(unknown, await _exchange(list(unknown.values()), client), strict=True))
        for place, reply in got.items():
            replies[place] = reply
        left = {place: left[place] for place, reply in got.items() if type(reply) in Moving}
        if left:
            if task.cancelling() > cancelled:  # redis-py sometimes takes a cancellation for a reply that failed
                raise asyncio.CancelledError
            await asyncio.sleep(_PAUSE)
    return replies


async def _exchange(calls: list[Call], client: Any) -> list[Any]:
    async with client.pipeline(transaction=False) as pipeline:
        for call in calls:
            pipeline.execute_command(*call.words)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

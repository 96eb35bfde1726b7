"""Pipelined commands for a Redis server, with scripts called by their SHA-1.

A script's KEYS are the common prefix of its keys and a name that never exists. While a cluster moves a slot, it answers
TRYAGAIN to a call that names a missing key. So no script runs where some of its keys have not arrived, though it names
none of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

from curtsy.stores.redis_url import Moving, NoScript

_PAUSE = 0.05
"""Seconds between two tries while a slot is being moved."""


class Script(NamedTuple):
    """Lua script with the SHA-1 by which a server caches it."""

    source: str
    sha: str

    def on(self, base: str, *arguments: Any) -> Call:
        """Return a call of the script on the keys that begin with `base`."""
        return Call(("EVALSHA", self.sha, 2, base, f"{base}:moving", *arguments), self)


class Call(NamedTuple):
    """Command to send."""

    words: tuple[Any, ...]
    script: Script | None = None

    def spelled_out(self) -> Call:
        """Return the call with the script's source for a server that has not cached it."""
        assert self.script is not None
        return Call(("EVAL", self.script.source, *self.words[2:]), self.script)


async def send(calls: Sequence[Call], client: Any) -> list[Any]:
    """Send all calls at once; return the replies, errors included.

    It retries until every slot has arrived, so the caller must set a timeout.
    """
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
            if task.cancelling() > cancelled:  # redis-py may report a cancellation as a failed reply
                raise asyncio.CancelledError
            await asyncio.sleep(_PAUSE)
    return replies


async def _exchange(calls: list[Call], client: Any) -> list[Any]:
    async with client.pipeline(transaction=False) as pipeline:
        for call in calls:
            pipeline.execute_command(*call.words)
        replies: list[Any] = await pipeline.execute(raise_on_error=False)
        return replies

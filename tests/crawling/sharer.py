"""A process of its own that takes part in a shared crawl of a site in its head: `python -m tests.crawling.sharer …`.

It does what a crawl does, without the web, and says what it does, each line with its monotonic time, which all
processes of a machine have in common.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from curtsy.core.errors import StoreError
from curtsy.crawling.frontier.protocol import Claimed, Done, Ending, Found, Lapsed, host_of
from curtsy.crawling.frontier.redis import RedisFrontier
from tests.crawling.worker import links, page
from tests.support.polling import block_until, until
from tests.support.warm import Process

IN_FLIGHT = 6


def say(*words: object) -> None:
    print(*words, flush=True)


async def crawl(url: str, job: str, lease: float, pages: int) -> None:
    """Go on until nothing is left, with anybody."""
    frontier = RedisFrontier(url, job, lease=lease, concurrency=2, timeout=5.0)
    dice = random.Random()
    flying: list[Claimed] = []
    is_begun = False

    async def is_over() -> bool:
        """Crawl all pages that are due; return whether no pages are left."""
        nonlocal is_begun
        try:
            if not is_begun:
                await frontier.add(Found([page(0)]))
                is_begun = True
            while True:
                claims = await frontier.claim(IN_FLIGHT - len(flying))
                for claimed in claims:
                    say("claimed", claimed.url, time.monotonic(), claimed.leased_until)
                flying.extend(claims)
                if not flying:
                    return await frontier.due_in() is None
                count = dice.randint(1, len(flying))
                await conclude(frontier, flying[:count], pages)
                del flying[:count]
        except StoreError as error:  # it pauses, and goes on by itself
            say("trouble", type(error).__name__, time.monotonic(), 0)
            return False

    await until(is_over, within=math.inf, every=0.02)
    say("over", "-", time.monotonic(), 0)
    await frontier.close()


async def conclude(frontier: RedisFrontier, landed: Sequence[Claimed], pages: int) -> None:
    endings = [
        Ending(claimed, Done(), [Found(links(number, "tree", pages), claimed.depth + 1, parent=claimed.url)])
        for claimed in landed
        for number in [int(claimed.url.rpartition("/")[2])]
    ]
    for claimed in landed:
        say("ending", claimed.url, time.monotonic(), 0)
    try:
        ended = await frontier.conclude(endings)
    except Lapsed:  # what is still our own can be ended without the others
        kept = list(itertools.compress(landed, await frontier.keep(landed)))
        await conclude(frontier, kept, pages)
        return
    for claimed, is_valid in zip(landed, ended, strict=True):
        say("ended", claimed.url, time.monotonic(), int(is_valid))


class Event(NamedTuple):
    """What a process said."""

    what: str
    url: str
    at: float
    word: float
    """The end of the lease, or whether it was valid."""


class Sharer:
    """Such a process, as a test sees it."""

    def __init__(self, url: str, job: str, lease: float, pages: int) -> None:
        self.process: Process[str] = Process(
            "tests.crawling.sharer", url, job, lease, pages, text=True, stdout=subprocess.PIPE
        )
        self.events: list[Event] = []
        self.is_killed = False
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):
                what, url, at, word = line.split()
                self.events.append(Event(what, url, float(at), float(word)))
        self.process.stdout.close()

    def wait_for_events(self, count: int) -> None:
        """Wait until it has said so much, or is over."""
        block_until(lambda: len(self.events) >= count or self.process.poll() is not None)

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.is_killed = self.end() != 0

    def end(self) -> int:
        """Wait until it ends; its exit code."""
        code = self.process.wait(timeout=120)
        self._reading.join(timeout=30)
        return code

    def __enter__(self) -> Sharer:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.end()


def busiest(sharers: Sequence[Sharer], count: int) -> Sharer:
    """Wait until one of them has said so much; which one."""
    return block_until(lambda: [sharer for sharer in sharers if len(sharer.events) >= count])[0]


def filters(sharers: Sequence[Sharer], pages: int) -> None:
    """Nothing lost, nothing handed out twice while its lease lived, no host with two workers at once."""
    wholes = [(sharer, event) for sharer in sharers for event in sharer.events]
    claims = sorted(
        ((event, sharer) for sharer, event in wholes if event.what == "claimed"), key=lambda pair: pair[0].at
    )
    assert {event.url for event, _ in claims} == {page(number) for number in range(pages)}, "lost"
    begun = {(id(sharer), event.url): event.at for sharer, event in wholes if event.what == "ending"}
    held: dict[str, list[tuple[float, Event, Sharer]]] = {}
    for event, sharer in claims:
        # The lease began before the claim was told, and may have ended as soon as its end was being told.
        until = min(event.word, begun.get((id(sharer), event.url), event.word))
        for other_until, other, holder in held.get(host_of(event.url), []):
            if holder is not sharer or other.url == event.url:
                assert event.at >= other_until, f"{event} while another had {other}"
        held.setdefault(host_of(event.url), []).append((until, event, sharer))
    for sharer in sharers:
        if not sharer.is_killed:
            assert sharer.process.returncode == 0
            assert sharer.events[-1].what == "over"


def main() -> None:
    asyncio.run(crawl(sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])))


if __name__ == "__main__":
    main()

"""A process whose system clock is set: `python -m tests.client.traveller '{"settings": …, "url": …, "legs": …}'`.

For each leg `[off, pages]`, the calendar is off by so many seconds, and so many pages are requested. The boot clock
is left alone, as on a machine whose clock an operator or a time server sets. The reasons go to standard output.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from curtsy.client import AsyncClient
from curtsy.core.errors import Reason

_time, _time_ns = time.time, time.time_ns


def set_clock(off: float) -> None:
    """Set the clock of this process, which must be its only one."""
    time.time = lambda: _time() + off
    time.time_ns = lambda: _time_ns() + round(off * 1e9)


async def travel(settings: dict[str, Any], url: str, legs: list[tuple[float, int]]) -> list[list[Reason | None]]:
    """Request pages with the clock off by this and that much, by one client."""
    reasons = []
    set_clock(legs[0][0])
    async with AsyncClient(**settings) as client:
        for number, (off, pages) in enumerate(legs):
            set_clock(off)
            reasons.append([(await client.fetch(f"{url}/{off}/{number}/{each}")).reason for each in range(pages)])
    return reasons


def main() -> None:
    """Travel, and say what came of it."""
    task = json.loads(sys.argv[1])
    print(json.dumps(asyncio.run(travel(task["settings"], task["url"], task["legs"]))))


if __name__ == "__main__":
    main()

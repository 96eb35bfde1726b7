"""A process of its own that crawls a site in its head: `python -m tests.crawling.worker <folder> <shape> <pages>`.

It does what a crawl does, without the web: claims URLs, notes each in a journal as if it had been asked for, writes a
line for each page to an output, and ends the claims, links and the output's length in one piece. It says every page
that is done.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from curtsy.crawling.frontier.protocol import Claimed, Done, Ending, Found
from tests.crawling.driven import local
from tests.support.warm import Process

ROOT = Path(__file__).parents[2]
IN_FLIGHT = 8


def page(number: int) -> str:
    """The URL of a page of the site, which lies on seven hosts."""
    return f"https://host{number % 7}.example.org/page/{number}"


def links(number: int, shape: str, pages: int) -> list[str]:
    """What a page links to: one of them to all (fan), or each to the two below it and some above (tree)."""
    if shape == "fan":
        return [page(other) for other in range(pages)] if number == 0 else [page(0)]
    dice = random.Random(number)
    below = [2 * number + 1, 2 * number + 2, *(dice.randrange(number + 1) for _ in range(3))]
    return [page(other) for other in below if other < pages]


def crawl(folder: Path, shape: str, pages: int) -> None:
    """Go on until nothing is left."""
    frontier = local(folder / "frontier.sqlite", concurrency=2)
    with (folder / "journal").open("ab", buffering=0) as journal, (folder / "output").open("ab", buffering=0) as output:
        output.truncate(frontier.notes().get("output", 0))
        output.seek(0, os.SEEK_END)
        frontier.add([page(0)])
        flying: list[Claimed] = []
        dice = random.Random()
        while True:
            claims = frontier.claim(IN_FLIGHT - len(flying))
            journal.write("".join(f"{claimed.url}\n" for claimed in claims).encode())
            flying += claims
            if not flying:
                break
            landed = [flying.pop(dice.randrange(len(flying))) for _ in range(dice.randint(1, len(flying)))]
            endings = []
            for claimed in landed:
                number = int(claimed.url.rpartition("/")[2])
                found = Found(links(number, shape, pages), depth=claimed.depth + 1, parent=claimed.url)
                output.write(f"{claimed.url}\n".encode())
                endings.append(Ending(claimed, Done(), [found]))
            frontier.conclude(endings, {"output": output.tell()})
            print("".join(f"{claimed.url}\n" for claimed in landed), end="", flush=True)
    frontier.close()


class Worker:
    """Such a process, as a test sees it."""

    def __init__(self, folder: Path, shape: str, pages: int) -> None:
        self.process: Process[str] = Process(
            "tests.crawling.worker", folder, shape, pages, text=True, stdout=subprocess.PIPE
        )

    def wait_until_first_page(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.readline()

    def kill(self, after: float) -> bool:
        """End it with SIGKILL, in so many seconds; whether it was still at work."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=after)
        self.process.kill()
        self.process.communicate(timeout=120)
        return self.process.returncode == -signal.SIGKILL

    def end(self) -> int:
        """Wait until it ends by itself; its exit code."""
        self.process.communicate(timeout=120)
        return self.process.returncode


def main() -> None:
    crawl(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))


if __name__ == "__main__":
    main()

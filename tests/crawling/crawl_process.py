"""A crawl in a process of its own: `python -m tests.crawling.crawl_process <options as JSON>`, to be killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from curtsy.crawling.outputs import open_output
from curtsy.crawling.results import CrawledPage, SkippedUrl
from curtsy.crawling.start import acrawl
from tests.support.polling import PATIENCE, block_until
from tests.support.warm import Process

ROOT = Path(__file__).parents[2]


class Standstill:
    """An output that stops its process at a page, when it stands in the outputs before and nobody else knows of it."""

    name = "standstill"

    def __init__(self, after: int) -> None:
        self._left = after

    def open(self, state: Any | None) -> None:
        """There is nothing to open."""

    def page(self, page: CrawledPage) -> None:
        """Count it."""
        self._left -= 1

    def skipped(self, skipped: SkippedUrl) -> None:
        """Pass it over."""

    def flush(self) -> None:
        """Stop, once."""
        if self._left <= 0:
            self._left = sys.maxsize
            print("still", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)

    def close(self) -> None:
        """There is nothing to close."""


async def crawl(options: dict[str, Any], *, is_held: bool) -> int:
    """Crawl to the end, or until SIGTERM, and say how it was. An output may be the arguments of `open_output`."""
    given = options.get("outputs", ())
    options["outputs"] = [open_output(**each) if isinstance(each, dict) else each for each in given]
    if (still_after := options.pop("still_after", None)) is not None:
        options["outputs"].append(Standstill(still_after))
    async with acrawl(options.pop("seeds"), **options) as crawl:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, crawl.stop)
        if is_held:
            print("ready", flush=True)
            sys.stdin.readline()
        summary = await crawl.run()
    print(json.dumps(summary.as_dict()), flush=True)
    return 0


class CrawlProcess:
    """Such a process."""

    def __init__(self, *, is_held: bool = False, **options: Any) -> None:
        """`is_held` has it stand ready until `begin`; with `still_after`, it stops itself after so many pages."""
        self.said = ""
        """What it had said when it was killed, or ended before."""
        pipe = subprocess.PIPE
        self._process: Process[str] = Process(
            "tests.crawling.crawl_process", json.dumps(options), *(["held"] * is_held),
            text=True, stdin=pipe, stdout=pipe, stderr=pipe,
        )  # fmt: skip
        if is_held:
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == "ready\n", self._process.communicate()

    def begin(self) -> None:
        """Let it go, if it was held."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """Have it end in good order."""
        self._process.send_signal(signal.SIGTERM)

    def wait_until_still(self) -> None:
        """Wait until it has stopped itself, as `still_after` says."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "still\n", self._process.communicate()

    def go_on(self) -> None:
        """Wake it up."""
        self._process.send_signal(signal.SIGCONT)

    def kill_when(self, condition: Callable[[], bool], within: float = PATIENCE) -> bool:
        """Kill it as soon as something is so; False if it had ended before."""
        block_until(lambda: self._process.poll() is not None or condition(), within=within, every=0.001)
        is_killed = self._process.poll() is None
        self._process.send_signal(signal.SIGKILL)
        self.said, errors = self._process.communicate()
        assert is_killed or self._process.returncode == 0, errors
        return is_killed

    def summary(self, within: float = PATIENCE) -> dict[str, Any]:
        """Wait for its end, and for what it says then."""
        said, errors = self._process.communicate(timeout=within)
        assert self._process.returncode == 0, errors
        found: dict[str, Any] = json.loads(said)
        return found


def main() -> int:
    return asyncio.run(crawl(json.loads(sys.argv[1]), is_held="held" in sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())

"""Files to download: their content, and sites that break off in the middle of it."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from tests.support.site import Reply, Visit

P = ParamSpec("P")
T = TypeVar("T")

CONTENT = random.Random(15).randbytes(300_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def files(path: Path) -> list[str]:
    """What lies where a file shall be."""
    return sorted(each.name for each in path.parent.iterdir()) if path.parent.exists() else []


def cut(content: bytes, after: int, **headers: str) -> Reply:
    """The file, broken off."""
    return Reply(body=content, headers={"ETag": '"1"', **headers}, stop_after=after, end="close")


def served(content: bytes, first: Reply, etag: str | None = '"1"', **headers: str) -> Callable[[Visit], Reply]:
    """A file whose first answer is another, and that can be had in part later."""
    turns = [first]

    def answer(visit: Visit) -> Reply:
        if turns:
            return turns.pop()
        fields = {**({"ETag": etag} if etag else {}), **headers}
        wanted, condition = visit.header("Range"), visit.header("If-Range")
        if wanted is None or (condition is not None and condition not in fields.values()):
            return Reply(body=content, headers=fields)
        start = int(wanted.removeprefix("bytes=").partition("-")[0])
        fields["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return Reply(206, content[start:], fields)

    return answer


class SlowThreads(ThreadPoolExecutor):
    """Threads of an event loop, one of which takes its time with the next work when told so, as a slow disk does."""

    def __init__(self) -> None:
        super().__init__()
        self.has_begun = threading.Event()
        """Whether that work is in the hands of its thread."""
        self.may_go_on = threading.Event()
        self._is_next = False

    def dawdle(self, *_: object) -> None:
        """Take time with what comes next, until it may go on."""
        self._is_next = True

    def submit(self, work: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> Future[T]:
        """Have something done in a thread."""
        if not self._is_next:
            return super().submit(work, *args, **options)
        self._is_next = False

        def late() -> T:
            self.has_begun.set()
            assert self.may_go_on.wait(30)
            return work(*args, **options)

        return super().submit(late)

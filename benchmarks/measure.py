"""Measuring: CPU time in alternating rounds, stalls of an event loop, memory, and servers to measure against."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeVar

T = TypeVar("T")

BEAT = 0.01
"""Seconds between two heartbeats."""


class Heartbeat:
    """Task that measures the longest stall of its event loop, while the context is open.

    The time that its thread was ready and waited for a core is left out: other processes cause it.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        """Longest stall in seconds."""

    async def _beat(self) -> None:
        while True:
            began, waited = time.monotonic(), self._waited()
            await asyncio.sleep(BEAT)
            stall = time.monotonic() - began - BEAT
            if stall > self.longest:
                self.longest = max(self.longest, stall - (self._waited() - waited))

    def _waited(self) -> float:
        """Return the seconds that this thread was ready to run and had no core."""
        return int(os.pread(self._schedule, 100, 0).split()[1]) / 1e9

    async def __aenter__(self) -> Self:
        self._schedule = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._task = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *error: object) -> None:
        self._task.cancel()
        os.close(self._schedule)


def event_loop() -> Any:
    """Return uvloop's event loop factory if it is installed; None for asyncio's own."""
    try:
        return import_module("uvloop").new_event_loop
    except ImportError:
        return None


def cpu(work: Callable[[], object], count: int) -> float:
    """Return the microseconds of CPU time of one call, over `count` calls."""
    gc.collect()
    began = time.process_time()
    for _ in range(count):
        work()
    return (time.process_time() - began) / count * 1e6


def alternate(candidates: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return the figures of all rounds. The candidates take turns, so that they share the load of the machine."""
    found: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, measured in candidates.items():
            found[name].append(measured())
    return found


def ratios(figures: list[float], base: list[float]) -> list[float]:
    """Return the ratio of two figures for each round."""
    return [one / other for one, other in zip(figures, base, strict=True)]


def memory(field: str, pid: int | str = "self") -> float:
    """Return the bytes of memory of a process: VmRSS for now, VmHWM for its peak; 0 if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return 0.0


def in_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function in a new process, so that its memory is its own."""
    import multiprocessing  # not at the top: crawlers import this module, and their memory is measured

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def homes(folder: str) -> dict[str, str]:
    """Return the environment variables of a user whose settings, state and cache are in this folder."""
    return dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), folder)


@functools.cache
def is_installed(name: str) -> bool:
    """Return whether a program or module is installed. A missing one is named, once, and left out."""
    if shutil.which(name) or find_spec(name.replace("-", "_")):
        return True
    print(f"  {name} is not installed and is left out")
    return False


@contextlib.contextmanager
def redis_server() -> Iterator[str]:
    """Start a Redis server on a free port of loopback; yield its URL, without a database number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        words = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        try:
            _wait_for(port)
            yield f"redis://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def server_cpu(url: str) -> float:
    """Return the seconds of CPU time that a Redis server has used."""
    with import_module("redis").Redis.from_url(url) as client:
        used = client.info("cpu")
        return float(used["used_cpu_user"] + used["used_cpu_sys"])


def _wait_for(port: int) -> None:
    ends = time.monotonic() + 10
    while time.monotonic() < ends:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise TimeoutError("redis-server did not start within 10 s")

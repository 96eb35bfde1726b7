"""Processes whose state file cannot be used: one budget between them, by what the site saw (B8, C18, F38, F40)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from curtsy.client import AsyncClient
from curtsy.core.errors import Reason
from curtsy.stores.fallback import AsyncFallbackStore
from curtsy.stores.outage_ledger import OutageLedger
from curtsy.stores.sqlite import AsyncSQLiteStore
from tests.client.fetching import AGENT, UNPACED
from tests.support.bounds import Slowness
from tests.support.noon import zone_at_noon
from tests.support.polling import block_until, until
from tests.support.site import Site
from tests.support.small_disk import small_disk
from tests.support.stores import sqlite_store
from tests.support.warm import Process

LIMIT = 5


def settings(store: object) -> dict[str, Any]:
    return {
        "store": store, "cache": False, "allow_private": True, "user_agent": AGENT, "respect_robots": False,
        "max_requests_per_day": LIMIT, "max_pages_per_day": 0, "timezone": zone_at_noon(), **UNPACED,
    }  # fmt: skip


def start(path: Path, site: Site, pages: int, name: str = "x") -> Process[str]:
    """A process that requests some pages, one after the other."""
    urls = [[site.url(f"/{name}/{number}") for number in range(pages)]]
    task = json.dumps({"settings": settings(f"sqlite:///{path}"), "urls": urls, "max_in_flight": 1})
    return Process("tests.client.worker", task, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(path: Path, site: Site, pages: int, name: str = "x") -> None:
    process = start(path, site, pages, name)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def spent(path: Path) -> int:
    """What the state file says."""
    store = sqlite_store(path)
    [host] = [store.read(key) for key in store.keys("host:")]
    store.close()
    return int(host.days[-1].requests)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    with small_disk(tmp_path, 1) as place:
        yield place


def fill(disk: Path) -> Callable[[], object]:
    with (disk / "ballast").open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096 and os.statvfs(disk).f_bavail:
            pass
    return (disk / "ballast").unlink


def protect(disk: Path) -> Callable[[], object]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    return lambda: subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


@pytest.mark.parametrize("how", [fill, protect])
@pytest.mark.parametrize("before", [0, 2])
def test_processes_that_cannot_write_have_one_budget_between_them(
    site: Site, disk: Path, how: Callable[[Path], Callable[[], object]], before: int
) -> None:
    """B8, F40: they start from what can be read, and what they counted goes home when there is room"""
    site.page("/*", "x")
    path = disk / "state.sqlite"
    if before:
        run(path, site, before, "before")
    heal = how(disk)

    for number in range(3):
        run(path, site, 2, f"out-{number}")
    assert len(site.journal) == LIMIT
    heal()
    run(path, site, 2, "after")

    assert len(site.journal) == LIMIT
    assert spent(path) == LIMIT
    assert OutageLedger(str(path)).keys() == []


def test_processes_at_once_that_cannot_write_have_one_budget_between_them(site: Site, tmp_path: Path) -> None:
    """B4, B8: though there was never a file"""
    site.page("/*", "x")
    (tmp_path / "file").write_text("not a folder")
    path = tmp_path / "file" / "state.sqlite"

    processes = [start(path, site, 3, f"{number}") for number in range(4)]
    for process in processes:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err

    assert len(site.journal) == LIMIT


async def test_a_full_disk_that_has_the_ledger_too_loses_no_request(
    site: Site, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B8: a process counts alone then, and brings home what it has counted"""
    site.page("/*", "x")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(disk))
    path = disk / "state.sqlite"
    run(path, site, 1, "before")
    async with AsyncClient(**settings(f"sqlite:///{path}")) as client:
        heal = fill(disk)

        for number in range(3):
            await client.fetch(site.url(f"/{number}"))
        heal()

    assert len(site.journal) == 4
    assert spent(path) == 4


def test_processes_killed_while_they_cannot_write_overrun_no_budget(site: Site, tmp_path: Path) -> None:
    """F38: charged before it is sent, in an outage too"""
    site.page("/*", "x")
    (tmp_path / "file").write_text("not a folder")

    for number in range(4):
        process = start(tmp_path / "file" / "state.sqlite", site, 4, f"{number}")
        seen = len(site.journal)
        block_until(lambda: not len(site.journal) == seen < LIMIT or process.poll() is not None)  # noqa: B023
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=120)

    assert 1 <= len(site.journal) <= LIMIT


_HOLDER = """
import sys, time
from curtsy.stores.sqlite_records import RecordFile
def work(draft):
    print("held", flush=True)
    time.sleep(60)
RecordFile(sys.argv[1], patience=1.0).transact(work)
"""


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Callable[[], object]]:
    """A process that is stopped in the middle of its turn to write the state file, and how to let it go on."""
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path / "state.sqlite")], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    holder.send_signal(signal.SIGSTOP)
    yield holder.kill
    holder.kill()
    holder.communicate()


@pytest.mark.alone
async def test_a_process_that_is_stopped_while_it_writes_holds_nobody_up(
    site: Site, tmp_path: Path, stopped: Callable[[], object]
) -> None:
    """C18: the wait is bounded for all at once, deadlines hold, the loop goes on; then the store is used again"""
    site.page("/*", "x")
    path = tmp_path / "state.sqlite"
    store = AsyncFallbackStore(AsyncSQLiteStore(path, patience=0.5))
    lags = []

    async def watch() -> None:
        while True:
            start = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - start - 0.01)

    async with AsyncClient(**{**settings(store), "max_requests_per_day": 100}) as web:

        async def is_back() -> bool:
            if not store.is_out and not store.held:
                return True
            await web.fetch(site.url("/again"))
            return False

        with Slowness() as machine:
            watching = asyncio.create_task(watch())
            start = time.monotonic()
            late = asyncio.create_task(web.fetch(site.url("/late"), deadline=0.2))
            results = [asyncio.create_task(web.fetch(site.url(f"/{number}"))) for number in range(40)]
            resolved = await asyncio.get_running_loop().getaddrinfo("localhost", 80)  # by the pool that others use too
            resolving = time.monotonic() - start
            reason = (await late).reason
            late_after = time.monotonic() - start
            oks = [(await result).ok for result in results]
            all_after = time.monotonic() - start
            watching.cancel()
        stopped()
        await until(is_back, every=0.05)

    assert resolved
    assert resolving < 0.4 * machine.wall
    assert reason is Reason.DEADLINE
    assert late_after < 0.45 * machine.wall
    assert all(oks)
    assert all_after < 4 * machine.wall
    assert max(lags) < 0.3 * machine.wall
    assert spent(path) == len(site.journal)


def test_a_lock_of_another_program_is_waited_for_once(site: Site, tmp_path: Path) -> None:
    """C18: then the process goes on from what it can read"""
    site.page("/*", "x")
    path = tmp_path / "state.sqlite"
    run(path, site, 2, "before")
    program = sqlite3.connect(path, isolation_level=None)
    program.execute("BEGIN IMMEDIATE")

    async def fetch() -> list[Reason | None]:
        store = AsyncFallbackStore(AsyncSQLiteStore(path, patience=0.2))
        async with AsyncClient(**settings(store)) as web:
            return [(await web.fetch(site.url(f"/{number}"))).reason for number in range(5)]

    reasons = asyncio.run(fetch())
    program.close()

    assert reasons == [None, None, None, Reason.DOMAIN_BUDGET_EXCEEDED, Reason.DOMAIN_BUDGET_EXCEEDED]
    assert len(site.journal) == LIMIT

"""Chromium: renderer of pages by one browser, for `render=True` (extra `render`)."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import signal
from collections.abc import AsyncIterator
from typing import Literal
from weakref import WeakValueDictionary

from curtsy.core.effects import Render
from curtsy.core.errors import PolicyError, Reason, not_imported
from curtsy.core.request import Failure, Reply
from curtsy.core.setting import number, whole
from curtsy.engine.renderer import Fetch
from curtsy.system.log import LibraryLogger, library_logger

try:
    from playwright.async_api import Browser, CDPSession, Error, Playwright, async_playwright
except ImportError as error:
    raise not_imported("render needs the library Playwright", "playwright", "render", error) from error

from curtsy.rendering.visit import Visit

__all__ = ["Chromium"]

_log: LibraryLogger = library_logger("render")

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Names of a system's Chromium. Without one, Playwright's is used."""

NOWHERE = "http://127.0.0.1:9"
"""Proxy of the browser: nothing listens at the discard port, so that the browser has no network of its own."""

FLAGS = (
    "--host-resolver-rules=MAP * ~NOTFOUND", "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-gpu",
    "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
)  # fmt: skip

HTML = frozenset({"text/html", "application/xhtml+xml"})

IN_FLIGHT = 6
"""Parts of pages that are requested from a host at the same time, as browsers do by HTTP/1.1."""

SERVED = 500
"""Pages after which a new browser is started, because a browser grows."""

EVERY = 0.2
"""Seconds between two looks at the memory of the browser's processes."""

MIB = 1 << 20


class Chromium:
    """Renderer of pages by one browser, which is started for the first page.

    A page is ready when nothing was requested for half a second. After `seconds`, its present DOM counts. `pages`
    limits the pages at the same time. A page whose process takes more than `memory` bytes is given up; outside Linux
    only the memory of its scripts is limited. `third_party="deny"` refuses the scripts of other sites; else they wait
    for the turn of their host.
    """

    def __init__(
        self,
        *,
        seconds: float = 30.0,
        memory: int = 1024 * MIB,
        pages: int = 4,
        third_party: Literal["pace", "deny"] = "pace",
    ) -> None:
        self._seconds = number("seconds", seconds)
        self._memory = whole("memory", memory, 64 * MIB)
        self._pages = whole("pages", pages, 1)
        self._denies_third_party = third_party == "deny"
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begin()

    def _begin(self) -> None:
        """Forget the browser of an earlier event loop, which has ended with it."""
        self._places = asyncio.Semaphore(self._pages)
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """Slots of hosts for parts that do not wait for a turn."""
        self._opening = asyncio.Lock()
        self._running: _Running | None = None

    async def render(self, effect: Render, max_body: int | None, fetch: Fetch) -> Reply:
        """Return the page with its DOM as the body, at most `max_body` bytes; other content is returned as it is."""
        kind = (effect.page.headers.get("content-type") or "").partition(";")[0].strip().lower()
        if kind not in HTML or effect.request.method != "GET":
            return effect.page
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._loop = loop
            self._begin()
        until = math.inf if effect.left is None else loop.time() + effect.left
        async with self._places:
            why = ""
            for _ in range(2):  # the page itself need not be what ended the browser
                async with self._browser() as running:
                    seconds = max(0.0, min(self._seconds, until - loop.time()))
                    visit = Visit(
                        effect, max_body, fetch, seconds=seconds, denies_third_party=self._denies_third_party,
                        slot_of=self._slot_of,
                    )  # fmt: skip
                    try:
                        return await visit.run(running.browser)
                    except Error as error:
                        why = error.message.partition("\n")[0]
                        if running.browser.is_connected():
                            break
                    finally:
                        running.is_grown = running.is_grown or visit.is_stuck
        return Failure(Reason.NOT_RENDERED, f"the browser says {why}", effect.page.sent_ago, effect.page.status)

    def _slot_of(self, domain: str) -> asyncio.Semaphore:
        slot = self._slots.get(domain)
        if slot is None:
            slot = self._slots[domain] = asyncio.Semaphore(IN_FLIGHT)
        return slot

    @contextlib.asynccontextmanager
    async def _browser(self) -> AsyncIterator[_Running]:
        """Yield the browser, started if there is none, or if it ended or has shown enough pages."""
        async with self._opening:
            if self._is_closed:
                raise PolicyError("This renderer is closed. Keep it open for longer.")
            running = self._running
            if running is None or running.is_spent:
                if running is not None:
                    await running.retire()
                running = self._running = await _Running.start(self._memory)
            running.served += 1
            running.visits += 1
        try:
            yield running
        finally:
            running.visits -= 1
            if running is not self._running:
                await running.retire()

    async def close(self) -> None:
        """End the browser. Idempotent."""
        self._is_closed = True
        if self._running is None or self._loop is not asyncio.get_running_loop():
            return
        async with self._opening:
            await self._running.end()


class _Running:
    """One running browser."""

    def __init__(self, playwright: Playwright, browser: Browser, session: CDPSession, memory: int) -> None:
        self._playwright = playwright
        self.browser = browser
        self._session = session
        self._memory = memory
        self.served = 0
        """Pages shown, those in progress included."""
        self.visits = 0
        """Pages in progress."""
        self.is_grown = False
        """True if it holds memory that only its end frees."""
        self._watch = asyncio.ensure_future(self._watch_memory())

    @classmethod
    async def start(cls, memory: int) -> _Running:
        """Start a browser. Raises PolicyError if there is none."""
        playwright = await async_playwright().start()
        try:
            browser = await _launched(playwright, memory)
            session = await browser.new_browser_cdp_session()
        except Error as error:
            await playwright.stop()
            raise PolicyError(
                f"No browser can be started: {_first_line(error)}. Install Chromium from your system's packages, or "
                "run: playwright install chromium."
            ) from error
        return cls(playwright, browser, session, memory)

    @property
    def is_spent(self) -> bool:
        """Return whether another browser is needed."""
        return self.served >= SERVED or self.is_grown or not self.browser.is_connected()

    async def retire(self) -> None:
        """End the browser if no page is in progress; else the last page ends it."""
        if not self.visits:
            await self.end()

    async def end(self) -> None:
        """End the browser at once."""
        self._watch.cancel()
        with contextlib.suppress(Error):
            await self.browser.close()
        await self._playwright.stop()

    async def _watch_memory(self) -> None:
        """End each page whose process has grown beyond the limit, and note it if the browser itself has."""
        with contextlib.suppress(Error):  # the browser has ended
            while True:
                found = await self._session.send("SystemInfo.getProcessInfo")
                for process in found["processInfo"]:
                    if _private_bytes(process["id"]) <= self._memory:
                        continue
                    if process["type"] == "renderer":
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(process["id"], signal.SIGKILL)
                    else:
                        self.is_grown = True
                await asyncio.sleep(EVERY)


async def _launched(playwright: Playwright, memory: int) -> Browser:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    heap = f"--js-flags=--max-old-space-size={max(32, memory // MIB // 2)}"

    async def launch(sandbox: bool) -> Browser:
        return await playwright.chromium.launch(
            executable_path=program, args=[*FLAGS, heap], proxy={"server": NOWHERE}, chromium_sandbox=sandbox,
            handle_sigint=False, handle_sigterm=False, handle_sighup=False,
        )  # fmt: skip

    if os.name == "posix" and os.geteuid() == 0:  # Chromium refuses its sandbox to root
        return await launch(False)
    try:
        return await launch(True)
    except Error as error:
        if "sandbox" not in error.message:
            raise
        _log.warning("The browser runs without its sandbox, because this system does not allow it")
        return await launch(False)


def _private_bytes(process: int) -> int:
    """Return the memory that belongs to a process alone; 0 if it is unknown."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:  # the process has ended, or this is another system
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def _first_line(error: Error) -> str:
    return error.message.strip().partition("\n")[0].rstrip(".")

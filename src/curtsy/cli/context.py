"""Global options, the resources that they open, exit codes, and the runner of async commands."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    import asyncio

    from curtsy.cache.keys import PageCache
    from curtsy.cli.trace import Listener
    from curtsy.client import AsyncClient
    from curtsy.core.errors import Reason
    from curtsy.settings import Settings
    from curtsy.stores import Store


T = TypeVar("T")


class Exit(IntEnum):
    """Exit code of a command. The numbers are part of the public interface."""

    FINE = 0
    ERROR = 1
    USAGE = 2
    REFUSED = 3
    """curtsy refused to send the request, and waiting does not help."""

    BAD_STATUS = 22
    """The site answered with an error status, as with curl's `--fail`."""

    OUTPUT = 74
    """An output cannot be opened, was closed, was replaced or lacks pages (EX_IOERR)."""

    LATER = 75
    """Try again later; the message says when (EX_TEMPFAIL)."""

    CONFIGURATION = 78
    """The settings are wrong, or need a missing library (EX_CONFIG)."""

    INTERRUPTED = 130


_BEST_FIRST = (
    Exit.FINE, Exit.LATER, Exit.REFUSED, Exit.BAD_STATUS, Exit.ERROR, Exit.OUTPUT, Exit.USAGE,
    Exit.CONFIGURATION, Exit.INTERRUPTED,
)  # fmt: skip


def worst(codes: Iterable[Exit]) -> Exit:
    """Return the most severe exit code; temporary errors rank lowest."""
    return max(codes, key=_BEST_FIRST.index, default=Exit.FINE)


def exit_for(reason: Reason | None, retry_after: float | None) -> Exit:
    """Return the exit code for the result of one URL."""
    from curtsy.core.errors import REFUSALS, Reason

    if reason is None:
        return Exit.FINE
    if reason is Reason.INVALID_URL:
        return Exit.USAGE
    if retry_after is not None:
        return Exit.LATER
    if reason is Reason.HTTP_STATUS:
        return Exit.BAD_STATUS
    if reason in REFUSALS and reason not in (Reason.NOT_IN_CACHE, Reason.CLOSED):
        return Exit.REFUSED
    return Exit.ERROR


@dataclass
class CommandContext:
    """Global options, given before or after the command's name; the last one wins."""

    config: str | None = None
    preset: str | None = None
    store: str | None = None
    user_agent: str | None = None
    log_level: str | None = None
    allow_private: bool = False
    _settings: Settings | None = field(default=None, repr=False)

    @property
    def arguments(self) -> dict[str, Any]:
        """Given options, as arguments of `load()` and `AsyncClient`."""
        found = {"config": self.config, "preset": self.preset, "store": self.store, "user_agent": self.user_agent}
        given: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
        return given | ({"allow_private": True} if self.allow_private else {})

    def settings(self) -> Settings:
        """Return all settings, read once; start to show the library's log. Raises PolicyError."""
        if self._settings is None:
            from curtsy.settings import load, new_notices
            from curtsy.system.log import library_logger

            self._settings = load(**self.arguments)
            self._listen(self._settings)
            for each in new_notices(self._settings):
                library_logger("settings").warning(each)
        return self._settings

    def _listen(self, settings: Settings) -> None:
        """Show warnings; lower levels only if the user set a log level."""
        from curtsy.cli.logs import listen

        is_asked = self.log_level is not None or settings.origin(None, "log_level") != "built-in"
        listen((self.log_level or settings.log_level) if is_asked else "warn", settings.log_format)

    def open_store(self) -> Store:
        """Open the store without a fallback, so that an unreadable store raises."""
        from curtsy.stores import open_store

        return open_store(self.settings().store, fallback=False)

    def open_shared_store(self) -> Store:
        """Open the store for a change that other programs must see. Raises UsageError for memory."""
        from curtsy.stores.url import parse_store_url

        place = self.settings().store
        if place is not None and parse_store_url(place)[0] == "memory":
            raise click.UsageError(
                "the store is in memory, which other programs cannot see. Name the store that yours uses: "
                "--store sqlite:///FILE or redis://HOST."
            )
        return self.open_store()

    def command(self, words: str) -> str:
        """Return another command line for the same configuration and store."""
        from curtsy.core.secrets import mask_url

        options = [("--config", self.config), ("--store", None if self.store is None else mask_url(self.store))]
        return shlex.join(["curtsy", *words.split(), *(each for pair in options if pair[1] for each in pair if each)])

    def open_cache(self) -> PageCache:
        """Open the page cache that the client uses."""
        settings = self.settings()
        path, size = cache_path(settings), settings.cache_size
        limit = 2**62 if size is None else size  # beyond any disk
        if path.suffix == ".sqlite":
            from curtsy.cache.packed import PackedCache

            return PackedCache(path, max_size=limit)
        from curtsy.cache.disk import DiskCache

        return DiskCache(path, max_size=limit)

    @asynccontextmanager
    async def open_client(self, listener: Listener, **options: Any) -> AsyncIterator[AsyncClient]:
        """Open a client that reports its steps to a listener."""
        from curtsy.cli.trace import TracedSender, TracedStore
        from curtsy.client import AsyncClient
        from curtsy.http.proxy import check_environment
        from curtsy.http.sender import HttpSender
        from curtsy.stores import open_async_store

        check_environment()
        settings = self.settings()
        store = TracedStore(open_async_store(settings.store, share=settings.outage_share), listener)
        sender = TracedSender(HttpSender(use_environment=True), listener)
        try:
            # A command ends before a background revalidation could finish.
            fixed = {"store": store, "sender": sender, "stale_while_revalidate": False}
            async with AsyncClient(**{**self.arguments, **fixed, **options}) as client:
                yield client
        finally:
            await store.close()


def cache_path(settings: Settings) -> Any:
    """Return the path of the page cache: a folder, or one file if its name ends in `.sqlite`."""
    from platformdirs import user_cache_path

    return settings.cache_dir or user_cache_path("curtsy", appauthor=False)


def _take(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None and parameter.name is not None:
        setattr(context.ensure_object(CommandContext), parameter.name, value)


class ContextOption(click.Option):
    """Global option; the help lists these under a separate heading."""

    def __init__(self, *names: str, **attributes: Any) -> None:
        super().__init__(list(names), expose_value=False, callback=_take, default=None, **attributes)


GLOBAL_OPTIONS: tuple[click.Option, ...] = (
    ContextOption("--config", metavar="FILE", help="Read this settings file instead of the project's."),
    ContextOption(
        "--preset",
        type=click.Choice(["gentle", "broad", "own"]),
        metavar="NAME",
        help="Base settings: gentle (default), broad (no global limit) or own (your own site: no limits).",
    ),
    ContextOption("--store", metavar="URL", help="Store of host records: sqlite:///FILE, redis://HOST, memory:"),
    ContextOption("--user-agent", metavar="TEXT", help="User agent; name a page with your contact."),
    ContextOption(
        "--log-level",
        type=click.Choice(["debug", "info", "warn", "error"], case_sensitive=False),
        metavar="LEVEL",
        help="Log to stderr from this level on: debug, info, warn, error.",
    ),
    ContextOption("--allow-private", is_flag=True, flag_value=True, help="Permit private and loopback addresses."),
)
"""Global options of the group and of each command."""


PATIENCE = 10.0
"""Maximum seconds for cleanup after a signal."""

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that stop a command gracefully: Ctrl-C, service stop, closed terminal."""


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end. The first signal cancels it with cleanup, the second exits at once.

    Raises KeyboardInterrupt if a signal ended it.
    """
    import asyncio

    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(_watched(work))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop factory if installed (`curtsy[fast]`); None for asyncio's default."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


async def _watched(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    import asyncio

    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if stopping:
            leave()
        stopping = True
        task.cancel()
        loop.call_later(PATIENCE, leave)

    try:
        for each in SIGNALS:
            loop.add_signal_handler(each, stop)
    except NotImplementedError:  # Windows: asyncio itself cancels on Ctrl-C
        pass
    return await work()


def leave() -> NoReturn:
    """Exit at once; leases held now expire by themselves."""
    os._exit(Exit.INTERRUPTED)

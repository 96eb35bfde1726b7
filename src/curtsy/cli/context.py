"""Global options, the resources that they open, exit codes, and the runner of async commands."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    import asyncio

    from curtsy.cache.keys import PageCache
    from curtsy.cli.trace import Trace
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
    if retry_after is not None or reason is Reason.STORE_UNREACHABLE:
        return Exit.LATER
    if reason is Reason.HTTP_STATUS:
        return Exit.BAD_STATUS
    if reason in REFUSALS and reason not in (Reason.NOT_IN_CACHE, Reason.CLOSED):
        return Exit.REFUSED
    return Exit.ERROR


@dataclass
class CommandContext:
    """Global options, given before or after the command's name; the last one wins."""

    arguments: dict[str, Any] = field(default_factory=dict)
    """Given options, as arguments of `load()` and `AsyncClient`."""

    log_level: str | None = None
    _settings: Settings | None = field(default=None, repr=False)

    def with_settings(self, settings: Mapping[str, Any]) -> CommandContext:
        """Return a copy with these settings as further global options."""
        return CommandContext({**self.arguments, **settings}, self.log_level)

    def settings(self) -> Settings:
        """Return all settings, read once; start to show the library's log. Raises PolicyError."""
        if self._settings is None:
            from curtsy.cli.console import listen
            from curtsy.settings import load, new_notices
            from curtsy.system.log import library_logger

            self._settings = load(**self.arguments)
            level = self.log_level
            if level is None:  # without a level of the user's, show only warnings
                level = self._settings.log_level if self.is_level_set else "warn"
            listen(level, self._settings.log_format)
            for each in new_notices(self._settings):
                library_logger("settings").warning(each)
        return self._settings

    @property
    def is_level_set(self) -> bool:
        """True if the user set a log level, by an option or a setting."""
        return self.log_level is not None or self.settings().origin(None, "log_level") != "built-in"

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
        from curtsy.core.masking import mask_url

        options = [
            (f"--{name}", mask_url(self.arguments[name])) for name in ("config", "store") if name in self.arguments
        ]
        return shlex.join(["curtsy", *words.split(), *(each for pair in options for each in pair)])

    def open_cache(self) -> PageCache:
        """Open the page cache that the client uses."""
        from curtsy.cache.opening import cache_path, open_cache

        settings = self.settings()
        return open_cache(cache_path(settings.cache_dir), settings.cache_size)

    @asynccontextmanager
    async def open_client(self, trace: Trace, **options: Any) -> AsyncIterator[AsyncClient]:
        """Open a client that reports its steps."""
        from curtsy.cli.trace import TracedSender, TracedStore
        from curtsy.client import AsyncClient
        from curtsy.http.proxy import check_environment
        from curtsy.stores import open_async_store

        check_environment()
        settings = self.settings()
        store = TracedStore(open_async_store(settings.store, **settings.outages()), trace)
        # A command ends before a background revalidation could finish.
        fixed = {
            "store": store, "sender": TracedSender(trace), "stale_while_revalidate": False,
            "max_outage": settings.max_outage or MAX_OUTAGE,
        }  # fmt: skip
        try:
            async with AsyncClient(**{**self.arguments, **fixed, **options}) as client:
                yield client
        finally:
            await store.close()


def _take(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    given = context.ensure_object(CommandContext)
    if parameter.name == "log_level":
        given.log_level = value or given.log_level
    elif value is not None and parameter.name is not None:
        given.arguments[parameter.name] = value


def _option(*names: str, **attributes: Any) -> click.Option:
    return click.Option(names, expose_value=False, callback=_take, default=None, **attributes)


GLOBAL_OPTIONS = (
    _option("--config", metavar="FILE", help="Read this settings file instead of the project's."),
    _option(
        "--preset", type=click.Choice(["gentle", "broad", "own"]), metavar="NAME",
        help="Base settings: gentle (default), broad (no global limit) or own (your own site: no limits).",
    ),
    _option("--store", metavar="URL", help="Store of host records: sqlite:///FILE, redis://HOST, memory:"),
    _option("--user-agent", metavar="TEXT", help="User agent; name a page with your contact."),
    _option(
        "--log-level", type=click.Choice(["debug", "info", "warn", "error"], case_sensitive=False), metavar="LEVEL",
        help="Log to stderr from this level on: debug, info, warn, error.",
    ),
    _option("--allow-private", is_flag=True, flag_value=True, help="Permit private and loopback addresses."),
)  # fmt: skip
"""Global options of the group and of each command; the help lists them under a separate heading."""

MAX_OUTAGE = 60.0
"""Seconds that a command which fetches single URLs waits for a store that does not answer."""

PATIENCE = 10.0
"""Maximum seconds for cleanup after a signal."""

SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
"""Signals that stop a command gracefully: Ctrl-C, service stop, closed terminal."""


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end. The first signal cancels it with cleanup, the second exits at once.

    Raises KeyboardInterrupt if a signal ended it.
    """
    import asyncio
    import gc

    gc.freeze()  # the modules are never freed: without them, a collection during a crawl stops the loop half as long
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

    def stop() -> None:
        if task.cancelling():
            leave()
        task.cancel()
        loop.call_later(PATIENCE, leave)

    handle_signals(stop)
    return await work()


def handle_signals(handler: Callable[[], None]) -> None:
    """Call a function on each signal in the running event loop."""
    import asyncio

    with suppress(NotImplementedError):  # Windows: asyncio itself cancels on Ctrl-C
        for each in SIGNALS:
            asyncio.get_running_loop().add_signal_handler(each, handler)


def leave() -> NoReturn:
    """Exit at once; leases held now expire by themselves."""
    os._exit(Exit.INTERRUPTED)

"""Global options of all commands, and the resources that they open."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from curtsy.cache.keys import PageCache
    from curtsy.cli.trace import Listener
    from curtsy.client import AsyncClient
    from curtsy.settings import Settings
    from curtsy.stores import Store


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
                "the store is memory, which no other program can see. Name the one that yours uses: "
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
        from curtsy.http.sender import AiohttpSender, check_environment
        from curtsy.stores import open_async_store

        check_environment()
        store = TracedStore(open_async_store(self.settings().store), listener)
        sender = TracedSender(AiohttpSender(use_environment=True), listener)
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


GIVEN_OPTIONS: tuple[click.Option, ...] = (
    ContextOption("--config", metavar="FILE", help="Read this settings file instead of the project's."),
    ContextOption(
        "--preset",
        type=click.Choice(["gentle", "broad", "own"]),
        metavar="NAME",
        help="Start from gentle (the default), broad (no global limit) or own (a site of yours: no limits).",
    ),
    ContextOption("--store", metavar="URL", help="Remember hosts there: sqlite:///FILE, redis://HOST, memory:"),
    ContextOption("--user-agent", metavar="TEXT", help="Who we say we are; name a page where you can be reached."),
    ContextOption(
        "--log-level",
        type=click.Choice(["debug", "info", "warn", "error"], case_sensitive=False),
        metavar="LEVEL",
        help="Show log lines (on standard error) from debug, info, warn or error on.",
    ),
    ContextOption("--allow-private", is_flag=True, flag_value=True, help="Also ask private and loopback addresses."),
)
"""Global options of the group and of each command."""

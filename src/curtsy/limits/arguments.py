"""Arguments of the parts: checks whose errors name the argument, and the program's settings as their default."""

from __future__ import annotations

from typing import TYPE_CHECKING

from curtsy.core.errors import InvalidDomain
from curtsy.core.setting import rule
from curtsy.core.url import parse_domain
from curtsy.stores import AsyncStore, BlockingStore, MemoryStore, Store, open_store
from curtsy.stores.blocking import for_threads, is_store
from curtsy.system.log import library_logger

if TYPE_CHECKING:
    from curtsy.settings.live import LiveSettings

_log = library_logger("guards")


def opened(store: str | Store | None) -> BlockingStore:
    """Return the store of a part; None opens a private one in memory. Raises PolicyError if it is not a store."""
    if store is None:
        return MemoryStore()
    if isinstance(store, str):
        return open_store(store)
    if not is_store(store) or isinstance(store, AsyncStore):
        raise rule("store", store, "a store such as open_store('sqlite:///state.sqlite'), its URL, or left out")
    return for_threads(store)


def program_settings() -> LiveSettings:
    """Return the settings of the whole program, and log their warnings. Raises PolicyError."""
    from curtsy.settings import new_notices
    from curtsy.settings.live import LiveSettings  # late import: settings are slow to import

    live = LiveSettings()
    for warning in (*live.current.warnings, *new_notices(live.current)):
        _log.warning(warning)
    return live


def checked_key(key: str) -> str:
    """Return the name of a record if it is text; raise PolicyError otherwise."""
    if not isinstance(key, str):
        raise rule("key", key, "text, the name of a record in the store")
    return key


def named_domain(argument: str, domain: str) -> str:
    """Return the canonical domain. An InvalidDomain error names the argument."""
    try:
        return parse_domain(domain)
    except InvalidDomain as error:
        raise InvalidDomain(f"{argument}: {error}") from None

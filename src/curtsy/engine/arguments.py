"""Checks of the parts and callbacks that a client is given. Errors name the argument."""

from __future__ import annotations

import inspect
import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from curtsy.core.errors import PolicyError
from curtsy.core.masking import mask_url
from curtsy.core.setting import HINTS, OTHER_NAMES, rule, suggested
from curtsy.engine.keywords import ClientKeywords, FetchKeywords
from curtsy.stores.blocking import is_store
from curtsy.stores.url import check_path


def check_parts(**given: object) -> None:
    """Check the arguments that are not settings: the client's parts and callbacks.

    Raises PolicyError for the first wrong value.
    """
    for name, value in given.items():
        is_right, must = _PARTS[name]
        if not is_right(value):
            raise wrong(name, value, must)
        if name == "cache" and isinstance(value, str | os.PathLike):
            check_path(name, value)


def check_names(given: Iterable[str], own: Iterable[str], what: str, *, unused: Iterable[str] = ()) -> None:
    """Raise PolicyError for a misspelled argument of a callable that takes those of a client too.

    `own` names the arguments that the client does not have, `unused` those of the client that the callable does not
    accept. The client reports the other unknown names.
    """
    own = list(own)
    known = [*own, *(ClientKeywords.__annotations__.keys() - unused)]
    for name in given:
        if name not in known and (near := suggested(name, sorted(known))) in own:
            raise PolicyError(f"{name} is not an argument of {what}. Did you mean {near}?{_more(name)}")


def check_options(options: Iterable[str]) -> None:
    """Raise PolicyError for a keyword that is not an argument of `fetch`."""
    known = FetchKeywords.__annotations__
    for name in options:
        if name in known:
            continue
        near = suggested(name, [*known, "max_in_flight"])
        hint = f" Did you mean {near}?" if near else ""
        if not near and (meant := OTHER_NAMES.get(name, name)) in ClientKeywords.__annotations__:
            hint = f" {'It' if meant == name else meant} is an argument of the client, for all its fetches."
        raise PolicyError(f"{name} is not an argument of a fetch.{hint}{_more(name)}")


def _more(name: str) -> str:
    return f" {HINTS[name]}" if name in HINTS else ""


def portable(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a client for a pickle. Raises PolicyError for a part that is open in this process."""
    for name in ("store", "cache", "sender", "clock", "timers", "verify", "render"):
        value = given.get(name)
        if value is not None and not isinstance(value, str | os.PathLike | bool):
            raise PolicyError(
                f"this client cannot be pickled: its {name} is an object of this process. Give a URL or a path "
                "instead, or create the client in the process that uses it."
            )
    return dict(given)


def wrong(name: str, value: object, must: str) -> PolicyError:
    """Return the error for a value that may be, or contain, a URL with a password. It masks the password.

    A path is named by its type only: `Path` turns `//` into `/`, and such a URL is not recognized.
    """
    shown = type(value).__name__ if isinstance(value, os.PathLike) else value
    return PolicyError(mask_url(str(rule(name, shown, must))))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def is_path(value: object) -> bool:
    """Return whether the value can be a path."""
    return isinstance(value, os.PathLike) or (isinstance(value, str) and value != "")


def _is_hearer(value: object) -> bool:
    """Return whether the value is None or a synchronous callable.

    Coroutine functions and generators are refused because the caller ignores their return value.
    """
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    is_deferred = any(is_kind(value) or is_kind(type(value).__call__) for is_kind in kinds)
    return value is None or (callable(value) and not is_deferred)


def _hearer(what: str) -> str:
    return f"a function that takes a {what}, and neither async nor a generator. Start a task in it for what it awaits"


def _has(*methods: str) -> Callable[[object], bool]:
    """Return a check for None or an object with these methods."""

    def is_right(value: object) -> bool:
        is_made = not isinstance(value, type) and all(callable(getattr(value, each, None)) for each in methods)
        return value is None or is_made

    return is_right


_is_renderer = _has("render", "close")
_is_cache = _has("get", "keep", "refresh", "drop", "close")

_PARTS: dict[str, tuple[Callable[[object], bool], str]] = {
    "store": (
        lambda value: value is None or isinstance(value, str) or is_path(value) or is_store(value),
        "a URL such as 'redis://host' or 'sqlite:///state.sqlite', the Path of an SQLite file, or a store",
    ),
    "cache": (
        lambda value: isinstance(value, bool) or is_path(value) or _is_cache(value),
        "a folder, a file that ends in .sqlite, a cache such as DiskCache('pages'), or False for none",
    ),
    "stale_while_revalidate": (_is_flag, "True or False"),
    "cookies": (_is_flag, 'True or False. Cookies of your own are headers={"Cookie": …} of a fetch'),
    "on_record": (_is_hearer, _hearer("FetchRecord")),
    "extract": (
        _is_hearer,
        "selectors by name, or a function that takes a CrawledPage and returns a dict, neither async nor a generator",
    ),
    "on_progress": (_is_hearer, _hearer("Snapshot")),
    "proxy": (
        lambda value: value is None or isinstance(value, str),
        "an http or https URL, such as http://proxy.example:3128",
    ),
    "verify": (
        lambda value: _is_flag(value) or is_path(value) or isinstance(value, ssl.SSLContext),
        "True, the path of a CA file or folder, or an ssl.SSLContext",
    ),
    "sender": (_has("send", "stream", "locate", "close"), "a Sender, with send(), stream(), locate() and close()"),
    "render": (
        lambda value: _is_flag(value) or (value is not None and _is_renderer(value)),
        "True or False, or a renderer such as Chromium(seconds=10)",
    ),
    "clock": (_has("now", "timers"), "a FakeClock, or left out for real time"),
    "timers": (_has("now", "waiter", "sleep", "stop_while"), "a Timers, or left out for real time"),
}  # fmt: skip
"""For each argument: its check, and the description of a valid value."""

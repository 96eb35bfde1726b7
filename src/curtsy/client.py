"""Client for tasks: `AsyncClient`, and `fetch_url()` for a single URL."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Never, Self, TypeVar, Unpack
from urllib.parse import urlencode

import msgspec

from curtsy.cache.keys import PageCache
from curtsy.core.effects import FetchRequest
from curtsy.core.errors import PolicyError
from curtsy.core.policy import Policies
from curtsy.core.record import FetchRecord
from curtsy.core.request import NO_HEADERS, Headers
from curtsy.core.result import FetchResult
from curtsy.core.setting import number, rule, whole
from curtsy.core.statistics import StatisticsSnapshot
from curtsy.engine.arguments import check_names, check_options, check_parts, is_path, portable
from curtsy.engine.batch import MAX_IN_FLIGHT, Batch, NoUrl
from curtsy.engine.download import GIB, DownloadResult, Part
from curtsy.engine.keywords import ClientKeywords, FetchKeywords, GetKeywords, SettingKeywords
from curtsy.engine.renderer import Renderer
from curtsy.engine.session import Session
from curtsy.engine.timers import Timers, VirtualClock
from curtsy.http.proxy import check_environment
from curtsy.http.sender import HttpSender, Sender
from curtsy.settings import CacheMode, Preset, names_contact, new_notices
from curtsy.settings.live import LiveSettings
from curtsy.stores import AsyncStore, Store
from curtsy.stores.url import check_path
from curtsy.system.log import LibraryLogger, library_logger

_log: LibraryLogger = library_logger("client")

T = TypeVar("T")


class AsyncClient:
    """Polite HTTP client for tasks. Any number of tasks may share one.

    Settings come from files and the environment. Keyword arguments override them; every key of the settings' reference
    is accepted. `store` is a URL such as `redis://host` or `sqlite:///state.sqlite`, the `Path` of an SQLite file, or a
    store. `cache` is a folder of readable files, a file that ends in `.sqlite`, a cache, or False for no cache. By
    default it is such a file in the user's cache directory. If a site allows it, a stale cached page is returned
    immediately and revalidated afterwards, while the client is open. Without `stale_while_revalidate`, it is
    revalidated first. `max_in_flight` limits the requests in flight over all hosts. With `cookies`, the client keeps
    cookies until it is closed, each for the host that set it. `on_record` is called with the record of each fetch. With
    a `curtsy.testing.FakeClock` as `clock`, waits take no real time. With `render`, a browser runs the scripts of each
    page, whose body is then the DOM (extra `render`). Instead of True, it may be a `curtsy.rendering.chromium.Chromium`
    with other limits; the client closes it. A pickled client is its arguments: unpickling creates a new client.
    Settings files and the environment are then those of the other process.
    """

    def __init__(
        self,
        *,
        preset: Preset | None = None,
        config: str | os.PathLike[str] | None = None,
        store: str | os.PathLike[str] | Store | AsyncStore | None = None,
        cache: str | os.PathLike[str] | PageCache | bool | None = None,
        cache_mode: CacheMode | None = None,
        stale_if_error: float = 0.0,
        stale_while_revalidate: bool = True,
        user_agent: str | None = None,
        allow_private: bool | None = None,
        respect_robots: bool | None = None,
        max_retries: int | None = None,
        deadline: float | None = None,
        on_record: Callable[[FetchRecord], None] | None = None,
        proxy: str | None = None,
        verify: bool | str | os.PathLike[str] | ssl.SSLContext = True,
        cookies: bool = False,
        max_in_flight: int = 100,
        sender: Sender | None = None,
        clock: VirtualClock | None = None,
        timers: Timers | None = None,
        render: bool | Renderer = False,
        **settings: Unpack[SettingKeywords],
    ) -> None:
        self._given = {name: value for name, value in {**locals(), **settings}.items() if name not in _NOT_GIVEN}
        check_parts(
            store=store, cache=cache, stale_while_revalidate=stale_while_revalidate, on_record=on_record, proxy=proxy,
            verify=verify, cookies=cookies, sender=sender, clock=clock, timers=timers, render=render,
        )  # fmt: skip
        named = {
            "user_agent": user_agent,
            "allow_private": allow_private,
            "respect_robots": respect_robots,
            "cache_mode": cache_mode,
            "store": store if isinstance(store, str | os.PathLike) else None,
        }
        given: dict[str, Any] = {**settings, **{name: value for name, value in named.items() if value is not None}}
        if max_retries is not None:
            whole("max_retries", max_retries, 0)
        whole("max_in_flight", max_in_flight, 1)
        number("stale_if_error", stale_if_error)
        self._deadline = None if deadline is None else number("deadline", deadline)
        self._session = Session(
            _live_settings(config, preset, given), sender or _sender(proxy, verify, max_in_flight),
            store=store, cache=cache, stale_if_error=stale_if_error, stale_while_revalidate=stale_while_revalidate,
            max_retries=max_retries, on_record=on_record, cookies=cookies, clock=clock, timers=timers,
            renderer=_renderer(render),
        )  # fmt: skip

    @property
    def policies(self) -> Policies:
        """Return the policies in force. Changed files are read again."""
        return self._session.policies

    async def fetch(
        self,
        url: str,
        *,
        method: str | None = None,
        params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
        headers: Mapping[str, str] | None = None,
        json: Any = None,
        body: bytes | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        idempotent: bool | None = None,
        **unknown: Never,
    ) -> FetchResult:
        """Fetch one URL when its turn comes. Web errors do not raise: check `ok` and `reason`.

        A URL without a scheme is refused (`invalid_url`), and the message says what to write. Unlike a seed of a crawl,
        it may be a relative link: `install.sh` would be requested from the host of that name.
        `method` is GET by default, and POST with a body. `params` are added to the query of the URL: a mapping or
        pairs, values of a list one by one, None left out. `json` is sent as the body, as JSON. `timeout` is the limit
        for each attempt in seconds, in place of the setting. `deadline` is the limit for the whole fetch, waits and
        retries included; a deadline that cannot be met is refused immediately. `idempotent` allows retries of methods
        other than GET and HEAD. Tasks that request the same page at the same time share one fetch.
        """
        check_options(unknown)
        patience = self._deadline if deadline is None else _patience_of(deadline)
        ask = _ask_for(url, method, params, headers, json, body, timeout, patience, idempotent)
        return await self._session.fetch(ask)

    async def fetch_many(
        self, urls: Iterable[str], *, max_in_flight: int = MAX_IN_FLIGHT, **options: Unpack[FetchKeywords]
    ) -> AsyncGenerator[FetchResult, None]:
        """Fetch many URLs with the same options and yield each result as it arrives. Failures do not stop others.

        `urls` is read while fewer than `max_in_flight` fetches are active. While a host has a hundred active fetches,
        other hosts go first: up to 10,000 of its URLs are deferred to find them.
        """
        batch = Batch(urls, max_in_flight)
        check_options(options)
        under_way: dict[asyncio.Task[FetchResult], str] = {}
        done: asyncio.Queue[asyncio.Task[FetchResult]] = asyncio.Queue()  # asyncio.wait() would scan all tasks
        try:
            while True:
                while (url := batch.next()) is not NoUrl.NOW:
                    if url is not NoUrl.YET:
                        task = asyncio.ensure_future(self.fetch(url, **options))
                        under_way[task] = url
                        task.add_done_callback(done.put_nowait)
                    elif done.empty():
                        await asyncio.sleep(0)  # without a result yet, there is time to read on
                    else:
                        break
                if not under_way:
                    return
                task = await done.get()
                batch.end(under_way.pop(task))
                yield task.result()
        finally:
            for task in under_way:
                task.cancel()
            await asyncio.gather(*under_way, return_exceptions=True)

    async def download(
        self,
        url: str,
        path: str | os.PathLike[str],
        *,
        max_size: int | None = GIB,
        deadline: float | None = None,
        decode: bool = False,
    ) -> DownloadResult:
        """Save a URL as a file when its turn comes. The file appears only when it is complete.

        A partial file of an earlier attempt is resumed if the server can. The body is limited to `max_size` bytes.
        `deadline` is in seconds and covers the time before the body; the body may take any time while data arrives. The
        file has the bytes that the server sends. `decode` decodes a Content-Encoding; such a body cannot be resumed.
        """
        ask = FetchRequest(url, deadline=_patience_of(deadline))
        return await self._session.download(ask, _part_for(url, path, max_size, decode))

    def stats(self) -> StatisticsSnapshot:
        """Return the counts of this client so far."""
        return self._session.counters.snapshot()

    async def close(self) -> None:
        """End active fetches and close all resources. Idempotent.

        A cancelled caller does not stop it: call it again to wait for its end.
        """
        await self._session.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return open_again, (type(self), portable(self._given))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


_NOT_GIVEN = ("self", "settings")


def open_again(kind: type[T], given: Mapping[str, Any]) -> T:
    """Return a new client with the arguments of a pickled one."""
    return kind(**given)


def _patience_of(deadline: float | None) -> float | None:
    """Return the seconds that a fetch may take; 0 for a negative deadline, None without one."""
    if deadline is None:
        return None
    is_over = isinstance(deadline, int | float) and deadline < 0
    return 0.0 if is_over else number("deadline", deadline)


def _ask_for(
    url: str,
    method: str | None,
    params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None,
    headers: Mapping[str, str] | None,
    json: Any,
    body: bytes | None,
    timeout: float | None,
    deadline: float | None,
    idempotent: bool | None,
) -> FetchRequest:
    """Return the checked request for `fetch`."""
    if method is not None and not isinstance(method, str):
        raise rule("method", method, "text, such as GET")
    if body is not None and not isinstance(body, bytes):
        raise rule("body", type(body).__name__, "bytes. Encode text first")
    if idempotent is not None and not isinstance(idempotent, bool):
        raise rule("idempotent", idempotent, "True or False")
    fields = _headers(headers) if headers else NO_HEADERS
    if json is not None:
        if body is not None:
            raise PolicyError("json and body are both given, and a request has one body. Leave one of them out.")
        body = _json_body(json)
        if "content-type" not in fields:
            fields = Headers((*fields.fields, ("Content-Type", "application/json")))
    if timeout is not None:
        number("timeout", timeout, above=True)
    sent = method.upper() if method is not None else "GET" if body is None else "POST"
    asked = url if params is None else _with_query(url, params)
    return FetchRequest(asked, sent, fields, body, deadline, idempotent, timeout=timeout)


def _json_body(value: Any) -> bytes:
    """Return a value as JSON. Raises PolicyError if it cannot be written so."""
    try:
        return msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise PolicyError(f"json = {type(value).__name__} cannot be written as JSON: {error}.") from error


def _in_query(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_query(url: str, params: Mapping[str, Any] | Sequence[tuple[str, Any]]) -> str:
    """Return a URL with parameters added to its query. Raises PolicyError for parameters of another form."""
    pairs: list[tuple[str, str]] = []
    given = params.items() if isinstance(params, Mapping) else params
    try:
        for name, value in given:
            several = value if isinstance(value, list | tuple) else (value,)
            pairs += [(str(name), _in_query(each)) for each in several if each is not None]
    except (TypeError, ValueError):
        raise rule("params", type(params).__name__, "a mapping of names and values, or a list of pairs") from None
    if not pairs or not isinstance(url, str):
        return url
    page, mark, fragment = url.partition("#")
    joint = "?" if "?" not in page else "" if page.endswith(("?", "&")) else "&"
    return f"{page}{joint}{urlencode(pairs)}{mark}{fragment}"


def _headers(given: Mapping[str, str]) -> Headers:
    """Return the caller's headers. Raises PolicyError for line ends or NUL in them (F26)."""
    if not isinstance(given, Mapping):
        raise rule("headers", type(given).__name__, "a mapping of names and values")
    fields: tuple[tuple[Any, Any], ...] = given.fields if isinstance(given, Headers) else tuple(given.items())
    for name, value in fields:
        if not (isinstance(name, str) and isinstance(value, str)):
            raise PolicyError(f"header {name!r} must be text, its value too. Write it in quotes.")
        if not name or any(letter in name + value for letter in "\r\n\0"):
            raise PolicyError(f"header {name!r} must not be empty or contain a line end or NUL. Leave it out.")
    return Headers(fields)


def _part_for(url: str, path: str | os.PathLike[str], max_size: int | None, decode: bool) -> Part:
    """Return the checked target of `download`."""
    if not is_path(path):
        raise rule("path", path, "the path of a file")
    check_path("path", path)
    return Part(url, Path(path), None if max_size is None else whole("max_size", max_size, 0), decode)


def session_of(client: AsyncClient) -> Session:
    """Return the session of a client, for other parts of curtsy."""
    return client._session


def _live_settings(
    config: str | os.PathLike[str] | None, preset: Preset | None, given: Mapping[str, Any]
) -> LiveSettings:
    """Load the settings and log their warnings."""
    parameters = AsyncClient.__init__.__kwdefaults__
    settings = LiveSettings(config=config, preset=preset, other_arguments=parameters, **given)
    current = settings.current
    for warning in (*current.warnings, *new_notices(current)):
        _log.warning(warning)
    if not names_contact(current.policies.user_agent):
        _log.warning(
            "The user agent names no contact; add a page or an address where a site's owner can reach you",
            user_agent=current.policies.user_agent,
        )
    return settings


def _renderer(render: bool | Renderer) -> Renderer | None:
    """Return the renderer of a client; None without one. Raises PolicyError if its library is missing."""
    if render is False:
        return None
    if render is True:
        from curtsy.rendering.chromium import Chromium

        return Chromium()
    return render


def _sender(proxy: str | None, verify: bool | str | os.PathLike[str] | ssl.SSLContext, max_in_flight: int) -> Sender:
    """Create the built-in sender."""
    if proxy is None:
        check_environment()
    return HttpSender(
        verify=Path(verify) if isinstance(verify, os.PathLike) else verify,
        proxy=proxy,
        use_environment=True,
        connections=max_in_flight,
        idle=2 * max_in_flight,
    )


def parted(given: GetKeywords) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part the arguments of a single fetch into those of its client and those of `fetch`."""
    own = FetchKeywords.__annotations__.keys() - ClientKeywords.__annotations__.keys()
    settings: dict[str, Any] = {"stale_while_revalidate": False}
    options: dict[str, Any] = {}
    for name, value in given.items():
        (options if name in own else settings)[name] = value
    check_names(settings, own, "a fetch")
    return settings, options


async def fetch_url(url: str, **given: Unpack[GetKeywords]) -> FetchResult:
    """Fetch one URL politely with a temporary client. Pace and budgets come from the default store.

    It takes the arguments of `AsyncClient` and of its `fetch`.
    """
    settings, options = parted(given)
    async with AsyncClient(**settings) as client:
        return await client.fetch(url, **options)

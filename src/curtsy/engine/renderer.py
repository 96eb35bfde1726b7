"""Renderer: interface of a browser that runs the scripts of a page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from curtsy.core.effects import FetchRequest, Render
from curtsy.core.request import Reply
from curtsy.core.result import FetchResult

Fetch = Callable[[FetchRequest], Awaitable[FetchResult]]
"""Function by which a client fetches the parts of a page, by all of its rules."""


class Renderer(Protocol):
    """Interface of a browser that runs the scripts of a page."""

    async def render(self, effect: Render, max_body: int | None, fetch: Fetch) -> Reply:
        """Return the page with its DOM as the body, at most `max_body` bytes; other content is returned as it is.

        A script that leads to another page is a redirect. A page that cannot be rendered is a `Failure`.
        """
        ...

    async def close(self) -> None:
        """End the browser. Idempotent."""
        ...

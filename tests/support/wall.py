"""A wall: a site that shows nothing before its cookie has come back."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.site import Reply, Site, Visit


def wall(site: Site, body: str, *, last: bool = True, asked: Callable[[], object] = lambda: None) -> None:
    """Have each page set a cookie and redirect to itself until it is sent; without `last`, even then.

    `asked` is called with every request.
    """
    count = 0

    def answer(visit: Visit) -> Reply:
        nonlocal count
        count += 1
        asked()
        if last and visit.header("Cookie") == "seen=yes":
            return Reply(body=body, headers={"Content-Type": "text/html"})
        cookie = f"seen={'yes' if last else count}; Path=/"
        return Reply(302, headers=[("Location", visit.path), ("Set-Cookie", cookie)])

    site.on("/*", answer)
    site.robots("")

"""Short ways to send one request in a test."""

from __future__ import annotations

from curtsy.core.request import Failure, Headers, Request, Response
from curtsy.core.url import Url, parse_url
from curtsy.http.sender import Limits, Sender

OPEN = Limits(allow_private=True)
"""The default limits, with loopback permitted."""


def request(
    url: str, method: str = "GET", headers: tuple[tuple[str, str], ...] = (), body: bytes | None = None
) -> Request:
    """A request with the user agent of the tests."""
    parsed = parse_url(url)
    assert isinstance(parsed, Url), parsed
    return Request(parsed, method, Headers([("User-Agent", "tests/1.0"), *headers]), body)


async def get(sender: Sender, url: str, limits: Limits = OPEN, *headers: tuple[str, str]) -> Response:
    """The answer, which must come."""
    reply = await sender.send(request(url, headers=headers), limits)
    assert isinstance(reply, Response), reply
    return reply


async def fail(sender: Sender, url: str, limits: Limits = OPEN, *headers: tuple[str, str]) -> Failure:
    """The failure, which must come."""
    reply = await sender.send(request(url, headers=headers), limits)
    assert isinstance(reply, Failure), reply
    return reply
